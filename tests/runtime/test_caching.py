"""Damaged files of compiled kernels, and a disk that takes no more: the call goes on."""

import errno
import gc
import importlib
import inspect
import re
import sys
import weakref
from pathlib import Path
from unittest.mock import Mock

import numba
import numpy as np
import pytest
from callers import run_python
from numba.core.caching import IndexDataCacheFile

import gpurbf
from gpurbf.runtime.errors import inform
from gpurbf.runtime.jit import caching
from gpurbf.runtime.lazy import without_collecting


def double(x):
    return 2 * x


def double_at(place):
    place[0] *= 2


def kernel():
    """The kernel as another process would have it: nothing of it is in memory."""
    return caching.cached()(double)


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """What is kept goes here; one kernel is there already."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    assert kernel()(21) == 42
    return tmp_path


def test_signatures_that_two_processes_keep_at_the_same_time_are_both_found(folder, monkeypatch):
    with monkeypatch.context() as meanwhile:
        # Neither has seen what the other one wrote.
        meanwhile.setattr(IndexDataCacheFile, "_load_index", lambda self: {})
        assert kernel()(1.5) == 3.0 and kernel()(1j) == 2j
    again = kernel()
    assert again(1.5) == 3.0 and again(1j) == 2j
    assert sum(again.stats.cache_hits.values()) == 2


def test_a_kernel_is_compiled_anew_when_what_it_calls_changes_in_another_file(
    folder, monkeypatch, tmp_path
):
    """As by an upgrade, which leaves what was compiled where it is."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    head = "from gpurbf.runtime.jit.caching import cached, inner\n"
    calls = head + "import called\n@cached()\ndef calls(x):\n    return called.twice(x)\n"
    (tmp_path / "calls.py").write_text(calls)

    def answer(factor):
        """Of a new process that finds the file so: whether it was compiled, and what comes out."""
        text = f"{head}@inner()\ndef twice(x):\n    return {factor} * x\n"
        (tmp_path / "called.py").write_text(text)
        caching._digest.cache_clear()
        caching._source.cache_clear()
        for name in ("called", "calls"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        kernel = importlib.import_module("calls").calls
        return kernel(21), bool(kernel.stats.cache_hits)

    assert [answer(factor) for factor in (2, 2, 3)] == [(42, False), (42, True), (63, False)]
    caching._digest.cache_clear()


def test_libraries_beside_an_installed_package_are_not_read(monkeypatch):
    """Numba alone has hundreds of files."""
    there = Path(numba.__file__).parents[1]
    monkeypatch.setattr(caching, "_ROOT", there)
    files = caching._source.__wrapped__(Path(caching.__file__))[1]
    assert all(file.is_relative_to(there / "gpurbf") for file in files)


def test_no_garbage_is_collected_while_a_kernel_is_compiled(folder, monkeypatch):
    seen = []  # at the end of a compilation
    monkeypatch.setattr(caching.Cache, "save_overload", lambda *_: seen.append(gc.isenabled()))
    assert gc.isenabled() and kernel()(0.5) == 1
    assert seen == [False] and gc.isenabled()


@pytest.mark.parametrize("set_", [gc.enable, gc.disable])
def test_collecting_is_as_it_was_after_an_error(set_):
    set_()
    was = gc.isenabled()
    try:
        with pytest.raises(ZeroDivisionError), without_collecting():
            assert not gc.isenabled()
            1 / 0  # noqa: B018 (raises)
        assert gc.isenabled() == was
    finally:
        gc.enable()


def test_what_was_made_meanwhile_is_old_and_garbage_is_found_as_ever():
    class Loop:
        def __init__(self):
            self.itself = self

    gc.collect()
    with without_collecting():
        kept = Loop()
        garbage = weakref.ref(Loop())
    assert any(found is kept for found in gc.get_objects(generation=2))
    assert garbage() is not None
    gc.collect()
    assert garbage() is None


def test_what_somebody_has_frozen_stays_frozen():
    code = """
import gc
from gpurbf.runtime.lazy import without_collecting
gc.freeze()
before = gc.get_freeze_count()
with without_collecting():
    pass
assert gc.get_freeze_count() == before > 2000
"""
    run_python(code)


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 5000, None], ids=["", "s", "x", "half"])
@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
def test_a_damaged_file_is_compiled_anew_and_mended(folder, suffix, content):
    (path,) = folder.rglob(f"*.{suffix}")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] if content is None else content)
    again = kernel()
    assert again(21) == 42 and not again.stats.cache_hits
    mended = kernel()
    assert mended(21) == 42 and mended.stats.cache_hits


@pytest.mark.parametrize("method", ["_save_data", "_save_index"])
def test_a_full_disk_is_said_once_and_ends_nothing(folder, monkeypatch, capfd, method):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(IndexDataCacheFile, method, full)
    monkeypatch.setattr(caching.Cache, "said", False)
    for value in (1.5, 1j):
        assert kernel()(value) == 2 * value
    (line,) = capfd.readouterr().err.splitlines()
    assert "No space left" in line and str(folder) in line


def test_where_compiling_is_turned_off_an_error_names_the_variable(folder, monkeypatch):
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    assert kernel()(21) == 42  # it is kept
    with pytest.raises(RuntimeError, match="NUMBA_DISABLE_JIT is set"):
        kernel()(21.5)
    run_python("from gpurbf.runtime import jit; jit.cache_folder()", NUMBA_DISABLE_JIT="1")


def test_a_damaged_file_of_somebody_else_ends_nothing(folder, monkeypatch, capfd):
    """In a folder that many may write to, as /tmp, only its owner may remove it."""
    (path,) = folder.rglob("*.nbi")
    path.write_bytes(b"short")
    monkeypatch.setattr(Path, "unlink", Mock(side_effect=PermissionError))
    monkeypatch.setattr(caching.Cache, "said", False)
    assert kernel()(21) == 42
    assert str(folder) in capfd.readouterr().err


@pytest.mark.parametrize("error", [OSError, ValueError, None])
def test_a_message_that_nobody_takes_ends_nothing(monkeypatch, capfd, error):
    """Where stderr goes to a file on the full disk itself, is closed, or does not exist."""
    stderr = Mock(write=Mock(side_effect=error)) if error else None
    monkeypatch.setattr(sys, "stderr", stderr)
    inform("gpurbf: a line")
    monkeypatch.undo()
    assert capfd.readouterr() == ("", "")


def test_c_functions_are_kept_by_the_same_rules(folder):
    for _ in range(2):
        number = np.array(21.0)
        kernel = inspect.unwrap(caching.compiled)(double_at, (np.dtype(float),))
        kernel.ctypes(number.ctypes.data)
        assert number == 42
        for path in folder.rglob("*.nb?"):
            path.write_bytes(b"")


def test_all_kernels_are_kept_by_these_rules():
    """But for the one that is never called, jit/__init__.py's."""
    files = Path(gpurbf.__file__).parent.rglob("*.py")
    kept = re.compile("cache=True|enable_caching")
    own = [path for path in files if kept.search(path.read_text("utf-8"))]
    assert [path.parent.name for path in own] == ["jit"]
