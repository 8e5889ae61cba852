# SPDX-License-Identifier: Apache-2.0
"""Layers that run several times in a forward: an edit writes in the pass that it names, or in each, which a line says; kernels' sites and taps, eagerly and in graphs."""
import pathlib
import struct
import sys

import numpy as np
import pytest

import edits_reference as ref
from edits_kit import Play, Tensor
from kit import spec
from test_edit_changes import Accounts, pack

pytest.importorskip("cuda.bindings")
pytestmark = pytest.mark.since(12000, "what cuda.bindings 13 calls to build a graph")

CLIENT = pathlib.Path(__file__).with_name("turns_client.py")
LOOPS, ROWS, MINE = 3, 4, slice(1, 3)  # rows of a tensor; of request a
SAID = {"spans": [{"request": "a", "first_position": 0, "n_tokens": 2, "first_row": 1, "n_prompt": 2}], "n_rows": ROWS}
WHOLE = [0, 1] * LOOPS                 # launches of the layers 0 and 1
# how launches come: all in one graph, or a graph a pass
WAYS = {"eager": ("eager", WHOLE, 1), "graph": ("graph", WHOLE, 1), "capture": ("capture", WHOLE, 1), "params": ("params", WHOLE, 1), "update": ("update", WHOLE, 1),
        "a graph a pass": ("graph", [0, 1], LOOPS)}


def computed(passes, each=1, more=0):
    """An element of a row after all passes: each adds @each; those in @passes triple it before, and add @more."""
    x = 0
    for n in range(LOOPS):
        x = (3 * x + more if n in passes else x) + each
    return x


def looped(bench, edits, head="", dtype="f32"):
    """Kernels that leave their tensors as they are, two layers, so that each pass edits what the last one left."""
    tensors = [Tensor(name, dtype, ref.stored(np.zeros((ROWS, 24)), dtype), stays=True, place=False) for name in ("layer_0", "layer_1", "start")]
    site = Tensor("layer", dtype, tensors[0].bits, kernel="'^layer_[01]$'", layer="occ % 2", capture="after").site().replace("kernel: '^layer$'\n    ", "")
    return Play(bench, tensors, sites=[site], edits=edits, vectors={"one": np.ones(24)}, head=head)


def whole(value, dtype="f32", others=0):
    """A tensor whose rows of request a hold @value, and the other rows @others."""
    values = np.full((ROWS, 24), others)
    values[MINE] = value
    return ref.stored(values, dtype), None


def problems(result, reason):
    return [p["sentence"] for p in result.run().manifest["problems"] if p["reason"] == reason]


EACH = {"name": "each", "site": "layer", "do": [{"add": "one"}]}


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("way", WAYS)
def test_an_edit_names_a_pass(bench, way, dtype):
    """Three edits of one row, in their order: two name passes of layer 1, one writes in each pass of both layers."""
    edits = [{"name": "second", "site": "layer", "layers": "1", "pass": 1, "requests": "a", "do": [{"scale": 3}]},
             {"name": "third", "site": "layer", "layers": "1", "pass": 2, "requests": "a", "do": [{"scale": 3}]}, dict(EACH, requests="a")]
    play = looped(bench, edits, dtype=dtype)
    how, launches, times = WAYS[way]
    for _ in range(2):
        play.round(how, SAID, launches, times=times)
    result = play.run()
    for n in range(2):
        play.compare(n, f"{way}, step {n}", {"start": whole(0, dtype), "layer_0": whole(LOOPS, dtype), "layer_1": whole(computed((1, 2)), dtype)})
    accounts = Accounts(result.folders[0] / "edits")
    bench.check([accounts.of(name) for name in ("second", "third", "each")] == [(4, 4, {}), (4, 4, {}), (24, 24, {})], "accounts", accounts.all)
    told = problems(result, "several_passes")
    bench.check(any('ran more than once in a forward: the edit "each" writes in each pass; "pass: N" in the edit names one' in s for s in told) and
                any("each pass is a record, and tensors of requests hold the last one" in s for s in told) and len(told) == 2, "one line for edits, one for captures", told)
    bench.check(all(result.stderr.count(s) == 1 for s in told), "both are in the log", result.stderr[-1500:])


ONE = {"name": "one", "site": "layer", "layers": "1", "do": [{"scale": 3}, {"add": "one"}]}


@pytest.mark.parametrize("n", range(LOOPS))
def test_each_pass(bench, n):
    play = looped(bench, [dict(ONE, **{"pass": n}), EACH])
    for way in ("eager", "graph", "a graph a pass"):
        how, launches, times = WAYS[way]
        play.round(how, SAID, launches, times=times)
    play.run()
    for i in range(3):
        play.compare(i, f"pass {n}", {"start": whole(0), "layer_0": whole(LOOPS), "layer_1": whole(computed((n,), more=1))})


def test_a_pass_that_never_comes(bench):
    """No row of it is due: the run names it."""
    play = looped(bench, [dict(ONE, **{"pass": LOOPS})])
    play.round("eager", SAID, WHOLE)
    result = play.run()
    play.compare(0, "nothing is written", {name: whole(0) for name in ("start", "layer_0", "layer_1")})
    told = problems(result, "no_match")
    bench.check(told == ['the edit "one": layer 1 of layer has no pass 3: it ran 3 times in a forward at most'] and told[0] in result.stderr, "the pass is named", told)
    bench.check(Accounts(result.folders[0] / "edits").of("one") == (0, 0, {}), "nothing was due", result.stderr[-1500:])


@pytest.mark.parametrize("begins", [False, True], ids=["no forward", "forwards of the HookSpec"])
def test_without_steps(bench, begins):
    """Where nothing says what a forward is no pass is known; where the HookSpec says it no step is needed."""
    play = looped(bench, [dict(ONE, **{"pass": 1}), EACH], head="forward: [{kind: all, begin: {kernel: '^start$'}}]\n" if begins else "")
    play.round("eager", None, [2, *WHOLE] if begins else WHOLE)
    result = play.run()
    x = computed((1,) if begins else (), more=1)
    play.compare(0, "each, and the pass where it is known", {"start": whole(0), "layer_0": whole(LOOPS, others=LOOPS), "layer_1": whole(x, others=x)})
    accounts = Accounts(result.folders[0] / "edits")
    bench.check(accounts.of("one") == ((ROWS, ROWS, {}) if begins else (ROWS * LOOPS, 0, {"no_step": ROWS * LOOPS})), "accounts", accounts.all)


EDITS = "editspec: 1\nedits:\n  - {name: second, site: x, layers: '1', pass: 1, do: [{set: 7}]}\n  - {name: a, site: x, layers: '1', pass: 0, requests: a, do: [{set: 8}]}\n"


@pytest.mark.parametrize("way", ["eager", "graph"])
def test_taps_of_two_threads(bench, way):
    """Threads whose steps overlap count their own passes; a graph has its pass at each launch."""
    edits = bench.folder / "edits"
    edits.write_bytes(pack(EDITS))
    result = bench.run([], spec("  - {tap: x, write: {}, capture: none}\n  - {tap: y}"), command=[sys.executable, CLIENT, "loops", way], timeout=120, DMI_EDITS=edits)
    bench.check(result.code == 0 and result.folders, "the program runs", result.stderr[-1500:])
    run, found = result.run(), {}
    for r in run.records:
        batch, n = divmod(r.layer, 10)
        found.setdefault((batch, n), []).append(struct.unpack("<f", struct.pack("<I", r.words[0]))[0])
    kernels = {key: [x for x in values if x not in (7, 8)] for key, values in found.items()}
    bench.check(found[0, 0] == [8] * 4 and found[0, 1] == found[1, 1] == [7] * 4 and len(kernels[1, 0]) == 4, "what each pass wrote", found)
    accounts = Accounts(result.folders[0] / "edits")
    bench.check(accounts.of("second") == (64, 64, {}) and accounts.of("a") == (32, 32, {}) and not run.balance(), "accounts", accounts.all)
    bench.check("several_passes" not in str(run.manifest["problems"]), "edits that name passes need no line", run.manifest["problems"])
