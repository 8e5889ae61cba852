#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""smoke.py without a GPU: it passes on the stand-in, it fails where a record is missing or wrong, and its program is
the same for PyTorch and without.

DMI_TEST_BUILD names the build folder; LD_LIBRARY_PATH leads to the stand-in.
"""
import inspect
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import numpy as np  # noqa: E402
import smoke  # noqa: E402
import smoke_client  # noqa: E402
import smoke_driver  # noqa: E402
from harness import Checks  # noqa: E402

checks = Checks()


def comparisons():
    """On made-up data: rows of bits, not of numbers."""
    rows = np.arange(24, dtype=np.float32).reshape(4, 6)
    flipped = rows.copy()
    flipped.view(np.uint32)[2, 5] ^= 1
    zeros, nans = np.zeros((2, 3), np.float32), np.full((2, 3), np.nan, np.float32)
    other_nans = nans.copy()
    other_nans.view(np.uint32)[0, 0] ^= 1
    cases = [("the same", rows, rows.copy(), ""), ("a bit", flipped, rows, "1 of 4 rows differ, the first is row 2"),
             ("no record", None, rows, "not captured"), ("a row less", rows[:3], rows, "shape (3, 6), not (4, 6)"),
             ("nans are bits", nans, nans.copy(), ""), ("another nan", other_nans, nans, "1 of 2 rows differ, the first is row 0"),
             ("minus zero", -zeros, zeros, "2 of 2 rows differ, the first is row 0")]
    for what, captured, expected, text in cases:
        got = smoke.difference(captured, expected)
        checks.check(got == text, f"difference: {what}", "" if got == text else got)

    layers = range(smoke.LAYERS)
    tensors = {name: {k: np.full((3, 2), n * 10 + k, np.float32) for k in layers} for n, name in enumerate(("add_out", "add_a", "add_b"), 1)}
    expected = {f"{name}.{k}": tensors[name][k] for name in tensors for k in layers}
    captured = {f"add_2_{o}.{k}": tensors[name][k] for o, name in ((8, "add_out"), (0, "add_a")) for k in layers}
    captured.update({f"add_2_16.{k}": tensors["add_b"][k if k else 1] for k in layers})  # of one layer it is another's
    found = smoke.find_places(captured, expected)
    checks.check(found == {"add_out": ["arg[2][8]"], "add_a": ["arg[2][0]"], "add_b": []}, "places are found where all layers agree", found)


def devices():
    """What the program calls is there in both, with the same arguments."""
    def calls(kind):
        return {name: list(inspect.signature(f).parameters) for name, f in vars(kind).items() if not name.startswith("_")}

    plain, torch = calls(smoke_driver.PlainDevice), calls(smoke_client.TorchDevice)
    same = {name: len(words) for name, words in plain.items()} == {name: len(words) for name, words in torch.items()}
    checks.check(same, "PyTorch's device and the plain one have the same calls", f"{plain} {torch}" if not same else "")
    checks.check((smoke.LAYERS, smoke.COLS, smoke.FORWARDS) == (smoke_client.LAYERS, smoke_client.COLS,
                 len(smoke_client.EAGER_ROWS) + smoke_client.REPLAYS), "the program is the one that is compared")
    source = (HERE / "smoke_triton.py").read_text()
    compile(source, "smoke_triton.py", "exec")
    folder = smoke.workspace()
    for triton in (False, True):
        path = folder / "smoke.yaml"
        path.write_text(smoke.spec(triton))
        done = subprocess.run([smoke.DMI_RUN, "--spec", path, "--check"], stderr=subprocess.PIPE, text=True)
        checks.check(done.returncode == 0, f"dmi-run --check accepts the spec {'with' if triton else 'without'} Triton", done.stderr)


def runs():
    def smoke_plain(**env):
        done = subprocess.run([sys.executable, HERE / "smoke.py", "--plain"], env={**os.environ, **env}, timeout=150, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.returncode, done.stdout

    carried = smoke.workspace() / "carried"
    for path in ("tools/dmi-run", "tools/dmi-dump", "preload/libdmi_preload.so"):
        (carried / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(smoke.BUILD / path, carried / path)
    for how, env in (("on the stand-in", {}), ("with delays", {"DMI_STANDIN_DELAY_SEED": "1"}),
                     ("with the files that travel, elsewhere", {"DMI_TEST_BUILD": str(carried)})):
        status, output = smoke_plain(**env)
        checks.check(status == 0 and "FAILED" not in output, f"it passes {how}", output[-2500:] if status else "")
    for what, fail in (("a ticket that cannot be set", "cuGraphExecKernelNodeSetParams_v2:9:1"), ("a graph that cannot be cloned", "cuGraphClone:0:801")):
        status, output = smoke_plain(DMI_STANDIN_FAIL=fail)
        checks.check(status == 1 and "FAILED own: " in output, f"it fails by name for {what}", "" if status == 1 else output[-2500:])
    status, output = smoke_plain(LD_LIBRARY_PATH="/nonexistent", DMI_TEST_BUILD="/nonexistent")
    checks.check(status == 77 and "was not built" in output, "without a build it is skipped", output if status != 77 else "")


def main():
    for test in (comparisons, devices, runs):
        test()
    checks.exit()


if __name__ == "__main__":
    main()
