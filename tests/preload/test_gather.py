# SPDX-License-Identifier: Apache-2.0
"""Random strided tensors, described by random launches, gathered by the real copy kernel: equal to a gather in Python."""
import itertools
import random

import pytest

from kit import pattern, site, spec

KERNELS, SITES, BYTES = 12, 16, 1 << 16
WIDTH = {"u8": 1, "bool": 1, "f8e4m3": 1, "i16": 2, "bf16": 2, "f16": 2, "f32": 4, "u32": 4, "f64": 8, "i64": 8}


class Case:
    """One tensor: counts and byte strides of its dimensions as the spec lists them, and one launch that describes it."""

    def __init__(self, rng, kernel, occurrence):
        self.kernel, self.occurrence = kernel, occurrence
        self.dtype = rng.choice(list(WIDTH))
        self.width = WIDTH[self.dtype]
        self.counts = [rng.choice((1, 1, 2, 3, 4, 5, 8, 16)) for _ in range(rng.randint(1, 4))]
        self.row = rng.randrange(len(self.counts))
        if rng.random() < 0.05:
            self.counts[self.row] = 0
        # packed in a random order of nesting, with random gaps, some backwards, some standing still
        self.strides, step = [0] * len(self.counts), self.width
        for i in rng.sample(range(len(self.counts)), len(self.counts)):
            step += rng.choice((0, 0, 0, self.width, 3, 16))
            if len(self.counts) > 1 and rng.random() < 0.05:
                continue
            self.strides[i] = step if rng.random() < 0.85 else -step
            step *= max(self.counts[i], 1)
        low = sum(min(0, s * (c - 1)) for s, c in zip(self.strides, self.counts))
        high = sum(max(0, s * (c - 1)) for s, c in zip(self.strides, self.counts)) + self.width
        self.fits = high - low <= BYTES
        room = max(BYTES - (high - low), 0)
        self.start = -low + rng.choice((0, 16, rng.randint(0, room))) if room >= 16 else -low
        self.offset = rng.choice((0, self.start, rng.randint(-self.start, self.start) if self.start else 0))
        # the row count is known at the launch only
        rows = self.counts[self.row]
        self.grid, self.a, self.b = 1, rng.randint(0, 1000), rng.randint(0, 1000)
        self.how = rng.choice(("arg[1].u32", "arg[2].i32", "grid.x", "(arg[1].u32 - arg[2].u32) / 2", "ceil_div(arg[1].i32, grid.x)",
                               "min(arg[1].i32, arg[2].i32)", "param[8].u32", "arg[3][4].u32"))
        self.x = rng.getrandbits(31)
        if self.how in ("arg[1].u32", "param[8].u32"):
            self.a = rows
        elif self.how == "arg[2].i32":
            self.b = rows
        elif self.how == "grid.x":
            self.how, self.grid = ("grid.x", rows) if rows else ("arg[1].u32 * 0", 1)
        elif self.how.startswith("("):
            self.a = self.b + 2 * rows + rng.randint(0, 1)
        elif self.how.startswith("ceil"):
            self.grid, self.a = 3, max(rows * 3 - 1, 0)
        elif self.how.startswith("min"):
            self.a, self.b = rows + 7, rows
        else:
            self.x |= rows << 32

    def spec(self, i):
        dims = []
        for d, (count, stride) in enumerate(zip(self.counts, self.strides)):
            row = d == self.row
            # a constant stride is 0 or more; what a launch says may be less
            text = stride if stride >= 0 else f"{stride} * block.x"
            dims.append(f"{{{'row: true, ' if row else ''}count: '{self.how if row else count}', stride: '{text}'}}")
        more = {"offset": str(self.offset)} if self.offset else {}
        return site(f"s{i}", kernel=f"^view{self.kernel}$", dtype=self.dtype, dims=f"[{', '.join(dims)}]",
                    occurrences=f"{{from: {self.occurrence}, to: {self.occurrence}}}", **more)

    def launch(self, form):
        return f"{form} v{self.kernel} 0 {self.grid} 1 p+{self.start - self.offset} {self.a} {self.b} {self.x}".replace("+-", "-")

    def reference(self, memory):
        """[row][the others in the list's order]"""
        order = [self.row] + [d for d in range(len(self.counts)) if d != self.row]
        out = []
        for index in itertools.product(*(range(self.counts[d]) for d in order)):
            at = self.start + sum(i * self.strides[d] for i, d in zip(index, order))
            out.append(memory[at:at + self.width])
        return b"".join(out)


def case(rng, kernel, occurrence):
    while not (c := Case(rng, kernel, occurrence)).fits:
        pass
    return c


@pytest.mark.parametrize("seed", (1, 2, 3))
def test_random_tensors(bench, seed):
    rng = random.Random(seed)
    cases = [case(rng, k, o) for k in range(KERNELS) for o in range(SITES)]
    script = ["init 0", "device d 0", "ctx c d", "module m view"] + [f"func v{k} m view{k}" for k in range(KERNELS)]
    script += [f"alloc p {BYTES}", f"write p {BYTES} {seed}"]
    script += [c.launch(rng.choice(("launch", "launchpacked", "launchex", "launchexpacked"))) for c in cases] + ["sync", f"digest p {BYTES}"]
    text = spec(*(c.spec(i) for i, c in enumerate(cases)), head="ring: {bytes: 8M, slots: 1024}")
    r = bench.alike(f"{len(cases)} tensors, seed {seed}", script, text)
    if not bench.check(bool(r.folders), "a run was written", r.stderr[-2000:]):
        return
    run, memory, wrong = r.run(), pattern(seed, BYTES), []
    of = {}
    for record in run.records:
        of.setdefault(record.site, []).append(record)
    for i, c in enumerate(cases):
        rest = [c.counts[d] for d in range(len(c.counts)) if d != c.row]
        expected = [((c.counts[c.row], *rest), c.reference(memory))] if c.counts[c.row] else []
        if [(x.dims, x.data) for x in of.get(i, [])] != expected:
            wrong.append(f"{c.dtype} counts {c.counts} strides {c.strides} row {c.row} offset {c.offset} start {c.start} {c.how}: "
                         f"{[(x.dims, x.data[:16]) for x in of.get(i, [])]}, wanted {[(d, b[:16]) for d, b in expected]}")
    bench.check(not wrong, f"{len(cases)} tensors, seed {seed}: each is what a gather in Python gives", f"{len(wrong)}: {wrong[:2]} {r.stderr[-600:]}")
    bench.check(not run.balance(), "accounted for", run.balance())
    bench.check(not r.complaints, "nothing is reported", r.complaints[-1000:])


def test_large(bench):
    """More bytes than the copy has threads, more than a batch of the drain holds, and as large as the ring."""
    n = 1 << 23
    rows = n // 4096
    text = spec(site("rows", kernel="^view0$", dtype="u64", dims="[{row: true, count: 'arg[1].u32'}, {count: 512}]"),
                site("turned", kernel="^view1$", dtype="u32", dims="[{count: 'arg[1].u32', stride: 4096}, {row: true, count: 4, stride: 4}]"),
                head=f"ring: {{bytes: {n}, slots: 16}}\noverload: {{mode: complete, wait_ms: 20000}}")
    script = ["init 0", "device d 0", "ctx c d", "module m view", "func v m view0", "func t m view1", f"alloc p {n}", "write p 65536 5",
              f"launch v 0 1 1 p {rows} 0", "launch v 0 1 1 p 16 0", "launch t 0 1 1 p 16 0", "sync"]
    r = bench.alike("a record as large as the ring", script, text)
    run, memory = r.run(), pattern(5, 65536)
    data = [x.data for x in run.of(0)]
    bench.check(len(data) == 2 and len(data[0]) == n and data[0][:65536] == memory and data[1] == memory, "a record as large as the ring: it is complete",
                f"{[len(d) for d in data]} {r.stderr}")
    turned = [x.data for x in run.of(1)]
    bench.check(turned == [b"".join(memory[k * 4096 + 4 * i:k * 4096 + 4 * i + 4] for i in range(4) for k in range(16))],
                "columns as rows", [len(t) for t in turned])
    bench.check(not run.balance(), "large records: accounted for", run.balance())
