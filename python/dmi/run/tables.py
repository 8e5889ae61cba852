# SPDX-License-Identifier: Apache-2.0
"""What is known of a run, as Parquet tables: `python -m dmi parquet RUN -o DIR`, or run.to_parquet("DIR"). No values of tensors.

    tensors   as the run lists them, those selected: a line a tensor
    rows      of those tensors: a line for rows that follow one another in a tensor and come from one launch
    records   what one site captured at one launch, whoever its rows belong to
    steps     as the engine said them; spans: whose rows they hold; requests: what became of each

COLUMNS says what each has. Files carry the run's uuid, path, model and host as metadata of their schema. pyarrow is imported where it is asked for.
"""
from __future__ import annotations

import itertools
import json
import math
import os
from typing import TYPE_CHECKING, Any, Callable, Iterator

from ..calls import LAST, PADDING
from ..dtypes import BYTES, DTYPES
from . import edited
from .export import Folder, _arrow
from .structs import EDITED, REJECTED, SUPERSEDED, U32, U64, _Record, _Row, _Span, _Step, _bytes_at, _text

if TYPE_CHECKING:
    from .reading import Run, Tensor

NONE = 2**64 - 1
AT_A_TIME = 50000  # lines of a table, and rows of a tensor
PHASES = ("unknown", "prefill", "decode", "draft")  # enum dmi_phase
RANKS = {f"{axis}_{what}": "int32" for axis in ("tp", "pp", "dp", "ep") for what in ("rank", "size")}
COLUMNS = {
    "tensors": {"key": "string", "request": "string", "site": "string", "layer": "int32", "dtype": "string", "shape": "list<uint64>", "rows": "uint64",
                "bytes": "uint64", "scale": "double", "mixed": "bool"},
    "rows": {"key": "string", "request": "string", "site": "string", "layer": "int32", "first_index": "uint64", "rows": "uint64",
             "first_position": "int64", "end_position": "int64", "phase": "string", "step": "uint64", "forward": "uint64", "launch": "uint64",
             "first_row": "uint32", "device": "uint32", "time": "time", "bytes": "uint64", "rejected": "bool", "superseded": "bool",
             "donor": "string", "edited": "bool"},
    "records": {"site": "string", "layer": "int32", "occurrence": "uint32", "dtype": "string", "shape": "list<uint64>", "row_dims": "uint32",
                "rows": "uint32", "kept_rows": "uint32", "bytes": "uint64", "stored_bytes": "uint64", "step": "uint64", "step_sequence": "uint64",
                "forward": "uint64", "launch": "uint64", "device": "uint32", "time": "time", **RANKS},
    "steps": {"step_sequence": "uint64", "step": "uint64", "time": "time", "rows": "uint32", "spans": "uint32", **RANKS},
    "spans": {"step_sequence": "uint64", "step": "uint64", "request": "string", "first_row": "uint32", "rows": "uint32", "first_position": "int64",
              "end_position": "int64", "phase": "string", "cached_tokens": "uint32", "prompt_tokens": "uint32", "padding": "bool", "last": "bool"},
    "requests": {"request": "string", "state": "string", "reason": "string", "prompt_tokens": "int64", "generated_tokens": "uint64",
                 "end_position": "int64", "steps": "uint64", "cached_tokens": "uint64", "prefill_tokens": "uint64", "decode_tokens": "uint64",
                 "draft_tokens": "uint64", "other_tokens": "uint64", "rejected_tokens": "uint64", "preemptions": "uint64", "records": "uint64",
                 "rows": "uint64", "bytes": "uint64", "stored_bytes": "uint64", "tags": "string", "edits": "list<string>"},
}


def _utf8(text: str | None) -> str | None:
    """Without what is no UTF-8: Arrow's strings are."""
    return None if text is None else text.encode(errors="surrogateescape").decode(errors="replace")


def _number(value: int) -> int | None:
    return None if value == NONE else value


# ------------------------------------------------------------------------- lines


def _tensors(run: Run) -> Iterator[dict]:
    for t in run.values():
        yield {"key": _utf8(t.key), "request": _utf8(t.request), "site": t.site.name, "layer": t.layer, "dtype": t.dtype, "shape": list(t.shape),
               "rows": len(t), "bytes": len(t) * t.row_bytes, "scale": None if t.scale is None else t.scale or 1, "mixed": t.mixed}


class _Phases:
    """Of tokens, by the launch that computed them: all records of a launch are of one step."""

    def __init__(self, run: Run) -> None:
        self._step_of = {record.launch: record.step for record in _records_of(run)}
        self._spans: dict = {}
        for step, spans in _steps_of(run):
            for span in spans:
                self._spans.setdefault((step.sequence, _request(span)), []).append(span)

    def of(self, request: str | None, row: _Row) -> str | None:
        for span in self._spans.get((self._step_of.get(row.launch), request), []):
            if span.first_position <= row.position < span.first_position + span.n_tokens:
                return _phase(span)
        return None


def _request(span: _Span) -> str:
    return _text(_bytes_at(span.request, span.request_bytes)) or ""


def _phase(span: _Span) -> str:
    return PHASES[span.phase] if span.phase < len(PHASES) else PHASES[0]


def _records_of(run: Run) -> Iterator[_Record]:
    for i in range(run.n_records):
        yield run._get("dmi_read_record", _Record, U64(i))


def _steps_of(run: Run) -> Iterator[tuple[_Step, list[_Span]]]:
    for i in range(run.n_steps):
        step = run._get("dmi_read_step", _Step, U64(i))
        yield step, [run._get("dmi_read_span", _Span, U64(i), U32(k)) for k in range(step.n_spans)]


def _follows(row: _Row, before: _Row) -> bool:
    """Whether both come from one launch, one after the other there and in their request."""
    position = before.position + 1 if before.position >= 0 else -1
    return (row.launch, row.flags, row.donor, row.row, row.position) == (before.launch, before.flags, before.donor, before.row + 1, position)


def _parts(rows: Any, phases: list) -> Iterator[tuple[int, int]]:
    """(first, end) of rows that are one line."""
    first = 0
    for i in range(1, len(phases) + 1):
        if i == len(phases) or phases[i] != phases[first] or not _follows(rows[i], rows[i - 1]):
            yield first, i
            first = i


def _line(t: Tensor, at: int, n: int, r: _Row, phase: str | None) -> dict:
    known = r.position >= 0
    return {"key": _utf8(t.key), "request": _utf8(t.request), "site": t.site.name, "layer": t.layer, "first_index": at, "rows": n,
            "first_position": r.position if known else None, "end_position": r.position + n if known else None, "phase": phase,
            "step": _number(r.step), "forward": r.forward, "launch": r.launch, "first_row": r.row, "device": r.device, "time": r.time_ns,
            "bytes": n * math.prod(r.dims[:r.n_dims]) * BYTES.get(DTYPES[r.dtype], 0), "rejected": bool(r.flags & REJECTED),
            "superseded": bool(r.flags & SUPERSEDED), "donor": _utf8(_donor(t, r)), "edited": bool(r.flags & EDITED)}


def _donor(t: Tensor, r: _Row) -> str | None:
    return t.run.requests[r.donor - 1].id if r.donor else None


def _rows(run: Run) -> Iterator[dict]:
    phases = _Phases(run)
    for t in run.values():
        for at in range(0, len(t), AT_A_TIME):
            n = min(AT_A_TIME, len(t) - at)
            rows = (_Row * n)()
            t._read(at, n, None, rows)
            of_rows = [phases.of(_donor(t, row) or t.request, row) for row in rows]
            for first, end in _parts(rows, of_rows):
                yield _line(t, at + first, end - first, rows[first], of_rows[first])


def _ranks(run: Run, step: _Step | None) -> dict:
    """Of joined runs there is more than one answer, so none is given."""
    known = step is not None and run.n_runs == 1
    return {name: (max(step.ranks[i], i % 2) if known else None) for i, name in enumerate(RANKS)}


def _records(run: Run) -> Iterator[dict]:
    steps = {step.sequence: step for step, _ in _steps_of(run)}
    for r in _records_of(run):
        step = steps.get(r.step)
        yield {"site": run.sites[r.site].name, "layer": None if r.layer < 0 else r.layer, "occurrence": r.occurrence,
               "dtype": DTYPES[r.dtype] if r.dtype < len(DTYPES) else str(r.dtype), "shape": list(r.dims[:r.n_dims]), "row_dims": r.n_row_dims,
               "rows": r.n_rows, "kept_rows": r.n_kept or None, "bytes": r.n_bytes, "stored_bytes": r.stored_bytes,
               "step": step.step if step else None, "step_sequence": _number(r.step), "forward": r.forward, "launch": r.launch, "device": r.device,
               "time": r.time_ns, **_ranks(run, step)}


def _steps(run: Run) -> Iterator[dict]:
    for step, spans in _steps_of(run):
        yield {"step_sequence": step.sequence, "step": step.step, "time": step.time_ns, "rows": step.n_rows, "spans": len(spans), **_ranks(run, step)}


def _spans(run: Run) -> Iterator[dict]:
    for step, spans in _steps_of(run):
        for s in spans:
            padding = bool(s.flags & PADDING) or not s.request_bytes
            yield {"step_sequence": step.sequence, "step": step.step, "request": None if padding else _utf8(_request(s)), "first_row": s.first_row,
                   "rows": s.n_tokens, "first_position": s.first_position, "end_position": s.first_position + s.n_tokens, "phase": _phase(s),
                   "cached_tokens": s.n_cached, "prompt_tokens": s.n_prompt or None, "padding": padding, "last": bool(s.flags & LAST)}


def _requests(run: Run) -> Iterator[dict]:
    for i, r in enumerate(run.requests):
        yield {"request": _utf8(r.id), "state": r.state, "reason": r.reason, "prompt_tokens": r.n_prompt, "generated_tokens": r.n_generated,
               "end_position": r.end_position, "steps": r.n_steps, "cached_tokens": r.n_cached, "prefill_tokens": r.n_prefill,
               "decode_tokens": r.n_decode, "draft_tokens": r.n_draft, "other_tokens": r.n_other, "rejected_tokens": r.n_rejected,
               "preemptions": r.n_preemptions, "records": r.n_records, "rows": r.n_rows, "bytes": r.raw_bytes, "stored_bytes": r.stored_bytes,
               "tags": _utf8(json.dumps(r.tags, ensure_ascii=False)) if r.tags else None, "edits": [_utf8(edit.text) for edit in edited.of_request(run, i)]}


LINES: dict[str, Callable[[Run], Iterator[dict]]] = {"tensors": _tensors, "rows": _rows, "records": _records, "steps": _steps, "spans": _spans,
                                                     "requests": _requests}

# ------------------------------------------------------------------------- files


def _schema(run: Run, name: str) -> Any:
    arrow = _arrow()
    kinds = {"list<uint64>": arrow.list_(arrow.uint64()), "list<string>": arrow.list_(arrow.string()), "double": arrow.float64(), "bool": arrow.bool_(), "time": arrow.timestamp("ns", "UTC")}
    about = {f"dmi.{key}": _utf8(str(value)) for key, value in (("run", run.uuid), ("path", run.path), ("model", run.model), ("host", run.host),
                                                                 ("state", run.state)) if value is not None}
    return arrow.schema([(column, kinds[kind] if kind in kinds else getattr(arrow, kind)()) for column, kind in COLUMNS[name].items()], about)


def _write_table(run: Run, name: str, path: Any) -> int:
    """Returns how many lines it has."""
    import pyarrow.parquet as parquet
    arrow, schema, lines, n = _arrow(), _schema(run, name), LINES[name](run), 0
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        while some := list(itertools.islice(lines, AT_A_TIME)):
            writer.write_table(arrow.Table.from_pylist(some, schema))
            n += len(some)
    return n


def write(run: Run, folder: str | os.PathLike) -> dict[str, int]:
    """Writes DIR/{tensors,rows,records,steps,spans,requests}.parquet. Returns how many lines each has. ExportError, ImportError (no pyarrow)."""
    _arrow()
    with Folder(folder, run) as place:
        return {name: _write_table(run, name, place / f"{name}.parquet") for name in COLUMNS}
