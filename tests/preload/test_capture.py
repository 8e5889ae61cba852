# SPDX-License-Identifier: Apache-2.0
"""When and where tensors are taken: before and after, several sites, occurrences, layers, forwards, steps."""
from harness import dump_json
from kit import START, filled, pattern, site, spec

LAUNCH = "launch {} 0 1 64 p 64 {}"


def launches(*pairs):
    return [LAUNCH.format(name, seed) for name, seed in pairs]


def test_before_and_after(bench):
    text = spec(site("was", when="before"), site("is", when="after"), head="# default ring")
    script = START + ["write p 256 9", "sync"] + launches(("block", 1), ("block", 2), ("block", 3)) + ["digest p 256"]
    r = bench.alike("before and after", script, text)
    run = bench.captured("after", r, [filled(s, 64) for s in (1, 2, 3)], site=1)
    if run:
        was = [x.words for x in run.of(0)]
        bench.check(was[1:] == [filled(s, 64) for s in (1, 2)], "before: what the launch before it wrote", was)
        bench.check(run.of(0)[0].data == pattern(9, 256), "before the first launch: what was copied there")
        bench.check([x.layer for x in run.of(0)] == [-1] * 3, "a site without layers has none")


def test_several_sites(bench):
    text = spec(site("whole", occurrences="{to: 0}"), site("half", dims="[{row: true, count: 'arg[1].u32 / 2'}]"),
                site("tail", offset="4 * (arg[1].u32 - 1)", dims="[{row: true, count: 1}]"),
                site("whole", dims="[{row: true, count: 2}]", occurrences="{from: 1}"))
    r = bench.alike("several sites", START + launches(("block", 1), ("block", 2)) + ["sync"], text)
    run = bench.captured("whole", r, [filled(1, 64)], site=0)
    if run:
        bench.check([x.words for x in run.of(1)] == [filled(1, 32), filled(2, 32)], "half of it")
        bench.check([x.words for x in run.of(2)] == [filled(1, 64)[63:], filled(2, 64)[63:]], "its last element")
        bench.check([x.words for x in run.of(3)] == [filled(2, 2)], "a name used twice, with other occurrences")
        bench.check(run.counters.launches == [2, 2, 2, 2], "launches that matched are counted", run.counters.launches)


def test_occurrences_and_layers(bench):
    head = "vars: {base: 10}\nforward:\n  - {kind: step, begin: {kernel: '^first$'}}"
    text = spec(site("mid", occurrences="{expect: 4, from: 1, to: 2}", layer="base + 2 * occ"),
                site("end", occurrences="{expect: 4, from: 3}", layer="occ"),
                site("start", kernel="^first$", forward="step"), head=head)
    forward = [("first", 90), ("block", 1), ("block", 2), ("block", 3), ("block", 4)]
    r = bench.alike("occurrences", START + launches(("block", 77)) + launches(*forward, *forward) + ["sync"], text)
    run = bench.captured("occurrences 1 and 2", r, [filled(s, 64) for s in (2, 3, 2, 3)], site=0)
    if run:
        bench.check([(x.layer, x.occurrence, x.forward) for x in run.of(0)] == [(12, 1, 0), (14, 2, 0), (12, 1, 1), (14, 2, 1)],
                    "layer, occurrence and forward", [(x.layer, x.occurrence, x.forward) for x in run.of(0)])
        bench.check([(x.layer, x.words) for x in run.of(1)] == [(3, filled(4, 64))] * 2, "an open range")
        bench.check([x.words for x in run.of(2)] == [filled(90, 64)] * 2, "the kernel that begins a forward is its first")
        bench.check(run.counters.forwards == 2, "forwards are counted", run.counters.forwards)
        bench.check("declared" not in r.stderr, "the declared number of launches is met: nothing is reported", r.stderr)
    short = START + launches(*forward[:-1], *forward, *forward, ("block", 5)) + ["sync"]
    r = bench.run(short, text)
    bench.check(r.stderr.count("site mid ") == 1 and "matched 3 launches in forward 0, 4 are declared" in r.stderr,
                "a forward with fewer launches than declared is reported, once", r.stderr)


def test_sites_and_layers_that_a_command_leaves(bench):
    """As dmi-run --only and --layers say them; places for edits are no part of it."""
    head = "forward:\n  - {kind: step, begin: {kernel: '^first$'}}"
    text = spec(site("q", occurrences="{expect: 4}", layer="occ", dtype="f32", write="{}"), site("k", occurrences="{expect: 4}", layer="occ + 1"), site("start", kernel="^first$"), head=head)
    forward = START + launches(("first", 90), *(("block", 1 + i) for i in range(4))) + ["sync"]
    r = bench.alike("some sites and layers", forward, text, DMI_ONLY="k,st*", DMI_ONLY_LAYERS="1-2")
    run = bench.captured("layers 1 and 2", r, [filled(1, 64), filled(2, 64)], site=1)
    if run:
        bench.check([(x.layer, x.occurrence) for x in run.of(1)] == [(1, 0), (2, 1)], "by their layers", run.of(1))
        bench.check([x.words for x in run.of(2)] == [filled(90, 64)], "a site without a layer stays", run.of(2))
        bench.check([(s["name"], s.get("action")) for s in run.manifest["dictionary"]["sites"]] == [("q", "edit"), ("k", None), ("start", None)], "a place stays, what is left out is in no account",
                    run.manifest["dictionary"]["sites"])
        bench.check([t.records for t in run.counters.expected] == [0, 2, 1] and not run.balance(), "other layers are not expected", run.counters.expected)
    r = bench.alike("a site that is not there", forward, text, DMI_ONLY="none")
    bench.check(not r.folders and 'DMI_ONLY: found "none"' in r.stderr and "runs without capture" in r.stderr, "is said, and nothing is captured", r.stderr)


def test_each_so_many_th(bench):
    head = "forward:\n  - {kind: step, begin: {kernel: '^first$'}}"
    text = spec(site("q", occurrences="{expect: 7, from: 1, to: 6, every: 3}", layer="(occ - 1) / 3"),
                site("o", occurrences="{from: 2, every: 3}", layer="(occ - 2) / 3"), head=head)
    forward = [("first", 90), *(("block", 1 + i) for i in range(7))]
    r = bench.alike("each so many-th", START + launches(*forward, *forward) + ["sync"], text)
    run = bench.captured("the second and the fifth", r, [filled(s, 64) for s in (2, 5, 2, 5)], site=0)
    if run:
        bench.check([(x.layer, x.occurrence) for x in run.of(0)] == [(0, 1), (1, 4)] * 2, "their layers", run.of(0))
        bench.check([(x.layer, x.occurrence, x.words) for x in run.of(1)] == [(0, 2, filled(3, 64)), (1, 5, filled(6, 64))] * 2, "the third and the sixth")
        bench.check([t.records for t in run.counters.expected] == [4, 4], "what is not taken is not expected", run.counters.expected)


def test_kinds(bench):
    head = "forward:\n  - {kind: prefill, begin: {kernel: '^first$'}}\n  - {kind: decode, begin: {kernel: '^last$'}}"
    text = spec(site("p", forward="prefill", layer="occ"), site("d", forward="decode", layer="occ"), site("both", kernel="^other$"),
                head=head)
    script = START + launches(("block", 1), ("first", 2), ("block", 3), ("block", 4), ("other", 5), ("last", 6), ("block", 7),
                              ("other", 8), ("last", 9), ("block", 10)) + ["sync"]
    r = bench.alike("forward kinds", script, text)
    run = bench.captured("prefill", r, [filled(3, 64), filled(4, 64)], site=0)
    if run:
        bench.check([(x.layer, x.forward, x.words) for x in run.of(1)] == [(0, 1, filled(7, 64)), (0, 2, filled(10, 64))],
                    "decode: occurrences begin anew")
        bench.check([x.words for x in run.of(2)] == [filled(5, 64), filled(8, 64)], "a site of all kinds")


def test_steps(bench):
    head = "forward:\n  - {kind: step, begin: step}"
    text = spec(site("out", layer="occ", forward="step"), head=head)
    script = START + launches(("block", 1)) + ["step 100 64 a:0:60:5 b:60:4:0"] + launches(("block", 2), ("block", 3)) + \
        ["step 101 64 b:0:64:4"] + launches(("block", 4)) + ["stepend"] + launches(("block", 5)) + ["flush 5000", "sync"]
    r = bench.run(script, text)
    run = bench.captured("steps", r, [filled(s, 64) for s in (2, 3, 4, 5)])
    if run:
        bench.check([(x.forward, x.layer, x.step) for x in run.of(0)] == [(0, 0, 0), (0, 1, 0), (1, 0, 1), (1, 1, None)],
                    "dmi_step_begin begins a forward and names its rows", [(x.forward, x.layer, x.step) for x in run.of(0)])
        bench.check(run.steps == {0: (100, [("a", 0, 60, 5), ("b", 60, 4, 0)]), 1: (101, [("b", 0, 64, 4)])},
                    "request ids and positions are recorded", run.steps)
        bench.check(run.counters.steps == 2, "steps are counted", run.counters.steps)
        said = [line for line in r.stdout.splitlines() if line.split()[0] in ("step", "stepend", "flush")]
        bench.check([line.split()[1] for line in said] == ["0", "0", "0", "0"], "the calls succeed", said)
        bench.check(all(line.split()[2] == "4242" for line in said), "the calls leave errno alone", said)


def test_one_forward(bench):
    """Neither steps nor a forward: the run says once that all launches were counted as one. Not where it makes no difference."""
    one = "count as one forward"
    both = START + launches(*[("block", i) for i in range(6)]) + ["sync"]
    for name, sites, head, script, n in (
            ("a layer", [site(layer="occ"), site("other", layer="2 * occ")], "", both, 1),
            ("an address", [site(offset="0 * occ")], "", both, 1),
            ("one launch", [site(layer="occ")], "", START + launches(("block", 1)) + ["sync"], 0),
            ("no launch", [site("first", kernel="^first$", layer="occ"), site()], "", both, 0),
            ("constant layers", [site(layer="3")], "", both, 0),
            ("a forward", [site(layer="occ")], "forward:\n  - {kind: step, begin: {kernel: '^first$'}}", START + launches(("first", 1)) + both[len(START):], 0),
            ("steps that come later", [site(layer="occ")], "", both[:-1] + ["step 100 64 a:0:64:5"] + launches(("block", 1)) + ["sync"], 0)):
        r = bench.run(script, spec(*sites, head=head))
        found = [p for p in r.run().manifest["problems"] if p["reason"] == "one_forward"]
        bench.check(len(found) == n and r.stderr.count(one) == n and (not n or "all 6 launches" in r.stderr), name, (found, r.stderr[-500:]))


def test_step_errors(bench):
    text = spec(site())
    script = START + launches(("block", 1)) + ["step 1 4 a:0:5:0", "step 1 4 a:5:0:0", "step 1 4 a:4:0:0", "step 1 4"] + ["sync"]
    r = bench.run(script, text)
    said = [line.split()[1] for line in r.stdout.splitlines() if line.startswith("step ")]
    bench.check(said == ["-22", "-22", "0", "0"], "a span outside of the batch's rows is refused", said)
    script = START + ["step 1 64 a:0:64:0"] + launches(("block", 1)) + ["step 2 64 a:0:65:0"] + launches(("block", 2)) + ["sync"]
    run = bench.captured("after a refused step", bench.run(script, text), [filled(s, 64) for s in (1, 2)])
    bench.check([x.step for x in run.of(0)] == [0, None], "what follows a refused step belongs to nobody",
                [x.step for x in run.of(0)])


def test_flush(bench):
    text = spec(site())
    script = START + ["repeat 40", "launch block 0 1 64 p 64 %i", "endrepeat", "flush 20000", "kill9"]
    r = bench.run(script, text)
    run = r.run()
    bench.check(r.code == -9 and [x.words for x in run.of(0)] == [filled(s, 64) for s in range(40)],
                "dmi_flush: what was launched before it survives kill -9", f"{r.code} {len(run.of(0))}")
    script = START + ["repeat 40", "launch block 0 1 64 p 64 %i", "endrepeat", "flush 1", "sync"]
    r = bench.run(script, text, DMI_STANDIN_DTOH_LATENCY_NS=50000000)
    bench.check("flush 3 4242" in r.stdout, "dmi_flush: a bound that is too short is DMI_STATUS_TIMEOUT", r.stdout[-200:])
    bench.captured("after the timeout", r, [filled(s, 64) for s in range(40)])


def test_off(bench):
    calls = ["step 1 4 a:0:4:0", "stepend", "flush 10"]
    for what, script, text in (("before cuInit", calls, spec(site())), ("without a spec", START + calls, None),
                               ("with a broken spec", START + calls, "hookspec: 1\nsites: 7\n"),
                               ("without the library", calls, False)):
        r = bench.run(script, text or None, preload=text is not False)
        said = [line for line in r.stdout.splitlines() if line.split()[0] in ("step", "stepend", "flush")]
        bench.check(said == ["step 1 4242", "stepend 1 4242", "flush 1 4242"], f"dmi_*() {what} return DMI_STATUS_OFF", said)
        bench.check(not r.folders, f"{what}: no run is written", r.folders)


def test_empty_and_grid(bench):
    text = spec(site("g", dims="[{row: true, count: 'grid.x'}, {count: 'block.x'}]"))
    script = START + ["launch block 0 1 64 p 64 1", "launch block 0 3 32 p 96 2", "launch block 0 4 16 p 64 3", "sync"]
    r = bench.alike("rows from the grid", script, text)
    run = bench.captured("rows from the grid", r, [filled(1, 64), filled(2, 96), filled(3, 64)])
    if run:
        bench.check([x.dims for x in run.of(0)] == [(1, 64), (3, 32), (4, 16)], "rows are those of each launch")
    r = bench.run(START + launches(("block", 1)) + ["launch block 0 1 64 p 0 2"] + launches(("block", 3)) + ["sync"], spec(site()))
    run = bench.captured("a launch without rows", r, [filled(1, 64), filled(3, 64)])
    if run:
        bench.check(run.counters.expected[0].records == 2 and run.counters.launches[0] == 3, "it is launched, and expects nothing")


def test_absent_in_several_kinds_of_forwards(bench):
    """The manifest names it once, and can be read."""
    kinds = "forward: [{kind: a, begin: {kernel: '^first$'}}, {kind: b, begin: {kernel: '^other$'}}]"
    text = spec(site(), head=kinds) + "absent: [{name: gone, forward: a, why: fused}, {name: gone, forward: b, why: fused}]\n"
    r = bench.alike("absent twice", START + launches(("first", 1), ("block", 2), ("other", 3), ("block", 4)) + ["sync"], text)
    run = bench.captured("absent twice", r, [filled(2, 64), filled(4, 64)])
    bench.check(dump_json("list", run.folder) and run.manifest["dictionary"]["absent"] == {"gone": "fused"}, "the manifest can be read")
