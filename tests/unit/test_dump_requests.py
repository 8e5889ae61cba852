# SPDX-License-Identifier: Apache-2.0
"""dmi-dump: requests, their tokens, drafts that were rejected, positions that were computed again."""
import json
import subprocess
import time

import pytest

from harness import BUILD, DMI_DUMP

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
                        ((":1",), A[:1])):
        check(values(drafts, "--tokens", *words) == want, f"--tokens {words[0]}", values(drafts, "--tokens", *words))
    tensors = {t["key"]: t["rows"] for t in facts("list", drafts, "--tensors", "--tokens", "generated")["tensors"]}
    check(tensors == {"a/s0": 4, "b/s0": 2}, "of each request its own", tensors)
    one = facts("stats", drafts, "--request", "a", "--tokens", "prompt")["selected"]
    check([(s["site"], s["tensors"], s["rows"], s["raw_bytes"]) for s in one] == [("s0", 1, 4, 16)], "stats sums what is selected", one)
    records = facts("list", drafts, "--records", "--request", "a", "--tokens", "6:")["records"]
    check([r["step"] for r in records] == [1, 2, 3], "records whose step computes them", records)
    done = dump("show", "s0", drafts, "--request", "d", "--tokens", "generated", status=1)
    check("generation of request 'd' begins is not known" in done.stderr, "what is not known is said", done.stderr)
    check("neither a position" in dump("list", drafts, "--tokens", "x", status=2).stderr, "what is no range")


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


def test_a_crowd(tmp_path, check):
    run = make(tmp_path / "crowd", "crowd")
    begin = time.monotonic()
    rows = facts("list", run, "--requests")["requests"]
    took = time.monotonic() - begin
    check(len(rows) == 60000 and took < 60, "60,000 requests are no square", took)
    check(sum(r["rejected"] for r in rows) == sum(3 - k % 4 for k in range(100)) * 600, "all of their outcomes count")
    check(all(r["state"] == "finished" and r["reason"] == "stop" for r in rows), "and their ends")
    check(dump("verify", run).returncode == 0, "and the run is sound")
