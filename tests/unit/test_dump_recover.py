# SPDX-License-Identifier: Apache-2.0
"""dmi-dump recover: of a run that was killed, cut or harmed, a new one that is closed, verifies, and holds what the old one still had."""
import fcntl
import json
import os
import random
import resource
import struct
import subprocess

import pytest

from damage import flip_payload, write_manifest
from harness import BUILD, DMI_DUMP, ROOT

MAKE_RUN, MAKE_ODD_RUN = (BUILD / "tests" / "unit" / name for name in ("make_run", "make_odd_run"))
pytestmark = pytest.mark.built(DMI_DUMP, MAKE_RUN, MAKE_ODD_RUN)
GOLDEN = ROOT / "tests" / "golden" / "v2"
SANITIZED = bool(os.environ.get("DMI_TEST_RUNTIME"))
LOST = 13


def dump(*words, **how):
    return subprocess.run([DMI_DUMP, *map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          errors="replace", timeout=120, **how)


def facts(*words):
    return json.loads(dump(*words, "--json").stdout)


def make(folder, *words, maker=MAKE_RUN):
    subprocess.run([maker, folder, *words], check=True, stdout=subprocess.PIPE, timeout=60)
    return next(p for p in folder.iterdir() if p.is_dir())


def content(folder):
    return {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.iterdir()}


def rows_of(run):
    """{(tensor, position, launch): values} of all rows"""
    found = {}
    for site in {t["key"].rpartition("/")[2].split(".")[0] for t in facts("list", "--tensors", run)["tensors"]}:
        for row in facts("show", site if site != "blocks" else "blocks.{layer}.h", run, "--rows", ":", "--rejected", "--superseded"):
            found[row["tensor"], row.get("position"), row["launch"]] = row["values"]
    return found


def tallies(run):
    """[(expected, captured, lost)] by site, in records, rows and bytes"""
    data, out = (run / "counters").read_bytes(), []
    for at in range(128, len(data), 512):
        out.append(tuple(struct.unpack_from("<3Q", data, at + offset) for offset in (0, 24, 48 + 24 * LOST)))
    return out


def complaints(run, out, done, *, lost=None, known=True):
    """What is wrong with the run at @out, recovered from @run."""
    verify = dump("verify", out)
    found = [] if verify.returncode == 0 and "every checksum is right" in verify.stdout else ["verify", verify.stdout, verify.stderr]
    if facts("stats", out)["state"] != "closed":
        found.append("not closed")
    old, new = tallies(run) if known else [], tallies(out)
    if known and [t[0] for t in old] != [t[0] for t in new]:
        found.append("expected is another number")
    n_lost = sum(t[2][0] for t in new)
    if lost is not None and n_lost != lost:
        found.append(f"{n_lost} records are said to be lost")
    if not done.stdout.strip():
        found.append("nothing was said")
    return found and [*found, done]


@pytest.mark.parametrize("words, lost", [((), 0), (("killed",), 3), (("anonymous",), 0), (("packed",), 0)])
def test_a_sound_run_loses_nothing(tmp_path, check, words, lost):
    run, out = make(tmp_path / "out", *words), tmp_path / "new"
    before = content(run)
    done = dump("recover", run, "-o", out)
    bad = complaints(run, out, done, lost=lost)
    check(done.returncode == 0 and not bad, f"the new run is sound: {words}", bad or done)
    check(content(run) == before, "the old one is as it was")
    same = dump("diff", run, out)
    check(same.returncode == 0 and "are the same, bit for bit" in same.stdout, "all rows are there, bit for bit", same)
    check(("3 records (3 rows, 48 bytes) were on their way" in done.stdout) == bool(lost), "what the kill took is said", done)
    problems = facts("list", out)["problems"]
    uuid = facts("list", run)["uuid"]
    check(any(p["reason"] == "recovered" and uuid in p["sentence"] for p in problems), "and the manifest says where it comes from", problems)
    check(not list(tmp_path.glob("*partial*")), "nothing temporary is left")


@pytest.mark.parametrize("kind", ["drafts", "again", "flat"])
def test_outcomes_and_requests_go_along(tmp_path, check, kind):
    run, out = make(tmp_path / "out", kind, maker=MAKE_ODD_RUN), tmp_path / "new"
    done = dump("recover", run, "-o", out)
    bad = complaints(run, out, done, lost=0)
    check(done.returncode == 0 and not bad, f"{kind}: the new run is sound", bad)
    check(facts("list", "--requests", run)["requests"] == facts("list", "--requests", out)["requests"],
          f"{kind}: requests, their drafts and their ends are the same")
    check(kind == "flat" or rows_of(run) == rows_of(out) != {}, f"{kind}: so are rejected and superseded rows")


def test_golden_runs(tmp_path, check):
    runs = [GOLDEN / "valid", *sorted(p for p in (GOLDEN / "ranks").iterdir() if p.is_dir())]
    for i, run in enumerate(runs):
        out = tmp_path / f"new{i}"
        done = dump("recover", run, "-o", out)
        bad = complaints(next(run.glob("**/counters")).parent, out, done, lost=0)
        check(done.returncode == 0 and not bad, f"{run.name}: kept rows, dimensions, lists of accepted rows", bad or done)
        same = dump("diff", run, out)
        check(same.returncode == 0, f"{run.name}: the same rows", same)
        check(facts("list", "--requests", run)["requests"] == facts("list", "--requests", out)["requests"], f"{run.name}: the same requests")


def test_damaged_payload(tmp_path, check):
    run, out = make(tmp_path / "out"), tmp_path / "new"
    whole = rows_of(run)
    flip_payload(sorted(run.glob("seg-*.dmi"))[0], 3)
    before = content(run)
    done = dump("recover", run, "-o", out)
    lost = 28 - facts("verify", out)["accounting"]["captured"]
    bad = complaints(run, out, done, lost=lost)
    check(done.returncode == 1 and lost > 0 and not bad, "damage is 1, and what it took is counted as lost", bad or done)
    check("DAMAGED: seg-000000.dmi, chunk " in done.stderr and f"{lost} record" in done.stdout and "cannot be read" in done.stdout,
          "and said", done)
    rows = rows_of(out)
    check(0 < len(rows) < len(whole) and all(whole[k] == v for k, v in rows.items()), "the other rows are there")
    check(content(run) == before, "the old run is as it was")
    told = facts("recover", run, "-o", tmp_path / "json")
    check(told["unread"]["records"] == lost and told["lost_at_kill"]["records"] == 0 and told["records"] == 28 - lost, "in JSON too", told)


def test_a_lost_step_leaves_rows_without_tokens(tmp_path, check):
    run, out = make(tmp_path / "out"), tmp_path / "new"
    path = sorted(run.glob("seg-*.dmi"))[0]
    data = bytearray(path.read_bytes())
    at = next(at for at in range(128, len(data), 8) if data[at:at + 4] == b"DMIc" and data[at + 6] == 2)
    data[at + 64 + 20] ^= 1
    path.write_bytes(data)
    done = dump("recover", run, "-o", out)
    bad = complaints(run, out, done, lost=0)
    check(done.returncode == 1 and not bad and "records are of a step that is lost" in done.stdout, "a lost step is said", bad or done)
    check(facts("verify", out)["accounting"]["captured"] == 28, "and no record with it")


def release_first(run):
    """Deletes the first segment as the document says that a writer does. Returns its records."""
    first = run / "seg-000000.dmi"
    records = json.loads(dump("list", "--records", first, "--json").stdout)["records"]
    sums = {}
    for r in records:
        sums[r["site_id"]] = [a + b for a, b in zip(sums.get(r["site_id"], (0, 0, 0)), (1, r["shape"][0], r["bytes"]))]
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["segments"][0]["released"] = True
    manifest["released"] = [{"site": i, "records": t[0], "rows": t[1], "bytes": t[2]} for i, t in sums.items()]
    write_manifest(run, manifest)
    first.unlink()
    return len(records)


def test_what_was_released_is_not_lost(tmp_path, check):
    pytest.importorskip("xxhash", reason="needs the packages of tools/setup/python.txt")
    run, out = make(tmp_path / "out"), tmp_path / "new"
    n = release_first(run)
    before = dump("verify", run)
    done = dump("recover", run, "-o", out)
    bad = complaints(run, out, done, lost=0)
    check(before.returncode == 0 and done.returncode == 0 and not bad and "nothing is lost" in done.stdout, "nothing is lost", bad or (before, done))
    account = facts("verify", out)["accounting"]
    check(0 < n < 28 and account["expected"] == account["captured"] == 28 and len(facts("list", "--records", out)["records"]) == 28 - n,
          "what was released keeps being captured", account)
    check(rows_of(run) == rows_of(out) != {}, "the rows of the others have their steps, which their segment repeats")


def test_a_torn_tail(tmp_path, check):
    run, out = make(tmp_path / "out", "killed"), tmp_path / "new"
    path = sorted(run.glob("seg-*.dmi"))[-1]
    data = path.read_bytes()
    path.write_bytes(data[:-100])
    done = dump("recover", run, "-o", out)
    bad = complaints(run, out, done)
    told, torn = facts("recover", run, "-o", tmp_path / "json"), facts("list", run)["torn_bytes"]
    check(not bad and torn > 0 and f"{torn} bytes at the end are of a chunk that was not finished" in done.stdout, "a torn chunk is said", bad or done)
    check(told["torn_bytes"] == torn and told["unread"]["records"] == 28 - told["records"] > 0 and done.returncode == 1,
          "what the process had counted as written is not taken for lost at the kill", told)


def harm(data, rng):
    data, kind, at = bytearray(data), rng.choice(("flip", "cut", "zeros", "twice")), rng.randrange(len(data))
    if kind == "flip":
        data[at] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del data[at:]
    elif kind == "zeros":
        data[at:at + 300] = bytes(len(data[at:at + 300]))
    else:
        data[at:at] = data[max(0, at - 400):at]
    return bytes(data), f"{kind} at {at}"


@pytest.mark.parametrize("words", [(), ("killed",)], ids=["closed", "killed"])
def test_whatever_happened_the_new_run_verifies(tmp_path, check, words):
    seed = int(os.environ.get("TEST_SEED", "20261123"))
    rng = random.Random(seed)
    run = make(tmp_path / "out", *words)
    whole, files = rows_of(run), sorted(p for p in run.iterdir() if p.stat().st_size)
    for i in range(16 if SANITIZED else 50):
        path, out = files[i % len(files)], tmp_path / f"new{i}"
        before = path.read_bytes()
        after, what = harm(before, rng)
        path.write_bytes(after)
        there = content(run)
        name, known = f"{path.name}, {what}, seed {seed}", path.name != "counters"
        done = dump("recover", run, "-o", out)
        bad = complaints(run, out, done, known=known) if done.returncode in (0, 1) else done
        check(not bad, f"it verifies, and nothing is unaccounted for: {name}", bad)
        rows = rows_of(out)
        # rows without their step have other names
        check(all(whole.get(k, v) == v for k, v in rows.items()), f"no row has another value: {name}")
        check(content(run) == there, f"the old run is as it was: {name}")
        path.write_bytes(before)


@pytest.mark.parametrize("group", ["invalid", "outcomes", "unknown", "outcomes-unknown"])
def test_every_wrong_segment_becomes_a_sound_run(tmp_path, check, group):
    for path in sorted((GOLDEN / group).glob("*.dmi")):
        out = tmp_path / path.stem
        done = dump("recover", path, "-o", out)
        verify = dump("verify", out)
        check(done.returncode in (0, 1) and verify.returncode == 0 and "NOT KNOWN" not in verify.stderr, f"{group}/{path.stem}", (done, verify))


def test_counters_that_are_gone(tmp_path, check):
    run, out = make(tmp_path / "out"), tmp_path / "new"
    (run / "counters").unlink()
    done = dump("recover", run, "-o", out)
    bad = complaints(run, out, done, known=False, lost=0)
    check(done.returncode == 1 and not bad and "is not known of all sites" in done.stdout, "without counters nobody knows what is lost", bad or done)
    lone = tmp_path / "lone"
    done = dump("recover", sorted(run.glob("seg-*.dmi"))[0], "-o", lone)
    check(done.returncode == 0 and dump("verify", lone).returncode == 0, "a lone segment becomes a run", done)


def test_what_is_refused(tmp_path, check):
    run = make(tmp_path / "out", "killed")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "file").write_text("mine")
    for where, said in ((run / "new", "lies in the run itself"), (run, "lies in the run itself"), (mine, "is not empty"),
                        (mine / "file", "is no folder")):
        done = dump("recover", run, "-o", where)
        check(done.returncode == 2 and said in done.stderr, f"not to {where.name}: {said}", done)
    check((mine / "file").read_text() == "mine", "and nothing is touched")
    with open(run / "counters", "r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        done = dump("recover", run, "-o", tmp_path / "new")
    check(done.returncode == 2 and "is still written by process" in done.stderr, "not a run that is still written", done)
    done = dump("recover", GOLDEN / "ranks", "-o", tmp_path / "new")
    check(done.returncode == 2 and "one by one" in done.stderr, "not several ranks at once", done)
    done = dump("recover", run, "-o", tmp_path / "new",
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000)))
    check(done.returncode == 2 and "cannot write" in done.stderr and not (tmp_path / "new").exists(), "a full disk is an error", done)
    check(not list(tmp_path.glob("*partial*")), "and nothing half is left", list(tmp_path.iterdir()))
