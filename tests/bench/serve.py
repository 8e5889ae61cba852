#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What capturing costs a serving engine: serve.py DMI_RUN PRELOAD [LAYERS [TOKENS]].

Eight requests are decoded together by tests/engine/serve.py in graphs: without the library, with it idle, with two sites, all sites, all
sites of one request of eight; and with plain synchronous copies of every tensor, as forward hooks make them. Rounds in turn; the median of
the decode steps, and its ratio to that without the library.
"""
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SERVE = ROOT / "tests" / "engine" / "serve.py"
SPEC = ROOT / "specs" / "engine-smollm2.yaml"
ROUNDS = 3


def spec(names=None, request=None):
    """The float32 sites of the engine's spec, those called @names or all; of one request."""
    head, *sites = re.split(r"(?m)^(?=  - name: )", SPEC.read_text())
    kept = [s for s in sites if "_bf16$'" not in s and (names is None or re.match(r"  - name: (\S+)", s)[1] in names)]
    if request:
        kept = [s.replace("    pointer: ", f"    requests: {request}\n    pointer: ") for s in kept]
    return head + "".join(kept)


WAYS = {
    "without the library": None,
    "idle (loaded, no spec)": "",
    "2 sites (resid_pre, final_logits)": spec({"resid_pre", "final_logits"}),
    "all sites": spec(),
    "all sites, one request of eight": spec(request="r3"),
    "synchronous copies of all, launch by launch": "dump",
}


def command_of(folder, layers, *options):
    """The engine, which serves the folder's requests in graphs."""
    return [sys.executable, SERVE, "--requests", folder / "requests", "--layers", layers, "--out", folder / "results", "--times", folder / "times",
            "--trace", folder / "trace", "--mode", "graph", "--no-prefix-cache", *options]


def steps_of(folder):
    """[(seconds by the clock, of the CPU, and of the launching thread; what the engine says of it)] of each step that computed rows"""
    times = [tuple(map(float, line.split())) for line in (folder / "times").read_text().splitlines()]
    trace = [json.loads(line) for line in (folder / "trace").read_text().splitlines()]
    return [(times[step["step"]], step) for step in trace]


def decodes_of(folder):
    """The seconds of each decode step of all eight requests, but for the first ones, which capture."""
    return [seconds for seconds, step in steps_of(folder) if step["rows"] == 8 and all(i["n"] == 1 for i in step["items"])][2:]


def serve(folder, way, layers, dmi_run, preload, edits=None):
    """(of each decode step the seconds by the clock, of the CPU, and of the launching thread; bytes captured). @edits: the text of a file of edits"""
    command = command_of(folder, layers)
    env = dict(os.environ)
    if way == "":
        env["LD_PRELOAD"] = str(preload)
    elif way == "dump":
        command += ["--dump", folder / "dump"]
    elif way:
        (folder / "spec.yaml").write_text(way)
        options = []
        if edits:
            (folder / "edits.yaml").write_text(edits)
            options = ["--edits", folder / "edits.yaml"]
        command = [dmi_run, "--spec", folder / "spec.yaml", *options, "--out", folder / "out", "--", *command, "--steps"]
    result = subprocess.run([str(word) for word in command], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if result.returncode:
        raise SystemExit(f"{command}: {result.stderr[-2000:]}")
    return decodes_of(folder), sum(path.stat().st_size for path in folder.rglob("seg-*.dmi"))


def write_requests(folder, tokens, before=()):
    """Eight that generate @tokens each; they come when those @before are over, of which a step computes a prompt or more."""
    requests = [{"id": f"r{k}", "prompt_tokens": [1, 504, 3575 + k, 282], "max_tokens": tokens, "ignore_stop": True, "arrival": len(before)} for k in range(8)]
    (folder / "requests").write_text(json.dumps({"requests": [*before, *requests]}))


def main():
    dmi_run, preload, *more = sys.argv[1:]
    layers, tokens = (int(word) for word in (more + ["10", "16"][len(more):]))
    times, size = {name: [] for name in WAYS}, {}
    with tempfile.TemporaryDirectory(prefix="dmi-bench-serve-") as base:
        for i in range(ROUNDS):
            for n, (name, way) in enumerate(WAYS.items()):
                folder = pathlib.Path(base) / f"{i}-{n}"
                folder.mkdir()
                write_requests(folder, tokens)
                steps, size[name] = serve(folder, way, layers, dmi_run, preload)
                times[name] += [seconds for seconds, *_ in steps]
    plain = statistics.median(times["without the library"])
    print(f"decode steps of 8 rows, {layers} layers, float32, in graphs; median of {len(times['all sites'])}")
    for name, seconds in times.items():
        median = statistics.median(seconds)
        stored = f", {size[name] / 1e6:.2f} MB stored" if size[name] else ""
        print(f"  {name:45} {median * 1e3:8.1f} ms  {median / plain:5.2f}{stored}")


if __name__ == "__main__":
    main()
