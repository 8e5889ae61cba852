# SPDX-License-Identifier: Apache-2.0
"""vLLM says whose tokens a forward computes: a plugin of vLLM's (group vllm.general_plugins), which a wheel of DMI installs.

Nothing is to be called. vLLM loads its plugins in every process; without libdmi_preload.so this one does nothing, and with it
waits until a model runner is imported: V1's or V2's. A request is called what its client called it; vLLM's own name
for it (with eight more characters) is its tag `vllm_request_id`. The client's fields (`vllm_xargs` in vLLM's API, `extra_args` in
SamplingParams) are its tags, so that a HookSpec's `requests: 'tag:capture=*'` captures those who ask for it. With `dmi-run --attach SITES`
vLLM's model is tapped by name before it is compiled.

Whether a version is understood is judged by the methods that its model runner has. One that nobody tried is tried first: its records
have no request ids until three steps agree (adapters.Trial).

Source: vLLM 0.33.0 and 0.27.1, vllm/v1/worker/gpu_model_runner.py and gpu/model_runner.py: GPUModelRunner; v1/core/sched/output.py;
v1/engine/input_processor.py.
"""
import functools
import inspect
import os
import re
import weakref

import dmi
from dmi import adapters, vllm_ranges

TRIED = ("0.27.1", "0.33.0")
V1, V2 = "vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.model_runner"
INTERNAL = re.compile(r"(.+)-[0-9a-f]{8}", re.S)  # what InputProcessor gives to a client's id
MAX_TAGS = 60_000                                 # bytes; the library takes 65,535

_adapter = adapters.Adapter("dmi.vllm")


def register():
    """The entry point. Does nothing without the library, and nothing the second time."""
    if dmi.loaded() and not _registered:
        _registered.append(True)
        adapters.when_imported(V1, functools.partial(_change, _V1_METHODS))
        adapters.when_imported(V2, functools.partial(_change, _V2_METHODS))
        vllm_ranges.use(_adapter)


_registered = []


class _Request:
    """What is known of a request in this process. cached: tokens that the prefix cache had, None once they were said; cached_ids: their
    ids, or None; prompt: its ids, or None, as long as they are wanted.
    """

    def __init__(self, name, tags, n_prompt, cached, cached_ids, prompt):
        self.name, self.tags, self.n_prompt, self.cached, self.cached_ids, self.prompt = name, tags, n_prompt, cached, cached_ids, prompt


class _State:
    """Of one model runner.

    requests  {vLLM's id: _Request}; owners {a client's id: vLLM's id of whoever has that name}
    output    what the scheduler said for the step that is being prepared; None: the forward is a dummy's
    step      the number of the last step, the same on all ranks: they are all given the same steps
    drafts    {vLLM's id: name} of requests with drafts in that step
    """

    def __init__(self, runner):
        self.requests, self.owners, self.output, self.step, self.drafts = {}, {}, None, -1, {}
        self.ranks, self.refusal, self.sees_later = _ranks(runner.parallel_config), _refusal(runner), _sees_later(runner.model_config)
        self.caches = getattr(getattr(runner, "cache_config", None), "enable_prefix_caching", None)
        self.trial = adapters.Trial(_adapter, "vllm", TRIED)

    # ---- requests

    def learn(self, output):
        """Requests that ended, and those that came."""
        for name in output.finished_req_ids:
            if (request := self.requests.pop(name, None)) is not None:
                self.owners.pop(request.name, None)
                dmi.request_end(request.name)
        for new in output.scheduled_new_reqs:
            self.note(new)

    def note(self, new):
        known = self.requests.get(new.req_id)
        prompt = new.prompt_token_ids if new.prompt_token_ids is not None else new.prompt_embeds
        if known is not None:  # it comes again: after a preemption, or with a longer prompt
            known.n_prompt, known.prompt = len(prompt), new.prompt_token_ids if self.trial.left else None
            return
        name = found[1] if (found := INTERNAL.fullmatch(new.req_id)) else new.req_id
        if self.owners.setdefault(name, new.req_id) != new.req_id:
            name = new.req_id  # two clients chose one id
        params = new.sampling_params or new.pooling_params
        tags = adapters.marks(_tags(getattr(params, "extra_args", None), new.req_id), _cache_key(new), self.sees_later)
        self.requests[new.req_id] = _Request(name, tags, len(prompt), new.num_computed_tokens, _cached_ids(new),
                                             new.prompt_token_ids if self.trial.left else None)

    # ---- steps

    def begin(self, ids, starts, counts, n_drafts, n_rows, tokens):
        """@ids: in the order of their rows, each with the position of its first token, its tokens, and how many of those are drafts.
        @tokens: a function, the runner's ids by row.
        """
        self.step += 1
        self.drafts = {}
        if self.refusal or self.trial.left and not self.is_understood(ids, starts, counts, tokens):
            dmi.step_begin(self.step, [], n_rows, ranks=self.ranks, caches=self.caches)  # forwards are counted, their rows are nobody's
            return
        spans, row = [], 0
        for name, start, n, n_guessed in zip(ids, map(int, starts), map(int, counts), map(int, n_drafts)):
            spans += self.spans_of(name, start, n, n_guessed, row)
            row += n
        if n_rows > row:
            spans.append(dmi.Span(None, 0, n_rows - row, row, flags=dmi.PADDING))
        status = dmi.step_begin(self.step, spans, n_rows, ranks=self.ranks, caches=self.caches)
        if status < 0 or status == dmi.BAD_VERSION:
            _adapter.warn(f"dmi_step_begin() refused a step: {status}")

    def is_understood(self, ids, starts, counts, tokens):
        prompts = {name: self.requests[name].prompt for name in ids}
        return self.trial.passed([*zip(ids, starts, counts)], self.output.num_scheduled_tokens, prompts, tokens) and _adapter.on

    def spans_of(self, name, start, n, n_drafts, row):
        """One of what is computed for good, and one for each draft: each has a row of logits."""
        request = self.requests[name]
        cached, ids = min(request.cached or 0, start), request.cached_ids
        request.cached = request.cached_ids = None
        own = n - n_drafts
        phase = dmi.Phase.DECODE if own == 1 and start >= request.n_prompt else dmi.Phase.PREFILL
        common = {"tags": request.tags, "n_prompt": request.n_prompt}
        yield dmi.Span(request.name, start, own, row, n_cached=cached, phase=phase,
                       cached_ids=ids[start - cached:start] if cached and ids and len(ids) >= start else None, **common)
        if n_drafts:
            self.drafts[name] = request.name
        for k in range(own, n):
            yield dmi.Span(request.name, start + k, 1, row + k, phase=dmi.Phase.DRAFT, **common)


_states = weakref.WeakKeyDictionary()


def _state(runner):
    if runner not in _states:
        _states[runner] = _State(runner)
        _adapter.describe(runner, getattr(runner.model_config, "tokenizer", None))
    return _states[runner]


def _tags(fields, name):
    """The client's fields, as far as they are plain, and vLLM's own id."""
    plain = {key: value for key, value in (fields or {}).items() if isinstance(value, (str, int, float, list))}
    text = adapters.text_of_tags({**plain, "vllm_request_id": name})
    if len(text.encode()) <= MAX_TAGS:
        return text
    _adapter.warn("fields of a request that take more than 60,000 bytes are no tags")
    return adapters.text_of_tags({"vllm_request_id": name})


def _cached_ids(new):
    """Ids of the tokens that a new request's cache has; None: not all of them are known (embeddings in the place of tokens)."""
    known = getattr(new, "prefill_token_ids", None) or new.prompt_token_ids
    if known is None or len(known) < new.num_computed_tokens or not all(getattr(new, "prompt_is_token_ids", None) or ()):
        return None
    return known[:new.num_computed_tokens]


def _cache_key(new):
    """What vLLM's cache is keyed by beside token ids, as far as a worker gets it: the LoRA adapter, the images. A salt it does not get."""
    lora, features = getattr(new, "lora_request", None), getattr(new, "mm_features", None)
    key = {"lora": [lora.lora_name, lora.lora_path] if lora else None,
           "inputs": [[one.identifier, one.mm_position.offset] for one in features] if features else None}
    return {name: value for name, value in key.items() if value}


def _sees_later(config):
    """Does attention see tokens after a row's own?"""
    hf = getattr(config, "hf_config", None)
    return bool(getattr(config, "is_mm_prefix_lm", False)) or getattr(hf, "is_causal", True) is False


def _refusal(runner):
    """What makes rows or positions other than the scheduler says; None: nothing."""
    parallel, scheduler = runner.parallel_config, runner.scheduler_config
    if parallel.prefill_context_parallel_size > 1 or parallel.decode_context_parallel_size > 1:
        return "context parallelism"
    if parallel.use_ubatching:
        return "ubatching"
    if runner.model_config.is_encoder_decoder:
        return "an encoder-decoder model"
    if runner.speculative_config is not None and scheduler.async_scheduling:
        return "asynchronous scheduling with speculative decoding, where positions on the host are guesses,"
    return None


def _ranks(config):
    from vllm.distributed import parallel_state
    groups = [parallel_state.get_tp_group(), parallel_state.get_pp_group()]
    pairs = [(group.rank_in_group, group.world_size) for group in groups]
    pairs.append((config.data_parallel_rank, config.data_parallel_size))
    if not config.enable_expert_parallel:
        return (*pairs, (0, 1))
    group = parallel_state.get_ep_group()
    return (*pairs, (group.rank_in_group, group.world_size))


# ---------------------------------------------------------------------------------------- before and after vLLM's methods


@_adapter.guarded
def _execute(runner, output):
    dmi.step_end()
    state = _state(runner)
    if state.refusal:
        _adapter.warn(f"{state.refusal} is not supported: records have no request ids")
    else:
        state.learn(output)
    state.output = output


@_adapter.guarded
def _nothing_more(runner, ends):
    """Batches from here on are dummies'. @ends: their rows, and those of what is launched from here on, are nobody's."""
    if runner in _states:
        _states[runner].output = None
    if ends:
        dmi.step_end()


@_adapter.guarded
def _determined(runner, given, said):
    """V1: a batch is as padded as it will be. @given: arguments by name; @said: what was decided."""
    state = _state(runner)
    if state.output is None:
        return
    batch, drafts = runner.input_batch, state.output.scheduled_spec_decode_tokens
    counts, ids = given["num_scheduled_tokens_np"], batch.req_ids[:given["num_reqs"]]
    state.begin(ids, batch.num_computed_tokens_cpu, counts, [len(drafts.get(name, ())) for name in ids], said[1].num_tokens,
                lambda: runner.input_ids.cpu[:sum(map(int, counts))].tolist())


@_adapter.guarded
def _prepared(runner, batch):
    """V2: an InputBatch is ready."""
    state = _state(runner)
    if state.output is None:
        return
    starts = batch.query_start_loc_np
    counts = [starts[i + 1] - starts[i] for i in range(batch.num_reqs)]
    adaptive = getattr(batch, "num_admitted_draft_tokens", None) is not None  # not in 0.27
    if not state.refusal and (adaptive or sum(counts) != batch.num_tokens):
        state.step, state.drafts = state.step + 1, {}
        dmi.step_begin(state.step, [], batch.num_tokens_after_padding, ranks=state.ranks)
        _adapter.warn("adaptive verification is not supported: its records have no request ids")
        return
    drafts = batch.num_draft_tokens_per_req
    state.begin(batch.req_ids, batch.num_computed_tokens_np, counts, [0] * batch.num_reqs if drafts is None else drafts,
                batch.num_tokens_after_padding, lambda: batch.input_ids[:batch.num_tokens].tolist())


def _judged_by(runner, said):
    """What became of drafts: known once the tokens are on the host, which may be later and in another thread."""
    state = _states.get(runner)
    if state is None or not state.drafts:
        return
    step, drafts = state.step, state.drafts
    if not hasattr(said, "get_output"):
        _accept(step, drafts, said)
        return
    get_output = said.get_output

    def waiting():
        output = get_output()
        _accept(step, drafts, output)
        return output
    said.get_output = waiting


@_adapter.guarded
def _accept(step, drafts, output):
    """Of 1 + K rows a request is given as many tokens as of them hold; the first is no draft."""
    for name, tokens in zip(output.req_ids, output.sampled_token_ids or ()):
        if name in drafts and len(tokens):
            dmi.accept(drafts[name], step, len(tokens) - 1)


@_adapter.guarded
def _attach(runner):
    """Taps on the model that was loaded, and a mark for vLLM's compile cache: a graph without them, or with others, is not taken."""
    sites, layers = os.environ.get("DMI_ATTACH"), os.environ.get("DMI_ATTACH_LAYERS") or None
    write, models = os.environ.get("DMI_ATTACH_WRITE") or None, os.environ.get("DMI_ATTACH_MODEL") or None
    if not sites and not write:
        return
    more = runner.vllm_config.additional_config
    if not isinstance(more, dict):
        _adapter.warn("the model is not attached: additional_config is no dict, so that vLLM's compile cache could not tell taps apart")
        return
    more["dmi"] = {"attach": sites, "layers": layers} | ({"write": write} if write else {}) | ({"models": models} if models else {})
    from dmi.torch import script
    script.attach_first(sites, layers, None, runner.model, write, models)


def _around_load(load):
    @functools.wraps(load)
    def load_model(self, *args, **kwargs):
        done = load(self, *args, **kwargs)
        _attach(self)
        return done
    return load_model


def _n_scheduled(runner, output, *more):
    return output.total_num_scheduled_tokens


def _not_understood(missing, runner=None, output=None, *more):
    _adapter.warn(f"vllm {adapters.version_of('vllm')[0]} is not understood: its model runner has no {missing}: records have no request ids")
    return _n_scheduled(runner, output) if output else 0


def _around_execute(ends):
    """@ends: does the step end with this method?"""
    def wrap(execute):
        counting = adapters.counts_forwards(execute, _n_scheduled, lambda runner, *more: _states[runner].step if runner in _states else -1)

        @functools.wraps(execute)
        def execute_model(self, scheduler_output, *args, **kwargs):
            if not _adapter.on:
                return counting(self, scheduler_output, *args, **kwargs)
            if not kwargs.get("dummy_run") and not args[1:2] == (True,):
                _execute(self, scheduler_output)
            try:
                return execute(self, scheduler_output, *args, **kwargs)
            finally:
                _nothing_more(self, ends)
        return execute_model
    return wrap


def _around_determine(determine):
    names = list(inspect.signature(determine).parameters)[1:]

    @functools.wraps(determine)
    def determining(self, *args, **kwargs):
        said = determine(self, *args, **kwargs)
        _determined(self, dict(zip(names, args)) | kwargs, said)
        return said
    return determining


def _around_prepare(prepare):
    @functools.wraps(prepare)
    def preparing(self, *args, **kwargs):
        batch = prepare(self, *args, **kwargs)
        _prepared(self, batch)
        return batch
    return preparing


def _around_dummy(dummy):
    @functools.wraps(dummy)
    def running(self, *args, **kwargs):
        _nothing_more(self, True)
        return dummy(self, *args, **kwargs)
    return running


def _around_sample(sample):
    @functools.wraps(sample)
    def sampling(self, *args, **kwargs):
        try:
            return sample(self, *args, **kwargs)
        finally:
            dmi.step_end()  # what is launched from here on is a draft model's
    return sampling


def _around_sample_tokens(sample):
    @functools.wraps(sample)
    def sampling(self, *args, **kwargs):
        said = sample(self, *args, **kwargs)
        _adapter.guarded(_judged_by)(self, said)
        return said
    return sampling


_V1_METHODS = {"execute_model": _around_execute(ends=True), "_determine_batch_execution_and_padding": _around_determine,
               "_dummy_run": _around_dummy, "sample_tokens": _around_sample_tokens, "load_model": _around_load}
_V2_METHODS = {"execute_model": _around_execute(ends=False), "prepare_inputs": _around_prepare, "_dummy_run": _around_dummy,
               "sample": _around_sample, "sample_tokens": _around_sample_tokens, "load_model": _around_load}


# {method: its parameters that are used}; further ones are as they like.
_NEEDED = {V1: {"execute_model": ("scheduler_output",), "_determine_batch_execution_and_padding": ("num_scheduled_tokens_np", "num_reqs"),
                "_dummy_run": (), "sample_tokens": (), "load_model": ()},
           V2: {"execute_model": ("scheduler_output", "dummy_run"), "prepare_inputs": (), "_dummy_run": (), "sample": (), "sample_tokens": (),
                "load_model": ()}}


def _change(methods, module):
    """The model runner of @module announces its steps."""
    kind = getattr(module, "GPUModelRunner", None)
    if missing := adapters.lacks(kind, _NEEDED[module.__name__]):
        if callable(execute := getattr(kind, "execute_model", None)):  # it may be imported, and the other one run
            kind.execute_model = adapters.counts_forwards(execute, functools.partial(_not_understood, missing))
        else:
            _not_understood(missing)
        return
    for name, wrap in methods.items():
        setattr(kind, name, wrap(getattr(kind, name)))
