# SPDX-License-Identifier: Apache-2.0
"""The application goes on calling the driver while the last flush runs: the run is closed, and nobody uses it after that."""
import pytest

from kit import BUILD

N = 400  # kernels, each a site that the library reports once
FOLDER = BUILD / "tests" / "preload"


def texts():
    ptx = ".version 6.3\n.target sm_50\n.address_size 64\n" + \
        "".join(f".visible .entry k{i}()\n{{\n    ret;\n}}\n" for i in range(N))
    sites = "".join(f"  - {{name: s{i}, kernel: '^k{i}$', pointer: 'arg[0]', dtype: u8, dims: [{{row: true, count: 1}}]}}\n"
                    for i in range(N))
    return ptx, "hookspec: 1\nring: {bytes: 1M, slots: 512}\nsites:\n" + sites


@pytest.mark.since(12000, "cuGraphExecUpdate_v2")
def test_execs_are_updated_while_the_run_is_closed(bench, tmp_path):
    """Three times, with a disk that takes 200 ms: under AddressSanitizer each showed a use of the freed run."""
    ptx, spec = texts()
    path = tmp_path / "kernels.ptx"
    path.write_text(ptx)
    for i in range(3):
        r = bench.run([], spec, command=[FOLDER / "update_at_exit", path, N], before=[FOLDER / "libslow_fsync.so"])
        bench.check(r.said() == (0, "left\n"), f"{i}: the process ends as it would alone", f"{r.said()} {r.stderr[-2000:]}")
        if bench.check(len(r.folders) == 1, f"{i}: it leaves a run", r.folders):
            run = r.run()
            bench.check(run.manifest["state"] == "closed" and not run.balance(), f"{i}: which is closed, and balances",
                        f"{run.manifest['state']} {run.balance()}")
            late = [p for p in run.manifest["problems"] if "after it was instantiated" in p["sentence"]]
            bench.check(late, f"{i}: the updates before it are reported", run.manifest["problems"][:3])
