# SPDX-License-Identifier: Apache-2.0
"""dmi-replay's sinks: pipes, FIFOs, sockets with several readers, a command for each request."""
import io
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

import pytest

from replay_kit import (BUILT, DMI_REPLAY, MAKE_RUN, make, places, read_stream, records, replay, rows_of, schedule, shown, steps, stream, wait_for)
from stream_reader import StreamError, frame, frames

pytestmark = pytest.mark.built(*BUILT)
SITES = ("q", "blocks.{layer}.h", "ids", "logits", "bias")


@pytest.fixture(name="run")
def fixture_run(tmp_path):
    return make(MAKE_RUN, tmp_path / "run")


@pytest.fixture(name="large")
def fixture_large(tmp_path):
    """About 2 MB in 500 records: more than pipes and sockets keep."""
    row = " ".join(["0.25"] * 64)
    words = []
    for i in range(100):
        words += [f"step {i} 16 r:0:16:{16 * i}:1:0:0", *(f"put 0 {layer} 64 f32 {' '.join([row] * 16)}" for layer in range(5))]
    return schedule(tmp_path / "large", words)


class Replay:
    """One that runs beside the test."""

    def __init__(self, *words, **options):
        self.process = subprocess.Popen([DMI_REPLAY, *map(str, words)], stderr=subprocess.PIPE, **options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()

    def end(self, status=0):
        said = self.process.stderr.read().decode()
        assert self.process.wait(timeout=60) == status, said
        return said


def connect(path):
    """To a Unix socket, once it is there."""
    for _ in range(600):
        s = socket.socket(socket.AF_UNIX)
        try:
            s.connect(str(path))
            s.settimeout(60)
            return s
        except OSError:
            s.close()
            time.sleep(0.02)
    raise AssertionError(f"nobody listens on {path}")


class Reader(threading.Thread):
    """Reads a socket to its end."""

    def __init__(self, s):
        super().__init__(daemon=True)
        self.socket, self.data = s, b""
        self.start()

    def run(self):
        while more := self.socket.recv(65536):
            self.data += more
        self.socket.close()

    def frames(self):
        self.join(60)
        return list(frames(io.BytesIO(self.data)))


# ---------------------------------------------------------------------------------------------------- files and pipes


def test_file(run, tmp_path, check):
    path = tmp_path / "out"
    replay(run, "--to", f"file:{path}")
    check(rows_of(read_stream(path)) == shown(run, SITES) and path.stat().st_mode & 0o777 == 0o600, "all of it, for its owner alone")
    before = path.read_bytes()
    check("is there already" in replay(run, "--to", f"file:{path}", status=2).stderr.decode() and path.read_bytes() == before, "what is there is left alone")


def test_fifo_holds_back(large, tmp_path, check):
    path = tmp_path / "fifo"
    os.mkfifo(path)
    with Replay(large, "--to", f"file:{path}") as r, open(path, "rb") as file:
        first = frame(file)
        time.sleep(0.5)
        check(r.process.poll() is None, "it waits for a reader that takes its time")
        found = [first, *frames(file)]
        r.end()
    check(places(found) == places(stream(large)) and len(records(found)) == 500, "and nothing is lost")


def test_signal_before_a_fifo_has_a_reader(run, tmp_path, check):
    path = tmp_path / "fifo"
    os.mkfifo(path)
    with Replay(run, "--to", f"file:{path}") as r:
        time.sleep(0.3)
        r.process.terminate()
        check("stopped by a signal" in r.end(1), "it ends")


def test_reader_of_stdout_goes_away(large, check):
    with Replay(large, "--to", "-", stdout=subprocess.PIPE) as r:
        frame(r.process.stdout)
        r.process.stdout.close()
        check("the reader of standard output went away" in r.end(2), "it says so")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_while_nobody_reads(large, number, check):
    with Replay(large, "--to", "-", stdout=subprocess.PIPE) as r:
        frame(r.process.stdout)
        time.sleep(0.2)
        begin = time.monotonic()
        r.process.send_signal(number)
        check("stopped by a signal" in r.end(1) and time.monotonic() - begin < 30, "it ends all the same")
        r.process.stdout.close()


# ---------------------------------------------------------------------------------------------------- sockets


def test_several_readers(large, tmp_path, check):
    path, wanted = tmp_path / "socket", places(stream(large))
    with Replay(large, "--to", f"unix:{path}", "--wait-for", 3) as r:
        readers = [Reader(connect(path)) for _ in range(3)]
        found = [reader.frames() for reader in readers]
        r.end()
    check([places(f) for f in found] == 3 * [wanted] and all(f[0].type == "run" and f[-1].type == "end" for f in found), "each has all of it")
    check(not path.exists(), "and the socket is gone")


def test_a_reader_that_joins_late(large, tmp_path, check):
    path, wanted = tmp_path / "socket", places(stream(large))
    with Replay(large, "--to", f"unix:{path}") as r:
        first = connect(path)
        file = first.makefile("rb")
        begun = [frame(file) for _ in range(20)]
        late = Reader(connect(path))
        time.sleep(0.3)
        rest = list(frames(file))
        r.end()
        found = list(frames_of_late(late))
    check(places(begun + rest) == wanted, "the first one has all of it")
    mine = places(found)
    check(found[0].type == "run" and mine == wanted[-len(mine):] and 0 < len(mine) < len(wanted), "the late one the run, and then what came since", len(mine))


def frames_of_late(reader):
    """The frames of the runs, then numbers go on further on."""
    reader.join(60)
    file = io.BytesIO(reader.data)
    while (f := frame(file)) is not None:
        yield f


def test_a_reader_that_goes_away(large, tmp_path, check):
    path = tmp_path / "socket"
    with Replay(large, "--to", f"unix:{path}", "--wait-for", 2) as r:
        goes, stays = connect(path), Reader(connect(path))
        frame(goes.makefile("rb"))
        goes.close()
        found = stays.frames()
        r.end()
    check(places(found) == places(stream(large)), "costs the other one nothing")


def test_a_slow_reader_holds_back(large, tmp_path, check):
    path = tmp_path / "socket"
    with Replay(large, "--to", f"unix:{path}", "--wait-for", 2) as r:
        slow, fast = connect(path), Reader(connect(path))
        time.sleep(0.7)
        check(fast.is_alive() and r.process.poll() is None, "the other one, too")
        found = list(frames(slow.makefile("rb")))
        check(places(found) == places(fast.frames()) == places(stream(large)), "and nothing is lost")
        r.end()


def test_a_slow_reader_is_lost(large, tmp_path, check):
    path = tmp_path / "socket"
    with Replay(large, "--to", f"unix:{path}", "--wait-for", 2, "--lose-slow", 1, "--json", stdout=subprocess.PIPE) as r:
        slow, fast = connect(path), Reader(connect(path))
        check(places(fast.frames()) == places(stream(large)), "the other one has all of it")
        summary = json.loads(r.process.stdout.read())
        said = r.end(1)
        r.process.stdout.close()
        check(re.search("reader [12] took nothing for 1 s", said) and len(summary["failed"]) == 1, "and it is named", said)
        got, file = [], slow.makefile("rb")
        try:
            got.extend(iter(lambda: frame(file), None))
        except StreamError:
            pass  # in the middle of a frame
        check(places(got) == places(stream(large))[:len(records(got))] and not any(f.type == "end" for f in got), "what it has is the beginning")
        slow.close()


def test_without_a_reader_it_waits(run, tmp_path, check):
    path = tmp_path / "socket"
    with Replay(run, "--to", f"unix:{path}") as r:
        time.sleep(0.4)
        check(r.process.poll() is None and path.stat().st_mode & 0o777 == 0o600, "it waits; the socket is its owner's alone")
        check(len(records(Reader(connect(path)).frames())) == 28, "for all of it")
        r.end()


def test_stop_without_a_reader(run, tmp_path, check):
    with Replay(run, "--to", f"unix:{tmp_path / 'socket'}") as r:
        wait_for((tmp_path / "socket").exists)
        time.sleep(0.1)
        r.process.terminate()
        check("stopped by a signal" in r.end(1) and not (tmp_path / "socket").exists(), "it ends, and tidies up")


def test_what_lies_where_the_socket_should(run, tmp_path, check):
    path = tmp_path / "socket"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    with Replay(run, "--to", f"unix:{path}") as r:
        check(len(records(Reader(connect(path)).frames())) == 28, "a socket that nobody listens on is replaced")
        r.end()
    path.write_text("mine")
    check("cannot listen on" in replay(run, "--to", f"unix:{path}", status=2).stderr.decode() and path.read_text() == "mine", "a file is left alone")
    path.unlink()
    taken = socket.socket(socket.AF_UNIX)
    taken.bind(str(path))
    taken.listen()
    check("cannot listen on" in replay(run, "--to", f"unix:{path}", status=2).stderr.decode() and path.exists(), "and a socket that is in use")
    taken.close()


def test_tcp(run, check):
    with Replay(run, "--to", "tcp:127.0.0.1:0") as r:
        where = re.search(r"listening on 127\.0\.0\.1, port (\d+)", r.process.stderr.readline().decode())
        s = socket.create_connection(("127.0.0.1", int(where.group(1))), timeout=60)
        check(rows_of(Reader(s).frames()) == shown(run, SITES), "the same over TCP")
        r.end()


# ---------------------------------------------------------------------------------------------------- commands


def test_a_command_a_request(run, tmp_path, check):
    out = tmp_path / "out"
    out.mkdir()
    done = replay(run, "--to", 'command:cat >"$(printf %s "$DMI_REQUEST" | tr -c a-z _)"', "--json", cwd=out)
    said = json.loads(done.stdout)
    check(sorted(p.name for p in out.iterdir()) == ["______x_", "france"] or len(list(out.iterdir())) == 2, "a process each", list(out.iterdir()))
    found = {}
    for path in out.iterdir():
        name = "france" if path.name == "france" else "../../x\n"
        found[name] = read_stream(path)
        check(rows_of(found[name]) == [row for row in shown(run, SITES) if row[0].startswith(name + "/")], f"{name!r}: its rows, and no others")
    check(all(f[0].type == "run" for f in found.values()) and said["commands"] == 2 and said["rows_without_request"] == 4, "and what nobody was given is said", said)


def test_at_most_so_many(tmp_path, check):
    words = []
    for i in range(3):
        spans = " ".join(f"r{k}:{k}:1:{i}:2:0:0" for k in range(10))
        words += [f"step {i} 10 {spans}", "rec 2 0 0 3 1"]
    run = schedule(tmp_path / "run", words)
    out = tmp_path / "out"
    out.mkdir()
    script = 'touch "on-$DMI_REQUEST"; ls | grep -c ^on- >>count; wc -l >/dev/null; cat >/dev/null; rm "on-$DMI_REQUEST"; echo "$DMI_REQUEST" >>all'
    replay(run, "--to", f"command:{script}", "--at-once", 3, "--format", "jsonl", cwd=out)
    check(max(map(int, (out / "count").read_text().split())) <= 3, "at a time", (out / "count").read_text())
    check(sorted((out / "all").read_text().split()) == sorted(f"r{k}" for k in range(10)), "and all of them in the end")


def test_commands_that_fail(tmp_path, check):
    row = " ".join(["0.25"] * 64)
    words = []
    for i in range(60):
        spans = " ".join(f"{name}:{8 * k}:8:{8 * i}:1:0:0" for k, name in enumerate(("good", "early", "dies")))
        words += [f"step {i} 24 {spans}", f"put 0 0 64 f32 {' '.join([row] * 24)}"]
    run = schedule(tmp_path / "run", words)
    script = 'case $DMI_REQUEST in good) cat >good;; early) head -c 100 >/dev/null; exit 3;; dies) kill -9 $$;; esac'
    done = replay(run, "--to", f"command:{script}", "--json", status=1, cwd=tmp_path)
    said = json.loads(done.stdout)
    check(sorted(said["failed"]) == ["the command of request 'dies' was ended by signal 9, before it had read all of its records",
                                     "the command of request 'early' ended with status 3, before it had read all of its records"], "each is named", said["failed"])
    check(len(records(read_stream(tmp_path / "good"))) == 60, "and costs its own request alone")


def test_commands_and_a_signal(tmp_path, check):
    words = []
    for i in range(100):
        words += [f"at {10**12 + i * 100_000_000}", f"step {i} 2 a:0:1:{i}:2:0:0 b:1:1:{i}:2:0:0", "rec 2 0 0 4 1"]
    run = schedule(tmp_path / "run", words)
    with Replay(run, "--to", 'command:cat >"$DMI_REQUEST"', "--format", "jsonl", "--speed", "1", cwd=tmp_path) as r:
        wait_for(lambda: (tmp_path / "b").exists() and (tmp_path / "b").read_bytes().count(b"record") > 2)
        r.process.terminate()
        check("stopped by a signal" in r.end(1), "it ends before the end")
    check(0 < (tmp_path / "a").read_bytes().count(b'"type": "record"') < 100, "and so do they, with the end of their input")


def test_commands_with_a_selection(tmp_path, check):
    run = schedule(tmp_path / "run", steps(5))
    done = replay(run, "--to", 'command:grep -c \'"type": "record"\'', "--format", "jsonl", "--layer", 1)
    check(done.stdout.split() == [b"5"], "what is selected", done.stdout)
