"""The paper's experiment and the benchmark of scale: what they compare and how they end."""

import shutil
import tempfile
from functools import partial

import numpy as np
import pytest

from benchmarks import data, figures, paper, scale, ways
from benchmarks.measure import megabytes
from benchmarks.report import Report
from gpurbf.layer.backends import Tile
from gpurbf.profiling import machine


def test_every_backend_that_is_there_is_measured_in_every_precision():
    there = [name for name, said in machine.backends().items() if said.startswith("available")]
    expected = {f"{name}, {precision}" for name in there for precision in ways.PRECISIONS}
    assert expected <= set(ways.every_way())
    assert set(ways.every_way()) - expected == {ways.NAIVE, "plain NumPy, float64", ways.PLAIN}


def test_a_wrong_result_ends_the_benchmark_before_it_times(monkeypatch):
    monkeypatch.setattr(paper, "in_turn", lambda *_, **__: pytest.fail("timed"))
    monkeypatch.setattr(ways, "naive", lambda X, C: lambda: np.zeros((len(X), len(C))))
    with pytest.raises(AssertionError, match="naive loop, 1 thread: an error"):
        paper.run(Report("x"), True, None)


def test_short_calls_are_repeated_and_their_time_divided():
    calls = []
    times = paper.synapse_times({"a": lambda: calls.append(1)}, work=10, rounds=2)
    assert len(calls) > 100  # a round takes 20 ms
    assert 0 < times["a"].low <= times["a"].median <= times["a"].high < 1e5


def test_the_bnls_of_a_cut_layer_are_the_layer():
    X, C = data.pixels(64, 64, 20)
    whole = ways.evaluation("auto", "exact", X, C)()
    blocks = [bnl() for bnl in paper._grid(X, C, 16, "auto", "exact")]
    columns = [np.concatenate(blocks[i : i + 4]) for i in range(0, 16, 4)]
    # Each BNL has the gamma of all: it depends on the number of inputs alone.
    np.testing.assert_array_equal(np.concatenate(columns, axis=1), whole)


def test_speed_up_beyond_the_last_size_of_the_base_is_against_that():
    found = {"base": {8: 4.0, 16: 2.0}, "fast": {8: 2.0, 16: 0.5, 32: 0.25}}
    assert figures.speed_ups(found, "base") == {"fast": {8: 2.0, 16: 4.0, 32: 8.0}}


def test_figures_are_drawn_beside_the_page(tmp_path):
    pytest.importorskip("matplotlib")
    names = [ways.NAIVE, ways.PLAIN, *(f"numba, {precision}" for precision in ways.PRECISIONS)]
    found = {way: {size: 1.0 / (i + size) for size in (8, 16, 32)} for i, way in enumerate(names)}
    times = {ways.stated(Tile(M=M)): float(i) for i, M in enumerate((None, 24, 48), 1)}
    tiles = {f"{name}, {precision}": times for name in "ab" for precision in ways.PRECISIONS}
    medians = {way: series[8] for way, series in found.items()}
    drawn = {
        "sweep": partial(figures.sweep, found, ways.NAIVE, paper.PUBLISHED, "M"),
        "ranking": partial(figures.ranking, medians, paper.PUBLISHED),
        "tiles": partial(figures.tiles, tiles),
        "cuts": partial(figures.cuts, {way: found[way] for way in names[2:]}),
    }
    report = Report("x")
    for name, plot in drawn.items():
        report.figure(name, f"A {name}", plot)
    report.write(tmp_path / "x.md")
    assert all(f"![A {name}]({name}.png)" in (tmp_path / "x.md").read_text() for name in drawn)
    assert all((tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG") for name in drawn)
    svg = {name: (tmp_path / f"{name}.svg").read_text() for name in drawn}
    for way in names:
        assert f"<!-- {way} -->" in svg["sweep"], "a line without its name"
    for name in (*medians, *paper.PUBLISHED):
        assert f"<!-- {name} -->" in svg["ranking"]


def test_too_little_room_is_said_and_nothing_is_written(monkeypatch):
    usage = shutil.disk_usage(tempfile.gettempdir())._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    with tempfile.TemporaryFile() as file:
        with pytest.raises(OSError, match="TMPDIR"):
            data.write_copies(np.zeros((10, 1000), np.uint8), 3, file)
        assert file.tell() == 0


def test_a_file_of_copies_is_mapped_as_repeated_data():
    X = np.arange(12, dtype=np.uint8).reshape(3, 4)
    with tempfile.TemporaryFile() as file:
        data.write_copies(X, 5, file)
        np.testing.assert_array_equal(scale._mapped(file, (15, 4)), np.tile(X, (5, 1)))


def test_anonymous_memory_is_seen_and_pages_of_files_are_not(tmp_path):
    size = 64 * 2**20
    (tmp_path / "X").write_bytes(bytes(size))

    def keep(make):
        kept = make()
        kept[::4096].sum()
        scale.threading.Event().wait(0.1)  # long enough to be looked at

    before = megabytes("RssAnon")
    if before is None:
        pytest.skip("no RssAnon on this system")
    run = scale._measured(lambda: keep(lambda: np.ones(size, np.uint8)), 1)
    assert 60 < run.megabytes - before < 80
    with open(tmp_path / "X", "rb") as file:
        run = scale._measured(lambda: keep(lambda: scale._mapped(file, (size,))), 1)
    assert run.megabytes - before < 20
