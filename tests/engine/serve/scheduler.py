# SPDX-License-Identifier: Apache-2.0
"""Which rows the next step computes: continuous batching as vLLM's V1 scheduler does it. Knows no device.

Requests that run come first, each with the tokens that it has not computed yet (a chunk of a prompt, the last token
made, and drafts after it); then those that wait, as long as there are rows and blocks. Where blocks run out, the request that
was admitted last is preempted: it gives all its blocks back, and later computes prompt and generated tokens again.
"""
from collections import deque
from dataclasses import dataclass, field

from .blocks import BlockPool, chain
from .catalogue import Unsaid


@dataclass(eq=False)
class Request:
    """tokens[:n_prompt] is the prompt; K and V of tokens[:n_computed] are in its blocks."""
    id: str
    number: int
    prompt: list
    forced: list | None = None  # fed instead of what is sampled
    limit: int = 16             # tokens to make
    stop: frozenset = frozenset()
    arrival: int = 0
    tags: dict = field(default_factory=dict)  # the client's; the value of `cache_salt` keeps its blocks apart from those of others
    tokens: list = field(default_factory=list)
    n_computed: int = 0
    blocks: list = field(default_factory=list)
    keys: list = field(default_factory=list)  # of full blocks, as far as they are known
    preemptions: int = 0
    known: int = 0    # positions below were computed for this request, or said to be cached
    sampled: list = field(default_factory=list)
    reason: str | None = None
    n_draft_computed: int = 0  # of the draft model's cache

    def __post_init__(self):
        self.tokens = list(self.prompt)
        if self.forced is not None:
            self.limit = len(self.forced)

    @property
    def n_prompt(self):
        return len(self.prompt)

    @property
    def made(self):
        return self.tokens[self.n_prompt:]

    @property
    def to_make(self):
        return self.limit - (len(self.tokens) - self.n_prompt)

    def key(self, i, block_size):
        while len(self.keys) <= i:
            n = len(self.keys)
            self.keys.append(chain(self.keys[-1] if n else str(self.tags.get("cache_salt", "")).encode(), self.tokens[n * block_size:(n + 1) * block_size]))
        return self.keys[i]


@dataclass(eq=False)
class Item:
    """Rows of one request in a step: @n tokens from @start, then @n_drafts drafts.

    samples    does the request's last token belong to it?
    is_decode  is it the one token of the step before, with or without drafts?
    is_last    is it known that the request needs no more steps?
    """
    request: Request
    start: int
    n: int
    n_drafts: int = 0
    n_cached: int = 0    # tokens before start that come from the prefix cache, and were never told
    drafts: list = field(default_factory=list)

    def __post_init__(self):
        # Once the step has run the request has more tokens, so what kind of rows these are is noted now.
        self.samples = self.start + self.n == len(self.request.tokens)
        self.is_decode = self.samples and self.n == 1 and self.start >= self.request.n_prompt
        self.is_last = self.samples and not self.n_drafts and self.request.to_make == 1

    @property
    def phase(self):
        return "decode" if self.is_decode else "prefill"

    @property
    def n_rows(self):
        return self.n + self.n_drafts


@dataclass
class Plan:
    step: int
    items: list = field(default_factory=list)
    preempted: list = field(default_factory=list)
    aborted: list = field(default_factory=list)


class Scheduler:
    def __init__(self, *, batch, chunk, n_blocks, block_size=16, max_rows=128, speculate=0, share=True, schedule=None, says=Unsaid()):
        """@batch: requests at a time; @chunk: tokens of a request a step, 0: any number; @max_rows: of a step."""
        from .schedule import Schedule
        self.batch, self.chunk, self.block_size = batch, chunk or max_rows, block_size
        self.max_rows, self.speculate, self.share = max_rows, speculate, share
        self.choice, self.says = schedule or Schedule(), says
        self.pool = BlockPool(n_blocks)
        self.coming, self.waiting, self.running, self.finished = [], deque(), [], []

    # ---- requests

    def add(self, request):
        n_blocks = -(-(request.n_prompt + request.limit + self.speculate) // self.block_size)
        if n_blocks > len(self.pool.holders) - 1:
            raise SystemExit(f"request {request.id} needs {n_blocks} blocks, there are {len(self.pool.holders) - 1}")
        self.coming.append(request)
        self.says.request_began(request)

    @property
    def has_work(self):
        return bool(self.coming or self.waiting or self.running)

    def finish(self, request, reason):
        self.release(request)
        for of in (self.running, self.waiting, self.coming):
            if request in of:
                of.remove(request)
        request.reason = reason
        self.finished.append(request)
        self.says.request_ended(request)

    def release(self, request):
        # The last ones first: of what is cached, a prompt's beginning is kept longest.
        for block in reversed(request.blocks):
            self.pool.release(block)
        request.blocks = []

    def preempt(self, request, plan):
        self.running.remove(request)
        self.release(request)
        request.n_computed = request.n_draft_computed = 0
        request.preemptions += 1
        self.waiting.appendleft(request)
        plan.preempted.append(request)

    # ---- blocks

    def reserve(self, request, n_tokens):
        """Blocks for the first @n_tokens positions; False, and nothing taken, if there are too few."""
        missing = -(-n_tokens // self.block_size) - len(request.blocks)
        if missing > self.pool.n_free:
            return False
        request.blocks += [self.pool.alloc() for _ in range(missing)]
        return True

    def take_cached(self, request):
        """Full blocks that others, or itself before it was preempted, have computed. The last token is always computed."""
        for i in range((len(request.tokens) - 1) // self.block_size if self.share else 0):
            block = self.pool.find(request.key(i, self.block_size))
            if block is None:
                break
            self.pool.hold(block)
            request.blocks.append(block)
        request.n_computed = len(request.blocks) * self.block_size

    def publish(self, request):
        if self.share:
            for i in range(min(request.n_computed // self.block_size, len(request.blocks))):
                self.pool.publish(request.blocks[i], request.key(i, self.block_size))

    # ---- a step

    def schedule(self, step):
        """The step's Plan; its items may be none."""
        plan, choice = Plan(step), self.choice
        for request in [r for r in self.coming if choice.arrival(r) <= step]:
            self.coming.remove(request)
            self.waiting.append(request)
        for request in choice.aborts(step, [*self.running, *self.waiting]):
            self.finish(request, "aborted")
            plan.aborted.append(request)
        for request in choice.preemptions(step, list(self.running)):
            self.preempt(request, plan)
        forced_out = set(map(id, plan.preempted))
        budget = self.run_more(plan, self.max_rows)
        if len(plan.preempted) == len(forced_out):
            self.admit(plan, budget, forced_out)
        plan.items = choice.order(step, plan.items)
        return plan

    def wanted(self, plan, request, budget):
        """(tokens, drafts) that the request would compute now."""
        n_left = len(request.tokens) - request.n_computed
        n = min(n_left, self.choice.chunk(plan.step, request, self.chunk) if n_left > 1 else 1, budget)
        if n < n_left or n_left > 1 or len(request.tokens) == request.n_prompt:
            return n, 0
        return n, max(0, min(self.speculate, request.to_make - 1, budget - n))

    def run_more(self, plan, budget):
        i = 0
        while i < len(self.running) and budget > 0:
            request = self.running[i]
            n, drafts = self.wanted(plan, request, budget)
            if drafts and not self.reserve(request, request.n_computed + n + drafts):
                drafts = 0
            while not self.reserve(request, request.n_computed + n):
                self.preempt(self.running[-1], plan)
                if request not in self.running:  # it was the last one itself
                    return budget
            plan.items.append(Item(request, request.n_computed, n, drafts))
            budget -= n + drafts
            i += 1
        return budget

    def admit(self, plan, budget, forced_out):
        while self.waiting and len(self.running) < self.batch and budget > 0:
            request = self.waiting[0]
            if id(request) in forced_out:
                return
            with self.says.range("CacheEngine::Load") as said:
                self.take_cached(request)
                said.say(tokens=request.n_computed)
            n, drafts = self.wanted(plan, request, budget)
            if not self.reserve(request, request.n_computed + n + drafts):
                self.release(request)
                request.n_computed = 0
                return
            self.waiting.popleft()
            self.running.append(request)
            n_cached = max(0, request.n_computed - request.known)
            request.known = max(request.known, request.n_computed)
            plan.items.append(Item(request, request.n_computed, n, drafts, n_cached))
            budget -= n + drafts

    def commit(self, plan, sampled):
        """The step has run; @sampled: for each item the model's token after each row that samples (n_drafts + 1, or 1).

        Returns [(item, accepted drafts)] of items with drafts, [(request, reason)] of those that ended.
        """
        verified, ended = [], []
        for item, outputs in zip(plan.items, sampled):
            request, accepted = item.request, 0
            if not item.samples:
                request.n_computed += item.n
            else:
                request.n_computed += item.n
                reason = self.append(request, outputs[0])
                while reason is None and accepted < item.n_drafts and item.drafts[accepted] == request.tokens[-1]:
                    accepted += 1
                    request.n_computed += 1
                    reason = self.append(request, outputs[accepted])
                if item.n_drafts:
                    verified.append((item, accepted))
                if reason:
                    ended.append((request, reason))
            request.known = max(request.known, request.n_computed)
        with self.says.range("CacheEngine::Save"):
            for item in plan.items:
                self.publish(item.request)
        for request, reason in ended:
            self.finish(request, reason)
        return verified, ended

    def append(self, request, token):
        """The next token; why the request ends with it, or None."""
        request.sampled.append(token)
        if request.forced is not None:
            token = request.forced[len(request.tokens) - request.n_prompt]
        request.tokens.append(token)
        if token in request.stop:
            return "stop"
        return "length" if not request.to_make else None

    def check(self):
        """Raise unless blocks and requests agree."""
        alive = [*self.running, *self.waiting, *self.coming]
        self.pool.check([r.blocks for r in alive])
        for request in alive:
            if len(request.blocks) * self.block_size < request.n_computed or request.n_computed > len(request.tokens):
                raise AssertionError(f"{request.id}: {request.n_computed} computed in {len(request.blocks)} blocks")
        if any(r.blocks for r in [*self.waiting, *self.coming, *self.finished]):
            raise AssertionError("a request that does not run holds blocks")
