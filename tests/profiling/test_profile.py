"""Stages add up to the wall time, count what the formulas say, and are nothing unless recorded."""

import mmap
import pickle
import sys
import threading
import time
from collections import Counter
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import scipy.sparse as sp
from callers import run_threads, sums_of
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import DataConversionWarning
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import gpurbf
from gpurbf.layer.activation import Activation
from gpurbf.layer.layer import HiddenLayer
from gpurbf.profiling import machine, profiler
from gpurbf.runtime import stages
from gpurbf.runtime.stages import ELSEWHERE, STAGES, Recorder, count, parallel_section, stage
from gpurbf.runtime.threads import parallel_for, parallel_rows

WATCH = Recorder._watch
N, n, m, k = 1200, 64, 150, 10
ESTIMATORS = {
    "rbf": lambda **parameters: gpurbf.RBFClassifier(m, random_state=0, **parameters),
    "lms": lambda **parameters: gpurbf.RBFClassifier(m, solver="lms", random_state=0, **parameters),
    "fsvc": lambda **parameters: gpurbf.FSVC(20.0, random_state=0, **parameters),
    "svc": lambda **parameters: gpurbf.SVC(C=10, gamma=0.001, **parameters),
}


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return X[:N].astype(np.uint8), y[:N]


@pytest.fixture(scope="module")
def found(digits):
    """The profile of an RBFClassifier."""
    return gpurbf.profile(ESTIMATORS["rbf"](), *digits)


def operations(recorder, name):
    """Operations of a stage by kind of arithmetic."""
    entries = (entry for (found, _), entry in recorder.entries.items() if found == name)
    return sum((Counter(entry.operations) for entry in entries), Counter())


class Clock(threading.local):
    """A clock of each thread that stands still unless told to go on."""

    now = 0.0

    def perf_counter(self):
        return self.now

    def wait(self, seconds):
        self.now += seconds


def watchers():
    """Threads that look at memory for a recorder; one that has just ended may take a moment."""
    deadline = time.monotonic() + 1
    while found := [f for f in sys._current_frames().values() if f.f_code is WATCH.__code__]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.001)
    return len(found)


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(stages, "time", Clock())
    return stages.time


def test_a_moment_and_its_work_count_for_the_innermost_open_stage(clock):
    with Recorder() as recorder:
        clock.wait(1)
        with stage("prepare"):
            count(operations=1, kind="float32", nbytes=10)
            clock.wait(2)
            with stage("hidden layer", "H"):
                count(operations=2, kind="float32", nbytes=20)
                clock.wait(4)
            clock.wait(8)
            with stage("hidden layer", "H"):
                count(operations=4, kind="float64")
                count(operations=8, kind="float32")
                clock.wait(16)
        clock.wait(32)
    seconds = {key: entry.seconds for key, entry in recorder.entries.items()}
    assert seconds == {ELSEWHERE: 33, ("prepare", ""): 10, ("hidden layer", "H"): 20}
    assert recorder.seconds == 63
    inner = recorder.entries["hidden layer", "H"]
    assert inner.operations == {"float32": 10, "float64": 4} and inner.nbytes == 20
    assert recorder.entries["prepare", ""].operations == {"float32": 1}


def test_work_without_the_lock_is_counted_for_the_span_in_which_it_was_done(clock):
    def work():
        clock.wait(1)
        with stage("hidden layer"):
            stages.time_unlocked(lambda: clock.wait(2))()
        clock.wait(4)

    with Recorder() as recorder:
        stages.time_unlocked(work)()
        clock.wait(8)
    assert [span[1:] for span in recorder.trace] == [(1, 1), (2, 2), (12, 4)]


def test_rows_in_a_single_part_count_as_work_without_the_lock_too(clock):
    with Recorder() as recorder:
        parallel_rows(lambda rows: clock.wait(2), 10, 10)
    assert [span[1:] for span in recorder.trace] == [(2, 2)]


def test_looking_at_memory_adds_nothing_to_short_stages(clock, monkeypatch):
    def look():
        clock.wait(1e-5)
        return 1

    monkeypatch.setattr(stages, "resident_bytes", look)
    with Recorder() as recorder:
        for _ in range(1000):
            with stage("hidden layer"):
                clock.wait(1e-5)
    assert recorder.seconds < 1.01 * 1000 * 1e-5
    assert recorder.entries["hidden layer", ""].memory == 1


def test_threads_side_by_side_divide_their_wall_time_as_they_divided_their_own(clock):
    def work(name, seconds):
        with stage(name):
            clock.wait(seconds)

    with Recorder() as recorder, stage("output training"), parallel_section(1) as section:
        run_threads(lambda: section.run(lambda: work("hidden layer", 3)))
        section.run(lambda: work("prepare", 1))
    # This thread saw one second pass, in which four seconds of work were done.
    seconds = {key[0]: entry.seconds for key, entry in recorder.entries.items()}
    expected = {"hidden layer": 0.75, "prepare": 0.25, "output training": 0, "": 0}
    assert seconds == pytest.approx(expected) and recorder.seconds == 1


def test_stages_of_threads_that_work_for_the_recorder_are_seen():
    def task(i):
        with stage("hidden layer", str(i)):
            count(operations=1, kind="float32")
            parallel_for(lambda j: time.sleep(0.001), 2)

    with Recorder() as recorder, stage("output training"):
        parallel_for(task, 6)
    assert operations(recorder, "hidden layer") == {"float32": 6}
    seconds = sum(entry.seconds for entry in recorder.entries.values())
    assert seconds == pytest.approx(recorder.seconds)
    with stage("prepare"):  # and nobody is recorded any longer, in the pool neither
        parallel_for(lambda i: count(operations=1, kind="float32"), 6)
    assert not stages.is_recorded()
    assert operations(recorder, "hidden layer") == {"float32": 6}


def test_without_a_recorder_nothing_is_counted_and_no_thread_looks_at_memory(digits):
    count(operations=1, kind="float32", nbytes=1)
    ESTIMATORS["rbf"]().fit(*digits)
    assert not watchers()


def test_another_thread_is_not_recorded(digits):
    with Recorder() as recorder:
        run_threads(lambda: ESTIMATORS["rbf"]().fit(*digits))
    assert set(recorder.entries) == {ELSEWHERE}


def test_an_error_closes_its_stages_and_the_recorder(clock):
    @stage("prepare")
    def fail():
        clock.wait(1)
        parallel_for(lambda i: 1 / 0, 2)

    with Recorder() as recorder:
        with pytest.raises(ZeroDivisionError):
            fail()
        clock.wait(2)
    assert recorder.entries["prepare", ""].seconds == 1
    assert recorder.entries[ELSEWHERE].seconds == 2
    with pytest.raises(ZeroDivisionError), Recorder():
        fail()
    assert not stages.is_recorded()
    assert not watchers()


@pytest.mark.parametrize("times", [0, 1], ids=["as it begins", "as it ends"])
def test_an_interrupt_of_a_recorder_leaves_nothing_recorded_and_no_thread(monkeypatch, times):
    """Such a thread looked at memory for ever, and all that followed was recorded, in memory."""
    recorder = Recorder()
    clock = Mock(side_effect=[*[0.0] * times, KeyboardInterrupt])
    monkeypatch.setattr(stages.time, "perf_counter", clock)
    with pytest.raises(KeyboardInterrupt), recorder:
        pass
    assert clock.call_count == times + 1
    assert not stages.is_recorded() and not watchers()


def test_recorders_inside_each_other_both_see_their_own_time(clock):
    with Recorder() as outer, stage("prepare"):
        clock.wait(1)
        with Recorder() as inner, stage("hidden layer"):
            clock.wait(2)
        clock.wait(4)
    assert inner.seconds == 2 and outer.seconds == 7
    assert outer.entries["prepare", ""].seconds == 7


def test_a_fence_is_waited_for_before_the_clock_is_read(clock, monkeypatch):
    monkeypatch.setattr(stages, "FENCES", [lambda: clock.wait(1)])
    with Recorder() as recorder, stage("hidden layer"):
        pass
    assert recorder.entries["hidden layer", ""].seconds == 1


@pytest.mark.parametrize("metric", ["euclidean", "manhattan"])
def test_the_hidden_layer_counts_two_operations_a_synapse(backend, digits, metric):
    X, _ = digits
    layer = HiddenLayer(X[:m], Activation(metric, "gaussian", 0.001), backend=backend)
    layer.activations(X[:8])

    def counted(call, *arguments):
        with Recorder() as recorder:
            call(X, *arguments)
        return [operations(recorder, name).total() for name in ("hidden layer", "output training")]

    assert counted(layer.activations) == [2 * N * m * n, 0]
    assert counted(layer.matvec, np.ones((m, k))) == [2 * N * m * (n + k), 0]
    assert counted(partial(sums_of, layer), np.ones((N, k))) == [
        2 * N * m * n,
        N * m * (m + 1 + 2 * k),
    ]


def test_arithmetic_is_called_what_it_is(digits):
    X, _ = digits
    for data, dtype, kind in [
        (X, "float32", "8-bit products"),
        (X + np.float32(0.1), "float32", "float32"),
        (X + 0.1, "float64", "float64"),
    ]:
        layer = HiddenLayer(data[:m], Activation("euclidean", "gaussian", 0.1), backend="numba")
        with Recorder() as recorder:
            layer.activations(data)
        assert set(operations(recorder, "hidden layer")) == {kind}
        assert layer.dtype == dtype


def test_labels_in_a_column_are_as_accurate(digits, found):
    X, y = digits
    with pytest.warns(DataConversionWarning):
        assert gpurbf.profile(ESTIMATORS["rbf"](), X, y[:, None]).accuracy == found.accuracy
    with pytest.raises(ValueError, match="Mix of label input types"):
        gpurbf.profile(ESTIMATORS["rbf"](), X, y.astype(str), X_test=X, y_test=y)


@pytest.mark.parametrize("labels_there", [False, True])
def test_samples_of_a_device_are_profiled(cupy, digits, monkeypatch, labels_there):
    monkeypatch.setattr(profiler, "compute", lambda kind, xp: None)
    monkeypatch.setattr(profiler, "bandwidth", lambda xp=np: 1e9)
    (X, y), model = digits, ESTIMATORS["rbf"](backend="cupy")
    found = gpurbf.profile(model, cupy.asarray(X), cupy.asarray(y) if labels_there else y)
    assert found.accuracy > 0.95


@pytest.fixture
def calls(monkeypatch):
    """A clock that counts this thread's calls of Python functions: no time, so no noise."""
    now = 0.0

    def advance(frame, event, argument):
        nonlocal now
        now += event == "call"

    monkeypatch.setattr(stages, "time", SimpleNamespace(perf_counter=lambda: now))
    before = sys.getprofile()
    sys.setprofile(advance)
    yield
    sys.setprofile(before)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_stages_cover_the_work_and_a_profiled_estimator_is_the_same_estimator(name, digits, calls):
    (X, new), (y, labels) = (np.split(part, [800]) for part in digits)
    plain = ESTIMATORS[name]()
    found = gpurbf.profile(plain, X, y, X_test=new, y_test=labels)
    assert not hasattr(plain, "classes_")
    expected = clone(plain).fit(X, y).predict(new)
    np.testing.assert_array_equal(found.estimator.predict(new), expected)
    assert found.accuracy == np.mean(expected == labels)
    # Everything adds up, no arithmetic is outside a stage, and little else.
    for phase, passed in found.seconds.items():
        rows = [row for row in found.rows if row.phase == phase and not row.part]
        assert [row.stage for row in rows] == [*STAGES, "in no stage"]
        assert sum(row.seconds for row in rows) == pytest.approx(passed)
        for row in rows[:-1]:
            parts = [r for r in found.rows if (r.phase, r.stage) == (phase, row.stage)][1:]
            assert sum(r.seconds for r in parts) == pytest.approx(row.seconds)
        assert rows[-1].operations == 0
        assert 0 < rows[-1].share < 0.2


def test_the_warm_up_has_as_many_centers_so_that_it_compiles_what_the_fit_needs(
    digits, monkeypatch
):
    centers, fit = [], gpurbf.RBFClassifier.fit

    def noted(self, *data):
        centers.append(len(fit(self, *data).centers_))
        return self

    monkeypatch.setattr(gpurbf.RBFClassifier, "fit", noted)
    gpurbf.profile(gpurbf.RBFClassifier(700, random_state=0), *digits)
    assert centers == [700, 700]


def test_solver_parts_are_named_and_counted(digits, found):
    def parts(name):
        own = found if name == "rbf" else gpurbf.profile(ESTIMATORS[name](), *digits)
        return {row.part: row for row in own.rows if row.phase == "training" and row.part}

    ridge = parts("rbf")
    assert ridge["Cholesky"].operations == pytest.approx(m**3 / 3)
    assert ridge["HᵀH"].operations == N * m * (m + 1 + 2 * (k + 1))
    assert parts("lms")["LMS"].operations == 10 * 4 * N * (-(-m // 8) * 8) * k
    assert {"inner steps", "samples grouped"} <= set(parts("svc"))
    assert "centers chosen" in parts("fsvc")


def test_an_estimator_inside_a_pipeline_is_seen(digits):
    found = gpurbf.profile(make_pipeline(FunctionTransformer(), ESTIMATORS["rbf"]()), *digits)
    hidden = next(row for row in found.rows if row.stage == "hidden layer")
    assert hidden.operations >= 2 * N * m * n


def test_sparse_samples_of_any_format_are_profiled(digits):
    X, y = digits[:2]
    assert gpurbf.profile(ESTIMATORS["rbf"](), sp.coo_matrix(X), y).accuracy > 0.9


def test_rates_shares_and_memory_are_consistent(digits):
    found = gpurbf.profile(ESTIMATORS["rbf"](backend="numba"), *digits)
    assert found.ceilings["memory"] > 0
    gram = next(row for row in found.rows if row.part == "HᵀH")
    assert gram.operations_per_second == pytest.approx(gram.operations / gram.seconds)
    assert gram.bytes_per_second == pytest.approx(gram.nbytes / gram.seconds)
    if gram.ceiling:
        of_memory = gram.ceiling == "memory"
        rate = gram.bytes_per_second if of_memory else gram.operations_per_second
        assert gram.efficiency == pytest.approx(rate / found.ceilings[gram.ceiling])
    if sys.platform.startswith("linux"):
        assert gram.peak_memory > digits[0].nbytes and 0 < gram.memory_share < 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
def test_memory_that_is_freed_inside_a_stage_is_seen():
    with Recorder() as recorder:
        with stage("prepare"):
            pass
        with stage("hidden layer"):
            block = mmap.mmap(-1, 80_000_000)  # an array may get memory that is there already
            np.frombuffer(block, np.uint8)[:] = 1
            time.sleep(0.2)
            block.close()
    rise = recorder.entries["hidden layer", ""].memory - recorder.entries["prepare", ""].memory
    assert rise > 60e6


def test_the_bottleneck_is_named_in_words_and_shown_in_the_table(found):
    for phase, line in zip(("training", "prediction"), found.bottleneck.splitlines()):
        parts = [row for row in found.rows if row.phase == phase and row.part]
        above = {row: row.seconds for row in parts}
        above |= {row: row.seconds * (1 - min(1, row.efficiency)) for row in parts if row.ceiling}
        stage = max(above, key=above.__getitem__).stage
        share = next(row.share for row in found.rows if (row.phase, row.stage) == (phase, stage))
        assert line.startswith(f"{phase.capitalize()}: {stage} is {100 * share:.0f} %")
    text = str(found)
    assert found.bottleneck in text and "host to device: none on a CPU" in text
    assert "1,200 × 64 samples, 150 centers" in text
    assert "<pre>" in found._repr_html_()
    assert str(pickle.loads(pickle.dumps(found))) == text


def test_to_frame_has_all_rows_and_without_pandas_says_how_to_get_it(found, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pandas", None)
        with pytest.raises(ImportError, match="pip install pandas"):
            found.to_frame()
    pandas = pytest.importorskip("pandas")
    pandas.testing.assert_frame_equal(found.to_frame(), pandas.DataFrame(found.rows))


def test_plot_has_a_bar_for_every_stage_that_took_time(found):
    figure_module = pytest.importorskip("matplotlib.figure")
    figure = found.plot(figure_module.Figure())
    assert len(figure.axes) == 2
    for axis, phase in zip(figure.axes, ("training", "prediction")):
        assert phase in axis.get_title()
        drawn = sum(bar.get_width() for bar in axis.patches if bar.get_height() > 0.5)
        rows = [row for row in found.rows if row.phase == phase and row.stage != "in no stage"]
        scale = 1000 if found.seconds[phase] < 1 else 1
        assert drawn == pytest.approx(scale * sum(row.seconds for row in rows if not row.part))


def test_the_title_counts_centers_that_are_csr():
    X = sp.random_array((60, 2000), density=0.01, random_state=0, format="csr")
    found = gpurbf.profile(gpurbf.RBFClassifier(9, random_state=0), X, np.arange(60) % 2)
    assert sp.issparse(found.estimator.centers_) and ", 9 centers" in found.title


@pytest.mark.slow
def test_ceilings_are_measured_once_and_unknown_kinds_have_none(monkeypatch):
    assert machine.compute("float32") is machine.compute("float32")
    assert machine.bandwidth() == machine.bandwidth() > 1e8
    assert machine.compute("bfloat16") is None
    monkeypatch.setenv("GPURBF_CPU_KERNEL", "generic")
    assert machine.compute.__wrapped__("float32") > 1e8  # the library's product
    assert machine.compute.__wrapped__("8-bit products") is None


def test_a_kind_without_a_ceiling_has_no_efficiency(digits, monkeypatch):
    monkeypatch.setattr(profiler, "compute", lambda kind, xp: None)
    found = gpurbf.profile(ESTIMATORS["rbf"](), *digits)
    gram = next(row for row in found.rows if row.part == "HᵀH")
    assert np.isnan(gram.efficiency) and gram.ceiling == ""
    assert "Ceilings: memory" in str(found)


def test_numbers_and_labels_that_mean_nothing_are_refused(found, digits):
    with pytest.raises(ValueError, match=r"threads must be >= 1, got 0\."):
        found.scaling([2, 0])
    with pytest.raises(ValueError, match="give both, or neither"):
        gpurbf.profile(ESTIMATORS["rbf"](), *digits[:2], y_test=digits[1])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        gpurbf.profile(ESTIMATORS["rbf"](), *digits[:2], X_test=digits[0][:9], y_test=digits[1])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        gpurbf.profile(ESTIMATORS["rbf"](), digits[0], digits[1][:1])
    with pytest.raises(ValueError, match="should be a 1d array"):
        gpurbf.profile(
            MultiOutputClassifier(ESTIMATORS["rbf"]()), digits[0], np.stack([digits[1]] * 2, 1)
        )
    with pytest.raises(ValueError, match=r"RBFLayer\(\) predicts nothing"):
        gpurbf.profile(gpurbf.RBFLayer(), *digits[:2])
