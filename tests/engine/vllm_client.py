#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""vLLM's own scheduler and model runner serve made-up requests on the CPU: vllm_client.py v1|v2 SEED MODEL_FOLDER [OPTION ...]

OPTIONS: speculate (by n-grams), async (the next step is scheduled before the tokens of this one are known), attach (vLLM's own
model is loaded, and nothing served). Classes are vLLM's, from its wheel; Triton interprets its kernels; vllm.v1.worker.cpu is vLLM's own way
onto a CPU. In place of a language model there is one whose next token follows from a token and its position, and which taps
(token, position) of each row on the device. Prints JSON: of each request what the run must hold.
"""
import dataclasses
import inspect
import json
import os
import random
import sys
import types

sys.setdlopenflags(os.RTLD_LAZY)     # torch_env.py says why
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # while vLLM is imported: then it takes Triton as it is, with no driver of Triton's

import numpy as np  # noqa: E402
import torch  # noqa: E402
import vllm.v1.worker.cpu.shm  # noqa: E402,F401
from triton.runtime import interpreter  # noqa: E402
from vllm.config import CUDAGraphMode, set_current_vllm_config  # noqa: E402
from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.plugins import load_general_plugins  # noqa: E402
from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.utils.hashing import sha256  # noqa: E402
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash  # noqa: E402
from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.engine import EngineCoreRequest  # noqa: E402
from vllm.v1.engine.input_processor import InputProcessor  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec  # noqa: E402
from vllm.v1.request import Request  # noqa: E402
from vllm.v1.sample.sampler import Sampler  # noqa: E402
from vllm.v1.structured_output import StructuredOutputManager  # noqa: E402
from vllm.v1.worker.cpu.model_runner import CPUModelRunner as V2  # noqa: E402
from vllm.v1.worker.gpu import model_runner as base  # noqa: E402
from vllm.v1.worker.cpu_model_runner import CPUModelRunner as V1  # noqa: E402

import model_runners  # noqa: E402

del os.environ["CUDA_VISIBLE_DEVICES"]

BLOCK, BLOCKS, LONGEST, AT_ONCE, VOCABULARY = 16, 18, 128, 6, 97
SIZES = [1, 2, 4, 8, 16, 24, 32]
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}


def mend_interpreter():
    """Triton's interpreter wants masks of bool where vLLM's kernels have integers, which the compiler takes."""
    inner = interpreter._interpreter.load
    interpreter._interpreter.load = lambda pointers, mask, *more: inner(pointers, mask.astype(bool), *more)


class Model(torch.nn.Module):
    """The token after token t at position p is (t + 1) mod `cycle`, but for each 5th position: then prompts of such tokens have n-grams that are
    right and ones that are not."""

    def __init__(self, device, cycle):
        super().__init__()
        self.device, self.cycle, self.rows = device, cycle, 0

    def forward(self, input_ids=None, positions=None, intermediate_tensors=None, inputs_embeds=None, **more):
        rows = torch.stack([input_ids.float(), positions.float()], 1)
        self.rows += len(rows)
        self.tap("resid_pre", rows, 0)
        self.tap("resid_pre", rows, 1)
        return torch.nn.functional.pad(rows, (0, 14))

    def compute_logits(self, hidden):
        self.tap("final_logits", hidden[:, :2])
        tokens, positions = hidden[:, 0].long(), hidden[:, 1].long()
        after = torch.where(positions % 5 == 0, tokens * 3 + positions, tokens + 1) % self.cycle
        return torch.nn.functional.one_hot(after, VOCABULARY).float()

    def tap(self, name, rows, *layer):
        self.device.tap(name, np.pad(rows.numpy(), ((0, 0), (0, model_runners.WIDTH - 2))), *layer)


def made_config(kind, folder, options):
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = str(int(kind == "v2"))
    config = EngineArgs(
        model=folder, skip_tokenizer_init=True, enforce_eager=True, dtype="float32", max_model_len=LONGEST, block_size=BLOCK,
        num_gpu_blocks_override=BLOCKS, max_num_seqs=AT_ONCE, max_num_batched_tokens=32, enable_prefix_caching=True, load_format="dummy",
        async_scheduling="async" in options, speculative_config=NGRAM if "speculate" in options else None).create_engine_config()
    config.cache_config.kv_cache_layout, config.cache_config.num_gpu_blocks = "NHD", BLOCKS
    config.scheduler_config.async_scheduling = "async" in options  # vLLM turns it off on a CPU
    return config


def made_runner(kind, config, caches, model):
    if kind == "v1":
        runner = V1(config, torch.device("cpu"))
        runner.model = model
        Sampler.greedy_sample = staticmethod(lambda logits: logits.argmax(-1))  # vLLM's own is compiled code, which is not in its sources
    else:
        runner = V2(config, torch.device("cpu"))
        if "model" in inspect.signature(base.GPUModelRunner.load_model).parameters:
            runner.load_model(model=model)
        else:  # vLLM before 0.33 asks a loader
            base.get_model_loader = lambda *_: types.SimpleNamespace(load_model=lambda **_: model)
            runner.load_model()
    runner.initialize_kv_cache(caches)
    pad(kind, config.compilation_config, runner)
    return runner


def pad(kind, config, runner):
    """Batches are padded as for graphs of these sizes, though none is captured."""
    if kind == "v1":
        config.cudagraph_capture_sizes, config.max_cudagraph_capture_size = SIZES, SIZES[-1]
        runner.cudagraph_dispatcher.initialize_cudagraph_keys(CUDAGraphMode.PIECEWISE, 1)
        return
    inner = runner.cudagraph_manager.dispatch

    def dispatch(num_reqs, num_tokens, *more, **named):
        size = next((size for size in SIZES if size >= num_tokens), num_tokens)
        return dataclasses.replace(inner(num_reqs, num_tokens, *more, **named), num_tokens=size)
    runner.cudagraph_manager.dispatch = dispatch


def loaded(config):
    """What `dmi-run --attach` made of the model that vLLM loads: modules with taps, and whether compiled graphs of before are still good."""
    before = config.compute_hash()
    runner = V2(config, torch.device("cpu"))
    runner.load_model()
    tapped = [path for path, module in runner.model.named_modules() if "_dmi_owner" in module.__dict__]
    return {"model": type(runner.model).__module__, "tapped": tapped, "same": before == config.compute_hash()}


def made_requests(seed, n, cycle):
    """Prompts of which half begin alike, so that later ones find blocks of theirs in the cache."""
    rng = random.Random(seed)
    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK, sha256)
    shared = [rng.randrange(cycle) for _ in range(40)]
    for i in range(n):
        prompt = shared[:rng.choice([0, 0, 20, 33, 40])] + [rng.randrange(cycle) for _ in range(rng.randint(3, 45))]
        params = SamplingParams(temperature=0, max_tokens=rng.randint(2, 30), ignore_eos=True, stop_token_ids=[*range(0, cycle, 6)] if i % 4 == 1 else None,
                                extra_args={"capture": "yes", "n": i} if i % 3 == 0 else None)
        asked = EngineCoreRequest(request_id=f"req{i}", prompt_token_ids=prompt, mm_features=None, sampling_params=params, pooling_params=None,
                                  arrival_time=0.0, lora_request=None, cache_salt=None, data_parallel_rank=None)
        InputProcessor.assign_request_id(asked)  # vLLM's own names
        yield Request.from_engine_core_request(asked, hasher)


class Server:
    """What vLLM's engine core does with a scheduler and a model runner, in one process."""

    def __init__(self, scheduler, runner, model, rng, later):
        self.scheduler, self.runner, self.model, self.rng, self.later = scheduler, runner, model, rng, later
        self.pending, self.cached, self.first = (None, None), {}, {}
        self.steps = self.padded = self.preempted = self.rejected = 0

    def step(self):
        output = self.scheduler.schedule()
        self.note(output)
        rows = self.model.rows
        said = self.runner.execute_model(output)
        self.padded += self.model.rows - rows - output.total_num_scheduled_tokens
        if said is None:
            said = self.runner.sample_tokens(None)
        if self.later:
            (output, said), self.pending = self.pending, (output, said) if output.total_num_scheduled_tokens else (None, None)
        if output is not None:
            self.take(output, said)

    def take(self, output, said):
        if hasattr(said, "get_output"):
            said = said.get_output()
        drafts = self.runner.take_draft_token_ids() if output.total_num_scheduled_tokens else None
        self.scheduler.update_from_output(output, said)
        if drafts is not None:
            self.scheduler.update_draft_token_ids(drafts)
        by_id = dict(zip(said.req_ids, said.sampled_token_ids or ()))
        self.rejected += sum(1 + len(tokens) - len(by_id.get(name, ())) for name, tokens in output.scheduled_spec_decode_tokens.items())

    def note(self, output):
        self.steps += output.total_num_scheduled_tokens > 0
        self.preempted += len(output.preempted_req_ids or ())
        for new in output.scheduled_new_reqs:
            self.cached.setdefault(new.req_id, new.num_computed_tokens)
            self.first[new.req_id] = min(self.first.get(new.req_id, LONGEST), new.num_computed_tokens)
        resumed = output.scheduled_cached_reqs
        for name, computed in zip(resumed.req_ids, resumed.num_computed_tokens):
            self.first[name] = min(self.first[name], computed)

    def serve(self, requests):
        waiting = list(requests)
        while waiting or self.scheduler.has_requests() or self.pending[0]:
            while waiting and self.rng.random() < 0.4:
                self.scheduler.add_request(waiting.pop(0))
            if self.scheduler.has_requests() or self.pending[0]:
                self.step()
            if not self.pending[0] and self.rng.random() < 0.1:
                self.runner._dummy_run(4)


def main():
    kind, seed, folder, *options = sys.argv[1:]
    cycle = 7 if "speculate" in options else VOCABULARY
    mend_interpreter()
    load_general_plugins()
    config = made_config(kind, folder, options)
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=2, head_size=8, dtype=torch.float32)
    caches = KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec([], spec)])
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, f"file://{folder}/rendezvous", 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
        if "attach" in options:
            print(json.dumps(loaded(config)))
            return
        model = Model(model_runners.Device(), cycle)
        runner = made_runner(kind, config, caches, model)
        scheduler = (AsyncScheduler if "async" in options else Scheduler)(config, caches, StructuredOutputManager(config), block_size=BLOCK, hash_block_size=BLOCK)
        requests = list(made_requests(int(seed), 16, cycle))
        server = Server(scheduler, runner, model, random.Random(int(seed)), "async" in options)
        server.serve(requests)
    print(json.dumps({"preempted": server.preempted, "rejected": server.rejected, "steps": server.steps, "padded": server.padded, "requests": {
        f"req{i}": {"id": r.request_id, "tokens": [*r.all_token_ids], "n_prompt": r.num_prompt_tokens, "cached": server.cached[r.request_id],
                    "first": server.first[r.request_id], "fields": r.sampling_params.extra_args} for i, r in enumerate(requests)}}))


if __name__ == "__main__":
    main()
