# SPDX-License-Identifier: Apache-2.0
"""SGLang says whose tokens a forward computes: a plugin of SGLang's (group sglang.srt.plugins), which a wheel of DMI installs.

Nothing is to be called. SGLang loads its plugins in every process; without libdmi_preload.so this one does nothing, and with it each
ModelRunner.forward() of the model that is served announces a step: the rows of a ForwardBatch, request by request in the order of `rids`.
A request's `custom_params` (of its sampling parameters) are its tags. A version that nobody tried is tried first: its records have no request
ids until three steps agree (adapters.Trial).

Source: SGLang 0.5.23 and 0.5.22, sglang/srt/model_executor/model_runner.py: ModelRunner.forward(); forward_batch_info.py: ForwardBatch, ForwardMode.
"""
import collections
import functools
import weakref

import dmi
from dmi import adapters, sglang_ranges

TRIED = ("0.5.22", "0.5.23")
RUNNER, BATCH = "sglang.srt.model_executor.model_runner", "sglang.srt.model_executor.forward_batch_info"
REMEMBERED = 65_536  # requests of which it is known that they came before

_adapter = adapters.Adapter("dmi.sglang")
_registered = []


def register():
    """The entry point. Does nothing without the library, and nothing the second time."""
    if dmi.loaded() and not _registered:
        _registered.append(True)
        adapters.when_imported(BATCH, functools.partial(_change, "ForwardBatch", "init_new", _around_init))
        adapters.when_imported(RUNNER, functools.partial(_change, "ModelRunner", "forward", _around_forward))
        sglang_ranges.use(_adapter)


class _State:
    """Of one model runner. seen: requests that came before, the latest last; that one ended is not said here."""

    def __init__(self):
        self.step, self.seen, self.ranks = -1, collections.OrderedDict(), _ranks()
        self.trial = adapters.Trial(_adapter, "sglang", TRIED)

    def is_new(self, name):
        new = name not in self.seen
        self.seen[name] = True
        self.seen.move_to_end(name)
        if len(self.seen) > REMEMBERED:
            self.seen.popitem(last=False)
        return new


_states = weakref.WeakKeyDictionary()


def _ranks():
    from sglang.srt.runtime_context import get_parallel
    parallel = get_parallel()
    return tuple((getattr(parallel, f"{axis}_rank") or 0, getattr(parallel, f"{axis}_size") or 1) for axis in ("tp", "pp", "dp", "moe_ep"))


def _refusal(batch):
    """What makes rows or positions other than the batch's lists say; None: nothing."""
    mode = batch.forward_mode
    if batch.spec_algorithm is not None and not batch.spec_algorithm.is_none():
        return "speculative decoding, where positions on the host are guesses,"
    if batch.global_num_tokens_cpu is not None:
        return "data parallel attention"
    if batch.attn_cp_metadata is not None or batch.attn_dcp_metadata is not None:
        return "context parallelism"
    if batch.tbo_split_seq_index is not None:
        return "two-batch overlap"
    if batch.encoder_lens is not None:
        return "an encoder-decoder model"
    if not (mode.is_decode() or mode.is_extend_without_speculative()) or mode.is_split_prefill() or mode.is_dllm_extend():
        return f"a forward of mode {mode.name}"
    if not mode.is_decode() and batch.extend_seq_lens_cpu is None or mode.is_decode() and batch.seq_lens_cpu is None:
        return "a batch whose lengths are on the device alone"
    return None


def _lengths(batch):
    """([position of the first token], [tokens]) of each request."""
    if batch.forward_mode.is_decode():
        return [n - 1 for n in batch.seq_lens_cpu.tolist()], [1] * len(batch.rids)
    return batch.extend_prefix_lens_cpu, batch.extend_seq_lens_cpu


def _padded(runner, batch, n):
    """Rows of a graph that takes @n tokens: the buckets of the one that this mode has; @n where none is large enough."""
    if batch.forward_mode.is_decode():
        buckets = getattr(runner.decode_cuda_graph_runner, "capture_bs", None)
    else:
        buckets = getattr(runner.prefill_cuda_graph_runner, "capture_num_tokens", None)
    return min((bucket for bucket in buckets or () if bucket >= n), default=n)


def _spans(state, batch):
    row, about = 0, getattr(batch, "_dmi_requests", None) or [(None, (), None)] * len(batch.rids)
    for name, start, n, (_, prompt, tags) in zip(batch.rids, *_lengths(batch), about):
        n_prompt = len(prompt)
        decodes = n == 1 and (start >= n_prompt if n_prompt else batch.forward_mode.is_decode())
        cached = start if state.is_new(name) and not decodes else 0
        yield dmi.Span(name, start, n, row, n_cached=cached, cached_ids=list(prompt[:cached]) if cached <= n_prompt else None, tags=tags,
                       phase=dmi.Phase.DECODE if decodes else dmi.Phase.PREFILL, n_prompt=n_prompt)
        row += n


def _is_understood(state, batch):
    """Its ids are copied from the device for this."""
    rows, about = [*zip(batch.rids, *_lengths(batch))], getattr(batch, "_dmi_requests", ())
    scheduled = {name: n for (name, _, _), (_, _, n) in zip(about, rows)}
    return state.trial.passed(rows, scheduled, {name: prompt for name, prompt, _ in about}, batch.input_ids.tolist) and _adapter.on


def _caches(runner):
    """Do requests share rows of the radix cache? None: it is not said."""
    off = getattr(getattr(runner, "server_args", None), "disable_radix_cache", None)
    return None if off is None else not off


@_adapter.guarded
def _begin(runner, batch):
    if runner.is_draft_worker or not batch.rids or batch.forward_mode.is_idle():
        dmi.step_end()  # a draft model's, a dummy's
        return
    if runner not in _states:
        _states[runner] = _State()
        _adapter.describe(runner, getattr(getattr(runner, "server_args", None), "tokenizer_path", None))
    state = _states[runner]
    state.step += 1
    if refusal := _refusal(batch):
        _adapter.warn(f"{refusal} is not supported: records have no request ids")
        dmi.step_begin(state.step, [], len(batch.input_ids), ranks=state.ranks)  # forwards are counted, their rows are nobody's
        return
    if state.trial.left and not _is_understood(state, batch):
        dmi.step_begin(state.step, [], len(batch.input_ids), ranks=state.ranks)
        return
    spans = list(_spans(state, batch))
    n = sum(span.n_tokens for span in spans)
    n_rows = _padded(runner, batch, n)
    if n_rows > n:
        spans.append(dmi.Span(None, 0, n_rows - n, n, flags=dmi.PADDING))
    status = dmi.step_begin(state.step, spans, n_rows, ranks=state.ranks, caches=_caches(runner))
    if status < 0 or status == dmi.BAD_VERSION:
        _adapter.warn(f"dmi_step_begin() refused a step: {status}")


def _n_tokens(runner, batch, *more):
    return len(batch.input_ids)


def _around_forward(forward):
    counting = adapters.counts_forwards(forward, _n_tokens, lambda runner, *more: _states[runner].step if runner in _states else -1)

    @functools.wraps(forward)
    def announcing(self, forward_batch, *args, **kwargs):
        if not _adapter.on:
            return counting(self, forward_batch, *args, **kwargs)
        _begin(self, forward_batch)
        try:
            return forward(self, forward_batch, *args, **kwargs)
        finally:
            if _adapter.on:
                dmi.step_end()
    return announcing


@_adapter.guarded
def _note(forward_batch, batch):
    """What a ForwardBatch does not say of its requests: their prompts, and what their clients sent along."""
    forward_batch._dmi_requests = [(request.rid, request.origin_input_ids, _tags(request)) for request in batch.reqs]


def _tags(request):
    """What its client sent along, and what SGLang's cache is keyed by beside token ids: in the tag `cache_salt`, too, where edits look for their salt."""
    key = {name: value for name in ("extra_key", "cache_salt") if (value := getattr(request, name, None)) is not None}
    own = {name: value for name, value in _plain(request.sampling_params.custom_params).items() if name != "cache_salt"}
    return adapters.marks(adapters.text_of_tags(own | ({"cache_salt": " ".join(map(str, key.values()))} if key else {})), key)


def _plain(fields):
    """Without SGLang's own entries."""
    return {key: value for key, value in (fields or {}).items() if isinstance(value, (str, int, float)) and not key.startswith("__")}


def _around_init(init_new):
    """@init_new: a classmethod, bound to its class."""
    @functools.wraps(init_new)
    def init(cls, batch, *args, **kwargs):
        forward_batch = init_new.__func__(cls, batch, *args, **kwargs)
        _note(forward_batch, batch)
        return forward_batch
    return classmethod(init)


_NEEDED = {"init_new": ("batch",), "forward": ("forward_batch",)}  # {method: its parameters that are used}


def _change(kind, name, wrap, module):
    """A method of a class of @module announces its steps."""
    owner = getattr(module, kind, None)
    method = getattr(owner, name, None)
    if missing := adapters.lacks(owner, {name: _NEEDED[name]}):
        _adapter.turn_off(f"sglang {adapters.version_of('sglang')[0]} is not understood: its {kind} has no {missing}")
    elif _adapter.on:
        setattr(owner, name, wrap(method))
        return
    if name == "forward" and callable(method):
        setattr(owner, name, adapters.counts_forwards(method, _n_tokens))
