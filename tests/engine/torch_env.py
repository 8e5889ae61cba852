# SPDX-License-Identifier: Apache-2.0
"""PyTorch as it comes from PyPI, in an environment of its own, without the 2.7 GB of NVIDIA's libraries that it asks for.

tools/setup/torch.txt lists what is in it. libtorch is linked to CUDA libraries that it needs for a GPU alone: in their
place there are libraries with their names and versions, and nothing in them; the CUDA runtime and CUPTI are real, the
toolchain's. Programs import torch with lazy binding (PREAMBLE): a function that is not there would be missed when called.
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


def make_empty(torch, folder):
    """Libraries with nothing in them for all that torch's are linked to and that is neither in its wheel nor REAL."""
    wanted = {}
    for library in torch.glob("lib*.so*"):
        for name, versions in needed(library).items():
            wanted.setdefault(name, set()).update(versions)
    folder.mkdir()
    for name, versions in sorted(wanted.items()):
        if REAL.fullmatch(name) or (torch / name).exists():
            continue
        script = folder / "versions"
        script.write_text("\n".join(f"{version} {{}};" for version in sorted(versions)))
        more = [f"-Wl,--version-script={script}"] if versions else []
        subprocess.run(["gcc", "-shared", "-nostdlib", "-x", "c", "/dev/null", "-o", folder / name, f"-Wl,-soname,{name}", *more],
                       check=True)


def python_with_torch():
    """(interpreter, environment); made once, beside the build folders, or the test is skipped by name."""
    venv = harness.ROOT / "build" / "torch"
    stamp, log, empty = venv / "made-from", venv / "install.log", venv / "empty"
    key = LISTED.read_text() + pathlib.Path(__file__).read_text()
    venv.mkdir(parents=True, exist_ok=True)
    with open(venv / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != key:
            columns.make_venv("PyTorch", venv / "env", LISTED, log)
            shutil.rmtree(empty, ignore_errors=True)
            make_empty(next((venv / "env").glob("lib/python3*/site-packages/torch/lib")), empty)
            stamp.write_text(key)
    runtime = pathlib.Path(columns.toolkit()) / "lib"
    if not (runtime / "libcupti.so.13").exists():
        pytest.skip(f"no libcupti.so.13 in {runtime}: PyTorch cannot be imported without it")
    env = harness.environment(PYTHONDONTWRITEBYTECODE=1)
    env["LD_LIBRARY_PATH"] = f"{empty}:{runtime}"
    return venv / "env/bin/python", env
