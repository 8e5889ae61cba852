# SPDX-License-Identifier: Apache-2.0
"""A bare Debian 12 of its own, with Debian's Python, PyTorch's wheels from PyPI, and nothing of this folder, of the machine's system, or of NVIDIA's driver.

debootstrap makes it once, in build/debian12. Commands in it have mounts of their own, which end with them, and no network.
"""
import fcntl
import inspect
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import columns
import harness
import torch_env

FOLDER = harness.ROOT / "build" / "debian12"
HOME = "/home/you"
# $1: the root; the others: a command
ENTER = 'mount -t proc proc "$1/proc" && mount --bind /dev "$1/dev" && exec /usr/sbin/chroot "$@"'


def command(root, *words):
    """Run @words in it."""
    return ["unshare", "--mount", "--net", "sh", "-c", ENTER, "sh", str(root), *map(str, words)]


def root():
    """Where it lies; or the test is skipped by name."""
    if os.geteuid() or not shutil.which("debootstrap"):
        pytest.skip("a bare Debian needs debootstrap, and root")
    key, made = torch_env.LISTED.read_text() + inspect.getsource(make), FOLDER / "made-from"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with open(FOLDER / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists() or made.read_text() != key:
            make(FOLDER / "root", FOLDER / "make.log")
            made.write_text(key)
    return FOLDER / "root"


def make(at, log):
    """The wheels are fetched outside of it: it needs no certificates and no name server."""
    shutil.rmtree(at, ignore_errors=True)
    columns.step("making a bare Debian 12 by debootstrap", ["debootstrap", "--variant=minbase", "--include=python3,python3-venv", "bookworm", at], log)
    wheels = at / "root/wheels"
    columns.step("fetching PyTorch from the Python package index", [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--no-deps", "--only-binary=:all:",
                 "--python-version", "3.11", "-d", wheels, "-r", torch_env.LISTED], log)
    install = f"python3 -m venv {HOME}/env && {HOME}/env/bin/pip install -q --no-index --no-deps /root/wheels/* && rm -r /root/wheels"
    columns.step("installing PyTorch in a bare Debian 12", command(at, "sh", "-c", install), log)


def install(at, wheel):
    """The wheel of DMI in it, in place of an older one, beside the empty libraries of torch_env.py. Return: what a shell has in its environment there."""
    _, env = torch_env.python_with_torch()
    home, lib = at / HOME[1:], at / HOME[1:] / "lib"
    shutil.rmtree(lib, ignore_errors=True)
    lib.mkdir()
    for folder in env["LD_LIBRARY_PATH"].split(":"):
        for library in pathlib.Path(folder).glob("*.so.[0-9]*"):
            if pathlib.Path(folder).name == "empty" or library.name.startswith(("libcudart.", "libcupti.")):
                shutil.copy(library, lib)
    shutil.copy(wheel, home)
    next((home / "env").glob("lib/python3*/site-packages")).joinpath("lazy.pth").write_text(torch_env.PREAMBLE)
    done = subprocess.run(command(at, f"{HOME}/env/bin/pip", "install", "-q", "--no-index", "--no-deps", "--force-reinstall", f"{HOME}/{pathlib.Path(wheel).name}"),
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return {"HOME": HOME, "PATH": f"{HOME}/env/bin:/usr/bin:/bin", "LD_LIBRARY_PATH": f"{HOME}/lib"}
