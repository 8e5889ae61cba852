#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch, eager and in graphs, captured under dmi-run: every record is, bit for bit, the clone that PyTorch made.

Usage: smoke.py [--plain]. DMI_TEST_BUILD names the build folder. --plain: the same program with nothing but the driver,
on whatever driver the loader finds (tests/standin), so that all but PyTorch's part is tried without a GPU.

What is known of the kernels: our own and Triton's parameters, as their sources say; of PyTorch's kernel for
torch.add() only its name (it holds vectorized_elementwise_kernel and CUDAFunctor_add) and that its first parameter
is the number of elements. Where in its parameters the three tensors' addresses lie is searched for.
"""
import atexit
import importlib.util
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "engine"))
import processes  # noqa: E402
from harness import DMI_DUMP, DMI_RUN, PRELOAD, ROOT, Counters, only_run  # noqa: E402

CLIENT = HERE / "smoke_client.py"
LAYERS, COLS = 4, 96
FORWARDS = 3 + 50
# Places in the parameters of torch.add()'s kernel that may hold an address: (parameter, byte in it)
PLACES = [(1, 0), (1, 8), (2, 0), (2, 8), (2, 16), (2, 24), (3, 0), (3, 8)]
SECONDS = 110

deadline = time.monotonic() + SECONDS


class Checks:
    """Says what was checked; remembers whether any of it failed. This program runs where there is no pytest."""

    def __init__(self):
        self.n_passed = self.n_failed = 0

    def check(self, holds, what, detail=""):
        print(f"{'ok    ' if holds else 'FAILED'} {what}" + (f": {detail}" if detail else ""), flush=True)
        self.n_passed += bool(holds)
        self.n_failed += not holds
        return holds

    def exit(self):
        print(f"{self.n_passed} passed, {self.n_failed} failed")
        sys.exit(1 if self.n_failed else 0)


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def need(*paths):
    for path in paths:
        if not path.exists():
            skip(f"{path} was not built")


def workspace():
    """A folder that goes away with the process, unless DMI_TEST_KEEP is set."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="dmi-smoke-"))
    if os.environ.get("DMI_TEST_KEEP"):
        print(f"kept: {folder}")
    else:
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def sites(triton):
    """[(name, the HookSpec's entry)]: those called add_I_O guess a place each, the others are exact."""
    def entry(name, kernel, pointer, rows, cols, layer=True, **more):
        lines = {"name": name, "kernel": f"'{kernel}'", "pointer": f"'{pointer}'", "dtype": "f32",
                 "dims": f"[{{row: true, count: '{rows}'}}, {{count: '{cols}'}}]", **more}
        if layer:
            lines.update(occurrences=f"{{expect: {LAYERS}}}", layer="occ")
        return name, "  - " + "\n    ".join(f"{key}: {value}" for key, value in lines.items())

    ours = ("arg[2].u32", "arg[3].u32")
    found = [entry("embed", "^smoke_embed$", "arg[0]", *ours, layer=False), entry("own", "^smoke_layer$", "arg[0]", *ours),
             entry("own_in", "^smoke_layer$", "arg[1]", *ours, when="before")]
    found += [entry(f"add_{i}_{o}", "vectorized_elementwise_kernel.*CUDAFunctor_add", f"arg[{i}][{o}]", "arg[0].i32 / cols", "cols")
              for i, o in PLACES]
    if triton:
        found.append(entry("triton", "^smoke_triton$", "arg[0]", "arg[2].i32 / cols", "cols"))
    return found


def spec(triton):
    return "\n".join(["hookspec: 1", "name: smoke", f"vars: {{cols: {COLS}}}", "ring: {bytes: 64M, slots: 8192}",
                      "overload: {mode: complete, wait_ms: 2000}", "forward:", "  - {kind: step, begin: {kernel: '^smoke_embed$'}}",
                      "sites:", *(text for _, text in sites(triton)), ""])


def run(*words):
    """processes.run within the time that is left."""
    ended = processes.run(words, processes.clean_environment(), max(0.1, deadline - time.monotonic()))
    if ended.timed_out:
        raise SystemExit(f"FAILED: {' '.join(map(str, words))} did not end within {SECONDS} s in all")
    return ended


# ---- what a run holds, against what the program put aside


def difference(captured, expected):
    """'' if both are the same bits; else a sentence."""
    if captured is None:
        return "not captured"
    if captured.shape != expected.shape:
        return f"shape {captured.shape}, not {expected.shape}"
    wrong = [i for i in range(len(expected)) if captured[i].tobytes() != expected[i].tobytes()]
    return f"{len(wrong)} of {len(expected)} rows differ, the first is row {wrong[0]}" if wrong else ""


def compare(checks, captured, expected, names):
    for name in names:
        keys = [key for key in expected if key.split(".")[0] == name]
        wrong = {key: difference(captured.get(key), expected[key]) for key in keys}
        wrong = {key: text for key, text in wrong.items() if text}
        checks.check(keys and not wrong, f"{name}: {len(keys)} tensors of {FORWARDS} forwards, bit for bit", wrong or "")


def find_places(captured, expected):
    """{tensor of torch.add(): [places whose records are it, in every layer]}"""
    found = {}
    for name in ("add_out", "add_a", "add_b"):
        found[name] = [f"arg[{i}][{o}]" for i, o in PLACES
                       if all(not difference(captured.get(f"add_{i}_{o}.{k}"), expected[f"{name}.{k}"]) for k in range(LAYERS))]
    return found


def account(checks, out, names):
    """Every record that was asked for is there or counted; of sites that are exact, all are there."""
    counters = Counters(only_run(out))
    for i, name in enumerate(names):
        expected, captured, dropped = counters.expected[i], counters.captured[i], counters.dropped[i]
        whole = captured + counters.dropped_sum(i) == expected
        if not name.startswith("add_"):
            n = FORWARDS * (1 if name == "embed" else LAYERS)
            checks.check(whole and not dropped and expected.records == n, f"{name}: {n} records expected and captured", f"{expected}; {captured}; {dropped}")
        elif not whole:
            checks.check(False, f"{name}: captured + dropped = expected", f"{expected}; {captured}; {dropped}")
    stats = run(DMI_DUMP, "stats", out)
    checks.check(stats.status == 0, "dmi-dump stats: accounting balances", stats.stdout + stats.stderr if stats.status else "")
    verify = run(DMI_DUMP, "verify", out)
    checks.check(verify.status == 0, "dmi-dump verify", verify.stdout + verify.stderr if verify.status else "")
    print(stats.stdout)


# ---- one machine


def need_package(name):
    if importlib.util.find_spec(name) is None:
        skip(f"{name} is not installed")


def need_device():
    found = run(sys.executable, ROOT / "tools/setup/driver.py")
    if found.status:
        skip("no CUDA device")
    need_package("torch")
    print(f"device: {found.stdout.strip()}", flush=True)


def last_line(text):
    return (text.strip().splitlines() or ["no reason was given"])[-1]


def run_plain(folder, kind):
    """The program without the library. Return: what it said, and whether Triton works."""
    words = [sys.executable, CLIENT, kind, folder / "plain.npz"]
    result = run(*words, "--triton") if kind == "torch" else None
    triton = result is not None and result.status != 3
    if not triton:
        if result:
            print(f"skipped: Triton: {last_line(result.stderr)}", flush=True)
        result = run(*words)
    if result.status == 4:
        skip(f"PyTorch: {last_line(result.stderr)}")
    return result, triton


def main():
    plain = "--plain" in sys.argv
    need(DMI_RUN, DMI_DUMP, PRELOAD)
    need_package("numpy")
    if not plain:
        need_device()
    import numpy as np
    folder, checks, kind = workspace(), Checks(), "plain" if plain else "torch"
    without, triton = run_plain(folder, kind)
    if without.status:
        raise SystemExit(f"FAILED: the program does not run without the library:\n{without.stderr[-3000:]}")
    path, out = folder / "smoke.yaml", folder / "out"
    path.write_text(spec(triton))
    checked = run(DMI_RUN, "--spec", path, "--check")
    checks.check(checked.status == 0, "dmi-run --check accepts the spec", checked.stderr)
    words = [sys.executable, CLIENT, kind, folder / "with.npz"] + (["--triton"] if triton else [])
    result = run(DMI_RUN, "--strict", "--spec", path, "--out", out, "--", *words)
    print(result.stderr, file=sys.stderr, end="")
    checks.check(result.status == 0, "the program ends well under the library", f"status {result.status}" if result.status else "")
    checks.check(result.stdout == without.stdout, "its outputs are the same with and without", "" if result.stdout == without.stdout else
                 f"{result.stdout!r} {without.stdout!r}")
    if checks.n_failed:
        checks.exit()
    exported = run(DMI_DUMP, "export", "--format", "npy", out, "-o", folder / "npy")
    if exported.status:
        raise SystemExit(f"FAILED: dmi-dump export: {exported.stderr}")
    expected = dict(np.load(folder / "with.npz"))
    captured = load_npy(folder / "npy")
    names = [name for name, _ in sites(triton)]
    compare(checks, captured, expected, [name for name in names if not name.startswith("add_")])
    for name, places in find_places(captured, expected).items():
        checks.check(places, f"{name}: its address is in the parameters of torch.add()'s kernel", " ".join(places) or f"none of {PLACES}")
        if not places and not plain:
            print(f"# what torch.add() launches: {run(sys.executable, CLIENT, 'names').stdout}")
    account(checks, out, names)
    checks.exit()


def load_npy(folder):
    """{key: array} of what `dmi-dump export --format npy` wrote."""
    import numpy as np
    index = json.loads((folder / "index.json").read_text())
    return {key: np.load(folder / entry["file"]) for key, entry in index["tensors"].items()}


if __name__ == "__main__":
    main()
