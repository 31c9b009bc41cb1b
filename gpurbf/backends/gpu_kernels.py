"""Which instructions the tiles of `numba-cuda` multiply 8-bit codes by."""

from __future__ import annotations

import importlib.metadata
import os

from gpurbf.backends import BackendUnavailable
from gpurbf.backends.device_memory import Device

__all__ = ["VARIABLE", "codes_product"]

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
