# SPDX-License-Identifier: Apache-2.0
"""Drivers of several versions: each exports, resolves and reads what a driver of that version does, and no more."""
import ctypes
import re
import struct
import subprocess
import sys

import pytest

from harness import ROOT, STANDIN_VERSIONS, standin_folder

ENTRIES = [(symbol, name, int(version), kind == "per_thread") for symbol, name, version, kind in
           re.findall(r"^DRIVER_ENTRY\((\w+), (\w+), (\d+), (\w+)\)", (ROOT / "tests/standin/driver.def").read_text(), re.M)]
PTX = {11080: "7.8", 12020: "8.2", 12040: "8.4", 12080: "8.7", 13000: "9.0"}
NEXT_PTX = {"7.8": "8.0", "8.2": "8.3", "8.4": "8.5", "8.7": "8.8", "9.0": "9.1"}
NOT_FOUND, UNSUPPORTED_PTX_VERSION = 500, 222
SYMBOL_NOT_FOUND, VERSION_NOT_SUFFICIENT = 1, 2

pytestmark = [pytest.mark.built(*(standin_folder(v) / "libcuda.so.1" for v in STANDIN_VERSIONS)),
              pytest.mark.parametrize("version", STANDIN_VERSIONS)]


def library(version):
    return standin_folder(version) / "libcuda.so.1"


def asked(version, question, *words):
    """What the function @question of this file prints in a process of its own: there is one driver a process."""
    code = f"import sys; sys.path[:0] = {sys.path!r}; import test_versions; test_versions.{question}(*sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", code, library(version), *map(str, words)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def answered_version(path):
    number = ctypes.c_int()
    assert ctypes.CDLL(path).cuDriverGetVersion(ctypes.byref(number)) == 0
    print(number.value)


def test_it_says_its_version(version):
    assert asked(version, "answered_version") == f"{version}\n"


def test_it_exports_what_was_there_then(version):
    listed = subprocess.run(["nm", "-D", "--defined-only", library(version)], capture_output=True, text=True, check=True).stdout
    exported = {name for name in (line.split()[-1].split("@")[0] for line in listed.splitlines()) if not name.startswith("standin_")}
    assert exported == {symbol for symbol, _, since, _ in ENTRIES if since <= version}


def resolved(path):
    """A line a name: status and symbol by v2, result by v1, asked for version 99000; then v2 for 2000."""
    driver = ctypes.CDLL(path)
    places = {ctypes.cast(getattr(driver, symbol), ctypes.c_void_p).value: symbol for symbol, *_ in ENTRIES if hasattr(driver, symbol)}
    for name in sorted({entry[1] for entry in ENTRIES}):
        found, old, early = ctypes.c_void_p(), ctypes.c_void_p(42), ctypes.c_void_p()
        status, early_status = ctypes.c_int(-1), ctypes.c_int(-1)
        result = driver.cuGetProcAddress(name.encode(), ctypes.byref(old), 99000, ctypes.c_uint64(2))
        if hasattr(driver, "cuGetProcAddress_v2"):
            assert driver.cuGetProcAddress_v2(name.encode(), ctypes.byref(found), 99000, ctypes.c_uint64(2), ctypes.byref(status)) == 0
            driver.cuGetProcAddress_v2(name.encode(), ctypes.byref(early), 1000, ctypes.c_uint64(2), ctypes.byref(early_status))
        print(name, result, old.value if result else places[old.value], status.value, places.get(found.value), early_status.value)


def expected(version, name):
    """The newest variant that the driver has; the per-thread one where there is one."""
    has = [(per_thread, since, symbol) for symbol, n, since, per_thread in ENTRIES if n == name and since <= version]
    symbol, v2 = max(has)[2] if has else None, version >= 12000
    status = -1 if not v2 else 0 if symbol else SYMBOL_NOT_FOUND
    early = -1 if not v2 else VERSION_NOT_SUFFICIENT if symbol else SYMBOL_NOT_FOUND
    return " ".join(map(str, (name, 0 if symbol else NOT_FOUND, symbol or 42, status, symbol if v2 else None, early)))


def test_it_resolves_what_was_there_then(version):
    lines = asked(version, "resolved").splitlines()
    assert lines == [expected(version, name) for name in sorted({entry[1] for entry in ENTRIES})]


def text(ptx, kernel="k"):
    return f"// made by a test\n.version {ptx}\n.target sm_75\n.address_size 64\n.visible .entry {kernel}()\n{{\n ret;\n}}\n"


def fatbin(*texts):
    """PTX alone, each entry for an architecture higher than the one before."""
    body = b""
    for i, ptx in enumerate(texts):
        data = ptx.encode() + bytes(8 - len(ptx) % 8)
        body += struct.pack("<HHIQIIHHIIIQ", 1, 0x101, 64, len(data), 0, 0, 0, 0, 75 + i, 0, 0, 0) + bytes(16) + data
    return struct.pack("<IHHQ", 0xba55ed50, 1, 16, len(body)) + body


def loaded(path, newest, newer):
    """The results of loading texts and fatbins of two PTX versions, and which kernel came out of the last."""
    driver, ctx, module, function = ctypes.CDLL(path), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    assert driver.cuInit(0) == 0 and driver.cuCtxCreate_v2(ctypes.byref(ctx), 0, 0) == 0
    for image in (text(newest).encode(), text(newer).encode(), fatbin(text(newer)), fatbin(text(newest, "old"), text(newer, "new"))):
        print(driver.cuModuleLoadData(ctypes.byref(module), image))
    print(driver.cuModuleGetFunction(ctypes.byref(function), module, b"old"))
    print(driver.cuModuleGetFunction(ctypes.byref(function), module, b"new"))


def test_it_reads_ptx_up_to_its_own(version):
    newest = PTX[version]
    results = asked(version, "loaded", newest, NEXT_PTX[newest]).split()
    assert results == ["0", str(UNSUPPORTED_PTX_VERSION), str(UNSUPPORTED_PTX_VERSION), "0", "0", str(NOT_FOUND)]
