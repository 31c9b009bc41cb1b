"""The integer lattice is found exactly where data are scaled small integers."""

import numpy as np
import pytest

from gpurbf.backends import Lattice
from gpurbf.backends.lattice import candidates, encode
from gpurbf.network.hidden import Activation, HiddenLayer

PIXELS = np.random.default_rng(0).integers(0, 256, (300, 20))
PIXELS[0, :2] = 0, 255


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("q", [1, 16, 128, 255, 256])
def test_rescaled_pixels_are_found(dtype, q):
    for X in ((PIXELS / q).astype(dtype), PIXELS.astype(dtype) * dtype(1 / q)):
        assert candidates(X)[0].denominator <= q
        np.testing.assert_array_equal(encode(X, Lattice(q, 0)), PIXELS)


def test_signed_data_are_found():
    X = (PIXELS - 128) / 64
    np.testing.assert_array_equal(encode(X, Lattice(64.0, 128)), PIXELS)
    assert encode(X, Lattice(64.0, 0)) is None
    np.testing.assert_array_equal(encode((PIXELS - 128).astype(np.int8), Lattice(1.0, 128)), PIXELS)


@pytest.mark.parametrize("value", [0.1, 256 / 255, -1 / 255, np.nan, np.inf, 1e-30])
@pytest.mark.parametrize("row", [0, 299])
def test_one_value_off_the_lattice_is_noticed(value, row):
    X = PIXELS / 255
    X[row, 7] = value
    assert encode(X, Lattice(255.0, 0)) is None


def test_real_data_have_no_candidates():
    assert candidates(np.random.default_rng(0).normal(size=(50, 20))) == []


def test_no_data_and_no_features_are_no_error():
    assert encode(np.empty((0, 4)), Lattice(1.0, 0)).shape == (0, 4)
    assert encode(np.empty((4, 0)), Lattice(1.0, 0)).shape == (4, 0)


def layer_of(C, **options):
    return HiddenLayer(C, Activation("euclidean", "gaussian", 0.1), backend="numpy", **options)


def test_what_ran_is_reported_and_can_be_forced():
    X = PIXELS / 255
    layer = layer_of(X[:5])
    layer.outputs(X)
    assert "exact integers / 255" in layer.describe()
    layer = layer_of(X[:5], precision="float32")
    assert layer.outputs(X).dtype == np.float32
    assert "exact" not in layer.describe()


def test_exact_refuses_other_data():
    layer = layer_of(PIXELS[:5] / 255, precision="exact")
    layer.outputs(PIXELS / 255)
    with pytest.raises(ValueError, match="precision='exact' needs"):
        layer.outputs(PIXELS / 255 + 1e-3)
    with pytest.raises(ValueError, match="precision='exact' needs"):
        layer_of(PIXELS[:5] / 7, precision="exact").outputs(PIXELS / 255)


def test_a_later_batch_off_the_lattice_is_computed_all_the_same():
    layer = layer_of(PIXELS[:5] / 255)
    X = np.vstack([PIXELS / 255, np.full((1, 20), 0.123)])
    H = layer.outputs(X)
    np.testing.assert_allclose(H[:-1], layer.outputs(PIXELS / 255), rtol=1e-12)


def test_centers_on_a_coarser_lattice_meet_samples_on_a_finer_one():
    C = np.round(PIXELS[:4] / 255)
    layer = layer_of(C)
    layer.outputs(C)
    layer.outputs(PIXELS / 255)
    assert "/ 255" in layer.describe()


def test_samples_are_looked_at_only_for_lattices_of_the_centers(monkeypatch):
    from gpurbf.network import hidden

    layer, looked = layer_of(np.random.default_rng(0).normal(size=(5, 20))), []
    layer.outputs(PIXELS / 255)
    monkeypatch.setattr(hidden, "encode", lambda X, lattice: looked.append(lattice))
    layer.outputs(PIXELS / 255)
    assert not looked
