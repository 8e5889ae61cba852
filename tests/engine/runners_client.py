#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An engine's model runner, as far as its adapter sees it, serves made-up requests: runners_client.py KIND SEED [OPTION ...]

KIND: v1, v2, sglang. OPTIONS: speculate, later (tokens come to the host later), and what an adapter refuses: async, ubatching, context.
Prints JSON: of each request what the run must hold. `runners_client.py collect KIND SEED ...` serves in a process of its own, as vLLM's engine does,
and prints what dmi.collect() has of it, too.
"""
import importlib
import json
import subprocess
import sys

import dmi
import model_runners


def runner_of(kind, seed, options):
    speculate = 3 if "speculate" in options else 0
    scheduler = model_runners.Scheduler(seed, 14, speculate, says_resumed_anew=kind == "v2")
    parallel = {"use_ubatching": True} if "ubatching" in options else {"decode_context_parallel_size": 2} if "context" in options else {}
    configs = model_runners.config(speculate, parallel=parallel, async_scheduling="async" in options)
    module, name = {"v1": ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner"), "v2": ("vllm.v1.worker.gpu.model_runner", "GPUModelRunner"),
                    "sglang": ("sglang.srt.model_executor.model_runner", "ModelRunner")}[kind]
    runner = getattr(importlib.import_module(module), name)(model_runners.Device(), scheduler, **configs)
    runner.speculates = "speculates" in options
    runner.later = "later" in options
    runner.swaps = "swaps" in options
    return runner


def serve(runner):
    scheduler, requests = runner.scheduler, list(runner.scheduler.waiting)
    while not scheduler.is_done():
        output, _, _ = scheduler.plan()
        runner.execute_model(output)
        if output.total_num_scheduled_tokens:
            said = runner.sample_tokens(None)
            if runner.later:
                said.get_output()
        if scheduler.rng.random() < 0.2:
            runner._dummy_run(4)
    return requests


def collect(words):
    with dmi.collect(sites="resid_pre", timeout_s=60) as got:
        told = json.loads(subprocess.run([sys.executable, __file__, *words], stdout=subprocess.PIPE, check=True).stdout)
    told["collected"] = {name: {layer: [one.positions("resid_pre", layer), rows.tolist()] for layer, rows in one.resid_pre.items()} for name, one in got.items()}
    print(json.dumps(told))


def main():
    if sys.argv[1] == "collect":
        return collect(sys.argv[2:])
    kind, seed, *options = sys.argv[1:]
    if "plugin" in options:  # as vLLM does with its entry points
        adapter = importlib.import_module("dmi.sglang" if kind == "sglang" else "dmi.vllm")
        adapter.register()
        adapter.register()
    runner = runner_of(kind, int(seed), options)
    requests = serve(runner)
    print(json.dumps({"preempted": runner.scheduler.preempted, "rejected": runner.scheduler.rejected, "steps": runner.step + 1, "requests": {
        r.client: {"number": r.number, "id": r.id, "n_prompt": r.n_prompt, "n": r.computed, "cached": r.cached, "first": r.first, "fields": r.fields} for r in requests}}))


if __name__ == "__main__":
    main()
