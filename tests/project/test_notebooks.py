"""Notebooks run from top to bottom and are kept with what they show, free of this machine."""

import json
import re
from pathlib import Path

import pytest
from callers import run_python

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

# In a process of its own: Jupyter's event loops are no business of this one.
EXECUTE = "import sys; from execute import execute; execute(sys.argv[1])"


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_runs(path):
    for module in ("nbclient", "nbformat", "ipykernel", "matplotlib"):
        pytest.importorskip(module)
    run_python(EXECUTE, path, cwd=path.parent)


def kept(path):
    """The code cells of a notebook as it is in the repository."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_is_kept_as_executed_in_order(path):
    cells = kept(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert path.stat().st_size < 400_000, "execute.py makes pictures small"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_outputs_hold_no_warning_and_no_path(path):
    for output in (output for cell in kept(path) for output in cell["outputs"]):
        assert output["output_type"] != "error" and output.get("name") != "stderr"
        written = "".join([*output.get("text", []), *output.get("data", {}).get("text/plain", [])])
        assert not re.search(r"Warning|(^|[\s'\"])(/\w+){2}|[A-Z]:\\", written), written
