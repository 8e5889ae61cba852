#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Choose tests, build what they need, and run them in one queue: ./bootstrap test [OPTION...] [NAME...]

The tests of three build folders (plain, asan, tsan) go into one project of meson's, build/queue, which holds nothing else.
`meson test` runs it there, the dearest first, so that no core idles while one build's last test ends.
"""
import argparse
import contextlib
import difflib
import fnmatch
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time
import tomllib

import results

ROOT = pathlib.Path(__file__).resolve().parents[2]
QUEUE = ROOT / "build" / "queue"
METER, SPEED = ROOT / "tools/setup/meter.py", ROOT / "tools/setup/speed.py"
LOG, CPU = QUEUE / "build" / "meson-logs" / "all.json", QUEUE / "cpu.jsonl"
LAST = -1000  # a priority
# The sanitizers of gcc <= 13 meet mappings that they do not know where the kernel has vm.mmap_rnd_bits=32 (Ubuntu 24.04):
# their programs run without address randomisation.
FOLDERS = {"plain": ROOT / "build" / "meson", "asan": ROOT / "build" / "asan", "tsan": ROOT / "build" / "tsan"}


def say(text):
    print(text, flush=True)


def introspect(folder, what):
    """What `meson introspect` would print."""
    return json.loads((folder / "meson-info" / f"intro-{what}.json").read_text(encoding="utf-8"))


class Test:
    """One row of a build folder's `meson introspect --tests`."""

    def __init__(self, build, row):
        self.build, self.row, self.name = build, row, row["name"]
        self.suites = [suite.partition(":")[2] for suite in row["suite"]]
        self.label = "/".join([*([build] if build != "plain" else []), self.suites[0], self.name])

    def is_in(self, suite):
        return suite in self.suites

    def belongs(self, long):
        """
        Is it part of the whole run, the short or the long one?

        ThreadSanitizer's build runs the suite `tsan` alone. Benchmarks judge nothing: the long run tries that the short ones still work.
        """
        if self.build == "tsan" and not self.is_in("tsan"):
            return False
        if long:
            return not self.is_in("short") and not (self.is_in("bench") and self.is_in("long"))
        return not self.is_in("long") and not self.is_in("bench")

    def is_named(self, pattern):
        """NAME, SUITE/NAME, or BUILD/SUITE/NAME, where the others mean each build that has it"""
        in_suite = f"{self.suites[0]}/{self.name}"
        return any(fnmatch.fnmatchcase(text, pattern) for text in (self.name, in_suite, f"{self.build}/{in_suite}"))

    def runs(self, path):
        """Is @path, relative to the root, among the words of its command?"""
        return any(word.endswith("/" + path) for word in self.row["cmd"])

    def lines(self, whole):
        """The test in the language of meson.build. In a @whole run benchmarks run beside other tests: their figures are no measure there."""
        row, env = self.row, dict(self.row["env"])
        command = [str(METER), str(CPU), self.label]
        if self.build != "plain" and can_setarch():
            command += ["setarch", "-R"]
        command += row["cmd"]
        library_path = env.pop("LD_LIBRARY_PATH", None)
        more = [f"env.set({quoted(key)}, {quoted(value)})" for key, value in env.items()]
        if library_path:
            more.append(f"env.prepend('LD_LIBRARY_PATH', {quoted(library_path)})")
        parallel = row["is_parallel"] or (whole and self.is_in("bench"))
        # One that runs alone waits until all before it have ended: the last of the queue wait once.
        keywords = {"args": command[1:], "protocol": row["protocol"], "is_parallel": parallel, "timeout": row["timeout"],
                    "priority": row["priority"] if parallel else LAST, "workdir": row["workdir"] or str(FOLDERS[self.build])}
        text = ", ".join(f"{key}: {quoted(value)}" for key, value in keywords.items())
        return ["env = environment()", *more, f"test({quoted(self.label)}, find_program({quoted(command[0])}), env: env, {text})"]


def quoted(value):
    """A value in the language of meson.build."""
    if isinstance(value, list):
        return "[" + ", ".join(map(quoted, value)) + "]"
    if isinstance(value, (bool, int)):
        return str(value).lower()
    return "'" + str(value).replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"


def can_setarch():
    return shutil.which("setarch") and subprocess.run(["setarch", "-R", "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0


# ------------------------------------------------------------------------------------------ choosing


def all_tests():
    found = []
    for build, folder in FOLDERS.items():
        subprocess.run(["ninja", "-C", folder, "build.ninja"], stdout=subprocess.DEVNULL, check=True)  # where a meson.build has changed
        found += [Test(build, row) for row in introspect(folder, "tests")]
    return found


def by_name(tests, names, long):
    """
    The tests that @names name, or whose suite they name

    Those of the short run, or with @long of the long one; where the name means none of these, whatever has it.
    """
    chosen = []
    for name in names:
        having = [t for t in tests if (t.is_named(name) or t.is_in(name)) and (t.build != "tsan" or t.is_in("tsan"))]
        here = [t for t in having if t.belongs(long)] or having
        if not here:
            known = {t.name for t in tests} | {s for t in tests for s in t.suites}
            near = sorted({k for k in known if name in k} | set(difflib.get_close_matches(name, known)))
            raise SystemExit(f"test: no test and no suite is named {name!r}" + (f"; near it: {', '.join(near[:12])}" if near else ""))
        chosen += [t for t in here if t not in chosen]
    return chosen


def changed_since(revision):
    """Paths, relative to the root, that differ from @revision, those that git does not track yet among them."""
    def git(*words):
        return subprocess.check_output(["git", *words], cwd=ROOT, text=True).splitlines()
    try:
        return sorted(set(git("diff", "--name-only", revision)) | set(git("ls-files", "--others", "--exclude-standard")))
    except subprocess.CalledProcessError:
        raise SystemExit(f"test: --since {revision}: git does not know that revision") from None


def concerns():
    return tomllib.loads((ROOT / "tests/concerns.toml").read_text(encoding="utf-8"))["concerns"]


def concerned(tests, paths, table):
    """
    The short run's tests that a change of @paths concerns, or None where one concerns all

    A file that a test's command names concerns that test; another one what the longest prefix in @table says.
    """
    ours = [t for t in tests if t.belongs(False)]
    chosen = {t.label: t for t in ours if t.is_in("static")}
    for path in paths:
        stem = pathlib.PurePath(path).stem
        here = [t for t in ours if t.runs(path) or (path.startswith("tests/") and path.endswith(".c") and t.name == stem)]
        if not here:
            prefix = max((p for p in table if path.startswith(p)), key=len, default=None)
            if prefix is None:
                say(f"{path} may concern any test")
                return None
            here = [t for name in table[prefix] for t in by_name(ours, [name], False)]
        chosen.update((t.label, t) for t in here)
    return list(chosen.values())


# ------------------------------------------------------------------------------------ building, running


def build(tests, log_folder):
    """Builds what @tests need. Return: the builds that failed; the tests of these cannot run."""
    failed = []
    for name, folder in FOLDERS.items():
        ids = {i for t in tests if t.build == name for i in t.row["depends"]}
        if not ids:
            continue
        files = {target["id"]: target["filename"] for target in introspect(folder, "targets")}
        wanted = sorted({os.path.relpath(path, folder) for i in ids for path in files.get(i, [])})
        started = time.monotonic()
        with open(log_folder / f"ninja-{name}.log", "w", encoding="utf-8") as log:
            status = subprocess.run(["ninja", "-C", folder, *wanted], stdout=log, stderr=subprocess.STDOUT, check=False).returncode
        say(f"Building {name}: {time.monotonic() - started:.0f} s" + (f": FAILED, see {log.name}" if status else ""))
        if status:
            failed.append(name)
            print(pathlib.Path(log.name).read_text(encoding="utf-8", errors="replace")[-3000:], file=sys.stderr)
    return failed


def write_queue(tests, whole):
    QUEUE.mkdir(parents=True, exist_ok=True)
    lines = ["project('queue', meson_version: '>=1.0')"]
    for test in tests:
        lines += test.lines(whole)
    (QUEUE / "meson.build").write_text("\n".join(lines) + "\n", encoding="utf-8")
    shutil.rmtree(QUEUE / "build", ignore_errors=True)
    subprocess.run(["meson", "setup", QUEUE / "build", QUEUE], stdout=subprocess.DEVNULL, check=True)
    CPU.unlink(missing_ok=True)


@contextlib.contextmanager
def busy(n):
    """@n busy loops beside what is run."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@contextlib.contextmanager
def measured():
    """What a work that is always the same takes meanwhile, every 20 s: results.charge() compares it with what it took where the budget was set."""
    ended = threading.Event()

    def measure():
        while not ended.wait(20):
            subprocess.run([METER, CPU, results.SPEED, SPEED], check=False)
    thread = threading.Thread(target=measure)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def run(opt):
    command = ["meson", "test", "-C", QUEUE / "build", "--no-rebuild", "--logbase", "all", "--print-errorlogs",
               # one more than there are cores: some tests wait, for a slow disk of theirs, say
               "--num-processes", str((os.cpu_count() or 1) + 1)]
    told = ""
    with busy(opt.load), measured():
        for _ in range(opt.repeat):  # meson's own --repeat ends with the first failure
            LOG.unlink(missing_ok=True)
            subprocess.run(command, check=False)
            told += LOG.read_text(encoding="utf-8", errors="replace") if LOG.exists() else ""
    LOG.parent.mkdir(parents=True, exist_ok=True)
    LOG.write_text(told, encoding="utf-8")


def try_mutants(paths):
    """The mutants of @paths. Return: did one survive?"""
    return subprocess.run([ROOT / "tests/mutants/run", "--jobs", "2", "--files", *paths], check=False).returncode != 0


def arguments():
    parser = argparse.ArgumentParser(
        prog="./bootstrap test", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Build and run tests: the short run's, or those that are named.",
        epilog="A NAME is a test, a suite, or a pattern of tests ('serve_*', 'asan/preload/*'). Suites: CONTRIBUTING.md.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="tests or suites; only what they need is built")
    parser.add_argument("--long", action="store_true", help="the long run's tests instead of the short run's")
    parser.add_argument("--since", metavar="REV", help="tests and mutants that the files changed since REV concern (tests/concerns.toml)")
    parser.add_argument("--repeat", metavar="N", type=int, default=1, help="run each N times, and say how often it failed")
    parser.add_argument("--load", metavar="M", type=int, default=0, help="run M busy loops beside the tests")
    parser.add_argument("--seeds", metavar="N", type=int, help="how many seeds tests with random schedules try, instead of their own number")
    opt = parser.parse_args()
    if opt.repeat < 1 or opt.load < 0 or (opt.seeds is not None and opt.seeds < 1):
        parser.error("--repeat and --seeds are at least 1, --load at least 0")
    if opt.since and opt.names:
        parser.error("--since chooses the tests: it goes without NAME")
    return opt


def main():
    opt = arguments()
    started = time.monotonic()
    if opt.seeds:
        os.environ["DMI_TEST_SEEDS"] = str(opt.seeds)
    tests, paths = all_tests(), []
    chosen, whole = None, not opt.names
    if opt.since:
        paths = changed_since(opt.since)
        chosen = concerned(tests, paths, concerns())
        whole = chosen is None
    elif opt.names:
        chosen = by_name(tests, opt.names, opt.long)
    if chosen is None:
        chosen = [t for t in tests if t.belongs(opt.long)]
    first = not CPU.exists()  # of any run of tests: ./bootstrap demo compiles but few of the kernels
    broken = build(chosen, ROOT / "build" / "log")
    write_queue([t for t in chosen if t.build not in broken], whole)
    run(opt)
    survived = bool(paths) and try_mutants(paths)
    say(f"== Summary after {int(time.monotonic() - started) // 60} min {int(time.monotonic() - started) % 60} s")
    budget = tomllib.loads((ROOT / "tests/budget.toml").read_text(encoding="utf-8"))
    limits = budget["long" if opt.long else "short"]
    limits = {**(limits["first"] if first else limits), "speed": budget["speed"]}
    good = results.report(LOG, CPU, limits=limits if whole and opt.repeat == 1 else None, repeat=opt.repeat,
                          more_failures=[f"build/{name}: it did not compile" for name in broken] + ["mutants: see above"] * survived)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
