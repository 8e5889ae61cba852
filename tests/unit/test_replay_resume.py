# SPDX-License-Identifier: Apache-2.0
"""dmi-replay --cursor and --follow: what was taken, what comes next, whatever is killed."""
import io
import json
import os
import random
import signal
import socket
import subprocess
import threading
import time

import pytest

from damage import flip_payload
from replay_kit import (BUILT, DMI_REPLAY, MAKE_ODD_RUN, MAKE_RUN, Growing, make, places, read_stream, records, replay, rows_of, schedule,
                        shown, steps, stream, wait_for)
from stream_reader import frame, frames

pytestmark = pytest.mark.built(*BUILT)


def start(*words, **options):
    return subprocess.Popen([DMI_REPLAY, *map(str, words)], stderr=subprocess.PIPE, **options)


# ---------------------------------------------------------------------------------------------------- cursors


def test_done_is_done(tmp_path, check):
    run, out, cursor = schedule(tmp_path / "run", steps(5)), tmp_path / "out", tmp_path / "cursor"
    replay(run, "--to", f"file:{out}", "--cursor", cursor)
    before = out.read_bytes()
    check(before == replay(run, "--to", "-").stdout, "the same as without a cursor")
    done = replay(run, "--to", f"file:{out}", "--cursor", cursor)
    check("was replayed before" in done.stderr.decode() and out.read_bytes() == before, "nothing is sent twice", done.stderr)


@pytest.mark.parametrize("words, said", [(("--layer", "1"), "is of another replay"), (("--format", "jsonl"), "is of another replay")])
def test_a_cursor_of_something_else(tmp_path, words, said, check):
    run, out, cursor = schedule(tmp_path / "run", steps(3)), tmp_path / "out", tmp_path / "cursor"
    replay(run, "--to", f"file:{out}", "--cursor", cursor)
    check(said in replay(run, "--to", f"file:{out}", "--cursor", cursor, *words, status=2).stderr.decode(), "other options")
    other = schedule(tmp_path / "other", steps(3))
    check("which is not among those" in replay(other, "--to", f"file:{out}", "--cursor", cursor, status=2).stderr.decode(), "another run")
    cursor.write_text("{}")
    check("is no cursor" in replay(run, "--to", f"file:{out}", "--cursor", cursor, status=2).stderr.decode(), "no cursor at all")


def test_a_file_that_is_shorter_than_its_cursor(tmp_path, check):
    run, out, cursor = schedule(tmp_path / "run", steps(3)), tmp_path / "out", tmp_path / "cursor"
    replay(run, "--to", f"file:{out}", "--cursor", cursor)
    out.write_bytes(out.read_bytes()[:100])
    check("is shorter than its cursor says" in replay(run, "--to", f"file:{out}", "--cursor", cursor, status=2).stderr.decode(), "is refused")


def replaced(out, _):
    out.write_bytes((b"a letter to a friend\n" * (out.stat().st_size // 20 + 1)))


def changed_before_its_end(out, n_bytes):
    data = bytearray(out.read_bytes())
    data[n_bytes - 9] ^= 1
    out.write_bytes(data)


@pytest.mark.parametrize("done", (True, False), ids=("all was replayed", "a part was replayed"))
@pytest.mark.parametrize("change, said", [(lambda out, _: out.unlink(), "o such file"), (lambda out, _: out.write_bytes(b""), "is shorter than its cursor says"), (replaced, "is not what its cursor was written with"),
                                          (changed_before_its_end, "is not what its cursor was written with")], ids=("gone", "emptied", "replaced", "changed"))
def test_a_cursor_does_not_speak_for_another_file(tmp_path, change, said, done, check):
    run, out, cursor = schedule(tmp_path / "run", steps(30 if done else 3000)), tmp_path / "out", tmp_path / "cursor"
    words = (run, "--to", f"file:{out}", "--cursor", cursor)
    if done:
        replay(*words)
    else:
        process = start(*words, "--speed", "0.5")
        wait_for(lambda: cursor.exists() and json.loads(cursor.read_text())["bytes"] > 5000)
        process.kill()
        process.wait()
        process.stderr.close()
    change(out, json.loads(cursor.read_text())["bytes"])
    before, noted = out.read_bytes() if out.exists() else None, cursor.read_bytes()
    found = replay(*words, status=2).stderr.decode()
    check(said in found and "was replayed before" not in found, "is said", found)
    check((out.read_bytes() if out.exists() else None) == before and cursor.read_bytes() == noted, "and nothing is written")


def test_a_file_that_is_longer_than_its_cursor_goes_on_from_there(tmp_path, check):
    run, out, cursor = schedule(tmp_path / "run", steps(20)), tmp_path / "out", tmp_path / "cursor"
    replay(run, "--to", f"file:{out}", "--cursor", cursor)
    with open(out, "ab") as file:
        file.write(b"half of a fra")
    check("was replayed before" in replay(run, "--to", f"file:{out}", "--cursor", cursor).stderr.decode(), "what the cursor is of is there")


@pytest.mark.parametrize("change", [lambda said: None, lambda said: said["runs"][0]["sent"].update(chunk=1), lambda said: said.update(bytes=7),
                                    lambda said: said.pop("checksum"), lambda said: said.update(requests=9)], ids=("done", "sent", "bytes", "no checksum", "requests"))
def test_a_cursor_that_was_changed(tmp_path, change, check):
    run, out, cursor = schedule(tmp_path / "run", steps(3)), tmp_path / "out", tmp_path / "cursor"
    replay(run, "--to", f"file:{out}", "--cursor", cursor)
    said, before = json.loads(cursor.read_text()), out.read_bytes()
    cursor.write_text(json.dumps(said))
    replay(run, "--to", f"file:{out}", "--cursor", cursor)
    said["runs"][0]["done"] = False
    change(said)
    cursor.write_text(json.dumps(said))
    found = replay(run, "--to", f"file:{out}", "--cursor", cursor, status=2).stderr.decode()
    check("does not match its checksum" in found and out.read_bytes() == before, "is not believed", found)


def test_a_cursor_that_is_no_file(tmp_path, check):
    run, out, cursor = schedule(tmp_path / "run", steps(3)), tmp_path / "out", tmp_path / "cursor"
    os.mkfifo(cursor)
    check("is no cursor" in replay(run, "--to", f"file:{out}", "--cursor", cursor, status=2).stderr.decode() and not out.exists(), "is refused at once")


def test_killed_again_and_again(tmp_path, check):
    """20 kills of a replay to a file, at recorded speed: each record once in the end, and none missing."""
    words = []
    for i in range(400):
        words += [f"at {10**12 + i * 10_000_000}", f"step {i} 1 r:0:1:{i}:2:0:0", "rec 2 0 0 8 1", "rec 2 1 0 8 1"]
    run, out, cursor = schedule(tmp_path / "run", words), tmp_path / "out", tmp_path / "cursor"
    wanted, random_ = places(stream(run)), random.Random(1)
    begun, kills = [], 0
    for _ in range(20):
        process = start(run, "--to", f"file:{out}", "--cursor", cursor, "--speed", "0.5")
        time.sleep(random_.uniform(0.05, 0.6))
        kills += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stderr.close()
        if cursor.exists():
            begun.append(json.loads(cursor.read_text())["runs"][0]["records"])
    check(kills == 20 and begun == sorted(begun) and len(set(begun)) > 4, "each went on where the one before was", begun)
    replay(run, "--to", f"file:{out}", "--cursor", cursor)
    found = read_stream(out)
    check(places(found) == wanted, "each record exactly once", (len(places(found)), len(wanted)))
    check([f.number for f in found] == list(range(len(found))) and found[-1].facts["replayed"]["records"] == 800, "numbers without a gap", found[-1].facts)
    check([f.facts["resumed"] for f in found if f.type == "run"][0] is False and sum(f.type == "run" for f in found) > 4, "and it says that it was resumed")


def test_stopped_and_resumed(tmp_path, check):
    words = []
    for i in range(100):
        words += [f"at {10**12 + i * 50_000_000}", f"step {i} 1 r:0:1:{i}:2:0:0", "rec 2 0 0 8 1"]
    run, out, cursor = schedule(tmp_path / "run", words), tmp_path / "out", tmp_path / "cursor"
    process = start(run, "--to", f"file:{out}", "--cursor", cursor, "--speed", "1")
    wait_for(lambda: out.exists() and out.stat().st_size > 10_000)
    process.terminate()
    said = process.stderr.read().decode()
    check(process.wait() == 1 and "the cursor says where to go on" in said, "stopped before the end", said)
    process.stderr.close()
    part = read_stream(out)
    check(part[-1].type == "end" and not part[-1].facts["complete"] and 0 < len(records(part)) < 100, "with an end that says so", part[-1].facts)
    sent = json.loads(cursor.read_text())["runs"][0]["records"]
    check(sent == len(records(part)), "and nothing is sent twice", (sent, len(records(part))))
    replay(run, "--to", f"file:{out}", "--cursor", cursor)
    found = read_stream(out)
    check(places(found) == places(stream(run)) and [f.type for f in found].count("end") == 1, "then the rest, and one end")


def test_two_at_once(tmp_path, check):
    words = []
    for i in range(100):
        words += [f"at {10**12 + i * 50_000_000}", f"step {i} 1 r:0:1:{i}:2:0:0", "rec 2 0 0 8 1"]
    run, out, cursor = schedule(tmp_path / "run", words), tmp_path / "out", tmp_path / "cursor"
    process = start(run, "--to", f"file:{out}", "--cursor", cursor, "--speed", "1")
    wait_for(lambda: out.exists() and out.stat().st_size > 3000)
    said = replay(run, "--to", f"file:{out}", "--cursor", cursor, status=2).stderr.decode()
    check("is written by another dmi-replay" in said and process.poll() is None, "the second one leaves the file alone", said)
    process.kill()
    process.wait()
    process.stderr.close()
    replay(run, "--to", f"file:{out}", "--cursor", cursor)
    check(places(read_stream(out)) == places(stream(run)), "until the first one has ended")


def test_two_ranks_and_a_cursor(tmp_path, check):
    run, out, cursor = tmp_path / "runs", tmp_path / "out", tmp_path / "cursor"
    for rank in (0, 1):
        words = []
        for i in range(40):
            words += [f"at {10**12 + i * 50_000_000 + rank}", f"step {i} 1 r:0:1:{i}:2:0:0", "rec 2 0 0 4 1"]
        schedule(run, words, rank=(rank, 2, 0, 1))
    for _ in range(3):
        process = start(run, "--to", f"file:{out}", "--cursor", cursor, "--speed", "1")
        time.sleep(0.5)
        process.kill()
        process.wait()
        process.stderr.close()
    told = [o["records"] for o in json.loads(cursor.read_text())["runs"]]
    check(len(told) == 2 and min(told) > 0 and max(told) < 40, "the cursor has a place in each", told)
    replay(run, "--to", f"file:{out}", "--cursor", cursor)
    check(places(read_stream(out)) == places(stream(run)), "each record once, in the order of their times")
    one = sorted(run.iterdir())[0]
    check("which is not among those" in replay(one, "--to", f"file:{out}", "--cursor", cursor, status=2).stderr.decode(), "of one rank alone it is not")


def test_commands_go_on_with_the_next_requests(tmp_path, check):
    words = []
    for i in range(4):
        words += [f"at {10**12 + i * 100_000_000}", f"step {i} 6 {' '.join(f'r{k}:{k}:1:{i}:2:0:0' for k in range(6))}", "rec 2 0 0 4 1"]
    run, cursor, out = schedule(tmp_path / "run", words), tmp_path / "cursor", tmp_path / "out"
    out.mkdir()
    words = (run, "--to", 'command:n=$(wc -l); echo "$DMI_REQUEST $n" >>all', "--format", "jsonl", "--at-once", 2, "--cursor", cursor)
    process = start(*words, "--speed", "1", cwd=out)
    wait_for(lambda: cursor.exists() and json.loads(cursor.read_text())["requests"] == 2)  # both have ended, and the cursor says so
    process.kill()
    process.wait()
    process.stderr.close()
    time.sleep(0.3)  # those that it had begun write, too
    before = (out / "all").read_text().splitlines()
    (out / "all").unlink()
    replay(*words, cwd=out)
    after = sorted((out / "all").read_text().splitlines())
    check(set(before) >= {"r0 5", "r1 5"} and after == [f"r{k} 5" for k in range(2, 6)], "each is given all of its records, and none of the first ones again", (before, after))
    check("was replayed before" in replay(*words, cwd=out).stderr.decode() and sorted((out / "all").read_text().splitlines()) == after, "done is done")


def test_a_socket_gets_it_at_least_once(tmp_path, check):
    words = []
    for i in range(60):
        words += [f"at {10**12 + i * 25_000_000}", f"step {i} 1 r:0:1:{i}:2:0:0", "rec 2 0 0 8 1"]
    run, path, cursor = schedule(tmp_path / "run", words), tmp_path / "socket", tmp_path / "cursor"
    found = []

    def read():
        s = socket.socket(socket.AF_UNIX)
        wait_for(path.exists)
        for _ in range(500):
            try:
                s.connect(str(path))
                break
            except OSError:
                time.sleep(0.01)
        file = s.makefile("rb")
        try:
            while (f := frame(file)) is not None:
                found.append(f)
        except Exception:  # pylint: disable=broad-except
            pass  # a frame that was cut off by the kill
    for last in (False, False, True):
        process = start(run, "--to", f"unix:{path}", "--cursor", cursor, "--speed", "1")
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        if not last:
            time.sleep(0.6)
            process.kill()
        process.wait(timeout=60)
        process.stderr.close()
        reader.join(60)
    wanted, got = places(stream(run)), places(found)
    check(set(got) == set(wanted) and len(got) >= len(wanted), "each of them, some twice", (len(got), len(wanted)))
    check(process.returncode == 0, "and the last one ends well")


def test_damage_and_a_cursor(tmp_path, check):
    run, out, cursor = make(MAKE_RUN, tmp_path / "run"), tmp_path / "out", tmp_path / "cursor"
    flip_payload(sorted(run.glob("*/seg-*.dmi"))[0], 3)
    replay(run, "--to", f"file:{out}", "--cursor", cursor, status=1)
    check(replay(run, "--to", f"file:{out}", "--cursor", cursor, status=1).returncode == 1, "what could not be decoded is not forgotten")


# ---------------------------------------------------------------------------------------------------- runs that grow


class Lines(threading.Thread):
    """The frames of a replay's stdout as they come."""

    def __init__(self, *words):
        super().__init__(daemon=True)
        self.process = start(*words, "--to", "-", "--follow", stdout=subprocess.PIPE)
        self.found = []
        self.start()

    def run(self):
        for f in frames(self.process.stdout):
            self.found.append(f)

    def records(self):
        return records(list(self.found))

    def end(self, status=0):
        said = self.process.stderr.read().decode()
        assert self.process.wait(timeout=60) == status, said
        self.join(60)
        self.process.stdout.close()
        self.process.stderr.close()
        return said


def test_follow(tmp_path, check):
    run = Growing(tmp_path / "run")
    run.add(3)
    reader = Lines(run.folder)
    wait_for(lambda: len(reader.records()) == 6)
    for n in (1, 5, 2):
        run.add(n)
        wait_for(lambda: len(reader.records()) == 2 * run.step)
    check(reader.process.poll() is None, "it goes on while the run does")
    run.close()
    reader.end()
    check(rows_of(reader.found) == shown(run.folder, ["h"]) and places(reader.found) == places(stream(run.folder)), "all of it, each once, in the same order")
    end = reader.found[-1].facts
    check(end["complete"] and end["state"] == "closed" and end["account"]["balances"], "and it ends with the run", end)


def test_launches_that_come_late(tmp_path, check):
    """Another device's: of lower numbers, and in a later chunk."""
    run = Growing(tmp_path / "run")
    for line in ("step 0 1 a:0:1:0:2:0:0", "launch 100", "rec 2 0 0 2 1", "rec 2 1 0 2 1"):
        run.say(line)
    reader = Lines(run.folder)
    wait_for(lambda: len(reader.records()) == 2)
    for line in ("launch 50", "rec 2 2 0 2 1", "launch 102", "rec 2 3 0 2 1"):
        run.say(line)
    wait_for(lambda: len(reader.records()) == 4)
    run.close()
    reader.end()
    check([f.facts["layer"] for f in reader.records()] == [0, 1, 2, 3], "are not lost")
    check(places(reader.found) == places(stream(run.folder)), "and a later replay has them in the same order")


def test_without_follow(tmp_path, check):
    run = Growing(tmp_path / "run")
    run.add(3)
    wait_for(lambda: len(records(stream(run.folder))) == 6)
    done = replay(run.folder, "--to", "-")
    found = list(frames(io.BytesIO(done.stdout)))
    check(not found[-1].facts["complete"] and found[-1].facts["state"] == "running" and "--follow" in done.stderr.decode(), "it says that there is more to come", found[-1].facts)
    run.close()


def test_follow_a_process_that_is_killed(tmp_path, check):
    run = Growing(tmp_path / "run")
    run.add(4)
    reader = Lines(run.folder)
    wait_for(lambda: len(reader.records()) == 8)
    run.process.kill()
    run.process.wait()
    run.process.stdin.close()
    reader.end()
    check(reader.found[-1].facts["state"] == "killed" and reader.found[-1].facts["complete"], "it ends, too", reader.found[-1].facts)


def test_follow_is_stopped(tmp_path, check):
    run, out, cursor = Growing(tmp_path / "run"), tmp_path / "out", tmp_path / "cursor"
    run.add(3)
    words = (run.folder, "--to", f"file:{out}", "--cursor", cursor, "--follow")
    process = start(*words)
    wait_for(lambda: out.exists() and out.read_bytes().count(b'"type": "record"') == 6)
    process.send_signal(signal.SIGINT)
    said = process.stderr.read().decode()
    check(process.wait() == 0, "a signal is a good end", said)
    process.stderr.close()
    run.add(2)
    run.close()
    replay(*words)
    check(places(read_stream(out)) == places(stream(run.folder)), "and the next replay goes on")


def test_follow_drafts(tmp_path, check):
    """What becomes of a draft is not known when it comes: it is said afterwards."""
    run = Growing(tmp_path / "run")
    for line in ("step 0 2 a:0:2:0:1:2:0", "rec 2 0 0 2 1", "step 1 3 a:0:3:2:3:2:0", "rec 2 0 0 2 1"):
        run.say(line)
    reader = Lines(run.folder)
    wait_for(lambda: len(reader.records()) == 2)
    run.say("accept a 1 1")
    for line in ("step 2 1 a:0:1:3:2:2:0", "rec 2 0 0 2 1"):
        run.say(line)
    wait_for(lambda: len(reader.records()) == 3)
    run.close()
    reader.end()
    check([[(e["position"], e["rows"]) for e in f.facts["rows"]] for f in reader.records()] == [[(0, 2)], [(2, 3)], [(3, 1)]], "all three rows of the drafts came")
    said = [f.facts for f in reader.found if f.type == "outcome"]
    check([(o["step"], o["accepted"]) for o in said] == [(1, [[0, 1]])], "and then that one was accepted", said)
    check(reader.found[-1].facts["left_out"] == {"rejected": 0, "superseded": 0, "of_nobody": 0}, "nothing was left out", reader.found[-1].facts)
    hindsight = records(stream(run.folder))
    check([[(e["position"], e["rows"]) for e in f.facts["rows"]] for f in hindsight] == [[(0, 2)], [(2, 1)], [(3, 1)]], "a later replay knows it")


def test_follow_two_ranks(tmp_path, check):
    folder = tmp_path / "runs"
    ranks = [Growing(folder, rank=(k, 2, 0, 1)) for k in (0, 1)]
    wait_for(lambda: len(list(folder.glob("[!.]*"))) == 2)
    for r in ranks:
        r.add(2)
    reader = Lines(folder)
    wait_for(lambda: len(reader.records()) == 8)
    ranks[0].add(3)
    ranks[0].close()
    wait_for(lambda: len(reader.records()) == 14)
    ranks[1].add(1)
    wait_for(lambda: len(reader.records()) == 16)
    ranks[1].close()
    reader.end()
    check(sorted(places(reader.found)) == sorted(places(stream(folder))) and [f.type for f in reader.found[-2:]] == ["end", "end"], "all of both")
    for k in (0, 1):
        mine = [p for p, f in zip(places(reader.found), reader.records()) if f.facts["rank"]["tp"] == k]
        check(mine == sorted(mine), f"rank {k} in its order")


def test_requests_that_end_come_once(tmp_path, check):
    run, out, cursor = make(MAKE_ODD_RUN, tmp_path / "run", "drafts"), tmp_path / "out", tmp_path / "cursor"
    replay(run, "--to", f"file:{out}", "--cursor", cursor)
    said = json.loads(cursor.read_text())
    wanted = [(f.facts["request"], f.facts["time_ns"]) for f in read_stream(out) if f.type == "outcome"]
    check(len(wanted) == 5 and said["runs"][0]["said"]["time_ns"] == wanted[-1][1], "the cursor knows of them", said)
