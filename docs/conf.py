"""Sphinx: ``python -m pip install ".[docs]" && python -m sphinx -W docs docs/_build``.

``-D plot_gallery=0`` leaves the examples unexecuted, which takes minutes less. Nothing is loaded
from elsewhere, in the build or by the pages; links to scikit-learn's documentation are made if it
can be reached.
"""

import re
import shutil
import urllib.error
import urllib.request
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.domains.python import PythonDomain

from gpurbf import __version__

HERE = Path(__file__).parent

project = "gpurbf"
author = "gpurbf developers"
copyright = author
release = version = __version__

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
templates_path = ["_templates"]
# The gallery's notebooks are for download; its pages are written beside them.
exclude_patterns = ["_build", "gallery/**.ipynb"]

autosummary_generate = True
autodoc_default_options = {"members": True}
autodoc_typehints = "none"  # the docstrings have them in words
python_maximum_signature_line_length = 80
numpydoc_show_class_members = False

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # notebooks are kept with their outputs
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

sphinx_gallery_conf = {
    "examples_dirs": ["../examples"],
    "gallery_dirs": ["gallery"],
    "doc_module": ("gpurbf",),
    "backreferences_dir": "generated/examples",
    "capture_repr": (),
    "download_all_examples": False,
    "min_reported_time": float("inf"),
    "remove_config_comments": True,
    "show_signature": False,
    "write_computation_times": False,
}

html_theme = "pydata_sphinx_theme"
html_title = "gpurbf"
html_static_path = ["_static"]
html_css_files = ["gpurbf.css"]
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "gpurbf"},
    "navbar_align": "left",
    "header_links_before_dropdown": 8,
    "show_prev_next": False,
    "show_toc_level": 2,
    "secondary_sidebar_items": {"**": ["page-toc"], "index": []},
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_sidebars = {"index": [], "install": []}


def reachable(inventory):
    """Whether Sphinx would find this list of another project's pages."""
    try:
        with urllib.request.urlopen(inventory, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


if reachable("https://scikit-learn.org/stable/objects.inv"):
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {"sklearn": ("https://scikit-learn.org/stable", None)}


# Formulas are MathML, which browsers draw themselves: no script, no fonts, nothing to load.
html_math_renderer = "mathml"


MEMBERS = ("method", "property", "attribute")


def visit_math(translator, node):
    translator.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def visit_math_block(translator, node):
    formula = tex2mathml(node.astext(), as_block=True)
    translator.body.append(f'<div class="math">{formula}</div>')
    raise nodes.SkipNode


def links_within_the_site(app, page, source):
    """Notebooks and examples lie beside docs/ in the repository, and inside in the site."""
    text = re.sub(r"\]\((?:\.\./)+notebooks/", "](/notebooks/", source[0])
    text = re.sub(r"\]\((?:\.\./)+examples/([\w/]+)\.py\)", r"](/gallery/\1.rst)", text)
    source[0] = re.sub(r"\]\(\.\./docs/", "](/", text)


class Python(PythonDomain):
    """What has a page of its own is found by the search once: as that page."""

    def get_objects(self):
        for *found, kind, page, anchor, priority in super().get_objects():
            yield *found, kind, page, anchor, priority if kind in MEMBERS else -1


def setup(app):
    app.add_domain(Python, override=True)
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
    app.connect("source-read", links_within_the_site)
    shutil.copytree(
        HERE.parent / "notebooks",
        HERE / "notebooks",
        ignore=lambda folder, names: [name for name in names if not name.endswith(".ipynb")],
        dirs_exist_ok=True,
    )
