# SPDX-License-Identifier: Apache-2.0
"""What Triton makes of kernels.py: one row a file NAME.ptx, what the compiler gets with it and what a launch needs."""
from dataclasses import dataclass


@dataclass(frozen=True)
class Spec:
    """A kernel in one form; @divisible: arguments that are multiples of 16, as Triton finds out when it is called."""

    kernel: str
    arguments: dict
    constants: dict
    divisible: tuple
    warps: int = 4
    stages: int = 3

    @property
    def threads(self):
        return 32 * self.warps


def matmul(element, tile):
    pointers = {name: f"*{element}" for name in "abc"}
    sizes = dict.fromkeys(("m", "n", "k", "stride_a", "stride_b", "stride_c"), "i32")
    return Spec("matmul", pointers | sizes, dict(zip(("ROWS", "COLUMNS", "DEPTH"), tile)),
                ("a", "b", "c", "n", "k", "stride_a", "stride_b", "stride_c"))


SPECS = {
    "matmul_f16": matmul("fp16", (64, 64, 32)),
    "matmul_bf16": matmul("bf16", (64, 32, 64)),
    "matmul_tf32": matmul("fp32", (32, 32, 16)),
    "softmax": Spec("softmax", {"x": "*fp32", "y": "*fp32", "n": "i32", "stride": "i32"}, {"WIDTH": 1024},
                    ("x", "y", "stride")),
    "layer_norm": Spec("layer_norm", {"x": "*fp16", "weight": "*fp32", "bias": "*fp32", "y": "*fp16", "n": "i32",
                                      "stride": "i32", "eps": "fp32"}, {"WIDTH": 1024},
                       ("x", "weight", "bias", "y", "n", "stride")),
}
