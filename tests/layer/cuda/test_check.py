"""The GPU proves itself: stand-ins that fail in every way, asked for by name and by `auto`."""

import io
import re
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import standin
from callers import run_threads
from standin import GAUSSIAN

from gpurbf import config_context
from gpurbf.cli import main
from gpurbf.layer import backends
from gpurbf.layer.backends import Tile, forced, get_backend
from gpurbf.layer.backends.cuda import check
from gpurbf.layer.layer import HiddenLayer
from gpurbf.runtime.errors import BackendUnavailable
from tests.layer.test_layer import data

# What a process of its own finds in place of CuPy, and what `outputs` does there.
SITE = """
import os, sys, time
import standin
from standin.kernels import RawKernel

right = RawKernel.outputs
modules = standin.make()

def outputs(self, a):
    right(self, a)
    {does}

RawKernel.outputs = outputs
sys.modules.update(modules)
{also}
"""
FAILURES = {
    "wrong": ("a.out[0] += 0.5", "", r"outputs: euclidean, gaussian, exact, 67.*differs by 0\.\d+"),
    "raises": ("raise RuntimeError('illegal')", "", "outputs.*RuntimeError: illegal"),
    "hangs": ("time.sleep(600)", "", r"did not end within \d+ s"),
    "crashes": ("os.abort()", "", r"ended with status -6"),
    "ends": ("os._exit(0)", "", "ended with status 0"),
    "no text": ("os.write(2, bytes([255])); os._exit(3)", "", "ended with status 3: \ufffd"),
    "missing": ("", "sys.modules['cupy'] = None", "no CuPy"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """A cache of its own."""
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("GPURBF_BACKEND", raising=False)
    check.trusted.cache_clear()
    yield tmp_path
    check.trusted.cache_clear()


@pytest.fixture
def fresh():
    """The stand-in, which is checked at its first use."""
    with standin.installed(checked=True) as module:
        yield module


def elsewhere(monkeypatch, folder, does="", also=""):
    """Other processes find this stand-in."""
    text = SITE.format(does=does or "pass", also=also)
    (folder / "sitecustomize.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(backends, "no_gpu", lambda: None)


@pytest.mark.slow
@pytest.mark.parametrize("how", FAILURES)
def test_auto_takes_the_cpu_and_says_why(monkeypatch, folder, fresh, how, capsys):
    does, also, why = FAILURES[how]
    elsewhere(monkeypatch, folder, does, also)
    if how == "hangs":
        monkeypatch.setattr(check, "LIMIT", 3.0)
    X, C = data(np.float32, m=200)
    layer, expected = (
        HiddenLayer(C, GAUSSIAN, backend=name) for name in ("auto", backends.best_on_host()[0].name)
    )
    assert layer.backend is expected.backend
    np.testing.assert_array_equal(layer.activations(X), expected.activations(X))
    assert re.search(f"cupy is not used: .*{why}", layer.describe())
    assert fresh.gpu.launches == 0
    # Not asked again, in this process or the next one.
    monkeypatch.setattr(check, "_elsewhere", lambda *_: pytest.fail("asked again"))
    check.trusted.cache_clear()
    get_backend("auto")


@pytest.mark.slow
def test_auto_takes_a_gpu_that_is_right_and_knows_its_rates(monkeypatch, folder, fresh, capsys):
    """It takes it where the work outweighs the transfer."""
    elsewhere(monkeypatch, folder)
    verdict = check.trusted("cupy")
    assert verdict.why == "" and verdict.n_cases > 15
    assert set(verdict.rates) == {"device", "host", "copy"} and min(verdict.rates.values()) > 0
    check.keep("cupy", verdict._replace(rates=standin.RIGHT.rates))
    check.trusted.cache_clear()
    monkeypatch.setattr(check, "judged", lambda *_, **__: pytest.fail("checked again"))
    few, many = (HiddenLayer(data(np.float32, m=m)[1], GAUSSIAN) for m in (50, 120))
    assert few.backend.name in backends.CPUS and many.backend.name == "cupy"
    assert "by its measured rates" in many.describe()
    assert "checks the GPU" in capsys.readouterr().err


def wrong_scores(monkeypatch):
    right = standin.kernels.RawKernel.scores

    def scores(self, a):
        right(self, a)
        a.scores[-1] = 0

    monkeypatch.setattr(standin.kernels.RawKernel, "scores", scores)


def test_a_name_is_refused_with_kernel_case_and_difference(monkeypatch, fresh, capsys):
    wrong_scores(monkeypatch)
    for _ in range(2):
        with pytest.raises(BackendUnavailable, match=r"scores: euclidean.*differs by .*more than"):
            get_backend("cupy")
        monkeypatch.setattr(check, "judged", lambda *_, **__: pytest.fail("checked again"))
        backends._attempt.cache_clear()
    assert main(["info"]) == 0
    said = capsys.readouterr()
    assert "scores: euclidean, gaussian" in said.out
    assert said.err.count("checks the GPU (backend 'cupy', once)") == 1


def test_what_was_right_is_not_checked_again_until_something_changes(monkeypatch, fresh, capsys):
    get_backend("cupy")
    checks, judged = [], check.judged
    monkeypatch.setattr(check, "judged", lambda *a, **k: checks.append(1) or judged(*a, **k))

    def ask(**gpu):
        vars(fresh.gpu).update(gpu)
        backends._attempt.cache_clear()
        get_backend("cupy")
        return len(checks)

    assert ask() == 0
    assert ask(capability=(8, 6)) == 1 and ask() == 1  # another device
    facts = check._facts()
    monkeypatch.setattr(check, "_facts", lambda: [*facts, "driver 1"])
    assert ask() == 2 and ask() == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert ask() == 3
    assert main(["info"]) == 0
    assert f"; checked {check._now()[:10]} " in capsys.readouterr().out


def test_a_failure_is_believed_for_a_day_and_a_damaged_file_never(fresh):
    verdict = standin.RIGHT._replace(why="wrong", date=check._now())
    check.keep("cupy", verdict)
    assert check.kept("cupy") == verdict
    check.keep("cupy", verdict._replace(date="2020-01-01 00:00"))
    assert check.kept("cupy") is None
    right = standin.RIGHT._replace(date=check._now())
    for rates in ([], ["device"], {"gpu": 1.0}, {"device": 1.0}):
        check.keep("cupy", right._replace(rates=rates))
        assert check.kept("cupy") is None
    check.keep("cupy", right)
    assert check.kept("cupy") == right
    check._file("cupy").write_text("[1,", encoding="utf-8")
    assert check.kept("cupy") is None


def test_what_was_checked_are_these_sources(monkeypatch, folder):
    """A change of any file of the package, such as an update, is checked again."""
    monkeypatch.setattr(check, "_PACKAGE", folder)
    files = set()
    for text in ("a = 1", "a = 2", "a = 1"):
        (folder / "kernels").mkdir(exist_ok=True)
        (folder / "kernels" / "tile.py").write_text(text, encoding="utf-8")
        check._facts.cache_clear()
        files.add(check._file("cupy"))
    check._facts.cache_clear()
    assert len(files) == 2


LACKS = {
    "full": MemoryError,
    "cudaErrorMemoryAllocation: out of memory": RuntimeError,
    "CUDA_ERROR_OUT_OF_MEMORY": RuntimeError,
    "CUBLAS_STATUS_ALLOC_FAILED": RuntimeError,
}


@pytest.mark.parametrize("words", LACKS)
def test_memory_that_others_take_is_no_verdict(fresh, words):
    """It is an error of this call, and the next one checks again."""
    asarray = fresh.asarray

    def full(*_, **__):
        raise LACKS[words](words)

    fresh.asarray = full
    with pytest.raises(BackendUnavailable, match=r"lacks free memory.*backend='numba'"):
        get_backend("cupy")
    assert check.kept("cupy") is None
    fresh.asarray = asarray
    assert get_backend("cupy")[0].name == "cupy" and check.kept("cupy").why == ""


def test_a_limit_that_is_no_number_is_no_verdict(monkeypatch, fresh):
    """It was kept for a day that the GPU computes wrong."""
    monkeypatch.setenv("GPURBF_GPU_MEMORY", "4 GB")
    with pytest.raises(BackendUnavailable, match=r"GPURBF_GPU_MEMORY must be .*got '4 GB'"):
        get_backend("cupy")
    monkeypatch.delenv("GPURBF_GPU_MEMORY")
    assert get_backend("cupy")[0].name == "cupy" and check.kept("cupy").why == ""


def test_nobody_needs_to_take_the_message(monkeypatch, fresh):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    sys.stderr.close()
    assert get_backend("cupy")[0].name == "cupy"


def test_a_check_takes_no_settings_of_whoever_asks_first(fresh):
    with forced(Tile(7)), config_context(gpu_memory=0.01):
        assert get_backend("cupy")[0].name == "cupy" and check.kept("cupy").why == ""


def test_where_the_disk_takes_nothing_there_is_a_check_all_the_same(folder, fresh):
    (folder / "cache").write_text("no folder", encoding="utf-8")
    assert get_backend("cupy")[0].name == "cupy" and check.kept("cupy") is None


def test_one_checks_and_the_others_wait_for_its_verdict(fresh):
    """Each opens the lock by itself, as processes do."""
    pytest.importorskip("fcntl")
    checks = []

    def checked():
        checks.append(time.sleep(0.2))
        return standin.RIGHT._replace(date=check._now())

    found = run_threads(*6 * [lambda: check._found("cupy", lambda _: True, checked)])
    assert len({one.date for one in found}) == len(checks) == 1


def test_a_check_of_another_process_that_does_not_end_is_waited_for_no_longer_than_a_check(
    monkeypatch, fresh
):
    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr(check, "LIMIT", 0.3)
    file = check._file("cupy").with_suffix(".lock")
    file.parent.mkdir(parents=True)
    with file.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "another process did not end within 0.3 s" in check.trusted("cupy").why
    assert check.kept("cupy") is None


def missing(*_, **__):
    raise FileNotFoundError("No usable temporary directory found")


@pytest.mark.parametrize(
    "where, name, value",
    [
        *((sys, "executable", value) for value in ("", None, "/no/python")),
        (tempfile, "TemporaryFile", missing),
    ],
    ids=["no name", "no interpreter", "no file", "no temporary folder"],
)
def test_auto_takes_the_cpu_where_no_process_starts(monkeypatch, fresh, where, name, value):
    monkeypatch.setattr(where, name, value)
    backend, reason = get_backend("auto")
    assert backend.name in backends.CPUS
    assert re.search(r"cupy is not used: its check did not start: \w+Error: ", reason)
    assert check.kept("cupy") is None


def test_without_a_home_there_is_a_check_all_the_same(monkeypatch, fresh, capsys):
    def homeless(path):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "expanduser", homeless)
    monkeypatch.setattr(check, "_elsewhere", lambda name: standin.RIGHT)
    assert get_backend("auto")[0].name == get_backend("cupy")[0].name == "cupy"
    assert main(["info"]) == 0 and "cupy" in capsys.readouterr().out


def test_check_gpu_shows_every_case_and_keeps_the_verdict(monkeypatch, fresh, capsys):
    monkeypatch.setattr(check, "_TIMED", (64, 32, 8))
    assert main(["check-gpu", "--backend", "cupy"]) == 0
    printed, verdict = capsys.readouterr().out, check.kept("cupy")
    assert printed.count(" right ") == verdict.n_cases and "all right" in printed
    assert set(verdict.rates) == set(standin.RIGHT.rates)


def test_check_gpu_shows_what_is_wrong_and_goes_on(monkeypatch, fresh, capsys):
    wrong_scores(monkeypatch)
    assert main(["check-gpu"]) == 2
    out, error = capsys.readouterr()
    assert out.count("WRONG") < out.count(" right ") < check.kept("cupy").n_cases
    assert "cupy: rows, gemm, scores" in error and "numba-cuda: " in error
    assert check.kept("cupy").why


def test_check_gpu_goes_on_where_a_library_fails_in_any_way(monkeypatch, fresh, capsys):
    def old_driver():
        raise RuntimeError("cudaErrorInsufficientDriver")

    monkeypatch.setitem(backends.LOADERS, "cupy", old_driver)
    assert main(["check-gpu"]) == 2
    error = capsys.readouterr().err
    assert "cupy: RuntimeError: cudaErrorInsufficientDriver; numba-cuda: the stand-in" in error


@pytest.mark.slow
def test_thorough_covers_every_profile_and_stays_right(fresh):
    backend = backends.LOADERS["cupy"]()
    found = list(check.cases(backend, thorough=True))
    assert not [case.why for case in found if case.why]
    for words in (*check.PROFILES, "1 × 1 × 1", "20001 × 64 × 100", "tf32"):
        assert any(words in case.data for case in found), words
