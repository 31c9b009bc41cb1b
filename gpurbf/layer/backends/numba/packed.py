"""Centers packed for the tiles of the `numba` backend, and the samples as those take them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from gpurbf.data.quantize import Quantization
from gpurbf.layer.activation import Activation
from gpurbf.layer.backends.numba import cpu_kernel
from gpurbf.layer.backends.numba.epilogue import compiled
from gpurbf.layer.backends.tile import forced_tile
from gpurbf.layer.distance import ALL, pieces, shift_of, terms_of, unit, usual_inputs
from gpurbf.runtime import cpu
from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.threads import parallel_for

amx = lazy_module("gpurbf.layer.backends.numba.amx")
consumers = lazy_module("gpurbf.layer.backends.numba.consumers")
driver = lazy_module("gpurbf.layer.backends.numba.driver")
microkernel_table = lazy_module("gpurbf.layer.backends.numba.microkernel_table")
microkernels = lazy_module("gpurbf.layer.backends.numba.microkernels")
packing = lazy_module("gpurbf.layer.backends.numba.packing")


# A block of packed rows leaves room for the centers that it meets in an L2 cache, taken
# for 1 MiB where the system does not tell.
_L2_BYTES = 1 << 20
_BLOCK_ROWS = 192
# Reading the centers less often is worth more than a block that fits (docs/notes/cpu-kernels.md).
_FEWEST_ROWS = 96
# The most bytes of a block where inputs are many more.
_MOST_BYTES = 1 << 24
# Rows that a thread shifts at a time.
_ROWS = 512


class Packing(NamedTuple):
    """How centers become panels and terms, as `packing.pack_centers` takes it."""

    shift: np.ndarray
    group: int
    word: np.ndarray
    column: tuple[Any, Any, Any]  # of a center's term, in the order of `Coefficients`
    sparse: bool  # whether strips of centers leave out the inputs that are zero in all of them


class Part(NamedTuple):
    """Some inputs of the centers packed for one micro-kernel, in the groups of `layer_rows`."""

    inputs: slice  # of X
    block: int  # rows that are packed at a time
    kernel: Any
    centers: Any
    epilogue: Any
    dtype: np.dtype  # of what comes out of the epilogue
    arithmetic: str
    packing: Packing
    density: float  # the part of all products that is not left out


@dataclass(frozen=True)
class PackedCenters:
    """Centers ready for the tiles: one part, or several where 32-bit sums would overflow."""

    parts: tuple[Part, ...]
    activation: Activation
    dtype: np.dtype
    m: int
    factor: float
    exact: bool
    vectors: str
    kernel: str
    threads: int | None

    @property
    def fused(self) -> bool:
        """Whether the tile ends in activations, so that consumers can take it there."""
        return len(self.parts) == 1 and not callable(self.activation.profile)


def prepare(
    C: np.ndarray,
    activation: Activation,
    dtype: Any,
    quantization: Quantization | None,
    among: np.ndarray | None = None,
) -> PackedCenters:
    """Pack the centers (m, n), once per fitted layer; shifted as those that they are among."""
    m, n = C.shape
    dtype, exact = np.dtype(dtype), quantization is not None
    kernel, reason = cpu_kernel.choose_kernel()
    task = "manhattan" if activation.metric == "manhattan" else "dot"
    name = cpu_kernel.kernel_for(task, np.uint8 if exact else dtype, kernel)
    tile = forced_tile()
    several = pieces(n, quantization)
    parts = tuple(
        _pack(
            name,
            C,
            piece,
            activation,
            dtype,
            quantization,
            tile.M,
            among=C if among is None else among,
            whole=len(several) == 1,
        )
        for piece in several
    )
    return PackedCenters(
        parts=parts,
        activation=activation,
        dtype=dtype,
        m=m,
        factor=unit(activation.metric, quantization),
        exact=exact,
        vectors=cpu_kernel.VECTORS[kernel],
        kernel=f"{name} ({reason})",
        threads=tile.threads,
    )


def _pack(
    name: str,
    C: np.ndarray,
    inputs: slice,
    activation: Activation,
    dtype: np.dtype,
    quantization: Quantization | None,
    wanted: int | None,
    *,
    among: np.ndarray,
    whole: bool,
) -> Part:
    """Pack some inputs of the centers; a part of the inputs gives exact sums, nothing more."""

    among = among[:, inputs]
    n = among.shape[1]
    layout = microkernel_table.layout_of(name)
    # Without quantization both sides are centered, or float32 loses its digits far from 0.
    centered = quantization is None and activation.metric == "euclidean" and len(among) > 0
    usual = None if activation.metric == "manhattan" else usual_inputs(among, centered)
    width = microkernel_table.padded(n, layout.depth)
    wide = np.float64 if quantization is None else np.int32
    # On it, codes of rows become signed where the kernel multiplies: all modulo 2³², and so is
    # the result.
    signed = 128 if quantization is not None and layout.x_dtype == np.int8 else 0
    shift = shift_of(among, usual) if centered else np.full(n, signed, wide)
    rest = terms_of(activation.metric, n, quantization, s=signed)
    out_dtype = dtype if whole else np.dtype(np.float64)
    alpha, factor = layout.out_dtype.type(rest.alpha), unit(activation.metric, quantization)
    part = Part(
        inputs=inputs,
        block=_block(layout, width, wanted),
        kernel=_micro_kernel(name, layout, width),
        centers=driver.Centers(
            panels=np.empty(0, layout.c_dtype),
            strips=np.empty((0, 3), np.intp),
            places=np.empty(0, np.int32),
            m=0,
            terms=np.empty(0, layout.out_dtype),
            shift=shift,
            linear=wide(rest.row.linear),
            quadratic=wide(rest.row.quadratic),
        ),
        epilogue=compiled(activation, alpha, factor, out_dtype, whole),
        dtype=out_dtype,
        arithmetic=layout.arithmetic,
        packing=Packing(
            shift=shift if centered else np.zeros(n, wide),
            group=layout.c_group,
            word=packing.word_of(layout.c_group, layout.c_dtype),
            column=(
                wide(rest.column.quadratic),
                wide(rest.column.linear),
                wide(rest.column.constant),
            ),
            sparse=usual is not None,
        ),
        density=1.0,
    )
    return with_centers(part, taken(C[:, inputs], quantization is not None))


def with_centers(part: Part, C: np.ndarray, chosen: np.ndarray | None = None) -> Part:
    """The part with these centers, or those that are chosen; shifted as its own."""

    kernel, old = part.kernel, part.centers
    m = len(C if chosen is None else chosen)
    size = microkernel_table.padded(m, microkernels.LANES * kernel.strip)
    panels = packing.aligned(size * kernel.width, old.panels.dtype)
    terms = np.empty(size, old.terms.dtype)
    strips, places = _fill(part, C, m, ALL if chosen is None else chosen, panels, terms)
    centers = old._replace(panels=panels, strips=strips, places=places, m=m, terms=terms)
    share = float(strips[:, 1].mean()) * kernel.group / kernel.width if part.packing.sparse else 1.0
    return part._replace(centers=centers, density=share)


def renew(part: Part, C: np.ndarray, chosen: np.ndarray, fresh: slice) -> bool:
    """Put C[chosen][fresh] in the places of those centers, if they are whole strips."""

    kernel, own = part.kernel, part.centers
    strip = microkernels.LANES * kernel.strip
    if len(chosen) != own.m or fresh.start % strip or fresh.stop % strip:
        return False
    if fresh.start == fresh.stop:
        return True
    panels = own.panels[fresh.start * kernel.width : fresh.stop * kernel.width]
    some = chosen[fresh]
    strips, places = _fill(part, C, len(some), some, panels, own.terms[fresh])
    if part.packing.sparse:
        n_steps, first = kernel.width // kernel.group, fresh.start // strip
        own.strips[first : first + len(strips), 1] = strips[:, 1]
        own.places[first * n_steps :][: len(places)] = places
    return True


def _fill(
    part: Part, C: np.ndarray, m: int, rows: np.ndarray, panels: np.ndarray, terms: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Pack m centers; what `packing.strips_of` says of them."""

    how = part.packing
    packing.pack_centers(C, m, rows, how.shift, how.group, how.word, how.column, panels, terms)
    return packing.strips_of(part.kernel, panels, how.sparse)


def shifted(operand: PackedCenters, X: np.ndarray) -> tuple[PackedCenters, np.ndarray]:
    """The operand for samples that are shifted already, and X as these.

    They are packed again and again: in half the time where they take half the memory. Both are as
    they came where this gains nothing.
    """

    (part,) = operand.parts
    dtype = part.kernel.blank.dtype
    if operand.exact or X.dtype == dtype:
        return operand, X
    X, Z, shift = taken(X, False), np.empty(X.shape, dtype), part.packing.shift

    def task(i: int) -> None:
        packing.shift_rows(i * _ROWS, min((i + 1) * _ROWS, len(X)), X, shift, Z)

    parallel_for(task, -(-len(X) // _ROWS))
    zero = np.zeros_like(shift)
    part = part._replace(
        centers=part.centers._replace(shift=zero), packing=part.packing._replace(shift=zero)
    )
    return replace(operand, parts=(part,)), Z


def _micro_kernel(name: str, layout: Any, width: int) -> Any:
    """The kernel as `layer_rows` calls it for so many padded inputs."""

    enter = leave = config = 0
    if name == "dot_amx":
        enter, leave = (
            microkernel_table.address("enter_amx"),
            microkernel_table.address("leave_amx"),
        )
        config = amx.CONFIGURATION.ctypes.data
    return driver.MicroKernel(
        address=microkernel_table.address(name),
        enter=enter,
        leave=leave,
        config=config,
        rows=layout.rows,
        strip=layout.panels,
        group=layout.x_group,
        width=width,
        blank=np.empty(0, layout.x_dtype),
        word=packing.word_of(layout.x_group, layout.x_dtype),
    )


def _block(layout: Any, width: int, wanted: int | None) -> int:
    """Rows that are packed at a time: those that are wanted, or as many as are good."""

    row_bytes = width * layout.x_dtype.itemsize
    rows_that_fit = cpu.cache_bytes(2, _L2_BYTES) // 4 // row_bytes
    most = wanted or min(_BLOCK_ROWS, max(_FEWEST_ROWS, rows_that_fit))
    most = min(most, _MOST_BYTES // row_bytes)
    least = max(consumers.CHUNK, layout.rows)
    return max(least, most // least * least)


def taken(X: np.ndarray, exact: bool) -> np.ndarray:
    """X as one of the few types that the tiles are compiled for: contiguous and read-only."""
    dtype = np.uint8 if exact else np.float32 if X.dtype == np.float32 else np.float64
    rows = np.ascontiguousarray(X, dtype).view()
    rows.flags.writeable = False
    return rows
