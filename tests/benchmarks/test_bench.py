"""The benchmark's tools: rounds in turn, memory of a fresh process, tables and pages."""

import sys

import pytest

import gpurbf
from benchmarks import __main__, measure
from benchmarks.measure import Times, in_turn, peak_memory, run_python
from benchmarks.report import BEGIN, END, Report
from gpurbf.profiling.profiler import markdown_table


def test_candidates_run_in_turn_after_a_warm_up():
    calls = []
    times = in_turn({name: lambda name=name: calls.append(name) for name in "ab"}, rounds=3)
    assert "".join(calls) == "ab" + "abbaab"
    assert all(0 <= time.low <= time.median <= time.high for time in times.values())
    calls.clear()
    in_turn({"a": lambda: calls.append("a")}, rounds=1, warm_up=False)
    assert calls == ["a"]


@pytest.mark.parametrize("takes, untimed", [(4.0, 0), (0.25, 4)])
def test_other_threads_get_time_to_stop_spinning_before_each_call(monkeypatch, takes, untimed):
    now, calls = [0.0], []

    def wait(seconds):
        now[0] += seconds

    def call():
        calls.append(now[0])
        wait(takes)

    monkeypatch.setattr(measure, "REST", 1.0)
    monkeypatch.setattr(measure.time, "sleep", wait)
    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])
    in_turn({"a": call}, rounds=2, warm_up=False)
    first, second = 1.0, 1.0 + takes  # before it is known how long a call takes, it is idle time
    assert calls[0] == first and calls[-1] == second + 1.0
    assert len(calls) == 2 + untimed
    calls.clear()
    in_turn({"a": call}, rounds=2, warm_up=False, rest=False)
    assert len(calls) == 2 and calls[1] - calls[0] == takes


def test_times_show_their_range():
    assert str(Times(0.0123, 0.01, 0.02)) == "0.012 (0.010–0.020)"
    assert str(Times(39.04, 38.0, 41.26)) == "39.0 (38.0–41.3)"


def test_peak_memory_is_that_of_the_measured_lines_alone():
    setup = "import numpy as np\nkept = np.ones(10_000_000)\ndel kept"
    peak = peak_memory(setup, "kept = np.ones(5_000_000)")
    # 40,000,000 bytes are 38 MB
    assert 35 < peak < 60 if sys.platform.startswith("linux") else peak is None


def test_a_fresh_process_imports_this_package(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code = "import gpurbf, os; print(gpurbf.__file__, os.environ['ABACUS'])"
    assert run_python(code, ABACUS="beads").split() == [gpurbf.__file__, "beads"]


def test_results_go_between_the_marks_and_the_prose_stays(tmp_path):
    page = tmp_path / "docs" / "speed.md"

    def written(figure):
        report = Report("Speed")
        report.table(("what", "seconds"), [("it", figure)])
        report.write(page)
        return page.read_text()

    text = written("12.5")
    assert text.startswith("# Speed")
    page.write_text(f"Before.\n{text}After.\n")
    assert written("11.0") == f"Before.\n{text.replace('12.5', '11.0')}After.\n"
    assert text.count(BEGIN) == text.count(END) == 1
    page.write_text("no marks")
    with pytest.raises(ValueError, match="lacks the marks"):
        written("11.0")


def test_named_tables_are_also_csv(tmp_path):
    report = Report("Speed")
    report.table(("what", "ns"), [("a, b", 0.5)], "speed-all")
    report.table(("what", "ns"), [("c", 1)])
    report.write(tmp_path / "speed.md")
    assert (tmp_path / "speed-all.csv").read_text() == 'what,ns\n"a, b",0.5\n'
    assert [path.name for path in tmp_path.glob("*.csv")] == ["speed-all.csv"]


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (KeyboardInterrupt(), 130, "benchmarks: interrupted"),
        (FileNotFoundError("no MNIST"), 2, "benchmarks: no MNIST"),
    ],
)
def test_an_interrupt_or_missing_data_are_one_line(monkeypatch, capsys, error, status, said):
    def broken(*arguments):
        raise error

    monkeypatch.setattr(__main__, "run_benchmark", broken)
    assert __main__.main(["rbf", "--quick"]) == status
    assert capsys.readouterr().err == f"{said}\n"


def test_tables_put_numbers_on_the_right():
    table = markdown_table(("name", "value"), [("a", "1.5"), ("longer", "-10")])
    assert table.splitlines() == [
        "| name   | value |",
        "| ------ | ----: |",
        "| a      |   1.5 |",
        "| longer |   -10 |",
    ]
