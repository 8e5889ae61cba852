# SPDX-License-Identifier: Apache-2.0
"""Files that a user names: regular ones alone, as dmi's tools in C read them. A pipe would be waited for, and a device may have no end."""
from __future__ import annotations

import json
import mmap
import os
import pathlib
import stat
from typing import Any

MOST_JSON = 1 << 30  # bytes; large vocabularies have 35 MB
KINDS = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))


def _opened(path: Any, most: int | None) -> int:
    """A descriptor. ValueError: it is no regular file, it is empty, or has more bytes. OSError."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    about = os.fstat(file)
    wrong = None
    if not stat.S_ISREG(about.st_mode):
        wrong = f"is {next((kind for is_one, kind in KINDS if is_one(about.st_mode)), 'a device')}: a regular file is expected"
    elif not about.st_size:
        wrong = "is empty"
    elif most is not None and about.st_size > most:
        wrong = f"has more than {most} bytes"
    if wrong:
        os.close(file)
        raise ValueError(f"{path} {wrong}")
    return file


def mapped(path: Any) -> mmap.mmap:
    """Its bytes, which are read as they are asked for. Errors as of _opened()."""
    file = _opened(path, None)
    try:
        return mmap.mmap(file, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(file)


def read(path: Any, most: int = MOST_JSON) -> bytes:
    """All bytes. Errors as of _opened()."""
    with os.fdopen(_opened(path, most), "rb") as file:
        return file.read()


def read_json(path: str | pathlib.Path, most: int = MOST_JSON) -> Any:
    """ValueError: it is no JSON, or no file."""
    data = read(path, most)
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: no JSON: {str(error)[:200]}") from None
