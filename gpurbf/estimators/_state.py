"""What a pickle of an estimator holds: arrays, numbers and names, and the version that wrote it."""

from __future__ import annotations

from typing import Any

from gpurbf import __version__
from gpurbf._warnings import warn
from gpurbf.backends import Activation, Lattice
from gpurbf.estimators._left_out import Kept
from gpurbf.network.centers.sample import Distinct
from gpurbf.network.solvers import NormalEquations

__all__ = ["StateMixin"]

_LATTICES = ("_lattices", "_stream_lattices")


class StateMixin:
    """Names of our own types do not go along: skops asks about the estimator and nothing else."""

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())  # type: ignore[call-overload]
        if (activation := state.get("_activation")) is not None:
            state["_activation"] = tuple(activation)
        for name in _LATTICES:
            if (lattices := state.get(name)) is not None:
                state[name] = tuple(map(tuple, lattices))
        if (normal := state.get("_normal")) is not None:
            state["_normal"] = normal.plain()
        if (left_out := state.get("_left_out")) is not None:
            state["_left_out"] = tuple(left_out.found), *left_out[1:]
        return state | {"_gpurbf_version": __version__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        version = state.pop("_gpurbf_version", None)
        if version != __version__:
            warn(
                f"This {type(self).__name__} was written by gpurbf {version or 'before 0.1.0'} and "
                f"is read by {__version__}: its answers may differ or fail. Use the version that "
                "wrote it, or fit it again."
            )
        if (activation := state.get("_activation")) is not None:
            state["_activation"] = Activation(*activation)
        for name in _LATTICES:
            if (lattices := state.get(name)) is not None:
                state[name] = tuple(Lattice(*lattice) for lattice in lattices)
        if (normal := state.get("_normal")) is not None:
            state["_normal"] = NormalEquations.from_plain(normal)
        if (left_out := state.get("_left_out")) is not None:
            state["_left_out"] = Kept(Distinct(*left_out[0]), *left_out[1:])
        super().__setstate__(state)  # type: ignore[misc]
