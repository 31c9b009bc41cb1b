"""The layout of the tensor cores' fragments: whose register holds which element.

The formulas are those of the PTX manual for mma.m16n8k32 with 8-bit types; lanes come in groups of
four, `group` is lane / 4 and `member` lane % 4.
"""

import numpy as np
import pytest

from gpurbf.kernels.cuda import registers, simulated

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
    """16 + 8 rows of 32 codes as they lie in shared memory, with A (16 × 32) and B (32 × 8)."""
    rows = np.random.default_rng(0).integers(0, 256, (24, registers.PITCH)).astype(np.uint8)
    return rows.view(np.int32).ravel(), rows[:16, :32].astype(int), rows[16:, :32].T.astype(int)


def test_lanes_read_their_elements_of_a_and_b(shared_memory):
    memory, A, B = shared_memory
    pitch = registers.PITCH // 4
    a = simulated._deal(memory, 0, pitch, registers.FRAGMENT_A).reshape(32, 16)
    b = simulated._deal(memory, 16 * pitch, pitch, registers.FRAGMENT_B).reshape(32, 8)
    for lane, (group, member) in enumerate(LANES):
        assert [A[fragment_a(group, member, i)] for i in range(16)] == list(a[lane])
        assert [B[fragment_b(group, member, i)] for i in range(8)] == list(b[lane])


def test_the_simulated_instruction_is_the_product(shared_memory):
    memory, A, B = shared_memory
    pitch = registers.PITCH // 4
    a = simulated._deal(memory, 0, pitch, registers.FRAGMENT_A)
    b = simulated._deal(memory, 16 * pitch, pitch, registers.FRAGMENT_B)
    np.testing.assert_array_equal(simulated.mma(a, b), A @ B)


def test_lanes_write_every_output_once():
    written = np.zeros((16, 8), int)
    for group, member in LANES:
        for i, (row, column) in enumerate(registers.FRAGMENT_D):
            place = group + row, 2 * member + column
            assert place == fragment_d(group, member, i)
            written[place] += 1
    assert (written == 1).all()


def test_rows_of_a_warp_are_read_from_different_banks():
    pitch = registers.PITCH // 4
    for r, word in registers.FRAGMENT_A:
        banks = {((group + r) * pitch + member + word) % 32 for group, member in LANES}
        assert len(banks) == 32
    # Vector loads: 8 rows of 16 bytes are all the banks there are.
    banks = {(row * pitch + word) % 32 for row in range(8) for word in range(4)}
    assert len(banks) == 32
