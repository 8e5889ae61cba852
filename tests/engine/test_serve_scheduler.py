# SPDX-License-Identifier: Apache-2.0
"""The serving engine's scheduler by itself: every position is computed, blocks are counted, and nothing leaks. Also where a step's
temporaries lie.

A model that is arithmetic stands in for the real one: the token after a list of tokens is a function of the list. So a
request that was fed wrong tokens, or whose position was skipped, makes other tokens than it does alone.
"""
import random

import pytest

np = pytest.importorskip("numpy")

from serve.batch import Layout, Rows  # noqa: E402
from serve.blocks import BlockPool, chain  # noqa: E402
from serve.schedule import RandomSchedule, Schedule  # noqa: E402
from serve.scheduler import Request, Scheduler  # noqa: E402

BLOCK = 4


def next_token(tokens):
    return sum((i + 1) * t for i, t in enumerate(tokens)) % 97 + 3


def alone(request):
    """The tokens that a request makes by itself."""
    tokens = list(request.prompt)
    for i in range(request.limit):
        tokens.append(request.forced[i] if request.forced else next_token(tokens))
    return tokens[request.n_prompt:]


class Cache:
    """What a paged cache holds: of each slot the token and its position, as the kernels would write them."""

    def __init__(self):
        self.slots = {}

    def run(self, rows):
        """Write all rows, then read each row's whole past through its block table."""
        for token, position, slot in zip(rows.ids, rows.positions, rows.slots):
            self.slots[slot] = token, position
        for token, position, which, owner in zip(rows.ids, rows.positions, rows.of_request, rows.owners):
            blocks = rows.tables[which]
            past = [self.slots[blocks[p // BLOCK] * BLOCK + p % BLOCK] for p in range(position + 1)]
            assert [p for _, p in past] == list(range(position + 1)), f"{owner.id}: its past at {position} is another's"
            known = owner.tokens[:position + 1]
            assert [t for t, _ in past][:len(known)] == known, f"{owner.id}: tokens before {position} are not its own"
        return [next_token([self.slots[rows.tables[rows.of_request[i]][p // BLOCK] * BLOCK + p % BLOCK][0]
                            for p in range(rows.positions[i] + 1)]) for i in rows.last]


class Books:
    """Of each request: which positions were computed, and which were said to be cached."""

    def __init__(self):
        self.computed, self.cached = {}, {}

    def note(self, plan, verified):
        accepted = {id(item): n for item, n in verified}
        for item in plan.items:
            name = item.request.id
            self.computed.setdefault(name, []).extend(range(item.start, item.start + item.n + accepted.get(id(item), 0)))
            self.cached.setdefault(name, []).extend(range(item.start - item.n_cached, item.start))


def serve(scheduler, requests, dice=None, steps=2000):
    """Run until nothing is left; (books, plans). Drafts are right, wrong or half right, by @dice."""
    books, cache, plans = Books(), Cache(), []
    for request in requests:
        scheduler.add(request)
    for step in range(steps):
        if not scheduler.has_work:
            return books, plans
        plan = scheduler.schedule(step)
        scheduler.check()
        assert sum(item.n_rows for item in plan.items) <= scheduler.max_rows and len(scheduler.running) <= scheduler.batch
        for item in plan.items:
            tokens = list(item.request.tokens)
            for _ in range(item.n_drafts):
                tokens.append(next_token(tokens) if dice is None or dice.random() < 0.7 else 1)
            item.drafts = tokens[len(item.request.tokens):]
        rows = Rows.of(plan, BLOCK)
        answers, sampled = cache.run(rows), []
        for item in plan.items:
            sampled.append(answers[:item.n_drafts + 1])
            answers = answers[item.n_drafts + 1:]
        plans.append(plan)
        verified, _ = scheduler.commit(plan, sampled)
        books.note(plan, verified)
        scheduler.check()
    raise AssertionError(f"requests are left after {steps} steps")


def judge(scheduler, books, n):
    """All ended, made what they make alone, and have each position once as computed or cached, unless preempted."""
    assert len(scheduler.finished) == n and scheduler.pool.n_free == len(scheduler.pool.holders) - 1
    for request in scheduler.finished:
        made = request.made
        assert made == alone(request)[:len(made)], request.id
        if request.reason == "aborted":
            continue
        assert len(made) == request.limit and request.reason == "length"
        wanted = list(range(request.n_prompt + request.limit - 1))
        assert sorted(set(books.computed[request.id]) | set(books.cached[request.id])) == wanted, request.id
        if not request.preemptions:
            assert len(books.cached[request.id]) + len(set(books.computed[request.id])) == len(wanted), request.id


def make(n, dice, prefixes=3):
    """Requests of which many begin alike."""
    starts = [[dice.randint(3, 99) for _ in range(dice.randint(0, 14))] for _ in range(prefixes)]
    found = []
    for i in range(n):
        prompt = dice.choice(starts) + [dice.randint(3, 99) for _ in range(dice.randint(1, 9))]
        found.append(Request(f"q{i}", i + 1, prompt, limit=dice.randint(1, 9), arrival=dice.randint(0, 20)))
    return found


@pytest.mark.parametrize("speculate", (0, 3))
@pytest.mark.parametrize("share", (True, False))
def test_every_position_is_computed_once(speculate, share):
    preempted = cached = 0
    for seed in range(60):
        dice = random.Random(seed)
        scheduler = Scheduler(batch=dice.randint(1, 6), chunk=dice.choice([0, 1, 5]), n_blocks=dice.randint(9, 20), block_size=BLOCK,
                              max_rows=dice.choice([8, 32]), speculate=speculate, share=share)
        books, plans = serve(scheduler, make(12, dice), dice)
        judge(scheduler, books, 12)
        preempted += sum(r.preemptions for r in scheduler.finished)
        cached += sum(map(len, books.cached.values()))
    assert preempted > 0 and bool(cached) == share


def test_random_schedules_leak_nothing():
    aborted = 0
    for seed in range(40):
        dice = random.Random(seed)
        scheduler = Scheduler(batch=5, chunk=6, n_blocks=14, block_size=BLOCK, max_rows=32, speculate=seed % 3,
                              schedule=RandomSchedule(seed, 1, 0, 0))
        books, _ = serve(scheduler, make(20, dice), dice)
        judge(scheduler, books, 20)
        aborted += sum(r.reason == "aborted" for r in scheduler.finished)
    assert aborted > 0


def test_preempted_by_name_computes_all_again():
    class Once(Schedule):
        def preemptions(self, step, running):
            return [r for r in running if r.id == "a" and step == 3]
    scheduler = Scheduler(batch=2, chunk=0, n_blocks=16, block_size=BLOCK, share=False, schedule=Once())
    books, plans = serve(scheduler, [Request("a", 1, [5, 6, 7], limit=6), Request("b", 2, [8, 9], limit=6)])
    judge(scheduler, books, 2)
    # Three tokens had been made of the prompt's last and of two more; positions 0 to 4 come back in one piece.
    assert books.computed["a"] == [0, 1, 2, 3, 4, *range(6), 6, 7]
    assert [r.preemptions for r in scheduler.finished if r.id == "a"] == [1]


def test_prefix_is_said_to_be_cached_once():
    prompt = list(range(10, 23))
    scheduler = Scheduler(batch=1, chunk=0, n_blocks=16, block_size=BLOCK)
    books, plans = serve(scheduler, [Request("a", 1, prompt, limit=2), Request("b", 2, prompt[:12] + [50], limit=2)])
    judge(scheduler, books, 2)
    assert books.cached["b"] == list(range(12)) and books.computed["b"] == [12, 13]


def test_last_token_of_a_cached_prompt_is_computed():
    scheduler = Scheduler(batch=1, chunk=0, n_blocks=16, block_size=BLOCK)
    books, _ = serve(scheduler, [Request("a", 1, list(range(8)), limit=1), Request("b", 2, list(range(8)), limit=1)])
    assert books.computed["b"] == [4, 5, 6, 7] and books.cached["b"] == [0, 1, 2, 3]


def test_forced_tokens_decide_about_drafts():
    forced = [4, 5, 6, 7, 8]
    scheduler = Scheduler(batch=1, chunk=0, n_blocks=16, block_size=BLOCK, speculate=2)
    request = Request("a", 1, [1, 2], forced=forced)
    scheduler.add(request)
    plan = scheduler.schedule(0)
    scheduler.commit(plan, [[90]])
    plan = scheduler.schedule(1)
    plan.items[0].drafts = [5, 99]
    verified, ended = scheduler.commit(plan, [[91, 92, 93]])
    assert [accepted for _, accepted in verified] == [1] and not ended
    assert request.made == [4, 5, 6] and request.sampled == [90, 91, 92] and request.n_computed == 4


def test_pool_keeps_what_was_freed_last():
    pool = BlockPool(3)
    blocks = [pool.alloc() for _ in range(3)]
    keys = [chain(b"", [i]) for i in range(3)]
    for block, key in zip(blocks, keys):
        pool.publish(block, key)
    for block in blocks:
        pool.release(block)
    taken = pool.alloc()
    assert taken == blocks[0] and pool.find(keys[0]) is None and pool.find(keys[2]) == blocks[2]
    pool.hold(blocks[2])
    pool.check([[taken], [blocks[2]]])
    with pytest.raises(ValueError):
        pool.release(blocks[1])


def test_padding_rows_have_a_block_of_their_own():
    scheduler = Scheduler(batch=2, chunk=0, n_blocks=8, block_size=BLOCK)
    scheduler.add(Request("a", 7, [5, 6, 7], limit=2))
    layout = Layout(8, 2, 4)
    packed = layout.pack(Rows.of(scheduler.schedule(0), BLOCK))
    at = {name: packed[layout.at[name]] for name in layout.at}
    assert at["slots"][:3].min() >= BLOCK and not at["slots"][3:].any()
    assert list(at["of_request"]) == [0, 0, 0, 2, 2, 2, 2, 2]
    assert not at["tables"].reshape(3, 4)[2].any() and list(at["last"][:3]) == [2, 3, 3]
    assert list(at["marks"][:6]) == [7, 0, 7, 1, 7, 2]


def test_temporaries_use_memory_again():
    pytest.importorskip("cuda.bindings.driver")
    from serve.temporaries import ALIGN, Temporaries
    memory = Temporaries()
    a, b, c = memory.alloc(1000), memory.alloc(300), memory.alloc(10)
    assert [a.span, b.span, c.span] == [(0, 4 * ALIGN), (4 * ALIGN, 6 * ALIGN), (6 * ALIGN, 7 * ALIGN)]
    memory.free(b)
    assert memory.alloc(600).span == (7 * ALIGN, 10 * ALIGN) and memory.alloc(200).span == (4 * ALIGN, 5 * ALIGN)
    memory.free(a)
    assert memory.alloc(1).span == (0, ALIGN) and memory.peak == 10 * ALIGN


def test_outputs_lie_where_earlier_temporaries_were():
    pytest.importorskip("cuda.bindings.driver")
    from collections import defaultdict
    from types import SimpleNamespace
    from serve.device import Address
    from serve.dtypes import DTYPES
    from serve.model import Part, Shape
    from serve.program import Builder
    shape, there = Shape(2, 576, 9, 3, 64, 1536, 49152, 1e5, 1e-5), Address(0, 1 << 20)
    weights = SimpleNamespace(layers=[defaultdict(lambda: there)] * 2, embedding=there, turns=there, final_norm=there, head=there)
    model = SimpleNamespace(shape=shape, part=Part(), dtype=DTYPES["float32"], weights=weights, fingerprint=None, prefix="", first_layer=0, best=there,
                            block_size=16, n_positions=512, caches=[(there, there)] * 2, layout=SimpleNamespace(table_width=32),
                            function=lambda name: name, input=lambda name: there)
    pieces = Builder(model, 8).build().pieces
    spans = {(view.site, view.layer): view.place.span for piece in pieces for step in piece.steps for view in step.views
             if view.site != "token_ids"}
    assert [piece.kind for piece in pieces] == ["compute", "attention", "compute", "attention", "compute", "logits"]

    def overlap(a, b):
        return max(spans[a][0], spans[b][0]) < min(spans[a][1], spans[b][1])
    for layer in range(2):
        for output in ("attn_out", "mlp_out"):
            assert any(overlap((output, layer), (earlier, layer)) for earlier in ("ln1", "q", "q_rot", "k_rot"))
        assert not overlap(("attn_out", layer), ("z", layer)) and not overlap(("mlp_out", layer), ("mlp_post", layer))
        assert spans["q", layer] == spans["k", layer] == spans["v", layer]
        assert not any(overlap(("resid_mid", layer), other) for other in spans if not other[0].startswith("resid") and other[0] != "embed")
