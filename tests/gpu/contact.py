#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""All that a machine with a GPU can tell, in one run: one table, and one file to send back.

Usage: contact.py [--out FILE] [--python PATH] [--seconds N] [--only GROUP,...]

It runs in the tree and in the pack (pack.py) alike, and needs nothing but Python. The file is a tar.gz that holds the table
as text and JSON, and what every process said. --python: the one that has PyTorch; by default the one that runs this.
Exit status: 0; 1 if something that the design relies on is otherwise; 77 if there is no device.
"""
import argparse
import collections
import io
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import cases  # noqa: E402
import hugging_face  # noqa: E402
import table  # noqa: E402
from cases import BUILD, DMI_RUN, PRELOAD, ROOT, clean_environment, run  # noqa: E402

FACTS = BUILD / "tests" / "gpu" / "facts"
ANSWERS = BUILD / "tests" / "gpu" / "standin-answers.tsv"
STANDIN = BUILD / "tests" / "standin"
LIBRARIES = ROOT / "lib"  # in a pack: what the tools need besides libc
GROUPS = ("facts", "smoke", "graph calls", "copy kernel", "benchmarks", "facts eager", hugging_face.GROUP)
CRASHED = re.compile(r"died of signal|took more than|does not end")


class Contact:
    def __init__(self, options, folder):
        self.folder, self.python, self.deadline = folder, options.python, time.monotonic() + options.seconds
        self.table = table.Table(lambda row: print(table.text_of(row), flush=True))

    def left(self, at_most):
        """Seconds for the next process; 0 if the time for all is over."""
        left = self.deadline - time.monotonic()
        return min(at_most, left) if left > 1 else 0

    # ---- what the machine is

    def machine(self, device):
        version = "import importlib.metadata as m, importlib.util as u\nfor p in 'torch', 'triton', 'transformers', 'numpy':\n" \
                  "    print(p, m.version(p) if u.find_spec(p) else 'none', end=' ')"
        packages = run([self.python, "-c", version], clean_environment(), 60)
        self.table.facts = {
            "device": device, "visible": os.environ["CUDA_VISIBLE_DEVICES"], "machine": platform.machine(),
            "kernel": platform.release(), "libc": " ".join(platform.libc_ver()), "CPUs": os.cpu_count(),
            "python": platform.python_version(), "packages": packages.stdout.strip() or packages.last_line(),
            "pack": (ROOT / "VERSION").read_text().strip() if (ROOT / "VERSION").exists() else "none: the tree",
            "time": time.strftime("%Y-%m-%d %H:%M:%S")}

    # ---- facts

    def facts_environment(self):
        """With the CUPTI that PyTorch brings, where the machine has no other: its folder is on no path."""
        find = "import glob, importlib.util as u\nfor d in getattr(u.find_spec('nvidia'), 'submodule_search_locations', ()):\n" \
               "    print(*glob.glob(d + '/*/lib/libcupti.so.1[0-9]'), sep='\\n')"
        found = run([self.python, "-c", find], clean_environment(), 60).stdout.split()
        paths = [os.environ.get("LD_LIBRARY_PATH"), *(str(pathlib.Path(name).parent) for name in found)]
        return clean_environment(LD_LIBRARY_PATH=":".join(filter(None, paths)))

    def ask_facts(self, loading, seconds):
        log = self.folder / f"facts-{loading}.log"
        seconds = self.left(seconds + 15) - 15
        listed = run([FACTS, "--list"], clean_environment(), 20).stdout.splitlines()
        questions = [line.split("\t")[0] for line in listed]
        ended = run([FACTS, "--tsv", "--loading", loading, "--total", int(seconds)], self.facts_environment(), seconds + 15, log) if seconds > 1 else None
        rows = [line.split("\t") for line in ended.stdout.splitlines() if line.count("\t") == 5] if ended else []
        expected = standins_answers(loading, self.folder)
        for question in questions:
            case = f"{question} ({loading})"
            mine = [row for row in numbered(rows) if row[0] == question]
            for _, kind, what, answer, value, unit, n in mine:
                self.fact(case, kind, what, answer, f"{value} {unit}".strip(), expected.get((question, what, n)), question == "device")
            if not mine:
                self.table.skip("facts", case, "the time for all is over" if not ended else f"not answered: {ended.text}")

    def fact(self, case, kind, what, answer, value, expected, is_own):
        """@expected: (kind, answer) of the stand-in driver, or None. @is_own: of this device, nothing is expected"""
        def add(answer, expected="", **more):
            self.table.add("facts", case, what, answer, expected, **more)

        if kind in ("holds", "breaks"):
            add("yes" if kind == "holds" else "no", "yes")
        elif kind == "figure":
            add(value, verdict="figure")
        elif kind in ("skip", "absent"):
            add("", verdict="skipped", reason=answer)
        elif expected and expected[0] in ("says", "error") and not is_own:
            same = expected[1] == answer
            crashed = kind == "error" and not same and CRASHED.search(answer)
            add(answer, f"{expected[1]}, as on the stand-in", verdict="ok" if same else "crashed" if crashed else "differs", relied_on=False)
        elif kind == "error":
            add(answer, verdict="crashed" if CRASHED.search(answer) else "differs")
        else:
            add(answer, verdict="figure")

    # ---- what smoke.py says

    def smoke(self, kind):
        words = [self.python, HERE / "smoke.py"] + (["--plain"] if kind == "plain" else [])
        seconds = self.left(120)
        case = f"smoke.py {kind}"
        if not seconds:
            self.table.skip("smoke", case, "the time for all is over")
            return
        env = clean_environment(DMI_TEST_BUILD=BUILD)
        ended = run(words, env, seconds, self.folder / f"smoke-{kind}.log")
        if ended.status == 77:
            self.table.skip("smoke", case, ended.last_line().removeprefix("skipped: "))
            return
        for line in ended.stdout.splitlines():
            said = re.match(r"(ok    |FAILED) (.*)", line)
            if said:
                what, _, detail = said.group(2).partition(": ")
                self.table.add("smoke", case, what, detail, verdict="ok" if said.group(1).startswith("ok") else "differs")
            elif line.startswith("skipped: "):
                self.table.add("smoke", case, "part", "", verdict="skipped", reason=line[9:])
        self.table.add("smoke", case, "it ends", ended.text, "status 0", verdict="crashed" if ended.crashed else None,
                       reason="" if not ended.status else ended.last_line())

    # ---- random programs of graph calls

    def graph_calls(self):
        client, spec = BUILD / "tests" / "preload" / "graph_calls", self.folder / "graph-calls.yaml"
        spec.write_text("hookspec: 1\nring: {bytes: 4M, slots: 16384}\nsites:\n" + "".join(
            f"  - {{name: {name}, kernel: '^p{name}$', pointer: 'arg[{p}]', dtype: u32, dims: [{{row: true, count: 'arg[{n}].u32'}}]}}\n"
            for name, p, n in (("a", 0, 1), ("b", 3, 1), ("e", 1, 2))))
        for seed in range(1, 9):
            words, case = [client, seed, 300, "-"], f"seed {seed}"
            if not self.left(20):
                self.table.skip("graph calls", case, "the time for all is over")
                continue
            log = self.folder / "graph-calls.log"
            plain = run(words, clean_environment(), self.left(30), log)
            if plain.status:
                self.table.skip("graph calls", case, f"without the library: {plain.text}, {plain.last_line()}")
                continue
            out = self.folder / f"graph-calls-{seed}"
            under = run([DMI_RUN, "--strict", "--spec", spec, "--out", out, "--log", "none", "--", *words], clean_environment(), self.left(30) or 2, log)
            same = under.stdout == plain.stdout
            self.table.add("graph calls", case, "300 calls have the answers that they have without the library",
                           "yes" if same and not under.status else first_difference(plain.stdout, under.stdout) if not under.crashed else under.text,
                           "yes", verdict="crashed" if under.crashed else None)
            stats = run([cases.DMI_DUMP, "stats", out], clean_environment(), 20, log)
            self.table.add("graph calls", case, "captured + dropped = expected", stats.text, "status 0")

    # ---- the copy kernel, the benchmarks

    def copy_kernel(self):
        ptx = BUILD / "kernels" / "dmi_kernels.ptx"
        seconds = self.left(60)
        if not seconds:
            self.table.skip("copy kernel", "test_copy_kernel", "the time for all is over")
            return
        ended = run([BUILD / "tests" / "preload" / "test_copy_kernel", ptx], clean_environment(CK_DEFAULT_TIMEOUT=30), seconds,
                    self.folder / "copy-kernel.log")
        summary = next((line for line in ended.stdout.splitlines() if "Checks:" in line), ended.last_line())
        self.table.add("copy kernel", "test_copy_kernel", summary, ended.text, "status 0", verdict="crashed" if ended.crashed else None)

    def benchmarks(self):
        bench, source = BUILD / "tests" / "bench", ROOT / "tests" / "bench"
        under = [DMI_RUN, "--strict", "--log", "none", "--out", self.folder / "bench-out", "--spec"]
        n = "31" if "stand-in" not in self.table.facts["device"] else "3"
        for name, words in (
                ("launch", [*under, source / "launch.yaml", "--", bench / "bench_launch", n]),
                ("graph", [*under, source / "launch.yaml", "--", bench / "bench_graph", n]),
                ("tap", [*under, source / "tap.yaml", "--", bench / "bench_tap", n]),
                ("execs", [*under, source / "launch.yaml", "--", bench / "bench_execs", "500" if n == "31" else "50"]),
                ("copy", [bench / "bench_copy", n, BUILD / "kernels" / "dmi_kernels.ptx"]),
                ("link normal", [*under, source / "drain.yaml", "--", bench / "bench_link", "normal", "1", "4"]),
                ("link noise", [*under, source / "drain.yaml", "--", bench / "bench_link", "noise", "1", "4"]),
                ("drain", [bench / "bench_drain", self.folder / "drain-out", "0.1"])):
            seconds = self.left(120)
            if not seconds:
                self.table.skip("benchmarks", name, "the time for all is over")
                continue
            ended = run(words, clean_environment(), seconds, self.folder / "benchmarks.log")
            title = ""
            for line in ended.stdout.splitlines():
                what, answer = bench_line(name, line)
                if answer or name == "drain":
                    self.table.add("benchmarks", name, f"{title}: {what}" if title else what, answer, verdict="figure")
                else:
                    title = what
            if ended.status:
                self.table.add("benchmarks", name, "it ends", ended.text, "status 0", verdict="crashed" if ended.crashed else "differs",
                               reason=ended.last_line())
        shutil.rmtree(self.folder / "bench-out", ignore_errors=True)
        shutil.rmtree(self.folder / "drain-out", ignore_errors=True)

    # ---- all

    def run(self, groups):
        steps = {
            "facts": lambda: self.ask_facts("lazy", 100),
            "smoke": self.smoke_and_cases,
            "graph calls": self.graph_calls,
            "copy kernel": self.copy_kernel,
            "benchmarks": self.benchmarks,
            "facts eager": lambda: self.ask_facts("eager", 60),
            hugging_face.GROUP: self.hugging_face,
        }
        end = self.deadline
        self.deadline -= self.share_of_hugging_face(groups)
        for group in groups:
            if group == hugging_face.GROUP:
                self.deadline = end
            steps[group]()

    def share_of_hugging_face(self, groups):
        """Seconds of the time for all that other groups leave to it."""
        is_shared = hugging_face.GROUP in groups and len(groups) > 1 and hugging_face.can_run(self.table.facts["packages"])
        return hugging_face.SHARE if is_shared else 0

    def hugging_face(self):
        hugging_face.HuggingFace(self.table, self.folder, self.python, self.deadline - 10).run_all()

    def smoke_and_cases(self):
        self.smoke("plain")
        self.smoke("torch")
        cases.Runner(self.table, self.folder, self.python, self.deadline - 30).run_all()


def numbered(rows):
    """Each with the number of those before it that say as much: some questions ask twice by the same words."""
    seen = collections.Counter()
    for row in rows:
        yield (*row, seen[row[0], row[2]])
        seen[row[0], row[2]] += 1


def first_difference(a, b):
    for i, (x, y) in enumerate(zip(a.splitlines(), b.splitlines())):
        if x != y:
            return f"line {i + 1}: {x!r} became {y!r}"[:300]
    return f"{len(a.splitlines())} lines became {len(b.splitlines())}"


def bench_line(name, line):
    """(question, answer) of a line that a benchmark printed"""
    if name.startswith("link"):
        n_bytes, spent, cpu = (float(word) for word in line.split())
        return "records of 4 MiB", f"{n_bytes / spent / 1e9:.2f} GB/s, {cpu / spent:.2f} CPUs busy"
    what, _, rest = line.strip().partition("  ")
    return what, " ".join(rest.split())


def standins_answers(loading, folder):
    """{(question, what): (kind, answer)}: what the pack has; in the tree the stand-in is asked."""
    if ANSWERS.exists():
        text = ANSWERS.read_text()
    elif (STANDIN / "libcuda.so.1").exists():
        text = ask_standin(loading, folder / "standin-cache")
    else:
        return {}
    rows = [line.split("\t")[1:] for line in text.splitlines() if line.count("\t") == 4 and line.startswith(f"{loading}\t")]
    return {(question, what, n): (kind, answer) for question, kind, what, answer, n in numbered(rows)}


def ask_standin(loading, cache):
    """Lines of loading, question, kind, what, answer: all that the stand-in says."""
    env = clean_environment(LD_LIBRARY_PATH=STANDIN, DMI_STANDIN_SM="90", CUDA_VISIBLE_DEVICES="0")
    env.setdefault("DMI_STANDIN_CACHE", str(cache))
    said = run([FACTS, "--tsv", "--loading", loading], env, 150).stdout
    rows = [line.split("\t") for line in said.splitlines() if line.count("\t") == 5]
    return "".join("\t".join([loading, *row[:4]]) + "\n" for row in rows)


def device_name():
    """None if there is none."""
    found = subprocess.run([sys.executable, ROOT / "tools/setup/driver.py"], stdout=subprocess.PIPE, text=True)
    return found.stdout.strip() if found.returncode == 0 else None


def one_device():
    """The first of those that are visible: several would be initialised, and none but one is asked."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    os.environ["CUDA_VISIBLE_DEVICES"] = visible or "0"


def with_own_libraries():
    if LIBRARIES.is_dir():
        paths = [os.environ.get("LD_LIBRARY_PATH"), str(LIBRARIES)]
        os.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, paths))


def write(contact, path):
    """The file to send back."""
    files = {"table.txt": contact.table.text(), "table.json": contact.table.json()}
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            data = text.encode()
            entry = tarfile.TarInfo(f"dmi-gpu/{name}")
            entry.size, entry.mtime = len(data), int(time.time())
            archive.addfile(entry, io.BytesIO(data))
        for log in sorted(contact.folder.glob("*.log")):
            archive.add(log, f"dmi-gpu/log/{log.name}")


def arguments():
    parser = argparse.ArgumentParser(prog="run", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, help="the file to send back (dmi-gpu-HOST.tar.gz)")
    parser.add_argument("--python", default=os.environ.get("DMI_GPU_PYTHON", sys.executable), help="the Python that has PyTorch")
    parser.add_argument("--seconds", type=int, default=460, help="for all (460); what is left then is skipped by name")
    parser.add_argument("--only", default=",".join(GROUPS), help=f"some of: {', '.join(GROUPS)}")
    options = parser.parse_args()
    options.groups = options.only.split(",")
    if wrong := set(options.groups) - set(GROUPS):
        parser.error(f"--only: there is no group {', '.join(sorted(wrong))}")
    options.out = options.out or pathlib.Path(f"dmi-gpu-{platform.node() or 'host'}.tar.gz")
    return options


def main():
    options = arguments()
    one_device()
    with_own_libraries()
    for path in (FACTS, DMI_RUN, PRELOAD):
        if not path.exists():
            raise SystemExit(f"{path} was not built")
    device = device_name()
    if not device:
        print("skipped: no CUDA device")
        sys.exit(77)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="dmi-gpu-"))
    try:
        contact = Contact(options, folder)
        contact.machine(device)
        try:
            contact.run(options.groups)
        finally:  # also what was found before an interrupt
            write(contact, options.out)
    finally:
        if not os.environ.get("DMI_TEST_KEEP"):
            shutil.rmtree(folder, ignore_errors=True)
    print("\n" + contact.table.text().split("\n\n", 1)[0])
    print("\n".join(contact.table.text().splitlines()[-1 - len(contact.table.failures()) - 2:]))
    print(f"The file to send back: {options.out.resolve()}")
    sys.exit(1 if contact.table.failures() else 0)


if __name__ == "__main__":
    main()
