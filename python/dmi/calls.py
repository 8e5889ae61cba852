# SPDX-License-Identifier: Apache-2.0
"""The functions of include/dmi/dmi.h, as the package dmi has them, for its modules: none of them imports the package, which imports them."""
import array
import ctypes
import enum
import errno
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

OK, OFF, BAD_VERSION, TIMEOUT = 0, 1, 2, 3  # enum dmi_status; below 0: -errno


class Phase(enum.IntEnum):
    """enum dmi_phase"""
    UNKNOWN, PREFILL, DECODE, DRAFT = range(4)


PADDING, LAST, PART = 1 << 0, 1 << 1, 1 << 2  # enum dmi_span_flags


class End(enum.IntEnum):
    """enum dmi_end: why a request ended"""
    UNKNOWN, STOP, LENGTH, ABORTED = range(4)


@dataclass
class Span:
    """Consecutive rows of a batch that belong to one request.

    request         its id, or None for padding
    first_position  position in the request of the first row's token, from 0
    n_tokens        rows
    first_row       row of the batch that holds the first
    n_cached        tokens before first_position that were taken from a prefix cache instead of computed;
                    said once a request, with the first span after them
    phase, flags    Phase; PADDING, LAST; PART: a part of a prompt behind which no token is chosen. Such spans come last
    tags            of the user's own: a mapping, or its JSON as text, which an adapter makes once a request
    n_prompt        tokens of the request's prompt, 0: not said
    cached_ids      ids of these n_cached tokens: a list or an array; None: not said
    """
    request: str | None
    first_position: int
    n_tokens: int
    first_row: int = 0
    n_cached: int = 0
    phase: Phase = Phase.UNKNOWN
    flags: int = 0
    tags: Mapping | str | None = None
    n_prompt: int = 0
    cached_ids: Sequence[int] | None = None


# struct dmi_span: request_id, tags, first_position, first_row, n_tokens, n_cached, phase, flags, n_prompt, cached_ids
_SPAN = struct.Struct("@PPqIIIIIIP")


_CACHES = {None: 0, True: 1 << 0, False: 1 << 1}  # enum dmi_step_flags
_OF_THREAD, _PAUSES = 1 << 2, 1 << 3


class _Step(ctypes.Structure):
    """struct dmi_step, version 1"""
    _fields_ = [("size", ctypes.c_uint32), ("version", ctypes.c_uint32), ("step", ctypes.c_uint64),
                ("n_rows", ctypes.c_uint32), ("n_spans", ctypes.c_uint32), ("span_size", ctypes.c_uint32),
                ("flags", ctypes.c_uint32), ("spans", ctypes.c_void_p), ("tags", ctypes.c_char_p),
                *[(name, ctypes.c_int32) for axis in ("tp", "pp", "dp", "ep") for name in (axis + "_rank", axis + "_size")],
                ("part", ctypes.c_uint32), ("reserved", ctypes.c_uint32)]


def _function(name, *types, library=ctypes.CDLL):
    function = getattr(library(None), name, None)
    if function is not None:
        function.argtypes, function.restype = types, ctypes.c_int
    return function


_begin = _function("dmi_step_begin", ctypes.POINTER(_Step))
_resume = _function("dmi_step_resume", ctypes.c_uint64, ctypes.c_uint32)
_end = _function("dmi_step_end")
_accept = _function("dmi_accept", ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint32)
_request_end = _function("dmi_request_end", ctypes.c_char_p, ctypes.c_uint32)
_enable = _function("dmi_site_enable", ctypes.c_char_p, ctypes.c_int)
_describe = _function("dmi_describe", ctypes.c_char_p, ctypes.c_char_p)
_flush = _function("dmi_flush", ctypes.c_uint64)
_edits_missed = _function("dmi_edits_missed", ctypes.c_char_p)
# These take less time than to let go of the interpreter's lock and to take it again.
_range_begin = _function("dmi_range_begin", ctypes.c_char_p, library=ctypes.PyDLL)
_range_begin_at = _function("dmi_range_begin_at", ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint32, library=ctypes.PyDLL)
_range_fact = _function("dmi_range_fact", ctypes.c_char_p, ctypes.c_int64, library=ctypes.PyDLL)
_range_end = _function("dmi_range_end", library=ctypes.PyDLL)
if _edits_missed is not None:
    _edits_missed.restype = ctypes.c_int64


def loaded():
    """Is libdmi_preload.so in this process?"""
    return _begin is not None


def text_of_tags(tags):
    """Tags as the library takes them: a mapping as JSON, text as it is; None where there is nothing in it."""
    if not tags:
        return None
    return tags if isinstance(tags, str) else json.dumps(dict(tags), default=str)


_texts = {}  # text: (memory, its address), of ids and tags, which come again in many steps


def _held(text):
    """(memory, address) of @text for C; the caller holds the memory as long as C may read it."""
    if text is None:
        return None, 0
    if (found := _texts.get(text)) is None:
        if len(_texts) >= 8192:
            _texts.clear()
        memory = ctypes.create_string_buffer(text.encode())
        found = _texts[text] = memory, ctypes.addressof(memory)
    return found


def _ids(span):
    """The ids of a span's cached tokens for C, as _held(). ValueError: they are not as many; OverflowError: no 32-bit integers."""
    if span.cached_ids is None or not span.n_cached:
        return None, 0
    if len(span.cached_ids) != span.n_cached:
        raise ValueError
    memory = array.array("i", span.cached_ids.tolist() if hasattr(span.cached_ids, "tolist") else span.cached_ids)
    return memory, memory.buffer_info()[0]


def step_begin(step, spans, n_rows=None, tags=None, ranks=((0, 1),) * 4, caches=None, of_thread=False, pauses=False, part=0):
    """Say whose tokens the rows of the coming forward are: dmi_step_begin().

    step   the engine's own step number
    spans  list of Span; they need not cover all rows
    n_rows rows of the batch, padding included; if not given, up to the last row of the spans
    tags   of the step: a mapping
    ranks  (rank, size) of tensor, pipeline, data and expert parallelism
    caches do requests share cached rows of equal prefixes, unless their tag `cache_salt` tells them apart? None: not said (docs/edits.md)
    of_thread  it holds for what the calling thread launches alone, as other threads say steps of their own
    pauses     the next step_begin() pauses it, and step_resume() goes on with it: two batches in turn
    part       number of the micro-batch, where the engine divides a step
    Returns OK, OFF, BAD_VERSION or -errno.
    """
    if _begin is None:
        return OFF
    entries = ctypes.create_string_buffer(_SPAN.size * len(spans) or 1)
    held = [(_held(span.request), _held(text_of_tags(span.tags))) for span in spans]
    try:
        ids = [_ids(span) for span in spans]
        for i, (span, (name, text), cached) in enumerate(zip(spans, held, ids)):
            _SPAN.pack_into(entries, i * _SPAN.size, name[1], text[1], span.first_position, span.first_row, span.n_tokens, span.n_cached,
                            span.phase, span.flags, span.n_prompt, cached[1])
    except (struct.error, ValueError, OverflowError, TypeError):  # what the struct cannot hold
        return -errno.EINVAL
    if n_rows is None:
        n_rows = max((span.first_row + span.n_tokens for span in spans), default=0)
    given = _Step(ctypes.sizeof(_Step), 1, step, n_rows, len(spans), _SPAN.size, _CACHES[caches] | (_OF_THREAD if of_thread else 0) | (_PAUSES if pauses else 0),
                  ctypes.addressof(entries), (text_of_tags(tags) or "").encode() or None, *[n for pair in ranks for n in pair], part)
    return _begin(ctypes.byref(given))


def step_resume(step, part=0):
    """Go on with a step that paused, by its number and part: dmi_step_resume(). Returns OK, OFF or -errno."""
    return OFF if _resume is None else _resume(step, part)


def step_end():
    """The rows of later launches belong to nobody until the next step_begin(): dmi_step_end()."""
    return OFF if _end is None else _end()


def accept(request, step, n_accepted):
    """Say what became of a request's drafts, once they are verified: dmi_accept().

    step        the engine's own number of the step that verified them
    n_accepted  rows: of the request's rows of phase DRAFT in that step, the first n_accepted hold tokens that stay. A
                step that verifies K drafts in one span has 1 + K rows, of which the first (the last token accepted
                before) always stays: so this is 1 + the accepted drafts, and as many as the step gives tokens (vLLM:
                len(sampled_token_ids[i])). If the first row has a span of its own of phase DECODE: the accepted drafts.
    Returns OK, OFF or -errno: -ENOENT (no such drafts), -EINVAL (fewer of them), -EALREADY (said before).
    """
    return OFF if _accept is None else _accept(request.encode(), step, n_accepted)


def edits_missed(request):
    """How many rows of a request edits with `on_miss: abort` have missed so far: dmi_edits_missed().  An adapter ends such a request."""
    return 0 if _edits_missed is None else _edits_missed(request.encode())


def request_end(request, reason=End.UNKNOWN):
    """Say that a request ended, and why (End): dmi_request_end().  Returns OK, OFF or -errno."""
    return OFF if _request_end is None else _request_end(request.encode(), reason)


def site_enable(pattern, on):
    """Switch the capture of sites on or off between launches: dmi_site_enable().

    pattern  of the sites' names in the HookSpec, as in a shell: q, resid_*, *
    Returns OK, OFF or -errno: -ENOENT where no site of the spec has such a name.
    """
    return OFF if _enable is None else _enable(pattern.encode(), bool(on))


def describe(key, value):
    """Note in the run what the model is, for programs that read it: dmi_describe().

    key    by convention "config": the model's config as JSON, as Hugging Face writes it; "tokenizer": the tokenizer's path or name
    Returns OK, OFF or -errno.
    """
    return OFF if _describe is None else _describe(key.encode(), value.encode())


def flush(timeout_s=10.0):
    """Wait until what earlier launches captured is in a segment: dmi_flush()."""
    return OFF if _flush is None else _flush(int(timeout_s * 1e9))


class range:  # pylint: disable=redefined-builtin,invalid-name
    """With a trace of steps (dmi-run --trace): what a thread does between here and the end of the block, and when: dmi_range_begin().

    name   as "EngineCore::Schedule"
    facts  up to four numbers of it, as requests=3

        with dmi.range("EngineCore::Schedule") as schedule:
            requests = ...
            schedule.say(requests=len(requests))
    """
    __slots__ = ("name", "facts")

    def __init__(self, name, **facts):
        self.name, self.facts = name, facts

    def __enter__(self):
        if _range_begin is not None and _range_begin(self.name.encode()) == OK and self.facts:
            self.say(**self.facts)
        return self

    def say(self, **facts):
        """More facts, while no other range of the thread has begun in this one and is open."""
        if _range_fact is not None:
            for key, value in facts.items():
                _range_fact(key.encode(), value)

    def __exit__(self, *error):
        if _range_end is not None:
            _range_end()


class range_since(range):  # pylint: disable=invalid-name
    """A range that began before: dmi_range_begin_at().

    begin_ns  when, by time.monotonic_ns()
    overlaps  may the thread's other ranges overlap it, as requests do?
    """
    __slots__ = ("begin_ns", "overlaps")

    def __init__(self, name, begin_ns, overlaps=False, **facts):
        super().__init__(name, **facts)
        self.begin_ns, self.overlaps = begin_ns, overlaps

    def __enter__(self):
        if _range_begin_at is not None and _range_begin_at(self.name.encode(), self.begin_ns, self.overlaps) == OK:
            self.say(**self.facts)
        return self
