# SPDX-License-Identifier: Apache-2.0
"""Requests are shed under pressure, as `overload` says: those that are kept have all their rows, the others stay away from one launch on,
each row is the right one of the right request, and sums hold, launch by launch and from graphs, on links that are too slow.

Every word that a kernel writes says launch, row and column, so whose a row is follows from the plan alone.
"""
import json
import random
import sys

import pytest

from harness import ROOT, dump_json
from kit import spec
from rows_client import WIDTH
from test_rows import CLIENT, site_text

pytest.importorskip("cuda.bindings")
pytestmark = pytest.mark.since(12000, "what cuda.bindings 13 calls to build a graph")

ROW = WIDTH * 4
SITES = [("all", "block", {}), ("last", "block", {"tokens": "last"}), ("logits", "other", {"row": "request"}),
         ("weights", "block", {"row": "none", "steps": "{every: 16}"})]


def plan_of(seed, n_steps=60, at_once=6, layers=4, pause=0.004, graphs=True):
    """Requests that come, prefill, decode and end, with padding to a batch of eight; launches of each layer and of the logits."""
    rng = random.Random(seed)
    plan, running, n, launch = [], [], 0, 1
    for number in range(n_steps):
        while len(running) < at_once and rng.random() < 0.5:
            running.append({"id": f"{'vip-' if n % 4 == 0 else 'r'}{n}", "left": rng.randrange(2, 30), "position": 0})
            n += 1
        spans, row = [], 0
        for r in running:
            tokens = rng.randrange(2, 9) if not r["position"] else 1
            r["prompt"] = r.get("prompt", tokens)
            spans.append({"request": r["id"], "first_position": r["position"], "n_tokens": tokens, "first_row": row,
                          "phase": 2 if r["position"] else 1, "flags": 0, "tags": '{"tier": "gold"}' if r["id"][-1] == "3" else None,
                          "n_prompt": r["prompt"]})
            r["position"] += tokens
            r["left"] -= 1
            row += tokens
        padding = -row % 8
        if padding:
            spans.append({"request": None, "first_position": 0, "n_tokens": padding, "first_row": row, "phase": 0, "flags": 1,
                          "tags": None, "n_prompt": 0})
        launches = []
        for _ in range(layers):
            launches.append(["block", row + padding, launch, graphs and rng.random() < 0.5])
            launch += 1
        if running:
            launches.append(["other", len(running), launch, False])
            launch += 1
        ends = [r["id"] for r in running if not r["left"]]
        running = [r for r in running if r["left"]]
        plan.append({"said": {"step": number, "spans": spans, "n_rows": row + padding}, "launches": launches, "ends": ends,
                     "pause": pause})
    return plan


def wanted_rows(plan, name, kernel, keys):
    """{launch: {row of the tensor: request}} of what the site asks for; request None: of nobody."""
    out = {}
    for step in plan:
        if name == "weights" and step["said"]["step"] % 16:
            continue
        spans = [s for s in step["said"]["spans"] if not s["flags"]]
        for launched, rows, launch, _ in step["launches"]:
            if launched != kernel:
                continue
            if keys.get("row") == "none":
                out[launch] = {r: None for r in range(rows)}
            elif keys.get("row") == "request":
                out[launch] = {i: s["request"] for i, s in enumerate(spans)}
            else:
                last = keys.get("tokens") == "last"
                out[launch] = {s["first_row"] + k: s["request"] for s in spans for k in range(s["n_tokens"])
                               if not last or k == s["n_tokens"] - 1}
    return out


class Outcome:
    """What of a plan was captured."""

    def __init__(self, bench, what, plan, run):
        self.bench, self.what, self.plan, self.run = bench, what, plan, run
        self.step_of = {launch: step["said"]["step"] for step in plan for _, _, launch, _ in step["launches"]}
        self.shed = {}
        for o in run.outcomes:
            if o.shed and not bench.check(o.request not in self.shed, f"{what}: {o.request} is shed once"):
                continue
            if o.shed:
                self.shed[o.request] = o.number
        self.captured = {}  # (site, launch): {row: request}

    def take(self, number, name, kernel, keys):
        """The site's records hold the right words; a row of a request that is gone is in none."""
        wanted = wanted_rows(self.plan, name, kernel, keys)
        wrong = []
        for r in self.run.of(number):
            launch = r.words[0] >> 16
            rows = r.kept if r.kept is not None else list(range(r.dims[0]))
            words = tuple((launch << 16) + row * WIDTH + c for row in rows for c in range(WIDTH))
            if words != r.words or not set(rows) <= set(wanted.get(launch, {})):
                wrong.append((launch, rows, r.words[:8]))
            self.captured[number, launch] = set(rows)
        self.bench.check(not wrong, f"{self.what}: {name}: each record has rows that were asked for, and their words", wrong[:2])
        bad = [f"{request} at launch {launch}, step {self.step_of[launch]}, shed at {self.shed.get(request)}"
               for launch, rows in wanted.items() for row, request in rows.items() if request
               if not self.fits(request, self.step_of[launch], row in self.captured.get((number, launch), ()))]
        self.bench.check(not bad, f"{self.what}: {name}: a request has all its rows until it is shed, then none", bad[:3])
        expected = sum(len(rows) for rows in wanted.values())
        self.bench.check(self.run.counters.expected[number].rows == expected, f"{self.what}: {name}: every row was expected",
                         f"{self.run.counters.expected[number]} {expected}")

    def fits(self, request, step, is_there):
        at = self.shed.get(request)
        return is_there if at is None or step < at else True if step == at else not is_there

    @property
    def requests(self):
        return {s["request"] for step in self.plan for s in step["said"]["spans"] if s["request"]}


def serve(bench, what, plan, overload, ring="{bytes: 8K, slots: 1024}", sites=SITES, judged=None, **env):
    """@judged: of the first so many sites every record is looked at; None: of all."""
    text = spec(*(site_text(*s) for s in sites), head=f"forward: [{{kind: step, begin: step}}]\nring: {ring}\noverload: {overload}\n")
    path = bench.folder / f"plan-{bench.n}.json"
    path.write_text(json.dumps(plan))
    result = bench.alike(what, [], text, command=[sys.executable, CLIENT, path], timeout=120, PYTHONPATH=ROOT / "python", **env)
    if not bench.check(result.code == 0 and result.folders, f"{what}: the program runs, and a run is written", result.stderr[-800:]):
        return None
    run = result.run()
    out = Outcome(bench, what, plan, run)
    for number, (name, kernel, keys) in enumerate(sites[:judged]):
        out.take(number, name, kernel, keys)
    bench.check(not run.balance(), f"{what}: every record is accounted for", run.balance())
    numbers = {}
    for r in (r for number in range(len(sites)) for r in run.of(number)):
        numbers.setdefault(r.words[0] >> 16, set()).add(r.launch)
    bench.check(all(len(n) == 1 for n in numbers.values()), f"{what}: the records of a launch have one number",
                [(launch, n) for launch, n in numbers.items() if len(n) > 1][:3])
    out.result = result
    return out


SLOW = {"DMI_STANDIN_DTOH_BPS": 30000}  # about a fifth of what the plan asks for


@pytest.mark.parametrize("strategy", ["", ", strategy: keep-by-pattern, keep: ['vip-*']",
                                      ", strategy: keep-by-pattern, keep: ['tag:tier=gold']",
                                      ", strategy: sample, share: 0.5"], ids=["recent", "pattern", "tag", "sample"])
@pytest.mark.parametrize("seed", range(2))
def test_best_effort(bench, strategy, seed):
    out = serve(bench, f"best effort{strategy}", plan_of(seed), f"{{mode: best-effort{strategy}}}", **SLOW)
    if out:
        whole = out.requests - set(out.shed)
        bench.check(out.shed, "the link is too slow: requests are shed")
        bench.check(whole, "some are kept", f"{len(out.shed)} of {len(out.requests)} are shed")
        drops = {reason for d in out.run.counters.dropped[:3] for reason in d}
        bench.check(drops == {"shed"}, "nothing else is lost but of a site that has no requests", drops)
        listed = {r["request"]: r["shed"] for r in dump_json("list", "--requests", out.result.folders[0])["requests"]}
        bench.check({k: v for k, v in listed.items() if v is not None} == out.shed, "dmi-dump list --requests names them", listed)


def test_a_site_of_nobody_is_switched_off(bench):
    """Its records are no request's, and too many for the link: after eight on end that found no room it is off, and the run says so."""
    plan = plan_of(10, n_steps=60, layers=1, graphs=False)
    for step in plan:
        step["launches"].append(["first", 200, 1000 + step["said"]["step"], False])
    sites = [*SITES[:2], ("huge", "first", {"row": "none"})]
    out = serve(bench, "huge", plan, "{mode: best-effort}", ring="{bytes: 8K, slots: 1024}", sites=sites, judged=2, DMI_STANDIN_DTOH_BPS=3000)
    if not out:
        return
    c = out.run.counters
    problems = [p["sentence"] for p in out.run.manifest["problems"] if p["site"] == "huge" and p["reason"] == "pressure"]
    bench.check(len(problems) == 1 and "8 of its records on end" in problems[0], "it is said", out.run.manifest["problems"])
    bench.check(c.captured[2].records >= 1 and 8 <= c.dropped[2]["ring_full"].records < 40 and c.expected[2].records < 60,
                "what comes after that is not expected any more", (c.expected[2], c.captured[2], c.dropped[2]))


def test_enough_room_sheds_nothing(bench):
    out = serve(bench, "room", plan_of(5), "{mode: best-effort}", ring="{bytes: 1M, slots: 4096}")
    if out:
        bench.check(not out.shed and not any(out.run.counters.dropped), "nothing is shed", f"{out.shed} {out.run.counters.dropped}")


def test_sample(bench):
    """Without pressure too: a share of the requests, by their ids."""
    out = serve(bench, "sample", plan_of(6, n_steps=120), "{mode: drop, strategy: sample, share: 0.5}", ring="{bytes: 1M, slots: 4096}")
    if out:
        share = len(out.shed) / len(out.requests)
        bench.check(0.2 < share < 0.8, "about half of them", f"{len(out.shed)} of {len(out.requests)}")
        again = serve(bench, "sample again", plan_of(7, n_steps=120), "{mode: drop, strategy: sample, share: 0.5}",
                      ring="{bytes: 1M, slots: 4096}")
        both = again.requests & out.requests if again else set()
        bench.check({r for r in both if r in out.shed} == {r for r in both if again and r in again.shed},
                    "the same ids in another process")


def test_a_budget(bench):
    """20 kB a second of all sites, while the ring has room for all."""
    plan = plan_of(8, n_steps=200, pause=0.01)
    out = serve(bench, "budget", plan, "{mode: drop, budget: {process: 20000}}", ring="{bytes: 1M, slots: 4096}")
    if out:
        n_bytes = sum(c.bytes for c in out.run.counters.captured[:3])
        times = [r.time_ns for r in out.run.records]
        seconds = (max(times) - min(times)) / 1e9
        # what the bucket holds at first, and a first step whose cost nobody knew
        most = 20000 * (seconds + 1) * 1.1 + 8 * 8 * ROW * 5
        bench.check(out.shed and n_bytes <= most, "what is kept stays within the budget", f"{n_bytes} bytes in {seconds:.2f} s, {most:.0f} allowed")


def test_a_budget_of_one_site(bench):
    out = serve(bench, "site", plan_of(9, n_steps=200, pause=0.01), "{mode: drop, budget: {sites: {all: 5000}}}",
                ring="{bytes: 1M, slots: 4096}")
    free = serve(bench, "other site", plan_of(9, n_steps=200, pause=0.01), "{mode: drop, budget: {sites: {logits: 10M}}}",
                 ring="{bytes: 1M, slots: 4096}")
    if out and free:
        bench.check(out.shed and not free.shed, "only the budget that is too small sheds", f"{out.shed} {free.shed}")


def test_an_id_comes_back(bench):
    """A request that ended is forgotten: another one of its name is shed or kept by itself."""
    def decode(number, request, rows, launch, ends=(), pause=0.3):
        spans = [{"request": r, "first_position": 0, "n_tokens": rows, "first_row": i * rows, "phase": 1, "flags": 0, "tags": None,
                  "n_prompt": rows} for i, r in enumerate(request)]
        return {"said": {"step": number, "spans": spans, "n_rows": rows * len(request)}, "ends": list(ends), "pause": pause,
                "launches": [["block", rows * len(request), launch, False]]}
    plan = [decode(0, ["a", "b"], 8, 1, pause=0.5),
            decode(1, ["a", "b"], 90, 2),               # 2,880 bytes each at both sites, in a ring of 4,096: b is shed
            decode(2, ["a", "b"], 8, 3, ends=["b"]),
            decode(3, ["a", "b"], 8, 4)]
    path = bench.folder / "plan.json"
    path.write_text(json.dumps(plan))
    text = spec(site_text("all", "block", {}), site_text("again", "block", {}),
                head="forward: [{kind: step, begin: step}]\nring: {bytes: 4K, slots: 64}\noverload: {mode: best-effort}\n")
    result = bench.alike("an id comes back", [], text, command=[sys.executable, CLIENT, path], timeout=60, PYTHONPATH=ROOT / "python")
    run = result.run()
    got = [(r.words[0] >> 16, len(r.words) // WIDTH) for r in run.of(0)]
    bench.check(got == [(1, 16), (2, 90), (3, 8), (4, 16)], "shed in the second step, and back in the fourth", got)
    bench.check([(o.request, o.number) for o in run.outcomes if o.shed] == [("b", 1)] and not run.balance(), "named once, and counted",
                f"{[(o.request, o.number) for o in run.outcomes]} {run.balance()}")


def test_a_launch_is_cut_before_its_first_record(bench):
    """Both sites' records of one eager launch fit, or a request is shed from both: none has rows that the other one lost."""
    def step(number, rows, launches, pause):
        spans = [{"request": r, "first_position": 0, "n_tokens": rows, "first_row": i * rows, "phase": 1, "flags": 0, "tags": None,
                  "n_prompt": rows} for i, r in enumerate("ab")]
        return {"said": {"step": number, "spans": spans, "n_rows": rows * 2}, "ends": [], "pause": pause,
                "launches": [["block", rows * 2, launch, False] for launch in launches]}
    # the second step launches four times where the first did once, so that its cost was foreseen too low: 1,120 bytes a record,
    # six records in a ring of 8,192 that a slow link empties in 0.4 s, and of the fourth launch's two only one has room
    plan = [step(0, 8, [1], pause=0.5), step(1, 35, [2, 3, 4, 5], pause=0.5)]
    path = bench.folder / "plan.json"
    path.write_text(json.dumps(plan))
    text = spec(site_text("all", "block", {}), site_text("again", "block", {}),
                head="forward: [{kind: step, begin: step}]\nring: {bytes: 8K, slots: 64}\noverload: {mode: best-effort}\n")
    result = bench.alike("cut before", [], text, command=[sys.executable, CLIENT, path], timeout=60, PYTHONPATH=ROOT / "python",
                         DMI_STANDIN_DTOH_BPS=20000)
    run = result.run()
    got = [[(r.words[0] >> 16, len(r.words) // WIDTH) for r in run.of(site)] for site in range(2)]
    bench.check(got == [[(1, 16), (2, 70), (3, 70), (4, 70), (5, 35)]] * 2, "b is shed from both records of the last launch", got)
    bench.check([(o.request, o.number) for o in run.outcomes if o.shed] == [("b", 1)] and not run.balance(), "said once, and counted",
                f"{[(o.request, o.number) for o in run.outcomes]} {run.balance()}")


def test_complete_falls_back(bench):
    """The bounded wait is over, then requests are shed rather than records dropped."""
    out = serve(bench, "fallback", plan_of(10, n_steps=30), "{mode: complete, wait_ms: 1, fallback: best-effort}",
                DMI_STANDIN_DTOH_BPS=20000)
    if out:
        bench.check(out.shed, "requests are shed after the wait")


def test_without_steps_nothing_is_shed(bench):
    """Nobody says whose the rows are: records are dropped one by one, and counted."""
    plan = [{"said": None, "launches": [["block", 64, i + 1, i % 2 == 0]]} for i in range(80)]
    text = spec(site_text("all", "block", {}), head="ring: {bytes: 4K, slots: 16}\noverload: {mode: best-effort}\n")
    path = bench.folder / "plan.json"
    path.write_text(json.dumps(plan))
    result = bench.alike("nobody", [], text, command=[sys.executable, CLIENT, path], timeout=60, PYTHONPATH=ROOT / "python",
                         DMI_STANDIN_DTOH_BPS=50000)
    run = result.run()
    bench.check(set(run.counters.dropped[0]) == {"ring_full"} and not run.balance(), "dropped for want of room, and counted",
                f"{run.counters.dropped} {run.balance()}")
