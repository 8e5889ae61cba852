# SPDX-License-Identifier: Apache-2.0
"""Programs that are run with and without the library, and what must be the same: the rows of the table's group `smoke`.

Each case is a process that prints its outputs and writes what its marks copied (marks.py). Without the library it says
what is right; under it its outputs must be the same bits, the records of its marks the same bytes, and every record
that the spec asked for captured or counted. Some run once more under the witness, which tells who called what.
"""
import ast
import collections
import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "engine"))
from harness import BUILD, DMI_DUMP, DMI_RUN, PRELOAD, ROOT, runs_of  # noqa: E402

WITNESS = BUILD / "tests" / "gpu" / "libwitness.so"
SECONDS = 60  # for one process
HOOKS_FILE = ROOT / "preload" / "hooks.def"

# every_kernel: 16 bytes at each kernel's first parameter, whatever it is: what is no pointer is a counted drop.
SPEC = """hookspec: 1
name: {name}
ring: {{bytes: 64M, slots: 16384}}
overload: {{mode: complete, wait_ms: 2000}}
{forward}sites:
  - name: mark
    kernel: '^smoke_embed$'
    pointer: arg[0]
    dtype: f32
    dims: [{{row: true, count: 'arg[2].u32'}}, {{count: 'arg[3].u32'}}]
  - {{tap: tapped}}
  - {{tap: resid_pre, name: tapped}}
"""
MARKED = ("mark", "tapped")  # sites that hold what was marked
FORWARD = """forward:
  - {kind: step, begin: {kernel: '^smoke_embed$'}}
"""
EVERY_KERNEL = """  - name: every_kernel
    kernel: '{kernel}'
    pointer: arg[0]
    dtype: u8
    dims: [{row: true, count: 1}, {count: 16}]
"""

# @kernel: which kernels besides the marks' are a site; @alloc: PYTORCH_ALLOC_CONF; @witness: run under it as well
Case = collections.namedtuple("Case", "name program kernel alloc env witness is_sorted", defaults=("", "", {}, False, False))

DRIVER = "driver_cases.py"
TORCH = "torch_cases.py"
TINYGRAD = "tinygrad_cases.py"
# The pack brings a tinygrad; in the tree it is that of build/venv.
TINYGRAD_ENV = {"PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT / "site")]))}
VENV_PYTHON = BUILD.parent / "venv" / "bin" / "python"
CASES = [
    Case("driver many_copies", DRIVER),
    Case("driver pdl", DRIVER),
    Case("driver capture_while_draining", DRIVER, is_sorted=True),
    Case("driver libraries", DRIVER, witness=True),
    Case("driver mapped_pieces", DRIVER),
    Case("driver pools", DRIVER),
    Case("driver threads", DRIVER, is_sorted=True),
    Case("tinygrad jit", TINYGRAD, "^[rE]_", env=TINYGRAD_ENV, witness=True),
    Case("torch eager_and_graph", TORCH, ".", witness=True),
    Case("torch cublaslt", TORCH, "."),
    Case("torch cudnn", TORCH, "."),
    Case("torch sdpa", TORCH, "."),
    Case("torch triton", TORCH, ".", witness=True),
    Case("torch triton_pdl", TORCH, "."),
    Case("torch expandable_segments", TORCH, alloc="expandable_segments:True"),
    Case("torch malloc_async", TORCH, alloc="backend:cudaMallocAsync"),
    Case("torch compile_reduce_overhead", TORCH, ".", witness=True),
    Case("torch capture_while_draining", TORCH, is_sorted=True),
    Case("torch nccl", TORCH, "."),
    Case("torch many_copies", TORCH),
    Case("torch green_context", TORCH),
    Case("torch transformers", TORCH, "."),
    Case("torch taps_compiled", TORCH, "."),
    Case("torch attached", TORCH, "."),
]


def hooked():
    """The entry points that the library puts its own functions in place of."""
    return set(re.findall(r"^HOOK\((\w+)\)", HOOKS_FILE.read_text(), re.M))


class Ended:
    """How a process ended. crashed: by a signal, or not at all; text then says how"""

    def __init__(self, status, stdout, stderr, timed_out=0):
        self.status, self.stdout, self.stderr = status, stdout, stderr
        self.crashed = bool(timed_out) or status < 0
        self.text = f"did not end within {timed_out:.0f} s" if timed_out else f"status {status}"
        if not timed_out and status < 0:
            self.text = f"died of signal {-status} ({signal.Signals(-status).name})"

    def last_line(self):
        lines = (self.stderr if self.status != 77 else self.stdout).strip().splitlines()
        return lines[-1][-300:] if lines else "no reason was given"


def run(words, env, seconds, log=None):
    """Return: Ended. @log: a file that its command and output are appended to. Its children end with it."""
    words = [str(word) for word in words]
    process = subprocess.Popen(words, env=env, text=True, errors="replace", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, start_new_session=True)
    try:
        out, err = process.communicate(timeout=seconds)
        ended = Ended(process.returncode, out, err)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        ended = Ended(-9, out, err, seconds)
    if log:
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"$ {' '.join(words)}\n{ended.stdout}{ended.stderr}= {ended.text}\n\n")
    return ended


def clean_environment(**more):
    env = {k: v for k, v in os.environ.items() if not k.startswith("DMI_") or "STANDIN" in k}
    env.pop("LD_PRELOAD", None)
    # a Python that dies of a signal says where it was
    env.update({"PYTHONDONTWRITEBYTECODE": "1", "PYTHONFAULTHANDLER": "1", **{k: str(v) for k, v in more.items()}})
    return env


def read_npy(path):
    """Shape and bytes of an .npy file; by hand, as numpy may not be there."""
    data = path.read_bytes()
    n_header = struct.unpack_from("<H" if data[6] == 1 else "<I", data, 8)[0]
    at = 10 if data[6] == 1 else 12
    header = ast.literal_eval(data[at:at + n_header].decode())
    return header["shape"], data[at + n_header:]


class Runner:
    """Runs cases and adds their rows to @table. @deadline: by time.monotonic()"""

    def __init__(self, table, folder, python, deadline):
        self.table, self.folder, self.python, self.deadline = table, folder, python, deadline
        self.hooks = hooked()

    def left(self):
        return min(SECONDS, self.deadline - time.monotonic())

    def run_all(self, cases=CASES):
        for case in cases:
            if self.left() < 2:
                self.table.skip("smoke", case.name, "the time for all is over")
            else:
                self.run_case(case)

    def run_case(self, case):
        folder = self.folder / case.name.replace(" ", "-")
        folder.mkdir()
        log = self.folder / f"{folder.name}.log"
        env = clean_environment(CACHEDB=folder / "cache.db", **case.env)
        if case.alloc:  # the second name is the one before PyTorch 2.9
            env["PYTORCH_ALLOC_CONF"] = env["PYTORCH_CUDA_ALLOC_CONF"] = case.alloc
        python = VENV_PYTHON if case.program == TINYGRAD and VENV_PYTHON.exists() else self.python
        client = [python, HERE / case.program, case.name.split()[1]]
        plain = run([*client, folder / "plain"], env, self.left(), log)
        if plain.status:
            why = plain.last_line().removeprefix("skipped: ") if plain.status == 77 else f"without the library it {plain.text}: {plain.last_line()}"
            self.table.skip("smoke", case.name, why)
            return
        spec = folder / "spec.yaml"
        # what comes before the first forward belongs to none: a program without marks has no forwards
        forward = FORWARD if (folder / "plain").stat().st_size else ""
        every = EVERY_KERNEL.replace("{kernel}", case.kernel) if case.kernel else ""
        spec.write_text(SPEC.format(name=folder.name, forward=forward) + every)
        under = [DMI_RUN, "--strict", "--spec", spec, "--out", folder / "out", "--log", folder / "library.log", "--"]
        captured = run([*under, *client, folder / "with"], env, max(2, self.left()), log)
        said = library_log(folder)
        with open(log, "a", encoding="utf-8") as file:
            file.write("".join(f"library: {line}\n" for line in said))
        if self.outcome(case, plain, captured):
            self.records(case, folder, env, log)
            self.add(case, "lines in the library's log", len(said), verdict="figure", reason="; ".join(said[:3])[:400])
        if case.witness and self.left() > 2:
            self.witness(case, client, folder, env, log)

    def add(self, case, question, answer, expected="", **more):
        return self.table.add("smoke", case.name, question, answer, expected, **more)

    def outcome(self, case, plain, captured):
        """Return: false if there is nothing to compare."""
        self.add(case, "under the library it ends", captured.text, plain.text, verdict="crashed" if captured.crashed else None,
                 reason="" if captured.status == plain.status else captured.last_line())
        if captured.status:
            return False
        same = captured.stdout == plain.stdout
        return self.add(case, "its outputs, bit for bit", "the same" if same else "others", "the same",
                        reason="" if same else f"{plain.stdout[-300:]!r} became {captured.stdout[-300:]!r}")

    def records(self, case, folder, env, log):
        out = folder / "out"
        stats = run([DMI_DUMP, "stats", "--json", out], env, max(2, self.left()), log)
        verify = run([DMI_DUMP, "verify", out], env, max(2, self.left()), log)
        self.account(case, stats, (folder / "plain").stat().st_size // 128)
        self.add(case, "dmi-dump verify", verify.text, "status 0", reason="" if not verify.status else " ".join(verify.stdout.split())[-300:])
        for site in MARKED if (folder / "plain").stat().st_size else ():
            run([DMI_DUMP, "export", "--format", "npy", "--site", site, out, "-o", folder / site], env, max(2, self.left()), log)
            what = "records of its marks" if site == "mark" else "records of its taps"
            self.add(case, f"{what}, bit for bit", self.compare(case, folder, site), "the same")

    def account(self, case, stats, n_rows):
        try:
            sites = json.loads(stats.stdout)["sites"]
        except (ValueError, KeyError):
            self.add(case, "captured + dropped = expected", stats.text, "statistics", reason=stats.last_line())
            return
        for site in sites:
            n = {key: site[key]["rows"] for key in ("expected", "captured", "dropped")}
            answer = f"{n['captured']} + {n['dropped']} = {n['expected']} rows"
            reasons = ", ".join(f"{k} {v}" for k, v in site["dropped_by_reason"].items())
            balances = n["captured"] + n["dropped"] == n["expected"] and site["holds"]
            if site["site"] == "mark" and n_rows:
                self.add(case, "mark: captured + dropped = expected", answer, f"{n_rows} + 0 = {n_rows} rows", reason=reasons)
            elif n_rows or site["site"] not in MARKED:
                balances = balances and (site["site"] != "tapped" or not n["dropped"])
                self.add(case, f"{site['site']}: captured + dropped = expected", answer, verdict="ok" if balances else "differs", reason=reasons)

    def compare(self, case, folder, site):
        expected = (folder / "with").read_bytes()
        try:
            index = json.loads((folder / site / "index.json").read_text())
            tensors = [read_npy(folder / site / entry["file"])[1] for entry in index["tensors"].values()]
        except (OSError, ValueError, KeyError, SyntaxError) as problem:
            return f"cannot be read: {type(problem).__name__} {problem}"
        captured = b"".join(tensors)
        if len(captured) != len(expected):
            return f"{len(captured) // 128} rows of {len(expected) // 128}"
        rows = [[data[i:i + 128] for i in range(0, len(data), 128)] for data in (captured, expected)]
        if case.is_sorted:
            rows = [sorted(r) for r in rows]
        wrong = [i for i, (a, b) in enumerate(zip(*rows)) if a != b]
        return f"{len(wrong)} of {len(rows[0])} rows differ, the first is row {wrong[0]}" if wrong else "the same"

    def witness(self, case, client, folder, env, log):
        """Who looked up what, whose function it got, and how often it called that."""
        seen, spec, out = folder / "witness.json", folder / "spec.yaml", folder / "out-witness"
        env = {**env, "DMI_SPEC": str(spec), "DMI_OUT": str(out), "DMI_LOG": "none", "DMI_TEST_WITNESS": str(seen),
               "LD_PRELOAD": f"{WITNESS}:{PRELOAD}"}
        ended = run([*client, folder / "witnessed"], env, self.left(), log)
        same = ended.status == 0 and (folder / "witnessed").read_bytes() == (folder / "plain").read_bytes()
        self.table.add("entry points", case.name, "with another preload in front, its outputs", "the same" if same else ended.text, "the same",
                       verdict="crashed" if ended.crashed else None, reason="" if same else ended.last_line())
        lines = seen.read_text().splitlines() if seen.exists() else []
        functions = [f for line in lines for f in json.loads(line)["functions"]]
        if not functions:
            self.table.add("entry points", case.name, "lookups that the witness saw", "none", "some")
        for row in merged(functions):
            self.entry_point(case, row)
        others = sorted(((f["calls"], f["name"]) for f in merged(functions) if f["calls"] and f["name"] not in self.hooks), reverse=True)
        self.table.add("entry points", case.name, "called, and not hooked", ", ".join(f"{name} {n}" for n, name in others[:40]), verdict="figure")
        forwards = self.matched(out, env, log)
        self.table.add("entry points", case.name, "launches that the library matched", forwards, verdict="figure")

    def entry_point(self, case, f):
        if f["name"] not in self.hooks or not (f["calls"] or "Launch" in f["name"]):
            return
        answer = f"looked up {f['by_dlsym']} times by dlsym, {f['by_resolver']} by cuGetProcAddress; called {f['calls']} times"
        self.table.add("entry points", case.name, f["name"], f["of"], PRELOAD.name, reason=answer)

    def matched(self, out, env, log):
        runs = runs_of(out) if out.exists() else []
        if not runs:
            return "no run"
        stats = run([DMI_DUMP, "stats", "--json", runs[0]], env, max(2, self.left()), log)
        try:
            return ", ".join(f"{site['site']} {site['launches']}" for site in json.loads(stats.stdout)["sites"])
        except (ValueError, KeyError):
            return stats.text


def library_log(folder):
    path = folder / "library.log"
    return path.read_text(errors="replace").splitlines() if path.exists() else []


def merged(functions):
    """One entry a name and owner: processes and addresses taken together."""
    found = {}
    for f in functions:
        row = found.setdefault((f["name"], f["of"]), {**f, "by_dlsym": 0, "by_resolver": 0, "calls": 0})
        for key in ("by_dlsym", "by_resolver", "calls"):
            row[key] += f[key]
    return [found[key] for key in sorted(found)]
