# SPDX-License-Identifier: Apache-2.0
"""`facts` on the stand-in driver: it asks all it says it asks, ends whatever happens, and can say no.

It is also asked under the library, which must not change an answer. LD_LIBRARY_PATH leads to the stand-in.
"""
import collections
import os
import pathlib
import signal
import subprocess
import time

import pytest

from harness import BUILD, DMI_RUN, PRELOAD, STANDIN

FACTS = BUILD / "tests" / "gpu" / "facts"
pytestmark = pytest.mark.built(FACTS, STANDIN / "libcuda.so.1")
# What tests/standin may say that it does not have, and what a device before compute capability 9.0 lacks.
NOT_THERE = {"graph_ids"}
# Whose calls are given handles of another kind, or ended ones, on purpose: a driver may well die of them. The stand-in
# gives their errors instead (lenient), so that all that they ask is asked here.
FATAL = {"function_calls_on_kernels", "kernel_calls_on_functions", "template_gone"}
PROGRAMMATIC = {"programmatic_edges", "beside_programmatic", "captured_programmatic", "overlap_lost", "eager_overlap"}
TOO_NEW = {"node_ids"}  # since CUDA 13.1
# Questions whose answer the design relies on: a yes or a no.
RELIED_ON = {
    "resolver", "resolver_misses", "queued_params", "running_params", "exec_two_streams", "add_to_captured",
    "clone_captured", "clone_children", "node_order", "clone_of_clone", "programmatic_edges", "beside_programmatic",
    "captured_programmatic", "captured_handles", "kernel_functions", "parameter_info", "set_enabled", "template_alive",
    "original_of_clone", "exec_update", "release_order", "registered_memory", "registered_contexts", "address_range", "address_range_mapped",
    "capture_info", "capture_modes", "capture_calls", "capture_own_thread", "exit_order", "forked_child", "sticky_error", "template_gone",
    "embedded_nodes", "refused_update", "user_objects", "waits_for_kernel", "library_routes", "library_kernels", "kernel_info_early",
    "clone_attributes", "capture_queries",
}
Row = collections.namedtuple("Row", "question kind what answer value unit")

# The kernels that most questions launch or capture; some answers come with a copy of the library's after each.
SPEC = """hookspec: 1
ring: {bytes: 1M, slots: 4096}
sites:
  - {name: poke, kernel: '^(poke|slow_poke|pdl_slow_poke)$', pointer: 'arg[0]', dtype: u32, dims: [{row: true, count: 1}]}
"""


def facts(*words, before=(), **env):
    """Return: exit status, rows, output, seconds"""
    start = time.monotonic()
    env = {**os.environ, "DMI_STANDIN_HANDLES": "lenient", **env}
    done = subprocess.run([*before, FACTS, "--tsv", *words], env=env, stdout=subprocess.PIPE, text=True, timeout=150)
    rows = [Row(*line.split("\t")) for line in done.stdout.splitlines() if line.count("\t") == 5]
    return done.returncode, rows, done.stdout, time.monotonic() - start


def questions():
    listed = subprocess.run([FACTS, "--list"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return [line.split("\t")[0] for line in listed.splitlines()]


def test_all_questions(check):
    names = questions()
    status, rows, output, seconds = facts(DMI_STANDIN_SM="90")
    told = {row.question for row in rows}
    kinds = collections.defaultdict(set)
    for row in rows:
        kinds[row.kind].add(row.question)
    check(status == 0, "every answer is what the design relies on", f"status {status}: {output[-3000:]}")
    check(told == set(names), "every question is answered", f"{set(names) ^ told}")
    check(not kinds["error"] and not kinds["breaks"], "none fails", [r for r in rows if r.kind in ("error", "breaks")])
    check(kinds["absent"] <= NOT_THERE, "what the stand-in lacks says so", kinds["absent"] - NOT_THERE)
    check(all(row.answer == "not implemented here" for row in rows if row.kind == "absent"), "by the same words", rows)
    check(kinds["holds"] - NOT_THERE == RELIED_ON, "what the design relies on is asked", kinds["holds"] ^ RELIED_ON)
    check(kinds["skip"] == TOO_NEW, "none other is skipped on compute capability 9.0", kinds["skip"])
    check(seconds < 60, "it takes less than a minute", f"{seconds:.0f} s")
    figures = [row for row in rows if row.kind == "figure"]
    check(len(figures) > 60 and all(float(row.value) >= 0 or row.question == "replay_of_extra_nodes" for row in figures), "figures are numbers", figures)


def test_older_device():
    """It is not asked for programmatic launches."""
    status, rows, output, _ = facts(*PROGRAMMATIC, DMI_STANDIN_SM="80")
    assert status == 0 and {r.question for r in rows if r.kind == "skip"} == PROGRAMMATIC, output


def test_says_no(check):
    """Where the driver is not as the design wants it, this comes out."""
    status, rows, output, _ = facts("clone_children", "device", DMI_STANDIN_FAIL="cuGraphNodeFindInClone:0:1")
    check(status == 1 and any(r.kind == "breaks" and r.question == "clone_children" for r in rows), "a broken premise is a no", output)
    check(any(r.question == "device" and r.what == "name" for r in rows), "and the next question is asked", output)
    status, rows, output, _ = facts("clone_captured", "device", DMI_STANDIN_FAIL="cuGraphClone:0:1")
    errors = [r for r in rows if r.kind == "error"]
    check(status == 1 and len(errors) == 1 and errors[0].what == "cuGraphClone" and "CUDA_ERROR_INVALID_VALUE" in errors[0].answer,
          "a call that fails is reported by its name and its error's", output)
    status, rows, output, _ = facts("queued_params", DMI_STANDIN_FAIL="cuGraphExecKernelNodeSetParams_v2:0:801")
    check({r.kind for r in rows} >= {"holds", "absent"} and "not implemented here" in output,
          "a call that is not implemented here says so", output)


def test_a_question_that_kills(check):
    """Its process has died, and the others are asked; no other question gives handles that a driver could die of."""
    names = questions()
    status, rows, output, _ = facts(DMI_STANDIN_SM="90", DMI_STANDIN_HANDLES="strict")
    died = {row.question for row in rows if row.answer == "died of signal 11"}
    crossed = {name for name in names if name.startswith("crossed_")}
    check(FATAL <= died <= FATAL | crossed, "those that may die of it do", f"{died} {output[-2000:]}")
    check({row.question for row in rows} == set(names), "every question is answered", output[-2000:])


def crash(question):
    """Ask @question with operations that take seconds to begin, and let its process die. Return: exit status, rows"""
    env = {**os.environ, "DMI_STANDIN_DELAY_SEED": "1", "DMI_STANDIN_DELAY_MAX_NS": "60000000000"}
    asked = subprocess.Popen([FACTS, "--tsv", question], env=env, stdout=subprocess.PIPE, text=True)
    children, end = [], time.monotonic() + 20
    while len(children) < 2 and time.monotonic() < end:  # the first one holds the device
        children = pathlib.Path(f"/proc/{asked.pid}/task/{asked.pid}/children").read_text().split()
    time.sleep(0.3)
    os.kill(int(children[-1]), signal.SIGABRT)
    said = asked.communicate(timeout=60)[0]
    return asked.returncode, [Row(*line.split("\t")) for line in said.splitlines() if line.count("\t") == 5]


def test_a_crash_is_an_answer(check):
    """Of a question that crosses handles; of another it is an error."""
    for question, kind in (("crossed_unloaded_function", "says"), ("capture_info", "error")):
        status, rows = crash(question)
        ends = [(r.kind, r.answer) for r in rows if r.what == "the process that answers"]
        check(ends == [(kind, "died of signal 6")], f"{question}: {kind}", rows)
        check(status == (kind == "error"), f"{question}: exit status", status)


def test_never_hangs(check):
    status, rows, output, seconds = facts("--limit", "1", "copy_bandwidth", "device", DMI_STANDIN_DTOH_LATENCY_NS="30000000000")
    late = [r for r in rows if r.kind == "error"]
    check(status == 1 and len(late) == 1 and late[0].answer == "took more than 1 s", "a question that does not end is ended", output)
    check(any(r.question == "device" and r.what == "name" for r in rows), "and the next one is asked", output)
    check(seconds < 20, "in time", f"{seconds:.0f} s")
    status, rows, output, seconds = facts("--limit", "9", "--total", "1", "copy_bandwidth", "address_range",
                                          DMI_STANDIN_DTOH_LATENCY_NS="30000000000")
    check(any(r.question == "address_range" and "not asked" in r.answer for r in rows) and seconds < 20,
          "when the time for all is over, the others are named", output)


def test_no_device(check):
    status, _, output, _ = facts(DMI_STANDIN_DEVICES="0")
    check(status == 77 and output == "skipped: no CUDA device\n", "without a device it is skipped", (status, output))
    status, _, output, _ = facts(LD_LIBRARY_PATH="/nonexistent")
    real = status != 77 and "name" in output  # this machine may have a driver of its own
    check(status == 77 or real, "without a driver, too", (status, output))
    status, _, output, _ = facts("nonsense")
    check(status == 2, "a question that is none is refused", (status, output))


@pytest.mark.built(DMI_RUN, PRELOAD)
def test_the_same_under_the_library(check, tmp_path):
    spec, log, out = tmp_path / "spec.yaml", tmp_path / "log", tmp_path / "out"
    spec.write_text(SPEC)
    without = facts(DMI_STANDIN_SM="90")
    under = facts(before=(DMI_RUN, "--strict", "--spec", spec, "--log", log, "--out", out), DMI_STANDIN_SM="90")
    n_runs = len(os.listdir(out))
    # a template that the application has destroyed is kept by the library: its nodes go on being known
    # and whether a call waits is measured by the clock
    but = {"template_gone", "waits_for_kernel", "others_wait"}
    answers = [[row[:4] for row in rows if row.kind != "figure" and (row.question not in but or row.kind == "holds")]
               for _, rows, _, _ in (without, under)]
    changed = sorted(set(answers[0]) ^ set(answers[1]))
    check(under[0] == without[0] == 0 and len(answers[0]) == len(answers[1]) and not changed, "the library changes no answer", changed)
    check(n_runs > 10, "and captures meanwhile", f"{n_runs} runs")
