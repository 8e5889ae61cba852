# SPDX-License-Identifier: Apache-2.0
"""Edits that change while the engine serves, by dmi-ctl: from which step on they hold and for which requests, what the run notes of it, what
became of each row, and who is refused. A kernel writes 4 words a row, edits set them, and a record after the edit shows what is there.
"""
import array
import fcntl
import json
import os
import pathlib
import socket
import struct
import subprocess
import sys
import time

import pytest

from harness import BUILD, PRELOAD, ROOT, dump_json, environment
from kit import spec
from rows_client import WIDTH

pytest.importorskip("cuda.bindings")
pytestmark = pytest.mark.since(12000, "what cuda.bindings 13 calls to build a graph")

CLIENT = pathlib.Path(__file__).with_name("rows_client.py")
CTL = BUILD / "tools" / "dmi-ctl"
PLACE = f"""  - name: x
    kernel: '^block$'
    pointer: arg[0]
    dtype: f32
    dims: [{{row: true, count: 'arg[1].u32 / {WIDTH}'}}, {{count: {WIDTH}}}]
    write: {{}}
"""
HEAD = "forward: [{kind: step, begin: step}]\nring: {bytes: 1M, slots: 4096}\n"
MISSES = ["not_run", "width", "bad_tag", "no_step", "unsupported", "bad_pointer", "driver", "no_room", "rank", "cache_shared", "cached", "lost", "no_source"]


def step_of(number, requests, graph, caches=False, **more):
    """A step of @requests, {id: (first position, rows)}, or with tags {id: (first, rows, tags)}."""
    spans, row = [], 0
    for name, (first, n, *tags) in requests.items():
        spans.append({"request": name, "first_position": first, "n_tokens": n, "first_row": row, "n_prompt": 4, "phase": 1 if first < 4 else 2,
                      "tags": tags[0] if tags else None})
        row += n
    spans.append({"request": None, "first_position": 0, "n_tokens": 1, "first_row": row, "flags": 1})
    return {"said": {"step": number, "spans": spans, "n_rows": row + 1, "caches": caches}, "launches": [["block", row + 1, number, graph]], **more}


def edits(folder, name, text, vectors=()):
    """A file of edits, with npy files of its vectors."""
    for key, values in dict(vectors).items():
        head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({len(values)},), }}".ljust(117) + "\n"
        (folder / f"{key}.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + array.array("f", values).tobytes())
    path = folder / f"{name}.yaml"
    path.write_text("editspec: 1\n" + ("vectors: {" + ", ".join(f"{k}: {{file: {k}.npy}}" for k in dict(vectors)) + "}\n" if vectors else "") + "edits:\n" + text)
    return str(path)


class Accounts:
    """The file `edits` of a run (docs/format.md 10.2)."""

    def __init__(self, path):
        data = path.read_bytes()
        self.ended, self.marked = struct.unpack_from("<QQ", data, 32)
        self.all = []
        for at in range(64, len(data), 552):
            uid, state, n, due, written, *missed = struct.unpack_from("<QII2Q16Q", data, at)
            if state:
                self.all.append((data[at + 160:at + 288].split(b"\0")[0].decode(), data[at + 296:at + 296 + n].decode(), due, written,
                                 {MISSES[i]: k for i, k in enumerate(missed) if k}))

    def of(self, edit):
        """(due, written, {reason: missed}) of all its requests."""
        due, written, missed = 0, 0, {}
        for name, _, d, w, reasons in self.all:
            if name == edit:
                due, written = due + d, written + w
                for reason, n in reasons.items():
                    missed[reason] = missed.get(reason, 0) + n
        return due, written, missed


class Served:
    def __init__(self, bench, plan, head=HEAD, balances=True, place=PLACE, **env):
        path, answers = bench.folder / "plan.json", bench.folder / "answers"
        path.write_text(json.dumps(plan))
        self.result = bench.run([], spec(place.rstrip("\n"), head=head), command=[sys.executable, CLIENT, path], timeout=120, PYTHONPATH=ROOT / "python",
                                DMI_CONTROL="1", CTL=CTL, ANSWERS=answers, **env)
        bench.check(self.result.code == 0 and self.result.folders, "the program runs, and a run is written", self.result.stderr)
        self.run = self.result.run()
        self.answers = [(code, json.loads(said) if said.startswith("{") else said) for code, said in map(json.loads, answers.read_text().splitlines())] \
            if answers.exists() else []
        self.accounts = Accounts(self.result.folders[0] / "edits")
        sums = [a for a in self.accounts.all if a[2] != a[3] + sum(a[4].values())]
        bench.check(not sums and (not balances or not self.run.balance()), "due = written + missed, and records balance", sums)

    def rows(self):
        """{step: [what each row holds, as f32]}: a value where all words are the same, "kernel" where the kernel's are there. Padding is in no record."""
        found = {}
        for record in self.run.of(1):
            rows = [record.words[i:i + WIDTH] for i in range(0, len(record.words), WIDTH)]
            found[record.step + 1] = [
                "kernel" if [w & 0xffff for w in row] == [r * WIDTH + i for i in range(WIDTH)] and row[0] >> 16 == record.step + 1
                else struct.unpack("<f", struct.pack("<I", row[0]))[0] if len(set(row)) == 1 else row for r, row in enumerate(rows)]
        return found


    def values(self):
        """The same of each record, as f32, in their order."""
        return [[struct.unpack("<f", struct.pack("<I", word))[0] for word in record.words[::WIDTH]] for record in self.run.of(1)]


SET = "  - {{name: {}, site: x, do: [{{set: {}}}], requests: '{}'{}}}\n"


def test_a_bank_while_it_serves(bench):
    """Whose rows there are, until somebody drops them; rows of a donor that other edits would have changed are refused, and names that mean nothing."""
    save = "  - {name: keeps, site: x, do: [{save: clean, keep: true}], requests: 'd*', tokens: '0:1'}\n"
    take = "  - {{name: {}, site: x, do: [{{patch: 'bank:{}'}}], requests: 't*', tokens: '0:1'}}\n"
    both = edits(bench.folder, "both", save + take.format("takes", "clean"))
    again, unknown = edits(bench.folder, "again", save.replace("keeps", "more")), edits(bench.folder, "unknown", take.format("bad", "nothing"))
    other, upon = edits(bench.folder, "other", SET.format("other", 7, "z*", "")), edits(bench.folder, "upon", SET.format("upon", 7, "d*", ""))
    plan = [step_of(1, {"d1": (0, 2)}, True, commands=[["bank", "list"], ["edit", "add", unknown], ["edit", "add", both], ["edit", "add", again]]),
            step_of(2, {"t1": (0, 2)}, True, commands=[["edit", "add", other]], ends=["d1"]),
            step_of(3, {"t2": (0, 1)}, True, commands=[["bank", "list"], ["edit", "add", upon]]),
            step_of(4, {"t3": (0, 1)}, True, commands=[["edit", "remove", "upon"]]),
            step_of(5, {"t4": (0, 1)}, True, commands=[["bank", "drop", "clean"], ["bank", "drop", "clean"], ["bank", "list"]])]
    out = Served(bench, plan, head=HEAD + "edits: {bank: 1M}\n")
    records = {r.step + 1: r.words for r in out.run.of(2)}
    donor = records[1][:WIDTH]
    took = {step: words[:WIDTH] == donor for step, words in records.items() if step > 1}
    bench.check(took == {2: True, 3: False, 4: True, 5: False} and records[2][WIDTH:2 * WIDTH] != donor, "who has the donor's row", took)
    bench.check(out.accounts.of("keeps") == (1, 1, {}) and out.accounts.of("takes") == (4, 2, {"no_source": 2}), "accounts", out.accounts.all)
    codes, answers = [code for code, _ in out.answers], [said for _, said in out.answers]
    bench.check(codes == [0, 1, 0, 1, 0, 0, 0, 0, 0, 1, 0], "answers", out.answers)
    listed = [{"name": "clean", "request": "d1", "keep": True, "ended": True}]
    bench.check([answers[i]["bank"] for i in (0, 5, 10)] == [[], listed, []] and answers[8]["dropped"] == 1, "bank list", answers)
    bench.check("takes rows that no edit saves as \"nothing\"" in answers[1]["error"] and "saves rows as \"clean\", as \"keeps\" does" in answers[3]["error"]
                and "no request has rows under that name" in answers[9]["error"], "what is refused", answers)
    noted = [c["what"].split(", by")[0] for c in dump_json("list", out.result.folders[0])["changes"]]
    bench.check("bank drop clean" in noted and noted.count("edit takes: a request takes rows that another one saved as clean") == 2, "notes", noted)


def test_without_a_bank(bench):
    out = Served(bench, [step_of(1, {"a": (0, 1)}, False, commands=[["bank", "list"], ["edit", "add", edits(bench.folder, "save",
                                                                    "  - {name: s, site: x, do: [{save: b}]}\n")]])])
    bench.check(out.answers[0][0] == 1 and "edits save no rows" in out.answers[0][1]["error"] and out.answers[1][0], "refused, with the remedy", out.answers)


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_changes_hold_for_requests_that_begin(bench, graph):
    """A request keeps what was in force at its first step; an edit with `live: true` follows each change from the next step on."""
    first = edits(bench.folder, "first", SET.format("seven", 7, "*", ""))
    live = edits(bench.folder, "live", SET.format("nine", 9, "l*", ", live: true"))
    plan = [step_of(1, {"a": (0, 2), "l": (0, 1)}, graph),
            step_of(2, {"a": (2, 2), "b": (0, 2), "l": (1, 1)}, graph, commands=[["edit", "add", first]]),
            step_of(3, {"a": (4, 1), "b": (2, 1), "l": (2, 1)}, graph, commands=[["edit", "add", live], ["edit", "list"]]),
            step_of(4, {"b": (3, 1), "c": (0, 1), "l": (3, 1)}, graph, commands=[["edit", "off", "nine"], ["edit", "remove", "seven"]]),
            step_of(5, {"b": (4, 1), "c": (1, 1), "l": (4, 1)}, graph, commands=[["edit", "on", "nine"]], ends=["b"]),
            step_of(6, {"b": (0, 1), "l": (5, 1)}, graph)]
    out = Served(bench, plan)
    k = "kernel"
    bench.check(out.rows() == {1: [k] * 3, 2: [k, k, 7.0, 7.0, k], 3: [k, 7.0, 9.0], 4: [7.0, k, k], 5: [7.0, k, 9.0], 6: [k, 9.0]},
                "rows", (out.rows(), out.answers))
    listed = out.answers[2][1]["edits"]
    bench.check([code for code, _ in out.answers] == [0] * 6 and [e["name"] for e in listed] == ["seven", "nine"], "answers", out.answers)
    bench.check(listed[0]["due"] >= 2 and [out.answers[i][1]["step"] for i in (0, 1, 3, 4, 5)] == [1, 2, 3, 3, 4], "steps from which on they hold", out.answers)
    bench.check(out.accounts.of("seven") == (5, 5, {}) and out.accounts.of("nine") == (3, 3, {}), "accounts", out.accounts.all)
    noted = dump_json("list", out.result.folders[0])["changes"]
    who = f", by uid {os.geteuid()}, pid "
    bench.check([c["what"].split(", by")[0] for c in noted] == ["edits add seven", "edits add nine", "edits set nine off", "edits remove seven", "edits set nine on"]
                and all(who in c["what"] for c in noted), "each change is noted", noted)


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_engines_that_say_no_steps(bench, graph):
    """All rows are written by edits of all requests and tokens; those of named requests are missed, and nothing is launched for them alone."""
    everyone = edits(bench.folder, "everyone", SET.format("seven", 7, "*", ""))
    eight = edits(bench.folder, "eight", SET.format("eight", 8, "*", ""))
    somebody = edits(bench.folder, "somebody", SET.format("named", 9, "a*", ""))
    commands = [[], [["edit", "add", somebody]], [["edit", "add", everyone]], [["edit", "remove", "seven"], ["edit", "add", eight]],
                [["edit", "remove", "eight"]]]
    plan = [{"said": None, "launches": [["block", 3, number, graph]] * 2, "commands": commands[number - 1]} for number in range(1, 6)]
    out = Served(bench, plan, head="ring: {bytes: 1M, slots: 4096}\n")
    found = [["kernel" if row != 7.0 and row != 8.0 else row for row in rows] for rows in out.values()]
    k = "kernel"
    bench.check(found == [[k] * 3] * 4 + [[7.0] * 3] * 2 + [[8.0] * 3] * 2 + [[k] * 3] * 2, "rows", (found, out.answers))
    bench.check([out.accounts.of(name) for name in ("seven", "eight", "named")] == [(6, 6, {}), (6, 6, {}), (24, 0, {"no_step": 24})], "accounts",
                out.accounts.all)


def test_coefficients(bench):
    """By number, by generated token, by the request's own tag; another from dmi-ctl."""
    path = edits(bench.folder, "all", """  - {name: tagged, site: x, do: [{set: 0}, {add: one, times: 'tag:much'}], requests: t*}
  - {name: moving, site: x, do: [zero, {add: one, times: {0: 8, 4: 0}}], requests: p*, tokens: generated}
  - {name: plain, site: x, do: [zero, {add: one, times: 3}], requests: n*}
""", {"one": [1.0] * WIDTH})
    plan = [step_of(1, {"t1": (0, 1, '{"much": 2.5}'), "t2": (0, 1), "t3": (0, 1, '{"much": "a lot"}'), "n": (0, 1)}, True, commands=[["edit", "add", path]]),
            step_of(2, {"p": (3, 4), "n": (1, 1)}, False),
            step_of(3, {"n": (2, 1), "n2": (0, 1)}, False, commands=[["edit", "set", "plain", "times=5"]])]
    out = Served(bench, plan)
    k = "kernel"
    bench.check(out.rows() == {1: [2.5, k, k, 3.0], 2: [k, 8.0, 6.0, 4.0, 3.0], 3: [3.0, 5.0]}, "rows", (out.rows(), out.answers))
    bench.check(out.accounts.of("tagged") == (2, 1, {"bad_tag": 1}), "a tag that is no number is missed; none is not due", out.accounts.all)


def test_edits_that_do_not_suit(bench):
    """What launches and graphs have shown of a place refuses an edit that could write nothing there, and changes nothing."""
    add = [["edit", "add", edits(bench.folder, name, SET.format(name, what, "*", more), {"v": [7.0] * 8} if what == "v" else ())]
           for name, what, more in [("wide", "v", ", partial: allow"), ("beyond", 7, ", partial: allow, columns: '4'"), ("layer", 7, ", partial: allow, layers: '3'"),
                                    ("closed", 7, ""), ("partial", 7, ", partial: allow")]]
    step = step_of(1, {"a": (0, 1)}, False, commands=[["edit", "check", add[0][2]]])
    step["launches"] += [["block", 2, 1, True], ["block", 2, 1, "memory"]]
    out = Served(bench, [step, step_of(2, {"a": (1, 1)}, False), step_of(3, {"b": (0, 1)}, False, commands=add), step_of(4, {"c": (0, 1)}, "memory"),
                         step_of(5, {"d": (0, 1)}, True)], place=PLACE.replace(f"{{count: {WIDTH}}}", f"{{count: 'arg[1].u32 * 0 + {WIDTH}'}}"))
    said = [answer.get("error", "") if isinstance(answer, dict) else answer for _, answer in out.answers]
    bench.check(out.answers[0][0] == 0, "before anything was launched nobody can tell", out.answers[0])
    bench.check([code for code, _ in out.answers[1:]] == [1, 1, 1, 1, 0], "refused, and taken", out.answers)
    bench.check("rows of 4 elements" in said[1] and "vectors of 8 elements" in said[1] and "rows of 4 elements" in said[2], "rows", said)
    bench.check("x is in no layer" in said[3] and "1 of 2 graphs" in said[4] and "partial: allow" in said[4], "layers and graphs", said)
    bench.check(out.rows() == {1: ["kernel"], 2: ["kernel"], 3: [7.0], 5: [7.0]}, "rows that are written", out.rows())
    bench.check(out.accounts.of("partial") == (3, 2, {"unsupported": 1}) and len({a[0] for a in out.accounts.all}) == 1, "accounts", out.accounts.all)


def test_layers_that_are_not_there(bench):
    """An edit of a layer beyond those of a step that is over is refused."""
    place = PLACE.replace("    pointer:", "    layer: occ\n    pointer:")
    paths = [edits(bench.folder, name, SET.format(name, 7, "*", f", layers: '{layers}'")) for name, layers in (("beyond", "1-2"), ("there", "1"))]
    step = step_of(1, {"a": (0, 1)}, False)
    step["launches"] *= 2
    later = step_of(3, {"b": (0, 1)}, False, commands=[["edit", "add", path] for path in paths])
    out = Served(bench, [step, step_of(2, {"a": (1, 1)}, False), later], place=place)
    bench.check([code for code, _ in out.answers] == [1, 0] and "x has no layer 2: forwards had it in layers up to 1" in out.answers[0][1]["error"], "answers",
                out.answers)


def test_prefix_caches(bench):
    """An edit writes in requests with its salt alone where the engine shares cached rows, or does not say whether it does."""
    path = edits(bench.folder, "cached", SET.format("seven", 7, "*", "") + SET.format("any", 8, "i*", ", cache: ignore"))
    plan = [step_of(1, {"a": (0, 1)}, False, caches=None, commands=[["edit", "add", path], ["edit", "salt", "a"]]),
            step_of(2, {"b": (0, 1), "i": (0, 1)}, False, caches=True), step_of(3, {"c": (0, 1)}, False, caches=False)]
    salt = Served(bench, plan).answers[1][1]["salt"]
    plan += [step_of(4, {"d": (0, 1, json.dumps({"cache_salt": f"mine/{salt}"})), "e": (0, 1, '{"cache_salt": "mine"}')}, True, caches=True)]
    out = Served(bench, plan)
    k = "kernel"
    bench.check(out.rows() == {1: [k], 2: [k, 8.0], 3: [7.0], 4: [7.0, k]}, "rows", (out.rows(), out.answers))
    bench.check(out.accounts.of("seven") == (6, 2, {"cache_shared": 4}) and out.accounts.of("any") == (1, 1, {}), "accounts", out.accounts.all)
    bench.check("is not known" in out.result.stderr, "a line says why", out.result.stderr)


def test_an_edit_that_is_the_same_everywhere_needs_no_salt(bench):
    """One of all requests and tokens, in force from the start, writes in an engine that shares prefixes or does not say so; rows from the cache have it. It
    stays as it is then. One that depends on request, position, or came later needs the salt, and the salt tells of these alone."""
    start = bench.folder / "start"
    do = "  - {{name: {}, site: x, do: [{}]{}}}\n"
    start.write_bytes(pack("editspec: 1\nedits:\n" + do.format("same", "{set: 7}", "") + do.format("own", "{scale: 1}", ", requests: 'b*'") +
                           do.format("late", "{scale: 1}", ", tokens: generated") + do.format("fades", "{scale: {0: 1, 4: 1}}", "") + do.format("lives", "{scale: 1}", ", live: true")))
    later = edits(bench.folder, "later", do.format("added", "{scale: 1}", ""))
    cached = step_of(3, {"c": (2, 1)}, True, caches=True, commands=[["edit", "add", later], ["edit", "set", "same", "times=1"], ["edit", "off", "same"], ["edit", "remove", "same"],
                                                                    ["edit", "remove", "late"], ["edit", "remove", "fades"], ["edit", "remove", "lives"], ["edit", "remove", "added"],
                                                                    ["edit", "salt", "new"], ["edit", "salt", "b2"]])
    cached["said"]["spans"][0]["n_cached"] = 2
    plan = [step_of(1, {"a": (0, 2)}, False, caches=None), step_of(2, {"b": (4, 1)}, True, caches=True), cached]
    out = Served(bench, plan, DMI_EDITS=start)
    bench.check(out.rows() == {1: [7.0] * 2, 2: [7.0], 3: [7.0]}, "rows", out.rows())
    missed = {name: out.accounts.of(name)[2] for name in ("same", "own", "late", "fades", "lives")}
    bench.check(out.accounts.of("same") == (4, 4, {}) and missed == {"same": {}, "own": {"cache_shared": 1}, "late": {"cache_shared": 1}, "fades": {"cache_shared": 3}, "lives": {"cache_shared": 3}}, "accounts", out.accounts.all)
    codes = [code for code, _ in out.answers]
    bench.check(codes == [0, 1, 1, 1, 0, 0, 0, 0, 0, 0] and all("cannot change" in out.answers[i][1]["error"] for i in (1, 2, 3)), "changes", out.answers)
    bench.check(out.answers[8][1]["salt"] is None and out.answers[9][1]["salt"].startswith("dmi-"), "salts", out.answers[8:])


@pytest.mark.parametrize("caches, refused", [(False, False), (True, True)])
def test_what_is_the_same_everywhere_changes_where_no_prefix_has_it(bench, caches, refused):
    """And needs the salt from then on."""
    start = bench.folder / "start"
    start.write_bytes(pack("editspec: 1\nedits:\n  - {name: same, site: x, do: [{set: 7}]}\n"))
    plan = [step_of(1, {"a": (0, 1)}, False, caches=caches), step_of(2, {"b": (0, 1)}, False, commands=[["edit", "off", "same"], ["edit", "on", "same"]]),
            step_of(3, {"c": (0, 1)}, False, caches=True)]
    out = Served(bench, plan, DMI_EDITS=start)
    bench.check([code for code, _ in out.answers] == [refused] * 2, "answers", out.answers)
    bench.check(out.accounts.of("same") == ((3, 3, {}) if refused else (3, 2, {"cache_shared": 1})), "accounts", out.accounts.all)


def test_requests_to_abort(bench):
    """An adapter learns which requests have missed rows of an edit that says so."""
    path = edits(bench.folder, "strict", SET.format("strict", 7, "s*", ", on_miss: abort") + SET.format("lax", 8, "l*", ""))
    plan = [step_of(1, {"s1": (0, 2), "l1": (0, 1)}, False, caches=True, commands=[["edit", "add", path]], missed=["s1", "l1", "none"]),
            step_of(2, {"s1": (2, 1), "s2": (0, 1)}, True, caches=True, missed=["s1", "s2"]), step_of(3, {"s3": (0, 1)}, False, missed=["s3"])]
    out = Served(bench, plan)
    said = [line for line in out.result.stdout.splitlines() if line.startswith("missed")]
    bench.check(said == ["missed 2 0 0", "missed 3 1", "missed 0"], "rows", said)


def with_cached(step, cached):
    """The step says of a request how many tokens before its first row it has from a cache."""
    for span in step["said"]["spans"]:
        span["n_cached"] = cached.get(span["request"], 0)
    return step


def test_rows_of_a_cached_prefix_are_due(bench):
    """Also where no row that is computed is: they are missed, and a request with `on_miss: abort` is to end."""
    path = edits(bench.folder, "one", SET.format("early", 7, "e*", ", tokens: '0:3', on_miss: abort") + SET.format("last", 8, "l*", ", tokens: 'prompt[-2:]'"))
    plan = [with_cached(step_of(1, {"e1": (3, 2), "l1": (3, 3)}, False, commands=[["edit", "add", path]], missed=["e1", "l1"]), {"e1": 3, "l1": 3})]
    out = Served(bench, plan)
    bench.check(out.rows() == {1: ["kernel", "kernel", 8.0, "kernel", "kernel"]}, "what is written", out.rows())
    bench.check((out.accounts.of("early"), out.accounts.of("last")) == ((3, 0, {"cached": 3}), (2, 1, {"cached": 1})), "accounts", out.accounts.all)
    bench.check("missed 3 0" in out.result.stdout.splitlines(), "the adapter learns it", out.result.stdout)


def test_a_patch_after_the_prompt_is_told(bench):
    """Once for each edit, in the log and among the run's problems; within the prompt there is nothing to say."""
    save = "  - {name: keeps, site: x, do: [{save: clean, keep: true}], requests: 'd*', tokens: '0:6'}\n"
    take = "  - {{name: {}, site: x, do: [{{patch: 'bank:clean'}}], requests: '{}*', tokens: '{}'}}\n"
    path = edits(bench.folder, "one", save + take.format("far", "f", "0:6") + take.format("near", "n", "prompt[0:6]"))
    plan = [step_of(1, {"d1": (0, 6)}, False, commands=[["edit", "add", path]]), step_of(2, {"f1": (0, 6), "f2": (0, 6), "n1": (0, 6)}, False)]
    out = Served(bench, plan, head=HEAD.replace("edits: {", "edits: {bank: 1M, ") if "edits: {" in HEAD else HEAD + "edits: {bank: 1M}\n")
    bench.check((out.accounts.of("far"), out.accounts.of("near")) == ((12, 12, {}), (4, 4, {})), "accounts", out.accounts.all)
    told = [(p["reason"], p["sentence"]) for p in out.run.manifest["problems"]]
    bench.check(len(told) == 1 and told[0][0] == "patch_after_prompt" and 'the edit "far" patches generated tokens' in told[0][1], "the run", told)
    bench.check(out.result.stderr.count("patches generated tokens") == 1, "the log", out.result.stderr)


def test_patches_where_prefixes_are_shared(bench):
    """A request with the salt of its edits and of the donor gets the donor's rows; the salt of another donor is another one."""
    save = "  - {name: keeps, site: x, do: [{save: clean, keep: true}], requests: 'd*', tokens: '0:1'}\n"
    take = "  - {name: takes, site: x, do: [{patch: 'bank:clean'}], requests: 't*', tokens: '0:1'}\n"
    own = "  - {name: own, site: x, do: [{save: mine}], requests: 'o*'}\n  - {name: again, site: x, do: [{patch: 'bank:mine'}], requests: 'o*'}\n"
    path, head = edits(bench.folder, "one", save + take + own), HEAD + "edits: {bank: 1M}\n"

    def plan(salt, o_salt):
        tag = lambda text: json.dumps({"cache_salt": f"mine/{text}"})  # noqa: E731
        ask = lambda name: ["edit", "salt", name]  # noqa: E731
        return [step_of(1, {"a": (0, 1)}, False, True, commands=[["edit", "add", path], ask("t1"), ask("o1")]), step_of(2, {"d1": (0, 1)}, False, True),
                step_of(3, {"t1": (0, 1, tag(salt)), "t2": (0, 1), "o1": (0, 1, tag(o_salt))}, True, True, commands=[ask("t1")]),
                step_of(4, {"b": (0, 1)}, False, True, commands=[["bank", "drop", "clean"]]), step_of(5, {"d2": (0, 1)}, False, True),
                step_of(6, {"t3": (0, 1, tag(salt))}, True, True, commands=[ask("t3")])]
    told = Served(bench, plan("none", "none"), head=head).answers
    bench.check([code for code, _ in told] == [0, 1, 0, 0, 0, 0] and "there is no salt yet" in told[1][1]["error"], "without a donor there is no salt", told)
    salts = [told[i][1]["salt"] for i in (2, 3, 5)]
    bench.check(len(set(salts)) == 3 and all(salts), "each donor has its own", told)
    out = Served(bench, plan(salts[1], salts[0]), head=head)
    bench.check(out.accounts.of("takes") == (3, 1, {"cache_shared": 2}) and out.accounts.of("again") == (1, 1, {}), "only with its salt", out.accounts.all)


def test_several_ranks(bench):
    """dmi-ctl changes nothing where ranks would change at different steps."""
    path = edits(bench.folder, "one", SET.format("seven", 7, "*", ""))
    step = step_of(1, {"a": (0, 1)}, False)
    step["said"]["ranks"] = ((1, 2), (0, 1), (0, 1), (0, 1))
    out = Served(bench, [step, step_of(2, {"b": (0, 1)}, False, commands=[["edit", "add", path], ["edit", "check", path], ["edit", "list"]])])
    bench.check([code for code, _ in out.answers] == [1, 0, 0] and "several ranks" in out.answers[0][1]["error"], "refused", out.answers)
    bench.check(out.rows() == {1: ["kernel"], 2: ["kernel"]}, "and nothing is written", out.rows())


def send(run, line, descriptor):
    """What the process answers to a line with a descriptor."""
    folder = os.open(run, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(f"/proc/self/fd/{folder}/control")
        socket.send_fds(s, [line.encode() + b"\n"], [] if descriptor is None else [descriptor])
        answer = s.makefile().readline()
    os.close(folder)
    return json.loads(answer)


def sealed(data, seals=0xf):
    fd = os.memfd_create("pack", os.MFD_ALLOW_SEALING)
    os.write(fd, data)
    fcntl.fcntl(fd, 1033, seals)  # F_ADD_SEALS
    return fd


def pack(text, numbers=(), tensors=()):
    """As edits_pack() makes it."""
    head = b"DMIEDIT1" + struct.pack("<IIQ", len(tensors), len(text), len(numbers))
    return head + b"".join(struct.pack("<IiQQ", *t) for t in tensors) + array.array("f", numbers).tobytes() + text.encode()


GOOD = "editspec: 1\nedits: [{name: e, site: x, do: [zero]}]\n"
VECTOR = "editspec: 1\nvectors: {v: {file: v.npy}}\nedits: [{name: e, site: x, do: [{add: v}]}]\n"
HOSTILE = [("no descriptor", None, "no descriptor came"), ("unsealed", (pack(GOOD), 0x2), "not sealed"), ("empty", (b"", 0xf), "no memory file"),
           ("noise", (b"\xff" * 4096, 0xf), "found no edits"), ("cut", (pack(GOOD)[:-1], 0xf), "found no edits"),
           ("long", (pack(GOOD) + b"x", 0xf), "found no edits"), ("counts", (pack(GOOD)[:8] + struct.pack("<IIQ", 2**31, 10, 2**40), 0xf), "found no edits"),
           ("no vector", (pack(VECTOR), 0xf), None), ("not finite", (pack(VECTOR, [1.0, float("nan")], [(0, -1, 0, 2)]), 0xf), "numbers that no vector can have"),
           ("beyond", (pack(VECTOR, [1.0], [(0, -1, 0, 2)]), 0xf), "numbers that no vector can have"),
           ("another vector", (pack(VECTOR, [1.0], [(7, -1, 0, 1)]), 0xf), "numbers that no vector can have"),
           ("a wrong site", (pack(GOOD.replace("site: x", "site: y")), 0xf), 'expected a site of the HookSpec with "write": x'),
           ("binary", (pack("editspec: 1\nedits: [{name: e, site: x, do: [zero]}]\n\0"), 0xf), None)]


def test_hostile_clients(bench):
    """Whoever sends what is no edits gets a sentence; the engine and its capture go on."""
    gate = bench.folder / "gate"
    plan = bench.folder / "plan.json"
    plan.write_text(json.dumps([step_of(i, {"a": (i - 1, 1)}, False) for i in range(1, 4)]))
    (bench.folder / "spec.yaml").write_text(spec(PLACE.rstrip("\n"), head=HEAD))
    env = environment(DMI_SPEC=bench.folder / "spec.yaml", DMI_OUT=bench.folder / "out", DMI_CONTROL="1", PYTHONPATH=ROOT / "python", LD_PRELOAD=PRELOAD)
    process = subprocess.Popen([sys.executable, CLIENT, plan, gate], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        while not pathlib.Path(f"{gate}.reached").exists():
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
        run, = (p for p in (bench.folder / "out").iterdir() if p.is_dir() and not p.is_symlink())
        for name, given, words in HOSTILE:
            fd = None if given is None else sealed(*given)
            answer = send(run, "edit add", fd)
            if fd is not None:
                os.close(fd)
            bench.check(answer["ok"] is False and (words is None or words in answer["error"]) if name != "no vector" else True, name, answer)
            send(run, "edit remove e", None)
        bench.check(send(run, "edit set e times=x", None)["ok"] is False and send(run, "edit nonsense", None)["ok"] is False, "words", "")
        fd = sealed(pack(GOOD))
        bench.check(send(run, "edit add", fd)["ok"] and "is there already" in send(run, "edit add", fd)["error"], "and a good one is taken, once", "")
        os.close(fd)
    finally:
        gate.touch()
        stdout, stderr = process.communicate(timeout=60)
    bench.check(process.returncode == 0, "the program ends as ever", stderr)


def memory_of(process):
    """Resident KiB."""
    return int(pathlib.Path(f"/proc/{process.pid}/status").read_text().partition("VmRSS:")[2].split()[0])


@pytest.mark.long
def test_memory_of_very_many_changes(bench):
    """50,000 changes while steps are launched: what is in force takes as much memory as after the first 5,000, and each is noted."""
    steps = [step_of(i, {f"r{i % 7}": (i // 7, 1)}, bool(i % 2), pause=0.001) for i in range(1, 20001)]
    (bench.folder / "plan.json").write_text(json.dumps(steps))
    (bench.folder / "spec.yaml").write_text(spec(PLACE.rstrip("\n"), head=HEAD + "edits: {bytes: 65536}\n"))
    env = environment(DMI_SPEC=bench.folder / "spec.yaml", DMI_OUT=bench.folder / "out", DMI_CONTROL="1", PYTHONPATH=ROOT / "python", LD_PRELOAD=PRELOAD)
    with open(bench.folder / "stderr", "w+", encoding="utf-8") as log, \
            subprocess.Popen([sys.executable, CLIENT, bench.folder / "plan.json", bench.folder / "gate"], env=env, stderr=log, stdout=log) as process:
        until = time.monotonic() + 60
        while not (found := [path for path in (bench.folder / "out").glob("*") if (path / "control").exists()]) and time.monotonic() < until:
            time.sleep(0.01)
        with socket.socket(socket.AF_UNIX) as s:
            folder = os.open(found[0], os.O_PATH)
            s.connect(f"/proc/self/fd/{folder}/control")
            os.close(folder)
            answers, fd, kib = s.makefile(), sealed(pack(GOOD.replace("zero", "{scale: 2}"))), {}
            for i in range(50000):
                line = ("edit add", "edit set e times=3", "edit off e", "edit remove e")[i % 4]
                socket.send_fds(s, [line.encode() + b"\n"], [fd] if not i % 4 else [])
                answer = json.loads(answers.readline())
                assert answer["ok"], (i, line, answer)
                if i % 5000 == 4999:
                    kib[i + 1] = memory_of(process)
            os.close(fd)
        (bench.folder / "gate").touch()
        bench.check(process.wait(timeout=300) == 0, "the program ends as ever", "see stderr")
    bench.check(kib[50000] < kib[5000] + 4096, "memory stays as it is", kib)
    changes = dump_json("edits", found[0])["changes"]
    bench.check(len(changes) == 50000, "each change is noted", len(changes))


def test_many_changes(bench):
    """Memory stays as it is: versions go when no step and no kernel in flight has them."""
    paths = [edits(bench.folder, f"e{i}", SET.format(f"e{i % 2}", i, "*", "")) for i in range(2)]
    changes = []
    for i in range(50000):
        changes += [["edit", "add", paths[i % 2]], ["edit", "set", f"e{i % 2}", "times=2"], ["edit", "remove", f"e{i % 2}"]]
    plan = [step_of(i + 1, {f"r{i}": (0, 1)}, bool(i % 2), commands=changes[9 * i:9 * i + 9], ends=[f"r{i}"]) for i in range(20)]
    out = Served(bench, plan, head=HEAD + "edits: {bytes: 65536}\n")
    bench.check([code for code, _ in out.answers] == [0] * 180, "all are taken", [a for a in out.answers if a[0]][:2])
