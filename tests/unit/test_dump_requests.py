# SPDX-License-Identifier: Apache-2.0
"""dmi-dump: requests, their tokens, drafts that were rejected, positions that were computed again."""
import json
import subprocess

import pytest

from harness import BUILD, DMI_DUMP, cpu_seconds

MAKE_ODD_RUN = BUILD / "tests" / "unit" / "make_odd_run"
pytestmark = pytest.mark.built(DMI_DUMP, MAKE_ODD_RUN)


def dump(*words, status=0):
    done = subprocess.run([DMI_DUMP, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == status, (words, done.returncode, done.stdout[-600:], done.stderr[-600:])
    return done


def facts(*words, status=0):
    return json.loads(dump(*words, "--json", status=status).stdout)


def make(folder, kind):
    subprocess.run([MAKE_ODD_RUN, folder, kind], check=True, stdout=subprocess.PIPE, timeout=60)
    return folder


@pytest.fixture(name="drafts")
def fixture_drafts(tmp_path):
    return make(tmp_path / "drafts", "drafts")


def values(run, *words, tensor="a/s0"):
    """[(position, value, flag)] of a tensor; a value is 100 * forward + position."""
    rows = facts("show", tensor, run, "--rows", ":", *words)
    return [(r["position"], int(r["values"][0]), "rejected" if r.get("rejected") else "superseded" if r.get("superseded") else "")
            for r in rows]


A = [(0, 0, ""), (1, 1, ""), (2, 2, ""), (3, 3, ""), (4, 104, ""), (5, 105, ""), (6, 206, ""), (7, 307, "")]


def test_what_counts(drafts, check):
    check(values(drafts) == A, "rejected rows are in no tensor", values(drafts))
    b = [(p, 300 + p if p < 4 else 400 + p if p < 6 else 200 + p, "") for p in range(7)]
    check(values(drafts, tensor="b/s0") == b, "of what was computed again the latest counts", values(drafts, tensor="b/s0"))


def test_what_is_left_out_can_be_had(drafts, check):
    rejected = values(drafts, "--rejected")
    check(sorted(rejected) == sorted(A + [(6, 106, "rejected"), (7, 207, "rejected"), (8, 208, "rejected")]), "rejected rows", rejected)
    check([p for p, _, _ in rejected] == sorted(p for p, _, _ in rejected), "in the order of positions")
    again = values(drafts, "--superseded", tensor="b/s0")
    check(len(again) == 11 and [r for r in again if r[2]] == [(2, 2, "superseded"), (3, 3, "superseded"), (4, 4, "superseded"),
                                                              (5, 105, "superseded")], "superseded ones", again)
    text = dump("show", "a/s0", drafts, "--rejected", "--rows", ":").stdout
    check(text.count(", rejected;") == 3, "and text says which they are", text)


def test_tokens(drafts, check):
    for words, want in ((("prompt",), A[:4]), (("generated",), A[4:]), (("last",), A[7:]), (("2:5",), A[2:5]), (("6",), A[6:7]),
                        ((":1",), A[:1]), (("-2:",), A[6:]), (("prompt,-1",), A[:4] + A[7:])):
        check(values(drafts, "--tokens", *words) == want, f"--tokens {words[0]}", values(drafts, "--tokens", *words))
    tensors = {t["key"]: t["rows"] for t in facts("list", drafts, "--tensors", "--tokens", "generated", status=1)["tensors"]}
    check(tensors == {"a/s0": 4, "b/s0": 2}, "of each request its own", tensors)
    told = dump("list", drafts, "--tensors", "--tokens", "generated", status=1).stderr
    check(told.count("where its generation begins") == 1 and "request 'd'" in told,
          "the one of whom it is not known is named", told)
    one = facts("stats", drafts, "--request", "a", "--tokens", "prompt")["selected"]
    check([(s["site"], s["tensors"], s["rows"], s["raw_bytes"]) for s in one] == [("s0", 1, 4, 16)], "stats sums what is selected", one)
    records = facts("list", drafts, "--records", "--request", "a", "--tokens", "6:")["records"]
    check([r["step"] for r in records] == [1, 2, 3], "records whose step computes them", records)
    done = dump("show", "s0", drafts, "--request", "d", "--tokens", "generated", status=1)
    check("generation of request 'd' begins is not known" in done.stderr, "what is not known is said", done.stderr)
    check("is none of a position" in dump("list", drafts, "--tokens", "x", status=2).stderr, "what is no range")


def test_requests(drafts, check):
    rows = {r["request"]: r for r in facts("list", drafts, "--requests")["requests"]}
    told = {name: (r["state"], r["reason"], r["prompt"], r["prompt_is_said"], r["generated"], r["cached"], r["computed"], r["rejected"],
                   r["preemptions"], r["steps"], r["end_position"]) for name, r in rows.items()}
    check(told == {"a": ("finished", "length", 4, True, 4, 0, 11, 3, 0, 4, 8),
                   "b": ("preempted", None, 5, False, 2, 2, 11, 0, 1, 5, 7),
                   "c": ("aborted", "aborted", 1, True, 0, 0, 1, 0, 0, 1, 1),
                   "d": ("finished", "unknown", None, False, 0, 0, 2, 0, 0, 1, 2),
                   "never": ("aborted", "aborted", None, False, 0, 0, 0, 0, 0, 0, 0)}, "states, prompts, drafts, preemptions", told)
    costs = {r["request"]: (r["records"], r["rows"], r["raw_bytes"]) for r in facts("stats", drafts, "--requests")["requests"]}
    check(costs == {"a": (4, 11, 44), "b": (5, 11, 44), "c": (1, 1, 4), "d": (1, 2, 8), "never": (0, 0, 0)},
          "what each cost, rejected and superseded rows included", costs)
    shares = [r["stored_share"] for r in facts("stats", drafts)["requests"]]
    check(abs(sum(shares) - 1) < 1e-9, "the shares are those of all that is stored", shares)
    table = dump("list", drafts, "--requests").stdout
    check("~5" in table and "preempted" in table, "and as a table", table)


def test_export(drafts, tmp_path, check):
    said = facts("export", drafts, "--format", "npy", "-o", tmp_path / "npy", "--rejected", "--superseded")
    check((said["rejected_rows"], said["superseded_rows"]) == (3, 4), "counted", said)
    index = json.loads((tmp_path / "npy" / "index.json").read_text())
    about = index["tensors"]["a/s0"]["facts"]
    check(about["rejected"] == [[6, 1], [8, 1], [10, 1]] and "superseded" not in about, "and named by their place", about)
    plain = dump("export", drafts, "--format", "npy", "-o", tmp_path / "plain").stdout
    check("3 rows are left out because their drafts were rejected" in plain, "what is left out is said", plain)


def test_a_record_that_contradicts_itself_is_damaged_for_every_command(tmp_path, check):
    run = make(tmp_path / "twice", "twice")
    for words in (("list",), ("list", "--tensors"), ("stats",), ("show", "a/s0", "--rows", ":"), ("verify",), ("export", "-o", tmp_path / "out")):
        done = dump(words[0], *([words[1]] if words[0] == "show" else []), run, *words[2 if words[0] == "show" else 1:], status=1)
        check("DAMAGED" in done.stderr + done.stdout and "the record of launch 2 keeps a row twice" in done.stderr + done.stdout, words[0], (done.stdout, done.stderr))
    rows = json.loads(dump("show", "a/s0", run, "--rows", ":", "--json", status=1).stdout)
    check([row["position"] for row in rows] == [0, 1, 2], "its rows are used by none", rows)


def test_tags_come_out(tmp_path, check):
    tags = '{"label": "toxic", "lora": "sql-7"}'
    run = schedule(tmp_path / "run", f"tags {tags}", [("r", 0, 2, 2, 0)], [("r", 2, 1, 2, 0)])
    check(facts("list", run, "--requests")["requests"][0]["tags"] == tags, "list")
    said = subprocess.run([BUILD / "tools" / "dmi-replay", run, "--to", "-", "--format", "jsonl"], stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    steps = [line for line in map(json.loads, said.stdout.splitlines()) if line["type"] == "step"]
    check([span["tags"] for step in steps for span in step["spans"]] == [tags, tags] and steps[0]["tags"] is None, "the stream", steps)


def test_a_crowd(tmp_path, check):
    run = make(tmp_path / "crowd", "crowd")
    begin = cpu_seconds()
    rows = facts("list", run, "--requests")["requests"]
    took = cpu_seconds() - begin
    check(len(rows) == 60000 and took < 60, "60,000 requests are no square", took)
    check(sum(r["rejected"] for r in rows) == sum(3 - k % 4 for k in range(100)) * 600, "all of their outcomes count")
    check(all(r["state"] == "finished" and r["reason"] == "stop" for r in rows), "and their ends")
    check(dump("verify", run).returncode == 0, "and the run is sound")


# ---- an id that comes again


MAKE_SCHEDULE = BUILD / "tests" / "unit" / "make_schedule"
LAST = 2


def schedule(folder, *steps, ranks=(0, 1)):
    """@steps: spans (id, position, tokens, prompt, flags), or a line of make_schedule's. Values of site h are 4096 * step + 64 * row."""
    text, number = [], 0
    for step in steps:
        if isinstance(step, str):
            text.append(step)
            continue
        spans, row = [], 0
        for name, position, n, prompt, flags in step:
            spans.append(f"{name}:{row}:{n}:{position}:{1 if n > 1 else 2}:{prompt}:{flags}")
            row += n
        text += [f"step {number} {row} {' '.join(spans)}", "rec 2 0 0 1 1"]
        number += 1
    subprocess.run([MAKE_SCHEDULE, folder, "job", *map(str, ranks), "0", "1"], input="".join(f"{line}\n" for line in text), text=True, check=True, timeout=60)
    return folder


def shown(run, *words):
    """{request: (state, [(position, step)])} as dmi-dump reads it"""
    requests = {r["request"]: r["state"] for r in facts("list", run, "--requests")["requests"]}
    return {name: (state, [(r["position"], (int(r["values"][0]) // 4096) % 128) for r in facts("show", f"{name}/h.0", run, "--rows", ":", *words)])
            for name, state in requests.items()}


REUSED = {
    "after its end": ([[("r", 0, 2, 2, 0)], "end r 1", [("r", 0, 3, 3, 0)]],
                      {"r": ("finished", [(0, 0), (1, 0)]), "r~2": ("running", [(0, 1), (1, 1), (2, 1)])}),
    "an end that was known ahead": ([[("r", 0, 2, 2, LAST)], [("r", 0, 2, 2, LAST)], [("r", 0, 1, 1, 0)]],
                                    {"r": ("finished", [(0, 0), (1, 0)]), "r~2": ("finished", [(0, 1), (1, 1)]), "r~3": ("running", [(0, 2)])}),
    "where the ended one was": ([[("r", 0, 2, 2, 0)], "end r 1", [("r", 2, 1, 3, 0)]], {"r": ("finished", [(0, 0), (1, 0)]), "r~2": ("running", [(2, 1)])}),
    "no end, another prompt": ([[("r", 0, 4, 4, 0)], [("r", 0, 2, 2, 0)]], {"r": ("running", [(0, 0), (1, 0), (2, 0), (3, 0)]),
                                                                        "r~2": ("running", [(0, 1), (1, 1)])}),
    "preempted": ([[("r", 0, 4, 4, 0)], [("r", 0, 4, 4, 0)]], {"r": ("running", [(0, 1), (1, 1), (2, 1), (3, 1)])}),
    "a number that a client has": ([[("r", 0, 1, 1, 0), ("r~2", 0, 1, 1, 0)], "end r 1", [("r", 0, 1, 1, 0)]],
                                   {"r": ("finished", [(0, 0)]), "r~2": ("running", [(0, 0)]), "r~3": ("running", [(0, 1)])}),
    "a client's number comes later": ([[("r", 0, 1, 1, 0)], "end r 1", [("r", 0, 1, 1, 0)], [("r~2", 0, 1, 1, 0)]],
                                      {"r": ("finished", [(0, 0)]), "r~2": ("running", [(0, 1)]), "r~3": ("running", [(0, 2)])}),
    "numbers that are none": ([[("r~02", 0, 1, 1, LAST), ("~2", 0, 1, 1, LAST), ("r~1", 0, 1, 1, LAST)],
                               [("r~02", 0, 1, 1, 0), ("~2", 0, 1, 1, 0), ("r~1", 0, 1, 1, 0)]],
                              {name: (state, [(0, step)]) for end, state, step in (("", "finished", 0), ("~2", "running", 1))
                               for name in (f"r~02{end}", f"~2{end}", f"r~1{end}")}),
    "in one step": ([[("r", 0, 2, 3, 0), ("r", 2, 1, 3, LAST)], "end r 1"], {"r": ("finished", [(0, 0), (1, 0), (2, 0)])}),
}


@pytest.mark.parametrize("name", REUSED)
def test_an_id_that_comes_again_is_another_request(tmp_path, check, name):
    steps, want = REUSED[name]
    found = shown(schedule(tmp_path / "run", *steps))
    check(found == want, "each has its own rows", found)


def test_who_an_id_is_everywhere(tmp_path, check):
    run = schedule(tmp_path / "run", [("r", 0, 2, 2, 0)], "end r 2", [("r", 0, 3, 3, 0), ("s", 0, 1, 1, 0)], "end r 1")
    keys = {t["key"]: t["rows"] for t in facts("list", run, "--tensors")["tensors"]}
    check(keys == {"r/h.0": 2, "r~2/h.0": 3, "s/h.0": 1}, "keys", keys)
    keys = {t["key"]: t["rows"] for t in facts("list", run, "--tensors", "--request", "r~2", "--site", "h")["tensors"]}
    check(keys == {"r~2/h.0": 3}, "a selection", keys)
    rows = {r["request"]: r["reason"] for r in facts("list", run, "--requests")["requests"]}
    check(rows == {"r": "length", "r~2": "stop", "s": None}, "each has its own end", rows)
    said = subprocess.run([BUILD / "tools" / "dmi-replay", run, "--to", "-", "--format", "jsonl"], stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    lines = [json.loads(line) for line in said.stdout.splitlines()]
    check([(line["request"], line["ended"]) for line in lines if line["type"] == "outcome"] == [("r", "length"), ("r~2", "stop")], "the stream's ends", lines)
    check([[s["request"] for s in line["spans"]] for line in lines if line["type"] == "step"] == [["r"], ["r~2", "s"]], "and its steps", lines)
    both = tmp_path / "both"  # one id on two data parallel ranks, at once
    for rank in range(2):
        schedule(both, f"dp {rank} 2", [("r", 0, 1, 1, 0)], [("r", 1, 1, 1, 0)])
    keys = {t["key"]: t["rows"] for t in facts("list", both, "--tensors")["tensors"]}
    check(keys == {"r/h.0": 2, "r~2/h.0": 2}, "ranks serve requests of their own", keys)
