# SPDX-License-Identifier: Apache-2.0
"""Edits, operation by operation: what device memory holds after them, byte by byte, against docs/edits.md in numpy (edits_reference.py)."""
import json
import pathlib
import subprocess

import numpy as np
import pytest

import edits_reference as ref
from edits_kit import HOWS, PAGE, SIZE, Play, Tensor
from harness import DMI_RUN
from test_edit_changes import Accounts

pytest.importorskip("cuda.bindings")
pytestmark = [pytest.mark.since(12000, "what cuda.bindings 13 calls to build a graph"), pytest.mark.built(DMI_RUN)]


# ------------------------------------------------------------------------- operations on whole rows

def all_values(dtype):
    """Each value of the 16-bit types; of f32 what is odd, and others."""
    if dtype != "f32":
        return np.arange(65536, dtype=np.uint16).reshape(64, 1024)
    dice = np.random.default_rng(1)
    odd = np.array([0, 0x80000000, 1, 0x807fffff, 0x7f800000, 0xff800000, 0x7fc00001, 0x7f7fffff, 0x3f800000, 0x3f800001, 0x33800000], np.uint32)
    return np.concatenate([np.resize(odd, 1024), ref.stored(dice.normal(size=3072) * 10.0 ** dice.integers(-6, 6, 3072), "f32")]).reshape(4, 1024)


def wide(n=1024, seed=2):
    dice = np.random.default_rng(seed)
    v = (dice.normal(size=n) * 2.0 ** dice.integers(-10, 6, n)).astype(np.float32)
    if n > 16:
        v[:4] = 0, -0.0, 1, -1
    return v


ELEMENTWISE = [(("add", "v"), 1), (("add", "v"), -0.7), (("add", "v"), 0), (("scale", None), 3.1), (("scale", None), 0.5), (("scale", None), 1),
               (("set", "v"), 1), (("set", 0.3), 1), (("patch", "v"), 1), (("patch", "v"), 0.3), (("patch", "v"), 0),
               (("zero", None), 1), (("clamp", [-1.1, 2.3]), 1)]


def said_of(op, c):
    """An operation as the file says it."""
    kind, value = op
    return {"zero": "zero", "keep_norm": "keep_norm"}.get(kind) or (
        {"scale": c} if kind == "scale" else {kind: value, "times": c} if kind in ("add", "patch") else {kind: value})


def elementwise_tensors():
    v = wide()
    for dtype in SIZE:
        for i, (op, c) in enumerate(ELEMENTWISE):
            t = Tensor(f"{dtype}_{op[0]}_{i}", dtype, all_values(dtype))
            t.edits = [{"do": [said_of(op, c)]}]
            after = ref.stored(ref.elementwise(t.x, op, v if op[1] == "v" else None, c, dtype), dtype)
            t.expected = (t.bits if (op[0], c) in (("add", 0), ("scale", 1), ("patch", 0)) else after, None)
            yield t
        # one after the other, each rounded
        t = Tensor(f"{dtype}_chain", dtype, all_values(dtype))
        t.edits = [{"do": [{"add": "v", "times": 0.3}, {"scale": 1.7}, {"clamp": [-20, 20]}]}, {"do": [{"scale": 0.9}]}, {"do": [{"add": "v"}]}]
        x = t.x
        for op, c in ((("add", "v"), 0.3), (("scale", None), 1.7), (("clamp", [-20, 20]), 1), (("scale", None), 0.9), (("add", "v"), 1)):
            x = ref.elementwise(x, op, v, c, dtype)
        t.expected = (ref.stored(x, dtype), None)
        yield t


def both(bench, tensors, **more):
    """Launch by launch, and in a graph. Return: what the program said."""
    play = Play(bench, list(tensors), **more)
    for how in ("eager", "graph"):
        play.round(how)
    result = play.run()
    for i, how in enumerate(("eager", "graph")):
        play.compare(i, how)
    return result


def test_operations_on_elements(bench):
    """Each value of f16 and bf16, in bits."""
    both(bench, elementwise_tensors(), vectors={"v": wide()})


# ------------------------------------------------------------------------- sums, columns, heads, layouts

VECTORS = {"v": wide(), "short": wide(192, 3), "head": wide(64, 4), "three": wide(3, 5), "four": wide(4, 6), "row": wide(16, 7), "gentle": wide() / 100, "lean": wide(1024, 8) / 200}


def normal(rows, n, dtype, seed=0):
    return ref.stored(np.random.default_rng(seed).normal(size=(rows, n)) * 3, dtype)


def along(op, v, c=1.0):
    """As the file says it."""
    kind, value = op
    more = {"project_out": {"times": c}, "adjust_rs": {"to": value}, "limit_along": {"between": value, "times": c}}[kind]
    return {kind: v, **more}


def near(t, x, before, op, v, c, take):
    """What the elements @take of each row become, and what may be missing: 1e-6 of |x| |d|, and what the type cannot tell."""
    after, share = ref.with_sum(x[take], before[take], op, v, c)
    wanted, slack = t.x.astype(np.float64), np.zeros(t.bits.shape)
    wanted[take] = after
    slack[take] = 1e-6 * share + 0.5001 * ref.ulp(after, t.dtype)
    t.expected = (wanted, slack)


ALONG = [(("project_out", None), 1.0), (("project_out", None), -0.5), (("adjust_rs", 2.5), 1), (("limit_along", [-0.5, 0.75]), 0.8)]


def sum_tensors():
    for dtype in SIZE:
        for i, (op, c) in enumerate(ALONG):
            t = Tensor(f"{dtype}_{op[0]}_{i}", dtype, normal(5, 1024, dtype, i))
            t.edits = [{"do": [along(op, "gentle", c)]}]
            near(t, t.x, t.x, op, VECTORS["gentle"], c, np.s_[:, :])
            yield t
        t = Tensor(f"{dtype}_keep_norm", dtype, normal(5, 192, dtype, 9))
        t.edits = [{"do": [{"add": "short", "times": 2}, "keep_norm"]}]
        near(t, ref.elementwise(t.x, ("add", "short"), VECTORS["short"], 2, dtype), t.x, ("keep_norm", None), None, 1, np.s_[:, :])
        yield t
        # a row of zeros has no length to keep, and no direction
        t = Tensor(f"{dtype}_nothing", dtype, np.zeros((2, 192), ref.BITS[dtype]))
        t.edits = [{"do": [{"scale": 2}, "keep_norm", along(("project_out", None), "short")]}]
        t.expected = (np.zeros((2, 192)), np.zeros((2, 192)))
        yield t


FEATURES = {"off": ("gentle", "lean", 0.25, 0.5, 0), "on": ("lean", "gentle", -0.5, 0, 2.5)}


def feature_tensors():
    """One feature, of which some rows have none; two of one dictionary; and one that follows another operation."""
    def said(name):
        w, e, bias, threshold, to = FEATURES[name]
        return {"feature": w, "encoder": e, "to": to, **({"bias": bias} if bias else {}), **({"threshold": threshold} if threshold else {})}

    for dtype in SIZE:
        for name, names in (("off", ["off"]), ("on", ["on"]), ("both", ["off", "on"])):
            t = Tensor(f"{dtype}_feature_{name}", dtype, normal(6, 1024, dtype, 11))
            t.edits = [{"do": [said(n) for n in names]}]
            after, share = ref.with_features(t.x, [(VECTORS[FEATURES[n][0]], VECTORS[FEATURES[n][1]], *FEATURES[n][2:]) for n in names])
            t.expected = (after, 1e-6 * share + (len(names) if dtype == "f32" else 1) * 0.5001 * ref.ulp(after, dtype))
            yield t
        t = Tensor(f"{dtype}_feature_after", dtype, normal(6, 1024, dtype, 12))
        t.edits = [{"do": [{"add": "gentle", "times": 3}, said("on")]}]
        before = ref.elementwise(t.x, ("add", ""), VECTORS["gentle"], 3, dtype)
        after, share = ref.with_features(before, [(VECTORS["lean"], VECTORS["gentle"], *FEATURES["on"][2:])])
        t.expected = (after, 1e-6 * share + 0.5001 * ref.ulp(after, dtype))
        yield t
        # an inactive feature that is to be 0 is left alone, in bits
        t = Tensor(f"{dtype}_feature_idle", dtype, np.full((2, 1024), 0x8000 if dtype != "f32" else 0x80000000, ref.BITS[dtype]))
        t.edits = [{"do": [said("off")]}]
        t.expected = (t.bits, None)
        yield t


def part_tensors():
    """Columns and heads: sums run over them alone, and the others stay."""
    for dtype in ("f32", "bf16"):
        heads = "[{row: true, count: 'arg[3].u32'}, {count: 3}, {count: 64}]"

        def tensor(name, do, dims=None, n=192, **keys):
            t = Tensor(f"{dtype}_{name}", dtype, normal(4, n, dtype, 7), dims=dims)
            t.edits = [{"do": [do], **keys}]
            return t

        def added(t, take, v, c=1):
            wanted = t.x.copy()
            wanted[:, take] = ref.elementwise(t.x[:, take], ("add", ""), v, c, dtype)
            t.expected = (ref.stored(wanted, dtype), None)
            return t

        v = VECTORS
        yield added(tensor("columns", {"add": "short"}, columns="5,100:102,191"), [5, 100, 101, 191], v["short"][[5, 100, 101, 191]])
        yield added(tensor("columns_own", {"add": "three"}, columns="5,100,191"), [5, 100, 191], v["three"])
        yield added(tensor("every_head", {"add": "head"}, dims=heads), np.s_[:], np.tile(v["head"], 3))
        yield added(tensor("heads", {"add": "head", "times": 2}, dims=heads, heads="0,2"), [*range(64), *range(128, 192)], np.tile(v["head"], 2), 2)
        # of a vector as wide as the row each head takes its own part
        yield added(tensor("head_of_row", {"add": "short"}, dims=heads, heads="1:3"), np.s_[64:192], v["short"][64:])
        # columns are those of the row, also where a vector for them is as wide as a head
        four = "[{row: true, count: 'arg[3].u32'}, {count: 4}, {count: 4}]"
        yield added(tensor("columns_as_head", {"add": "four"}, dims=four, n=16, columns="2,7,12,15"), [2, 7, 12, 15], v["four"])
        yield added(tensor("columns_of_heads", {"add": "row"}, dims=four, n=16, columns="2,7,12,15"), [2, 7, 12, 15], v["row"][[2, 7, 12, 15]])
        by_launch = "[{row: true, count: 'arg[3].u32'}, {count: 'arg[3].u32 * %d'}]"  # a width that the HookSpec says would be refused before
        t = tensor("columns_no_fit", {"add": "four"}, dims=(by_launch % 1).replace("}]", "}, {count: 4}]"), n=16, columns="2,7")
        t.expected = (t.bits, None)
        yield t
        for name, keys in (("columns_beyond", {"columns": "192"}), ("heads_beyond", {"heads": "1,3"})):
            t = tensor(name, "zero", dims=heads, **keys)
            t.expected = (t.bits, None)
            yield t
        for name, do in (("width", {"add": "v"}), ("widths", {"add": "head"})):
            t = tensor(name, do, dims=by_launch % 48)
            t.expected = (t.bits, None)
            yield t
        t = tensor("columns_sum", along(("project_out", None), "three"), columns="5,100,191")
        near(t, t.x, t.x, ("project_out", None), v["three"], 1, np.s_[:, [5, 100, 191]])
        yield t
        t = tensor("heads_sum", along(("adjust_rs", 4.0), "head"), dims=heads, heads="1")
        near(t, t.x, t.x, ("adjust_rs", 4.0), v["head"], 1, np.s_[:, 64:128])
        yield t


def one_after_the_other():
    """Edits of other columns and heads, on the same elements."""
    for dtype in ("f32", "f16"):
        heads = "[{row: true, count: 'arg[3].u32'}, {count: 3}, {count: 200}]"
        t = Tensor(f"{dtype}_after", dtype, normal(3, 600, dtype, 8), dims=heads)
        t.edits = [{"do": [{"scale": 3}]}, {"do": [{"set": 7}], "columns": "300,599"}, {"do": [{"scale": 0.5}]}, {"do": [{"clamp": [-2, 2]}], "heads": "1:3"},
                   {"do": ["zero"], "columns": "5,450"}, {"do": [{"scale": -1}]}]
        x = ref.elementwise(t.x, ("scale", None), None, 3, dtype)
        x[:, [300, 599]] = 7
        x = ref.elementwise(x, ("scale", None), None, 0.5, dtype)
        x[:, 200:] = ref.elementwise(x[:, 200:], ("clamp", [-2, 2]), None, 1, dtype)
        x[:, [5, 450]] = 0
        t.expected = (ref.stored(-x, dtype), None)
        yield t


def layout_tensors():
    """Where rows lie: gaps, rows in the middle, two row dimensions, an odd address, slots of a paged cache."""
    lies = {
        "gaps": (np.arange(4)[:, None] * 40 + np.arange(24), "[{{row: true, count: 4, stride: 40 * {s}}}, {{count: 24, stride: {s}}}]", {}),
        "every_other": (np.arange(4)[:, None] * 64 + np.arange(24) * 2, "[{{row: true, count: 4, stride: 64 * {s}}}, {{count: 24, stride: 2 * {s}}}]", {}),
        "middle": ((np.arange(3)[:, None, None] * 4 + np.arange(4)[:, None]) * 8 + np.arange(8), "[{{count: 3}}, {{row: true, count: 4}}, {{count: 8}}]", {}),
        "two": (np.arange(2)[:, None, None] * 100 + np.arange(3)[:, None] * 30 + np.arange(24),
                "[{{row: true, count: 2, stride: 100 * {s}}}, {{row: true, count: 3, stride: 30 * {s}}}, {{count: 24, stride: {s}}}]", {}),
        "odd": (np.arange(4)[:, None] * 24 + np.arange(24) + 1, "[{{row: true, count: 4}}, {{count: 24}}]", {"offset": "{s}"}),
    }
    lies["middle"] = (lies["middle"][0].transpose(1, 0, 2), *lies["middle"][1:])
    for dtype in SIZE:
        for name, (index, dims, more) in lies.items():
            index = index.reshape(-1, 24)
            t = Tensor(f"{dtype}_{name}", dtype, normal(len(index), 24, dtype, 4), index, dims.format(s=SIZE[dtype]),
                       **{k: v.format(s=SIZE[dtype]) for k, v in more.items()})
            t.edits = [{"do": [{"add": "two_dozen", "times": -1.5}]}]
            t.expected = (ref.stored(ref.elementwise(t.x, ("add", ""), VECTORS["short"][:24], -1.5, dtype), dtype), None)
            yield t
        t = Tensor(f"{dtype}_many_rows", dtype, normal(3000, 4, dtype, 6))  # more than the kernel has blocks
        t.edits = [{"do": [{"add": "four"}]}]
        t.expected = (ref.stored(ref.elementwise(t.x, ("add", ""), VECTORS["four"], 1, dtype), dtype), None)
        yield t
        t = Tensor(f"{dtype}_middle_head", dtype, normal(4, 24, dtype, 4), lies["middle"][0].reshape(4, 24), lies["middle"][1].format())
        t.edits = [{"do": ["zero"], "heads": "1"}]
        wanted = t.bits.copy()
        wanted[:, 8:16] = 0
        t.expected = (wanted, None)
        yield t
        slots = [5, 0, -1, 3]
        t = Tensor(f"{dtype}_slots", dtype, normal(6, 24, dtype, 4), slots=slots,
                   dims="[{row: true, count: 4, slots: {pointer: 'arg[4]', dtype: i64}}, {count: 24}]")
        t.edits = [{"do": [{"scale": 2}]}]
        x = t.x.copy()
        x[[5, 0, 3]] *= 2
        t.expected = (ref.stored(x, dtype), None)
        yield t


def scaled_tensors():
    """True values are those that are stored, divided by the scale."""
    for dtype in SIZE:
        t = Tensor(f"{dtype}_scaled", dtype, normal(3, 192, dtype, 5), scale=0.25)
        t.edits = [{"do": [{"add": "short"}, {"clamp": [-6, 6]}]}]
        x = ref.elementwise(t.x, ("add", ""), VECTORS["short"], 1, dtype)
        t.expected = (ref.stored(ref.elementwise(x, ("clamp", [-6, 6]), None, 1, dtype) * np.float32(0.25), dtype), None)
        yield t
        t = Tensor(f"{dtype}_scaled_set", dtype, normal(3, 192, dtype, 5), scale=3.0)
        t.edits = [{"do": [{"set": 1.5}], "columns": "7:9"}]
        wanted = t.bits.copy()
        wanted[:, 7:9] = ref.stored(np.float32(4.5), dtype)
        t.expected = (wanted, None)
        yield t


@pytest.mark.parametrize("tensors", [sum_tensors, feature_tensors, part_tensors, one_after_the_other, layout_tensors, scaled_tensors], ids=lambda f: f.__name__)
def test_rows_and_their_parts(bench, tensors):
    result = both(bench, tensors(), vectors=dict(VECTORS, two_dozen=VECTORS["short"][:24]))
    bench.check(("do not suit rows of" in result.stderr) == (tensors is part_tensors), "edits that do not suit a tensor are named", result.stderr[-2000:])


# ------------------------------------------------------------------------- which rows

STEP = "forward: [{kind: step, begin: step}]\n"
LAYERS = np.random.default_rng(11).normal(size=(3, 24)).astype(np.float32)
WHO = [{"name": "calm", "site": "mlp", "requests": "a*", "tokens": "generated", "do": [{"add": "layered", "times": {"0": 2, "4": 0}}]},
       {"name": "half", "site": "mlp", "layers": "1", "tokens": "last", "do": [{"scale": 0.5}]},
       {"name": "tagged", "site": "mlp", "requests": "tag:team=x", "do": [{"add": "flat", "times": "tag:c"}]},
       {"name": "mark", "site": "mlp", "layers": "0,2", "tokens": "last_prompt", "columns": "3,7", "do": [{"set": 9}]},
       {"name": "early", "site": "mlp", "tokens": "-2:1", "do": [{"scale": -1}]}]
FLAT = np.random.default_rng(12).normal(size=24).astype(np.float32)


def wanted_row(x, layer, span, position, is_last, dtype):
    """A row after WHO, edit by edit, as docs/edits.md has it."""
    generated = position - span["n_prompt"]
    tags = json.loads(span["tags"]) if span["tags"] else {}
    if span["request"].startswith("a") and generated >= 0:
        x = ref.elementwise(x, ("add", ""), LAYERS[layer], np.interp(generated, [0, 4], [2, 0]), dtype)
    if layer == 1 and is_last:
        x = ref.elementwise(x, ("scale", None), None, 0.5, dtype)
    if tags.get("team") == "x" and isinstance(tags.get("c"), float):
        x = ref.elementwise(x, ("add", ""), FLAT, tags["c"], dtype)
    if layer != 1 and generated == -1:
        x = x.copy()
        x[[3, 7]] = 9
    if generated >= -2 and position < 1:
        x = ref.elementwise(x, ("scale", None), None, -1, dtype)
    return x


def random_steps(n):
    """Prompts in chunks, then tokens, of three requests, in any order, with rows of nobody's between and after them."""
    dice = np.random.default_rng(13)
    at = {"a1": 0, "b2": 0, "a3": 0}
    prompts = {"a1": 5, "b2": 2, "a3": 1}
    tags = {"a1": '{"team": "x", "c": 1.5}', "b2": None, "a3": '{"team": "x", "c": "no number"}'}
    for _ in range(n):
        spans, row = [], 0
        for name in dice.permutation(list(at)):
            request = str(name)
            left = prompts[request] - at[request]
            n_tokens = int(dice.integers(1, left + 1)) if left > 0 else int(dice.integers(0, 2))
            row += int(dice.integers(0, 2))
            if n_tokens:
                spans.append({"request": request, "first_position": at[request], "n_tokens": n_tokens, "first_row": row, "n_prompt": prompts[request],
                              "tags": tags[request]})
            at[request] += n_tokens
            row += n_tokens
        if row < 16:
            spans.append({"request": None, "first_position": 0, "n_tokens": 16 - row, "first_row": row, "flags": 1})
        yield {"spans": spans, "n_rows": 16}


def rows_of_nobody(dtype):
    """Elements that are -0.0, and NaN with bits of their own, among others: of rows that no edit takes each bit stays."""
    bits = normal(16, 24, dtype, 21)
    bits[:, 5] = {"f32": 0x80000000, "f16": 0x8000, "bf16": 0x8000}[dtype]
    bits[:, 6] = {"f32": 0xffc01234, "f16": 0x7d55, "bf16": 0x7fa5}[dtype]
    return bits


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_rows_of_requests_and_tokens(bench, dtype):
    tensors = [Tensor(f"mlp_{i}", dtype, rows_of_nobody(dtype), place=False) for i in range(3)]
    site = Tensor("mlp", dtype, tensors[0].bits, kernel="'^mlp_[012]$'", layer="occ").site().replace("kernel: '^mlp$'\n    ", "")
    play = Play(bench, tensors, sites=[site], edits=WHO, vectors={"layered": LAYERS, "flat": FLAT}, head=STEP)
    steps = list(random_steps(24))
    for i, said in enumerate(steps):
        play.round("graph" if i % 2 else "eager", said)
    play.run()
    for i, said in enumerate(steps):
        expected = {}
        for layer, t in enumerate(tensors):
            wanted = t.bits.copy()
            for span in said["spans"]:
                for k in range(span["n_tokens"] if span["request"] else 0):
                    row, last = span["first_row"] + k, k == span["n_tokens"] - 1
                    after = wanted_row(t.x[row], layer, span, span["first_position"] + k, last, dtype)
                    wanted[row] = wanted[row] if after is t.x[row] or np.array_equal(after, t.x[row], equal_nan=True) else ref.stored(after, dtype)
            expected[t.name] = (wanted, None)
        play.compare(i, f"step {i}, {'graph' if i % 2 else 'eager'}", expected)


@pytest.mark.parametrize("seed", ["1", pytest.param("2", marks=pytest.mark.long), pytest.param("3", marks=pytest.mark.long)])
@pytest.mark.parametrize("how", ["eager", "graph"])
def test_many_steps_in_flight(bench, how, seed):
    """Each step has rows and a coefficient of its own, and nobody waits for one before the next: what is added in the end is all of them."""
    dice, n_steps = np.random.default_rng(int(seed)), 200
    t = Tensor("k", "f32", ref.stored(np.zeros((16, 24)), "f32"), stays=True)
    t.edits = [{"tokens": "generated", "requests": "a", "do": [{"add": "one", "times": {"0": 0, "1000": 1000}}]},
               {"requests": "b", "do": [{"add": "one", "times": "tag:c"}], "tokens": "last"}]
    play = Play(bench, [t], vectors={"one": np.ones(24)})
    wanted = np.zeros(16)
    for i in range(n_steps):
        n, first, c = int(dice.integers(1, 6)), int(dice.integers(0, 6)), int(dice.integers(1, 9))
        spans = [{"request": "a", "first_position": 10 + i, "n_tokens": n, "first_row": first, "n_prompt": 10},
                 {"request": "b", "first_position": 0, "n_tokens": n, "first_row": first + n, "tags": f'{{"c": {c}}}'}]
        wanted[first:first + n] += i + np.arange(n)
        wanted[first + 2 * n - 1] += c
        play.round(how, {"spans": spans, "n_rows": 16}, out=i + 1 == n_steps, data=None if i else str(play.folder / "data"))
    play.run(DMI_STANDIN_DELAY_SEED=seed)
    play.compare(n_steps - 1, "all steps", {"k": (ref.stored(np.repeat(wanted[:, None], 24, 1), "f32"), None)})


def test_tensors_of_more_or_fewer_rows_than_the_step(bench):
    """Rows that a tensor does not have are not written beyond its end; rows that the step does not have are nobody's."""
    rows = {"none": 0, "two": 2, "four": 4, "empty": 0}
    tensors = [Tensor(name, "bf16", normal(4, 24, "bf16", 3)) for name in rows]
    tensors[3].dims = "[{row: true, count: 4}, {count: 3}, {count: 'arg[3].u32'}]"  # rows without elements
    edits = [dict({"name": t.name, "site": t.name, "do": [{"set": 7}]}, **({"heads": "0"} if t.name == "empty" else {})) for t in tensors]
    play = Play(bench, tensors, edits=edits)
    for k, n in zip(play.kernels, rows.values()):
        k["rows"] = n
    said = {"spans": [{"request": "a", "first_position": 0, "n_tokens": 2, "first_row": 1}], "n_rows": 8}
    for said_rows in (said, {"spans": [dict(said["spans"][0], n_tokens=7)], "n_rows": 8}, None):
        for how in ("eager", "graph"):
            play.round(how, said_rows)
    play.run()
    for i in range(6):
        first, end = ((1, 3), (1, 8), (0, 8))[i // 2]
        expected = {}
        for name, n in rows.items():
            wanted = tensors[0].bits.copy()
            wanted[first:min(end, n)] = ref.stored(np.float32(7), "bf16")
            expected[name] = (wanted, None)
        play.compare(i, f"round {i}", expected)


PARTS = [2, 1, 3]  # heads of 16 elements that each of three ranks has
RANKED = {"row": ([{"add": "whole"}], {}), "head": ([{"add": "head"}], {}), "along_heads": ([{"project_out": "head"}], {}), "heads": (["zero"], {"heads": "1,2,5"}),
          "one_head": ([{"patch": "head"}], {"heads": "2"}), "columns": ([{"set": "three"}], {"columns": "5,80,95"}), "columns_of": ([{"add": "whole"}], {"columns": "31,32,47,48"}),
          "across": ([{"project_out": "whole"}], {}), "across_columns": ([{"adjust_rs": "three", "to": 1}], {"columns": "5,40,95"}), "wide": ([{"add": "other"}], {})}


def of_all_ranks(name, x):
    """What one process makes of rows of 96 elements. None: ranks cannot do it."""
    v = {"whole": wide(96, 41), "head": wide(16, 42), "three": wide(3, 43)}
    if name in ("across", "across_columns", "wide"):
        return None
    y = x.copy()
    if name == "along_heads":
        u = (v["head"] / np.linalg.norm(v["head"])).astype(np.float32)
        for i in range(6):
            y[:, 16 * i:16 * i + 16] -= (y[:, 16 * i:16 * i + 16] @ u)[:, None] * u
    elif name == "heads":
        y[:, np.r_[16:48, 80:96]] = 0
    elif name == "one_head":
        y[:, 32:48] = v["head"]
    elif name == "columns":
        y[:, [5, 80, 95]] = v["three"]
    elif name == "columns_of":
        y[:, [31, 32, 47, 48]] += v["whole"][[31, 32, 47, 48]]
    else:
        y += v["whole"] if name == "row" else np.tile(v["head"], 6)
    return y


@pytest.mark.parametrize("rank", range(3))
def test_parts_of_ranks(bench, rank):
    """A rank writes its part of what one process writes: vectors, columns and heads are cut where its heads begin and end, and what has a sum over more is missed."""
    first, n = 16 * sum(PARTS[:rank]), 16 * PARTS[rank]
    whole = normal(4, 96, "f32", 44)
    x, tensors = ref.values(whole, "f32"), []
    for name in RANKED:
        t = Tensor(name, "f32", whole[:, first:first + n].copy(), dims=f"[{{row: true, count: 'arg[3].u32'}}, {{count: {PARTS[rank]}}}, {{count: 16}}]",
                   shard=f"{{dim: 1, of: tp, parts: {PARTS}}}")
        y = of_all_ranks(name, x)
        t.edits = [dict({"do": RANKED[name][0], "requests": "a"}, **RANKED[name][1])]
        t.expected = (t.x if y is None else y[:, first:first + n], np.full(t.bits.shape, 0 if name != "along_heads" else 1e-5))
        tensors.append(t)
    summand = [Tensor(f"summand_{op}", "f32", whole, shard="{sum: tp}") for op in ("add", "scale")]
    summand[0].edits, summand[1].edits = [{"do": [{"add": "whole"}], "requests": "a"}], [{"do": [{"scale": 2}], "requests": "a"}]
    summand[0].expected = (x + wide(96, 41) if rank == 0 else x, np.zeros(x.shape))
    summand[1].expected = (x, np.zeros(x.shape))
    play = Play(bench, tensors + summand, vectors={"whole": wide(96, 41), "head": wide(16, 42), "three": wide(3, 43), "other": wide(95, 45)}, head=STEP)
    said = {"spans": [{"request": "a", "first_position": 7, "n_tokens": 4, "first_row": 0}], "n_rows": 4, "ranks": ((rank, 3), (0, 1), (0, 1), (0, 1))}
    for how in ("eager", "graph"):
        play.round(how, said)
    result = play.run()
    for i, how in enumerate(("eager", "graph")):
        play.compare(i, f"rank {rank}, {how}")
    here = {"one_head": rank == 1, "summand_add": rank == 0, "columns": rank != 1}
    accounts = Accounts(result.folders[0] / "edits")
    for t in tensors + summand:
        reason = {"across": "rank", "across_columns": "rank", "summand_scale": "rank", "wide": "width"}.get(t.name)
        due = 8 * here.get(t.name, True)
        bench.check(accounts.of(f"{t.name}-0") == (due, 0 if reason else due, {reason: due} if reason else {}), f"{t.name}: accounts", accounts.of(f"{t.name}-0"))
    for words in ('"across-0" writes nothing here: it needs a sum over a row that ranks divide', '"summand_scale-0" writes nothing here: each rank of tp has a summand'):
        bench.check(words in result.stderr, "why is said", result.stderr[-3000:])


ALONE = 3  # the row of request r3, of eight


def alone_tensors():
    """What each operation does to one row, while no other row may be touched; columns and a head of it; a sum with a second tensor; a row that is kept."""
    every = {"add": [{"add": "page"}], "scale": [{"scale": 0.5}], "set": [{"set": 2}], "zero": ["zero"], "clamp": [{"clamp": [-1, 1]}],
             "project_out": [{"project_out": "page"}], "adjust_rs": [{"adjust_rs": "page", "to": 2.5}], "limit_along": [{"limit_along": "page", "between": [9, 10]}],
             "patch": [{"patch": "page"}], "keep_norm": [{"add": "page"}, "keep_norm"], "save": [{"save": "kept"}], "given": [{"patch": "bank:kept"}],
             "feature": [{"feature": "page", "encoder": "page", "to": 2}]}
    for name, do in every.items():
        t = Tensor(name, "f32", normal(8, 1024, "f32", 30 + len(name)), alone=ALONE)
        t.edits = [{"do": do, "requests": f"r{ALONE}"}]
        yield t
    for name, more, part in (("columns", {}, {"columns": "1,1023"}), ("plus", {"plus": "arg[1]"}, {}),
                             ("head", {"dims": "[{row: true, count: 'arg[3].u32'}, {count: 16}, {count: 128}]"}, {"heads": "15"})):
        t = Tensor(name, "bf16", normal(8, 2048, "bf16", 32), alone=ALONE, **({"dims": more.pop("dims")} if "dims" in more else {}), **more)
        t.edits = [dict({"do": ["zero"], "requests": f"r{ALONE}"}, **part)]
        yield t


def test_rows_of_others_are_not_touched(bench):
    """No byte of another row is read or written: its page is an illegal address meanwhile. That an edit of another row is one shows that this is seen."""
    tensors = list(alone_tensors())
    said = {"spans": [{"request": f"r{i}", "first_position": 7, "n_tokens": 1, "first_row": i, "n_prompt": 4} for i in range(8)], "n_rows": 8}
    for wrong in (False, True):
        edits = [dict(e, name=t.name, site=t.name) for t in tensors for e in t.edits]
        if wrong:
            edits[0]["requests"] = f"r{ALONE + 1}"
        play = Play(bench, tensors, edits=edits, vectors={"page": wide(1024, 33)}, head=STEP + "edits: {bytes: 4M, bank: 4M}\n")
        others = [[at + row * PAGE, PAGE] for t in tensors for at in play.at[t.name] for row in range(8) if row != ALONE]
        for how in ("eager", "graph"):
            play.round(how, said, forbid=others)
        result = play.run(fails=wrong)
        if wrong:
            bench.check(result.code != 0 and "CUDA_ERROR_ILLEGAL_ADDRESS" in result.stderr, "a row whose page is forbidden is one", result.stderr[-500:])
            continue
        for i, t in ((i, t) for i in range(2) for t in tensors):
            before, after = (np.frombuffer(data, ref.BITS[t.dtype], t.n_bytes // SIZE[t.dtype], play.at[t.name][0])[t.index]
                             for data in (bytes(play.memory.bytes), pathlib.Path(play.rounds[i]["out"]).read_bytes()))
            bench.check(np.array_equal(np.delete(after, ALONE, 0), np.delete(before, ALONE, 0)), f"{t.name}: other rows keep their bits")
            bench.check(np.array_equal(after[ALONE], t.bits[ALONE]) == (t.name == "save"), f"{t.name}: its row is written", after[ALONE][:8])


# ------------------------------------------------------------------------- beside captures, before and after kernels

def test_captures_beside_edits(bench):
    """capture: says whether a record shows the tensor before or after the edit; when: on which side of the kernel both are."""
    said = (("after", {"capture": "after"}), ("before", {"capture": "before"}), ("none", {}), ("read", {"before": True, "capture": "after"}),
            ("read_first", {"before": True, "capture": "before"}))
    tensors = [Tensor(name, "bf16", normal(3, 24, "bf16", i), **more) for i, (name, more) in enumerate(said)]
    for t in tensors:
        t.edits = [{"do": [{"scale": 3}]}]
        t.expected = (ref.stored(t.x * 3, "bf16"), None)
    play = Play(bench, tensors)
    for how in HOWS:
        play.round(how)
    run = play.run().run()
    for i, how in enumerate(HOWS):
        play.compare(i, how)
    sites = {"after": (1, True), "before": (2, False), "read": (6, True), "read_first": (7, False)}  # of each place the one that is captured
    for t in tensors:
        if t.name in sites:
            number, edited = sites[t.name]
            wanted = (t.expected[0] if edited else t.bits).tobytes()
            bench.check([r.data for r in run.of(number)] == [wanted] * len(HOWS), f"{t.name}: records show it {'after' if edited else 'before'} the edit",
                        [r.data.hex()[:40] for r in run.of(number)])
    bench.check(not run.balance() and {r.site for r in run.records} == {n for n, _ in sites.values()}, "no other site has records", run.balance())


def test_places_at_one_kernel(bench):
    """Two on one tensor, whose order is the HookSpec's, though the edits have another; two on two tensors."""
    t, other = Tensor("k", "f32", normal(3, 24, "f32"), place=False), Tensor("m", "f32", normal(3, 24, "f32", 1), place=False)
    sites = [Tensor(name, "f32", t.bits, pointer=pointer, kernel=kernel).site().replace(f"kernel: '^{name}$'\n    ", "")
             for name, kernel, pointer in (("first", "'^k$'", "arg[0]"), ("second", "'^k$'", "arg[0]"), ("to", "'^m$'", "arg[0]"), ("from", "'^m$'", "arg[1]"))]
    edits = [{"name": f"e{i}", "site": site, "do": [do]} for i, (site, do) in enumerate((("second", {"scale": 2}), ("first", {"add": "v"}),
                                                                                          ("from", {"set": 5}), ("to", {"scale": -1})))]
    play = Play(bench, [t, other], sites=sites, edits=edits, vectors={"v": VECTORS["short"][:24]})
    added = ref.elementwise(t.x, ("add", ""), VECTORS["short"][:24], 1, "f32")
    t.expected = (ref.stored(added * 2, "f32"), None)
    other.expected, other.read = (ref.stored(-other.x, "f32"), None), (ref.stored(np.full((3, 24), 5), "f32"), None)
    for how in HOWS:
        play.round(how)
    play.run()
    for i, how in enumerate(HOWS):
        play.compare(i, how)


# ------------------------------------------------------------------------- what goes wrong beside edits

def counting(name, **more):
    """A tensor to which each launch adds one."""
    t = Tensor(name, "f32", ref.stored(np.zeros((4, 24)), "f32"), stays=True, **more)
    t.edits = [{"do": [{"add": "one"}]}]
    return t


def counted(n):
    return (ref.stored(np.full((4, 24), n), "f32"), None)


FULL = "ring: {bytes: 4096, slots: 2}\noverload: {mode: drop}\n"


def test_a_full_ring_stops_no_edit(bench):
    t = counting("k", capture="after")
    play = Play(bench, [t], vectors={"one": np.ones(24)}, head=FULL)
    play.round("eager", times=40)
    play.round("graph", times=40)
    run = play.run(DMI_STANDIN_DTOH_LATENCY_NS=400000000).run()
    for i in range(2):
        play.compare(i, "each launch", {"k": counted(40)})
    bench.check(sum(tally.records for tally in run.counters.dropped[1].values()) > 10 and not run.balance(), "records are dropped", run.counters.dropped)


def test_shedding_takes_no_row_from_an_edit(bench):
    t = counting("k", capture="after")
    play = Play(bench, [t], vectors={"one": np.ones(24)}, head="ring: {bytes: 4096, slots: 64}\noverload: {mode: best-effort}\n")
    said = {"spans": [{"request": "a", "first_position": 0, "n_tokens": 3}, {"request": "b", "first_position": 0, "n_tokens": 1, "first_row": 3}], "n_rows": 4}
    for i in range(60):
        play.round("graph" if i % 2 else "eager", said, out=i == 59, data=None if i else str(play.folder / "data"))
    run = play.run(DMI_STANDIN_DTOH_BPS=30000).run()
    play.compare(59, "each launch", {"k": counted(60)})
    bench.check("shed" in run.counters.dropped[1] and run.counters.dropped[1]["shed"].rows and not run.balance(), "records are shed", run.counters.dropped)


def test_launches_that_the_driver_refuses(bench):
    """Nothing is edited for them, and those after them are edited as before."""
    good, bad = counting("k"), counting("bad")
    play = Play(bench, [good, bad], vectors={"one": np.ones(24)})
    play.kernels[1]["refused"] = True
    play.round("eager", times=3)
    play.round("graph", launches=[0], times=2, data=None, refused=True)
    play.round("graph", launches=[0], times=2, data=None)
    result = play.run(DMI_STANDIN_FAIL="cuGraphLaunch:2:1")
    play.compare(0, "eager", {"k": counted(3), "bad": counted(0)})
    play.compare(1, "in a graph", {"k": counted(4), "bad": counted(0)})
    play.compare(2, "later", {"k": counted(6), "bad": counted(0)})
    bench.check(result.stdout == "1\n1\n1\n0\n1\ndone\n", "the program sees what the driver answers", result.stdout)


def test_an_edit_that_the_driver_refuses(bench):
    """The program does not see it, and the next launches are edited."""
    play = Play(bench, [counting("k")], vectors={"one": np.ones(24)})
    play.round("eager", times=3)
    said = play.run(DMI_STANDIN_FAIL="cuLaunchKernel:4:999").stderr  # every second one is the library's
    play.compare(0, "the others", {"k": counted(2)})
    bench.check("999" in said, "it is named", said)


def test_tensors_that_do_not_lie_in_memory(bench):
    """Of a pointer to nothing, and of rows beyond the allocation, nothing is written; others are, and the program goes on."""
    tensors = [counting(name) for name in ("nowhere", "beyond", "good")]
    play = Play(bench, tensors, vectors={"one": np.ones(24)})
    play.kernels[0].update({"to": 1 << 44, "words": 0})
    play.kernels[1].update({"rows": 1 << 20})
    for how in ("eager", "graph"):
        play.round(how, times=2)
    said = play.run().stderr
    for i in range(2):
        play.compare(i, "what is written", {"nowhere": counted(0), "beyond": counted(0), "good": counted(2)})
    bench.check(said.count("lies outside a live device allocation") >= 2, "both are named", said)


def test_a_graph_that_is_left_alone(bench):
    """The library cannot put edits into it, says so, and the graph runs as it is."""
    t = counting("k", capture="after")
    play = Play(bench, [t], vectors={"one": np.ones(24)})
    play.round("left_alone", times=3)
    play.round("eager", data=None)
    result = play.run()
    play.compare(0, "left alone", {"k": counted(0)})
    play.compare(1, "eager", {"k": counted(1)})
    bench.check("left alone" in result.stderr, "it is named", result.stderr)


def test_files_that_hold_no_edits(bench):
    """The library says so, and the program runs as it is."""
    t = counting("k")
    play = Play(bench, [t], vectors={"one": np.ones(24)})
    play.round("eager", times=3)
    play.round("graph", data=None)
    good = play.pack({})
    edits = play.folder / "cut"
    edits.write_bytes(good.read_bytes()[:-5])
    for path, said in ((edits, "expected a file that dmi-run or dmi-ctl wrote"), (play.folder / "missing", "cannot be read"),
                       (play.folder, "cannot be read")):
        result = play.start(path)
        bench.check(result.code == 0 and said in result.stderr and "no edit is in force" in result.stderr, f"{path.name}: it is named", result.stderr)
        play.compare(1, path.name, {"k": counted(0)})
    play.spec = "hookspec: 1\nedits: {bytes: 64K}\n" + play.spec.partition("\n")[2]
    play.vectors["large"] = {"file": "large.npy"}
    np.save(play.folder / "large.npy", np.ones((900, 24), np.float32))
    play.edits.append({"name": "large", "site": "k", "do": [{"add": "large"}]})
    result = play.start(play.pack({}))
    bench.check("\"edits: {bytes: ...}\" of the HookSpec leaves less: no edit is in force" in result.stderr, "room that does not do is named", result.stderr)
    play.compare(1, "without room", {"k": counted(0)})


# ------------------------------------------------------------------------- the reference itself

TORCH = """
import pathlib, sys
import torch
folder = pathlib.Path(sys.argv[1])

def read(name, dtype):
    return torch.frombuffer(bytearray((folder / name).read_bytes()), dtype=dtype)

def write(name, x):
    (folder / name).write_bytes(bytes(x.contiguous().view(torch.uint8).flatten().tolist()))

for name, dtype in (("f32", torch.float32), ("f16", torch.float16), ("bf16", torch.bfloat16)):
    x = read(f"x.{name}", dtype).reshape(-1, 1024)
    v = read("v", torch.float32).to(dtype)
    for i, (op, value, c) in enumerate(OPERATIONS):
        y = {"add": lambda: x + c * v, "scale": lambda: c * x, "patch": lambda: v.expand_as(x) if c == 1 else (1 - c) * x + c * v,
             "set": lambda: (v if value == "v" else torch.tensor(value, dtype=dtype)).expand_as(x),
             "zero": lambda: torch.zeros_like(x), "clamp": lambda: x.clamp(*value)}[op]()
        write(f"y.{name}.{i}", y)
"""


@pytest.mark.long
def test_the_reference_is_pytorchs(tmp_path, check):
    """What the other tests compare with rounds as PyTorch's own operations do, on all values of f16 and bf16."""
    import torch_env
    python, env = torch_env.python_with_torch()
    (tmp_path / "v").write_bytes(wide().tobytes())
    for dtype in SIZE:
        (tmp_path / f"x.{dtype}").write_bytes(all_values(dtype).tobytes())
    operations = [(kind, value, c) for (kind, value), c in ELEMENTWISE]
    program = torch_env.PREAMBLE + TORCH.replace("OPERATIONS", repr(operations))
    subprocess.run([python, "-c", program, tmp_path], env=env, check=True, timeout=300)
    for dtype in SIZE:
        x = all_values(dtype)
        for i, (op, c) in enumerate(ELEMENTWISE):
            if (op[0], c) in (("add", 0), ("scale", 1), ("patch", 0)):  # PyTorch writes x + 0 there, edits write nothing
                continue
            wanted = np.frombuffer((tmp_path / f"y.{dtype}.{i}").read_bytes(), ref.BITS[dtype]).reshape(x.shape)
            got = ref.stored(ref.elementwise(ref.values(x, dtype), op, wide() if op[1] == "v" else None, c, dtype), dtype)
            nan = np.isnan(ref.values(got, dtype)) & np.isnan(ref.values(wanted, dtype))
            bad = (got != wanted) & ~nan
            check(not bad.any(), f"{dtype} {op} {c}", [(hex(a), hex(b), hex(w)) for a, b, w in zip(x[bad][:5], got[bad][:5], wanted[bad][:5])])
