"""What work on a cluster is divided into, and what a task does to its worker's memory."""

import subprocess
import sys

import pytest

pytest.importorskip("dask.array", reason="no Dask")
pytest.importorskip("distributed", reason="no Dask")

from gpurbf.dask.graph import Settings, Tasks
from gpurbf.dask.homes import Homes
from gpurbf.dask.tiles import Queue, ending_in_pairs, tiles_of


@pytest.mark.parametrize(
    ("most", "nbytes", "largest"), [(None, 1, 3), (2, 1, 2), (None, 200 << 20, 1)]
)
def test_a_group_is_of_one_worker_and_no_more_than_it_may_hold(most, nbytes, largest):
    workers = ["a", "b", "", "a", "a", "", "a", "a"]
    groups = Homes(workers, [nbytes] * 8, {"a": 1, "b": 2}).groups(most)
    assert sorted(i for group in groups for i in group) == list(range(8))
    assert all(len({workers[i] for i in group}) == 1 for group in groups)
    assert [2] in groups and [5] in groups  # nobody knows where they are
    assert max(map(len, groups)) == largest


@pytest.mark.parametrize("n_classes", [2, 3, 10])
@pytest.mark.parametrize("wanted", [1, 6, 100])
def test_tiles_have_each_pair_once(n_classes, wanted):
    parts, tiles = tiles_of(n_classes, wanted)
    assert [c for part in parts for c in part] == list(range(n_classes))
    pairs = [pair for tile in tiles for pair in tile.pairs]
    assert sorted(pairs) == [(a, b) for a in range(n_classes) for b in range(a + 1, n_classes)]
    assert len(tiles) >= min(wanted, len(pairs))
    for tile in tiles:
        classes = {c for part in tile.parts for c in parts[part]}
        assert {c for pair in tile.pairs for c in pair} <= classes


@pytest.mark.parametrize("wanted", [0, 4, 7, 100])
def test_the_smallest_tiles_are_cut_into_pairs(wanted):
    _, tiles = tiles_of(10, 6)
    cut = ending_in_pairs(tiles, wanted)
    pairs = [(pair, tile.parts) for tile in cut for pair in tile.pairs]
    assert sorted(pairs) == sorted((pair, tile.parts) for tile in tiles for pair in tile.pairs)
    single = sum(len(tile.pairs) == 1 for tile in cut)
    assert single >= min(wanted, len(pairs))
    whole = [tile for tile in tiles if tile in cut]
    assert single == 0 or all(len(tile.pairs) >= 3 for tile in whole)


def test_the_largest_tasks_begin_first_and_threads_end_together():
    costs = [3, 50, 20, 30, 40, 5, 12]
    queue = Queue(costs, {"a": 1, "b": 1})
    # b needs twice the time that a needs: it is given less.
    ends, order, running = {"a": 0, "b": 0}, [], []
    while queue or running:
        while queue and len(running) < 4:
            i, where = queue.next()
            (worker,) = where["workers"]
            ends[worker] += costs[i] * (1 + (worker == "b"))
            running.append((ends[worker], i))
            order.append(costs[i])
        running.sort()
        queue.done(running.pop(0)[1])
    assert order == sorted(costs, reverse=True)
    assert abs(ends["a"] - ends["b"]) <= 50  # told ahead: 80
    nobody = Queue([1, 2], {})
    assert [nobody.next(), nobody.next()] == [(1, {}), (0, {})]  # workers may yet come
    nobody.done(1)


@pytest.mark.parametrize(
    ("address", "direct"),
    [("tcp://127.0.0.1:4000", True), ("inproc://192.0.2.1/1/2", True), ("tcp://10.0.0.2:1", None)],
)
def test_results_pass_the_scheduler_by_where_the_client_can_reach_all_workers(address, direct):
    class Client:
        def nthreads(self):
            return {"tcp://127.0.0.1:3999": 1, address: 2}

        def gather(self, futures, direct):
            return futures, direct

    tasks = Tasks(Client(), Settings.of(None))
    assert tasks.gathered(["future"]) == (["future"], direct)


def test_without_dask_the_error_names_the_line_that_installs_it():
    code = "import sys; sys.modules['distributed'] = None; import gpurbf.dask"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert 'pip install ".[dask]"' in done.stderr and "ImportError" in done.stderr
