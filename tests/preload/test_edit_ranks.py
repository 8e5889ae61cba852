# SPDX-License-Identifier: Apache-2.0
"""Edits where ranks divide a place: a process says which rank it is, its tensor has 4 elements a row, and edits of whole rows write its part.

  parts      vectors, columns and heads count in the whole row; equal and unequal parts
  sums       within a head that the rank has they are as ever; over the divided row they are refused by name
  summands   the first rank adds, the others do nothing, and nothing is due there
"""
import struct

import pytest

from harness import dump_json
from test_edit_changes import PLACE, Served, edits, step_of

pytest.importorskip("cuda.bindings")
pytestmark = pytest.mark.since(12000, "what cuda.bindings 13 calls to build a graph")

ROW = [float(i) for i in range(12)]
ONE = "  - {{name: {0}, site: x, do: {1}, requests: '{0}'{2}}}\n"


def place(shard, dims="{count: 4}"):
    return PLACE.replace("{count: 4}", dims) + f"    shard: {shard}\n"


def floats(row):
    return [struct.unpack("<f", struct.pack("<I", word))[0] for word in row]


def served(bench, where, rank, size, entries, vectors, graph):
    """Each of @entries, {name: (operations, more keys)}, edits the request of its name. Returns {name: its row}, and the run."""
    path = edits(bench.folder, "ranks", "".join(ONE.format(name, do, more) for name, (do, more) in entries.items()), vectors)
    step = step_of(1, {name: (0, 1) for name in entries}, graph, commands=[["edit", "add", path]])
    step["said"]["ranks"] = ((rank, size), (0, 1), (0, 1), (0, 1))
    out = Served(bench, [step], place=where)
    bench.check(out.answers[0][0] == 0, "the edits are in force", out.answers)
    record, = out.run.of(1)
    return {name: floats(record.words[4 * i:4 * i + 4]) for i, name in enumerate(entries)}, out


def like(row, want):
    """None: what the kernel left, a number below 1e-30 read as a float."""
    return all(abs(x) < 1e-30 if w is None else x == w for x, w in zip(row, want))


PARTS = [  # shard, rank, size, elements of the whole row before this rank's, elements of the whole row
    ("{dim: 1, of: tp, parts: equal}", 1, 3, 4, 12), ("{dim: 1, of: tp, parts: equal}", 2, 3, 8, 12), ("{dim: 1, of: tp, parts: [2, 1]}", 0, 2, 0, 6),
    ("{dim: 1, of: tp, parts: [2, 1]}", 1, 2, 8, 12), ("{dim: 1, of: tp, parts: [1, 4, 2]}", 1, 3, 1, 7), ("{dim: 1, of: dp, parts: equal}", 1, 3, 0, 4)]


@pytest.mark.parametrize("shard, rank, size, first, whole", PARTS)
def test_parts(bench, shard, rank, size, first, whole):
    columns = [0, first + 1, first + 2, whole - 1] if first else [1, 2, whole - 1]
    named = ",".join(map(str, sorted(set(columns))))
    mine = [c - first for c in sorted(set(columns)) if first <= c < first + 4]
    other = [c for c in range(whole) if not first <= c < first + 4][-1:]
    entries = {"set": ("[{set: row}]", ""), "add": ("[{set: 1}, {add: row, times: 2}]", ""), "columns": ("[{set: 9}]", f", columns: '{named}'"),
               "several": ("[{set: few}]", f", columns: '{named}'"), "narrow": ("[{set: short}]", ""), "sum": ("[{set: 1}, {project_out: row}]", "")}
    if other:
        entries["elsewhere"] = ("[{set: 9}]", f", columns: '{other[0]}'")
    few = [float(10 * (i + 1)) for i in range(len(set(columns)))]
    rows, out = served(bench, place(shard), rank, size, entries, {"row": ROW[:whole], "few": few, "short": [1.0, 2.0, 3.0]}, rank == 1)
    part = ROW[first:first + 4]
    bench.check(rows["set"] == part and rows["add"] == [1 + 2 * x for x in part], "the rank's part of the vector", rows)
    bench.check(like(rows["columns"], [9.0 if i in mine else None for i in range(4)]), "the columns that it has", rows)
    at = {c - first: few[i] for i, c in enumerate(sorted(set(columns)))}
    bench.check(like(rows["several"], [at.get(i) for i in range(4)]), "a number for each column", rows)
    divided = whole != 4
    if other:
        bench.check(like(rows["elsewhere"], [None] * 4), "columns of other ranks", rows)
        bench.check(not [a for a in out.accounts.all if a[0] == "elsewhere" and a[2]], "are not due here", out.accounts.all)
    bench.check(out.accounts.of("narrow") == (1, 0, {"width": 1}), "another width", out.accounts.all)
    bench.check(out.accounts.of("sum") == ((1, 0, {"rank": 1}) if divided else (1, 1, {})) and (like(rows["sum"], [None] * 4) or not divided),
                "a sum over what is divided", out.accounts.all)


@pytest.mark.parametrize("graph", [False, True])
def test_sums(bench, graph):
    """Six heads of two elements on three ranks: sums within one are possible."""
    entries = {"heads": ("[{set: 8}]", ", heads: '1,3,5'"), "within": ("[{set: 1}, {adjust_rs: head, to: 5}]", ""),
               "some": ("[{set: 3}, {project_out: head}]", ", heads: '0,2'"), "over": ("[{set: 1}, keep_norm]", "")}
    rows, out = served(bench, place("{dim: 1, of: tp, parts: equal}", "{count: 2}, {count: 2}"), 1, 3, entries, {"head": [1.0, 0.0]}, graph)
    bench.check(like(rows["heads"], [None, None, 8.0, 8.0]), "heads by their numbers in the whole row", rows)
    bench.check(rows["within"] == [5.0, 1.0, 5.0, 1.0] and like(rows["some"], [0.0, 3.0, None, None]), "sums within heads", rows)
    bench.check(like(rows["over"], [None] * 4) and out.accounts.of("over") == (1, 0, {"rank": 1}), "and over the row", (rows, out.accounts.all))
    bench.check('the edit "over" writes nothing here: it needs a sum over a row that ranks divide' in out.result.stderr, "refused by name", out.result.stderr)


@pytest.mark.parametrize("rank, size", [(0, 3), (2, 3), (0, 1)])
def test_summands(bench, rank, size):
    """Only the first rank adds; what is no addition is refused, with the line and what to do."""
    entries = {"add": ("[{add: row}]", ""), "scale": ("[{add: row}, {scale: 2}]", "")}
    rows, out = served(bench, place("{sum: tp}"), rank, size, entries, {"row": ROW[:4]}, True)
    row = [None if not x else x for x in ROW[:4]]
    bench.check(like(rows["add"], row if rank == 0 else [None] * 4), "the first rank adds", rows)
    bench.check(out.accounts.of("add") == ((1, 1, {}) if rank == 0 else (0, 0, {})), "accounts", out.accounts.all)
    if size > 1:
        bench.check(like(rows["scale"], [None] * 4) and out.accounts.of("scale") == (1, 0, {"rank": 1}), "nothing is scaled", (rows, out.accounts.all))
        said = 'the edit "scale" writes nothing here: each rank of tp has a summand of x, where nothing but add is possible'
        bench.check(said in out.result.stderr, "refused by name", out.result.stderr)


def test_what_is_not_known(bench):
    """Without a step, with parts of other ranks, and of another dimension nothing is written, and a line says why."""
    path = edits(bench.folder, "all", ONE.format("*", "[{set: 7}]", "").replace("name: *", "name: seven"))
    out = Served(bench, [{"said": None, "launches": [["block", 2, 1, False]], "commands": [["edit", "add", path]]}], head="ring: {bytes: 1M, slots: 4096}\n",
                 place=place("{dim: 1, of: tp, parts: equal}"))
    bench.check(out.accounts.of("seven") == (2, 0, {"rank": 2}) and "the engine does not say which one this is" in out.result.stderr, "no step",
                (out.accounts.all, out.result.stderr))
    step = step_of(1, {"b": (0, 1)}, False, commands=[["edit", "add", path]])
    alone = Served(bench, [step], place=place("{dim: 1, of: tp, parts: equal}"))
    bench.check(alone.accounts.of("seven") == (1, 1, {}) and "writes nothing" not in alone.result.stderr, "with a step it is known", alone.result.stderr)
    for shard, dims, line in (("{dim: 1, of: tp, parts: [2, 1]}", "{count: 4}", '"parts" of x are of 2 ranks, and tp has 3'),
                              ("{dim: 2, of: tp, parts: equal}", "{count: 2}, {count: 2}", "ranks of tp divide dimension 2 of x")):
        _, out = served(bench, place(shard, dims), 0, 3, {"seven": ("[{set: 7}]", "")}, {}, True)
        bench.check(out.accounts.of("seven") == (1, 0, {"rank": 1}) and line in out.result.stderr, shard, (out.accounts.all, out.result.stderr))


def test_edit_check(bench):
    """dmi-ctl changes nothing with several ranks, and checks an edit against the rank's part."""
    paths = [edits(bench.folder, name, ONE.format("a", do, ""), {"row": ROW, "short": ROW[:4]}) for name, do in (
        ("good", "[{set: row}]"), ("width", "[{set: short}]"), ("sum", "[{project_out: row}]"))]
    first, second = step_of(1, {"b": (0, 1)}, False), step_of(2, {"b": (1, 1)}, False, commands=[["edit", "check", path] for path in paths])
    for step in (first, second):
        step["said"]["ranks"] = ((1, 3), (0, 1), (0, 1), (0, 1))
    out = Served(bench, [first, second], place=place("{dim: 1, of: tp, parts: equal}"))
    said = [answer.get("error", "") for _, answer in out.answers]
    bench.check([code for code, _ in out.answers] == [0, 1, 1] and "rows of 12 elements" in said[1] and "sums over a row that ranks divide" in said[2], "answers", out.answers)


def test_a_bank_of_parts(bench):
    """A rank keeps its part of a row, and gives it to the same part alone."""
    save = "  - {name: keeps, site: x, do: [{save: clean}], requests: d, tokens: '0:1'}\n"
    take = "  - {name: takes, site: x, do: [{patch: 'bank:clean'}], requests: t, tokens: '0:1'}\n"
    path = edits(bench.folder, "bank", save + take)
    step = step_of(1, {"d": (0, 1), "t": (0, 1)}, False, commands=[["edit", "add", path]])
    step["said"]["ranks"] = ((1, 3), (0, 1), (0, 1), (0, 1))
    out = Served(bench, [step], place=place("{dim: 1, of: tp, parts: equal}") + "edits: {bank: 64K}\n")
    record, = (r for r in out.run.records if r.words)
    bench.check(record.words[:4] == record.words[4:8] and out.accounts.of("takes") == (1, 1, {}), "its part", (record.words, out.accounts.all))
    stats = dump_json("stats", out.result.folders[0], "--edits")["edit_accounts"]
    bench.check(all(e["due"] == e["written"] + sum(e["missed_by_reason"].values()) for e in stats), "accounts", stats)
