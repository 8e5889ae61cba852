# SPDX-License-Identifier: Apache-2.0
"""Entries with a model of Hugging Face's, without a GPU: what it plans, reads, compares and says, and a program of the driver's alone in place of
the model, captured on the stand-in. test_hugging_face_model.py runs the model. LD_LIBRARY_PATH leads to the stand-in.
"""
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

import asking
import contact
import entries
import hugging_face
import hugging_face_plan as plan
import table
from harness import DMI_DUMP, DMI_RUN, PRELOAD, ROOT, STANDIN

HERE = ROOT / "tests" / "gpu"
TOOLKIT = pathlib.Path(os.environ.get("NVCC", ROOT / "build/toolchain/nvidia/cu13/bin/nvcc")).parents[1]
NVTX = TOOLKIT / "lib" / "libnvtx3interop.so.1"
OF_STANDIN = (str(HERE / "hugging_face_standin.py"), str(NVTX))
on_standin = pytest.mark.built(DMI_RUN, DMI_DUMP, PRELOAD, STANDIN / "libcuda.so.1", NVTX)
SIZED = [configuration for name, words in plan.SIZED.items() for configuration in plan.of_size(name, *words)]
BY_NAME = {configuration.name: configuration for configuration in plan.PLAN + SIZED}


class Group:
    """Entries of another program than the model, one after the other."""

    def __init__(self, folder, *program, seconds=600):
        self.table, self.machine = table.Table(), contact.Machine("DMI stand-in", sys.executable, folder)
        self.program, self.deadline, self.limit = [sys.executable, *map(str, program)], time.monotonic() + seconds, None

    def run_all(self, configurations):
        for c in configurations:
            entry = entries.Entry(c.name, 30, 1, hugging_face.ask(c, self.program, 3))
            asked = asking.Asked(entry, self.table, self.machine, self.deadline)
            asked.limit = self.limit or asked.limit
            asked.ask()


def group(folder, *program, seconds=600):
    return Group(folder, *program, seconds=seconds)


def rows_of(found, name):
    return {row.question: row for row in found.table.rows if row.entry == name}


# ---- the plan


def test_the_plan(check):
    few, many = plan.chosen("few"), plan.chosen("many")
    check((len(few), len(many)) == (38, 252), "38 and 252 sites", (len(few), len(many)))
    check(len(set(few)) == 38 and len(set(many)) == 252 and set(few) <= set(many), "each once, the few among the many")
    check(plan.chosen("none") == [], "and none")
    for n_layers in (36, 40):
        few, many, most = (plan.chosen(which, n_layers) for which in ("few", "many", "most"))
        check((len(set(few)), len(set(many)), len(set(most))) == (38, 252, 438) and set(few) <= set(many) <= set(most), f"as many of {n_layers} layers")
    names = [c.name for c in plan.PLAN]
    check(len(BY_NAME) == len(names) + len(SIZED), "each configuration has a name of its own", names)
    check(all(plan.alone(c) in BY_NAME for c in BY_NAME.values()), "and stands beside one of the model alone")
    for n, c in enumerate(plan.PLAN):
        first = next(i for i, other in enumerate(plan.PLAN) if other.mode == c.mode)
        check(plan.PLAN[first].take == "nothing" and plan.PLAN[first].library == "none", f"{c.name}: its mode begins with the model alone")
        check(c.logits_of is None or names.index(c.logits_of) < n, f"{c.name}: whose logits it must have comes before it")
        check(c.library == "none" or c.logits_of or any(other.logits_of == c.name for other in plan.PLAN) or c.take == "values",
              f"{c.name}: its logits are compared")


@pytest.mark.built(DMI_RUN)
@pytest.mark.parametrize("name", [c.name for c in plan.PLAN + SIZED if c.library == "capture"])
def test_specs_are_accepted(name, tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text(plan.spec(BY_NAME[name], plan.layers_of(BY_NAME[name].size)))
    done = subprocess.run([DMI_RUN, "--spec", spec, "--check"], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr
    if BY_NAME[name].take == "taps":  # and all that is tapped is asked for
        assert all(f"tap: {site}}}" in spec.read_text() for site, _ in plan.chosen(BY_NAME[name].which))


# ---- what is read


@pytest.mark.parametrize("text, expected", [
    ('result: {"a": 1}\n', {"a": 1}), ('a line\nresult: {"a": 1}\nresult: {"a": 2}\nanother\n', {"a": 2}), ("", None), ("result: {", None),
    ("result: [1]\n", None), ('  result: {"a": 1}\n', None), ('resultat: {"a": 1}\n', None)])
def test_results(text, expected):
    assert plan.result_of(text) == expected


def test_what_is_put_aside(tmp_path):
    aside = plan.Aside()
    for key, data in (("a.0", b"12\n"), ("b", b""), ("a.0", b"\n3"), ("c", bytes(range(256)))):
        aside.put(key, data)
    aside.write(tmp_path / "aside")
    assert plan.read_aside(tmp_path / "aside") == {"a.0": b"12\n\n3", "b": b"", "c": bytes(range(256))}


@pytest.mark.parametrize("captured, text", [
    ({"a.0": b"1234", "a.1": b"5678"}, "the same"),
    ({"a.0": b"1234"}, "1 of 2 are missing, the first is a.1"),
    ({}, "2 of 2 are missing, the first is a.0"),
    ({"a.0": b"1234", "a.1": b"5679"}, "1 of 2 differ: a.1 from byte 3 of 4"),
    ({"a.0": b"123", "a.1": b"0678"}, "2 of 2 differ: a.0 has 3 bytes, not 4"),
])
def test_difference(captured, text):
    aside = {"a.0": b"1234", "a.1": b"5678"}
    assert hugging_face.difference(list(aside), captured, aside) == text


def test_figures_as_text():
    assert hugging_face.time_of([4.0, 2.0, 3.0], 1, None) == "median 3.000 ms of 3, least 2.000 ms, 333 tokens/s"
    assert hugging_face.time_of([4.0, 2.0], 256, [2.0]) == "median 3.000 ms of 2, least 2.000 ms, 85333 tokens/s, 1.500 x plain"
    result = {"peak_bytes": 5 << 20, "in_use_bytes": 9 << 20}
    assert hugging_face.memory_of(result, {}) == "tensors at most 5 MiB, of the device in use 9 MiB"
    assert hugging_face.memory_of(result, {"peak_bytes": 4 << 20, "in_use_bytes": 12 << 20}) == \
        "tensors at most 5 MiB (+1 to plain), of the device in use 9 MiB (-3 to plain)"


def test_tally():
    def site(expected, captured, dropped, holds=True, **reasons):
        return {"expected": {"rows": expected}, "captured": {"rows": captured}, "dropped": {"rows": dropped}, "dropped_by_reason": reasons, "holds": holds}

    sums = hugging_face.tally(json.dumps({"sites": [site(5, 3, 2, ring_full=2), site(4, 3, 1, ring_full=1)]}))
    assert (sums["expected"], sums["captured"], sums["dropped"], sums["holds"], dict(sums["reasons"])) == (9, 6, 3, True, {"ring_full": 3})
    assert not hugging_face.tally(json.dumps({"sites": [site(1, 1, 0), site(1, 1, 0, holds=False)]}))["holds"]
    assert hugging_face.tally("") is None and hugging_face.tally('{"sites": [{}]}') is None


# ---- rows, of programs that say what they like

PROGRAM = """
import json, os, signal, sys, time
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
under = "libdmi_preload" in os.environ.get("LD_PRELOAD", "")
result = {{"logits": "a", "n_sites": 0, "n_tokens": 0, "step_ms": [2.0, 2.0]}}
{body}
print("result: " + json.dumps(result))
"""


def one(tmp_path, body, *names, seconds=600):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(body=body))
    found = group(tmp_path, program, seconds=seconds)
    found.run_all([BY_NAME[name] for name in names])
    return found


def test_figures_are_beside_those_of_the_model_alone(check, tmp_path):
    more = "step_ms=[3.0, 3.0], prompt_ms=[8.0], prompt=4, peak_bytes=2 << 20, in_use_bytes=3 << 20, skipped_graphs=1"
    found = one(tmp_path, f"if options['--take'] == 'hooks': result.update({more})", "eager plain", "eager 38 hooks")
    plain, hooks = rows_of(found, "eager plain"), rows_of(found, "eager 38 hooks")
    check(list(plain) == ["a step"] and plain["a step"].answer.endswith("1.000 x plain"), "the model alone", plain)
    check(hooks["a step"].answer.endswith("333 tokens/s, 1.500 x plain"), "hooks", hooks)
    check(hooks["the prompt, 4 tokens"].answer == "median 8.000 ms of 1, least 8.000 ms, 500 tokens/s", "where it alone had none", hooks)
    check(hooks["memory"].answer == "tensors at most 2 MiB, of the device in use 3 MiB", "memory", hooks)
    check(hooks["graphs of the compiler's that are no CUDA graphs"].answer == "1", "graphs", hooks)
    check({row.verdict for row in found.table.rows} == {"ok", "figure"} and not found.table.failures(), "nothing is expected of them", found.table.text())


@pytest.mark.parametrize("body, verdict, answer", [
    pytest.param("under and os.kill(os.getpid(), signal.SIGSEGV)", "crashed", "died of signal 11 (SIGSEGV)", id="a crash"),
    pytest.param("under and sys.exit('a sentence')", "differs", "status 1", id="a status"),
    pytest.param("under and sys.exit(0)", "differs", "without a result", id="no result"),
    pytest.param("under and sys.exit(77)", "differs", "status 77", id="skipped under the library alone"),
])
@pytest.mark.built(PRELOAD)
def test_wrong_under_the_library(body, verdict, answer, tmp_path):
    found = one(tmp_path, body, "graph plain", "graph idle")
    wrong, = found.table.failures()
    assert (wrong.entry, wrong.verdict, wrong.answer) == ("graph idle", verdict, answer), found.table.text()


@pytest.mark.built(PRELOAD)
def test_other_logits_under_the_library(tmp_path):
    found = one(tmp_path, "if under: result['logits'] = 'b'", "graph plain", "graph idle")
    wrong, = found.table.failures()
    assert (wrong.entry, wrong.answer) == ("graph idle", "others"), found.table.text()


@pytest.mark.parametrize("body, reason", [
    ("print('skipped: PyTorch does not import: No module'); sys.exit(77)", "PyTorch does not import: No module"),
    ("sys.exit('too old')", "without the library it status 1: too old")])
def test_where_the_model_does_not_run_all_of_its_mode_is_skipped(body, reason, tmp_path):
    names = ["graph plain", "graph values", "graph idle"]
    found = one(tmp_path, body, *names)
    assert [(row.entry, row.verdict, row.reason) for row in found.table.rows] == [(name, "skipped", reason) for name in names]


def test_hooks_that_do_not_run_are_skipped_alone(tmp_path):
    found = one(tmp_path, "options['--take'] == 'hooks' and sys.exit('no pinned memory')", "graph plain", "graph 38 hooks", "graph hidden states")
    assert rows_of(found, "graph 38 hooks")[""].reason == "without the library it status 1: no pinned memory"
    assert "a step" in rows_of(found, "graph hidden states") and not found.table.failures()


def test_when_the_time_is_over(check, tmp_path):
    found = one(tmp_path, "time.sleep(60)", "graph plain", seconds=1)
    row, = found.table.rows
    check((row.verdict, row.reason) == ("skipped", asking.OVER) and not found.table.ends["graph plain"].answered, "what is cut off is skipped by name", row)
    found = group(tmp_path, tmp_path / "program.py")
    (tmp_path / "program.py").write_text(PROGRAM.format(body="under and time.sleep(60)"))
    found.limit = 1
    found.run_all([BY_NAME[name] for name in ("graph plain", "graph idle")])
    wrong, = found.table.failures()
    check((wrong.verdict, wrong.answer) == ("crashed", "did not end within 1 s"), "and not what hangs", wrong)


def test_switched_sites_stand_beside_those_that_are_off(check, tmp_path):
    body = "result['turns_ms'] = {'off': [2.0], '38 sites': [2.1], '252 sites': [3.0]}; del result['step_ms']"
    found = one(tmp_path, f"if options['--take'] == 'turns': {body}", "4B batch 32 plain", "4B batch 32 turns")
    rows = rows_of(found, "4B batch 32 turns")
    check(rows["a step, 252 sites"].answer.endswith("1.500 x plain, 1.5000 x off"), "a step with all of them", rows)
    check(rows["a step, off"].answer.endswith("16000 tokens/s, 1.000 x plain, 1.0000 x off"), "with none", rows)


def test_it_needs_room(tmp_path, monkeypatch):
    monkeypatch.setattr(hugging_face, "DISK", 1 << 60)
    found = one(tmp_path, "", "graph plain", "graph 38 sites")
    assert "GiB free" in rows_of(found, "graph 38 sites")[""].reason and "a step" in rows_of(found, "graph plain")


# ---- a captured run


@on_standin
@pytest.mark.parametrize("mode", ["eager", "graph", "compiled"])
def test_captured_on_the_stand_in(check, mode, tmp_path):
    found = group(tmp_path, *OF_STANDIN)
    found.run_all([c for c in plan.PLAN if c.mode == mode and c.library != "none" or c.take == "nothing" and c.mode == mode])
    check(not found.table.failures() and not found.table.counts()["skipped"], "nothing is otherwise", found.table.text())
    values = rows_of(found, f"{mode} values")
    compared = {question.split(" ")[3] for question in values if question.endswith("bit for bit what hooks saw")}
    expected = {"resid_pre", "resid_mid"} if mode == "compiled" else {*plan.SITES, plan.LOGITS, "nvtx_in", "nvtx_out", "marked"}
    check(compared == expected, "by tap, by range and by kernel", compared)
    many = rows_of(found, f"{mode} 252 sites")
    check(many["captured + dropped = expected"].answer == "810 + 0 = 810 rows", "every row of every site", many)
    check(not list(tmp_path.glob("*/out")) and all(end.log for end in found.table.ends.values()), "what is kept is what each said")


@on_standin
@pytest.mark.parametrize("fail, site", [("cuGraphExecKernelNodeSetParams_v2:3:1,cuGraphExecKernelNodeSetParams_v2:4:1", "resid_pre"), ("cuGraphClone:0:801", "marked")])
def test_missing_records_are_seen(fail, site, tmp_path, monkeypatch):
    monkeypatch.setenv("DMI_STANDIN_FAIL", fail)
    found = group(tmp_path, *OF_STANDIN)
    found.run_all([BY_NAME["graph values"]])
    wrong = [row.question for row in found.table.failures()]
    assert any(f" tensors of {site} " in question for question in wrong), found.table.text()


LIAR = """
import contextlib, io, json, runpy, sys
sys.path.insert(0, {here!r})
import hugging_face_plan as plan
sys.argv[0], said = {program!r}, io.StringIO()
path = sys.argv[sys.argv.index("--aside") + 1] if "--aside" in sys.argv else None
with contextlib.redirect_stdout(said):
    runpy.run_path(sys.argv[0], run_name="__main__")
result, aside, written = plan.result_of(said.getvalue()), plan.read_aside(path) if path else {{}}, plan.Aside()
{body}
for key, data in aside.items():
    written.put(key, data)
if path:
    written.write(path)
print(plan.RESULT + json.dumps(result))
"""


@on_standin
@pytest.mark.parametrize("name, body, question, answer", [
    pytest.param("eager values", "data = bytearray(aside['final_logits']); data[-1] ^= 1; aside['final_logits'] = data",
                 "1 tensors of final_logits (by tap), bit for bit what hooks saw", "1 of 1 differ: final_logits from byte 3839 of 3840", id="a bit"),
    pytest.param("eager values", "del aside['z.1']", "tensors that no hook saw", "z.1", id="a tensor too many"),
    pytest.param("eager values", "aside['z.3'] = aside['z.1']", "4 tensors of z (by tap), bit for bit what hooks saw",
                 "1 of 4 are missing, the first is z.3", id="a tensor too few"),
    pytest.param("eager 38 sites", "result['n_tokens'] += 1", "captured + dropped = expected", "120 + 0 = 120 rows", id="a row too few"),
])
def test_other_records_are_seen(name, body, question, answer, tmp_path):
    """The same program, which then says something else."""
    program = tmp_path / "program.py"
    program.write_text(LIAR.format(here=str(HERE), program=OF_STANDIN[0], body=body))
    found = group(tmp_path, program, NVTX)
    found.run_all([BY_NAME[name]])
    assert [(row.question, row.answer) for row in found.table.failures()] == [(question, answer)], found.table.text()
