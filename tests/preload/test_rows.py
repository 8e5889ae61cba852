# SPDX-License-Identifier: Apache-2.0
"""Which rows a site keeps: random steps and choices, launch by launch and from graphs, against a model of docs/hookspec.md.

Every word that a kernel writes says launch, row and column, so a record holds exactly the rows that the model names, and
their numbers are the model's.
"""
import fnmatch
import json
import pathlib
import random
import sys

import pytest

from harness import ROOT
from kit import spec
from rows_client import WIDTH

pytest.importorskip("cuda.bindings")
pytestmark = pytest.mark.since(12000, "what cuda.bindings 13 calls to build a graph")

CLIENT = pathlib.Path(__file__).with_name("rows_client.py")
PREFILL, DECODE, DRAFT, PADDING = 1, 2, 3, 1
# name, kernel, keys of the site: `block` writes a row a token, `other` one a request
SITES = [
    ("all", "block", {}),
    ("prompt", "block", {"tokens": "prompt"}),
    ("generated", "block", {"tokens": "generated"}),
    ("last", "block", {"tokens": "last"}),
    ("window", "block", {"tokens": "'3:9'"}),
    ("from", "block", {"tokens": "'5:'"}),
    ("odd", "block", {"requests": "'*1'"}),
    ("tagged", "block", {"requests": "'tag:capture=y*'", "tokens": "last"}),
    ("third", "block", {"steps": "{every: 3, of: engine}"}),
    ("fifth", "block", {"steps": "{every: 5}", "tokens": "last"}),
    ("whole", "block", {"row": "none"}),
    ("logits", "other", {"row": "request"}),
    ("logits_odd", "other", {"row": "request", "requests": "'*1'"}),
    ("logits_generated", "other", {"row": "request", "tokens": "generated"}),
]
# two columns of each row, as a view of a wider buffer has them
STRIDED = {"prompt", "odd", "logits_odd"}


def site_text(name, kernel, keys):
    columns = "{count: 2}" if name in STRIDED else f"{{count: {WIDTH}}}"
    dims = f"[{{row: true, count: 'arg[1].u32 / {WIDTH}', stride: {WIDTH * 4}}}, {columns}]"
    lines = [f"  - name: {name}", f"    kernel: '^{kernel}$'", "    pointer: arg[0]", "    dtype: u32", f"    dims: {dims}"]
    if name in STRIDED:
        lines.append("    offset: 4")
    return "\n".join(lines + [f"    {key}: {value}" for key, value in keys.items()])


TEXT = spec(*(site_text(*s) for s in SITES), head="forward: [{kind: step, begin: step}]\nring: {bytes: 4M, slots: 8192}\n")


# ------------------------------------------------------------------------------------------ the model

def takes(keys, span):
    pattern = keys.get("requests", "'*'").strip("'")
    if pattern.startswith("tag:"):
        key, pattern = pattern[4:].split("=", 1)
        value = json.loads(span["tags"]).get(key) if (span["tags"] or "").startswith("{") else None
        return value is not None and fnmatch.fnmatchcase(str(value), pattern)
    return fnmatch.fnmatchcase(span["request"], pattern)


def wanted_position(keys, span, position, last):
    tokens = keys.get("tokens")
    if tokens is None:
        return True
    if tokens == "last":
        return last
    if tokens in ("prompt", "generated"):
        if not span["n_prompt"] and not span["phase"]:
            return False
        generated = position >= span["n_prompt"] if span["n_prompt"] else span["phase"] != PREFILL
        return generated == (tokens == "generated")
    first, end = (int(word) if word else None for word in tokens.strip("'").split(":"))
    return (first is None or position >= first) and (end is None or position < end)


def last_positions(spans):
    """{request: the highest position that the step computes}"""
    out = {}
    for span in spans:
        if span["request"] is not None and not span["flags"] & PADDING and span["n_tokens"]:
            out[span["request"]] = max(out.get(span["request"], -1), span["first_position"] + span["n_tokens"] - 1)
    return out


def token_rows(keys, said, n_rows):
    """Rows of a tensor with a row a token."""
    default = not {"tokens", "requests"} & set(keys)
    if default and n_rows > said["n_rows"]:
        return list(range(n_rows))
    keep = {r: default for r in range(said["n_rows"])}
    last = last_positions(said["spans"])
    for span in said["spans"]:
        for i in range(span["n_tokens"]):
            p = span["first_position"] + i
            keep[span["first_row"] + i] = not span["flags"] & PADDING and takes(keys, span) and \
                wanted_position(keys, span, p, p == last.get(span["request"]))
    return [r for r in sorted(keep) if keep[r] and r < n_rows]


def request_rows(keys, said, n_rows):
    """[(row of the tensor, what readers call it)] of a tensor with a row a request."""
    spans = [s for s in said["spans"] if s["n_tokens"]]
    if not spans and not {"tokens", "requests"} & set(keys):
        return [(r, r) for r in range(n_rows)]
    out, last = [], last_positions(said["spans"])
    real = 0
    for number, span in enumerate(spans):
        padding = span["flags"] & PADDING
        row = number if n_rows >= len(spans) else real
        p = span["first_position"] + span["n_tokens"] - 1
        if not padding and row < n_rows and takes(keys, span) and \
                wanted_position(keys, span, p, p == last.get(span["request"])):
            out.append((row, number))
        real += not padding
    return out


def predict(keys, said, n_rows):
    """(rows of the tensor, their numbers or None), None: no record."""
    if keys.get("row") == "none":
        return list(range(n_rows)), None
    if said is None:
        return None if {"tokens", "requests"} & set(keys) else (list(range(n_rows)), None)
    pairs = request_rows(keys, said, n_rows) if keys.get("row") == "request" else \
        [(r, r) for r in token_rows(keys, said, n_rows)]
    if not pairs:
        return None
    rows = [row for row, _ in pairs]
    return rows, None if rows == list(range(len(rows))) else [number for _, number in pairs]


def in_turn(keys, said, forward):
    if "steps" not in keys:
        return True
    every = int(keys["steps"].split("every: ")[1][0])
    if "engine" in keys["steps"]:
        return said is not None and said["step"] % every == 0
    return forward % every == 0


# ------------------------------------------------------------------------------------------ random plans

def random_span(rng, request, n_tokens, first_row):
    n_prompt = rng.choice((0, 6, 6))
    phase = rng.choice((PREFILL, DECODE, DRAFT) if n_prompt else (0, PREFILL, DECODE))
    tags = rng.choice((None, '{"capture": "yes"}', '{"capture": "no", "other": 3}', '{"x": {"capture": "yes"}}', "not JSON: ["))
    return {"request": request, "first_position": rng.randrange(12), "n_tokens": n_tokens, "first_row": first_row,
            "phase": phase, "flags": 0, "tags": tags, "n_prompt": n_prompt}


def random_step(rng, number):
    """Spans in any order, with gaps that no span owns, padding at the end or between."""
    spans, row = [], 0
    for i in range(rng.randrange(9)):
        row += rng.randrange(3) if rng.random() < 0.2 else 0
        n = rng.choice((1, 1, 1, 0, 4, 9))
        span = random_span(rng, f"r{i}", n, row)
        if rng.random() < 0.2:
            span |= {"request": None, "flags": PADDING, "tags": None}
        spans.append(span)
        row += n
    if spans and spans[0]["request"] and rng.random() < 0.3:  # the same request once more, further on
        spans.append(random_span(rng, spans[0]["request"], 2, row) | {"first_position": 40})
        row += 2
    rng.shuffle(spans)
    return {"step": number, "spans": spans, "n_rows": row + rng.randrange(3)}


def random_plan(rng, n_steps):
    plan, seed = [], 1
    for number in range(n_steps):
        said = None if rng.random() < 0.1 else random_step(rng, number)
        rows = max(1, said["n_rows"] if said else 5)
        requests = max(1, sum(s["n_tokens"] > 0 for s in said["spans"]) if said else 2)
        real = max(1, sum(s["n_tokens"] > 0 and not s["flags"] for s in said["spans"]) if said else 2)
        launches = []
        for _ in range(rng.randrange(1, 5)):
            if rng.random() < 0.7:
                launches.append(["block", rng.choice((rows, rows, rows + 3, max(1, rows - 2), 16)), seed, rng.random() < 0.5])
            else:
                launches.append(["other", rng.choice((requests, real, requests + 2)), seed, rng.random() < 0.5])
            seed += 1
        plan.append({"said": said, "launches": launches})
    return plan


def expected_of(plan, name, kernel, keys):
    """[(words, numbers)] of the site's records, in order."""
    out, forward = [], -1
    columns = (1, 2) if name in STRIDED else range(WIDTH)
    for step in plan:
        forward += step["said"] is not None
        if forward < 0:
            continue  # nothing has begun
        for launched, rows, seed, _ in step["launches"]:
            picked = predict(keys, step["said"], rows) if launched == kernel and in_turn(keys, step["said"], forward) else None
            if picked:
                words = tuple((seed << 16) + row * WIDTH + column for row in picked[0] for column in columns)
                out.append((words, picked[1]))
    return out


@pytest.mark.parametrize("seed", range(6))
def test_rows_that_are_kept(bench, seed, long):
    """--long: ten times the steps."""
    rng = random.Random(seed)
    plan = random_plan(rng, 600 if long else 60)
    path = bench.folder / f"plan-{seed}.json"
    path.write_text(json.dumps(plan))
    result = bench.alike(f"seed {seed}", [], TEXT, command=[sys.executable, CLIENT, path], timeout=300, PYTHONPATH=ROOT / "python")
    if not bench.check(result.code == 0 and result.folders, f"seed {seed}: the program runs, and a run is written",
                       result.stderr[-800:]):
        return
    run = result.run()
    for number, (name, kernel, keys) in enumerate(SITES):
        expected = expected_of(plan, name, kernel, keys)
        got = [(r.words, r.kept) for r in run.of(number)]
        wrong = next((i for i, (a, b) in enumerate(zip(got, expected)) if a != b), min(len(got), len(expected)))
        bench.check(got == expected, f"seed {seed}: {name}: each record has the rows that are kept",
                    f"{len(got)} records, {len(expected)} expected; number {wrong}: {got[wrong:wrong + 1]}, "
                    f"wanted {expected[wrong:wrong + 1]}")
    bench.check(not run.balance(), f"seed {seed}: every record is accounted for", run.balance())
    bench.check(not any(run.counters.dropped), f"seed {seed}: none was dropped", run.counters.dropped)


def test_many_choices_of_one_graph(bench):
    """A ticket holds 16 choices of rows: what comes after is a counted drop, by name."""
    plan = [{"said": {"step": i, "n_rows": 32, "spans": [
        {"request": f"r{k}", "first_position": 0, "n_tokens": 1, "first_row": k, "phase": PREFILL, "flags": 0, "tags": None,
         "n_prompt": 1} for k in range(32)]}, "launches": [["block", 32, i + 1, True]]} for i in range(3)]
    names = [(f"s{k}", "block", {"requests": f"'r{k + 1}'"}) for k in range(16)]
    text = spec(*(site_text(*s) for s in names), head="forward: [{kind: step, begin: step}]\nring: {bytes: 4M, slots: 8192}\n")
    path = bench.folder / "plan.json"
    path.write_text(json.dumps(plan))
    result = bench.alike("choices", [], text, command=[sys.executable, CLIENT, path], timeout=60, PYTHONPATH=ROOT / "python")
    run = result.run()
    got = [len(run.of(k)) for k in range(16)]
    bench.check(got == [3] * 16, "sixteen choices fit", f"{got} {result.stderr[-600:]}")
    bench.check(not run.balance(), "every record is accounted for", run.balance())
