"""Importing this makes the CPU one that has AMX, or so it seems: also as `pytest -p pretend`.

The library that GPURBF_EMULATOR names (tiles.c) carries out the tile instructions. What a CPU has
is asked when Numba is imported, so this comes first, in a process of its own.
"""

import ctypes
import os

import llvmlite.binding as llvm

emulator = ctypes.CDLL(os.environ["GPURBF_EMULATOR"])
features = llvm.get_host_cpu_features()
features.update({"amx-tile": True, "amx-int8": True})
llvm.get_host_cpu_features = lambda: features

from gpurbf.layer.backends.numba import amx  # noqa: E402

amx.permission = lambda: None


def pytest_terminal_summary(terminalreporter):
    """Say how often the tiles were used."""
    counts = [emulator.count(i) for i in range(6)]
    words = "tiles configured {}, loaded {}, multiplied {}, stored {}, released {}, not aligned {}"
    terminalreporter.write_line(words.format(*counts))
