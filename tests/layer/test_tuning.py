"""Tiles: what answers when a layer asks, files that cannot be used, results that never change."""

import json
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
import reference

import gpurbf
from benchmarks import tuner
from gpurbf import config_context
from gpurbf.cli import main
from gpurbf.layer.activation import Activation
from gpurbf.layer.backends import Tile, get_backend, tile
from gpurbf.layer.backends.tile import Tuned, forced, state, store, tile_for
from gpurbf.layer.layer import HiddenLayer
from gpurbf.runtime import cache

DEFAULT = Tile()
TUNED = (
    Tuned("euclidean", "exact", 64.0, Tile(M=48)),
    Tuned("euclidean", "exact", float("inf"), Tile(M=96, threads=1)),
    Tuned("euclidean", "float32", 512.0, Tile(M=512)),
)


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """A cache directory of this test's own."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    return tmp_path


def changed(path, **changes):
    """Rewrite a stored tuning as another version or device would have written it."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    tile._state.cache_clear()


def test_without_a_file_tiles_are_the_default_and_info_says_how_to_measure(folder):
    assert tile_for("numba", "euclidean", "exact", 10) == DEFAULT
    assert "default" in state("numba").said
    assert "python -m gpurbf tune --backend numba" in state("numba").said


def test_the_least_range_that_holds_the_inputs_answers(folder):
    path = store("numba", TUNED)
    assert path.parent == folder
    assert tile_for("numba", "euclidean", "exact", 64) == Tile(M=48)
    assert tile_for("numba", "dot", "exact", 64) == Tile(M=48)
    assert tile_for("numba", "euclidean", "exact", 65) == Tile(M=96, threads=1)
    assert tile_for("numba", "euclidean", "float32", 512) == Tile(M=512)
    for metric, precision, n in (
        ("euclidean", "float32", 513),
        ("euclidean", "float64", 10),
        ("manhattan", "exact", 10),
    ):
        assert tile_for("numba", metric, precision, n) == DEFAULT
    assert tile_for("numpy", "euclidean", "exact", 64) == DEFAULT
    assert "tuned on 20" in state("numba").said and str(path) in state("numba").said
    assert set(state("numba").tuned) == set(TUNED)


@pytest.mark.parametrize(
    "change",
    [{"format": 0}, {"gpurbf": "0.0.1"}, {"device": "an abacus"}],
    ids=lambda change: next(iter(change)),
)
def test_what_was_measured_elsewhere_is_ignored_and_info_says_so(folder, change):
    path = store("numba", TUNED)
    changed(path, **change)
    assert tile_for("numba", "euclidean", "exact", 10) == DEFAULT
    assert state("numba").said.startswith("default")
    assert str(next(iter(change.values()))) in state("numba").said


def test_another_kernel_or_gpu_is_another_device(folder, monkeypatch):
    store("numba", TUNED)
    monkeypatch.setenv("GPURBF_CPU_KERNEL", "generic")
    assert tile_for("numba", "euclidean", "exact", 10) == DEFAULT
    monkeypatch.delenv("GPURBF_CPU_KERNEL")
    assert tile_for("numba", "euclidean", "exact", 10) == Tile(M=48)
    monkeypatch.setattr(tile, "device", lambda name: "another GPU")
    assert tile_for("numba", "euclidean", "exact", 10) == DEFAULT


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"tiles": 3}',
        {"threads": 0},
        {"M": "many"},
        {"colour": 3},
    ],
    ids=str,
)
def test_a_damaged_file_is_ignored_with_a_reason(folder, content):
    path = store("numba", TUNED)
    if isinstance(content, dict):
        line = {"metric": "euclidean", "precision": "exact", "inputs": 64}
        changed(path, tiles=[line | {"tile": {"M": 96}}])
        assert tile_for("numba", "euclidean", "exact", 10) == Tile(M=96)
        changed(path, tiles=[line | {"tile": content}])
    else:
        path.write_text(content)
        tile._state.cache_clear()
    assert tile_for("numba", "euclidean", "exact", 10) == DEFAULT
    assert str(path) in state("numba").said and "cannot be used" in state("numba").said


WRITER = """
import sys
from gpurbf.layer.backends.tile import Tuned
from gpurbf.layer.backends import Tile
from gpurbf.layer.backends.tile import store
for i in range(40):
    tiles = (Tuned("euclidean", "exact", 64.0 + k, Tile(M=int(sys.argv[1]))) for k in range(200))
    store("numpy", tuple(tiles))
"""


def test_concurrent_writers_leave_a_whole_file_at_any_time(folder):
    numbers = (101, 202, 303)
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(M)]) for M in numbers]
    seen = 0
    while any(writer.poll() is None for writer in writers):
        tile._state.cache_clear()
        if tuned := state("numpy").tuned:
            seen += 1
            assert len(tuned) == 200 and len({entry.tile for entry in tuned}) == 1
        else:
            assert "measure with" in state("numpy").said
    assert seen and all(writer.wait() == 0 for writer in writers)
    assert len(list(folder.iterdir())) == 1


def test_forced_tiles_nest_and_belong_to_a_thread(folder):
    store("numba", TUNED)
    seen = []
    with forced(Tile(M=24)):
        with forced(DEFAULT):
            assert tile_for("numba", "euclidean", "exact", 10) == DEFAULT
        assert tile_for("numba", "euclidean", "exact", 10) == Tile(M=24)
        other = threading.Thread(
            target=lambda: seen.append(tile_for("numba", "euclidean", "exact", 10))
        )
        other.start()
        other.join()
    assert seen == [Tile(M=48)] == [tile_for("numba", "euclidean", "exact", 10)]
    with pytest.raises(ValueError, match="> 0"), forced(Tile(M=0)):
        pass


def test_a_layer_keeps_the_tile_that_it_was_prepared_with():
    rng = np.random.default_rng(0)
    X, C = (rng.integers(0, 256, (size, 9)).astype(np.uint8) for size in (500, 20))
    layer = HiddenLayer(C, Activation("euclidean", "gaussian", 1e-5), backend="numba")
    with forced(Tile(M=96, threads=1)):
        layer.outputs(X)  # worker threads have no forced tile, and need none
    layer.outputs(X)
    (operand,) = layer._operands.values()
    assert {part.block for part in operand.parts} == {96} and operand.threads == 1


def test_a_tile_does_not_take_the_memory_of_very_many_inputs():
    C = np.random.default_rng(0).normal(size=(2, 300_000))
    layer = HiddenLayer(C, Activation("euclidean", "gaussian", 1.0), backend="numba")
    with forced(Tile(M=5000)):
        layer.outputs(C)
    (operand,) = layer._operands.values()
    assert operand.parts[0].block < 100


@pytest.mark.parametrize("precision", tuner.PRECISIONS)
@pytest.mark.parametrize("metric", ["euclidean", "manhattan"])
def test_no_tile_changes_a_result(backend, metric, precision):
    tiles = get_backend(backend)[0].tiles.get(metric, ())
    rng = np.random.default_rng(0)
    X = rng.integers(0, 256, (900, 21)).astype(np.uint8 if precision == "exact" else precision)
    X, C = X[:600], X[600:]
    gamma = 1e-4 / X.shape[1] / (X.shape[1] if metric == "manhattan" else 1)
    H = reference.hidden(X, C, metric, "gaussian", gamma)
    W, T = rng.normal(size=(len(C), 3)), rng.normal(size=(len(X), 2))
    odd = (Tile(M=1, threads=1000), Tile(M=37), Tile(M=5000))
    for cut in (DEFAULT, *tiles, *odd):
        activation = Activation(metric, "gaussian", gamma)
        layer = HiddenLayer(C, activation, backend=backend, precision=precision)
        within = reference.TOLERANCE[layer.dtype]
        with forced(cut):
            found = layer.outputs(X), layer.scores(X, W), *layer.normal(X, T)
        for value, expected in zip(found, (H, H @ W, H.T @ H, H.T @ T)):
            scale = max(1.0, np.abs(expected).max())
            np.testing.assert_allclose(value, expected, rtol=0, atol=10 * within * scale)


@pytest.mark.parametrize(("memory", "largest"), [(0.25, 96), (4, 1632), (256, 4000)])
def test_a_tile_of_a_product_stays_within_the_memory_budget(memory, largest):
    sizes = []

    def multiply(A, B, out):
        sizes.append(len(out))
        np.matmul(A, B.T, out=out)

    numpy = get_backend("numpy")[0]
    X, C = np.ones((5000, 5), np.float32), np.ones((160, 5), np.float32)
    with forced(Tile(M=4000)):
        operand = numpy.prepare(C, Activation("euclidean", "gaussian"), np.float32, None)
    watched = replace(operand, product=operand.product._replace(multiply=multiply))
    with config_context(memory=memory):
        H = numpy.outputs(watched, X, np.empty((5000, 160), np.float32))
    assert max(sizes) == largest and sum(sizes) == len(X)
    np.testing.assert_array_equal(H, 1)


def test_the_race_takes_what_is_faster_and_keeps_the_default_in_doubt(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(tuner.time, "perf_counter", lambda: clock[0])
    noise = np.random.default_rng(0)

    def call(seconds, spread):
        def work():
            clock[0] += seconds * (1 + spread * noise.random())

        return work

    def winner(seconds, spread):
        calls = {Tile(M=i) if i else DEFAULT: call(s, spread) for i, s in enumerate(seconds)}
        return tuner.race(calls, DEFAULT, 0)[0]

    assert winner([1.0, 1.2, 0.8, 0.9, 1.1, 5.0], 0.05) == Tile(M=2)
    assert winner([1.0, 1.2], 0.05) == DEFAULT
    assert winner([1.0, 0.995, 1.0], 0.0) == DEFAULT
    assert sum(winner([1.0] * 10, 0.2) == DEFAULT for _ in range(100)) >= 98


@pytest.fixture
def small(monkeypatch):
    """One range of few inputs, and no time to spare."""
    monkeypatch.setattr(tuner, "RANGES", {float("inf"): 64})
    monkeypatch.setattr(tuner, "_QUICK", (64,))
    monkeypatch.setattr(tuner, "_CALL", (1e-4, 1e-4))
    original = tuner.tune
    monkeypatch.setattr(tuner, "tune", lambda name, seconds, *rest: original(name, 0, *rest))


def test_tune_stores_what_info_shows_and_layers_use(capsys, folder, small):
    assert main(["tune", "--quick", "--backend", "numpy"]) == 0
    out, err = capsys.readouterr()
    assert "| euclidean | float32 " in out and "stored: " in out
    assert "3/3" in err and "#" in err
    (path,) = folder.glob("tuning-numpy-*.json")
    assert {entry["precision"] for entry in json.loads(path.read_text())["tiles"]} == {
        "exact",
        "float32",
        "float64",
    }
    assert main(["info"]) == 0
    (line,) = (text for text in capsys.readouterr().out.splitlines() if str(path) in text)
    assert "numpy" in line and "tuned on" in line
    changed(
        path,
        tiles=[{"metric": "euclidean", "precision": "exact", "inputs": None, "tile": {"M": 3}}],
    )
    layer = HiddenLayer(
        np.zeros((4, 3), np.uint8), Activation("euclidean", "gaussian"), backend="numpy"
    )
    layer.outputs(np.zeros((4, 3), np.uint8))
    assert [operand.M for operand in layer._operands.values()] == [3]


def test_where_nothing_can_be_stored_tune_says_so_and_goes_on(capsys, monkeypatch, tmp_path, small):
    (tmp_path / "file").touch()
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "file" / "below"))
    assert main(["tune", "--quick", "--backend", "numpy"]) == 0
    out = capsys.readouterr().out
    assert "| euclidean | float32 " in out and "could not be stored" in out
    assert state("numpy").tuned == ()


def test_a_failed_write_leaves_nothing_behind(folder):
    with pytest.raises(TypeError):
        cache.write("thing.json", {"a": object()})
    assert not list(folder.iterdir())


def test_the_cache_is_in_the_users_place_unless_a_variable_says_otherwise(monkeypatch):
    monkeypatch.delenv(cache.VARIABLE)
    assert cache.folder().name in ("gpurbf", "Cache")
    monkeypatch.setenv(cache.VARIABLE, "here")
    assert str(cache.folder()) == "here"


def test_every_backend_has_tiles_of_its_own_parameters(backend):
    for metric, tiles in get_backend(backend)[0].tiles.items():
        assert metric in ("euclidean", "manhattan")
        assert len(set(tiles)) == len(tiles) > 1 and DEFAULT not in tiles
        stated = [{key for key, value in tile._asdict().items() if value} for tile in tiles]
        assert set.union(*stated)


def test_the_version_is_that_of_the_package(folder):
    assert json.loads(store("numpy", ()).read_text())["gpurbf"] == gpurbf.__version__
