# SPDX-License-Identifier: Apache-2.0
"""Rows that an edit saves of one request and another edit takes in another one: what memory holds then, in bits, and what became of each row."""
import json
import pathlib
import subprocess

import numpy as np
import pytest

import edits_reference as ref
from edits_kit import Play, Tensor
from harness import DMI_DUMP, DMI_RUN

pytest.importorskip("cuda.bindings")
pytestmark = [pytest.mark.since(12000, "what cuda.bindings 13 calls to build a graph"), pytest.mark.built(DMI_RUN)]

ROWS, N, LAYERS = 16, 600, 3  # a row takes three cells of the bank
HEAD = "edits: {bank: 256K}\nforward: [{kind: step, begin: step}]\n"


def span(request, row, n=1, at=0, n_prompt=8, **more):
    return dict({"request": request, "first_position": at, "n_tokens": n, "first_row": row, "n_prompt": n_prompt}, **more)


class Bench:
    """A program with two places in three layers, `mlp` and `out`, that have other values each."""

    def __init__(self, bench, edits, dtype="bf16", head=HEAD, vectors=None):
        self.bench, self.dtype = bench, dtype
        names = [f"{place}_{layer}" for layer in range(LAYERS) for place in ("mlp", "out")]
        self.tensors = {name: Tensor(name, dtype, self.values(i), place=False) for i, name in enumerate(names)}
        sites = [Tensor(place, dtype, self.values(0), kernel=f"'^{place}_[0-2]$'", layer="occ").site().replace(f"kernel: '^{place}$'\n    ", "")
                 for place in ("mlp", "out")]
        self.play = Play(bench, list(self.tensors.values()), sites=sites, edits=edits, vectors=vectors, head=head)
        self.n = 0

    def values(self, seed):
        bits = ref.stored(np.random.default_rng(seed).normal(size=(ROWS, N)) * 3, self.dtype)
        bits[:, 5] = {"f32": 0x80000000, "bf16": 0x8000}[self.dtype]  # -0.0
        return bits

    def step(self, how, *spans, **more):
        self.play.round(how, {"spans": list(spans), "n_rows": ROWS}, **more)
        self.n += 1
        return self.n - 1

    def run(self, **env):
        result = self.play.run(**env)
        self.folder = result.folders[0]
        return result

    def compare(self, step, what, **taken):
        """@taken: of each place: {row: (place, row) whose values it has, in each layer}."""
        expected = {}
        for name, t in self.tensors.items():
            place, layer = name.split("_")
            bits = t.bits.copy()
            for row, (source, from_row) in taken.get(place, {}).items():
                bits[row] = self.tensors[f"{source}_{layer}"].bits[from_row]
            expected[name] = (bits, None)
        self.play.compare(step, f"{what} (step {step})", expected)

    def rows(self, step, name):
        """What the tensor held after the step."""
        t, data = self.tensors[name], pathlib.Path(self.play.rounds[step]["out"]).read_bytes()
        at = self.play.at[name][0]
        return np.frombuffer(data[at:at + t.n_bytes], ref.BITS[t.dtype])[t.index]

    def dump(self, command, *options):
        done = subprocess.run([DMI_DUMP, command, self.folder, "--json", *options], stdout=subprocess.PIPE, check=True)
        return json.loads(done.stdout)

    def check_accounts(self, **wanted):
        """Of each edit: due, written, and missed by reason."""
        found = {e["edit"]: (e["due"], e["written"], {k: v for k, v in e["missed_by_reason"].items() if v}) for e in self.dump("stats", "--edits")["edit_accounts"]}
        self.bench.check(found == wanted, "each row is accounted for", found)
        verified = subprocess.run([DMI_DUMP, "verify", self.folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        self.bench.check(verified.returncode == 0, "dmi-dump verify agrees", verified.stdout + verified.stderr)


SAVE = {"name": "donor", "site": "mlp", "requests": "a*", "tokens": "1:3", "do": [{"save": "clean"}]}
TAKE = {"name": "take", "site": "mlp", "requests": "b*", "tokens": "4:6", "do": [{"patch": "bank:clean"}]}


HOWS = ["eager", "graph", "capture"]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_rows_of_another_request(bench, how, dtype):
    """In the same step, in a later one, before there is a donor, and after it has ended. What edits do to the donor's rows is not saved."""
    loud = {"name": "loud", "site": "mlp", "requests": "a*", "do": [{"set": 9}]}
    b = Bench(bench, [dict(SAVE, layers="0,2"), loud, dict(TAKE, layers="0-2")], dtype)
    early = b.step(how, span("b0", 4, 2, 4))
    same = b.step(how, span("b1", 4, 3, 4), span("a1", 8, 4))
    later = b.step(how, span("a1", 0, 1, 4), span("b1", 3, 1, 7), span("b2", 9, 1, 5), ends=["a1"])
    gone = b.step(how, span("b3", 2, 2, 4))
    b.run()
    for step, what, taken, set_rows in ((early, "no donor yet", {}, []), (same, "the same step", {4: 9, 5: 10}, [8, 9, 10, 11]),
                                        (later, "a later step", {9: 10}, [0]), (gone, "the donor has ended", {}, [])):
        expected = {}
        for name, t in b.tensors.items():
            bits = t.bits.copy()
            if name.startswith("mlp"):
                bits[set_rows] = ref.stored(np.float32(9), dtype)
                for row, source in taken.items() if name != "mlp_1" else ():  # layer 1 saves nothing
                    bits[row] = t.bits[source]
            expected[name] = (bits, None)
        b.play.compare(step, f"{how}: {what}", expected)
    b.check_accounts(donor=(4, 4, {}), loud=(15, 15, {}), take=(21, 6, {"no_source": 15}))
    found = sorted((t["edit"], t["request"], t["donor"], t["bank"]) for t in b.dump("edits")["requests_with_taken_rows"])
    bench.check(found == [("take", "b1", "a1", "clean"), ("take", "b2", "a1", "clean")], "the run says which rows were taken from where", found)


@pytest.mark.parametrize("how", HOWS)
def test_rows_of_the_same_request(bench, how):
    """A module that is skipped: what leaves it is what enters it, each request its own; the coefficient is the request's, too."""
    b = Bench(bench, [{"name": "in", "site": "mlp", "do": [{"save": "own"}]},
                      {"name": "out", "site": "out", "layers": "1", "requests": "tag:skip=1", "do": [{"patch": "bank:own"}]}])
    tags = '{"skip": 1}'
    both = b.step(how, span("x", 1, 2, 0, tags=tags), span("y", 5, 1, 3, tags=tags), span("z", 8, 1, 0))
    again = b.step(how, span("x", 6, 1, 1, tags=tags))  # a position that is computed again, in another row
    b.run()
    for step, rows in ((both, (1, 2, 5)), (again, (6,))):
        expected = {name: (t.bits.copy(), None) for name, t in b.tensors.items()}
        for row in rows:
            expected["out_1"][0][row] = b.tensors["mlp_1"].bits[row]
        b.play.compare(step, how, expected)
    b.check_accounts(**{"in": (15, 15, {}), "out": (4, 4, {})})


def test_whose_rows_it_may_be(bench):
    """Rows that are kept outlive their request; of two donors neither is meant; rows of the prompt's end are counted from there."""
    b = Bench(bench, [{"name": "kept", "site": "mlp", "requests": "k*", "tokens": "last_prompt", "do": [{"save": "kept", "keep": True}]},
                      {"name": "two", "site": "mlp", "requests": "a*", "tokens": "-2:", "do": [{"save": "two"}]},
                      {"name": "take", "site": "out", "requests": "b*", "tokens": "last_prompt", "do": [{"patch": "bank:kept"}]},
                      {"name": "any", "site": "out", "requests": "c*", "tokens": "-2:", "do": [{"patch": "bank:two", "times": 1}]}])
    first = b.step("graph", span("k1", 0, 5, 0, 5), span("a1", 5, 4, 0, 4), span("c1", 9, 7, 0, 7), ends=["k1"])
    second = b.step("graph", span("b1", 2, 6, 0, 6), span("a2", 8, 3, 0, 3), span("c2", 11, 2, 0, 2), ends=["a1", "k2"])
    third = b.step("graph", span("c3", 3, 4, 0, 4), span("k2", 9, 1, 4, 5))
    fourth = b.step("graph", span("b2", 0, 1, 0, 1))
    b.run()
    b.compare(first, "the last ones of a prompt", out={14: ("mlp", 7), 15: ("mlp", 8)})
    b.compare(second, "kept; of two donors none", out={7: ("mlp", 4)})
    b.compare(third, "one of two is left", out={5: ("mlp", 9), 6: ("mlp", 10)})
    b.compare(fourth, "kept by two", out={})
    b.check_accounts(kept=(6, 6, {}), two=(12, 12, {}), take=(6, 3, {"no_source": 3}), any=(18, 12, {"no_source": 6}))


def test_a_full_bank(bench):
    """Rows are there whole or not at all; room comes back when donors end."""
    b = Bench(bench, [dict(SAVE, tokens="all"), dict(TAKE, requests="b*", tokens="all")], head=HEAD.replace("256K", "64K"))
    full = b.step("graph", span("a1", 0, 8), span("b1", 8, 8), ends=["a1"], pause=0.5)
    more = []
    for i in range(2, 6):
        b.step("graph", span("c", 15), pause=0.3)  # the step before is over when one begins
        more.append(b.step("graph", span(f"a{i}", 0, 4), span(f"b{i}", 8, 4), ends=[f"a{i}"]))
    b.run()
    n_taken = 0
    for name, t in b.tensors.items():
        got = b.rows(full, name)
        for row in range(8):
            taken = name.startswith("mlp") and np.array_equal(got[8 + row], t.bits[row])
            bench.check(taken or np.array_equal(got[8 + row], t.bits[8 + row]), "a row is there whole or not at all", (name, row))
            n_taken += taken
    for step in more:
        b.compare(step, "room came back", mlp={8 + i: ("mlp", i) for i in range(4)})
    bench.check(10 <= n_taken <= 18, "the bank has room for 18 of 24 rows, and is nearly full before it refuses one", n_taken)
    b.check_accounts(donor=(24 + 48, n_taken + 48, {"no_room": 24 - n_taken}), take=(24 + 48, n_taken + 48, {"no_source": 24 - n_taken}))


def test_many_donors(bench):
    """Each of many requests takes rows of its own; the steps do not wait for each other."""
    b = Bench(bench, [{"name": "in", "site": "mlp", "do": [{"save": "own"}]}, {"name": "out", "site": "out", "do": [{"patch": "bank:own"}]}],
              head=HEAD.replace("256K", "16M"))  # for all of them: no step waits until the rows of those before have left
    for i in range(60):
        b.step("graph" if i % 2 else "eager", *(span(f"r{i}-{k}", 2 * k, 2, i) for k in range(8)), ends=[f"r{i}-{k}" for k in range(8)], out=i % 20 == 19)
    b.run(DMI_STANDIN_DELAY_SEED="1")
    for i in (19, 39, 59):
        b.compare(i, "their own", out={row: ("mlp", row) for row in range(16)})
    b.check_accounts(**{"in": (2880, 2880, {}), "out": (2880, 2880, {})})
