# SPDX-License-Identifier: Apache-2.0
"""smoke.py without a GPU: it passes on the stand-in, it fails where a record is missing or wrong, and its program is
the same for PyTorch and without.

LD_LIBRARY_PATH leads to the stand-in.
"""
import inspect
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from harness import BUILD, DMI_DUMP, DMI_RUN, PRELOAD, STANDIN

np = pytest.importorskip("numpy")
import smoke  # noqa: E402
import smoke_client  # noqa: E402
import smoke_driver  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
pytestmark = pytest.mark.built(DMI_RUN, DMI_DUMP, PRELOAD, STANDIN / "libcuda.so.1")


def test_difference(check):
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
        check(got == text, what, got)


def test_places():
    """They are found where all layers agree."""
    layers = range(smoke.LAYERS)
    tensors = {name: {k: np.full((3, 2), n * 10 + k, np.float32) for k in layers} for n, name in enumerate(("add_out", "add_a", "add_b"), 1)}
    expected = {f"{name}.{k}": tensors[name][k] for name in tensors for k in layers}
    captured = {f"add_2_{o}.{k}": tensors[name][k] for o, name in ((8, "add_out"), (0, "add_a")) for k in layers}
    captured.update({f"add_2_16.{k}": tensors["add_b"][k if k else 1] for k in layers})  # of one layer it is another's
    found = smoke.find_places(captured, expected)
    assert found == {"add_out": ["arg[2][8]"], "add_a": ["arg[2][0]"], "add_b": []}


def test_devices(check, tmp_path):
    """What the program calls is there in both, with the same arguments."""
    def calls(kind):
        return {name: list(inspect.signature(f).parameters) for name, f in vars(kind).items() if not name.startswith("_")}

    plain, torch = calls(smoke_driver.PlainDevice), calls(smoke_client.TorchDevice)
    same = {name: len(words) for name, words in plain.items()} == {name: len(words) for name, words in torch.items()}
    check(same, "PyTorch's device and the plain one have the same calls", f"{plain} {torch}")
    check((smoke.LAYERS, smoke.COLS, smoke.FORWARDS) == (smoke_client.LAYERS, smoke_client.COLS,
          len(smoke_client.EAGER_ROWS) + smoke_client.REPLAYS), "the program is the one that is compared")
    source = (HERE / "smoke_triton.py").read_text()
    compile(source, "smoke_triton.py", "exec")
    for triton in (False, True):
        path = tmp_path / "smoke.yaml"
        path.write_text(smoke.spec(triton))
        done = subprocess.run([DMI_RUN, "--spec", path, "--check"], stderr=subprocess.PIPE, text=True)
        check(done.returncode == 0, f"dmi-run --check accepts the spec {'with' if triton else 'without'} Triton", done.stderr)


def smoke_plain(**env):
    done = subprocess.run([sys.executable, HERE / "smoke.py", "--plain"], env={**os.environ, **env}, timeout=150, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


@pytest.mark.parametrize("delays", [pytest.param({}, id="on the stand-in"), pytest.param({"DMI_STANDIN_DELAY_SEED": "1"}, id="with delays")])
def test_it_passes(delays):
    status, output = smoke_plain(**delays)
    assert status == 0 and "FAILED" not in output, output[-2500:]


def test_it_passes_with_the_files_that_travel(tmp_path):
    for path in ("tools/dmi-run", "tools/dmi-dump", "preload/libdmi_preload.so"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(BUILD / path, tmp_path / path)
    status, output = smoke_plain(DMI_TEST_BUILD=str(tmp_path))
    assert status == 0 and "FAILED" not in output, output[-2500:]


@pytest.mark.parametrize("fail", [pytest.param("cuGraphExecKernelNodeSetParams_v2:9:1", id="a ticket that cannot be set"),
                                  pytest.param("cuGraphClone:0:801", id="a graph that cannot be cloned")])
def test_it_fails_by_name(fail):
    status, output = smoke_plain(DMI_STANDIN_FAIL=fail)
    assert status == 1 and "FAILED own: " in output, output[-2500:]


def test_without_a_build_it_is_skipped():
    status, output = smoke_plain(LD_LIBRARY_PATH="/nonexistent", DMI_TEST_BUILD="/nonexistent")
    assert status == 77 and "was not built" in output, output[-2500:]
