# SPDX-License-Identifier: Apache-2.0
"""Reads what dmi-replay sends, written from docs/stream.md alone."""
import json
import struct
from dataclasses import dataclass

import xxhash

MAGIC, HEADER = 0x66494D44, struct.Struct("<IHHQIIQQQQ")
TYPES = {1: "run", 2: "step", 3: "record", 4: "outcome", 5: "gap", 6: "end"}
SIZES = {"f32": 4, "f16": 2, "bf16": 2, "f64": 8, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "u8": 1, "u16": 2, "u32": 4, "u64": 8, "bool": 1,
         "f8e4m3": 1, "f8e5m2": 1}
CODES = {"f32": "f", "f16": "e", "f64": "d", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u8": "B", "u16": "H", "u32": "I", "u64": "Q", "bool": "?"}


class StreamError(Exception):
    """The stream is not as the page says."""


def expect(holds, what):
    if not holds:
        raise StreamError(what)


def xxh3(data):
    return xxhash.xxh3_64_intdigest(data, seed=0)


@dataclass
class Frame:
    type: str
    number: int
    facts: dict
    payload: bytes

    @property
    def rows(self):
        """(entry of rows, index in it, the row's bytes) of each row."""
        n = sum(entry["rows"] for entry in self.facts["rows"])
        size, at = len(self.payload) // n if n else 0, 0
        for entry in self.facts["rows"]:
            for i in range(entry["rows"]):
                yield entry, i, self.payload[at:at + size]
                at += size


def values(dtype, data):
    """Elements as Python's numbers; bf16 by its bits."""
    if dtype == "bf16":
        return [struct.unpack("<f", b"\0\0" + data[i:i + 2])[0] for i in range(0, len(data), 2)]
    return list(struct.unpack(f"<{len(data) // SIZES[dtype]}{CODES[dtype]}", data))


def exactly(file, n, may_end=False):
    data = b""
    while len(data) < n:
        more = file.read(n - len(data))
        if not more:
            expect(may_end and not data, f"the stream ends in the middle of a frame, {len(data)} of {n} bytes")
            return None
        data += more
    return data


def check_record(facts, payload):
    n = SIZES[facts["dtype"]]
    for d in facts["shape"]:
        n *= d
    expect(n == len(payload) == facts["bytes"] and facts["xxh3"] == f"{xxh3(payload):016x}", "the payload is not as the record says")


def frame(file):
    """The next frame; None at the end."""
    header = exactly(file, HEADER.size, may_end=True)
    if header is None:
        return None
    magic, version, kind, number, n_header, n_json, n_payload, json_hash, payload_hash, digest = HEADER.unpack(header)
    expect(magic == MAGIC and version == 1 and n_header >= HEADER.size and digest == xxh3(header[:48]), "a frame's header")
    exactly(file, n_header - HEADER.size)
    text, payload = exactly(file, n_json), exactly(file, n_payload)
    expect(xxh3(text) == json_hash and payload_hash == (xxh3(payload) if payload else 0), "a frame's hashes")
    facts = json.loads(text)
    expect(facts["type"] == TYPES[kind] and (payload == b"" or kind == 3), "a frame's type")
    if kind == 3:
        check_record(facts, payload)
    return Frame(TYPES[kind], number, facts, payload)


def frames(file):
    """All of them, whose numbers must follow one another."""
    last = None
    while (found := frame(file)) is not None:
        expect(last is None or found.number == last + 1, f"frame {found.number} comes after {last}")
        last = found.number
        yield found
