#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a trace takes of the disk, and of a time line: trace_disk.py DMI_RUN [STEPS].

A process says steps of two kernels, 50 a second, of a batch in which each request decodes a token, and whose ids are as long as those of a server. Of each tier, with 1 and
with 64 requests, it prints the bytes of the run's segments a step, and the bytes of `dmi-trace export` a slice. DMI_CUPTI names the libcupti of `kernels` and `full`.
"""
import pathlib
import subprocess
import sys
import tempfile
import time

sys.path += [str(pathlib.Path(__file__).parents[2] / folder) for folder in ("python", "tests/engine")]
import dmi  # noqa: E402

PTX = b".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry first() { ret; }\n.visible .entry last() { ret; }\n\0"


def child(n_steps, n_requests):
    from cuda.bindings import driver  # pylint: disable=import-outside-toplevel

    def good(answer):
        assert answer[0] == driver.CUresult.CUDA_SUCCESS, answer
        return answer[1] if len(answer) > 1 else None

    good(driver.cuInit(0))
    good(driver.cuCtxSetCurrent(good(driver.cuDevicePrimaryCtxRetain(0))))
    module, stream = good(driver.cuModuleLoadData(PTX)), good(driver.cuStreamCreate(1))
    kernels = [good(driver.cuModuleGetFunction(module, name)) for name in (b"first", b"last")]
    for i in range(n_steps):
        begin = time.monotonic()
        spans = [dmi.Span(f"cmpl-{k:08x}-1234-5678-9abc-{i // 500:012x}-0", 4 + i % 500, 1, k, phase=dmi.Phase.DECODE, n_prompt=4) for k in range(n_requests)]
        dmi.step_begin(i, spans, n_requests)
        for kernel in kernels:
            good(driver.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, 0, 0))
        good(driver.cuStreamSynchronize(stream))
        dmi.step_end()
        time.sleep(max(0, 0.02 - (time.monotonic() - begin)))


def measure(dmi_run, tier, n_steps, n_requests):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        subprocess.run([dmi_run, f"--trace={tier}", "--out", folder / "out", "--", sys.executable, __file__, "child", str(n_steps), str(n_requests)],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        stored = sum(path.stat().st_size for path in folder.glob("out/*/seg-*.dmi") if not path.parent.is_symlink())  # latest
        told = subprocess.run([dmi_run.with_name("dmi-trace"), "export", "--perfetto", folder / "x", folder / "out"], check=True, stdout=subprocess.PIPE, text=True).stdout
        slices = int(told.split(" slices")[0].split()[-1])
        print(f"{tier:8} {n_requests:3} requests {stored / n_steps:8.0f} bytes a step {(folder / 'x').stat().st_size / slices:8.0f} bytes a slice of {slices / n_steps:.0f} a step")


if __name__ == "__main__":
    if sys.argv[1] == "child":
        child(int(sys.argv[2]), int(sys.argv[3]))
    else:
        for tier in ("steps", "kernels", "full"):
            for n_requests in (1, 64):
                measure(pathlib.Path(sys.argv[1]), tier, int((sys.argv[2:] or [500])[0]), n_requests)
