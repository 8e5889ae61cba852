#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sites inside CUDA graphs: captured and hand-built, updated, replayed, in flight; through cuda.bindings."""
import importlib.util
import pathlib
import sys
from collections import Counter

from kit import ROOT, Bench, filled, site, skip, spec

if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
    skip("cuda.bindings is not installed")

from graph_client import switches  # noqa: E402
from standin_log import Log  # noqa: E402

CLIENT = pathlib.Path(__file__).with_name("graph_client.py")
HEAD = "forward:\n  - {kind: step, begin: {kernel: '^first$'}}"
ROOM = "ring: {bytes: 4M, slots: 8192}\n"  # for all launches of a scenario: nothing may be dropped
FORWARDS = spec(site("block", layer="occ"), head=ROOM + HEAD)
ANY = spec(site("block"), head=ROOM)
SEEDS = ["", "1", "2", "3"]

bench = Bench()


def scenario(name, text, expected=None, layers=None, **env):
    """Same words from the client with and without the library; the run holds @expected."""
    command = [sys.executable, CLIENT, name]
    result = bench.alike(f"{name} {env or ''}".strip(), [], text, command=command, timeout=120, **env)
    if expected is None:
        return result
    run = bench.captured(name, result, expected)
    if run and layers is not None:
        got = [r.layer for r in run.of(0)]
        bench.check(got == layers, f"{name}: layers are counted at launch", f"{got}, wanted {layers}")
    return run


def buffers_used_again():
    for seed in SEEDS:
        env = {"DMI_STANDIN_DELAY_SEED": seed} if seed else {}
        scenario("reuse", FORWARDS, [filled(s, 64) for s in (1, 2, 3, 4)] * 5, [0, 1, 2, 3] * 5, **env)


def forks():
    for seed in SEEDS:
        env = {"DMI_STANDIN_DELAY_SEED": seed} if seed else {}
        scenario("fork_join", FORWARDS, [filled(s, 64) for s in (1, 2, 3)] * 10, [0, 1, 2] * 10, **env)


def execs_of_one_template():
    each = [filled(1, 64), filled(2, 64), filled(7, 32), filled(2, 64)]
    scenario("two_execs", FORWARDS, each * 3, [0, 1] * 6)


def changing_rows():
    expected = []
    for i in range(1000):
        expected += [filled(i, 1 + i * 7 % 64), filled(2, 64)]
    scenario("rows", FORWARDS, expected, [0, 1] * 1000)


def one_forward_over_several_graphs():
    scenario("piecewise", FORWARDS, [filled(s, 64) for s in (1, 2, 3, 4)] * 4, [0, 1, 2, 3] * 4)


def several_in_flight():
    for seed in SEEDS:
        env = {"DMI_STANDIN_DELAY_SEED": seed} if seed else {}
        scenario("in_flight", ANY, [filled(10 + k, 64) for k in range(4)] * 20, **env)


def updates():
    expected = [filled(s, 64) for s in (1, 2, 21, 22, 21, 22, 2)]
    scenario("update", FORWARDS, expected, [0, 1, 0, 1, 0, 1, 0])


def nodes_switched_off():
    scenario("enable", FORWARDS, [filled(s, 64) for s in (1, 2, 2, 1, 2)], [0, 1, 0, 0, 1])


def child_graphs():
    scenario("child", FORWARDS, [filled(1, 64), filled(2, 64), filled(5, 16)] * 3, [0, 1, 2] * 3)


def the_hosts_graph_is_its_own():
    scenario("queries", FORWARDS, [filled(1, 64), filled(2, 64)], [0, 1])


def embedded_without_a_ticket():
    run = scenario("embedded", FORWARDS, [filled(1, 64), filled(2, 64)] * 2, [0, 1] * 2)
    del run


def sites_switched_between_replays():
    """dmi_site_enable() at random: what is on is captured, with its layer; a replay of what is off runs no copy."""
    text = spec(site("block", layer="occ"), site("other", kernel="^other$", layer="occ"), head=ROOM + HEAD)
    on, blocks, others, n_off = {"block": True, "other": True}, [], [], 0
    for i, change in enumerate(switches()):
        if change:
            on.update({name: change[1] for name in on if change[0] in (name, name[:2] + "*", "*")})
        if on["block"]:
            blocks += [(0, filled(i, 1 + i % 64)), (1, filled(2, 64)), (2, filled(1000 + i, 16))]
        if on["other"]:
            others += [(0, filled(60, 64)), (1, filled(61, 64))]
        n_off += not any(on.values())
    bench.check(n_off > 20 and blocks and others, "switched: replays with all sites off are among them", n_off)
    for seed in SEEDS:
        env = {"DMI_STANDIN_DELAY_SEED": seed} if seed else {}
        log = bench.folder / f"switched-{seed}"
        result = scenario("switched", text, PYTHONPATH=ROOT / "python", DMI_STANDIN_LOG=log, **env)
        run = result.run()
        for site_id, expected in enumerate((blocks, others)):
            got = [(r.layer, r.words) for r in run.of(site_id)]
            bench.check(got == expected, f"switched {seed}: site {site_id} holds what was launched while it was on",
                        f"{len(got)} records, {len(expected)} wanted, {[(l, w[:2]) for l, w in got[:6]]}")
        bench.check(not run.balance(), f"switched {seed}: the account is whole", run.balance())
        launches = Counter(launch["kernel"] for launch in Log(log).launches)
        n = {name: launches[name] for name in ("dmi_open", "dmi_close", "dmi_copy_graph")}
        bench.check(n == {"dmi_open": 200 - n_off, "dmi_close": 200 - n_off, "dmi_copy_graph": 2 * len(blocks) // 3 + len(others)},
                    f"switched {seed}: only copies of sites that are on are launched", n)


def left_alone():
    """Graphs that a clone cannot stand in for run as they are, and their sites are told."""
    for name, text, expected, why in (("updatable", FORWARDS, [], "node that kernels update"),
                                      ("contexts", ANY, [filled(9, 16)], "another context")):
        result = scenario(name, text)
        if not bench.check(bool(result.folders), f"{name}: a run was written", result.stderr):
            continue
        run = result.run()
        told = [p for p in run.manifest.get("problems", []) if p["reason"] == "unsupported" and why in p["sentence"]]
        bench.check([r.words for r in run.of(0)] == expected and not run.balance() and told,
                    f"{name}: not captured in the graph, and told", f"{len(run.of(0))} {run.balance()} {run.manifest.get('problems')}")


def destroyed_while_running():
    scenario("destroyed", ANY, [filled(i, 64) for i in range(20)])


def the_state_of_a_launch_without_rows_is_its_own():
    for seed in SEEDS:
        env = {"DMI_STANDIN_DELAY_SEED": seed} if seed else {}
        scenario("without_rows", ANY, [filled(i, 64) for i in range(60)], **env)


def refused_launches_take_everything_back():
    text = spec(site("block"))
    for n in (1, 3):
        result = scenario("in_flight", text, DMI_STANDIN_FAIL=f"cuGraphLaunch:{n}")
        if result.folders:
            bench.check(not result.run().balance(), f"launch {n} refused: the account is whole", result.run().balance())


def our_calls_failing():
    for call in ("cuGraphClone", "cuGraphAddKernelNode_v2", "cuGraphAddDependencies_v2", "cuGraphGetNodes",
                 "cuGraphKernelNodeGetParams_v2", "cuGraphInstantiateWithFlags", "cuGraphExecKernelNodeSetParams_v2",
                 "cuGraphNodeFindInClone", "cuMemsetD8Async"):
        for n in (1, 2):
            # what the client itself calls of these fails for it too, with and without the library, but not at the
            # same count: only the unharmed outcome is looked for
            r = bench.run([], FORWARDS, command=[sys.executable, CLIENT, "reuse"], timeout=120,
                          DMI_STANDIN_FAIL=f"{call}:{n}")
            w = bench.run([], command=[sys.executable, CLIENT, "reuse"], preload=False, timeout=120)
            own = call == "cuGraphInstantiateWithFlags" and n == 2
            bench.check(own or r.said() == w.said(), f"{call} failing at call {n}: the program does not notice",
                        f"{r.said()} {r.stderr[-500:]}")
            if r.folders:
                bench.check(not r.run().balance(), f"{call} failing at call {n}: the account is whole", r.run().balance())


def a_ticket_is_used_once():
    """Setting the next one fails, and so does switching open off: the launch copies nothing, into nobody's slot."""
    allowed = [filled(i, 1 + i * 7 % 64) for i in range(1000)] + [filled(2, 64)]
    want = bench.run([], command=[sys.executable, CLIENT, "rows"], preload=False, timeout=120)
    for n in (3, 9, 402, 2100):  # a replay: the host's node, its copy, the ticket
        result = bench.run([], FORWARDS, command=[sys.executable, CLIENT, "rows"], timeout=120,
                           DMI_STANDIN_FAIL=f"cuGraphExecKernelNodeSetParams_v2:{n},cuGraphNodeSetEnabled:0")
        run = result.run()
        dropped = run.counters.dropped[0]
        bench.check(result.said() == want.said() and not run.balance(), f"ticket {n} could not be set: the account is whole",
                    f"{run.balance()} {result.stderr[-300:]}")
        bench.check(len(run.of(0)) >= 1996 and all(r.words in allowed for r in run.of(0)) and set(dropped) <= {"copy_failed"},
                    f"ticket {n} could not be set: all others' records are right", f"{len(run.of(0))} records, {dropped}")


def a_ring_too_small():
    head = "ring: {bytes: 4K, slots: 16}\n" + HEAD
    result = scenario("rows", spec(site("block", layer="occ"), head=head))
    run = result.run()
    bench.check(not run.balance(), "a ring too small: the account is whole", run.balance())
    whole = all(r.words == filled(r.words[0] >> 16, len(r.words)) for r in run.of(0))
    bench.check(whole, "what was taken through it is right")


for test in (buffers_used_again, forks, execs_of_one_template, changing_rows, one_forward_over_several_graphs,
             several_in_flight, updates, nodes_switched_off, child_graphs, the_hosts_graph_is_its_own,
             embedded_without_a_ticket, sites_switched_between_replays, left_alone, destroyed_while_running,
             the_state_of_a_launch_without_rows_is_its_own, refused_launches_take_everything_back, our_calls_failing,
             a_ticket_is_used_once, a_ring_too_small):
    bench.part(test)
bench.checks.exit()
