# SPDX-License-Identifier: Apache-2.0
"""What dmi-dump says of runs that make_run wrote by a formula."""
import ast
import json
import math
import pathlib
import struct
import subprocess

import pytest

from harness import BUILD, DMI_DUMP

MAKE_RUN = BUILD / "tests" / "unit" / "make_run"
pytestmark = pytest.mark.built(DMI_DUMP, MAKE_RUN)
X = "../../x\n"
POSITIONS = {"france": [0, 1, 2, 3, 4, 5], X: [7, 8, 9, 10]}
LOGIT_POSITIONS = {"france": [2, 3, 4, 5], X: [8, 9, 10]}
NUMBER = {"france": 1, X: 2}
SIZES = {"F32": 4, "BF16": 2, "I32": 4, "F16": 2}


def value(request, position, layer, i):
    return request + position / 16 + layer / 128 + i / 1024


def rounded(x):
    """as bf16 by cutting, the way make_run does it"""
    return struct.unpack("<f", b"\0\0" + struct.pack("<f", x)[2:])[0]


def expected():
    """{key: (rows, width, value of each row and column)} of a run with step metadata"""
    want = {}
    for request, positions in POSITIONS.items():
        number = NUMBER[request]
        for layer in (0, 1):
            want[f"{request}/q.{layer}"] = [[value(number, p, layer, i) for i in range(16)] for p in positions]
            want[f"{request}/blocks.{layer}.h"] = [[rounded(value(number, p, layer, i)) for i in range(8)]
                                                  for p in positions]
        want[f"{request}/ids"] = [[100 * number + p] for p in positions]
        want[f"{request}/logits"] = [[4 * value(number, p, 0, i) for i in range(32)] for p in LOGIT_POSITIONS[request]]
    want["bias"] = [[value(3, 0, 0, i) for i in range(8)]] * 4
    return want


def read_safetensors(path):
    """{key: rows}, metadata; straight from the format's description"""
    data = pathlib.Path(path).read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8:8 + n]), data[8 + n:]
    metadata, out, end = header.pop("__metadata__", {}), {}, 0
    for key, entry in header.items():
        first, last = entry["data_offsets"]
        rows, width = entry["shape"]
        assert first == end and last - first == rows * width * SIZES[entry["dtype"]], key
        end, raw = last, body[first:last]
        if entry["dtype"] == "BF16":
            raw = b"".join(b"\0\0" + raw[i:i + 2] for i in range(0, len(raw), 2))
        flat = struct.unpack(f"<{rows * width}{'i' if entry['dtype'] == 'I32' else 'f'}", raw)
        out[key] = [list(flat[r * width:(r + 1) * width]) for r in range(rows)]
    assert end == len(body)
    assert all(isinstance(v, str) for v in metadata.values())
    return out, metadata


def positions_of(metadata, key):
    spans = json.loads(metadata["positions"])[json.loads(metadata["tensors"])[key]["positions"]]
    return [first + i if first >= 0 else -1 for first, n in spans for i in range(n)]


def write_safetensors(path, tensors):
    header, body = {}, b""
    for key, rows in tensors.items():
        raw = b"".join(struct.pack(f"<{len(row)}f", *row) for row in rows)
        header[key] = {"dtype": "F32", "shape": [len(rows), len(rows[0])], "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + body)


def sketch(row):
    """tests/reference/README.md's y = x S / sqrt(8), from its words"""
    mask, out = 2**64 - 1, [0.0] * 8
    for i, x in enumerate(row):
        for j in range(8):
            z = ((i * 8 + j + 1) * 0x9E3779B97F4A7C15 + 0x444D49) & mask
            z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
            z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
            z ^= z >> 31
            out[j] += -x if z >> 63 else x
    return [y / math.sqrt(8) for y in out]


class Case:
    def __init__(self, folder, checked):
        self.folder, self.checked = folder, checked

    def check(self, name, ok, detail=""):
        self.checked(ok, name, str(detail)[:3000])

    def new_run(self, name, *words):
        out = self.folder / name
        subprocess.run([MAKE_RUN, out, *words], check=True, stdout=subprocess.PIPE, timeout=60)
        return out

    def dump(self, *words):
        return subprocess.run([DMI_DUMP, *map(str, words)], cwd=self.folder, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=60)

    def json(self, *words):
        done = self.dump(*words, "--json")
        return json.loads(done.stdout), done.returncode


@pytest.fixture
def case(tmp_path, check):
    return Case(tmp_path, check)


@pytest.fixture
def out(case):
    return case.new_run("run")


def test_arguments(case, out):
    done = case.dump("--help")
    case.check("--help tells every command", done.returncode == 0 and all(
        f"dmi-dump {word}" in done.stdout for word in ("list", "show", "stats", "verify", "export")), done)
    for words, said in ((("nonsense", out), "no command"), (("join", out), "every command joins"), (("list",), "needs a RUN"), (("show", out), "needs a RUN"),
                        (("show",), "needs a SITE"), (("list", out, "more"), "one argument too many"),
                        (("show", "q", "--rows", "x", out), "is none of a number"), (("show", "q", "--rows", "5:2", out), "is none of"),
                        (("list", case.folder / "nowhere"), "No such file"), (("list", "/proc/self/task"), "is no run"),
                        (("export", "-f", "pt", out), "no format"), (("list", "--bad", out), "unrecognized option"),
                        (("verify", out, "--against", case.folder / "nothing"), "No such file")):
        done = case.dump(*words)
        case.check(f"wrong usage is 2 and explained: {' '.join(str(w) for w in words[:3] if w != out)}",
                   done.returncode == 2 and said in done.stderr, done)


def test_listing(case, out):
    facts, status = case.json("list", out)
    sites = {site["site"]: site for site in facts["sites"]}
    case.check("list: sites merged by name, with layers, width and rows", status == 0 and
               sites["q"]["layers"] == [0, 1] and sites["q"]["width"] == 16 and sites["q"]["rows"] == 20 and
               list(sites) == ["q", "blocks.{layer}.h", "ids", "logits", "bias"], facts)
    case.check("list: what is absent, and what is stated", facts["absent"] == {"v": "fused away"} and
               facts["conventions"] == {"layer_base": "0"} and facts["model"] == "formula", facts)
    keys = [t["key"] for t in case.json("list", "--tensors", out)[0]["tensors"]]
    case.check("list --tensors: the keys that export uses", sorted(keys) == sorted(expected()), keys)
    case.check("list --records: one each", len(case.json("list", "--records", out)[0]["records"]) == 28)
    members = ("steps", "cached", "computed", "prefill", "decode", "other", "end_position")
    told = {r["request"]: {m: r[m] for m in members} for r in case.json("list", "--requests", out)[0]["requests"]}
    case.check("list --requests: tokens computed, by phase, and cached", told == {
        "france": {"steps": 4, "cached": 0, "computed": 6, "prefill": 3, "decode": 0, "other": 3, "end_position": 6},
        X: {"steps": 3, "cached": 7, "computed": 4, "prefill": 2, "decode": 1, "other": 1, "end_position": 11}}, told)
    done = case.dump("stats", out)
    case.check("stats: cached tokens are said to be cached, not missing", "2 requests: 10 tokens computed, 7 cached" in done.stdout, done)
    done = case.dump("list", "--requests", out)
    case.check("list --requests: a newline in an id makes no line", done.returncode == 0 and "\n../../x? " in done.stdout, done)
    done = case.dump("list", "--tensors", out)
    case.check("a request id with a newline makes no line of its own", done.returncode == 0 and
               "../../x?/q.0" in done.stdout and X not in done.stdout, done)


def test_showing(case, out):
    rows, status = case.json("show", "q", "--layer", "1", "--step", "42", "--request", "france", out)
    case.check("show: one row, by site, layer, step and request", status == 0 and len(rows) == 1 and
               rows[0]["position"] == 4 and rows[0]["values"] == [value(1, 4, 1, i) for i in range(16)], rows)
    rows, _ = case.json("show", "logits", "--request", X, "--rows", "1:3", out)
    case.check("show: a range of rows, divided by the scale", [r["position"] for r in rows] == [9, 10] and
               rows[0]["values"] == [value(2, 9, 0, i) for i in range(32)], rows)
    rows, _ = case.json("show", "q", "--layers", "0", "--forward", "2:", out)
    case.check("show: open ranges", sorted(r["position"] for r in rows) == [4, 5, 10], rows)
    done = case.dump("show", "q", out)
    case.check("show in text: values, and how many more", done.returncode == 0 and "2 more rows" in done.stdout and
               "norm" in done.stdout and X not in done.stdout, done)
    done = case.dump("show", "nothing", out)
    case.check("show of a site that is not there names those that are", done.returncode == 2 and
               "logits" in done.stderr, done)


def test_counting(case, out):
    facts, status = case.json("stats", out)
    by = {site["site"]: site for site in facts["sites"]}
    case.check("stats: the account of a closed run holds", status == 0 and facts["holds"] and
               facts["state"] == "closed" and by["q"]["expected"] == by["q"]["captured"] == by["q"]["captured"] and
               by["q"]["records"] == 8 and by["q"]["rows"] == 22 and by["q"]["raw_bytes"] == 22 * 64, facts)
    killed = case.new_run("killed", "killed")
    facts, status = case.json("stats", killed)
    by = {site["site"]: site for site in facts["sites"]}
    case.check("stats: after a kill what is missing is lost_at_kill", status == 0 and facts["state"] == "killed" and
               by["blocks.{layer}.h"]["lost_at_kill"] == {"records": 3, "rows": 3, "bytes": 48} and facts["holds"], facts)
    case.check("verify: a killed run is sound", case.dump("verify", killed).returncode == 0)
    counters = next(killed.glob("*/counters"))
    data = bytearray(counters.read_bytes())
    data[128:136] = struct.pack("<Q", 0)  # site 0 expected fewer records than there are
    counters.write_bytes(data)
    done = case.dump("stats", killed)
    case.check("stats: a MISMATCH is said, and the status is 1", done.returncode == 1 and
               "MISMATCH" in done.stdout, done)
    case.check("verify: so does it", case.dump("verify", killed).returncode == 1)


def test_exporting(case, out):
    path = case.folder / "all.safetensors"
    done = case.dump("export", "--format", "safetensors", out, "--force", "-o", path)
    got, metadata = read_safetensors(path)
    want = expected()
    case.check("export: every key, row and value", done.returncode == 0 and got == want,
               (done, sorted(set(got) ^ set(want)), [k for k in want if got.get(k) != want[k]]))
    facts = json.loads(metadata["tensors"])
    case.check("export: positions, scale and conventions go along", positions_of(metadata, f"{X}/logits") == [8, 9, 10] and
               facts["france/logits"]["scale"] == 4 and json.loads(metadata["conventions"]) == {"layer_base": "0"} and
               metadata["model"] == "formula" and facts["france/q.0"]["shape"] == [2, 8], metadata)
    case.dump("export", out, "--force", "-o", path, "--site", "q", "--layer", "1", "--request", "france")
    case.check("export: a selection", list(read_safetensors(path)[0]) == ["france/q.1"])
    folder = case.folder / "npy"
    done = case.dump("export", "-f", "npy", out, "-o", folder)
    index = json.loads((folder / "index.json").read_text())["tensors"]
    flat = {p.name for p in folder.iterdir()}
    case.check("export npy: one file a key, all within the folder", done.returncode == 0 and
               flat == {e["file"] for e in index.values()} | {"index.json"} and set(index) == set(want), (done, flat))
    data = (folder / index[f"{X}/q.1"]["file"]).read_bytes()
    length = struct.unpack("<H", data[8:10])[0]
    header = ast.literal_eval(data[10:10 + length].decode())
    case.check("export npy: the header and the rows", data[:8] == b"\x93NUMPY\x01\0" and (10 + length) % 64 == 0 and
               header == {"descr": "<f4", "fortran_order": False, "shape": (4, 16)} and
               data[10 + length:] == b"".join(struct.pack("<16f", *row) for row in want[f"{X}/q.1"]), header)
    case.check("export npy: bf16 goes out as bits, and says so", index["france/blocks.0.h"]["stored_as"] == "<u2" and
               "bf16" in done.stderr, done)
    two = case.new_run("two", "two-widths")
    done = case.dump("export", two, "--force", "-o", path)
    case.check("export: a tensor whose width changes is left out by name", done.returncode == 1 and
               "bias is left out" in done.stderr and "bias" not in read_safetensors(path)[0], done)
    done = case.dump("export", out, "-o", "/dev/full")
    case.check("export to a full disk fails with the reason", done.returncode == 2 and
               ("No space" in done.stderr or "Invalid" in done.stderr) and pathlib.Path("/dev/full").exists(), done)


def test_without_steps(case):
    out = case.new_run("anonymous", "anonymous")
    path = case.folder / "anonymous.safetensors"
    case.dump("export", out, "--force", "-o", path)
    got, metadata = read_safetensors(path)
    case.check("without step metadata: SITE.LAYER, rows in launch order", sorted(got) == sorted(
        ["q.0", "q.1", "blocks.0.h", "blocks.1.h", "ids", "logits", "bias"]) and
        [r[0] for r in got["ids"]] == [100, 101, 102, 207, 208, 0, 209, 103, 104, 210, 105], got.get("ids"))
    case.check("without step metadata: positions counted over the forwards",
               positions_of(metadata, "q.0") == list(range(11)), metadata)
    write_safetensors(case.folder / "one.safetensors", {"someone/q.0": got["q.0"], "someone/ids": got["ids"]})
    facts, status = case.json("verify", out, "--against", case.folder / "one.safetensors")
    case.check("verify --against: the reference's only request is meant", status == 0 and facts["compared"] == 2, facts)
    write_safetensors(case.folder / "few.safetensors", {"a/q.0": got["q.0"], "b/q.0": got["q.0"]})
    done = case.dump("verify", out, "--against", case.folder / "few.safetensors")
    case.check("verify --against: of several requests one must be named", done.returncode == 1 and
               "--request" in done.stdout, done)
    done = case.dump("verify", out, "--against", case.folder / "few.safetensors", "--request", "b")
    case.check("verify --against --request", done.returncode == 0, done)


def full_rows(request, key):
    """The reference's rows: all positions from 0, where the run has only some."""
    width = {"q": 16, "logits": 32}[key.split(".")[0]]
    layer = int(key.split(".")[1]) if "." in key else 0
    return [[value(NUMBER[request], p, layer, i) for i in range(width)] for p in range(12)]


def test_comparing(case, out):
    path = case.folder / "ref.safetensors"
    keys = [f"{request}/{key}" for request in POSITIONS for key in ("q.0", "q.1", "logits")]
    ref = {key: full_rows(*key.rsplit("/", 1)) for key in keys}
    ref["france/mlp_out.3"] = [[1.0]]
    write_safetensors(path, ref)
    ref["elsewhere/q.0"] = ref["elsewhere/q.1"] = [[1.0]]
    write_safetensors(path, ref)
    facts, status = case.json("verify", out, "--against", path)
    del ref["elsewhere/q.0"], ref["elsewhere/q.1"]
    rows = {t["key"]: t for t in facts["tensors"]}
    case.check("verify --against: agrees, by position, scale applied", status == 0 and facts["agrees"] and
               facts["compared"] == 6 and rows[f"{X}/logits"]["error"] == 0 and rows[f"{X}/logits"]["rows"] == 3 and
               rows["france/q.1"]["rows"] == 6 and rows["france/q.1"]["cosine"] > 0.999999, facts)
    case.check("verify --against: what only one side has", facts["not_captured"] == {"mlp_out": 1} and
               facts["requests_not_in_run"] == {"elsewhere": 2} and
               set(facts["not_in_reference"]) == {"blocks.0.h", "blocks.1.h", "ids", "bias"}, facts)
    case.check("verify --against: the table merges entries of one name", [
        (s["site"], s["layers"], s["tensors"], s["rows"]) for s in facts["sites"]] ==
        [("q", 2, 4, 20), ("logits", 1, 2, 7)], facts["sites"])
    cached = {t["key"]: t["cached_rows"] for t in facts["tensors"]}
    case.check("verify --against: rows that a prefix cache had are counted as cached",
               cached == {key: 7 * (key.startswith(X) and "logits" not in key) for key in keys}, cached)
    write_safetensors(path, {"known/" + key: full_rows(X, key) for key in ("q.0", "q.1")})
    other, status = case.json("verify", out, "--against", path, "--request", f"{X}=known")
    case.check("verify --against --request ID=NAME: under the reference's name", status == 0 and other["agrees"] and
               [(t["key"], t["rows"], t["cached_rows"]) for t in other["tensors"]] == [("known/q.0", 4, 7), ("known/q.1", 4, 7)] and
               list(other["requests_not_in_reference"]) == ["france"], other)
    write_safetensors(path, ref)
    only, status = case.json("verify", out, "--against", path, "--request", "france")
    case.check("verify --against --request: only that", status == 0 and only["compared"] == 3, only)
    both, status = case.json("verify", out, "--against", path, "--request", "france", "--request", X)
    case.check("verify --against --request twice: these", status == 0 and both["compared"] == len(keys), both)
    done = case.dump("verify", out, "--against", path, "--request", "france", "--request", "fance")
    case.check("verify --against --request: one that the run has not", done.returncode == 2 and "no request 'fance'; near it: france" in done.stderr, done)
    sketched = {key: [sketch(row) for row in rows_] for key, rows_ in ref.items() if "mlp" not in key}
    write_safetensors(path, sketched)
    facts, status = case.json("verify", out, "--against", path)
    case.check("verify --against: sketches are recognised and agree", status == 0 and
               all(t["sketch"] and t["error"] < 1e-6 for t in facts["tensors"]), facts)
    for name, change in (("swapped rows", lambda r: [r[1], r[0]] + r[2:]), ("another layer's values", lambda r: full_rows("france", "q.1")),
                         ("one value", lambda r: r[:4] + [[9.0] + r[4][1:]] + r[5:]), ("a NaN", lambda r: [[math.nan] * 16] + r[1:])):
        for sketches in (False, True):
            rows_ = change(full_rows("france", "q.0"))
            write_safetensors(path, {"france/q.0": [sketch(r) for r in rows_] if sketches else rows_})
            done = case.dump("verify", out, "--against", path)
            case.check(f"verify --against{', sketches' if sketches else ''}: {name} is seen", done.returncode == 1 and
                       "DIFFERS france/q.0" in done.stdout, done)
    case.dump("verify", out, "--against", path)
    write_safetensors(path, {"france/q.0": [[v * 1.001 for v in row] for row in full_rows("france", "q.0")]})
    case.check("tolerances decide", case.dump("verify", out, "--against", path).returncode == 0 and
               case.dump("verify", out, "--against", path, "--tolerance", "1e-4").returncode == 1 and
               case.dump("verify", out, "--against", path, "--row-tolerance", "1e-4").returncode == 1)
    write_safetensors(path, {"france/q.0": [[1.0] * 5] * 6})
    done = case.dump("verify", out, "--against", path)
    case.check("another shape is a difference", done.returncode == 1 and "another shape" in done.stdout, done)


def test_damaged_references(case, out):
    for name, data in (("empty", b""), ("short", b"abc"), ("length", b"\xff" * 16), ("json", struct.pack("<Q", 4) + b"{{{{"),
                       ("array", struct.pack("<Q", 2) + b"[]"),
                       ("outside", struct.pack("<Q", 62) + b'{"a":{"dtype":"F32","shape":[9,9],"data_offsets":[0,324]}}    ')):
        (case.folder / name).write_bytes(data)
        done = case.dump("verify", out, "--against", case.folder / name)
        case.check(f"a reference that is none ({name}) is refused", done.returncode == 2 and
                   any(word in done.stderr for word in ("safetensors", "outside", "is empty")), done)


def test_damaged_runs(case):
    out = case.new_run("damaged")
    segment = sorted(out.glob("*/seg-*.dmi"))[0]
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 4
    segment.write_bytes(data)
    done = case.dump("verify", out)
    case.check("verify names file, chunk and offset", done.returncode == 1 and
               "DAMAGED: seg-000000.dmi, chunk " in done.stderr and "offset " in done.stderr, done)
    sorted(out.glob("*/seg-*.dmi"))[1].unlink()
    facts, status = case.json("verify", out)
    case.check("verify names a missing file", status == 1 and not facts["intact"] and any(
        f["file"] == "seg-000001.dmi" and "missing" in f["text"] for f in facts["findings"]), facts)
