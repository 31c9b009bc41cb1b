"""The "?" in scikit-learn's HTML display leads to the site that the installed package names."""

import importlib
import importlib.metadata

import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_html_repr

import gpurbf
from gpurbf.estimators._base import documentation

ESTIMATORS = ("RBFClassifier", "RBFClassifierCV", "RBFLayer", "FSVC", "SVC")
TWINS = ("RBFClassifier", "RBFLayer", "FSVC", "SVC")


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Install the package with these lines in its metadata."""

    def install(*lines):
        folder = tmp_path / "gpurbf-9.9.dist-info"
        folder.mkdir()
        text = "\n".join(["Metadata-Version: 2.4", "Name: gpurbf", "Version: 9.9", *lines, ""])
        (folder / "METADATA").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        documentation.cache_clear()

    yield install
    documentation.cache_clear()


@pytest.mark.parametrize("address", ["https://docs.example/gpurbf", "https://docs.example/gpurbf/"])
def test_every_estimator_has_its_page(installed, address):
    installed("Project-URL: Source, https://code.example", f"Project-URL: Documentation, {address}")
    for name in ESTIMATORS:
        page = f"https://docs.example/gpurbf/generated/gpurbf.{name}.html"
        assert f'href="{page}"' in estimator_html_repr(getattr(gpurbf, name)())
    inside = estimator_html_repr(make_pipeline(StandardScaler(), gpurbf.SVC()))
    assert "generated/gpurbf.SVC.html" in inside and "StandardScaler.html" in inside


def test_every_estimator_on_a_cluster_has_its_page(installed):
    pytest.importorskip("dask.array", reason="no Dask")
    module = importlib.import_module("gpurbf.dask")
    installed("Project-URL: documentation, https://docs.example")
    for name in TWINS:
        link = getattr(module, name)()._get_doc_link()
        assert link == f"https://docs.example/generated/gpurbf.dask.{name}.html"


@pytest.mark.parametrize("lines", [(), ("Project-URL: Source, https://code.example",)])
def test_without_an_address_there_is_no_link(installed, lines):
    installed(*lines)
    for name in ESTIMATORS:
        estimator = getattr(gpurbf, name)()
        assert estimator._get_doc_link() == ""
        assert "href=" not in estimator_html_repr(estimator)


def test_a_class_of_someone_else_is_not_on_our_site(installed):
    installed("Project-URL: Documentation, https://docs.example")

    class Own(gpurbf.SVC):
        pass

    assert Own()._get_doc_link() == ""


def test_a_copy_that_is_not_installed_has_no_link(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("gpurbf.estimators._base.metadata", missing)
    documentation.cache_clear()
    assert gpurbf.SVC()._get_doc_link() == ""
    documentation.cache_clear()
