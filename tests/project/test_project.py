"""What surrounds the code: one version everywhere, the same requirements, types for users."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import gpurbf

ROOT = Path(__file__).parents[2]


def text(*parts):
    return ROOT.joinpath(*parts).read_text(encoding="utf-8")


def test_the_version_is_the_same_everywhere():
    assert f"\nversion: {gpurbf.__version__}\n" in text("CITATION.cff")
    assert f'version = "{gpurbf.__version__}"' in text("recipe", "meta.yaml")
    assert f"## {gpurbf.__version__}" in text("CHANGELOG.md")


def test_the_recipe_asks_for_what_the_package_does():
    project = tomllib.loads(text("pyproject.toml"))["project"]
    run = re.search(r"  run:\n((?:    - .*\n)+)", text("recipe", "meta.yaml"))[1]
    asked = {line.removeprefix("    - ").replace(" ", "") for line in run.splitlines()}
    assert asked == {f"python{project['requires-python']}", *project["dependencies"]}


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "SECURITY.md"])
def test_links_of_the_projects_pages_lead_somewhere(name):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text(name)):
        assert (ROOT / target).exists(), target


@pytest.mark.slow
def test_a_strict_checker_accepts_a_users_script(tmp_path):
    pytest.importorskip("mypy")
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np\n"
        "import gpurbf\n"
        "from gpurbf import FSVC, SVC, RBFClassifier, RBFLayer, config_context, datasets\n"
        "X, y = np.eye(4), np.array([0, 0, 1, 1])\n"
        "with config_context(memory=64):\n"
        "    model: SVC = SVC(C=10, gamma=0.1).fit(X, y)\n"
        "labels: np.ndarray = RBFClassifier(2).fit(X, y).predict(X)\n"
        "H = RBFLayer(2).fit(X).transform(X)\n"
        "back: SVC = SVC.from_sklearn(model.to_sklearn())\n"
        "print(FSVC(1.0).fit(X, y).decision_function(X), H, labels, gpurbf.__version__)\n"
        "images: datasets.Images = datasets.load_mnist()\n"
        "gpurbf.patch_sklearn()\n",
        encoding="utf-8",
    )
    # From the user's folder: beside the sources a checker would take them for the user's own.
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", str(script)]
    done = subprocess.run(
        [*command, "--cache-dir", str(tmp_path / "cache")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    if 'module named "gpurbf"' in done.stdout:
        pytest.skip("gpurbf is not installed where mypy looks for it")
    assert done.returncode == 0, done.stdout + done.stderr
