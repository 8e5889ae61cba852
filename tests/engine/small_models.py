# SPDX-License-Identifier: Apache-2.0
"""Small models of three families, Qwen3, Qwen3-MoE and Llama, with weights that a formula gives: a GGUF in a second, without a download.

The weights are float16 (tinygrad casts what it loads to that), so every program that reads them computes with the same
numbers; those of Llama, which serve.py reads, are stored as float32.
"""
import struct
import zlib
from dataclasses import dataclass

import numpy as np

EPS, THETA, CONTEXT = 1e-6, 1e6, 128
STRING, ARRAY, U32, I32, F32 = 8, 9, 4, 5, 6  # types of values in a GGUF
GGML_F32, GGML_F16 = 0, 1


@dataclass(frozen=True)
class Model:
    arch: str               # GGUF's general.architecture
    layers: int
    width: int
    heads: int
    kv_heads: int
    head: int
    hidden: int             # of the MLP, or of an expert
    vocabulary: int
    experts: int = 0
    used: int = 0           # experts a token

    def shapes(self):
        """{name in the GGUF: shape, rows first}; what ends in norm.weight is a factor of a norm."""
        out = {"token_embd.weight": (self.vocabulary, self.width), "output_norm.weight": (self.width,)}
        if self.experts:
            out["output.weight"] = (self.vocabulary, self.width)  # else the embedding's: both ways exist
        for i in range(self.layers):
            q, kv = self.heads * self.head, self.kv_heads * self.head
            block = {"attn_norm": (self.width,), "attn_q": (q, self.width), "attn_k": (kv, self.width),
                     "attn_v": (kv, self.width), "attn_output": (self.width, q), "ffn_norm": (self.width,)}
            if self.arch != "llama":
                block |= {"attn_q_norm": (self.head,), "attn_k_norm": (self.head,)}
            up, down, tail = (self.hidden, self.width), (self.width, self.hidden), ""
            if self.experts:
                up, down, tail = (self.experts, *up), (self.experts, *down), "_exps"
                block["ffn_gate_inp"] = (self.experts, self.width)
            block |= {"ffn_gate" + tail: up, "ffn_up" + tail: up, "ffn_down" + tail: down}
            out |= {f"blk.{i}.{name}.weight": shape for name, shape in block.items()}
        return out

    def weight(self, name):
        """float16: uniform, such that a product keeps the size of what it is given; factors of norms near 1."""
        shape = self.shapes()[name]
        x = uniform(f"{self.arch}/{name}", int(np.prod(shape))).reshape(shape)
        if name.endswith("norm.weight"):
            return (1 + 0.25 * x).astype(np.float16)
        return (x * np.sqrt(3 / (1 if name == "token_embd.weight" else shape[-1]))).astype(np.float16)

    def tokens(self, name, n):
        """@n token ids that look random, by @name."""
        return ((uniform(name, n) + 1) / 2 * self.vocabulary).astype(int).tolist()


# As in the real ones, heads are wider than the residual stream divided by their number.
MODELS = {m.arch: m for m in (
    Model("qwen3", layers=4, width=96, heads=4, kv_heads=2, head=32, hidden=224, vocabulary=320),
    Model("qwen3moe", layers=3, width=96, heads=4, kv_heads=2, head=32, hidden=40, vocabulary=320, experts=8, used=3))}
LLAMA = Model("llama", layers=2, width=128, heads=2, kv_heads=1, head=64, hidden=256, vocabulary=512)  # a step of serve.py takes 1 to 4 ms


def uniform(name, n):
    """@n numbers in [-1, 1): splitmix64, its state begun with @name's CRC-32."""
    z = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(zlib.crc32(name.encode()) << 20)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) * 2.0 ** -52 - 1


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def entry(key, value):
    """A key and its value; of a list, strings only."""
    if isinstance(value, list):
        return text(key) + struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(map(text, value))
    if isinstance(value, str):
        return text(key) + struct.pack("<I", STRING) + text(value)
    return text(key) + (struct.pack("<If", F32, value) if isinstance(value, float) else struct.pack("<II", U32, value))


def write_gguf(model, path):
    """Source: docs/gguf.md of the ggml project, version 3."""
    a = model.arch
    head = {"general.architecture": a, f"{a}.block_count": model.layers, f"{a}.context_length": CONTEXT,
            f"{a}.embedding_length": model.width, f"{a}.feed_forward_length": model.hidden,
            f"{a}.attention.head_count": model.heads, f"{a}.attention.head_count_kv": model.kv_heads,
            f"{a}.attention.key_length": model.head, f"{a}.attention.value_length": model.head,
            f"{a}.attention.layer_norm_rms_epsilon": EPS, f"{a}.rope.freq_base": THETA,
            "tokenizer.ggml.tokens": [f"<{i}>" for i in range(model.vocabulary)], "tokenizer.ggml.eos_token_id": model.vocabulary - 1}
    if model.experts:
        del head[f"{a}.feed_forward_length"]
        head |= {f"{a}.expert_count": model.experts, f"{a}.expert_used_count": model.used,
                 f"{a}.expert_feed_forward_length": model.hidden}
    infos, data = b"", b""
    for name, shape in model.shapes().items():
        norm = name.endswith("norm.weight")
        infos += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        whole = norm or a == "llama"
        infos += struct.pack("<IQ", GGML_F32 if whole else GGML_F16, len(data))
        bits = model.weight(name).astype(np.float32 if whole else np.float16).tobytes()
        data += bits + bytes(-len(bits) % 32)
    start = b"GGUF" + struct.pack("<IQQ", 3, len(model.shapes()), len(head)) + b"".join(entry(*e) for e in head.items()) + infos
    path.write_bytes(start + bytes(-len(start) % 32) + data)


def requests(model):
    """
    What is asked of it: requests of 40, 37 and 5 tokens, then tokens that are fed instead of those it chooses.

    tinygrad takes prompts in chunks of 32; what it has met twice it runs as graphs, the rest of a prompt too.
    """
    return [{"id": name, "prompt_tokens": model.tokens(name, n), "forced_tokens": model.tokens(name + "'s answer", more)}
            for name, n, more in (("first", 40, 3), ("second", 37, 3), ("short", 5, 2))]
