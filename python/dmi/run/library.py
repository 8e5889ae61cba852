# SPDX-License-Identifier: Apache-2.0
"""Libraries that read and analyze runs: where they lie, and what their calls say."""
from __future__ import annotations

import ctypes
import os
import pathlib
import sys
from typing import Any, Iterator

from .structs import TEXT, U64


class ReadError(OSError):
    """Something of a run cannot be read; its text says what."""


def _places(name: str, folder: str, variable: str) -> Iterator[pathlib.Path]:
    """Where library @name may be, the likeliest place first. @folder: of a clone; @variable: of the environment, that says it."""
    package = pathlib.Path(__file__).resolve().parents[1]
    if given := os.environ.get(variable):
        yield pathlib.Path(given)
    yield package.parents[1] / "build" / "meson" / folder / name  # a clone
    for prefix in (package.parents[3], pathlib.Path(sys.prefix)):  # PREFIX/share/dmi/python/dmi; a wheel
        yield from prefix.glob(f"lib/{name}")
        yield from prefix.glob(f"lib/*/{name}")
    yield pathlib.Path(name)  # wherever the loader looks


def load(what: str, *functions: str) -> ctypes.CDLL:
    """libdmi_@what.so.1 with these functions. ImportError: it is nowhere."""
    name, variable, tried = f"libdmi_{what}.so.1", f"DMI_{what.upper()}_LIBRARY", []
    for place in _places(name, what, variable):
        if place.name == str(place) or place.exists():
            try:
                library = ctypes.CDLL(str(place))
                for function in functions:
                    getattr(library, function)
            except (OSError, AttributeError) as error:
                tried.append(f"{place}: {error}")
                continue
            getattr(library, f"dmi_{what}_error").restype = TEXT
            return library
    raise ImportError(f"{name} cannot be loaded ({'; '.join(tried)}); {variable} may say where it is")


def failed(r: int, why: bytes | None) -> ReadError:
    """Of a call that returned @r: why, in the library's words or the system's."""
    return ReadError(-r, (why or b"").decode(errors="replace") or os.strerror(-r))


def opened(function: Any, *args: Any) -> ctypes.c_void_p:
    """The handle that a call makes of @args. ReadError."""
    handle, why = ctypes.c_void_p(), ctypes.create_string_buffer(512)
    if r := function(*args, ctypes.byref(handle), why, U64(len(why))):
        raise failed(r, why.value)
    return handle
