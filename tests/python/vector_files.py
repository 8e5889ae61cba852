# SPDX-License-Identifier: Apache-2.0
"""Files of vectors, byte by byte: what their own writers would not write, too."""
import io
import json
import pickle
import struct
import zipfile

import numpy as np

F32 = 0
TEXT, LIST, U32, U64 = 8, 9, 4, 10


def text(words):
    data = words.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind, data):
    return struct.pack("<I", kind) + data


def gguf(layers, arch="controlvector", values=(), infos=None, counts=None, version=3, data=None):
    """A control vector of {layer: numbers}; @values: more (key, bytes of the value); @infos: (name, dims, type, offset) in place of what suits."""
    said = [("general.architecture", value(TEXT, text(arch))), *values]
    numbers = [np.asarray(v, np.float32).tobytes() for v in layers.values()]
    offsets = [sum(32 * -(-len(n) // 32) for n in numbers[:i]) for i in range(len(numbers))]
    infos = [(f"direction.{layer}", (len(v),), F32, at) for (layer, v), at in zip(layers.items(), offsets)] if infos is None else infos
    head = b"GGUF" + struct.pack("<IQQ", version, *(counts or (len(infos), len(said)))) + b"".join(text(key) + data for key, data in said)
    head += b"".join(text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, at) for name, dims, kind, at in infos)
    return head + bytes(-len(head) % 32) + (b"".join(n + bytes(-len(n) % 32) for n in numbers) if data is None else data)


def torch_file(pickled, storages=None, compression=zipfile.ZIP_STORED, **more):
    """An archive of torch.save(), of these bytes of a pickle and {key: bytes}."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, data in {"data.pkl": pickled, "version": b"3\n", **{f"data/{key}": data for key, data in (storages or {}).items()}, **more}.items():
            archive.writestr(f"v/{name}", data)
    return out.getvalue()


def tensor(shape, strides, n, first=0, kind="FloatStorage", key="0"):
    """The pickle of one tensor, by hand: protocol 2, as torch.save() writes it."""
    def number(i):
        return pickle.dumps(i, 2)[2:-1]

    def numbers(values):
        return b"(" + b"".join(map(number, values)) + b"t"
    words = (f"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\n{kind}\nX".encode() + struct.pack("<I", len(key)) + key.encode() +
             b"X\x03\x00\x00\x00cpu" + number(n) + b"tQ")
    return b"\x80\x02" + words + number(first) + numbers(shape) + numbers(strides) + b"\x89ccollections\nOrderedDict\n)RtR."


def npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


KINDS = {"float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64"}


def safetensors(tensors, metadata=None):
    """A file of {name: array}; of bfloat16: a pair of "BF16" and its bits."""
    header, data = {"__metadata__": metadata} if metadata is not None else {}, b""
    for name, array in tensors.items():
        kind, array = array if isinstance(array, tuple) else (KINDS[str(array.dtype)], array)
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [len(data), len(data) + array.nbytes]}
        data += np.ascontiguousarray(array).tobytes()
    head = json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + data
