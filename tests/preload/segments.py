# SPDX-License-Identifier: Apache-2.0
"""A reader of runs written from docs/format.md (and include/dmi/format.h) alone, so that a mistake in storage/
cannot hide itself. Slow, and without checksums: those are the storage suite's."""
import ctypes
import ctypes.util
import struct

HEADER, CHUNK = 128, struct.Struct("<IHHQQQQQQQ")
RECORD = struct.Struct("<IiIHBB4IQQQQIIQQII8xQ")
GROUP, PLANE = struct.Struct("<HHIQQQ"), struct.Struct("<B3xIQ")
STEP, SPAN = struct.Struct("<IIQQQII8iIIII"), struct.Struct("<IIIIqIIIIII")
BLOCK = 65536
OUTCOME = struct.Struct("<QIIQIIIIII")
SITES, STEPS, RECORDS, FOOTER, OUTCOMES = 1, 2, 3, 4, 5
NONE = 2**32 - 1

zstd = ctypes.CDLL(ctypes.util.find_library("zstd") or "libzstd.so.1")
zstd.ZSTD_decompress.restype = ctypes.c_size_t
zstd.ZSTD_decompress.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]


class Record:
    """One captured tensor: data holds its packed bytes, row dimension first; kept: which row each one is, None: all in order;
    codecs: of its chunk's planes."""

    def __init__(self, fields, data, kept, codecs):
        (self.site, self.layer, self.occurrence, self.dtype, n_dims, _, d0, d1, d2, d3, self.launch, self.forward, self.step,
         self.time_ns, self.device, _, _, self.n_bytes, first, n_kept, _) = fields
        self.dims = (d0, d1, d2, d3)[:n_dims]
        self.data, self.codecs = data, codecs
        self.kept = list(kept[first:first + n_kept]) if n_kept else None
        if self.step == 2**64 - 1:
            self.step = None

    @property
    def words(self):
        return struct.unpack(f"<{len(self.data) // 4}I", self.data)


def inflate(data, room):
    out = ctypes.create_string_buffer(room)
    n = zstd.ZSTD_decompress(out, room, data, len(data))
    if n != room:
        raise ValueError("a plane does not inflate to its size")
    return out.raw


def unpack(data, n):
    """4 bits a byte from the least of 1,024, and escapes."""
    n_least, n_halves = (n + 1023) // 1024, (n + 1) // 2
    escapes, out = iter(data[n_least + n_halves:]), bytearray(n)
    for i in range(n):
        v = data[n_least + i // 2] >> 4 * (i % 2) & 15
        out[i] = next(escapes) if v == 15 else data[i // 1024] + v & 255
    if next(escapes, None) is not None:
        raise ValueError("a plane has escapes that it does not need")
    return bytes(out)


DECODE = {0: lambda data, n: data, 1: inflate, 2: unpack}


def decode_group(group, planes, payload):
    encoding, width, first, n_raw, offset, _ = group
    at, out = offset, bytearray()
    n_planes = width if encoding else 1
    for begin in range(0, n_raw, BLOCK):
        n = min(BLOCK, n_raw - begin)
        block = bytearray(n)
        for i in range(n_planes):
            codec, n_stored, _ = planes[first]
            first += 1
            stored = payload[at:at + n_stored]
            at += n_stored
            block[i::n_planes] = DECODE[codec](stored, n // n_planes)
        if encoding == 2:
            bits = 8 * width
            kind = {2: "H", 4: "I", 8: "Q"}[width]
            values = struct.unpack(f"<{n // width}{kind}", block)
            block = struct.pack(f"<{n // width}{kind}", *(v >> 1 | (v & 1) << bits - 1 for v in values))
        out += block
    return bytes(out)


def decode_records(meta, payload):
    n_records, n_groups, n_planes, n_kept = struct.unpack_from("<IIII", meta)
    at = 16
    records = [RECORD.unpack_from(meta, at + i * RECORD.size) for i in range(n_records)]
    at += n_records * RECORD.size
    groups = [GROUP.unpack_from(meta, at + i * GROUP.size) for i in range(n_groups)]
    at += n_groups * GROUP.size
    planes = [PLANE.unpack_from(meta, at + i * PLANE.size) for i in range(n_planes)]
    kept = struct.unpack_from(f"<{n_kept}I", meta, at + n_planes * PLANE.size)
    raw = [decode_group(group, planes, payload) for group in groups]
    codecs = {codec for codec, _, _ in planes}
    return [Record(r, raw[r[15]][r[16]:r[16] + r[17]], kept, codecs) for r in records]


class Outcome:
    """What became of a span (accepted: its rows that stay), or of a request (ended, reason); number: the engine's step."""

    def __init__(self, fields, strings, steps):
        sequence, span, flags, _, n_accepted, first, at, n, self.reason, _ = fields
        assert first == NONE
        self.number, spans = steps.get(sequence, (None, []))
        self.ended, self.accepted, self.shed = bool(flags & 1), n_accepted if flags & 2 else None, bool(flags & 4)
        self.request = strings[at:at + n].decode() if span == NONE else spans[span][0]


def decode_outcomes(meta, steps):
    n, size, _, _ = struct.unpack_from("<IIII", meta)
    return [Outcome(OUTCOME.unpack_from(meta, 16 + i * size), meta[16 + n * size:], steps) for i in range(n)]


def decode_steps(meta):
    """{sequence: (engine's step number, [(request, first row, tokens, first position)])}"""
    at, steps = 0, {}
    while at < len(meta):
        head = STEP.unpack_from(meta, at)
        spans = []
        for i in range(head[1]):
            s = SPAN.unpack_from(meta, at + STEP.size + i * head[-2])
            spans.append((meta[at + s[0]:at + s[0] + s[1]].decode(), s[5], s[6], s[4]))
        steps[head[2]] = (head[3], spans)
        at += head[0]
    return steps


class Chunks:
    """What a run's segments hold: records in the order of their launches (within a graph's of occurrences), steps,
    outcomes, and the kinds of the chunks in their order."""

    def __init__(self, folder):
        self.records, self.steps, self.outcomes, self.kinds = [], {}, [], []
        for path in sorted(folder.glob("seg-*.dmi")):
            self.take(path.read_bytes())
        self.records.sort(key=lambda r: (r.launch, r.forward, r.occurrence))

    def take(self, data):
        at = HEADER
        while at + CHUNK.size <= len(data):
            magic, _, kind, _, n_meta, n_payload, *_ = CHUNK.unpack_from(data, at)
            if magic != 0x63494d44:
                break
            meta_at = at + CHUNK.size
            payload_at = meta_at + (n_meta + 7) // 8 * 8
            end = payload_at + (n_payload + 7) // 8 * 8
            if end > len(data):
                break
            meta, payload = data[meta_at:meta_at + n_meta], data[payload_at:payload_at + n_payload]
            self.kinds.append(kind)
            if kind == RECORDS:
                self.records += decode_records(meta, payload)
            elif kind == STEPS:
                self.steps |= decode_steps(meta)
            elif kind == OUTCOMES:
                self.outcomes += decode_outcomes(meta, self.steps)
            at = end


def read_run(folder):
    """([Record], {steps}) of a run's folder."""
    chunks = Chunks(folder)
    return chunks.records, chunks.steps
