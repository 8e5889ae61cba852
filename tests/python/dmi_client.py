#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A program that calls all of the public API; it prints one line a call, with what it returned."""
import ctypes
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
import dmi  # noqa: E402


def main():
    cuda = ctypes.CDLL("libcuda.so.1")
    print("before cuInit", dmi.loaded(), dmi.step_begin(0, []))
    print("cuInit", cuda.cuInit(0))
    spans = [dmi.Span("a", 4, 3, n_cached=4, phase=dmi.Phase.PREFILL), dmi.Span("b", 9, 1, first_row=3, phase=dmi.Phase.DECODE, tags="{}"),
             dmi.Span(None, 0, 2, first_row=4, flags=dmi.PADDING)]
    print("step", dmi.step_begin(7, spans, tags="step"))
    print("a span without a request", dmi.step_begin(8, [dmi.Span(None, 0, 1)]))
    print("a row before the batch", dmi.step_begin(8, [dmi.Span("a", 0, 1, first_row=-1)]))
    print("a span outside the batch", dmi.step_begin(8, spans, n_rows=2))
    print("off", dmi.site_enable("o*", False), "unknown", dmi.site_enable("p*", False))
    print("end", dmi.step_end(), "flush", dmi.flush(5))


if __name__ == "__main__":
    main()
