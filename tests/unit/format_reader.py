# SPDX-License-Identifier: Apache-2.0
"""A reader of runs made from docs/format.md alone: it uses nothing of DMI, so that the page and the code cannot
agree by sharing a mistake.  Numbers in comments are the page's sections.  Slow, and strict: whatever breaks a rule
of the page raises Damage; what the page calls unknown is listed in Run.unknown."""
import dataclasses
import json
import struct

import numpy as np
import xxhash
import zstandard

VERSION = 2
NONE = 2**64 - 1
SEGMENT_MAGIC, CHUNK_MAGIC, TRAILER_MAGIC, COUNTERS_MAGIC = b"DMISEG1\0", b"DMIc", b"DMIEND1\0", b"DMICNT1\0"
SITES, STEPS, RECORDS, FOOTER, OUTCOMES, CHANGES, STEPS_AGAIN, OUTCOMES_AGAIN, STEP_TIMES, MARKS, RANGES, TRACE, SUMS, STEPS_PACKED = 1, 2, 3, 4, 5, 6, 8, 9, 11, 12, 10, 7, 15, 16
AXES = ("tp", "pp", "dp", "ep")
NO_SPAN = NO_LIST = 2**32 - 1
BLOCK, STRIPE = 65536, 1024
DTYPE_BYTES = {1: 4, 2: 2, 3: 2, 4: 8, 5: 1, 6: 2, 7: 4, 8: 8, 9: 1, 10: 2, 11: 4, 12: 8, 13: 1, 14: 1, 15: 1}
RECORD = struct.Struct("<IiIHBB4I4QIIQQIIIIQ")
OUTCOME = struct.Struct("<QIIQIIIIII")
CHANGE = struct.Struct("<IIQQQQ")
STEP_TIME, MARK = struct.Struct("<6Qq2Q8I2H5I2Q"), struct.Struct("<QqIIII")
TRACE_HEAD, SHAPE = struct.Struct("<IIIIQ"), struct.Struct("<16I")
RANGE, CALL, STOPPED = struct.Struct("<QQQIHHIIII"), 4, 5
STEP_TIME_FIELDS = ("number", "step", "begin_ns", "end_ns", "launch_ns", "device_ns", "gap_ns", "stall_ns", "context", "launches",
                    "graph_launches", "own", "flags", "rows", "requests", "prefill", "decode", "device", "source", "thread", "loads", "allocations", "waits", "wait_us",
                    "engine_step", "waited_ns")
GROUP, PLANE = struct.Struct("<HHIQQQ"), struct.Struct("<B3sIQ")
STEP, SPAN = struct.Struct("<IIQQQII8iIIII"), struct.Struct("<IIIIqIIIIII")


class Damage(Exception):
    """Something is not as docs/format.md says."""


class OtherVersion(Exception):
    """12: the run is of another version, which the message names."""


def expect(fact, text):
    if not fact:
        raise Damage(text)


def xxh3(data):
    return xxhash.xxh3_64_intdigest(data, seed=0)


def pad8(n):
    return (n + 7) // 8 * 8


@dataclasses.dataclass
class Sum:
    kind: int
    name: str
    device: int
    static_shared: int
    dynamic_shared: int
    registers: int
    how: int
    begin: int
    step: int
    n: int
    sum: int
    most: int
    n_bytes: int


@dataclasses.dataclass
class Ran:
    kind: int
    name: str
    device: int
    context: int
    stream: int
    grid: tuple
    block: tuple
    static_shared: int
    dynamic_shared: int
    registers: int
    how: int
    begin: int
    end: int
    correlation: int
    graph: int
    node: int
    step: int  # 0: not known; 1: none; else the step's number and 2
    n_bytes: int
    site: int  # one more than its id; 0: none
    layer: int  # likewise


@dataclasses.dataclass
class Span:
    request: bytes
    tags: bytes
    first_position: int
    first_row: int
    n_tokens: int
    n_cached: int
    phase: int
    flags: int
    n_prompt: int
    cached_ids: tuple | None = None

    @property
    def padding(self):
        return bool(self.flags & 1)


@dataclasses.dataclass
class Step:
    sequence: int
    step: int
    n_rows: int
    ranks: tuple
    tags: bytes
    spans: list


@dataclasses.dataclass
class Record:
    site: int
    layer: int
    occurrence: int
    dtype: int
    n_row_dims: int
    dims: tuple
    launch: int
    forward: int
    step: int
    kept: list   # None: all rows in order
    data: bytes  # None: its encoding or codec is not known

    @property
    def order(self):
        return (self.launch, self.forward, self.occurrence, self.site)

    @property
    def n_rows(self):
        n = 1
        for d in self.dims[:self.n_row_dims]:
            n *= d
        return n

    @property
    def tail(self):
        return self.dims[self.n_row_dims:]


class Run:
    """The folder of a run, all of it in memory: manifest, dictionary, steps {sequence: Step}, records in order."""

    def __init__(self, folder):
        self.folder, self.unknown, self.records, self.steps, self.dictionary, self.indexes = folder, [], [], {}, None, []
        self.codecs = set()  # that planes name
        self.repeated, self.numbered = 0, {}
        self.step_times, self.marks = [], []  # [{field: number}], [(time, value, kind, text)]
        self.ran = []  # [Ran]
        self.sums = []  # [Sum]
        self.ranges, self.calls = [], []  # [(begin, end, step, thread, depth, source, name, facts)]; calls of the driver's that took long, and stops
        self.accepted, self.ends = {}, []  # {(step, span): rows of the span}, [(request, reason, step)]
        self.manifest = self.read_manifest()
        self.uuid = bytes.fromhex(self.manifest["uuid"].replace("-", ""))
        self.closed = self.manifest["state"] == "closed"
        self.released = any(said.get("released") for said in self.manifest["segments"])
        sequence = 0
        for number, said in enumerate(self.manifest["segments"]):
            sequence = self.read_segment(number, said, sequence)
        self.records.sort(key=lambda r: r.order)
        listed = [(c["time_ns"], c["launch"], c["step"], c) for c in self.manifest.get("changes", [])]
        self.changes = listed + [self.numbered[i] for i in sorted(self.numbered)]  # (time, launch, step, object)
        self.read_counters()
        self.accounts = self.read_edits()  # [(uid, state, name, request, due, written, {reason: rows}, not finite)]
        spec = (folder / self.manifest["spec"]["file"]).read_bytes()
        expect(len(spec) == self.manifest["spec"]["bytes"] and f"{xxh3(spec):016x}" == self.manifest["spec"]["xxh3"], "spec")

    # 9
    def read_manifest(self):
        data = (self.folder / "manifest.json").read_bytes()
        manifest = json.loads(data)
        if manifest["version"] == 1:
            raise OtherVersion("this run has format version 1; this program reads version 2")
        key = b'"checksum": "'
        at = data.index(key) + len(key)
        digits = f"{xxh3(data[:at] + b'0' * 16 + data[at + 16:]):016x}"  # lower-case, says the page
        expect(data[at:at + 16] == digits.encode(), "manifest's checksum")
        if manifest["version"] != VERSION:
            raise OtherVersion(f"this run has format version {manifest['version']}, which is newer")
        return manifest

    # 10
    def read_counters(self):
        data = bytearray((self.folder / "counters").read_bytes())
        magic, version, n_sites, uuid, state = struct.unpack_from("<8sII16sQ", data)
        expect(magic == COUNTERS_MAGIC and version == VERSION and uuid == self.uuid and state in (1, 2), "counters")
        expect(n_sites == len(self.dictionary["sites"]) and len(data) == 128 + 512 * n_sites, "counters' size")
        expect(not any(data[88:128]), "reserved fields of counters")
        if self.closed:
            data[32:40] = struct.pack("<Q", 2)
            expect(f"{xxh3(bytes(data)):016x}" == self.manifest["counters"]["xxh3"], "counters' hash")
        self.tallies = []
        for i in range(n_sites):
            words = struct.unpack_from("<64Q", data, 128 + 512 * i)
            tally = [words[k:k + 3] for k in range(0, 54, 3)]
            self.tallies.append({"expected": tally[0], "captured": tally[1],
                                 "dropped": tuple(map(sum, zip(*tally[2:]))), "released": words[55:58]})

    # 10.2
    def read_edits(self):
        said = self.manifest.get("edits")
        places = any(site.get("action") in ("edit", "save") for site in self.dictionary["sites"])
        if not places or "edits" in self.manifest and said is None:
            return None
        data = (self.folder / "edits").read_bytes()
        if self.closed and said:
            expect(len(data) == said["bytes"] and f"{xxh3(data):016x}" == said["xxh3"], "edits' size and hash")
        magic, version, n, uuid, ended, marked, _, reserved = struct.unpack_from("<8sII16sQQQQ", data)
        expect(magic == struct.pack("<Q", 0x00314144454d44) and version == 1 and uuid == self.uuid and not reserved and marked <= ended, "edits")
        expect(len(data) == 64 + 552 * n, "edits' size")
        names = {edit["uid"]: edit["name"] for change in self.changes if "version" in change[3] for edit in change[3].get("edits", [])}
        accounts = []
        for at in range(64, len(data), 552):
            uid, state, n_request, due, written, *missed = struct.unpack_from("<QII2Q16Q", data, at)
            name, not_finite, request = struct.unpack_from("<128sQ256s", data, at + 160)
            if not state:
                continue
            text, _, rest = name.partition(b"\0")
            expect(state <= 3 and n_request < 256 and b"\0" in name and not any(rest) and not any(request[n_request:]), "an account's state and texts")
            expect(uid and (state == 1 or not n_request) and (uid not in names or names[uid].encode() == text), "an account's edit")
            expect(not self.closed or due == written + sum(missed), "an account's sum")
            accounts.append((uid, state, text, request[:n_request], due, written, {i: m for i, m in enumerate(missed) if m}, not_finite))
        return accounts

    # 2
    def read_segment(self, number, said, sequence):
        if said.get("released"):
            return sequence + said["chunks"]
        data = (self.folder / said["file"]).read_bytes()
        magic, version, size, uuid, is_number, _flags, _time, first = struct.unpack_from("<8sII16sIIQQ", data)
        expect(magic == SEGMENT_MAGIC and size == 128 and xxh3(data[:120]) == struct.unpack_from("<Q", data, 120)[0], "header")
        expect(version == VERSION and uuid == self.uuid and is_number == number and first == sequence, "header")
        expect(not any(data[56:120]), "reserved fields of the header")
        end, index = len(data), None
        if said["closed"]:
            expect(len(data) == said["bytes"], "size in the manifest")
            end -= 32
            footer_at, n_file, digest, magic = struct.unpack_from("<QQQ8s", data, end)
            expect(magic == TRAILER_MAGIC and n_file == len(data), "trailer")
            expect(digest == xxh3(data[end:end + 16] + self.uuid), "trailer's hash")
        at, rows, data = 128, [], data[:end]
        while at < end:
            kind, meta, payload, size = self.read_chunk(data, at, sequence)
            expect(kind == SITES if at == 128 else True, "the first chunk is the dictionary")
            if kind == FOOTER:
                expect(said["closed"] and at == footer_at and at + size == end, "footer's place")
                index = (meta, first)
            else:
                rows.append((at, kind, *self.take_chunk(kind, meta, payload)))
            at, sequence = at + size, sequence + 1
        if said["closed"]:
            expect(said["chunks"] == len(rows) + 1 and said["records"] == sum(len(r[2]) for r in rows), "manifest's numbers")
            self.check_footer(*index, rows)
        return sequence

    # 3
    def read_chunk(self, data, at, sequence):
        header = data[at:at + 64]
        magic, version, kind, number, n_meta, n_payload, run, meta_hash, payload_hash, digest = \
            struct.unpack("<4sHHQQQ8sQQQ", header)
        expect(magic == CHUNK_MAGIC and digest == xxh3(header[:56]) and run == self.uuid[:8], "chunk header")
        expect(version == VERSION and number == sequence and n_meta <= 2**28 and n_payload <= 2**40, "chunk header")
        size = 64 + pad8(n_meta) + pad8(n_payload)
        expect(at + size <= len(data), "chunk beyond the file")
        meta, payload_at = data[at + 64:at + 64 + n_meta], at + 64 + pad8(n_meta)
        payload = data[payload_at:payload_at + n_payload]
        expect(xxh3(meta) == meta_hash, "metadata's hash")
        expect(not any(data[at + 64 + n_meta:payload_at]) and not any(data[payload_at + n_payload:at + size]), "padding")
        expect(payload_hash == (0 if kind == RECORDS or not payload else xxh3(payload)), "payload's hash")
        return kind, meta, payload, size

    def take_chunk(self, kind, meta, payload):
        """(records, steps) of the chunk"""
        if kind == SITES:
            dictionary = json.loads(meta)
            expect(self.dictionary in (None, dictionary) and dictionary == self.manifest["dictionary"], "dictionary")
            self.dictionary = dictionary
        elif kind in (STEPS, STEPS_PACKED):
            steps = self.read_steps(meta if kind == STEPS else self.unpack_steps(meta))
            for step in steps:
                expect(step.sequence not in self.steps, "a step stands there twice")
                self.steps[step.sequence] = step
            return [], steps if kind == STEPS else []
        elif kind == STEPS_AGAIN:
            for step in self.read_steps(meta):
                self.repeated += 1
                expect(self.steps.setdefault(step.sequence, step) == step, "a step that is repeated otherwise")
        elif kind in (OUTCOMES, OUTCOMES_AGAIN):
            self.read_outcomes(meta)
        elif kind == CHANGES:
            self.read_changes(meta)
        elif kind in (STEP_TIMES, MARKS, RANGES):
            self.read_trace(kind, meta)
        elif kind == TRACE:
            self.read_ran(meta)
        elif kind == SUMS:
            self.read_sums(meta)
        elif kind == RECORDS:
            records = self.read_records(meta, payload)
            expect(all(r.step == NONE or r.step in self.steps for r in records), "a record before its step")
            self.records += [r for r in records if r.dtype in DTYPE_BYTES]
            return records, []
        else:
            self.unknown.append(f"chunk type {kind}")
        return [], []

    # 5
    def read_records(self, meta, payload):
        n_records, n_groups, n_planes, n_kept = struct.unpack_from("<IIII", meta)
        tables, at = [], 16
        for layout, n in ((RECORD, n_records), (GROUP, n_groups), (PLANE, n_planes), (struct.Struct("<I"), n_kept)):
            expect(at + n * layout.size <= len(meta), "a table lies outside")
            tables.append([layout.unpack_from(meta, at + i * layout.size) for i in range(n)])
            at += n * layout.size
        records, groups, planes, kept = tables
        first_planes = [g[2] for g in groups] + [n_planes]
        expect(not groups or first_planes[0] == 0, "first plane")
        raws, stored_at = [], 0
        for g, group in enumerate(groups):
            mine = planes[first_planes[g]:first_planes[g + 1]]
            expect(group[4] == stored_at and group[5] == sum(p[2] for p in mine), "a group's place")
            stored_at += group[5]
            raws.append(self.decode_group(group, mine, payload[group[4]:stored_at]))
        expect(stored_at == len(payload), "the groups fill the payload")
        out, used, kept_at = [], [0] * n_groups, 0
        for r in records:
            site, layer, occurrence, dtype, n_dims, n_row_dims, *rest = r
            dims, (launch, forward, step), group = tuple(rest[:4]), rest[4:7], rest[9]
            offset, n_bytes, first_kept, kept_n, _, zero, digest = rest[10:]
            n = groups[group][1]
            for d in dims[:n_dims]:
                n *= d
            expect(1 <= n_row_dims <= n_dims <= 4 and not any(dims[n_dims:]) and n == n_bytes and zero == 0, "a record's sizes")
            expect(DTYPE_BYTES.get(dtype, groups[group][1]) == groups[group][1] and dtype, "a record's element type")
            expect(layer >= -1 and site < len(self.dictionary["sites"]), "a record's site and layer")
            expect(offset == used[group] and first_kept == kept_at, "a record's place")
            used[group] += n_bytes
            kept_at += kept_n
            raw = raws[group]
            data = None if raw is None else raw[offset:offset + n_bytes]
            expect(data is None or xxh3(data) == digest, "a record's hash")
            rows = [k[0] for k in kept[first_kept:kept_at]] if kept_n else None
            record = Record(site, layer, occurrence, dtype, n_row_dims, dims[:n_dims], launch, forward, step, rows, data)
            expect(rows is None or len(rows) == record.n_rows == len(set(rows)), "kept rows")
            if dtype not in DTYPE_BYTES:
                self.unknown.append(f"element type {dtype}")
            out.append(record)
        expect(used == [g[3] for g in groups] and kept_at == n_kept, "the records fill the groups")
        return out

    # 5.2
    def decode_group(self, group, planes, stored):
        encoding, width, _, n_raw, _, _ = group
        if encoding not in (0, 1, 2):
            self.unknown.append(f"encoding {encoding}")
            return None
        each, at, out = (width if encoding else 1), 0, bytearray()
        expect(len(planes) == each * ((n_raw + BLOCK - 1) // BLOCK) and n_raw % width == 0, "a group's planes")
        for number, begin in enumerate(range(0, n_raw, BLOCK)):
            n = min(BLOCK, n_raw - begin)
            block = bytearray(n)
            for p, (codec, zero, n_stored, digest) in enumerate(planes[number * each:(number + 1) * each]):
                piece = stored[at:at + n_stored]
                at += n_stored
                expect(xxh3(piece) == digest and not any(zero), "a plane's hash")
                self.codecs.add(codec)
                if codec not in (0, 1, 2):
                    self.unknown.append(f"codec {codec}")
                    return None
                block[p::each] = (lambda piece, n: piece, self.inflate, self.unpack)[codec](piece, n // each)
            if encoding == 2:
                values = np.frombuffer(block, np.uint8).reshape(-1, width)
                block = (values >> 1 | np.roll(values, -1, axis=1) << 7).tobytes()
            out += block
        return bytes(out)

    @staticmethod
    def inflate(piece, n):
        expect(piece[:4] == b"\x28\xb5\x2f\xfd" and zstandard.get_frame_parameters(piece).dict_id == 0, "a zstd frame")
        one = zstandard.ZstdDecompressor().decompressobj()
        data = one.decompress(piece)
        expect(len(data) == n and one.eof and not one.unused_data, "one zstd frame and nothing else")
        return data

    # 5.3
    @staticmethod
    def unpack(piece, n):
        n_stripes = (n + STRIPE - 1) // STRIPE
        halves, escapes = piece[n_stripes:n_stripes + (n + 1) // 2], iter(piece[n_stripes + (n + 1) // 2:])
        expect(len(piece) >= n_stripes + (n + 1) // 2 and (n % 2 == 0 or halves[-1] < 16), "a packed plane")
        out = bytearray()
        for i in range(n):
            v = halves[i // 2] >> 4 * (i % 2) & 15
            far = next(escapes, None) if v == 15 else (piece[i // STRIPE] + v) % 256
            expect(far is not None, "an escape for each 15")
            out.append(far)
        expect(next(escapes, None) is None, "no escape more")
        return bytes(out)

    # 6
    def read_steps(self, meta):
        at, out = 0, []
        while at < len(meta):
            size, n_spans, sequence, number, _time, n_rows, _flags, *rest = STEP.unpack_from(meta, at)
            ranks, (tags_at, n_tags, stride, zero) = tuple(rest[:8]), rest[8:]
            expect(size % 8 == 0 and size <= len(meta) - at and stride >= 48 and stride % 8 == 0 and zero == 0, "a step")
            entry, spans, taken = meta[at:at + size], [], set()
            for i in range(n_spans):
                id_at, n_id, text_at, n_text, position, row, tokens, cached, phase, flags, prompt = \
                    SPAN.unpack_from(entry, STEP.size + i * stride)
                rows = range(row, row + tokens)
                expect(position >= 0 and position + tokens < 2**63 and row + tokens <= n_rows, "a span")
                expect(taken.isdisjoint(rows), "spans share a row")
                taken.update(rows)
                ids_at, n_ids = struct.unpack_from("<II", entry, STEP.size + i * stride + 48) if stride >= 56 else (0, 0)
                expect(n_ids in (0, cached) and (not n_ids or cached <= position) and ids_at % 4 == 0 and (n_ids or not ids_at)
                       and (not n_ids or STEP.size + n_spans * stride <= ids_at <= size - 4 * n_ids), "ids of cached tokens")
                spans.append(Span(entry[id_at:id_at + n_id], entry[text_at:text_at + n_text], position, row, tokens, cached,
                                  phase if phase <= 3 else 0, flags, prompt,
                                  struct.unpack_from(f"<{n_ids}i", entry, ids_at) if n_ids else None))
            out.append(Step(sequence, number, n_rows, ranks, entry[tags_at:tags_at + n_tags], spans))
            at += size
        return out

    # 6.10
    def unpack_steps(self, meta):
        n, zero = struct.unpack_from("<QQ", meta)
        expect(n <= 2**24 and n % 8 == 0 and not zero, "the head of packed steps")
        stored, out, at, size = self.inflate(meta[16:], n), bytearray(), 0, 0
        while at < n:
            first, = struct.unpack_from("<I", stored, at)
            before, size = out[-size:] if size else b"", first or size
            words = list(struct.unpack_from(f"<{size // 4}I", stored, at))
            if not first:
                words = [size] + [(a + b) % 2**32 for a, b in zip(words[1:], struct.unpack(f"<{size // 4}I", before)[1:])]
            out += struct.pack(f"<{size // 4}I", *words)
            at += size
        return bytes(out)

    # 6.1
    def read_outcomes(self, meta):
        n, size, n_strings, _flags = struct.unpack_from("<IIII", meta)
        expect(size >= 48 and size % 8 == 0 and 16 + n * size + n_strings <= len(meta), "outcomes")
        strings = meta[16 + n * size:16 + n * size + n_strings]
        for i in range(n):
            sequence, span, flags, _time, n_rows, at, id_at, n_id, reason, zero = OUTCOME.unpack_from(meta, 16 + i * size)
            expect(zero == 0 and n_id <= 255 and id_at + n_id <= n_strings, "an outcome")
            spans = self.steps[sequence].spans if sequence in self.steps else None
            if span != NO_SPAN and spans is None and self.released:
                continue  # of a step that is gone
            if span != NO_SPAN:
                expect(spans is not None and span < len(spans), "an outcome's span")
            if flags & 2:
                expect(span != NO_SPAN, "accepted rows of no span")
                if at == NO_LIST:
                    rows = list(range(n_rows))
                else:
                    expect(at + 4 * n_rows <= n_strings, "a list of rows")
                    rows = list(struct.unpack_from(f"<{n_rows}I", strings, at))
                expect(rows == sorted(set(rows)) and (not rows or rows[-1] < spans[span].n_tokens), "accepted rows")
                self.accepted[sequence, span] = set(rows)
            end = (spans[span].request if span != NO_SPAN else strings[id_at:id_at + n_id], reason, sequence)
            if flags & 1 and end not in self.ends:
                self.ends.append(end)

    # 6.3
    def read_changes(self, meta):
        at = 0
        while at < len(meta):
            size, n_json, number, *place = CHANGE.unpack_from(meta, at)
            expect(size % 8 == 0 and 40 + n_json <= size <= len(meta) - at, "a change")
            change = (*place, json.loads(meta[at + 40:at + 40 + n_json]))
            expect(isinstance(change[3], dict), "a change's object")
            expect(self.numbered.setdefault(number, change) == change, "a change that is repeated otherwise")
            at += size

    # 6.4 to 6.6
    def read_trace(self, kind, meta):
        layout = {STEP_TIMES: STEP_TIME, MARKS: MARK, RANGES: RANGE}[kind]
        n, size, n_strings, _flags = struct.unpack_from("<IIII", meta)
        least = layout.size - (16 if kind == STEP_TIMES else 0)  # of writers before 2026-11-29
        expect(size >= least and size % 8 == 0 and 16 + n * size + n_strings <= len(meta), "a table of the trace")
        strings = meta[16 + n * size:16 + n * size + n_strings]
        for i in range(n):
            known = meta[16 + i * size:16 + (i + 1) * size]
            more = b"\xff" * 8 + bytes(8)  # engine_step and waited_ns, where an entry lacks them
            fields = layout.unpack((known + more[len(known) - layout.size:] if len(known) < layout.size else known)[:layout.size])
            if kind == STEP_TIMES:
                self.step_times.append(dict(zip(STEP_TIME_FIELDS, fields, strict=True)))
                continue
            if kind == RANGES:
                *place, at, n_text, facts_at, n_facts = fields
                expect(at + n_text <= n_strings and facts_at + n_facts <= n_strings, "a range's texts")
                facts = json.loads(strings[facts_at:facts_at + n_facts] or "{}")
                (self.calls if place[5] in (CALL, STOPPED) else self.ranges).append((*place, strings[at:at + n_text].decode(), facts))
                continue
            *mark, at, n_text, zero = fields
            expect(zero == 0, "a reserved field of a mark")
            expect(at + n_text <= n_strings and (n_text or not at), "a mark's text")
            self.marks.append((*mark, strings[at:at + n_text].decode()))

    # 6.7, 6.8: the rows of the columns, with shape and name in place of the first one
    def read_columns(self, meta, n_columns, n_more, differences):
        n, n_shapes, size, n_strings, n_column_bytes = TRACE_HEAD.unpack_from(meta)
        expect(size >= SHAPE.size and size % 8 == 0, "a shape's size")
        expect(TRACE_HEAD.size + n_shapes * size + n_strings + n_column_bytes == len(meta), "sizes of a trace")
        strings_at = TRACE_HEAD.size + n_shapes * size
        strings, at = meta[strings_at:strings_at + n_strings], strings_at + n_strings
        columns = []
        for column in range(n_columns + n_more):
            if column == n_columns and at == len(meta):
                columns += [[0] * n] * n_more
                break
            numbers, last = [], 0
            for _ in range(n):
                value = shift = 0
                while True:
                    expect(at < len(meta) and shift < 70, "a column of the trace")
                    value |= (meta[at] & 127) << shift
                    at, shift = at + 1, shift + 7
                    if meta[at - 1] < 128:
                        break
                expect(value < 2**64, "a number of the trace")
                if column in differences:
                    last = value = (last + (value >> 1 ^ -(value & 1))) % 2**64
                numbers.append(value)
            columns.append(numbers)
        for shape, *row in zip(*columns, strict=True):
            expect(shape < n_shapes, "a record's shape")
            kind, name_at, n_name, *more = SHAPE.unpack_from(meta, TRACE_HEAD.size + shape * size)
            expect(name_at + n_name <= n_strings, "a name of the trace")
            yield kind, strings[name_at:name_at + n_name].decode(), more, row

    # 6.7
    def read_ran(self, meta):
        for kind, name, more, (begin, correlation, graph, node, step, duration, *rest) in self.read_columns(meta, 8, 2, range(1, 6)):
            self.ran.append(Ran(kind, name, *more[:3], tuple(more[3:6]), tuple(more[6:9]), *more[9:],
                                begin, (begin + duration) % 2**64, correlation, graph, node, step, *rest))

    # 6.8
    def read_sums(self, meta):
        for kind, name, more, row in self.read_columns(meta, 7, 0, range(1, 3)):
            expect(not any(more[1:9]), "what a sum has no place, grid and block of")
            self.sums.append(Sum(kind, name, more[0], *more[9:], *row))

    # 7
    def check_footer(self, meta, first, rows):
        n_chunks, n_entries, n_spans, n_strings, is_first, n_sites, zero = struct.unpack_from("<IIIIQII", meta)
        expect(is_first == first and zero == 0 and n_chunks == len(rows), "footer")
        chunks, entries, spans, strings, sites = b"", [], b"", b"", {}
        for number, (at, kind, records, steps) in enumerate(rows):
            keys = [r.launch for r in records] + [s.sequence for s in steps]
            chunks += struct.pack("<QIIQQ", at, kind, len(keys), min(keys, default=0), max(keys, default=0))
            for i, r in enumerate(records):
                entries.append((r.site, r.layer, r.launch, number, i, r))
                tally = sites.setdefault(r.site, [0, 0, 0])
                n_bytes = len(r.data) if r.data is not None else 0
                tally[:] = tally[0] + 1, tally[1] + r.n_rows, tally[2] + n_bytes
            for step in steps:
                for s in step.spans:
                    spans += struct.pack("<IIQqII", len(strings), len(s.request), step.sequence, s.first_position, s.first_row,
                                         s.n_tokens)
                    strings += s.request
        entries.sort(key=lambda e: e[:5])
        body = chunks + b"".join(struct.pack("<IIQQQ", site, 0, *tally) for site, tally in sorted(sites.items()))
        for site, layer, launch, number, i, r in entries:
            body += struct.pack("<IiIIQQQII", site, layer, number, i, r.step, launch, r.forward, r.occurrence, r.n_rows)
        body += spans + strings
        expect(n_entries == len(entries) and n_sites == len(sites) and n_spans * 32 == len(spans), "footer's numbers")
        expect(n_strings == len(strings) and meta[32:32 + len(body)] == body, "the footer is the index of the chunks")

    # 8
    def owner(self, record, row):
        """(request, position) of a row of the complete tensor; None: nobody's"""
        meaning = self.dictionary["sites"][record.site]["row"]
        if meaning not in ("token", "request") or record.step == NONE:
            return None
        spans = self.steps[record.step].spans
        number = {id(s): i for i, s in enumerate(spans)}

        def counts(s, token):
            rows = self.accepted.get((record.step, number[id(s)]))
            return not s.padding and (rows is None or token in rows)

        if meaning == "token":
            for s in spans:
                if s.first_row <= row < s.first_row + s.n_tokens:
                    return (s.request, s.first_position + row - s.first_row) if counts(s, row - s.first_row) else None
            return None
        spans = [s for s in spans if s.n_tokens]
        if record.kept is None and record.n_rows < len(spans):
            spans = [s for s in spans if not s.padding]
        if row >= len(spans) or not counts(spans[row], spans[row].n_tokens - 1):
            return None
        return spans[row].request, spans[row].first_position + spans[row].n_tokens - 1

    def key(self, site, layer):
        name = self.dictionary["sites"][site]["name"]
        if "{layer}" in name:
            return name.replace("{layer}", str(layer))
        return name if layer == -1 else f"{name}.{layer}"

    def tensors(self):
        """{(request, SITE.LAYER): {position: bytes of the row}}, the latest record's where there are several"""
        out = {}
        for r in self.records:
            if not r.data:
                continue
            width = len(r.data) // r.n_rows
            for row in range(r.n_rows):
                owner = self.owner(r, row if r.kept is None else r.kept[row])
                if owner:
                    rows = out.setdefault((owner[0], self.key(r.site, r.layer)), {})
                    rows[owner[1]] = r.data[row * width:(row + 1) * width]
        return out


class Ranks:
    """8.1: the runs of one command, each of another rank, as one; of those whose steps all ranks say alike."""

    def __init__(self, folders):
        self.runs = sorted(map(Run, folders), key=lambda run: self.ranks(run)[::2])
        expect(len({run.manifest["job"] for run in self.runs}) == 1, "one job")
        self.dictionary = self.runs[0].dictionary

    @staticmethod
    def ranks(run):
        return run.steps[min(run.steps)].ranks

    def number(self, run, record):
        """Which step a record is of: its data rank, the engine's number, and the how many-eth of that number."""
        step = run.steps[record.step]
        alike = sorted(s.sequence for s in run.steps.values() if s.step == step.step)
        return step.ranks[4], step.step, alike.index(record.step)

    def parts(self):
        """{key: [(rank on the axis, run, record)]} of records that are one"""
        out = {}
        for run in self.runs:
            for r in run.records:
                site = run.dictionary["sites"][r.site]
                shard = site.get("shard") or {}
                ranks = run.steps[r.step].ranks
                axis = AXES.index(shard["over"]) if shard else None
                pipeline = None if axis == 1 else ranks[2]
                key = (self.number(run, r), pipeline, site["name"], r.layer, r.occurrence)
                out.setdefault(key, []).append((ranks[2 * axis] if shard else 0, run, r))
        return out

    def joined(self, shard, parts):
        """Bytes of the joined record; None where a part is missing"""
        first = parts[0][2]
        if not shard:
            expect(all(r.data == first.data for _, _, r in parts), "ranks that have all of it differ")
            return first.data
        size = max(parts[0][1].steps[first.step].ranks[2 * AXES.index(shard["over"]) + 1], 1)
        if [rank for rank, _, _ in parts] != list(range(size)):
            return None
        if shard.get("sum"):
            expect(first.dtype in (1, 4), "this reader adds f32 and f64")
            code = "f" if first.dtype == 1 else "d"
            n = len(first.data) // struct.calcsize(code)
            sums = [0.0] * n
            for _, _, r in parts:
                sums = [a + b for a, b in zip(sums, struct.unpack(f"<{n}{code}", r.data))]
            return struct.pack(f"<{n}{code}", *sums)
        inner = DTYPE_BYTES[first.dtype]
        for d in first.dims[shard["dim"] + 1:]:
            inner *= d
        outer, data = 1, b""
        for d in first.dims[:shard["dim"]]:
            outer *= d
        for i in range(outer):
            for _, _, r in parts:
                n = r.dims[shard["dim"]] * inner
                data += r.data[i * n:(i + 1) * n]
        return data

    def tensors(self):
        """As Run.tensors(): {(request, SITE.LAYER): {position: bytes}}"""
        out, accepted = {}, {}
        for run in self.runs:  # what any rank says of a step's rows counts
            for (sequence, span), rows in run.accepted.items():
                step = run.steps[sequence]
                accepted[step.ranks[4], step.step, span] = rows
        for run in self.runs:
            for sequence, step in run.steps.items():
                for span in range(len(step.spans)):
                    if (step.ranks[4], step.step, span) in accepted:
                        run.accepted[sequence, span] = accepted[step.ranks[4], step.step, span]
        for parts in sorted(self.parts().values(), key=lambda parts: parts[0][2].order):
            parts.sort(key=lambda part: part[0])
            run, r = parts[0][1:]
            shard = run.dictionary["sites"][r.site].get("shard")
            data = self.joined(shard, parts)
            width = len(data) // r.n_rows if data else 0
            for row in range(r.n_rows) if data else ():
                owner = run.owner(r, row if r.kept is None else r.kept[row])
                if owner:
                    rows = out.setdefault((owner[0], run.key(r.site, r.layer)), {})
                    rows[owner[1]] = data[row * width:(row + 1) * width]
        return out
