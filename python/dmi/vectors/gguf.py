# SPDX-License-Identifier: Apache-2.0
"""GGUF control vectors: direction.N is added to what block N returns, counted from 0, as repeng and llama.cpp do."""
from __future__ import annotations

import pathlib
import re
from array import array

from ..gguf_header import MAGIC, VERSIONS, Header, HeaderError
from . import tensors
from .tensors import VectorError

ARCHITECTURE, HINT, COUNT = "general.architecture", "controlvector.model_hint", "controlvector.layer_count"
DTYPES = {0: "F32", 1: "F16", 28: "F64", 30: "BF16"}
MAX_TENSORS, MAX_VALUES, MAX_TEXT = 1024, 4096, 1 << 16
# Words of keys that change no number, below controlvector.; any other key there is of how the vector is meant.
ABOUT = re.compile(r"controlvector\.(notes?|names?|descriptions?|comments?|authors?|dates?|created(_at|_by)?|licen[sc]e|url|source|version|datasets?|prompts?|tags?|title|model)")
DIRECTION = re.compile(r"direction\.(\d{1,4})")


def _header(data: memoryview) -> tuple[Header, dict, list[tuple[str, int, int, int]]]:
    """(the header, {key: value}, (name, type, numbers, offset) of each tensor)"""
    if bytes(data[:4]) != MAGIC:
        raise VectorError("it is no GGUF file")
    at = Header(data, keeps=False, most_text=MAX_TEXT)
    if at.version not in VERSIONS:
        raise VectorError(f"it is GGUF of version {at.version}; expected 2 or 3, little-endian")
    if at.n_tensors > MAX_TENSORS or at.n_values > MAX_VALUES:
        raise VectorError(f"it says {at.n_tensors} tensors and {at.n_values} values; control vectors have at most {MAX_TENSORS} and {MAX_VALUES}")
    values, found = {key: int(value) if isinstance(value, bool) else value for key, value in at.values().items()}, []
    for name, dims, kind, offset in at.tensors():
        name = tensors.printable(name)
        if len(dims) > 4:
            raise VectorError(f"{name} has {len(dims)} dimensions")
        if any(d != 1 for d in dims[1:]) or not dims:
            raise VectorError(f"{name} has the shape {list(dims)}; expected one dimension")
        found.append((name, kind, dims[0], offset))
    return at, values, found


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
    try:
        at, values, infos = _header(data)
    except HeaderError as error:
        raise VectorError(f"it {error}") from None
    alignment = values.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 16:
        raise VectorError(f"it says an alignment of {alignment}")
    start, layers, left = at.start(alignment), {}, len(data)
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
