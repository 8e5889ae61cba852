# SPDX-License-Identifier: Apache-2.0
"""Vectors in .npy and .safetensors files, as tools/common/vectors.c takes them. Such files do not say whose layers they have: who converts them does.

Source: numpy.lib.format of NumPy, versions 1 to 3; https://github.com/huggingface/safetensors, "Format".
"""
from __future__ import annotations

import ast
import math
import pathlib
import re
import struct
import zipfile
from array import array

from . import tensors
from .tensors import VectorError

KINDS = {"<f4": "F32", "<f2": "F16", "<f8": "F64"}
MAX_HEAD, MAX_LAYERS, MAX_MEMBERS = 65536, 1022, 16
HEADS = "rows that are heads of one layer are one vector: reshape(-1)"
NUMBER = re.compile(r"\d+")


def _npy(data: memoryview) -> tuple[str, tuple[int, ...], memoryview]:
    """(type, shape, data)"""
    if bytes(data[:6]) != b"\x93NUMPY" or len(data) < 12 or not 1 <= data[6] <= 3:
        raise VectorError("it is no npy file")
    first = 10 if data[6] == 1 else 12
    n = int.from_bytes(data[8:first], "little")
    if n >= MAX_HEAD or n > len(data) - first:
        raise VectorError("it is no npy file")
    try:
        head = ast.literal_eval(bytes(data[first:first + n]).decode("latin1").strip())
        kind, shape, fortran = head["descr"], head["shape"], head["fortran_order"]
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError):
        raise VectorError("it is no npy file") from None
    if not isinstance(kind, str) or kind not in KINDS:
        raise VectorError("its numbers are of another type than f64, f32 and f16")
    if fortran is not False or not isinstance(shape, tuple) or not all(type(d) is int and d >= 0 for d in shape):
        raise VectorError("its elements lie in Fortran's order; expected C's: numpy.ascontiguousarray()")
    return KINDS[kind], shape, data[first + n:]


def npz(path: pathlib.Path) -> dict[str, tuple[str, tuple[int, ...], memoryview]]:
    """{name: (type, shape, data)} of what numpy.savez() wrote: a ZIP archive of npy files, none of them compressed, so that a few numbers of a large one can be read."""
    data, found = tensors.mapped(path), {}
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError, struct.error):
        raise VectorError("it is no npz file") from None
    for member in members[:MAX_MEMBERS + 1]:
        name, at = member.filename.removesuffix(".npy"), member.header_offset
        if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
            raise VectorError(f"its array {tensors.printable(name)} is compressed; expected what numpy.savez() writes, not numpy.savez_compressed()")
        first = at + 30 + sum(int.from_bytes(data[at + i:at + i + 2], "little") for i in (26, 28))  # the local header, with a name and more
        if name in found or len(found) == MAX_MEMBERS or bytes(data[at:at + 4]) != b"PK\x03\x04" or not 0 <= member.file_size <= len(data) - first:
            raise VectorError("it is no npz file of a few arrays")
        kind, shape, numbers = _npy(data[first:first + member.file_size])
        if math.prod(shape) * tensors.BYTES[kind] > len(numbers):
            raise VectorError("it holds fewer elements than its head says")
        found[name] = kind, shape, numbers
    return found


def rows(kind: str, shape: tuple[int, ...], data: memoryview, what: str) -> list[array]:
    """One for each layer; one alone: of one dimension, or of one row."""
    if len(shape) not in (1, 2):
        raise VectorError(f"{what} has the shape {list(shape)}; expected one dimension, or two: layers, elements; {HEADS}")
    n_rows, width = ((1,) + shape)[-2:]
    if kind not in tensors.BYTES:
        raise VectorError(f"the numbers of {what} are of another type than f64, f32, f16 and bf16")
    if n_rows > MAX_LAYERS or not n_rows or not width:
        raise VectorError("it has more layers than models have" if n_rows and width else "it holds no number")
    size = tensors.BYTES[kind]
    if n_rows * width * size > len(data):
        raise VectorError("it holds fewer elements than its head says")
    return [tensors.take(data[row * width * size:(row + 1) * width * size], kind, what) for row in range(n_rows)]


def _layers(found: list[array]) -> dict[int | None, array]:
    return {None: found[0]} if len(found) == 1 else dict(enumerate(found))


def _by_name(entries: dict) -> dict[int | None, array]:
    """Tensors whose names differ in one number."""
    parts = {NUMBER.sub("#", name): name for name in entries}
    if len(parts) != 1:
        raise VectorError("which of its tensors is meant is not clear: expected one, or tensors whose names differ in one number")
    numbers = [NUMBER.findall(name) for name in entries]
    places = [i for i in range(len(numbers[0])) if len({one[i] for one in numbers}) > 1]
    if len(entries) == 1:
        places = list(range(len(numbers[0])))
    if len(places) != 1 or len(numbers[0][places[0]]) > 4:
        raise VectorError("the names of its tensors do not differ in one number, which would be the layer")
    layers: dict[int | None, array] = {}
    for (name, (kind, shape, data)), one in zip(entries.items(), numbers):
        layer, found = int(one[places[0]]), rows(kind, shape, data, name)
        if layer in layers or len(found) != 1:
            raise VectorError(f"{tensors.printable(name)} is of a layer that another one has, or is no single vector")
        layers[layer] = found[0]
    return layers


def read(path: pathlib.Path) -> tuple[dict, str | None, dict, dict, list]:
    """({layer, None: of each: numbers}, whose layers they are, more that it says, {}, what is not used)"""
    data = tensors.mapped(path)
    if path.suffix == ".npy":
        return _layers(rows(*_npy(data), "it")), None, {}, {}, []
    file = tensors.File(data)
    said = {key: file.metadata.pop(key) for key in list(file.metadata) if key.startswith("dmi.") or key == "format"}
    about = {key: said[key] for key in ("dmi.model", "dmi.checkpoint") if key in said}
    (name, (kind, shape, numbers)), *more = file.entries.items() or [("", ("", (), memoryview(b"")))]
    alone = not more and not NUMBER.search(name)
    layers = _layers(rows(kind, shape, numbers, name or "it")) if alone or not more and len(shape) == 2 and shape[0] > 1 else _by_name(file.entries)
    return layers, said.get("dmi.layer_is"), about, {}, tensors.unused(file.metadata)
