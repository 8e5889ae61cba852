# SPDX-License-Identifier: Apache-2.0
"""Continuous batching of Hugging Face's transformers (generate_batch() and its managers) says whose tokens a forward computes.

A forward has one row of input [1, token]: the requests of the batch one after another, in the scheduler's order, and then padding. A request is
called what requests() of dmi.huggingface says, where its generate_batch() or add_request() is called in that block; what the program calls it; or
hf-batch-MANAGER-ID, where transformers made the id. Of num_return_sequences the others are called NAME#1, NAME#2.

Steps begin and end on the manager's own thread, around the launches of a batch. Positions are the scheduler's, so chunks of a prompt, requests that are
put back and computed again, and blocks that several requests share come out at their tokens. Source: transformers 5.19, generation/continuous_batching.
"""
import functools
import itertools
import json
import re
import weakref

import dmi
from dmi import adapters, batches
from dmi.batches import _adapter, _here

TRIED = ((5, 19),)  # versions
MODULE = "transformers.generation.continuous_batching"
# {module: {class: {method that is wrapped, or used: its parameters that are used}}}
NEEDED = {"continuous_api": {"ContinuousBatchProcessor": {"_generation_step": ("model",)}, "OutputRouter": {"fail_and_deliver": ("state",)},
                             "ContinuousBatchingManager": {"add_request": ("input_ids", "request_id"), "add_requests": ("inputs",)}},
          "scheduler": {"Scheduler": {"finish_request": ("request_id",), "clear_cancelled_requests": ()}}}
_managers = itertools.count()
_of = weakref.WeakKeyDictionary()  # what belongs to a manager, its router and its scheduler: _Requests


class _Requests:
    """Those of one manager.

    given    {id: (name, tags)} of those that requests() named
    running  {id: name} of those that were announced and have not ended
    """

    def __init__(self):
        self.number, self.given, self.running = next(_managers), {}, {}

    def name_of(self, request):
        """(name, text of tags)"""
        own, _, child = request.partition("__child#")
        name, tags = self.given.get(own) or (f"hf-batch-{self.number}-{own}" if re.fullmatch(r"req_\d+", own) else own, None)
        return f"{name}#{int(child) + 1}" if child else name, tags

    def end(self, request, reason):
        if (name := self.running.pop(request, None)) is not None:
            dmi.request_end(name, reason)


@functools.cache
def _trial():
    return adapters.Trial(_adapter, "transformers", TRIED)


@functools.cache
def attach(announces):
    """Make managers announce the batches of models of which @announces(model) is true then. Returns what this version of transformers lacks for that, None: nothing."""
    import importlib
    kinds = {}
    for part, classes in NEEDED.items():
        try:
            module = importlib.import_module(f"{MODULE}.{part}")
        except ImportError:
            return f"{MODULE}.{part}"
        for name, methods in classes.items():
            kinds[name] = kind = getattr(module, name, None)
            if kind is None or (missing := adapters.lacks(kind, methods)):
                return name if kind is None else f"{name}.{missing}"
    for name, method, wrapper in (("ContinuousBatchProcessor", "_generation_step", functools.partial(_stepping, announces)), ("OutputRouter", "fail_and_deliver", _failing),
                                  ("ContinuousBatchingManager", "add_request", _adding), ("ContinuousBatchingManager", "add_requests", _adding_several),
                                  ("Scheduler", "finish_request", _finishing), ("Scheduler", "clear_cancelled_requests", _cancelling)):
        setattr(kinds[name], method, wrapper(getattr(kinds[name], method)))
    return None


# ---------------------------------------------------------------------------------------- names


def _requests_of(manager):
    return _of.setdefault(manager.output_router, _Requests())


def _unsalted(tags):
    """Text of tags without a salt: transformers shares blocks of equal tokens whatever the salt is, so no edit may count on it."""
    try:
        own = json.loads(tags) if tags else None
    except ValueError:
        return tags
    if not isinstance(own, dict) or "cache_salt" not in own:
        return tags
    _adapter.warn("requests(): transformers' cache knows no cache_salt, which is left out: allow_block_sharing=False keeps what requests compute apart")
    return json.dumps({key: value for key, value in own.items() if key != "cache_salt"})


@_adapter.guarded
def _name(manager, request, index, n):
    """@request of a manager gets the @index-th name of the innermost requests(), which has @n requests, None: as many as come."""
    wish = _here.wishes[-1]
    wish.used = True
    tags = wish.tags if isinstance(wish.tags, (list, tuple)) else None
    if wish.ids and (len(wish.ids) != n if n is not None else index >= len(wish.ids)) or tags is not None and len(tags) != len(wish.ids or ()):
        _adapter.warn(f"requests(): {len(wish.ids)} ids{'' if tags is None else f' and {len(tags)} tags'} for {index + 1 if n is None else n} requests of a batch: "
                      "none are used")
        return
    mine = _requests_of(manager)
    tags = _unsalted(adapters.text_of_tags(wish.tags if tags is None else tags[index]))
    mine.given[request] = (wish.ids[index] if wish.ids else mine.name_of(request)[0], tags)


def _adding(add):
    @functools.wraps(add)
    def wrapper(self, input_ids, request_id=None, *args, **kwargs):
        if _here.wishes and _adapter.on and self.is_tp_driver:
            if request_id is None:  # as add_request() makes one: the batch may begin before it returns
                with self._request_lock:
                    request_id = f"req_{self._request_counter}"
                    self._request_counter += 1
            if _here.several is not None:
                first, n = _here.several
                _name(self, request_id, int(request_id.removeprefix("req_")) - first, n)
            else:
                wish = _here.wishes[-1]
                _name(self, request_id, wish.n_added, None)
                wish.n_added += 1
        return add(self, input_ids, request_id, *args, **kwargs)
    return wrapper


def _adding_several(add):
    @functools.wraps(add)
    def wrapper(self, inputs, *args, **kwargs):
        _here.several = (self._request_counter, len(inputs))
        try:
            return add(self, inputs, *args, **kwargs)
        finally:
            _here.several = None
    return wrapper


# ---------------------------------------------------------------------------------------- batches


def _host(processor):
    """What a batch is prepared in: of two in turn, the one whose batch comes next."""
    both = processor.inputs_and_outputs
    return both.io_pairs[both.current_pair].host_io if hasattr(both, "io_pairs") else both


def _span(requests, each, at, sees_later):
    """The tokens of one request in a batch, at row @at: what it had before its first step came from blocks that it shares."""
    state, n = each.state, each.query_length
    first = state.position_offset - n  # counted on when the batch was prepared
    name, tags = requests.name_of(state.request_id)
    n_prompt = state._true_initial_tokens or len(state.initial_tokens)
    known = (state.initial_tokens + state.generated_tokens)[:first] if state.request_id not in requests.running else []
    requests.running[state.request_id] = name
    tags = adapters.marks(tags, sees_later=sees_later)
    return dmi.Span(name, first, n, at, n_cached=len(known), cached_ids=known or None, phase=dmi.Phase.PREFILL if first < n_prompt else dmi.Phase.DECODE, tags=tags,
                    n_prompt=n_prompt, flags=0 if each.has_new_token else dmi.PART)


@_adapter.guarded
def _announce(processor):
    requests, at, spans = _of.setdefault(processor.output_router, _Requests()), 0, []
    _of[processor.scheduler] = requests
    host, sees_later = _host(processor), batches.sees_later(processor.config)
    for each in host.requests_in_batch:
        spans.append(_span(requests, each, at, sees_later))
        at += each.query_length
    if _trial().left:
        rows = [(span.request, span.first_position, span.n_tokens) for span in spans]
        prompts = {span.request: each.state.initial_tokens for span, each in zip(spans, host.requests_in_batch)}
        if not _trial().passed(rows, {name: n for name, _, n in rows}, prompts, host.input_ids.flatten()[:at].tolist):
            spans = []
    spans.sort(key=lambda span: span.flags)  # a row of logits is of those whose token is chosen, in their order
    batches._enter_thread()
    batches._begin(next(batches._steps), spans, host.num_q_tokens, caches=bool(getattr(processor.cache, "use_prefix_sharing", True)))
    return True


def _stepping(announces, step):
    @functools.wraps(step)
    def wrapper(self, model):
        began = announces(model) and _announce(self)
        try:
            return step(self, model)
        finally:
            if began:
                batches._end()
                batches._leave_thread()
    return wrapper


# ---------------------------------------------------------------------------------------- ends


@_adapter.guarded
def _end(owner, state, reason):
    if (requests := _of.get(owner)) is not None and state is not None:
        requests.end(state.request_id, reason)


def _finishing(finish):
    @functools.wraps(finish)
    def wrapper(self, request_id):
        state = self.active_requests.get(request_id)
        done = finish(self, request_id)
        if state is not None:
            stopped = bool(state.generated_tokens) and state.generated_tokens[-1] in getattr(state, "_eos_token_ids", ())
            _end(self, state, dmi.End.STOP if stopped else dmi.End.LENGTH)
        return done
    return wrapper


def _failing(fail):
    @functools.wraps(fail)
    def wrapper(self, state, *args, **kwargs):
        _end(self, state, dmi.End.ABORTED)
        return fail(self, state, *args, **kwargs)
    return wrapper


def _cancelling(clear):
    @functools.wraps(clear)
    def wrapper(self):
        cancelled = clear(self)
        for state in cancelled:
            _end(self, state, dmi.End.ABORTED)
        return cancelled
    return wrapper
