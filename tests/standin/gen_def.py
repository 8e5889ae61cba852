#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write driver.def: every entry of the CUDA Driver API with the version that introduced it.

Usage: gen_def.py TOOLKIT/include TOOLKIT/lib/stubs/libcuda.so > driver.def

cudaTypedefs.h knows names and versions (PFN_cuX_v11030, PFN_cuX_v7000_ptsz), the stub library knows
the exported names (cuX, cuX_v2, cuX_ptsz). The k-th version of a name is its k-th suffix, for the
legacy and the per-thread variants alike; the script refuses to guess where the counts differ.
GL, EGL and VDPAU interoperation is in no stub: its symbols follow from the same rule.
"""
import re
import subprocess
import sys


def typedefs(include):
    """Return {name: {'legacy' | 'per_thread': [version, ...]}}."""
    found = {}
    for header in ("cudaTypedefs.h", "cudaProfilerTypedefs.h", "cudaGLTypedefs.h", "cudaEGLTypedefs.h",
                   "cudaVDPAUTypedefs.h"):
        text = open(f"{include}/{header}").read()
        for m in re.finditer(r"typedef\s+\w+\s*\(CUDAAPI \*PFN_(\w+?)_v(\d+)(_ptsz|_ptds)?\)", text):
            kind = "per_thread" if m[3] else "legacy"
            versions = found.setdefault(m[1], {}).setdefault(kind, [])
            if int(m[2]) not in versions:
                versions.append(int(m[2]))
    found.pop("cuWGLGetDevice", None)  # Windows only
    return found


def exports(stub):
    """Return {name: {'legacy' | 'per_thread': [symbol, ...]}}, in order of their suffixes."""
    out = subprocess.run(["nm", "-D", "--defined-only", stub], check=True, capture_output=True, text=True)
    found = {}
    for line in out.stdout.splitlines():
        symbol = line.split()[-1]
        m = re.match(r"(cu[A-Z]\w*?)(?:_v(\d+))?(_ptsz|_ptds)?$", symbol)
        if m:
            kind = "per_thread" if m[3] else "legacy"
            found.setdefault(m[1], {}).setdefault(kind, []).append((int(m[2] or 1), symbol))
    return {n: {k: [s for _, s in sorted(v)] for k, v in d.items()} for n, d in found.items()}


def main():
    known, exported = typedefs(sys.argv[1]), exports(sys.argv[2])
    unknown = set(exported) - set(known)
    if unknown:
        sys.exit(f"no typedef for {sorted(unknown)}")
    print("/* SPDX-License-Identifier: Apache-2.0 */\n"
          "/*\n"
          " * driver.def - the CUDA Driver API, one exported symbol a line\n"
          " *\n"
          " * DRIVER_ENTRY(exported symbol, name to ask cuGetProcAddress for, version that introduced it,\n"
          " *              legacy | per_thread default stream)\n"
          " * Made by gen_def.py from cudaTypedefs.h and the symbols of the toolkit's stub. It generates the\n"
          " * exports, the resolver's table and the entries that answer CUDA_ERROR_NOT_SUPPORTED.\n"
          " */")
    for name in sorted(known):
        for kind in ("legacy", "per_thread"):
            versions = sorted(known[name].get(kind, []))
            guess = [name + (f"_v{k}" if k > 1 else "") for k in range(1, len(versions) + 1)]
            if kind == "per_thread":  # only the newest legacy variant has a twin
                newest = len(known[name]["legacy"])
                guess = [name + (f"_v{newest}" if newest > 1 else "") + "_ptsz"] * len(versions)
            symbols = exported.get(name, {}).get(kind, [] if name in exported else guess)
            if len(symbols) != len(versions):
                sys.exit(f"{name} {kind}: versions {versions}, symbols {symbols}")
            for version, symbol in zip(versions, symbols):
                print(f"DRIVER_ENTRY({symbol}, {name}, {version}, {kind})")


if __name__ == "__main__":
    main()
