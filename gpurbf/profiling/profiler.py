"""Profile of a fit and a prediction: rows, a table, a data frame, the bottleneck in words."""

from __future__ import annotations

import gc
import html
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.metrics import accuracy_score
from sklearn.utils import _safe_indexing, check_consistent_length, column_or_1d, get_tags, indexable
from sklearn.utils.multiclass import unique_labels

from gpurbf.estimators._validation import on_host
from gpurbf.layer.backends import get_backend
from gpurbf.profiling.machine import bandwidth, compute
from gpurbf.profiling.scaling import Scaling, model
from gpurbf.runtime.arrays import beside
from gpurbf.runtime.memory import physical_bytes
from gpurbf.runtime.stages import ELSEWHERE, STAGES, Entry, Recorder, stage

PHASES = ("training", "prediction")
# Parts below this share of their phase are in the frame, not in the printed table.
_SHOWN = 0.01
# Stages and parts whose work is on the device if the backend's arrays are there.
_ON_DEVICE = {"hidden layer", "output training", "samples shifted, norms", "leave-one-out"}

_HEADER = (
    "stage", "s", "%", "Gop", "Gop/s", "GB", "GB/s", "of the ceiling", "MB", "% of memory",
)  # fmt: skip


class Row(NamedTuple):
    """A stage (``part`` is empty) or a part of a stage; unknown numbers are NaN.

    ``share`` is the share of the phase's wall time. ``operations`` and ``nbytes`` are counts, each
    followed by its rate. ``efficiency`` is the time at the ceiling (a peak rate) divided by the
    measured time, and ``ceiling`` names that ceiling. ``peak_memory`` is in bytes, ``memory_share``
    is its share of the machine's memory.
    """

    phase: str
    stage: str
    part: str
    seconds: float
    share: float
    operations: float
    operations_per_second: float
    nbytes: float
    bytes_per_second: float
    efficiency: float
    ceiling: str
    peak_memory: float
    memory_share: float


class Profile:
    """Where the time of a fit and a prediction went; :func:`gpurbf.profile` makes it.

    Attributes
    ----------
    estimator : classifier
        Fitted.
    accuracy : float or None
        Share of the samples whose label was predicted correctly.
    seconds : dict
        Wall time of "training" and "prediction".
    rows : list of Row
        Stages in the order of the data's flow, each followed by its parts, the longest first.
    ceilings : dict
        Operations a second by kind of arithmetic, and bytes a second under "memory".
    """

    def __init__(
        self,
        estimator: Any,
        X: Any,
        X_test: Any,
        accuracy: float | None,
        training: Recorder,
        prediction: Recorder,
    ) -> None:
        self.estimator = estimator
        self.accuracy = accuracy
        self.shape, self.n_predicted = np.shape(X), np.shape(X_test)[0]
        self.seconds = {"training": training.seconds, "prediction": prediction.seconds}
        self._trace = training.trace
        self._nbytes = sum(entry.nbytes for entry in training.entries.values())
        self.ceilings: dict[str, float] = {"memory": bandwidth()}
        # NumPy where the estimator does not say what ran.
        backend = getattr(estimator, "backend_", "numpy")
        xp = np if backend in ("none", "scipy") else get_backend(backend)[0].xp
        self.rows = [
            row
            for phase, recorder in zip(PHASES, (training, prediction))
            for name in (*STAGES, ELSEWHERE[0])
            for row in self._stage(phase, name, recorder, xp)
        ]

    def _stage(self, phase: str, name: str, recorder: Recorder, xp: ModuleType) -> list[Row]:
        """The row of a stage and those of its parts."""
        parts = {part: entry for (stage, part), entry in recorder.entries.items() if stage == name}

        def row(part: str, entry: Entry, ideal: tuple[float, str]) -> Row:
            seconds, operations = entry.seconds, float(sum(entry.operations.values()))
            time = seconds, _ratio(seconds, recorder.seconds)
            work = operations, _ratio(operations, seconds)
            traffic = entry.nbytes, _ratio(entry.nbytes, seconds)
            limit = _ratio(ideal[0], seconds), ideal[1]
            memory = float(entry.memory) or math.nan, _ratio(entry.memory, physical_bytes())
            return Row(phase, name or "in no stage", part, *time, *work, *traffic, *limit, *memory)

        whole, ideals = Entry(), {}
        for part, entry in parts.items():
            whole.add(entry)
            ideals[part] = self._ideal(name, entry, xp if _ON_DEVICE & {name, part} else np)
        seconds = sum(seconds for seconds, _ in ideals.values())
        rows = [row("", whole, (seconds, max(ideals.values(), default=(0.0, ""))[1]))]
        if name:
            longest = sorted(parts, key=lambda part: -parts[part].seconds)
            rows += [row(part or "rest", parts[part], ideals[part]) for part in longest]
        return rows

    def _ideal(self, stage: str, entry: Entry, xp: ModuleType) -> tuple[float, str]:
        """Seconds that the work would take at the ceilings, and the name of the limiting one."""
        if stage == "host to device":
            return 0.0, ""
        work = [(entry.nbytes / self._ceiling("memory", xp), "memory")]
        products = {kind: n / self._ceiling(kind, xp) for kind, n in entry.operations.items()}
        if products:
            work.append((sum(products.values()), max(products, key=products.__getitem__)))
        seconds, ceiling = max(work)
        # The sum is NaN if a ceiling is not known.
        return (seconds, ceiling) if seconds > 0 and sum(products.values()) >= 0 else (0.0, "")

    def _ceiling(self, kind: str, xp: ModuleType) -> float:
        """The ceiling of that kind, kept for the table; NaN if it is not known."""
        found = bandwidth(xp) if kind == "memory" else compute(kind, xp)
        name = kind if xp is np else f"{kind} on the device"
        return self.ceilings.setdefault(name, math.nan if found is None else found)

    @property
    def bottleneck(self) -> str:
        """In words: the part of each phase that takes the most time above its ceiling."""
        return "\n".join(f"{phase.capitalize()}: {self._limit(phase)}." for phase in PHASES)

    def _limit(self, phase: str) -> str:
        """Name the part that takes the most time above what its ceiling would take."""
        rows = [row for row in self.rows if row.phase == phase]
        parts = [row for row in rows if row.part] or rows
        part = max(parts, key=lambda row: row.seconds * (1 - _reached(row)))
        stage = next(row for row in rows if row.stage == part.stage)
        text = f"{stage.stage} is {100 * stage.share:.0f} %"
        if part.part in ("", "rest"):
            return text
        if not part.ceiling:
            return f"{text}, of it {part.part} {100 * part.seconds / stage.seconds:.0f} %"
        limit = "memory bandwidth" if part.ceiling == "memory" else f"{part.ceiling} ceiling"
        near = f"{100 * part.efficiency:.0f} % of" if part.efficiency <= 1 else "more than"
        return f"{text}: {part.part} at {near} the {limit}"

    def to_frame(self) -> Any:
        """The rows as a data frame; rows of whole stages have an empty ``part``.

        Returns
        -------
        frame : pandas.DataFrame

        Raises
        ------
        ImportError
            If pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_frame needs pandas: python -m pip install pandas") from error
        return pandas.DataFrame(self.rows, columns=list(Row._fields))

    def plot(self, figure: Any = None) -> Any:
        """Draw the time of each stage, and inside it the time that it would take at the ceilings.

        Parameters
        ----------
        figure : matplotlib Figure, optional
            Where to draw; by default a new one of pyplot's.

        Returns
        -------
        figure : matplotlib Figure
        """

        if figure is None:
            import matplotlib.pyplot as plt

            figure = plt.figure(figsize=(11, 4.2), layout="constrained")
        figure.suptitle(self.title, fontsize=11)
        for axis, phase in zip(figure.subplots(1, len(PHASES), sharey=True), PHASES):
            _draw(axis, self, phase)
        figure.axes[0].set_yticks(range(len(STAGES)), STAGES)
        figure.axes[0].invert_yaxis()
        figure.axes[-1].legend(loc="lower right", frameon=False, fontsize=8)
        return figure

    @property
    def title(self) -> str:
        """The estimator, the size of its data, and the backend that ran."""
        N, n = (*self.shape, 1)[:2]
        text = f"{type(self.estimator).__name__}: {N:,} × {n:,} samples"
        for name, noun in (("centers_", "centers"), ("support_", "support vectors")):
            if hasattr(self.estimator, name):
                text += f", {getattr(self.estimator, name).shape[0]:,} {noun}"
        text += f", {self.n_predicted:,} predicted"
        if self.accuracy is not None:
            text += f", accuracy {100 * self.accuracy:.2f} %"
        return text

    def scaling(self, threads: Sequence[int] = (1, 2, 4, 16, 64)) -> list[Scaling]:
        """Model the training with other numbers of threads.

        The items of each parallel section, with their measured times, are handed out to that number
        of threads; one thread at a time holds Python's lock. Caches, memory and the clock of a
        processor are not modelled: compare ``bytes_per_second`` with the bandwidth of your socket,
        about 200 GB/s.

        Parameters
        ----------
        threads : sequence of int
            Numbers of threads.

        Returns
        -------
        rows : list of Scaling
            One row per number: seconds, speed-up over one thread, what threads wait for.
        """
        return model(self._trace, self._nbytes, threads)

    def table(self, phase: str) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Header and cells of "training" or "prediction"; small parts are left out."""
        rows = [
            row for row in self.rows if row.phase == phase and (not row.part or row.share >= _SHOWN)
        ]
        return _HEADER, [_cells(row) for row in rows]

    def __str__(self) -> str:
        parts = [self.title, getattr(self.estimator, "backend_info_", "")]
        for phase in PHASES:
            parts += [
                f"{phase.capitalize()}, {self.seconds[phase]:.3g} s",
                markdown_table(*self.table(phase)),
            ]
        limits = [
            f"{kind} {_number(rate / 1e9)} {'GB/s' if kind.startswith('memory') else 'Gop/s'}"
            for kind, rate in self.ceilings.items()
            if not math.isnan(rate)
        ]
        parts += [f"Ceilings: {', '.join(limits)}.", self.bottleneck]
        return "\n\n".join(filter(None, parts))

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def _reached(row: Row) -> float:
    """The share of its time that a part would take at its ceiling; 0 where none is known."""
    return min(1.0, row.efficiency) if row.ceiling else 0.0


def _ratio(a: float, b: float) -> float:
    return a / b if a and b else math.nan if not a else math.inf


def _cells(row: Row) -> tuple[str, ...]:
    name = f"· {row.part}" if row.part else row.stage
    if row.stage == "host to device" and not row.seconds:
        return (f"{row.stage}: none on a CPU", *[""] * 9)
    giga = (row.operations, row.operations_per_second, row.nbytes, row.bytes_per_second)
    return (
        name,
        _number(row.seconds),
        f"{100 * row.share:.1f}" if row.seconds else "",
        *(_number(number / 1e9) for number in giga),
        f"{100 * row.efficiency:.0f} % {row.ceiling}" if row.ceiling else "",
        _number(row.peak_memory / 2**20),
        f"{100 * row.memory_share:.1f}" if row.memory_share > 0 else "",
    )


def _number(value: float) -> str:
    """Three digits or four decimal places; empty unless the value is above 0."""
    if not value > 0:
        return ""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 4
    return f"{value:,.{digits}f}"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table whose columns also line up in a terminal; numbers are on the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells)]
    right = [all(not c or c[0].isdigit() or c[0] in "-–" for c in own) for own in zip(*cells)]
    right = right or [False] * len(widths)

    def line(row: Sequence[str]) -> str:
        parts = (f"{c:>{w}}" if r else f"{c:{w}}" for c, w, r in zip(row, widths, right))
        return "| " + " | ".join(parts) + " |"

    rule = "| " + " | ".join("-" * (w - r) + ":" * r for w, r in zip(widths, right)) + " |"
    return "\n".join([line(header), rule, *map(line, cells)])


_COLOR, _IDEAL = "#8fb8de", "#1f4e79"


def _draw(axis: Any, profile: Profile, phase: str) -> None:
    """The bars of one phase, each split into its parts."""
    wall = profile.seconds[phase]
    unit, scale = ("s", 1.0) if wall >= 1 else ("ms", 1000.0)
    for place, name in enumerate(STAGES):
        total, *parts = (row for row in profile.rows if (row.phase, row.stage) == (phase, name))
        left = 0.0
        for row in parts:
            length = scale * row.seconds
            axis.barh(place, length, 0.68, left, color=_COLOR, edgecolor="white", linewidth=1)
            axis.barh(place, length * _reached(row), 0.3, left, color=_IDEAL)
            left += length
        axis.text(left + 0.01 * scale * wall, place, _label(total, parts), va="center", fontsize=8)
    axis.set(title=f"{phase}, {scale * wall:.3g} {unit}", xlabel=unit)
    longest = max(row.seconds for row in profile.rows if row.phase == phase)
    axis.set_xlim(0, 1.5 * scale * longest)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    # Empty bars for the legend of the two colors.
    axis.barh(0, 0, color=_COLOR, label="time, by part")
    axis.barh(0, 0, color=_IDEAL, label="time at the machine's ceiling")


def _label(total: Row, parts: list[Row]) -> str:
    """Share and longest part of a stage."""
    if not total.seconds:
        return "none on a CPU" if total.stage == "host to device" else ""
    if total.share < 0.001:
        return "< 0.1 %"
    longest = parts[0]
    text = f"{100 * total.share:.1f} %"
    if total.share < 0.05:
        return text
    near = f"\nat {100 * longest.efficiency:.0f} % of the ceiling" if longest.ceiling else ""
    return f"{text}, {longest.part}{near}"


# Samples of the warm-up. With no more of them than centers, a fit would compile other kernels.
_WARM_UP = 5000


def profile(
    estimator: Any, X: Any, y: Any, *, X_test: Any = None, y_test: Any = None, warm_up: bool = True
) -> Profile:
    """Fit an estimator, let it predict, and say where the time of both went.

    The work is divided along the flow of the data into six stages: read and validate; prepare
    (centers, quantization, packing, norms); host to device; hidden layer; output training; back and
    evaluate. Each stage has its time, bytes, operations, both rates compared with the measured peak
    rates of the machine (its ceilings), and the peak of the process's memory.

    Parameters
    ----------
    estimator : classifier
        Any of this package, by itself or inside a scikit-learn estimator. It is not changed: a
        clone is fitted.
    X : array-like or CSR of shape (n_samples, n_features)
        Training samples. Reading a ``numpy.memmap`` counts for the stage that first touches it.
    y : array-like of shape (n_samples,)
        Their labels.
    X_test, y_test : optional
        Samples to predict and their labels; by default the training samples.
    warm_up : bool, default=True
        Fit and predict up to 5,000 samples first, so that compilation is not in the times.

    Returns
    -------
    profile : Profile
        Prints as a table; has ``bottleneck`` (in words), ``rows``, ``to_frame()``, ``plot()``,
        ``scaling()`` (other numbers of threads), ``accuracy`` and ``estimator``, the fitted clone.

    Notes
    -----
    Time counts for the innermost open stage, so stages add up to the wall time; time outside all
    stages is shown too. The wall time of parallel threads is divided among stages in proportion to
    the time that the threads spent in each. Worker *processes* are not recorded. Without
    ``profile`` the stages cost nothing.

    Bytes are those of the input and output arrays, each counted once. Operations are those of the
    formulas: 2Nmn for the distances of N samples to m centers. Memory is the resident set of the
    process, read from Linux at the ends of stages and every 50 ms; on other systems it is missing.

    References
    ----------
    The division into stages follows Li, Zhang and Cao, 2018.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from gpurbf import RBFClassifier, profile
    >>> X, y = load_digits(return_X_y=True)
    >>> result = profile(RBFClassifier(100, random_state=0), X, y)
    >>> print(result.bottleneck)  # doctest: +SKIP
    Training: output training is 71 %: HᵀH at 62 % of the float32 ceiling.
    Prediction: hidden layer is 66 %: H and H @ W, fused at 41 % of the 8-bit products ceiling.
    """
    return profile_data(estimator, (X, y, X_test, y_test), warm_up=warm_up)


def profile_data(
    estimator: Any,
    data: tuple[Any, Any, Any, Any],
    training: Recorder | None = None,
    *,
    warm_up: bool = True,
    say: Callable[[str], Any] = str,
) -> Profile:
    """Like :func:`profile`, for ``data`` = (X, y, X_test, y_test).

    `training` may have recorded how the data were read, and records the fit too. ``say`` is called
    with the name of each step before it begins.
    """
    X, y, X_test, y_test = data
    X, y = indexable(X, y)
    labels = column_or_1d(on_host(y))  # refuses several outputs
    if X_test is None:
        if y_test is not None:
            raise ValueError("y_test are labels of X_test: give both, or neither.")
        X_test, y_test = X, y
    elif y_test is not None:
        check_consistent_length(X_test, y_test)
    if not hasattr(estimator, "predict"):
        raise ValueError(f"{estimator!r} predicts nothing: profile a pipeline with a classifier.")
    if warm_up and not get_tags(estimator).input_tags.pairwise:
        say("warming up")
        first = np.unique(labels, return_index=True)[1]
        rows = np.union1d(np.arange(min(_WARM_UP, len(y))), first)
        few = _safe_indexing(X, beside(X, rows))
        with warnings.catch_warnings(action="ignore"):
            clone(estimator).fit(few, _safe_indexing(y, beside(y, rows))).predict(few)
    model = clone(estimator)
    gc.collect()
    say("fitting")
    with training or Recorder() as training:
        model.fit(X, y)
    accuracy = None
    say("predicting")
    with Recorder() as prediction:
        predicted = model.predict(X_test)
        if y_test is not None:
            with stage("back and evaluate", "accuracy"):
                labels, predicted = on_host(y_test), on_host(predicted)
                unique_labels(np.ravel(labels), predicted)  # refuses strings beside numbers
                accuracy = float(accuracy_score(labels, predicted))
    return Profile(model, X, X_test, accuracy, training, prediction)
