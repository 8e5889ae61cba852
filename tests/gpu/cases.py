# SPDX-License-Identifier: Apache-2.0
"""Programs that are run with and without the library, and what must be the same.

Each case is a process that prints its outputs and writes what its marks copied (marks.py). Without the library it says
what is right; under it its outputs must be the same bits, the records of its marks the same bytes, and every record
that the spec asked for captured or counted. Some run once more with the library and no spec, some under the witness, which tells
who called what.
"""
import ast
import collections
import json
import os
import pathlib
import re
import struct
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "engine"))
from asking import Skipped, cached  # noqa: E402
from harness import BUILD, DMI_DUMP, DMI_RUN, PRELOAD, ROOT, runs_of  # noqa: E402
from processes import clean_environment  # noqa: E402

WITNESS = BUILD / "tests" / "gpu" / "libwitness.so"
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

# @kernel: which kernels besides the marks' are a site; @alloc: PYTORCH_ALLOC_CONF; @witness: run under it as well; @idle: and with the
# library alone
Case = collections.namedtuple("Case", "program kernel alloc env witness is_sorted idle", defaults=("", "", {}, False, False, False))

DRIVER = "driver_cases.py"
TORCH = "torch_cases.py"
TINYGRAD = "tinygrad_cases.py"
# The pack brings a tinygrad; in the tree it is that of build/venv.
TINYGRAD_ENV = {"PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT / "site")]))}
VENV_PYTHON = BUILD.parent / "venv" / "bin" / "python"
CASES = {
    "driver many_copies": Case(DRIVER),
    "driver pdl": Case(DRIVER),
    "driver capture_while_draining": Case(DRIVER, is_sorted=True),
    "driver libraries": Case(DRIVER, witness=True),
    "driver mapped_pieces": Case(DRIVER),
    "driver pools": Case(DRIVER),
    "driver threads": Case(DRIVER, is_sorted=True),
    "tinygrad jit": Case(TINYGRAD, "^[rE]_", env=TINYGRAD_ENV, witness=True),
    "torch unmodified": Case(TORCH, ".", idle=True),
    "torch eager_and_graph": Case(TORCH, idle=True, witness=True),
    "torch cublaslt": Case(TORCH, "."),
    "torch cudnn": Case(TORCH, "."),
    "torch sdpa": Case(TORCH, "."),
    "torch triton": Case(TORCH, ".", witness=True),
    "torch triton_pdl": Case(TORCH, "."),
    "torch expandable_segments": Case(TORCH, alloc="expandable_segments:True"),
    "torch malloc_async": Case(TORCH, alloc="backend:cudaMallocAsync"),
    "torch compile_reduce_overhead": Case(TORCH, ".", witness=True),
    "torch capture_while_draining": Case(TORCH, is_sorted=True),
    "torch nccl": Case(TORCH, "."),
    "torch many_copies": Case(TORCH),
    "torch green_context": Case(TORCH),
    "torch transformers": Case(TORCH, "."),
    "torch taps_compiled": Case(TORCH, "."),
    "torch attached": Case(TORCH, "."),
}


def hooked():
    """The entry points that the library puts its own functions in place of."""
    return set(re.findall(r"^HOOK\((\w+)\)", HOOKS_FILE.read_text(), re.M))


def read_npy(path):
    """Shape and bytes of an .npy file; by hand, as numpy may not be there."""
    data = path.read_bytes()
    n_header = struct.unpack_from("<H" if data[6] == 1 else "<I", data, 8)[0]
    at = 10 if data[6] == 1 else 12
    header = ast.literal_eval(data[at:at + n_header].decode())
    return header["shape"], data[at + n_header:]


def ask(case):
    """Return: what asks an entry that runs @case; the program's first argument is the last word of the entry's name."""
    return lambda asked: Run(asked, case).all()


class Run:
    """One case, whose rows go to @asked."""

    def __init__(self, asked, case):
        self.asked, self.case, self.folder, self.add = asked, case, asked.folder, asked.add
        self.env = clean_environment(CACHEDB=self.folder / "cache.db", **cached(asked.shared), **case.env)
        if case.alloc:  # the second name is the one before PyTorch 2.9
            self.env["PYTORCH_ALLOC_CONF"] = self.env["PYTORCH_CUDA_ALLOC_CONF"] = case.alloc
        python = VENV_PYTHON if case.program == TINYGRAD and VENV_PYTHON.exists() else asked.python
        self.client = [python, HERE / case.program, asked.name.split()[-1]]

    def all(self):
        plain = self.asked.run([*self.client, self.folder / "plain"], self.env)
        if plain.status:
            raise Skipped(plain.last_line().removeprefix("skipped: ") if plain.status == 77 else
                          f"without the library it {plain.text}: {plain.last_line()}")
        self.n_bytes = (self.folder / "plain").stat().st_size
        if self.case.idle:
            idle = self.asked.run([*self.client, self.folder / "idle"], {**self.env, "LD_PRELOAD": str(PRELOAD)})
            self.outcome("with the library and no spec", plain, idle)
        # what comes before the first forward belongs to none: a program without marks has no forwards
        spec, forward = self.folder / "spec.yaml", FORWARD if self.n_bytes else ""
        every = EVERY_KERNEL.replace("{kernel}", self.case.kernel) if self.case.kernel else ""
        spec.write_text(SPEC.format(name=self.folder.name, forward=forward) + every)
        under = [DMI_RUN, "--strict", "--spec", spec, "--out", self.folder / "out", "--log", self.folder / "library.log", "--"]
        captured = self.asked.run([*under, *self.client, self.folder / "with"], self.env)
        said = library_log(self.folder)
        self.asked.said.append("".join(f"library: {line}\n" for line in said))
        if self.outcome("under the library", plain, captured):
            self.records()
            if len(said) > 2:
                self.add("lines in the library's log", len(said), verdict="figure", reason="; ".join(said[1:4])[:400])
        if self.case.witness:
            self.witness()

    def outcome(self, how, plain, ended):
        """Return: false if there is nothing to compare."""
        self.asked.ended(ended, plain.text, f"{how} it ends")
        if ended.status:
            return False
        same = ended.stdout == plain.stdout
        return self.add(f"{how} its outputs, bit for bit", "the same" if same else "others", "the same",
                        reason="" if same else f"{plain.stdout[-200:]!r} became {ended.stdout[-200:]!r}")

    def dump(self, *words):
        return self.asked.run([DMI_DUMP, *words], self.env)

    def records(self):
        out = self.folder / "out"
        self.account(self.dump("stats", "--json", out), self.n_bytes // 128)
        self.asked.ended(self.dump("verify", out), question="dmi-dump verify")
        for site in MARKED if self.n_bytes else ():
            self.dump("export", "--format", "npy", "--site", site, out, "-o", self.folder / site)
            what = "records of its marks" if site == "mark" else "records of its taps"
            self.add(f"{what}, bit for bit", self.compare(site), "the same")

    def account(self, stats, n_rows):
        try:
            sites = json.loads(stats.stdout)["sites"]
        except (ValueError, KeyError):
            self.add("captured + dropped = expected", stats.text, "statistics", reason=stats.last_line())
            return
        for site in sites:
            n = {key: site[key]["rows"] for key in ("expected", "captured", "dropped")}
            answer = f"{n['captured']} + {n['dropped']} = {n['expected']} rows"
            reasons = ", ".join(f"{k} {v}" for k, v in site["dropped_by_reason"].items())
            balances = n["captured"] + n["dropped"] == n["expected"] and site["holds"]
            if site["site"] == "mark" and n_rows:
                self.add("mark: captured + dropped = expected", answer, f"{n_rows} + 0 = {n_rows} rows", reason=reasons)
            elif n_rows or site["site"] not in MARKED:
                balances = balances and (site["site"] != "tapped" or not n["dropped"])
                self.add(f"{site['site']}: captured + dropped = expected", answer, verdict="ok" if balances else "differs", reason=reasons)

    def compare(self, site):
        expected = (self.folder / "with").read_bytes()
        try:
            index = json.loads((self.folder / site / "index.json").read_text())
            tensors = [read_npy(self.folder / site / entry["file"])[1] for entry in index["tensors"].values()]
        except (OSError, ValueError, KeyError, SyntaxError) as problem:
            return f"cannot be read: {type(problem).__name__} {problem}"
        captured = b"".join(tensors)
        if len(captured) != len(expected):
            return f"{len(captured) // 128} rows of {len(expected) // 128}"
        rows = [[data[i:i + 128] for i in range(0, len(data), 128)] for data in (captured, expected)]
        if self.case.is_sorted:
            rows = [sorted(r) for r in rows]
        wrong = [i for i, (a, b) in enumerate(zip(*rows)) if a != b]
        return f"{len(wrong)} of {len(rows[0])} rows differ, the first is row {wrong[0]}" if wrong else "the same"

    def witness(self):
        """Who looked up what, whose function it got, and how often it called that."""
        folder, seen, hooks = self.folder, self.folder / "witness.json", hooked()
        env = {**self.env, "DMI_SPEC": str(folder / "spec.yaml"), "DMI_OUT": str(folder / "out-witness"), "DMI_LOG": "none",
               "DMI_TEST_WITNESS": str(seen), "LD_PRELOAD": f"{WITNESS}:{PRELOAD}"}
        ended = self.asked.run([*self.client, folder / "witnessed"], env)
        same = ended.status == 0 and (folder / "witnessed").read_bytes() == (folder / "plain").read_bytes()
        self.add("with another preload in front, its outputs", "the same" if same else ended.text, "the same",
                 verdict="crashed" if ended.crashed else None, reason="" if same else ended.last_line())
        lines = seen.read_text().splitlines() if seen.exists() else []
        functions = merged(f for line in lines for f in json.loads(line)["functions"])
        if not functions:
            self.add("lookups that the witness saw", "none", "some")
        self.entry_points(functions, hooks)
        others = sorted(((f["calls"], f["name"]) for f in functions if f["calls"] and f["name"] not in hooks), reverse=True)
        self.add("called, and not hooked", ", ".join(f"{name} {n}" for n, name in others[:40]), verdict="figure")
        self.add("launches that the library matched", self.matched(folder / "out-witness"), verdict="figure")

    def entry_points(self, functions, hooks):
        for f in functions:
            if f["name"] in hooks and (f["calls"] or "Launch" in f["name"]):
                answer = f"looked up {f['by_dlsym']} times by dlsym, {f['by_resolver']} by cuGetProcAddress; called {f['calls']} times"
                self.add(f["name"], f["of"], PRELOAD.name, reason=answer)

    def matched(self, out):
        runs = runs_of(out) if out.exists() else []
        if not runs:
            return "no run"
        stats = self.dump("stats", "--json", runs[0])
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
