"""Sphinx: ``python -m pip install ".[docs]" && python -m sphinx docs docs/_build``."""

from gpurbf import __version__

project = "gpurbf"
author = "gpurbf developers"
copyright = author
release = __version__
extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
]
intersphinx_mapping = {"sklearn": ("https://scikit-learn.org/stable", None)}
exclude_patterns = ["_build"]
autosummary_generate = True
numpydoc_show_class_members = False
autodoc_default_options = {"members": True}
myst_heading_anchors = 3
html_theme = "alabaster"
