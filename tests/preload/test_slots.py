# SPDX-License-Identifier: Apache-2.0
"""Rows in the slots of a paged cache, which a list in device memory names: launch by launch and from graphs whose list changes."""
import json
import pathlib
import random
import sys

import pytest

from kit import spec
from slots_client import MAX_ROWS, WIDTH

pytest.importorskip("cuda.bindings")
pytestmark = pytest.mark.since(12000, "what cuda.bindings 13 calls to build a graph")

CLIENT = pathlib.Path(__file__).with_name("slots_client.py")
N_SLOTS = 64


def text(name, slots, rows="arg[2].u32", head="", offset=0):
    return spec(f"""  - name: k
    kernel: '^{name}$'
    pointer: arg[0]
    offset: {offset}
    dtype: u32
    dims: [{{row: true, count: '{rows}', slots: {slots}}}, {{count: {WIDTH}}}]""", head=head)


def run(bench, plan, spec_text, **env):
    path = bench.folder / "plan.json"
    path.write_text(json.dumps(plan))
    result = bench.alike("a paged cache", [], spec_text, command=[sys.executable, CLIENT, path], timeout=60, **env)
    bench.check(result.code == 0 and result.folders, "the program runs, and a run is written", result.stderr[-600:])
    return result


def row(seed, i, slot):
    """What scatter writes into row i, or what nobody's row is."""
    return tuple((seed << 16) + i * WIDTH + c for c in range(WIDTH)) if slot >= 0 else (0,) * WIDTH


def rows(slots, seed):
    return sum((row(seed, i, slot) for i, slot in enumerate(slots)), ())


def random_launches(seed, n, padding, most=16):
    """[slots, seed, graph]: as many slots that differ, and padding after them."""
    dice = random.Random(seed)
    out = []
    for i in range(n):
        real = dice.sample(range(N_SLOTS), dice.randint(0 if padding else 1, most))
        out.append([real + [-1] * (dice.randint(0, 3) if real else 1) * padding, i + 1, dice.random() < 0.6])
    return out


LISTS = [("i32", N_SLOTS, 0, ""), ("i64", N_SLOTS, 0, ""), ("i64", 16, 48, "block: 16, block_stride: '16 * 16 + 48'"),
         ("i32", 8, 16, "block: 'arg[5].u32', block_stride: 'arg[5].u32 * 16 + arg[6].i64'")]


@pytest.mark.parametrize("dtype, block, gap, more", LISTS)
def test_rows_in_any_order(bench, dtype, block, gap, more):
    launches = random_launches(3, 60, padding=True)
    slots = f"{{pointer: 'arg[1]', dtype: {dtype}{', ' * bool(more)}{more}}}"
    result = run(bench, {"cache": {"n_slots": N_SLOTS, "block": block, "gap": gap, "dtype": dtype}, "launches": launches}, text(f"scatter_{dtype}", slots))
    bench.captured("each row is what was written into its slot, or zeros where it is nobody's", result, [rows(s, seed) for s, seed, _ in launches])


def cache(dtype="i64"):
    return {"n_slots": N_SLOTS, "block": N_SLOTS, "gap": 0, "dtype": dtype}


def test_padding_is_not_copied(bench):
    launches = random_launches(4, 40, padding=True)
    result = run(bench, {"cache": cache(), "launches": launches, "steps": True},
                 text("scatter_i64", "{pointer: 'arg[1]', dtype: i64}", head="forward: [{kind: step, begin: step}]\n"))
    bench.captured("only the rows that are somebody's", result, [rows([n for n in s if n >= 0], seed) for s, seed, _ in launches if s[0] >= 0])


def test_a_row_list_and_a_list_of_slots(bench):
    """tokens: last keeps one row of each launch."""
    launches = [x for x in random_launches(5, 40, padding=True) if x[0][0] >= 0]
    body = text("scatter_i64", "{pointer: 'arg[1]', dtype: i64}", head="forward: [{kind: step, begin: step}]\n").rstrip() + "\n    tokens: last\n"
    result = run(bench, {"cache": cache(), "launches": launches, "steps": True}, body)
    last = [sum(n >= 0 for n in s) - 1 for s, _, _ in launches]
    bench.captured("the last row of each step", result, [row(seed, i, 0) for (_, seed, _), i in zip(launches, last)])


@pytest.mark.parametrize("graph", (False, True))
def test_a_slot_that_there_is_not(bench, graph):
    """The kernel leaves such a row out; the record is no tensor, and nothing is stored of what lies elsewhere."""
    launches = [[[3, 5], 1, graph], [[7, N_SLOTS + 1000000], 2, graph], [[N_SLOTS + 1, 9], 3, graph], [[1, 63], 4, graph]]
    result = run(bench, {"cache": cache(), "launches": launches}, text("scatter_i64", "{pointer: 'arg[1]', dtype: i64}"))
    run_ = result.run()
    bench.check([r.words for r in run_.of(0)] == [rows(s, seed) for s, seed, _ in (launches[0], launches[3])], "the others are captured",
                [r.words for r in run_.of(0)])
    dropped = {reason: tally.records for reason, tally in run_.counters.dropped[0].items()}
    bench.check(dropped == {"bad_pointer": 2} and not run_.balance(), "these two are drops by name", (dropped, run_.balance()))
    bench.check(any("list of slots" in p["sentence"] for p in run_.manifest["problems"]), "and it is said why", run_.manifest["problems"])


@pytest.mark.parametrize("graph", (False, True))
def test_a_list_that_reaches_out_of_its_memory(bench, graph):
    """The kernel reads one number of it, the site says two."""
    result = run(bench, {"cache": cache(), "launches": [[[3], 1, graph], [[5], 2, graph]], "short_list": True},
                 text("scatter_i64", "{pointer: 'arg[1]', dtype: i64}", rows="arg[2].u32 * 2"))
    run_ = result.run()
    dropped = {reason: tally.records for reason, tally in run_.counters.dropped[0].items()}
    bench.check(dropped == {"bad_pointer": 2} and not run_.of(0) and not run_.balance(), "is not read", (dropped, run_.balance()))
    bench.check(any("the list of its slots lies outside" in p["sentence"] for p in run_.manifest["problems"]), "and it is said why",
                run_.manifest["problems"])


PIECES = [1, 2, 3, 8000]


@pytest.mark.parametrize("n_pieces", PIECES)
def test_a_cache_in_mapped_memory(bench, n_pieces):
    """As expandable segments have it: what is after the cache comes and goes, and the graphs were built when it was there."""
    launches = random_launches(7, 24, padding=True)
    result = run(bench, {"cache": dict(cache(), n_pieces=n_pieces), "launches": launches}, text("scatter_i64", "{pointer: 'arg[1]', dtype: i64}"))
    bench.captured("each row is what was written into its slot", result, [rows(s, seed) for s, seed, _ in launches])


FIXED = [[[slot, 60 - slot] if slot % 3 else [slot, -1], 0, slot > 0] for slot in range(8)]


@pytest.mark.parametrize("n_pieces", (0, 3))
def test_a_graph_whose_parameters_stay(bench, n_pieces):
    """How many slots there are follows the memory, though the application sets no parameters. When the graph is built, there are the most."""
    result = run(bench, {"cache": dict(cache(), n_pieces=n_pieces), "launches": FIXED}, text("scatter_i64", "{pointer: 'arg[1]', dtype: i64}"))
    bench.captured("each launch", result, [rows(s, seed) for s, seed, _ in FIXED])


def test_where_the_cache_lies_is_said_late(bench):
    """The driver does not say it when it is asked first, while the graph is instantiated."""
    result = run(bench, {"cache": cache(), "launches": FIXED[1:]}, text("scatter_i64", "{pointer: 'arg[1]', dtype: i64}"),
                 DMI_STANDIN_FAIL="cuMemGetAddressRange_v2:1:999")
    run_ = result.run()
    dropped = {reason: tally.records for reason, tally in run_.counters.dropped[0].items()}
    bench.check(len(run_.of(0)) >= 5 and set(dropped) <= {"copy_failed"} and not run_.balance(), "later launches are captured", (dropped, run_.balance()))


@pytest.mark.parametrize("graph", (False, True))
def test_slots_in_a_piece_that_may_not_be_read(bench, graph):
    """Half of the slots: the others are captured."""
    here, there = N_SLOTS // 2 - 1, N_SLOTS // 2
    launches = [[[3, here], 1, graph], [[-1, there, 4], 2, graph], [[here, 0], 3, graph]]
    result = run(bench, {"cache": dict(cache(), n_pieces=2, barred=1), "launches": launches},
                 text("scatter_i64", "{pointer: 'arg[1]', dtype: i64}"))
    run_ = result.run()
    bench.check([r.words for r in run_.of(0)] == [rows(s, seed) for s, seed, _ in (launches[0], launches[2])], "the others are captured",
                [r.words for r in run_.of(0)])
    dropped = {reason: tally.records for reason, tally in run_.counters.dropped[0].items()}
    bench.check(dropped == {"bad_pointer": 1} and not run_.balance(), "one is a drop by name", (dropped, run_.balance()))


def test_in_pieces(bench):
    """Records beyond the ring's size: a piece begins at its place in the list."""
    dice = random.Random(6)
    launches = [[dice.sample(range(1024), MAX_ROWS), i + 1, False] for i in range(6)]
    plan = {"cache": {"n_slots": 1024, "block": 1024, "gap": 0, "dtype": "i32"}, "launches": launches}
    result = run(bench, plan, text("scatter_i32", "{pointer: 'arg[1]', dtype: i32}", head="ring: {bytes: 4K, slots: 64}\noverload: {mode: complete}\n"))
    bench.captured("records of 8 KiB through a ring of 4", result, [rows(s, seed) for s, seed, _ in launches])
