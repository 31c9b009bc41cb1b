"""What is made once: by one thread, found unlocked, and by a child forked meanwhile too."""

import gc
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from callers import exit_code_of_a_child, forks, run_threads
from numba.core.compiler_lock import global_compiler_lock

from gpurbf.layer.backends import get_backend
from gpurbf.layer.backends.numba import microkernel_table
from gpurbf.runtime.jit import caching
from gpurbf.runtime.lazy import Lock, lazy_module, once, without_collecting


def test_a_value_is_made_once_for_each_argument_whoever_asks():
    made = []

    @once
    def value(x):
        time.sleep(0.01)
        made.append(x)
        return [x]

    found = run_threads(*(partial(value, x) for x in [1, 2] * 8))
    assert sorted(made) == [1, 2]
    assert all(one is value(one[0]) for one in found)
    value.cache_clear()
    assert value(1) is not found[0]


def test_what_fails_is_tried_again_and_may_ask_for_itself():
    answers = iter([KeyboardInterrupt, None])

    @once
    def value(x):
        if x == 0:
            return value(1) + 1
        if error := next(answers):
            raise error
        return 41

    with pytest.raises(KeyboardInterrupt):
        value(0)
    assert value(0) == 42


def test_a_value_that_is_there_is_found_while_another_is_made():
    go_on, began = threading.Event(), threading.Event()

    @once
    def value(x):
        if x:
            began.set()
            assert go_on.wait(60)
        return x

    value(0)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(value, 1)
        assert began.wait(60)
        assert value(0) == 0
        go_on.set()
        assert slow.result() == 1


@forks
def test_a_child_finds_locks_free_that_a_thread_of_its_parent_holds():
    lock, go_on, began = Lock(), threading.Event(), threading.Event()

    @once
    def value():
        began.set()
        if threading.current_thread() is holder:
            assert go_on.wait(120)
        return 1

    def take():
        with lock.held:
            return value()

    holder = threading.Thread(target=take)
    holder.start()
    assert began.wait(60)
    try:
        assert exit_code_of_a_child(take) == 0
    finally:
        go_on.set()
        holder.join()


@forks
@pytest.mark.parametrize("on", [True, False])
def test_a_child_collects_garbage_where_a_thread_of_its_parent_does_not_just_now(on):
    go_on, began = threading.Event(), threading.Event()

    def pause():
        with without_collecting():
            began.set()
            assert go_on.wait(120)

    pausing = threading.Thread(target=pause)
    (gc.enable if on else gc.disable)()
    try:
        pausing.start()
        assert began.wait(60)
        assert exit_code_of_a_child(lambda: gc.isenabled() == on) == 0
    finally:
        go_on.set()
        pausing.join()
        after = gc.isenabled()
        gc.enable()
    assert after == on


@forks
@pytest.mark.parametrize("what", ["import", "compilation"])
def test_a_fork_waits_for_what_another_thread_imports_or_compiles(monkeypatch, tmp_path, what):
    """Python's and Numba's locks would be taken in the child for ever."""
    (tmp_path / "slow_module.py").write_text("import time; time.sleep(0.2); made = True")
    monkeypatch.syspath_prepend(tmp_path)
    module, compiling = lazy_module("slow_module"), threading.Event()

    def compiles():
        with global_compiler_lock:
            compiling.set()
            time.sleep(0.2)
        return True

    makes, began = (lambda: module.made), (lambda: "slow_module" in sys.modules)
    if what == "compilation":
        makes, began = compiles, compiling.is_set
    maker = threading.Thread(target=makes)
    maker.start()
    while not began():
        time.sleep(0.001)
    assert exit_code_of_a_child(makes) == 0
    maker.join()


def test_the_package_has_no_locks_that_a_fork_may_leave_taken():
    get_backend("numba")
    kinds = type(threading.Lock()), type(threading.RLock())
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "gpurbf":
            held = [key for key, value in vars(module).items() if isinstance(value, kinds)]
            assert not held, name
    for function in (caching.compiled, microkernel_table.compiled):
        assert isinstance(function, once)
