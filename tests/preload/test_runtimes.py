# SPDX-License-Identifier: Apache-2.0
"""Real CUDA runtimes, shared and static, under the library on the stand-in driver, up to their own refusal of it.

Each asks the driver for some 400 functions and then refuses what is no driver of NVIDIA's; that is expected, and nothing
here works around it. tests/preload/witness.c writes down every pointer that it is given: the library's where it
has a wrapper, the driver's everywhere else. ./bootstrap test fetches the runtimes (tools/setup/runtimes.txt); the
newest belongs to the toolchain.
"""
import shutil

import pytest

from harness import BUILD, ROOT, STANDIN_VERSION, run
from kit import site, spec

HERE = BUILD / "tests" / "preload"
WITNESS, CLIENT = HERE / "libwitness.so", HERE / "runtime_client"
HOOKS = set(re.findall(r"^HOOK\((\w+)\)", (ROOT / "preload/hooks.def").read_text(), re.M))
SHARED = {
    "12.4.127": ROOT / "build/runtimes/12.4.127/nvidia/cuda_runtime/lib/libcudart.so.12",
    "12.8.90": ROOT / "build/runtimes/12.8.90/nvidia/cuda_runtime/lib/libcudart.so.12",
    "12.9.79": ROOT / "build/runtimes/12.9.79/nvidia/cuda_runtime/lib/libcudart.so.12",
    "13.0.96": ROOT / "build/toolchain/nvidia/cu13/lib/libcudart.so.13",
}
STATIC = {version: SHARED[version].with_name("libcudart_static.a") for version in ("12.9.79", "13.0.96")}
# The fewest functions that one was seen to ask for, on a driver that it goes on with.
QUESTIONS = {"12.4.127": 409, "12.8.90": 419, "12.9.79": 419, "13.0.96": 440}

pytestmark = [pytest.mark.built(WITNESS, CLIENT),
              pytest.mark.since(12000, "cuGetProcAddress_v2, by which CUDA runtimes since 12.0 look up all others")]


def library(paths, version):
    if not paths[version].exists():
        pytest.skip(f"the CUDA runtime {version} was not fetched: {paths[version]} is missing")
    return paths[version]


def asked(bench, command, preload):
    """The process's result, and the answers that it was given."""
    log = bench.folder / f"witness-{bench.n}"
    r = bench.run([], spec(site()) if preload else None, preload=preload, command=command, before=[WITNESS], WITNESS_LOG=log)
    return r, [line.split("\t") for line in log.read_text().splitlines()] if log.exists() else []


def compare(bench, version, command):
    without, plain = asked(bench, command, False)
    r, ours = asked(bench, command, True)
    bench.check(r.said() == without.said() and without.code == 0 and all("no launch matched" in line for line in r.complaints.splitlines()),
                f"it is refused as without the library: {without.stdout.strip()}", f"{r.said()} {r.stderr} {without.said()} {without.stderr}")
    questions = [line for line in plain if line[0] != "dlsym"]
    least = QUESTIONS[version] if int(version.split(".")[0]) <= STANDIN_VERSION // 1000 else 1
    bench.check(len(questions) >= least, f"it asks for {len(questions)} functions", f"{len(plain)} lines; {least} were expected")
    mapped = [[*rest, "libdmi_preload.so", symbol] if obj == "libcuda.so.1" and symbol in HOOKS else [*rest, obj, symbol]
              for *rest, obj, symbol in plain]
    wrong = [(a, b) for a, b in zip(mapped, ours) if a != b]
    n_ours = sum(line[-2] == "libdmi_preload.so" for line in ours)
    bench.check(len(ours) == len(plain) and not wrong,
                f"of {len(ours)} pointers {n_ours} are the library's, those that it wraps, and all others the driver's",
                f"{len(ours)} {len(plain)} {wrong[:4]}")
    bench.check(n_ours > 10, "the library's are among them", n_ours)


@pytest.mark.parametrize("version", SHARED)
def test_shared(bench, version):
    compare(bench, version, [CLIENT, library(SHARED, version)])


@pytest.mark.parametrize("version", STATIC)
def test_static(bench, version):
    archive = library(STATIC, version)
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    program = bench.folder / "static"
    more = [archive.with_name("libculibos.a")] if archive.with_name("libculibos.a").exists() else []
    run(["cc", "-O1", "-DSTATIC", "-o", program, ROOT / "tests/preload/runtime_client.c", archive, *more, "-lpthread", "-ldl", "-lrt", "-lm"])
    compare(bench, version, [program])
