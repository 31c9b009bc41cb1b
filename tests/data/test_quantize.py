"""The integer quantization is found exactly where data are scaled small integers."""

from unittest.mock import Mock

import numpy as np
import pytest
import scipy.sparse as sp
from callers import layer_of

from gpurbf.data import samples
from gpurbf.data.quantize import Quantization, candidates, encode
from gpurbf.data.samples import quantize_or_keep, shared_quantizations

PIXELS = np.random.default_rng(0).integers(0, 256, (300, 20))
PIXELS[0, :2] = 0, 255


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("q", [1, 16, 128, 255, 256])
def test_rescaled_pixels_are_found(dtype, q):
    for X in ((PIXELS / q).astype(dtype), PIXELS.astype(dtype) * dtype(1 / q)):
        assert candidates(X)[0].denominator <= q
        np.testing.assert_array_equal(codes_of(X, Quantization(q, 0)), PIXELS)


def codes_of(X, quantization):
    """The codes of data that are wholly quantized."""
    codes, off = encode(X, quantization)
    assert off.shape == (len(X),) and not off.any()
    return codes


def test_all_layouts_have_the_same_codes():
    """However the rows lie in memory, and whoever may write to them."""
    fixed = PIXELS.astype(float)
    fixed.flags.writeable = False
    for X in (fixed, fixed.copy("F"), fixed[::2], fixed[:, ::2], fixed[:1], fixed.astype("f4")):
        np.testing.assert_array_equal(codes_of(X, Quantization(1.0, 0)), X)


def test_signed_data_are_found():
    for X, q in ((PIXELS - 128) / 64, 64.0), ((PIXELS - 128).astype(np.int8), 1.0):
        np.testing.assert_array_equal(codes_of(X, Quantization(q, 128)), PIXELS)
        assert encode(X, Quantization(q, 0))[1].all()


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("quantization", [(1.0, 128), (1.0, 0), (255.0, 0), (2.0, 0)])
def test_bytes_are_encoded_as_the_same_numbers_are(dtype, quantization):
    X = PIXELS.astype(dtype)
    X[::2] &= 1
    X[1::4] &= 127
    codes, off = encode(X, Quantization(*quantization))
    wanted, others = encode(X.astype(np.float64), Quantization(*quantization))
    np.testing.assert_array_equal(off, others)
    np.testing.assert_array_equal(codes[~off], wanted[~off])


def test_float32_pixels_are_the_same_data_in_float64():
    for X in (PIXELS / np.float32(255), PIXELS * np.float32(1 / 255)):
        wide = X.astype(np.float32).astype(np.float64)
        np.testing.assert_array_equal(codes_of(wide, Quantization(255.0, 0)), PIXELS)
    # but a row is rounded in one way
    X = (PIXELS / 255).astype(np.float32).astype(np.float64)
    X[5] = PIXELS[5] / 255
    X[6, 3] = np.nextafter(X[6, 3], 2)
    X[7, 10:] = PIXELS[7, 10:] / 255
    off = encode(X, Quantization(255.0, 0))[1]
    np.testing.assert_array_equal(np.flatnonzero(off), [6, 7])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_are_checked_to_their_ends(dtype):
    """Long rows, float32 numbers as they are and converted."""
    pixels = np.tile(PIXELS, 80)
    X = (pixels / np.float32(255)).astype(np.float32).astype(dtype)
    X[4, -1] += dtype(1e-4)
    X[299, 800] += dtype(1e-4)
    codes, off = encode(X, Quantization(255.0, 0))
    np.testing.assert_array_equal(np.flatnonzero(off), [4, 299])
    np.testing.assert_array_equal(codes[~off], pixels[~off])


@pytest.mark.parametrize("value", [0.1, 256 / 255, -1 / 255, np.nan, np.inf, 1e-30])
@pytest.mark.parametrize("row", [0, 299])
def test_one_value_off_the_quantization_is_noticed(value, row):
    X = PIXELS / 255
    X[row, 7] = value
    for dtype in (np.float64, np.float32):
        codes, off = encode(X.astype(dtype), Quantization(255.0, 0))
        np.testing.assert_array_equal(np.flatnonzero(off), [row])
        np.testing.assert_array_equal(codes[~off], PIXELS[~off])


@pytest.mark.parametrize("shape", [(0, 4), (4, 0)])
def test_no_data_and_no_features_are_no_error(shape):
    assert codes_of(np.empty(shape), Quantization(1.0, 0)).shape == shape


def test_the_quantization_is_the_one_that_centers_and_samples_share_and_real_data_have_none():
    C, X = np.round(PIXELS[:4] / 255), PIXELS / 255
    assert shared_quantizations(C, X, "auto")[0] == Quantization(255.0, 0)
    assert shared_quantizations(C, C, "auto")[0] == Quantization(1.0, 0)
    assert shared_quantizations(C, sp.csr_array(X), "auto")[0] == Quantization(255.0, 0)
    assert shared_quantizations(C, X + 0.001, "auto") == []
    assert shared_quantizations(C + 0.1, X, "auto") == []
    assert shared_quantizations(C, X, "float32") == []
    assert candidates(np.random.default_rng(0).normal(size=(50, 20))) == []


def test_sparse_samples_are_judged_by_the_rows_that_dense_ones_are_judged_by():
    X = np.tile(PIXELS / 256, (200, 1))
    assert candidates(sp.csr_array(X)) == candidates(X) == [Quantization(256.0, 0)]
    X[53_000:] = PIXELS[0] / 255  # beyond the first million of numbers
    assert candidates(sp.csr_array(X)) == candidates(X) == []


def test_samples_are_looked_at_once_and_only_where_it_may_help(monkeypatch):
    looked = Mock(wraps=encode)
    monkeypatch.setattr(samples, "encode", looked)
    layer_of(np.random.default_rng(0).normal(size=(5, 20))).activations(PIXELS / 255)
    looked.assert_not_called()
    layer = layer_of(PIXELS[:5] / 255)
    for look in (layer.activations, quantize_or_keep):
        looked.reset_mock()
        seen = look(PIXELS / 255)
        looked.assert_called_once()
        assert looked.call_args.args[0].shape == PIXELS.shape
    assert seen.quantization == Quantization(255.0, 0)
    np.testing.assert_array_equal(seen.numbers(), PIXELS / 255)


def test_the_same_numbers_are_the_same_samples():
    codes = np.where(PIXELS < 200, 0, PIXELS)
    X = codes / 255
    single = X.astype(np.float32)
    for same in (codes.astype(np.uint8), single, single.astype(float), X, sp.csr_array(X)):
        np.testing.assert_array_equal(quantize_or_keep(same).values, codes)
