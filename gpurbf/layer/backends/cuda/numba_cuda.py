"""The `numba-cuda` backend: BNL tiles on an NVIDIA GPU, activated and consumed in the tile.

Arrays are CuPy's, kernels are Numba's (`kernels/cuda`), both on CuPy's current stream. On the
distances are exact integers: by the tensor cores from compute capability 8.0 on, before
that by four 8-bit products an instruction; Manhattan by four absolute differences an instruction.
``GPURBF_GPU_KERNEL=wgmma`` takes the tile for Hopper.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from gpurbf.data.quantize import Quantization
from gpurbf.layer.activation import Activation, form, in_tile
from gpurbf.layer.backends import Backend, Tile
from gpurbf.layer.backends.cuda.device import on_device
from gpurbf.layer.backends.cuda.gram import add_sums
from gpurbf.layer.backends.cuda.memory import Device, DeviceWeights, Needs
from gpurbf.layer.backends.tile import forced_tile
from gpurbf.layer.distance import Coefficients, pieces, terms_of, unit
from gpurbf.runtime.errors import BackendUnavailable
from gpurbf.runtime.lazy import lazy_module

pack = lazy_module("gpurbf.layer.backends.cuda.kernels.pack")
profiles = lazy_module("gpurbf.layer.backends.cuda.kernels.profiles")
registers = lazy_module("gpurbf.layer.backends.cuda.kernels.registers")
tile = lazy_module("gpurbf.layer.backends.cuda.kernels.tile")
cuda_api = lazy_module("gpurbf.runtime.jit.cuda_api")


# Packed rows are padded to whole tiles of any shape.
_PADDED = 128
# Rows of a launch: a grid has at most 65,535 bands of tiles, 64 rows or more each.
_LAUNCH_ROWS = 65_535 * 64
# Shares of the centers that are thought of, more where there are few bands of samples.
_SHARES = 8
# Tiles that the paper's experiment tries: those of all products.
_TRIED = (Tile(M=128, B=16), Tile(M=64, B=8))


class Part(NamedTuple):
    """Some inputs of the centers, packed; ``given``: shift, centers, terms as kernels take them."""

    inputs: slice
    shift: Any
    centers: Any
    terms: Any
    given: tuple[Any, Any, Any]


@dataclass(frozen=True)
class DeviceCenters:
    """Centers ready for the tiles: one part, or several where 32-bit sums would overflow."""

    product: str
    parts: tuple[Part, ...]
    activation: Activation
    dtype: np.dtype
    m: int
    row: Coefficients  # the same in all parts
    alpha: int
    factor: float
    exact: bool
    shape: Any  # of the tiles, None where each launch chooses
    nothing: tuple[Any, Any, Any]  # what a kernel is given for out, weights and sums it ignores

    @property
    def fused(self) -> bool:
        """Whether the tile ends in activations, so that consumers can take it there."""
        return len(self.parts) == 1 and not callable(self.activation.profile)


class Tiles(NamedTuple):
    """What the functions work with beside their operands.

    ``add(shares, out)`` writes the sum of the shares, ``sums`` adds HᵀH and HᵀT (`add_sums`),
    ``codes`` is the product of 8-bit codes, ``stated()`` the tile that is asked for.
    """

    xp: ModuleType
    device: Device
    add: Callable[[Any, Any], Any]
    sums: Callable[..., None]
    codes: str
    stated: Callable[[], Tile] = forced_tile


def _prepare(
    tiles: Tiles, C: Any, activation: Activation, dtype: Any, quantization: Quantization | None
) -> DeviceCenters:
    """Pack the centers (m, n), once per fitted layer."""

    xp, (m, n) = tiles.xp, C.shape
    dtype, metric, exact = np.dtype(dtype), activation.metric, quantization is not None
    if exact:
        product = "sad" if metric == "manhattan" else tiles.codes
    else:
        product = "manhattan" if metric == "manhattan" else "multiply"
    several = pieces(n, quantization)
    parts = []
    for piece in several:
        # Without quantization both sides are centered, or float32 loses its digits far from 0.
        centered = not exact and metric == "euclidean" and m > 0
        shift = C.mean(axis=0, dtype=np.float64) if centered else xp.empty(0)
        centers, terms = _pack(
            tiles,
            C[:, piece],
            cuda_api.argument(shift),
            terms_of(metric, piece.stop - piece.start, quantization).column,
            np.dtype(np.uint8) if exact else dtype,
            _terms_dtype(exact, dtype, len(several)),
        )
        given = tuple(map(cuda_api.argument, (shift, centers, terms)))
        parts.append(Part(piece, shift, centers, terms, given))
    rest = terms_of(metric, n, quantization)
    kind = dtype if len(parts) == 1 else np.dtype(np.float64)
    nothing = xp.empty((1, 1), kind), xp.empty((1, 1), kind), xp.empty((1, 1, 1))
    return DeviceCenters(
        product=product,
        parts=tuple(parts),
        activation=activation,
        dtype=dtype,
        m=m,
        row=rest.row,
        alpha=rest.alpha,
        factor=unit(metric, quantization),
        exact=exact,
        shape=_stated(tiles.stated(), product),
        nothing=tuple(map(cuda_api.argument, nothing)),
    )


def _stated(stated: Tile, product: str) -> Any:
    """The shape of the tile that is asked for, None if none is."""

    if stated.M is None:
        return tile.SHAPES["large"] if product == "wgmma" else None
    if product == "wgmma" and (stated.M, stated.B) != tile.SHAPES["large"]:
        raise ValueError(f"{stated}: the tile of {VARIABLE}=wgmma has M = 128 and B = 16.")
    M, B = int(stated.M), int(stated.B or 8)
    outputs = {M // B} if M % B == 0 else set()
    if B not in (8, 16) or not outputs <= ({8} if product == "mma" else {4, 8}) or not outputs:
        raise ValueError(
            f"{stated}: tiles of 'numba-cuda' have B = 8 or 16 and M = 8 B, or 4 B where the "
            "tensor cores do not work."
        )
    return tile.Shape(M, B)


def _terms_dtype(exact: bool, dtype: np.dtype, n_parts: int) -> np.dtype:
    """Of the terms of rows and columns: exact where distances are, as wide as the activations."""
    wide = dtype == np.float64 or n_parts > 1
    return np.dtype(np.float64 if wide else np.int32 if exact else np.float32)


def _pack(
    tiles: Tiles,
    X: Any,
    shift: Any,
    coefficients: Coefficients,
    dtype: np.dtype,
    terms_dtype: np.dtype,
    padded_terms: bool = False,
) -> tuple[Any, Any]:
    """Rows as the tiles read them, 8-bit codes four to a word, and their terms; one launch."""

    xp = tiles.xp
    if X.dtype not in (np.uint8, np.float32, np.float64):
        X = X.astype(np.float64)
    N, n = X.shape
    length = registers.SLICE // dtype.itemsize
    width = max(1, -(-n // length)) * length
    packed = xp.empty((-(-N // _PADDED) * _PADDED, width), dtype)
    terms = xp.empty(len(packed) if padded_terms else N, terms_dtype)
    if N:
        # An array without elements has no address: one without inputs is all padding.
        source = xp.ascontiguousarray(X) if n else xp.zeros((N, 1), X.dtype)
        grid = min(-(-len(packed) // pack.ROWS), 65_535)
        pack.pack[grid, (pack.LANES, pack.ROWS), cuda_api.current_stream()](
            cuda_api.argument(source), shift, *map(float, coefficients),
            cuda_api.argument(packed), cuda_api.argument(terms),
        )  # fmt: skip
    return (packed.view(np.int32) if dtype == np.uint8 else packed), terms


def _choose(tiles: Tiles, operand: DeviceCenters, N: int) -> Any:
    """The shape of the tiles: large ones where there are enough for the device."""

    if operand.shape is not None:
        return operand.shape
    large = tile.SHAPES["large"]
    if -(-N // large.M) * -(-operand.m // large.M) < tiles.device.multiprocessors:
        return tile.SHAPES["medium" if operand.product == "mma" else "small"]
    # Where a thread needs more than 128 registers, blocks of 64 threads waste fewer than of 256.
    wide = operand.dtype == np.float64 or operand.product == "manhattan"
    return tile.SHAPES["medium"] if wide else large


def _launch(
    tiles: Tiles,
    operand: DeviceCenters,
    part: Part,
    X: Any,
    *,
    out: Any = None,
    W: DeviceWeights | None = None,
) -> Any:
    """Run the tiles of a part on all rows of X: H into ``out``, or shares of H @ W in float64."""
    from gpurbf.layer.activation import Epilogue

    xp, N = tiles.xp, len(X)
    shape = _choose(tiles, operand, N)
    whole = len(operand.parts) == 1
    dtype = operand.dtype if whole else np.dtype(np.float64)
    word = part.centers.dtype
    shift, centers, terms = part.given
    packed = np.dtype(np.uint8) if operand.exact else word
    A, row_terms = _pack(
        tiles, X[:, part.inputs], shift, operand.row, packed, part.terms.dtype, padded_terms=True
    )
    bands, columns = -(-N // shape.M), -(-operand.m // shape.M)
    given, sums = list(operand.nothing), None
    if W is None:
        mode, shares, given[0] = tile.STORE, columns, cuda_api.argument(out)
    else:
        shares = _shares(bands, columns, 2 * tiles.device.multiprocessors)
        sums = xp.empty((shares, N, W.k))
        mode, given[1:] = tile.SCORES, [W.values, cuda_api.argument(sums)]
    limit = 128 if shape.B == 16 and dtype == np.float32 else None
    form_, profile, *scalars = _rule(operand, whole)
    consumer = tile.Consumer(mode, form_, profile, dtype.itemsize)
    asynchronous = tiles.device.capability >= (8, 0)
    kernel = tile.kernel(operand.product, shape, asynchronous, consumer, limit)
    shared = tile.shared_bytes(operand.product, shape)
    kernel[(shares, bands), shape.B**2, cuda_api.current_stream(), shared](
        cuda_api.argument(A), centers, cuda_api.argument(row_terms), terms,
        Epilogue(operand.alpha, operand.factor if whole else 1.0, form_, profile, *scalars),
        *given,
    )  # fmt: skip
    return sums


@functools.cache
def _shares(bands: int, columns: int, slots: int) -> int:
    """Into how many shares the tiles of a band go: what ends first where so many blocks run.

    Blocks run in rounds of ``slots``, each as long as a share: one block too many costs a whole
    round. A share is 2 % more work, for the sums of all of them are added.
    """

    def took(shares: int) -> int:
        return -(-bands * shares // slots) * -(-columns // shares) * (50 + shares)

    return min(range(1, min(columns, max(_SHARES, -(-slots // bands))) + 1), key=took)


def _rule(operand: DeviceCenters, whole: bool) -> tuple[Any, ...]:
    """Form and profile by their numbers, and the profile's scalars."""
    from gpurbf.layer.activation import FORMS

    a, of_sum = operand.activation, form(operand.activation, whole)
    if operand.exact and of_sum == "squared":
        of_sum = "dot"  # it is never negative
    numbers = FORMS[of_sum], profiles.NUMBERS[in_tile(a, whole)]
    return *numbers, float(a.gamma), float(a.coef0), int(a.degree)


def _weights(tiles: Tiles, operand: DeviceCenters, W: Any) -> DeviceWeights:
    """W (m, k), where the tile takes it by outputs: (k, m') with zeros beyond m."""

    xp, (m, k), dtype = tiles.xp, W.shape, operand.dtype
    W = xp.asarray(W, dtype)
    if not (operand.fused and W.size):
        return DeviceWeights(W, k)
    by_output = xp.zeros((k, -(-m // _PADDED) * _PADDED), dtype)
    by_output[:, :m] = W.T
    return DeviceWeights(cuda_api.argument(by_output), k)


def _outputs(tiles: Tiles, operand: DeviceCenters, X: Any, out: Any) -> Any:
    """H (N, m), written into ``out``."""
    if not operand.m:
        return out
    for start in range(0, len(X), _LAUNCH_ROWS):
        rows = slice(start, start + _LAUNCH_ROWS)
        if len(operand.parts) > 1:
            _summed(tiles, operand, X[rows], out[rows])
        else:
            _launch(tiles, operand, operand.parts[0], X[rows], out=out[rows])
            if callable(operand.activation.profile):
                out[rows] = operand.activation.profile(out[rows])
    return out


def _summed(tiles: Tiles, operand: DeviceCenters, X: Any, out: Any) -> None:
    """H of inputs in several parts: their distances are added, then activated."""

    activation = operand.activation
    total, summand = tiles.xp.zeros(out.shape), tiles.xp.empty(out.shape)
    for part in operand.parts:
        _launch(tiles, operand, part, X, out=summand)
        total += summand
    profiles.activate_rows[max(1, min(out.size // 256, 65_535)), 256, cuda_api.current_stream()](
        cuda_api.argument(total),
        operand.factor,
        *_rule(operand, whole=True),
        cuda_api.argument(summand),
    )
    out[...] = activation.profile(summand) if callable(activation.profile) else summand


def _scores(tiles: Tiles, operand: DeviceCenters, X: Any, W: DeviceWeights, out: Any) -> Any:
    """H @ W (N, k), written into ``out``: tiles in the operand's dtype, their sums in float64."""
    xp, N = tiles.xp, len(X)
    if not (out.size and operand.m):
        out.fill(0)
        return out
    if not operand.fused:
        H = _outputs(tiles, operand, X, xp.empty((N, operand.m), operand.dtype))
        out[...] = H @ W.values
        return out
    for start in range(0, N, _LAUNCH_ROWS):
        rows = slice(start, start + _LAUNCH_ROWS)
        tiles.add(_launch(tiles, operand, operand.parts[0], X[rows], W=W), out[rows])
    return out


def _normal(
    tiles: Tiles, operand: DeviceCenters, X: Any, T: Any, weights: Any, mean: Any, G: Any, B: Any
) -> None:
    """Add HᵀH to G, if any, and HᵀT to B, of H less its mean: tiles store H, cuBLAS multiplies."""
    H = _outputs(tiles, operand, X, tiles.xp.empty((len(X), operand.m), operand.dtype))
    tiles.sums(H, T, weights, mean, G, B)


def needs(operand: DeviceCenters) -> Needs:
    """Device memory of a row beside the row itself: packed, its term, what is not in the tile."""
    packed = sum(part.centers.shape[1] * part.centers.dtype.itemsize for part in operand.parts)
    distances = 0 if len(operand.parts) == 1 else 16 * operand.m
    apart = 0 if operand.fused else 2 * operand.m * operand.dtype.itemsize
    return Needs(packed + 16 + distances + apart)


def raw(tiles: Tiles, kernel: str = "", gpu: str = "") -> Backend:
    """The backend on arrays of the device; see :func:`on_device`."""
    return Backend(
        name="numba-cuda",
        xp=tiles.xp,
        kernel=kernel,
        prepare=partial(_prepare, tiles),
        outputs=partial(_outputs, tiles),
        scores=partial(_scores, tiles),
        normal=partial(_normal, tiles),
        weights=partial(_weights, tiles),
        device=gpu,
        tiles=dict.fromkeys(("euclidean", "manhattan"), _TRIED),
    )


def load() -> Backend:
    """The backend, or BackendUnavailable with the install line."""
    from gpurbf.layer.backends.cuda.cupy_ import find_gpu

    xp, device = find_gpu()
    extras = (
        'in a copy of gpurbf, pip install ".[cuda12]" or ".[cuda13]", whichever the driver has '
        "(nvidia-smi says)"
    )
    try:
        simulated = cuda_api.SIMULATED
    except ImportError as error:
        raise BackendUnavailable(f"no numba.cuda ({error}): {extras}") from None
    if simulated:
        raise BackendUnavailable("Numba simulates its GPU: unset NUMBA_ENABLE_CUDASIM")
    try:
        cuda_api.find_compiler()
    except Exception as error:  # each version of numba.cuda has its own
        raise BackendUnavailable(
            f"Numba finds no libNVVM, which compiles its kernels ({error}): {extras}; these extras "
            "bring it as a wheel. Numba looks into the environment's own site-packages and a CUDA "
            "toolkit that CUDA_HOME names, not into folders of `pip install --target`"
        ) from None
    if not cuda_api.cuda.is_available():
        why = " ".join(str(cuda_api.cuda.cuda_error()).split())
        raise BackendUnavailable(f"CuPy finds a GPU but Numba does not ({why}): {extras}")
    tiles = of_cupy(xp, device)
    kernel = f"tiles: {tiles.codes} quantized, float32/float64 off it; {device.name}"
    return on_device(raw(tiles, kernel, device.name), needs)


def of_cupy(xp: ModuleType, device: Device, stated: Callable[[], Tile] = forced_tile) -> Tiles:
    """The tiles on CuPy's arrays."""
    total = xp.ReductionKernel("T x", "W y", "x", "a + b", "y = a", "0", "gpurbf_sum_of_shares")
    add, sums = partial(total, axis=0), partial(add_sums, xp, device)
    return Tiles(xp, device, add, sums, codes_product(device), stated)


VARIABLE = "GPURBF_GPU_KERNEL"
# Products of 8-bit codes, and the least compute capability of each; sm_90a is of 9.0 alone.
CODES = {"wgmma": (9, 0), "mma": (8, 0), "dp4a": (6, 1)}
# The numba-cuda that is known to compile for sm_90a where the device is a Hopper.
_HOPPER = (0, 30)


def codes_product(device: Device) -> str:
    """The product of 8-bit codes: what ``GPURBF_GPU_KERNEL`` says, else by the device.

    Raises
    ------
    ValueError
        If the variable names no kernel.
    BackendUnavailable
        If the device cannot run the kernel it names, or Numba not compile it.
    """
    forced = os.environ.get(VARIABLE, "")
    if not forced:  # wgmma was measured nowhere
        return "mma" if device.capability >= CODES["mma"] else "dp4a"
    if forced not in CODES:
        raise ValueError(f"{VARIABLE}={forced!r}: use one of {', '.join(CODES)}.")
    least, found = (f"{major}.{minor}" for major, minor in (CODES[forced], device.capability))
    if device.capability < CODES[forced] or (forced == "wgmma" and least != found):
        what = f"{least} (H100, H200)" if forced == "wgmma" else f"{least} or higher"
        raise BackendUnavailable(
            f"{VARIABLE}={forced} needs compute capability {what}, this GPU has {found}: unset it."
        )
    if forced == "wgmma" and _version("numba-cuda") < _HOPPER:
        raise BackendUnavailable(
            f"{VARIABLE}=wgmma needs numba-cuda {_HOPPER[0]}.{_HOPPER[1]} or higher, which compiles"
            " for sm_90a: install that, or unset the variable."
        )
    return forced


def _version(package: str) -> tuple[int, ...]:
    """Its first two numbers; (0,) if it is not installed."""
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return (0,)
    return tuple(int(number) for number in version.split(".")[:2])
