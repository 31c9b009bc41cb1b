"""IDX files are read exactly or refused with a reason; data are looked for in stated places."""

import gzip
import os
import struct
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from gpurbf import datasets

CODES = {"u1": 0x08, "i1": 0x09, ">i2": 0x0B, ">i4": 0x0C, ">f4": 0x0D, ">f8": 0x0E}


def idx_bytes(array, code=0x08):
    """The array as an IDX file, of uint8 if nothing else is said."""
    return struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape) + array.tobytes()


def write_folder(folder, suffix=""):
    """A folder in MNIST's layout; returns what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    written = []
    for part, n in (("train", 5), ("t10k", 3)):
        images = rng.integers(0, 256, (n, 4, 4)).astype(np.uint8)
        labels = (np.arange(n) % 3).astype(np.uint8)
        for name, array in (("images-idx3", images), ("labels-idx1", labels)):
            content, path = idx_bytes(array), folder / f"{part}-{name}-ubyte{suffix}"
            path.write_bytes(gzip.compress(content) if suffix else content)
            written.append(array)
    return written


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """No system data sets, and no network behind fetch_openml."""
    monkeypatch.setattr(datasets, "_SYSTEM", tmp_path / "system")
    closed = Mock(side_effect=OSError("the network is closed"))
    monkeypatch.setattr("sklearn.datasets.fetch_openml", closed)
    return tmp_path


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("kind", CODES)
def test_idx_gives_back_every_type_and_shape(tmp_path, kind, compressed):
    rng = np.random.default_rng(0)
    for shape in [(7,), (3, 4), (2, 3, 5), (0, 4)]:
        array = rng.integers(0, 100, shape).astype(kind)
        content = idx_bytes(array, CODES[kind])
        path = tmp_path / "array"
        path.write_bytes(gzip.compress(content) if compressed else content)
        result = datasets.load_idx(path)
        np.testing.assert_array_equal(result, array)
        assert result.dtype == array.dtype.newbyteorder("=")
        assert result.dtype.isnative and result.flags.writeable


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"not an IDX file\. .*nothing"),
        (b"\x89PNG....", "not an IDX file"),
        (b"\0\0\x07\x01\0\0\0\0", "not an IDX file"),
        (b"\0\0\x08\xc8" + 200 * b"\0\0\0\x01" + b"\0", r"not an IDX file.*\(<= 64\)"),
        (b"\0\0\x08\x03\0\0\0\x01", "truncated in the header, at 8 of 16 bytes"),
        (idx_bytes(np.zeros(9, np.uint8))[:-1], "truncated, 16 bytes where .* 17"),
        (idx_bytes(np.zeros(9, np.uint8)) + b"\0", "too long, 18 bytes where .* 17"),
        (gzip.compress(bytes(1000), mtime=0)[:-9], "damaged or truncated gzip"),
        (struct.pack(">HBB3I", 0, 8, 3, 2**31, 2**31, 2**31), "truncated, 16 bytes"),
    ],
)
def test_a_broken_idx_file_is_refused_with_a_reason(tmp_path, content, message):
    path = tmp_path / "broken"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        datasets.load_idx(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("place", range(0, 40, 3))
def test_a_compressed_file_with_one_wrong_byte_is_damaged_or_whole(tmp_path, place):
    content = bytearray(gzip.compress(idx_bytes(np.arange(900, dtype=np.uint8)), mtime=0))
    content[place] ^= 255
    path = tmp_path / "broken"
    path.write_bytes(content)
    try:
        assert np.array_equal(datasets.load_idx(path), np.arange(900, dtype=np.uint8))
    except ValueError as error:
        assert str(path) in str(error)


DATA_SETS = [
    (datasets.load_mnist, "mnist", "mnist_784"),
    (datasets.load_fashion_mnist, "fashion-mnist", "Fashion-MNIST"),
]


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("place", ["home", "home/{}", "system/{}"])
@pytest.mark.parametrize(("load", "folder", "_"), DATA_SETS)
def test_data_are_found_at_home_or_where_debian_puts_them(nowhere, load, folder, _, place, suffix):
    written = write_folder(nowhere / place.format(folder), suffix=suffix)
    for found, array in zip(load(nowhere / "home"), written, strict=True):
        np.testing.assert_array_equal(found, array.reshape(found.shape))
        assert found.shape in [(len(array), 16), (len(array),)]
        assert found.dtype == np.uint8


def test_a_tilde_is_the_folder_of_the_user_as_in_scikit_learn(nowhere, monkeypatch):
    _, y, *_ = write_folder(nowhere / "images")
    monkeypatch.setenv("USERPROFILE" if os.name == "nt" else "HOME", str(nowhere))
    np.testing.assert_array_equal(datasets.load_mnist("~/images").y_train, y)


def test_a_folder_of_the_name_comes_first(nowhere):
    write_folder(nowhere / "home")
    _, y, *_ = write_folder(nowhere / "home/fashion-mnist")
    (nowhere / "home/train-labels-idx1-ubyte").write_bytes(b"not read")
    np.testing.assert_array_equal(datasets.load_fashion_mnist(nowhere / "home").y_train, y)


@pytest.mark.parametrize(("load", "folder", "name"), DATA_SETS)
def test_the_error_names_every_place_that_was_tried(nowhere, load, folder, name):
    (nowhere / "home").mkdir()
    with pytest.raises(FileNotFoundError) as caught:
        load(nowhere / "home")
    message = str(caught.value)
    for place in ("home", f"home/{folder}", f"system/{folder}", name, "the network is closed"):
        assert place in message
    assert "data_home" in message


def test_openml_rows_are_split_as_in_the_original_files(monkeypatch, nowhere):
    data, labels = np.arange(140_000.0).reshape(-1, 2) % 256, np.array(["7", "3"] * 35_000, object)
    fetch = Mock(return_value=SimpleNamespace(data=data, target=labels))
    monkeypatch.setattr("sklearn.datasets.fetch_openml", fetch)
    X_train, y_train, X_test, y_test = datasets.load_mnist(nowhere / "cache")
    assert fetch.call_args.args == ("mnist_784",)
    assert fetch.call_args.kwargs["data_home"] == nowhere / "cache"
    assert X_train.shape == (60_000, 2) and X_test.shape == (10_000, 2)
    assert X_train.dtype == y_train.dtype == np.uint8
    assert X_test[0, 0] == 120_000 % 256 and y_test[:2].tolist() == [7, 3]


def test_images_and_labels_that_do_not_belong_together_are_refused(nowhere):
    write_folder(nowhere)
    (nowhere / "t10k-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(4, np.uint8)))
    with pytest.raises(ValueError, match=r"t10k images of shape .* do not match labels"):
        datasets.load_mnist(nowhere)
    (nowhere / "t10k-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(2, np.uint8)))
    (nowhere / "t10k-images-idx3-ubyte").write_bytes(idx_bytes(np.zeros((2, 5, 5), np.uint8)))
    with pytest.raises(ValueError, match=r"training images are \(4, 4\), test images \(5, 5\)"):
        datasets.load_mnist(nowhere)


@pytest.mark.parametrize("part", ["train", "t10k"])
@pytest.mark.parametrize("shape", [(0, 4, 4), (3, 0, 4)])
def test_a_part_without_images_is_refused(tmp_path, part, shape):
    write_folder(tmp_path)
    for name, array in (("images-idx3", np.zeros(shape)), ("labels-idx1", np.zeros(shape[0]))):
        (tmp_path / f"{part}-{name}-ubyte").write_bytes(idx_bytes(array.astype(np.uint8)))
    with pytest.raises(ValueError, match=rf"{tmp_path}: {part} images of shape .* are empty"):
        datasets.load_folder(tmp_path)


def test_a_file_that_is_missing_is_named(nowhere):
    write_folder(nowhere)
    missing = nowhere / "t10k-labels-idx1-ubyte"
    missing.unlink()
    for load, path in ((datasets.load_folder, nowhere), (datasets.load_idx, missing)):
        with pytest.raises(FileNotFoundError, match=r"(?i)no .*file.* ?t10k-labels-idx1-ubyte"):
            load(path)


def test_real_mnist_has_the_published_sizes(mnist):
    X_train, y_train, X_test, y_test = mnist
    assert X_train.shape == (60_000, 784) and X_test.shape == (10_000, 784)
    assert np.bincount(y_test).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert X_train.max() == 255 and y_train[:5].tolist() == [5, 0, 4, 1, 9]
