# SPDX-License-Identifier: Apache-2.0
"""What libdmi_read.so hands over (include/dmi/read.h), as ctypes has it. A test compares each field with the compiler's."""
from __future__ import annotations

import ctypes
import os

U32, U64, I32, I64, TEXT = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int32, ctypes.c_int64, ctypes.c_char_p
STATES = ("closed", "running", "killed")                             # enum dmi_read_state
REQUEST_STATES = ("running", "finished", "aborted", "preempted")     # enum dmi_read_request_state
ENDS = ("unknown", "stop", "length", "aborted")                      # enum dmi_end
ROWS = ("token", "request", "none")                                  # enum dmi_row
SAMPLE_FAULTS = ("whole", "of no request", "of beams", "of changing type or scale", "without all rows", "with a cached prefix",
                 "with rows that do not count", "without all tensors", "without a loss mask",
                 "that grew after they were written", "whose generation begins at an unknown token",
                 "without the tokens that are asked for", "that still run")  # enum dmi_read_sample_fault
MIXED = "changes its dtype or width from record to record, so it is not one tensor"
LACKS_ROWS, INCOMPLETE = SAMPLE_FAULTS[4], SAMPLE_FAULTS[7]
DAMAGED, REJECTED, SUPERSEDED, EDITED = 1, 2, 4, 8                   # enum dmi_read_row_flags
DROPS = ("ring_full", "too_large", "bad_pointer", "bad_expr", "copy_failed", "not_run", "device_error", "unsupported", "write_failed", "exit_timeout",
         "context_gone", "mismatch", "no_memory", "lost", "shed")    # enum dmi_drop


class _Struct(ctypes.Structure):
    def __init__(self) -> None:
        super().__init__(size=ctypes.sizeof(self))


class _Run(_Struct):
    _fields_ = [("size", U32), ("state", U32), ("path", TEXT), ("uuid", TEXT), ("model", TEXT), ("host", TEXT), ("library_version", TEXT),
                ("pid", U64), ("start_realtime_ns", U64), ("n_segments", U64), ("file_bytes", U64), ("n_sites", U64), ("n_records", U64),
                ("n_steps", U64), ("n_tensors", U64), ("n_requests", U64), ("n_findings", U64), ("n_forwards", U64), ("job", TEXT), ("n_runs", U64)]


class _Site(_Struct):
    _fields_ = [("size", U32), ("dtype", U32), ("name", TEXT), ("kernel", TEXT), ("kind", TEXT), ("note", TEXT), ("scale", ctypes.c_double),
                ("expect", I64), ("row", U32), ("has_layer", U32), ("writes", U32), ("reserved", U32)]


class _Tally(ctypes.Structure):
    _fields_ = [("records", U64), ("rows", U64), ("bytes", U64)]


class _Account(_Struct):
    _fields_ = [("size", U32), ("known", U32), ("balances", U32), ("reserved", U32), ("expected", _Tally), ("captured", _Tally), ("dropped", _Tally),
                ("lost", _Tally), ("dropped_by", U64 * 16), ("launches", U64), ("released", _Tally)]


class _Tensor(_Struct):
    _fields_ = [("size", U32), ("dtype", U32), ("key", TEXT), ("name", TEXT), ("request", ctypes.c_void_p), ("request_bytes", U64),
                ("n_rows", U64), ("width", U64), ("row_bytes", U64), ("site", U32), ("layer", I32), ("n_dims", U32), ("dims", U32 * 4),
                ("mixed", U32)]


class _Request(_Struct):
    _fields_ = [("size", U32), ("reserved", U32), ("id", ctypes.c_void_p), ("id_bytes", U64), ("n_steps", U64), ("n_cached", U64),
                ("n_prefill", U64), ("n_decode", U64), ("n_draft", U64), ("n_other", U64), ("end_position", I64), ("state", U32),
                ("reason", U32), ("n_prompt", I64), ("n_generated", U64), ("n_rejected", U64), ("n_preemptions", U64), ("n_records", U64),
                ("n_rows", U64), ("raw_bytes", U64), ("stored_bytes", U64), ("shed_step", I64), ("tags", ctypes.c_void_p), ("tags_bytes", U64)]


class _Finding(_Struct):
    _fields_ = [("size", U32), ("damage", U32), ("file", TEXT), ("chunk", I64), ("offset", U64), ("text", TEXT)]


class _Problem(_Struct):
    _fields_ = [("size", U32), ("reserved", U32), ("site", TEXT), ("reason", TEXT), ("sentence", TEXT), ("times", U64)]


class _Step(_Struct):
    _fields_ = [("size", U32), ("n_spans", U32), ("sequence", U64), ("step", U64), ("time_ns", U64), ("n_rows", U32), ("reserved", U32),
                ("ranks", I32 * 8)]


class _Span(_Struct):
    _fields_ = [("size", U32), ("phase", U32), ("request", ctypes.c_void_p), ("request_bytes", U64), ("first_position", I64), ("first_row", U32),
                ("n_tokens", U32), ("n_cached", U32), ("n_prompt", U32), ("flags", U32), ("reserved", U32), ("cached_ids", ctypes.POINTER(I32))]


class _Record(_Struct):
    _fields_ = [("size", U32), ("site", U32), ("layer", I32), ("occurrence", U32), ("dtype", U32), ("n_dims", U32), ("dims", U32 * 4),
                ("n_row_dims", U32), ("n_rows", U32), ("n_kept", U32), ("device", U32), ("launch", U64), ("forward", U64), ("step", U64),
                ("time_ns", U64), ("n_bytes", U64), ("stored_bytes", U64)]


class _Name(ctypes.Structure):
    _fields_ = [("text", TEXT), ("bytes", U64)]


class _Selection(_Struct):
    _fields_ = [("size", U32), ("flags", U32), ("request", TEXT), ("request_bytes", U64), ("tokens", U32), ("reserved", U32), ("first", I64),
                ("end", I64), ("ranks", U32 * 4), ("requests", ctypes.POINTER(_Name)), ("n_requests", U64), ("sites", ctypes.POINTER(_Name)),
                ("n_sites", U64), ("layers", TEXT), ("positions", TEXT)]


class _Row(ctypes.Structure):
    _fields_ = [("position", I64), ("launch", U64), ("forward", U64), ("step", U64), ("time_ns", U64), ("row", U32), ("device", U32),
                ("flags", U32), ("site", U32), ("donor", U32), ("dtype", U32), ("n_dims", U32), ("dims", U32 * 4), ("reserved", U32)]


def _text(value: bytes | None) -> str | None:
    return None if value is None else os.fsdecode(value)


def _bytes_at(address: int | None, n: int) -> bytes:
    return ctypes.string_at(address, n) if n else b""
