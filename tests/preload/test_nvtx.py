# SPDX-License-Identifier: Apache-2.0
"""Sites that are named by NVTX ranges, through the real NVTX headers: eager, in graphs, with and without another tool."""
import os

import pytest

from built import require
from harness import BUILD
from kit import filled, spec

FOLDER = BUILD / "tests" / "preload"
CLIENT, MODULE, TOOL = FOLDER / "nvtx_client", FOLDER / "libnvtx_module.so", FOLDER / "libnvtx_tool.so"
N = 64
FORWARDS = "forward:\n  - {kind: step, begin: {kernel: '^first$'}}"


def ranged(name="out", nvtx="'*.mlp'", **more):
    lines = [f"  - name: {name}", f"    nvtx: {nvtx}", "    pointer: arg[0]", "    dtype: u32",
             "    dims: [{row: true, count: 'arg[1].u32'}]"]
    return "\n".join(lines + [f"    {key}: {value}" for key, value in more.items()])


def layers(n, *body):
    """Ranges of n modules, each with the launches of @body; a `%` in it is the layer."""
    return [line.replace("%", str(i)) for i in range(n) for line in ("push model.layers.%.mlp", *body, "pop")]


def launches(*kernels):
    """Seeds are layer * 100 + place."""
    return [f"launch {kernel} %{place:02}" for place, kernel in enumerate(kernels, 1)]


@pytest.fixture
def play(bench):
    """Runs a script with and without the library; the run holds @expected, a list of (layer, seed) for each site."""
    def run(what, script, text, *expected, **env):
        result = bench.alike(what, script, text, command=[CLIENT, "script", MODULE], **env)
        if not bench.check(bool(result.folders), f"{what}: a run was written", result.stderr + result.stdout):
            return result
        captured = result.run()
        for site, want in enumerate(expected):
            got = [(r.layer, r.words) for r in captured.of(site)]
            wanted = [(layer, filled(seed, N)) for layer, seed in want]
            bench.check(got == wanted, f"{what}: site {site} holds what its ranges say",
                        f"{[(layer, words[0] >> 16) for layer, words in got]}, wanted {want}; {result.stderr[-800:]}")
        bench.check(not captured.balance(), f"{what}: every record is accounted for", captured.balance())
        return result
    return run


# ------------------------------------------------------------------------------------------ which kernel

@pytest.mark.parametrize("which, place", [("first", 1), ("0", 1), ("1", 2), ("3", 4)])
def test_a_kernel_of_a_range(play, which, place):
    """All four write the same buffer, and so does what follows the range."""
    script = layers(3, *launches("block", "other", "block", "other")) + ["launch first 999"]
    play(which, script, spec(ranged(range_kernel=which, layer="range")), [(i, i * 100 + place) for i in range(3)])


@pytest.mark.parametrize("which, places", [("first", [2]), ("1", [4]), ("all", [2, 4]), ("7", [])])
def test_a_kernel_of_a_range_by_name(play, which, places):
    """The value is that right after the kernel, though others overwrite it in the same range."""
    script = layers(3, *launches("other", "block", "other", "block", "other", "first"))
    text = spec(ranged(kernel="block", range_kernel=which, layer="range"))
    play(which, script, text, [(i, i * 100 + place) for i in range(3) for place in places])


def test_a_site_without_a_range_is_not_concerned(play):
    script = ["launch block 1"] + layers(2, "launch block %2") + ["launch block 3"]
    plain = ranged("plain", kernel="^block$").replace("    nvtx: '*.mlp'\n", "")
    play("both", script, spec(ranged(kernel="^block$", layer="range"), plain), [(0, 2), (1, 12)], [(-1, 1), (-1, 2), (-1, 12), (-1, 3)])


def test_occurrences_in_ranges(play):
    """They count what the site takes, within a forward."""
    body = layers(3, *launches("block", "block"))
    script = ["launch first 900", *body, "launch first 900", *body]
    text = spec(ranged(kernel="^block$", range_kernel="1", layer="occ", occurrences="{expect: 3}"), head=FORWARDS)
    result = play("second", script, text, [(0, 2), (1, 102), (2, 202)] * 2)
    assert not result.run().manifest.get("problems")


def test_nested_ranges(play):
    """The innermost range that a site asks for counts."""
    script = ["push layers.1", "launch block 1", "push layers.1.attn", "launch block 2", "push x", "launch block 3", "pop", "pop",
              "launch block 4", "pop", "launch block 5"]
    text = spec(ranged("inner", "'*.attn'", kernel="block", layer="range"), ranged("outer", "layers.?", kernel="block", layer="range"),
                ranged("either", "layers*", range_kernel="first", layer="range"), ranged("second", "layers*", range_kernel="1"))
    play("nested", script, text, [(1, 2), (1, 3)], [(1, s) for s in (1, 2, 3, 4)], [(1, 1), (1, 2)], [(-1, 3), (-1, 4)])


def test_patterns(play):
    names = ["a.b", "a-b", "xa.b", "layers.12.mlp", "layers.1.mlp.up", "[a]"]
    script = [line for i, name in enumerate(names) for line in (f"push {name}", f"launch block {i}", "pop")]
    patterns = ["'a.b'", "'a?b'", "'*a.b'", "'layers.*.mlp'", r"'/layers\.[0-9]+\.mlp/'", "'[!a]*.b'", r"'\[a]'", "'/^.a]$/'"]
    want = [[0], [0, 1], [0, 2], [3], [3, 4], [2], [5], [5]]
    text = spec(*(ranged(f"s{i}", p, kernel="block") for i, p in enumerate(patterns)))
    play("patterns", script, text, *([(-1, seed) for seed in seeds] for seeds in want))


# ------------------------------------------------------------------------------------------ names and layers

VLLM = "{'Module': 'Qwen3ForCausalLM.model.layers.%.self_attn.qkv_proj', 'TrainableParams': {'weight': [6144, 4096]}, 'Inputs': [[8, 4096]]}"
SGLANG = "{'Module': 'top.model.layers.%.self_attn.qkv_proj', 'Inputs': [[8, 4096]], 'StaticParams': {'in_features': 4096}}"


@pytest.mark.parametrize("form", [VLLM, SGLANG])
def test_names_of_engines(play, form):
    script = [line.replace("%", str(i)) for i in (0, 7, 31) for line in (f"push {form}", "launch block %1", "pop")]
    play("dict", script, spec(ranged(nvtx="'*.self_attn.qkv_proj'", range_kernel="first", layer="range")), [(0, 1), (7, 71), (31, 311)])


def test_a_name_without_a_number(bench, play):
    result = play("none", ["push final.mlp", "launch block 1", "pop"], spec(ranged(kernel="block", layer="range")), [])
    dropped = result.run().counters.dropped[0]
    bench.check(list(dropped) == ["bad_expr"] and "no layer number in the name of its range" in result.stderr, "counted and reported",
                f"{dropped} {result.stderr}")


def test_kinds_of_texts(play):
    script = []
    for i, line in enumerate(["pushw layers.%.mlp", "pushx ascii layers.%.mlp", "pushx unicode layers.%.mlp", "pushx registered layers.%.mlp",
                              "dpush d registered layers.%.mlp", "dpush e unicode l~yers.%.mlp", "mpush layers.%.mlp"]):
        pop = {"d": f"dpop {line.split()[1][0]}", "m": "mpop"}.get(line[0], "pop")
        script += [line.replace("%", str(i)), f"launch block {i}", pop, "launch block 99"]
    play("texts", script, spec(ranged(nvtx="'l*yers.*.mlp'", kernel="block", layer="range")), [(i, i) for i in range(7)])


def test_domains_have_stacks_of_their_own(play):
    script = ["push layers.1.mlp", "dpush d ascii layers.2.mlp", "dpush e ascii other", "pop", "launch block 2", "dpop e", "launch block 3",
              "dpop d", "launch block 4"]
    play("domains", script, spec(ranged(kernel="block", layer="range")), [(2, 2), (2, 3)])


# ------------------------------------------------------------------------------------------ threads

def test_ranges_belong_to_their_thread(play):
    script = ["push layers.0.mlp", "@1 launch block 1", "@1 push layers.1.mlp", "@1 launch block 2", "launch block 3", "@2 launch block 4",
              "pop", "@1 launch block 5", "@1 pop", "@1 launch block 6"]
    play("threads", script, spec(ranged(kernel="block", layer="range")), [(1, 2), (0, 3), (1, 5)])


@pytest.mark.parametrize("delays", ["", "1", "2"])
def test_threads_at_once(bench, delays):
    """Each takes kernels of its own ranges, whatever the others are at, through a ring that all share."""
    text = spec(ranged(kernel="block", range_kernel="1", layer="range"), ranged("first", "'*mlp'", range_kernel="first", layer="range"),
                head="ring: {bytes: 16K, slots: 64}\noverload: {mode: complete, wait_ms: 20000}\n")
    env = {"DMI_STANDIN_DELAY_SEED": delays} if delays else {}
    result = bench.alike("storm", ["storm"], text, command=[CLIENT, "script"], **env)
    run = result.run()
    for site, place in ((0, 3), (1, 1)):
        got = sorted((r.layer, r.words) for r in run.of(site))
        want = [(layer, filled(layer * 3 + place, N)) for layer in range(8 * 40)]
        bench.check(got == want, f"site {site}: each range's own", f"{len(got)} of {len(want)}, {[(l, w[0] >> 16) for l, w in got[:5]]}")
    bench.check(not run.balance() and not any(run.counters.dropped), "nothing is dropped", f"{run.balance()} {run.counters.dropped}")


def test_started_ranges_concern_all_threads(play):
    script = ["start a ascii layers.4.mlp", "launch block 1", "@1 launch block 2", "push layers.5.mlp", "launch block 3", "pop",
              "dstart d b registered layers.6.mlp", "@1 launch block 4", "@1 dend d b", "launch block 5", "@2 end a", "launch block 6"]
    play("started", script, spec(ranged(kernel="block", layer="range"), ranged("n", range_kernel="1", layer="range")),
         [(4, 1), (4, 2), (5, 3), (6, 4), (4, 5)], [(4, 2)])


# ------------------------------------------------------------------------------------------ graphs

REPLAYS = [line for _ in range(50) for line in ("launch first 900", "replay g")]


@pytest.mark.parametrize("which, places", [("first", [2]), ("2", [5]), ("1", [4]), ("all", [2, 4, 5])])
@pytest.mark.parametrize("way", ["captured", "built"])
def test_graphs(play, which, places, way):
    """Ranges are open while a graph is captured or built, and never when it is replayed."""
    body = launches("other", "block", "other", "block", "block", "other")
    if way == "captured":
        script = ["launch first 900", "capture", *layers(3, *body), "endcapture g"]
        want = [(i, i * 100 + place) for i in range(3) for place in places]
    else:
        script = ["push model.layers.3.mlp", "build g " + " ".join(line[7:].replace("%", "3") for line in body), "pop"]
        want = [(3, 300 + place) for place in places]
    text = spec(ranged(kernel="block", range_kernel=which, layer="range"), head="ring: {bytes: 4M, slots: 8192}\n" + FORWARDS)
    play(way, [*script, "instantiate g", *REPLAYS], text, want * 50)


def test_graphs_without_kernel_patterns(play):
    script = ["capture", "launch block 999", *layers(2, *launches("block", "other")), "launch other 998", "endcapture g", "instantiate g"]
    text = spec(ranged("first", range_kernel="first", layer="range"), ranged("second", range_kernel="1", layer="range"))
    play("any", script + ["replay g"] * 5, text, [(0, 1), (1, 101)] * 5, [(0, 2), (1, 102)] * 5)


def test_a_range_around_a_capture(play):
    """Its kernels count in the graph, also where that is instantiated and replayed before the range ends."""
    script = ["push layers.1.mlp", "capture", "launch block 1", "launch block 2", "launch other 3", "endcapture g", "instantiate g",
              "replay g", "replay g", "pop", "replay g"]
    play("around", script, spec(ranged(kernel="block", range_kernel="1", layer="range")), [(1, 2)] * 3)


def test_eager_and_captured_count_apart(play):
    script = ["push layers.1.mlp", "capture", "launch block 1", "endcapture g", "launch block 2", "launch block 3", "pop", "instantiate g",
              "replay g"]
    play("apart", script, spec(ranged("first", kernel="block", range_kernel="first", layer="range"),
                               ranged("second", kernel="block", range_kernel="1", layer="range")), [(1, 2), (1, 1)], [(1, 3)])


@pytest.mark.since(12000, "cuGraphExecUpdate_v2")
def test_an_update_brings_its_own_ranges(play):
    graph = ["capture", *layers(2, *launches("block", "other")), "endcapture g", "instantiate g", "replay g"]
    other = ["capture", *(line.replace("layers.1", "layers.8") for line in layers(2, "launch block %7", "launch other %8")), "endcapture h",
             "update g h", "replay g"]
    play("update", graph + other, spec(ranged(kernel="block", range_kernel="first", layer="range")), [(0, 1), (1, 101), (0, 7), (8, 17)])


# ------------------------------------------------------------------------------------------ forwards

BEGIN = "forward:\n  - {kind: prefill, begin: {nvtx: 'prefill*'}}\n  - {kind: decode, begin: {nvtx: '/: decode$/'}}"


def test_a_range_begins_a_forward(play):
    each = ["launch block %1", "launch block %2"]
    script = ["launch block 999"]
    for i, name in enumerate(["prefill 3", "runner: decode", "runner: decode"]):
        script += [f"push {name}", *(line.replace("%", str(i)) for line in each), "pop", f"launch block {i}9"]
    sites = [ranged("p", kernel="block", forward="prefill", layer="occ"), ranged("d", kernel="block", forward="decode", layer="occ")]
    text = spec(*(s.replace("    nvtx: '*.mlp'\n", "") for s in sites), head=BEGIN)
    result = play("begin", script, text, [(0, 1), (1, 2), (2, 9)], [(0, 11), (1, 12), (2, 19), (0, 21), (1, 22), (2, 29)])
    assert [r.forward for r in result.run().of(1)] == [1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("where", ["outside", "inside", "both"])
def test_a_range_begins_the_forward_of_a_graph(play, where):
    """By a range around the replay, by one that was captured, and once where both are."""
    inside = ["push run: decode", *layers(2, "launch block %01"), "pop"]
    script = ["capture", *(inside if where != "outside" else inside[1:-1]), "endcapture g", "instantiate g"]
    script += (["replay g"] if where == "inside" else ["push run: decode", "replay g", "pop"]) * 20
    text = spec(ranged(kernel="block", forward="decode", layer="occ", occurrences="{expect: 2}"), head=BEGIN)
    result = play(where, script, text, [(0, 1), (1, 101)] * 20)
    run = result.run()
    assert [r.forward for r in run.of(0)] == [i // 2 for i in range(40)] and not run.manifest.get("problems"), run.manifest.get("problems")


def test_a_range_begins_the_forward_of_taps(play):
    """The first launch in it may be a tap, also in a graph."""
    text = spec("  - {tap: resid_pre, forward: decode}", ranged(kernel="other", forward="decode", layer="occ"), head=BEGIN)
    body = ["launch block %1", "tap resid_pre 0", "launch other %2"]
    script = [line.replace("%", str(i)) for i in range(3) for line in ("push run: decode", *body, "pop")]
    script += ["capture", "push run: decode", *(line.replace("%", "9") for line in body), "pop", "endcapture g", "instantiate g", "replay g",
               "replay g"]
    text = text.replace("    nvtx: '*.mlp'\n", "")
    result = play("taps", script, text, [(0, s) for s in (1, 11, 21, 91, 91)], [(0, s) for s in (2, 12, 22, 92, 92)])
    assert [r.forward for r in result.run().of(0)] == list(range(5))


def test_a_forward_without_launches_does_not_begin(play):
    script = ["push prefill", "pop", "launch block 1", "push run: decode", "launch block 2", "pop"]
    play("empty", script, spec(ranged(nvtx="'run*'", kernel="block", layer="occ"), head=BEGIN), [(0, 2)])


# ------------------------------------------------------------------------------------------ other tools

TOOL_SCRIPT = ["mark m", "push layers.0.mlp", "launch block 1", "pushx ascii layers.1.mlp", "launch block 2", "pop", "pop", "pop",
               "pushx registered layers.2.mlp", "launch block 3", "pop", "dpush d registered layers.3.mlp", "launch block 4", "dpop d",
               "pushw layers.4.mlp", "launch block 5", "pop", "dstart d a ascii layers.5.mlp", "launch block 6", "dend d a", "mpush layers.6.mlp",
               "launch block 7", "mpop", "environment"]


def test_another_tool_gets_all_calls(bench, play):
    """An injection library that the environment names is called as without the library, by each module, and says what it says."""
    log = bench.folder / "log"
    logs = []

    def said():
        logs.append(log.read_text() if log.exists() else "")
        log.unlink(missing_ok=True)

    bench.run(TOOL_SCRIPT, preload=False, command=[CLIENT, "script", MODULE], NVTX_INJECTION64_PATH=TOOL, NVTX_TOOL_LOG=log)
    said()
    bench.run(TOOL_SCRIPT, spec(ranged(kernel="block", layer="range")), command=[CLIENT, "script", MODULE], NVTX_INJECTION64_PATH=TOOL,
              NVTX_TOOL_LOG=log)
    said()
    bench.check(logs[0] == logs[1] and logs[0].count("attached") == 2 and "push layers.3.mlp in d" in logs[0], "the tool saw the same", logs)
    play("tool", TOOL_SCRIPT, spec(ranged(kernel="block", layer="range")), [(i, i + 1) for i in range(7)], NVTX_INJECTION64_PATH=TOOL)


def test_a_tool_that_is_not_there(play):
    """NVTX tries to load it, and then calls nobody, with and without the library."""
    play("missing", ["push layers.0.mlp", "launch block 1", "pop"], spec(ranged(kernel="block")), [], NVTX_INJECTION64_PATH="/nonexistent.so")


def test_nothing_without_ranges(bench):
    """No injection is announced, and a tool is left alone, where the spec names no ranges."""
    plain = spec(ranged(kernel="block").replace("    nvtx: '*.mlp'\n", ""))
    result = bench.alike("plain", ["environment", "push x", "launch block 1", "pop"], plain, command=[CLIENT, "script"])
    bench.check("injection 0" in result.stdout and [r.words for r in result.run().of(0)] == [filled(1, N)], "nothing in the environment",
                result.stdout)
    result = bench.run(["environment"], spec(ranged(kernel="block")), command=[CLIENT, "script"])
    bench.check("injection 1" in result.stdout, "else it is", result.stdout)


# ------------------------------------------------------------------------------------------ what goes wrong

def unmatched(bench, script, text):
    result = bench.run(script, text, command=[CLIENT, "script"])
    return [p["sentence"] for p in result.run().manifest.get("problems", []) if p["reason"] == "no_match"]


def test_a_range_that_never_came(bench):
    script = ["push model.layers.0.mpl", "launch block 1", "pop"]
    told = unmatched(bench, script, spec(ranged(nvtx="'model.layers.*.mlp'", kernel="block")))
    bench.check(len(told) == 1 and "no range matched the nvtx pattern model.layers.*.mlp" in told[0] and
                'did you mean "model.layers.0.mpl"?' in told[0], "the nearest name is said", told)
    told = unmatched(bench, ["launch block 1"], spec(ranged(kernel="block")))
    bench.check(len(told) == 1 and "the program has opened none" in told[0], "no range at all", told)
    told = unmatched(bench, ["push a.mlp", "launch other 1", "pop"], spec(ranged(kernel="^block$")))
    bench.check(len(told) == 1 and "the range a.mlp was open, but no kernels were launched in it that match ^block$" in told[0],
                "a range without the kernel", told)
    told = unmatched(bench, ["push a.mlp", "launch block 1", "pop"], spec(ranged(range_kernel="1")))
    bench.check(len(told) == 1 and "the range a.mlp was open, but too few kernels" in told[0], "a range with too few", told)


def test_unbalanced_and_hostile_ranges(play):
    """More pops than pushes, deep nesting, texts that are nothing, endless or strange."""
    long = "x" * 20000 + ".mlp"
    script = ["pop", "dpop d", "pushx none x", "pop", f"push {long}", "launch block 1", "pop", "push {'Module': '" + "a" * 3000, "pop",
              "push {'Module': 'layers.3.mlp", "launch block 2", "pop", *["push layers.1.mlp"] * 100, "launch block 3", *["pop"] * 100,
              "launch block 4", "push layers.2.mlp", "launch block 5", "pop", "pop", "pop", "launch block 6"]
    play("hostile", script, spec(ranged(kernel="block", layer="range")), [(3, 2), (1, 3), (2, 5)])


def test_ranges_without_number(bench, play):
    """Each has a name of its own: they are kept as long as there is room, and looked at all the same."""
    script = [line for i in range(6000) for line in (f"push a{i}", "pop")] + ["push layers.1.mlp", "launch block 1", "pop"]
    play("many", [line for line in script], spec(ranged(kernel="block", layer="range")), [(1, 1)])


@pytest.mark.parametrize("end", ["pop", "thread", "process"])
def test_a_range_that_stays_open(play, end):
    """Its thread or the process may end before it does."""
    at = "@1 " if end == "thread" else ""
    script = [f"{at}push layers.1.mlp", f"{at}launch block 1", f"{at}launch other 2", f"{at}launch block 3", f"{at}launch other 4"]
    play(end, script + ["pop"] * (end == "pop"), spec(ranged(kernel="block", range_kernel="1", layer="range")), [(1, 3)])


@pytest.mark.parametrize("which, refused, want", [("1", 1, [(0, 3)]), ("1", 2, [(0, 3)]), ("first", 1, [(0, 2)])])
def test_a_refused_launch_does_not_count(bench, which, refused, want):
    """It has no number in its range."""
    script = ["push layers.1.mlp", "try block 1", "try block 2", "try block 3", "pop", "push layers.2.mlp", "launch block 4", "launch block 5",
              "pop"]
    result = bench.run(script, spec(ranged(range_kernel=which, layer="occ")), command=[CLIENT, "script"], DMI_STANDIN_FAIL=f"cuLaunchKernel:{refused}")
    run = result.run()
    got = [(r.layer, r.words[0] >> 16) for r in run.of(0)]
    after = (1, 4 if which == "first" else 5)
    bench.check(got == [*want, after] and not run.balance() and not any(run.counters.dropped), "as if it had not come",
                f"{got} {run.balance()} {run.counters.dropped} {result.stdout} {result.stderr}")


MEMORY = ["push run: decode", "push layers.1", *layers(3, *launches("other", "block", "block", "other")), "pop", "pop", "capture",
          *layers(2, *launches("block", "block", "other")), "endcapture g", "instantiate g", "replay g", "start a registered layers.7.mlp",
          "launch block 71", "end a", "dpush d unicode layers.8.mlp", "launch block 81", "launch block 82", "dpop d", "replay g"]
# what the sites may hold: nothing is taken for another range's
SECOND = {(0, 3), (1, 103), (2, 203), (0, 2), (1, 102), (8, 82)}
FIRST = {(1, 2), (7, 71), (8, 81)}


def test_no_memory(bench, request):
    """Each allocation of the library's failing, one in a run: records are right, or missing and accounted for."""
    library = FOLDER / "libfail_alloc.so"
    if "DMI_TEST_RUNTIME" in os.environ:
        pytest.skip("the sanitizer's allocator stands in front of the one that fails")
    require(library)
    text = spec(ranged("second", kernel="block", range_kernel="1", layer="range"),
                ranged("first", "'layers.*'", kernel="block", range_kernel="first", layer="range"))
    count, command = bench.folder / "count", [CLIENT, "script", MODULE]
    without = bench.run(MEMORY, preload=False, command=command)
    bench.run(MEMORY, text, command=command, before=[library], FAIL_ALLOC=10**9, FAIL_ALLOC_FILE=count)
    n, captured, wrong = int(count.read_text()), 0, []
    for i in range(1, n + 1, 1 if request.config.option.long else n // 50):  # the run begins three quarters through
        result = bench.run(MEMORY, text, command=command, before=[library], FAIL_ALLOC=i)
        if result.said() != without.said():
            wrong.append(f"{i}: {result.said()} {result.stderr[-300:]}")
        if not result.folders or "manifest.json" not in {p.name for p in result.folders[0].iterdir()}:
            continue
        run = result.run()
        for site, allowed in enumerate((SECOND, FIRST)):
            got = {(r.layer, r.words[0] >> 16) for r in run.of(site)}
            captured += len(got)
            wrong += [f"{i}: site {site} holds {sorted(got - allowed)}"] * bool(got - allowed)
        wrong += [f"{i}: {run.balance()} {result.stderr[-200:]}"] * bool(run.balance() and "closing the run: " not in result.stderr)
    bench.check(n > 100 and captured > 50 and not wrong, f"{n} allocations", f"{n} {captured} {wrong[:5]}")


def test_a_child_that_forks(play):
    play("fork", ["push layers.0.mlp", "launch block 1", "fork", "launch block 2", "pop"], spec(ranged(kernel="block", layer="range")),
         [(0, 1), (0, 2)])
