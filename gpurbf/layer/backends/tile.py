"""How a layer is cut: the tile that a backend is told to take, by force, by measurement or not.

``python -m gpurbf tune`` measures candidates on this machine and stores the best, a file for each
backend and device. A backend asks for its tile once per operand, in ``prepare``:

    tile = tile_for("numba", activation.metric, precision, n)
    block = tile.M or <a default from the device's properties>

The first of these that there is answers:

1. ``forced``, in the thread that prepares the layer (its first use, not its construction):

       with forced(Tile(M=96)):
           layer = HiddenLayer(C, activation)
           layer.outputs(X)          # blocks of 96 samples, now and whenever this layer is used

   For the tuner, benchmarks and tests. A field that is None is the backend's default, so
   ``forced(Tile())`` is the untuned layer.
2. The stored tuning of this backend, if device and versions are those that it was measured on.
3. ``Tile()``: the backend's defaults.

A tile changes how fast a layer is and not what it computes.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpurbf import __version__
from gpurbf.layer.backends import LOADERS, Tile, get_backend
from gpurbf.layer.backends.numba import cpu_kernel
from gpurbf.runtime import cache

# Raised when the same file would mean something else.
_FORMAT = 1
# The number of inputs that stands for each range, by the largest number in it.
RANGES: dict[float, int] = {32: 16, 128: 64, 512: 256, 2048: 784, float("inf"): 4096}

_local = threading.local()


class Tuned(NamedTuple):
    """The best tile found for a metric, a precision and up to so many inputs."""

    metric: str
    precision: str
    inputs: float
    tile: Tile


class State(NamedTuple):
    """The tuning in force for a backend on its device, and a line about it for the user."""

    tuned: tuple[Tuned, ...]
    said: str


def precision_of(dtype: Any, exact: bool) -> str:
    """The arithmetic of the distances: "exact" quantized, else that of the activations."""
    return "exact" if exact else np.dtype(dtype).name


@contextmanager
def forced(tile: Tile) -> Iterator[None]:
    """Layers prepared in this block, by this thread, take this tile; see the module."""
    if any(value is not None and not value > 0 for value in tile):
        raise ValueError(f"{tile}: what a tile states must be > 0.")
    before = getattr(_local, "tile", None)
    _local.tile = tile
    try:
        yield
    finally:
        _local.tile = before


def tile_for(name: str, metric: str, precision: str, n: int) -> Tile:
    """The tile of backend ``name`` for layers of n inputs; see the module.

    ``metric`` is that of an ``Activation``: products ("dot") are cut as Euclidean distances are.
    ``precision`` is that of :func:`precision_of`.
    """
    if (tile := getattr(_local, "tile", None)) is not None:
        return tile
    metric = "manhattan" if metric == "manhattan" else "euclidean"
    fitting = (
        entry
        for entry in state(name).tuned
        if (entry.metric, entry.precision) == (metric, precision) and n <= entry.inputs
    )
    best = min(fitting, key=lambda entry: entry.inputs, default=None)
    return Tile() if best is None else best.tile


def device(name: str) -> str:
    """What the tuning of a backend depends on: its GPU, or the CPU with the kernel in use."""
    return get_backend(name)[0].device or cpu_kernel.device()


def state(name: str) -> State:
    """The tuning of a backend on its device; none, with the reason, where it is not valid."""
    if name not in LOADERS:
        return State((), "default; a backend that is not registered has no tuning")
    return _state(name, device(name), cache.folder())


@functools.cache
def _state(name: str, device: str, folder: Path) -> State:
    """Read once: a fit prepares layers by the thousand."""
    path = folder / _file(name, device)
    try:
        content = cache.read(_file(name, device))
        made = {key: content[key] for key in ("format", "gpurbf", "device")}
        tuned = tuple(_entry(line) for line in content["tiles"])
        date = str(content["date"])
    except FileNotFoundError:
        return State((), f"default; measure with `python -m gpurbf tune --backend {name}`")
    except (OSError, ValueError, TypeError, KeyError) as error:
        return State((), f"default; {path} cannot be used ({type(error).__name__}: {error})")
    now = {"format": _FORMAT, "gpurbf": __version__, "device": device}
    if changed := [key for key in made if made[key] != now[key]]:
        was = ", ".join(f"{key} {made[key]}" for key in changed)
        return State((), f"default; {path} was measured with {was}")
    return State(tuned, f"tuned on {date}, {path}")


def store(name: str, tuned: tuple[Tuned, ...]) -> Path:
    """Keep a tuning for the device that it was measured on; OSError where that cannot be done."""
    here = device(name)
    content = {
        "format": _FORMAT,
        "gpurbf": __version__,
        "device": here,
        "date": datetime.date.today().isoformat(),
        "tiles": [_line(entry) for entry in tuned],
    }
    path = cache.write(_file(name, here), content)
    _state.cache_clear()
    return path


def _file(name: str, device: str) -> str:
    return f"tuning-{name}-{hashlib.sha256(device.encode()).hexdigest()[:16]}.json"


def _line(entry: Tuned) -> dict[str, Any]:
    tile = {key: value for key, value in entry.tile._asdict().items() if value is not None}
    inputs = None if entry.inputs == float("inf") else entry.inputs
    return {"metric": entry.metric, "precision": entry.precision, "inputs": inputs, "tile": tile}


def _entry(line: dict[str, Any]) -> Tuned:
    tile = Tile(**line["tile"])
    if not all(isinstance(value, int | float) and value > 0 for value in line["tile"].values()):
        raise ValueError(f"not a tile: {line['tile']}")
    inputs = float("inf") if line["inputs"] is None else float(line["inputs"])
    return Tuned(str(line["metric"]), str(line["precision"]), inputs, tile)
