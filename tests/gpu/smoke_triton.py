# SPDX-License-Identifier: Apache-2.0
"""Kernels that Triton compiles: out = 2 x, the same that may start early, and a matrix product of 64 x 64."""
import triton
import triton.language as tl


@triton.jit
def smoke_triton(out, x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 2.0, mask=at < n)


@triton.jit
def smoke_triton_early(out, x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.extra.cuda.gdc_wait()  # all of the kernel in front of it
    v = tl.load(x + at, mask=at < n)
    tl.extra.cuda.gdc_launch_dependents()
    tl.store(out + at, v * 2.0, mask=at < n)


@triton.jit
def smoke_triton_product(out, a, b, N: tl.constexpr):
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    tl.store(out + at, tl.dot(tl.load(a + at), tl.load(b + at)).to(tl.float16))


def double(out, x):
    n = x.numel()
    smoke_triton[(triton.cdiv(n, 128),)](out, x, n, BLOCK=128)


def double_early(out, x):
    n = x.numel()
    smoke_triton_early[(triton.cdiv(n, 128),)](out, x, n, BLOCK=128, launch_pdl=True)


def product(a, b):
    """Of half-precision matrices of 64 x 64."""
    out = a.new_empty(64, 64)
    smoke_triton_product[(1,)](out, a, b, N=64)
    return out
