"""The layout of the tensor cores' fragments: whose register holds which element.

The formulas are those of the PTX manual for mma.m16n8k32 with 8-bit types; lanes come in groups of
four, `group` is lane / 4 and `member` lane % 4.
"""

import numpy as np
import pytest

from gpurbf.layer.backends.cuda.kernels import registers
from tests.layer.cuda import kernels_in_numpy

LANES = [(lane // 4, lane % 4) for lane in range(32)]


def fragment_a(group, member, i):
    """Row and column of element i of 16 in A (16 × 32)."""
    row = group if 0 <= i < 4 or 8 <= i < 12 else group + 8
    return row, member * 4 + (i & 3) + (0 if i < 8 else 16)


def fragment_b(group, member, i):
    """Row and column of element i of 8 in B (32 × 8)."""
    return member * 4 + (i & 3) + (0 if i < 4 else 16), group


def fragment_d(group, member, i):
    """Row and column of element i of 4 in D (16 × 8)."""
    return (group if i < 2 else group + 8), member * 2 + (i & 1)


@pytest.fixture
def shared_memory():
    """16 + 16 rows of 32 codes as they lie in shared memory, with A (16 × 32) and B (32 × 16)."""
    rows = np.random.default_rng(0).integers(0, 256, (32, registers.PITCH)).astype(np.uint8)
    return rows.view(np.int32).ravel(), rows[:16, :32].astype(int), rows[16:, :32].T.astype(int)


def test_lanes_read_their_elements_and_the_simulated_instruction_is_the_product(shared_memory):
    memory, A, B = shared_memory
    pitch = registers.PITCH // 4
    a = kernels_in_numpy._deal(memory, 0, pitch, registers.LOAD_A)
    b = kernels_in_numpy._deal(memory, 16 * pitch, pitch, registers.LOAD_B)
    for lane, (group, member) in enumerate(LANES):
        assert [A[fragment_a(group, member, i)] for i in range(16)] == list(a[lane].ravel())
        for columns, half in zip(np.hsplit(B, 2), b.reshape(32, 2, 8)[lane]):
            assert [columns[fragment_b(group, member, i)] for i in range(8)] == list(half)
    both = [kernels_in_numpy.mma(a, b[:, e : e + 2]) for e in (0, 2)]
    np.testing.assert_array_equal(np.hstack(both), A @ B)


def test_lanes_write_every_output_once():
    written = np.zeros((16, 8), int)
    for group, member in LANES:
        for i, (row, column) in enumerate(registers.FRAGMENT_D):
            place = group + row, 2 * member + column
            assert place == fragment_d(group, member, i)
            written[place] += 1
    assert (written == 1).all()


def test_rows_of_a_matrix_are_read_from_different_banks_at_aligned_addresses():
    """Eight rows of 16 bytes are all the banks there are: of the scalar loads, and of ldmatrix."""
    pitch = registers.PITCH // 4
    banks = {(row * pitch + word) % 32 for row in range(8) for word in range(4)}
    assert len(banks) == 32
    for load in (registers.LOAD_A, registers.LOAD_B):
        places = kernels_in_numpy.places(pitch, load)
        assert not (places % 4).any()
        for matrix in places.reshape(4, 8):
            assert len({(place + word) % 32 for place in matrix for word in range(4)}) == 32
