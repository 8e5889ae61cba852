# SPDX-License-Identifier: Apache-2.0
"""Read what the stand-in driver writes: the call log (DMI_STANDIN_LOG) and dumps (DMI_STANDIN_DUMP_FILE).

>>> log = Log("calls.jsonl")
>>> [launch["kernel"] for launch in log.launches]
>>> launch_pointer(log.launches[0], 0)          # 64-bit value at byte 0 of the parameters
>>> for dump in read_dumps("dumps.bin"): dump.seq, dump.rule, dump.data
"""
import json
import struct
from dataclasses import dataclass


def read_log(path):
    """Yield the log's records as dicts; a last line cut short by a kill is left out."""
    with open(path, "rb") as f:
        for line in f:
            if not line.endswith(b"\n"):
                return
            record = json.loads(line)
            if record["ev"] == "launch":
                record["params"] = bytes.fromhex(record["params"])
            yield record


class Log:
    """A whole log: calls, launches, what doubles lack, and the handle that ended the process, each in the order they were written."""

    def __init__(self, path):
        records = list(read_log(path))
        self.calls = [r for r in records if r["ev"] == "call"]
        self.launches = [r for r in records if r["ev"] == "launch"]
        self.lacks = [r for r in records if r["ev"] == "lacks"]
        self.faults = [r for r in records if r["ev"] == "fault"]

    def count(self, name):
        """Number of calls of an entry."""
        return sum(r["name"] == name for r in self.calls)

    def not_implemented(self):
        """Names of entries that were called and that the stand-in lacks."""
        return sorted({r["name"] for r in self.calls if r.get("not_implemented")})


def launch_pointer(launch, offset):
    """The 64-bit parameter at a byte offset."""
    return struct.unpack_from("<Q", launch["params"], offset)[0]


def launch_int(launch, offset):
    """The 32-bit signed parameter at a byte offset."""
    return struct.unpack_from("<i", launch["params"], offset)[0]


@dataclass
class Dump:
    """What a buffer held right before or after a launch ran."""

    seq: int
    rule: int
    after: bool
    pointer: int
    data: bytes


HEADER = struct.Struct("<IHHQQQ")
MAGIC = 0x31504D44


def read_dumps(path):
    """Yield the dumps in the order the launches ran; a record cut short by a kill is left out."""
    with open(path, "rb") as f:
        while True:
            head = f.read(HEADER.size)
            if len(head) < HEADER.size:
                return
            magic, rule, after, seq, pointer, n_bytes = HEADER.unpack(head)
            if magic != MAGIC:
                raise ValueError(f"{path}: no dump record at byte {f.tell() - HEADER.size}")
            data = f.read(n_bytes)
            if len(data) < n_bytes:
                return
            yield Dump(seq, rule, bool(after), pointer, data)
