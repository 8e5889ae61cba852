# SPDX-License-Identifier: Apache-2.0
"""What the driver's log says ran, beside what a trace of the tier full says: the same kernels, each once, under the step in whose time the host launched it."""
import bisect
import collections
import time

KERNEL, COPY, FILL = 1, 2, 3
UNKNOWN, OUTSIDE, FIRST = 0, 1, 2
ENGINE = 5  # of a step's source


def real_time(mono_ns):
    """A time of CLOCK_MONOTONIC, as the log has it, by CLOCK_REALTIME, as a run has it: of several readings the two that lie next to each other."""
    return mono_ns + max(time.clock_gettime_ns(time.CLOCK_REALTIME) - time.clock_gettime_ns(time.CLOCK_MONOTONIC) for _ in range(100))


def launched(log, run):
    """{step, as the trace's column has it: Counter of (kernel, grid, block, shared, stream, is it in a graph)} by the times of host and log."""
    threads = collections.defaultdict(list)  # None: steps that the engine says, which are those of all threads
    for t in sorted(run.step_times, key=lambda t: t["begin_ns"]):
        threads[None if t["source"] == ENGINE else t["thread"]].append(t)
    ahead = real_time(0)
    found = collections.defaultdict(collections.Counter)
    for launch in log.launches:
        at, times = launch["t"] + ahead, threads[None] or threads[launch["tid"]]
        i = bisect.bisect([t["begin_ns"] for t in times], at) - 1
        inside = i >= 0 and at <= times[i]["end_ns"]
        key = launch["kernel"], tuple(launch["grid"]), tuple(launch["block"]), launch["shared"], launch["stream"], launch["exec"] != 0
        found[times[i]["number"] + FIRST if inside else OUTSIDE][key] += 1
    return found


def ran(run):
    """The same of the trace's kernels."""
    found = collections.defaultdict(collections.Counter)
    for r in run.ran:
        if r.kind == KERNEL:
            found[r.step][r.name, r.grid, r.block, r.dynamic_shared, r.stream, r.graph != 0] += 1
    return found


def differences(log, run):
    """Steps for which both say something else; [] where all is alike."""
    want, got = launched(log, run), ran(run)
    return [(step, want[step] - got[step], got[step] - want[step]) for step in sorted({*want, *got}) if want[step] != got[step]]
