# SPDX-License-Identifier: Apache-2.0
"""dmi-top while a program captures: its numbers are those that dmi-dump finds in the end, rings are never more than full, requests
are listed, and Prometheus' own parser reads its page. What files say that are damaged, or of somebody else, is refused."""
import contextlib
import fcntl
import json
import os
import pty
import random
import signal
import socket
import struct
import subprocess
import sys
import termios
import time

import pytest

from harness import BUILD, DMI_DUMP, PRELOAD, ROOT, dump_json, environment, run as harness_run, runs_of
from kit import START, spec
from rows_client import WIDTH
from test_life import TEXT as LIFE, WORK
from test_rows import CLIENT, site_text
from test_shedding import SITES, SLOW, plan_of

DMI_TOP, DMI_TRACE = BUILD / "tools" / "dmi-top", BUILD / "tools" / "dmi-trace"
REQUESTS, RING_BYTES, HEADER, RINGS, ENTRY = 256, 192, 512, 64, 384
TALLIES = ("expected", "captured", "dropped")
pytest.importorskip("cuda.bindings")
pytestmark = [pytest.mark.since(12000, "what cuda.bindings 13 calls to build a graph"), pytest.mark.built(DMI_TOP, DMI_TRACE, PRELOAD)]


def top(*words, user=None, timeout=60):
    """dmi-top, and what it said."""
    return subprocess.run([str(w) for w in (DMI_TOP, *words)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env=environment(), timeout=timeout, text=True, user=user, errors="surrogateescape")


def seen(*words, interval=0.1):
    """The one object of --once --json, or None where it fails."""
    done = top("--once", "--json", "--interval", interval, *words)
    return json.loads(done.stdout) if done.returncode == 0 else None


class Program:
    """rows_client.py on a plan, while it runs: it ends when told to."""

    def __init__(self, folder, plan, overload="{mode: drop}", ring="{bytes: 64K, slots: 1024}", out=None, sites=SITES, before=(), **env):
        folder.mkdir(exist_ok=True)
        self.out, self.gate, self.said = out or folder / "out", folder / "gate", None
        (folder / "plan.json").write_text(json.dumps(plan))
        (folder / "spec.yaml").write_text(spec(*(site_text(*s) for s in sites),
                                               head=f"forward: [{{kind: step, begin: step}}]\nring: {ring}\noverload: {overload}\n"))
        env.setdefault("DMI_STANDIN_CACHE", os.environ.get("DMI_STANDIN_CACHE", str(BUILD / "standin-cache")))
        self.process = subprocess.Popen(
            [sys.executable, str(CLIENT), str(folder / "plan.json"), str(self.gate)], cwd=folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment(LD_PRELOAD=":".join(map(str, [*before, PRELOAD])), DMI_OUT=self.out, DMI_SPEC=folder / "spec.yaml", PYTHONPATH=ROOT / "python", **env))

    def at_gate(self):
        """dmi-top's object once the plan is done and all is in segments: its numbers stand still."""
        reached = self.gate.with_name(f"{self.gate.name}.reached")
        self.wait(reached.exists)
        return self.wait_for(quiet)

    def wait_for(self, holds):
        """What @holds says of dmi-top's object, once it is anything."""
        def said():
            view = seen(self.out) if self.out.is_dir() else None
            return view and holds(view)
        return self.wait(said)

    def wait(self, said, seconds=120):
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.process.poll() is None:
            if got := said():
                return got
            time.sleep(0.01)
        raise AssertionError(f"it did not come: {self.process.poll()}")

    @property
    def run(self):
        return next(r for r in runs_of(self.out) if f"-{self.process.pid}-" in r.name)

    def end(self):
        """The program goes on, and ends. Return: its run."""
        self.gate.touch()
        self.said = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, self.said
        return self.run

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@pytest.fixture
def program(tmp_path):
    """Programs by their arguments; none outlives its test."""
    programs = []

    def start(plan, name="program", **more):
        programs.append(Program(tmp_path / name, plan, **more))
        return programs[-1]
    yield start
    for p in programs:
        p.kill()


def quiet(view):
    """All that was expected is captured or dropped, and there is some."""
    total = view["all"]["total"]
    done = total["captured"]["rows"] + total["dropped"]["rows"]
    return view if total["expected"]["rows"] and done == total["expected"]["rows"] and view["all"]["steps"] else None


def owned(plan):
    """{request: rows of all sites, tokens} that the plan asks for."""
    rows, tokens = {}, {}
    for step in plan:
        spans = [s for s in step["said"]["spans"] if not s["flags"]]
        for s in spans:
            tokens[s["request"]] = tokens.get(s["request"], 0) + s["n_tokens"]
        for kernel, _, _, _ in step["launches"]:
            for s in spans:
                n = s["n_tokens"] + 1 if kernel == "block" else 1  # at `all` and `last`; at `logits`
                rows[s["request"]] = rows.get(s["request"], 0) + n
    return rows, tokens


def test_numbers(check, program):
    """While it runs, and after the end."""
    plan = plan_of(1, n_steps=30, pause=0.1)  # three seconds in which it must be seen
    p = program(plan)
    busy = p.wait_for(lambda view: view if view["all"]["total"]["records_per_s"] > 0 else None)
    site = next(s for s in busy["runs"][0]["sites"] if s["site"] == "all")
    check(site["records_per_s"] > 0 and site["rows_per_s"] >= site["records_per_s"] and site["bytes_per_s"] == pytest.approx(site["rows_per_s"] * WIDTH * 4),
          "rates are positive while it runs", site)
    view = p.at_gate()
    run = view["runs"][0]
    check(run["state"] == "running" and run["pid"] == p.process.pid and len(view["runs"]) == 1, "the run is named", run["state"])
    still = seen(p.out)["runs"][0]
    check(still["total"]["records_per_s"] == 0 and still["total"]["captured"] == run["total"]["captured"] and run["steps"] == len(plan), "nothing comes while it waits", run["total"])
    rows, tokens = owned(plan)
    got = {r["request"]: r for r in run["requests"]}
    check({k: r["rows"] for k, r in got.items()} == rows, "rows of each request", (got, rows))
    check({k: r["tokens"] for k, r in got.items()} == tokens and run["requests_seen"] == len(rows), "its tokens", got)
    check(all(r["bytes"] == r["rows"] * WIDTH * 4 for r in got.values()) and run["stray_rows"] == 0, "its bytes")
    ended = {r for step in plan for r in step["ends"]}
    check({k for k, r in got.items() if r["state"] == "ended"} == ended and ended, "and whether it has ended", sorted(ended))
    ring = run["rings"][0]
    check(ring["bytes"] == 64 << 10 and ring["slots"] == 1024 and ring["bytes_in_flight"] == ring["slots_in_flight"] == ring["backlog_batches"] == 0,
          "the ring is empty", ring)
    check(0 < ring["most_bytes_in_flight"] <= ring["bytes"] and 0 < ring["most_occupancy"] <= 1, "and was not")
    check(run["encoder"]["raw_bytes"] == run["total"]["captured"]["bytes"] and run["encoder"]["stored_bytes"] > 0 and run["encoder"]["encode_ns"] > 0,
          "the encoder's bytes", run["encoder"])
    held = sum(f.stat().st_size for f in p.run.glob("seg-*.dmi"))
    check(0.8 * held < run["disk"]["written_bytes"] <= held and run["disk"]["write_ns"] > 0, "the disk's", (run["disk"], held))
    closed(check, p, run)


def closed(check, p, run):
    """After the end the counters say what dmi-dump finds, and what was live is gone."""
    folder = p.end()
    stats = dump_json("stats", folder)
    after = seen(folder)["runs"][0]
    check(after["state"] == "closed" and not (folder / "live").exists() and not after["requests"], "a closed run has counters alone", after["state"])
    for at in (run, after):
        here = {s["site"]: s for s in at["sites"]}
        for s in stats["sites"]:
            keys = (*TALLIES, "dropped_by_reason", "dropped_rows_by_reason", "launches")
            check(all(here[s["site"]][k] == s[k] for k in keys), f"{at['state']}: {s['site']} is what dmi-dump stats says",
                  [(here[s["site"]][k], s[k]) for k in keys])
    check(top("--once", p.out).returncode == 1 and "no run in it is being written" in top("--once", p.out).stderr, "nobody writes there")
    check(top("--once", p.out).stderr.count("\n") == 1, "that is one line")


def test_under_pressure(check, program):
    """A slow link: requests are shed, the ring is full and never more, drops have reasons."""
    plan = plan_of(2, n_steps=80)
    p = program(plan, overload="{mode: best-effort}", ring="{bytes: 8K, slots: 1024}", **SLOW)
    views = []

    def collect(view):
        views.append(view["runs"][0])
        return quiet(view) if view["all"]["steps"] == len(plan) else None
    p.wait_for(collect)
    last = p.at_gate()["runs"][0]
    check(last["requests_seen"] == len(owned(plan)[1]), "each request is noted", last["requests_seen"])
    rings = [r for v in views for r in v["rings"]]
    check(all(0 <= r["occupancy"] <= r["most_occupancy"] <= 1 and r["slots_in_flight"] <= r["slots"] for r in rings), "never more than full",
          [r["occupancy"] for r in rings])
    check(any(r["occupancy"] > 0 for r in rings) and last["rings"][0]["most_occupancy"] > 0.5, "the ring fills", [r["occupancy"] for r in rings])
    check(last["total"]["dropped_rows_by_reason"].get("shed", 0) > 0, "rows are shed", last["total"]["dropped_by_reason"])
    states = {r["request"]: r["state"] for r in last["requests"]}
    check(last["overload"]["shed"] > 0 and last["overload"]["link_bytes_per_s"], "requests are shed, and the link has a rate", last["overload"])
    check(5000 < last["overload"]["link_bytes_per_s"] < 100000, "about that of the link", last["overload"])
    folder = p.end()
    listed = {r["request"]: r["shed"] for r in dump_json("list", "--requests", folder)["requests"]}
    check({k for k, s in states.items() if s == "shed"} == {k for k, s in listed.items() if s is not None}, "those that are shed are named",
          (states, listed))


def test_waits(check, program):
    p = program(plan_of(3, n_steps=20), overload="{mode: complete, wait_ms: 5}", ring="{bytes: 4K, slots: 64}", DMI_STANDIN_DTOH_BPS=20000)
    run = p.at_gate()["runs"][0]
    check(run["waits"]["waits"] > 0 and run["waits"]["wait_ns"] > 0 and run["waits"]["waits"] >= run["waits"]["in_vain"] > 0, "waits are counted",
          run["waits"])
    check("ring_full" in run["total"]["dropped_by_reason"], "and what they did not help", run["total"]["dropped_by_reason"])
    text = top("--once", "--interval", 0.1, p.run).stdout
    check(f"ring_full {run['total']['dropped_by_reason']['ring_full']} (" in text and f"waits: {run['waits']['waits']} " in text, "people see it", text)
    p.end()


# ------------------------------------------------------------------------------------------ a trace

SUMS = {"steps": "dmi_trace_steps_total", "timed": "dmi_trace_timed_steps_total", "lost": "dmi_trace_lost_steps_total", "host_ns": "dmi_trace_host_seconds_total",
        "device_ns": "dmi_trace_device_seconds_total", "gap_ns": "dmi_trace_idle_seconds_total"}


def test_a_trace(check, program, tmp_path):
    """Step time and idle share while it runs; sums are those that dmi-trace finds in the end, and Prometheus' are the same."""
    plan = plan_of(9, n_steps=30, pause=0.1)
    p = program(plan, DMI_TRACE="steps")
    busy = p.wait_for(lambda view: view if view["runs"][0]["trace"] and view["runs"][0]["trace"]["step_device_ns"] else None)["runs"][0]["trace"]
    check(busy["steps_per_s"] > 0 and busy["step_host_ns"] > 0 and busy["step_device_ns"] > 0 and 0 <= busy["idle"] <= 1, "while it runs", busy)
    p.at_gate()
    time.sleep(0.1)  # the collector's last rounds
    run = seen(p.out)["runs"][0]
    still = run["trace"]
    check(still["steps_per_s"] == 0 and still["step_host_ns"] is still["step_device_ns"] is still["idle"] is None, "no step comes while it waits", still)
    page = tmp_path / "dmi.prom"
    top("--once", "--interval", 0.05, "--prometheus", page, p.out)
    got = samples(page.read_text())
    check({k: round(got[name,] * (1e9 if k.endswith("_ns") else 1)) for k, name in SUMS.items()} == {k: still[k] for k in SUMS}, "for Prometheus", (got, still))
    text = top("--once", "--interval", 0.05, p.out).stdout
    check("trace: 0 steps a second, a step takes - on the device and - on the host" in text and "; 0 lost" in text, "for people", text)
    folder = p.end()
    told = subprocess.run([DMI_TRACE, "steps", "--each", "--json", folder], text=True, stdout=subprocess.PIPE, check=True).stdout
    done = json.loads(told)["steps"][:still["steps"]]
    timed = [s for s in done if s["device_ns"] is not None]
    check(len(plan) - 1 <= still["steps"] <= len(plan) and len(timed) == still["timed"] > 0, "steps", (still, len(done), len(timed)))
    check(sum(s["device_ns"] for s in timed) == still["device_ns"] and sum(max(s["gap_ns"] or 0, 0) for s in timed) == still["gap_ns"] and
          sum(s["end_ns"] - s["begin_ns"] for s in done) == pytest.approx(still["host_ns"], abs=1000 * len(done)), "their times are the run's", still)


def test_no_trace(check, program, tmp_path):
    p = program(plan_of(9, n_steps=3))
    run = p.at_gate()["runs"][0]
    top("--once", "--interval", 0.05, "--prometheus", tmp_path / "page", p.out)
    check(run["trace"] is None and not any(name in key for key in samples((tmp_path / "page").read_text()) for name in SUMS.values()) and
          "trace:" not in top("--once", "--interval", 0.05, p.out).stdout, "nothing is said of steps", run["trace"])
    p.end()


# ------------------------------------------------------------------------------------------ several runs

def test_two_processes(check, program, tmp_path):
    """A folder with two: a block each, and their sum; one that dies is shown as killed."""
    out = tmp_path / "runs"
    a, b = (program(plan_of(seed, n_steps=10), name, out=out, DMI_JOB="both") for seed, name in ((4, "a"), (5, "b")))
    for p in (a, b):
        p.at_gate()
    view = seen(out)
    check({r["pid"] for r in view["runs"]} == {a.process.pid, b.process.pid} and view["all"]["runs"] == 2, "a block each")
    for key in TALLIES:
        for unit in ("records", "rows", "bytes"):
            total = sum(r["total"][key][unit] for r in view["runs"])
            check(view["all"]["total"][key][unit] == total and total == sum(s[key][unit] for s in view["all"]["sites"]), f"{key} {unit} are summed")
    check([s["site"] for s in view["all"]["sites"]] and len(view["all"]["sites"]) == len(SITES), "sites of one name are one")
    text = top("--once", "--interval", 0.1, out).stdout
    check("all 2 runs: 2 running" in text and a.run.name in text and b.run.name in text, "people see it", text)
    a.process.send_signal(signal.SIGKILL)
    a.process.wait()
    view = seen(out)
    states = {r["pid"]: r["state"] for r in view["runs"]}
    check(states == {a.process.pid: "killed", b.process.pid: "running"}, "a process that died is shown", states)
    dead = next(r for r in view["runs"] if r["state"] == "killed")
    check(dead["rings"] and dead["requests"], "and how it stood")
    check("killed: it has ended without closing its run" in top("--once", "--interval", 0.1, a.run).stdout, "people see that, too")
    stats = dump_json("stats", a.run)
    found = next(s for s in stats["sites"] if s["site"] == "all")
    here = next(s for s in dead["sites"] if s["site"] == "all")
    check(here["expected"] == found["expected"] and here["captured"]["rows"] <= found["captured"]["rows"] and found["holds"],
          "the counters of a killed run are those of dmi-dump", (here, found))
    harness_run([DMI_DUMP, "recover", a.run, "--output", tmp_path / "recovered"])
    check(not list((tmp_path / "recovered").rglob("live")) and dump_json("stats", tmp_path / "recovered")["sites"], "which recovers it without its live numbers")
    b.end()
    done = top("--once", out)
    check(done.returncode == 1 and ("was closed; name it" in done.stderr or "was killed; name it" in done.stderr), "then nobody writes there", done.stderr)


def test_it_goes_on(check, program):
    """Without --once: a view each interval until the run ends."""
    p = program(plan_of(6, n_steps=10))
    p.at_gate()
    watcher = subprocess.Popen([DMI_TOP, "--json", "--interval", "0.05", p.out], stdout=subprocess.PIPE, text=True, env=environment())
    first = [json.loads(watcher.stdout.readline()) for _ in range(3)]
    check(all(v["runs"][0]["state"] == "running" and v["runs"][0]["seconds"] > 0.04 for v in first), "an object a line")
    p.end()
    rest = [json.loads(line) for line in watcher.communicate(timeout=30)[0].splitlines()]
    check(watcher.returncode == 0 and rest[-1]["runs"][0]["state"] == "closed", "until it is closed", rest[-1:])


def test_where_it_looks(check, program, tmp_path):
    """Without an argument: DMI_OUT, else dmi-out, else the current folder; a folder may be named with a slash, a run by itself."""
    p = program(plan_of(6, n_steps=5), out=tmp_path / "dmi-out")
    p.at_gate()
    for cwd, more in ((tmp_path, {}), (p.out, {}), ("/", {"DMI_OUT": p.out})):
        done = subprocess.run([DMI_TOP, "--once", "--json", "--interval", "0.01"], cwd=cwd, env=environment(**more), stdout=subprocess.PIPE, text=True)
        check(done.returncode == 0 and json.loads(done.stdout)["runs"][0]["pid"] == p.process.pid, f"{cwd}, {more}")
    for path in (p.out, f"{p.out}/", p.run, f"{p.run}/"):
        check(seen(path)["runs"][0]["run"] == p.run.name, str(path))
    p.end()


def test_nothing_there(check, tmp_path):
    for path, said in ((tmp_path, "there is no run in it"), (tmp_path / "absent", "No such file")):
        done = top("--once", path)
        check(done.returncode == 1 and said in done.stderr and done.stderr.count("\n") == 1 and not done.stdout, f"{path.name}: one line", done.stderr)
    for words in (("--interval", "0"), ("--interval", "x"), ("--interval", "nan"), ("a", "b"), ("--json", "--prometheus", "x"), ("--unknown",)):
        check(top(*words).returncode == 2, f"{words}: wrong usage")


# ------------------------------------------------------------------------------------------ Prometheus

def samples(page):
    parser = pytest.importorskip("prometheus_client.parser", reason="needs the packages of tools/setup/python.txt")
    return {(s.name, *(v for k, v in sorted(s.labels.items()) if k not in ("run", "pid", "host", "job"))): s.value
            for family in parser.text_string_to_metric_families(page) for s in family.samples}


def same_numbers(check, what, page, run):
    got = samples(page)
    for s in run["sites"]:
        check(got["dmi_captured_rows_total", s["site"]] == s["captured"]["rows"] and got["dmi_expected_records_total", s["site"]] == s["expected"]["records"],
              f"{what}: {s['site']}")
        for reason, rows in s["dropped_rows_by_reason"].items():
            check(got["dmi_dropped_rows_total", reason, s["site"]] == rows, f"{what}: {reason} of {s['site']}")
    check(got["dmi_up",] == 1 and got["dmi_ring_size_bytes", "0", "0"] == run["rings"][0]["bytes"], f"{what}: it is up")
    check(got["dmi_disk_written_bytes_total",] == run["disk"]["written_bytes"] and got["dmi_requests_shed_total",] == run["overload"]["shed"],
          f"{what}: disk and requests")
    check(abs(got["dmi_ring_wait_seconds_total",] * 1e9 - run["waits"]["wait_ns"]) < 1e3, f"{what}: seconds")


def ask(path, request=b"GET /metrics HTTP/1.0\r\n\r\n"):
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(20)
        s.connect(str(path))
        s.sendall(request)
        return b"".join(iter(lambda: s.recv(65536), b""))


def test_prometheus(check, program, tmp_path):
    """A file, and a socket for the owner alone: what Prometheus' parser reads is what --json says."""
    p = program(plan_of(7, n_steps=40), overload="{mode: best-effort}", ring="{bytes: 8K, slots: 1024}", **SLOW)
    run = p.at_gate()["runs"][0]
    page, path = tmp_path / "dmi.prom", tmp_path / "dmi.sock"
    done = top("--once", "--interval", 0.05, "--prometheus", page, p.out)
    check(done.returncode == 0 and not done.stdout and page.stat().st_mode & 0o777 == 0o600, "a file", done.stderr)
    same_numbers(check, "file", page.read_text(), run)
    server = subprocess.Popen([DMI_TOP, "--interval", "0.1", "--prometheus", f"unix:{path}", p.out], env=environment())
    try:
        until = time.monotonic() + 60
        while not path.exists() and time.monotonic() < until:
            time.sleep(0.01)
        serve(check, path, run)
    finally:
        server.send_signal(signal.SIGTERM)
    check(server.wait(timeout=20) == 0 and not path.exists(), "a signal ends it, and the socket is gone")
    p.end()


def serve(check, path, run):
    check(path.stat().st_mode & 0o777 == 0o600, "the socket is the owner's")
    head, _, body = ask(path).partition(b"\r\n\r\n")
    check(head.startswith(b"HTTP/1.0 200 OK\r\n") and b"version=0.0.4" in head and f"Content-Length: {len(body)}".encode() in head, "an answer", head)
    same_numbers(check, "socket", body.decode(), run)
    check(ask(path, b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n").endswith(b"\r\n\r\n"), "a head alone")
    for request, status in ((b"GET /other HTTP/1.0\r\n\r\n", b"404"), (b"POST / HTTP/1.0\r\n\r\n", b"405"), (b"x" * 5000, b"431")):
        check(ask(path, request)[9:12] == status, f"{status.decode()}", request[:20])
    begin, slow = time.monotonic(), []
    for i in range(200):  # that ask for nothing, or for half of something, or never read
        slow.append(socket.socket(socket.AF_UNIX))
        slow[-1].connect(str(path))
        slow[-1].sendall((b"", b"GET /metr", b"GET / HTTP/1.0\r\n\r\n")[i % 3])
    check(all(ask(path).startswith(b"HTTP/1.0 200") for _ in range(20)) and time.monotonic() - begin < 40, "slow clients hold up nobody",
          time.monotonic() - begin)  # a server that waited for each would need 1,000 s
    slow[0].settimeout(50)
    check(slow[0].recv(1) == b"" and 5 <= time.monotonic() - begin, "and are closed, not before their time", time.monotonic() - begin)
    for s in slow:
        s.close()
    refused = top("--once", "--prometheus", f"unix:{path}", run["path"])
    check(refused.returncode == 1 and "cannot listen on" in refused.stderr, "another one does not take the socket away", refused.stderr)


# ------------------------------------------------------------------------------------------ files that are not as written

@pytest.fixture
def killed(program, tmp_path):
    """The files of a run that goes on, copied: to dmi-top it was killed."""
    plan = plan_of(8, n_steps=12)
    for step in plan:
        for span in step["said"]["spans"]:
            if span["request"] == "r1":
                span["request"] = "\033[2J\u202er\n1"
        step["ends"] = ["\033[2J\u202er\n1" if r == "r1" else r for r in step["ends"]]
    p = program(plan)
    p.at_gate()
    folder = tmp_path / "copy"
    folder.mkdir()
    for name in ("manifest.json", "counters", "live"):
        (folder / name).write_bytes((p.run / name).read_bytes())
    yield folder


def refused(check, folder, name, data, what):
    """One line that names the file, and nothing that a terminal acts on."""
    was = (folder / name).read_bytes()
    (folder / name).write_bytes(data)
    done = top("--once", "--interval", 0.01, folder)
    (folder / name).write_bytes(was)
    lines = done.stderr.splitlines()
    good = done.returncode == 1 and len(lines) == 1 and lines[0].startswith(f"dmi-top: {folder}/{name}: ")
    good = good and not any(ord(c) < 32 and c != "\n" or 0x7f <= ord(c) < 0xa0 for c in done.stdout + done.stderr)
    if not good:
        check(False, f"{name}, {what}", (done.returncode, done.stderr[:500], done.stdout[:500]))
    return good


def changed(data, at, fmt, value):
    data = bytearray(data)
    struct.pack_into(fmt, data, at, value)
    return bytes(data)


def test_hostile_files(check, killed):
    rng = random.Random(1)
    live, counters = ((killed / name).read_bytes() for name in ("live", "counters"))
    check(len(live) == HEADER + RINGS * RING_BYTES + REQUESTS * ENTRY, "a live file has the size of the page")
    check(all([refused(check, killed, "live", live[:n], f"cut to {n}") for n in [*range(0, 2048, 64), *range(2048, len(live), 8192)]]) and
          all([refused(check, killed, "counters", counters[:n], f"cut to {n}") for n in range(0, len(counters), 64)]), "files that are cut")
    check(all([refused(check, killed, name, rng.randbytes(len(data)), "random") for name, data in (("live", live), ("counters", counters))
               for _ in range(8)]), "random bytes")
    lies = [(at, "<I", v) for at in (8, 12, 40, 44, 48, 52) for v in (0, 2, 0x7fffffff, 0xffffffff)] + [(0, "<Q", 1), (16, "<Q", 5)]
    check(all([refused(check, killed, "live", changed(live, *lie), f"{lie}") for lie in lies]), "sizes that lie")
    check(all([refused(check, killed, "counters", changed(counters, at, "<I", v), f"{at}: {v}") for at in (8, 12, 16, 32)
               for v in (0, 9, 0xffffffff)]), "in the counters, too")
    check(refused(check, killed, "live", live + b"\0" * 64, "longer") and refused(check, killed, "live", changed(live, HEADER + RINGS * RING_BYTES + 68, "<I", 257),
                                                                                  "an id too long"), "and what is too long")
    for name in ("live", "counters"):  # whatever the numbers are
        at = 56 if name == "live" else 40
        for _ in range(10):
            data = bytearray(changed((killed / name).read_bytes(), 0, "<B", (live if name == "live" else counters)[0]))
            for i in range(at, 512, 8):
                struct.pack_into("<Q", data, i, rng.choice((0, 1, 2**63, 2**64 - 1, rng.getrandbits(64))))
            if name == "live":
                data[40:56] = live[40:56]
            was = (killed / name).read_bytes()
            (killed / name).write_bytes(data)
            for words in ((), ("--json",), ("--prometheus", killed.parent / "page")):
                done = top("--once", "--interval", 0.01, *words, killed)
                if done.returncode not in (0, 1) or "Sanitizer" in done.stderr:
                    check(False, f"wild numbers in {name}", (done.returncode, done.stderr[:1000]))
            (killed / name).write_bytes(was)


def test_a_torn_entry_is_not_shown(check, killed):
    live = (killed / "live").read_bytes()
    before = {r["request"] for r in seen(killed)["runs"][0]["requests"]}
    at = HEADER + RINGS * RING_BYTES
    n = struct.unpack_from("<I", live, at + 68)[0]
    name = live[at + 128:at + 128 + n].decode()
    (killed / "live").write_bytes(changed(live, at, "<Q", struct.unpack_from("<Q", live, at)[0] | 1))
    after = {r["request"] for r in seen(killed)["runs"][0]["requests"]}
    check(name in before and after == before - {name}, "an entry that is being written is left out", (before, after))


def test_nothing_reaches_the_terminal(check, killed):
    """A request id, and a site's name, with what a terminal would act on."""
    manifest = json.loads((killed / "manifest.json").read_text())
    manifest["dictionary"]["sites"][0]["name"] = "a\033]0;x\007\u009b\nb\"\\"
    (killed / "manifest.json").write_text(json.dumps(manifest))
    page = killed.parent / "page"
    for words in ((), ("--json",), ("--prometheus", page)):
        done = top("--once", "--interval", 0.01, *words, killed)
        text = done.stdout + (page.read_text() if page.exists() else "")
        bad = [c for c in text if c != "\n" and (ord(c) < 32 or 0x7f <= ord(c) < 0xa0 or ord(c) in (0x202e, 0x2028))]
        if words == ("--json",):
            got = json.loads(done.stdout)["runs"][0]
            check("a\033]0;x\007\u009b\nb\"\\" in {s["site"] for s in got["sites"]} and "\033[2J\u202er\n1" in {r["request"] for r in got["requests"]},
                  "JSON has it, escaped")
        check(done.returncode == 0 and text and not bad, f"{words}: no control is printed", (bad, done.stderr))
    check("?]0;x???b" in top("--once", "--interval", 0.01, killed).stdout, "something stands in its place")
    check(("dmi_captured_rows_total", "a?]0;x???b\"\\") in samples(page.read_text()), "and Prometheus reads it")


def test_other_files(check, killed):
    """No links, FIFOs, folders; no run, damaged manifests."""
    for name in ("live", "counters", "manifest.json"):
        was = (killed / name).read_bytes()
        (killed / name).unlink()
        if name != "manifest.json":
            for make in (lambda p: p.symlink_to("/dev/zero"), lambda p: os.mkfifo(p), lambda p: p.mkdir()):
                make(killed / name)
                done = top("--once", "--interval", 0.01, killed)
                check(done.returncode == 1 and f"/{name}: " in done.stderr and done.stderr.count("\n") == 1, f"{name} is something else", done.stderr)
                (killed / name).rmdir() if (killed / name).is_dir() else (killed / name).unlink()
        done = top("--once", "--interval", 0.01, killed)
        check(done.returncode == (0 if name == "live" else 1), f"no {name}", done.stderr)
        (killed / name).write_bytes(was)
    for text in ("", "{", "[1]", '{"format": "dmi-run"}', "[" * 100000, json.dumps({"format": "dmi-run", "version": 2, "uuid": "x"})):
        (killed / "manifest.json").write_text(text)
        done = top("--once", "--interval", 0.01, killed)
        check(done.returncode == 1 and "/manifest.json: " in done.stderr and done.stderr.count("\n") == 1, f"manifest {text[:20]!r}", done.stderr)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")
def test_for_the_owner_alone(check, killed, tmp_path):
    for path in [killed, *killed.parents]:
        if path.is_relative_to(tmp_path.parent.parent):
            path.chmod(path.stat().st_mode | 0o055)
    for name in ("counters", "live", "manifest.json"):
        (killed / name).chmod(0o600)
    try:
        reached = top("--version", user=65534).returncode == 0
    except PermissionError:  # a folder above it is closed
        reached = False
    if not reached:
        pytest.skip("the build folder is not readable for another user")
    done = top("--once", "--interval", 0.01, killed, user=65534)
    check(done.returncode == 1 and "only the owner of a run may look at it" in done.stderr and not done.stdout, "by the mode", done.stderr)
    for name in ("counters", "live", "manifest.json"):
        (killed / name).chmod(0o644)
    done = top("--once", "--interval", 0.01, killed, user=65534)
    check(done.returncode == 1 and "belongs to another user" in done.stderr and not done.stdout, "and where the mode would let them", done.stderr)


# ------------------------------------------------------------------------------------------ the library's side

FAIL_DISK = BUILD / "tests" / "preload" / "libfail_disk.so"


@pytest.mark.built(FAIL_DISK)
def test_without_the_file(check, program, tmp_path):
    """Where `live` cannot be written, the run is what it was, and a line says so."""
    (tmp_path / "rules").write_text("open ENOSPC 6\n")  # after counters (twice), spec, segment, manifest
    plan = plan_of(9, n_steps=10)
    p = program(plan, before=[FAIL_DISK], FAIL_DISK=tmp_path / "rules")
    run = p.at_gate()["runs"][0]
    check(run["encoder"] is None and run["disk"] is None and not run["rings"] and not run["requests"] and run["live_refused"] is None, "it has counters")
    text = top("--once", "--interval", 0.01, p.run)
    check(text.returncode == 0 and "no file live" in text.stdout, "which people see", text.stdout)
    check(not (p.run / "live").exists() and not list(p.run.glob(".*")), "nothing is left of it", list(p.run.iterdir()))
    folder = p.end()
    check("dmi-top will show only the counters" in p.said[1] and p.said[1].count("dmi-top") == 1, "one line says so", p.said[1])
    check(all(s["holds"] for s in dump_json("stats", folder)["sites"]), "and all is captured")


@pytest.mark.parametrize("child", [["exit 5"], ["_exit 5"], ["launch block 0 1 64 p 64 5", "sync"], ["init 0"], ["exec /bin/true"]])
def test_a_child_leaves_it_alone(bench, child):
    """After fork, whatever the child does, the file is the parent's, who is killed in the end."""
    alone, forked = (bench.run(START + WORK + forks + WORK + ["kill9"], LIFE) for forks in ([], ["fork", *child, "endfork"]))
    live = [(r.folders[0] / "live").read_bytes() for r in (alone, forked) if bench.check(len(r.folders) == 1, "one run", r.stderr)]
    heads = [struct.unpack_from("<QQQQ", data, HEADER) for data in live]
    bench.check(len(live) == 2 and {(h[0], h[1], h[3]) for h in heads} == {(1 << 20, 512, 2)}, "it says what the parent did", heads)
    names = [str(r.folders[0].name).split("-")[-2] for r in (alone, forked)]
    bench.check([struct.unpack_from("<Q", data, 32)[0] for data in live] == [int(n) for n in names], "and who that is", names)


def test_many_requests(check, program):
    """The latest are shown, each with what was captured of it since it came."""
    def step(number, requests):
        spans = [{"request": r, "first_position": number, "n_tokens": 1, "first_row": i, "phase": 2, "flags": 0, "tags": None, "n_prompt": 0}
                 for i, r in enumerate(requests)]
        return {"said": {"step": number, "spans": spans, "n_rows": len(spans)}, "launches": [["block", len(spans), number + 1, False]]}
    names = [f"r{i}" for i in range(400)]
    plan = [step(i, names[i * 20:i * 20 + 120]) for i in range(15)]
    p = program(plan, sites=[SITES[0]])
    run = p.at_gate()["runs"][0]
    got = {r["request"]: r for r in run["requests"]}
    seen_in = {n: sum(n in {s["request"] for s in step["said"]["spans"]} for step in plan) for n in names[:400]}
    check(len(got) == REQUESTS and run["requests_seen"] == 400, "as many as there are entries", (len(got), run["requests_seen"]))
    check(set(names[280:]) <= set(got) and not set(names[:140]) & set(got), "the latest ones", sorted(set(names[280:]) - set(got))[:5])
    check(all(r["rows"] == seen_in[n] == r["tokens"] for n, r in got.items()), "with all their rows", [(n, r["rows"], seen_in[n]) for n, r in got.items()][:5])
    check(run["stray_rows"] == 0, "none is a stranger's")
    p.end()


def test_a_terminal(check, killed, tmp_path):
    """A picture that fits the window; escapes are the program's own alone."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 50, 0, 0))
    p = subprocess.Popen([DMI_TOP, "--interval", "0.05", killed], stdin=subprocess.DEVNULL, stdout=slave, stderr=subprocess.PIPE, env=environment())
    os.close(slave)
    data = b""
    with contextlib.suppress(OSError):  # the other side is closed
        while part := os.read(master, 65536):
            data += part
    os.close(master)
    check(p.wait(timeout=20) == 0 and not p.stderr.read(), "it ends, as nobody writes there")
    p.stderr.close()
    views = data.decode().replace("\r\n", "\n").split("\033[H")
    check(views[0] == "\033[2J" and len(views) == 2 and views[1].endswith("\033[J"), "it is cleared once, and drawn from its corner", views[0])
    lines = views[1].removesuffix("\033[J").split("\n")
    check(len(lines) <= 12 and all(line.endswith("\033[K") and len(line) <= 53 for line in lines[:-1]), "it fits", lines)
    check("\033" not in "".join(lines).replace("\033[K", ""), "and nothing else is an escape")
