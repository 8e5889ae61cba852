# SPDX-License-Identifier: Apache-2.0
"""Answers as files: safetensors with __metadata__, laid out in docs/analysis.md. They are written as they are computed and are never in memory."""
from __future__ import annotations

import json
import os
import pathlib
import shutil
import tempfile
from typing import Any, IO

from .run.edited import values
from .run.export import outside
from .run.reading import Run

IN_SAFETENSORS = {"f4": "F32", "f8": "F64", "i4": "I32", "i8": "I64", "u1": "U8"}


def about(what: str, formula: int, run: Run, request: str | None, parameters: dict, checks: list, edits: list = []) -> dict[str, str]:
    """__metadata__ of an answer. @checks: dictionaries with name, error, bound and rows. @edits: that wrote in the request, as Run.edits() has them."""
    from . import __version__
    plain = None if request is None else os.fsencode(request).decode(errors="replace")
    return {"what": what, "formula": str(formula), "run": run.uuid or "", **({} if plain is None else {"request": plain}),
            "parameters": json.dumps(parameters), "checks": json.dumps(checks), **({"edits": json.dumps(values(edits))} if edits else {}), "tool": f"dmi {__version__}"}


class Result:
    """{name: array} of an answer, and its metadata. Arrays are read from the file when they are looked at."""

    def __init__(self, file: Any, path: pathlib.Path | None, metadata: dict, places: dict) -> None:
        from .numeric import numpy
        self.path, self.metadata = path, metadata
        self._arrays = {name: numpy.memmap(file, dtype, "r", first, shape) if shape[0] else numpy.empty(shape, dtype)
                        for name, (dtype, shape, first) in places.items()}

    def __getitem__(self, name: str) -> Any:
        return self._arrays[name]

    def __iter__(self) -> Any:
        return iter(self._arrays)

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    @property
    def checks(self) -> list:
        return json.loads(self.metadata["checks"])

    @property
    def edits(self) -> list[dict]:
        """That wrote in the request: name, site, layers, first and end position, and text, which says all of it."""
        return json.loads(self.metadata.get("edits", "[]"))


class Writer:
    """Arrays that grow by their first dimension, in unnamed files until finish() puts them into one."""

    def __init__(self, out: str | os.PathLike | None, run: Run) -> None:
        """@out: the file to write, outside of the run; None: an unnamed one, that goes with the Result."""
        self._out = None if out is None else outside(out, run)
        self._arrays: dict[str, tuple[IO[bytes], Any, tuple]] = {}
        self._rows: dict[str, int] = {}

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: Any) -> None:
        for file, _, _ in self._arrays.values():
            file.close()

    def add(self, name: str, rows: Any) -> None:
        """Rows of the array @name: [rows, ...], of the type and shape of those before."""
        if name not in self._arrays:
            self._arrays[name] = tempfile.TemporaryFile(), rows.dtype, rows.shape[1:]
            self._rows[name] = 0
        file, dtype, shape = self._arrays[name]
        if (rows.dtype, rows.shape[1:]) != (dtype, shape):
            raise TypeError(f"{name}: {rows.dtype} {rows.shape[1:]} after {dtype} {shape}")
        file.write(rows.tobytes())
        self._rows[name] += len(rows)

    def finish(self, metadata: dict[str, str]) -> Result:
        """The whole answer: its file has its name once all of it is there. Source: https://github.com/huggingface/safetensors, "Format"."""
        entries: dict = {"__metadata__": metadata}
        places, first = {}, 0
        order = sorted(self._arrays, key=lambda name: -self._arrays[name][1].itemsize)  # each array is aligned to its elements
        for name in order:
            file, dtype, shape = self._arrays[name]
            whole, n_bytes = (self._rows[name], *shape), file.tell()
            entries[name] = {"dtype": IN_SAFETENSORS[dtype.str[1:]], "shape": list(whole), "data_offsets": [first, first + n_bytes]}
            places[name] = dtype, whole, first
            first += n_bytes
        text = json.dumps(entries, ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        header = len(text).to_bytes(8, "little") + text
        places = {name: (dtype, shape, len(header) + at) for name, (dtype, shape, at) in places.items()}
        if self._out is None:
            with tempfile.TemporaryFile() as file:
                self._join(file, header, order)
                return Result(file, None, metadata, places)
        with tempfile.NamedTemporaryFile(dir=self._out.parent, prefix=f"{self._out.name}.partial-", delete=False) as file:  # mode 0600
            try:
                self._join(file, header, order)
                os.replace(file.name, self._out)
            except BaseException:
                os.unlink(file.name)
                raise
            return Result(file, self._out, metadata, places)

    def _join(self, file: Any, header: bytes, order: list) -> None:
        file.write(header)
        for name in order:
            part = self._arrays[name][0]
            part.seek(0)
            shutil.copyfileobj(part, file, 1 << 20)
        file.flush()
