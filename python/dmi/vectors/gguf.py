# SPDX-License-Identifier: Apache-2.0
"""GGUF control vectors: direction.N is added to what block N returns, counted from 0, as repeng and llama.cpp do.

Source: docs/gguf.md of the ggml project, versions 2 and 3.
"""
from __future__ import annotations

import pathlib
import re
import struct
from array import array
from typing import Any

from . import tensors
from .tensors import VectorError

ARCHITECTURE, HINT, COUNT = "general.architecture", "controlvector.model_hint", "controlvector.layer_count"
DTYPES = {0: "F32", 1: "F16", 28: "F64", 30: "BF16"}
VALUES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
TEXT, LIST = 8, 9
MAX_TENSORS, MAX_VALUES, MAX_NESTED, MAX_TEXT = 1024, 4096, 4, 1 << 16
# Words of keys that change no number, below controlvector.; any other key there is of how the vector is meant.
ABOUT = re.compile(r"controlvector\.(notes?|names?|descriptions?|comments?|authors?|dates?|created(_at|_by)?|licen[sc]e|url|source|version|datasets?|prompts?|tags?|title|model)")
DIRECTION = re.compile(r"direction\.(\d{1,4})")


class Cursor:
    """Reads one thing after the other; a VectorError where the file has ended."""

    def __init__(self, data: memoryview) -> None:
        self.data, self.at = data, 0

    def skip(self, n: int) -> memoryview:
        if n > len(self.data) - self.at:
            raise VectorError("it ends too early")
        self.at += n
        return self.data[self.at - n:self.at]

    def one(self, form: str) -> Any:
        return struct.unpack("<" + form, self.skip(struct.calcsize("<" + form)))[0]

    def text(self) -> str:
        n = self.one("Q")
        data = self.skip(n)
        return bytes(data[:MAX_TEXT]).decode(errors="replace")

    def value(self, kind: int, nested: int = 0) -> Any:
        """A value; None for a list, of which nothing is kept."""
        if kind == TEXT:
            return self.text()
        if kind in VALUES:
            return self.one(VALUES[kind])
        if kind != LIST or nested == MAX_NESTED:
            raise VectorError(f"it has a value of the type {kind}, which GGUF does not have")
        inner, n = self.one("I"), self.one("Q")
        if inner in VALUES:
            self.skip(n * struct.calcsize("<" + VALUES[inner]))
            return None
        if n > len(self.data):
            raise VectorError("it ends too early")
        for _ in range(n):
            self.value(inner, nested + 1)
        return None


def _head(at: Cursor) -> tuple[dict, int]:
    """({key: value}, number of tensors)"""
    if bytes(at.data[:4]) != b"GGUF":
        raise VectorError("it is no GGUF file")
    at.skip(4)
    version, n_tensors, n_values = at.one("I"), at.one("Q"), at.one("Q")
    if version not in (2, 3):
        raise VectorError(f"it is GGUF of version {version}; expected 2 or 3, little-endian")
    if n_tensors > MAX_TENSORS or n_values > MAX_VALUES:
        raise VectorError(f"it says {n_tensors} tensors and {n_values} values; control vectors have at most {MAX_TENSORS} and {MAX_VALUES}")
    values = {}
    for _ in range(n_values):
        key = at.text()
        values[key] = at.value(at.one("I"))
    return values, n_tensors


def _infos(at: Cursor, n: int) -> list[tuple[str, int, int, int]]:
    """(name, type, numbers, offset) of each tensor"""
    found = []
    for _ in range(n):
        name, n_dims = tensors.printable(at.text()), at.one("I")
        if n_dims > 4:
            raise VectorError(f"{name} has {n_dims} dimensions")
        dims = [at.one("Q") for _ in range(n_dims)]
        if any(d != 1 for d in dims[1:]) or not dims:
            raise VectorError(f"{name} has the shape {dims}; expected one dimension")
        found.append((name, at.one("I"), dims[0], at.one("Q")))
    return found


def _direction(name: str, kind: int, n: int, data: memoryview) -> array:
    if kind not in DTYPES:
        raise VectorError(f"{name} is of the type {kind} of ggml, which may be quantised; expected f32, f16, bf16 or f64")
    n_bytes = n * tensors.BYTES[DTYPES[kind]]
    if n_bytes > len(data):
        raise VectorError(f"{name} lies outside of the file")
    return tensors.take(data[:n_bytes], DTYPES[kind], name)


def _unused(values: dict) -> list[str]:
    """Keys that change no number. VectorError: one of them may."""
    more = {key: value for key, value in values.items() if key not in (ARCHITECTURE, HINT, COUNT, "general.alignment")}
    for key, value in more.items():
        if key.startswith("controlvector.") and not ABOUT.fullmatch(key):
            raise VectorError(f"it says {tensors.printable(key)}{'' if value is None else ': ' + tensors.printable(str(value))}, which is not read here, and may change "
                              "what its vectors mean: an edit may do it (docs/edits.md), with a file that does not say it")
    about = {key: value for key, value in more.items() if key.startswith(("general.", "controlvector."))}
    return [*map(tensors.printable, about), *tensors.unused({key: value for key, value in more.items() if key not in about})]


def read(path: pathlib.Path) -> tuple[dict, str | None, dict, dict, list]:
    """({layer: numbers}, whose layers they are, more that it says, {}, what is not used)"""
    data = tensors.mapped(path)
    at = Cursor(data)
    values, n_tensors = _head(at)
    infos = _infos(at, n_tensors)
    alignment = values.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 16:
        raise VectorError(f"it says an alignment of {alignment}")
    start, layers, left = -(-at.at // alignment) * alignment, {}, len(data)
    for name, kind, n, offset in infos:
        if not (match := DIRECTION.fullmatch(name)):
            raise VectorError(f"it has a tensor {name!r}; a control vector has direction.N alone")
        if int(match[1]) in layers:
            raise VectorError(f"two tensors are of layer {match[1]}")
        left -= n * tensors.BYTES.get(DTYPES.get(kind, ""), 1)
        if left < 0:
            raise VectorError("its tensors lie on one another")
        layers[int(match[1])] = _direction(name, kind, n, data[start + offset:])
    if isinstance(said := values.get(COUNT), int) and said != len(layers):
        raise VectorError(f"it says {said} layers and has {len(layers)}")
    hint = values.get(HINT)
    about = {"dmi.model": hint} if isinstance(hint, str) else {}
    return layers, "resid_post" if values.get(ARCHITECTURE) == "controlvector" else None, about, {}, _unused(values)
