# SPDX-License-Identifier: Apache-2.0
"""batch() of dmi.huggingface, and what it shares with generate(): one step at a time, whichever thread begins it."""
import itertools
import threading

import dmi
from dmi import adapters

_adapter = adapters.Adapter("dmi.huggingface")
_steps = itertools.count()                 # numbers
_running, _lock = set(), threading.Lock()  # threads within a generate() or a batch()


class _Here(threading.local):
    """What this thread is in: calls of generate(), the innermost last, requests(), batch(), and add_requests() of continuous batching."""

    def __init__(self):
        self.calls, self.wishes, self.batch = [], [], None
        self.several = None  # (number of the first, how many) of the requests that add_requests() of transformers adds
        self.began = False  # a step that has not ended


_here = _Here()


def sees_later(config):
    """Does attention see tokens after a row's own?"""
    return getattr(config, "is_causal", True) is False or bool(getattr(config, "use_bidirectional_attention", False))


class _Several:
    """Two threads were in generate() or a batch() at once: from there on a step is of its thread. Before, it holds for the threads of a backward pass too."""
    were = False


def _begin(step, spans, n_rows, caches=False):
    with _lock:
        if _Several.were and _here.began:
            dmi.step_end()  # the one before may be of the process
        _here.began = True
        if (status := dmi.step_begin(step, spans, n_rows, caches=caches, of_thread=_Several.were)) < 0 or status == dmi.BAD_VERSION:
            _adapter.warn(f"dmi_step_begin() refused a step: {status}")


def _end():
    """What this thread launches from here on is of no step. A step of another thread goes on."""
    with _lock:
        if _here.began or not _Several.were:
            dmi.step_end()
        _here.began = False


def _enter_thread():
    with _lock:
        _running.add(threading.get_ident())
        _Several.were = _Several.were or len(_running) > 1


def _leave_thread():
    """Unless the thread is in something else yet."""
    if not _here.calls and _here.batch is None:
        with _lock:
            _running.discard(threading.get_ident())


class batch:
    """Names the rows of one forward, model(**batch), that generate() has no part in: training, scoring, extraction.

    mask  [batch, token] of 0 and 1: a tensor, an array, or lists; 0 is padding, wherever it stands. A batch without padding has a mask
          of ones.
    ids   one for each row of the batch
    tags  of all of them, or a list with those of each: a mapping, which becomes JSON
    past  columns of the mask that come from a cache: the forward computes those after them, and positions go on
    ends  do the requests end with it? False: more forwards of theirs follow

    A row's positions count its tokens that are no padding, from 0. The forward's rows are batch * (token - past), in that order. As a
    context it names what this thread computes in the block; called as a function, what it computes until the next batch(), generate()
    or finish(). Raises ValueError where mask and ids do not agree. Does nothing without the library.
    """

    def __init__(self, mask, ids, tags=None, past=0, ends=True):
        self.ids, self.ends, self.done = [str(name) for name in ids], ends, True
        shape = _shape(mask)
        if len(shape) != 2 or shape[0] != len(self.ids) or not 0 <= past < shape[1]:
            raise ValueError(f"mask: {list(shape)}, ids: {len(self.ids)}, past: {past}: a mask [batch, token] is expected, with a row for each id and "
                             "more columns than the cache has")
        tags = list(tags) if isinstance(tags, (list, tuple)) else [tags] * len(self.ids)
        if len(tags) != len(self.ids):
            raise ValueError(f"tags: {len(tags)}, ids: {len(self.ids)}: as many are expected")
        if dmi.loaded() and _adapter.on:
            self.done = False
            _adapter.guarded(self._begin)(mask, [adapters.text_of_tags(tag) for tag in tags], past)

    def _begin(self, mask, tags, past):
        if _here.batch is not None:
            _here.batch.finish()
        _here.batch = self
        rows = [[bool(one) for one in row] for row in (mask.tolist() if hasattr(mask, "tolist") else mask)]
        n = len(rows[0]) - past
        _enter_thread()
        spans = [span for i, (name, tag, row) in enumerate(zip(self.ids, tags, rows)) for span in _spans_of(name, tag, row, past, i * n)]
        _begin(next(_steps), spans, n * len(rows))

    def finish(self):
        """What this thread launches from here on is no part of the batch."""
        if self.done:
            return
        self.done = True
        if _here.batch is self:
            _here.batch = None
        _end()
        _leave_thread()
        for name in self.ids if self.ends else ():
            dmi.request_end(name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.finish()


def _shape(mask):
    return tuple(mask.shape) if hasattr(mask, "shape") else (len(mask), *{len(row) if hasattr(row, "__len__") else 0 for row in mask})


def _runs(row, first=0):
    """(tokens?, the first column, how many) of each run of tokens or of padding in a row of a mask, from column @first on."""
    for is_token, run in itertools.groupby(range(first, len(row)), row.__getitem__):
        run = list(run)
        yield is_token, run[0], len(run)


def _spans_of(name, tags, row, past, first_row):
    """Of a row of a mask: runs of tokens, and of padding. @past: columns that are not computed."""
    known, n_prompt = sum(row[:past]), 0 if past else sum(row)
    for is_token, column, n in _runs(row, past):
        at = first_row + column - past
        if not is_token:
            yield dmi.Span(None, 0, n, at, flags=dmi.PADDING)
            continue
        phase = dmi.Phase.DECODE if known and n == 1 and past else dmi.Phase.PREFILL
        yield dmi.Span(name, known, n, at, phase=phase, tags=tags, n_prompt=n_prompt)
        known += n
