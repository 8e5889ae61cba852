# SPDX-License-Identifier: Apache-2.0
"""What an engine says of its steps and of what came of them: what is taken, what is refused, what is left after a kill."""
import errno
import json
import pathlib
import signal
import subprocess
import sys

import dmi
import kit
import segments
from dmi.run import structs
from harness import DMI_DUMP, environment

CLIENT = pathlib.Path(__file__).with_name("metadata_client.py")
E = -errno.EINVAL
LIES = {"cuInit": 0, "good": 0, "two spans of a request": 0, "that share a position": E, "that share rows": E,
        "outside the batch": E, "an id of 255 bytes": 0, "an id of 256 bytes": 0, "an empty id": 0, "a negative position": E,
        "positions beyond 2^63": E, "more cached than before it": E, "tags too long": E, "a rank outside its size": E,
        "too many spans": E, "a number that went back": 0, "a later one": 0, "a struct of another size": 2, "nothing": 2,
        "accept": 0, "accept again": -errno.EALREADY, "accept of no draft": -errno.ENOENT,
        "accept in no step": -errno.ENOENT, "drafts": 0, "accept too many": E, "accept without an id": E, "accept none": 0,
        "end": 0, "end of an id of 256 bytes": E, "end for no reason": E, "accept long past": -errno.ENOENT,
        "accept still known": 0, "flush": 0}


def said(text):
    return dict(json.loads(line) for line in text.splitlines())


def test_what_cannot_be_is_refused_counted_and_named_once(bench):
    r = bench.run([], kit.spec(kit.site()), command=[sys.executable, CLIENT, "lies"])
    bench.check(said(r.stdout) == LIES, "each call has its status",
                {k: v for k, v in said(r.stdout).items() if LIES.get(k) != v})
    run = bench.captured("lies", r, [])
    n_refused = 11
    bench.check(run.counters.steps_refused == n_refused, "refused steps are counted", run.counters.steps_refused)
    problems = {p["reason"]: p for p in run.manifest["problems"] if p["reason"] != "no_match"}
    bench.check({k: v["times"] for k, v in problems.items()} == {"steps_refused": n_refused, "ids_refused": 2, "outcomes_refused": 8, "steps_went_back": 1},
                "the manifest names each kind once, with how often", problems)
    bench.check("position in common" in problems["steps_refused"]["sentence"], "by what was wrong first", problems)
    lines = [line for line in r.stderr.splitlines() if "is refused" in line]
    bench.check(len(lines) == 2, "the log names the first of each kind", lines)
    bench.check(problems["ids_refused"]["sentence"] == "rows of step 3 of the engine belong to no request: a request id has more than 255 bytes" and
                problems["ids_refused"]["sentence"] in r.stderr, "an id that cannot be costs its own rows", problems)
    requests = json.loads(subprocess.run([DMI_DUMP, "list", run.folder, "--requests", "--json"], stdout=subprocess.PIPE, check=True).stdout)["requests"]
    bench.check([(q["request"], q["computed"]) for q in requests if q["request"] in "ai"] == [("a", 10)], "and the others of its step nothing", requests)
    told = [(o.number, o.request, o.accepted) for o in run.outcomes if o.accepted is not None]
    bench.check(told == [(1, "b", 2), (10, "b", 0), (1199, "c", 1)], "what was accepted is in the run", told)
    ends = [(o.request, o.reason) for o in run.outcomes if o.ended]
    bench.check(ends == [("b", 2)], "and which requests ended", ends)


def cached_ids(run):
    with dmi.open(run.folder) as opened:
        steps = [opened._get("dmi_read_step", structs._Step, structs.U64(i)) for i in range(opened.n_steps)]
        spans = [[opened._get("dmi_read_span", structs._Span, structs.U64(i), structs.U32(k)) for k in range(step.n_spans)] for i, step in enumerate(steps)]
        return {step.step: [list(span.cached_ids[:span.n_cached]) if span.cached_ids else None for span in of] for step, of in zip(steps, spans)}


def test_ids_of_cached_tokens(bench):
    """Of programs that were built with another struct dmi_span, too; and only where ids of computed tokens are there to be compared."""
    told = {"cuInit": 0, "spans of 40 bytes": 2, "spans of 48 bytes": 0, "spans of 56 bytes": 0, "spans of 72 bytes": 0, "not as many": E, "no numbers": E,
            "too large": E, "a list": 0, "flush": 0}
    for name, site in (("ids", "token_ids"), ("none", "out")):
        r = bench.run([], kit.spec(kit.site(site)), command=[sys.executable, CLIENT, "cached"])
        bench.check(said(r.stdout) == told, "each call has its status", {k: v for k, v in said(r.stdout).items() if told.get(k) != v})
        full, part = [7, 8, 9, 10], [7, 8]
        want = {1: [None, None], 2: [full, part], 3: [full, part], 10: [[2, 3, 4], None]}
        want = want if site == "token_ids" else {step: [None, None] for step in want}
        found = cached_ids(bench.captured(name, r, []))
        bench.check(found == want, f"{site}: what is in the run", found)


def test_what_is_noted_of_a_model(bench):
    r = bench.run([], kit.spec(kit.site()), command=[sys.executable, CLIENT, "describe"])
    bench.check(said(r.stdout) == {"cuInit": 0, "good": 0, "again": 0, "no key": E, "a key with a blank": E, "a long key": E, "a long value": E,
                                   "the longest": 0, "62 more": True, "one too many": -errno.ENOSPC, "flush": 0}, "each call has its status", said(r.stdout))
    run = bench.captured("describe", r, [])
    with dmi.open(run.folder) as opened:
        bench.check((opened.about("config"), len(opened.about("v")), opened.about("one")) == ('{"a": "\u00e9"}', 1 << 20, None), "the last text of a key counts")
        bench.check(run.manifest["about"]["k61"] == "" and len(run.manifest["about"]) == 64, "the manifest has all of them")
    traced = bench.run([], None, command=[sys.executable, CLIENT, "describe"], DMI_TRACE="steps")
    with dmi.open(traced.folders[0]) as opened:
        bench.check(said(traced.stdout) == said(r.stdout) and opened.about("config") == '{"a": "\u00e9"}', "a trace without a HookSpec has them, too", traced.stdout)
    again = run.folder.with_name("recovered")
    subprocess.run([DMI_DUMP, "recover", run.folder, "-o", again], stdout=subprocess.PIPE, check=True)
    with dmi.open(again) as opened:
        bench.check(opened.about("config") == '{"a": "\u00e9"}', "a run that is recovered has them")


def test_several_threads(bench):
    r = bench.run([], kit.spec(kit.site()), command=[sys.executable, CLIENT, "threads"])
    bench.check(said(r.stdout) == {"cuInit": 0, "joined": 0}, "no call is refused", r.stdout[-500:])
    run = bench.captured("threads", r, [])
    told = sorted((o.number, o.request, o.accepted) for o in run.outcomes if o.accepted is not None)
    expected = sorted((name * 1000 + i, f"r{name}", i % 5) for name in range(8) for i in range(120))
    bench.check(told == expected, "each outcome is that of its own step and request", len(told))
    bench.check(sorted(o.request for o in run.outcomes if o.ended) == [f"r{i}" for i in range(8)], "all ended")


def test_what_was_committed_survives_a_kill(bench):
    folder = bench.folder / "kill"
    folder.mkdir()
    (folder / "spec.yaml").write_text(kit.spec(kit.site()))
    env = environment(LD_PRELOAD=kit.PRELOAD, DMI_SPEC=folder / "spec.yaml", DMI_OUT=folder / "out")
    with subprocess.Popen([sys.executable, CLIENT, "wait"], env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:
        while "accept later" not in (line := process.stdout.readline()):
            assert line, process.stderr.read()[-1000:]
        process.send_signal(signal.SIGKILL)
    run = kit.Run(next(p for p in (folder / "out").iterdir() if p.is_dir()))
    told = [(o.request, o.accepted, o.ended, o.reason) for o in run.outcomes]
    bench.check(told == [("a", 2, False, 0), ("a", None, True, 3)], "what a flush wrote is there after kill -9", told)


def test_idle(bench):
    """Outcomes are written by the library's own thread, where no further record comes."""
    launch = ["launch block 0 1 64 p 64 1"]
    calls = kit.START + launch + ["step 5 64 a:0:64:0:3"] + launch + ["sync", "flush 5000", "sleep 300", "accept a 5 60", "end a 1", "sleep 3000", "kill9"]
    r = bench.run(calls, kit.spec(kit.site()))
    run = r.run()
    told = [(o.number, o.request, o.accepted, o.reason) for o in run.outcomes]
    bench.check(r.code == -9 and told == [(5, "a", 60, 0), (5, "a", None, 1)], "they are there soon", (r.code, told))
    bench.check(segments.OUTCOMES in run.kinds and run.kinds.index(segments.STEPS) < run.kinds.index(segments.OUTCOMES),
                "after the steps that they name", run.kinds)


def test_two_ranks_of_a_command(bench):
    """Each process captures its columns of a tensor; what reads the folder of both sees the tensor."""
    text = kit.spec(kit.site(dims="[{row: true, count: 'arg[1].u32 / 4'}, {count: 4}]", shard="{dim: 1, of: tp}"),
                    kit.site("alike", offset="0", dims="[{row: true, count: 1}]", occurrences="{from: 0}"))
    out = bench.folder / "ranks"
    for rank in (0, 1):
        step = [f"step 8 16 tp={rank}/2 a:0:10:0 b:10:6:3:3"]
        r = bench.run(kit.START + step + [f"launch block 0 1 64 p 64 {rank + 1}", "accept b 8 4", "end a 2", "sync"], text, DMI_OUT=out, DMI_JOB="j")
        bench.check(r.code == 0, "a rank runs", r.stderr)
    done = subprocess.run([DMI_DUMP, "show", "out", out, "--rows", ":", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    both = [kit.filled(1, 64), kit.filled(2, 64)]
    want = [(key, position, [w for words in both for w in words[4 * row:4 * row + 4]]) for key, position, row in
            [("a/out", i, i) for i in range(10)] + [("b/out", 3 + i, 10 + i) for i in range(4)]]
    got = [(row["tensor"], row["position"], [int(v) for v in row["values"]]) for row in json.loads(done.stdout)]
    bench.check(got == want, "columns side by side, rejected rows left out", got[:2])
    done = subprocess.run([DMI_DUMP, "verify", out], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    bench.check(done.returncode == 1 and "site alike: ranks that have all of it differ in 1 records" in done.stderr,
                "what should be alike and is not, is named", done.stderr)
