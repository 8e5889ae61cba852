# SPDX-License-Identifier: Apache-2.0
"""`import torch` under the library, where there is no CUDA driver, and where the driver is the stand-in: nothing changes.

PyTorch 2.14.0 as it comes from PyPI (torch_env.py). The program computes on the CPU, asks for a GPU, and asks the CUDA
runtime why there is none. Without a driver that runtime does not find one; on the stand-in it finds one that has no
export table, and refuses it, as it should: torch.cuda.is_available() is False either way, with the library and without.
What torch writes to stderr is the same, too, less lines that begin with "dmi:". --long only.
"""
import json

import pytest

import harness
import torch_env
from harness import PRELOAD, STANDIN
from standin_log import read_log

pytestmark = pytest.mark.built(PRELOAD, STANDIN / "libcuda.so.1")
PROGRAM = torch_env.PREAMBLE + """
import ctypes, json, torch
torch.manual_seed(1)
x = torch.randn(40, 30)
y = torch.nn.functional.softmax(x @ x.T, dim=-1).sort(dim=1).values
runtime = ctypes.CDLL("libcudart.so.13")
count = ctypes.c_int()
print(json.dumps({"version": torch.__version__, "available": torch.cuda.is_available(), "devices": torch.cuda.device_count(),
                  "refused": runtime.cudaGetDeviceCount(ctypes.byref(count)), "sum": y.double().pow(2).sum().item().hex()}))
try:
    torch.zeros(1, device="cuda")
except (RuntimeError, AssertionError) as error:
    print(type(error).__name__)
"""
SPEC = """
hookspec: 1
name: anything
sites:
  - {name: first, kernel: '.*', pointer: 'arg[0]', dtype: u8, dims: [{row: true, count: 1}], row: none}
"""
# cudaErrorInsufficientDriver, which the runtime says where it finds no driver, and its refusal of the stand-in: it asks for the
# export table, and there is none.
NO_DRIVER, REFUSED = 35, 500


@pytest.fixture(scope="module")
def torch(long):
    if not long:
        pytest.skip("--long only: PyTorch (560 MB) in an environment of its own")
    return torch_env.python_with_torch()


def serve(torch, driver, folder, **more):
    """The program's result; @driver: where libcuda.so.1 is, None: nowhere."""
    python, env = torch
    env = dict(env, **{k: str(v) for k, v in more.items()})
    if driver:
        env["LD_LIBRARY_PATH"] += f":{driver}"
        env["DMI_STANDIN_LOG"] = str(folder / "calls-%p")
    return harness.run([python, "-c", PROGRAM], env=env, cwd=folder)


@pytest.mark.parametrize("driver", [None, STANDIN], ids=["no driver", "stand-in"])
def test_import(check, torch, driver, tmp_path):
    plain_folder, idle_folder, folder = (tmp_path / name for name in ("without", "idle", "spec"))
    for path in (plain_folder, idle_folder, folder):
        path.mkdir()
    plain = serve(torch, driver, plain_folder)
    idle = serve(torch, driver, idle_folder, LD_PRELOAD=PRELOAD)
    (folder / "spec.yaml").write_text(SPEC)
    captured = serve(torch, driver, folder, LD_PRELOAD=PRELOAD, DMI_SPEC=folder / "spec.yaml", DMI_OUT=folder / "out")
    said = json.loads(plain.stdout.splitlines()[0])
    check(not said["available"] and said["devices"] == 0, "there is no GPU for torch", said)
    check(said["refused"] == (REFUSED if driver else NO_DRIVER), f"the CUDA runtime answers {said['refused']}")
    check(len(plain.stdout.splitlines()) == 2, "torch refuses to put a tensor on one", plain.stdout)
    for name, result in (("loaded", idle), ("with a spec", captured)):
        check(result.stdout == plain.stdout, f"{name}: same standard output, error of the runtime included", result.stdout)
        theirs = [line for line in result.stderr.splitlines() if not line.startswith("dmi:")]
        check(theirs == plain.stderr.splitlines(), f"{name}: same on stderr, less what the library says", result.stderr)
    if driver:
        check_calls(check, plain_folder, idle_folder, folder)
    print(f"{said}; stderr: {[line for line in captured.stderr.splitlines()]}")


def check_calls(check, *folders):
    """What the driver was asked: the runtime's own calls are the same with the library, up to its refusal."""
    asked = [[r["name"] for path in folder.glob("calls-*") for r in read_log(path) if r["ev"] == "call"] for folder in folders]
    check("cuGetExportTable" in asked[0], f"the runtime asked the driver: {len(asked[0])} calls")
    for name, calls in (("loaded", asked[1]), ("with a spec", asked[2])):
        check(not any("Launch" in call for call in calls), f"{name}: no kernel was launched")
        check(calls.count("cuGetExportTable") == asked[0].count("cuGetExportTable"), f"{name}: as often for its export table",
              calls.count("cuGetExportTable"))
