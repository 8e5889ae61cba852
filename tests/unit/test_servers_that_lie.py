# SPDX-License-Identifier: Apache-2.0
"""Servers that answer what no ClickHouse would: no numbers, lists out of order, answers and errors without end. Each command ends soon, in
bounded memory, with one sentence and status 2, and leaves nothing."""
import http.server
import json
import os
import resource
import struct
import subprocess
import threading

import pytest

from harness import DMI_DUMP
from replay_kit import BUILT, DMI_REPLAY, schedule, steps

pytestmark = pytest.mark.built(*BUILT)
UUID = "00010203-0405-0607-0809-0a0b0c0d0e0f"
SITES = [{"name": "q", "dtype": "f32", "row": "token", "scale": 1.0, "has_layer": False, "kernel": "k", "tap": None, "note": None}]
RUN = json.dumps({"type": "run", "run": UUID, "job": None, "model": None, "sites": SITES})
SPAN = {"request": "r", "position": 0, "first_row": 0, "tokens": 1, "cached": 0, "prompt": None, "phase": "prefill", "padding": False, "last": False}
STEP = {"type": "step", "rank": None, "step": 0, "step_sequence": 0, "rows": 1, "spans": [SPAN]}
ENDLESS = object()
MEMORY = 1 << 30


def row(record=0, first_row=0, rows=1, shape=None):
    """A row of the table, in RowBinary."""
    text = lambda s: bytes([len(s)]) + s  # noqa: E731
    return (struct.pack("<IQiIQQQI", record, 0, -1, 0, 0, 0, 0, 0) + text(b"q") + text(b"f32") + b"\2" + struct.pack("<QQ", shape or rows, 1) +
            struct.pack("<qII", 0, first_row, rows) + text(bytes(4 * rows)))


class Liar(http.server.BaseHTTPRequestHandler):
    """Answers by the server's `answers`: [(words of a statement, status, body or ENDLESS)], the first that fits."""
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        said = self.path + body[:1000].decode("latin-1")
        status, answer = next((status, answer) for words, status, answer in self.server.answers if words in said)
        if answer is None: # never
            self.close_connection = not threading.Event().wait(60)
            return
        self.send_response(status)
        self.send_header(*(("Transfer-Encoding", "chunked") if answer is ENDLESS else ("Content-Length", str(len(answer)))))
        self.end_headers()
        try:
            if answer is not ENDLESS:
                self.wfile.write(answer)
            while answer is ENDLESS:
                self.wfile.write(b"100000\r\n" + b"1\n" * (1 << 19) + b"\r\n")
        except OSError:
            self.close_connection = True

    def log_message(self, *_):  # pylint: disable=arguments-differ
        pass


@pytest.fixture(name="server")
def fixture_server():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Liar)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def limit():
    if not os.environ.get("DMI_TEST_RUNTIME"):  # a sanitizer reserves address space for its shadow
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def ask(program, *words, **env):
    """The process, ended; more memory than MEMORY is not to be had."""
    done = subprocess.run([str(word) for word in (program, *words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
                          env={"PATH": "/usr/bin:/bin", **env}, preexec_fn=limit)
    if "without libcurl" in done.stderr:
        pytest.skip(f"{program.name} was built without libcurl")
    return done


def answers(**others):
    """Of a server that has one run of one step and one record; @others: what it says instead, by name."""
    good = {"names": UUID + "\n", "about": RUN + "\n", "steps": json.dumps(STEP) + "\n", "ends": "", "chunks": "7\n", "rows": row()}
    asked = {"names": "SELECT DISTINCT run", "about": "type = 'run'", "steps": "type = 'step'", "ends": "type = 'outcome'", "chunks": "SELECT DISTINCT chunk",
             "rows": "SELECT record"}
    lies = {**good, **others}
    pair = lambda lie: lie if isinstance(lie, tuple) else (200, lie)  # noqa: E731
    text = lambda lie: lie.encode() if isinstance(lie, str) else lie  # noqa: E731
    return [(asked[name], pair(lies[name])[0], text(pair(lies[name])[1])) for name in asked] + [("", 200, b"")]


def test_the_truth_is_taken(server, tmp_path, check):
    server.answers = answers()
    done = ask(DMI_DUMP, "list", "--from", f"clickhouse://127.0.0.1:{server.server_port}/", TMPDIR=str(tmp_path))
    check(done.returncode == 0 and "q" in done.stdout, "a run of one record", (done.returncode, done.stdout, done.stderr))


@pytest.mark.parametrize("lie, said", [
    ({"names": "x' OR 1\n"}, "is no UUID"), ({"names": ENDLESS}, "does not end after"), ({"names": (500, ENDLESS)}, "does not end after"),
    ({"about": "[1]\n"}, "no JSON object"), ({"about": ""}, "there is no run"), ({"about": json.dumps({"sites": [{**SITES[0], "name": "q\0a"}]}) + "\n"}, "a fact of the table"),
    ({"about": json.dumps({"sites": [{**SITES[0], "name": 3}]}) + "\n"}, "a fact of the table"), ({"steps": json.dumps({**STEP, "step_sequence": "one"}) + "\n"}, "a fact of the table"),
    ({"steps": json.dumps({**STEP, "rows": 1 << 40}) + "\n"}, "a fact of the table"), ({"steps": (503, ENDLESS)}, "does not end after"),
    ({"steps": json.dumps({**STEP, "spans": [{**SPAN, "tokens": -1}]}) + "\n"}, "a fact of the table"), ({"ends": "{\n"}, "no JSON object"),
    ({"chunks": "seven\n"}, "list of chunks"), ({"chunks": "7\n7\n"}, "list of chunks"), ({"chunks": "7\nx\n"}, "list of chunks"), ({"chunks": "-1\n"}, "list of chunks"),
    ({"chunks": "99999999999999999999\n"}, "list of chunks"), ({"chunks": "7"}, "list of chunks"), ({"chunks": "1\n\n"}, "list of chunks"),
    ({"chunks": ENDLESS}, "does not end after"), ({"rows": ""}, "has no rows"), ({"rows": row()[:-1]}, "no whole number of rows"), ({"rows": row(1) + row(0)}, "not in their order"),
    ({"rows": row() + row()}, "rows that cannot be"), ({"rows": row(0, 2**32 - 1, 1)}, "rows that cannot be"), ({"rows": "Code: 241. DB::Exception"}, "no whole number of rows")],
    ids=lambda value: None if isinstance(value, str) else "-".join(value))
def test_a_run_is_not_fetched_from_lies(server, tmp_path, check, lie, said):
    server.answers = answers(**lie)
    done = ask(DMI_DUMP, "list", "--from", f"clickhouse://127.0.0.1:{server.server_port}/", TMPDIR=str(tmp_path))
    lines = done.stderr.splitlines()
    check(done.returncode == 2 and said in done.stderr and len(lines) == 1, "is said in one sentence", (done.returncode, done.stderr[-400:], done.stdout[-400:]))
    check(not list(tmp_path.iterdir()), "and nothing is left", list(tmp_path.iterdir()))


@pytest.mark.parametrize("lie, said", [
    (("count()", 200, b"many\n"), "no number"), (("max(version)", 200, b""), "no number"), (("max(version)", 200, b"-1\n"), "no number"),
    (("max(version)", 200, b"2 apples\n"), "no number"), (("count()", 200, ENDLESS), "does not end after"), (("count()", 503, ENDLESS), "does not end after"),
    (("INSERT INTO", 200, ENDLESS), "does not end after"), (("INSERT INTO", 500, ENDLESS), "does not end after")],
    ids=lambda value: value if isinstance(value, str) else f"{value[0]} {value[1]}")
def test_a_replay_ends_where_a_server_lies(server, tmp_path, check, lie, said):
    server.answers = [lie, ("count()", 200, b"1\n"), ("max(version)", 200, b"0\n"), ("", 200, b"")]
    run = schedule(tmp_path / "run", steps(1))
    done = ask(DMI_REPLAY, run, "--to", f"clickhouse://127.0.0.1:{server.server_port}/")
    first = done.stderr.splitlines()[:1]
    check(done.returncode == 2 and first and said in first[0], "with its sentence", (done.returncode, done.stderr[-400:]))


@pytest.mark.parametrize("lie, said", [({"rows": row() + row(1, shape=2)}, "1 part of a row beyond 8 MiB is left out"),
                                       ({"steps": json.dumps({**STEP, "spans": [SPAN, SPAN]}) + "\n"}, "1 step of the table contradicts itself and is left out")], ids=("a part", "a step"))
def test_what_was_left_out_is_no_success(server, tmp_path, check, lie, said):
    server.answers = answers(**lie)
    for words in (("list",), ("stats",), ("verify",), ("export", "-o", tmp_path / "x"), ("recover", "-o", tmp_path / "y")):
        done = ask(DMI_DUMP, *words, "--from", f"clickhouse://127.0.0.1:{server.server_port}/", TMPDIR=str(tmp_path))
        check(done.returncode == 1 and said in done.stderr and "nothing is lost" not in done.stdout, f"{words[0]} says so", (done.returncode, done.stdout[-300:], done.stderr[-300:]))


@pytest.mark.parametrize("content, said", [(None, "no password in its first line"), (b"x" * 5000, "no password in its first line"), (b"se\0cret\n", "no password in its first line"),
                                           (b"", "cannot read a password"), (b"secret\nmore", None)], ids=("without end", "too long", "a zero byte", "empty", "good"))
def test_a_password_is_a_line(server, tmp_path, check, content, said):
    server.answers = answers()
    path = "/dev/zero" if content is None else tmp_path / "password"
    if content is not None:
        path.write_bytes(content)
    done = ask(DMI_DUMP, "list", "--from", f"clickhouse://127.0.0.1:{server.server_port}/?password_file={path}")
    check(done.returncode == (2 if said else 0) and (said or "") in done.stderr, "is said", (done.returncode, done.stderr))
