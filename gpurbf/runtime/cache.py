"""Small JSON files in the user's cache directory: what was measured on this machine."""

from __future__ import annotations

import functools
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import platformdirs

VARIABLE = "GPURBF_CACHE_DIR"


def folder() -> Path:
    """Where the files are: what ``GPURBF_CACHE_DIR`` says, else the platform's place for caches."""
    return _folder(os.environ.get(VARIABLE))


@functools.cache
def _folder(stated: str | None) -> Path:
    """Asked for each layer that is prepared: where the place is takes longer than a look-up."""
    return Path(stated or platformdirs.user_cache_dir("gpurbf", appauthor=False))


def read(name: str) -> Any:
    """Content of a file; OSError or ValueError if it is missing or damaged."""
    return json.loads((folder() / name).read_text(encoding="utf-8"))


def write(name: str, content: Any) -> Path:
    """Write a file so that a concurrent reader or writer meets all of it or nothing.

    OSError where the directory cannot be written to.
    """
    path = folder() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path
