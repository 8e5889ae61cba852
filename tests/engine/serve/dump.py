# SPDX-License-Identifier: Apache-2.0
"""--dump: every tensor of every step, written by plain synchronous copies, and the reader of what was written.

A file a step, step-NNNNNN.safetensors (of several processes step-NNNNNN-PROCESS.safetensors): `SITE.LAYER` or `SITE` -> [rows, width] in the engine's dtype, padding rows included, and in
the file's metadata the owners of its rows. Nothing here knows of DMI.
"""
import json
import pathlib
import struct
from dataclasses import dataclass

import numpy as np

SAFETENSORS = {"float32": "F32", "bfloat16": "BF16", "int32": "I32"}
NUMPY = {"F32": np.float32, "BF16": np.uint16, "I32": np.int32}


def key_of(site, layer):
    return site if layer is None else f"{site}.{layer}"


class Dump:
    """Writes the files of a run."""

    def __init__(self, folder, dtype, suffix=""):
        self.folder, self.dtype, self.suffix, self.tensors = pathlib.Path(folder), dtype, suffix, {}
        self.folder.mkdir(parents=True, exist_ok=True)

    def take(self, view, n, data):
        self.tensors[key_of(view.site, view.layer)] = ("int32" if view.kind == "id" else self.dtype.name, view.per_request, data)

    def write(self, plan, rows, verified):
        """The step is over; @rows: batch.Rows, @verified: [(item, accepted drafts)]."""
        accepted, phases = {id(item): n for item, n in verified}, []
        for item in plan.items:
            kept = accepted.get(id(item), 0)
            phases += [item.phase] * item.n + ["draft"] * kept + ["rejected"] * (item.n_drafts - kept)
        owners = [[request.id, position, phase] for request, position, phase in zip(rows.owners, rows.positions, phases)]
        head = {"__metadata__": {"step": str(plan.step), "owners": json.dumps(owners), "last": json.dumps(list(rows.last)),
                                 "per_request": json.dumps([key for key, (_, each, _) in self.tensors.items() if each])}}
        at = 0
        for key, (dtype, _, data) in self.tensors.items():
            head[key] = {"dtype": SAFETENSORS[dtype], "shape": list(data.shape), "data_offsets": [at, at + data.nbytes]}
            at += data.nbytes
        text = json.dumps(head).encode()
        text += b" " * (-len(text) % 8)
        with open(self.folder / f"step-{plan.step:06}{self.suffix}.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for _, _, data in self.tensors.values():
                file.write(data.tobytes())
        self.tensors = {}


@dataclass
class Row:
    """A row that a step computed for a request's position: data is what was in memory (bfloat16 as uint16).

    phase: prefill, decode, draft (accepted), rejected (a draft that was not: of a token that the request never had).
    """
    step: int
    row: int
    phase: str
    data: np.ndarray


def array_of(data, at, info):
    """An entry of a safetensors file's head as an array; @at: where the tensors begin."""
    start, end = info["data_offsets"]
    dtype = np.dtype(NUMPY[info["dtype"]])
    return np.frombuffer(data, dtype, offset=at + start, count=(end - start) // dtype.itemsize).reshape(info["shape"])


class DumpReader:
    """
    rows      {(request, site with layer, position): [Row, ...]}, the latest computation last; rejected drafts are in rejected
    steps_of  {(step, site with layer): [rows, width]}, padding rows last; owned: how many are not padding
    dtypes    {site with layer: "F32", "BF16" or "I32"}
    """

    def __init__(self, folder, sites=None, part=None):
        """@sites: keys like "q.0" to read; None: all. @part: which process's, where there are several."""
        self.rows, self.rejected, self.steps_of, self.owned, self.dtypes = {}, {}, {}, {}, {}
        for path in sorted(pathlib.Path(folder).glob("step-*.safetensors" if part is None else f"step-*-{part}.safetensors")):
            self.read(path, sites)

    def read(self, path, sites):
        data = path.read_bytes()
        n, = struct.unpack_from("<Q", data)
        head = json.loads(data[8:8 + n])
        meta = head.pop("__metadata__")
        step, owners, last = int(meta["step"]), json.loads(meta["owners"]), json.loads(meta["last"])
        per_request = set(json.loads(meta["per_request"]))
        for key, info in head.items():
            if sites is not None and key not in sites:
                continue
            tensor = self.steps_of[step, key] = array_of(data, 8 + n, info)
            batch_rows = last if key in per_request else range(len(owners))
            self.dtypes[key], self.owned[step, key] = info["dtype"], len(batch_rows)
            for row, owner in zip(tensor, batch_rows):
                request, position, phase = owners[owner]
                of = self.rejected if phase == "rejected" else self.rows
                of.setdefault((request, key, position), []).append(Row(step, owner, phase, row))

    def row(self, request, key, position):
        """The row that was computed last."""
        return self.rows[request, key, position][-1].data

    def tensors(self):
        """{(request, key): (positions, [rows, width])} of the latest computations, positions ascending."""
        found = {}
        for request, key, position in sorted(self.rows, key=lambda k: k[2]):
            found.setdefault((request, key), []).append(position)
        return {(request, key): (positions, np.stack([self.row(request, key, p) for p in positions]))
                for (request, key), positions in found.items()}
