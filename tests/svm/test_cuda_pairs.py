"""Rounds of launches on a device: recorded once, launched as a graph."""

import numpy as np
import pytest
from standin.samples import GAUSSIAN

from gpurbf.layer.backends.cuda import cupy_, cupy_kernels
from gpurbf.svm.cuda_pairs import Repeated


def test_launches_that_repeat_are_a_graph_from_the_second_time_on(cupy):
    given = [cupy.asarray(np.zeros(shape, np.int32)) for shape in ((4, 16), 4, 16)]
    out = cupy.empty((4, 16), np.float32)
    rule = cupy_kernels.rule(GAUSSIAN, 1, 1.0)

    def launches():
        for _ in range(5):
            cupy_kernels.write_outputs(cupy, rule, *given, out)

    repeated, counts = Repeated(cupy, launches), []
    for _ in range(3):
        before = cupy.gpu.launches
        out.fill(0)
        repeated()
        counts.append(cupy.gpu.launches - before - 1)
        np.testing.assert_array_equal(out.get(), 1)
    assert counts == [5, 1, 1]
    del given[0]
    with pytest.raises(AssertionError, match="given back"):
        repeated()


@pytest.mark.parametrize(
    "forbidden, error",
    [
        (lambda xp, A: xp.empty(3), "CaptureError"),
        (lambda xp, A: A.get(), "CaptureError"),
        (lambda xp, A: A.fill(1), "CaptureError"),
        (lambda xp, A: cupy_._gemm(xp, "32F", A, A, A), "NotImplementedError"),
    ],
)
def test_what_cannot_be_recorded_is_launched_one_by_one(cupy, forbidden, error):
    # The stand-in records no more than CuPy does.
    A, calls = cupy.asarray(np.ones((4, 4), np.float32)), []

    def launches():
        calls.append(cupy.gpu.current().recorded is not None)
        if len(calls) > 1:
            forbidden(cupy, A)

    repeated = Repeated(cupy, launches)
    repeated()
    with pytest.warns(UserWarning, match=f"one by one.*{error}"):
        repeated()
    repeated()
    assert calls == [False, True, False, False]
    assert cupy.gpu.current().recorded is None
