# SPDX-License-Identifier: Apache-2.0
"""Steps that are under way together: of two threads, or two batches of one thread in turn. Whose rows a record has, which layer it is of, which rows an edit writes."""
import json
import pathlib
import subprocess
import sys

import pytest

from harness import DMI_RUN, environment
from kit import site, spec
from test_edit_changes import Accounts

pytest.importorskip("cuda.bindings")
pytestmark = [pytest.mark.since(12000, "what cuda.bindings 13 calls to build a graph"), pytest.mark.built(DMI_RUN)]
CLIENT = pathlib.Path(__file__).with_name("turns_client.py")
STEPS, ROWS = 4, 8
PLACE = site("place", "^other$", dtype="f32", write="{}", capture="none", layer="0")
EDITS = {"editspec": 1, "edits": [{"name": "only-a", "site": "place", "requests": "a", "do": ["zero"]}]}


def packed(bench, text):
    """The file that dmi-run makes of the edits."""
    (bench.folder / "spec.yaml").write_text(text)
    (bench.folder / "edits.json").write_text(json.dumps(EDITS))
    done = subprocess.run([DMI_RUN, "--lenient", "--spec", bench.folder / "spec.yaml", "--edits", bench.folder / "edits.json", "--out", bench.folder / "packed", "--",
                           "sh", "-c", 'cat "$DMI_EDITS"'], env=environment(), capture_output=True, timeout=60, check=False)
    bench.check(done.returncode == 0, "dmi-run takes the edits", done.stderr)
    (bench.folder / "edits").write_bytes(done.stdout)
    return bench.folder / "edits"


def play(bench, how, way):
    text = spec(site("out", layer="occ"), site("plain", "^other$"), PLACE)
    result = bench.run([], text, command=[sys.executable, CLIENT, how, way], timeout=120, DMI_EDITS=packed(bench, text))
    bench.check(result.code == 0, "the program ran", result.stderr[-2000:])
    run = result.run()
    bench.check(not run.balance(), "every record is accounted for", run.balance())
    return result, run


def owners(run, i=0):
    """Of each record: what its words say of batch, step and layer, and what the run says of them."""
    for r in run.of(i):
        seed = r.words[0] >> 16
        number, spans = run.steps.get(r.step, (None, []))
        yield (seed // 100, seed // 10 % 10, seed % 10), ("ab".index(spans[0][0]) if spans else None, number, r.layer)


def memory(result):
    """{(batch, step): words of `other`}"""
    lines = (list(map(int, line.split())) for line in result.stdout.splitlines())
    return {(batch, step): words for batch, step, *words in lines}


@pytest.mark.parametrize("way", ["eager", "graph"])
@pytest.mark.parametrize("how", ["flag", "turns", "turns-flag"])
def test_each_launch_is_of_its_own_step(bench, how, way):
    result, run = play(bench, how, way)
    found = list(owners(run))
    bench.check(len(found) == 4 * STEPS and all(is_ == said for is_, said in found), "each record has its own rows and layer", found)
    wrong = {key: words for key, words in memory(result).items() if any(words) != (key[0] == 1)}
    bench.check(not wrong and len(memory(result)) == 2 * STEPS, "the edit writes the rows of its request, and no others", wrong)
    bench.check(Accounts(run.folder / "edits").of("only-a") == (STEPS * ROWS, STEPS * ROWS, {}), "and its account says so", Accounts(run.folder / "edits").all)
    bench.check("overlap" not in result.stderr and not [p for p in run.manifest["problems"] if p["reason"] == "steps_overlap"], "nothing is in doubt", result.stderr)


@pytest.mark.parametrize("way", ["eager", "graph"])
def test_where_nothing_says_whose_a_launch_is_it_is_nobodys(bench, way):
    result, run = play(bench, "threads", way)
    found = list(owners(run))
    plain = list(owners(run, 1))
    wrong = [(is_, said) for is_, said in found + plain if (said[0] is not None and is_[:2] != said[:2]) or said[2] not in (is_[2], -1)]
    bench.check(not wrong, "no record has another's rows, or another layer", wrong)
    c = run.counters
    bench.check(c.expected[0].records == 4 * STEPS and 0 < len(found) < 4 * STEPS, "those whose layer is not known are drops", (c.expected, found))
    bench.check(len(plain) == 2 * STEPS and {said[0] for _, said in plain} == {None}, "without a layer they are of no known step", (len(plain), plain))
    written = {key: words for key, words in memory(result).items() if not any(words)}
    due, n, missed = Accounts(run.folder / "edits").of("only-a")
    bench.check(all(batch == 0 for batch, _ in written) and n == ROWS * len(written), "the edit writes no row of another request", written)
    bench.check(due == n + sum(missed.values()) and missed.get("no_step"), "what it missed has a reason", (due, n, missed))
    problems = [p for p in run.manifest["problems"] if p["reason"] == "steps_overlap"]
    bench.check(len(problems) == 1 and problems[0]["times"] >= STEPS and "of two threads, overlap" in problems[0]["sentence"] and
                problems[0]["sentence"] in result.stderr, "the run counts such steps and names the first", problems)


def test_a_layer_that_runs_twice_in_a_step_is_named(bench):
    result = bench.run([], "hookspec: 1\nring: {bytes: 1M, slots: 512}\nsites:\n  - {tap: out}\n", command=[sys.executable, CLIENT, "passes", "eager"], timeout=120)
    run = result.run()
    bench.check([(r.words[0] >> 16, r.layer) for r in run.of(0)] == [(0, 1), (10, 1), (11, 1)] and not run.balance(), "each pass is a record", run.of(0))
    problems = [p for p in run.manifest["problems"] if p["reason"] == "several_passes"]
    bench.check(len(problems) == 1 and "layer 1 ran more than once in a step" in problems[0]["sentence"] and "layer 1 ran more than once" in result.stderr,
                "the run names the layer", (problems, result.stderr))
