"""Consumers and the driver move bytes: what a dtype needs is compiled for it, and nothing twice."""

import numpy as np
import pytest
from callers import layer_of, sums_of

from gpurbf.layer.backends.numba import driver, matvec_kernels, microkernel_table
from gpurbf.layer.backends.numba.consumers import CONSUMERS, consumer, consumer_address
from gpurbf.layer.backends.numba.microkernels import KINDS


@pytest.mark.parametrize("name", CONSUMERS)
def test_what_only_moves_bytes_is_one_function_for_all_dtypes(name):
    panels = np.dtype(np.float64) if name == "gram" else None
    addresses = {consumer_address(name, dtype, panels) for dtype in (np.float32, np.float64)}
    assert len(addresses) == (1 if name in ("store", "partial") else 2)


def test_a_consumer_holds_the_arrays_that_its_words_point_to():
    out = np.empty((2, 3))
    found = consumer("store", np.float64, out=out, places=np.empty(0), row_bytes=24, itemsize=8)
    assert found.arrays["out"] is out
    assert found.words == [out.ctypes.data, 0, 24, 8]


def test_the_driver_is_compiled_once_for_all_layers():
    rng = np.random.default_rng(0)
    for kind in (np.uint8, np.float32, np.float64):
        X, C = (rng.uniform(0, 99, (rows, 5)).astype(kind) for rows in (40, 7))
        for metric in ("euclidean", "manhattan"):
            layer = layer_of(C, 1e-3, metric, backend="numba")
            layer.activations(X), layer.matvec(X, np.ones((7, 2)))
            sums_of(layer, X, np.ones((40, 1)))
    assert len(driver.evaluate_rows.signatures) == 1


@pytest.mark.parametrize("name", KINDS | matvec_kernels.KINDS)
def test_the_disk_cache_knows_a_micro_kernel_again_in_another_process(name):
    """What a function holds is part of its key there, and but for names it differs by process."""
    held = [cell.cell_contents for cell in microkernel_table._function(name).__closure__]
    assert held == [name]
