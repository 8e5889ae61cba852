#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What edits cost a serving engine: edits.py DMI_RUN PRELOAD [LAYERS [TOKENS [ROUNDS]]].

Eight requests are decoded together by tests/engine/serve.py in graphs, and their logits captured: without places; with one in each layer,
where nothing is edited, one request of the eight is, or all are. Rounds in turn; the median of the decode steps and the CPU seconds of the whole
process, the least of all rounds, each with its ratio to that without places.
"""
import json
import pathlib
import re
import resource
import statistics
import sys
import tempfile

import serve

HEAD, *SITES = re.split(r"(?m)^(?=  - name: )", serve.SPEC.read_text())


def spec(places):
    """The logits in float32, and mlp_out as a place that is not captured."""
    names = {"final_logits", *(["mlp_out"] if places else [])}
    kept = [site for site in SITES if "_bf16$'" not in site and re.match(r"  - name: (\S+)", site)[1] in names]
    return HEAD + re.sub(r"(?m)^( *)write: .*$", r"\1write: {}\n\1capture: none", "".join(kept))


def edits(do, requests="*"):
    vectors = {"noise": {"file": str(serve.ROOT / "tests" / "reference" / "edits.safetensors"), "tensor": "vector/noise"}}
    return json.dumps({"editspec": 1, "vectors": vectors, "edits": [{"name": "e", "site": "mlp_out", "do": [do], "requests": requests}]})


WAYS = {
    "no places": (spec(False), None),
    "a place in each layer, no edit": (spec(True), None),
    "an edit of a request that is not there": (spec(True), edits({"add": "noise"}, "nobody")),
    "add, one request of eight": (spec(True), edits({"add": "noise", "times": 0.1}, "r3")),
    "add, all": (spec(True), edits({"add": "noise", "times": 0.1})),
    "project_out, all": (spec(True), edits({"project_out": "noise"})),
}


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main():
    dmi_run, preload, *more = sys.argv[1:]
    layers, tokens, rounds = (int(word) for word in (more + ["30", "24", "3"][len(more):]))
    times, cpu = {name: [] for name in WAYS}, {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory(prefix="dmi-bench-edits-") as base:
        for i in range(rounds):
            for n, (name, (text, edited)) in enumerate(WAYS.items()):
                folder = pathlib.Path(base) / f"{i}-{n}"
                folder.mkdir()
                serve.write_requests(folder, tokens)
                before = cpu_seconds()
                times[name] += serve.serve(folder, text, layers, dmi_run, preload, edited)[0]
                cpu[name].append(cpu_seconds() - before)
    plain, least = statistics.median(times["no places"]), min(cpu["no places"])
    print(f"decode steps of 8 rows, {layers} layers, float32, in graphs; median of {len(times['no places'])}; CPU seconds of the process")
    for name in WAYS:
        median = statistics.median(times[name])
        print(f"  {name:40} {median * 1e3:8.1f} ms  {median / plain:5.2f}   {min(cpu[name]):6.2f} s {min(cpu[name]) / least:5.2f}")


if __name__ == "__main__":
    main()
