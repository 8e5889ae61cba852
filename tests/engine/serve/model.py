# SPDX-License-Identifier: Apache-2.0
"""What the model is: its shape, how ranks and stages share it, its weights in device memory."""
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Shape:
    """Of a Llama; what a rank holds of it has the same type with smaller numbers."""
    layers: int
    width: int
    heads: int
    kv_heads: int
    head: int
    mlp: int
    vocabulary: int
    rope_base: float
    eps: float

    @staticmethod
    def of(gguf):
        get = lambda key: gguf.values["llama." + key]  # noqa: E731
        heads = get("attention.head_count")
        return Shape(layers=get("block_count"), width=get("embedding_length"), heads=heads,
                     kv_heads=get("attention.head_count_kv"), head=get("embedding_length") // heads, mlp=get("feed_forward_length"),
                     vocabulary=gguf.infos["token_embd.weight"][0][0], rope_base=get("rope.freq_base"),
                     eps=get("attention.layer_norm_rms_epsilon"))

    @property
    def q_width(self):
        return self.heads * self.head

    @property
    def kv_width(self):
        return self.kv_heads * self.head


@dataclass(frozen=True)
class Part:
    """What one process computes: KV heads, MLP columns and vocabulary of its rank, layers of its stage."""
    rank: int = 0
    ranks: int = 1
    stage: int = 0
    stages: int = 1

    def heads(self, shape):
        """KV heads first, last: the first ranks have one more where they cannot be equal."""
        return split(shape.kv_heads, self.ranks, self.rank)

    def share(self, shape, n):
        """Of @n columns, as many as its share of KV heads."""
        first, last = self.heads(shape)
        return n * first // shape.kv_heads, n * last // shape.kv_heads

    def layers(self, n_layers):
        return split(n_layers, self.stages, self.stage)

    @property
    def is_first(self):
        return self.stage == 0

    @property
    def is_last(self):
        return self.stage == self.stages - 1

    @property
    def number(self):
        return self.stage * self.ranks + self.rank


def split(n, parts, i):
    if n < parts:
        raise SystemExit(f"{n} cannot be shared by {parts}")
    sizes = [n // parts + (k < n % parts) for k in range(parts)]
    return sum(sizes[:i]), sum(sizes[:i + 1])


def unpermuted(weight, heads):
    """Rows of Q or K in Hugging Face's order (halves of a head): llama.cpp has rotated pairs side by side."""
    rows, width = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, width).swapaxes(1, 2).reshape(rows, width)


def panels(weight):
    """[out, in] as the kernels want it: [out/4][in][4]."""
    n_out, n_in = weight.shape
    return np.ascontiguousarray(weight.reshape(n_out // 4, 4, n_in).swapaxes(1, 2))


def turns(shape, n_positions):
    """[position][cos, sin][32]"""
    half = shape.head // 2
    angles = np.arange(n_positions)[:, None] / shape.rope_base ** (np.arange(half) / half)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


class Weights:
    """Addresses of a part's weights in device memory, in @dtype: embedding of the first stage, last norm and head of the last."""

    def __init__(self, device, gguf, shape, part, dtype, n_positions, stored):
        """@stored: where they lie as the kernels want them, a Stored or Made."""
        self.device, self.gguf, self.dtype, self.stored = device, gguf, dtype, stored
        first, last = part.layers(shape.layers)
        kv, (m0, m1) = part.heads(shape), part.share(shape, shape.mlp)
        self.layers = [self.layer(i, shape, kv, m0, m1) for i in range(first, last)]
        self.turns = device.upload(turns(shape, n_positions))
        if part.is_first:
            self.embedding = self.put("embedding", lambda: gguf.tensor("token_embd.weight"))
        if part.is_last:
            v0, v1 = part.share(shape, shape.vocabulary)
            self.final_norm = self.put("final_norm", lambda: gguf.tensor("output_norm.weight"))
            self.head = self.put("head", lambda: panels(gguf.tensor("token_embd.weight")[v0:v1]))
        device.wait()

    def put(self, name, make):
        return self.device.upload(self.stored.get(name, lambda: self.dtype.encode(make())))

    def layer(self, i, shape, kv, m0, m1):
        get = lambda name: self.gguf.tensor(f"blk.{i}.{name}.weight")  # noqa: E731
        group, head = shape.heads // shape.kv_heads, shape.head
        k_rows, q_rows = slice(kv[0] * head, kv[1] * head), slice(kv[0] * group * head, kv[1] * group * head)
        made = {
            "ln1": lambda: get("attn_norm"), "ln2": lambda: get("ffn_norm"),
            "qkv": lambda: panels(np.concatenate([unpermuted(get("attn_q"), shape.heads)[q_rows],
                                                  unpermuted(get("attn_k"), shape.kv_heads)[k_rows], get("attn_v")[k_rows]])),
            "o": lambda: panels(get("attn_output")[:, q_rows]),
            "gate_up": lambda: panels(np.concatenate([get("ffn_gate")[m0:m1], get("ffn_up")[m0:m1]])),
            "down": lambda: panels(get("ffn_down")[:, m0:m1]),
        }
        return {name: self.put(f"{i}.{name}", make) for name, make in made.items()}


def shape_of_part(shape, part):
    """The shape of what a part computes: its heads, columns of the MLP and of the vocabulary, layers."""
    (k0, k1), (m0, m1), (v0, v1) = part.heads(shape), part.share(shape, shape.mlp), part.share(shape, shape.vocabulary)
    first, last = part.layers(shape.layers)
    return Shape(last - first, shape.width, (k1 - k0) * shape.heads // shape.kv_heads, k1 - k0, shape.head, m1 - m0, v1 - v0,
                 shape.rope_base, shape.eps)
