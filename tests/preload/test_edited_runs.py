# SPDX-License-Identifier: Apache-2.0
"""What dmi-run says at the end of a command with edits, and its status: whether rows were written, by the accounts of the command's own runs."""
import json
import pathlib
import sys

import pytest

from harness import DMI_RUN, ROOT, STANDIN, environment, run, runs_of
from test_edit_changes import HEAD, PLACE, SET, edits, step_of
from kit import spec

pytest.importorskip("cuda.bindings")
pytestmark = [pytest.mark.since(12000, "what cuda.bindings 13 calls to build a graph"), pytest.mark.built(DMI_RUN, STANDIN / "libcuda.so.1")]

CLIENT = pathlib.Path(__file__).with_name("rows_client.py")
LAYERS = PLACE.replace("write: {}", "layer: occ\n    write: {}")
# One site of two entries, as where a model's first layer has a kernel of its own.
FIRST, SECOND = (PLACE.replace("write: {}", f"layer: occ\n    occurrences: {{from: {n}, to: {n}}}\n    write: {{}}") for n in (0, 1))


class Command:
    """Runs of one command, into one folder."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, text, plan, place=LAYERS, wrapped=None, options=(), **env):
        (self.folder / "spec.yaml").write_text(spec(place.rstrip("\n"), head=HEAD))
        (self.folder / "plan.json").write_text(json.dumps(plan))
        path = edits(self.folder, "edits", text)
        client = [sys.executable, CLIENT, self.folder / "plan.json"]
        command = ["sh", "-c", wrapped, "sh", *client] if wrapped else client
        done = run([DMI_RUN, "--spec", self.folder / "spec.yaml", "--edits", path, "--out", self.folder / "out", *options, "--", *command],
                   env=environment(PYTHONPATH=ROOT / "python", **env), check=False, timeout=120)
        return done.returncode, [line.removeprefix("dmi-run: ") for line in done.stderr.splitlines() if line.startswith("dmi-run: ")]


@pytest.fixture
def command(tmp_path):
    return Command(tmp_path)


def plan_of(*caches):
    """A step of two rows of request r in layers 0 and 1, for each of @caches; the end of the request."""
    plan = [step_of(1 + i, {"r": (2 * i, 2)}, i % 2 == 1, caches=one) for i, one in enumerate(caches)]
    for step in plan:
        step["launches"] *= 2
    plan[-1]["ends"] = ["r"]
    return plan


FADES = "  - {name: fades, site: x, do: [{scale: {0: 2, 4: 3}}]}\n"


def test_what_is_said_at_the_end(command, check):
    said = command(SET.format("one", 7, "r", "") + SET.format("other", 7, "nobody", ""), plan_of(False, False))
    check(said == (0, []), "rows were written; another edit wanted another request", said)
    said = command(FADES, plan_of(None, True), DMI_LOG="none")
    check(said[0] == 1 and len(said[1]) == 1 and said[1][0].startswith('no row was edited: edit "fades" at x: 0 rows written of 8 due; missed: 8 cache_shared (the engine shares'),
          "all were missed, and what to do", said)
    said = command(SET.format("one", 7, "nobody", "") + SET.format("two", 7, "*", ", layers: '5'"), plan_of(False))
    check(said == (1, ['edit "one" at x: no row was due: no request or token that it wants was computed', 'edit "two" at x: x has no layer 5: forwards had it in layers up to 1',
                       "no row was edited"]), "none were due", said)
    said = command(SET.format("one", 7, "*", ", layers: '0,5'") + SET.format("two", 7, "*", ", layers: '0'"), plan_of(False))
    check(said == (1, ['edit "one" at x: x has no layer 5: forwards had it in layers up to 1', "1 of 2 edits were not done"]), "not in all its layers", said)
    said = command(SET.format("one", 7, "*", ", layers: '1'") + SET.format("two", 7, "*", ", layers: '0,5'"), plan_of(False), place=FIRST + SECOND)
    check(said == (1, ['edit "two" at x: x has no layer 5: forwards had it in layers up to 1', "1 of 2 edits were not done"]), "entries of one site are joined", said)


def test_of_the_command_alone(command, check):
    """A second run into the same folder is judged by itself, also where both have one job; the command's own failure is not masked."""
    said = command(SET.format("one", 7, "*", ""), plan_of(False), DMI_JOB="mine")
    check(said == (0, []), "the first", said)
    for status in (0, 3):
        said = command(FADES, plan_of(True), wrapped=f'"$@"; exit {status}', DMI_JOB="mine")
        check(said[0] == (status or 1) and said[1][0].startswith("no row was edited: "), "the second", said)
    said = command(FADES, plan_of(True), options=["--lenient"], DMI_JOB="mine")
    check(said[0] == 0 and said[1][0].startswith("no row was edited: "), "with --lenient", said)
    said = command(FADES, plan_of(True), wrapped='sleep 4 >/dev/null 2>&1 </dev/null & "$@"')
    check(said[0] == 1 and "processes of the command go on" in said[1][0] and said[1][1].startswith("no row was edited: "), "beside a process that goes on", said)
    check(len(runs_of(command.folder / "out")) == 5, "the runs lie in one folder", runs_of(command.folder / "out"))


def test_of_processes_that_were_killed(command, check):
    """Accounts outlive their process; so do those of several processes, of which one alone has edits to make."""
    killed = plan_of(False, False) + [dict(plan_of(False)[0], pause=60)]
    said = command(SET.format("one", 7, "*", ""), killed, wrapped='"$@" & until grep -aq one "$DMI_OUT"/*/edits; do sleep 0.1; done; sleep 0.5; kill -9 $!; wait; true')
    check(said == (0, []), "rows of a process that was killed", said)
    (command.folder / "other.json").write_text(json.dumps(plan_of(True)))
    both = '"$@" && "$1" "$2" "${3%plan.json}other.json"'
    said = command(FADES, plan_of(False), wrapped=both, DMI_LOG="none")
    check(said[0] == 1 and len(said[1]) == 1 and said[1][0].startswith(
        'not in all processes: edit "fades" at x: in 1 of the 2 processes with rows due 0 rows written of 4 due; missed: 4 cache_shared (the engine'),
        "of two processes one has missed all", said)
    (command.folder / "other.json").write_text(json.dumps(plan_of(False)).replace('"r"', '"q"'))
    said = command(SET.format("one", 7, "r", ""), plan_of(False), wrapped=both, DMI_LOG="none")
    check(said == (0, []), "of two processes one has rows of the request", said)
    said = command(FADES, plan_of(False), wrapped='env -u LD_PRELOAD "$@"')
    check(said[0] == 1 and said[1][0].startswith("no row was edited: no process of the command has initialised CUDA, or tapped a tensor, with"), "one without the library", said)
