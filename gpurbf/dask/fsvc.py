"""FSVC on a cluster: workers continue the pass in turn; sums are made on all workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from dask.delayed import Delayed
from sklearn.base import clone
from sklearn.utils import check_random_state

from gpurbf.dask.base import DaskClassifier
from gpurbf.dask.blocks import NO_ROWS, Blocks, by_block, columns, in_order, joined
from gpurbf.dask.graph import shared
from gpurbf.dask.sums import block_sums
from gpurbf.data.hashes import row_hashes
from gpurbf.estimators import fsvc
from gpurbf.estimators._base import CallbackSupportMixin, steps, with_callbacks
from gpurbf.estimators._validation import Rows, finite
from gpurbf.estimators.fsvc import check_fsvc_parameters, solved
from gpurbf.fsvc.selection import Order, Selection, order_of
from gpurbf.solvers.one_hot import mean_targets, votes
from gpurbf.solvers.ridge import RidgeSolution
from gpurbf.solvers.ridge.fixed_point import fixed_point
from gpurbf.solvers.ridge.normal_equations import NormalEquations


class FSVC(CallbackSupportMixin, DaskClassifier, local=fsvc.FSVC):
    """:class:`gpurbf.FSVC` for data on a Dask cluster: the centers of the local pass.

    Parameters
    ----------
    **parameters
        Those of :class:`gpurbf.FSVC`, except ``radius="ratio"``, which makes many passes.
    client : distributed.Client, optional
        By default the current client.

    Notes
    -----
    A pass is sequential: only the worker that has the next samples works, so more workers make only
    the outputs of "ridge" faster. With ``shuffle=True`` samples are first brought into the drawn
    order, which moves each of them once. The client searches for radii; it receives some thousand
    samples, and 16 bytes of every sample (24 with weights).
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
        solver = check_fsvc_parameters(model)
        if model.radius == "ratio":
            raise ValueError(
                "radius='ratio' makes a pass for each radius that it tries: on a cluster use "
                "'auto', or a number."
            )
        if solver.needs == "samples" and getattr(solver, "learning_rate", None) is None:
            raise ValueError(
                f"solver={model.solver!r} has to see all samples in one place: on a cluster use "
                "'ridge', 'one-hot', or 'lms' with a learning_rate."
            )
        blocks = Blocks(self, model, X, y, sample_weight)
        model.classes_ = blocks.classes
        blocks = blocks.with_class_weights(model.class_weight)
        model._keep_quantizations(blocks)
        model.n_samples_seen_ = blocks.n_given
        stages = "radii", "centers", "outputs"
        with finite(model, blocks):
            for name in steps(self, stages, 3, X, y, stops=False):
                if name == "radii":
                    parts = blocks.tasks.start(_in_order(blocks, model))
                    solver = _find_radii(blocks, parts, model, solver)
                elif name == "centers":
                    empty = shared(model._new_selection(model.radius_), "centers")
                    model._keep_centers(_chain(blocks, "pass", _feed, empty, parts))
                else:
                    W = votes(model._selection.labels, len(blocks.classes), blocks.factors)
                    W = _trained(blocks, parts, model, solver, W)
                    model._keep_outputs(W, solver, model.centers_)
        self.model_ = model
        return self


# Some samples, and the order in which the pass takes them.
_Part = tuple[Rows, Order]


def _in_order(blocks: Blocks, model: fsvc.FSVC) -> list[Delayed]:
    """Tasks for parts which, one after the other, are all samples in the order of the pass.

    A drawn order is the order of hashes, whose first bits choose the part. Rows are sent between
    workers; together the parts take as much memory as the blocks.
    """
    seed, one_by_one = 0, blocks.one_by_one()
    if model.shuffle or "auto" in (model.radius, model.eval_radius):
        seed = check_random_state(model.random_state).randint(2**31 - 1)
    if not model.shuffle:
        return blocks.each("order", partial(_as_given, seed), one_by_one)
    n_parts = len(one_by_one)
    split = blocks.each("order-split", partial(_split, seed, n_parts))
    pieces = [tuple(rows[i] for rows in split) for i in range(n_parts)]
    return blocks.tasks.each("order-sorted", partial(_as_drawn, seed), pieces)


def _as_given(seed: int, blocks: Iterator[tuple[Rows, Any]]) -> _Part:
    """A block as it is."""
    [(rows, _)] = blocks
    return rows, order_of(row_hashes(rows.X, seed), rows.weights, rows.y, drawn=False)


def _split(seed: int, n_parts: int, blocks: Iterator[tuple[Rows, Any]]) -> list[Rows]:
    """The rows of some blocks that belong to each part: the smallest keys to the first."""
    rows = joined(rows for rows, _ in blocks)
    part = ((row_hashes(rows.X, seed) >> np.uint64(32)) * np.uint64(n_parts)) >> np.uint64(32)
    return [rows.at(np.flatnonzero(part == i)) for i in range(n_parts)]


def _as_drawn(seed: int, *pieces: Rows) -> _Part:
    """The samples of a part, and the order of their keys."""
    rows = in_order(pieces)
    return rows, order_of(row_hashes(rows.X, seed), rows.weights, rows.y, drawn=True)


def _chain(
    blocks: Blocks, name: str, function: Callable[..., Any], state: Any, parts: list[Any]
) -> Any:
    """The result of ``state = function(state, part)`` for all parts, one after the other."""
    for part in parts:
        [state] = blocks.tasks.each(name, function, [(state, part)])
    return blocks.tasks.results(state)


def _feed(chosen: Selection, part: _Part) -> Selection:
    chosen, (rows, order) = chosen.copy(), part
    chosen.feed(rows.X, rows.y, order.stream, rows.places)
    return chosen


def _find_radii(blocks: Blocks, parts: list[Any], model: fsvc.FSVC, solver: Any) -> Any:
    """Set the radii of the model; return the solver with the epochs that a search found."""
    if "auto" not in (model.radius, model.eval_radius):
        return model._find_radii(None, NO_ROWS, Order(*[NO_ROWS] * 4), solver)
    found = blocks.tasks.results(blocks.tasks.each("keys", _keys, [(part,) for part in parts]))
    starts = np.cumsum([0] + [len(own[0]) for own in found])
    y, weights, keys = columns(found)
    order = order_of(keys, weights, y, drawn=model.shuffle)
    return model._find_radii(_PartRows(blocks, parts, starts), y, order, solver)


def _keys(part: _Part) -> tuple[Any, ...]:
    """Labels, weights and keys of a part."""
    rows, order = part
    return rows.y, rows.weights, order.keys


class _PartRows:
    """The samples of all parts, fetched when they are indexed."""

    def __init__(self, blocks: Blocks, parts: list[Any], starts: np.ndarray) -> None:
        self.tasks, self.parts, self.starts = blocks.tasks, parts, starts

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        distinct, back = np.unique(rows, return_inverse=True)
        asked = [(self.parts[i], some) for i, some in by_block(distinct, self.starts).items()]
        found = self.tasks.results(self.tasks.each("sample", _samples_at, asked))
        return np.concatenate(found)[back]


def _samples_at(part: _Part, places: np.ndarray) -> np.ndarray:
    return part[0].X[places]


def _trained(
    blocks: Blocks, parts: list[Any], model: fsvc.FSVC, solver: Any, W: np.ndarray
) -> np.ndarray:
    """Output weights, trained from the initial ones W."""
    if solver.needs == "sums":

        def solve() -> RidgeSolution:
            normal = NormalEquations(W.shape[1], *fixed_point(model._layer(), blocks))
            block_sums(blocks, model, normal)
            return solver.solve(normal)

        return solved(model, solve)
    if solver.needs == "center targets":
        return solver.train(model._layer(), None, None, None, start=W)
    epoch = partial(_epoch, model, clone(solver).set_params(n_epochs=1))
    return _chain(blocks, "epoch", epoch, shared(W, "weights"), parts * solver.n_epochs)


def _epoch(model: fsvc.FSVC, solver: Any, W: np.ndarray, part: _Part) -> np.ndarray:
    """One pass over the samples of a part, in order."""
    rows, order = part
    X, y, weights, _ = rows.at(order.rows)
    if not len(X):
        return W
    keys = order.keys[order.rows] if model.shuffle else None  # equal samples are in one part
    T = mean_targets(y, len(model.classes_), keys, weights)
    return solver.train(model._layer(), X, T, weights, start=W)
