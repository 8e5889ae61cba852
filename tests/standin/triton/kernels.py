# SPDX-License-Identifier: Apache-2.0
"""Triton kernels for the stand-in's tests: matmuls in three types, softmax, layer norm."""
import triton
import triton.language as tl


@triton.jit
def matmul(a, b, c, m, n, k, stride_a, stride_b, stride_c, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
           DEPTH: tl.constexpr):
    """c[m, n] = a[m, k] @ b[k, n]; each program makes a tile of ROWS x COLUMNS."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, DEPTH)
    at_a = a + rows[:, None] * stride_a + depth[None, :]
    at_b = b + depth[:, None] * stride_b + columns[None, :]
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for step in range(0, k, DEPTH):
        inside = depth < k - step
        left = tl.load(at_a, mask=(rows[:, None] < m) & inside[None, :], other=0.0)
        right = tl.load(at_b, mask=inside[:, None] & (columns[None, :] < n), other=0.0)
        total = tl.dot(left, right, total)
        at_a += DEPTH
        at_b += DEPTH * stride_b
    at_c = c + rows[:, None] * stride_c + columns[None, :]
    tl.store(at_c, total.to(c.dtype.element_ty), mask=(rows[:, None] < m) & (columns[None, :] < n))


@triton.jit
def softmax(x, y, n, stride, WIDTH: tl.constexpr):
    """A row a program."""
    row = tl.program_id(0)
    columns = tl.arange(0, WIDTH)
    values = tl.load(x + row * stride + columns, mask=columns < n, other=-float("inf"))
    shifted = tl.exp(values - tl.max(values, axis=0))
    tl.store(y + row * stride + columns, shifted / tl.sum(shifted, axis=0), mask=columns < n)


@triton.jit
def layer_norm(x, weight, bias, y, n, stride, eps, WIDTH: tl.constexpr):
    """A row a program, statistics in float32."""
    row = tl.program_id(0)
    columns = tl.arange(0, WIDTH)
    inside = columns < n
    values = tl.load(x + row * stride + columns, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(values, axis=0) / n
    centred = tl.where(inside, values - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, axis=0) / n + eps)
    w = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * stride + columns, (centred * scale * w + b).to(y.dtype.element_ty), mask=inside)
