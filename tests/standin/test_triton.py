# SPDX-License-Identifier: Apache-2.0
"""Kernels that Triton compiled for sm_80 compute on the stand-in what numpy does: tensor cores, ldmatrix, cp.async.

The PTX is committed (triton/*.ptx). --long compiles it anew, in an environment of its own that pip fills from
tools/setup/triton.txt; Triton must write the same text again.
"""
import ctypes
import fcntl
import json
import subprocess
import sys

import pytest

import harness
from triton.specs import SPECS

np = pytest.importorskip("numpy")
cu = pytest.importorskip("cuda.bindings.driver")
pytestmark = pytest.mark.built(harness.STANDIN / "libcuda.so.1")
COMMITTED = harness.ROOT / "tests/standin/triton"
LISTED = harness.ROOT / "tools/setup/triton.txt"
TYPES = {"i32": ctypes.c_int, "fp32": ctypes.c_float}


def done(result):
    """Unwrap cuda.bindings' (error, values...) tuples."""
    assert result[0] == cu.CUresult.CUDA_SUCCESS, result[0]
    return result[1] if len(result) == 2 else result[1:]


def interpreter_with_triton():
    """Its environment lies in the build folder, made once."""
    venv = harness.BUILD / "tests/standin/triton"
    stamp = venv / "made-from"
    venv.mkdir(parents=True, exist_ok=True)
    with open(venv / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != LISTED.read_text():
            for command in ([sys.executable, "-m", "venv", venv],
                            [venv / "bin/python", "-m", "pip", "-q", "install", "--no-deps", "--only-binary=:all:", "-r", LISTED]):
                if subprocess.run(command, check=False).returncode:
                    pytest.skip("Triton could not be installed: is the Python package index reachable?")
            stamp.write_text(LISTED.read_text())
    return venv / "bin/python"


@pytest.fixture(scope="module")
def folder(long, tmp_path_factory):
    if not long:
        return COMMITTED
    fresh = tmp_path_factory.mktemp("triton")
    harness.run([interpreter_with_triton(), COMMITTED / "compile.py", fresh], env=harness.environment(PYTHONDONTWRITEBYTECODE=1))
    for path in sorted(fresh.iterdir()):
        assert path.read_text() == (COMMITTED / path.name).read_text(), f"{path.name} is not what Triton writes"
    return fresh


@pytest.fixture(scope="module")
def gpu():
    done(cu.cuInit(0))
    context = done(cu.cuDevicePrimaryCtxRetain(done(cu.cuDeviceGet(0))))
    done(cu.cuCtxSetCurrent(context))


def on_device(array):
    pointer = done(cu.cuMemAlloc(array.nbytes))
    done(cu.cuMemcpyHtoD(pointer, array.ctypes.data, array.nbytes))
    return pointer


def launch(folder, name, grid, values, out):
    """Run a kernel; @values are its arguments, arrays by value; @out: the one that comes back."""
    spec = SPECS[name]
    module = done(cu.cuModuleLoadData((folder / f"{name}.ptx").read_bytes() + b"\0"))
    function = done(cu.cuModuleGetFunction(module, spec.kernel.encode()))
    shared = json.loads((folder / "launch.json").read_text())["shared_bytes"][name]
    pointers, arguments, types = [], [], []
    for value, kind in zip(values, spec.arguments.values(), strict=True):
        if kind[0] == "*":
            pointers.append(on_device(value))
            value = int(pointers[-1])
        arguments.append(value)
        types.append(TYPES.get(kind, ctypes.c_void_p))
    # Triton adds two pointers, to scratch memory that these kernels do not need
    arguments += [0, 0]
    types += [ctypes.c_void_p, ctypes.c_void_p]
    done(cu.cuLaunchKernel(function, *grid, 1, spec.threads, 1, 1, shared, 0, (tuple(arguments), tuple(types)), 0))
    done(cu.cuCtxSynchronize())
    result = np.empty_like(values[out])
    done(cu.cuMemcpyDtoH(result.ctypes.data, pointers[[v is values[out] for v in values if isinstance(v, np.ndarray)].index(True)],
                         result.nbytes))
    for pointer in pointers:
        done(cu.cuMemFree(pointer))
    done(cu.cuModuleUnload(module))
    return result


def bf16_bits(x):
    """To nearest, ties to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def bf16_values(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


# Per type: bits that go to the device, what they stand for in the multiplication, and the error of the result.
ELEMENTS = {
    "f16": (lambda x: x.astype(np.float16), lambda bits: bits, lambda bits: bits, 1e-3),
    "bf16": (bf16_bits, bf16_values, bf16_values, 8e-3),
    "tf32": (lambda x: x.astype(np.float32), lambda bits: (bits.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32),
             lambda bits: bits, 1e-5),
}


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("m, n, k", [(64, 64, 64), (100, 80, 96), (33, 144, 272), (1, 16, 16)])
def test_matmul(gpu, folder, element, m, n, k):
    to_bits, factor, result, error = ELEMENTS[element]
    random = np.random.default_rng(m)
    a, b = (to_bits(random.standard_normal(shape).astype(np.float32)) for shape in ((m, k), (k, n)))
    untouched = to_bits(np.full((m + 64, n), 77, np.float32))
    tile = SPECS[f"matmul_{element}"].constants
    grid = (-(-m // tile["ROWS"]), -(-n // tile["COLUMNS"]))
    got = launch(folder, f"matmul_{element}", grid, [a, b, untouched, m, n, k, k, n, n], 2)
    want = factor(a).astype(np.float64) @ factor(b).astype(np.float64)
    scale = np.sqrt(k)
    assert np.abs(result(got[:m]).astype(np.float64) - want).max() < error * scale * 4
    assert (got[m:] == untouched[m:]).all()


@pytest.mark.parametrize("n", [1024, 1000, 1])
def test_softmax(gpu, folder, n):
    x = np.random.default_rng(n).standard_normal((5, 1024)).astype(np.float32) * 8
    got = launch(folder, "softmax", (5, 1), [x, np.full_like(x, 7), n, 1024], 1)
    e = np.exp(x[:, :n].astype(np.float64) - x[:, :n].max(1, keepdims=True))
    assert np.abs(got[:, :n] - e / e.sum(1, keepdims=True)).max() < 1e-6
    assert (got[:, n:] == 7).all()


@pytest.mark.parametrize("n", [1024, 576])
def test_layer_norm(gpu, folder, n):
    random = np.random.default_rng(n)
    x = (random.standard_normal((6, 1024)) * 3 + 1).astype(np.float16)
    weight, bias = (random.standard_normal(1024).astype(np.float32) for _ in range(2))
    got = launch(folder, "layer_norm", (6, 1), [x, weight, bias, np.full_like(x, 7), n, 1024, 1e-5], 3)
    wide = x[:, :n].astype(np.float64)
    want = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5) * weight[:n] + bias[:n]
    assert np.abs(got[:, :n].astype(np.float64) - want).max() < 5e-3
    assert (got[:, n:] == 7).all()


def test_the_kernels_use_what_sm_80_has(folder):
    text = "".join((folder / f"{name}.ptx").read_text() for name in SPECS)
    for form in ("m16n8k16.row.col.f32.f16.f16.f32", "m16n8k16.row.col.f32.bf16.bf16.f32", "m16n8k8.row.col.f32.tf32.tf32.f32",
                 "ldmatrix.sync.aligned.m8n8.x4.shared", "m8n8.x4.trans", "cp.async.cg.shared.global", "cp.async.wait_group"):
        assert form in text
