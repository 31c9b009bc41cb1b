"""Data larger than the memory budget: fit and predict on a mapped file; reading meanwhile."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from benchmarks import data, ways
from benchmarks.figures import named_lines, plain, ratio_ticks
from benchmarks.measure import megabytes, once
from benchmarks.report import Report
from gpurbf import RBFClassifier, config_context, datasets
from gpurbf.cli import classify
from gpurbf.data import row_blocks
from gpurbf.layer.layer import HiddenLayer

TITLE = "Data larger than memory"
_MB = 2**20


class Plan(NamedTuple):
    """Sizes of a run: megabytes are 2**20 bytes."""

    gigabytes: float  # of the file
    memory: int  # megabytes of the budget
    centers: tuple[int, int]  # fit on a part with so many, and on the whole file with so many
    part: int  # copies of the training data in the part
    overlap: int  # megabytes of the file that the last section reads
    tiles: tuple[int, ...]  # megabytes
    inputs: tuple[int, ...]


_FULL = Plan(10, 256, (4096, 512), 10, 512, (4, 16, 64), (49, 196, 784, 3136))
_QUICK = Plan(0.03, 64, (128, 64), 20, 16, (4, 8), (64, 256))


def run(report: Report, quick: bool, data_home: str | None) -> None:
    """Build the file, then see the headings; the file goes away whatever happens."""
    images = classify.images(quick, data_home)
    plan = _QUICK if quick else _FULL
    copies = max(plan.part, -(-int(plan.gigabytes * 1e9) // images.X_train.nbytes))
    # It has no name, so nothing is left behind even by a process that is killed.
    with tempfile.TemporaryFile() as file:
        data.write_copies(images.X_train, copies, file)
        shape = copies * len(images.X_train), images.X_train.shape[1]
        _conditions(report, plan, images, shape)
        _fit_and_predict(report, plan, images, file, shape, quick)
        _overlap(report, plan, file)


def _mapped(file: Any, shape: tuple[int, int]) -> np.ndarray:
    """The first rows of the file, read from the disk when they are used: none are in memory."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return np.memmap(file, np.uint8, "r", shape=shape)


def _conditions(
    report: Report, plan: Plan, images: datasets.Images, shape: tuple[int, int]
) -> None:
    cold = (
        "The system's copy of the file in memory is dropped before each run on the file."
        if hasattr(os, "posix_fadvise")
        else "This system cannot drop its copy of the file: reads may come from memory."
    )
    report.text(
        f"{len(images.X_train):,} × {shape[1]} uint8 training samples, repeated to "
        f"{shape[0]:,} rows, a file of {shape[0] * shape[1] / 1e9:.2f} GB. The budget is "
        f"`config_context(memory={plan.memory})`, megabytes. {cold}"
    )


class _Run(NamedTuple):
    """Seconds and rows of a call, and the peak of the process's anonymous memory meanwhile."""

    seconds: float
    rows: int
    megabytes: float | None


def _measured(call: Callable[[], Any], rows: int) -> _Run:
    """Time a call while a thread looks at the memory of the process, pages of files left out."""
    peak, done = megabytes("RssAnon"), threading.Event()

    def look() -> None:
        nonlocal peak
        while not done.wait(0.01):
            if (now := megabytes("RssAnon")) is not None:
                peak = max(peak or 0.0, now)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        seconds = once(call)
    finally:
        done.set()
        watcher.join()
    return _Run(seconds, rows, peak)


def _fit_and_predict(
    report: Report,
    plan: Plan,
    images: datasets.Images,
    file: Any,
    shape: tuple[int, int],
    quick: bool,
) -> None:
    """A part with many centers from file and from memory; the whole file."""
    N, n = shape
    y = np.tile(images.y_train, N // len(images.y_train))
    rows = plan.part * len(images.X_train)
    many, few = plan.centers
    warm = RBFClassifier(64, random_state=0).fit(images.X_train[:1000], images.y_train[:1000])
    warm.predict(images.X_test)  # compiled

    models = {name: RBFClassifier(many, random_state=0) for name in ("file", "memory")}
    small = {name: RBFClassifier(few, random_state=0) for name in ("file", "memory")}
    labels: dict[str, np.ndarray] = {}

    def fit(where: str, kept: dict[str, RBFClassifier], X: np.ndarray) -> None:
        kept[where].fit(X, y[: len(X)])

    def predict(where: str, kept: dict[str, RBFClassifier], X: np.ndarray) -> None:
        labels[where] = kept[where].predict(X)

    done: dict[tuple[str, str, int], list[_Run]] = {}
    before = megabytes("RssAnon")
    file.seek(0)
    held = np.fromfile(file, np.uint8, rows * n).reshape(rows, n)
    compared = (
        (fit, models, many, rows, ("file", "memory", "memory", "file")),
        (fit, small, few, N, ("memory", "memory", "file", "memory", "memory")),
        (predict, models, many, N, ("memory", "memory", "file", "memory", "memory")),
    )
    with config_context(memory=plan.memory):
        for function, kept, m, N_file, order in compared:
            for where in order:
                X = held if where == "memory" else _mapped(file, (N_file, n))
                run = _measured(partial(function, where, kept, X), len(X))
                done.setdefault((function.__name__, where, m), []).append(run)
    if not np.array_equal(models["file"].coef_, models["memory"].coef_):
        raise AssertionError("other output weights from the file than from memory")
    one = labels["memory"][: len(images.X_train)]
    if not (labels["file"].reshape(-1, len(one)) == one).all():
        raise AssertionError("other labels from the file than from memory")
    report.text(
        f"## Fit and predict\n\nWith {many:,} centers fit saw the first {rows:,} rows "
        f"({rows * n / 1e9:.2f} GB), from the file and from memory, with {few:,} centers the whole "
        "file; predict saw the whole file. From memory every run is on those first rows. Runs are "
        "in turn (file, memory, memory, file; the whole file between two pairs from memory), "
        "seconds the mean of them, their range in parentheses. Output weights and "
        "labels from file and memory are equal, checked. Rates count every row once; "
        "`fit` reads the file four times (gamma twice, the draw of centers, training)."
    )
    lines = []
    rates = {key: _rate(runs) for key, runs in done.items()}
    for (what, where, m), runs in done.items():
        seconds = [run.seconds for run in runs]
        share = 100 * rates[what, where, m] / rates[what, "memory", m]
        lines.append(
            (what, where, f"{m:,}", f"{runs[0].rows:,}",
             f"{np.mean(seconds):.1f} ({min(seconds):.1f}–{max(seconds):.1f})",
             f"{rates[what, where, m]:,.0f}", "" if where == "memory" else f"{share:.0f} %")
        )  # fmt: skip
    header = ("what", "from", "centers", "rows", "seconds", "rows/s", "of memory's rate")
    report.table(header, lines, "scale-rates")
    accuracy = 100 * models["file"].score(images.X_test, images.y_test)
    report.text(f"Test accuracy with {many:,} centers: {accuracy:.2f} %.")
    if before is None:
        report.text("Memory was not measured: this system has no /proc/self/status.")
        return
    # Memory that earlier runs freed and the allocator kept counts too: no run looks too small.
    before += held.nbytes / _MB
    peaks = {
        (what, m): (runs[0].rows, max(run.megabytes or 0.0 for run in runs) - before)
        for (what, where, m), runs in done.items()
        if where == "file"
    }
    _memory(report, plan, peaks, quick)


def _rate(runs: list[_Run]) -> float:
    """Rows a second."""
    return sum(run.rows for run in runs) / sum(run.seconds for run in runs)


def _memory(
    report: Report, plan: Plan, peaks: dict[tuple[str, int], tuple[int, float]], quick: bool
) -> None:
    """Peaks on the file against the budget and what a model takes."""
    lines = []
    for (what, m), (n_rows, peak) in peaks.items():
        # The sums of fit and their factor; a number a label in both, as documented.
        model = (12 * m * m if what == "fit" else 0) / _MB
        labels = 8 * n_rows / _MB
        allowed = plan.memory + model + labels
        if peak > allowed and not quick:
            raise AssertionError(f"{what}: {peak:.0f} MB, {allowed:.0f} allowed")
        lines.append(
            (what, f"{m:,}", f"{n_rows:,}", f"{peak:.0f}", plan.memory,
             f"{model:.0f}", f"{labels:.0f}", f"{allowed:.0f}")
        )  # fmt: skip
    report.text(
        "## Peak memory beyond the input, megabytes\n\nAnonymous memory of the process (`RssAnon`, "
        "looked at every 10 ms), so without the pages of the file, beyond what it held before the "
        "first run. Allowed are the budget, 12 m² bytes for fit's model and 8 a label."
    )
    header = ("what", "centers", "rows", "peak", "budget", "model", "labels", "allowed")
    report.table(header, lines, "scale-memory")


def _overlap(report: Report, plan: Plan, file: Any) -> None:
    """Read then compute, tile by tile, against reading the next tile while one is computed."""
    m = 256
    rows, ratios = [], {}
    for n in plan.inputs:
        shape = plan.overlap * _MB // n, n
        _, C = data.pixels(0, m, n)
        layer, W = ways.layer(C), np.ones((m, 10), np.float32)
        layer.matvec(C, W)
        for tile in plan.tiles:
            step = max(1, tile * _MB // n)
            parts = [slice(i, min(i + step, shape[0])) for i in range(0, shape[0], step)]
            seconds: dict[str, list[float]] = {"serial": [], "pipelined": []}
            for _ in range(3):
                for how, values in seconds.items():
                    X = _mapped(file, shape)
                    values.append(once(_pass, layer, X, W, parts, how == "pipelined"))
                    del X  # or the next round could not drop the file
            serial, pipelined = (float(np.median(values)) for values in seconds.values())
            ratios[n, tile] = serial / pipelined
            rate = shape[0] * n / pipelined / 1e9
            rows.append(
                (
                    n,
                    tile,
                    f"{serial:.3f}",
                    f"{pipelined:.3f}",
                    f"{ratios[n, tile]:.2f}",
                    f"{rate:.2f}",
                )
            )
    report.text(
        f"## Overlap: H @ W of {plan.overlap} MB of the file, {m} centers, serial and pipelined\n\n"
        "Serial reads a tile, then computes it. Pipelined, as the package does it, reads the next "
        "tile in a thread meanwhile. Medians of three; the most to be gained is 2. With thousands "
        "of centers computing outweighs reading and there is little left to gain."
    )
    header = ("inputs", "tile MB", "serial s", "pipelined s", "serial / pipelined", "GB/s")
    report.table(header, rows, "scale-overlap")

    def plot(figure: Any) -> None:
        figure.set_size_inches(6, 4)
        axis = figure.subplots()
        names = [f"n = {n}" for n in plan.inputs]
        series = {
            name: {tile: ratios[n, tile] for tile in plan.tiles}
            for name, n in zip(names, plan.inputs)
        }
        named_lines(axis, series, dict(zip(names, ("#0072B2", "#E69F00", "#009E73", "#000000"))))
        axis.axhline(1, color="#777777", lw=1)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(plan.tiles, [f"{tile}" for tile in plan.tiles])
        axis.set_xlim(plan.tiles[0] / 1.2, plan.tiles[-1] * 3)
        axis.set(xlabel="tile, megabytes", ylabel="serial time / pipelined time")
        ratio_ticks(axis)
        plain(axis)

    report.figure("scale-overlap", "Ratio of serial to pipelined time over the tile", plot)


def _pass(
    layer: HiddenLayer, X: np.ndarray, W: np.ndarray, parts: list[slice], pipelined: bool
) -> None:
    """H @ W part by part."""
    if pipelined:
        for _, block in row_blocks.read_ahead(X, parts):
            layer.matvec(block, W)
        return
    for part in parts:
        row_blocks.read(X[part])
        layer.matvec(X[part], W)
