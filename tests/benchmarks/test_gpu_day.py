"""gpu-day: nothing is hidden by a failure, nothing says done that did not run, all in a limit."""

import os
import re
import sys
from pathlib import Path

import pytest

from benchmarks import gpu_day
from benchmarks.__main__ import main
from gpurbf.layer.backends import no_gpu
from tests.layer.cuda.test_check import SITE


def step(name, *codes, limit=60):
    commands = [[sys.executable, "-c", code] for code in codes]
    return gpu_day.Step(name, commands, limit, {"ABACUS": "beads"})


def results(folder):
    """The table at the end, and all of the page."""
    text = (folder / "gpu-day.md").read_text(encoding="utf-8")
    table = text[text.index("## Summary") :].splitlines()
    rows = [row.split("|") for row in table if row.startswith("|")][2:]
    return {row[1].strip(): row[2].strip() for row in rows}, text


def test_steps_that_fail_crash_or_hang_stop_nothing(tmp_path, monkeypatch, capsys):
    sleep = "import subprocess, sys; print('tic', flush=True); "
    sleep += "subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    fine = "import os; print('tic', os.environ['ABACUS'])"
    crash = "import os; print('tic', flush=True); os.abort()"
    steps = [
        step("fine", fine),
        step("raises", "print('tic'); raise ValueError('wrong number of beads')"),
        step("hangs", sleep, limit=2),
        step("beside", fine, crash, fine, f"import sys; sys.exit({gpu_day.NOT_RUN})"),
        step("last", "print('toc')"),
    ]
    monkeypatch.setattr(gpu_day, "_steps", lambda arguments: steps)
    assert main(["gpu-day", str(tmp_path / "new")]) == 0
    rows, text = results(tmp_path / "new")
    assert text.count("tic beads") == 3 and "wrong number of beads" in text and "toc" in text
    assert rows == {
        "fine": "done",
        "raises": "**failed** with status 1",
        "hangs": "**stopped** after 2 s",
        "beside": "1 **failed** with status -6, 1 **not run**, 2 done",
        "last": "done",
    }


def test_what_no_time_is_left_for_says_so(tmp_path, monkeypatch, capsys):
    steps = [step("long", "import time; time.sleep(600)"), step("late", "print('tic')")]
    monkeypatch.setattr(gpu_day, "_steps", lambda arguments: steps)
    assert main(["gpu-day", str(tmp_path), "--within", "2.2"]) == 0
    rows, text = results(tmp_path)
    assert rows == {"long": "**stopped** after 2 s", "late": "**not run**: no time left"}
    assert "tic" not in text


@pytest.mark.slow
def test_without_a_gpu_no_step_is_done(tmp_path, capsys):
    if no_gpu() is None:
        pytest.skip("there is a GPU here")
    steps = [f"--only={name}" for name in ("versions", "limits cupy", "check-gpu")]
    assert main(["gpu-day", str(tmp_path), "--quick", *steps]) == 0
    rows, text = results(tmp_path)
    assert rows.pop("check-gpu") == "**failed** with status 2"
    assert set(rows.values()) == {"**not run**"}
    assert text.count("Not measured on a GPU") == 2 and "not run: cupy: no CuPy" in text
    assert main(["gpu-day", str(tmp_path), "--only", "beads"]) == 2
    assert "no step beads: there are versions, cases" in capsys.readouterr().err


@pytest.mark.slow
def test_the_whole_day_on_the_stand_in_with_a_kernel_that_crashes(tmp_path, monkeypatch, capsys):
    """Its processes find the stand-in; numba-cuda is not there."""
    crash = "if self.dtypes['T'] == 'f8': os.abort()"
    (tmp_path / "sitecustomize.py").write_text(SITE.format(does=crash, also=""), encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(gpu_day, "FOLDERS", gpu_day.FOLDERS[:2])  # the rest would crash as well
    assert main(["gpu-day", str(tmp_path / "day"), "--quick", "--within", "540"]) == 0
    rows, text = results(tmp_path / "day")
    # cuBLAS and the limits are there, Numba's kernels are not; float64 crashes, alone.
    assert "outputs: euclidean, gaussian, exact, 67 × 37 × 21: right" in text
    assert rows["limits cupy"] == rows["table cupy"] == "done" and "copy to the device" in text
    for name in ("versions", "fits numba-cuda", "table numba-cuda"):
        assert rows[name] == "**not run**"
    assert "**failed** with status -6" in rows["cases"] and " done" in rows["cases"]
    assert f"{gpu_day._PARTS} **not run**" in rows["cases"] and "right, " in text
    assert "checks the GPU" not in text  # a step that measures a backend waits for no other one
    assert "failed" in rows["check-gpu"]
    assert rows["tests"] == "2 **failed** with status -6"
    assert "::test_outputs_are_the_definition[cupy-uint8-euclidean] Fatal Python error" in text


def test_all_folders_with_tests_of_any_backend_have_their_turn():
    takes = re.compile(r"^def \w+\((.*, )?backend\b", re.MULTILINE)
    tests = Path(__file__).parents[1].glob("*/test_*.py")
    files = (file for file in tests if takes.search(file.read_text("utf-8")))
    assert {file.parent.name for file in files} - {"campaign"} == set(gpu_day.FOLDERS)
