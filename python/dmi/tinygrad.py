# SPDX-License-Identifier: Apache-2.0
"""tinygrad's language models tell DMI whose tokens a forward computes.

    dmi-run --spec SPEC --out OUT -- python -m dmi.tinygrad PROGRAM [ARGUMENT ...]

runs PROGRAM, unchanged, with every tinygrad.llm.model.Transformer announcing its forwards: each call of
generate() is a request ("0", "1", ... in the order of their first token, or what the program puts into
`model.dmi_request` before). The adapter reports the positions of its tokens; tokens whose rows generate() reuses
from the prompt before are reported as cached.  attach() does the same from within a program.

Source: tinygrad 0.13.0, tinygrad/llm/model.py: Transformer.generate(), get_start_pos(), __call__().
"""
import functools
import itertools
import json
import os
import runpy
import sys
import threading

import dmi
from dmi.saying import say

_requests, _steps = itertools.count(), itertools.count()
_running = threading.local()  # .request: of the generate() that runs in this thread


class _Request:
    """What a generate() has announced so far."""

    def __init__(self, name, n_cached, tokens):
        self.name, self.n_cached, self.n_prompt, self.said = name, n_cached, len(tokens), False
        self.cached_ids = tokens[:n_cached]


def _number(value):
    """An int, or the value that a symbolic one is bound to."""
    return value if isinstance(value, int) else value.val


def _announce(request, tokens, start_pos):
    length = tokens.shape[1]  # in decoding an int; for a chunk of the prompt a bound variable, even if its value is 1
    cached, request.said = (0 if request.said else request.n_cached), True
    phase = dmi.Phase.DECODE if isinstance(length, int) else dmi.Phase.PREFILL
    dmi.step_begin(next(_steps), [dmi.Span(request.name, _number(start_pos), _number(length), n_cached=cached, phase=phase,
                                          n_prompt=request.n_prompt, cached_ids=request.cached_ids if cached else None)], caches=True)


def _complain(error, said=[]):
    dmi.step_end()
    if not said:
        said.append(say(f"dmi.tinygrad: a forward could not be announced: {error!r}"))


def _describe(loaded, gguf):
    """Note what the GGUF's header says of the model: numbers and words. tinygrad turns halves of heads, in whatever order the file has them."""
    try:
        said = {key: value for key, value in loaded[1].items() if isinstance(value, (int, float, str)) and not key.startswith("tokenizer.")}
        dmi.describe("config", json.dumps(said | {"dmi_rope_order": "halves"}))
        if isinstance(gguf, (str, os.PathLike)):
            dmi.describe("tokenizer", os.path.abspath(gguf))
    except Exception as error:  # another version of tinygrad
        _complain(error)


def attach(transformer=None):
    """Make @transformer (tinygrad.llm.model.Transformer) announce its forwards.

    Does nothing where libdmi_preload.so is not in the process, and nothing the second time.
    """
    if transformer is None:
        from tinygrad.llm.model import Transformer as transformer
    if not dmi.loaded() or hasattr(transformer, "_dmi_attached"):
        return
    call, generate = transformer.__call__, transformer.generate

    @functools.wraps(call)
    def announcing_call(self, tokens, start_pos, *args, **kwargs):
        if (request := getattr(_running, "request", None)) is not None:
            try:
                _announce(request, tokens, start_pos)
            except Exception as error:  # another version of tinygrad: the rows have no names then, but the program must go on
                _complain(error)
        return call(self, tokens, start_pos, *args, **kwargs)

    @functools.wraps(generate)
    def announcing_generate(self, tokens, *args, **kwargs):
        name = self.__dict__.pop("dmi_request", None) or str(next(_requests))
        request, inner = _Request(name, self.get_start_pos(tokens), tokens), generate(self, tokens, *args, **kwargs)
        try:
            while True:
                # Several generators may take turns: a forward belongs to the one that runs now.
                _running.request = request
                try:
                    token = next(inner)
                except StopIteration:
                    return
                finally:
                    _running.request = None
                    dmi.step_end()
                yield token
        finally:
            inner.close()
            dmi.request_end(name)

    if (load := getattr(transformer, "from_gguf", None)) is not None:  # else another version of tinygrad: the run has no config
        @functools.wraps(load)
        def describing_load(gguf, *args, **kwargs):
            loaded = load(gguf, *args, **kwargs)
            _describe(loaded, gguf)
            return loaded

        transformer.from_gguf = staticmethod(describing_load)
    transformer.__call__, transformer.generate, transformer._dmi_attached = announcing_call, announcing_generate, True


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        raise SystemExit("python -m dmi.tinygrad PROGRAM [ARGUMENT ...]")
    attach()
    sys.argv = sys.argv[1:]
    sys.path[0] = sys.argv[0].rpartition("/")[0] or "."
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
