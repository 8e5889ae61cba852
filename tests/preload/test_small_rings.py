# SPDX-License-Identifier: Apache-2.0
"""Rings from the smallest that a spec may ask for, every policy, random delays on the device and of its link: a small C program of 32 requests, graphs and
steps (tests/bench/bench_overload.c) ends in time, each of its runs balances, and what is kept belongs to requests that are complete.

20 runs; --long takes 1,000.
"""
import random
import subprocess

import pytest

import segments
from harness import BUILD, DMI_DUMP, DMI_RUN, Counters, environment, only_run

PROGRAM = BUILD / "tests" / "bench" / "bench_overload"
pytestmark = [pytest.mark.built(DMI_RUN, DMI_DUMP, PROGRAM), pytest.mark.since(12000, "graphs of the benchmark")]
POLICIES = ["{mode: drop}", "{mode: complete, wait_ms: 60000}", "{mode: complete, wait_ms: 3}", "{mode: complete, wait_ms: 2, fallback: best-effort}", "{mode: best-effort}",
            "{mode: best-effort, strategy: keep-by-pattern, keep: ['vip-*']}", "{mode: best-effort, strategy: sample, share: 0.3}",
            "{mode: drop, budget: {process: 100K}}"]
REQUESTS, LAYERS, STEPS = 32, 8, 15


def chosen(seed):
    """(spec, bytes of a row, environment): what one run is about."""
    rng = random.Random(seed)
    columns = rng.choice([1, 4, 16, 63])
    ring_bytes, slots = rng.choice([4096, 4112, 8192, 65536, 1 << 20]), 1 << rng.randrange(1, 8)
    text = (f"hookspec: 1\nring: {{bytes: {ring_bytes}, slots: {slots}}}\noverload: {rng.choice(POLICIES)}\nforward: [{{kind: step, begin: step}}]\nsites:\n"
            f"  - {{name: armed, kernel: '^armed$', pointer: 'arg[0]', dtype: f32, dims: [{{row: true, count: grid.x}}, {{count: {columns}}}]}}\n")
    env = {"DMI_STANDIN_DELAY_SEED": rng.randrange(1, 1 << 30), "DMI_STANDIN_DELAY_MAX_NS": rng.choice([1000, 100_000, 1_000_000]),
           "DMI_STANDIN_DTOH_BPS": rng.choice([0, 100_000, 10_000_000])}
    return text, max(16, 4 * columns), env


def complaints(run):
    """What is wrong with the sums, or with the rows of requests that were never shed."""
    counters, chunks = Counters(run), segments.Chunks(run)
    wrong = [] if counters.captured[0] + counters.dropped_sum(0) == counters.expected[0] else [f"{counters.expected} {counters.captured} {counters.dropped}"]
    wrong += [] if counters.expected[0].rows == STEPS * LAYERS * REQUESTS else [f"expected {counters.expected}"]
    shed = {o.request: o.number for o in chunks.outcomes if o.shed}
    if set(counters.dropped[0]) <= {"shed"}:
        n = {}
        for record in chunks.records:
            step, spans = chunks.steps[record.step]
            for row in record.kept if record.kept is not None else range(record.dims[0]):
                n[step, spans[row][0]] = n.get((step, spans[row][0]), 0) + 1
        wrong += [f"{request} in step {step}: {n.get((step, request), 0)} rows, shed at {shed.get(request)}" for step, spans in chunks.steps.values()
                  for request, *_ in spans if n.get((step, request), 0) != LAYERS and (request not in shed or step < shed[request])]
    return wrong


def test_small_rings(check, seeds, tmp_path):
    seen = {}
    for seed in range(seeds(20, 200)):
        text, row_bytes, env = chosen(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        (folder / "spec.yaml").write_text(text)
        command = [DMI_RUN, "--spec", folder / "spec.yaml", "--out", folder / "out", "--", PROGRAM, STEPS, 50, "seen", row_bytes]
        try:
            done = subprocess.run([str(w) for w in command], env=environment(**env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, timeout=120)
        except subprocess.TimeoutExpired:
            check(False, f"seed {seed}: it ends", text)
            continue
        wrong = complaints(only_run(folder / "out")) if not done.returncode else [done.stderr[-500:]]
        if wrong:
            check(False, f"seed {seed}: it ends well, and its run balances", (text, env, wrong[:3]))
        for reason in Counters(only_run(folder / "out")).dropped[0]:
            seen[reason] = seen.get(reason, 0) + 1
    check(seen.get("shed", 0) > 2 and len(seen) > 1, "rings were full, and requests were shed", seen)
