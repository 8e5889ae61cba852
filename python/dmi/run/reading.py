# SPDX-License-Identifier: Apache-2.0
"""Runs that DMI captured, from Python: what include/dmi/read.h gives, as numpy arrays and torch tensors.

    with dmi.open("RUN") as run:
        run["france/q.3"].numpy()                # [rows, heads, 64], in the type that was captured
        run["france/q.3"].positions              # whose token each row is
        run.load(sites="resid_pre")              # {key: array}, each record decoded once
        run.cache("france")                      # the same for one request, by TransformerLens's names
        run.select(tokens="generated")           # a view: another Run, of these rows

It parses nothing itself: libdmi_read.so does. A run may be read while it grows (refresh(), follow()), after a kill, and where it is
damaged: what is undamaged is there, what is not is in findings. numpy and torch are imported where they are asked for.

A Run, and what comes from it, is for one thread at a time. Functions raise ReadError, whose text says what is wrong, and KeyError
with the nearest names where there is no tensor of that name.
"""
from __future__ import annotations

import bisect
import collections.abc
import ctypes
import difflib
import errno
import functools
import itertools
import json
import math
import operator
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Iterable, Iterator

from ..dtypes import BYTES, DTYPES, IN_NUMPY, IN_TORCH
from ..spelling import chooses
from ..torch.names import LENS
from . import edited
from .edited import Edit
from .library import ReadError, failed, load, opened
from .structs import (DAMAGED, DROPS, EDITED, ENDS, I64, LACKS_ROWS, MIXED, REJECTED, REQUEST_STATES, ROWS, SAMPLE_FAULTS, STATES, SUPERSEDED, TEXT, U32, U64, _Account,
                      _Finding, _Name, _Problem, _Request, _Row, _Run, _Selection, _Site, _Tensor, _bytes_at, _text)

if TYPE_CHECKING:
    from .experts import Experts

Names = str | Iterable[str] | None
THEIRS = {ours: theirs for theirs, ours in LENS.items()}


@dataclass(frozen=True)
class Row:
    """Where a row comes from.

    position  of its token in the request, or None
    step      the engine's own step number, or None
    forward, launch, row, device   which forward and launch of the process, which row of the launch, which CUDA device
    time_ns   CLOCK_REALTIME when the launch was handed to the driver
    damaged   it cannot be decoded: its values are 0; None: nobody tried
    rejected, superseded   only where select() asked for such rows
    site      index in Run.sites of the entry that says the row's scale
    donor     id of the request that it was computed for, where select(fill_cached=True) took it from there; else None
    dtype, shape   of this row: in a tensor that is mixed not those of the others
    edited    an edit wrote it: Tensor.edits says which
    """
    position: int | None
    step: int | None
    forward: int
    launch: int
    row: int
    device: int
    time_ns: int
    damaged: bool | None
    rejected: bool
    superseded: bool
    site: int = 0
    donor: str | None = None
    dtype: str = "none"
    shape: tuple = ()
    edited: bool = False


@dataclass(frozen=True)
class Site:
    """An entry of the run's site dictionary. Values are stored as true value * scale.

    row     what a row is: token, request or none
    writes  edits may write here; such an entry has no records
    """
    name: str
    kernel: str | None
    kind: str | None
    note: str | None
    dtype: str
    scale: float
    has_layer: bool
    row: str = "token"
    writes: bool = False


@dataclass(frozen=True)
class Account:
    """What became of the records of one site. captured + dropped + missing = expected; of a run that goes on, the missing ones are on their way.

    dropped_by  {reason: records}
    """
    expected: int
    captured: int
    dropped: int
    missing: int
    dropped_by: dict[str, int]


@dataclass(frozen=True)
class Request:
    """What the engine said of one request.

    id            bytes that are no UTF-8 become surrogates (os.fsdecode)
    state         running, finished, aborted or preempted; reason: unknown, stop, length, aborted
    end_position  after its last token that counts; n_prompt: where generation begins, or None
    n_cached      tokens that a prefix cache had; n_prefill, n_decode, n_draft: tokens computed, by phase
    n_other       tokens computed in a phase that the engine did not say
    raw_bytes, stored_bytes, n_records, n_rows   what its capture cost
    shed_step     the engine's number of the step from which on its rows were shed, or None: they were not
    tags          that the engine or the user gave it, the latest: {} where there are none, {"text": TEXT} where they are no JSON object
    """
    id: str
    state: str
    reason: str
    end_position: int
    n_prompt: int | None
    n_generated: int
    n_steps: int
    n_cached: int
    n_prefill: int
    n_decode: int
    n_draft: int
    n_rejected: int
    n_preemptions: int
    n_records: int
    n_rows: int
    raw_bytes: int
    stored_bytes: int
    n_other: int
    shed_step: int | None = None
    tags: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def run(self) -> "Run":
        """That it is from. ReadError: it was pickled since, or the run was refreshed, after which its name may be another one's."""
        run, n_refreshes = self.__dict__.get("_run", (None, 0))
        if run is None:
            raise ReadError(f"request {self.id} has no run: it was pickled")
        if run._n_refreshes != n_refreshes:
            raise ReadError(f"request {self.id}: the run was refreshed: take the request from it again")
        return run

    @property
    def tensors(self) -> dict[str, "Tensor"]:
        """{SITE.LAYER: Tensor} of this request, of the rows that its run, or view, has."""
        return self.run._of(self.__dict__.get("_own_id", self.id))

    @property
    def edits(self) -> list[Edit]:
        """Those that wrote in it."""
        return self.run.edits(self.__dict__.get("_own_id", self.id))

    @property
    def response(self) -> "Response":
        """{SITE.LAYER: Tensor} whose row 0 is that of the first token that was generated: request.response["q.3"][:16]. ValueError: where that is is unknown."""
        if self.n_prompt is None:
            raise ValueError(f"request {self.id}: it is not known where its generation begins")
        return Response(self)

    def experts(self, layer: int, k: int | None = None, normalize: bool = True) -> "Experts":
        """(ids [tokens, k], weights [tokens, k]) of the experts that a layer chose for each token that was captured, in the order of positions.

        They are topk_ids and topk_weights, as captured; else they follow from router_logits: the k largest, and their softmax.
        k          experts a token: needed for router_logits, which do not say it
        normalize  weights of a token sum up to 1 (Mixtral, Qwen3-MoE, gpt-oss); False: to less, as those of all experts do (norm_topk_prob: false)
        KeyError: neither was captured in that layer. A router that adds a bias before it chooses (DeepSeek V3) cannot be followed from logits.
        """
        from .experts import chosen
        return chosen(self, layer, k, normalize)

    def __getstate__(self) -> dict:
        return {key: value for key, value in self.__dict__.items() if not key.startswith("_")}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)


@dataclass(frozen=True)
class Finding:
    """Something that a reader should know: damage, or a note (a torn tail after a kill, a problem that the run reports of itself)."""
    damage: bool
    file: str | None
    chunk: int | None
    offset: int
    text: str


@dataclass(frozen=True)
class Step:
    """Rows of one step of the engine, or of one forward where it named none: {key: (positions, array)}."""
    step: int | None
    forward: int
    tensors: dict[str, tuple[list, Any]]

    def __repr__(self) -> str:
        return f"<dmi.reading.Step {self.step}, forward {self.forward}: {len(self.tensors)} tensors>"


# ------------------------------------------------------------------------- the library


def _load() -> ctypes.CDLL:
    library = load("read", "dmi_read_about")
    library.dmi_read_about.restype = TEXT
    library.dmi_read_find.restype = library.dmi_read_verify.restype = library.dmi_read_match.restype = I64
    return library


_library: ctypes.CDLL | None = None


# ------------------------------------------------------------------------- types


def _numpy_type(dtype: str) -> Any:
    from ..numeric import numpy
    if dtype in IN_NUMPY:
        return numpy.dtype(IN_NUMPY[dtype])
    try:
        import ml_dtypes
    except ImportError:
        raise TypeError(f"numpy has no {dtype}: install ml_dtypes, or ask for .float32() or .torch()") from None
    return numpy.dtype(getattr(ml_dtypes, IN_TORCH[dtype]))


def _e4m3() -> Any:
    """Every value of float8_e4m3fn as a float32."""
    from ..numeric import numpy
    bits = numpy.arange(256)
    exponent, fraction = bits >> 3 & 15, bits & 7
    values = numpy.where(exponent, (1 + fraction / 8) * 2.0 ** (exponent - 7), fraction / 8 * 2.0 ** -6)
    values[bits & 127 == 127] = numpy.nan
    return numpy.where(bits & 128, -values, values).astype(numpy.float32)


def _float32(data: bytearray, dtype: str) -> Any:
    """Elements as float32: exact but for f64 and integers beyond 2^24."""
    from ..numeric import numpy
    if dtype == "bf16":
        return (numpy.frombuffer(data, "<u2").astype(numpy.uint32) << 16).view(numpy.float32)
    if dtype == "f8e5m2":  # the upper half of an f16
        return (numpy.frombuffer(data, "u1").astype(numpy.uint16) << 8).view(numpy.float16).astype(numpy.float32)
    if dtype == "f8e4m3":
        return _e4m3()[numpy.frombuffer(data, "u1")]
    return numpy.frombuffer(data, IN_NUMPY[dtype]).astype(numpy.float32)


def _true(values: Any, tensor: "Tensor", first: int = 0) -> Any:
    """Of stored values the true ones, [rows, ...]. @first: the first one's row in the tensor."""
    from ..numeric import numpy
    if tensor.scale in (0, 1):
        return values
    scale = tensor.scale
    if scale is None:
        each = [tensor.run.sites[row.site].scale or 1 for row in tensor.rows(slice(first, first + len(values)))]
        scale = numpy.array(each, "f8").reshape(-1, *[1] * (values.ndim - 1))
    return (values / scale).astype(values.dtype)


# ------------------------------------------------------------------------- a tensor


class Tensor:
    """Rows that were captured under one name, for one layer and one request, in the order of their positions.

    key      REQUEST/SITE.LAYER, or SITE.LAYER; name: the part after the request; request: None where there is none
    site     a Site; layer: None where there is none
    dtype    one of DTYPES; shape: (rows, ...)
    mixed    type or width changes from record to record: it is not one tensor, and dtype and shape are those of its first record. Each row stands
             alone: tensor[i], rows(), positions, Run.steps(), and slices of rows that are alike; others are a ValueError
    scale    by which true values were multiplied; None: sites of one name have several, and float32() divides each row by its own

    Nothing is read before rows are asked for. What it says holds until the run is refreshed.
    """
    _offset, _since = 0, None  # of since(): its first row, and position

    def __init__(self, run: "Run", index: int, entry: _Tensor) -> None:
        self.run, self._index, self._generation = run, index, run._generation
        self.key, self.name = _text(entry.key), _text(entry.name)
        self.request = _text(_bytes_at(entry.request, entry.request_bytes)) if entry.request else None
        self.site, self.layer = run.sites[entry.site], None if entry.layer < 0 else entry.layer
        self.dtype, self.mixed = DTYPES[entry.dtype] if entry.dtype < len(DTYPES) else "none", entry.mixed == 1
        self.scale = None if entry.mixed else self.site.scale
        self.shape, self.row_bytes = (entry.n_rows, *entry.dims[:entry.n_dims]), entry.row_bytes

    def __repr__(self) -> str:
        return f"<dmi.reading.Tensor {self.key} {self.dtype} {list(self.shape)}>"

    def __len__(self) -> int:
        return self.shape[0]

    def __reduce__(self) -> tuple:
        return (operator.getitem, (self.run, self.key)) if self._since is None else (Tensor.since, (self.run[self.key], self._since))

    def since(self, position: int) -> "Tensor":
        """Its rows from a position on, row 0 being that of @position. ValueError: one of them is not there."""
        positions = self.positions
        first = next((i for i, p in enumerate(positions) if p is not None and p >= position), len(positions))
        if positions[first:] != list(range(position, position + len(positions) - first)):
            raise ValueError(f"{self.key} lacks positions from {position} on: its rows are not those of tokens one after the other")
        found = object.__new__(Tensor)
        found.__dict__.update(self.__dict__)
        found._offset, found.shape = self._offset + first, (len(self) - first, *self.shape[1:])
        found._since = position
        return found

    def _read(self, first: int, n: int, data: Any, rows: Any) -> None:
        if self._generation != self.run._generation:
            raise ReadError(f"{self.key}: the run was refreshed: take the tensor from it again")
        place = (ctypes.c_char * len(data)).from_buffer(data) if data else None
        r = self.run._call("dmi_read_rows", U64(self._index), U64(self._offset + first), U64(n), place, U64(len(data) if data else 0),
                           rows, U64(ctypes.sizeof(_Row) if rows else 0), allow=-74)
        if r and not rows:
            self.run._warn_of_damage(self.key)

    def _span(self, rows: slice | None) -> tuple[int, int]:
        try:
            first, end, step = slice(None).indices(len(self)) if rows is None else rows.indices(len(self))
        except (AttributeError, TypeError):
            raise IndexError(f"{self.key}: rows are taken by a slice of whole numbers, not by {rows!r}") from None
        if step != 1:
            raise IndexError("rows are read one after the other: the slice's step must be 1")
        return first, max(end - first, 0)

    def bytes(self, rows: slice | None = None) -> bytearray:
        """Rows as they were captured, little-endian, packed. Damaged ones are 0, and a warning says so."""
        first, n = self._span(rows)
        data = bytearray(n * self._like(first, n)[2])
        self._read(first, n, data, None)
        return data

    def _like(self, first: int, n: int) -> tuple[str, tuple, int]:
        """(dtype, shape, bytes) of each of these rows. ValueError: they are not alike."""
        if not self.mixed:
            return self.dtype, self.shape[1:], self.row_bytes
        kinds = {(row.dtype, row.shape) for row in self.rows(slice(first, first + n))} or {(self.dtype, self.shape[1:])}
        if len(kinds) > 1:
            raise ValueError(f"{self.key} {MIXED}: rows stand alone, as {self.key}[i] and Run.steps() give them")
        dtype, shape = kinds.pop()
        return dtype, shape, math.prod(shape) * BYTES[dtype]

    def rows(self, rows: slice | None = None, check: bool = False) -> list[Row]:
        """Where each row comes from. @check: decode them too, to say which are damaged."""
        first, n = self._span(rows)
        found = (_Row * max(n, 1))()
        self._read(first, n, bytearray(n * self.row_bytes) if check and not self.mixed else None, found)
        for i in range(n if check and self.mixed else 0):
            row = found[i]
            size = math.prod(row.dims[:row.n_dims]) * BYTES[DTYPES[row.dtype]]
            self._read(first + i, 1, bytearray(size), (_Row * 1).from_buffer(found, i * ctypes.sizeof(_Row)))
        return [Row(None if r.position < 0 else r.position, None if r.step == 2**64 - 1 else r.step, r.forward, r.launch, r.row, r.device,
                    r.time_ns, bool(r.flags & DAMAGED) if check else None, bool(r.flags & REJECTED), bool(r.flags & SUPERSEDED), r.site,
                    self.run.requests[r.donor - 1].id if r.donor else None, DTYPES[r.dtype] if r.dtype < len(DTYPES) else "none",
                    tuple(r.dims[:r.n_dims]), bool(r.flags & EDITED)) for r in found[:n]]

    @property
    def scales(self) -> list[float]:
        """By which each row's true values were multiplied."""
        return [self.run.sites[row.site].scale or 1 for row in self.rows()] if self.scale is None else [self.scale or 1] * len(self)

    @property
    def positions(self) -> list:
        """Of each row's token in its request; None where it is not known."""
        rows = (_Row * max(len(self), 1))()
        self._read(0, len(self), None, rows)
        return [None if position < 0 else position for position in memoryview(bytes(rows)).cast("q")[::ctypes.sizeof(_Row) // 8].tolist()[:len(self)]]

    @property
    def edits(self) -> list[Edit]:
        """Those that wrote rows of it. Values of later layers and tokens were computed with them, too: Run.edits()."""
        return edited.of_tensor(self)

    @property
    def donors(self) -> list:
        """[(first row, rows, request)] of rows that select(fill_cached=True) took from other requests."""
        found = (_Row * max(len(self), 1))()
        self._read(0, len(self), None, found)
        runs = itertools.groupby(enumerate(found[:len(self)]), lambda row: row[1].donor)
        lists = [(donor, [i for i, _ in rows]) for donor, rows in runs if donor]
        return [(rows[0], len(rows), self.run.requests[donor - 1].id) for donor, rows in lists]

    def numpy(self, rows: slice | None = None) -> Any:
        """[rows, ...] in the type that was captured; bf16 and 8-bit floats need ml_dtypes. TypeError: it is not installed."""
        from ..numeric import numpy
        first, n = self._span(rows)
        dtype, shape, _ = self._like(first, n)
        return numpy.frombuffer(self.bytes(rows), _numpy_type(dtype)).reshape(n, *shape)

    def float32(self, rows: slice | None = None) -> Any:
        """[rows, ...] as true values, so divided by the site's scale, in numpy's float32."""
        first, n = self._span(rows)
        dtype, shape, _ = self._like(first, n)
        return _true(_float32(self.bytes(rows), dtype).reshape(n, *shape), self, first)

    def torch(self, rows: slice | None = None) -> Any:
        """[rows, ...] on the CPU, in the type that was captured; memory that nobody else has."""
        import torch
        first, n = self._span(rows)
        dtype, shape, _ = self._like(first, n)
        data, kind = self.bytes(rows), getattr(torch, IN_TORCH[dtype])
        return (torch.frombuffer(data, dtype=kind) if data else torch.empty(0, dtype=kind)).reshape(n, *shape)

    def __getitem__(self, rows: int | slice) -> Any:
        if isinstance(rows, slice):
            return self.numpy(rows)
        try:
            index = operator.index(rows)
        except TypeError:
            raise IndexError(f"{self.key}: a row is taken by a whole number or a slice, not by {rows!r}") from None
        index += len(self) if index < 0 else 0
        if not 0 <= index < len(self):
            raise IndexError(f"{self.key} has {len(self)} rows")
        return self.numpy(slice(index, index + 1))[0]

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        found = self.numpy()
        return found if dtype is None else found.astype(dtype)


class Response(collections.abc.Mapping):
    """{SITE.LAYER: Tensor} of a request from the first token on that was generated. Its row holds what was computed of that token, after it was sampled."""

    def __init__(self, request: Request) -> None:
        self._tensors, self._first = request.tensors, request.n_prompt

    def __getitem__(self, name: str) -> Tensor:
        if name in self._tensors:
            return self._tensors[name].since(self._first)
        raise KeyError(f"no tensor is called {name!r}{_near(name, self._tensors)}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


# ------------------------------------------------------------------------- a run


class Run(collections.abc.Mapping):
    """{key: Tensor} of a run: its folder, one segment file, or an --out folder: then the run of the command that was started last, or those of its ranks
    (a UserWarning says so where the folder has others). OUT/latest likewise.

    path, state (closed, running, killed), uuid, job, model, host, library_version, pid, start_ns, n_records, n_steps, n_segments,
    file_bytes, n_runs; sites, requests, findings: lists. len() and iteration are over its tensors; of a view, which select() gives, over
    those selected.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        self._open(path)
        if self._n_beside:
            import warnings
            taken = f"this is the latest, {self.path}" if self.n_runs == 1 else f"these {self.n_runs} are the latest, of one command"
            warnings.warn(f"{os.fsdecode(path)} holds {self._n_beside + self.n_runs} runs; {taken}", stacklevel=3)

    @classmethod
    def _opened(cls, path: str | os.PathLike) -> "Run":
        """Without a word about other runs in its folder."""
        run = cls.__new__(cls)
        run._open(path)
        return run

    def _open(self, path: str | os.PathLike) -> None:
        global _library
        _library = _library or _load()
        self._handle = opened(_library.dmi_read_open, os.fsencode(path))
        self._chosen: dict[str, Any] = {}
        self._generation, self._n_refreshes, self._warned = 0, 0, set()
        self._fill()
        self._asked = os.path.abspath(self.path)

    # ---- what it is

    def _fill(self) -> None:
        self._generation += 1
        entry = self._get("dmi_read_run", _Run)
        self.path, self.state, self.uuid, self.job = _text(entry.path), STATES[entry.state], _text(entry.uuid), _text(entry.job)
        self.model, self.host, self.library_version = _text(entry.model), _text(entry.host), _text(entry.library_version)
        self.pid, self.start_ns, self.n_runs = entry.pid, entry.start_realtime_ns, entry.n_runs
        self._n_beside = entry.n_beside
        self.n_records, self.n_steps, self.n_segments, self.file_bytes = entry.n_records, entry.n_steps, entry.n_segments, entry.file_bytes
        self.sites = [self._site(i) for i in range(entry.n_sites)]
        self._n_requests, self._n_tensors = entry.n_requests, entry.n_tensors
        for name in ("requests", "_tensors", "_numbers"):
            self.__dict__.pop(name, None)

    @functools.cached_property
    def requests(self) -> list[Request]:
        return [self._request(i) for i in range(self._n_requests)]

    @functools.cached_property
    def _numbers(self) -> dict[str, int]:
        """Which request of an id is which in requests."""
        return {request.id: i for i, request in reversed(list(enumerate(self.requests)))}

    @functools.cached_property
    def _tensors(self) -> dict[str, Tensor]:
        found = (Tensor(self, i, self._get("dmi_read_tensor", _Tensor, U64(i))) for i in range(self._n_tensors))
        return {tensor.key: tensor for tensor in found}

    def _site(self, i: int) -> Site:
        s = self._get("dmi_read_site", _Site, U64(i))
        return Site(_text(s.name), _text(s.kernel), _text(s.kind), _text(s.note), DTYPES[s.dtype] if s.dtype < len(DTYPES) else "none", s.scale,
                    bool(s.has_layer), ROWS[s.row] if s.row < len(ROWS) else "none", bool(s.writes))

    def _request(self, i: int) -> Request:
        r = self._get("dmi_read_request", _Request, U64(i))
        found = Request(_text(_bytes_at(r.id, r.id_bytes)), REQUEST_STATES[r.state], ENDS[r.reason] if r.reason < len(ENDS) else "unknown",
                       r.end_position, None if r.n_prompt < 0 else r.n_prompt, r.n_generated, r.n_steps, r.n_cached, r.n_prefill, r.n_decode,
                       r.n_draft, r.n_rejected, r.n_preemptions, r.n_records, r.n_rows, r.raw_bytes, r.stored_bytes, r.n_other,
                       None if r.shed_step < 0 else r.shed_step, _tags(_text(_bytes_at(r.tags, r.tags_bytes))) if r.tags else {})
        found.__dict__["_run"] = self, self._n_refreshes
        return found

    def _requests_called(self, ids: set) -> dict[str, Request]:
        """{id: Request} of those that the run has. The latest are the last ones."""
        found: dict[str, Request] = {}
        for i in range(self._n_requests - 1, -1, -1):
            if len(found) == len(ids):
                break
            r = self._get("dmi_read_request", _Request, U64(i))
            if (name := _text(_bytes_at(r.id, r.id_bytes))) in ids:
                found[name] = self._request(i)
        return found

    def _of(self, request: str | None) -> dict[str, Tensor]:
        """{name: Tensor} of one request, without a look at those of others: tensors lie in the order of their requests' bytes."""
        def entry(i: int) -> _Tensor:
            return self._get("dmi_read_tensor", _Tensor, U64(i))

        def owner(i: int) -> bytes:
            t = entry(i)
            return _bytes_at(t.request, t.request_bytes) if t.request else b""
        wanted = b"" if request is None else os.fsencode(request)
        first = bisect.bisect_left(range(self._n_tensors), wanted, key=owner)
        end = bisect.bisect_right(range(self._n_tensors), wanted, lo=first, key=owner)
        tensors = [Tensor(self, i, entry(i)) for i in range(first, end)]
        return {t.name: t for t in tensors if t.request == request}

    def about(self, key: str) -> str | None:
        """What was noted of the model by dmi.describe(): "config", "tokenizer"; None: nothing."""
        return _text(_library.dmi_read_about(self._handle, key.encode()))

    @property
    def accounts(self) -> list[Account | None]:
        """Of each entry of sites; None where the run's counters cannot be read."""
        found = []
        for i in range(len(self.sites)):
            a = self._get("dmi_read_account", _Account, U64(i))
            by = {DROPS[k] if k < len(DROPS) else "unknown": n for k, n in enumerate(a.dropped_by) if n}
            found.append(Account(a.expected.records, a.captured.records + a.released.records, a.dropped.records, a.lost.records, by) if a.known else None)
        return found

    @property
    def findings(self) -> list[Finding]:
        found = []
        for i in range(self._get("dmi_read_run", _Run).n_findings):
            f = self._get("dmi_read_finding", _Finding, U64(i))
            found.append(Finding(bool(f.damage), _text(f.file), None if f.chunk < 0 else f.chunk, f.offset, _text(f.text)))
        return found + [Finding(False, "manifest.json", None, 0, text) for text in self._problems()]

    def _problems(self) -> Iterator[str]:
        """What the run reports of itself, each kind once a site."""
        p = _Problem()
        for i in itertools.count():
            if self._call("dmi_read_problem", U64(i), ctypes.byref(p), allow=-errno.ENOENT):
                return
            yield f"{_text(p.site)}: {_text(p.sentence)}" if p.site else _text(p.sentence)

    def __repr__(self) -> str:
        return f"<dmi.reading.Run {self.path}, {self.state}: {len(self)} tensors, {len(self.requests)} requests>"

    # ---- the handle

    def _call(self, name: str, *args: Any, allow: int | tuple = 0) -> int:
        if self._handle is None:
            raise ReadError("the run is closed")
        r = getattr(_library, name)(self._handle, *args)
        if r < 0 and r not in (allow if isinstance(allow, tuple) else (allow,)):
            raise failed(r, _library.dmi_read_error(self._handle))
        return r

    def _get(self, name: str, kind: type, *args: Any) -> Any:
        out = kind()
        self._call(name, *args, ctypes.byref(out))
        return out

    def _warn_of_damage(self, key: str) -> None:
        self._warn(key, f"rows of {key} are damaged, and 0 in what was read; rows(check=True) says which")

    def _warn(self, key: str, what: str) -> None:
        """Once for each key."""
        import warnings
        if key not in self._warned:
            self._warned.add(key)
            warnings.warn(f"{self.path}: {what}", RuntimeWarning, stacklevel=6)

    def close(self) -> None:
        """Gives memory and files back; what was read stays."""
        if self._handle is not None:
            _ = self.requests, self._tensors  # what the run says of itself stays, too
            self._give_back()

    def _give_back(self) -> None:
        _library.dmi_read_close(self._handle)
        self._handle = None

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None and _library is not None:
            self._give_back()

    def __getstate__(self) -> tuple:
        """For other processes, which open it anew by its path and select as it does."""
        if self._handle is None:
            raise ReadError("the run is closed")
        return self._asked, self._chosen

    def __setstate__(self, state: tuple) -> None:
        path, chosen = state
        self._open(path)
        self._select(chosen)

    # ---- tensors

    def __getitem__(self, key: str) -> Tensor:
        if isinstance(key, str) and key in self._tensors:
            return self._tensors[key]
        if not isinstance(key, str):
            raise KeyError(f"{key!r}: tensors are taken by their key, a text")
        raise KeyError(f"no tensor is called {key!r}{_near(key, self._tensors)}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    @chooses
    def tensors(self, sites: Names = None, layers: Any = None, requests: Names = None) -> list[Tensor]:
        """Those of a site (its name, as in the spec), a layer, a request, or of several.

        sites, requests  a name, or a list of them
        layers           a number, "0,3-7,last" (7 is included), or a list of these
        KeyError, with the nearest names: the run has none of that name; ValueError: such layers cannot be.
        """
        room = (U64 * max(len(self), 1))()
        n = self._choose("dmi_read_match", _selection(sites, layers, requests), room, U64(len(room)))
        tensors = list(self._tensors.values())
        return [tensors[room[i]] for i in range(n)]

    @chooses
    def select(self, requests: Names = None, tokens: Any = None, rejected: bool | None = None, superseded: bool | None = None,
               tp: int | None = None, pp: int | None = None, dp: int | None = None, ep: int | None = None, fill_cached: bool | None = None,
               sites: Names = None, layers: Any = None) -> "Run":
        """A view: the run as it is on the disk now, of these rows and of the tensors that have such. This one stays as it is. A view of a view has what that
        one has, but for what is said anew.

        requests, sites, layers   only these, as tensors() takes them
        tokens      "all", "prompt", "generated", "last", or positions of each request, as slices are: 5, "A:B", (first, end), slice(first, end), where
                    either may be left out and a number below 0 counts from the request's end; several in a list, or with commas
        rejected, superseded   rows whose drafts were rejected, or whose position was computed again, too
        tp, pp, dp, ep         of the runs of several ranks only those with these
        fill_cached            rows of tokens that a prefix cache had, too: from the first request that computed them with the same token ids at every
                               position from 0 on, which Row.donor and Tensor.donors name. Needs the site token_ids, and an engine that said the ids
        KeyError, with the nearest names: the run has none of that name; ValueError: such layers or tokens cannot be.
        """
        given = {"requests": requests, "tokens": tokens, "rejected": rejected, "superseded": superseded, "tp": tp, "pp": pp, "dp": dp, "ep": ep,
                 "fill_cached": fill_cached, "sites": sites, "layers": layers}
        chosen = {**self._chosen, **{name: value for name, value in given.items() if value is not None}}
        if self._handle is None:
            raise ReadError("the run is closed")
        view = Run._opened(self._asked)
        view._select(chosen)
        if view.uuid != self.uuid:
            view.close()
            raise ReadError(f"{self._asked} holds another run by now: open it again")
        return view

    def _select(self, chosen: dict[str, Any]) -> None:
        c = chosen.get
        selection = _selection(c("sites"), c("layers"), c("requests"))
        selection.flags = bool(c("rejected")) | bool(c("superseded")) << 1 | bool(c("fill_cached")) << 2
        selection.positions = _words("tokens", c("tokens", "all"))
        selection.ranks = (U32 * 4)(*(0 if c(axis) is None else 1 + c(axis) for axis in ("tp", "pp", "dp", "ep")))
        self._choose("dmi_read_select", selection)
        self._chosen = chosen
        self._fill()

    def _choose(self, name: str, chosen: _Selection, *more: Any) -> int:
        """A call that selects: what the run has not is a KeyError, what cannot be a ValueError."""
        try:
            return self._call(name, ctypes.byref(chosen), *more)
        except ReadError as error:
            kind = {errno.ENOENT: KeyError, errno.EINVAL: ValueError}.get(error.errno)
            if kind is None:
                raise
            raise kind(error.strerror) from None

    @chooses
    def edits(self, requests: str | None = None) -> list[Edit]:
        """The edits that wrote in a request, in the order in which they are done. None: in rows of no request. KeyError: the run has no such request.

        What an edit writes changes later layers, and later tokens through their keys and values: all of the request's values may be other ones.
        """
        return edited.of_request(self, edited.index_of(self, requests))

    def sample_fault(self, tensor: Tensor) -> tuple[str, str] | None:
        """Why a tensor's rows are no sample: (the kind, one of SAMPLE_FAULTS; a phrase to stand after its name). None: they are every position of its
        request from 0 to the last, each once, or those that select(tokens=) chose."""
        why = ctypes.create_string_buffer(256)
        fault = tensor.run._call("dmi_read_sample", U64(tensor._index), why, U64(len(why)))
        return (SAMPLE_FAULTS[fault], why.value.decode(errors="replace")) if fault else None

    # ---- much of it

    @chooses
    def load(self, sites: Names = None, layers: Any = None, requests: Names = None, float32: bool = False) -> dict[str, Any]:
        """{key: array} of all tensors that tensors() would list, each record decoded once.

        float32  true values as float32; else the types that were captured, of which bf16 and 8-bit floats need ml_dtypes
        """
        return {t.key: self._array(t, data, float32) for t, data in self._several(self.tensors(sites, layers, requests))}

    @staticmethod
    def _array(tensor: Tensor, data: bytearray, float32: bool) -> Any:
        from ..numeric import numpy
        if float32:
            return _true(_float32(data, tensor.dtype).reshape(tensor.shape), tensor)
        found = numpy.frombuffer(data, _numpy_type(tensor.dtype))
        return found.reshape(tensor.shape)

    def _several(self, tensors: list[Tensor]) -> list[tuple[Tensor, bytearray]]:
        wanted = [t for t in tensors if not t.mixed]
        for tensor in tensors:
            if tensor.mixed:
                self._warn(tensor.key, f"{tensor.key} is left out: it {MIXED}; run[{tensor.key!r}][i] gives its rows one by one")
        buffers = [bytearray(len(t) * t.row_bytes) for t in wanted]
        places = (ctypes.c_void_p * max(len(wanted), 1))(*(
            ctypes.addressof((ctypes.c_char * len(b)).from_buffer(b)) if b else None for b in buffers))
        indices = (U64 * max(len(wanted), 1))(*(t._index for t in wanted))
        if self._call("dmi_read_several", indices, U64(len(wanted)), places, allow=-74):
            self._warn_of_damage("some tensors")
        return list(zip(wanted, buffers))

    @chooses
    def cache(self, requests: str | None = None, float32: bool = True) -> dict[str, Any]:
        """{name: array} of one request, by TransformerLens's names where it has one ("blocks.3.attn.hook_q"), else by ours ("ln1.3").

        requests  its id; None: the only one. Arrays have no batch dimension: rows are positions, from 0 or from where select(tokens=) begins. ValueError: rows
                  of some positions are not there.
        """
        ids = {t.request for t in self._tensors.values()}
        if requests is None and len(ids) > 1:
            raise ValueError(f"the run has {len(ids)} requests: say which ({', '.join(sorted(filter(None, ids))[:5])}, ...)")
        at = None  # the positions that tensors without a fault have in common
        for tensor in self.tensors(requests=requests):
            if tensor.request is None or tensor.site.row != "token":
                continue
            fault = self.sample_fault(tensor)
            at = tensor.positions if at is None and not fault else at
            if not fault and at and at[-1] - at[0] + 1 != len(at):
                fault = LACKS_ROWS, "has rows of positions that do not follow one another"
            if fault and fault[0] != "of changing type or scale":
                raise ValueError(f"{tensor.key} {fault[1]}: its rows are not positions; run[{tensor.key!r}].positions says what they are")
        found = self.load(requests=requests, float32=float32)
        return {_lens_name(self._tensors[key]): array for key, array in found.items()}

    def steps(self, float32: bool = False) -> Iterator[Step]:
        """The rows selected, step by step in the order of launches. @float32: as load() takes it."""
        places: dict[int, list] = {}
        numbers = {}
        for tensor in self._tensors.values():
            for i, row in enumerate(tensor.rows()):
                places.setdefault(row.forward, []).append((tensor, i, row.position))
                numbers[row.forward] = row.step
        for forward in sorted(places):
            of_tensor: dict[str, list] = {}
            for tensor, i, position in places[forward]:
                of_tensor.setdefault(tensor.key, []).append((i, position))
            yield Step(numbers[forward], forward, {key: ([p for _, p in rows], self._pick(key, [i for i, _ in rows], float32))
                                                   for key, rows in of_tensor.items()})

    def _pick(self, key: str, rows: list[int], float32: bool) -> Any:
        """Rows of a tensor, mostly one after the other. A list where they are not alike."""
        tensor = self._tensors[key]
        read = tensor.float32 if float32 else tensor.numpy
        if tensor.mixed:
            from ..numeric import numpy
            each = [read(slice(i, i + 1))[0] for i in rows]
            return numpy.stack(each) if len({(row.dtype, row.shape) for row in each}) == 1 else each
        found = read(slice(rows[0], rows[-1] + 1))
        return found if len(found) == len(rows) else found[[i - rows[0] for i in rows]]

    # ---- a run that grows

    def refresh(self) -> bool:
        """Take in what was written since. Returns whether there is more now, or its state changed. Tensors that were taken before end."""
        before = self.n_records, self.n_steps, self.state
        self._n_refreshes += 1
        self._call("dmi_read_refresh")
        self._fill()
        return before != (self.n_records, self.n_steps, self.state)

    def follow(self, poll_s: float = 0.5) -> Iterator["Run"]:
        """The run, as it is and each time that it has grown, until no process writes it any more."""
        yield self
        while self.state == "running":
            time.sleep(poll_s)
            if self.refresh():
                yield self

    def finished(self, poll_s: float = 0.5, timeout_s: float | None = None) -> Iterator[Request]:
        """Requests as they end, once their records are in the run, each once, until no process writes it any more. Those that ended before come first.

        Request.tensors has what was captured of it, until the next one is asked for: the run is refreshed then. A request whose engine never says that
        it ended is not among them. Where segments are released (DMI_KEEP_BYTES) a warning counts the steps that went before they were seen.
        poll_s     how long it waits before it looks again
        timeout_s  TimeoutError after so long without one; None: it waits as long as the process lives
        """
        from .growing import finished
        return (request for _, request in finished([self], poll_s, timeout_s))

    # ---- as tables

    def to_parquet(self, folder: str | os.PathLike) -> None:
        """Write what is known of records, steps, spans, rows, requests, tensors, but no values, as Parquet: dmi.tables. Needs pyarrow."""
        from . import tables
        tables.write(self, folder)

    def verify(self) -> int:
        """Decode everything, check every byte of every file, the accounting and the trace, as `dmi-dump verify` does. Returns how many findings are damage; what a
        trace lacks is a finding, and none."""
        return self._call("dmi_read_verify")


def _near(name: str, names: Any) -> str:
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5) if isinstance(name, str) else []
    return f"; near it: {', '.join(near)}" if near else ""


def _tags(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"text": text}


def _selection(sites: Names, layers: Any, requests: Names) -> _Selection:
    chosen = _Selection()
    chosen.sites, chosen.n_sites = _names("sites", sites)
    chosen.requests, chosen.n_requests = _names("requests", requests)
    chosen.layers = None if layers is None else _words("layers", layers)
    return chosen


def _names(what: str, names: Names) -> tuple:
    """(what C takes, how many)"""
    each = [] if names is None else [names] if isinstance(names, str) else list(names)
    if not all(isinstance(name, str) for name in each):
        raise ValueError(f"{what}={names!r}: a name or a list of names was expected")
    if not each and names is not None:
        raise ValueError(f"{what}={names!r}: no name is in it")
    texts = [os.fsencode(name) for name in each]
    return (_Name * max(len(texts), 1))(*(_Name(text, len(text)) for text in texts)), len(texts)


def _words(what: str, words: Any) -> bytes:
    """As C takes them: "5", "1:3", "0,3-7,last"."""
    if what == "tokens" and isinstance(words, tuple) and len(words) == 2:
        words = slice(*words)
    each = list(words) if isinstance(words, (list, tuple, range, set)) else [words]
    if not each:
        raise ValueError(f"{what}={words!r}: nothing is in it")
    return ",".join(_word(what, word) for word in each).encode(errors="surrogateescape")


def _word(what: str, word: Any) -> str:
    if isinstance(word, str):
        return word
    try:
        if isinstance(word, slice) and what == "tokens" and word.step in (None, 1):
            return ":".join("" if end is None else str(operator.index(end)) for end in (word.start, word.stop))
        if not isinstance(word, bool):
            return str(operator.index(word))
    except TypeError:
        pass
    raise ValueError(f"{what}={word!r}: a number, a text" + (", (first, end) or a slice without a step" if what == "tokens" else "") + " was expected")


def _lens_name(tensor: Tensor) -> str:
    theirs = THEIRS.get(tensor.site.name)
    if theirs is None:
        return tensor.name
    return theirs if tensor.layer is None else f"blocks.{tensor.layer}.{theirs}"
