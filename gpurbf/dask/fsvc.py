"""FSVC on a cluster: the pass goes from part to part, what adds up is summed where it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from dask.delayed import Delayed
from sklearn.base import clone
from sklearn.utils import check_random_state

from gpurbf.dask.blocks import Blocks, at_home
from gpurbf.dask.graph import shared
from gpurbf.dask.parts import regrouped
from gpurbf.dask.rows import Rows
from gpurbf.dask.sums import Summing
from gpurbf.dask.twin import ClassifierTwin, twin_of
from gpurbf.data.hashes import row_hashes
from gpurbf.estimators import fsvc
from gpurbf.estimators._base import CallbackSupportMixin, steps, with_callbacks
from gpurbf.estimators._validation import check_finite
from gpurbf.estimators.fsvc import check_fsvc_parameters, check_fsvc_solver
from gpurbf.fsvc.order import Order, as_drawn, as_given
from gpurbf.fsvc.passes import Selection
from gpurbf.solvers.one_hot import one_hot


@twin_of(fsvc.FSVC)
class FSVC(CallbackSupportMixin, ClassifierTwin):
    """:class:`gpurbf.FSVC` for data on a Dask cluster: the centers of the local pass.

    Parameters
    ----------
    **parameters
        Those of :class:`gpurbf.FSVC`, but not ``radius="ratio"``, which makes pass after pass.
    client : distributed.Client, optional
        By default the one that is there.

    Notes
    -----
    A pass is sequential: one worker at a time decides, whichever has the next samples, so more
    workers make only the outputs of "ridge" faster. With ``shuffle=True`` samples are brought into
    the drawn order first, which moves each of them once. A radius is searched by the client, to
    which come some thousand samples and 25 bytes of every one.
    """

    @with_callbacks
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> FSVC:
        """Choose the centers and train the outputs.

        Parameters
        ----------
        X : dask array, dask data frame or list of delayed blocks
        y : dask array, dask series or list of delayed blocks
        sample_weight : dask array, dask series or list of delayed blocks, optional

        Returns
        -------
        self : FSVC
        """
        model = self._new_model()
        check_fsvc_parameters(model)
        if model.radius == "ratio":
            raise ValueError(
                "radius='ratio' makes a pass for each radius that it tries: on a cluster use "
                "'auto', or a number."
            )
        solver = check_fsvc_solver(model)
        if solver.needs == "samples" and getattr(solver, "learning_rate", None) is None:
            raise ValueError(
                f"solver={model.solver!r} has to see all samples in one place: on a cluster use "
                "'ridge', 'one-hot', or 'lms' with a learning_rate."
            )
        raw = Blocks.of(self, model, X, y, sample_weight)
        model.classes_ = raw.classes
        blocks = raw.with_class_weights(model.class_weight)
        model._looked_at(blocks)
        model.n_samples_seen_ = blocks.n_given
        parts: list[Any] = []

        def radii() -> None:
            nonlocal solver
            parts[:] = blocks.tasks.start(_in_order(blocks, model))
            solver = _find_radii(blocks, parts, model, solver)

        def centers() -> None:
            chosen: Any = shared(model._new_selection(model.radius_), "centers")
            chosen = _chain(blocks, "pass", _feed, chosen, parts)
            model._keep_centers(blocks.tasks.results(chosen))

        def outputs() -> None:
            W = _trained(blocks, parts, model, solver, model._votes(raw.class_mass))
            check_finite(model, model.centers_, coef_=W)
            model._keep_outputs(W, getattr(solver, "n_epochs", 1))

        with blocks.finite(model):
            for work in steps(self, (radii, centers, outputs), 3, X, y, "stage", stops=False):
                work()
        self.model_ = model
        return self


class _Part(NamedTuple):
    """Samples in the order of the pass, which sees those of the ``stream`` with their weights."""

    rows: Rows
    stream: np.ndarray
    weights: Any
    keys: np.ndarray


def _in_order(blocks: Blocks, model: fsvc.FSVC) -> list[Delayed]:
    """Tasks for parts which, one after the other, are all samples in the order of the pass."""
    seed = 0
    if model.shuffle or "auto" in (model.radius, model.eval_radius):
        seed = check_random_state(model.random_state).randint(2**31 - 1)
    if not model.shuffle:
        return blocks.each("order", _Given(seed), [[i] for i in range(len(blocks.parts))])
    n_parts = len(blocks.parts)
    drawn = regrouped(blocks, "order", _Drawn(seed, n_parts), n_parts)
    return blocks.tasks.each("order-sorted", _Sorted(seed), [(part,) for part in drawn])


@dataclass(frozen=True)
class _Given:
    """A block as it is."""

    seed: int

    def __call__(self, looked: Iterator[tuple[Rows, int]]) -> _Part:
        [(rows, _)] = looked
        keys = row_hashes(rows.X, self.seed)
        order = as_given(keys, rows.weights)
        return _Part(rows, order.stream, order.weights, keys)


@dataclass(frozen=True)
class _Drawn:
    """Which of so many parts a sample is in: those with the least keys are the first."""

    seed: int
    n_parts: int

    def __call__(self, rows: Rows) -> np.ndarray:
        high = row_hashes(rows.X, self.seed) >> np.uint64(32)
        return (high * np.uint64(self.n_parts)) >> np.uint64(32)


@dataclass(frozen=True)
class _Sorted:
    """The samples of a part in the order of their keys."""

    seed: int

    def __call__(self, rows: Rows) -> _Part:
        keys = row_hashes(rows.X, self.seed)
        order = as_drawn(keys, rows.weights, rows.y)
        rows, keys = rows.at(order.rows), keys[order.rows]
        again = as_drawn(keys, rows.weights, rows.y)
        return _Part(rows, again.stream, again.weights, keys)


def _chain(
    blocks: Blocks, name: str, function: Callable[..., Any], state: Any, parts: list[Any]
) -> Any:
    """The state after ``function(state, part)`` of all parts, one after the other."""
    for part in parts:
        state = blocks.tasks.each(name, function, [(state, part)])[0]
    return state


def _feed(chosen: Selection, part: _Part) -> Selection:
    chosen, rows = chosen.copy(), part.rows
    if len(rows.X):
        chosen.feed(rows.X, rows.y, part.stream, rows.places)
    return chosen


def _find_radii(blocks: Blocks, parts: list[Any], model: fsvc.FSVC, solver: Any) -> Any:
    """Set the radii of the model; the solver with the epochs that a search found."""
    order = Order(*[np.empty(0, np.int64)] * 4)
    if "auto" not in (model.radius, model.eval_radius):
        return model._find_radii(None, order.rows, order, solver)
    known = blocks.tasks.results(blocks.tasks.each("keys", _keys, [(part,) for part in parts]))
    starts = np.cumsum([0] + [len(part.keys) for part in known])
    y, keys, stream = (
        np.concatenate(columns)
        for columns in zip(
            *((part.rows.y, part.keys, start + part.stream) for part, start in zip(known, starts))
        )
    )
    weights = None
    if known[0].weights is not None:
        weights = np.concatenate([part.weights for part in known])
    order = Order(np.arange(len(keys)), stream, weights, keys)
    return model._find_radii(_Some(blocks, parts, starts), y, order, solver)


def _keys(part: _Part) -> _Part:
    """All but the samples."""
    return part._replace(rows=Rows(None, part.rows.y, None, part.rows.places[:0]))


class _Some:
    """The samples in the order of the pass, some of which are asked for."""

    def __init__(self, blocks: Blocks, parts: list[Any], starts: np.ndarray) -> None:
        self.tasks, self.parts, self.starts = blocks.tasks, parts, starts

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        own, back = at_home(rows, self.starts)
        asked = [(self.parts[i], some) for i, some in own.items()]
        found = self.tasks.results(self.tasks.each("sample", _some, asked))
        return np.concatenate(found)[back]


def _some(part: _Part, rows: np.ndarray) -> np.ndarray:
    return part.rows.X[rows]


def _trained(
    blocks: Blocks, parts: list[Any], model: fsvc.FSVC, solver: Any, W: np.ndarray
) -> np.ndarray:
    """Output weights, from those at the start."""
    if solver.needs == "sums":
        normal, _ = Summing(blocks, model, 0.0).result()
        return solver.solve(normal).W
    if solver.needs == "center targets":
        return solver.train(model._layer(), None, None, None, start=W)
    epoch = _Epoch(model, clone(solver).set_params(n_epochs=1))
    found: Any = shared(W, "weights")
    for _ in range(solver.n_epochs):
        found = _chain(blocks, "epoch", epoch, found, parts)
    return blocks.tasks.results(found)


@dataclass(frozen=True)
class _Epoch:
    """One look at the samples of a part, in order."""

    model: fsvc.FSVC
    solver: Any

    def __call__(self, W: np.ndarray, part: _Part) -> np.ndarray:
        X, y, weights, _ = part.rows
        if not len(X):
            return W
        T = one_hot(y, len(self.model.classes_))
        epochs = self.solver.epochs(self.model._layer(), X, T, weights, start=W)
        return deque(epochs, maxlen=1).pop().copy()
