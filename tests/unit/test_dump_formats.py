# SPDX-License-Identifier: Apache-2.0
"""dmi-dump export in the layouts of others, each read back by what reads it."""
import csv
import importlib.util
import json
import math
import re
import shutil
import struct
import subprocess
import sys
import zipfile

import numpy
import pytest
import safetensors
import safetensors.numpy

from damage import flip_payload
from harness import BUILD, DMI_DUMP, ROOT
from test_dmi_dump import POSITIONS as FORMULA, X, read_safetensors
from test_dump_diff import DECODE, PREFILL

MAKE, MAKE_RUN, MAKE_ODD = (BUILD / "tests" / "unit" / name for name in ("make_schedule", "make_run", "make_odd_run"))
pytestmark = pytest.mark.built(DMI_DUMP, MAKE, MAKE_RUN, MAKE_ODD)
IDS, PRE, FINAL, MID = 4, 5, 6, 7
STEPS = [[("a", 0, 4), ("b", 0, 3)], [("b", 3, 1), ("a", 4, 1)], [("a", 5, 1)]]
WIDTH, LAYERS = 5, (0, 1, 3)


def element(request, position, layer, column):
    """of a residual stream: a whole number below 256, so that bf16 and every other type hold it"""
    return (ord(request[0]) * 7 + position * 5 + layer * 3 + column) % 200


def lines(steps=STEPS, dtype="bf16", ids="i32", layers=LAYERS, final=True, lacking=(), others=()):
    """@lacking: (layer or "ids", step) that has no record; @others: more lines in each step."""
    for number, spans in enumerate(steps):
        words, rows, first = [], [], 0
        for request, position, n in spans:
            words.append(f"{request}:{first}:{n}:{position}:{PREFILL if n > 1 else DECODE}:0:0")
            rows += [(request, p) for p in range(position, position + n)]
            first += n
        yield f"step {number} {first + 1} {' '.join(words)}"  # a row of padding
        if ids and ("ids", number) not in lacking:
            yield f"put {IDS} -1 1 {ids} {' '.join(str(-100 * ord(r[0]) - p) for r, p in rows)} 7"
        for layer in [*layers, *([9] if final else [])]:
            if (layer, number) not in lacking:
                values = " ".join(str(element(r, p, layer, c)) for r, p in rows for c in range(WIDTH))
                yield f"put {PRE if layer != 9 else FINAL} {layer if layer != 9 else -1} {WIDTH} {dtype} {values}"
        yield from others


@pytest.fixture(name="write")
def fixture_write(tmp_path):
    def write(name="run", change=lambda line: line, **how):
        done = subprocess.run([MAKE, tmp_path / name, "job", "0", "1", "0", "1", "hidden"], input="".join(f"{change(line)}\n" for line in lines(**how)),
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
        assert done.returncode == 0, done.stderr
        return tmp_path / name
    return write


@pytest.fixture(name="export")
def fixture_export(tmp_path):
    def export(run, form, *words, status=0, out="out"):
        where = tmp_path / out
        shutil.rmtree(where, ignore_errors=True)
        done = subprocess.run([DMI_DUMP, "export", run, "-f", form, "--force", "-o", where, *words], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, errors="replace", timeout=120)
        assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
        done.out = where
        return done
    return export


def as_float(bits, dtype):
    return (bits.astype("<u4") << 16).view("<f4") if dtype == "BF16" else bits


def read(path, more=()):
    """(hidden_states, token_ids, dtype of the first, metadata), beside @more; the package checks the file, whose bf16 numpy lacks."""
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    entry = header["hidden_states"]
    stored = {"BF16": "<u2", "F32": "<f4", "F8_E4M3": "u1", "F64": "<f8"}[entry["dtype"]]
    with safetensors.safe_open(path, "np") as file:
        assert sorted(file.keys()) == sorted(["hidden_states", "token_ids", *more])
        ids, metadata = file.get_tensor("token_ids"), file.metadata()
        assert list(file.get_slice("hidden_states").get_shape()) == entry["shape"]
    first, end = entry["data_offsets"]
    hidden = numpy.frombuffer(data[8 + n + first:8 + n + end], stored).reshape(entry["shape"])
    assert ids.dtype == numpy.int64
    return as_float(hidden, entry["dtype"]), ids, entry["dtype"], metadata


def files(out):
    """of samples, in the order of their names"""
    return sorted(p.name for p in out.glob("*.safetensors"))


def wanted(request, positions, layers):
    return [[[element(request, p, layer, c) for c in range(WIDTH)] for layer in layers] for p in positions]


POSITIONS = {"a": range(6), "b": range(4)}


@pytest.mark.parametrize("dtype, stored", [("bf16", "BF16"), ("f8e4m3", "F8_E4M3"), ("f64", "F64")])
def test_vllm(write, export, check, dtype, stored):
    done = export(write(dtype=dtype), "vllm")
    check(files(done.out) == ["a.safetensors", "b.safetensors"], "a file a request", list(done.out.iterdir()))
    for request, positions in POSITIONS.items():
        hidden, ids, found, metadata = read(done.out / f"{request}.safetensors")
        check(found == stored and hidden.tolist() == wanted(request, positions, (0, 1, 3, 9)), f"{request}: [tokens, layers, hidden]", hidden)
        check(ids.tolist() == [-100 * ord(request) - p for p in positions], "ids as int64", ids)
        check(json.loads(metadata["positions"]) == [[positions[0], len(positions)]] and metadata["request"] == request and
              json.loads(metadata["layers"]) == ["resid_pre.0", "resid_pre.1", "resid_pre.3", "resid_final"], "and what they are", metadata)


def test_rows_of_a_tensor_that_changes_stand_alone(tmp_path, export, check):
    """jsonl, show and a replay have each row; what is one array leaves them out by the words that list and Python have."""
    text = "step 0 2 a:0:2:0:1:3:0\nput 0 1 2 f32 1 2 3 4\nstep 1 1 a:0:1:2:1:3:0\nput 0 1 3 f16 14336 13312 0\n"
    subprocess.run([MAKE, tmp_path / "changes", "job", "0", "1", "0", "1"], input=text, text=True, check=True, stdout=subprocess.PIPE, timeout=60)
    run, words = tmp_path / "changes", "changes its dtype or width from record to record, so it is not one tensor"
    rows = [json.loads(line) for line in export(run, "jsonl", out="changes.jsonl").out.read_text(encoding="utf-8").splitlines()]
    check([(row["position"], row["values"]) for row in rows] == [(0, [1, 2]), (1, [3, 4]), (2, [0.5, 0.25, 0])], "jsonl", rows)
    shown = json.loads(subprocess.run([DMI_DUMP, "show", "q.1", run, "--rows", ":", "--json"], stdout=subprocess.PIPE, check=True, timeout=60).stdout)
    check([row["values"] for row in shown] == [[1, 2], [3, 4], [0.5, 0.25, 0]], "show", shown)
    check(f"a/q.1 is left out: it {words}" in export(run, "safetensors", status=1).stderr, "safetensors names it")
    listed = subprocess.run([DMI_DUMP, "list", "--tensors", run], stdout=subprocess.PIPE, check=True, text=True, timeout=60).stdout
    check(f"({words})" in listed and f'MIXED = "{words}"' in (ROOT / "python/dmi/run/structs.py").read_text(encoding="utf-8"), "list names it, and Python", listed)


@pytest.mark.parametrize("ids", ["i64", "u8", "i8"])
def test_vllm_types_of_ids(write, export, check, ids):
    _, found, _, _ = read(export(write(ids=ids), "vllm").out / "a.safetensors")
    want = numpy.array([-100 * ord("a") - p for p in range(6)]).astype({"i64": "i8", "u8": "u1", "i8": "i1"}[ids])
    check(found.tolist() == want.tolist(), "their values are kept", found)


def test_vllm_layers(write, export, check):
    run = write()
    for text, layers in (("3,0,last", (3, 0, 9)), ("last", (9,)), ("0-1", (0, 1)), ("1", (1,)), ("0-1,last", (0, 1, 9))):
        hidden, *_ = read(export(run, "vllm", "--layers", text).out / "a.safetensors")
        check(hidden.tolist() == wanted("a", range(6), layers), f"--layers {text}", hidden)
    for text, said, status in (("2", "site resid_pre has no layer 2; there is 0-1,3", 2), ("0,4", "no layer 4", 2), ("0:2", "is written 0-1", 2),
                               ("7-9", "no layer 7-9", 2), ("1,0-1", "twice", 2), ("x", "is none of a layer", 2), ("0,,1", "is none of a layer", 2)):
        done = export(run, "vllm", "--layers", text, status=status)
        check(said in done.stderr and not done.out.exists(), f"--layers {text} is refused", done.stderr)
    done = export(write("short", final=False), "vllm", "--layers", "0,last", status=1)
    check("no site resid_final was captured" in done.stderr, "no last", done.stderr)
    found = read_safetensors(export(run, "safetensors", "--layers", "0", "--layers", "last", out="list.safetensors").out)[0]
    check({(key[-1], key[:1]) for key in found if "resid_pre" in key} == {("0", "a"), ("3", "a"), ("0", "b"), ("3", "b")}, "a list elsewhere", list(found))


def test_formats_of_python(write, export, check):
    done = export(write(), "speculators", status=2)
    check("no format 'speculators': safetensors, npy" in done.stderr and "by `python -m dmi`: speculators" in done.stderr, "where they are is said", done.stderr)


def test_vllm_selections(write, export, check):
    run = write()
    done = export(run, "vllm", "--request", "b", "--tokens", "1:3")
    hidden, ids, _, _ = read(done.out / "b.safetensors")
    check(files(done.out) == ["b.safetensors"] and hidden.tolist() == wanted("b", (1, 2), (0, 1, 3, 9)) and
          ids.tolist() == [-9801, -9802], "requests and tokens", ids)
    other = write("other", others=[f"put {MID} 2 2 f32 1 2"])
    done = export(other, "vllm", "--site", "resid_mid", status=1)
    check("resid_mid.2 was captured with a scale" in done.stderr and not done.out.exists(), "a scale is not dropped in silence", done.stderr)
    done = export(run, "vllm", "--site", "mlp_out", status=2)
    check("no site or tensor 'mlp_out'" in done.stderr and not done.out.exists(), "a site that is not there", done.stderr)
    done = export(run, "vllm", "--request", "z", status=2)
    check("z" in done.stderr and not done.out.exists(), "nor a request", done.stderr)
    done = export(write("nothing", steps=[]), "vllm", status=1)
    check("nothing of a site resid_pre" in done.stderr and not done.out.exists(), "nothing at all", done.stderr)


def test_vllm_what_lacks(write, export, check):
    done = export(write("without", ids=None), "vllm", status=1)
    check("a site token_ids is there" in done.stderr and not done.out.exists(), "no ids", done.stderr)
    gap = write("gap", lacking={(1, 2)})
    done = export(gap, "vllm", status=1)
    check("request 'a' is left out: resid_pre.1 lacks position 5" in done.stderr, "a layer that lacks tokens", done.stderr)
    check(files(done.out) == ["b.safetensors"], "the others are there", list(done.out.iterdir()))
    export(gap, "vllm", "--layers", "0,3")
    done = export(write("shifted", lacking={(1, 1), ("ids", 2)}), "vllm", "--layers", "1", "--request", "a", status=1)
    check("token_ids lacks position 5" in done.stderr, "as many tokens, of other positions", done.stderr)
    done = export(write("none", lacking={(3, 0), (3, 1), (3, 2)}), "vllm", "--layers", "0,3", status=2)
    check("no layer 3" in done.stderr, "a layer of nobody", done.stderr)
    one = write("one", steps=[[("a", 0, 2)], [("b", 0, 2)]], lacking={(3, 1)})
    done = export(one, "vllm", status=1)
    check("request 'b' is left out: layer 3 is not there" in done.stderr, "a layer of one request", done.stderr)
    done = export(write("words", ids="f32"), "vllm", status=1)
    check("is no integer a token" in done.stderr and "no request has all" in done.stderr and not done.out.exists(), "ids that are none", done.stderr)


ALL = {"ids", *LAYERS, 9}
SAMPLES = {  # steps, those without records, what is said, samples
    "a chunk that was dropped": ([[("b", 0, 2)], [("b", 2, 2), ("a", 0, 1)]], {0}, "token_ids lacks positions 0-1\n", 1),
    "the end was dropped": ([[("a", 0, 1), ("b", 0, 2)], [("b", 2, 1)]], {1}, "token_ids lacks position 2\n", 1),
    "it was preempted": ([[("b", 0, 3)], [("b", 0, 2), ("a", 0, 1)], [("b", 2, 3)]], {0}, None, 2),
    "it starts late": ([[("a", 0, 2), ("b", 2, 3)]], set(), "token_ids lacks positions 0-1\n", 1),
    "holes": ([[("b", 2 * i, 1), ("a", i, 1)] for i in range(6)], set(), "token_ids lacks positions 1, 3, 5, 7 and 1 more range\n", 1),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_has_every_position(write, export, check, name):
    steps, dropped, said, n = SAMPLES[name]
    done = export(write(steps=steps, lacking={(layer, step) for layer in ALL for step in dropped}), "vllm", status=1 if said else 0)
    check(len(files(done.out)) == n and (f"request 'b' is left out: {said}" if said else "") in done.stderr, "none is shortened", done.stderr)
    check(done.stdout.splitlines()[-1] == f"samples: {n} written, {'1 left out (1 without all rows)' if said else '0 left out'}", "one line sums it", done.stdout)


def test_a_sample_of_chosen_tokens(write, export, check):
    run = write(steps=[[("a", 0, 2), ("b", 2, 3)]])
    done = export(run, "vllm", "--tokens", "2:4", "--request", "b")
    check(read(done.out / "b.safetensors")[1].tolist() == [-9802, -9803], "what was asked for is all there", done.stdout)
    done = export(run, "vllm", "--tokens", "1:4", "--request", "b", status=1)
    check("token_ids lacks position 1" in done.stderr and done.stdout == "samples: 0 written, 1 left out (1 without all rows)\n", "or is not", done.stderr)


def test_rows_of_a_prefix_cache_are_named(write, export, check):
    run = write(steps=[[("a", 0, 1), ("b", 2, 2)]], change=lambda line: line.replace("b:1:2:2:1:0:0", "b:1:2:2:1:0:0:2"))
    done = export(run, "vllm", status=1)
    check("request 'b' is left out: token_ids lacks positions 0-1, which a prefix cache had\n" in done.stderr and
          done.stdout.endswith("samples: 1 written, 1 left out (1 with a cached prefix)\n"), "as what they are", (done.stdout, done.stderr))


def test_rows_without_a_request_are_no_sample(export, check, tmp_path):
    def make(name, first):
        text = "".join(f"{line}\n" for line in [first, f"put {IDS} -1 1 i32 1 2", f"put {PRE} 0 2 f32 1 2 3 4"])
        subprocess.run([MAKE, tmp_path / name, "job", "0", "1", "0", "1", "hidden"], input=text, text=True, check=True, timeout=60)
        return tmp_path / name
    done = export(make("named", "step 0 2 run:0:2:0:1:2:0"), "vllm", "--layers", "0")
    check(files(done.out) == ["run.safetensors"], "a request may be called run", list(done.out.iterdir()))
    done = export(make("none", "step 0 2 run:0:2:0:1:2:1"), "vllm", "--layers", "0", status=1)  # padding
    check("samples: 0 written" in done.stdout and not done.out.exists(), "rows of padding are nobody's", (done.stdout, done.stderr))


def test_values_have_the_scale_of_their_own_entry(write, export, check, tmp_path):
    """Sites 7 and 11 have one name; 8 is 2 by the one and 4 by the other."""
    run = tmp_path / "run"
    text = "step 0 1 a:0:1:0:1:1:0\nput 7 0 1 f32 8\nstep 1 1 a:0:1:1:2:1:0\nput 11 0 1 f32 8\n"
    subprocess.run([MAKE, run, "job", "0", "1", "0", "1", "hidden"], input=text, text=True, check=True, timeout=60)
    shown = json.loads(subprocess.run([DMI_DUMP, "show", "a/resid_mid.0", run, "--rows", ":", "--json"], stdout=subprocess.PIPE, check=True, timeout=60).stdout)
    check([row["values"] for row in shown] == [[2], [4]], "shown", shown)
    done = export(run, "safetensors", status=1)
    check("a/resid_mid.0 is left out: it changes its scale from record to record" in done.stderr, "files that say one scale leave it out", done.stderr)


def test_vllm_damage(write, export, check):
    run = write()
    segment = sorted(next(p for p in [run, *run.iterdir()] if list(p.glob("seg-*"))).glob("seg-*.dmi"))[0]
    flip_payload(segment, 12)  # of the last step, which is a's alone
    done = export(run, "vllm", status=1)
    check(files(done.out) == ["b.safetensors"] and "DAMAGED" in done.stderr and
          done.stderr.count("request 'a' is left out: resid_pre.1 lacks position 5") == 1,
          "a request whose record is damaged has no file, and that is said once", (done.stderr, list(done.out.iterdir())))
    hidden, *_ = read(done.out / "b.safetensors")
    check(hidden.tolist() == wanted("b", POSITIONS["b"], (0, 1, 3, 9)), "the other's has all", hidden)


def test_vllm_names(write, export, check):
    names = ["../../x", "/etc/x", "..", "x" * 60, "%2E", ".", "X", "x", "a\x01\x1b"]
    done = export(write(steps=[[(name, 0, 1) for name in names]]), "vllm")
    its = files(done.out)
    check(len(its) == len(names) and all(p.is_file() for p in done.out.iterdir()), "each in a file of its own", its)
    found = {read(done.out / f)[3]["request"] for f in its}
    check(found == set(names), "which says whose it is", found)
    (done.out / "mine").write_text("x", encoding="utf-8")
    again = subprocess.run([DMI_DUMP, "export", done.out.parent / "run", "-f", "vllm", "-o", done.out], stderr=subprocess.PIPE, text=True, timeout=60)
    check(again.returncode == 2 and "is not empty" in again.stderr, "and nothing is overwritten", again.stderr)


# ---- npz


@pytest.fixture(name="formula")
def fixture_formula(tmp_path):
    subprocess.run([MAKE_RUN, tmp_path / "formula"], check=True, stdout=subprocess.PIPE, timeout=60)
    return tmp_path / "formula"


def table():
    spec = importlib.util.spec_from_file_location("names", ROOT / "python/dmi/torch/names.py")
    names = importlib.util.module_from_spec(spec)
    sys.modules["names"] = names
    spec.loader.exec_module(names)
    return names.LENS


def stacked(request, positions, layer):
    return [[element(request, p, layer, c) for c in range(WIDTH)] for p in positions]


def test_npz(formula, export, check):
    reference = export(formula, "safetensors", out="all.safetensors").out
    done = export(formula, "npz", out="all.npz")
    with zipfile.ZipFile(done.out) as archive:
        check(archive.testzip() is None and {i.compress_type for i in archive.infolist()} == {zipfile.ZIP_STORED}, "checksums hold, nothing is compressed")
    want, facts = read_safetensors(reference)
    with numpy.load(done.out) as file:
        index = json.loads(file["index.json"])
        check(set(index["tensors"]) == set(want) and len(file.files) == len(want) + 1, "every key", file.files)
        for key, rows in want.items():
            name = index["tensors"][key]["file"].removesuffix(".npy")
            array, shape = file[name], json.loads(facts["tensors"])[key]["shape"]
            found = as_float(array, "BF16") if array.dtype == numpy.uint16 else array
            check(list(array.shape) == [len(rows), *shape] and found.reshape(len(rows), -1).tolist() == rows, f"{key!r}", array)
            check(name == key if key[0] != "." else "/" not in name and "\n" not in name, f"its name, unless that is a path that leads elsewhere: {key!r}", name)
    check("bf16" in done.stderr and index["tensors"]["france/blocks.0.h"]["dtype"] == "bf16", "types that numpy lacks are said", done.stderr)
    check(sorted(p.name for p in done.out.parent.iterdir()) == ["all.npz", "all.safetensors", "formula"], "no other file stays")


def test_npz_transformerlens(write, export, check):
    run = write()
    with numpy.load(export(run, "npz", "--names", "transformerlens", "--request", "b", out="b.npz").out) as file:
        check(set(file.files) == {"hook_tokens", "blocks.0.hook_resid_pre", "blocks.1.hook_resid_pre", "blocks.3.hook_resid_pre", "resid_final", "index.json"},
              "of one request without its name", file.files)
        found = as_float(file["blocks.1.hook_resid_pre"], "BF16")
        check(found.tolist() == stacked("b", range(4), 1), "the values", found)
    with numpy.load(export(run, "npz", "--names", "transformerlens", out="all.npz").out) as file:
        check({"a/blocks.3.hook_resid_pre", "b/hook_tokens"} < set(file.files), "of several with it", file.files)
    source = (ROOT / "tools/dump/export_lens.c").read_text(encoding="utf-8")
    check(dict(re.findall(r'\{ "(\w+)", "([\w.]+)" \}', source)) == {ours: theirs for theirs, ours in table().items()}, "the names that Python has")
    for form, names in (("npz", "x"), ("safetensors", "keys")):
        check("--names" in export(run, form, "--names", names, status=2).stderr, f"--names {names} of {form} is refused")
    done = export(run, "npz", "--request", "z", status=2)
    check(not done.out.exists() and "z" in done.stderr, "nothing selected", done.stderr)


def test_npz_names(tmp_path, export, check):
    subprocess.run([MAKE_ODD, tmp_path / "odd", "names"], check=True, timeout=60)
    want, _ = read_safetensors(export(tmp_path / "odd", "safetensors", out="odd.safetensors").out)
    done = export(tmp_path / "odd", "npz", out="odd.npz")
    with numpy.load(done.out) as file, zipfile.ZipFile(done.out) as archive:
        index = json.loads(file["index.json"])["tensors"]
        names = archive.namelist()
        check(len(set(names)) == len(names) == len(want) + 1 and set(index) == set(want), "each has a name of its own", names)
        check(all(c.isprintable() or ord(c) > 0xa0 for name in names for c in name), "without controls", names)
        check(all(file[index[key]["file"]].tolist() == rows for key, rows in want.items()), "and its rows")


def test_npz_paths(write, export, check):
    requests = ["../x", "/etc/x", "a/../../b", "./c", "d//e", "f/g", "..", "h\\i"]
    done = export(write(steps=[[(name, 0, 1) for name in requests]], layers=(0,)), "npz", out="paths.npz")
    with numpy.load(done.out) as file, zipfile.ZipFile(done.out) as archive:
        names, index = archive.namelist(), json.loads(file["index.json"])["tensors"]
        check(all(part not in ("", ".", "..") and "\\" not in part for name in names for part in name.split("/")), "none leads elsewhere", names)
        check("f/g/resid_pre.0.npy" in names and len(index) == 3 * len(requests), "and those that do not anyway are as they were", names)
        check(all(as_float(file[index[f"{r}/resid_pre.0"]["file"]], "BF16").tolist() == stacked(r, [0], 0) for r in requests), "each has its rows")


def test_npz_damage(write, export, check):
    run = write()
    flip_payload(sorted(next(p for p in [run, *run.iterdir()] if list(p.glob("seg-*"))).glob("seg-*.dmi"))[0], 12)
    done = export(run, "npz", status=1, out="damaged.npz")
    with numpy.load(done.out) as file:
        check(file["a/resid_pre.1"].shape == (5, WIDTH) and file["a/resid_pre.0"].shape == (6, WIDTH), "what can be read is there", file.files)
        index = json.loads(file["index.json"])
        check(index["positions"][index["tensors"]["a/resid_pre.1"]["facts"]["positions"]] == [[0, 5]], "at its positions", index)


# ---- text


def tensors_of(path):
    """{(request, site, layer): rows} of a safetensors export"""
    rows, metadata = read_safetensors(path)
    facts = json.loads(metadata["tensors"])
    return {tuple(facts[key][k] for k in ("request", "site", "layer")): found for key, found in rows.items()}


def test_jsonl(formula, export, check):
    want = tensors_of(export(formula, "safetensors", out="all.safetensors").out)
    found, positions = {}, {}
    with open(export(formula, "jsonl", out="all.jsonl").out, encoding="utf-8") as file:
        for row in map(json.loads, file):
            key = row["request"], row["site"], row["layer"]
            found.setdefault(key, []).append(row["values"])
            positions.setdefault(key, []).append(row["position"])
    check(found == want, "every row and value", sorted(map(str, found)))
    check(positions["france", "q", 1] == FORMULA["france"] and positions[X, "ids", None] == FORMULA[X] and positions[None, "bias", None] == [None] * 4,
          "at its position", positions)


def test_jsonl_of_what_is_rare(write, export, check, tmp_path):
    odd = [f"put {MID} 0 3 f32 nan inf -inf -0.0 1e-45 3e38", f"put {PRE} 7 2 i64 9007199254740993 -9223372036854775808"]
    lines_ = export(write(steps=[[("a", 0, 1)]], others=odd), "jsonl", "--layers", "0-7", out="odd.jsonl").out.read_text(encoding="utf-8").splitlines()
    rows = {(row["site"], row["layer"]): row["values"] for row in map(json.loads, lines_)}
    check(rows["resid_mid", 0] == ["NaN", "Infinity", "-Infinity"] and rows["resid_pre", 7] == [9007199254740993, -2**63], "what a double lacks", rows)
    subprocess.run([MAKE_ODD, tmp_path / "drafts", "again"], check=True, timeout=60)
    lines_ = export(tmp_path / "drafts", "jsonl", "--superseded", out="again.jsonl").out.read_text(encoding="utf-8").splitlines()
    rows = [(row["position"], row["values"][0], row.get("superseded", False)) for row in map(json.loads, lines_)]
    check(rows == [(0, 0, False), (1, 1, False), (2, 2, True), (3, 3, True), (2, 102, False), (3, 103, True), (3, 203, False)],
          "rows that do not count are marked", rows)
    done = export(tmp_path / "drafts", "jsonl", "--site", "z", status=2, out="none.jsonl")
    check(not done.out.exists() and "z" in done.stderr, "nothing selected", done.stderr)
    wide = write("wide", steps=[[("a", 0, 30)]], layers=range(20))
    want = tensors_of(export(wide, "safetensors", out="wide.safetensors").out)
    found = {}
    for row in map(json.loads, export(wide, "jsonl", out="wide.jsonl").out.read_text(encoding="utf-8").splitlines()):
        found.setdefault((row["request"], row["site"], row["layer"]), []).append(row["values"])
    check(found == want, "many rows", len(found))


def test_csv(formula, write, export, check):
    want = tensors_of(export(formula, "safetensors", out="all.safetensors").out)
    with open(export(formula, "csv", out="all.csv").out, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    check([(r["request"] or None, r["site"], int(r["layer"]) if r["layer"] else None) for r in rows] == list(want), "a line a tensor, whatever its name", rows)
    for row, tensor in zip(rows, want.values()):
        flat = [v for values in tensor for v in values]
        near = math.isclose(float(row["mean"]), sum(flat) / len(flat)) and math.isclose(float(row["norm"]), math.hypot(*flat))
        check(near and (float(row["min"]), float(row["max"]), int(row["n"])) == (min(flat), max(flat), len(flat)) and
              (int(row["rows"]), int(row["width"]), row["non_finite"]) == (len(tensor), len(tensor[0]), "0"), f"statistics of {row['site']}", row)
    odd = write(steps=[[("a", 0, 1)]], others=[f"put {MID} 0 4 f32 nan inf -3 4", f"put {MID} 1 1 f32 nan"])
    with open(export(odd, "csv", "--site", "resid_mid", out="odd.csv").out, encoding="utf-8", newline="") as file:
        rows = [tuple(r[k] for k in ("n", "mean", "norm", "min", "max", "non_finite")) for r in csv.DictReader(file)]
    check(rows == [("4", "0.5", "5", "-3", "4", "2"), ("1", "", "0", "", "", "1")], "what is not finite is counted, and in no sum", rows)
