# SPDX-License-Identifier: Apache-2.0
"""dmi.export and `python -m dmi`: what others read of a run, read back by them."""
import json
import shutil
import subprocess
import sys

import datasets
import numpy
import pyarrow.parquet as parquet
import pytest
import safetensors

from harness import BUILD, ROOT

sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "unit")]
import dmi  # noqa: E402
from damage import flip_payload  # noqa: E402
from dmi.run import export, tables  # noqa: E402
from test_dump_formats import ALL, POSITIONS, SAMPLES, lines, read, wanted  # noqa: E402

MAKE_SCHEDULE, MAKE_ODD = (BUILD / "tests" / "unit" / name for name in ("make_schedule", "make_odd_run"))
LIBRARY = BUILD / "read" / "libdmi_read.so.1"
pytestmark = pytest.mark.built(MAKE_SCHEDULE, MAKE_ODD, LIBRARY)
datasets.disable_progress_bars()
MASKS = {"a": [0, 0, 0, 0, 1, 1], "b": [0, 0, 0, 1]}


@pytest.fixture(autouse=True)
def fixture_library(monkeypatch):
    monkeypatch.setenv("DMI_READ_LIBRARY", str(LIBRARY))


@pytest.fixture(name="write")
def fixture_write(tmp_path):
    def write(name="run", change=lambda line: line, **how):
        text = "".join(f"{change(line)}\n" for line in lines(**how))
        subprocess.run([MAKE_SCHEDULE, tmp_path / name, "job", "0", "1", "0", "1", "hidden"], input=text, text=True, check=True, timeout=60)
        return tmp_path / name
    return write


def command(*words):
    """`python -m dmi`"""
    return subprocess.run([sys.executable, "-m", "dmi", *map(str, words)], cwd=ROOT / "python", stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, timeout=120)


def load(out):
    """As Hugging Face's package reads it: a copy that does not ask for torch tensors, as PyTorch is not here."""
    copy = out.with_name(f"{out.name}-plain")
    shutil.copytree(out, copy, dirs_exist_ok=True)
    state = json.loads((copy / "state.json").read_text())
    assert state["_format_type"] == "torch"
    (copy / "state.json").write_text(json.dumps(state | {"_format_type": None}))
    return datasets.load_from_disk(str(copy))


def samples(out):
    """[(ids, mask, length)]"""
    return [(row["input_ids"], row["loss_mask"], row["seq_len"]) for row in load(out)]


def scales(out, i):
    """By which 8-bit floats are multiplied, and taken out of the file, so that vLLM's keys are left."""
    path = out / "hidden_states" / f"hs_{i}.safetensors"
    with safetensors.safe_open(path, "np") as file:
        assert "hidden_states_scales" in file.keys()
        found = file.get_tensor("hidden_states_scales")
    data = path.read_bytes()
    n = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + n])
    first, end = header.pop("hidden_states_scales")["data_offsets"]
    header["hidden_states"]["data_offsets"] = [at - (end - first) for at in header["hidden_states"]["data_offsets"]]
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + n:8 + n + first] + data[8 + n + end:])
    return found


def sample(out, i):
    """(hidden states, ids, dtype, metadata) of a file"""
    return read(out / "hidden_states" / f"hs_{i}.safetensors")


# ---- speculators


@pytest.mark.parametrize("dtype, stored", [("bf16", "BF16"), ("f8e4m3", "F8_E4M3"), ("f64", "F64")])
def test_speculators(write, check, tmp_path, dtype, stored):
    with dmi.open(write(dtype=dtype)) as run:
        done = export.speculators(run, tmp_path / "out", "3,0,last")
    check(done.requests == ["a", "b"] and not done.left_out, "every request is a sample", done)
    for i, (name, (ids, mask, length)) in enumerate(zip(done.requests, samples(tmp_path / "out"))):
        positions = POSITIONS[name]
        if dtype == "f8e4m3":
            check(scales(tmp_path / "out", i).tolist() == [[[1.0]]] * len(positions), f"{name}: a scale a token")
        hidden, of_file, found, metadata = sample(tmp_path / "out", i)
        check(found == stored and hidden.tolist() == wanted(name, positions, (3, 0, 9)), f"{name}: its layers, the verifier's last", hidden)
        check(ids == of_file.tolist() == [-100 * ord(name) - p for p in positions] and length == len(ids), "ids in both places", ids)
        check(mask == MASKS[name] and metadata["request"] == name, "0 for the prompt, 1 from where generation begins", mask)
    columns = load(tmp_path / "out").column_names
    check(columns == ["input_ids", "loss_mask", "seq_len"], "the columns that speculators writes itself", columns)


def test_speculators_scales(write, check, tmp_path):
    """8-bit floats of a site with a scale, and of one without as the last layer."""
    others = [f"put 7 {layer} 5 f8e4m3 {' '.join(['56'] * 200)}" for layer in (0, 1)]  # 1.0, which is 0.25
    with dmi.open(write(others=others)) as run:
        export.speculators(run, tmp_path / "out", sites="resid_mid")
    check(scales(tmp_path / "out", 0).tolist() == [[[0.25]]] * 6, "1 / the site's scale", scales)
    hidden, _, dtype, _ = sample(tmp_path / "out", 0)
    check(dtype == "F8_E4M3" and hidden.tolist() == [[[56] * 5] * 2] * 6, "bits as captured", hidden)


def test_speculators_layers(write, check, tmp_path):
    with dmi.open(write()) as run:
        for text, layers in ((None, (0, 1, 3, 9)), ("0-1,last", (0, 1, 9)), ([3, "last", 1], (3, 9, 1)), ("0-1", (0, 1)), ("last", (9,))):
            out = tmp_path / f"out-{text}"
            export.speculators(run, out, text)
            check(sample(out, 0)[0].tolist() == wanted("a", POSITIONS["a"], layers), f"layers={text}", sample(out, 0)[0])
        for text, said in (("2", "'2' was not captured: there are 0, 1, 3, and last"), ("0,4", "'4'"), ("1,0-1", "twice"), ("x", "a number, a range"),
                           ("0,,1", "a number, a range"), ("-1", "a number, a range"), (":2", "':2' is written 0-1")):
            with pytest.raises((export.ExportError, KeyError, ValueError), match=said):
                export.speculators(run, tmp_path / "none", text)
        check(not (tmp_path / "none").exists() and not list(tmp_path.glob("*partial*")), "nothing is left of what is refused", list(tmp_path.iterdir()))
    with dmi.open(write("short", final=False)) as run, pytest.raises(KeyError, match="'last'"):
        export.speculators(run, tmp_path / "none", "0,last")


def test_speculators_mask(write, check, tmp_path):
    def said(line):  # 2 tokens of prompt, whatever the phases
        return line.replace(":1:0:0", ":1:2:0").replace(":2:0:0", ":2:2:0") if line.startswith("step") else line

    def unknown(line):
        return line.replace(":1:0:0", ":0:0:0").replace(":2:0:0", ":0:0:0") if line.startswith("step") else line
    cases = {"said": ({"change": said}, {"a": [0, 0, 1, 1, 1, 1], "b": [0, 0, 1, 1]}, 0),
             "prefilled": ({"steps": [[("a", 0, 4), ("b", 0, 2)]]}, {"a": [0] * 4, "b": [0] * 2}, 0)}
    for name, (how, masks, n_left_out) in cases.items():
        with dmi.open(write(name, **how)) as run:
            done = export.speculators(run, tmp_path / f"out-{name}", "0,last")
        found = {request: mask for request, (_, mask, _) in zip(done.requests, samples(tmp_path / f"out-{name}"))}
        check(found == masks and len(done.left_out) == n_left_out, name, (found, done.left_out))
        check(str(done) == "samples: 2 written, 0 left out" + ("; 2 of those written without a token in the loss" if name == "prefilled" else ""), "in one line", str(done))
    with dmi.open(write("unknown", change=unknown)) as run, pytest.raises(export.ExportError, match="not known where its generation begins"):
        export.speculators(run, tmp_path / "none")


def test_speculators_what_lacks(write, check, tmp_path):
    cases = {"gap": ({"lacking": {(1, 2)}}, "request 'a' is left out: resid_pre.1 lacks position 5", ["b"]),
             "one": ({"steps": [[("a", 0, 2)], [("b", 0, 2)]], "lacking": {(3, 1)}}, "request 'b' is left out: layer 3 is not there", ["a"])}
    for name, (how, left_out, requests) in cases.items():
        with dmi.open(write(name, **how)) as run:
            done = export.speculators(run, tmp_path / f"out-{name}")
        check(done.left_out == [left_out] and done.requests == requests, name, done)
        check(len(samples(tmp_path / f"out-{name}")) == 1 and [p.name for p in (tmp_path / f"out-{name}/hidden_states").iterdir()] == ["hs_0.safetensors"],
              "numbers have no gaps")
    for name, how, words in (("ids", {"ids": None}, "a site token_ids is there"), ("floats", {"ids": "f32"}, "no integer a token"),
                             ("nothing", {"steps": []}, "nothing of a site")):
        with dmi.open(write(name, **how)) as run, pytest.raises(export.ExportError, match=words):
            export.speculators(run, tmp_path / "none")
    with dmi.open(write("scaled", others=["put 7 2 2 f32 1 2"])) as run, pytest.raises(export.ExportError, match="with a scale"):
        export.speculators(run, tmp_path / "none", sites="resid_mid")
    check(not (tmp_path / "none").exists(), "and nothing is written")


def test_speculators_are_whole(write, check, tmp_path):
    """The rule is that of `dmi-dump export`, whose cases are in test_dump_formats."""
    for name, (steps, dropped, said, n) in SAMPLES.items():
        with dmi.open(write(name, steps=steps, lacking={(layer, step) for layer in ALL for step in dropped})) as run:
            done = export.speculators(run, tmp_path / f"out-{name}")
        check(len(done.requests) == n and [f"{line}\n" for line in done.left_out] == ([f"request 'b' is left out: {said}"] if said else []), name, done)


def test_scales_by_record(check, tmp_path):
    text = "step 0 1 a:0:1:0:1:1:0\nput 7 0 1 f32 8\nstep 1 1 a:0:1:1:2:1:0\nput 11 0 1 f32 8\n"
    subprocess.run([MAKE_SCHEDULE, tmp_path / "run", "job", "0", "1", "0", "1", "hidden"], input=text, text=True, check=True, timeout=60)
    with dmi.open(tmp_path / "run") as run:
        tensor = run["a/resid_mid.0"]
        check(tensor.scale is None and tensor.float32().tolist() == [[2], [4]] and tensor.float32(slice(1, 2)).tolist() == [[4]], "each row by its own entry",
              tensor.float32())
        check(run.load(float32=True)["a/resid_mid.0"].tolist() == [[2], [4]] and tensor.numpy().tolist() == [[8], [8]], "and together", tensor.numpy())
        check(run.sample_fault(tensor)[0] == "of changing type or scale", "no sample", run.sample_fault(tensor))


def test_speculators_damage(write, check, tmp_path):
    run = write()
    flip_payload(sorted(run.rglob("seg-*.dmi"))[0], 12)  # of the last step, which is a's alone
    done = command("speculators", run, "-o", tmp_path / "out")
    check(done.returncode == 1 and "request 'a' is left out: resid_pre.1 is damaged" in done.stderr and "samples: 1 written, 1 left out (1 without all rows)" in done.stdout,
          "zeros are no hidden states", done)
    check(sample(tmp_path / "out", 0)[3]["request"] == "b" and len(samples(tmp_path / "out")) == 1, "the other request is there")


def test_speculators_in_blocks(write, check, tmp_path, monkeypatch):
    """Memory is bounded: rows are decoded a few at a time."""
    monkeypatch.setattr(export, "AT_A_TIME", 25)  # two rows of 10 bytes
    steps = [[("a", 0, 30)], [("a", 30, 1)]]
    with dmi.open(write(steps=steps)) as run:
        export.speculators(run, tmp_path / "out")
    hidden, ids, *_ = sample(tmp_path / "out", 0)
    check(hidden.tolist() == wanted("a", range(31), (0, 1, 3, 9)) and ids.tolist() == [-9700 - p for p in range(31)], "every row", hidden)


def test_speculators_ask_the_disk_once(write, tmp_path, monkeypatch):
    """Not once a file: a flush of each takes half of the time."""
    asked = []
    monkeypatch.setattr(numpy.memmap, "flush", lambda self: asked.append("flush"))
    monkeypatch.setattr(export, "_to_disk", lambda folder: asked.append(sorted(p.name for p in folder.iterdir())))
    with dmi.open(write()) as run:
        export.speculators(run, tmp_path / "out")
    assert asked == [["data-00000-of-00001.arrow", "dataset_info.json", "hidden_states", "state.json"]] and len(samples(tmp_path / "out")) == 2


def test_speculators_with_rows_of_another_request(check, tmp_path):
    text = ["step 0 2 a:0:2:0:1:2:0", "put 4 -1 1 i32 11 12", "put 5 0 1 bf16 1 2", "step 1 1 b:0:1:2:1:3:0:2=11,12", "put 4 -1 1 i32 13", "put 5 0 1 bf16 3"]
    subprocess.run([MAKE_SCHEDULE, tmp_path / "run", "job", "0", "1", "0", "1", "hidden"], input="".join(f"{line}\n" for line in text), text=True, check=True,
                   timeout=60)
    done = command("speculators", tmp_path / "run", "-o", tmp_path / "out", "--layers", "0", "--fill-cached")
    check(done.returncode == 0 and "samples: 2 written (1 with rows of other requests), 0 left out; 2 of those" in done.stdout, "one line sums it", done)
    check(samples(tmp_path / "out")[1][0] == [11, 12, 13], "the ids are there", samples(tmp_path / "out"))
    with safetensors.safe_open(tmp_path / "out" / "hidden_states" / "hs_1.safetensors", "numpy") as file:
        check(json.loads(file.metadata()["filled"]) == {"resid_pre.0": [[0, 2, "a"]]}, "the file names the donor", file.metadata())
    with dmi.open(tmp_path / "run") as run:
        run = run.select(fill_cached=True)
        done = export.speculators(run, tmp_path / "again", layers="0")
        check(done.filled == {"b": ["a"]}, "as Python does", done)
        rows = {line["request"]: line["donor"] for line in tables.LINES["rows"](run) if line["first_position"] == 0}
        check(rows == {"a": None, "b": "a"}, "and the table of rows", rows)


def test_speculators_command(write, check, tmp_path):
    names = ["../../x", "x" * 60, "a\x01\x1b", "b"]
    run = write(steps=[[(name, 0, 2) for name in names]])
    done = command("speculators", run, "-o", tmp_path / "out", "--layers", "1,last", "--request", "../../x")
    check(done.returncode == 0 and sample(tmp_path / "out", 0)[3]["request"] == "../../x" and len(samples(tmp_path / "out")) == 1, "one request", done)
    done = command("speculators", run, "-o", tmp_path / "two", "--layers", "1", "--request", "b", "--layers", "last", "--request", "../../x")
    check(done.returncode == 0 and [sample(tmp_path / "two", i)[0].shape[1] for i in range(2)] == [2, 2] and len(samples(tmp_path / "two")) == 2, "or two", done)
    done = command("speculators", run, "-o", tmp_path / "all", "--layers", "1,last")
    found = [sample(tmp_path / "all", i)[3]["request"] for i in range(4)]
    check(done.returncode == 0 and set(found) == set(names), "whatever requests are called", found)
    for words, status, said in (((run, "-o", tmp_path / "all"), 1, "is no empty folder"), ((run, "-o", run / "x"), 1, "lies in the run"),
                                ((tmp_path / "no", "-o", tmp_path / "new"), 2, "dmi: "), ((run, "-o", tmp_path / "new", "--request", "bb"), 2, "no request 'bb'; near it: b")):
        inside = next(p for p in [run, *run.iterdir()] if list(p.glob("seg-*")))
        words = [inside / "x" if word == run / "x" else word for word in words]
        done = command("speculators", *words)
        check(done.returncode == status and said in done.stderr and "Traceback" not in done.stderr, said, done)
    check(not (tmp_path / "new").exists() and not (tmp_path / "new.partial").exists(), "and nothing is written")


def test_what_lacks_is_named(write, check, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with dmi.open(write()) as run, pytest.raises(ImportError, match="pip install pyarrow"):
        export.speculators(run, tmp_path / "out")
    check(not (tmp_path / "out").exists(), "before anything is written")


# ---- Parquet


def table(folder, name):
    return parquet.read_table(folder / f"{name}.parquet").to_pylist()


def test_parquet(write, check, tmp_path):
    run = write()
    done = command("parquet", run, "-o", tmp_path / "out")
    check(done.returncode == 0 and done.stdout.startswith("10 tensors, 25 rows, 15 records, 3 steps, 5 spans, 2 requests, to "), "its counts", done)
    tensors = {t["key"]: t for t in table(tmp_path / "out", "tensors")}
    check(len(tensors) == 10 and {k: tensors["a/resid_pre.3"][k] for k in ("request", "site", "layer", "dtype", "shape", "rows", "bytes", "scale")} ==
          {"request": "a", "site": "resid_pre", "layer": 3, "dtype": "bf16", "shape": [6, 5], "rows": 6, "bytes": 60, "scale": 1.0}, "tensors", tensors)
    rows = [r for r in table(tmp_path / "out", "rows") if r["key"] == "a/resid_pre.1"]
    found = [(r["first_position"], r["end_position"], r["phase"], r["step"], r["first_row"], r["rows"], r["bytes"], r["first_index"]) for r in rows]
    check(found == [(0, 4, "prefill", 0, 0, 4, 40, 0), (4, 5, "decode", 1, 1, 1, 10, 4), (5, 6, "decode", 2, 0, 1, 10, 5)], "whence its rows come", found)
    records = [r for r in table(tmp_path / "out", "records") if r["site"] == "resid_pre" and r["layer"] == 1]
    found = [(r["step"], r["rows"], r["shape"], r["dtype"], r["bytes"], r["tp_rank"], r["tp_size"], r["ep_size"]) for r in records]
    check(found == [(0, 8, [8, 5], "bf16", 80, 0, 1, 1), (1, 3, [3, 5], "bf16", 30, 0, 1, 1), (2, 2, [2, 5], "bf16", 20, 0, 1, 1)],
          "records, padding and all", found)
    check([(s["step"], s["rows"], s["spans"]) for s in table(tmp_path / "out", "steps")] == [(0, 8, 2), (1, 3, 2), (2, 2, 1)], "steps")
    spans = [(s["step"], s["request"], s["first_row"], s["first_position"], s["end_position"], s["phase"], s["padding"]) for s in table(tmp_path / "out", "spans")]
    check(spans == [(0, "a", 0, 0, 4, "prefill", False), (0, "b", 4, 0, 3, "prefill", False), (1, "b", 0, 3, 4, "decode", False),
                    (1, "a", 1, 4, 5, "decode", False), (2, "a", 0, 5, 6, "decode", False)], "spans", spans)
    check([(r["request"], r["prefill_tokens"], r["decode_tokens"], r["prompt_tokens"]) for r in table(tmp_path / "out", "requests")] ==
          [("a", 4, 2, 4), ("b", 3, 1, 3)], "requests")


def test_parquet_tags(check, tmp_path):
    text = 'tags {"label": "fine"}\nstep 0 1 a:0:1:0:1:1:0\nput 7 0 1 f32 8\n'
    subprocess.run([MAKE_SCHEDULE, tmp_path / "run", "job", "0", "1", "0", "1", "hidden"], input=text, text=True, check=True, timeout=60)
    with dmi.open(tmp_path / "run") as run:
        check(run.requests[0].tags == {"label": "fine"}, "a request's", run.requests)
        run.to_parquet(tmp_path / "out")
    check(table(tmp_path / "out", "requests")[0]["tags"] == '{"label": "fine"}', "and in its line")


def test_parquet_sums(write, check, tmp_path, monkeypatch):
    """What the tables say of rows and bytes is what the run says, however many lines are written at a time."""
    monkeypatch.setattr(tables, "AT_A_TIME", 3)
    with dmi.open(write()) as run:
        run.to_parquet(tmp_path / "out")
        keys = {t.key: len(t) for t in run.values()}
        uuid = run.uuid
    summed = {}
    for r in table(tmp_path / "out", "rows"):
        summed[r["key"]] = summed.get(r["key"], 0) + r["rows"]
    check(summed == keys, "rows", summed)
    schema = parquet.read_schema(tmp_path / "out/records.parquet")
    check(schema.metadata[b"dmi.run"].decode() == uuid and str(schema.field("time").type) == "timestamp[ns, tz=UTC]", "whose they are", schema.metadata)
    check(sum(1 for r in table(tmp_path / "out", "records")) == 15, "records in several batches")


def test_parquet_drafts(check, tmp_path):
    subprocess.run([MAKE_ODD, tmp_path / "run", "drafts"], check=True, timeout=60)
    with dmi.open(tmp_path / "run") as run:
        run = run.select(rejected=True, superseded=True)
        wanted_rows = {(key, r.position, r.launch): (r.rejected, r.superseded) for key, t in run.items() for r in t.rows() if r.position is not None}
        run.to_parquet(tmp_path / "out")
    found = {(r["key"], r["first_position"] + i, r["launch"]): (r["rejected"], r["superseded"]) for r in table(tmp_path / "out", "rows")
             for i in range(r["rows"]) if r["first_position"] is not None}
    check(found == wanted_rows and any(r for r, _ in found.values()) and any(s for _, s in found.values()), "what became of drafts", found)
    text = "step 0 3 a:0:1:4:2:4:0 a:1:2:5:3:4:0\nrec 2 0 0 2 1\n"
    subprocess.run([MAKE_SCHEDULE, tmp_path / "two", "job", "0", "1", "0", "1"], input=text, text=True, check=True, timeout=60)
    with dmi.open(tmp_path / "two") as run:
        run.to_parquet(tmp_path / "out-two")
    found = [(r["phase"], r["first_position"], r["rows"], r["first_row"]) for r in table(tmp_path / "out-two", "rows")]
    check(found == [("decode", 4, 1, 0), ("draft", 5, 2, 1)], "which are a phase of their own", found)


def test_parquet_of_ranks(check, tmp_path):
    for rank in range(2):
        subprocess.run([MAKE_SCHEDULE, tmp_path / "run", "job", str(rank), "2", "0", "1"], check=True, timeout=60, text=True,
                       input=f"step 7 2 a:0:2:0:1:2:0\nrec 0 0 {3 * rank} 3 1\n")
    with dmi.open(tmp_path / "run") as run:
        run.to_parquet(tmp_path / "joined")
    record, = table(tmp_path / "joined", "records")
    check(record["shape"] == [2, 6] and record["tp_rank"] is None, "joined ranks are not one rank", record)
    for folder in sorted((tmp_path / "run").iterdir()):
        with dmi.open(folder) as run:
            run.to_parquet(tmp_path / folder.name)
    found = sorted((r["tp_rank"], r["tp_size"], tuple(r["shape"])) for f in (tmp_path / "run").iterdir() for r in table(tmp_path / f.name, "records"))
    check(found == [(0, 2, (2, 3)), (1, 2, (2, 3))], "each rank by itself", found)


def test_parquet_of_nothing(write, check, tmp_path):
    with dmi.open(write(steps=[])) as run:
        run.to_parquet(tmp_path / "out")
        with pytest.raises(export.ExportError, match="no empty folder"):
            run.to_parquet(tmp_path / "out")
    check(all(table(tmp_path / "out", name) == [] for name in tables.COLUMNS), "empty tables")
    check(parquet.read_schema(tmp_path / "out/rows.parquet").names == list(tables.COLUMNS["rows"]), "with their columns")
