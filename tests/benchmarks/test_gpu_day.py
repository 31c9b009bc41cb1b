"""gpu-day without a GPU: a rehearsal that survives its steps and writes as it goes."""

import sys

import pytest

from benchmarks import gpu_day
from benchmarks.__main__ import main
from gpurbf.layer.backends import no_gpu


def step(name, code, limit=60):
    return gpu_day.Step(name, [sys.executable, "-c", code], limit, {"ABACUS": "beads"})


def test_steps_that_fail_crash_or_hang_stop_nothing(tmp_path, monkeypatch, capsys):
    page = tmp_path / "new" / "gpu-day.md"
    # The last one sees what the others have left in the report by then, and not itself.
    read = f"lines = open({str(page)!r}, encoding='utf-8').read().splitlines(); "
    read += "print('seen', sum(line.startswith('tic') for line in lines))"
    sleep = "import subprocess, sys; print('tic', flush=True); "
    sleep += "subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    steps = [
        step("fine", "import os; print('tic', os.environ['ABACUS'])"),
        step("raises", "print('tic'); raise ValueError('wrong number of beads')"),
        step("crashes", "import os; print('tic', flush=True); os.abort()"),
        step("hangs", sleep, 2),
        step("last", read),
    ]
    monkeypatch.setattr(gpu_day, "_steps", lambda arguments: steps)
    assert main(["gpu-day", str(page.parent)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "tic beads" in text and "wrong number of beads" in text and "seen 4" in text
    rows = {row.split("|")[1].strip(): row.split("|")[2] for row in text.splitlines() if "|" in row}
    assert "done" in rows["fine"] and "done" in rows["last"]
    assert "failed" in rows["raises"] and "failed" in rows["crashes"]
    assert "stopped** after 2 s" in rows["hangs"]


def test_a_rehearsal_says_so_and_runs_the_real_steps(tmp_path, capsys):
    if no_gpu() is None:
        pytest.skip("there is a GPU here")
    chosen = ("--only", "int8", "--only", "streams")
    assert main(["gpu-day", str(tmp_path), *chosen]) == 0
    text = (tmp_path / "gpu-day.md").read_text(encoding="utf-8")
    assert text.count("not measured on a GPU") == 2 and "not run: no GPU" in text
    assert text.count("done") == 4 and "versions" not in text
    assert main(["gpu-day", str(tmp_path), "--only", "beads"]) == 2
    assert "no step beads: there are versions, int8" in capsys.readouterr().err
