# SPDX-License-Identifier: Apache-2.0
"""Sites inside CUDA graphs: captured and hand-built, updated, replayed, in flight; through cuda.bindings."""
import functools
import pathlib
import re
import sys
from collections import Counter

import pytest

from built import require
from harness import BUILD, ROOT, dump_json
from kit import filled, site, spec
from standin_log import Log

pytest.importorskip("cuda.bindings")
from graph_client import lone_seeds, switches  # it needs them
pytestmark = pytest.mark.since(12000, "what cuda.bindings 13 calls to build a graph")

CLIENT = pathlib.Path(__file__).with_name("graph_client.py")
EXECS = BUILD / "tests" / "bench" / "bench_execs"
HEAD = "forward:\n  - {kind: step, begin: {kernel: '^first$'}}"
ROOM = "ring: {bytes: 4M, slots: 8192}\n"  # for all launches of a scenario: nothing may be dropped
FORWARDS = spec(site("block", layer="occ"), head=ROOM + HEAD)
ANY = spec(site("block"), head=ROOM)
# under delays by seed, and without
SEEDS = pytest.mark.parametrize("delays", [
    pytest.param({"DMI_STANDIN_DELAY_SEED": seed} if seed else {}, id=f"seed {seed}" if seed else "no delays")
    for seed in ("", "1", "2", "3")])



def play(bench, name, text, expected=None, layers=None, **env):
    """Same words from the client with and without the library; the run holds @expected."""
    command = [sys.executable, CLIENT, name]
    result = bench.alike(name, [], text, command=command, timeout=120, **env)
    if expected is None:
        return result
    run = bench.captured(name, result, expected)
    if run and layers is not None:
        got = [r.layer for r in run.of(0)]
        bench.check(got == layers, f"{name}: layers are counted at launch", f"{got}, wanted {layers}")
    return run


@pytest.fixture
def scenario(bench):
    """The function play(), for this test's bench."""
    return functools.partial(play, bench)


@SEEDS
def test_buffers_used_again(scenario, delays):
    scenario("reuse", FORWARDS, [filled(s, 64) for s in (1, 2, 3, 4)] * 5, [0, 1, 2, 3] * 5, **delays)


@SEEDS
@pytest.mark.parametrize("name, n_execs, n_launches, n_copies", [("reuse", 1, 5, 20), ("piecewise", 2, 8, 12)])
def test_launches_that_repeat_the_last(bench, scenario, delays, name, n_execs, n_launches, n_copies):
    """Each exec gets one whole ticket; of several that are one forward, too. test_buffers_used_again and test_one_forward_over_several_graphs have the records."""
    log = bench.folder / "log"
    place = site("w", dims="[{row: true, count: 'arg[1].u32'}, {count: 1}]", layer="occ", dtype="f32", write="{}")  # captured, too, and without an edit
    scenario(name, spec(site("block", layer="occ"), place, head=ROOM + HEAD), DMI_STANDIN_LOG=log, **delays)
    launches = Counter(launch["kernel"] for launch in Log(log).launches)
    got = launches["dmi_open"], launches["dmi_reopen"], launches["dmi_close"], sum(n for kernel, n in launches.items() if kernel.startswith("dmi_copy_graph"))
    bench.check(got == (n_execs, n_launches - n_execs, n_launches, 2 * n_copies), "the others bring 32 bytes", launches)


def test_a_graph_that_is_several_layers(scenario):
    """What a launch repeats has the same place in the forward."""
    expected, layers = [], []
    for n in (2, 2, 3, 1):
        expected += [filled(1, 64)] * n + [filled(2, 64)]
        layers += range(n + 1)
    scenario("layers", FORWARDS, expected, layers)


@SEEDS
def test_forks(scenario, delays):
    scenario("fork_join", FORWARDS, [filled(s, 64) for s in (1, 2, 3)] * 10, [0, 1, 2] * 10, **delays)


def test_execs_of_one_template(scenario):
    each = [filled(1, 64), filled(2, 64), filled(7, 32), filled(2, 64)]
    scenario("two_execs", FORWARDS, each * 3, [0, 1] * 6)


def test_changing_rows(scenario):
    expected = []
    for i in range(1000):
        expected += [filled(i, 1 + i * 7 % 64), filled(2, 64)]
    scenario("rows", FORWARDS, expected, [0, 1] * 1000)


def test_one_forward_over_several_graphs(scenario):
    scenario("piecewise", FORWARDS, [filled(s, 64) for s in (1, 2, 3, 4)] * 4, [0, 1, 2, 3] * 4)


def test_layers_that_a_command_leaves(scenario):
    """As dmi-run --layers says them: the layer of a node is known at its launch alone."""
    scenario("piecewise", FORWARDS, [filled(s, 64) for s in (2, 4)] * 4, [1, 3] * 4, DMI_ONLY_LAYERS="1,3-9")


@SEEDS
def test_several_in_flight(scenario, delays):
    scenario("in_flight", ANY, [filled(10 + k, 64) for k in range(4)] * 20, **delays)


def test_updates(scenario):
    expected = [filled(s, 64) for s in (1, 2, 21, 22, 21, 22, 2)]
    scenario("update", FORWARDS, expected, [0, 1, 0, 1, 0, 1, 0])


def test_nodes_are_off_after_their_graph(scenario):
    scenario("ended", FORWARDS, [filled(s, 64) for s in (12, 22)], [0, 0])


def test_what_an_exec_keeps(bench):
    """Of 40 kernels with 4 copies, once their graph has ended: neither its nodes nor a share of other execs' time."""
    require(EXECS)
    result = bench.run([], spec(site("armed", kernel="^armed$", dims="[{row: true, count: 1}]"), head=ROOM), command=[EXECS, 200, 40, 4])
    if bench.check(result.code == 0, "execs come and go", result.stderr[-600:]):
        kept = re.search(r"instantiated, +an exec: library +(\d+) bytes", result.stdout)
        bench.check(kept and 500 < int(kept[1]) < 3000, "about 2 KB of host memory an exec", result.stdout)


def test_nodes_switched_off(scenario):
    scenario("enable", FORWARDS, [filled(s, 64) for s in (1, 2, 2, 1, 2)], [0, 1, 0, 0, 1])


def test_child_graphs(scenario):
    scenario("child", FORWARDS, [filled(1, 64), filled(2, 64), filled(5, 16)] * 3, [0, 1, 2] * 3)


def test_the_applications_graph_is_its_own(scenario):
    scenario("queries", FORWARDS, [filled(1, 64), filled(2, 64)], [0, 1])


PARTS = {"packed": [(8 * i, 8, "[{row: true, count: 1}, {count: 8}]") for i in range(8)], "any": [(3 * i, 3, "[{row: true, count: 3}]") for i in range(16)]}


@SEEDS
@pytest.mark.parametrize("shape", PARTS)
def test_copies_of_one_place_are_one_node(bench, scenario, delays, shape):
    """Sites of one kernel, as Q, K and V of one projection."""
    log, parts = bench.folder / "log", PARTS[shape]
    text = spec(*(site(f"p{i}", dims=dims, offset=4 * at, layer="occ") for i, (at, _, dims) in enumerate(parts)), head=ROOM + HEAD)
    run = scenario("reuse", text, DMI_STANDIN_LOG=log, **delays).run()
    got = [[(r.layer, r.words) for r in run.of(i)] for i in range(len(parts))]
    wanted = [[(s - 1, filled(s, n, at)) for s in (1, 2, 3, 4)] * 5 for at, n, _ in parts]
    bench.check(got == wanted and not run.balance(), "each site has its own part", (run.balance(), got[0][:2], wanted[0][:2]))
    launches = Counter(launch["kernel"] for launch in Log(log).launches)
    n = {kernel: n for kernel, n in launches.items() if kernel.startswith("dmi_cop")}
    bench.check(n == {f"dmi_copies_graph_{shape}": 20}, "one node", n)


@pytest.mark.parametrize("name, seeds", [("update", (1, 2, 21, 22, 21, 22, 2)), ("enable", (1, 2, 2, 1, 2)), ("child", (1, 2, 5) * 3)])
def test_copies_of_one_node_follow_their_kernel(bench, scenario, name, seeds):
    """Through updates, nodes that are switched off, and child graphs."""
    text = spec(site("a"), site("b"), site("c", when="before"), head=ROOM)
    run = scenario(name, text).run()
    got = [[r.words[0] >> 16 for r in run.of(i)] for i in range(2)]
    bench.check(got == [list(seeds)] * 2 and not run.balance(), "both have what it wrote", (got, run.balance()))


@pytest.mark.since(12030, "edges with data")
@SEEDS
def test_a_copy_takes_the_place_of_edges(bench, scenario, delays):
    """What site -> copy -> dependent says need not be said by site -> dependent too; but at joins, and with edge data."""
    log = bench.folder / "log"
    scenario("shapes", ANY, [filled(s, 64) for s in [1, 2] * 5 + [1] * 15], DMI_STANDIN_LOG=log, **delays)
    shapes = [(call["nodes"], call["edges"]) for call in Log(log).calls if "edges" in call]  # first without the library
    bench.check(shapes[:4] == [(5, 4), (4, 3), (3, 2), (2, 1)], "the application's graphs", shapes)
    bench.check(shapes[4:] == [(9, 8), (5, 4), (4, 4), (3, 2)],
                "a copy costs a join two edges, others one; one copy needs no other node", shapes)


@pytest.mark.since(12030, "edges with data")
@pytest.mark.parametrize("edges", ["any", "alike"])
@pytest.mark.parametrize("seed", range(1, 9))
def test_programmatic_launches(bench, scenario, seed, edges):
    """A dependent that overwrites the tensor may start before the site has ended, and never before the copy has."""
    log = bench.folder / "log"
    layers = [filled(s, 64) for s in (1, 2, 3, 4)]
    scenario("programmatic", ANY, layers + layers * 5 + [filled(11, 64)] * 5, DMI_STANDIN_SM="90", DMI_STANDIN_EDGES=edges, DMI_STANDIN_LOG=log,
             DMI_STANDIN_DELAY_SEED=str(seed))
    shapes = [(call["nodes"], call["edges"]) for call in Log(log).calls if "edges" in call]
    if edges == "any":
        bench.check(shapes == [(8, 7), (3, 2), (14, 13), (4, 4)], "a copy takes a programmatic edge's place, but at a join", shapes)


@pytest.mark.since(12030, "events of launches")
def test_an_event_that_comes_before_the_end(bench, scenario):
    """Eagerly no copy could be sure of what it reads; in a graph the copy comes before all that waits for the event."""
    run = scenario("early_event", ANY, [filled(2, 64)] * 6)
    dropped = run.counters.dropped[0].get("unsupported")
    told = [p["sentence"] for p in run.manifest["problems"] if p["reason"] == "unsupported"]
    bench.check(dropped and dropped.records == 2 and not run.balance() and "event that comes before the kernel ends" in told[0],
                "the eager launches are counted, and the reason is said", f"{run.counters.dropped} {told}")


def test_nodes_of_ours_have_a_priority(bench, scenario):
    """That of the node that each stands beside; open and close the most urgent one."""
    log = bench.folder / "log"
    scenario("priorities", ANY, [filled(1, 64)] * 3, DMI_STANDIN_LOG=log)
    given = [call["priority"] for call in Log(log).calls if call["name"] == "cuGraphKernelNodeSetAttribute"]
    bench.check(given == [-3] * 4 + [-3], "two copies, open and close; one copy", given)


@SEEDS
@pytest.mark.parametrize("shape", PARTS)
def test_a_node_alone_is_told_of_launches(bench, scenario, delays, shape):
    """Where all copies of a graph are one node there is no other, whatever becomes of the graph."""
    log = bench.folder / "log"
    parts = PARTS[shape][:3] if shape == "any" else PARTS[shape]
    text = spec(*(site(f"p{i}", dims=dims, offset=4 * at) for i, (at, _, dims) in enumerate(parts)), head=ROOM)
    run = scenario("in_flight", text, DMI_STANDIN_LOG=log, **delays).run()
    got = [Counter(tuple(r.words) for r in run.of(i)) for i in range(len(parts))]
    wanted = [Counter({tuple(filled(10 + k, n, at)): 20 for k in range(4)}) for at, n, _ in parts]
    bench.check(got == wanted and not run.balance(), "each site has its own part", run.balance())
    launches = Counter(launch["kernel"] for launch in Log(log).launches)
    bench.check({kernel: n for kernel, n in launches.items() if kernel.startswith("dmi_")} == {f"dmi_copies_alone_{shape}": 80}, "one node", launches)


@SEEDS
def test_a_node_alone_follows_its_kernel(bench, scenario, delays):
    """Through new parameters, an update, and a launch into a capture."""
    log = bench.folder / "log"
    scenario("lone", ANY, [filled(*each) for each in lone_seeds()], DMI_STANDIN_LOG=log, **delays)
    launches = Counter(launch["kernel"] for launch in Log(log).launches)
    bench.check({kernel: n for kernel, n in launches.items() if kernel.startswith("dmi_")} == {"dmi_copies_alone_any": 64}, "one node", launches)
    scenario("lone_off", ANY, [filled(1, 64)] * 4, **delays)


@pytest.mark.parametrize("n", (2, 3, 8, 30, 79))  # of 15 the application's own, as many of the node whose kernel it changes, and one a launch
def test_what_a_node_alone_is_told_is_used_once(bench, n):
    """Setting it fails, and so does switching the node off."""
    allowed = [filled(*each) for each in lone_seeds()]
    want = bench.run([], command=[sys.executable, CLIENT, "lone"], preload=False, timeout=120)
    result = bench.run([], ANY, command=[sys.executable, CLIENT, "lone"], timeout=120,
                       DMI_STANDIN_FAIL=f"cuGraphExecKernelNodeSetParams_v2:{n},cuGraphNodeSetEnabled:0")
    run = result.run()
    dropped = run.counters.dropped[0]
    bench.check(not run.balance() and set(dropped) <= {"copy_failed", "unsupported"}, "it could not be set: accounting balances", (run.balance(), dropped))
    bench.check(len(run.of(0)) >= 54 and all(r.words in allowed for r in run.of(0)), "all others' records are right", (len(run.of(0)), dropped))
    own = "701" in result.stdout  # the call that fails was the application's
    bench.check(own or result.said() == want.said(), "the program does not notice", result.stderr[-300:])


def test_embedded_without_a_ticket(scenario):
    scenario("embedded", FORWARDS, [filled(1, 64), filled(2, 64)] * 2, [0, 1] * 2)


def switched_on():
    """What `switched` launches while it is on: of block and other, as (layer, words); and how many replays have all off."""
    on, blocks, others, n_off, noted = {"block": True, "other": True}, [], [], 0, []
    for i, change in enumerate(switches()):
        if change:
            meant = [name for name in on if change[0] in (name, name[:2] + "*", "*")]
            if any(on[name] != change[1] for name in meant):
                noted.append(f"sites {'on' if change[1] else 'off'} {change[0]}, by dmi_site_enable()")
            on.update({name: change[1] for name in meant})
        if on["block"]:
            blocks += [(0, filled(i, 1 + i % 64)), (1, filled(2, 64)), (2, filled(1000 + i, 16))]
        if on["other"]:
            others += [(0, filled(60, 64)), (1, filled(61, 64))]
        n_off += not any(on.values())
    return blocks, others, n_off, noted


@SEEDS
def test_sites_switched_between_replays(bench, scenario, delays):
    """dmi_site_enable() at random: what is on is captured, with its layer; a replay of what is off runs no copy."""
    text = spec(site("block", layer="occ"), site("other", kernel="^other$", layer="occ"), head=ROOM + HEAD)
    blocks, others, n_off, noted = switched_on()
    bench.check(n_off > 20 and blocks and others, "replays with all sites off are among them", n_off)
    log = bench.folder / "log"
    run = scenario("switched", text, PYTHONPATH=ROOT / "python", DMI_STANDIN_LOG=log, **delays).run()
    for site_id, expected in enumerate((blocks, others)):
        got = [(r.layer, r.words) for r in run.of(site_id)]
        bench.check(got == expected, f"site {site_id} holds what was launched while it was on",
                    f"{len(got)} records, {len(expected)} wanted, {[(l, w[:2]) for l, w in got[:6]]}")
    bench.check(not run.balance(), "accounting balances", run.balance())
    got = [change["what"] for change in dump_json("list", run.folder)["changes"]]
    bench.check(got == noted and 20 < len(noted) < 100, "the run notes what changed something, in order", (len(got), len(noted), got[:3]))
    launches = Counter(launch["kernel"] for launch in Log(log).launches)
    opened = launches["dmi_open"] + launches["dmi_reopen"]
    bench.check((opened, launches["dmi_close"], launches["dmi_copy_graph_rows"]) == (200 - n_off, 200 - n_off, 2 * len(blocks) // 3 + len(others)),
                "only copies of sites that are on are launched", launches)


@pytest.mark.parametrize("name, text, expected, why", [
    ("updatable", FORWARDS, [], "node that kernels update"), ("contexts", ANY, [filled(9, 16)], "another context")])
def test_left_alone(bench, scenario, name, text, expected, why):
    """Graphs that a clone cannot stand in for run as they are, and their sites are reported."""
    result = scenario(name, text)
    if not bench.check(bool(result.folders), "a run was written", result.stderr):
        return
    run = result.run()
    told = [p for p in run.manifest.get("problems", []) if p["reason"] == "unsupported" and why in p["sentence"]]
    bench.check([r.words for r in run.of(0)] == expected and not run.balance() and told,
                "not captured in the graph, and reported", f"{len(run.of(0))} {run.balance()} {run.manifest.get('problems')}")


def test_a_thread_without_a_context(bench, scenario):
    """What is in a graph runs in its nodes' context, whichever context is current where it is instantiated, launched or updated."""
    scenario("guest", FORWARDS, [filled(s, 64) for s in (1, 2, 1, 2, 7, 2, 21, 22)], [0, 1] * 4)
    r = scenario("homeless", ANY)
    if bench.check(bool(r.folders), "a run was written", r.stderr):
        run = r.run()
        dropped = run.counters.dropped[0].get("unsupported")
        bench.check([x.words for x in run.of(0)] == [filled(9, 16)] and dropped and dropped.records == 4 and not run.balance(),
                    "where nothing says the context they are counted drops, and no site is off", f"{run.counters.dropped} {run.balance()} {r.stderr}")
        bench.check("switched off" not in r.stderr and "by a thread without a current context" not in r.stderr and "it is not known which context" in r.stderr, "the line says so", r.stderr)


def test_destroyed_while_running(scenario):
    scenario("destroyed", ANY, [filled(i, 64) for i in range(20)])


@SEEDS
def test_the_state_of_a_launch_without_rows_is_its_own(scenario, delays):
    scenario("without_rows", ANY, [filled(i, 64) for i in range(60)], **delays)


@pytest.mark.parametrize("n", (1, 3))
def test_refused_launches_take_everything_back(bench, scenario, n):
    """The client ends where launch @n is refused: those before it are expected and captured, it itself is neither."""
    result = scenario("in_flight", spec(site("block")), [filled(10 + i, 64) for i in range(n - 1)], DMI_STANDIN_FAIL=f"cuGraphLaunch:{n}")
    if result:
        c = result.counters
        bench.check(c.expected[0].records == n - 1 and not any(c.dropped), "a refused launch expects and drops nothing",
                    f"{c.expected} {c.dropped}")


@pytest.mark.parametrize("n", (1, 2))
@pytest.mark.parametrize("call", ("cuGraphClone", "cuGraphAddKernelNode_v2", "cuGraphAddDependencies_v2", "cuGraphGetNodes",
                                  "cuGraphKernelNodeGetParams_v2", "cuGraphInstantiateWithFlags", "cuGraphExecKernelNodeSetParams_v2",
                                  "cuGraphNodeFindInClone", "cuMemsetD8Async"))
def test_our_calls_failing(bench, call, n):
    # what the client itself calls of these fails for it too, with and without the library, but not at the
    # same count: only the unharmed outcome is looked for
    r = bench.run([], FORWARDS, command=[sys.executable, CLIENT, "reuse"], timeout=120, DMI_STANDIN_FAIL=f"{call}:{n}")
    w = bench.run([], command=[sys.executable, CLIENT, "reuse"], preload=False, timeout=120)
    own = call == "cuGraphInstantiateWithFlags" and n == 2
    bench.check(own or r.said() == w.said(), "the program does not notice", f"{r.said()} {r.stderr[-500:]}")
    if r.folders:
        bench.check(not r.run().balance(), "accounting balances", r.run().balance())


@pytest.mark.parametrize("n", (3, 9, 402, 2100))  # a replay: the application's node, its copy, the ticket
def test_a_ticket_is_used_once(bench, n):
    """Setting the next one fails, and so does switching open off: the launch copies nothing, into nobody's slot."""
    allowed = [filled(i, 1 + i * 7 % 64) for i in range(1000)] + [filled(2, 64)]
    want = bench.run([], command=[sys.executable, CLIENT, "rows"], preload=False, timeout=120)
    result = bench.run([], FORWARDS, command=[sys.executable, CLIENT, "rows"], timeout=120,
                       DMI_STANDIN_FAIL=f"cuGraphExecKernelNodeSetParams_v2:{n},cuGraphNodeSetEnabled:0")
    run = result.run()
    dropped = run.counters.dropped[0]
    bench.check(result.said() == want.said() and not run.balance(), "it could not be set: accounting balances",
                f"{run.balance()} {result.stderr[-300:]}")
    bench.check(len(run.of(0)) >= 1996 and all(r.words in allowed for r in run.of(0)) and set(dropped) <= {"copy_failed"},
                "it could not be set: all others' records are right", f"{len(run.of(0))} records, {dropped}")


def test_sites_that_fit_are_taken(bench, scenario):
    """Of a launch with more than the ring holds, the first site is captured whole, the other one dropped whole."""
    head = "ring: {bytes: 4K, slots: 16}\noverload: {mode: complete, wait_ms: 20000}\n"
    result = scenario("crowded", spec(site("block"), site("other", kernel="^other$"), head=head))
    run = result.run()
    bench.check(not run.balance(), "accounting balances", run.balance())
    bench.check([r.words for r in run.of(0)] == [filled(s, 256) for s in (1, 2, 3)] * 5, "the site that fits is captured",
                f"{len(run.of(0))} records, {run.counters.dropped[0]}")
    bench.check(not run.of(1) and run.counters.dropped[1]["too_large"].records == 15, "the other one is counted",
                run.counters.dropped[1])


def test_a_ring_too_small(bench, scenario):
    head = "ring: {bytes: 4K, slots: 16}\n" + HEAD
    result = scenario("rows", spec(site("block", layer="occ"), head=head))
    run = result.run()
    bench.check(not run.balance(), "accounting balances", run.balance())
    whole = all(r.words == filled(r.words[0] >> 16, len(r.words)) for r in run.of(0))
    bench.check(whole, "what was taken through it is right")
