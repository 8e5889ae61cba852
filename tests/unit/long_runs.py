# SPDX-License-Identifier: Apache-2.0
"""Runs of one request of any length, in steps of 512 tokens and one segment: random hidden states, and attention whose z is known without its pattern."""
import numpy as np

from hostile_run import RECORDS, STEPS, chunk, records, segment, site, sites_chunk, step, write

STEP = 512


def write_steps(folder, n, layers, names, tensors):
    """@tensors(first position, rows): of a layer, of each of the @names, in the order of steps and layers."""
    sites = [site(name) for name in names]
    parts = [sites_chunk(sites)]
    for number, at in enumerate(range(0, n, STEP)):
        m = min(STEP, n - at)
        rows = [(i, layer, number, 2 + len(names) * (number * layers + layer) + i, list(x.shape), x.tobytes()) for layer in range(layers) for i, x in enumerate(tensors(at, m))]
        parts += [chunk(1 + 2 * number, STEPS, step(number, [(b"r", at, 0, m)])), chunk(2 + 2 * number, RECORDS, *records(rows))]
    return write(folder, sites, segment(*parts))


def write_hidden(folder, n, layers, width, seed=0):
    drawn = np.random.default_rng(seed)
    return write_steps(folder, n, layers, ["hidden"], lambda _, m: [drawn.standard_normal((m, width), np.float32)])


def write_heads(folder, n, layers, heads, kv, dim):
    """q_rot, k_rot, v and z, in float32. All rows of v are alike, so z is v."""
    drawn = np.random.default_rng(0)
    value = drawn.standard_normal((kv, dim), np.float32)

    def tensors(_, m):
        return [*(drawn.standard_normal((m, some, dim), np.float32) for some in (heads, kv)), np.broadcast_to(value, (m, kv, dim)),
                np.broadcast_to(np.repeat(value, heads // kv, axis=0), (m, heads, dim))]
    return write_steps(folder, n, layers, ("q_rot", "k_rot", "v", "z"), tensors)
