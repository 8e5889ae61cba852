# SPDX-License-Identifier: Apache-2.0
"""Attention in a report of dmi-view: its numbers are those of dmi-analyze, and what has no proof is not there. test_browser_attention.py looks at the pages."""
import base64
import json

import numpy as np
import pytest

from attention_kit import Captured, Model, write_config, write_run
from report import VIEW, Report, as_json, view
from test_analyze import BARE, ROTATED, TOOL, fixture_libraries, tool  # noqa: F401

pytestmark = pytest.mark.built(VIEW, TOOL)
SCORES = ("previous", "duplicate", "induction", "sink", "entropy", "distance", "mul_previous", "mul_duplicate", "mul_induction", "abs_previous", "abs_duplicate", "abs_induction")
KINDS = SCORES[:4]
N = 150
IDS = np.random.default_rng(3).integers(0, 40, N).tolist()
ROOM = 512  # tokens of a head at full resolution


@pytest.fixture(name="captured", scope="module")
def fixture_captured():
    return Captured(Model(layers=3), N, scale=1.5)


@pytest.fixture(name="run")
def fixture_run(tmp_path, captured):
    return write_run(tmp_path / "run", {"r1": captured, "r2": Captured(Model(layers=3), 12, seed=7)}, ROTATED, ids=IDS, chunks=(90, 30))


def analyze(question, run, *words):
    return json.loads(tool(question, run, "--json", *words).stdout)


def pooled(weights, cells=64):
    """The largest weight of each cell."""
    n, m = weights.shape
    rows, columns = np.arange(n) * min(n, cells) // n, np.arange(m) * min(m, cells) // m
    found = np.zeros((min(n, cells), min(m, cells)))
    np.maximum.at(found, (rows[:, None], columns[None]), weights)
    return found


def triangle(weights, first_query, first_key):
    """Rows of a pattern as a report has them: of each query the keys to itself."""
    return np.concatenate([row[first_key:first_query + i + 1] for i, row in enumerate(weights[first_query:])])


def test_scores_and_proofs_are_those_of_dmi_analyze(check, run, tmp_path):
    """To the bit: in --json as numbers, in the page as float64."""
    view(run, "-o", tmp_path / "r.html")
    entries, pages = as_json(run)["attention"], Report(tmp_path / "r.html").said["attention"]
    check([(e["request"], e["id"]) for e in entries] == [(0, "r1"), (1, "r2")], "an entry a request", entries)
    for entry, page in zip(entries, pages, strict=True):
        said = analyze("heads", run, "--request", entry["id"])
        for name in ("heads", "kv_heads", "queries", "keys", "multiplier", "borrowed", "proof", "repeated"):
            check(entry[name] == said[name] == page[name], f"{entry['id']}: {name}", (entry[name], said[name]))
        check(len(entry["layers"]) == said["layers"] and entry["positions"] == list(range(said["queries"])), f"{entry['id']}: layers and queries")
        for name in SCORES:
            wanted = [s[name] for s in said["scores"]]
            check(entry["scores"][name] == wanted and np.frombuffer(base64.b64decode(page["scores"][name]), "<f8").tolist() == wanted, f"{entry['id']}: {name}", entry["scores"][name])
        check(max(entry["errors"]) == entry["errors"][entry["proof"]["layer"] * 4 + entry["proof"]["head"]] == said["proof"]["error"], "errors of heads", entry["errors"])


def test_thumbnails_are_the_largest_weights_of_their_cells(check, run, captured):
    """Each head has its own: 150 x 150 weights in 64 x 64 cells; the largest cell is 254."""
    entry, other = as_json(run)["attention"]
    cells = np.array(entry["thumbnails"]).reshape(3, 4, 64, 64)
    for layer in range(3):
        for head in range(4):
            off = np.abs(cells[layer, head] - 254 * pooled(captured.weights[layer][head])).max()
            check(off < 0.51, f"{layer}.{head}", off)
    check((entry["rows"], entry["columns"], other["rows"], other["columns"]) == (64, 64, 12, 12), "one token a cell where there are few", (other["rows"], other["columns"]))


def test_heads_at_full_resolution(check, run, captured):
    """The best four of each kind, those that --head names before them; float32 as dmi-analyze writes it."""
    entry = as_json(run, "--request", "r1", "--head", "2.3", "--head", "0.1")["attention"][0]
    scores = {name: np.array(entry["scores"][name]) for name in KINDS}
    best = [divmod(int(i), 4) for rank in range(4) for name in KINDS for i in [np.argsort(-scores[name], kind="stable")[rank]]]
    wanted = list(dict.fromkeys([(2, 3), (0, 1), *best]))
    heads = entry["patterns"]["heads"]
    check([(h["layer"], h["head"]) for h in heads] == wanted, "which heads", ([(h["layer"], h["head"]) for h in heads], wanted))
    for h in heads:
        off = np.abs(np.array(h["weights"]) - triangle(captured.weights[h["layer"]][h["head"]], 0, 0)).max()
        check(off < 2e-6, f"{h['layer']}.{h['head']}: its weights", off)


def test_strongest_pairs_are_those_of_dmi_analyze(check, run):
    entry = as_json(run, "--request", "r1")["attention"][0]
    for layer, head in ((0, 0), (1, 2), (2, 3)):
        for key, words in (("pairs", ()), ("pairs_but_first", ("--skip-first",))):
            wanted = analyze("attention", run, "--request", "r1", "--layers", layer, "--heads", head, "--top", "6", *words)["pairs"]
            at = slice((layer * 4 + head) * 6, (layer * 4 + head + 1) * 6)
            got = list(zip(*(entry[key][name][at] for name in ("queries", "keys", "weights"))))
            check(got == [(p["query"], p["key"], p["weight"]) for p in wanted], f"{layer}.{head}, {key}", (got, wanted))


def test_long_requests_have_their_last_tokens_whole(check, tmp_path):
    one = Captured(Model(layers=1, heads=2, kv=1, dim=8), 700)
    run = write_run(tmp_path / "run", {"long": one}, ROTATED)
    said = as_json(run)
    entry = said["attention"][0]
    patterns = entry["patterns"]
    check((patterns["first_key"], patterns["first_query"], entry["rows"], entry["columns"]) == (700 - ROOM, 700 - ROOM, 64, 64), "the last 512 tokens", patterns["first_key"])
    for h in patterns["heads"]:
        off = np.abs(np.array(h["weights"]) - triangle(one.weights[0][h["head"]], 700 - ROOM, 700 - ROOM)).max()
        check(off < 3e-5, f"0.{h['head']}", off)  # angles at position 700 are products in f32
    check("heads at full resolution have the last 512 tokens, of 1 of 1 requests" in said["left_out"], "it is said", said["left_out"])
    check(np.isnan([x if x is not None else np.nan for x in entry["scores"]["duplicate"]]).all() and entry["repeated"] == 0, "without ids there is no duplicate")


def test_what_does_not_fit_is_said(check, tmp_path):
    """Smaller thumbnails, fewer heads at full resolution, then requests without attention."""
    model = Model(layers=3, heads=6, kv=2, dim=8)
    run = write_run(tmp_path / "run", {f"r{i}": Captured(model, 300 if i < 2 else 40, seed=i) for i in range(12)}, ROTATED)
    view(run, "-o", tmp_path / "r.html", "--max-bytes", "600K")
    size, report = (tmp_path / "r.html").stat().st_size, Report(tmp_path / "r.html")
    check(size <= 600 << 10, "no larger than it may be", size)
    text = "\n".join(report.said["left_out"])
    check("chosen heads are not there at full resolution" in text and "have fewer cells than 64 a side" in text, "it is said", text)
    check(report.said["attention"][0]["rows"] in (8, 16, 32) and report.said["maps"], "thumbnails are smaller, and maps are there", report.said["attention"][0]["rows"])
    said = as_json(run, "--max-bytes", "256K")
    check(any("attention of" in text and text.endswith("requests is left out: it does not fit") for text in said["left_out"]), "none where there is no room", said["left_out"])
    check(not as_json(run, "--request", "r0")["left_out"], "one request fits")


def test_what_has_no_proof_is_refused(check, tmp_path, captured):
    """Weights that do not explain z are not in a report; where v lacks nothing was checked."""
    run = write_run(tmp_path / "wrong", {"r1": captured, "r2": captured}, ROTATED, wrong={("r2", "z"): lambda x: x * 1.5})
    said = as_json(run)
    good, bad = said["attention"]
    check(good["proof"]["state"] == "holds" and set(bad) == {"request", "id", "refused"} and "attention's weights times v are not z: head" in bad["refused"], "only what holds", bad)
    check("attention's weights times v are not z" in "\n".join(said["left_out"]) and "attention's weights times v" in view(run, "-o", tmp_path / "r.html").stderr, "it is said", said["left_out"])
    unchecked = as_json(write_run(tmp_path / "unchecked", {"r1": captured}, ROTATED[:2]))["attention"][0]
    check(unchecked["proof"]["state"] == "not checked" and unchecked["proof"]["error"] is None and set(unchecked["errors"]) == {None}, "not checked", unchecked["proof"])
    bare = write_run(tmp_path / "bare", {"r1": captured}, BARE)
    check("config" in as_json(bare)["attention"][0]["refused"], "what lacks is named", as_json(bare)["attention"][0])
    config = write_config(tmp_path / "config.json", captured.model.config())
    check(as_json(bare, "--config", config)["attention"][0]["proof"]["state"] == "holds", "--config says it")
    check(as_json(write_run(tmp_path / "none", {"r1": captured}, ("v", "z")))["attention"] == [], "without q and k there is none")
    check("is left out" not in "\n".join(as_json(run, "--site", "z")["left_out"]) and as_json(run, "--site", "z")["attention"] == [], "nor where they are not selected")


def test_a_part_of_it(check, run):
    """--tokens chooses queries, --layers layers: as for dmi-analyze."""
    entry = as_json(run, "--request", "r1", "--tokens", "100:", "--layers", "1,2")["attention"][0]
    said = analyze("heads", run, "--request", "r1", "--tokens", "100:", "--layers", "1,2")
    check(entry["positions"] == list(range(100, N)) and entry["layers"] == [1, 2] and entry["keys"] == N, "which", (entry["positions"][:3], entry["layers"]))
    for name in SCORES:
        check(entry["scores"][name] == [s[name] for s in said["scores"]], name, entry["scores"][name])
    whole = entry["patterns"]["heads"][0]
    check(len(whole["weights"]) == sum(range(101, N + 1)), "rows of these queries, with all of their keys", len(whole["weights"]))


@pytest.mark.parametrize("words, wrong", [
    (["--head", "3.0"], "--head 3.0: there is no such head: 3 layers have 4 heads each"), (["--head", "0.4"], "--head 0.4: there is no such head"),
    (["--head", "x"], "--head x: expected LAYER.HEAD"), (["--head", "1.2.3"], "expected LAYER.HEAD"), (["--head", "0.1", "--site", "z"], "--head: no attention is in the report"),
    (["--config", "/nowhere"], "/nowhere")])
def test_options_that_are_refused(check, run, tmp_path, words, wrong):
    done = view(run, "-o", tmp_path / "r.html", *words, status=2)
    check(wrong in done.stderr and not (tmp_path / "r.html").exists(), "it is named, and nothing is written", done.stderr)
