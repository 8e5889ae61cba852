# SPDX-License-Identifier: Apache-2.0
"""Kernels of graphs that a HookSpec names have their site and layer in the trace, where CUPTI's records say which node they are of; else none, never another's."""
import json
import subprocess

import pytest

from full_trace import FIRST, KERNEL, differences
from harness import BUILD, DMI_RUN
from kit import START, site, spec
from test_trace import complete, step, traced
from test_trace_full import CUPTI, DMI_TRACE, full

CTL = BUILD / "tools" / "dmi-ctl"
pytestmark = pytest.mark.built(DMI_TRACE, DMI_RUN, CTL, CUPTI)
LAUNCHES = ["first", "block", "block", "other", "block", "last"]
SPEC = spec(site("inner", layer="occ"), site("end", kernel="^last$"), head="forward:\n  - {kind: step, begin: {kernel: '^first$'}}")
STRANGE = "name nodes of graphs by other ids"


def captured(name, launches):
    return ["capture s", *(f"launch {kernel} s 1 64 p 64 {i + 1}" for i, kernel in enumerate(launches)), f"endcapture g{name} s", f"graphexec {name} g{name}"]


def engine(n, *names):
    return [line for i in range(n) for line in [*step(i, *(f"graphlaunch {name} s" for name in names)), "ssync s"]]


def places(run):
    """{kernel: {(name of the site, layer)}} of what ran in graphs; None: none is said."""
    names, found = [s["name"] for s in run.dictionary["sites"]], {}
    for r in run.ran:
        if r.kind == KERNEL and r.graph:
            found.setdefault(r.name, set()).add((names[r.site - 1] if r.site else None, r.layer - 1 if r.layer else None))
    return {name: places for name, places in found.items() if not name.startswith("dmi_")}


def said(run, *words):
    return json.loads(subprocess.run([DMI_TRACE, *words, "--json", run], text=True, capture_output=True, check=True).stdout)


def test_sites_and_layers(bench):
    script = [*START, "stream s", *captured("a", LAUNCHES), *engine(4, "a"), "digest p 256"]
    result, run, log = full(bench, "one graph", script, SPEC)
    inner = {("inner", layer) for layer in range(3)}
    bench.check(places(run) == {"first": {(None, None)}, "block": inner, "other": {(None, None)}, "last": {("end", None)}}, "each kernel's site and layer", places(run))
    layers = [sorted(r.layer - 1 for r in run.ran if r.name == "block" and r.step == FIRST + i) for i in range(4)]
    bench.check(layers == [[0, 1, 2]] * 4 and not differences(log, run), "in each step", (layers, differences(log, run)[:1]))
    complete(bench, "sites", result)
    rows = {k["name"]: (k["site"], k["layers"]) for k in said(result.folders[0], "kernels")["kernels"] if not k["name"].startswith("dmi_") and k["kind"] == "kernel"}
    bench.check(rows == {"first": (None, None), "block": ("inner", [0, 2]), "other": (None, None), "last": ("end", None)}, "dmi-trace kernels", rows)
    for words in (["kernels"], ["show", "--step", "1"]):
        text = subprocess.run([DMI_TRACE, *words, result.folders[0]], text=True, capture_output=True, check=True).stdout
        line = next(line for line in text.splitlines() if line.endswith(" block"))
        bench.check(line.split()[-3:] == ["inner", "0-2", "block"] and "layers" in text, f"dmi-trace {words[0]}", text)
    trace = bench.folder / "trace.pftrace"
    subprocess.run([DMI_TRACE, "export", "--perfetto", trace, result.folders[0]], capture_output=True, check=True)
    bench.check(b"inner" in trace.read_bytes() and b"layer" in trace.read_bytes(), "export names them")


@pytest.mark.parametrize("cupti, known", [("13000,own-nodes", False), ("13050,own-nodes", True), ("13000,fail:cuptiGetGraphNodeId:0:1", False), ("13000,fail:cuptiGetGraphExecId:0:1", False)])
def test_where_cupti_names_nodes_otherwise(bench, cupti, known):
    """Up to CUDA 13.5 an exec's nodes may have ids of their own: then no site is said, and the log says why."""
    script = [*START, "stream s", *captured("a", LAUNCHES), *engine(2, "a"), "digest p 256"]
    result, run, log = full(bench, cupti, script, SPEC, cupti=cupti)
    told = {place for all_ in places(run).values() for place in all_}
    bench.check((("inner", 1) in told) == known and (known or told == {(None, None)}), "sites are known, or none is said", places(run))
    bench.check((STRANGE in result.stderr) == (cupti == "13000,own-nodes") and not differences(log, run), "the log says why", result.stderr)


def test_kept_steps(bench):
    """In the tier kernels a step that is kept has them, too, also where its graph has ended meanwhile."""
    out = bench.folder / "kept"
    script = [*START, "stream s", *captured("a", LAUNCHES), *engine(4, "a"), "graphdestroy a", f"spawn {CTL} {out} trace keep 2 --json", "digest p 256"]
    run = traced(bench.run(script, SPEC, DMI_OUT=out, DMI_CONTROL="1", DMI_TRACE="kernels", DMI_CUPTI=CUPTI))
    bench.check({r.step for r in run.ran} == {FIRST + 2, FIRST + 3} and places(run)["block"] == {("inner", layer) for layer in range(3)}, "sites of kept steps", places(run))


@pytest.mark.parametrize("names, layers", [(["a", "b"], {0, 1}), (["a", "b", "b"], {0, None})])
def test_layers_follow_launches(bench, names, layers):
    """Piecewise graphs: the layer is that of the launch; a graph that is launched at several places of a forward has none."""
    script = [*START, "stream s", *captured("a", ["first", "block"]), *captured("b", ["block", "other"]), *engine(3, *names), "digest p 256"]
    _, run, _ = full(bench, " ".join(names), script, SPEC)
    bench.check(places(run)["block"] == {("inner", layer) for layer in layers}, "layers of pieces", places(run))


@pytest.mark.since(12000, "updates of execs by cuGraphExecUpdate_v2()")
def test_a_node_that_changes(bench):
    """An update puts another kernel in the place of a site: its records have no site, those of the others keep theirs."""
    changed = [kernel if i != 2 else "other" for i, kernel in enumerate(LAUNCHES)]
    script = [*START, "stream s", *captured("a", LAUNCHES), *captured("b", changed), *engine(2, "a"), "graphupdate a gb", *engine(2, "a"), "graphdestroy a", "graphdestroy b",
              *captured("c", LAUNCHES), *engine(2, "c"), "digest p 256"]
    result, run, log = full(bench, "updated", script, SPEC)
    found = places(run)
    bench.check(found["other"] == {(None, None)} and found["last"] == {("end", None)} and not differences(log, run), "no other kernel's site", (found, differences(log, run)[:1]))
    late = {(r.name, r.site, r.layer) for r in run.ran if r.step >= FIRST + 4 and r.name == "block"}
    bench.check(late == {("block", 1, 1 + layer) for layer in range(3)}, "a graph made later has its own", late)
