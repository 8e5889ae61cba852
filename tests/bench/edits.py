#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What edits cost a serving engine: edits.py DMI_RUN PRELOAD [LAYERS [TOKENS [ROUNDS]]].

Eight requests are decoded together by tests/engine/serve.py in graphs, and their logits captured: without places; with one in each layer,
where nothing is edited, one request of the eight is, or all are, or all are and dmi-ctl changes the edit about once a step. Rounds in turn; the median
of the decode steps by the clock and of the CPU time of the thread that launches them, and the CPU seconds of the whole process, the least of all rounds, each
with its ratio to that without places; and how long dmi-ctl takes until a change is in force for the step that begins next.
"""
import json
import os
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import serve

HEAD, *SITES = re.split(r"(?m)^(?=  - name: )", serve.SPEC.read_text())


def spec(places):
    """The logits in float32, and mlp_out as a place that is not captured."""
    names = {"final_logits", *(["mlp_out"] if places else [])}
    kept = [site for site in SITES if "_bf16$'" not in site and re.match(r"  - name: (\S+)", site)[1] in names]
    return HEAD + re.sub(r"(?m)^( *)write: .*$", r"\1write: {}\n\1capture: none", "".join(kept))


def edit(name, do, requests="*", **more):
    return {"name": name, "site": "mlp_out", "do": [do], "requests": requests} | more


def text_of(*some):
    """The text of a file of edits."""
    file = str(serve.ROOT / "tests" / "reference" / "edits.safetensors")
    return json.dumps({"editspec": 1, "vectors": {name: {"file": file, "tensor": f"vector/{name}"} for name in ("noise", "joy")}, "edits": some})


def edits(do, requests="*"):
    return text_of(edit("e", do, requests))


CHANGED = "add, all, changed about once a step"
WAYS = {
    "no places": (spec(False), None),
    "a place in each layer, no edit": (spec(True), None),
    "an edit of a request that is not there": (spec(True), edits({"add": "noise"}, "nobody")),
    "add, one request of eight": (spec(True), edits({"add": "noise", "times": 0.1}, "r3")),
    "add, all": (spec(True), edits({"add": "noise", "times": 0.1})),
    CHANGED: (spec(True), edits({"add": "noise", "times": 0.1})),
    "project_out, all": (spec(True), edits({"project_out": "noise"})),
}


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def change_until(over, folder, ctl, took):
    """Changes the coefficient, again and again, once the run is there; seconds that each change took go to @took."""
    while not over.wait(0.05):
        runs = [path for path in (folder / "out").glob("*") if (path / "control").exists()]
        began = time.monotonic()
        words = [ctl, *runs[:1], "edit", "set", "e", f"times={0.1 + 0.001 * len(took)}"]
        if runs and subprocess.run([str(word) for word in words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0:
            took.append(time.monotonic() - began)


def main():
    dmi_run, preload, *more = sys.argv[1:]
    layers, tokens, rounds = (int(word) for word in (more + ["30", "24", "3"][len(more):]))
    ctl, took = pathlib.Path(dmi_run).with_name("dmi-ctl"), []
    os.environ["DMI_CONTROL"] = "1"
    times, cpu = {name: [] for name in WAYS}, {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory(prefix="dmi-bench-edits-") as base:
        for i in range(rounds):
            for n, (name, (text, edited)) in enumerate(WAYS.items()):
                folder = pathlib.Path(base) / f"{i}-{n}"
                folder.mkdir()
                serve.write_requests(folder, tokens)
                before, over = cpu_seconds(), threading.Event()
                changes = threading.Thread(target=change_until, args=(over, folder, ctl, took))
                if name == CHANGED:
                    changes.start()
                times[name] += serve.serve(folder, text, layers, dmi_run, preload, edited)[0]
                over.set()
                if name == CHANGED:
                    changes.join()
                cpu[name].append(cpu_seconds() - before)
    medians = {name: [statistics.median(clock) for clock in zip(*times[name])] for name in WAYS}
    (plain, _, launching), least = medians["no places"], min(cpu["no places"])
    print(f"decode steps of 8 rows, {layers} layers, float32, in graphs; median of {len(times['no places'])}; CPU of the launching thread, CPU seconds of the process")
    for name, (clock, _, thread) in medians.items():
        print(f"  {name:40} {clock * 1e3:8.1f} ms {clock / plain:5.2f}  {thread * 1e3:8.3f} ms {thread / launching:5.2f}"
              f"  {min(cpu[name]):6.2f} s {min(cpu[name]) / least:5.2f}")
    took.sort()
    print(f"a change by dmi-ctl, of {len(took)}: median {took[len(took) // 2] * 1e3:.1f} ms, 99 of 100 within {took[len(took) * 99 // 100] * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
