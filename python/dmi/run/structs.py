# SPDX-License-Identifier: Apache-2.0
"""What libdmi_read.so hands over (include/dmi/read.h), as ctypes has it."""
from __future__ import annotations

import ctypes
import os

from .. import headers

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


_STRUCTS = headers.structs("read.h")
_Run, _Site, _Account, _Tensor, _Request, _Finding, _Problem, _Step, _Span, _Record, _Name, _Selection, _Row, _Edit = (_STRUCTS[f"read_{name}"] for name in (
    "run", "site", "account", "tensor", "request", "finding", "problem", "step", "span", "record", "name", "selection", "row", "edit"))


def _text(value: bytes | None) -> str | None:
    return None if value is None else os.fsdecode(value)


def _bytes_at(address: int | None, n: int) -> bytes:
    return ctypes.string_at(address, n) if n else b""
