#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What taps and edits of a model on the CPU cost the thread that computes, beside forward hooks that do the same: cpu_taps.py DMI_RUN [ROUNDS]

A Llama of 8 layers, 512 wide, in float32, on one thread, in a process without a driver. Forwards in turn, as they are and with something at each layer; CPU time of the
thread, the lower quartile, as other programs of the machine only add to it. copies: a memcpy of what the taps record, into memory that was there before. hooks: clones of the same tensors, or the same addition in place.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("engine", "preload", "standin", "")]
import torch_env  # noqa: E402

PROGRAM = """
import contextlib, os, statistics, sys, time
sys.setdlopenflags(os.RTLD_LAZY)
import numpy, torch, transformers, dmi, dmi.torch
from pathlib import Path
rounds, vector = int(sys.argv[1]), Path(sys.argv[2])
torch.set_grad_enabled(False), torch.set_num_threads(1), torch.manual_seed(1)
config = transformers.LlamaConfig(hidden_size=512, intermediate_size=1376, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=4, vocab_size=1000)
model = transformers.LlamaForCausalLM(config).eval()
v = torch.randn(512)
numpy.save(vector, v.numpy())
seen, memory = [], {}

@contextlib.contextmanager
def hooks(hook):
    handles = [getattr(layer, name).register_forward_pre_hook(hook) for layer in model.model.layers for name in ("input_layernorm", "post_attention_layernorm")]
    yield
    [handle.remove() for handle in handles]

def clone(_, given):
    seen.append(given[0].clone())

def copy(_, given):
    if id(_) not in memory or memory[id(_)].shape != given[0].shape:
        memory[id(_)] = torch.zeros_like(given[0])
    memory[id(_)].copy_(given[0])

def add(_, given):
    given[0].add_(v)

def tapped():
    return dmi.torch.attach(model, "resid_pre,resid_mid")

@contextlib.contextmanager
def edited():
    with dmi.torch.attach(model, write="resid_mid,resid_post"), dmi.edit(vector, site="resid_mid") as first, dmi.edit(vector, site="resid_post"):
        yield

ways = {"plain": contextlib.nullcontext, "taps": tapped, "copies": lambda: hooks(copy), "clones": lambda: hooks(clone), "edits": edited, "additions": lambda: hooks(add)}
for what, n in (("a prompt of 256 tokens", 256), ("a token", 1)):
    ids, taken, step = torch.arange(n)[None] % 999 + 1, {way: [] for way in ways}, 0
    for i in range(rounds + 1):
        for way in list(ways)[i % len(ways):] + list(ways)[:i % len(ways)]:
            with ways[way]():
                for again in range(24 if n == 1 else 4):
                    assert dmi.step_begin(step := step + 1, [dmi.Span(f"{way}-{step}", 0, n)], caches=False) in (0, 1)
                    before = time.thread_time_ns()
                    model(ids, use_cache=False)
                    if i and again > 1:
                        taken[way].append(time.thread_time_ns() - before)
                    dmi.step_end(), dmi.request_end(f"{way}-{step}"), seen.clear()
                dmi.flush(10)
    ms = {way: statistics.quantiles(of, n=4)[0] / 1e6 for way, of in taken.items()}
    print(f"{what}: {ms['plain']:.2f} ms a forward; more: " + ", ".join(f"{way} {of - ms['plain']:.3f} ms ({100 * (of / ms['plain'] - 1):.1f}%)" for way, of in ms.items() if way != "plain"), flush=True)
"""


def main():
    dmi_run, *more = sys.argv[1:]
    python, env = torch_env.python_with_torch()
    with tempfile.TemporaryDirectory(prefix="dmi-bench-cpu-") as folder:
        words = [dmi_run, "--tap", "resid_pre,resid_mid", "--write", "resid_mid,resid_post", "--out", f"{folder}/RUN", "--", python, "-c", PROGRAM, (more + ["20"])[0], f"{folder}/v.npy"]
        env = os.environ | env | {"PYTHONPATH": str(ROOT / "python")}
        done = subprocess.run([str(word) for word in words], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        print(done.stdout if not done.returncode else done.stderr, end="")
        sys.exit(done.returncode)


if __name__ == "__main__":
    main()
