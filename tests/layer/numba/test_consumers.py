"""Consumers are called by address, so what they are given has the type that they were made for."""

import numpy as np
import pytest
from numba import njit
from numba.core.errors import TypingError

from gpurbf.layer.backends.numba.consumers import CHUNK, call_consumer
from gpurbf.layer.backends.numba.matvec import consumer
from gpurbf.layer.backends.numba.microkernels import BLOCK
from gpurbf.runtime.jit.llvm import placed, pointer_to


@njit
def consume(own, H, sums):
    call_consumer(0, placed(own), pointer_to(H, 0), 1, 1, 0, 0, pointer_to(sums, 0))


@pytest.mark.parametrize("change", ["other dtype", "fields", "tile", "sums"])
def test_operands_of_another_type_are_refused_where_the_caller_is_compiled(change):
    own = tuple(consumer(np.float64 if change == "other dtype" else np.float32, "store"))
    tile = np.float64 if change == "tile" else np.float32
    own = own[:-1] if change == "fields" else own
    sums = np.zeros(1, np.float32 if change == "sums" else np.float64)
    with pytest.raises(TypingError):
        consume(own, np.zeros((CHUNK, BLOCK), tile), sums)
