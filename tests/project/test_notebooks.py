"""Notebooks run from top to bottom and are kept with what they show, free of this machine."""

import json
import re
from pathlib import Path

import pytest
from callers import run_python

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_runs(path):
    """In a process of its own: Jupyter's event loops are no business of this one."""
    for module in ("nbclient", "nbformat", "ipykernel", "matplotlib"):
        pytest.importorskip(module)
    run_python(
        "import sys; from execute import execute; execute(sys.argv[1])", path, cwd=path.parent
    )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_is_kept_as_executed_in_order_with_no_warning_and_no_path(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    cells = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert path.stat().st_size < 400_000, "execute.py makes pictures small"
    for output in outputs:
        assert output["output_type"] != "error" and output.get("name") != "stderr"
        written = "".join([*output.get("text", []), *output.get("data", {}).get("text/plain", [])])
        assert not re.search(r"Warning|(^|[\s'\"])(/\w+){2}|[A-Z]:\\", written), written
