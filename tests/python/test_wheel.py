# SPDX-License-Identifier: Apache-2.0
"""The wheel, installed where nothing else of DMI is: an engine is captured with what it holds, and it holds what its name promises."""
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys

import pytest

from harness import BUILD, DMI_DUMP, DMI_RUN, PRELOAD, ROOT, STANDIN

PACKER = ROOT / "build" / "wheel"
pytestmark = pytest.mark.built(PRELOAD, DMI_RUN, DMI_DUMP, STANDIN / "libcuda.so.1")
PROGRAM = r"""
#include <cuda.h>
#include <dmi/dtype.h>
#include <dmi/tap.h>

int main(void)
{
    CUdevice device;
    CUcontext context;
    CUdeviceptr data;
    if (cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) || cuCtxSetCurrent(context) ||
        cuMemAlloc(&data, 8 * 4) || cuMemsetD32(data, 0x40490fdb, 8))
        return 1;
    struct dmi_tap tap = { .size = sizeof tap, .version = DMI_TAP_VERSION, .name = "pi", .layer = 3, .n_layers = 4, .data = (void *)data,
                           .dtype = DMI_DTYPE_F32, .n_dims = 2, .row_dims = 1, .count = { 2, 4 }, .stride = { 16, 4 } };
    dmi_tap_here(&tap);
    return cuCtxSynchronize();
}
"""


def run(*words, **more):
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120, **more)
    assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


@pytest.fixture(name="wheel", scope="module")
def fixture_wheel(tmp_path_factory):
    if not (PACKER / "wheel").is_dir():
        pytest.skip(f"{PACKER} does not exist: what packs wheels could not be had")
    if not shutil.which("meson"):
        pytest.skip("meson is not on PATH")
    out = tmp_path_factory.mktemp("wheel")
    said = run(sys.executable, ROOT / "tools" / "setup" / "wheel.py", BUILD, out, env={**os.environ, "PYTHONPATH": str(PACKER)})
    return pathlib.Path(said.strip())


@pytest.fixture(name="home", scope="module")
def fixture_home(wheel, tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    run(sys.executable, "-m", "venv", "--without-pip", home)
    run(sys.executable, "-m", "pip", "--python", home / "bin" / "python", "install", "-q", "--no-index", "--no-deps", wheel)
    return home


@pytest.fixture(name="env")
def fixture_env(home):
    """Nothing of this folder is in it but the driver, and what it keeps of kernels."""
    kept = os.environ.get("DMI_STANDIN_CACHE", str(BUILD / "standin-cache"))
    return {"PATH": f"{home / 'bin'}:/usr/bin:/bin", "LD_LIBRARY_PATH": str(STANDIN), "HOME": str(home), "DMI_STANDIN_CACHE": kept}


def test_name(check, wheel):
    """Only what every machine with that glibc has: auditwheel's word for the symbols, for libraries the next test's."""
    said = run(sys.executable, "-m", "auditwheel", "show", wheel, env={**os.environ, "PYTHONPATH": str(PACKER)})
    tag = re.search(r"constrains the platform tag to\s+\"(\w+)\"", said)
    check(tag and wheel.name.endswith(f"-py3-none-{tag[1]}.whl"), f"{wheel.name} says what it needs", said)
    libc = tuple(map(int, platform.libc_ver()[1].split(".")))
    check(libc > (2, 36) or tag[1].startswith("manylinux_2_34_"), "built with Debian 12's glibc it runs with 2.34")


def test_libraries(check, home, env):
    own, found = home.resolve(), {}
    lib = next(own.glob("lib/**/libdmi_read.so.1"))
    for path in (*(own / "bin" / name for name in ("dmi-run", "dmi-analyze", "dmi-ctl", "dmi-dump", "dmi-replay", "dmi-sites", "dmi-top", "dmi-view")), lib, next(own.glob("lib/**/libdmi_preload.so"))):
        found |= {f"{path.name}: {name}": where for name, where in re.findall(r"(\S+) => (\S+)", run("ldd", path, env=env))}
    system = {key for key, where in found.items() if not pathlib.Path(where).resolve().is_relative_to(own)}
    check({key.split(": ")[1] for key in system} <= {"libc.so.6", "libm.so.6", "libz.so.1"}, "of the system only libc, libm and zlib are used", sorted(system))
    check(len(found) > len(system), "other libraries came along", found)
    run(home / "bin" / "python", "-c", f"import ctypes; ctypes.CDLL({str(lib)!r}).dmi_read_version", env=env)


def test_an_engine_is_captured(check, home, env, tmp_path):
    (tmp_path / "engine.c").write_text(PROGRAM)
    toolkit = pathlib.Path(os.environ.get("CUDA_HOME", ROOT / "build" / "toolchain" / "nvidia" / "cu13"))
    run("gcc", "-isystem", toolkit / "include", "-I", home / "include", "engine.c", "-o", "engine", "-L", STANDIN, "-lcuda", env=env, cwd=tmp_path)
    run("dmi-run", "--tap", "pi", "--out", "RUN", "--", "./engine", env=env, cwd=tmp_path)
    rows = json.loads(run("dmi-dump", "show", "pi", "RUN", "--json", env=env, cwd=tmp_path))
    check(len(rows) == 2 and all(abs(value - 3.1415927) < 1e-6 for row in rows for value in row["values"]), "its tensor is what it was", rows)
    listed = run("python", "-c", "import dmi; print([(t.key, t.shape, t.positions) for t in dmi.open('RUN').values()])", env=env, cwd=tmp_path)
    check(listed == "[('pi.3', (2, 4), [0, 1])]\n", "and dmi.open() reads the run", listed)
    program = ("import dmi, importlib.metadata\ntry:\n    dmi.open('RUN')['pi.3'].float32()\nexcept ImportError as error:\n    print(error)\n"
               "print(importlib.metadata.metadata('dmi').get_all('Provides-Extra'), importlib.metadata.requires('dmi'))")
    said = run("python", "-c", program, env=env, cwd=tmp_path)
    check(said == "numpy is not installed, and this needs it: pip install 'dmi[numpy]'\n['numpy'] ['numpy; extra == \"numpy\"']\n", "without numpy a sentence says how it comes", said)
    said = run("dmi-run", "--tap", "pi", "--out", "PYTHON", "--", "python", "-c", "import dmi; print(dmi.loaded(), dmi.__file__)", env=env, cwd=tmp_path)
    check(said.startswith(f"True {home}"), "the package knows the library", said)


def test_engines_find_their_plugins(check, home, env):
    """By the wheel's metadata, as vLLM does; without the library they do nothing."""
    program = ("from importlib.metadata import entry_points; import sys; "
               "[print(e.group, e.name, e.load()()) for group in ('vllm.general_plugins', 'sglang.srt.plugins') for e in entry_points(group=group)]; print(sys.meta_path)")
    said = run(home / "bin" / "python", "-c", program, env=env)
    check(said.startswith("vllm.general_plugins dmi None\nsglang.srt.plugins dmi None\n") and "_Finder" not in said, "vLLM's and SGLang's", said)


def test_a_script_that_knows_nothing(check, env, tmp_path):
    """--attach brings what a script in Python needs: here without PyTorch, so it only has to go by unharmed."""
    (tmp_path / "script.py").write_text("import sys; print('ran', any('dmi' in path for path in sys.path))\n")
    said = run("dmi-run", "--attach", "residuals", "--out", "RUN", "--", "python", "script.py", env=env, cwd=tmp_path)
    check(said.startswith("ran True"), "it finds what --attach needs", said)
