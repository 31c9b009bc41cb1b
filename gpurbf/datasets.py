"""Load image data for classification: IDX files, MNIST and Fashion-MNIST."""

from __future__ import annotations

import gzip
import importlib.util
import os
import warnings
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

__all__ = ["Images", "load_fashion_mnist", "load_folder", "load_idx", "load_mnist"]

# Third byte of an IDX file. http://yann.lecun.com/exdb/mnist/ describes the format.
_IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
# Debian's package dataset-fashion-mnist puts its files into a folder here.
_SYSTEM = Path("/usr/share/datasets")


class Images(NamedTuple):
    """Training and test samples with their labels.

    Parameters
    ----------
    X_train, y_train : ndarrays of shape (N, n) or (N, height, width), and (N,)
        Images to train on and their labels.
    X_test, y_test : ndarrays
        The same, to test on.
    """

    X_train: np.ndarray
    y_train: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


def load_idx(path: str | os.PathLike[str]) -> np.ndarray:
    """The array in an IDX file, which may be compressed by gzip.

    Parameters
    ----------
    path : str or path-like
        The file. Compression is detected from the content, not from the name.

    Returns
    -------
    array : ndarray
        In the shape and dtype that the file states, native byte order.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is not an IDX file, or is shorter or longer than its header says.
    """
    content = Path(path).read_bytes()
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"{path}: a damaged or truncated gzip file ({error}).") from error
    if len(content) < 4 or any(content[:2]) or content[2] not in _IDX_TYPES or content[3] > 64:
        types = ", ".join(f"{code:02x}" for code in _IDX_TYPES)
        raise ValueError(
            f"{path}: not an IDX file. It starts with {content[:4].hex(' ') or 'nothing'}, where "
            f"00 00, a type ({types}) and the number of dimensions (<= 64) are expected."
        )
    dtype, n_dims = np.dtype(_IDX_TYPES[content[2]]), content[3]
    header = 4 + 4 * n_dims
    if len(content) < header:
        raise ValueError(f"{path}: truncated in the header, at {len(content)} of {header} bytes.")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", n_dims, 4))
    expected = header + dtype.itemsize * int(np.prod(shape, dtype=object))
    if len(content) != expected:
        kind = "truncated" if len(content) < expected else "too long"
        raise ValueError(
            f"{path}: {kind}, {len(content)} bytes where its header (shape {shape}, {dtype}) says "
            f"{expected}."
        )
    array = np.frombuffer(content, dtype, offset=header).reshape(shape)
    return array.astype(dtype.newbyteorder("="))


def load_mnist(data_home: str | os.PathLike[str] | None = None) -> Images:
    """MNIST: 60,000 and 10,000 images of digits, 28 × 28 pixels.

    The data come from the first of these places that has them: ``mnist`` in `data_home`,
    `data_home`, ``/usr/share/datasets/mnist``, OpenML through scikit-learn (which keeps a copy).

    Parameters
    ----------
    data_home : str or path-like, optional
        A folder with the four IDX files; also scikit-learn's cache for downloads.

    Returns
    -------
    images : Images
        ``(X_train, y_train, X_test, y_test)``, all uint8, images as rows of 784 pixels.

    Raises
    ------
    FileNotFoundError
        If no place has the data; the message names each place and what was wrong there.
    """
    return _load("MNIST", "mnist_784", data_home)


def load_fashion_mnist(data_home: str | os.PathLike[str] | None = None) -> Images:
    """Fashion-MNIST: 60,000 and 10,000 images of clothes, 28 × 28 pixels.

    The data come from the first of these places that has them: ``fashion-mnist`` in `data_home`,
    `data_home`, ``/usr/share/datasets/fashion-mnist`` (Debian's package
    ``dataset-fashion-mnist``), OpenML through scikit-learn (which keeps a copy).

    Parameters
    ----------
    data_home : str or path-like, optional
        A folder with the four IDX files; also scikit-learn's cache for downloads.

    Returns
    -------
    images : Images
        ``(X_train, y_train, X_test, y_test)``, all uint8, images as rows of 784 pixels.

    Raises
    ------
    FileNotFoundError
        If no place has the data; the message names each place and what was wrong there.
    """
    return _load("Fashion-MNIST", "Fashion-MNIST", data_home)


def load_folder(folder: str | os.PathLike[str]) -> Images:
    """Images and labels in the four IDX files of a folder that has MNIST's layout.

    Parameters
    ----------
    folder : str or path-like
        Holds ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte``,
        ``t10k-images-idx3-ubyte`` and ``t10k-labels-idx1-ubyte``, plain or with ``.gz``.

    Returns
    -------
    images : Images
        ``(X_train, y_train, X_test, y_test)`` in the files' shapes and dtypes.

    Raises
    ------
    FileNotFoundError
        If the folder or one of the files is missing.
    ValueError
        If a file is damaged, there are no images, or they do not belong to the labels.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder.")
    arrays = []
    for name in _FILES:
        path = next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)
        if path is None:
            raise FileNotFoundError(f"{folder}: no file {name} or {name}.gz.")
        arrays.append(load_idx(path))
    for images, labels, part in zip(arrays[::2], arrays[1::2], ("train", "t10k")):
        if images.ndim < 2 or not images.size or labels.shape != images.shape[:1]:
            raise ValueError(
                f"{folder}: {part} images of shape {images.shape} are empty, or do not match "
                f"labels of shape {labels.shape}."
            )
    X_train, y_train, X_test, y_test = arrays
    if X_train.shape[1:] != X_test.shape[1:]:
        raise ValueError(
            f"{folder}: training images are {X_train.shape[1:]}, test images {X_test.shape[1:]}."
        )
    return Images(X_train, y_train, X_test, y_test)


def _load(title: str, openml_name: str, data_home: str | os.PathLike[str] | None) -> Images:
    """The data from the first place that has them."""
    folder, places = title.lower(), []
    if data_home is not None:
        data_home = Path(data_home).expanduser()  # as scikit-learn does
        places = [data_home / folder, data_home]
    tried = []
    for place in (*places, _SYSTEM / folder):
        try:
            train, y_train, test, y_test = load_folder(place)
            X_train, X_test = (images.reshape(len(images), -1) for images in (train, test))
            return Images(X_train, y_train, X_test, y_test)
        except FileNotFoundError as error:
            tried.append(str(error))
    try:
        return _from_openml(openml_name, data_home)
    except (OSError, ValueError, ImportError) as error:
        tried.append(f"OpenML's {openml_name!r}: {type(error).__name__}: {error}")
        raise FileNotFoundError(
            f"{title} was not found. Tried: {' | '.join(tried)} Name a folder that holds "
            f"{_FILES[0]} (or .gz) and the other three files: data_home=, or --data on the "
            "command line."
        ) from error


def _from_openml(name: str, data_home: str | os.PathLike[str] | None) -> Images:
    """The first 60,000 rows train and the others test, as in the original files."""
    from sklearn.datasets import fetch_openml

    parser = "pandas" if importlib.util.find_spec("pandas") else "liac-arff"
    with warnings.catch_warnings():
        # An error of the network is reported once, by the caller.
        warnings.filterwarnings("ignore", "A network error occurred")
        data = fetch_openml(name, version=1, as_frame=False, parser=parser, data_home=data_home)
    X, y = data.data.astype(np.uint8), data.target.astype(np.uint8)
    return Images(X[:60_000], y[:60_000], X[60_000:], y[60_000:])
