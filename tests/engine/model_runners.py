# SPDX-License-Identifier: Apache-2.0
"""What an adapter of a serving engine sees of it, and nothing else: a scheduler with made-up requests, and the model runners of vLLM and
SGLang as far as dmi.vllm and dmi.sglang touch them. A forward taps a tensor whose rows say whose they are.

Written after vLLM 0.33.0 and SGLang 0.5.23; test_runners.py compares names and fields with their sources.
"""
import ctypes
import random
from types import SimpleNamespace as Some

import numpy as np

import dmi
from dmi import taps

CONFIG = {"model_type": "llama", "num_hidden_layers": 2, "rope_theta": 500.0}
WIDTH = 4  # of a row: number of the request, position, 1 of a draft, step


class Device:
    """Tensors of float32 on the device, there while they are tapped."""

    def __init__(self):
        self.cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        for status in (self.cuda.cuInit(0), self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), self.cuda.cuCtxSetCurrent(context)):
            assert status == 0, status
        self.context = context

    def tap(self, name, rows, layer=taps.NO_LAYER):
        if not len(rows):
            return
        data, address = np.ascontiguousarray(rows, np.float32), ctypes.c_uint64()
        assert self.cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(data.nbytes)) == 0
        assert self.cuda.cuMemcpyHtoD_v2(address, ctypes.c_void_p(data.ctypes.data), ctypes.c_size_t(data.nbytes)) == 0
        status = taps.send(name, address.value, 0, taps.DTYPES["float32"], data.shape, (WIDTH, 1), 4, 1, layer, 2 if layer >= 0 else 0)
        assert status in (dmi.OK, dmi.OFF) and self.cuda.cuCtxSynchronize() == 0, status  # OFF: a trace without a HookSpec
        self.cuda.cuMemFree_v2(address)


class Request:
    """known: tokens that there are, of the prompt and after it; computed: the first so many of them."""

    def __init__(self, number, rng):
        self.number, self.client = number, f"req{number}"
        self.id = f"{self.client}-{rng.getrandbits(32):08x}"
        self.n_prompt = rng.randint(3, 20)
        self.first = self.cached = self.computed = rng.choice([0, 0, rng.randrange(self.n_prompt)])
        self.known, self.limit, self.seen = self.n_prompt, self.n_prompt + rng.randint(2, 8), False
        self.fields = {"capture": "yes", "n": number} if number % 3 == 0 else None
        self.prompt = [1000 * number + i for i in range(self.n_prompt)]

    def tokens(self, n):
        """The next @n, of the prompt and after it."""
        return (self.prompt + [7] * (self.computed + n))[self.computed:self.computed + n]

    def as_new(self):
        params = Some(extra_args=self.fields)
        return Some(req_id=self.id, prompt_token_ids=self.prompt, prompt_embeds=None, sampling_params=params, pooling_params=None,
                    num_computed_tokens=self.computed)


class Scheduler:
    """Requests come and go, are chunked, preempted, and change their slots. Tokens are never looked at: only how many there are."""

    def __init__(self, seed, n_requests, speculate=0, says_resumed_anew=False):
        self.rng = random.Random(seed)
        self.waiting = [Request(i, self.rng) for i in range(n_requests)]
        self.slots, self.ended, self.speculate, self.says_anew = [], [], speculate, says_resumed_anew
        self.rejected = self.preempted = 0

    def admit(self):
        new = []
        while self.waiting and len(self.slots) < 6 and self.rng.random() < 0.6:
            request = self.waiting.pop(0)
            if not request.seen or self.says_anew:
                new.append(request.as_new())
            request.seen = True
            self.slots.append(request)
        return new

    def preempt(self):
        if len(self.slots) > 2 and self.rng.random() < 0.15:
            request = self.slots[self.rng.randrange(len(self.slots))]
            self.remove(request)
            request.computed = self.rng.randrange(min(request.computed, request.n_prompt - 1) + 1)
            request.first = min(request.first, request.computed)
            self.preempted += 1
            self.waiting.insert(0, request)

    def remove(self, request):
        """The last one moves to the free slot."""
        i = self.slots.index(request)
        self.slots[i] = self.slots[-1]
        self.slots.pop()

    def plan(self):
        """What the engine gives its workers for a step; the counts by slot, and the drafts among them."""
        for request in self.ended:
            self.remove(request)
        finished, self.ended = {request.id for request in self.ended}, []
        self.preempt()
        new = self.admit()
        if len(self.slots) > 1 and self.rng.random() < 0.4:
            i, j = self.rng.sample(range(len(self.slots)), 2)
            self.slots[i], self.slots[j] = self.slots[j], self.slots[i]
        counts, drafts = [], []
        for request in self.slots:
            own = min(request.known - request.computed, self.rng.randint(1, 9))
            guessed = self.rng.randint(0, self.speculate) if request.computed + own == request.known and own == 1 and request.known > request.n_prompt else 0
            counts.append(own + guessed)
            drafts.append(guessed)
        by_id = list(zip((request.id for request in self.slots), counts, drafts))
        self.rng.shuffle(by_id)  # the scheduler's order is not that of the slots
        return Some(finished_req_ids=finished, scheduled_new_reqs=new, num_scheduled_tokens={name: n for name, n, _ in by_id},
                    total_num_scheduled_tokens=sum(counts), scheduled_encoder_inputs={},
                    scheduled_spec_decode_tokens={name: [0] * k for name, _, k in by_id if k}), counts, drafts

    def rows(self, counts, drafts, step):
        """(rows of the batch, rows of logits): the first own token that is last, and each draft."""
        rows, logits = [], []
        for request, n, k in zip(self.slots, map(int, counts), drafts):
            mine = [(request.number, request.computed + i, i >= n - k, step) for i in range(n)]
            rows += mine
            logits += mine[n - k - 1:]
        return rows, logits

    def take(self, counts, drafts):
        """[tokens that the step gives each request]"""
        given = []
        for request, n, k in zip(self.slots, map(int, counts), drafts):
            own, accepted = n - k, self.rng.randint(0, k)
            self.rejected += k - accepted
            request.computed += own + accepted
            if request.computed < request.known:
                given.append([])
                continue
            request.known = request.computed + 1
            given.append([7] * (1 + accepted))
            if request.known >= request.limit:
                self.ended.append(request)
        return given

    def is_done(self):
        return not self.waiting and not self.slots


def config(speculate=0, **more):
    parallel = {"prefill_context_parallel_size": 1, "decode_context_parallel_size": 1, "use_ubatching": False, "data_parallel_rank": 1,
                "data_parallel_size": 2, "enable_expert_parallel": True}
    return {"parallel_config": Some(**parallel | more.get("parallel", {})), "model_config": Some(is_encoder_decoder=False, hf_config=Some(to_dict=lambda: CONFIG), tokenizer="name/model"),
            "server_args": Some(tokenizer_path="name/model"),
            "scheduler_config": Some(async_scheduling=more.get("async_scheduling", False)), "speculative_config": Some() if speculate else None}


class Later:
    """Tokens that come to the host later."""

    def __init__(self, output):
        self.output = output

    def get_output(self):
        return self.output


class Runner:
    swaps = False  # are the first two requests' ids in each other's place?

    def host_ids(self, counts):
        slots = self.scheduler.slots
        parts = [request.tokens(int(n)) for request, n in zip(slots, counts)]
        if self.swaps and len(parts) > 1:
            parts[:2] = parts[1::-1]
        return np.array([token for part in parts for token in part], np.int64)

    def __init__(self, device, scheduler, **configs):
        self.device, self.scheduler, self.step, self.output, self.later = device, scheduler, -1, None, False
        self.__dict__.update(configs)

    def load_model(self):
        """Whose model a program would tap."""

    def forward(self, counts, drafts, n_rows):
        self.step += 1
        rows, logits = self.scheduler.rows(counts, drafts, self.step)
        rows += [(-1, -1, 0, 0)] * (n_rows - len(rows))
        for layer in range(2):
            self.device.tap("resid_pre", rows, layer)
        return logits

    def finish(self, counts, drafts):
        output = Some(req_ids=[request.id for request in self.scheduler.slots], sampled_token_ids=self.scheduler.take(counts, drafts))
        self.device.tap("drafted", [(-1, -1, 0, 0)] * 3)  # a draft model's
        return Later(output) if self.later else output


class V1(Runner):
    """vllm.v1.worker.gpu_model_runner.GPUModelRunner"""

    def execute_model(self, scheduler_output, intermediate_tensors=None):
        if not scheduler_output.total_num_scheduled_tokens:
            return
        slots = self.scheduler.slots
        self.input_batch = Some(req_ids=[request.id for request in slots], num_reqs=len(slots),
                                num_computed_tokens_cpu=np.array([request.computed for request in slots] + [99] * 4, np.int32))
        counts = np.array([scheduler_output.num_scheduled_tokens[request.id] for request in slots], np.int32)
        drafts = [len(scheduler_output.scheduled_spec_decode_tokens.get(request.id, ())) for request in slots]
        self.input_ids = Some(cpu=self.host_ids(counts))
        _, descriptor, _, _, _ = self._determine_batch_execution_and_padding(
            num_tokens=int(counts.sum()), num_reqs=len(slots), num_scheduled_tokens_np=counts, max_num_scheduled_tokens=int(counts.max()),
            use_cascade_attn=False, num_encoder_reqs=0, allow_microbatching=False)
        logits = self.forward(counts, drafts, descriptor.num_tokens)
        self.device.tap("final_logits", logits)
        self.output = counts, drafts

    def _determine_batch_execution_and_padding(self, num_tokens, num_reqs, num_scheduled_tokens_np, max_num_scheduled_tokens, use_cascade_attn=False,
                                               allow_microbatching=True, force_eager=False, force_uniform_decode=None, force_has_lora=None,
                                               force_num_active_loras=None, num_encoder_reqs=0):
        return None, Some(num_tokens=-(-num_tokens // 8) * 8, num_reqs=None), False, None, None

    def sample_tokens(self, grammar_output):
        return self.finish(*self.output)

    def _dummy_run(self, num_tokens):
        self._determine_batch_execution_and_padding(num_tokens, 1, np.array([num_tokens]), num_tokens)
        self.device.tap("resid_pre", [(-1, -1, 0, 0)] * num_tokens, 0)


class V2(Runner):
    """vllm.v1.worker.gpu.model_runner.GPUModelRunner"""

    def execute_model(self, scheduler_output, intermediate_tensors=None, dummy_run=False, skip_attn_for_dummy_run=False, is_profile=False):
        if dummy_run:
            self.device.tap("resid_pre", [(-1, -1, 0, 0)] * 5, 0)
            return
        if not scheduler_output.total_num_scheduled_tokens:
            return
        self.batch = self.prepare_inputs(scheduler_output, None, None, 0)
        self.counts = list(np.diff(self.batch.query_start_loc_np[:self.batch.num_reqs + 1]))
        self.logits = self.forward(self.counts, self.drafts, self.batch.num_tokens_after_padding)

    def prepare_inputs(self, scheduler_output, batch_req_state, batch_desc, num_active_loras):
        slots = self.scheduler.slots
        counts = [scheduler_output.num_scheduled_tokens[request.id] for request in slots]
        self.drafts = [len(scheduler_output.scheduled_spec_decode_tokens.get(request.id, ())) for request in slots]
        starts = np.concatenate([[0], np.cumsum(counts), [sum(counts)] * 2]).astype(np.int32)
        return Some(req_ids=[request.id for request in slots], num_reqs=len(slots), query_start_loc_np=starts, num_tokens=sum(counts), input_ids=self.host_ids(counts),
                    num_tokens_after_padding=-(-sum(counts) // 8) * 8, num_computed_tokens_np=np.array([r.computed for r in slots], np.int32),
                    num_draft_tokens_per_req=np.array(self.drafts, np.int32) if any(self.drafts) else None, num_admitted_draft_tokens=None, pcp=None)

    def sample(self, hidden_states, input_batch, grammar_output):
        self.device.tap("final_logits", self.logits)

    def sample_tokens(self, grammar_output):
        self.sample(None, self.batch, grammar_output)
        return self.finish(self.counts, self.drafts)

    def _dummy_run(self, num_tokens):
        self.execute_model(None, None, True)


class Mode:
    """sglang.srt.model_executor.forward_batch_info.ForwardMode"""

    def __init__(self, name):
        self.name = name

    def is_decode(self):
        return self.name == "DECODE"

    def is_idle(self):
        return self.name == "IDLE"

    def is_extend_without_speculative(self):
        return self.name in ("EXTEND", "MIXED")

    def is_split_prefill(self):
        return self.name == "SPLIT_PREFILL"

    def is_dllm_extend(self):
        return self.name == "DLLM_EXTEND"


class ForwardBatch(Some):
    """sglang.srt.model_executor.forward_batch_info.ForwardBatch"""

    @classmethod
    def init_new(cls, batch, model_runner):
        extends = not batch.forward_mode.is_decode()
        return cls(forward_mode=batch.forward_mode, rids=[request.rid for request in batch.reqs], input_ids=model_runner.host_ids(batch.extend_lens),
                   seq_lens_cpu=np.array(batch.seq_lens), extend_prefix_lens_cpu=batch.prefix_lens if extends else None,
                   extend_seq_lens_cpu=batch.extend_lens if extends else None, spec_algorithm=Some(is_none=lambda: not model_runner.speculates),
                   global_num_tokens_cpu=None, attn_cp_metadata=None, attn_dcp_metadata=None, tbo_split_seq_index=None, encoder_lens=None)


class SGLang(Runner):
    """sglang.srt.model_executor.model_runner.ModelRunner"""
    is_draft_worker, speculates, prefill_cuda_graph_runner = False, False, None
    decode_cuda_graph_runner = Some(capture_bs=[1, 2, 4, 8])

    def forward(self, forward_batch, skip_attn_backend_init=None, pp_proxy_tensors=None):
        if not forward_batch.rids:
            self.device.tap("resid_pre", [(-1, -1, 0, 0)] * 3, 0)
            return
        n = sum(self.counts)
        pads = forward_batch.forward_mode.is_decode()
        self.device.tap("final_logits", Runner.forward(self, self.counts, self.drafts, min(b for b in (1, 2, 4, 8) if b >= n) if pads else n))

    def execute_model(self, output):
        """What SGLang's scheduler does with a batch."""
        slots = self.scheduler.slots
        self.counts = [output.num_scheduled_tokens[request.id] for request in slots]
        self.drafts = [0] * len(slots)
        reqs = [Some(rid=request.client, origin_input_ids=request.prompt, sampling_params=Some(custom_params=request.fields)) for request in slots]
        decodes = all(n == 1 and request.computed >= request.n_prompt for request, n in zip(slots, self.counts))
        starts = [request.computed for request in slots]
        batch = Some(reqs=reqs, forward_mode=Mode("DECODE" if decodes else "MIXED"), prefix_lens=starts, extend_lens=self.counts,
                     seq_lens=[start + n for start, n in zip(starts, self.counts)])
        if slots:
            self.forward(ForwardBatch.init_new(batch, self))

    def sample_tokens(self, grammar_output):
        return self.finish(self.counts, self.drafts)

    def _dummy_run(self, num_tokens):
        self.forward(ForwardBatch(forward_mode=Mode("DECODE"), rids=None))
