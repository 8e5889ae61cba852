# SPDX-License-Identifier: Apache-2.0
"""dmi-replay: what it sends is what dmi-dump shows, in the recorded order, in every format."""
import io
import json
import math
import os
import pty
import re
import struct
import subprocess
import sys
import time

import numpy
import pytest

from damage import flip_payload
from replay_kit import (BUILT, DMI_REPLAY, MAKE_ODD_RUN, MAKE_RUN, lines, make, places, records, replay, rows_of, schedule, shown, steps, stream)
from stream_reader import frames, values

pytestmark = pytest.mark.built(*BUILT)
SITES = ("q", "blocks.{layer}.h", "ids", "logits", "bias")


@pytest.fixture(name="run")
def fixture_run(tmp_path):
    return make(MAKE_RUN, tmp_path / "run")


# ---------------------------------------------------------------------------------------------------- what, and in which order


def test_every_row(run, check):
    found = stream(run)
    rows = rows_of(found)
    check(rows == shown(run, SITES) and len(rows) == 61, "every row that dmi-dump shows, with its values", len(rows))
    check([f.type for f in found[:3]] == ["run", "step", "record"] and found[-1].type == "end", "run, step, record, end", [f.type for f in found])
    check([f.number for f in found] == list(range(len(found))), "numbered from 0")
    end = found[-1].facts
    check(end["complete"] and end["replayed"] == {"records": 28, "rows": 61, "bytes": sum(len(f.payload) for f in found)} and end["account"]["balances"],
          "tallies", end)
    check(end["left_out"] == {"rejected": 0, "superseded": 0, "of_nobody": 5}, "padding is left out, and counted", end["left_out"])
    first = found[0].facts
    check(first["model"] == "formula" and first["state"] == "closed" and not first["resumed"] and [s["name"] for s in first["sites"]][3] == "blocks.{layer}.h",
          "what the run is", first)


def test_recorded_order(run, check):
    found = stream(run)
    at = [(f.facts["chunk"], f.facts["launch"]) for f in records(found)]
    check(at == sorted(at) and len(set(places(found))) == 28, "by chunk and launch, each once", at)
    step = None
    for f in found:
        if f.type == "step":
            step = f.facts["step_sequence"]
        elif f.type == "record" and f.facts["step_sequence"] != step:
            check(False, "a step stands before its records", f.facts)
    spans = [f.facts for f in found if f.type == "step"][0]["spans"]
    check([(s["request"], s["position"], s["tokens"], s["cached"], s["phase"], s["padding"]) for s in spans] ==
          [("france", 0, 3, 0, "prefill", False), ("../../x\n", 7, 2, 7, "prefill", False), ("pad", 0, 1, 0, "unknown", True)], "spans", spans)


@pytest.mark.parametrize("words", [
    ("--request", "france"), ("--request", "../../x\n"), ("--layer", 1), ("--layers", "0-1"), ("--tokens", "2:9"), ("--tokens", "prompt"),
    ("--tokens", "generated"), ("--tokens", "last"), ("--step", "41:43"), ("--forward", 0), ("--request", "france", "--tokens", "1:4", "--layer", 0)],
    ids=str)
def test_selections(run, words):
    unknown = words[-1] in ("prompt", "generated")  # where france's generation begins nobody knows
    assert rows_of(stream(run, *words, status=int(unknown))) == shown(run, SITES, *words)


@pytest.mark.parametrize("site", ["q", "ids", "france/q.1", "blocks.0.h", "logits"])
def test_sites(run, site, check):
    found = stream(run, "--site", site)
    check(rows_of(found) == shown(run, [site]) != [], "only its rows")
    batch = [6, 2, 2, 1]
    check(all(f.facts["complete"] == (site == "logits" or sum(e["rows"] for e in f.facts["rows"]) == batch[f.facts["forward"]]) for f in records(found)),
          "and whether they are all of their record", [f.facts for f in records(found)])


@pytest.mark.parametrize("kind, words", [("drafts", ()), ("drafts", ("--rejected",)), ("drafts", ("--superseded",)), ("again", ()), ("again", ("--superseded",)),
                                         ("drafts", ("--rejected", "--superseded"))])
def test_rejected_and_superseded(tmp_path, kind, words, check):
    run = make(MAKE_ODD_RUN, tmp_path / "run", kind)
    found = stream(run, *words)
    check(rows_of(found) == shown(run, ["s0"], *words) != [], "rows that count, and those that were asked for")
    if len(words) == 2:
        check(all(f.facts["complete"] for f in records(found)), "together they are all there is")


def test_rivals_in_other_windows(tmp_path, check):
    """A preempted request computes positions again thousands of records later; a site fires twice in a step."""
    words = []
    for i in range(1300):
        at = i if i < 1200 else i - 1200
        words += [f"step {i} 2 a:0:1:{at}:2:0:0 b:1:1:{i}:2:0:0", *(f"rec 2 {layer} 0 1 1" for layer in range(4)), "rec 0 0 0 1 1"]
        words += ["rec 0 0 0 1 2"] if i % 100 == 7 else []
    run = schedule(tmp_path / "run", words)
    found = stream(run)
    check(rows_of(found) == shown(run, ["h", "q"]) != [], "the rows that dmi-dump shows, and no other")
    check(found[-1].facts["left_out"]["superseded"] == 100 * 5 + 13 * 2, "the others are counted", found[-1].facts["left_out"])
    check(rows_of(stream(run, "--superseded")) == shown(run, ["h", "q"], "--superseded"), "and sent where they are asked for")


def test_outcomes(tmp_path, check):
    found = stream(make(MAKE_ODD_RUN, tmp_path / "run", "drafts"))
    said = [f.facts for f in found if f.type == "outcome"]
    check([(o["request"], o["step"], o["position"], o["tokens"], o["accepted"]) for o in said if "accepted" in o] ==
          [("a", 1, 4, 3, [[0, 2]]), ("a", 2, 6, 3, [[0, 1]])], "drafts that were accepted", said)
    check([(o["request"], o["ended"]) for o in said if "ended" in o] == [("a", "length"), ("c", "aborted"), ("never", "aborted")], "requests that ended", said)
    only = [f.facts for f in stream(tmp_path / "run", "--request", "c") if f.type == "outcome"]
    check([o["request"] for o in only] == ["c"], "of the request that is selected", only)


def test_outcomes_by_time(tmp_path, check):
    """Said between two records of which the second is later than now."""
    later = 10**9 * (int(time.time()) + 10**6)
    words = ["step 0 3 a:0:3:0:3:0:0", "rec 2 0 0 2 1", "accept a 0 1", f"at {later}", "step 1 1 a:0:1:1:2:0:0", "rec 2 0 0 2 1"]
    kinds = [f.type for f in stream(schedule(tmp_path / "run", words))]
    check(kinds == ["run", "step", "record", "outcome", "step", "record", "end"], "in its place", kinds)


def test_ids_that_are_no_text(tmp_path, check):
    run = make(MAKE_ODD_RUN, tmp_path / "run", "names")
    f = records(stream(run, "--site", "x"))[0]
    ids = [(entry["request"], entry.get("request_hex")) for entry in f.facts["rows"]]
    check(("\ufffd", "ff") in ids and ("\ufffd", "fe") in ids and ("a\nDAMAGED: forged", None) in ids, "each differs from the others", ids)


def test_no_step_metadata(tmp_path, check):
    run = make(MAKE_RUN, tmp_path / "run", "anonymous")
    found = stream(run)
    check(rows_of(found) == shown(run, SITES) != [], "rows without requests")
    check(all(f.facts["step"] is None and f.facts["rows"][0]["request"] is None for f in records(found)) and not any(f.type == "step" for f in found),
          "and no steps")


def test_odd_shapes(tmp_path, check):
    run = make(MAKE_RUN, tmp_path / "run", "two-widths")
    shapes = [f.facts["shape"] for f in records(stream(run, "--site", "bias"))]
    check(shapes == 4 * [[1, 8]] + [[1, 4]], "a site that changes its width", shapes)
    check({tuple(f.facts["shape"]) for f in records(stream(run, "--site", "q", "--forward", 1))} == {(2, 2, 8)}, "three dimensions")
    found = stream(make(MAKE_ODD_RUN, tmp_path / "flat", "flat"))
    check([f.payload for f in records(found)] in ([], [b""]), "rows without elements")


# ---------------------------------------------------------------------------------------------------- formats


def test_jsonl(run, check):
    found, objects = stream(run), lines(run, "--values")
    check([f.type for f in found] == [o["type"] for o in objects], "an object an item")
    for f, o in zip(found, objects):
        if f.type == "record":
            data = values(f.facts["dtype"], f.payload)
            flat = [v for row in o["values"] for v in row]
            if not (flat == data and {k: o[k] for k in f.facts} == f.facts and o["least"] == min(data) and o["most"] == max(data) and
                    math.isclose(o["mean"], sum(data) / len(data)) and math.isclose(o["norm"], math.hypot(*data))):
                check(False, "facts, values and statistics", o)
    check("values" not in lines(run)[2], "no values unless they are asked for")


def test_jsonl_is_exact(tmp_path, check):
    given = [0.1, 1 / 3, 5e-324, 1.7976931348623157e308, -0.0, math.nan, math.inf, -math.inf]
    run = schedule(tmp_path / "run", ["step 0 2 a:0:2:0:1:0:0", f"put 0 0 4 f64 {' '.join(map(repr, given))}"])
    o = [o for o in lines(run, "--values") if o["type"] == "record"][0]
    got = [float(v) for row in o["values"] for v in row]
    check(struct.pack("<7d", *got[:5], *got[6:]) == struct.pack("<7d", *given[:5], *given[6:]) and math.isnan(got[5]), "every bit", got)
    check([v for row in o["values"] for v in row][5:] == ["NaN", "Infinity", "-Infinity"] and (o["nan"], o["infinite"]) == (1, 2), "what is no number is text", o)


def test_npy(run, tmp_path, check):
    path, names = tmp_path / "arrays.npy", tmp_path / "names.jsonl"
    replay(run, "--to", f"file:{path}", "--format", "npy", "--names", names)
    told = [o for o in map(json.loads, names.read_text().splitlines()) if o["type"] == "record"]
    arrays = []
    with open(path, "rb") as file:
        while file.read(1):
            file.seek(-1, 1)
            arrays.append(numpy.load(file))
    check([(list(a.shape), a.tobytes()) for a in arrays] == [(f.facts["shape"], f.payload) for f in records(stream(run))], "an array a record", len(arrays))
    check([o["xxh3"] for o in told] == [f.facts["xxh3"] for f in records(stream(run))], "and its name")
    check({a.dtype.str for a in arrays} == {"<f4", "<u2", "<i4"}, "in their types")


# ---------------------------------------------------------------------------------------------------- what is missing


def test_damage(run, check):
    segment = sorted(run.glob("*/seg-*.dmi"))[0]
    whole = stream(run)
    flip_payload(segment, 3)
    done = replay(run, "--to", "-", status=1)
    found = list(frames(io.BytesIO(done.stdout)))
    gaps = [f.facts for f in found if f.type == "gap"]
    check([(g["what"], g["site"], g["layer"], g["launch"]) for g in gaps] == [("record", "blocks.{layer}.h", 1, 5)], "the record that cannot be read", gaps)
    check(b"DAMAGED" in done.stderr and gaps[0]["text"] in done.stderr.decode(), "is named", done.stderr)
    lost = (gaps[0]["run"], gaps[0]["chunk"], gaps[0]["record"])
    check(places(found) == [p for p in places(whole) if p != lost] and len(found) == len(whole), "in its place, and all others are there")
    check(found[-1].facts["not_decoded"] == 1 and found[-1].facts["replayed"]["records"] == 27, "and counted", found[-1].facts)


def test_a_damaged_chunk(run, check):
    """Its metadata: nothing of it can be used, and that is a finding."""
    segment = sorted(run.glob("*/seg-*.dmi"))[0]
    data, at = bytearray(segment.read_bytes()), 128
    while struct.unpack_from("<H", data, at + 6)[0] != 3:
        n_meta, n_payload = struct.unpack_from("<QQ", data, at + 16)
        at += 64 + (n_meta + 7) // 8 * 8 + (n_payload + 7) // 8 * 8
    data[at + 64 + 20] ^= 1
    segment.write_bytes(data)
    found = stream(run, status=1)
    gaps = [f.facts for f in found if f.type == "gap"]
    check(any(g["what"] == "damage" and g["file"] == segment.name and "chunk" in g["text"] for g in gaps), "a gap says what", gaps)
    check(len(records(found)) == 27, "the others are there", len(records(found)))


def test_dropped_and_lost(tmp_path, check):
    found = stream(schedule(tmp_path / "drops", ["step 0 1 a:0:1:0:1:0:0", "rec 2 0 0 2 1", "drop 2 0 3", "drop 2 5 1", "drop 1 0 2"]))
    gaps = [f.facts for f in found if f.type == "gap"]
    check([(g["what"], g["site"], g["dropped"], g["by"]) for g in gaps] == [("dropped", "o", {"records": 2, "rows": 2, "bytes": 8}, {"ring_full": 2}), (
        "dropped", "h", {"records": 4, "rows": 4, "bytes": 16}, {"ring_full": 3, "not_run": 1})], "what was dropped, by site and reason", gaps)
    account = found[-1].facts["account"]
    check(account["dropped_by"] == {"ring_full": 5, "not_run": 1} and account["expected"]["records"] == 7 and account["balances"], "and in all", account)
    run = make(MAKE_RUN, tmp_path / "run", "killed")
    end = stream(run)[-1].facts
    check(end["state"] == "killed" and end["complete"] and end["account"]["lost"]["records"] == 3 and end["account"]["balances"], "lost at a kill", end)


# ---------------------------------------------------------------------------------------------------- ranks


def two_ranks(folder):
    for rank in (0, 1):
        words = []
        for i in range(6):
            words += [f"at {1000 + 100 * i + 50 * rank}", f"step {i} 1 a:0:1:{i}:2:0:0", "rec 2 0 0 3 1", f"rec 0 0 {3 * rank} 3 1"]
        schedule(folder, words, rank=(rank, 2, 0, 1))
    return folder


def test_ranks_go_by_time(tmp_path, check):
    run = two_ranks(tmp_path / "runs")
    found = records(stream(run))
    check([f.facts["time_ns"] for f in found] == sorted(f.facts["time_ns"] for f in found) and len(found) == 24, "merged by time")
    check([f.facts["rank"]["tp"] for f in found] == 6 * [0, 0, 1, 1] and len({f.facts["run"] for f in found}) == 2, "each names its run and rank")
    for rank, path in enumerate(sorted(run.iterdir(), key=lambda p: "" if records(stream(p))[0].facts["rank"]["tp"] == 0 else "1")):
        only = stream(run, "--rank", f"tp={rank}")
        check(rows_of(only) == rows_of(stream(path)) == shown(path, ["q", "h"]) and len(records(only)) == 12, f"rank {rank} alone")
    check("the run has no rank tp=7" in replay(run, "--to", "-", "--rank", 7, status=2).stderr.decode(), "a rank that is none")
    check(len(records(stream(*sorted(run.iterdir())))) == 24, "or by their names")


# ---------------------------------------------------------------------------------------------------- usage


@pytest.mark.parametrize("words, status, said", [
    ((), 2, "where to is not said"),
    (("--to", "nowhere"), 2, "is no sink: write -, file:PATH"),
    (("--to", "file:"), 2, "is no sink"),
    (("--to", "-", "--format", "xml"), 2, "write frames, jsonl or npy"),
    (("--to", "-", "--speed", "fast"), 2, "write max, 1, 0.5 or 10x"),
    (("--to", "-", "--speed", "0"), 2, "write max"),
    (("--to", "-", "--values"), 2, "--values is for --format jsonl"),
    (("--to", "-", "--wait-for", "2"), 2, "are for --to unix:PATH"),
    (("--to", "unix:x", "--wait-for", "none"), 2, "is no number from 1"),
    (("--to", "-", "--layer", "x"), 2, "is none of a layer"),
    (("--to", "-", "--tokens", "some"), 2, "is none of a position"),
    (("--to", "-", "--rank", "zz=1"), 2, "neither a rank nor a list"),
    (("--to", "-", "--what"), 2, "unrecognized option '--what'"),
    (("--to",), 2, "option '--to' requires an argument"),
    (("--to", "-", "--site", "none"), 2, "the run has no site or tensor 'none'"),
    (("--to", "-", "--layer", "0:2"), 2, "is written 0-1"),
    (("--to", "-", "--request", "none"), 2, "the run has no request 'none'"),
    (("--to", "command:true", "--follow"), 2, "--follow does not go with"),
    (("--to", "tcp:7000"), 2, "write tcp:HOST:PORT"),
    (("--to", "file:/nowhere/x"), 2, "cannot write /nowhere/x"),
])
def test_usage(run, words, status, said, check, tmp_path):
    done = replay(run, *words, status=status, cwd=tmp_path)
    check(said in done.stderr.decode() and done.stderr.count(b"\n") <= 3, "one sentence that says what to do", done.stderr)


def test_no_run(tmp_path, check):
    check("needs a RUN" in replay("--to", "-", status=2).stderr.decode(), "no RUN")
    check(str(tmp_path) in replay(tmp_path, "--to", "-", status=2).stderr.decode(), "a folder without one")
    check("RUN... --to SINK" in replay("--help").stdout.decode() and replay("--version").stdout.startswith(b"dmi-replay "), "--help and --version")


def test_summary(run, tmp_path, check):
    done = replay(run, "--to", f"file:{tmp_path / 'out'}", "--json")
    said = json.loads(done.stdout)
    check((said["records"], said["rows"], said["status"], said["damage"], said["failed"]) == (28, 61, 0, 0, []) and not done.stderr, "as JSON", said)
    text = replay(run, "--to", f"file:{tmp_path / 'more'}").stderr.decode()
    check(text == "dmi-replay: replayed 28 records, 61 rows, 2.6 KiB of payload\n", "or a line", text)
    check(json.loads(replay(run, "--to", "-", "--json").stderr)["records"] == 28, "on stderr, where stdout is the sink")


# ---------------------------------------------------------------------------------------------------- speed and memory


def test_speed(tmp_path, check):
    """1.2 recorded seconds. The bounds are generous: another program may have the processor."""
    words = []
    for i in range(4):
        words += [f"at {10**12 + i * 400_000_000}", f"step {i} 1 r:0:1:{i}:2:0:0", "rec 2 0 0 4 1"]
    run = schedule(tmp_path / "run", words)
    took = {}
    for speed in ("max", "1", "4x"):
        begin = time.monotonic()
        check(len(records(stream(run, "--speed", speed))) == 4, f"all of it at {speed}")
        took[speed] = time.monotonic() - begin
    check(took["1"] >= 1.2 and took["4x"] >= 0.3, "not faster than it is to be", took)
    check(took["max"] < took["1"] and took["4x"] < took["1"], "and the faster one sooner", took)


def test_progress_on_a_terminal(tmp_path, check):
    """Once it takes more than a second."""
    words = []
    for i in range(9):
        words += [f"at {10**12 + i * 300_000_000}", f"step {i} 1 r:0:1:{i}:2:0:0", "rec 2 0 0 4 1"]
    run = schedule(tmp_path / "run", words)
    ours, theirs = pty.openpty()
    with subprocess.Popen([DMI_REPLAY, run, "--to", "-", "--speed", "1"], stdout=subprocess.DEVNULL, stderr=theirs) as process:
        process.wait(timeout=60)
    os.close(theirs)
    said = b""
    while b"replayed" not in said:
        said += os.read(ours, 65536)
    os.close(ours)
    check(re.search(rb"[4-9] of 9 records, \d+ B, \d+ B/s, 0:0\d left", said), "how far it is, how fast, and how long", said)
    check(b"of 9 records" not in replay(run, "--to", "-", "--speed", "1").stderr, "but only there")


def test_a_segment_by_itself(run, check):
    segment = sorted(run.glob("*/seg-*.dmi"))[-1]
    found = stream(segment)
    check(0 < len(records(found)) < 28 and set(places(found)) < set(places(stream(run))), "its records, in the same places")


def peak(path):
    """KiB of memory that a replay needs."""
    done = subprocess.run([sys.executable, "-c", "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL,"
                           " stderr=subprocess.DEVNULL); print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)",
                           DMI_REPLAY, path, "--to", "-"], stdout=subprocess.PIPE, check=True, timeout=120)
    return int(done.stdout)


def test_memory_is_bounded(tmp_path, check):
    """48 MB of payload in 3000 records; and eight times as many small records."""
    if os.environ.get("DMI_TEST_RUNTIME"):
        pytest.skip("a sanitizer keeps what is freed")
    row = " ".join(["1.5"] * 64)
    words = []
    for i in range(60):
        words += [f"step {i} 64 r:0:64:{64 * i}:1:0:0", *(f"put 0 {layer} 64 f32 {' '.join([row] * 64)}" for layer in range(50))]
    run = schedule(tmp_path / "run", words)
    one = schedule(tmp_path / "one", words[:2])
    few, many = peak(one), peak(run)
    check(many - few < 12 * 1024, "60 times the records take 12 MiB more at most, of 48 MB", (few, many))
    few, many = (peak(schedule(tmp_path / str(n), steps(n, width=1, layers=50), segment_bytes=1 << 20)) for n in (150, 1200))
    check(many - few < 3 * 1024, "52,500 records more take 3 MiB more at most", (few, many))


def speculating(n):
    """Lines for schedule(): n steps of four requests with drafts, each of which lives for 2,000 steps, and comes again."""
    for i in range(n):
        at = i % 2000
        spans = " ".join(f"request-{k}:{3 * k}:3:{2 * at}:3:0:0" for k in range(4))
        yield f"step {i} 12 {spans}\n" + "\n".join(f"rec 2 {layer} 0 1 1" for layer in range(4))
        yield from (f"accept request-{k} {i} 2" for k in range(4))
        if at == 1999:
            yield from (f"end request-{k} 1" for k in range(4))


def test_memory_does_not_grow_with_steps_and_outcomes(tmp_path, check):
    if os.environ.get("DMI_TEST_RUNTIME"):
        pytest.skip("a sanitizer keeps what is freed")
    few, many = (peak(schedule(tmp_path / str(n), speculating(n), segment_bytes=1 << 18)) for n in (1500, 15000))
    check(many < 1.2 * few, "13,500 steps and 54,000 outcomes more take a fifth more at most", (few, many))
