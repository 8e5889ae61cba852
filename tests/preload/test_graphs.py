#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sites inside CUDA graphs: captured and hand-built, updated, replayed, in flight; through cuda.bindings."""
import importlib.util
import pathlib
import sys

from kit import Bench, filled, site, skip, spec

if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
    skip("cuda.bindings is not installed")

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
    for i in range(200):
        expected += [filled(i, 1 + i * 7 % 64), filled(2, 64)]
    scenario("rows", FORWARDS, expected, [0, 1] * 200)


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


def destroyed_while_running():
    scenario("destroyed", ANY, [filled(i, 64) for i in range(20)])


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


def a_ring_too_small():
    head = "ring: {bytes: 4K, slots: 16}\n" + HEAD
    result = scenario("rows", spec(site("block", layer="occ"), head=head))
    run = result.run()
    bench.check(not run.balance(), "a ring too small: the account is whole", run.balance())
    whole = all(r.words == filled(r.words[0] >> 16, len(r.words)) for r in run.of(0))
    bench.check(whole, "what was taken through it is right")


for test in (buffers_used_again, forks, execs_of_one_template, changing_rows, one_forward_over_several_graphs,
             several_in_flight, updates, nodes_switched_off, child_graphs, the_hosts_graph_is_its_own,
             embedded_without_a_ticket, destroyed_while_running, refused_launches_take_everything_back, our_calls_failing,
             a_ring_too_small):
    bench.part(test)
bench.checks.exit()
