"""Plans of work on a cluster: groups of blocks, tasks of pairs, the way of results."""

from itertools import chain, combinations
from types import SimpleNamespace

import pytest
from callers import run_python

pytest.importorskip("dask.array", reason="no Dask")
pytest.importorskip("distributed", reason="no Dask")

from gpurbf.dask.graph import Tasks
from gpurbf.dask.svc import PairWork

RUNNING = {"status": "running", "asynchronous": False}


@pytest.mark.parametrize(("nbytes", "largest"), [(1, 3), (100 << 20, 2), (200 << 20, 1)])
def test_a_group_is_of_one_worker_and_no_more_than_it_may_hold(nbytes, largest):
    workers = ["a", "b", None, "a", "a", None, "a", "a"]
    client = SimpleNamespace(
        **RUNNING,
        nthreads=lambda: {"a": 1, "b": 2},
        has_what=lambda: {"a": [0, 3, 4, 6, 7], "b": [1]},
        nbytes=lambda summary: dict.fromkeys([0, 1, 3, 4, 6, 7], nbytes),
    )
    groups = Tasks(client).locality([SimpleNamespace(key=i) for i in range(8)])
    assert sorted(i for group in groups for i in group) == list(range(8))
    assert all(len({workers[i] for i in group}) == 1 for group in groups)
    assert [2] in groups and [5] in groups  # nobody knows where they are
    assert max(map(len, groups)) == largest


@pytest.mark.parametrize("n_classes", [2, 3, 10])
@pytest.mark.parametrize("wanted", [1, 6, 100])
def test_each_pair_is_in_one_task_and_the_last_are_single(n_classes, wanted):
    work = PairWork.of(n_classes, wanted)
    assert [*chain(*work.parts)] == list(range(n_classes))
    pairs = [*chain(*work.tasks)]
    assert sorted(pairs) == [*combinations(range(n_classes), 2)]
    assert len(work.tasks) >= min(wanted, len(pairs))
    for own in work.tasks:
        parts = work.parts_of(own)
        assert {c for pair in own for c in pair} <= {c for i in parts for c in work.parts[i]}
        assert len(parts) == 2 or len(own) == 1


@pytest.mark.parametrize(
    ("address", "direct"),
    [("tcp://127.0.0.1:4000", True), ("inproc://192.0.2.1/1/2", True), ("tcp://10.0.0.2:1", None)],
)
def test_results_pass_the_scheduler_by_where_the_client_can_reach_all_workers(address, direct):
    client = SimpleNamespace(
        **RUNNING,
        nthreads=lambda: {"tcp://127.0.0.1:3999": 1, address: 2},
        gather=lambda futures, direct: (futures, direct),
    )
    assert Tasks(client).gathered(["future"]) == (["future"], direct)


def test_without_dask_the_error_names_the_line_that_installs_it():
    code = "import sys; sys.modules['distributed'] = None; import gpurbf.dask"
    errors = run_python(code, check=False).stderr
    assert 'pip install ".[dask]"' in errors and "ImportError" in errors


@pytest.mark.parametrize("n_classes, n_workers, n_tasks", [(2, 3, 1), (3, 1, 1), (10, 8, 8)])
def test_a_worker_with_a_gpu_has_all_its_pairs_at_once(n_classes, n_workers, n_tasks):
    work = PairWork.at_once(n_classes, n_workers)
    assert sorted(chain(*work.tasks)) == [*combinations(range(n_classes), 2)]
    lengths = [len(own) for own in work.tasks]
    assert len(lengths) == n_tasks and max(lengths) - min(lengths) <= 1
    for own in work.tasks:
        assert work.parts_of(own) == sorted({c for pair in own for c in pair})
