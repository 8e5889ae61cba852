#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compile kernels.py with Triton, for sm_80, without a GPU: compile.py FOLDER writes NAME.ptx and launch.json there.

It runs in an environment of its own, as tools/setup/triton.txt lists it:

    python3 -m venv VENV && VENV/bin/pip install --no-deps -r tools/setup/triton.txt
    VENV/bin/python tests/standin/triton/compile.py tests/standin/triton
"""
import json
import os
import pathlib
import sys
import tempfile

# Before Triton is imported: its next version decides otherwise, and line numbers would hold this machine's paths.
os.environ.update(TRITON_DEFAULT_FP_FUSION="1", TRITON_DISABLE_LINE_INFO="1")

from specs import SPECS  # noqa: E402


def compiled(spec):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    import kernels

    names = list(spec.arguments)
    source = ASTSource(fn=getattr(kernels, spec.kernel), constexprs=spec.constants,
                       signature=spec.arguments | dict.fromkeys(spec.constants, "constexpr"),
                       attrs={(names.index(name),): [["tt.divisibility", 16]] for name in spec.divisible})
    return triton.compile(source, target=GPUTarget("cuda", 80, 32),
                          options={"num_warps": spec.warps, "num_stages": spec.stages})


def main(folder):
    shared = {}
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        for name, spec in SPECS.items():
            kernel = compiled(spec)
            (folder / f"{name}.ptx").write_text(kernel.asm["ptx"])
            shared[name] = kernel.metadata.shared
    (folder / "launch.json").write_text(json.dumps({"shared_bytes": shared}, indent=1) + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
