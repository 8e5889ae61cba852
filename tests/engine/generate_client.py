#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""generate() of small random models, on the CPU, tapped: generate_client.py FOLDER

What the taps see is copied to the device, and tapped there, so that the library captures it with the steps that dmi.huggingface
announced. FOLDER gets expected.json: of each request the tokens, and what must be known of it; and the tensors of each, from one
forward over its tokens alone. Prints a line of JSON for each thing that must hold, as attach_client.py does.
"""
import contextlib
import copy
import ctypes
import io
import json
import os
import pathlib
import sys
import threading
import time
import types

sys.setdlopenflags(os.RTLD_LAZY)  # of the CUDA libraries that torch is linked to, most are not there
import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

import attach_models as models  # noqa: E402
import dmi.huggingface  # noqa: E402
import dmi.torch  # noqa: E402
import plain_forwards  # noqa: E402
from attach_client import check  # noqa: E402
from dmi import collecting  # noqa: E402
from dmi import taps as library  # noqa: E402

SITES = "resid_pre,k_rot,final_logits"
PROMPTS = ([7, 9, 11], [3, 4, 5, 6, 8, 10, 12], [20, 21, 22, 23, 24])


class Device:
    """A sink: tensors on the CPU, copied to the device while they are tapped."""

    def __init__(self):
        self.cuda, context, self.on = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), True
        for status in (self.cuda.cuInit(0), self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), self.cuda.cuCtxSetCurrent(context)):
            assert status == 0, status
        self.context = context

    def __call__(self, tensor, name, layer, n_layers, rows):
        if not self.on:
            return
        tensor, address = tensor.detach().contiguous(), ctypes.c_uint64()
        n_bytes = tensor.numel() * tensor.element_size()
        self.cuda.cuCtxSetCurrent(self.context)
        assert self.cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(n_bytes)) == 0
        assert self.cuda.cuMemcpyHtoD_v2(address, ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(n_bytes)) == 0
        status = library.send(name, address.value, 0, library.DTYPES[str(tensor.dtype)[6:]], tensor.shape, tensor.stride(), tensor.element_size(), sum(1 << d for d in rows),
                              library.NO_LAYER if layer is None else layer, n_layers)
        assert status == 0 and self.cuda.cuCtxSynchronize() == 0, status
        self.cuda.cuMemFree_v2(address)


class Expected:
    """What the run must hold: {request: {tokens, and what is known of it}}, {request/site.layer: rows}."""

    def __init__(self, device):
        self.device, self.requests, self.tensors = device, {}, {}

    def add(self, model, name, tokens, n_prompt, **more):
        """@tokens: of a request without padding, the last of which was never computed."""
        computed = torch.tensor([tokens[:-1]])
        rows = {}
        self.device.on = False
        with dmi_sink(lambda x, site, layer, n_layers, dims: rows.update({(site, layer): x.detach().clone()})):
            model(computed, use_cache=False)
        self.device.on = True
        first = more.get("n_cached", 0)
        for (site, layer), x in rows.items():
            x = x.transpose(1, 2) if site == "k_rot" else x
            key = f"{name}/{site}" + ("" if layer is None else f".{layer}")
            self.tensors[key] = x[0, (first if site != "final_logits" else n_prompt - 1):].flatten(1).contiguous()
        self.requests[name] = {"n_prompt": n_prompt, "n": len(computed[0]), **more}


_sinks = []


@contextlib.contextmanager
def dmi_sink(sink):
    """Taps of all models go to @sink for a while."""
    _sinks.append(sink)
    try:
        yield
    finally:
        _sinks.pop()


def small(name, **more):
    model = models.model_of(name)
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = None
    model.generation_config.do_sample = False
    for key, value in more.items():
        setattr(model.generation_config, key, value)
    sites = SITES if name != "gpt2" else "resid_pre,final_logits"
    dmi.torch.attach(model, sites, sink=lambda *tapped: _sinks[-1](*tapped))
    return model


def padded(prompts):
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + list(p) for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    return {"input_ids": ids, "attention_mask": mask}


def twice(device, model, names, tags=None, **options):
    """generate() without the adapter and with it; its result, which must be the same."""
    def run():
        options.pop("past_key_values", None)
        if "past" in options:
            options["past_key_values"] = copy.deepcopy(options["past"])
        torch.manual_seed(3)
        return model.generate(**{key: value for key, value in options.items() if key != "past"})
    device.on = False
    plain = run()
    device.on = True
    dmi.huggingface.attach(model)
    with dmi.huggingface.requests(*names, tags=tags):
        out = run()
    dmi.huggingface.detach(model)
    check(torch.equal(plain, out), f"{names[0]}: the same tokens with and without")
    return out


def cut(sequence, skip, eos, n_prompt):
    """A row of what generate() returns, without padding at its beginning and after its end."""
    tokens = sequence.tolist()[skip:]
    ends = [i for i, token in enumerate(tokens) if i >= n_prompt and token in eos]
    return tokens[:ends[0] + 1] if ends else tokens


def chosen_eos(device, model, batch):
    """Two tokens that end the first row after 3, the second after 6, and the third never."""
    device.on = False
    plain = model.generate(**batch, max_new_tokens=12)[:, batch["input_ids"].shape[1]:].tolist()
    device.on = True
    return [plain[0][2], plain[1][5]], plain


def batches(device, expected):
    """Left padding, rows that end at different lengths, each kind of cache, families with and without rotation."""
    batch = padded(PROMPTS)
    for name, what, options in (
            ("llama", "dynamic", {}), ("qwen3", "static", {"cache_implementation": "static"}), ("gpt2", "gpt2", {}),
            ("llama", "whole", {"use_cache": False}), ("llama", "chunks", {"prefill_chunk_size": 3})):
        model = small(name)
        eos, _ = chosen_eos(device, model, batch)
        names = [f"{what}-{i}" for i in range(3)]
        out = twice(device, model, names, [{"capture": "yes", "row": i} for i in range(3)], **batch, max_new_tokens=9, eos_token_id=eos, **options)
        lengths = set()
        for i, prompt in enumerate(PROMPTS):
            tokens = cut(out[i], 7 - len(prompt), eos, len(prompt))
            lengths.add(len(tokens) - len(prompt))
            reason = "stop" if tokens[-1] in eos else "length"
            more = {"superseded": True} if what == "whole" else {"logits": True}
            if what == "chunks" and models.OLD and len(prompt) < 7:  # its forward rotates by columns, padding among them
                more = {"other_values": True}
            expected.add(model, names[i], tokens, len(prompt), reason=reason, **more)
        check(len(lengths) > 1, f"{what}: rows end at different lengths", lengths)


def one(device, expected):
    """A batch of one, without a mask; a second call that goes on from the first one's cache; sequences of one prompt."""
    model = small("llama")
    ids = torch.tensor([PROMPTS[1]])
    out = twice(device, model, ["single"], input_ids=ids, max_new_tokens=4)
    expected.add(model, "single", out[0].tolist(), 7, reason="length", logits=True)
    device.on = False
    first = model.generate(ids, max_new_tokens=4, return_dict_in_generate=True)
    device.on = True
    longer = torch.cat([first.sequences, torch.tensor([[30, 31]])], dim=1)
    out = twice(device, model, ["goes-on"], input_ids=longer, past=first.past_key_values, max_new_tokens=3)
    expected.add(model, "goes-on", out[0].tolist(), 13, n_cached=10, cached_ids=out[0, :10].tolist(), reason="length", logits=True)
    out = twice(device, model, ["two"], **padded(PROMPTS[:1]), max_new_tokens=5, do_sample=True, num_return_sequences=2)
    for k in range(2):
        expected.add(model, f"two#{k}", out[k].tolist(), 3, reason="length", logits=True)
    embeds = model.get_input_embeddings()(ids)
    out = twice(device, model, ["embedded"], inputs_embeds=embeds, max_new_tokens=4)
    expected.add(model, "embedded", PROMPTS[1] + out[0].tolist(), 7, reason="length", logits=True)


def holes(device, expected):
    """Padding after a prompt's tokens, and between them: it is nobody's, and positions count tokens. (After padding at its end transformers rotates
    what it generates by another position.)"""
    model = small("llama")
    for what, prompts in (("right", [[7, 9, 11, 0, 0, 0], [3, 4, 5, 6, 8, 10]]), ("inner", [[7, 0, 9, 11, 0, 12], [0, 3, 4, 0, 5, 6]])):
        for options in ({}, {"use_cache": False}):
            names = [f"{what}-{len(options)}-{i}" for i in range(2)]
            ids = torch.tensor(prompts)
            out = twice(device, model, names, input_ids=ids, attention_mask=(ids != 0).long(), max_new_tokens=4, **options)
            for name, prompt, row in zip(names, prompts, out.tolist()):
                tokens = [token for token in prompt if token]
                more = {"superseded": True} if options else {}
                expected.add(model, name, tokens + row[len(prompt):], len(tokens), reason="length", other_values=models.OLD or not prompt[-1], **more)


def beams(device, expected):
    """Rows are beams: beam k of a prompt holds at each position what row k of it computed in that step."""
    model, batch = small("llama"), padded(PROMPTS[:2])
    seen = []

    def watch(tensor, name, layer, n_layers, rows):
        if (name, layer) == ("resid_pre", 1) and device.on:
            seen.append(tensor.detach().clone())
        device(tensor, name, layer, n_layers, rows)
    with dmi_sink(watch):
        twice(device, model, ["beams-0", "beams-1"], **batch, num_beams=3, max_new_tokens=5)
    for row in range(6):
        prompt = PROMPTS[row // 3]
        rows = [seen[0][row, 7 - len(prompt):], *[x[row] for x in seen[1:]]]
        name = f"beams-{row // 3}#{row % 3}"
        expected.tensors[f"{name}/resid_pre.1"] = torch.cat(rows).contiguous()
        expected.requests[name] = {"n_prompt": len(prompt), "n": len(prompt) + len(seen) - 1, "reason": "unknown"}


def assisted(device, expected):
    model, assistant = small("llama"), small("llama")
    with torch.no_grad():
        for parameter in assistant.parameters():
            parameter.add_(0.06 * torch.randn_like(parameter))
    assistant.generation_config.num_assistant_tokens = 3
    ids = torch.tensor([PROMPTS[1]])
    for what, options in (("assisted", {"assistant_model": assistant}), ("looked-up", {"prompt_lookup_num_tokens": 2}),
                          ("same", {"assistant_model": small("llama")})):
        before = len(accepted)
        if what == "looked-up" and models.OLD:
            continue  # there it needs an EOS
        if what == "looked-up":
            ids = torch.tensor([[3, 4, 5, 3, 4]])
        out = twice(device, model, [what], input_ids=ids, max_new_tokens=12, **options)
        expected.add(model, what, out[0].tolist(), ids.shape[1], reason="length", drafts=True)
        check(len(accepted) > before, f"{what}: what became of drafts is said", accepted[before:])
    check(any(n for n in accepted) and any(not n for n in accepted), "some drafts are accepted, some are not", accepted)
    dmi.huggingface.attach(assistant)
    out = twice(device, model, ["both"], input_ids=torch.tensor([PROMPTS[1]]), max_new_tokens=8, assistant_model=assistant)
    dmi.huggingface.detach(assistant)
    expected.add(model, "both", out[0].tolist(), 7, reason="length", drafts=True)
    expected.requests["both#draft"] = {"draft_model": True}


accepted = []


def said_by(action):
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        action()
    return [line for line in said.getvalue().splitlines() if line.startswith("dmi.")]


def collected(device, _):
    """dmi.collect() has what the taps of each request saw, as PyTorch's, before generate() of the next one."""
    model, batch = small("llama"), padded(PROMPTS)
    dmi.huggingface.attach(model)
    for _ in range(2):
        with dmi.collect(sites=["resid_pre", "k_rot"], layers="last") as got:
            out = model.generate(**batch, max_new_tokens=4)
        check(len(got) == 3 and [*got] == [got[i].id for i in range(3)] and all(list(one.resid_pre) == [2] for one in got.values()), "a block's requests", [*got])
        for i, prompt in enumerate(PROMPTS):
            seen = {}
            device.on = False
            with dmi_sink(lambda x, site, layer, n_layers, dims, seen=seen: seen.update({(site, layer): x.detach().clone()})):
                model(out[i:i + 1, 7 - len(prompt):-1], use_cache=False)
            device.on = True
            for site, wanted in (("resid_pre", seen["resid_pre", 2][0]), ("k_rot", seen["k_rot", 2][0].transpose(0, 1))):
                rows = got[i][site][2]
                check(rows.dtype == torch.float32 and not rows.is_cuda and rows.shape == wanted.shape and torch.allclose(rows, wanted, atol=2e-4),
                      f"{site} of row {i}", (rows.shape, wanted.shape))


def true_values():
    """What stands in a run as PyTorch's, whatever its type and scale."""
    def of(values, dtype, scale, scales=None):
        stored = bytearray(values.view(torch.uint8).numpy().tobytes())
        return collecting._as_torch(torch, types.SimpleNamespace(dtype=dtype, shape=values.shape, scale=scale, scales=scales), stored)
    x = torch.tensor([[1.5, -2.0], [0.25, 8.0]])
    for dtype, kind in (("bf16", torch.bfloat16), ("f16", torch.float16), ("f32", torch.float32), ("f8e4m3", torch.float8_e4m3fn), ("f8e5m2", torch.float8_e5m2)):
        got = [of((4 * x).to(kind), dtype, 4.0), of(x.to(kind), dtype, 0.0), of((x * torch.tensor([[2.0], [4.0]])).to(kind), dtype, None, [2, 4])]
        check(all(one.dtype == torch.float32 and torch.equal(one, x) for one in got), f"{dtype}: true values", got)
    ids = torch.tensor([[1 << 40, 3]])
    check(torch.equal(of(ids, "i64", 0.0), ids) and of(ids, "i64", 0.0).dtype == torch.int64, "integers stay as they are", of(ids, "i64", 0.0))
    check(of(x.double(), "f64", 1.0).dtype == torch.float64 and of(torch.empty(0, 3), "f32", 0.0).shape == (0, 3), "f64, and no rows")


def experts(device, _):
    """Requests whose chosen experts the run has: one tapped by name, one by the router's logits alone."""
    for name, sites in (("chosen", "router_logits,topk_ids,topk_weights"), ("from-logits", "router_logits")):
        model = models.model_of("qwen3_moe")
        model.generation_config.pad_token_id, model.generation_config.eos_token_id = 0, None
        attached = dmi.torch.attach(model, sites if not models.OLD else "router_logits", sink=lambda *tapped: _sinks[-1](*tapped))
        dmi.huggingface.attach(model)
        with dmi.huggingface.requests(name):
            model.generate(torch.tensor([PROMPTS[1]]), max_new_tokens=3, do_sample=False)
        attached.detach()


def batching(device):
    """Continuous batching: parts of a prompt, children, blocks that requests share, a salt, an end before its time, a model that is detached."""
    if dmi.continuous.attach(dmi.huggingface._announces):
        return  # refused() has what is said then
    model, prompt, spans, ends, results = small("llama"), [3, 5, 7, 9, 11, 13, 15, 17, 21, 22], [], {}, []
    config = transformers.ContinuousBatchingConfig(num_blocks=40, page_size=4, max_batch_tokens=8, seed=7)
    sampled = transformers.GenerationConfig(max_new_tokens=4, do_sample=True, eos_token_id=-1, pad_token_id=0, num_return_sequences=2)
    begin, end, device.on = dmi.step_begin, dmi.request_end, False
    dmi.step_begin = lambda step, given, *_, caches, **__: check(caches, "blocks may be shared") or spans.extend(given) or 0
    dmi.request_end = lambda name, reason: ends.setdefault(name, reason) and 0

    def wait(holds):
        until = time.monotonic() + 60
        while not holds() and time.monotonic() < until:
            results.extend(filter(None, [manager.get_result(timeout=0.01)]))
    dmi.huggingface.attach(model)
    with model.continuous_batching_context_manager(sampled, continuous_batching_config=config, block=True) as manager:
        with dmi.huggingface.requests("one", tags={"cache_salt": "x", "k": 1}):
            said = said_by(lambda: manager.add_request(prompt))
        wait(lambda: len(results) == 2)
        manager.add_request(prompt[:8] + [31, 32], request_id="mine")
        wait(lambda: len(results) == 4)
        manager.add_request(prompt, request_id="gone", max_new_tokens=60)
        wait(lambda: any(span.request == "gone" for span in spans))
        manager.cancel_request("gone")
        wait(lambda: "gone" in ends)
        dmi.huggingface.detach(model)
        n = len(spans)
        manager.add_request(prompt, request_id="unseen")
        wait(lambda: any(result.request_id == "unseen" for result in results))
    first = {name: [span for span in spans if span.request == name] for name in ("one", "one#1", "mine", "mine#1", "gone")}
    check([(s.first_position, s.n_tokens, s.flags) for s in first["one"]] == [(0, 8, dmi.PART), (8, 1, dmi.PART), (9, 1, 0), (10, 1, 0), (11, 1, 0), (12, 1, 0)], "parts of a prompt", first["one"])
    check([(s[0].n_cached, s[0].cached_ids) for s in first.values()][:4] == [(0, None), (9, prompt[:9]), (8, prompt[:8]), (9, prompt[:8] + [31])], "what was shared", first)
    check({s.tags for s in first["one"] + first["one#1"]} == {'{"k": 1}'} and len(said) == 1 and "cache_salt" in said[0], "tags, without a salt that nothing heeds", said)
    check([ends.get(name) for name in first] == [dmi.End.LENGTH] * 4 + [dmi.End.ABORTED], "ends", ends)
    check(not any(span.request == "unseen" for span in spans[n:]), "a model that is detached announces nothing", spans[n:])
    dmi.step_begin, dmi.request_end, device.on = begin, end, True


class NeverRead:
    """A configuration that generate_batch() cannot use: whatever is asked of it, it raises."""

    def __getattr__(self, name):
        raise RuntimeError(f"{name}: no continuous batching here")


def swallow(action):
    try:
        action()
    except Exception as error:  # what transformers says of it is its own affair
        print(f"{type(error).__name__}: {error}", file=sys.stderr)


def refused(device):
    """By name, once; the tokens are those of a program without the adapter."""
    sizes = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
    t5 = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes)).eval()
    ids = torch.tensor([PROMPTS[1]])
    plain, out = t5.generate(ids, max_new_tokens=3), []
    said = said_by(lambda: [check(dmi.huggingface.attach(t5) is False, "an encoder-decoder model is not attached"),
                            *(out.append(t5.generate(ids, max_new_tokens=3)) for _ in range(2))])
    check(torch.equal(plain, out[1]) and len(said) == 1 and "encoder-decoder model (t5) is not supported" in said[0], "encoder-decoder models", said)
    model = small("llama")
    dmi.huggingface.attach(model)
    device.on = False
    # Its manager would take most of the machine's memory for its cache: it is stopped before it begins.
    said = said_by(lambda: swallow(lambda: model.generate_batch([PROMPTS[1]], generation_config=NeverRead())))
    missing = dmi.continuous.attach(dmi.huggingface._announces)  # before transformers 5.19 it is built otherwise
    check(any("continuous batching" in line and str(missing) in line for line in said) == bool(missing), "generate_batch", (missing, said))
    said = said_by(lambda: model.generate(ids, max_new_tokens=2, guidance_scale=1.5))
    check(len(said) == 1 and "guidance_scale" in said[0], "guidance", said)
    device.on = True
    try:
        dmi.huggingface.attach(torch.nn.Linear(1, 1))
    except ValueError as error:
        check("Linear has no generate()" in str(error), "a model that does not generate", error)


def threads(device, expected):
    """One after the other they are as one; at once each has steps of its own, and all of its rows."""
    model = small("llama")
    dmi.huggingface.attach(model)
    outs = {}

    def one_of(name, barrier=None):
        with dmi.huggingface.requests(name), torch.no_grad():
            wait = transformers.StoppingCriteriaList([Meet(barrier)]) if barrier else None
            outs[name] = model.generate(torch.tensor([PROMPTS[1]]), max_new_tokens=4, stopping_criteria=wait)[0].tolist()
    for name in ("thread-1", "thread-2"):
        thread = threading.Thread(target=one_of, args=(name,))
        thread.start()
        thread.join()
        expected.add(model, name, outs[name], 7, reason="length", logits=True)
    barrier = threading.Barrier(2)
    several = [threading.Thread(target=one_of, args=(name, barrier), name=name) for name in ("at-once-1", "at-once-2")]
    said = said_by(lambda: [[thread.start() for thread in several], [thread.join() for thread in several]])
    for thread in several:
        expected.add(model, thread.name, outs[thread.name], 7, reason="length", logits=True)
    check(outs["at-once-1"] == outs["at-once-2"] == outs["thread-1"], "two threads: the same tokens")
    check(not said, "nothing is lost, so nothing is said", said)


class Meet(transformers.StoppingCriteria):
    """Each thread goes on when the other one is as far."""

    def __init__(self, barrier):
        self.barrier = barrier

    def __call__(self, input_ids, scores, **kwargs):
        self.barrier.wait(60)
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


def edges(device):
    """Wrong names, a failure within the adapter, a call that raises: the engine goes on as it would."""
    device.on = False
    model, ids = small("llama"), torch.tensor([PROMPTS[1]])
    dmi.huggingface.attach(model)
    plain = model.generate(ids, max_new_tokens=3)
    with dmi.huggingface.requests("a", "b"):
        said = said_by(lambda: model.generate(ids, max_new_tokens=3))
    check(len(said) == 1 and "2 ids for a batch of 1" in said[0], "a wrong number of ids", said)
    copied = copy.deepcopy(model)
    check(torch.equal(copied.generate(ids, max_new_tokens=3), plain), "a copy of the model generates")

    class Broken(transformers.LogitsProcessor):
        def __call__(self, input_ids, scores):
            raise KeyError("of the user's")
    with dmi.huggingface.requests("broken"):
        try:
            model.generate(ids, max_new_tokens=3, logits_processor=transformers.LogitsProcessorList([Broken()]))
        except KeyError as error:
            check("of the user's" in str(error), "an exception of the engine's arrives")
    begin, dmi.step_begin = dmi.step_begin, lambda *_, **__: 1 / 0
    said = said_by(lambda: [check(torch.equal(model.generate(ids, max_new_tokens=3), plain), "tokens after a failure") for _ in range(2)])
    dmi.step_begin = begin
    check(len(said) == 1 and "ZeroDivisionError" in said[0] and "no request ids" in said[0], "a failure is said once", said)
    check(not dmi.huggingface._adapter.on, "and turns the adapter off")
    another_version(model, ids)
    device.on = True


def another_version(model, ids):
    """One that nobody tried is tried; one that lacks what is needed, or whose forwards have other tokens, is off by name."""
    hf = dmi.huggingface
    told, version_of, prepare = [], hf.adapters.version_of, type(model).prepare_inputs_for_generation
    begin, dmi.step_begin = dmi.step_begin, lambda step, spans, *_, **__: told.append(len(spans)) or 0
    hf.adapters.version_of = lambda package: ("6.1.0", (6, 1))

    def again(change):
        hf._adapter.on, told[:] = True, []
        hf._is_understood.cache_clear(), hf._trial.cache_clear()
        change()
        return said_by(lambda: [hf.attach(model) and model.generate(ids, max_new_tokens=5)])
    said = again(lambda: None)
    check(told == [0, 0, 0, 1, 1] and len(said) == 1 and "transformers 6.1.0 is not known: 3 steps agree" in said[0], "three steps are tried", (told, said))

    def others(self, input_ids, **more):
        inputs = prepare.__wrapped__(self, input_ids, **more)
        return inputs | {"input_ids": inputs["input_ids"] * 0 + 1}
    said = again(lambda: setattr(type(model), "prepare_inputs_for_generation", hf._preparing(others)))
    check(not any(told) and len(said) == 1 and "6.1.0 is not known, and tokens of request 0" in said[0], "another forward's tokens", (told, said))
    type(model).prepare_inputs_for_generation = prepare
    criteria = transformers.GenerationMixin._get_stopping_criteria
    said = again(lambda: setattr(transformers.GenerationMixin, "_get_stopping_criteria", None))
    transformers.GenerationMixin._get_stopping_criteria = criteria
    check(not told and len(said) == 1 and "6.1.0 is not understood: a model has no _get_stopping_criteria()" in said[0], "what it lacks is named", said)
    hf.adapters.version_of, dmi.step_begin = version_of, begin


def main():
    folder = pathlib.Path(sys.argv[1])
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    device = Device()
    expected = Expected(device)
    accept = dmi.accept
    dmi.accept = lambda name, step, n: accepted.append(n) or check(accept(name, step, n) == 0, f"{name}: {n} drafts of step {step} accepted")
    with dmi_sink(device):
        batches(device, expected)
        one(device, expected)
        holes(device, expected)
        beams(device, expected)
        assisted(device, expected)
        plain_forwards.wrapped(sys.modules[__name__], device, expected)
        plain_forwards.plain(sys.modules[__name__], device, expected)
        if "--chosen" not in sys.argv:  # then the run has what collect() asks for
            collected(device, expected)
        experts(device, expected)
        true_values()
        refused(device)
        batching(device)
        threads(device, expected)
        edges(device)
    check(dmi.flush(60) == 0, "flush")
    save_file({key: value.float() for key, value in expected.tensors.items()}, folder / "expected.safetensors")
    (folder / "expected.json").write_text(json.dumps(expected.requests))


if __name__ == "__main__":
    main()
