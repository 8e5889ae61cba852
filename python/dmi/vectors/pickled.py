# SPDX-License-Identifier: Apache-2.0
"""Tensors in files of torch.save(): the operations of the pickle are walked on values of our own, and nothing is executed.

Source: pickletools of Python; the archive is that of torch.save() since PyTorch 1.6, a zip file that stores data.pkl and a file a storage.
"""
from __future__ import annotations

import io
import math
import pathlib
import pickletools
import re
import zipfile
from array import array
from dataclasses import dataclass
from typing import Any

from . import tensors
from .tensors import VectorError

STORAGES = {"FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16", "DoubleStorage": "F64"}
MAX_PICKLE, MAX_ENTRIES, MAX_LAYERS = 1 << 20, 4096, 1024
NUMBER = re.compile(r"\d+")
MARK = object()


@dataclass(frozen=True)
class Name:
    """Something that the pickle wants to import."""
    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True)
class Storage:
    dtype: str
    key: str
    n: int


@dataclass(frozen=True)
class Tensor:
    storage: Storage
    first: int
    shape: tuple
    strides: tuple


def _rebuild(storage: Any, first: Any, shape: Any, strides: Any, *_: Any) -> Tensor:
    counts = [first, *shape, *strides] if isinstance(shape, tuple) and isinstance(strides, tuple) and len(shape) == len(strides) <= 8 else [None]
    if not isinstance(storage, Storage) or not all(type(n) is int and n >= 0 for n in counts):
        raise VectorError("a tensor in it is not what torch.save() writes")
    if 0 not in shape and first + sum((n - 1) * step for n, step in zip(shape, strides)) >= storage.n or math.prod(shape) > storage.n:
        raise VectorError("a tensor in it is larger than its storage")
    return Tensor(storage, first, shape, strides)


CALLS = {Name("torch._utils", "_rebuild_tensor_v2"): _rebuild,
         Name("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
         Name("collections", "OrderedDict"): lambda *pairs: dict(*pairs)}


class Walk:
    """The pickle machine of protocols 2 to 5, as far as torch.save() of tensors, numbers, texts and containers needs it."""

    def __init__(self) -> None:
        self.stack: list = []
        self.memo: dict[int, Any] = {}

    def pop(self) -> Any:
        return self.stack.pop()

    def to_mark(self) -> list:
        """What lies above the mark, which goes, too."""
        at = max(i for i, value in enumerate(self.stack) if value is MARK)
        found = self.stack[at + 1:]
        del self.stack[at:]
        return found

    def name(self, module: Any, name: Any) -> Name:
        if not isinstance(module, str) or not isinstance(name, str):
            raise VectorError("it is no pickle of torch.save()")
        wanted = Name(module, name)
        if wanted not in CALLS and not (module in ("torch", "torch.storage") and name.endswith("Storage")):
            raise VectorError(f"it wants {wanted}; only tensors, numbers, texts and containers of them are read. Save it as tensors: "
                              "torch.save({'dir': torch.as_tensor(...)}, PATH)")
        return wanted

    def storage(self, what: Any) -> Storage:
        if not isinstance(what, tuple) or len(what) != 5 or what[0] != "storage" or not isinstance(what[1], Name) or type(what[4]) is not int:
            raise VectorError("it has a storage that torch.save() does not write")
        if what[1].name not in STORAGES:
            raise VectorError(f"it has a tensor of {what[1]}; expected float, half, bfloat16 or double")
        return Storage(STORAGES[what[1].name], str(what[2]), what[4])

    def call(self) -> Any:
        given, what = self.pop(), self.pop()
        if not isinstance(what, Name) or what not in CALLS or not isinstance(given, tuple):
            raise VectorError(f"it calls {what}; only tensors are read")
        try:
            return CALLS[what](*given)
        except TypeError:
            raise VectorError(f"it calls {what} with other arguments than torch.save()") from None

    def set_items(self, items: list) -> None:
        into = self.stack[-1]
        if not isinstance(into, dict) or len(items) % 2:
            raise VectorError("it sets items of what is no dict")
        into.update(zip(items[::2], items[1::2]))

    def extend(self, items: list) -> None:
        if not isinstance(self.stack[-1], list):
            raise VectorError("it appends to what is no list")
        self.stack[-1].extend(items)

    def step(self, op: str, arg: Any) -> None:
        """One operation. IndexError, KeyError, ValueError, TypeError: what it needs is not there."""
        push = self.stack.append
        if op in CONSTANTS:
            push(CONSTANTS[op])
        elif op in ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE"):
            push({"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}[op]())
        elif op in VALUES:
            push(arg)
        elif op in ("PROTO", "FRAME", "STOP"):
            pass
        elif op in ("BINPUT", "LONG_BINPUT"):
            self.memo[arg] = self.stack[-1]
        elif op == "MEMOIZE":
            self.memo[len(self.memo)] = self.stack[-1]
        elif op in ("BINGET", "LONG_BINGET"):
            push(self.memo[arg])
        elif op == "TUPLE":
            push(tuple(self.to_mark()))
        elif op in ("TUPLE1", "TUPLE2", "TUPLE3"):
            push(tuple([self.pop() for _ in range(int(op[-1]))][::-1]))
        elif op == "SETITEM":
            value, key = self.pop(), self.pop()
            self.set_items([key, value])
        elif op == "SETITEMS":
            self.set_items(self.to_mark())
        elif op == "APPEND":
            self.extend([self.pop()])
        elif op == "APPENDS":
            self.extend(self.to_mark())
        elif op == "GLOBAL":
            push(self.name(*arg.split(" ", 1)))
        elif op == "STACK_GLOBAL":
            name, module = self.pop(), self.pop()
            push(self.name(module, name))
        elif op == "BINPERSID":
            push(self.storage(self.pop()))
        elif op == "REDUCE":
            push(self.call())
        else:
            raise VectorError(f"its pickle has the operation {op}; only tensors are read")


CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "MARK": MARK}
VALUES = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE"}


def walk(data: bytes) -> Any:
    """What the pickle holds: Tensors, numbers, texts, dicts, lists and tuples."""
    machine = Walk()
    try:
        for op, arg, _ in pickletools.genops(io.BytesIO(data)):
            machine.step(op.name, arg)
        if len(machine.stack) != 1:
            raise VectorError("its pickle ends with more than one value")
        return machine.pop()
    except VectorError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, UnicodeError, OverflowError, RecursionError):
        raise VectorError("its pickle is damaged") from None


class Archive:
    """A file of torch.save(). numbers(): of a Tensor in it."""

    def __init__(self, path: pathlib.Path, data: memoryview) -> None:
        if bytes(data[:4]) != b"PK\3\4":
            raise VectorError("it is no zip file, as torch.save() has written since PyTorch 1.6; save it again with a newer one")
        try:
            self.zip = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, UnicodeError):
            raise VectorError("it is a damaged zip file") from None
        self.left = len(data)
        self.infos = {info.filename: info for info in self.zip.infolist()}
        roots = [name[:-len("data.pkl")] for name in self.infos if name.endswith("/data.pkl")]
        if len(roots) != 1 or len(self.infos) > MAX_ENTRIES:
            raise VectorError("it is a zip file that torch.save() did not write")
        self.root = roots[0]
        if self.root + "byteorder" in self.infos and self.bytes("byteorder", 16) != b"little":
            raise VectorError("its numbers are big-endian")

    def bytes(self, name: str, most: int) -> bytes:
        info = self.infos.get(self.root + name)
        if info is None:
            raise VectorError(f"it has no {name}")
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or info.file_size > most:
            raise VectorError(f"its {name} has {info.file_size} bytes or is compressed; expected at most {most}, stored")
        try:
            return self.zip.read(info)
        except (zipfile.BadZipFile, EOFError, ValueError, OSError, NotImplementedError, RuntimeError):
            raise VectorError(f"its {name} is damaged") from None

    def numbers(self, tensor: Tensor, what: str) -> list[array]:
        """A row for each index of the first of two dimensions; one for one dimension, or none."""
        if len(tensor.shape) > 2:
            raise VectorError(f"{what} has the shape {list(tensor.shape)}; expected one dimension, or two: layers, elements")
        n_rows, n = ((1, 1) + tensor.shape)[-2:]
        next_row, step = ((0, 1) + tensor.strides)[-2:]
        size = tensors.BYTES[tensor.storage.dtype]
        if n > 1 and not step:
            raise VectorError(f"{what} repeats one number; save a copy of its own: tensor.contiguous()")
        self.left -= n_rows * n * size
        if self.left < 0 or n_rows > MAX_LAYERS:
            raise VectorError("it holds more numbers than its size allows, or more layers than models have")
        data = memoryview(self.bytes(f"data/{tensor.storage.key}", tensor.storage.n * size))
        if len(data) != tensor.storage.n * size:
            raise VectorError(f"its data/{tensor.storage.key} is cut")
        return [tensors.take(data, tensor.storage.dtype, what, tensor.first + row * next_row, step or 1, n) for row in range(n_rows)]


# ------------------------------------------------------------------------- what files hold


def _number(archive: Archive, value: Any, what: str) -> list[float]:
    if isinstance(value, Tensor):
        return [x for row in archive.numbers(value, what) for x in row]
    if isinstance(value, (int, float)) and math.isfinite(value):
        return [float(value)]
    raise VectorError(f"{what} is no number")


def _pair(archive: Archive, value: dict, what: str, ignored: list) -> tuple[list[array], list[float]]:
    """The rows of {"dir", "avg_proj"}, and what each row is to have along its vector."""
    if not isinstance(value["dir"], Tensor):
        raise VectorError(f"dir of {what} is no tensor")
    rows = archive.numbers(value["dir"], f"dir of {what}")
    to = _number(archive, value["avg_proj"], f"avg_proj of {what}") if "avg_proj" in value else []
    if len(to) not in (0, len(rows)):
        raise VectorError(f"avg_proj of {what} has {len(to)} numbers, and dir {len(rows)} vectors")
    ignored += [f"{key!r} of {what}" for key in value if key not in ("dir", "avg_proj")]
    return rows, to


def _layer_of(key: Any) -> int:
    numbers = [key] if type(key) is int else NUMBER.findall(key) if isinstance(key, str) else []
    if len(numbers) != 1 or not 0 <= int(numbers[0]) < 10 * MAX_LAYERS:
        raise VectorError(f"its entry {key!r} has no number of a layer, or several")
    return int(numbers[0])


def _one(archive: Archive, value: Any, what: str, ignored: list) -> tuple[list[array], list[float]]:
    if isinstance(value, Tensor):
        return archive.numbers(value, what), []
    if isinstance(value, dict) and "dir" in value:
        return _pair(archive, value, what, ignored)
    raise VectorError(f"{what} is neither a tensor nor a dict with \"dir\"")


def _by_layer(archive: Archive, entries: dict, ignored: list) -> tuple[dict, dict]:
    layers, to = {}, {}
    for key, value in entries.items():
        layer = _layer_of(key)
        rows, target = _one(archive, value, f"entry {key!r}", ignored)
        if layer in layers or len(rows) != 1:
            raise VectorError(f"its entry {key!r} is of a layer that another one has, or is no single vector")
        layers[layer] = rows[0]
        to |= {layer: target[0]} if target else {}
    return layers, to


def read(path: pathlib.Path) -> tuple[dict, None, dict, dict, list]:
    """({layer, None: of each: numbers}, None, {}, {layer: avg_proj}, what is left out): it never says whose layers these are"""
    ignored: list = []
    archive = Archive(path, tensors.mapped(path))
    with archive.zip:
        found = walk(archive.bytes("data.pkl", MAX_PICKLE))
        if isinstance(found, (list, tuple)):
            found = dict(enumerate(found))
        if isinstance(found, dict) and "dir" not in found:
            layers, to = _by_layer(archive, found, ignored)
            return layers, None, {}, to, ignored
        rows, target = _one(archive, found, "it", ignored)
    places = [None] if len(rows) == 1 else range(len(rows))
    return dict(zip(places, rows)), None, {}, dict(zip(places, target)), ignored
