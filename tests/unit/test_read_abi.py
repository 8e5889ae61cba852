# SPDX-License-Identifier: Apache-2.0
"""<dmi/read.h> as others see it: a C program that knows nothing else, and ctypes, against `dmi-dump export`."""
import ctypes
import json
import os
import pathlib
import struct
import subprocess

import pytest

from damage import flip_payload
from harness import BUILD, DMI_DUMP

MAKE_ODD_RUN = BUILD / "tests" / "unit" / "make_odd_run"
MAKE_RUN = BUILD / "tests" / "unit" / "make_run"
READ_ABI = BUILD / "tests" / "unit" / "read_abi"
LIBRARY = BUILD / "read" / "libdmi_read.so.1"
pytestmark = pytest.mark.built(DMI_DUMP, MAKE_RUN, MAKE_ODD_RUN, READ_ABI, LIBRARY)
# Names are only ever added, each to a version node of its own release.
EXPORTS = {"dmi_read_edit", "dmi_read_edit_sum", "dmi_read_version", "dmi_read_open", "dmi_read_close", "dmi_read_refresh", "dmi_read_error", "dmi_read_run",
           "dmi_read_site", "dmi_read_account", "dmi_read_tensor", "dmi_read_request", "dmi_read_finding", "dmi_read_problem",
           "dmi_read_find", "dmi_read_rows", "dmi_read_several", "dmi_read_verify", "dmi_read_select",
           "dmi_read_step", "dmi_read_span", "dmi_read_record", "dmi_read_sample", "dmi_read_match", "dmi_read_visit", "dmi_read_about"}
U32, U64, I64, TEXT = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int64, ctypes.c_char_p


class Struct(ctypes.Structure):
    def __init__(self):
        super().__init__(size=ctypes.sizeof(self))


class Run(Struct):
    _fields_ = [("size", U32), ("state", U32), ("path", TEXT), ("uuid", TEXT), ("model", TEXT), ("host", TEXT),
                ("library_version", TEXT), ("pid", U64), ("start_realtime_ns", U64), ("n_segments", U64),
                ("file_bytes", U64), ("n_sites", U64), ("n_records", U64), ("n_steps", U64), ("n_tensors", U64),
                ("n_requests", U64), ("n_findings", U64), ("n_forwards", U64), ("job", TEXT), ("n_runs", U64), ("n_beside", U64)]


class Tensor(Struct):
    _fields_ = [("size", U32), ("dtype", U32), ("key", TEXT), ("name", TEXT), ("request", ctypes.c_void_p),
                ("request_bytes", U64), ("n_rows", U64), ("width", U64), ("row_bytes", U64), ("site", U32),
                ("layer", ctypes.c_int32), ("n_dims", U32), ("dims", U32 * 4), ("mixed", U32)]


class Account(Struct):
    _fields_ = [("size", U32), ("known", U32), ("balances", U32), ("reserved", U32), ("expected", U64 * 3),
                ("captured", U64 * 3), ("dropped", U64 * 3), ("lost", U64 * 3), ("dropped_by", U64 * 16),
                ("launches", U64), ("released", U64 * 3)]


class Request(Struct):
    _fields_ = [("size", U32), ("reserved", U32), ("id", ctypes.c_void_p), ("id_bytes", U64), ("n_steps", U64),
                ("n_cached", U64), ("n_prefill", U64), ("n_decode", U64), ("n_draft", U64), ("n_other", U64),
                ("end_position", I64), ("state", U32), ("reason", U32), ("n_prompt", I64), ("n_generated", U64), ("n_rejected", U64),
                ("n_preemptions", U64), ("n_records", U64), ("n_rows", U64), ("raw_bytes", U64), ("stored_bytes", U64)]


class Selection(Struct):
    _fields_ = [("size", U32), ("flags", U32), ("request", TEXT), ("request_bytes", U64), ("tokens", U32), ("reserved", U32),
                ("first", I64), ("end", I64), ("ranks", U32 * 4)]


class Row(ctypes.Structure):
    _fields_ = [("position", I64), ("launch", U64), ("forward", U64), ("step", U64), ("time_ns", U64), ("row", U32),
                ("device", U32), ("flags", U32), ("reserved", U32)]


class Finding(Struct):
    _fields_ = [("size", U32), ("damage", U32), ("file", TEXT), ("chunk", I64), ("offset", U64), ("text", TEXT)]


def exported(run, path):
    """{key: (bytes, positions)} of what dmi-dump exports"""
    subprocess.run([DMI_DUMP, "export", run, "--force", "-o", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8:8 + n]), data[8 + n:]
    metadata = header.pop("__metadata__")
    facts, lists = json.loads(metadata["tensors"]), json.loads(metadata["positions"])
    out = {}
    for key, entry in header.items():
        spans = lists[facts[key]["positions"]]
        positions = [first + i if first >= 0 else -1 for first, number in spans for i in range(number)]
        out[key] = body[slice(*entry["data_offsets"])], positions
    return out


@pytest.fixture
def run(tmp_path):
    subprocess.run([MAKE_RUN, tmp_path / "run"], check=True, stdout=subprocess.PIPE, timeout=60)
    return next((tmp_path / "run").iterdir())


@pytest.fixture
def library():
    if os.environ.get("DMI_TEST_RUNTIME"):
        pytest.skip("this Python cannot load a sanitized library")
    lib = ctypes.CDLL(LIBRARY)
    lib.dmi_read_error.restype = TEXT
    for name in ("dmi_read_find", "dmi_read_verify"):
        getattr(lib, name).restype = I64
    return lib


class Reader:
    def __init__(self, lib, path):
        self.lib, self.handle = lib, ctypes.c_void_p()
        why = ctypes.create_string_buffer(300)
        r = lib.dmi_read_open(os.fsencode(path), ctypes.byref(self.handle), why, U64(300))
        assert r == 0, why.value

    def get(self, name, kind, *index):
        out = kind()
        r = getattr(self.lib, f"dmi_read_{name}")(self.handle, *map(U64, index), ctypes.byref(out))
        assert r == 0, self.lib.dmi_read_error(self.handle)
        return out

    def rows(self, index, first, n):
        t = self.get("tensor", Tensor, index)
        data, rows = ctypes.create_string_buffer(max(1, n * t.row_bytes)), (Row * max(1, n))()
        r = self.lib.dmi_read_rows(self.handle, U64(index), U64(first), U64(n), data, U64(n * t.row_bytes), rows,
                                   U64(ctypes.sizeof(Row)))
        return r, data.raw[:n * t.row_bytes], list(rows)[:n]


def test_c_program_sees_what_export_writes(run, tmp_path, check):
    for damaged in (False, True):
        if damaged:
            flip_payload(sorted(run.glob("seg-*.dmi"))[0], 3)
        done = subprocess.run([READ_ABI, run], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
        check(done.returncode == 0, f"read_abi ends well{' (damaged run)' * damaged}", done)
        want, got = exported(run, tmp_path / "all.safetensors"), {}
        for line in done.stdout.splitlines():
            t = json.loads(line)
            good = [not flag for flag in t["damaged"]]
            data, n = bytes.fromhex(t["data"]), len(t["data"]) // 2 // max(1, len(good))
            got[bytes.fromhex(t["key"]).decode()] = (b"".join(data[i * n:(i + 1) * n] for i in range(len(good)) if good[i]),
                                                     [p for i, p in enumerate(t["positions"]) if good[i]])
            check((t["result"] == 0) == all(good), "the result says that a row is damaged", t)
            check(not any(any(data[i * n:(i + 1) * n]) for i in range(len(good)) if not good[i]), "and its bytes are 0")
        got = {key: rows for key, rows in got.items() if rows[1]}
        check(got == want, "the same keys, bytes and positions", [k for k in {**want, **got} if got.get(k) != want.get(k)])
        check(any(sum(len(p) for _, p in rows.values()) < 85 for rows in (got,)) == damaged or not damaged, "rows are missing")


def test_ctypes(library, run, tmp_path, check):
    reader = Reader(library, run)
    facts, want = reader.get("run", Run), exported(run, tmp_path / "all.safetensors")
    check((facts.n_tensors, facts.n_requests, facts.n_findings, facts.state) == (len(want), 2, 0, 0), "what run it is")
    for key, (data, positions) in want.items():
        index = library.dmi_read_find(reader.handle, key.encode())
        r, got, rows = reader.rows(index, 0, len(positions))
        check(r == 0 and got == data and [row.position for row in rows] == positions, f"{key!r}", rows)
        pieces = [reader.rows(index, i, 1) for i in reversed(range(len(positions)))]
        check(b"".join(piece[1] for piece in reversed(pieces)) == data, f"{key!r}, row by row, backwards")
    requests = [reader.get("request", Request, i) for i in range(2)]
    check([ctypes.string_at(q.id, q.id_bytes) for q in requests] == [b"france", b"../../x\n"] and
          [q.n_cached for q in requests] == [0, 7], "requests")
    account = reader.get("account", Account, 0)
    check((account.known, account.balances, account.expected[0], account.captured[0]) == (1, 1, 1, 1), "the accounting")
    check(library.dmi_read_verify(reader.handle) == 0, "verify finds nothing")
    library.dmi_read_close(reader.handle)


def test_a_selection(library, tmp_path, check):
    subprocess.run([MAKE_ODD_RUN, tmp_path / "run", "drafts"], check=True, stdout=subprocess.PIPE, timeout=60)
    reader = Reader(library, tmp_path / "run")

    def rows(**more):
        selection = Selection()
        for key, value in more.items():
            setattr(selection, key, value)
        assert library.dmi_read_select(reader.handle, ctypes.byref(selection) if more else None) == 0
        index = library.dmi_read_find(reader.handle, b"a/s0")
        t = reader.get("tensor", Tensor, index)
        return [(row.position, row.flags) for row in reader.rows(index, 0, t.n_rows)[2]]

    plain = [(i, 0) for i in range(8)]
    check(rows() == plain, "at first all that count")
    check(rows(tokens=2) == plain[:4] and rows(tokens=3) == plain[4:] and rows(tokens=4) == plain[7:], "prompt, generated, last")
    check(rows(tokens=1, first=2, end=5) == plain[2:5], "positions")
    all_of_them = plain[:6] + [(6, 2), (6, 0), (7, 2), (7, 0), (8, 2)]
    check(rows(flags=1) == all_of_them, "rejected rows are flagged, before what counts at their position", rows(flags=1))
    check(rows(request=b"a", request_bytes=1) == plain and reader.get("run", Run).n_tensors == 1, "one request")
    a = reader.get("request", Request, 0)
    check((a.state, a.reason, a.n_prompt, a.n_generated, a.n_rejected, a.n_preemptions, a.n_records, a.n_rows, a.raw_bytes)
          == (1, 2, 4, 4, 3, 0, 4, 11, 44) and a.end_position == 8, "and what became of it")
    library.dmi_read_close(reader.handle)


def test_a_growing_run(library, tmp_path, check):
    subprocess.run([MAKE_RUN, tmp_path / "run"], check=True, stdout=subprocess.PIPE, timeout=60)
    run = next((tmp_path / "run").iterdir())
    second = sorted(run.glob("seg-*.dmi"))[1]
    aside = tmp_path / "aside"
    second.rename(aside)
    reader = Reader(library, run)
    before = reader.get("run", Run).n_records
    aside.rename(second)
    check(library.dmi_read_refresh(reader.handle) == 0 and reader.get("run", Run).n_records == 28 > before,
          "a refresh takes in what came since", before)
    check(library.dmi_read_refresh(reader.handle) == 0 and reader.get("run", Run).n_tensors == 13, "and one of what is complete is none")
    library.dmi_read_close(reader.handle)


def test_findings(library, run, check):
    flip_payload(sorted(run.glob("seg-*.dmi"))[0], 3)
    reader = Reader(library, run)
    check(library.dmi_read_verify(reader.handle) >= 1, "verify counts damage")
    texts = [reader.get("finding", Finding, i) for i in range(reader.get("run", Run).n_findings)]
    check(any(f.damage and f.file == b"seg-000000.dmi" and f.text for f in texts), "and the finding names the file")
    library.dmi_read_close(reader.handle)


def test_exports(check):
    done = subprocess.run(["nm", "-D", "--defined-only", "-P", LIBRARY], stdout=subprocess.PIPE, text=True, check=True)
    names = {line.split()[0].split("@")[0] for line in done.stdout.splitlines() if line.split()[1] != "A"}
    check(names == EXPORTS, "it exports what the header declares, and nothing else", names ^ EXPORTS)
    header = (pathlib.Path(__file__).parents[2] / "include/dmi/read.h").read_text(encoding="utf-8")
    check(all(f"{name}(" in header for name in EXPORTS), "and each is in the header")
    soname = subprocess.run(["readelf", "-d", LIBRARY], stdout=subprocess.PIPE, text=True, check=True).stdout
    check("libdmi_read.so.1]" in soname, "the soname has its major version")
