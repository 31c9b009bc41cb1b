"""Data in a mapped file: the same answers, within the budget, the next part read meanwhile."""

import threading
import time
from unittest.mock import Mock

import numpy as np
import pytest
from callers import layer_of

from gpurbf import RBFClassifier, config_context
from gpurbf.data import row_blocks
from gpurbf.data.row_blocks import on_disk, read_ahead, split
from gpurbf.runtime import threads
from gpurbf.runtime.threads import start


def on_file(path, array):
    """The array as a map of a new file that is read-only: who writes to it gets an error."""
    stored = np.memmap(path, array.dtype, "w+", shape=array.shape)
    stored[:] = array
    stored.flush()
    return np.memmap(path, array.dtype, "r", shape=array.shape)


def data(dtype, N=3000, n=20):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 256, (N, n)) if dtype is np.uint8 else rng.normal(size=(N, n))
    return X.astype(dtype), rng.integers(0, 3, N)


@pytest.fixture
def stored(tmp_path):
    """Bytes in a mapped file."""
    return on_file(tmp_path / "X", data(np.uint8)[0])


@pytest.fixture(autouse=True)
def all_reads_end(monkeypatch):
    """Whatever becomes of who asked for them; also little data are read ahead."""
    monkeypatch.setattr(row_blocks, "_LEAST_BYTES", 1)
    begun = Mock(wraps=start)
    monkeypatch.setattr(row_blocks, "start", begun)
    yield
    deadline = time.monotonic() + 60
    for call in begun.call_args_list:
        while not call.args[0].ended:
            assert time.monotonic() < deadline
            time.sleep(0.001)


def test_maps_are_seen_through_views(stored):
    X = np.array(stored)
    assert all(map(on_disk, (stored, np.asarray(stored), stored[5::2, 3:], np.asarray(stored)[5:])))
    assert not on_disk(X) and not on_disk(X[3:, 2:])


VIEWS = [lambda A: A, lambda A: A[:, 3:17], lambda A: A.reshape(20, 3000).T]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("view", VIEWS, ids=["whole", "columns", "fortran"])
def test_a_mapped_file_gives_the_model_and_the_labels_of_memory(tmp_path, backend, dtype, view):
    X, y = data(dtype)
    X, stored = view(X), view(on_file(tmp_path / "X", X))
    with config_context(memory=0.1):
        models = [RBFClassifier(30, backend=backend, random_state=0).fit(A, y) for A in (X, stored)]
        labels = [model.predict(A) for model, A in zip(models, (X, stored))]
    np.testing.assert_array_equal(models[0].centers_, models[1].centers_)
    np.testing.assert_allclose(models[0].coef_, models[1].coef_, rtol=1e-3, atol=1e-5)
    np.testing.assert_array_equal(*labels)


def test_the_next_part_is_read_while_one_is_used(stored, monkeypatch):
    parts = split(stored, 20 * 2**20)
    assert len(parts) > 3
    begun = [threading.Event() for _ in parts]
    unread = iter(begun)
    monkeypatch.setattr(row_blocks, "read", lambda X: next(unread).set())
    for i, _ in enumerate(read_ahead(stored, parts)):
        if i + 1 < len(parts):
            assert begun[i + 1].wait(10), "nobody reads the next part"
        if i + 2 < len(parts):
            assert not begun[i + 2].is_set(), "more than one part ahead"


def test_only_large_parts_of_a_file_are_read_ahead(stored, monkeypatch):
    parts, begin = [slice(0, 10), slice(10, 20)], Mock(wraps=row_blocks.start)
    monkeypatch.setattr(row_blocks, "start", begin)
    for X, least, n_begun in ((np.array(stored), 1, 0), (stored, 1, 2), (stored, 10 * 20 + 1, 2)):
        monkeypatch.setattr(row_blocks, "_LEAST_BYTES", least)
        assert len(list(read_ahead(X, parts))) == 2
        assert begin.call_count == n_begun


def test_where_no_thread_can_be_started_parts_are_read_when_they_are_used(stored, monkeypatch):
    monkeypatch.setattr(row_blocks, "start", start)
    monkeypatch.setattr(threads, "_idle", [])
    no_thread = Mock(side_effect=RuntimeError("no more"))
    monkeypatch.setattr(threads, "_thread", Mock(start_new_thread=no_thread))
    found = [X for _, X in read_ahead(stored, [slice(0, 9), slice(9, 18), slice(18, 30)])]
    np.testing.assert_array_equal(np.concatenate(found), stored[:30])


def test_an_error_of_the_reader_is_raised_where_its_part_is_due(stored, monkeypatch):
    failing = Mock(side_effect=[None, OSError("the disk is gone"), None])
    monkeypatch.setattr(row_blocks, "read", failing)
    used = []
    with pytest.raises(OSError, match="the disk is gone"):
        for part, _ in read_ahead(stored, [slice(0, 9), slice(9, 18), slice(18, 30)]):
            used.append(part)
    assert used == [slice(0, 9)]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_a_caller_may_stop(stored, error):
    with pytest.raises(error) as kept:  # its traceback keeps the generator alive
        for _ in read_ahead(stored, [slice(0, 9), slice(9, 18), slice(18, 30)]):
            raise error
    assert kept.value is not None


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_parts_in_use_and_ahead_keep_to_the_budget(tmp_path, dtype):
    X, _ = data(dtype, N=40_000)
    stored = on_file(tmp_path / "X", X)
    with config_context(memory=1):
        blocks = layer_of(X[:10], 0.01).matvec_blocks(stored, np.ones((10, 2)))
        seen = [len(S) for _, S in blocks]
    assert sum(seen) == len(X) and len(seen) > 1
    assert 2 * max(seen) * X.itemsize * X.shape[1] <= 2**20 / 4


def test_outputs_that_predict_drops_keep_to_the_budget():
    X, _ = data(np.uint8, N=9000, n=5)
    y = np.arange(9000) % 100
    model = RBFClassifier(20, random_state=0).fit(X, y)
    layer, seen = model._layer(), []
    blocks = layer.matvec_blocks
    layer.matvec_blocks = lambda X, W: (
        (rows, seen.append(len(S)) or S) for rows, S in blocks(X, W)
    )
    with config_context(memory=4):
        model.predict(X)
    assert sum(seen) == 9000
    assert max(seen) * 100 * 16 <= 2**20
