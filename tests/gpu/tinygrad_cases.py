#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A program on tinygrad to be captured: tinygrad_cases.py NAME FILE, or --list. See marks.py; no mark is in it."""
import os

os.environ.setdefault("DEV", "CUDA:PTX")
import marks  # noqa: E402
from marks import Skip, say  # noqa: E402


def jit():
    """Two layers with attention, eagerly, then as tinygrad's graphs, whose parameters it sets anew for every token."""
    try:
        from tinygrad import Tensor, TinyJit, Variable
    except ImportError as problem:
        raise Skip(f"tinygrad does not import: {problem}") from None
    import array
    Tensor.manual_seed(1)

    def numbers(n, seed):
        return [((i * 7919 + seed * 104729) % 2003) / 2003 - 0.5 for i in range(n)]

    weights = [Tensor(numbers(64 * 64, i)).reshape(64, 64).realize() for i in range(6)]
    cache = Tensor.zeros(32, 64).contiguous().realize()

    @TinyJit
    def step(x, at):
        for i in range(2):
            q, k, v = (x @ w for w in weights[3 * i:3 * i + 3])
            cache[at, :].assign(k.reshape(64)).realize()
            scores = (q @ cache[0:at + 1, :].transpose()).softmax()
            x = (x + scores @ cache[0:at + 1, :] + v).tanh()
        return x.realize()

    x = Tensor(numbers(64, 9)).reshape(1, 64).realize()
    for i in range(12):
        x = step(x, Variable("at", 0, 31).bind(i)).clone().realize()
        say(f"token {i}", array.array("f", x.flatten().tolist()).tobytes())
    return b""


CASES = {"jit": jit}

if __name__ == "__main__":
    marks.main(CASES, "tinygrad")
