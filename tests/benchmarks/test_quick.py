"""Every benchmark runs with small sizes, and leaves the pages of full runs alone."""

import gc

import pytest

from benchmarks import BENCHMARKS, measure, paper
from benchmarks.__main__ import main
from gpurbf.profiling import machine


@pytest.fixture
def frozen():
    """Garbage is sought among what the test makes, not in all that thousands of tests have made."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHMARKS)
def test_quick_benchmarks_run_and_leave_the_pages_alone(
    capsys, monkeypatch, tmp_path, frozen, name
):
    if name == "dask":
        pytest.importorskip("dask.array", reason="no Dask")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs" / "benchmarks").mkdir(parents=True)
    monkeypatch.setattr(measure, "REST", 0)  # which is for figures that are kept
    monkeypatch.setattr(machine, "_PEAK_RUNS", 3)
    # Quick for a user is a minute or two of these.
    monkeypatch.setattr(paper, "QUICK", paper.Sizes(64, 64, 64, 64, 128, slow=1 << 20))
    monkeypatch.setattr(paper, "_LEAST", 1e-4)
    assert main([name, "--quick"]) == 0
    assert "| " in capsys.readouterr().out
    assert not list((tmp_path / "docs" / "benchmarks").iterdir())
