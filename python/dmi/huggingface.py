# SPDX-License-Identifier: Apache-2.0
"""generate() of Hugging Face's transformers says whose tokens a forward computes.

    dmi.huggingface.attach(model)
    with dmi.huggingface.requests("france", "spain", tags={"capture": "yes"}):   # optional
        model.generate(**batch)
    with dmi.huggingface.batch(batch["attention_mask"], ["france", "spain"]):    # a forward without generate()
        model(**batch)

The rows of a step are those of the flattened [batch, token]: row = batch * tokens + token. Positions count the tokens of a
request from its first that is no padding. `dmi-run --attach` attaches every model. Without libdmi_preload.so nothing is done.

Nothing of the compiled forward is touched: what prepares its inputs comes before each forward, and the stopping
criteria after each. Whether a version of transformers is understood is judged by the methods that its models have; one that nobody tried is tried
first (adapters.Trial). Source: transformers 4.57 to 5.24, generation/utils.py: generate() and the decoding methods that it calls.
"""
import contextlib
import functools
import itertools
import weakref

import dmi
from dmi import adapters, batches, continuous
from dmi.batches import _adapter, _begin, _end, _enter_thread, _here, _leave_thread, _steps

TRIED = ((4, 57), (5, 17), (5, 19), (5, 24))  # versions
# {method of a model that generates: its parameters that are used}
NEEDED = {"generate": (), "prepare_inputs_for_generation": ("input_ids",), "_get_stopping_criteria": ("generation_config",)}
LEARNED = "a learned prompt (PEFT), which adds tokens to the request's,"
MODES = ("greedy_search", "sample", "beam_search", "beam_sample", "assisted_generation")

batch = batches.batch
_calls = itertools.count()  # numbers
_attached, _everywhere = weakref.WeakSet(), []


def attach(model):
    """Make generate() of @model announce its forwards. @model may be a wrapper that holds the model in an attribute: PEFT's, what
    torch.compile() returned, a pipeline. Returns whether each forward will be announced: not without the library, nor for what is not
    supported, which is said on stderr. Raises ValueError if @model neither has nor holds a generate() of transformers'.
    """
    found = _models_in(model)
    if not dmi.loaded() or not _is_understood():
        return False
    refused = [f"an encoder-decoder model ({one.config.model_type})" for one in found if getattr(one.config, "is_encoder_decoder", False)]
    if adapters.held_by(model, _is_prompted):
        refused.append(LEARNED)
    if refused:
        _adapter.warn(f"{refused[0]} is not supported: its records have no request ids")
        return False
    for one in found:
        _wrap_class(type(one))
        _wrap_own(one)
        _attached.add(one)
    return True


def _is_prompted(one):
    """Does a wrapper of PEFT's add tokens to each request?"""
    return hasattr(type(one), "active_peft_config") and getattr(one.active_peft_config, "is_prompt_learning", False)


def detach(model):
    """@model, or the model that it holds, announces no more forwards."""
    for one in _models_in(model):
        _attached.discard(one)


def _models_in(model):
    """The models that generate: @model, or what it holds. Raises ValueError where there is none."""
    def generates(one):
        kind = type(one)
        return all(callable(getattr(kind, name, None)) for name in NEEDED)
    if not (found := adapters.held_by(model, generates)):
        raise ValueError(f"{type(model).__name__} has no generate() of transformers, and holds nothing that has")
    return found


def attach_all():
    """attach() for every model of this process, those that are yet to come among them."""
    if dmi.loaded() and _is_understood():
        from transformers import GenerationMixin
        for name in ("generate", "generate_batch", "init_continuous_batching"):
            _wrap(GenerationMixin, name, _WRAPPERS[name])
        _everywhere.append(True)


@contextlib.contextmanager
def requests(*ids, tags=None):
    """Names and tags for the requests of each generate() in this block and thread.

    ids   one for each row of its batch; none: they are called hf-CALL-ROW
    tags  of all of them, or a list with those of each: a mapping, which becomes JSON
    A block in which no attached model generates names nothing, which is said on stderr: see batch().
    """
    wish = _Wish(ids, tags)
    _here.wishes.append(wish)
    try:
        yield
    finally:
        _here.wishes.remove(wish)
        if not wish.used and dmi.loaded() and _adapter.on:
            _adapter.warn("requests(): no generate() of an attached model ran in the block, so nothing has its names: batch(mask, ids) "
                          "names the rows of model(**batch)")


class _Wish:
    """What requests() asks for; used: by a generate(); n_added: requests of continuous batching that took a name each."""

    def __init__(self, ids, tags):
        self.ids, self.tags, self.used, self.n_added = ids, tags, False, 0


@functools.cache
def _is_understood():
    from transformers import GenerationMixin
    if missing := adapters.lacks(GenerationMixin, NEEDED):
        _adapter.turn_off(f"transformers {adapters.version_of('transformers')[0]} is not understood: a model has no {missing}")
    return _adapter.on


@functools.cache
def _trial():
    return adapters.Trial(_adapter, "transformers", TRIED)


# ---------------------------------------------------------------------------------------- rows


class _Row:
    """One row of the batch: a request.

    skip   tokens at its beginning that are padding; first: position of the one after them, as the first forward had it
    shown  [token] of the first forward: is it no padding? Tokens beyond the list are none
    held   ids of the tokens that a given cache has; None: not known
    next   position of the first token that was not computed yet
    """

    def __init__(self, name, tags):
        self.name, self.tags, self.skip, self.first, self.next, self.n_prompt, self.ended = name, tags, 0, 0, 0, 0, False
        self.shown, self.held = [], None


def _padding(mask, n_tokens, batch):
    """[(leading padding among the last @n_tokens columns, tokens before those, [those columns: no padding?])] of each row of a mask [batch, column]."""
    if mask is None or mask.dim() != 2 or mask.shape[0] != batch or mask.shape[1] < n_tokens:
        return None
    before, rows = mask.shape[1] - n_tokens, [[bool(one) for one in row] for row in mask.cpu().tolist()]
    return [(row[before:].index(True) if True in row[before:] else n_tokens, sum(row[:before]), row[before:]) for row in rows]


def _held_ids(sequences, n_tokens, mask):
    """[[ids of the tokens before the last @n_tokens columns]] of each row: those of a cache that generate() was given."""
    n = max(sequences.shape[1] - n_tokens, 0)
    rows = sequences[:, :n].tolist()
    if mask is None or mask.dim() != 2 or mask.shape != sequences.shape:
        return rows
    return [[one for one, shown in zip(row, of) if shown] for row, of in zip(rows, mask[:, :n].tolist())]


def _positions(given, batch):
    """[[position of each token]] of each row, from position_ids [batch or 1, token]; None: they are of another form."""
    if given is None or given.dim() != 2 or given.shape[0] not in (1, batch):
        return None
    rows = given.cpu().tolist()
    return rows * batch if len(rows) == 1 else rows


class _Call:
    """One generate(). Without rows its forwards are nobody's."""

    def __init__(self, model, n_columns, assistant, parent):
        self.model, self.n_columns, self.assistant, self.parent, self.number = model, n_columns, assistant, parent, next(_calls)
        self.rows, self.wish, self.config, self.mode = None, _here.wishes[-1] if _here.wishes else _Wish((), None), None, ""
        self.wish.used = True
        self.settled = self.off = self.judged = self.busy = self.drafting = self.has_past = self.computed = self.announced = False
        self.verdict, self.step, self.n_drafts, self.draft_prompt = None, 0, 0, None

    def settle(self, config, criteria):
        """What generate() will do is known."""
        mode = config.get_generation_mode(self.assistant).value
        self.settled, self.config, self.mode = True, config, mode
        self.max_length, self.has_strings = criteria.max_length, any(hasattr(c, "stop_strings") for c in criteria)
        eos = config.eos_token_id
        self.eos = set(eos if isinstance(eos, (list, tuple)) else [] if eos is None else [eos])
        self.beams = config.num_beams > 1
        self.drafting = self.parent is not None and self.parent.mode == "assisted_generation"
        if mode not in MODES:
            self.refuse(mode.replace("_", " "))
        elif config.guidance_scale not in (None, 1, 1.0):
            self.refuse("guidance_scale, whose second forward cannot be distinguished from the first,")

    def refuse(self, what):
        self.off = True
        _adapter.warn(f"{what} is not supported: its records have no request ids")

    # ---- names

    def name_rows(self, batch):
        n_each = max(self.config.num_beams, self.config.num_return_sequences)
        names = self.names(batch // n_each)
        tags = self.wish.tags if isinstance(self.wish.tags, (list, tuple)) else [self.wish.tags] * len(names)
        if len(tags) != len(names):
            _adapter.warn(f"requests(): {len(tags)} tags for a batch of {len(names)}: none are used")
            tags = [None] * len(names)
        texts = [adapters.text_of_tags(tag) for tag in tags]
        if self.beams:  # rows of one position are of several sequences: no reader takes them for one
            texts = [adapters.marked(text, "dmi.beams", self.config.num_beams) for text in texts]
        texts = [adapters.marks(text, sees_later=batches.sees_later(self.model.config)) for text in texts]
        self.rows = [_Row(name if n_each == 1 else f"{name}#{k}", text) for name, text in zip(names, texts) for k in range(n_each)]

    def names(self, n):
        if self.drafting:
            self.wish = _Wish((), self.parent.rows[0].tags if self.parent.rows else self.parent.wish.tags)
            return [self.parent.names(1)[0] + "#draft"]
        ids = self.wish.ids
        if ids and len(ids) != n:
            _adapter.warn(f"requests(): {len(ids)} ids for a batch of {n}: they are called hf-CALL-ROW instead")
        return list(ids) if len(ids) == n else [f"hf-{self.number}-{i}" for i in range(n)]

    # ---- before a forward

    def announce(self, sequences, inputs, given):
        """@sequences: [row, column], drafts included. @inputs: of the forward. @given: what they were prepared from."""
        tokens, columns = inputs.get("input_ids"), sequences.shape[1]
        batch, n_tokens = (inputs["inputs_embeds"] if tokens is None else tokens).shape[:2]
        if self.rows is None:
            self.name_rows(batch)
        if batch != len(self.rows):
            raise ValueError(f"a batch of {batch} rows, not {len(self.rows)}")
        if batch > 1:
            self.read_verdict()
        self.n_drafts = columns - self.n_columns if self.mode == "assisted_generation" else 0
        if not self.judged:
            self.locate(n_tokens - self.n_drafts, n_tokens, inputs, given)
            if self.has_past:
                for row, held in zip(self.rows, _held_ids(sequences, n_tokens, given.get("attention_mask"))):
                    row.held = held
        self.step, spans, self.computed = next(_steps), self.spans(n_tokens), True
        _begin(self.step, spans if _trial().left == 0 or self.agrees(sequences, tokens) else [], batch * n_tokens)

    def agrees(self, sequences, tokens):
        """Are the forward's tokens the last ones of the sequences? Copies them from the device."""
        if tokens is None:
            return False
        n, known = tokens.shape[1], sequences.tolist()
        rows = [(i, len(row) - n, n) for i, row in enumerate(known)]
        return _trial().passed(rows, dict.fromkeys(range(len(known)), n), dict(enumerate(known)), tokens.flatten().tolist) and _adapter.on

    def locate(self, n_own, n_tokens, inputs, given):
        """Tokens of a prompt: the mask says how many are padding and come before, position_ids which positions follow a cache that was given.
        Where no cache was given position_ids may count padding (chunks of transformers 4.57).
        """
        padding = _padding(given.get("attention_mask"), n_tokens, len(self.rows))
        positions = _positions(inputs.get("position_ids"), len(self.rows))
        for i, row in enumerate(self.rows):
            row.skip, before, row.shown = padding[i] if padding else (0, row.next, [])
            told = positions and row.skip < len(positions[i]) and (self.has_past or not padding)
            row.first = positions[i][row.skip] if told else before
            row.next = row.first
            if self.config.prefill_chunk_size is None:
                row.n_prompt = row.first + (sum(row.shown[:n_own]) if padding else n_own)
        if self.drafting:
            for row in self.rows:
                row.n_prompt = self.parent.draft_prompt or row.n_prompt

    def spans(self, n_tokens):
        phase = dmi.Phase.DECODE if self.judged or self.drafting and self.parent.draft_prompt else dmi.Phase.PREFILL
        n_own, again = n_tokens - self.n_drafts, self.judged and not self.config.use_cache
        # A row of logits is a span's, in their order: padding before a prompt may have a span only where no row is all padding.
        sparse = any(row.ended or row.skip >= n_own for row in self.rows)
        spans = []
        for i, row in enumerate(self.rows):
            at, shown = i * n_tokens, row.shown[:n_own] if again or not self.judged else []
            if row.ended or len(shown) == n_own and not any(shown):
                spans.append(dmi.Span(None, 0, n_tokens, at, flags=dmi.PADDING))
                continue
            first = row.first if again else row.next
            common, n_cached = {"tags": row.tags, "n_prompt": row.n_prompt}, self.cached(row, first)
            for is_token, column, n in batches._runs(shown + [True] * (n_own - len(shown))):
                if is_token:
                    spans.append(dmi.Span(row.name, first, n, at + column, phase=phase, n_cached=n_cached,
                                          cached_ids=row.held if n_cached and n_cached == len(row.held or ()) else None, **common))
                    first, n_cached = first + n, 0
                elif not sparse:
                    spans.append(dmi.Span(None, 0, n, at + column, flags=dmi.PADDING))
            row.next = first
            spans += [dmi.Span(row.name, row.next + k, 1, at + n_own + k, phase=dmi.Phase.DRAFT, **common) for k in range(self.n_drafts)]
        return spans

    def cached(self, row, first):
        """Tokens before a request's first that came with the cache that generate() was given."""
        return first if first and not self.judged and not self.drafting and self.has_past and row.next == row.first else 0

    # ---- after a forward

    def judge(self, sequences, done):
        """The stopping criteria have seen @sequences [row, column], and said which of them are @done [row]: nothing is read yet."""
        if not self.computed:  # transformers 5.17 asks about candidates, too, before the forward that verifies them
            return
        self.computed = False
        _end()
        if not self.judged:
            for row in self.rows:
                row.n_prompt = row.n_prompt or row.next
        self.judged = True
        if self.drafting and not self.parent.draft_prompt:
            self.parent.draft_prompt = self.rows[0].n_prompt
        if self.n_drafts:
            n_accepted = sequences.shape[1] - self.n_columns - 1
            dmi.accept(self.rows[0].name, self.step, n_accepted)
            self.rows[0].next += n_accepted
        if not self.beams:
            self.n_columns, self.verdict = sequences.shape[1], (sequences[:, -1], done)

    def read_verdict(self):
        """Rows that ended. Copies a few numbers from the device, which generate() has waited for already."""
        if self.verdict is None:
            return
        (last, done), self.verdict = self.verdict, None
        for row, token, is_done in zip(self.rows, last.tolist(), done.tolist()):
            if is_done and not row.ended:
                self.end(row, self.reason(token))

    def reason(self, token):
        if token in self.eos:
            return dmi.End.STOP
        if self.max_length is not None and self.n_columns >= self.max_length:
            return dmi.End.LENGTH
        return dmi.End.STOP if self.has_strings else dmi.End.UNKNOWN

    def end(self, row, reason):
        row.ended = True
        if not self.drafting:
            dmi.request_end(row.name, reason)

    def finish(self, failed):
        _end()
        if not self.announced and not self.off and not failed:
            _adapter.warn(f"generate() of {type(self.model).__name__} prepares no forward as transformers does: its records have no request ids")
        if self.rows is None or self.off:
            return
        if not failed:
            self.read_verdict()
        for row in self.rows:
            if not row.ended:
                self.end(row, dmi.End.ABORTED if failed else dmi.End.UNKNOWN)
        if self.draft_prompt:
            dmi.request_end(self.rows[0].name + "#draft", dmi.End.UNKNOWN)


# ---------------------------------------------------------------------------------------- what is wrapped


def _current(model):
    """The generate() of @model that this thread is in."""
    calls = _here.calls
    return calls[-1] if calls and calls[-1].model is model and not calls[-1].off and _adapter.on else None


def _n_columns(inputs=None, *_, **kwargs):
    for given in (inputs, kwargs.get("input_ids"), kwargs.get("inputs_embeds")):
        if given is not None:
            return given.shape[1]
    return 1


@_adapter.guarded
def _enter(model, args, kwargs):
    if not _announces(model):
        return None
    outer = _here.calls[-1] if _here.calls else None
    if outer is not None and outer.model is model and not outer.settled:
        return None  # a method that calls itself for another mode, or the one that it overrides
    _wrap_class(type(model))
    _wrap_own(model)
    if _here.batch is not None:
        _here.batch.finish()
    call = _Call(model, _n_columns(*args, **kwargs), kwargs.get("assistant_model"), outer)
    if getattr(model.config, "is_encoder_decoder", False):
        call.refuse(f"an encoder-decoder model ({model.config.model_type})")
    elif kwargs.get("custom_generate") is not None:
        call.refuse("custom_generate")
    _enter_thread()
    _end()
    _here.calls.append(call)
    return call


def _leave(call, failed):
    while _here.calls.pop() is not call:
        pass
    _adapter.guarded(call.finish)(failed)
    _leave_thread()


def _generating(generate):
    @functools.wraps(generate)
    def wrapper(self, *args, **kwargs):
        if (call := _enter(self, args, kwargs)) is None:
            return generate(self, *args, **kwargs)
        failed = True
        try:
            out = generate(self, *args, **kwargs)
            failed = False
            return out
        finally:
            _leave(call, failed)
    return wrapper


def _n_held(given):
    """Tokens in the cache that a forward is given; what is no cache of transformers' holds none that count."""
    cache = next((given[name] for name in adapters.CACHES if given.get(name) is not None), None)
    return int(cache.get_seq_length()) if hasattr(cache, "get_seq_length") else 0


@_adapter.guarded
def _announce(call, sequences, inputs, given):
    call.has_past = call.rows is None and _n_held(given) > 0
    tokens = inputs.get("inputs_embeds") if inputs.get("input_ids") is None else inputs["input_ids"]
    if call.rows is None and (tokens.shape[1] > max(sequences.shape[1], call.n_columns)
                              or not call.has_past and _n_held(inputs)):
        call.refuse(LEARNED)
        _end()
        return
    for one in _here.calls:  # of a model around this one, too
        one.announced = True
    call.announce(sequences, inputs, given)


def _preparing(prepare):
    @functools.wraps(prepare)
    def wrapper(self, input_ids, *args, **kwargs):
        call = _current(self)
        if call is None or call.busy or not call.settled:
            return prepare(self, input_ids, *args, **kwargs)
        call.busy = True  # an overriding method calls the one that it overrides
        try:
            inputs = prepare(self, input_ids, *args, **kwargs)
        finally:
            call.busy = False
        _announce(call, input_ids, inputs, kwargs)
        return inputs
    return wrapper


@_adapter.guarded
def _settle(call, criteria, config):
    call.settle(config, criteria)
    return _watching(type(criteria), call)(criteria)


def _choosing(criteria_of):
    @functools.wraps(criteria_of)
    def wrapper(self, *args, **kwargs):
        criteria = criteria_of(self, *args, **kwargs)
        call = _current(self)
        if call is None or call.settled:
            return criteria
        config = kwargs["generation_config"] if "generation_config" in kwargs else args[0]
        return _settle(call, criteria, config) or criteria
    return wrapper


def _watching(kind, call):
    """A list of criteria that lets @call see what they say."""
    class Watching(kind):
        def __call__(self, input_ids, scores, **kwargs):
            done = super().__call__(input_ids, scores, **kwargs)
            if not call.off and _adapter.on:
                _adapter.guarded(call.judge)(input_ids, done)
            return done
    return Watching


def _announces(model):
    """Are its forwards announced?"""
    return bool(_everywhere) or model in _attached


def _batching(start):
    @functools.wraps(start)
    def wrapper(self, *args, **kwargs):
        if _announces(self) and _adapter.on and (missing := continuous.attach(_announces)):
            _adapter.warn(f"continuous batching of transformers {adapters.version_of('transformers')[0]} is not understood, as it has no {missing}: its records have no "
                          "request ids")
        return start(self, *args, **kwargs)
    return wrapper


_WRAPPERS = {"generate": _generating, "prepare_inputs_for_generation": _preparing, "_get_stopping_criteria": _choosing,
             "generate_batch": _batching, "init_continuous_batching": _batching}


class _Own:
    """A method that a model has of its own, in place of its class's: a wrapper put it there. Copied with its model."""
    _dmi_wrapped = True

    def __init__(self, model, method, wrapper):
        self.model, self.method, self.wrapper = model, method, wrapper

    def __call__(self, *args, **kwargs):
        return self.wrapper(lambda _, *more, **named: self.method(*more, **named))(self.model, *args, **kwargs)


def _wrap_own(model):
    for name, wrapper in _WRAPPERS.items():
        method = model.__dict__.get(name)
        if callable(method) and not hasattr(method, "_dmi_wrapped"):
            model.__dict__[name] = _Own(model, method, wrapper)


def _wrap_class(kind):
    for name, wrapper in _WRAPPERS.items():
        _wrap(kind, name, wrapper)


def _wrap(kind, name, wrapper):
    """Once: a class whose method comes from one that is wrapped has it already."""
    method = getattr(kind, name, None)
    if method is not None and not hasattr(method, "_dmi_wrapped"):
        wrapped = wrapper(method)
        wrapped._dmi_wrapped = True
        setattr(kind, name, wrapped)
