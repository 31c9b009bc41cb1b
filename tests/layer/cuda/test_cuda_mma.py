"""The layout of the tensor cores' fragments: whose register holds which element."""

import numpy as np
import pytest

from gpurbf.layer.backends.cuda.kernels import registers
from tests.layer.cuda import kernels_in_numpy


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
    for lane in range(32):
        in_A, in_B, _ = kernels_in_numpy.fragments(lane)
        np.testing.assert_array_equal(a[lane].ravel(), A[in_A])
        for columns, half in zip(np.hsplit(B, 2), b.reshape(32, 2, 8)[lane]):
            np.testing.assert_array_equal(half, columns[in_B])
    both = [kernels_in_numpy.mma(a, b[:, e : e + 2]) for e in (0, 2)]
    np.testing.assert_array_equal(np.hstack(both), A @ B)


def test_lanes_write_every_output_once():
    written = np.zeros((16, 8), int)
    for lane in range(32):
        rows, columns = np.array(registers.FRAGMENT_D).T + np.array([[lane // 4], [2 * (lane % 4)]])
        np.testing.assert_array_equal((rows, columns), kernels_in_numpy.fragments(lane)[2])
        written[rows, columns] += 1
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
