"""Where the documentation is, for the "?" in scikit-learn's HTML display of an estimator."""

from __future__ import annotations

import functools
from importlib.metadata import PackageNotFoundError, metadata

__all__ = ["DocLinkMixin"]


class DocLinkMixin:
    """The page of an estimator on the site that the installed package names, if it names one."""

    _doc_link_module = "gpurbf"

    @property
    def _doc_link_template(self) -> str:
        # An empty address is none: scikit-learn shows no "?" then.
        site = documentation()
        return site and f"{site}/generated/{{page}}.html"

    def _doc_link_url_param_generator(self) -> dict[str, str]:
        cls = type(self)
        where = "gpurbf.dask" if cls.__module__.startswith("gpurbf.dask.") else "gpurbf"
        return {"page": f"{where}.{cls.__name__}"}


@functools.cache
def documentation() -> str:
    """The address that the distribution declares as its documentation, "" if none."""
    try:
        declared = metadata("gpurbf").get_all("Project-URL", [])
    except PackageNotFoundError:  # run from a copy of the repository
        return ""
    for entry in declared:
        label, _, address = entry.partition(",")
        if label.strip().lower() == "documentation":
            return address.strip().rstrip("/")
    return ""
