#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What taps and edits of a model on the CPU cost the thread that computes, beside forward hooks that do the same: cpu_taps.py DMI_RUN [ROUNDS]

A Llama of 8 layers, 512 wide, in float32, on one thread, in a process without a driver. Forwards in turn, as they are and with something at each layer. copies: a memcpy of what
the taps record, into memory that was there before. clones: hooks that clone the same tensors. edits: a vector added at the second tap of each layer, which is captured as well; additions: the
same by hooks, in place.

All is CPU time of the computing thread, so that other programs add to it only what they take of caches. The difference of two forwards drowns in that. So two hooks that read the
clock stand around each place: `there` is what was taken between them, less what it takes where nothing stands between; medians of each place, summed over places. `forward` is the median of
all between the first place and the last that is not between such hooks, which shows what a way costs elsewhere.
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
places = [module for layer in model.model.layers for module in (layer, layer.post_attention_layernorm)]
seen, memory, times = [], {}, []
now = time.thread_time_ns

@contextlib.contextmanager
def around(way):
    # a hook before those that the way brings to the places, and one after them
    handles = [module.register_forward_pre_hook(lambda *_: times.append(now())) for module in places]
    with way():
        handles += [module.register_forward_pre_hook(lambda *_: times.append(now())) for module in places]
        yield
    [handle.remove() for handle in handles]

@contextlib.contextmanager
def hooks(hook, at=places):
    handles = [module.register_forward_pre_hook(hook) for module in at]
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
    with dmi.torch.attach(model, write="resid_mid"), dmi.edit(vector, sites="resid_mid"):
        yield

ways = {"plain": contextlib.nullcontext, "taps": tapped, "copies": lambda: hooks(copy), "clones": lambda: hooks(clone), "edits": edited, "additions": lambda: hooks(add, places[1::2])}
for what, n in (("a prompt of 256 tokens", 256), ("a token", 1)):
    ids, step = torch.arange(n)[None] % 999 + 1, 0
    there, rest = {way: [[] for _ in places] for way in ways}, {way: [] for way in ways}
    for i in range(rounds + 1):
        for way in list(ways)[i % len(ways):] + list(ways)[:i % len(ways)]:
            with around(ways[way]):
                for again in range(24 if n == 1 else 4):
                    assert dmi.step_begin(step := step + 1, [dmi.Span(f"{way}-{step}", 0, n)], caches=False) in (0, 1)
                    times.clear()
                    model(ids, use_cache=False)
                    assert len(times) == 2 * len(places), times
                    if i and again > 1:
                        for at in range(len(places)):
                            there[way][at].append(times[2 * at + 1] - times[2 * at])
                        rest[way].append(times[-1] - times[0] - sum(times[2 * at + 1] - times[2 * at] for at in range(len(places))))
                    dmi.step_end(), dmi.request_end(f"{way}-{step}"), seen.clear()
                dmi.flush(10)
    ms = {way: sum(map(statistics.median, of)) / 1e6 for way, of in there.items()}
    forward = {way: statistics.median(of) / 1e6 for way, of in rest.items()}
    bound = ms["copies"] - ms["plain"] + 0.05 * forward["plain"]
    print(f"{what}: {forward['plain']:.2f} ms a forward; there: " + ", ".join(f"{way} {of - ms['plain']:.3f} ms ({100 * (of - ms['plain']) / forward['plain']:.1f}%)" for way, of in ms.items() if way != "plain"))
    print("  forward: " + ", ".join(f"{way} {of / forward['plain']:.3f}" for way, of in forward.items() if way != "plain"))
    print(f"  taps at most copies and 5%: {ms['taps'] - ms['plain']:.3f} ms of {bound:.3f} ms", flush=True)
"""


def main():
    dmi_run, *more = sys.argv[1:]
    python, env = torch_env.python_with_torch()
    with tempfile.TemporaryDirectory(prefix="dmi-bench-cpu-") as folder:
        words = [dmi_run, "--tap", "resid_pre,resid_mid", "--write", "resid_mid", "--out", f"{folder}/RUN", "--", python, "-c", PROGRAM, (more + ["20"])[0], f"{folder}/v.npy"]
        env = os.environ | env | {"PYTHONPATH": str(ROOT / "python")}
        done = subprocess.run([str(word) for word in words], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        print(done.stdout if not done.returncode else done.stderr, end="")
        sys.exit(done.returncode)


if __name__ == "__main__":
    main()
