#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""All that a machine with a GPU can tell, most worth first: one queue, one file to send back, one table.

Usage: contact.py [--out FILE] [--state FILE] [--seconds N] [--only NAME,...] [--python PATH] (--help: all options)

It runs in the tree and in the pack (pack.py) alike, and needs nothing but Python. The queue is that of entries.py, the file that of
table.py. Exit status: 0; 1 if something that the design relies on is otherwise, or the file could not be written; 2: these options cannot
be had; 77: there is no device; 128 and the signal's number: it was ended by a signal.
"""
import argparse
import fnmatch
import glob
import os
import pathlib
import platform
import shutil
import signal
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import asking  # noqa: E402
import cases  # noqa: E402
import entries  # noqa: E402
import processes  # noqa: E402
import questions  # noqa: E402
import table  # noqa: E402
from harness import DMI_RUN, PRELOAD, ROOT  # noqa: E402

LIBRARIES = ROOT / "lib"  # in a pack: what the tools need besides libc
SIDE_BY_SIDE = 4
WARM_UPS = ("torch triton", "torch compile_reduce_overhead")  # cases whose kernels are compiled before they are asked
WARM_SECONDS = 100     # what is timed waits for it


class Stopped(BaseException):
    """A signal: its number is the first argument."""


class Machine:
    """What entries must know of the machine."""

    def __init__(self, device, python, folder):
        self.device, self.python, self.folder = device, python, folder
        self.is_standin = "stand-in" in device
        self.needs = asking.Needs(python)

    def describe(self):
        version = "import importlib.metadata as m, importlib.util as u\nfor p in 'torch', 'triton', 'transformers', 'numpy':\n" \
                  "    print(p, m.version(p) if u.find_spec(p) else 'none', end=' ')"
        packages = processes.run([self.python, "-c", version], processes.clean_environment(), 60)
        return {"device": self.device, "visible": os.environ["CUDA_VISIBLE_DEVICES"], "machine": platform.machine(), "kernel": platform.release(),
                "libc": " ".join(platform.libc_ver()), "CPUs": os.cpu_count(), "python": platform.python_version(),
                "packages": packages.stdout.strip() or packages.last_line(),
                "pack": (ROOT / "VERSION").read_text().strip() if (ROOT / "VERSION").exists() else "none: the tree",
                "time": time.strftime("%Y-%m-%d %H:%M:%S")}

    def cupti_path(self):
        """LD_LIBRARY_PATH with the CUPTI that PyTorch brings, where the machine has no other: its folder is on no path."""
        if not hasattr(self, "cupti"):
            find = "import importlib.util as u\nprint(*getattr(u.find_spec('nvidia'), 'submodule_search_locations', ()), sep='\\n')"
            roots = processes.run([self.python, "-c", find], processes.clean_environment(), 60).stdout.split()
            self.cupti = [str(pathlib.Path(name).parent) for root in roots for name in glob.glob(f"{root}/*/lib/libcupti.so.1[0-9]")]
        return ":".join(filter(None, [os.environ.get("LD_LIBRARY_PATH"), *self.cupti]))


class Queue:
    """Asks entries in their order. Those that are not alone run side by side; what is alone waits for all others, and they for it."""

    def __init__(self, found, machine, seconds):
        self.table, self.machine, self.start = found, machine, time.monotonic()
        self.deadline, self.busy = self.start + seconds, []
        self.places = min(SIDE_BY_SIDE, os.cpu_count() or 1)

    def ask(self, entry):
        asked = asking.Asked(entry, self.table, self.machine, self.deadline)
        if asked.over():
            asked.skip(asking.OVER)
        elif reason := self.machine.needs.lacks(entry.needs):
            asked.skip(reason)
        else:
            asked.ask()
        counts = ", ".join(f"{n} {verdict}" for verdict, n in self.table.counts(entry.name).items())
        print(f"{time.monotonic() - self.start:5.0f} s  {entry.name}: {counts}\n", end="", flush=True)  # one write, also beside other threads

    def begin(self, action, *words):
        thread = threading.Thread(target=action, args=words, daemon=True)
        thread.start()
        self.busy.append(thread)

    def wait(self, at_most):
        """Until fewer than @at_most entries are being asked. Signals come to this thread, in between."""
        while len([thread for thread in self.busy if thread.is_alive()]) >= at_most:
            time.sleep(0.01)
        self.busy = [thread for thread in self.busy if thread.is_alive()]

    def run(self, queue):
        warming = self.warm([entry for entry in queue if entry.needs])
        for entry in queue:
            self.wait(1 if entry.alone else self.places)
            while entry.alone and warming.is_alive():
                time.sleep(0.01)
            self.begin(self.ask, entry)
            if entry.alone:
                self.wait(1)
        self.wait(1)

    def warm(self, queue):
        """While entries are asked: import what later ones import, and compile what they compile, so that it lies in the caches."""
        until = min(self.deadline, time.monotonic() + WARM_SECONDS)

        def act():
            for name in dict.fromkeys(name for entry in queue for name in entry.needs):
                self.machine.needs.lack(name)
            env = processes.clean_environment(**asking.cached(self.machine.folder))
            for name in WARM_UPS:
                if any(entry.name == name for entry in queue) and not self.machine.needs.lack("torch"):
                    words = [self.machine.python, HERE / cases.TORCH, name.split()[-1], os.devnull]
                    processes.run(words, env, max(0.1, until - time.monotonic()))
        thread = threading.Thread(target=act, daemon=True)
        thread.start()
        return thread


def device_name():
    """Its name; without a device the run is skipped, and says why."""
    found = processes.run([sys.executable, ROOT / "tools/setup/driver.py"], dict(os.environ), 90)
    if found.status:
        print(f"skipped: no CUDA device: {found.text if found.crashed else found.last_line()}")
        sys.exit(77)
    return found.stdout.strip()


def one_device():
    """The first of those that are visible: several would be initialised, and none but one is asked."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    os.environ["CUDA_VISIBLE_DEVICES"] = visible or "0"


def with_own_libraries():
    if LIBRARIES.is_dir():
        paths = [os.environ.get("LD_LIBRARY_PATH"), str(LIBRARIES)]
        os.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, paths))


def arguments(queue):
    parser = argparse.ArgumentParser(prog="run", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, help="the file to send back (that of --state, or dmi-gpu-HOST.jsonl)")
    parser.add_argument("--state", type=pathlib.Path, help="the file of an earlier run: what it has answered is not asked again")
    parser.add_argument("--python", default=os.environ.get("DMI_GPU_PYTHON", sys.executable), help="the Python that has PyTorch")
    parser.add_argument("--seconds", type=int, default=560, help="for all (560); what is left then is skipped by name")
    parser.add_argument("--only", default="*", help="names of entries, or a shell's patterns of them: 'facts *,torch triton'")
    parser.add_argument("--show", type=pathlib.Path, metavar="FILE", help="print what FILE holds; with --only, also what the processes of these entries said")
    parser.add_argument("--list", action="store_true", help="print the queue")
    options = parser.parse_args()
    patterns = options.only.split(",")
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(entry.name, pattern) for entry in queue):
            parser.error(f"--only: no entry of the queue is named {pattern}; --list prints them")
    options.queue = [entry for entry in queue if any(fnmatch.fnmatchcase(entry.name, pattern) for pattern in patterns)]
    if options.list:
        print("".join(f"{entry.worth:4} {entry.seconds:4} s  {entry.name}\n" for entry in options.queue), end="")
        sys.exit(0)
    if options.show:
        earlier(parser, "--show", options.show, must_exist=True)
        print(table.show(options.show, {entry.name for entry in options.queue} if options.only != "*" else None), end="")
        sys.exit(0)
    options.out = options.out or options.state or pathlib.Path(f"dmi-gpu-{platform.node() or 'host'}.jsonl")
    options.earlier = earlier(parser, "--state", options.state) if options.state else []
    return options


def earlier(parser, option, path, must_exist=False):
    """What an earlier run has left in @path; for --state this may be the first run, which makes the file."""
    if not must_exist and not path.exists():
        return []
    try:
        found = table.read(path)
    except OSError as problem:
        parser.error(f"{option}: {path} cannot be read: {problem.strerror}")
    if not found and path.stat().st_size:
        parser.error(f"{option}: {path} holds no answers of an earlier run")
    return found


def begun(options, device):
    """The table, which goes on from an earlier run's."""
    machines = [value.get("device") for kind, value in options.earlier if kind == "machine"]
    if machines and machines[-1] != device:
        print(f"run: --state: {options.state} has answers of {machines[-1]}, and this is {device}", file=sys.stderr)
        sys.exit(2)
    is_same = bool(options.earlier) and options.out.exists() and options.out.samefile(options.state)
    found = table.Table(options.out, is_same)
    found.go_on(options.earlier)
    if not is_same:
        found.copy()
    return found


def stop(number, frame):
    raise Stopped(number)


def main(queue=None):
    options = arguments(queue or entries.queue())
    one_device()
    with_own_libraries()
    for path in (questions.FACTS, DMI_RUN, PRELOAD):
        if not path.exists():
            raise SystemExit(f"{path} was not built")
    device = device_name()
    try:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="dmi-gpu-"))
    except OSError as problem:
        raise SystemExit(f"there is no folder for temporary files, TMPDIR may name one: {problem.strerror}") from None
    found, status = begun(options, device), 0
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        machine = Machine(device, options.python, folder)
        found.is_of(machine.describe())
        Queue(found, machine, options.seconds).run([entry for entry in options.queue if entry.name not in found.ends])
    except Stopped as reason:
        status = 128 + reason.args[0]
        print(f"\nended by signal {reason.args[0]} ({signal.Signals(reason.args[0]).name}); --state {options.out} goes on", flush=True)
    finally:
        found.close()
        processes.end_all()
        if not os.environ.get("DMI_TEST_KEEP"):
            shutil.rmtree(folder, ignore_errors=True)
    print("\n" + found.short())
    print(f"The file to send back: {options.out.resolve()}" if found.lines.is_whole() else f"{options.out} does not hold all of it")
    sys.stdout.flush()
    os._exit(status or (1 if found.failures() or not found.lines.is_whole() else 0))  # threads may wait for what cannot be killed


if __name__ == "__main__":
    main()
