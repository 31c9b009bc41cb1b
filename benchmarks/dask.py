"""On a Dask cluster: the same bits, the speed of threads, bytes that move, more than memory."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from dask.delayed import delayed
from dask.utils import key_split
from distributed import Client, LocalCluster

import gpurbf
import gpurbf.dask as on_dask
from benchmarks import data
from benchmarks.measure import in_turn, megabytes, once
from benchmarks.report import Report
from gpurbf import datasets
from gpurbf.cli import classify
from gpurbf.runtime.threads import limited

TITLE = "On a Dask cluster"


class Plan(NamedTuple):
    """Sizes of a run."""

    workers: tuple[int, ...]
    chunks: tuple[int, ...]
    centers: int
    more_centers: int  # of a second classifier, which is timed
    rounds: int
    gigabytes: float
    centers_on_disk: int


_FULL = Plan((1, 2, 3, 7), (1000, 7777, 60_000), 1000, 4096, 3, 10.0, 512)
_QUICK = Plan((1, 3), (200, 1400), 256, 512, 1, 0.002, 64)
# Workers that the model is for, and the bytes a second that it takes a network for.
_MODELLED, _NETWORK = (1, 2, 4, 8, 16, 32, 64), 1e9


def run(report: Report, quick: bool, data_home: str | None) -> None:
    """Bits on clusters of several sizes; time, bytes and a file on one of two processes."""
    images, plan = classify.images(quick, data_home), _QUICK if quick else _FULL
    local: dict[str, Any] = {
        "RBFClassifier": gpurbf.RBFClassifier(plan.centers, random_state=0),
        "SVC": gpurbf.SVC(),
    }
    for model in local.values():
        model.fit(images.X_train, images.y_train)
    _bits(report, plan, images, local)
    with _cluster(2, memory_limit="2GB") as client:
        _speed(report, plan, images, local, client)
        _on_disk(report, plan, images, client)


@contextmanager
def _cluster(n_workers: int, **options: Any) -> Iterator[Client]:
    """Workers of one thread each, in processes of their own."""
    quiet = {"dashboard_address": ":0", "silence_logs": "ERROR"}
    cluster = LocalCluster(n_workers, threads_per_worker=1, **quiet, **options)
    with cluster, Client(cluster) as client:
        yield client


def _spread(client: Client, images: datasets.Images, chunk: int) -> tuple[list[Any], list[Any]]:
    """Blocks of the training data and their labels on the workers."""
    parts = range(0, len(images.X_train), chunk)
    X, y = (
        client.scatter([values[i : i + chunk] for i in parts], hash=False)
        for values in (images.X_train, images.y_train)
    )
    return X, y


def _twin(local: Any, client: Client) -> Any:
    return getattr(on_dask, type(local).__name__)(**local.get_params(), client=client)


def _bits(report: Report, plan: Plan, images: datasets.Images, local: dict[str, Any]) -> None:
    rows = []
    for n_workers in plan.workers:
        with _cluster(n_workers, processes=False) as client:
            for chunk in plan.chunks:
                name = "RBFClassifier"
                model = _twin(local[name], client).fit(*_spread(client, images, chunk)).to_local()
                _verify(model, local[name], images)
                rows.append([name, n_workers, f"{chunk:,}", "equal, bit for bit"])
            if n_workers == plan.workers[1]:
                chunk = plan.chunks[1]
                model = _twin(local["SVC"], client).fit(*_spread(client, images, chunk)).to_local()
                _verify(model, local["SVC"], images)
                rows.append(["SVC", n_workers, f"{chunk:,}", "predictions equal"])
    report.text(
        f"## The same model\n\n{len(images.X_train):,} training images, workers in one process. Of "
        f"RBFClassifier({plan.centers}) all fitted numbers are compared, of SVC the predictions "
        f"for {len(images.X_test):,} test images."
    )
    report.table(["model", "workers", "rows of a block", "beside the local fit"], rows)


def _verify(model: Any, local: Any, images: datasets.Images) -> None:
    """Raise unless the model is the local one."""
    if isinstance(local, gpurbf.SVC):
        same = np.array_equal(model.predict(images.X_test), local.predict(images.X_test))
    else:
        names = ("centers_", "gamma_", "coef_", "intercept_", "temperature_")
        same = all(np.array_equal(getattr(model, name), getattr(local, name)) for name in names)
    if not same:
        raise AssertionError(f"{type(local).__name__} on a cluster is not the local one")


def _sent(dask_worker: Any) -> list[tuple[str, int]]:
    """To whom a worker has sent how many bytes, as they went over the line."""
    return [(sent["who"], sent["compressed"]) for sent in dask_worker.transfer_outgoing_log]


class _Work(NamedTuple):
    """Seconds of a fit, of all its tasks and of the longest; bytes by where they went."""

    seconds: float
    tasks: float
    longest: float
    between: int
    away: int


def _watched(client: Client, fit: Callable[[], Any]) -> _Work:
    """A fit, and what the cluster did for it."""
    workers = set(client.scheduler_info(n_workers=-1)["workers"])
    client.get_task_stream()  # from now on it is recorded
    before = {worker: len(log) for worker, log in client.run(_sent).items()}
    begin = time.time()
    seconds = once(fit)
    stream = client.get_task_stream(start=begin)
    took = [
        (key_split(task["key"]), part["stop"] - part["start"])
        for task in stream
        for part in task["startstops"]
        if part["action"] == "compute"
    ]
    sent = [entry for worker, log in client.run(_sent).items() for entry in log[before[worker] :]]
    return _Work(
        seconds,
        sum(length for _, length in took),
        max(length for _, length in took),
        sum(size for who, size in sent if who in workers),
        sum(size for who, size in sent if who not in workers),
    )


def _speed(
    report: Report, plan: Plan, images: datasets.Images, local: dict[str, Any], client: Client
) -> None:
    X, y = _spread(client, images, -(-len(images.X_train) // 12))
    rows, lines = [], []
    more = gpurbf.RBFClassifier(plan.more_centers, random_state=0)
    names = [f"RBFClassifier({plan.centers})", f"RBFClassifier({plan.more_centers})", "SVC"]
    models = local["RBFClassifier"], more, local["SVC"]
    for name, model in zip(names, models):
        twin = _twin(model, client)

        def here(model: Any = model) -> None:
            with limited(2):
                model.fit(images.X_train, images.y_train)

        there = partial(twin.fit, X, y)
        times = in_turn({"threads": here, "workers": there}, plan.rounds)
        work = _watched(client, there)
        rows.append(
            [
                name,
                str(times["threads"]),
                str(times["workers"]),
                f"{times['threads'].median / times['workers'].median:.2f}",
                f"{work.tasks / 2:.2f}",
                f"{work.between / 1e6:,.1f}",
                f"{work.away / 1e6:,.1f}",
            ]
        )
        lines.append([name, *(f"{_modelled(work, n, model):.2f}" for n in _MODELLED)])
    report.text(
        "## Two workers beside two threads\n\nTwo processes of one thread each, the training "
        f"images in 12 blocks on them ({images.X_train.nbytes / 1e6:.0f} MB), beside the local fit "
        "with two threads, in turn. Seconds in tasks, of one worker on average, and bytes are what "
        "the cluster's logs of one more fit say; the rest goes to the client, which solves "
        "RBFClassifier's equations, to rounds and to what moves."
    )
    header = [
        "",
        "two threads s",
        "two workers s",
        "threads' time / workers'",
        "in tasks s",
        "between workers MB",
        "to client MB",
    ]
    report.table(header, rows)
    report.text(
        "### More workers: a model, nothing measured\n\nSeconds to expect, from the fit above: "
        "what is not in tasks stays as it is, tasks are shared evenly but the longest is not cut, "
        f"and bytes pass a network of {_NETWORK / 1e9:g} GB/s into each worker. For "
        "RBFClassifier each worker's HᵀH goes up a tree of two; for SVC each worker gets the "
        "samples once. Blocks are taken to be as many as it needs."
    )
    report.table(["workers", *map(str, _MODELLED)], lines)


def _modelled(work: _Work, n: int, model: Any) -> float:
    """Seconds of a fit on n workers, see the report."""
    alone = max(0.0, work.seconds - work.tasks / 2)
    if isinstance(model, gpurbf.SVC):
        moved, least = work.between * (1 - 1 / n), work.longest
    else:
        moved, least = np.ceil(np.log2(n)) * 8 * len(model.centers_) ** 2, 0.0
    return float(alone + max(work.tasks / n, least) + moved / _NETWORK)


def _block(path: Path, i: int, shape: tuple[int, int]) -> np.ndarray:
    """A block of the file."""
    return np.fromfile(path, np.uint8, shape[0] * shape[1], offset=i * shape[0] * shape[1]).reshape(
        shape
    )


def _on_disk(report: Report, plan: Plan, images: datasets.Images, client: Client) -> None:
    copies = max(2, -(-int(plan.gigabytes * 1e9) // images.X_train.nbytes))
    local = gpurbf.RBFClassifier(plan.centers_on_disk, random_state=0)
    local.fit(images.X_train, images.y_train)
    client.restart()  # memory of the section before is not the subject
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "blocks")
        with open(path, "wb") as file:
            data.write_copies(images.X_train, copies, file)
        read = delayed(_block, pure=False)
        shape = images.X_train.shape
        X = [read(path, i, shape, dask_key_name=f"read-{i}") for i in range(copies)]
        y = [delayed(images.y_train)] * copies
        model = _twin(local, client)
        seconds = once(model.fit, X, y)
        peaks = [peak for peak in client.run(megabytes, "VmHWM").values() if peak is not None]
    if not np.array_equal(model.centers_, local.centers_):
        raise AssertionError("other centers from the file than from the images it repeats")
    ours, theirs = (m.score(images.X_test, images.y_test) for m in (model.to_local(), local))
    size = copies * images.X_train.nbytes
    report.text(
        f"## A file of {size / 1e9:.2f} GB on workers of 2 GB\n\nThe training images repeated, "
        f"{copies * shape[0]:,} rows in {copies} blocks that are read when they are needed, on two "
        "workers that Dask ends if they take more than 2 GB; the peak is one worker's. The centers "
        "are those of a local fit on the images once, checked."
    )
    header = ["centers", "rows", "seconds", "rows a second", "accuracy %", "local %", "peak MB"]
    report.table(
        header,
        [
            [
                plan.centers_on_disk,
                f"{copies * shape[0]:,}",
                f"{seconds:.1f}",
                f"{copies * shape[0] / seconds:,.0f}",
                f"{100 * ours:.2f}",
                f"{100 * theirs:.2f}",
                f"{max(peaks):,.0f}" if peaks else "",
            ]
        ],
    )  # fmt: skip
