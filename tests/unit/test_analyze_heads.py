# SPDX-License-Identifier: Apache-2.0
"""dmi-analyze heads, focus and rerank against the same by numpy, from the weights of random runs."""
import fcntl
import json
import math
import subprocess

import numpy as np
import pytest
from safetensors.numpy import load_file

import dmi
from attention_kit import Captured, Model, write_run
from dmi import attention
from harness import LIBRARIES
from test_analyze import ROTATED, TOOL, fixture_libraries, tool  # noqa: F401

pytestmark = pytest.mark.built(TOOL, LIBRARIES / "analyze" / "libdmi_analyze.so.1", LIBRARIES / "read" / "libdmi_read.so.1")
IDS = [5, 9, 5, 7, 9, 9, 11, 5, 7, 7, 3, 5, 9, 4]


def means(weights, ids):
    """The scores of one head, from its pattern: loops that follow the words of docs/heads.md."""
    n = len(ids)
    before = {i: [j for j in range(i) if ids[j] == ids[i]] for i in range(n)}
    again = [i for i in range(n) if before[i]]
    previous = np.eye(n, k=-1)
    duplicate = np.array([[float(j in before[i]) for j in range(n)] for i in range(n)])
    induction = np.zeros((n, n))
    induction[:, 1:] = duplicate[:, :-1]
    out = {"previous": np.mean([weights[i, i - 1] for i in range(1, n)]), "sink": weights[1:, 0].mean(),
           "duplicate": np.mean([weights[i, before[i][0]] for i in again]) if again else math.nan,
           "induction": np.mean([weights[i, before[i][-1] + 1] for i in again]) if again else math.nan,
           "entropy": np.mean([-sum(w * math.log(w) for w in row if w > 0) for row in weights]),
           "distance": np.mean([sum(w * (i - j) for j, w in enumerate(row)) for i, row in enumerate(weights)])}
    for name, pattern in (("previous", previous), ("duplicate", duplicate), ("induction", induction)):
        out |= {f"{how}_{name}": value for how, value in lens_scores(weights, pattern).items()}
    return out


def lens_scores(weights, pattern, bos=False, current=False):
    """As TransformerLens's head_detector: mul is sum(w p) / sum(w), abs is 1 - n mean |w - p|."""
    keep = np.ones_like(weights)
    if bos:
        keep[:, 0] = 0
    if current:
        np.fill_diagonal(keep, 0)
    if not (pattern * keep).any():
        return {"mul": math.nan, "abs": math.nan}
    return {"mul": (weights * pattern * keep).sum() / (weights * keep).sum(),
            "abs": 1 - (np.abs(weights - pattern) * keep).mean() * len(weights)}


@pytest.fixture(name="captured")
def fixture_captured():
    return Captured(Model(), len(IDS), scale=1.0)


@pytest.mark.parametrize("ids", [IDS, list(range(14)), [4] * 14], ids=["repeats", "no repeats", "one token"])
def test_scores_of_heads(tmp_path, captured, ids):
    with dmi.open(write_run(tmp_path / "run", {"r1": captured}, ROTATED, chunks=(5, 2))) as run:
        got = attention.heads(run, ids=ids)
        for layer in range(2):
            for head in range(4):
                wanted = means(captured.weights[layer][head], ids)
                for name in attention.SCORES:
                    a, b = got[name][layer, head], wanted[name]
                    assert (math.isnan(a) and math.isnan(b)) or abs(a - b) < 2e-6, (name, layer, head, a, b)
        n = len(ids)
        pattern = np.eye(n, k=-1)
        for bos, current in ((True, False), (False, True), (True, True)):
            got = attention.heads(run, ids=ids, exclude_bos=bos, exclude_current=current)
            wanted = lens_scores(captured.weights[1][3], pattern, bos, current)
            assert abs(got["mul_previous"][1, 3] - wanted["mul"]) < 2e-6
            if not bos:  # theirs compares the first column with 0 then, ours leaves it out of both
                assert abs(got["abs_previous"][1, 3] - wanted["abs"]) < 2e-6


def test_heads_by_the_tool(tmp_path, captured):
    run, out = write_run(tmp_path / "run", {"r1": captured}, ROTATED, ids=IDS), tmp_path / "h.safetensors"
    said = json.loads(tool("heads", run, "--json", "-o", out).stdout)
    for score in said["scores"]:
        wanted = means(captured.weights[score["layer"]][score["head"]], IDS)
        assert all(abs(score[name] - wanted[name]) < 2e-6 for name in attention.SCORES), score
    assert said["repeated"] == 8 and len(said["scores"]) == 8
    file = load_file(out)
    assert np.allclose(file["induction"], [s["induction"] for s in said["scores"]]) and file["layers"].tolist() == [0] * 4 + [1] * 4
    text = tool("heads", run, "--top", 2).stdout
    best = max(said["scores"], key=lambda s: s["sink"])
    lines = text.splitlines()
    assert lines[lines.index("sink: mean weight of the first token") + 1].split() == [f"{best['layer']}.{best['head']}", f"{best['sink']:.4f}"]
    without = write_run(tmp_path / "without", {"r1": captured}, ROTATED)
    assert "not defined: no token of the queries came before, or the run has no token_ids" in tool("heads", without).stdout
    assert json.loads(tool("heads", without, "--json").stdout)["scores"][0]["induction"] is None


def test_a_head_that_is_nan_comes_last(tmp_path, captured):
    """Its scores are not defined, and those of the others are in order."""
    captured.values["q_rot"][0][:, 0] = np.nan
    run = write_run(tmp_path / "run", {"r1": captured}, ROTATED, ids=IDS)
    said = {(s["layer"], s["head"]): s["sink"] for s in json.loads(tool("heads", run, "--json", "--unchecked").stdout)["scores"]}
    assert said.pop((0, 0)) is None
    text = tool("heads", run, "--top", 8, "--unchecked").stdout.splitlines()
    at = text.index("sink: mean weight of the first token")
    assert [line.split()[0] for line in text[at + 1:at + 9]] == [f"{layer}.{head}" for layer, head in sorted(said, key=lambda k: -said[k])] + ["0.0"]


def test_probe_tokens():
    found = attention.probe_tokens(25, 40000, first=1)
    assert found[0] == 1 and found[1:26] == found[26:] and min(found[1:]) >= 1000 and max(found) < 40000 and found == attention.probe_tokens(25, 40000, first=1)
    assert dmi.analysis.probe_tokens(3, 2000, seed=1) != attention.probe_tokens(3, 2000, seed=2)


# ------------------------------------------------------------------------- focus


def focus_of(weights, heads, query, instruction, data, measure="sum_normalize"):
    out = []
    for layer, head in heads:
        row = weights[layer][head][query]
        parts = [row[slice(*span)] for span in (instruction, data)]
        a, b = (p.max() if measure.startswith("max") else p.sum() for p in parts)
        out.append(a / (a + b + 1e-8) if measure.endswith("normalize") else a)
    return np.mean(out), out


HEADS = [(0, 1), (1, 3), (1, 0)]
SPANS = {"*": {"instruction": [1, 4], "data": [5, -1]}, "b": {"instruction": {"ids": [7, 9, 9]}, "data": [7, 9]}}


@pytest.mark.parametrize("measure", attention.MEASURES)
def test_focus(tmp_path, captured, measure):
    with dmi.open(write_run(tmp_path / "run", {"r1": captured}, ROTATED)) as run:
        mean, by_head = attention.focus(run, (1, 4), (5, 13), heads=HEADS, queries=[13], measure=measure)
        wanted, numbers = focus_of(captured.weights, sorted(HEADS), 13, (1, 4), (5, 13), measure)
        assert abs(mean - wanted) < 2e-6 and np.allclose(by_head, numbers, atol=2e-6)
        for bad in ((-1, 4), (3, 3), (2, 15), (4, 2)):
            with pytest.raises(OSError, match="a span begins below 0"):
                attention.focus(run, bad, (5, 13), queries=[13])


FORMS = {"a list": [list(h) for h in HEADS], "words": [f"{a}.{b}" for a, b in HEADS], "ours": {"heads": [list(h) for h in HEADS]},
         "vLLM Hook's": {"model_info": {"name": "m"}, "params": {"important_heads": [list(h) for h in HEADS]}}}


def test_focus_by_the_tool(tmp_path, captured):
    other = Captured(Model(), 14, seed=4)
    run = write_run(tmp_path / "run", {"a": captured, "b": other}, ROTATED, ids=IDS, n_prompt=12)
    (tmp_path / "spans.json").write_text(json.dumps(SPANS))
    wanted = {"a": focus_of(captured.weights, HEADS, 11, (1, 4), (5, 11))[0], "b": focus_of(other.weights, HEADS, 11, (3, 6), (7, 9))[0]}
    for form in FORMS.values():
        (tmp_path / "heads.json").write_text(json.dumps(form))
        words = ("focus", run, "--heads", tmp_path / "heads.json", "--spans", tmp_path / "spans.json")
        said = [json.loads(line) for line in tool(*words, "--json", "--follow").stdout.splitlines()]
        assert {s["request"]: round(s["focus"], 5) for s in said} == {k: round(float(v), 5) for k, v in wanted.items()}
    low, high = sorted(wanted, key=wanted.get)
    between = sum(wanted.values()) / 2
    done = tool(*words, "--below", between, status=3)
    assert [line.split()[0] for line in done.stdout.splitlines() if line.endswith("below")] == [low]
    tool(*words, "--below", between, "--request", high)


BAD_HEADS = {"[]": "has no list of heads", "[[1]]": "entry 0 is no head", '[[0, 1], ["x", 2]]': "entry 1 is no head", "[[0, -1]]": "entry 0 is no head",
             '{"params": {}}': "has no list of heads", "[[0, 99]]": "there is no head 0.99", '["1.2x"]': "entry 0 is no head", "{": ": line 1, column 1: "}
BAD_SPANS = {"{}": 'and none of "*"', '{"*": {}}': "instruction: expected [FIRST, END)", '{"*": {"instruction": [0, 99], "data": [0, 1]}}': "instruction: expected",
             '{"*": {"instruction": {"ids": [1, 2]}, "data": [0, 1]}}': "its ids are not in the prompt", "[": ": line 1, column 1: "}


CHAT = [0, 4, 3, 5, 6, 1, 0, 2, 3, 5, 7, 8, 1, 9]  # system says " a\u20ac"; user says " ab c"
TOKENIZER = {"model": {"vocab": {"user": 2, "\u010a": 3, "system": 4, "\u0120a": 5, "\u00e2\u0124\u00ac": 6, "b": 7, "\u0120c": 8}}, "decoder": {"type": "ByteLevel"},
             "added_tokens": [{"id": 0, "content": "<|im_start|>"}, {"id": 1, "content": "<|im_end|>"}]}
# What names a passage of CHAT, and its span; None: it is refused, and why.
PASSAGES = [({"role": "system"}, (3, 5)), ({"role": "user"}, (9, 12)), ({"role": "user", "which": -1}, (9, 12)), ({"text": " ab c"}, (9, 12)), ({"text": "b"}, (10, 11)), ({"text": "a\u20ac"}, (3, 5)),
            ({"text": " a", "which": 0}, (3, 4)), ({"text": " a", "which": -1}, (9, 10)), ({"ids": [5, 7]}, (9, 11)), ({"ids": [5], "which": 1}, (9, 10)), ({"text": "user\n"}, (7, 9))]
NO_PASSAGES = [({"text": " a"}, 'it is in the prompt 2 times: "which" says which'), ({"text": " a", "which": 2}, '2 times, and "which" names none'), ({"text": "z"}, "its text is not in the prompt"),
               ({"text": "a", "which": "0"}, '"which" is no whole number'), ({"text": 7}, "its text is not in the prompt"), ({"role": "assistant"}, "no turn of its role"),
               ({"role": "use"}, "no turn of its role"), ({"ids": [5, 5]}, "its ids are not in the prompt"), ({"ids": [5]}, "it is in the prompt 2 times")]


def test_passages_by_text_role_and_ids(tmp_path, captured):
    """What names a passage gives the numbers of its positions."""
    run = write_run(tmp_path / "run", {"a": captured}, ROTATED, ids=CHAT, n_prompt=13)
    (tmp_path / "heads.json").write_text(json.dumps(HEADS))
    (tmp_path / "tokenizer.json").write_text(json.dumps(TOKENIZER))

    def focus(instruction, *words, status=0):
        (tmp_path / "spans.json").write_text(json.dumps({"*": {"instruction": instruction, "data": [0, 13]}}))
        return tool("focus", run, "--heads", tmp_path / "heads.json", "--spans", tmp_path / "spans.json", "--json", *words, status=status)
    for passage, span in PASSAGES:
        assert focus(passage, "--tokenizer", tmp_path).stdout == focus(span).stdout, passage
    for passage, why in NO_PASSAGES:
        assert why in focus(passage, "--tokenizer", tmp_path, status=2).stderr, passage
    assert "instruction: a text or a role needs --tokenizer FILE" in focus({"role": "user"}, status=2).stderr
    assert focus({"ids": [5, 7]}).stdout == focus((9, 11)).stdout
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "tokenizer.json: this is no tokenizer.json" in focus([0, 1], "--tokenizer", tmp_path, status=2).stderr
    (tmp_path / "tokenizer.json").write_text(json.dumps(TOKENIZER | {"model": TOKENIZER["model"] | {"end_of_word_suffix": "</w>"}}))
    assert "its model says end_of_word_suffix, which is not read here" in focus([0, 1], "--tokenizer", tmp_path, status=2).stderr
    run = write_run(tmp_path / "no ids", {"a": captured}, ROTATED, n_prompt=13)
    assert "the run has no ids of the prompt's tokens" in focus({"ids": [5, 7]}, status=2).stderr


def test_bad_files(tmp_path, captured):
    run = write_run(tmp_path / "run", {"a": captured}, ROTATED, ids=IDS, n_prompt=12)
    good, spans = tmp_path / "good.json", tmp_path / "spans.json"
    good.write_text("[[0, 1]]")
    spans.write_text(json.dumps(SPANS))
    bad = tmp_path / "bad.json"
    for text, why in BAD_HEADS.items():
        bad.write_text(text)
        assert why in tool("focus", run, "--heads", bad, "--spans", spans, status=2).stderr, text
    for text, why in BAD_SPANS.items():
        bad.write_text(text)
        assert why in tool("focus", run, "--heads", good, "--spans", bad, status=2).stderr, text
    assert "focus needs --spans" in tool("focus", run, "--heads", good, status=2).stderr
    assert "focus needs --heads" in tool("focus", run, "--spans", spans, status=2).stderr


def test_heads_that_tell_requests_apart(tmp_path):
    """Of requests whose head 1.2 looks at the instruction, and of others whose does not."""
    model = Model()

    def request(seed, looks):
        c = Captured(model, 14, seed=seed, scale=0.3)
        q, k = c.values["q_rot"][1].copy(), c.values["k_rot"][1].copy()
        q[13, 2] = 1.5
        k[1:4, 1] += 1.0 if looks else -1.0
        k[5:, 1] += -1.0 if looks else 1.0
        c.values["q_rot"][1], c.values["k_rot"][1] = q, k
        c.weights[1] = model.weights(q, k)
        c.values["z"][1] = np.einsum("hij,jhd->ihd", c.weights[1], np.repeat(c.values["v"][1], 2, axis=1)).astype(np.float32)
        return c
    requests = {f"{'p' if looks else 'i'}{n}": request(n, looks) for n in range(4) for looks in (True, False)}
    run = write_run(tmp_path / "run", requests, ROTATED, n_prompt=14)
    (tmp_path / "spans.json").write_text('{"*": {"instruction": [1, 4], "data": [5, 13]}}')
    words = ("focus", run, "--find", "--spans", tmp_path / "spans.json", "--plain", "p0,p1,p2,p3", "--injected", "i0,i1,i2,i3")
    found = json.loads(tool(*words, "--json", "--top", 1, "-o", tmp_path / "h.json").stdout)["heads"]
    assert [(h["layer"], h["head"]) for h in found] == [(1, 2)] and found[0]["plain"] > 0.9 > 0.1 > found[0]["injected"]
    plain = [focus_of(requests[f"p{n}"].weights, [(1, 2)], 13, (1, 4), (5, 13))[0] for n in range(4)]
    injected = [focus_of(requests[f"i{n}"].weights, [(1, 2)], 13, (1, 4), (5, 13))[0] for n in range(4)]
    assert abs(found[0]["gap"] - (np.mean(plain) - 4 * np.std(plain) - np.mean(injected) - 4 * np.std(injected))) < 1e-5
    tool("focus", run, "--spans", tmp_path / "spans.json", "--heads", tmp_path / "h.json", "--below", "0.5", status=3)
    assert "no head tells them apart" in tool(*words, "--times", "1000000000", status=1).stderr
    assert "--find needs --plain and --injected" in tool(*words[:5], "--plain", "", "--injected", "i0", status=2).stderr


def test_requests_of_other_layers_are_not_compared(tmp_path):
    requests = {"p0": Captured(Model(layers=1), 14, seed=1), "p1": Captured(Model(layers=3), 14, seed=2), "i0": Captured(Model(layers=3), 14, seed=3)}
    run = write_run(tmp_path / "run", requests, ROTATED, n_prompt=14)
    (tmp_path / "spans.json").write_text('{"*": {"instruction": [1, 4], "data": [5, 13]}}')
    words = ("focus", run, "--find", "--spans", tmp_path / "spans.json")
    assert "request p1 has 12 heads, those before it have 4" in tool(*words, "--plain", "p0,p1", "--injected", "i0", status=2).stderr
    assert "have requests of 4 and of 12 heads" in tool(*words, "--plain", "p0", "--injected", "i0", status=2).stderr


# ------------------------------------------------------------------------- documents


def test_rerank(tmp_path):
    """Two prompts that share documents and differ in the query's length."""
    model, n = Model(), 30
    query, null = Captured(model, n, seed=1), Captured(model, n - 2, seed=2)
    run = write_run(tmp_path / "run", {"q": query, "n": null}, ROTATED)
    documents = [(2, 7), (8, 15), (16, 16), (17, 22)]  # the last one is included
    (tmp_path / "p.json").write_text(json.dumps({"documents": [list(documents[0]), {"name": "second", "span": documents[1]}, *map(list, documents[2:])],
                                                 "query": [24, 29], "null": [24, 27]}))
    (tmp_path / "heads.json").write_text("[[0, 1], [1, 2]]")

    def scores(heads):
        t = [sum(c.weights[layer][head][24:].mean(0) for layer, head in heads) for c in (query, null)]
        out = []
        for a, b in documents:
            c = t[0][a:b + 1] - t[1][a:b + 1]
            kept = c[c > c.mean() - 2 * c.std(ddof=1)] if len(c) > 1 else c
            out.append(kept.sum())
        return out
    words = ("rerank", run, "--query", "q", "--null", "n", "--passages", tmp_path / "p.json", "--json")
    every = [(layer, head) for layer in range(2) for head in range(4)]
    for more, heads in (((), every), (("--heads", tmp_path / "heads.json"), [(0, 1), (1, 2)]), (("--heads", tmp_path / "heads.json", "--all-heads"), every)):
        found = json.loads(tool(*words, *more).stdout)["documents"]
        wanted = scores(heads)
        assert [d["number"] for d in found] == sorted(range(4), key=lambda i: -wanted[i])
        assert all(abs(d["score"] - wanted[d["number"]]) < 1e-5 for d in found)
        assert {d["document"] for d in found} == {"0", "second", "2", "3"}
        assert json.loads(tool(*words, *more, "--memory", "1").stdout)["documents"] == found  # KV heads one after the other: no bit changes
    for change, why in (({"documents": []}, "expected"), ({"query": [3, 9]}, 'ends after "query" begins'), ({"null": 4}, '"null" has no span'),
                        ({"documents": [[5, 4]]}, "document 0 has no span"), ({"query": [24, 99]}, "no row of")):
        (tmp_path / "bad.json").write_text(json.dumps(json.loads((tmp_path / "p.json").read_text()) | change))
        done = subprocess.run([TOOL, "rerank", run, "--query", "q", "--null", "n", "--passages", tmp_path / "bad.json"], stderr=subprocess.PIPE, text=True, check=False)
        assert done.returncode == 2 and why in done.stderr, done.stderr


def test_documents_by_text(tmp_path):
    """The documents of both prompts are at the same place, or it is said."""
    model, n = Model(), len(CHAT)
    run = write_run(tmp_path / "run", {"q": Captured(model, n, seed=1), "n": Captured(model, n, seed=2)}, ROTATED, ids=CHAT)
    (tmp_path / "tokenizer.json").write_text(json.dumps(TOKENIZER))

    def rerank(passages, *words, status=0):
        (tmp_path / "p.json").write_text(json.dumps(passages))
        return tool("rerank", run, "--query", "q", "--null", "n", "--passages", tmp_path / "p.json", "--json", *words, status=status)
    by_text = {"documents": [{"name": "a", "text": "a\u20ac"}, {"span": {"role": "user"}}], "query": [12, 13], "null": {"ids": [1, 9]}}
    assert rerank(by_text, "--tokenizer", tmp_path).stdout == rerank({"documents": [{"name": "a", "span": [3, 4]}, [9, 11]], "query": [12, 13], "null": [12, 13]}).stdout
    assert "document 1: a text or a role needs --tokenizer" in rerank({**by_text, "documents": [[3, 4], {"role": "user"}]}, status=2).stderr
    assert "document 0 has no span" in rerank({**by_text, "documents": [{"name": "a"}]}, status=2).stderr
    assert "request x: the run has no such request" in rerank(by_text, "--tokenizer", tmp_path, "--query", "x", status=2).stderr


def test_documents_at_different_places(tmp_path):
    model, ids = Model(), CHAT + CHAT[2:]
    run = write_run(tmp_path / "run", {"q": Captured(model, len(CHAT), seed=1), "n": Captured(model, len(ids), seed=2)}, ROTATED, ids=ids)
    (tmp_path / "p.json").write_text(json.dumps({"documents": [{"ids": [5, 6], "which": -1}], "query": [12, 13], "null": [24, 25]}))
    said = tool("rerank", run, "--query", "q", "--null", "n", "--passages", tmp_path / "p.json", status=2).stderr
    assert "document 0 lies at 3 to 5 in --query, and at 15 to 17 in --null" in said, said


def test_focus_follows_a_run(tmp_path, captured):
    """A line a request as its prompt ends, while the run grows: here it is alive as long as this process locks its counters."""
    more = {"ids": IDS, "n_prompt": 12}
    requests = {"a": captured, "b": Captured(Model(), 14, seed=4)}
    first = (write_run(tmp_path / "first", {"a": captured}, ROTATED, chunks=(6, 8), **more) / "seg-000000.dmi").read_bytes()
    run = write_run(tmp_path / "run", requests, ROTATED, chunks=(6, 8), **more)
    segment = run / "seg-000000.dmi"
    whole = segment.read_bytes()
    assert whole.startswith(first)
    segment.write_bytes(first)
    (tmp_path / "spans.json").write_text('{"*": {"instruction": [1, 4], "data": [5, -1]}}')
    (tmp_path / "heads.json").write_text("[[0, 1], [1, 3]]")
    with open(run / "counters", "r+b") as counters:
        fcntl.lockf(counters, fcntl.LOCK_EX)
        with subprocess.Popen([TOOL, "focus", run, "--heads", tmp_path / "heads.json", "--spans", tmp_path / "spans.json", "--follow", "--json"],
                              stdout=subprocess.PIPE, text=True) as tool_:
            said = [json.loads(tool_.stdout.readline())]
            with open(segment, "ab") as file:
                file.write(whole[len(first):])
            said.append(json.loads(tool_.stdout.readline()))
            assert tool_.poll() is None  # the run may grow still
            fcntl.lockf(counters, fcntl.LOCK_UN)
            rest = tool_.stdout.read()
    assert [s["request"] for s in said] == ["a", "b"] and not rest and tool_.returncode == 0
    for one in said:
        wanted = focus_of(requests[one["request"]].weights, [(0, 1), (1, 3)], 11, (1, 4), (5, 11))[0]
        assert abs(one["focus"] - wanted) < 2e-6
