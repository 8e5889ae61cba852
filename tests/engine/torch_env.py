# SPDX-License-Identifier: Apache-2.0
"""PyTorch as it comes from PyPI, in an environment of its own, without the 2.7 GB of NVIDIA's libraries that it asks for.

tools/setup/torch.txt lists what is in it. libtorch is linked to CUDA libraries that it needs for a GPU alone: in their
place there are libraries with their names and versions, and nothing in them; the CUDA runtime and CUPTI are real, the
toolchain's. Programs import torch with lazy binding (PREAMBLE): a function that is not there would be missed when called.
torch_cuda_env.py has another environment, where PyTorch finds a driver.
"""
import fcntl
import pathlib
import re
import shutil
import subprocess

import pytest

import columns
import harness

LISTED = harness.ROOT / "tools" / "setup" / "torch.txt"
PREAMBLE = "import os, sys; sys.setdlopenflags(os.RTLD_LAZY)\n"
REAL = re.compile(r"(libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|ld-linux.*|libcuda|libcudart|libcupti)\.so.*")


def needed(library):
    """{library that it is linked to: names of the versions that it wants of it}, as `readelf` tells."""
    told = subprocess.run(["readelf", "-W", "-d", "-V", library], stdout=subprocess.PIPE, text=True, check=True).stdout
    found = {name: set() for name in re.findall(r"\(NEEDED\).*\[(.*)\]", told)}
    for part in told.partition("Version needs section")[2].split("File: ")[1:]:
        found.setdefault(part.split()[0], set()).update(re.findall(r"Name: (\S+)", part))
    return found


def wanted(torch):
    """{library that torch's are linked to, which is neither in its wheel nor REAL: names of the versions that they want}"""
    found = {}
    for library in torch.glob("lib*.so*"):
        for name, versions in needed(library).items():
            if not REAL.fullmatch(name) and not (torch / name).exists():
                found.setdefault(name, set()).update(versions)
    return found


def make_library(path, versions, code=""):
    """A library of the name @path with these @versions, which holds @code alone."""
    script, source = path.parent / "versions", path.parent / "source.c"
    script.write_text("\n".join(f"{version} {{}};" for version in sorted(versions)) if isinstance(versions, (set, list)) else versions)
    source.write_text(code)
    more = [f"-Wl,--version-script={script}"] if versions else []
    subprocess.run(["gcc", "-shared", *([] if code else ["-nostdlib"]), "-fPIC", source, "-o", path, f"-Wl,-soname,{path.name}", *more], check=True)
    script.unlink()
    source.unlink()


def make_empty(torch, folder):
    """Libraries with nothing in them for all that torch's are linked to."""
    for name, versions in sorted(wanted(torch).items()):
        make_library(folder / name, versions)


def installed(what, listed, made, make):
    """
    The environment of the list @listed, in build/NAME for NAME.txt, made once, or the test is skipped by name; in its folder @made is
    what @make(torch's libraries, folder) makes.
    """
    venv = harness.ROOT / "build" / listed.stem
    stamp, made_stamp = venv / "made-from", venv / f"{made}-from"
    key = "".join(pathlib.Path(path).read_text() for path in (listed, __file__, make.__code__.co_filename))
    venv.mkdir(parents=True, exist_ok=True)
    with open(venv / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != listed.read_text():
            columns.make_venv(what, venv / "env", listed, venv / "install.log")
            stamp.write_text(listed.read_text())
        if not made_stamp.exists() or made_stamp.read_text() != key:
            shutil.rmtree(venv / made, ignore_errors=True)
            (venv / made).mkdir()
            make(next((venv / "env").glob("lib/python3*/site-packages/torch/lib")), venv / made)
            made_stamp.write_text(key)
    return venv


def python_with_torch():
    """(interpreter, environment); made once, beside the build folders, or the test is skipped by name."""
    venv = installed("PyTorch", LISTED, "empty", make_empty)
    runtime = pathlib.Path(columns.toolkit()) / "lib"
    if not (runtime / "libcupti.so.13").exists():
        pytest.skip(f"no libcupti.so.13 in {runtime}: PyTorch cannot be imported without it")
    env = harness.environment(PYTHONDONTWRITEBYTECODE=1)
    env["LD_LIBRARY_PATH"] = f"{venv / 'empty'}:{runtime}"
    return venv / "env/bin/python", env
