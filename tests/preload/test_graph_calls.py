# SPDX-License-Identifier: Apache-2.0
"""Whatever a program asks of its graphs has the same answer with and without the library.

graph_calls runs a random program of graph calls; its answers must be the same line by line without the library,
with it, with a spec that names half of its kernels, with random delays, and with a ring that drops. And what the
program says that should have been recorded is what the run holds, launch by launch.

By hand: pytest tests/preload/test_graph_calls.py [--long] [--programs FIRST:LAST] [--length N] [--variants A,B]
[--minutes M] [--shrink] [--all]
"""
import collections
import concurrent.futures
import os
import resource
import shutil
import subprocess
import time

import pytest

from harness import BUILD, PRELOAD, STANDIN_VERSION, STANDIN_VERSIONS, Tally, environment
from kit import Run, pattern, site, spec

CLIENT = BUILD / "tests" / "preload" / "graph_calls"
CONTEXT = 4

pytestmark = pytest.mark.built(PRELOAD, CLIENT)

SITES = [site("a", "^pa$", dims="[{row: true, count: 'arg[1].u32'}]"),
         site("b", "^pb$", dims="[{row: true, count: 'arg[1].u32'}]", pointer="arg[3]"),
         site("e", "^pe$", dims="[{row: true, count: 'arg[2].u32'}]", pointer="arg[1]"),
         site("e_before", "^pe$", dims="[{row: true, count: 'arg[2].u32'}]", pointer="arg[1]", when="before")]
TAP = len(SITES)  # what the program taps never changes, and its layer says where it lies
WIDE = spec(*SITES, "  - {tap: pattern}", head="ring: {bytes: 4M, slots: 16384}")
TINY = spec(*SITES, "  - {tap: pattern}", head="ring: {bytes: 4K, slots: 16}\noverload: {mode: drop}")
PATTERN = pattern(0, 2048 * 128)
BEFORE = 3  # a site whose copies run in front of the kernel: what they hold is what was there


n_tapped = []  # records of taps, a run


class Variant:
    """A way to run a program. exact: the order of records is known, and none is dropped."""

    def __init__(self, name, text=None, preload=True, exact=True, threads=1, **env):
        self.name, self.text, self.preload, self.exact, self.threads, self.env = name, text, preload, exact, threads, env

    def environment(self, seed, folder):
        env = {key: value(seed) if callable(value) else value for key, value in self.env.items()}
        if self.preload:
            env["LD_PRELOAD"] = PRELOAD
            env["DMI_OUT"] = folder / "out"
            if self.text:
                (folder / "spec.yaml").write_text(self.text)
                env["DMI_SPEC"] = folder / "spec.yaml"
        return environment(**env)


PLAIN = {n: Variant("without the library", preload=False, threads=n) for n in (1, 3)}
VARIANTS = [Variant("idle"),
            Variant("spec", WIDE),
            Variant("delays", WIDE, DMI_STANDIN_DELAY_SEED=lambda seed: seed + 1, DMI_STANDIN_DELAY_MAX_NS=40000),
            Variant("reuse", WIDE, DMI_STANDIN_HANDLES="reuse"),
            Variant("tiny", TINY, exact=False, DMI_STANDIN_HANDLES="reuse"),
            Variant("threads", WIDE, exact=False, threads=3, DMI_STANDIN_DELAY_SEED=lambda seed: seed + 2,
                    DMI_STANDIN_DELAY_MAX_NS=20000)]


class Outcome:
    def __init__(self, code, lines, told, stderr, folder):
        self.code, self.lines, self.told, self.stderr, self.folder = code, lines, told, stderr, folder


def lines_of(folder, name):
    """What all threads of a program said, one thread after another."""
    return [line for path in sorted(folder.glob(name + "*")) for line in path.read_text().splitlines()]


def stacks(*words):
    """Where the threads of a program stand that does not end, or where it crashed, if gdb is there."""
    if not shutil.which("gdb"):
        return "no gdb: where it stands is not known"
    return subprocess.run(["gdb", *map(str, words), "-batch", "-ex", "bt", "-ex", "thread apply all bt"], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True).stdout[-12000:]


def keep_cores():
    resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)


class Runner:
    def __init__(self, folder):
        self.folder, self.n = folder, 0
        os.environ.setdefault("DMI_STANDIN_CACHE", str(BUILD / "standin-cache"))

    def run(self, seed, length, variant, skip=""):
        self.n += 1
        folder = self.folder / f"{seed}-{length}-{variant.name.split()[0]}-{self.n}"
        folder.mkdir()
        words = [CLIENT, seed, length, folder / "answers", folder / "records", skip, variant.threads]
        with subprocess.Popen([str(w) for w in words], env=variant.environment(seed, folder), cwd=folder, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=keep_cores) as p:
            try:
                stderr, code = p.communicate(timeout=120)[0], p.returncode
            except subprocess.TimeoutExpired:
                stderr, code = stacks("-p", p.pid), "timeout"
                p.kill()
        for core in folder.glob("core*") if code != 0 else ():
            stderr += stacks(CLIENT, core)
            core.unlink()
        return Outcome(code, lines_of(folder, "answers"), lines_of(folder, "records"), stderr, folder)


def launches_told(lines):
    """[[(site, place, rows)]], by launch, those that record nothing are left out; and [(site, rows)] that must be drops."""
    launches, left = [], []
    for line in lines:
        words = line.split()
        if line == "launch":
            launches.append([])
        elif words[-1] == "left":
            left.append((int(words[0]), int(words[2])))
        else:
            launches[-1].append(tuple(map(int, words)))
    return [sorted(launch, key=lambda r: r[0]) for launch in launches if launch], left


def launches_held(run):
    """The same of a run; and a sentence where a record does not hold what its kernel wrote."""
    launches, wrong = {}, ""
    for r in run.records:
        if r.site == TAP:
            if r.data != PATTERN[4 * r.layer:4 * r.layer + r.n_bytes]:
                wrong = wrong or f"launch {r.launch}, tap at {r.layer}: {r.words[:4]}"
            continue
        words = r.words
        place = words[0] >> 16
        if r.site != BEFORE and words != tuple((place << 16) + i for i in range(len(words))):
            wrong = wrong or f"launch {r.launch}, site {r.site}: {words[:4]}"
        launches.setdefault(r.launch, []).append((r.site, None if r.site == BEFORE else place, len(words), r.occurrence))
    held = [sorted(launches[n], key=lambda r: (r[0], r[3])) for n in sorted(launches)]
    return [[(s, place, rows) for s, place, rows, _ in launch] for launch in held], wrong


def first_difference(a, b):
    for i, (x, y) in enumerate(zip(a, b)):
        if x != y:
            return i
    return min(len(a), len(b)) if len(a) != len(b) else -1


def shown(a, b, i, names):
    text = [f"    line {i + 1}:"]
    text += [f"      {line}" for line in a[max(0, i - CONTEXT):i]]
    text += [f"    {names[0]}:"] + [f"      {line}" for line in a[i:i + 2] or ["(ended)"]]
    text += [f"    {names[1]}:"] + [f"      {line}" for line in b[i:i + 2] or ["(ended)"]]
    return "\n".join(text)


def complaint(plain, other, variant):
    """What is wrong with a run, in words; '' if nothing is."""
    i = first_difference(plain.lines, other.lines)
    if i >= 0 or other.code != plain.code:
        text = f"{variant.name}: exit code {other.code}, without the library {plain.code}\n{other.stderr[-1500:]}\n"
        return text + shown(plain.lines, other.lines, i, ("without the library", "with it")) if i >= 0 else text
    if plain.code != 0:
        return f"the program failed by itself: exit code {plain.code}\n{plain.stderr[-1500:]}"
    if variant.text:
        return account(other, variant)
    return ""


def odd(expected, held, site):
    """The records of a site that only one side knows, as (place, rows)."""
    told, kept = (collections.Counter((place, rows) for launch in launches for s, place, rows in launch if s == site)
                  for launches in (expected, held))
    return f"    only told: {sorted((told - kept).elements())}, only held: {sorted((kept - told).elements())}" if site != BEFORE else ""


def account(outcome, variant):
    folders = sorted(p for p in (outcome.folder / "out").iterdir() if p.is_dir() and not p.is_symlink()) if (outcome.folder / "out").is_dir() else []
    expected, left = launches_told(outcome.told)
    if not folders:
        return f"{variant.name}: no run was written\n{outcome.stderr[-1500:]}" if expected or left else ""
    run = Run(folders[0])
    if run.balance():
        return f"{variant.name}: {run.balance()}\n{outcome.stderr[-1500:]}"
    held, wrong = launches_held(run)
    n_tapped.append(run.counters.captured[TAP].records)
    for i in range(len(SITES)):
        rows_left = [rows for site, rows in left if site == i]
        told = [r[2] for launch in expected for r in launch if r[0] == i] + rows_left
        counted, unsupported = run.counters.expected[i], run.counters.dropped[i].get("unsupported", Tally())
        if (counted.records, counted.rows) != (len(told), sum(told)):
            return (f"{variant.name}: site {i}: {counted.records} records of {counted.rows} rows were expected by the library, "
                    f"{len(told)} of {sum(told)} by the program\n{outcome.stderr[-1500:]}{odd(expected, held, i)}")
        if (unsupported.records, unsupported.rows) != (len(rows_left), sum(rows_left)):
            return (f"{variant.name}: site {i}: {unsupported.records} of {unsupported.rows} rows were left alone by the library, "
                    f"{len(rows_left)} of {sum(rows_left)} by the program\n{outcome.stderr[-1500:]}{odd(expected, held, i)}")
    if wrong:
        return f"{variant.name}: a record does not hold what its kernel wrote: {wrong}"
    if not variant.exact:
        return ""
    dropped = sum(t.records for d in run.counters.dropped for reason, t in d.items() if reason != "unsupported")
    if dropped:
        return f"{variant.name}: {dropped} records dropped: {run.counters.dropped}\n{outcome.stderr[-1500:]}"
    expected = [[(s, None if s == BEFORE else place, rows) for s, place, rows in launch] for launch in expected]
    i = first_difference(expected, held)
    if i >= 0:
        return f"{variant.name}: records (site, place, rows) by launch\n" + shown(
            list(map(str, expected)), list(map(str, held)), i, ("as the program says", "as the run holds"))
    return ""


class Search:
    """Looks for a program that answers otherwise under the library."""

    def __init__(self, options, folder):
        self.options, self.runner = options, Runner(folder)
        wanted = options.variants.split(",") if options.variants else None
        self.variants = [v for v in VARIANTS if not wanted or v.name in wanted]
        self.operations = self.launches = 0

    def attempt(self, seed, length, variant, skip=""):
        plain = self.runner.run(seed, length, PLAIN[variant.threads], skip)
        other = self.runner.run(seed, length, variant, skip)
        text = complaint(plain, other, variant)
        self.tidy(plain, other)
        return text

    def seed(self, seed):
        """Return: (what is wrong or '', variant, launches with records)"""
        length = self.options.length
        plain, text, variant = {}, "", None
        for variant in self.variants:
            if variant.threads not in plain:
                plain[variant.threads] = self.runner.run(seed, length, PLAIN[variant.threads])
            other = self.runner.run(seed, length, variant)
            text = complaint(plain[variant.threads], other, variant)
            self.tidy(other)
            if text:
                break
        n = sum(len(launches_told(outcome.told)[0]) for outcome in plain.values())
        self.tidy(*plain.values())
        return text, variant, n

    @staticmethod
    def tidy(*outcomes):
        for outcome in outcomes:
            if not os.environ.get("DMI_TEST_KEEP"):
                shutil.rmtree(outcome.folder, ignore_errors=True)

    def shortest(self, seed, variant):
        """The smallest length at which it goes wrong, by bisection, and what is wrong then."""
        good, bad, text = 0, self.options.length, ""
        while bad - good > 1:
            middle = (good + bad) // 2
            found = self.attempt(seed, middle, variant)
            if found:
                bad, text = middle, found
            else:
                good = middle
        return bad, text or self.attempt(seed, bad, variant)

    def shrunk(self, seed, length, variant):
        """Operations that may be left out with something still wrong: greedy, by halves."""
        left_out, step = set(), max(1, length // 2)
        while step:
            for first in range(0, length, step):
                more = left_out | set(range(first, min(first + step, length)))
                if more != left_out and self.attempt(seed, length, variant, listed(more)):
                    left_out = more
            step //= 2
        return listed(left_out), self.attempt(seed, length, variant, listed(left_out))

    def explain(self, seed, text, variant):
        length, shorter = self.shortest(seed, variant)
        again = f"--programs {seed}:{seed} --length {length} --variants {variant.name}"
        lines = [f"  seed {seed}, {length} operations are enough:", shorter or text,
                 f"  again: pytest tests/preload/test_graph_calls.py {again}"]
        if self.options.shrink:
            skip, small = self.shrunk(seed, length, variant)
            lines += [f"  left out may be {skip}:", small]
            plain = self.runner.run(seed, length, PLAIN[variant.threads], skip)
            lines += ["  the program:"] + [f"      {line}" for line in plain.lines]
            shutil.rmtree(plain.folder, ignore_errors=True)
        return "\n".join(lines)


def listed(numbers):
    """{3, 7, 8, 9} as 3,7-9"""
    words, run = [], []
    for n in sorted(numbers) + [None]:
        if run and n != run[-1] + 1 if n is not None else run:
            words.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
            run = []
        run.append(n)
    return ",".join(words)


def programs_of(options, seeds):
    """Which seeds are tried, and until when."""
    if options.programs:
        first, last = map(int, options.programs.split(":"))
    else:
        first = 1000 if options.long else 1
        # A program runs in eight ways: half a CPU second each, four under a sanitizer.
        few = os.environ.get("DMI_TEST_RUNTIME") or STANDIN_VERSION < STANDIN_VERSIONS[-1]
        last = first + (seeds(4, 40) if few else seeds(12, 300)) - 1
    return iter(range(first, last + 1)), time.monotonic() + 60 * (options.minutes or 1e6)


def test_graph_calls(request, seeds, tmp_path, check):
    options = request.config.option
    search, n_seeds, n_failed, n_launches = Search(options, tmp_path), 0, 0, 0
    (programs, end), started = programs_of(options, seeds), time.monotonic()
    workers = max(1, min(4, os.cpu_count() or 1))
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        running = {}
        while True:
            while len(running) < workers and time.monotonic() < end and (options.all or not n_failed):
                seed = next(programs, None)
                if seed is None:
                    break
                running[pool.submit(search.seed, seed)] = seed
            if not running:
                break
            done, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                seed = running.pop(future)
                text, variant, launches = future.result()
                n_seeds += 1
                n_launches += launches
                if text:
                    n_failed += 1
                    check(False, f"seed {seed}", "\n" + search.explain(seed, text, variant))
    seconds = time.monotonic() - started
    check(n_failed or sum(n_tapped) > n_seeds, "taps were captured", sum(n_tapped))
    check(n_seeds > 0 and not n_failed, f"{n_seeds} programs of {options.length} operations answer the same in "
          f"{len(search.variants)} ways with the library; {n_launches} launches with records each, {sum(n_tapped)} of taps in all; {seconds:.0f} s")
