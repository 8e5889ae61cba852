# SPDX-License-Identifier: Apache-2.0
"""The engine: requests in, steps until none is left, results out."""
import dataclasses
import json
import pathlib
import statistics
import time

from .batch import Layout, Rows
from .catalogue import Catalogue, Unsaid
from .device import Device
from .drafts import Drafter
from .dtypes import DTYPES
from .dump import Dump
from .gguf import Gguf, packaged_model
from .model import Shape, Weights, shape_of_part
from .program import SITES
from .ranks import join
from .ranges import Ranges
from .runner import Model, Runner
from .schedule import FixedSchedule, RandomSchedule, Schedule
from .scheduler import Request, Scheduler
from .steps import Silent, Steps
from .stored import Made, Stored
from .taps import Taps

BLOCK = 16       # tokens of a KV block
MAX_ROWS = 128   # rows of a step
POSITIONS = 512  # of a request


def parse_site(text):
    """"q.3" -> ("q", 3); "q" -> ("q", None), all layers."""
    site, dot, layer = (text or "").partition(".")
    if text and (site not in SITES or dot and not layer.isdigit()):
        raise SystemExit(f"serve.py: no site {text}; expected one of {', '.join(SITES)}, or SITE.LAYER")
    return (site, int(layer) if dot else None) if text else None


CLOCKS = time.perf_counter, time.process_time, time.thread_time


class Timing:
    """How long steps take: one by one, and by kind."""

    def __init__(self):
        self.seconds, self.taken, self.kind = [], {}, None

    def step(self, run, number):
        self.kind, before = None, [clock() for clock in CLOCKS]
        run(number)
        self.seconds.append([clock() - began for clock, began in zip(CLOCKS, before)])
        if self.kind:
            self.taken.setdefault(self.kind, []).append(self.seconds[-1])

    def report(self, opt):
        if opt.times:
            pathlib.Path(opt.times).write_text("".join("{} {} {}\n".format(*seconds) for seconds in self.seconds), encoding="utf-8")
        for kind, taken in sorted(self.taken.items()) if opt.timing else ():
            wall, cpu, _ = (statistics.median(times) for times in zip(*taken))
            print(f"{kind}: {len(taken)} steps, median {wall:.3f} s, of the CPU {cpu:.3f} s")


class Engine:
    def __init__(self, opt, part, group):
        self.opt, self.part, self.ranks = opt, part, join(part, group)
        self.says = Catalogue() if opt.spans else Unsaid()
        if self.ranks:
            self.ranks.says = self.says
        self.dtype, gguf = DTYPES[opt.dtype], Gguf(opt.model or packaged_model())
        self.device = Device(part.number)
        self.load_kernels()
        whole = Shape.of(gguf)
        whole = dataclasses.replace(whole, layers=min(opt.layers or whole.layers, whole.layers))
        self.shape = shape_of_part(whole, part)
        self.first_tokens = [dataclasses.replace(part, rank=i).share(whole, whole.vocabulary)[0] for i in range(part.ranks)]
        self.stop = frozenset([gguf.values["tokenizer.ggml.eos_token_id"]])
        weights = pathlib.Path(opt.kernels) / f"weights_{self.dtype.suffix}.safetensors"
        stored = Stored(weights, self.dtype.store) if part.ranks == 1 and not opt.model and weights.exists() else Made()
        self.weights = Weights(self.device, gguf, whole, part, self.dtype, POSITIONS, stored)
        self.layout = Layout(MAX_ROWS, max(opt.batch, 1), POSITIONS // BLOCK)
        self.runner = self.make_runner(self.shape, first_layer=part.layers(whole.layers)[0], fingerprint=parse_site(opt.fingerprint))
        self.runner.tap = Taps(self.device, self.dtype, whole.layers) if opt.taps else None
        self.drafter = None
        if opt.speculate:
            shape = dataclasses.replace(self.shape, layers=min(opt.draft_layers, self.shape.layers))
            self.drafter = Drafter(self.make_runner(shape, prefix="draft_"), BLOCK, MAX_ROWS, self.merged)
        self.dump = Dump(opt.dump, self.dtype, suffix=f"-{part.number}" if part.ranks * part.stages > 1 else "") if opt.dump else None
        self.steps = Steps(part, not opt.no_prefix_cache) if opt.steps else Silent()
        self.given, self.n_requests = json.loads(pathlib.Path(opt.requests).read_text())["requests"], 0
        self.scheduler = Scheduler(batch=opt.batch, chunk=opt.chunk, n_blocks=opt.blocks, block_size=BLOCK, max_rows=MAX_ROWS,
                                   speculate=opt.speculate, share=not opt.no_prefix_cache, schedule=self.make_schedule(), says=self.says)
        self.timing = Timing()
        self.trace = open(opt.trace, "w", encoding="utf-8") if opt.trace and part.number == 0 else None

    def load_kernels(self):
        folder = pathlib.Path(self.opt.kernels)
        for prefix in ["", "draft_"][:2 if self.opt.speculate else 1]:
            self.device.load(folder / f"{prefix}kernels_{self.dtype.suffix}.fatbin")

    def make_runner(self, shape, **more):
        """Of a model of @shape with these weights; its kernels have run once."""
        model = Model(self.device, self.weights, shape, self.part, self.dtype, self.layout, n_slots=(self.opt.blocks + 1) * BLOCK,
                      block_size=BLOCK, n_positions=POSITIONS, **more)
        runner = Runner(model, self.opt.mode, self.ranks, ranges=Ranges(self.opt.nvtx) if self.opt.nvtx else None, says=self.says)
        runner.warm_up()
        return runner

    def make_schedule(self):
        if self.opt.schedule == "random":
            return RandomSchedule(self.opt.seed, len(self.given), self.opt.steps_max or 100, 2 * self.opt.batch)
        return FixedSchedule(self.opt.schedule) if self.opt.schedule else Schedule()

    def add(self, given, name, limit=None):
        forced = given.get("forced_tokens")
        limit = min(filter(None, (limit, given.get("max_tokens", len(forced) if forced else 16))))
        self.n_requests += 1
        request = Request(name, self.n_requests, given["prompt_tokens"], None if forced is None else forced[:limit], limit,
                          frozenset() if forced or given.get("ignore_stop") else self.stop, given.get("arrival", 0),
                          given.get("tags", {}))
        if request.n_prompt + request.limit + self.opt.speculate > POSITIONS:
            raise SystemExit(f"request {name} has more than {POSITIONS} positions")
        self.scheduler.add(request)

    # ---- steps

    def run(self):
        if self.opt.schedule != "random":
            for request in self.given:
                self.add(request, request["id"])
        step, until = 0, self.opt.steps_max
        while self.scheduler.has_work or (self.opt.schedule == "random" and step < (until or 100)):
            if until and step >= until:
                break
            n_alive = sum(map(len, (self.scheduler.coming, self.scheduler.waiting, self.scheduler.running)))
            for name, which, limit in self.scheduler.choice.more(step, n_alive):
                self.add(self.given[which], name, limit)
            with self.says.range("EngineCore::Step", number=step):
                self.timing.step(self.step, step)
            step += 1
        self.steps.idle()
        left = [*self.scheduler.running, *self.scheduler.waiting, *self.scheduler.coming]
        for request in left:
            self.scheduler.finish(request, "aborted")
        self.steps.ended([(request, "aborted") for request in left])
        self.device.wait()
        if self.part.number == 0:
            self.write_results()
            self.timing.report(self.opt)

    def step(self, number):
        with self.says.range("EngineCore::Schedule") as said:
            plan = self.scheduler.schedule(number)
            said.say(requests=len(plan.items), tokens=sum(item.n_rows for item in plan.items), preempted=len(plan.preempted))
        self.steps.ended([(request, "aborted") for request in plan.aborted])
        if not plan.items:
            return
        with self.says.range("EngineCore::Execute"):
            rows, best = self.execute(plan)
        with self.says.range("EngineCore::Output"):
            best = iter(best)
            verified, ended = self.scheduler.commit(plan, [[next(best) for _ in range(item.n_drafts + 1)] for item in plan.items])
            if self.dump:
                self.dump.write(plan, rows, verified)
            self.steps.verified(number, verified)
            self.steps.ended(ended)
        if self.opt.check:
            self.scheduler.check()

    def execute(self, plan):
        """(its rows, the tokens that were sampled)"""
        if self.drafter:
            with self.says.range("ModelRunner::Draft"):
                self.drafter.propose(plan)
        with self.says.range("ModelRunner::Preprocess"):
            rows = Rows.of(plan, BLOCK)
            n_padded, replayed = self.runner.padded(rows, len(rows.last) == rows.n)
            self.steps.begin(plan, n_padded)
        self.timing.kind = f"{n_padded} rows, {'replayed' if replayed else 'launched'}"
        self.runner.run(rows, n_padded, replayed, self.dump.take if self.dump else None)
        best = self.merged(self.runner.sampled(len(rows.last)) if self.part.is_last else None, len(rows.last))
        with self.says.range("ModelRunner::Bookkeep"):
            self.record(plan, rows, n_padded, replayed)
        return rows, best

    def merged(self, best, n):
        """The likeliest tokens over all ranks' parts of the vocabulary, known to every process."""
        if self.ranks is None:
            with self.says.range("ModelRunner::Output"):
                return best["at"].tolist()
        with self.says.range("EngineCore::CollectiveRpc"):
            return self.ranks.tokens(best, n, self.first_tokens)

    # ---- results

    def record(self, plan, rows, n_padded, replayed):
        if self.trace:
            line = {"step": plan.step, "rows": rows.n, "padded": n_padded, "replayed": replayed,
                    "preempted": [r.id for r in plan.preempted], "aborted": [r.id for r in plan.aborted],
                    "items": [{"request": i.request.id, "start": i.start, "n": i.n, "drafts": i.n_drafts, "cached": i.n_cached}
                              for i in plan.items]}
            print(json.dumps(line), file=self.trace, flush=True)

    def write_results(self):
        with open(self.opt.out, "w", encoding="utf-8") as file:
            for request in sorted(self.scheduler.finished, key=lambda r: r.number):
                print(json.dumps({"id": request.id, "tokens": request.made, "sampled": request.sampled, "reason": request.reason,
                                  "preemptions": request.preemptions}), file=file)
