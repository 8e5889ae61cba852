# SPDX-License-Identifier: Apache-2.0
"""dmi-sites match on recordings of an engine that never was: it writes what the reference holds, as a test wants it laid
out.  Two prompts are served, each in two pieces, and three more tokens; what is written is blocks, as the recorder writes them."""
import os
import pty
import re
import resource
import struct
import subprocess

import numpy as np
import pytest
from safetensors.numpy import save_file

from harness import BUILD, DMI_RUN, run
from recordings import Writer

SITES = BUILD / "tools" / "dmi-sites"
pytestmark = pytest.mark.built(SITES, DMI_RUN)
LAYERS, WIDTH, TOKENS, BLOCK = 3, 64, 12, 4096
PLAN = [("a", 0, 3), ("a", 3, 5), ("a", 8, 1), ("a", 9, 1), ("b", 0, 4), ("b", 4, 2), ("b", 6, 1)]


EXPERTS = 8


def narrow(width, seed=19, whole=False, experts=EXPERTS, layers=LAYERS):
    """{a/few.0 ...}: @width floats a row, or the numbers of @width experts, none of them twice."""
    rng = np.random.default_rng(seed)
    return {f"{r}/few.{i}": np.array([rng.permutation(experts)[:width] for _ in range(TOKENS)], np.int32) if whole
            else rng.random(size=(TOKENS, width)).astype(np.float32) for r in "ab" for i in range(layers)}


def reference(seed=1, sites=("h", "q", "out"), layers=LAYERS, width=WIDTH):
    rng = np.random.default_rng(seed)
    tensors = {f"{r}/{s}.{i}": rng.normal(size=(TOKENS, width)).astype(np.float32)
               for r in "ab" for s in sites for i in range(layers)}
    return tensors | {f"{r}/embed": rng.normal(size=(TOKENS, width)).astype(np.float32) for r in "ab"}


def bf16(x):
    return ((np.ascontiguousarray(x, np.float32).view(np.uint32) + 0x8000) >> 16).astype(np.uint16)


def f8(x, exponent_bits):
    """The nearest of the 256 values of an 8-bit float, as bytes; what is too large becomes the largest."""
    mantissa_bits, code = 7 - exponent_bits, np.arange(128)
    exponent, mantissa, bias = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1), (1 << (exponent_bits - 1)) - 1
    size = np.where(exponent == 0, mantissa * 2.0 ** (1 - bias - mantissa_bits),
                    (1 + mantissa * 2.0 ** -mantissa_bits) * 2.0 ** (exponent - bias))
    size = size[:127] if exponent_bits == 4 else size[:124]  # the others are NaN and infinity
    at = np.abs(np.abs(x)[..., None] - size).argmin(-1)
    return (at | np.where(x < 0, 128, 0)).astype(np.uint8)


class Engine:
    """Device memory, and launches that write into it."""

    def __init__(self, folder, ref, plan=PLAN):
        self.folder, self.ref, self.plan = folder, ref, plan
        self.writer, self.memory = Writer(folder / "rec"), {}
        self.next = 0x7f0000000000

    def alloc(self, n):
        base, self.next = self.next, self.next + n + 3 * BLOCK
        self.memory[base] = bytearray(n)
        return base, base, n

    def at(self, buffer, offset):
        return buffer[0] + offset, *buffer[1:]

    def poke(self, writes):
        """Blocks that @writes, [(address, bytes)], change."""
        touched = set()
        for address, data in writes:
            base = max(b for b in self.memory if b <= address)
            memory, at = self.memory[base], address - base
            assert at + len(data) <= len(memory)
            for i in range(at // BLOCK, (at + len(data) - 1) // BLOCK + 1):
                old = bytes(memory[i * BLOCK:(i + 1) * BLOCK])
                memory[max(at, i * BLOCK):min(at + len(data), (i + 1) * BLOCK)] = \
                    data[max(0, i * BLOCK - at):max(0, (i + 1) * BLOCK - at)]
                if memory[i * BLOCK:(i + 1) * BLOCK] != old:
                    touched.add((base, i))
        return [(b + i * BLOCK, bytes(self.memory[b][i * BLOCK:(i + 1) * BLOCK])) for b, i in sorted(touched)]

    def launch(self, name, args, writes=(), **more):
        self.writer.launch(name, args, after=self.poke([(a, np.ascontiguousarray(x).tobytes()) for a, x in writes]), **more)

    def rows(self, site, layer, request, first, n):
        key = f"{request}/{site}" + ("" if layer is None else f".{layer}")
        return self.ref[key][first:first + n]

    def serve(self, layer_of_forward, before=lambda *_: None):
        """embed, then what @layer_of_forward(engine, i, request, first, n) launches, for each forward of the plan."""
        x = self.alloc(32 * WIDTH * 4)
        for request, first, n in self.plan:
            before(self, request, first, n)
            self.launch("embed", [x, n], [(x[0], self.rows("embed", None, request, first, n))])
            for i in range(LAYERS):
                layer_of_forward(self, i, request, first, n)
        self.writer.close()

    def match(self, ref=None, code=0):
        save_file(ref or self.ref, self.folder / "ref")
        result = run([SITES, "match", self.folder / "rec", "--reference", self.folder / "ref", "-o", self.folder / "spec.yaml"],
                     check=False, timeout=120)
        assert result.returncode == code, (result.returncode, result.stdout, result.stderr)
        if not code:
            run([DMI_RUN, "--spec", self.folder / "spec.yaml", "--check"], timeout=60)
        return Spec((self.folder / "spec.yaml").read_text() if not code else "", result.stdout + result.stderr)


class Spec:
    """The sites of a spec as texts by name."""

    def __init__(self, text, report):
        self.text, self.report, self.sites = text, report, {}
        for block in re.split(r"\n  - name: ", text.split("\nabsent:")[0])[1:]:
            self.sites.setdefault(block.split("\n")[0], []).append(block)
        self.absent = re.findall(r"  - \{name: (\w+),", text)

    def only(self, name):
        assert len(self.sites.get(name, [])) == 1, (name, self.text, self.report)
        return self.sites[name][0]

    def says(self, name, *words):
        site = self.only(name)
        missing = [w for w in words if w not in site]
        assert not missing, (missing, site, self.report)


@pytest.fixture
def engine(tmp_path):
    return Engine(tmp_path, reference())


def test_rows_side_by_side(engine):
    """The count follows a number of the launch, the layer the occurrence."""
    q = engine.alloc(32 * WIDTH * 4)
    engine.serve(lambda e, i, *r: e.launch("proj", [q, 7, r[2]], [(q[0], e.rows("q", i, *r))]))
    spec = engine.match()
    spec.says("q", "kernel: '^proj$'", "pointer: arg[0]\n", "dtype: f32", "{row: true, count: 'arg[2].i32'}, {count: 64}]",
              "occurrences: {expect: 3}", "layer: occ\n")
    spec.says("embed", "kernel: '^embed$'", "count: 'arg[1].i32'")
    assert "offset" not in spec.only("q") and "{kind: any, begin: {kernel: '^embed$'}}" in spec.text
    assert spec.absent == ["h", "out"] or sorted(spec.absent) == ["h", "out"]


@pytest.mark.parametrize("dtype, convert", [("f16", lambda x: x.astype(np.float16)), ("bf16", bf16), ("f64", lambda x: x.astype(np.float64)),
                                            ("f8e4m3", lambda x: f8(x, 4)), ("f8e5m2", lambda x: f8(x, 5))])
def test_types(engine, dtype, convert):
    q = engine.alloc(32 * WIDTH * 4)
    engine.serve(lambda e, i, *r: e.launch("proj", [q, r[2]], [(q[0], convert(e.rows("q", i, *r)))]))
    engine.match().says("q", f"dtype: {dtype}", "{row: true, count: 'arg[1].i32'}, {count: 64}]")


def test_8_bits_in_another_scale(engine):
    """As an engine writes what it multiplies: 448 stands for the largest value that there can be."""
    q = engine.alloc(32 * WIDTH * 4)
    engine.serve(lambda e, i, *r: e.launch("quantise", [q, r[2]], [(q[0], f8(e.rows("q", i, *r) * 64, 4))]))
    engine.match().says("q", "dtype: f8e4m3", "scale: 64", "{row: true, count: 'arg[1].i32'}, {count: 64}]")


@pytest.mark.parametrize("width, dtype", [(1, np.float32), (2, np.float32), (3, np.float16), (4, np.float64), (7, np.float32)])
def test_rows_of_few_floats(engine, width, dtype):
    """A row of 3 alone says little, all rows of all forwards enough."""
    engine.ref |= narrow(width)
    few, rng = engine.alloc(32 * width * 8), np.random.default_rng(23)
    noise = engine.alloc(1 << 16)

    def layer(e, i, *r):
        e.launch("noise", [noise], [(noise[0], rng.random(size=1 << 14).astype(np.float32))])
        e.launch("topk", [few, r[2]], [(few[0], e.rows("few", i, *r).astype(dtype))])
    engine.serve(layer)
    spec = engine.match()
    spec.says("few", "kernel: '^topk$'", "pointer: arg[0]\n", f"dtype: f{8 * np.dtype(dtype).itemsize}\n", "layer: occ\n",
              "count: 'arg[1].i32'" + (f"}}, {{count: {width}}}]" if width > 1 else "}]"))
    assert "few" not in spec.absent and "by chance" not in spec.report, spec.report


@pytest.mark.parametrize("width, dtype", [(1, np.int64), (2, np.int32), (3, np.int64), (8, np.int32)])
def test_integers_in_a_row(engine, width, dtype):
    """The numbers of the experts that a router chose, of 8; small integers lie everywhere else, too."""
    engine.ref |= narrow(width, whole=True)
    few, rng = engine.alloc(32 * width * 8), np.random.default_rng(29)
    noise = engine.alloc(1 << 14)

    def layer(e, i, *r):
        e.launch("noise", [noise], [(noise[0], rng.integers(0, EXPERTS, size=(1 << 14) // np.dtype(dtype).itemsize).astype(dtype))])
        e.launch("topk", [few, r[2]], [(few[0], e.rows("few", i, *r).astype(dtype))])
    engine.serve(layer)
    kind = f"{np.dtype(dtype).kind}{8 * np.dtype(dtype).itemsize}"
    engine.match().says("few", "kernel: '^topk$'", "pointer: arg[0]\n", f"dtype: {kind}\n", "layer: occ\n",
                        "count: 'arg[1].i32'" + (f"}}, {{count: {width}}}]" if width > 1 else "}]"))


def test_few_values_of_wider_rows(engine):
    """Rows of 24 bytes: 8 of others, 3 of the router's."""
    engine.ref |= narrow(3)
    few, rng = engine.alloc(32 * 24), np.random.default_rng(31)

    def layer(e, i, *r):
        x = rng.normal(size=(r[2], 6)).astype(np.float32)
        x[:, 2:5] = e.rows("few", i, *r)
        e.launch("topk", [r[2], few], [(few[0], x)])
    engine.serve(layer)
    engine.match().says("few", "pointer: arg[1]", "offset: '8'", "{row: true, count: 'arg[0].i32', stride: '24'}", "{count: 3}")


def test_few_values_of_the_last_token(engine):
    engine.ref |= narrow(3)
    few = engine.alloc(32 * 3 * 4)
    engine.serve(lambda e, i, request, first, n: e.launch("head", [few, n], [(few[0], e.rows("few", i, request, first + n - 1, 1))]))
    engine.match().says("few", "row: request", "count: '1'")


def test_few_values_that_the_reference_has_of_the_last_token(engine):
    """All forwards have 4 tokens: nothing but the reference says that one row is all there is."""
    engine.plan = [("a", 0, 4), ("a", 4, 4), ("a", 8, 4), ("b", 0, 4), ("b", 4, 4), ("b", 8, 4)]
    ref = narrow(3)
    for key in ref:
        ref[key][[i for i in range(TOKENS) if i % 4 != 3]] = np.nan
    engine.ref |= ref
    few = engine.alloc(32 * 3 * 4)
    engine.serve(lambda e, i, request, first, n: e.launch("head", [few, n], [(few[0] + 96, e.rows("few", i, request, first + n - 1, 1))]))
    engine.match().says("few", "row: request", "count: '1'", "offset: '96'")


def test_a_float_of_which_the_half_is_nearly_it(engine):
    """The upper half of an f32 is that number as bf16, and not another tensor."""
    engine.ref |= narrow(1)
    few, rng = engine.alloc(32 * 4), np.random.default_rng(47)
    engine.serve(lambda e, i, *r: e.launch("gate", [few, r[2]], [
        (few[0], e.rows("few", i, *r) * (1 + 1e-3 * rng.normal(size=(r[2], 1))).astype(np.float32))]))
    spec = engine.match()
    spec.says("few", "dtype: f32", "pointer: arg[0]\n")
    assert "the same" not in spec.text, spec.text


def test_heads_one_after_the_other(engine):
    """[2][16][32], of which as many tokens as there are; a number of the launch says how far heads are apart in bytes."""
    q = engine.alloc(2 * 16 * 32 * 4)

    def layer(e, i, *r):
        x = e.rows("q", i, *r)
        e.launch("proj", [q, r[2]], [(q[0], x[:, :32]), (q[0] + 16 * 32 * 4, x[:, 32:])])
    engine.serve(layer)
    engine.match().says("q", "{row: true, count: 'arg[1].i32', stride: '128'}", "{count: 2, stride: '2048'}", "{count: 32}")


def test_heads_whose_distance_follows_the_count(engine):
    q = engine.alloc(2 * 16 * 32 * 4)

    def layer(e, i, *r):
        x = e.rows("q", i, *r)
        e.launch("proj", [q, r[2]], [(q[0], x[:, :32]), (q[0] + r[2] * 32 * 4, x[:, 32:])])
    engine.serve(layer)
    engine.match().says("q", "stride: '128'", "{count: 2, stride: 'arg[1].i32 * 128'}")


@pytest.mark.parametrize("site", ["q", "few", "chosen"])
def test_rows_that_lie_across(engine, site):
    """[element][token], without gaps: how far elements are apart follows the count of tokens."""
    engine.ref |= narrow(4) | {k.replace("few", "chosen"): v for k, v in narrow(3, whole=True).items()}
    engine.plan = [("a", 0, 9), ("a", 9, 1), ("a", 10, 1), ("b", 0, 8), ("b", 8, 3)]
    q = engine.alloc(32 * WIDTH * 4)
    engine.serve(lambda e, i, *r: e.launch("proj", [q, r[2]], [(q[0], e.rows(site, i, *r).T)]))
    width = engine.ref[f"a/{site}.0"].shape[1]
    engine.match().says(site, "kernel: '^proj$'", "{row: true, count: 'arg[1].i32', stride: '4'}", f"{{count: {width}, stride: 'arg[1].i32 * 4'}}",
                        "layer: occ\n")


def test_rows_that_lie_across_with_gaps(engine):
    """[64][32], of which as many tokens as there are."""
    engine.plan = [("a", 0, 9), ("a", 9, 1), ("b", 0, 8), ("b", 8, 3)]
    q = engine.alloc(32 * WIDTH * 4)

    def layer(e, i, *r):
        e.launch("proj", [q, r[2]], [(q[0] + k * 32 * 2, bf16(x)) for k, x in enumerate(e.rows("q", i, *r).T)])
    engine.serve(layer)
    engine.match().says("q", "dtype: bf16", "{row: true, count: 'arg[1].i32', stride: '2'}", "{count: 64, stride: '64'}")


def test_a_view_of_a_fused_buffer(engine):
    """Rows of 192: 64 of others, q, 64 of others."""
    qkv, rng = engine.alloc(32 * 192 * 4), np.random.default_rng(3)

    def layer(e, i, *r):
        x = rng.normal(size=(r[2], 192)).astype(np.float32)
        x[:, 64:128] = e.rows("q", i, *r)
        e.launch("qkv", [r[2], qkv], [(qkv[0], x)])
    engine.serve(layer)
    engine.match().says("q", "pointer: arg[1]", "offset: '256'", "{row: true, count: 'arg[0].i32', stride: '768'}", "{count: 64}")


def test_a_cache_with_a_position(engine):
    """All layers in one allocation: where a row lies follows the position and, by the pointer, the layer."""
    cache = engine.alloc(LAYERS * 32 * WIDTH * 4)

    def layer(e, i, request, first, n):
        mine = e.at(cache, i * 32 * WIDTH * 4)
        e.launch("store", [mine, first, n], [(mine[0] + first * 256, e.rows("q", i, request, first, n))])
    engine.serve(layer)
    engine.match().says("q", "pointer: arg[0]", "offset: 'arg[1].i32 * 256'", "count: 'arg[2].i32'", "layer: occ\n")


class Pages:
    """Slots of a paged cache: a request has pages of 4 in no order, and what a forward computes is next in them."""

    def __init__(self, n_pages=16, seed=5):
        self.free, self.of = list(np.random.default_rng(seed).permutation(n_pages)), {}

    def slots(self, request, first, n):
        pages = self.of.setdefault(request, [])
        while len(pages) * 4 < first + n:
            pages.append(self.free.pop())
        return np.array([pages[t // 4] * 4 + t % 4 for t in range(first, first + n)])


@pytest.mark.parametrize("dtype, name", [(np.int32, "i32"), (np.int64, "i64")])
@pytest.mark.parametrize("heads", (1, 4))
def test_a_paged_cache(engine, dtype, name, heads):
    """Rows lie where a list of slots says, [head][slot][...] with heads; the positions beside it are a list of numbers, too."""
    pages, n_slots = Pages(), 64
    caches = [engine.alloc(n_slots * WIDTH * 4) for _ in range(LAYERS)]
    lists = engine.alloc(64 * 8), engine.alloc(64 * 8)

    def layer(e, i, request, first, n):
        slots = pages.slots(request, first, n)
        rows = e.rows("q", i, request, first, n).reshape(n, heads, -1)
        places = [(caches[i][0] + (h * n_slots + slot) * WIDTH * 4 // heads, rows[row, h]) for row, slot in enumerate(slots) for h in range(heads)]
        e.launch("store", [caches[i], lists[1], lists[0], 3, n],
                 [(lists[0][0], slots.astype(dtype)), (lists[1][0], np.arange(first, first + n, dtype=dtype)), *places])
    engine.serve(layer)
    spec = engine.match()
    if heads == 1:
        spec.says("q", "pointer: arg[0]\n", f"{{row: true, count: 'arg[4].i32', slots: {{pointer: 'arg[2]', dtype: {name}}}}}, {{count: 64}}]", "layer: occ\n")
    else:
        spec.says("q", "pointer: arg[0]\n", f"{{row: true, count: 'arg[4].i32', stride: '64', slots: {{pointer: 'arg[2]', dtype: {name}}}}}",
                  "{count: 4, stride: '4096'}", "{count: 16}")
    assert "offset" not in spec.only("q") and "the same" not in spec.only("q"), spec.text
    report = check(engine, spec.text, "--reference", engine.folder / "ref", code=0)
    assert re.search(r"^good +any +q +21 launches, 21 compared, error 0.0e\+00$", report, re.M), report


def test_a_paged_cache_by_another_list(engine):
    """What is drifted is said: the launch has the list in another place."""
    pages, cache = Pages(), engine.alloc(64 * WIDTH * 4)
    lists = engine.alloc(64 * 8), engine.alloc(64 * 8)

    def layer(e, i, request, first, n):
        slots = pages.slots(request, first, n)
        e.launch("store", [cache, lists[1], lists[0], n], [(lists[0][0], slots.astype(np.int32)), (lists[1][0], np.arange(n, dtype=np.int32)),
                                                           *((cache[0] + slot * 256, row) for slot, row in zip(slots, e.rows("q", i, request, first, n)))])
    engine.serve(layer)
    spec = engine.match()
    spec.says("q", "slots: {pointer: 'arg[2]', dtype: i32}")
    report = check(engine, spec.text.replace("slots: {pointer: 'arg[2]'", "slots: {pointer: 'arg[1]'"), "--reference", engine.folder / "ref")
    assert "drifted" in report and "another value" in report and "slots: {pointer: 'arg[2]'" in report, report


def test_rows_in_order_need_no_list(engine):
    """A list that says 0, 1, 2 ... explains them as well, and nobody needs it."""
    q, numbers = engine.alloc(32 * WIDTH * 4), engine.alloc(64 * 8)
    engine.serve(lambda e, i, *r: e.launch("proj", [q, numbers, r[2]], [(q[0], e.rows("q", i, *r)), (numbers[0], np.arange(r[2], dtype=np.int32))]))
    spec = engine.match()
    spec.says("q", "[{row: true, count: 'arg[2].i32'}, {count: 64}]")
    assert "slots" not in spec.text and "the same" not in spec.text, spec.text


def test_slots_that_two_rows_share_are_none(engine):
    """Numbers that come twice are no slots: the rows of a cache would overwrite each other."""
    pages, cache, numbers = Pages(), engine.alloc(64 * WIDTH * 4), engine.alloc(64 * 8)

    def layer(e, i, request, first, n):
        slots = pages.slots(request, first, n)
        e.launch("store", [cache, numbers, n], [(numbers[0], slots.astype(np.int32) // 2),
                                                *((cache[0] + slot * 256, row) for slot, row in zip(slots, e.rows("q", i, request, first, n)))])
    engine.serve(layer)
    assert "slots" not in engine.match().text


def test_a_cache_with_one_pointer_for_all_layers(engine):
    cache = engine.alloc(LAYERS * 32 * WIDTH * 4)
    engine.serve(lambda e, i, request, first, n: e.launch(
        "store", [cache, i, first, n], [(cache[0] + (i * 32 + first) * 256, e.rows("q", i, request, first, n))]))
    engine.match().says("q", "offset: 'arg[1].i32 * 8192 + arg[2].i32 * 256'")


def test_padded_rows(engine):
    """The launch knows the bucket only: 4, 8; rows beyond the tokens hold anything."""
    q, rng = engine.alloc(32 * WIDTH * 4), np.random.default_rng(5)

    def layer(e, i, request, first, n):
        bucket = max(4, 1 << (n - 1).bit_length())
        x = rng.normal(size=(bucket, WIDTH)).astype(np.float32)
        x[:n] = e.rows("q", i, request, first, n)
        e.launch("proj", [q, bucket], [(q[0], x)])
    engine.serve(layer)
    engine.match().says("q", "count: 'arg[1].i32'", "the count is that of padded rows")


def test_another_scale(engine):
    q = engine.alloc(32 * WIDTH * 4)
    engine.serve(lambda e, i, *r: e.launch("proj", [q, r[2]], [(q[0], e.rows("q", i, *r) / np.float32(8))]))
    engine.match().says("q", "scale: 0.125", "layer: occ\n")


def test_names_that_change_with_the_batch(engine):
    q = engine.alloc(32 * WIDTH * 4)
    engine.serve(lambda e, i, *r: e.launch(f"gemm_{'small' if r[2] < 4 else 'large'}.v1", [q, r[2]], [(q[0], e.rows("q", i, *r))]))
    engine.match().says("q", r"kernel: '^(gemm_small\.v1|gemm_large\.v1)$'", "occurrences: {expect: 3}", "layer: occ\n")


def test_one_kernel_for_several_sites(engine):
    """Occurrences 0, 2, 4 are q, 1, 3, 5 are h."""
    a, b = engine.alloc(32 * WIDTH * 4), engine.alloc(32 * WIDTH * 4)

    def layer(e, i, *r):
        e.launch("proj", [a, r[2]], [(a[0], e.rows("q", i, *r))])
        e.launch("proj", [b, r[2]], [(b[0], e.rows("h", i, *r))])
    engine.serve(layer)
    spec = engine.match()
    spec.says("q", "{expect: 6, from: 0, to: 4, every: 2}", "layer: occ / 2\n")
    spec.says("h", "{expect: 6, from: 1, to: 5, every: 2}", "layer: (occ - 1) / 2\n")


def test_one_kernel_in_no_order(engine):
    """Occurrences that are not equally far apart are sites of their own."""
    a, b = engine.alloc(32 * WIDTH * 4), engine.alloc(32 * WIDTH * 4)

    def layer(e, i, *r):
        for _ in range(1 + i):
            e.launch("proj", [b, r[2]], [(b[0], np.zeros(WIDTH, np.float32))])
        e.launch("proj", [a, r[2]], [(a[0], e.rows("q", i, *r))])
    engine.serve(layer)
    found = [re.search(r"expect: 9, from: (\d), to: (\d)(?:, every: (\d))?\}\n    layer: (.*)\n", s).groups() for s in engine.match().sites["q"]]
    assert found == [("1", "4", "3", "(occ - 1) / 3"), ("8", "8", None, "2")]


def test_only_the_last_token(engine):
    """Logits: one row, of the last token of each piece."""
    q = engine.alloc(32 * WIDTH * 4)
    engine.serve(lambda e, i, request, first, n: e.launch("head", [q, n], [(q[0], e.rows("q", i, request, first + n - 1, 1))]))
    engine.match().says("q", "row: request", "count: '1'")


def test_a_pointer_within_a_struct(engine):
    q = engine.alloc(32 * WIDTH * 4)

    def layer(e, i, *r):
        e.launch("proj", [r[2], q], [(q[0], e.rows("q", i, *r))], layout=False)
    engine.serve(layer)
    engine.match().says("q", "pointer: param[8]", "count: 'param[0].i32'")


def test_what_ends_a_forward_does_not_begin_the_next(engine):
    """The engine warms up with rows of nobody; `sample` runs once between any two forwards."""
    q, x, rng = engine.alloc(32 * WIDTH * 4), engine.alloc(32 * WIDTH * 4), np.random.default_rng(15)

    def layer(e, i, request, first, n, rows=None):
        e.launch("proj", [q, n], [(q[0], e.rows("q", i, request, first, n) if rows is None else rows)])
        if i == LAYERS - 1:
            e.launch("sample", [q, n])
    engine.launch("embed", [x, 4], [(x[0], rng.normal(size=(4, WIDTH)).astype(np.float32))])
    for i in range(LAYERS):
        layer(engine, i, "a", 0, 4, rng.normal(size=(4, WIDTH)).astype(np.float32))
    engine.serve(layer)
    spec = engine.match()
    assert "begin: {kernel: '^embed$'}" in spec.text, spec.text
    spec.says("q", "occurrences: {expect: 3}", "layer: occ\n")


# ---- false friends


def test_8_bits_of_what_is_there_whole(engine):
    """What is left in 8 bits first, and in 32 later, is that of 32: nothing is rounded off."""
    a, b = engine.alloc(32 * WIDTH * 4), engine.alloc(32 * WIDTH * 4)

    def layer(e, i, *r):
        e.launch("quantise", [a, r[2]], [(a[0], f8(e.rows("q", i, *r), 4))])
        e.launch("proj", [b, r[2]], [(b[0], e.rows("q", i, *r))])
    engine.serve(layer)
    engine.match().says("q", "kernel: '^proj$'", "dtype: f32")


def test_8_bits_of_nobody(engine):
    """Random bytes, and what the last step left: neither is the tensor."""
    a, rng = engine.alloc(1 << 18), np.random.default_rng(17)
    engine.serve(lambda e, i, *r: e.launch("noise", [a, r[2]], [(a[0], rng.integers(0, 256, 1 << 18).astype(np.uint8))]))
    spec = engine.match()
    assert set(spec.sites) == {"embed"} and sorted(spec.absent) == ["h", "out", "q"], spec.text


def few_layer(few):
    """A router that leaves few values."""
    return lambda e, i, *r: e.launch("topk", [few, r[2]], [(few[0], e.rows("few", i, *r))])


@pytest.mark.parametrize("whole", [False, True])
def test_few_values_by_chance(engine, whole):
    """Nobody writes them; 32 KiB of values like them in each forward have many single rows of theirs."""
    engine.ref |= narrow(1, whole=whole)
    noise, rng = engine.alloc(1 << 15), np.random.default_rng(37)
    engine.serve(lambda e, i, *r: e.launch("noise", [noise, r[2]], [
        (noise[0], rng.integers(0, EXPERTS, size=1 << 13).astype(np.int32) if whole else rng.random(size=1 << 13).astype(np.float32))]))
    spec = engine.match()
    assert "few" not in spec.sites, spec.text


@pytest.mark.parametrize("width, whole, rows", [(2, False, 1), (3, True, 2)])
def test_few_values_of_too_few_rows(engine, width, whole, rows):
    """One forward of a row or two: what is found is named, and not taken."""
    engine.ref |= narrow(width, whole=whole)
    engine.plan = [("a", 0, rows)]
    engine.serve(few_layer(engine.alloc(32 * 32)))
    spec = engine.match()
    assert "few" not in spec.sites and "few" not in spec.absent and "may lie there by chance: record more" in spec.report, spec.report


def test_few_values_that_never_change(engine):
    """Every token goes to the same experts: however many rows there are, they say no more than one."""
    engine.ref |= {key: np.tile(np.array([[0, 1]], np.int32), (TOKENS, 1)) for key in narrow(2)}
    few = engine.alloc(32 * 32)

    def layer(e, i, *r):
        e.launch("clear", [few], [(few[0], np.zeros(64, np.int32))])
        few_layer(few)(e, i, *r)
    engine.serve(layer)
    spec = engine.match()
    assert "few" not in spec.sites and "by chance" in spec.report, spec.text


def test_few_values_that_hardly_change(engine):
    """1 for every token, nearly: a place that holds ones is not it."""
    rng = np.random.default_rng(59)
    engine.ref |= {key: (1 + 1e-4 * rng.normal(size=(TOKENS, 1))).astype(np.float32) for key in narrow(1, layers=1)}
    few = engine.alloc(32 * 32)

    def layer(e, i, *r):
        e.launch("clear", [few], [(few[0], np.zeros(64, np.float32))])
        if not i:
            e.launch("ones", [few, r[2]], [(few[0], np.ones(64, np.float32))])
    engine.serve(layer)
    spec = engine.match()
    assert "few" not in spec.sites and "by chance" in spec.report, spec.report


def test_few_values_beside_what_is_nearly_them(engine):
    """One kernel leaves what is 1e-3 away from them, and then them."""
    engine.ref |= narrow(3)
    few = engine.alloc(1024)

    def layer(e, i, *r):
        x = e.rows("few", i, *r)
        e.launch("topk", [few, r[2]], [(few[0], x * np.float32(1 + 1e-3)), (few[0] + 512, x)])
    engine.serve(layer)
    engine.match().says("few", "offset: '512'", "layer: occ\n", "relative error 0.0e+00")


def test_few_values_of_which_most_were_there(engine):
    """`fix` writes the first row anew, and finds the others: that they are right says nothing of it."""
    engine.ref |= narrow(1, whole=True)
    few = engine.alloc(32 * 32)

    def layer(e, i, *r):
        x = e.rows("few", i, *r)
        e.launch("most", [few, r[2]], [(few[0], np.concatenate((x[:1] + 100, x[1:])))])
        e.launch("fix", [few, r[2]], [(few[0], x[:1])])
    engine.serve(layer)
    spec = engine.match()
    assert "few" not in spec.sites and "by chance" in spec.report, spec.text


def test_few_values_of_layers_in_doubt(engine):
    """All layers but the first choose the same experts for every token: these are named, and not taken, and not the first one's."""
    engine.ref |= narrow(2, whole=True) | {f"{r}/few.{i}": np.tile(np.array([[0, 1]], np.int32), (TOKENS, 1)) for r in "ab" for i in (1, 2)}
    few, other = engine.alloc(32 * 32), engine.alloc(32 * 32)
    engine.serve(lambda e, i, *r: e.launch("router" if i else "topk", [other if i else few, r[2]],
                                           [((other if i else few)[0], np.concatenate((e.rows("few", i, *r), np.full((1, 2), r[1], np.int32))))]))
    spec = engine.match()
    spec.says("few", "kernel: '^topk$'", "layer: 0\n")
    assert "the same" not in spec.text and re.search("'\\^router\\$': not in the spec: values as few as these may lie there by chance", spec.report), spec.report


@pytest.mark.parametrize("whole", [False, True])
def test_few_values_of_the_last_step(engine, whole):
    """`late` writes beside the values that the last step left, which are those of this step once more; `use` reads them."""
    engine.ref |= narrow(3, whole=whole)
    few, rng = engine.alloc(LAYERS * BLOCK), np.random.default_rng(41)
    engine.plan = [(r, first, n) for r, first, n in PLAN for _ in range(2)]

    def layer(e, i, *r):
        mine = e.at(few, i * BLOCK)
        e.launch("late", [mine, r[2]], [(mine[0] + 2048, rng.normal(size=64).astype(np.float32))])
        few_layer(mine)(e, i, *r)
        e.launch("use", [mine, r[2]], [(mine[0] + 3072, rng.normal(size=64).astype(np.float32))])
    engine.serve(layer)
    spec = engine.match()
    spec.says("few", "kernel: '^topk$'", "occurrences: {expect: 3}", "layer: occ\n")
    assert "late" not in spec.text and "use " not in spec.text, spec.text


@pytest.mark.parametrize("there", [False, True])
def test_few_values_that_are_elsewhere_at_times(engine, there):
    """`early` leaves them in the prompts' forwards, and anything in the others: that is another tensor, whether or not this one is there."""
    engine.ref |= narrow(2, whole=True)
    few, other, rng = engine.alloc(32 * 32), engine.alloc(32 * 32), np.random.default_rng(43)

    def layer(e, i, *r):
        x = e.rows("few", i, *r) if r[2] > 1 else rng.integers(0, EXPERTS, size=(r[2], 2)).astype(np.int32)
        e.launch("early", [other, r[2]], [(other[0], x)])
        if there:
            few_layer(few)(e, i, *r)
    engine.serve(layer)
    spec = engine.match()
    if there:
        spec.says("few", "kernel: '^topk$'", "layer: occ\n")
    assert "early" not in spec.text and ("few" in spec.sites) == there, spec.text


def test_few_values_that_other_layers_have_too(engine):
    """In forwards of one token all layers choose the same expert: the prompts' tell them apart."""
    ref = narrow(2, whole=True)
    for r in "ab":
        for i in range(1, LAYERS):
            ref[f"{r}/few.{i}"][6:] = ref[f"{r}/few.0"][6:]
    engine.ref |= ref
    engine.serve(few_layer(engine.alloc(32 * 32)))
    engine.match().says("few", "kernel: '^topk$'", "occurrences: {expect: 3}", "layer: occ\n")


def test_few_values_twice(engine):
    engine.ref |= narrow(3, whole=True)
    few, other = engine.alloc(32 * 32), engine.alloc(32 * 32)

    def layer(e, i, *r):
        few_layer(few)(e, i, *r)
        e.launch("copy", [other, few, r[2]], [(other[0], e.rows("few", i, *r))])
    engine.serve(layer)
    engine.match().says("few", "kernel: '^topk$'", "the same is in copy arg[0]")


def test_equal_bytes_twice(engine):
    """A later kernel copies them: the first is taken, the other named."""
    a, b = engine.alloc(32 * WIDTH * 4), engine.alloc(32 * WIDTH * 4)

    def layer(e, i, *r):
        e.launch("proj", [a, r[2]], [(a[0], e.rows("q", i, *r))])
        e.launch("copy", [b, a, r[2]], [(b[0], e.rows("q", i, *r))])
    engine.serve(layer)
    engine.match().says("q", "kernel: '^proj$'", "the same is in copy arg[0]")


def test_tensors_that_are_equal_at_first(engine):
    """q_rot is q at position 0: what both kernels leave there is not what tells them apart."""
    a, b = engine.alloc(32 * WIDTH * 4), engine.alloc(32 * WIDTH * 4)
    ref = {k.replace("/h.", "/q_rot."): v.copy() for k, v in engine.ref.items()}
    for r in "ab":
        for i in range(LAYERS):
            ref[f"{r}/q_rot.{i}"][0] = ref[f"{r}/q.{i}"][0]
    engine.ref, engine.plan = ref, [("a", 0, 1), ("a", 1, 1), ("a", 2, 1), ("b", 0, 1), ("b", 1, 1)]

    def layer(e, i, *r):
        e.launch("proj", [a, r[2]], [(a[0], e.rows("q", i, *r))])
        e.launch("rope", [b, r[2]], [(b[0], e.rows("q_rot", i, *r))])
    engine.serve(layer)
    spec = engine.match()
    spec.says("q", "kernel: '^proj$'")
    spec.says("q_rot", "kernel: '^rope$'")


def test_tokens_that_look_alike(tmp_path):
    """Where attention sees little but the first token, rows begin with almost the same values: each place is the nearest row's."""
    rng, n = np.random.default_rng(4), 36
    ref = {f"{r}/embed": rng.normal(size=(n, WIDTH)).astype(np.float32) for r in "ab"}
    for r in "ab":
        for i in range(LAYERS):
            rows = rng.normal(size=(n, WIDTH))
            rows[:, :16] = rows[0, :16] + 0.005 * rows[:, :16]
            rows[0, :16] *= 1.012  # it is not the first that is looked for
            ref[f"{r}/z.{i}"] = rows.astype(np.float32)
    engine = Engine(tmp_path, ref, [("a", 0, 30), ("a", 30, 3), ("a", 33, 1), ("b", 0, 28), ("b", 28, 1)])
    z = engine.alloc(32 * WIDTH * 4)
    engine.serve(lambda e, i, r, first, n: e.launch("attention", [z, n], [(z[0], e.rows("z", i, r, first, n))]))
    spec = engine.match()
    spec.says("z", "kernel: '^attention$'", "count: 'arg[1].i32'", "layer: occ")
    assert re.search(r"z +15 of 15", spec.report), spec.report


def test_one_buffer_for_everything(engine):
    """Each tensor is overwritten by the next one's kernel, within the forward."""
    x = engine.alloc(32 * WIDTH * 4)

    def layer(e, i, *r):
        for site in ("h", "q", "out"):
            e.launch(f"make_{site}", [x, r[2]], [(x[0], e.rows(site, i, *r))])
    engine.serve(layer)
    spec = engine.match()
    for site in ("h", "q", "out"):
        spec.says(site, f"kernel: '^make_{site}$'", "layer: occ\n")
    assert not spec.absent, spec.absent


def test_a_tensor_of_the_last_step(engine):
    """`late` writes into a block that still holds q of the step before, which is the same token once more: `twice` in the
    plan. The q of this step is written after it."""
    a, rng = engine.alloc(32 * WIDTH * 4 * LAYERS), np.random.default_rng(7)
    engine.plan = [("a", 0, 3), ("a", 3, 1), ("a", 3, 1), ("a", 4, 2), ("a", 4, 2), ("b", 0, 4), ("b", 0, 4)]

    def layer(e, i, *r):
        mine = e.at(a, i * 32 * WIDTH * 4)
        e.launch("late", [mine, r[2]], [(mine[0] + 2048, rng.normal(size=(r[2], WIDTH)).astype(np.float32))])
        e.launch("proj", [mine, r[2]], [(mine[0], e.rows("q", i, *r))])
    engine.serve(layer)
    spec = engine.match()
    spec.says("q", "kernel: '^proj$'")
    assert "late" not in spec.text


@pytest.mark.parametrize("way", ["8 bits", "across"])
def test_a_tensor_of_the_last_step_in_other_ways(engine, way):
    """The same of what is in 8 bits, and of [element][token]."""
    a, rng = engine.alloc(32 * WIDTH * 4 * LAYERS), np.random.default_rng(7)
    engine.plan = [("a", 0, 8), ("a", 8, 2), ("a", 8, 2), ("b", 0, 9), ("b", 0, 9), ("b", 9, 3)]

    def layer(e, i, *r):
        mine, x = e.at(a, i * 32 * WIDTH * 4), e.rows("q", i, *r)
        e.launch("late", [mine, r[2]], [(mine[0] + 3584, rng.normal(size=128).astype(np.float32))])
        e.launch("proj", [mine, r[2]], [(mine[0], f8(x, 4) if way == "8 bits" else x.T)])
        e.launch("use", [mine, r[2]], [(mine[0] + 3584, rng.normal(size=128).astype(np.float32))])
    engine.serve(layer)
    spec = engine.match()
    spec.says("q", "kernel: '^proj$'", "pointer: arg[0]\n", "dtype: f8e4m3" if way == "8 bits" else "count: 64, stride: 'arg[1].i32 * 4'")
    assert "late" not in spec.text and "use " not in spec.text, spec.text


def test_another_tensor_across(engine):
    """[element][token] of h, and of q in the prompts alone: neither is q."""
    a, b, rng = engine.alloc(32 * WIDTH * 4), engine.alloc(32 * WIDTH * 4), np.random.default_rng(53)
    engine.plan = [("a", 0, 9), ("a", 9, 1), ("a", 10, 1), ("a", 11, 1), ("b", 0, 8), ("b", 8, 2), ("b", 10, 2)]

    def layer(e, i, *r):
        e.launch("turn", [a, r[2]], [(a[0], e.rows("h", i, *r).T)])
        e.launch("at_times", [b, r[2]], [(b[0], e.rows("q", i, *r).T if r[2] > 2 else rng.normal(size=(WIDTH, r[2])).astype(np.float32))])
    engine.serve(layer)
    spec = engine.match()
    spec.says("h", "kernel: '^turn$'", "layer: occ\n")
    assert sorted(spec.absent) == ["out", "q"], spec.text


def test_a_tensor_of_two_kernels(engine):
    """One writes the first half of each row, the other the second: whole it is after the latter, and the report says so."""
    q = engine.alloc(32 * WIDTH * 4)

    def layer(e, i, *r):
        x = e.rows("q", i, *r)
        for name, half in (("left", slice(0, 32)), ("right", slice(32, 64))):
            e.launch(name, [q, r[2]], [(q[0] + (t * WIDTH + half.start) * 4, x[t, half]) for t in range(r[2])])
    engine.serve(layer)
    engine.match().says("q", "kernel: '^right$'", "several kernels write it")


def test_one_count_is_not_enough(engine):
    """With one prompt length alone nobody can say what the count follows."""
    q = engine.alloc(32 * WIDTH * 4)
    engine.plan = [("a", 0, 4), ("b", 0, 4), ("a", 4, 4)]
    engine.serve(lambda e, i, *r: e.launch("proj", [q, r[2], 4], [(q[0], e.rows("q", i, *r))]))
    engine.match().says("q", "count: '4'", "only one number of tokens was recorded")


def test_what_is_nearly_the_tensor(engine):
    """1% away from h, and h itself: the reference's is h."""
    a, b, rng = engine.alloc(32 * WIDTH * 4), engine.alloc(32 * WIDTH * 4), np.random.default_rng(9)

    def layer(e, i, *r):
        h = e.rows("h", i, *r)
        e.launch("nearly", [a, r[2]], [(a[0], h + 0.01 * rng.normal(size=h.shape).astype(np.float32))])
        e.launch("proj", [b, r[2]], [(b[0], h)])
    engine.serve(layer)
    engine.match().says("h", "kernel: '^proj$'")


def test_what_the_values_do_not_tell_apart(engine):
    """Two tensors, both as near to the reference as the engine computes: the first is taken, and the other named."""
    a, b, rng = engine.alloc(32 * WIDTH * 4), engine.alloc(32 * WIDTH * 4), np.random.default_rng(13)

    def layer(e, i, *r):
        h = e.rows("h", i, *r)
        for name, to, noise in (("one", a, 2e-4), ("other", b, 1e-4)):
            e.launch(name, [to, r[2]], [(to[0], h + noise * rng.normal(size=h.shape).astype(np.float32))])
    engine.serve(layer)
    engine.match().says("h", "kernel: '^one$'", "the same or nearly so is in other arg[0]")


OWN = """# Whose it is
hookspec: 1
name: mine          # a name
"ring": {bytes: 64M}

# What the tool wrote
forward: [{kind: old, begin: {kernel: k}}]
sites:
  # and what people wrote about it
  - {name: q, kernel: k, pointer: 'arg[0]', dtype: f32, dims: [{row: true, count: 1}]}

# Of all
convention:
  # layers
  layer_base: 0
absent:
  - {name: h, why: it's fused}
  - {name: out, forward: old, why: no forward is called so any more}
  - {name: embed, why: it is not}
  - {name: attn_out, why: nobody computes it}
overload: {mode: complete, wait_ms: 10}"""


def test_what_people_wrote_stays(engine):
    q = engine.alloc(32 * WIDTH * 4)
    (engine.folder / "spec.yaml").write_text(OWN)
    engine.serve(lambda e, i, *r: e.launch("proj", [q, r[2]], [(q[0], e.rows("q", i, *r))]))
    spec = engine.match()
    head = spec.text.split("forward:\n")[0]
    assert head == OWN.split("\n# What")[0] + "\n# Of all\nconvention:\n  # layers\n  layer_base: 0\noverload: {mode: complete, wait_ms: 10}\n", spec.text
    spec.says("q", "kernel: '^proj$'")
    absent = spec.text.split("absent:\n")[1].splitlines()
    assert absent == ["  - {name: h, why: 'it''s fused'}", "  - {name: attn_out, why: 'nobody computes it'}",
                      "  - {name: out, forward: any, why: 'nothing that a launch of the recording wrote is this tensor'}"], absent
    again = engine.match().text
    assert again == spec.text, "written once more it is the same"


def test_a_spec_with_errors_is_not_written_anew(engine):
    q = engine.alloc(32 * WIDTH * 4)
    (engine.folder / "spec.yaml").write_text("hookspec: 1\nsite: []\n")
    engine.serve(lambda e, i, *r: e.launch("proj", [q, r[2]], [(q[0], e.rows("q", i, *r))]))
    save_file(engine.ref, engine.folder / "ref")
    result = run([SITES, "match", engine.folder / "rec", "--reference", engine.folder / "ref", "-o", engine.folder / "spec.yaml"], check=False, timeout=120)
    assert result.returncode == 1 and "spec.yaml:2:1" in result.stderr and (engine.folder / "spec.yaml").read_text() == "hookspec: 1\nsite: []\n", result.stderr


def test_another_model(engine, tmp_path):
    q = engine.alloc(32 * WIDTH * 4)
    engine.serve(lambda e, i, *r: e.launch("proj", [q, r[2]], [(q[0], e.rows("q", i, *r))]))
    spec = engine.match(reference(seed=2), code=1)
    assert "is a row of the reference" in spec.report


# ---- check


def check(engine, text, *options, code=1):
    (engine.folder / "checked.yaml").write_text(text)
    result = run([SITES, "check", engine.folder / "checked.yaml", engine.folder / "rec", *options], check=False, timeout=120)
    assert result.returncode == code, (result.returncode, result.stdout, result.stderr)
    return result.stdout + result.stderr


@pytest.fixture
def matched(engine):
    """An engine with q in one place, the recording of it, and the spec that was found."""
    q = engine.alloc(32 * WIDTH * 4)
    engine.serve(lambda e, i, *r: e.launch("make_q", [q, r[2], 7], [(q[0], e.rows("q", i, *r))]))
    return engine, engine.match().text


def test_check_of_what_was_found(matched):
    engine, text = matched
    report = check(engine, text, "--reference", engine.folder / "ref", code=0)
    assert re.search(r"^good +any +q +21 launches, 21 compared, error 0.0e\+00$", report, re.M) and "drifted" not in report, report
    assert "drifted" not in check(engine, text, code=0)


@pytest.mark.parametrize("was, is_now, says", [
    ("'^make_q$'", "'^make_q2$'", 'no launch matches ^make_q2$, of 2 kernels; near it: make_q'),
    ("{expect: 3}", "{expect: 4}", "7 forwards with 3 to 3 launches, not 4"),
    ("count: 'arg[1].i32'}, {count: 64}]\n    occurrences: {expect: 3}", "count: 'arg[9].i32'}, {count: 64}]\n    occurrences: {expect: 3}",
     "an expression has no value in 21 (the kernel has 3 parameters)"),
    ("'arg[1].i32'}, {count: 64}]\n    occurrences: {expect: 3}", "'arg[2].i32 * 5'}, {count: 64}]\n    occurrences: {expect: 3}",
     "outside of its allocation in 21"),
    ("    layer: occ\n", "    layer: 2 - occ\n", "another value in 14"),
    ("{kernel: '^embed$'}", "{kernel: '^began$'}", "no forward of kind any: no launch matches what begins it"),
])
def test_check_of_what_drifted(matched, was, is_now, says):
    engine, text = matched
    assert text.count(was) == 1, text
    report = check(engine, text.replace(was, is_now), "--reference", engine.folder / "ref")
    assert says in report, report
    if "launch matches" not in says:  # the mend
        assert "  - name: q\n    forward: any\n    kernel: '^make_q$'\n    pointer: arg[0]" in report, report


def test_check_leaves_taps_alone(matched):
    engine, text = matched
    report = check(engine, text.replace("sites:\n", "sites:\n  - {tap: resid_pre}\n"), "--reference", engine.folder / "ref", code=0)
    assert re.search(r"^- +any +resid_pre +a tap, or in an NVTX range", report, re.M) and "drifted" not in report, report


# ---- kernels

IMAGES = BUILD / "tests" / "unit" / "images"
BYTES = {"8": 1, "16": 2, "32": 4, "64": 8}


def heads(text):
    """{name: [(offset, size)]} of the kernels in PTX."""
    found = {}
    for name, params in re.findall(r"\.entry (\w+)\(([^)]*)\)", text):
        places, end = [], 0
        for param in filter(None, (p.strip() for p in params.split(","))):
            kind = re.search(r"\.param (?:\.align (\d+) )?\.[a-z](\d+)", param)
            array = re.search(r"\[(\d+)\]$", param)
            size = BYTES[kind[2]] * int(array[1] if array else 1)
            align = int(kind[1] or BYTES[kind[2]])
            end += -end % align
            places.append((end, size))
            end += size
        found[name] = places
    return found


def listed(path):
    """The same, of what `kernels` prints; a list, an element an image."""
    images = [{}]
    for line in run([SITES, "kernels", path], timeout=60).stdout.splitlines():
        if re.fullmatch(r"sm_\d+", line):
            images.append({})
            continue
        name, _, rest = line.partition(":")
        images[-1][name] = [(int(at), int(size)) for size, at in re.findall(r"arg\[\d+\] (\d+) at (\d+)", rest)]
    return [image for image in images if image]


@pytest.mark.built(IMAGES / "text.ptx")
def test_kernels_of_machine_code(tmp_path):
    """What nvcc wrote into PTX, and into every cubin, fatbin and library of the same source."""
    want = heads((IMAGES / "text.ptx").read_text())
    assert len(want) > 3
    (tmp_path / "both.s").write_text('.section .nv_fatbin,"a"\n.balign 8\n'
                                     + "".join(f'.incbin "{IMAGES / name}"\n.balign 8\n' for name in ("fat_none.fatbin", "fat_size.fatbin")))
    run(["cc", "-shared", "-nostdlib", "-o", tmp_path / "lib.so", tmp_path / "both.s"], timeout=60)
    files = {path: 1 for path in IMAGES.glob("*.cubin")} | {path: 2 for path in IMAGES.glob("*.fatbin")} | {tmp_path / "lib.so": 4}
    assert len(files) > 10
    for path, n in files.items():
        found = listed(path)
        assert len(found) == n and all(image == want for image in found), (path, n, found, want)


def taken(words):
    """{what: how much} of a line of `kernels` or of ptxas, zeros left out."""
    patterns = {"registers": r"(\d+) registers", "shared": r"\bshared (\d+)|(\d+) bytes smem", "local": r"\blocal (\d+)|(\d+) bytes stack frame"}
    found = {what: sum(int(n) for match in re.findall(pattern, words) for n in ([match] if isinstance(match, str) else match) if n)
             for what, pattern in patterns.items()}
    found |= {int(bank): int(n) for bank, n in re.findall(r"constant\[(\d+)\] (\d+)", words)}
    return {what: n for what, n in (found | {int(bank): int(n) for n, bank in re.findall(r"(\d+) bytes cmem\[(\d+)\]", words)}).items() if n}


@pytest.mark.built(IMAGES / "text.ptx")
def test_what_kernels_take_of_the_device():
    """Registers, shared and local memory, constants: as ptxas says them of the same cubin."""
    cubins = sorted((IMAGES / "usage").glob("*.cubin"))
    assert len(cubins) == 4
    for cubin in cubins:
        want = {name: taken(words) for name, words in re.findall(r"Function properties for (\w+)\n(.*\n.*Used .*)", cubin.with_suffix(".txt").read_text())}
        assert set(want) == {"plain", "shared", "local", "wide"} and want["shared"]["shared"] >= 1200 and want["local"]["local"] == 256 and want["wide"]["registers"] > 40, want
        for line in run([SITES, "kernels", cubin], timeout=60).stdout.splitlines():
            name, _, rest = line.partition(":")
            assert {what: n for what, n in taken(rest).items() if what in want[name]} == want.pop(name) and "," not in rest[-2:], (cubin, line)
        assert not want


def test_kernels_of_a_recording(matched):
    engine, _ = matched
    text = run([SITES, "kernels", engine.folder / "rec"], timeout=60).stdout
    assert text == "embed: 7 launches, arg[0] 8 at 0, arg[1] 4 at 8\nmake_q: 21 launches, arg[0] 8 at 0, arg[1] 4 at 8, arg[2] 4 at 12\n"


NAUGHTY = "k\x1b[2Jred\x9b\u202ebidi\x7f\nforged: 7 launches"


def test_names_of_a_recording_reach_no_terminal_raw(engine):
    q = engine.alloc(32 * WIDTH * 4)
    engine.serve(lambda e, i, *r: e.launch(NAUGHTY, [q, r[2]], [(q[0], e.rows("q", i, *r))]))
    save_file(engine.ref, engine.folder / "ref")
    said = [run([SITES, *words], check=False, timeout=60) for words in (
        ("kernels", engine.folder / "rec"), ("match", engine.folder / "rec", "--reference", engine.folder / "ref", "-o", engine.folder / "spec.yaml"),
        ("check", engine.folder / "spec.yaml", "--recording", engine.folder / "rec"), ("kernels", engine.folder / NAUGHTY))]
    for done in said:
        text = done.stdout + done.stderr
        assert text and not any(c in text for c in "\x1b\x9b\u202e\x7f") and not any(line.startswith("forged") for line in text.splitlines()), (done.args, text)
    assert "k?[2Jred??bidi??forged" in said[0].stdout, said[0].stdout
    assert not any(c in (engine.folder / "spec.yaml").read_text() for c in "\x1b\x9b\u202e\x7f")


def test_kernels_of_what_holds_none(tmp_path):
    for name, data in (("text", b"hello\n" * 20), ("empty", b""), ("elf", DMI_RUN.read_bytes())):
        (tmp_path / name).write_bytes(data)
        result = run([SITES, "kernels", tmp_path / name], check=False, timeout=60)
        assert result.returncode == 1 and str(tmp_path / name) in result.stderr, (name, result)


# ---- files


def test_damaged_recordings_are_refused(engine):
    q = engine.alloc(32 * WIDTH * 4)
    engine.serve(lambda e, i, *r: e.launch("proj", [q, r[2]], [(q[0], e.rows("q", i, *r))]))
    path, rng = engine.folder / "rec", np.random.default_rng(11)
    whole = path.read_bytes()
    save_file(engine.ref, engine.folder / "ref")
    for _ in range(60):
        at = int(rng.integers(0, len(whole)))
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << int(rng.integers(8)))]) + whole[at + 1:])
        result = run([SITES, "match", path, "--reference", engine.folder / "ref", "-o", engine.folder / "spec.yaml"], check=False, timeout=60)
        assert result.returncode in (0, 1), (at, result.returncode, result.stderr)


def bomb(write):
    """A recording of chunks of 60 MiB that are nothing when they are compressed."""
    for _ in range(20):
        write.chunk(4, bytes(60 << 20), compress=True)


def crumbs(write):
    """One of very many parts of memory, a byte each in a page of its own."""
    write.launch("k", [(1 << 20, 1 << 20, 4096)])
    runs = np.empty((3 << 20, 2), "<u8")
    for i in range(6):
        runs[:, 0], runs[:, 1] = (np.arange(3 << 20, dtype="<u8") + (i << 24)) * 4096, 1
        write.chunk(3, struct.pack("<QII", 1, 0, len(runs)) + runs.tobytes() + bytes(len(runs)), compress=True)


@pytest.mark.parametrize("build", (bomb, crumbs))
def test_a_small_recording_gets_no_more_memory_than_a_budget(tmp_path, build):
    write = Writer(tmp_path / "rec")
    build(write)
    write.close()
    assert (tmp_path / "rec").stat().st_size < 16 << 20
    def limit():
        if not os.environ.get("DMI_TEST_RUNTIME"):  # a sanitizer reserves address space for its shadow
            resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
    result = run([SITES, "kernels", tmp_path / "rec"], check=False, timeout=60, preexec_fn=limit)
    assert result.returncode == 1 and "asks for more than" in result.stderr, (result.returncode, result.stderr)


def test_a_recording_that_was_cut_off_is_used_as_far_as_it_goes(engine):
    q = engine.alloc(32 * WIDTH * 4)
    engine.serve(lambda e, i, *r: e.launch("proj", [q, r[2]], [(q[0], e.rows("q", i, *r))]))
    path = engine.folder / "rec"
    path.write_bytes(path.read_bytes()[:-200])
    engine.match().says("q", "kernel: '^proj$'")


def test_progress_on_a_terminal(engine):
    """Once it takes more than a second: beside the tensors launches write 16 MB of noise."""
    rng, q, noise = np.random.default_rng(3), engine.alloc(32 * WIDTH * 4), engine.alloc(1 << 20)

    def layer(e, i, *r):
        e.launch("make_q", [q, r[2], 7], [(q[0], e.rows("q", i, *r))])
        e.launch("noise", [noise], [(noise[0], rng.normal(size=3 << 16).astype(np.float32))])
    engine.serve(layer)
    save_file(engine.ref, engine.folder / "ref")
    ours, theirs = pty.openpty()
    with subprocess.Popen([SITES, "match", engine.folder / "rec", "--reference", engine.folder / "ref", "-o", engine.folder / "spec.yaml"], stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        said = b""
        while True:
            try:
                said += os.read(ours, 65536)
            except OSError:
                break
        assert process.wait(timeout=120) == 0
    os.close(ours)
    assert re.search(rb"\r[a-z -]+[\w ,]+ \(\d of 6\), 0:\d\d\x1b\[K", said) and said.endswith(b"\r\x1b[K"), said[-300:]
