# SPDX-License-Identifier: Apache-2.0
"""What dmi-dump tells of the edits of a run: who changed what and when, due = written + missed, what a kill took, what of the files is
damaged, an export that puts the same in force again, and where a run with edits parts from one without.
"""
import contextlib
import json
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import time

import pytest

from damage import write_manifest
from harness import BUILD, DMI_DUMP, PRELOAD, ROOT, dump_json, environment, run as harness_run
from kit import spec
from rows_client import WIDTH
from test_edit_changes import CLIENT, CTL, HEAD, PLACE, SET, Accounts, Served, edits, step_of
from test_top import top

READ = BUILD / "read" / "libdmi_read.so.1"
DMI_RUN = BUILD / "tools" / "dmi-run"
pytest.importorskip("cuda.bindings")
pytestmark = [pytest.mark.since(12000, "what cuda.bindings 13 calls to build a graph"), pytest.mark.built(DMI_DUMP, CTL, DMI_RUN, READ)]

EDITS = """  - {name: tagged, site: x, do: [{set: 0}, {add: one, times: 'tag:much'}], requests: t*}
  - {name: plain, site: x, do: [zero, {add: one, times: 3}, {scale: 1}], requests: n*, tokens: all}
"""
AT, ACCOUNT = 64, 552  # of the first account; bytes of one


def dump(*words):
    done = harness_run([DMI_DUMP, *words], check=False)
    return done.returncode, done.stdout + done.stderr


def changed(folder, name, change):
    """A copy of the run in @folder, of which @change has changed the file, or removed it where it says None."""
    copy = folder.parent / name
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("control"))
    what, how = change
    data = how((copy / what).read_bytes())
    (copy / what).unlink()
    if data is not None:
        (copy / what).write_bytes(data)
    return copy


def put(offset, form, value):
    """What puts a number into bytes."""
    def how(data):
        data = bytearray(data)
        struct.pack_into(form, data, offset, value)
        return bytes(data)
    return how


DAMAGE = [("short", ("edits", lambda data: data[:-8]), "damaged or of another run"), ("magic", ("edits", put(0, "<B", 7)), "damaged or of another run"),
          ("others", ("edits", put(16, "<Q", 7)), "damaged or of another run"), ("newer", ("edits", put(8, "<I", 2)), "damaged or of another run"),
          ("many", ("edits", put(12, "<I", 2**31)), "damaged or of another run"), ("gone", ("edits", lambda data: None), "missing or unreadable"),
          ("more", ("edits", put(AT + 24, "<Q", 2**64 - 1)), "written + missed is not due"), ("less", ("edits", put(AT + 16, "<Q", 2**40)), "written + missed is not due"),
          ("state", ("edits", put(AT + 8, "<I", 9)), "contradicts itself"), ("id", ("edits", put(AT + 12, "<I", 300)), "contradicts itself"),
          ("pack", ("edits-000000.pack", lambda data: data[:-1] + b"x"), "does not match size and checksum"),
          ("long pack", ("edits-000000.pack", lambda data: data + b"x"), "does not match size and checksum"),
          ("no pack", ("edits-000000.pack", lambda data: None), "a change names it; missing")]


@contextlib.contextmanager
def gated(bench, plan, place=PLACE):
    """A run with the place while its process waits: what the plan launches is done."""
    gate, path = bench.folder / "gate", bench.folder / "plan.json"
    path.write_text(json.dumps(plan))
    (bench.folder / "spec.yaml").write_text(spec(place.rstrip("\n"), head=HEAD))
    env = environment(DMI_SPEC=bench.folder / "spec.yaml", DMI_OUT=bench.folder / "out", DMI_CONTROL="1", PYTHONPATH=ROOT / "python", LD_PRELOAD=PRELOAD,
                      CTL=CTL, ANSWERS=bench.folder / "answers")
    process = subprocess.Popen([sys.executable, CLIENT, path, gate], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        while not pathlib.Path(f"{gate}.reached").exists():
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
        yield next(p for p in (bench.folder / "out").iterdir() if p.is_dir()), process
    finally:
        if process.poll() is None:
            gate.touch()
            process.communicate(timeout=60)


@pytest.fixture(autouse=True)
def reading(monkeypatch):
    """dmi.open() finds the library."""
    monkeypatch.setenv("DMI_READ_LIBRARY", str(READ))


def wrote(run):
    """{request: the edits that readers say wrote in it}"""
    import dmi
    with dmi.open(run) as found:
        return {request.id: [edit.text for edit in request.edits] for request in found.requests}


def rows_tell(bench, run):
    """Which edits wrote which rows of which request: in Python, list, show, export; where files of it are gone."""
    import dmi
    tagged, plain, other = "tagged (x, all layers, positions 0)", "plain (x, all layers, positions 0)", "other (x, all layers, positions 0)"
    wanted = {"t0": [], "n": ["plain (x, all layers, positions 0-1)"], "t1": [tagged], "n2": [plain], "o": [other], "q": [], "n3": [plain]}
    found = wrote(run)
    bench.check(found == wanted, "edits by request: none where all rows were missed", found)
    with dmi.open(run) as opened:
        flags = {t.request: ([row.edited for row in t.rows()], [edit.name for edit in t.edits]) for t in opened.values() if t.site.name == "x"}
    bench.check(flags["n"] == ([True, True], ["plain"]) and flags["q"] == flags["t0"] == ([False], []), "and by row", flags)
    listed = {r["request"]: r.get("edits") for r in dump_json("list", run, "--requests")["requests"]}
    bench.check(listed["t1"] == [tagged] and listed["q"] is None, "list --requests", listed)
    tensors = {t["key"]: t.get("edited_by") for t in dump_json("list", run, "--tensors")["tensors"]}
    bench.check(any(key.startswith("t1/x") and by == ["tagged"] for key, by in tensors.items()) and not any(by for key, by in tensors.items() if key[0] == "q"), "list --tensors", tensors)
    code, said = dump("show", "x", run, "--request", "n")
    bench.check(code == 0 and said.count(", edited by plain;") == 2, "show", said)
    code, said = dump("export", run, "-f", "safetensors", "-o", bench.folder / "said.safetensors", "--request", "t1", "--request", "q")
    bench.check(code == 0 and f"edits wrote in 't1': {tagged}" in said and "'q'" not in said and tagged.encode() in (bench.folder / "said.safetensors").read_bytes(), "export", said)
    replay = BUILD / "tools" / "dmi-replay"
    items = [json.loads(line) for line in harness_run([replay, run, "--to", "-", "--format", "jsonl"]).stdout.splitlines()] if replay.exists() else []
    bench.check(not items or items[0]["edits"] == items[-1]["edits"] == [{"name": name, "site": "x"} for name in ("tagged", "plain", "other")], "dmi-replay", items[:1])
    copy = changed(run, "no-text", ("edits-000000.pack", lambda data: None))
    bench.check("its layers and tokens are not known" in wrote(copy)["q"][0] and "tagged" in wrote(copy)["q"][0], "without its text an edit may have written anywhere", wrote(copy))
    shutil.rmtree(copy)
    copy = changed(run, "no-accounts", ("edits", lambda data: None))
    bench.check(wrote(copy)["n"] == found["n"] and wrote(copy)["t0"] == found["t0"], "notes are enough", wrote(copy))
    shutil.rmtree(copy)


def test_a_run_tells_its_edits(bench):
    """In list, verify, stats and edits; exported, the same is in force again and writes the same rows; what is damaged is named."""
    one = edits(bench.folder, "one", EDITS, {"one": [1.0, 2.0, 3.0, 4.0]})
    two = edits(bench.folder, "two", "  - {name: other, site: x, do: [{set: one}], requests: o*, tokens: '0:'}\n", {"one": [9.0] * WIDTH})
    last = {"t1": (0, 1, '{"much": 2.5}'), "n2": (0, 1), "o": (0, 1), "q": (0, 1)}
    plan = [step_of(1, {"t0": (0, 1, '{"much": "a lot"}'), "n": (0, 2)}, True, commands=[["edit", "add", one], ["edit", "add", two]], ends=["n"]),
            step_of(2, last, True, commands=[["edit", "set", "plain", "times=5"]]),
            step_of(3, {"n3": (0, 1)}, False, commands=[["edit", "off", "tagged"]])]
    out = Served(bench, plan, DMI_KEEP_BYTES="64K")
    run = out.result.folders[0]
    due, written, missed = (sum(f(out.accounts.of(name)) for name in ("tagged", "plain", "other")) for f in (lambda a: a[0], lambda a: a[1], lambda a: sum(a[2].values())))
    code, said = dump("verify", run)
    bench.check(code == 0 and f"{due} rows due = {written} written + {missed} missed" in said and missed == 1, "verify says it", said)
    listed = dump_json("list", run)["edits"]
    bench.check((listed["due"], listed["written"], listed["missed"], listed["missed_by_reason"], listed["holds"], listed["requests_marked"], listed["changes"])
                == (due, written, missed, {"bad_tag": 1}, True, 1, 4), "list says it", listed)
    stats = dump_json("stats", run, "--edits")
    bench.check({e["edit"]: (e["due"], e["written"], e["missed_by_reason"]) for e in stats["edit_accounts"]}
                == {"tagged": (2, 1, {"bad_tag": 1}), "plain": (4, 4, {}), "other": (1, 1, {})}, "stats: each edit", stats["edit_accounts"])
    bench.check({(e["edit"], e["request"]) for e in stats["edit_requests"]} >= {("tagged", "t0"), ("tagged", "t1"), ("plain", "n2"), ("other", "o")},
                "and each request", stats["edit_requests"])
    told = dump_json("edits", run)
    bench.check([(c["what"], [(e["name"], e.get("times"), e.get("off", False)) for e in c["edits"]]) for c in told["changes"]] == [
        ("edits add tagged, plain", [("tagged", None, False), ("plain", None, False)]),
        ("edits add other", [("tagged", None, False), ("plain", None, False), ("other", None, False)]),
        ("edits set plain times=5", [("tagged", None, False), ("plain", 5, False), ("other", None, False)]),
        ("edits set tagged off", [("tagged", None, True), ("plain", 5, False), ("other", None, False)])], "edits: the changes", told["changes"])
    bench.check(all(c["who"].startswith("uid ") and c["time_ns"] for c in told["changes"]) and [c["step_sequence"] for c in told["changes"]] == [0, 0, 1, 2], "who, and when", told)
    bench.check([(m["edit"], m["request"], m["missed"]) for m in told["requests_with_missed_rows"]] == [("tagged", "t0", {"bad_tag": 1})], "whose rows were missed", told)
    code, said = dump("edits", run, "--export", bench.folder / "again.yaml")
    bench.check(code == 0 and "THEN IN FORCE" in said and "tagged (off), plain, other" in said and dump("edits", run, "--export", bench.folder / "again.yaml")[0] == 2,
                "text, an export, and a file that is there stays", said)
    code, said = (done := harness_run([DMI_RUN, "--spec", run / "spec.yaml", "--edits", bench.folder / "again.yaml", "--check"], check=False)).returncode, done.stdout + done.stderr
    bench.check(code == 0 and "2 edits, 1 vector: no error" in said.replace("2 vectors", "1 vector"), "dmi-run takes it", said)
    again = Served(bench, [step_of(1, last, True, commands=[["edit", "add", str(bench.folder / "again.yaml")]])]).rows()[1]
    before = out.rows()[2]
    bench.check("kernel" not in before[:3] and before[3] == "kernel" and again == ["kernel", *before[1:]],
                "what was exported writes the same rows, and what was off is left out", (again, before))
    rows_tell(bench, run)
    for name, change, words in DAMAGE:
        copy = changed(run, name, change)
        code, said = dump("verify", copy)
        bench.check(code == 1 and words in said, f"{name} is named", said[-600:])
        shutil.rmtree(copy)
    size = (run / "edits").stat().st_size
    for at in [8 * i + 3 for i in range(AT // 8)] + random.Random(44).sample(range(AT, size), 24):
        copy = changed(run, "flipped", ("edits", lambda data, at=at: data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1:]))
        code, said = dump("verify", copy)
        bench.check(code == 1, f"a flipped bit at {at} of edits is seen", said[-600:])
        shutil.rmtree(copy)
    old = changed(run, "old", ("edits", lambda data: data))
    write_manifest(old, {key: value for key, value in json.loads((old / "manifest.json").read_text()).items() if key != "edits"})  # as before 2026-11-29
    code, said = dump("verify", old)
    bench.check(code == 0 and f"{due} rows due = {written} written" in said, "a run whose manifest says nothing of the file is read", said[-600:])


def flagged(run):
    """{(step, request): which of the rows of x an edit wrote, as readers say}"""
    import dmi
    found = {}
    with dmi.open(run) as opened:
        for tensor in opened.values():
            for row in tensor.rows():
                found.setdefault((row.step, tensor.request), []).append(row.edited)
    return found


def test_rows_of_requests_under_changes(bench):
    """A request keeps what was in force at its first step, also where its id comes again; live edits follow each change."""
    first, live = edits(bench.folder, "first", SET.format("seven", 7, "*", "")), edits(bench.folder, "live", SET.format("nine", 9, "l*", ", live: true"))
    plan = [step_of(1, {"a": (0, 2), "l": (0, 1)}, False),
            step_of(2, {"a": (2, 2), "b": (0, 2), "l": (1, 1)}, False, commands=[["edit", "add", first]]),
            step_of(3, {"a": (4, 1), "b": (2, 1), "l": (2, 1)}, False, commands=[["edit", "add", live]]),
            step_of(4, {"b": (3, 1), "c": (0, 1), "l": (3, 1)}, False, commands=[["edit", "off", "nine"], ["edit", "remove", "seven"]]),
            step_of(5, {"b": (4, 1), "c": (1, 1), "l": (4, 1)}, False, commands=[["edit", "on", "nine"]], ends=["b"]),
            step_of(6, {"b": (0, 1), "l": (5, 1)}, False)]
    out = Served(bench, plan)
    run = out.result.folders[0]
    written = {step: [row != "kernel" for row in rows] for step, rows in out.rows().items()}
    wanted = {}
    for step in plan:
        rows = iter(written[step["said"]["step"]])
        for span in step["said"]["spans"][:-1]:
            name = span["request"] + ("~2" if step["said"]["step"] == 6 and span["request"] == "b" else "")
            wanted[step["said"]["step"], name] = [next(rows) for _ in range(span["n_tokens"])]
    found = flagged(run)
    bench.check(found == wanted and sum(map(sum, found.values())) == 8, "what the library wrote is what readers say", (found, wanted))
    bench.check(wrote(run)["l"] == ["nine (x, all layers, positions 2, 4-5)"] and wrote(run)["b~2"] == [], "in words", wrote(run))


def test_rows_without_steps_and_before_edits(bench):
    """Of an engine that says no steps edits of all requests have all rows; what is captured before the edit shows none."""
    path = edits(bench.folder, "one", SET.format("seven", 7, "*", ""))
    plan = [{"said": None, "launches": [["block", 3, 1, False]], "commands": [["edit", "add", path]]}]
    out = Served(bench, plan, head="ring: {bytes: 1M, slots: 4096}\n")
    import dmi
    with dmi.open(out.result.folders[0]) as run:
        bench.check([edit.text for edit in run.edits()] == ["seven (x, all layers)"] and {row.edited for row in run["x"].rows()} == {True}, "no steps", run.edits())
    step = step_of(1, {"a": (0, 2)}, False, commands=[["edit", "add", path]])
    (bench.folder / "plan.json").write_text(json.dumps([step]))
    result = bench.run([], spec(PLACE.rstrip("\n") + "\n    capture: before", head=HEAD), command=[sys.executable, CLIENT, bench.folder / "plan.json"], DMI_CONTROL="1", CTL=CTL,
                       ANSWERS=bench.folder / "answers")
    bench.check(flagged(result.folders[0]) == {(1, "a"): [False, False]} and wrote(result.folders[0])["a"] == ["seven (x, all layers, positions 0-1)"],
                "captured before: the request is edited, its rows are not", (flagged(result.folders[0]), wrote(result.folders[0])))


def test_what_a_kill_took(bench, tmp_path):
    """Rows that were due and of which nothing is known are lost; recover keeps accounts, changes and files of edits."""
    path = edits(bench.folder, "one", EDITS, {"one": [1.0] * WIDTH})
    plan = [step_of(1, {"n": (0, 3)}, True, commands=[["edit", "add", path]])]
    with gated(bench, plan) as (run, process):
        process.kill()
        process.communicate()
    data = (run / "edits").read_bytes()
    due = next(at for at in range(AT, len(data), ACCOUNT) if struct.unpack_from("<Q", data, at + 16) == (3,))
    copy = changed(run, "killed", ("edits", put(due + 24, "<Q", 1)))  # the device had counted one of them
    code, said = dump("verify", copy)
    bench.check(code == 0 and "3 rows due = 1 written + 0 missed + 2 lost at kill" in said, "verify says what was lost", said)
    code, said = dump("recover", copy, "-o", tmp_path / "recovered")
    bench.check(code == 0 and "2 rows that edits wanted were on their way" in said, "and recover", said)
    code, said = dump("verify", tmp_path / "recovered")
    bench.check(code == 0 and "3 rows due = 1 written + 2 missed" in said, "the new run balances", said)
    bench.check(Accounts(tmp_path / "recovered" / "edits").all and (tmp_path / "recovered" / "edits-000000.pack").read_bytes() == (run / "edits-000000.pack").read_bytes(),
                "it has accounts and files of edits")
    last = AT + 288 + 8  # of the request's id, in the first account
    for what, change, words in (("uid", put(due, "<Q", 1 << 40), "no change names its edit"), ("name", put(due + 160, "<B", ord("q")), "call its edit otherwise"),
                                ("tail of the name", put(due + 287, "<B", 1), "bytes that are 0 are not"), ("tail of the id", put(due + last - AT + 255, "<B", 1), "bytes that are 0 are not"),
                                ("no uid", put(due, "<Q", 0), "it is of no edit"), ("reserved", put(56, "<B", 1), "its head contradicts itself"),
                                ("marked", put(40, "<Q", 9), "its head contradicts itself"), ("sum", put(due + 8, "<I", 3), "a sum over requests names one")):
        odd = changed(run, "odd", ("edits", change))
        code, said = dump("verify", odd)
        bench.check(code == (what != "uid") and words in said, f"after a kill: {what} is named", said[-600:])
        shutil.rmtree(odd)
    told = [{**c, "launch": 0} for c in dump_json("edits", tmp_path / "recovered")["changes"]]
    bench.check(told == [{**c, "launch": 0} for c in dump_json("edits", run)["changes"]] and told, "and the changes", told)


@contextlib.contextmanager
def small_disk(folder, n_bytes):
    """A file system of its own, if we may make one."""
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={n_bytes}", "tmpfs", folder], capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=False)


def test_a_disk_without_room_for_accounts(bench, tmp_path):
    """Edits write, and what they wrote is in no file: the run says so, is not damaged, and no sum is shown. The log has the sum."""
    path = edits(bench.folder, "one", EDITS, {"one": [1.0] * WIDTH})
    plan = bench.folder / "plan.json"
    plan.write_text(json.dumps([step_of(1, {"n": (0, 3)}, False, commands=[["edit", "add", path]])]))
    with small_disk(bench.folder / "small", "1m") as disk:
        result = bench.run([], spec(PLACE.rstrip("\n"), head=HEAD), command=[sys.executable, CLIENT, plan], DMI_CONTROL="1", CTL=CTL,
                           ANSWERS=bench.folder / "answers", PYTHONPATH=ROOT / "python", DMI_OUT=disk / "out")
        bench.check("what becomes of edits is in no file of this run: No space" in result.stderr and "3 rows written of 3 due" in result.stderr, "the log", result.stderr)
        run = shutil.copytree(result.folders[0], bench.folder / "run")
    code, said = dump("verify", run)
    bench.check(code == 0 and "what became of rows is not known" in said and "rows due" not in said and "could not create it" in said, "verify", said)
    told = dump_json("list", run)
    bench.check(not told["edits"]["known"] and "due" not in told["edits"] and [p["reason"] for p in told["problems"]] == ["edits_not_counted"], "list", told)
    code, said = dump("stats", run, "--edits")
    bench.check(code == 0 and "is not known" in said and "0 of the edits' requests" not in said, "stats", said)
    code, said = dump("recover", run, "-o", tmp_path / "recovered")
    code, said = dump("verify", tmp_path / "recovered") if code == 0 else (code, said)
    bench.check(code == 0 and "what became of rows is not known" in said, "recover makes no sum of it", said)


SITES = """  - name: x
    kernel: '^block$'
    pointer: arg[0]
    dtype: f32
    dims: [{row: true, count: 'arg[1].u32 / 4'}, {count: 4}]
    layer: 3 + occ
    write: {reach: [y, z, w]}
  - name: y
    kernel: '^block$'
    pointer: arg[0]
    dtype: f32
    dims: [{row: true, count: 'arg[1].u32 / 4'}, {count: 4}]
  - name: z
    kernel: '^other$'
    pointer: arg[0]
    dtype: f32
    dims: [{row: true, count: 'arg[1].u32 / 4'}, {count: 4}]
  - name: w
    kernel: '^last$'
    pointer: arg[0]
    dtype: f32
    dims: [{row: true, count: 'arg[1].u32 / 4'}, {count: 4}]"""


def test_diff_of_a_plain_and_an_edited_run(bench):
    """The edits are said to differ; the site and layer that they changed first are named, and what they should have reached and did not."""
    path = edits(bench.folder, "one", SET.format("seven", 7, "a", ""))
    runs = []
    for commands in ([], [["edit", "add", path]]):
        step = step_of(1, {"a": (0, 2), "b": (0, 1)}, False, commands=commands)
        step["launches"].append(["other", 4, 1, False])
        plan = bench.folder / "plan.json"
        plan.write_text(json.dumps([step]))
        result = bench.run([], spec(SITES, head=HEAD), command=[sys.executable, CLIENT, plan], DMI_CONTROL="1", CTL=CTL, ANSWERS=bench.folder / "answers")
        bench.check(result.code == 0 and result.folders, "it runs", result.stderr[-800:])
        runs.append(result.folders[0])
    told = json.loads(harness_run([DMI_DUMP, "diff", *runs, "--json"], check=False).stdout)
    bench.check(told["edits_differ"] and told["edits"] == {"run": [], "other": ["seven"]} and told["first_edited"] == {"site": "x", "layer": 3}, "edits differ", told)
    bench.check(told["reach"] == [{"place": "x", "changed": ["y"], "not_changed": ["z"], "not_compared": ["w"]}], "what they reach", told["reach"])
    code, said = dump("diff", *runs)
    bench.check(code == 1 and "Edits differ, so what differs may be their work: the first run had in force: none; the other one: seven." in said
                and "site x, layer 3." in said and "Reach of x: z did NOT change." in said, "in words", said)
    bench.check(dump("export", runs[0], "-f", "safetensors", "-o", bench.folder / "plain.safetensors")[0] == 0, "a reference", "")
    for run, remark in ((runs[0], False), (runs[1], True)):
        code, said = dump("verify", run, "--against", bench.folder / "plain.safetensors")
        bench.check(code == remark and ("Edits were in force in this run" in said) == remark, "verify --against says it, too", said)
    code, said = dump("diff", runs[1], runs[1])
    bench.check(code == 0 and "Edits differ" not in said, "the same edits do not", said)


def test_retention_keeps_edits(bench):
    """Segments go; accounts, the note of what is in force and the files of edits stay."""
    path = edits(bench.folder, "one", EDITS, {"one": [1.0] * WIDTH})
    plan = [step_of(i, {"n": (i - 1, 40)}, False, commands=[["edit", "add", path]] if i == 1 else []) for i in range(1, 61)]
    out = Served(bench, plan, DMI_SEGMENT_BYTES=4000, DMI_KEEP_BYTES="20K", balances=False)
    run = out.result.folders[0]
    code, said = dump("verify", run)
    bench.check(code == 0 and "2400 rows due = 2400 written" in said and "of them released" in said, "all is accounted for", said)
    bench.check(len(dump_json("edits", run)["changes"]) == 1 and dump("edits", run, "--export", bench.folder / "kept.yaml")[0] == 0, "and can be put in force again", "")


def test_a_place_is_no_site(bench):
    """What edits write into and nobody captures is no tensor without records."""
    path = edits(bench.folder, "one", SET.format("seven", 7, "*", ""))
    place = PLACE.rstrip("\n") + "\n    capture: none\n" + PLACE.replace("name: x", "name: y").replace("    write: {}\n", "")
    with gated(bench, [step_of(1, {"a": (0, 1)}, True, commands=[["edit", "add", path]])], place) as (run, process):
        seen = json.loads(top("--once", "--json", "--interval", 0.1, run).stdout)["runs"][0]
        process.kill()
        process.communicate()
    bench.check([s["site"] for s in seen["sites"]] == ["y"] and seen["edits"]["written"] == 1, "dmi-top", seen["sites"])
    for command in ("list", "stats"):
        told = dump_json(command, run)
        bench.check([s["site"] for s in told["sites"]] == ["y"] and not told["findings"], command, told["sites"])
    code, said = dump("verify", run)
    bench.check(code == 0 and "1 rows due" not in said and "1 row due = 1 written" in said, "verify", said)


def test_dmi_top(bench):
    """Edits in force, rows written and missed while the process runs: as text, JSON and for Prometheus. A damaged file is refused, and the rest stays."""
    path = edits(bench.folder, "one", EDITS, {"one": [1.0] * WIDTH})
    plan = [step_of(1, {"n": (0, 3), "t": (0, 1, '{"much": "x"}')}, True, commands=[["edit", "add", path], ["edit", "off", "plain"]]), step_of(2, {"n": (3, 1)}, True)]
    with gated(bench, plan) as (run, process):
        seen = json.loads(top("--once", "--json", "--interval", 0.1, run).stdout)["runs"][0]["edits"]
        bench.check(dump("verify", run)[0] == 0, "a run that goes on is read", dump("verify", run))
        text = top("--once", "--interval", 0.1, run).stdout
        top("--once", "--interval", 0.1, "--prometheus", bench.folder / "page", run)
        page = (bench.folder / "page").read_text()
        process.kill()
        process.communicate()
    bench.check((seen["in_force"], seen["due"], seen["written"], seen["missed"]) == (1, 1, 0, 1), "in force, due, written, missed", seen)
    bench.check({e["edit"]: e["missed_by_reason"] for e in seen["edits"]}["tagged"] == {"bad_tag": 1}, "by name and reason", seen)
    bench.check("edits: 1 in force; 1 rows due, 0 written, 1 missed" in text and "bad_tag 1" in text, "text", text)
    bench.check('dmi_edits_in_force{run="' in page and 'edit="tagged",reason="bad_tag"} 1\n' in page, "Prometheus", page[-1500:])
    said = top("--once", "--interval", 0.1, changed(run, "other", ("edits", put(16, "<Q", 7))))
    bench.check(said.returncode == 1 and "edits: is of another run" in said.stdout and "forwards" in said.stdout, "a damaged file is refused", said.stdout + said.stderr)


def test_ranks_are_joined(bench):
    """Runs of one command's ranks, read as one, have the accounts of all."""
    path = edits(bench.folder, "one", SET.format("seven", 7, "*", ""))
    for rank in range(2):
        step = step_of(1, {"a": (0, 2)}, False, commands=[["edit", "add", path]])
        step["said"]["ranks"] = ((rank, 2), (0, 1), (0, 1), (0, 1))
        Served(bench, [step], DMI_OUT=bench.folder / f"rank{rank}", DMI_JOB="job")
    out = bench.folder / "joined"
    out.mkdir()
    for rank in range(2):
        shutil.copytree(next((bench.folder / f"rank{rank}").iterdir()), out / f"rank{rank}")
    code, said = dump("list", out)
    bench.check(code == 0 and "2 changes, 1 edit in force in the end; 4 rows due = 4 written + 0 missed" in said, "their sum", said)
    code, said = dump("verify", out)
    bench.check(code == 0 and "4 rows due" in said, "verify", said)
    bench.check(wrote(out) == {"a": ["seven (x, all layers, positions 0-1)"]} and all(map(all, flagged(out).values())), "which rows", wrote(out))
    code, said = dump("edits", out, "--export", bench.folder / "x.yaml")
    bench.check(code == 2 and "name one of them" in said, "one of them is to be named for an export", said)
