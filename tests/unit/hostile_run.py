# SPDX-License-Identifier: Apache-2.0
"""Runs written from docs/format.md alone, byte by byte, with every hash right: what no writer of ours would write."""
import json
import struct

from damage import write_manifest
from format_reader import (CHUNK_MAGIC, COUNTERS_MAGIC, GROUP, NONE, OUTCOMES, PLANE, RECORD, RECORDS, SEGMENT_MAGIC, SITES, SPAN, STEP,
                           STEPS, VERSION, pad8, xxh3)

UUID = bytes(range(16))
UUID_TEXT = "00010203-0405-0607-0809-0a0b0c0d0e0f"
F32 = 1
BLOCK = 65536


def chunk(sequence, kind, meta, payload=b""):
    """A chunk as it lies in the file; payload only of RECORDS, whose planes have hashes of their own."""
    head = CHUNK_MAGIC + struct.pack("<HHQQQ", VERSION, kind, sequence, len(meta), len(payload)) + UUID[:8]
    head += struct.pack("<QQ", xxh3(meta), 0)
    return head + struct.pack("<Q", xxh3(head)) + meta.ljust(pad8(len(meta)), b"\0") + payload.ljust(pad8(len(payload)), b"\0")


def hole(sequence, kind, n_meta, meta_hash):
    """The header of a chunk whose metadata is zero bytes, for a sparse file."""
    head = CHUNK_MAGIC + struct.pack("<HHQQQ", VERSION, kind, sequence, n_meta, 0) + UUID[:8] + struct.pack("<QQ", meta_hash, 0)
    return head + struct.pack("<Q", xxh3(head))


def segment(*chunks):
    head = SEGMENT_MAGIC + struct.pack("<II", VERSION, 128) + UUID + struct.pack("<II2Q", 0, 0, 0, 0) + bytes(64)
    return head + struct.pack("<Q", xxh3(head)) + b"".join(chunks)


def site(name, **more):
    return {"id": 0, "name": name, "dtype": "f32", "row": "token", "row_dims": 1, "has_layer": True, "scale": 1.0, "expect": -1,
            "kind": None, "kernel": "k", "note": None, **more}


def dictionary(sites, **more):
    return {"model": None, "conventions": {}, "sites": [{**s, "id": i} for i, s in enumerate(sites)], "absent": {}, **more}


def step(sequence, spans, n_rows=None, flags=0):
    """@spans: (request id, first position, first row, tokens[, tokens of the prompt])"""
    ids, table, at = bytearray(), bytearray(), STEP.size + SPAN.size * len(spans)
    for name, position, row, tokens, *prompt in spans:
        table += SPAN.pack(at + len(ids), len(name), 0, 0, position, row, tokens, 0, 0, 0, *(prompt or [0]))
        ids += name
    size = pad8(at + len(ids))
    rows = sum(s[3] for s in spans) if n_rows is None else n_rows
    head = STEP.pack(size, len(spans), sequence, sequence, 0, rows, flags, *[0, 1] * 4, 0, 0, SPAN.size, 0)
    return (head + table + ids).ljust(size, b"\0")


def records(rows):
    """Metadata and payload of a chunk; @rows: (site, layer, step, launch, dims, raw bytes[, dtype, bytes of an element]), each a group of
    raw planes or none."""
    table, groups, planes, payload = (bytearray() for _ in range(4))
    n_planes = 0
    for i, (number, layer, at_step, launch, dims, raw, *kind) in enumerate(rows):
        dtype, size = kind or (F32, 4)
        table += RECORD.pack(number, layer, 0, dtype, len(dims), 1, *(list(dims) + [0] * 4)[:4], launch, 0, at_step, 0, 0, i, 0, len(raw),
                             0, 0, 0, 0, xxh3(raw))
        groups += GROUP.pack(0, size, n_planes, len(raw), len(payload), len(raw))
        for at in range(0, len(raw), BLOCK):
            block = raw[at:at + BLOCK]
            planes += PLANE.pack(0, bytes(3), len(block), xxh3(block))
            n_planes += 1
        payload += raw
    return struct.pack("<IIII", len(rows), len(rows), n_planes, 0) + table + groups + planes, payload


def number(value):
    """As the columns of a trace have it."""
    out = bytearray()
    while value > 0x7f:
        out.append(value & 0x7f | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def ran(names):
    """Metadata of a chunk of the type TRACE: a kernel of 5 ns for each name, one a stream."""
    shapes, strings = bytearray(), bytearray()
    for i, name in enumerate(names):
        shapes += struct.pack("<16I", 1, len(strings), len(name), 0, 1, i, 1, 1, 1, 32, 1, 1, 0, 0, 16, 0)
        strings += name
    n, once = len(names), range(len(names))
    columns = [[number(i) for i in once], [number(20)] * n, [number(2)] * n, [number(0)] * n, [number(0)] * n, [number(4 * (i == 0)) for i in once],
               [number(5)] * n, [number(0)] * n]  # shape, begin, correlation, graph, node, step (0: 2), duration, bytes
    data = b"".join(b"".join(column) for column in columns)
    return struct.pack("<4IQ", n, n, 64, len(strings), len(data)) + shapes + strings + data


def write(folder, sites, data, problems=(), expected=None, about=None, **more):
    """A run whose process was killed: manifest, counters, spec, and one segment of these bytes.
    @expected: by site: (records, rows, bytes)"""
    folder.mkdir()
    (folder / "spec.yaml").write_bytes(b"")
    (folder / "seg-000000.dmi").write_bytes(data)
    counters = bytearray(COUNTERS_MAGIC + struct.pack("<II", VERSION, len(sites)) + UUID + struct.pack("<QQQ", 1, 1, 0) + bytes(72))
    for i in range(len(sites)):
        tally = (expected or {}).get(i, (0, 0, 0))
        counters += struct.pack("<3Q", *tally) + struct.pack("<3Q", *tally) + bytes(464)
    (folder / "counters").write_bytes(counters)
    manifest = {"format": "dmi-run", "version": VERSION, "checksum": "", "uuid": UUID_TEXT, "job": None, "host": "h", "pid": 1,
                "start_realtime_ns": 0, "library_version": "0", "state": "running",
                "spec": {"path": "s", "file": "spec.yaml", "bytes": 0, "xxh3": f"{xxh3(b''):016x}"},
                "counters": {"file": "counters", "bytes": len(counters)}, "segments": [{"file": "seg-000000.dmi", "closed": False}],
                "problems": list(problems), "dictionary": dictionary(sites, **more)}
    if about:
        manifest["about"] = about
    write_manifest(folder, manifest)
    return folder


def sites_chunk(sites, **more):
    return chunk(0, SITES, json.dumps(dictionary(sites, **more)).encode())


__all__ = ["F32", "NONE", "OUTCOMES", "RECORDS", "SITES", "STEPS", "chunk", "dictionary", "hole", "ran", "records", "segment", "site", "sites_chunk",
           "step", "write", "xxh3"]
