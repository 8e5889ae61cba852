# SPDX-License-Identifier: Apache-2.0
"""What the tests of dmi-replay share: runs, replays, and what dmi-dump says of the same rows."""
import io
import json
import subprocess
import time

from harness import BUILD, DMI_DUMP
from stream_reader import frames, values

DMI_REPLAY = BUILD / "tools" / "dmi-replay"
MAKE_RUN, MAKE_ODD_RUN, MAKE_SCHEDULE = (BUILD / "tests" / "unit" / name for name in ("make_run", "make_odd_run", "make_schedule"))
BUILT = (DMI_REPLAY, DMI_DUMP, MAKE_RUN, MAKE_ODD_RUN, MAKE_SCHEDULE)


def make(program, folder, *words, text=None):
    subprocess.run([program, folder, *map(str, words)], input=text, text=True, check=True, stdout=subprocess.PIPE, timeout=120)
    return folder


def schedule(folder, lines, rank=(0, 1, 0, 1), job="job", segment_bytes=20000):
    """A run that make_schedule writes."""
    return make(MAKE_SCHEDULE, folder, job, *rank, segment_bytes, text="\n".join(lines) + "\n")


def wait_for(holds, seconds=30):
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.01)


class Growing:
    """A run that make_schedule writes as it is given lines."""

    def __init__(self, folder, rank=(0, 1, 0, 1)):
        self.process = subprocess.Popen([MAKE_SCHEDULE, folder, "job", *map(str, rank)], stdin=subprocess.PIPE, text=True)
        self.folder, self.step = folder, 0
        wait_for(lambda: folder.exists() and list(folder.glob("[!.]*")))

    def add(self, n=1):
        for _ in range(n):
            self.process.stdin.write(f"step {self.step} 1 r:0:1:{self.step}:2:0:0\nrec 2 0 0 4 1\nrec 2 1 0 4 1\n")
            self.step += 1
        self.process.stdin.flush()

    def say(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(timeout=60) == 0


def steps(n, width=4, layers=2, request="r", tokens=1):
    """Lines for schedule(): n steps of one request."""
    for i in range(n):
        yield f"step {i} {tokens} {request}:0:{tokens}:{i * tokens}:{1 if tokens > 1 else 2}:0:0"
        for layer in range(layers):
            yield f"rec 2 {layer} 0 {width} 1"


def replay(*words, status=0, timeout=120, **options):
    """Return: the finished process; its stdout as bytes."""
    done = subprocess.run([DMI_REPLAY, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout, check=False, **options)
    assert done.returncode == status, (words, done.returncode, done.stdout[-600:], done.stderr[-900:])
    return done


def stream(run, *words, status=0):
    """The frames that a replay sends to its stdout."""
    return list(frames(io.BytesIO(replay(run, "--to", "-", *words, status=status).stdout)))


def read_stream(path):
    with open(path, "rb") as file:
        return list(frames(file))


def lines(run, *words, status=0):
    """The objects of JSON lines."""
    return [json.loads(line) for line in replay(run, "--to", "-", "--format", "jsonl", *words, status=status).stdout.splitlines()]


def records(found):
    return [f for f in found if f.type == "record"]


def places(found):
    """Which records they are."""
    return [(f.facts["run"], f.facts["chunk"], f.facts["record"]) for f in found if f.type == "record"]


def key(facts, entry):
    name = facts["site"]
    if facts["layer"] is not None:
        name = name.replace("{layer}", str(facts["layer"])) if "{layer}" in name else f"{name}.{facts['layer']}"
    return name if entry["request"] is None else f"{entry['request']}/{name}"


def rows_of(found):
    """Rows of the stream as dmi-dump show has them: sorted (tensor, position, forward, step, launch, flag, true values)."""
    rows = []
    for f in records(found):
        for entry, i, data in f.rows:
            flag = "rejected" if entry.get("rejected") else "superseded" if entry.get("superseded") else ""
            position = -1 if entry["position"] is None else entry["position"] + i
            step = -1 if f.facts["step"] is None else f.facts["step"]
            rows.append((key(f.facts, entry), position, f.facts["forward"], step, f.facts["launch"], flag,
                         [v / (f.facts["scale"] or 1) for v in values(f.facts["dtype"], data)]))
    return sorted(rows)


def shown(run, sites, *words):
    """The same rows, by dmi-dump show."""
    rows = []
    for site in sites:
        done = subprocess.run([DMI_DUMP, "show", site, run, "--all", "--rows", ":", "--json", *map(str, words)], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=120, check=False)
        assert done.returncode in (0, 1) or b"has no layer" in done.stderr, done.stderr
        rows += [(r["tensor"], r.get("position", -1), r["forward"], r.get("step", -1), r["launch"],
                  "rejected" if r.get("rejected") else "superseded" if r.get("superseded") else "", r["values"])
                 for r in json.loads(done.stdout or "[]")]
    return sorted(rows)
