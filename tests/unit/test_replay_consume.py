# SPDX-License-Identifier: Apache-2.0
"""dmi-replay --consume: segments go once the sink has taken what is in them, and not before."""
import fcntl
import json
import os
import shutil
import signal
import subprocess

import pytest

from damage import flip_payload, write_manifest
from harness import BUILD
from replay_kit import BUILT, DMI_DUMP, DMI_REPLAY, make, read_stream, replay, schedule, stream, wait_for

WRITE_RUN = BUILD / "tests" / "unit" / "write_run"
pytestmark = pytest.mark.built(*BUILT, WRITE_RUN)
PART = 6000


def written(folder, n=300):
    make(WRITE_RUN, folder, 0, PART, 0, 0, 0, n)
    return next(folder.iterdir())


def places(found):
    """Forward and site of each record, in the order of the stream."""
    return [(f.facts["forward"], f.facts["site"]) for f in found if f.type == "record"]


def segments(run):
    return sorted(path.name for path in run.glob("seg-*"))


def manifest(run):
    return json.loads((run / "manifest.json").read_text())


def n_released(run):
    return sum(s.get("released", False) for s in manifest(run)["segments"])


def verify(run):
    done = subprocess.run([DMI_DUMP, "verify", run], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    return done.returncode == 0 and "accounting balances" in done.stdout, done.stdout


def test_a_closed_run(tmp_path, check):
    run = written(tmp_path / "out")
    shutil.copytree(run, tmp_path / "copy")
    taken, cursor = tmp_path / "taken", tmp_path / "cursor"
    replay(run, "--to", f"file:{taken}", "--cursor", cursor, "--consume")
    check(not segments(run), "all segments are gone", segments(run))
    check(all(s["released"] for s in manifest(run)["segments"]), "and released")
    check(*verify(run))
    check(places(read_stream(taken)) == places(stream(tmp_path / "copy")), "the sink has what they held")
    kept = json.loads(subprocess.run([DMI_DUMP, "stats", "--json", tmp_path / "copy"], stdout=subprocess.PIPE, check=True).stdout)["sites"]
    gone = json.loads(subprocess.run([DMI_DUMP, "stats", "--json", run], stdout=subprocess.PIPE, check=True).stdout)["sites"]
    check([s["captured"] for s in gone] == [s["captured"] for s in kept] == [s["released"] for s in gone], "the sums are those of before")


@pytest.mark.parametrize("listed", [True, False])
def test_the_process_was_killed_before_the_manifest_said_that_a_segment_is_closed(tmp_path, check, listed):
    """What lies after such a segment is known by its number of chunks, which the release has to say."""
    pytest.importorskip("xxhash", reason="needs the packages of tools/setup/python.txt")
    with subprocess.Popen([WRITE_RUN, tmp_path / "out", "1", str(PART), "0", "0", "0"], stdout=subprocess.PIPE) as writer:
        wait_for(lambda: len(list((tmp_path / "out").glob("[!.]*/seg-*"))) > 5)
        writer.send_signal(signal.SIGKILL)
    run = next(path for path in (tmp_path / "out").iterdir() if not path.name.startswith("."))
    whole, said = places(stream(run)), manifest(run)
    last = max(i for i, s in enumerate(said["segments"]) if s["closed"])
    said["segments"] = said["segments"][:last] + listed * [{"file": f"seg-{last:06}.dmi", "closed": False}]
    write_manifest(run, said)
    check(*verify(run))
    replay(run, "--to", f"file:{tmp_path / 'taken'}", "--consume")
    check(f"seg-{last:06}.dmi" not in segments(run), "the segment is gone", segments(run))
    check(places(read_stream(tmp_path / "taken")) == whole, "all of it was taken")
    check(*verify(run))


def test_nothing_goes_before_all_is_taken(tmp_path, check):
    """At the speed of its recording, of 2 s: the cursor is written meanwhile, and the segment stays."""
    folder = schedule(tmp_path / "out", [line for i in range(20) for line in (f"at {i * 100_000_000}", f"step {i} 1 a:0:1:{i}:2:0:0", "wide 0 1000")])
    run, cursor, taken = next(folder.iterdir()), tmp_path / "cursor", tmp_path / "taken"
    whole = places(stream(run))
    with subprocess.Popen([DMI_REPLAY, run, "--to", f"file:{taken}", "--cursor", cursor, "--consume", "--speed", "1"]) as process:
        wait_for(lambda: cursor.exists() and json.loads(cursor.read_text())["runs"][0]["records"] > 5)
        there, n = segments(run), json.loads(cursor.read_text())["runs"][0]["records"]
    check(there and n < 20, "it is there while some of it is still to come", (there, n))
    check(process.returncode == 0 and not segments(run), "and goes in the end", segments(run))
    check(places(read_stream(taken)) == whole and len(whole) == 20, "all of it was taken", len(whole))


def followed(writer, run, said, check):
    """What the writer says is read, a pipe at a time; each time all is taken and released but the open segment."""
    for _ in range(3):
        wait_for(lambda: n_released(run) > said and len(segments(run)) == 1)
        said = n_released(run)
        os.read(writer.stdout.fileno(), 1 << 16)
    wait_for(lambda: n_released(run) > said and len(segments(run)) == 1)
    check(True, "what was taken was released, again and again")


def test_a_run_that_is_written(tmp_path, check):
    """The writer waits where nobody reads what it says, so it stands still while the sink catches up; in the end it is killed."""
    taken, cursor = tmp_path / "taken", tmp_path / "cursor"
    with subprocess.Popen([WRITE_RUN, tmp_path / "out", "1", str(PART), "0", "0", "0"], stdout=subprocess.PIPE) as writer:
        try:
            fcntl.fcntl(writer.stdout, fcntl.F_SETPIPE_SZ, 4096)
            wait_for(lambda: len(list((tmp_path / "out").glob("[!.]*/seg-*"))) > 50)
            run = next(path for path in (tmp_path / "out").iterdir() if not path.name.startswith("."))
            follower = subprocess.Popen([DMI_REPLAY, run, "--to", f"file:{taken}", "--cursor", cursor, "--follow", "--consume"])
            followed(writer, run, 0, check)
        finally:
            writer.send_signal(signal.SIGKILL)
    check(follower.wait(timeout=60) == 0, "the replay ends well")
    found = places(read_stream(taken))
    check(found == [(1001 + i // 2, found[i % 2][1]) for i in range(len(found))] and len(found) > 4000, "each record once, in order", len(found))
    check(*verify(run))


HELD = {"site": 0, "records": 1, "rows": 1, "bytes": 4}


@pytest.mark.parametrize("released, said", [(3, "is no list"), ([3], "entry 0"), ([HELD, {**HELD, "site": 99}], "entry 1"), ([{**HELD, "rows": -1}], "entry 0")])
def test_nothing_goes_where_what_is_gone_is_not_known(tmp_path, check, released, said):
    pytest.importorskip("xxhash", reason="needs the packages of tools/setup/python.txt")
    run = written(tmp_path / "out")
    before = segments(run)
    write_manifest(run, {**manifest(run), "released": released})
    done = replay(run, "--to", f"file:{tmp_path / 'taken'}", "--consume", status=1)
    check(segments(run) == before, "all segments are there", segments(run))
    check(said in done.stderr.decode(), "and it is said why", done.stderr)


def flip_footer(segment):
    data = bytearray(segment.read_bytes())
    data[-100] ^= 1
    segment.write_bytes(data)


@pytest.mark.parametrize("flip", [lambda path: flip_payload(path, 0), flip_footer], ids=["payload", "footer"])
def test_nothing_goes_where_something_is_damaged(tmp_path, check, flip):
    run = written(tmp_path / "out")
    flip(run / "seg-000003.dmi")
    before = segments(run)
    done = replay(run, "--to", f"file:{tmp_path / 'taken'}", "--consume", status=1)
    check(segments(run) == before, "all segments are there", segments(run))
    check(b"DAMAGED" in done.stderr, "and it is said why", done.stderr)


def test_nothing_goes_that_the_sink_did_not_take(tmp_path, check):
    run = written(tmp_path / "out")
    before = segments(run)
    replay(run, "--to", "file:/dev/full", "--consume", status=2)
    check(segments(run) == before, "all segments are there", segments(run))


@pytest.mark.parametrize("words, said", [(("--to", "-"), "sinks that keep what they take"), (("--to", "file:x", "--site", "f32"), "does not go with a selection"),
                                         (("--to", "command:true"), "sinks that keep what they take")])
def test_what_does_not_go_together(tmp_path, words, said, check):
    done = replay(written(tmp_path / "out", 3), *words, "--consume", status=2, cwd=tmp_path)
    check(said in done.stderr.decode(), "is refused", done.stderr)
