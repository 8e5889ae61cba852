# SPDX-License-Identifier: Apache-2.0
"""Another user of CUPTI beside the tiers kernels and full, over the stand-in's CUPTI: it gets all that it asks for and nothing else, and the trace has what ran before and after.

The other user is a library of the tests' that the program loads, linked against libcupti or with functions that it looks up. The program says the same, its
records included, with and without the library.
"""
import subprocess

import pytest

from full_trace import FIRST, KERNEL
from harness import BUILD, DMI_RUN
from kit import START
from test_trace import alike, complete, step, traced
from test_trace_full import ALONE, CUPTI, DMI_TRACE, engine, forward, marks, wrong

USERS = {"looked up": BUILD / "tests" / "preload" / "libcupti_user.so", "linked": BUILD / "tests" / "preload" / "libcupti_user_linked.so"}
pytestmark = pytest.mark.built(DMI_TRACE, DMI_RUN, CUPTI, *USERS.values())
LENT = 14
WINDOW = ["sync", "cupti register", "cupti enable 10", "cupti enable 1", *forward(50), *forward(51), "sync", "digest p 256", "cupti flush 1", "cupti disable 10", "cupti disable 1", "cupti flush 0",
          "cupti records"]
AFTER = ["cupti back", "sleep 200"]  # and a few rounds of the collector


def lent(bench, what, script, user="looked up", cupti="13000", init=START, **env):
    script = [f"cupti load {USERS[user]}", *init, *script, "digest p 256"]
    return alike(bench, what, script, None, **{"DMI_TRACE": "full", "DMI_CUPTI": CUPTI, "DMI_STANDIN_CUPTI": cupti, **env})


@pytest.fixture(autouse=True)
def user_library(monkeypatch):
    monkeypatch.setenv("CUPTI_USER", str(CUPTI))


def theirs(result):
    return [line.split() for line in result.stdout.splitlines() if line.startswith("record")]


def hands(run):
    """Lent and back, in turn."""
    return [value for _, value, kind, _ in run.marks if kind == LENT]


def grids(run):
    return sorted(r.grid[0] for r in run.ran if r.kind == KERNEL)


@pytest.mark.parametrize("cupti", ["13000", "11080,late"])
@pytest.mark.parametrize("user", USERS)
def test_each_has_its_own(bench, user, cupti):
    what = f"{user} {cupti}"
    result = lent(bench, what, [*engine(3), *WINDOW, *AFTER, *engine(4), *WINDOW, *AFTER, *engine(2)], user, cupti)
    run = traced(result)
    own = theirs(result)
    bench.check(own.count(["record", "kernel", "block", "51"]) == 4 and len([r for r in own if r[1] == "kernel"]) == 16 and
                [r for r in own if r[1] == "foreign"] == [["record", "foreign", "0"]] * 2, "the other user has all records that it asks for, and no others", own)
    bench.check([r for r in own if r[1] == "of"] == [["record", "of", "kind", "1"]] * 2, "and of the kinds that it asked for", own)
    want = sorted([g for n in (3, 4, 2) for i in range(n) for g in [i + 1] * 4 + [i + 2] * (i % 3)])
    bench.check(grids(run) == want, f"{what}: the trace has what ran outside, and nothing of the other's", (grids(run), want))
    bench.check(hands(run) == [1, 0, 1, 0] and "lent to another profiler" in result.stderr and "CUPTI is back" in result.stderr, f"{what}: log and marks", (run.marks, result.stderr))
    known = [r for r in run.ran if r.kind == KERNEL and r.step >= FIRST]
    bench.check(not wrong(run) and len(known) >= 4 * 3 and marks(run)[7][0] == len(run.ran), f"{what}: no step has another's", (len(known), wrong(run)[:2]))
    bench.check(any(r.step >= FIRST + 3 for r in known), f"{what}: steps after it have theirs", sorted({r.step for r in known}))
    complete(bench, what, result)  # kernels that ran as CUPTI was lent may have no known step
    for command in ("kernels", "check"):
        said = subprocess.run([DMI_TRACE, command, result.folders[0]], text=True, capture_output=True, check=command == "kernels").stdout
        bench.check("CUPTI was lent to another profiler 2 times, for 0." in said, f"dmi-trace {command} says it", said)


def test_a_buffer_that_is_out_comes_back_to_who_gave_it(bench):
    """CUPTI gives back a buffer of the trace's when another user has registered, and one of that user's when the trace has CUPTI again."""
    result = lent(bench, "held", [*engine(3), *WINDOW, *AFTER, *engine(4), *WINDOW, *AFTER, *engine(2)], cupti="13000,held")
    run, own = traced(result), theirs(result)
    bench.check(len([r for r in own if r[1] == "kernel"]) == 16 and [r for r in own if r[1] == "foreign"] == [["record", "foreign", "0"]] * 2, "the other user has its own", own)
    bench.check(not wrong(run) and {1, 2, 3} <= set(grids(run)) and not {51, 52} & set(grids(run)), "and the trace, too", grids(run))
    complete(bench, "held", result)


def test_beside_the_tier_kernels(bench):
    result = lent(bench, "kernels", [*engine(3), *WINDOW, *AFTER, *engine(4)], DMI_TRACE="kernels")
    bench.check(hands(traced(result)) == [1, 0] and len(theirs(result)) == 10, "lent and back", (traced(result).marks, theirs(result)))
    complete(bench, "kernels", result)


def test_hands_change_at_any_moment(bench):
    """Windows that begin about when CUPTI is taken back: the other user has all of its own, each once."""
    storm = ["sync", "repeat 10", "cupti register", "cupti enable 10", "launch first 0 %i 64 p 64 1", "launch last 0 %i 64 p 64 1", "sync", "cupti flush 1", "cupti disable 10", "cupti records",
             "sleep 2%i5", "endrepeat"]
    result = lent(bench, "storm", [*engine(2), *storm, *AFTER, *engine(2)])
    run = traced(result)
    changes = hands(run)
    bench.check(len([r for r in theirs(result) if r[1] == "kernel"]) == 18 and all(r[2] == "0" for r in theirs(result) if r[1] == "foreign"), "its records", theirs(result)[-4:])
    bench.check(len(changes) > 4 and changes == [1, 0] * (len(changes) // 2), "it came back many times, and in the end", changes)
    bench.check(not wrong(run) and sum(r.step >= FIRST for r in run.ran) >= 8, "no step has another's", wrong(run)[:2])
    complete(bench, "storm", result)


def test_without_another_user_nothing_is_lent(bench):
    result = lent(bench, "alone", engine(3))
    bench.check(not hands(traced(result)) and "CUPTI is lent" not in result.stderr, "no mark", result.stderr)


def test_enabled_again_without_a_registration(bench):
    again = [line for line in WINDOW if line != "cupti register"]
    result = lent(bench, "again", [*engine(2), *WINDOW, *AFTER, *engine(2), *again, *AFTER, *engine(2)])
    bench.check(hands(traced(result)) == [1, 0, 1, 0] and len(theirs(result)) == 20 and not wrong(traced(result)), "it is lent again", (traced(result).marks, theirs(result)))


@pytest.mark.parametrize("enable,disable", [("dump", "disable"), ("enablehere", "disablehere")])
def test_kinds_that_are_enabled_by_another_call(bench, enable, disable):
    """In the second window there is no registration: the kind alone says that CUPTI is wanted."""
    def window(*head):
        return ["sync", *head, f"cupti {enable} 10", *forward(50), "sync", "cupti flush 1", f"cupti {disable} 10", "cupti flush 0", "cupti records"]

    result = lent(bench, enable, [*engine(2), *window("cupti register"), *AFTER, *engine(2), *window(), *AFTER, *engine(2)])
    run = traced(result)
    bench.check(hands(run) == [1, 0, 1, 0] and not wrong(run), "it is lent, and comes back", (run.marks, result.stderr))
    bench.check([r[1:] for r in theirs(result)] == 2 * [*[["kernel", name, "51"] for name in ("first", "block", "block", "last")], ["foreign", "0"]], "its records", theirs(result))
    bench.check(51 not in grids(run) and len(grids(run)) == 3 * (4 * 2 + 1), "and the trace's", grids(run))
    if enable == "enablehere":
        result = lent(bench, "not enabled", [*engine(2), "cupti disablehere 10", *engine(3)])
        bench.check(not hands(traced(result)) and len(grids(traced(result))) == 9 + 15, "kinds of the trace stay on", traced(result).marks)


def test_kinds_of_the_trace_stay_on(bench):
    """A profiler that disables all it might have enabled does not stop the trace."""
    result = lent(bench, "disabled", [*engine(2), "cupti disable 10", "cupti disable 1", "cupti disable 5", *engine(3), *forward(2)])
    run = traced(result)
    bench.check(not hands(run) and len([r for r in run.ran if r.kind == KERNEL]) == 4 * 6 + 4, "all is there", (len(run.ran), run.marks))


def test_who_ends_cupti(bench):
    result = lent(bench, "finalize", [*engine(2), *WINDOW[:-5], "cupti flush 1", "cupti records", "cupti finalize", *AFTER, *engine(3), "sync", "cupti finalize", *AFTER, *engine(2)])
    run = traced(result)
    bench.check(hands(run) == [1, 0, 1, 0] and grids(run) == sorted([g for n in (2, 3, 2) for i in range(n) for g in [i + 1] * 4 + [i + 2] * (i % 3)]),
                "records come again, and none is lost that came before", (run.marks, grids(run)))


@pytest.mark.parametrize("op", ["subscribe", "subscribe2"])
def test_a_subscriber(bench, op):
    """Where it is refused since the trace has CUPTI, it gets CUPTI lent; else nothing changes."""
    result = lent(bench, f"{op} beside", [*engine(2), f"cupti {op}", *engine(2), "cupti unsubscribe", *engine(1)])
    bench.check(not hands(traced(result)) and "cupti 0" in result.stdout, "beside the trace", result.stderr)
    script = [f"cupti load {USERS['looked up']}", *START, *engine(2), f"cupti {op}", *forward(1), "cupti unsubscribe", *AFTER, *engine(2)]
    without = bench.run(script, preload=False, DMI_STANDIN_CUPTI="13000,alone")
    result = bench.run(script, None, DMI_TRACE="full", DMI_CUPTI=CUPTI, DMI_STANDIN_CUPTI="13000,alone")
    bench.check(hands(traced(result)) == [1, 0] and [line for line in without.stdout.splitlines() if "cupti" in line] == [line for line in result.stdout.splitlines() if "cupti" in line],
                f"{op}: it is not refused", (result.stdout, result.stderr))


@pytest.mark.parametrize("op", ["enable2 10", "dump2 10", "register2"])
def test_a_subscribers_own_calls(bench, op):
    """Where one is refused since the trace has CUPTI, it gets CUPTI lent until the subscriber ends."""
    script = [f"cupti load {USERS['looked up']}", "cupti subscribe2", *START, *engine(2), f"cupti {op}", *forward(1), "sync", "cupti unsubscribe", *AFTER, *engine(2)]
    without = bench.run(script, preload=False, DMI_STANDIN_CUPTI="13000,alone")
    result = bench.run(script, None, DMI_TRACE="full", DMI_CUPTI=CUPTI, DMI_STANDIN_CUPTI="13000,alone")
    bench.check(hands(traced(result)) == [1, 0] and [line for line in without.stdout.splitlines() if "cupti" in line] == [line for line in result.stdout.splitlines() if "cupti" in line],
                f"{op}: it is not refused", (result.stdout, result.stderr))


def test_cupti_that_does_not_come_back(bench):
    """The third registration is the trace's second one."""
    script = [*engine(2), *WINDOW, "sleep 600", *engine(2)]
    result = lent(bench, "refused", script, cupti="13000,fail:cuptiActivityRegisterCallbacks:3:999")
    run = alone(bench, "refused", result, "CUPTI was lent, and cannot be had again (error 999)")
    bench.check(len(run.step_times) == 4 and len(theirs(result)) == 10 and len(grids(run)) == 9, "steps go on, and what came before stays", (run.marks, grids(run)))


def test_lent_at_the_end(bench):
    result = lent(bench, "end", [*engine(2), *WINDOW[:-5], "cupti flush 1", "cupti records"])
    run = traced(result)
    bench.check(hands(run) == [1] and len(theirs(result)) == 10 and len(grids(run)) == 9, "its kinds stay on, and its records come", (run.marks, theirs(result)))
    complete(bench, "end", result)


def alone(bench, what, result, words):
    run = traced(result)
    bench.check(words in marks(run).get(ALONE, (0, ""))[1] and words in result.stderr, f"{what}: the reason, in log and marks", (run.marks, result.stderr))
    return run


def test_who_came_first(bench):
    window = [line for line in WINDOW if "register" not in line and "enable" not in line]
    result = lent(bench, "first", [*engine(2), *window], init=["cupti register", "cupti enable 10", *START])
    run = alone(bench, "first", result, "another profiler of this process registered with CUPTI first")
    bench.check(not run.ran and len(run.step_times) == 2 and len([r for r in theirs(result) if r[1] == "kernel"]) == 17, "it keeps all", theirs(result))
    result = lent(bench, "injected", engine(2), CUDA_INJECTION64_PATH="/opt/profiler.so")
    alone(bench, "injected", result, "CUDA_INJECTION64_PATH=/opt/profiler.so brings a profiler")


def test_another_clock(bench):
    """A profiler leaves CUPTI a clock of its own, as torch.profiler does: times after it are real ones all the same."""
    result = lent(bench, "clock", [*engine(2), "sync", "cupti clock", *WINDOW, *AFTER, *engine(6)])
    run = traced(result)
    bench.check(hands(run) == [1, 0] and ALONE not in marks(run) and 8 not in marks(run) and len(grids(run)) == 9 + 30, "records come again", (run.marks, grids(run)))
    steps = {t["number"] + FIRST: t for t in run.step_times}
    known = [r for r in run.ran if r.step >= FIRST + 2]
    off = [(r.begin - steps[r.step]["begin_ns"], steps[r.step]["end_ns"] - r.end) for r in known]
    bench.check(len(known) >= 12 and min(min(pair) for pair in off) > -100000 and not wrong(run), "they lie within their steps", off)
    complete(bench, "clock", result)


def test_where_there_is_none(bench):
    """A program that has no libcupti finds none, whatever the library exports, and though the tracer brought one."""
    for env in ({"DMI_TRACE": "full"}, {"DMI_TRACE": ""}):
        result = alike(bench, f"none {env}", [f"cupti load {USERS['looked up']}", "cupti find", *START, "cupti find", *step(1, *forward(1))], None, DMI_CUPTI=CUPTI, **env)
        bench.check([line.split()[1] for line in result.stdout.splitlines() if line.startswith("cupti")] == ["0", "0", "0"], "not found", result.stdout)


def test_without_a_trace_calls_go_through(bench):
    result = lent(bench, "untraced", [*forward(1), *WINDOW], "linked", DMI_TRACE="")
    bench.check(len(theirs(result)) == 10, "its records come", theirs(result))
