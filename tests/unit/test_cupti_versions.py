# SPDX-License-Identifier: Apache-2.0
"""The CUPTI of each CUDA version against cupti/layouts.c and cupti/records.c: its structs as its headers have them, and 10,000 records, walked by its library.

./bootstrap test --long fetches them (tools/setup/cupti.txt). The headers of 13.5 have the structs of all versions, for those of which no library walks without a driver.
"""
import os
import re
import subprocess

import pytest

from harness import BUILD, ROOT

RECORDS = BUILD / "tests" / "unit" / "test_cupti_records"
pytestmark = pytest.mark.built(RECORDS)
CUDA_H = ROOT / "build/toolchain/nvidia/cu13/include"
NEWEST = "13.5.25"
WALK = {"11.8.87": 18, "12.2.142": 20, "12.4.127": 22, "12.8.90": 26, "13.1.115": 130101}  # what cuptiGetVersion() says
PREFIXES = {"KERNEL": "Kernel", "COPY": "Memcpy", "SET": "Memset", "PEER": "MemcpyPtoP"}
# the version, and the numbers of the structs that this version writes
ALL = [(18, 8, 5, 4), (19, 9, 5, 4), (22, 9, 5, 4), (25, 9, 6, 4), (26, 9, 6, 4), (130000, 10, 6, 4), (130100, 11, 6, 4), (130200, 11, 6, 4), (130300, 12, 6, 4),
       (130400, 12, 6, 4), (130500, 13, 7, 5)]

WITH_SOURCE = 13  # of a kernel: from it on a record says which node its own was instantiated from


def folder(version):
    found = ROOT / "build" / "cupti" / version / "nvidia" / ("cu13" if version.startswith("13") else "cuda_cupti")
    if not found.is_dir():
        pytest.skip(f"needs {found}: ./bootstrap test --long fetches it")
    return found


def differences(tmp_path, include, structs, version):
    """What cupti_headers.c prints that differs, and the version that it was compiled for."""
    program = tmp_path / f"headers-{version}"
    words = [f"-D{macro}=CUpti_Activity{PREFIXES[macro]}{n}" for macro, n in structs.items()]
    words.append(f"-DNODE={'sourceGraphNodeId' if structs['KERNEL'] >= WITH_SOURCE else 'graphNodeId'}")
    subprocess.run(["cc", "-std=gnu17", "-O1", *words, f"-DVERSION={version}", f"-I{ROOT}", f"-I{include}", f"-I{CUDA_H}", "-o", program,
                    *(ROOT / name for name in ("tests/unit/cupti_headers.c", "cupti/layouts.c", "cupti/records.c"))], check=True)
    *wrong, said = subprocess.run([program], text=True, capture_output=True, check=False).stdout.splitlines()
    return wrong, int(said)


def newest_structs(include):
    """{macro: the largest number that the headers have}: what their own version writes."""
    text = "".join(path.read_text(encoding="utf-8") for path in include.glob("cupti_activity*.h"))
    return {macro: max(int(n) for n in re.findall(rf"}} CUpti_Activity{prefix}(\d+);", text)) for macro, prefix in PREFIXES.items()}


@pytest.mark.parametrize("version,number", [*WALK.items(), (NEWEST, 130500)])
def test_structs_of_a_versions_own_headers(tmp_path, version, number):
    include = folder(version) / "include"
    assert differences(tmp_path, include, newest_structs(include), "CUPTI_API_VERSION") == ([], number)


@pytest.mark.parametrize("version,kernel,copy,fill", ALL)
def test_structs_of_all_versions(tmp_path, version, kernel, copy, fill):
    structs = {"KERNEL": kernel, "COPY": copy, "SET": fill, "PEER": 4}
    assert differences(tmp_path, folder(NEWEST) / "include", structs, version) == ([], version)


@pytest.mark.parametrize("version,number", WALK.items())
def test_a_versions_own_library_walks_to_the_same_places(version, number):
    library, = (folder(version) / "lib").glob("libcupti.so.*")
    done = subprocess.run([RECORDS], env={**os.environ, "TEST_CUPTI": str(library)}, text=True, capture_output=True, check=False)
    assert done.returncode == 0 and f"walked by NVIDIA's CUPTI of version {number}\n" in done.stdout, done.stdout + done.stderr
