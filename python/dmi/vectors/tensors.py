# SPDX-License-Identifier: Apache-2.0
"""Numbers as files have them, and safetensors. Source: https://github.com/huggingface/safetensors, "Format"."""
from __future__ import annotations

import json
import math
import mmap
import os
import pathlib
import re
import stat
import struct
import sys
from array import array
from typing import Any, BinaryIO

MAX_HEADER = 16 << 20
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_FORMATS = {"F64": "d", "F32": "f", "F16": "H", "BF16": "H"}


class VectorError(ValueError):
    """What is wrong with a file."""


def mapped(path: pathlib.Path) -> memoryview:
    """The bytes of a regular file, which are read as they are asked for."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):
            raise VectorError("it is no regular file")
        if not about.st_size:
            raise VectorError("it is empty")
        return memoryview(mmap.mmap(file, 0, access=mmap.ACCESS_READ))
    finally:
        os.close(file)


# What a file says under such words bears on its numbers or on where they belong; tools/common/vectors_said.c has the same ones. Words of a key begin so; with a full
# stop at the end they are that word, or its plural. Factors leave numbers as they are where they say 1, summands where they say 0.
FACTORS = ("scal", "rescal", "coef", "alpha.", "strength", "multipli", "mult.", "factor", "gain.")
SUMMANDS = ("shift", "offset", "bias")
OTHERS = ("layer", "site.", "hook", "block", "head.", "index", "indices", "norm", "renorm", "unnorm", "denorm", "center", "centre", "centering", "mean.", "avg.",
          "average", "thresh", "project", "ablat", "orthog", "operat", "mode.", "sign.", "apply", "applied", "transform", "interven")
NEUTRAL = ("", "none", "null", "false", "no", "off")
COUNTS = ("n", "num", "number")


def _words(key: str) -> list[str]:
    """An upper-case letter after a lower-case one begins another word."""
    return [word.lower() for part in re.findall(r"[A-Za-z]+", key) for word in re.findall(r"(?:^[A-Za-z]|[A-Z])(?:[a-z]|(?<![a-z])[A-Z])*", part)]


def _any(words: list[str], stems: tuple[str, ...]) -> bool:
    return any(word in (stem[:-1], stem[:-1] + "s") if stem.endswith(".") else word.startswith(stem) for word in words for stem in stems)


def bears(key: str, value: Any) -> bool:
    """Could what @key says change numbers, or where they belong? @value: text, number or None, as the file has it; a list: None."""
    words = _words(key)
    factor, summand = _any(words, FACTORS), _any(words, SUMMANDS)
    text = str(value).strip().lower()
    if not (factor or summand or _any(words, OTHERS)) or words[0] in COUNTS or (value is not None and text in NEUTRAL):
        return False
    try:
        return float(text) != (1.0 if factor else 0.0 if summand else math.nan)
    except ValueError:
        return True


def unused(said: dict[str, Any]) -> list[str]:
    """Keys of what a file says that nothing reads. VectorError: one of them may not be left out."""
    for key, value in said.items():
        if bears(key, value):
            value = "" if value is None else f": {printable(str(value))}"
            raise VectorError(f"it says {printable(key)}{value}, which is not read here, and may change what its numbers mean: do what it says, and save the "
                              "vectors without it")
    return [printable(key) for key in said]


def printable(text: str, most: int = 60) -> str:
    """In one line."""
    return "".join(c if c.isprintable() else "?" for c in text[:most]) + ("..." if len(text) > most else "")


def take(data: memoryview, dtype: str, what: str, first: int = 0, step: int = 1, n: int | None = None) -> array:
    """float32 of little-endian numbers: @n of them from the @first on, each @step-th. @what: names them where one is not finite."""
    end = None if n is None else first + (n - 1) * step + 1 if n else first
    chosen = slice(first, end, step)
    numbers = _cast(data, _FORMATS[dtype])[chosen].tolist()
    if dtype == "BF16":
        numbers = memoryview(array("I", (bits << 16 for bits in numbers))).cast("B").cast("f").tolist()
    elif dtype == "F16":
        numbers = struct.unpack(f"<{len(numbers)}e", array("H", numbers).tobytes())
    return narrowed(numbers, what)


def _cast(data: memoryview, kind: str) -> memoryview:
    if sys.byteorder != "little":
        raise VectorError("it is read on little-endian machines alone")
    size = memoryview(bytes(8)).cast(kind).itemsize
    return data[:len(data) // size * size].cast(kind)


def narrowed(numbers: list | tuple, what: str) -> array:
    """float32, all finite. @what: names them where one is not."""
    try:
        found = array("f", numbers)
    except OverflowError:
        raise VectorError(f"the numbers of {what} are not all finite as float32") from None
    if not all(map(math.isfinite, found)):
        raise VectorError(f"the numbers of {what} are not all finite")
    return found


class File:
    """A safetensors file that is open. entries: {name: (dtype, shape, data)}; metadata: {key: text}"""

    def __init__(self, data: memoryview) -> None:
        n = int.from_bytes(data[:8], "little")
        if len(data) < 8 or n > min(len(data) - 8, MAX_HEADER):
            raise VectorError(f"it is no safetensors file: its header would be {n} bytes long")
        try:
            header = json.loads(bytes(data[8:8 + n]))
            self.metadata = {key: str(value) for key, value in (header.get("__metadata__") or {}).items()}
            self.entries = {name: self._entry(entry, data[8 + n:]) for name, entry in header.items() if name != "__metadata__"}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            if isinstance(error, VectorError):
                raise
            raise VectorError("it is no safetensors file: its header is not what the format says") from None

    @staticmethod
    def _entry(entry: dict, data: memoryview) -> tuple[str, tuple[int, ...], memoryview]:
        dtype, shape, (first, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        if not all(type(n) is int and n >= 0 for n in (*shape, first, end)) or not first <= end <= len(data):
            raise VectorError("a tensor lies outside of the file")
        if dtype in BYTES and math.prod(shape) * BYTES[dtype] != end - first:
            raise VectorError("a tensor's shape does not suit its bytes")
        return dtype, shape, data[first:end]


def write(file: BinaryIO, tensors: dict[str, array], about: dict[str, str]) -> None:
    """A safetensors file of float32."""
    header: dict = {"__metadata__": about}
    first = 0
    for name, numbers in tensors.items():
        header[name] = {"dtype": "F32", "shape": [len(numbers)], "data_offsets": [first, first + 4 * len(numbers)]}
        first += 4 * len(numbers)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for numbers in tensors.values():
        file.write(numbers.tobytes())
