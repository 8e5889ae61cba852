# SPDX-License-Identifier: Apache-2.0
"""What the tests of the suite `preload` share: running a script of driver calls with and without the library."""
import json
import os
import pathlib
import subprocess

import segments
from harness import BUILD, PRELOAD, Counters, environment

CLIENT = BUILD / "tests" / "preload" / "driver_calls"
LINKED = BUILD / "tests" / "preload" / "driver_calls_link"
START = ["init 0", "device d 0", "ctx c d", "module m fill", "func first m first", "func block m block", "func other m other",
         "func last m last", "alloc p 1048576"]


def site(name="out", kernel="^block$", dims="[{row: true, count: 'arg[1].u32'}]", dtype="u32", pointer="arg[0]", **more):
    lines = [f"  - name: {name}", f"    kernel: '{kernel}'", f"    pointer: {pointer}", f"    dtype: {dtype}", f"    dims: {dims}"]
    return "\n".join(lines + [f"    {key.rstrip('_')}: {value}" for key, value in more.items()])


def spec(*sites, head=""):
    """A small ring unless @head says otherwise: the stand-in poisons all device memory that it hands out."""
    if "ring:" not in head and head != "# default ring":
        head = "ring: {bytes: 1M, slots: 512}\n" + head
    return "hookspec: 1\n" + head + ("\n" if head else "") + "sites:\n" + "\n".join(sites) + "\n"


def filled(seed, n, base=0):
    """What the kernels of driver_calls write."""
    return tuple(((seed << 16) + base + i) & 0xffffffff for i in range(n))


def pattern(seed, n):
    """What `write` puts into memory."""
    return bytes(((at + seed * 1000003) * 0x9E3779B97F4A7C15 & 0xffffffffffffffff) >> 56 for at in range(n))


class Result:
    """What one process said, and the runs that it wrote."""

    def __init__(self, process, out, folder):
        self.code, self.stdout, self.stderr = process.returncode, process.stdout, process.stderr
        self.out, self.folder = out, folder
        self.folders = sorted(p for p in out.iterdir() if p.is_dir() and not p.is_symlink()) if out.is_dir() else []

    def said(self):
        return self.code, self.stdout

    @property
    def complaints(self):
        """What was said on stderr, but that the library is armed, and that a sanitizer does not know its stack."""
        return "".join(line for line in self.stderr.splitlines(True)
                       if not line.startswith("dmi: armed: ") and "support makecontext" not in line)

    def run(self, i=0):
        return Run(self.folders[i])


class Run:
    def __init__(self, folder):
        self.folder = folder
        self.counters = Counters(folder)
        chunks = segments.Chunks(folder)
        self.records, self.steps, self.outcomes, self.kinds = chunks.records, chunks.steps, chunks.outcomes, chunks.kinds
        path = folder / "manifest.json"
        self.manifest = json.loads(path.read_text()) if path.exists() else {}

    def of(self, site):
        return [r for r in self.records if r.site == site]

    def balance(self):
        """A sentence where captured + dropped is not expected, or the segments hold another number; else ''."""
        c = self.counters
        for i, expected in enumerate(c.expected):
            if c.captured[i] + c.dropped_sum(i) != expected:
                return f"site {i}: expected {expected}, captured {c.captured[i]}, dropped {c.dropped[i]}"
            held = self.of(i)
            if (len(held), sum(r.n_bytes for r in held)) != (c.captured[i].records, c.captured[i].bytes):
                return f"site {i}: segments hold {len(held)} records, counted are {c.captured[i]}"
        if c.state != Counters.CLOSED:
            return f"the run was not closed: state {c.state}"
        return ""


class Bench:
    """A folder to work in, and programs run in it; @check: the fixture."""

    def __init__(self, folder, check):
        self.folder, self.n = folder, 0
        self.checked = check

    def run(self, script, text=None, way="dlopen", preload=True, client=None, command=None, timeout=60, before=(), after=(),
            library=PRELOAD, **env):
        """Runs driver_calls (or @command) on @script, with @library unless @preload is False; @text: the spec."""
        self.n += 1
        folder = self.folder / str(self.n)
        folder.mkdir()
        (folder / "script").write_text("\n".join(script) + "\n")
        out = pathlib.Path(env.pop("DMI_OUT", folder / "out"))
        env.setdefault("DMI_STANDIN_CACHE", os.environ.get("DMI_STANDIN_CACHE", str(BUILD / "standin-cache")))
        if preload:
            env["LD_PRELOAD"] = ":".join(map(str, [*before, library, *after]))
            env["DMI_OUT"] = out
            if text is not None:
                (folder / "spec.yaml").write_text(text)
                env["DMI_SPEC"] = folder / "spec.yaml"
        elif before or after:
            env["LD_PRELOAD"] = ":".join(map(str, [*before, *after]))

        words = command or [client or (LINKED if way == "link" else CLIENT), folder / "script", way]
        process = subprocess.run([str(w) for w in words], env=environment(**env), cwd=folder, timeout=timeout, text=True,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        return Result(process, out, folder)

    def alike(self, what, script, text, **options):
        """The program says the same with and without the library. Return: the result with it."""
        without = self.run(script, preload=False, **options)
        result = self.run(script, text, **options)
        same = result.said() == without.said()
        detail = "" if same else f"with {result.said()}, without {without.said()}; {result.stderr[-600:]}"
        self.check(same, f"{what}: the program says the same without the library", detail)
        return result

    def check(self, holds, what, detail=""):
        """The fixture `check`; of what tensors hold, the beginning is enough."""
        return self.checked(holds, what, "" if holds else str(detail)[:3000])

    def captured(self, what, result, expected, site=0, i=0):
        """The run holds exactly the words in @expected for @site, in order, and its counters agree."""
        if not self.check(len(result.folders) > i, f"{what}: a run was written", result.stderr[-1000:] + result.stdout[-500:]):
            return None
        run = result.run(i)
        words = [r.words for r in run.of(site)]
        self.check(words == expected, f"{what}: what was captured is what was written",
                   f"{len(words)} of {len(expected)} records, first {[w[:4] for w in words[:4]]}, "
                   f"wanted {[w[:4] for w in expected[:4]]}; {result.stderr[-600:]}")
        self.check(not run.balance(), f"{what}: every record is accounted for", run.balance())
        return run
