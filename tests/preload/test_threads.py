# SPDX-License-Identifier: Apache-2.0
"""16 threads launch kernels and build graphs at once, over several contexts and devices, and the process may end at any moment."""
import json
import os
import pathlib
import sys

import pytest

from harness import BUILD
from kit import START, filled, site, spec

CLIENT = BUILD / "tests" / "preload" / "many_threads"
TEXT = spec(site("block", layer="occ"), head="ring: {bytes: 1M, slots: 1024}\noverload: {mode: complete, wait_ms: 5000}\n")
SMALL = spec(site("block"), head="ring: {bytes: 4K, slots: 16}\noverload: {mode: drop}\n")
WORDS = 64
OWNERS = BUILD / "tests" / "preload" / "many_owners"


def right(bench, run):
    """Each record holds what one launch wrote; a mixture of two would not."""
    wrong = [r.words[:4] for r in run.of(0) if r.words != filled(r.words[0] >> 16, WORDS)]
    bench.check(not wrong, "each record is what one kernel wrote", wrong[:4])
    numbers = [r.launch for r in run.of(0)]
    bench.check(numbers == sorted(numbers), "launch numbers rise", numbers[:8])


@pytest.mark.parametrize("devices, end", [(1, "join"), (3, "join"), (2, "contexts")])
def test_all_at_once(bench, devices, end):
    """Freed memory is overwritten: a context that ends looks at what other threads may be freeing."""
    r = bench.alike("16 threads", [], TEXT, command=[CLIENT, devices, end], DMI_STANDIN_DEVICES=devices, MALLOC_PERTURB_=165)
    if not bench.check(r.code == 0 and len(r.folders) == 1, "one run was written", r.stderr[-600:]):
        return
    run, said = r.run(), [tuple(map(int, line.split())) for line in r.stdout.splitlines()]
    held = [(0, 0)] * len(said)
    for record in run.of(0):
        seed = record.words[0] >> 16
        n, total = held[seed // 4096]
        held[seed // 4096] = n + 1, total + seed
    bench.check(held == said and len(said) == 16, "the run holds what each thread launched", f"{held} of {said}; {r.stderr[-600:]}")
    bench.check(not run.balance() and not run.counters.dropped_sum(0).records, "all is captured, and accounted for",
                f"{run.balance()} {run.counters.dropped[0]}")
    right(bench, run)


@pytest.mark.parametrize("handles", ["fresh", "reuse"])
@pytest.mark.parametrize("threads", [2, 8, 16])
def test_contexts_have_many_owners(bench, long, threads, handles):
    """Whatever becomes of the second device, the host lives, nothing of the first one's is lost, and its account balances."""
    for seed in range(60 if long else 2):
        r = bench.alike(f"schedule {seed}", [], TEXT, command=[OWNERS, seed, threads, 60], DMI_STANDIN_DEVICES=2, MALLOC_PERTURB_=165,
                        DMI_STANDIN_HANDLES=handles, DMI_STANDIN_DELAY_SEED=seed)
        if not bench.check(r.code == 0 and len(r.folders) == 1, f"schedule {seed}: one run was written", f"{r.code} {r.stderr[-600:]}"):
            return
        run = r.run()
        seeds = sorted(record.words[0] >> 16 for record in run.of(0) if record.device == 0)
        said = [tuple(map(int, line.split())) for line in r.stdout.splitlines()]
        wanted = sorted(number * 4096 + i for number, (launches, _) in enumerate(said) for i in range(launches))
        bench.check(seeds == wanted, f"schedule {seed}: nothing of device 0 is lost", f"{len(seeds)} of {len(wanted)} {run.counters.dropped} {r.stderr}")
        bench.check(not run.balance() and set(run.counters.dropped[0]) <= {"context_gone", "unsupported", "copy_failed"},
                    f"schedule {seed}: accounted for", f"{run.balance()} {run.counters.dropped} {r.stderr}")
        bench.check("switched off" not in r.stderr, f"schedule {seed}: no site is off", r.stderr)


def test_a_small_ring_drops_and_the_sums_are_right(bench):
    r = bench.alike("16 threads and a small ring", [], SMALL, command=[CLIENT, 2, "join"], DMI_STANDIN_DEVICES=2)
    if bench.check(len(r.folders) == 1, "one run was written", r.stderr[-600:]):
        run, launches = r.run(), sum(int(line.split()[0]) for line in r.stdout.splitlines())
        bench.check(not run.balance() and run.counters.expected[0].records == launches, "every launch is accounted for",
                    f"{run.balance()} {run.counters.expected[0]} of {launches}")
        right(bench, run)


@pytest.mark.parametrize("asked, found", [("1", 1), ("3", 3), ("100", 8), (None, None)])
def test_the_librarys_own_threads(bench, asked, found):
    """As many encoders as asked for, of low priority, and all threads beside the CPU that the application keeps to."""
    pytest.importorskip("cuda.bindings")
    client = pathlib.Path(__file__).with_name("own_threads_client.py")
    r = bench.alike("DMI_ENCODERS", [], TEXT, command=[sys.executable, client, "40"], **({"DMI_ENCODERS": asked} if asked else {}))
    bench.captured("DMI_ENCODERS", r, [filled(seed, WORDS) for seed in range(40)])
    given, own = json.loads(next(line for line in r.stderr.splitlines() if line.startswith("threads ")).removeprefix("threads "))
    found = found or max(1, min(4, len(given) // 4))
    bench.check({name: len(of) for name, of in own.items()} == {"dmi-drain": 1, "dmi-encode": found, "dmi-keep": 1},
                f"one drain, {found} encoders and a keeper", own)
    bench.check(all(nice == max(10, os.nice(0)) for nice, _ in own["dmi-encode"] + own["dmi-keep"]) and own["dmi-drain"][0][0] == os.nice(0),
                "encoders and keeper have a low priority", own)
    beside = given[1:] or given
    bench.check(all(cpus == beside for of in own.values() for _, cpus in of), f"they keep to {beside}", own)


@pytest.mark.parametrize("codec, numbers", [("smallest", {0, 1}), ("packed", {0, 2}), ("stored", {0}), ("quick", {0, 1})])
def test_each_codec_stores_what_was_captured(bench, codec, numbers):
    """Large enough that a plane is worth a codec: words below 2^16 have two planes of zeros."""
    n = 4096
    r = bench.alike(codec, [*START, f"launch block 0 {n // 64} 64 p {n} 1", "sync", f"digest p {4 * n}"], spec(site("block")), DMI_CODEC=codec)
    run = bench.captured(codec, r, [filled(1, n)])
    found = run.of(0)[0].codecs
    bench.check(found == numbers, f"planes have codecs {numbers}", found)
    bench.check(("DMI_CODEC=quick is none of auto, smallest, packed, stored" in r.stderr) == (codec == "quick"), "what is no codec is said",
                r.stderr[-300:])


@pytest.mark.parametrize("end, code", [("exit", 5), ("_exit", 5), ("return", 5), ("thread", 5), ("kill", -9)])
def test_the_process_ends_while_all_launch(bench, end, code):
    for ms in (0, 60, 300):
        r = bench.run([], TEXT, command=[CLIENT, 2, end, ms], DMI_STANDIN_DEVICES=2, DMI_STANDIN_DELAY_SEED=ms + 1)
        what = f"{end} after {ms} ms"
        bench.check((r.code, r.stdout) == (code, ""), f"{what}: the process ends as it would alone", f"{r.said()} {r.stderr[-600:]}")
        if not bench.check(len(r.folders) == 1, f"{what}: one run was written", r.stderr[-600:]):
            continue
        run = r.run()
        right(bench, run)
        if end != "kill":
            bench.check(not run.balance(), f"{what}: every record is accounted for", f"{run.balance()}; {r.stderr[-600:]}")
            continue
        c, held = run.counters, len(run.of(0))
        bench.check(c.state == 1 and c.captured[0].records <= held and held + c.dropped_sum(0).records <= c.expected[0].records,
                    f"{what}: what is missing is known", f"{c.expected} {c.captured} {c.dropped} {held} {c.state}")
