# SPDX-License-Identifier: Apache-2.0
"""Runs with a trace of any kind, right or wrong, built from docs/format.md 6.4 to 6.8 with nothing of DMI's."""
import struct

import hostile_run as kit

NONE = 2**64 - 1
TRACE, RANGES, STEP_TIMES, MARKS, SUMS = 7, 10, 11, 12, 15
BEGUN, CLOCK_SET, LOST, ENDED, RANGES_LOST, RAN, RAN_LOST, DROPPED, ALONE, SUMMED, KEPT, RING, LENT = 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14
KERNEL, COPY, FILL, FURTHER, BUSY = 1, 2, 3, 4, 5
FIRST = 2  # column step: the number of a step, plus this


def table(entries, strings=b""):
    size = len(entries[0]) if entries else 8
    return struct.pack("<4I", len(entries), size, len(strings), 0) + b"".join(entries) + strings


def step(number, begin=None, end=None, **more):
    """Times of a step of the engine: 100 ns on the host, with a device time of 50 ns."""
    at = {"step": NONE, "launch": 0, "device": 50, "gap": 0, "stall": 0, "context": 0, "launches": 1, "graphs": 0, "own": 0, "flags": 1, "rows": 0, "requests": 0,
          "prefill": 0, "decode": 0, "ordinal": 0, "source": 5, "thread": 7, "loads": 0, "allocations": 0} | more
    begin = 1000 * (number + 1) if begin is None else begin
    return struct.pack("<6QqQQ8IHH5I", number, at["step"], begin, begin + 100 if end is None else end, at["launch"], at["device"], at["gap"], at["stall"], at["context"],
                       at["launches"], at["graphs"], at["own"], at["flags"], at["rows"], at["requests"], at["prefill"], at["decode"], at["ordinal"], at["source"], at["thread"],
                       at["loads"], at["allocations"], 0, 0) + (struct.pack("<2Q", NONE, at["waited"]) if "waited" in at else b"")


def marks(*said):
    """Each (kind, value, text, time)."""
    entries, strings = [], b""
    for kind, value, *more in said:
        text = more[0].encode() if more else b""
        entries.append(struct.pack("<Qq4I", more[1] if len(more) > 1 else 1, value, kind, len(strings) if text else 0, len(text), 0))
        strings += text
    return table(entries, strings)


def ranges(*said):
    """Each (begin, end, name, thread, depth, facts, source)."""
    entries, strings = [], b""
    for begin, end, name, *more in said:
        thread, depth, facts, source = [*more, *(7, 0, "", 1)[len(more):]]
        name, facts = name.encode(), facts.encode()
        entries.append(struct.pack("<3QI2H4I", begin, end, NONE, thread, depth, source, len(strings), len(name), len(strings) + len(name) if facts else 0, len(facts)))
        strings += name + facts
    return table(entries, strings)


def number(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7f | 0x80)
        value >>= 7
    return bytes([*out, value])


def difference(before, value):
    signed = (value - before + 2**63) % 2**64 - 2**63
    return number(2 * signed if signed >= 0 else -2 * signed - 1)


def columns(shapes, names, *of):
    """The metadata of TRACE or SUMS: shapes as tuples of (kind, ordinal, context, stream, grid, block), one a record."""
    strings, all_of = b"", b""
    for (kind, ordinal, context, stream, grid, block), name in zip(shapes, names):
        all_of += struct.pack("<16I", kind, len(strings) if name else 0, len(name), ordinal, context, stream, *grid, *block, 0, 0, 0, 0)
        strings += name.encode()
    data = b"".join(b"".join(column) for column in of)
    return struct.pack("<4IQ", len(shapes), len(shapes), 64, len(strings), len(data)) + all_of + strings + data


def differences(values):
    return [difference(before, value) for before, value in zip([0, *values], values)]


def ran(*said, site=None):
    """Each (step, begin, end, name): kernels. @site: of each (site, layer)."""
    n = len(said)
    shapes = [(KERNEL, 0, 1, 1, (1, 1, 1), (32, 1, 1))] * n
    more = [[number(site[0])] * n, [number(site[1])] * n] if site else []
    return columns(shapes, [s[3] for s in said], [number(i) for i in range(n)], differences([s[1] for s in said]), differences([i for i in range(n)]),
                   differences([0] * n), differences([0] * n), differences([s[0] for s in said]), [number((s[2] - s[1]) % 2**64) for s in said], [number(0)] * n, *more)


def sums(*said):
    """Each (kind, name, step, begin, n, sum, most, bytes, shape): shape: the rest of it, or nothing."""
    shapes = [(s[0], *(s[8] if len(s) > 8 else (0, 0, 0, (0, 0, 0), (0, 0, 0)))) for s in said]
    return columns(shapes, [s[1] for s in said], [number(i) for i in range(len(said))], differences([s[3] for s in said]), differences([s[2] for s in said]),
                   *[[number(s[i]) for s in said] for i in range(4, 8)])


def run(folder, *chunks):
    """A run that its process did not close: chunks (type, metadata), one after the other."""
    data = [kit.sites_chunk([]), *[kit.chunk(i + 1, kind, meta) for i, (kind, meta) in enumerate(chunks)]]
    return kit.write(folder, [], kit.segment(*data))


def sums_of(step_number, n=3, ns=10, name="gemm"):
    """Right sums of a step: n kernels of one name, one after the other."""
    at = 1000 * (step_number + 1)
    return [(BUSY, "", step_number + FIRST, at, n, n * ns, 0, n * ns), (KERNEL, name, step_number + FIRST, at, n, n * ns, ns, 0)]


def right(steps=3, **more):
    """The chunks of a complete trace of the tier kernels: sums of each step. Each part may be replaced: step_times, ranges, sums, ran, marks."""
    parts = {"step_times": [step(i) for i in range(steps)], "ranges": [(1010, 1020, "Forward"), (1012, 1015, "Sample", 7, 1, '{"rows": 3}')],
             "sums": [s for i in range(steps) for s in sums_of(i)], "ran": [],
             "marks": [(BEGUN, 0, "kernels"), (RAN, 3 * steps), (SUMMED, 3 * steps), (ENDED, steps)]} | more
    chunks = [(STEP_TIMES, table(parts["step_times"])), (RANGES, ranges(*parts["ranges"])), (SUMS, sums(*parts["sums"]))]
    chunks += [(TRACE, ran(*parts["ran"], site=parts.get("site")))] if parts["ran"] else []
    return [*chunks, (MARKS, marks(*parts["marks"]))]

