#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Edits of a small Llama that generates, against forward hooks that do the same arithmetic in PyTorch: edits_client.py FOLDER [cpu]

What the taps see is copied to the device, written there by the library, and copied back (generate_client.py); cpu: the library writes where it lies, in a process
without a driver. Three requests of one batch; the edits are of one. Prints a line of JSON for each thing that must hold, as attach_client.py does.
"""
import contextlib
import ctypes
import json
import os
import pathlib
import sys

sys.setdlopenflags(os.RTLD_LAZY)  # of the CUDA libraries that torch is linked to, most are not there
import numpy as np  # noqa: E402
import torch  # noqa: E402
from transformers.modeling_outputs import BaseModelOutputWithPast  # noqa: E402
from transformers.models.llama.modeling_llama import LlamaModel  # noqa: E402

import attach_models as models  # noqa: E402
import dmi.huggingface  # noqa: E402
import dmi.torch  # noqa: E402
from attach_client import check  # noqa: E402
from dmi import taps as library  # noqa: E402
from dmi.torch import names, taps  # noqa: E402
from generate_client import PROMPTS, Device, padded, said_by  # noqa: E402

ROW, NAMES = 1, ("a", "b", "c")  # the one that is edited: the longest, without padding
# {site: (module of a layer, of the backbone or of all, side)}
WHERE = {"embed": ("model.embed_tokens", "out"), "final_ln": ("model.norm", "out"), "ln1": ("input_layernorm", "out"), "q": ("self_attn.q_proj", "out"),
         "k": ("self_attn.k_proj", "out"), "v": ("self_attn.v_proj", "out"), "z": ("self_attn.o_proj", "in"), "attn_out": ("self_attn", "out"),
         "resid_mid": ("post_attention_layernorm", "in"), "ln2": ("post_attention_layernorm", "out"), "mlp_post": ("mlp.down_proj", "in"),
         "mlp_out": ("mlp", "out"), "resid_post": ("", "out")}


class Writing(Device):
    """A sink: what is written on the device is copied back."""

    def __call__(self, tensor, name, layer, n_layers, rows, writable=False):
        if not self.on or not writable:
            return
        at, there = ctypes.c_uint64(), tensor.detach().contiguous()
        n_bytes = ctypes.c_size_t(there.numel() * there.element_size())
        self.cuda.cuCtxSetCurrent(self.context)
        assert self.cuda.cuMemAlloc_v2(ctypes.byref(at), n_bytes) == 0
        assert self.cuda.cuMemcpyHtoD_v2(at, ctypes.c_void_p(there.data_ptr()), n_bytes) == 0
        status = library.send(name, at.value, 0, library.DTYPES[str(tensor.dtype)[6:]], there.shape, there.stride(), there.element_size(),
                              taps.mask_of(rows), library.NO_LAYER if layer is None else layer, n_layers or 0, library.WRITABLE)
        assert status == 0 and self.cuda.cuCtxSynchronize() == 0, status
        assert self.cuda.cuMemcpyDtoH_v2(ctypes.c_void_p(there.data_ptr()), at, n_bytes) == 0
        self.cuda.cuMemFree_v2(at)
        if there.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(there)


class Here:
    """The same for tensors that stay on the CPU."""
    on = False

    def __call__(self, *tapped, writable=False):
        if self.on:
            taps.to_library(*tapped, writable=writable)


def sink():
    return Here() if "cpu" in sys.argv else Writing()


def small(dtype):
    model = models.model_of("llama").to(dtype)
    for key, value in {"pad_token_id": 0, "eos_token_id": None, "do_sample": False}.items():
        setattr(model.generation_config, key, value)
    dmi.huggingface.attach(model)
    return model


def generate(model, device=None):
    """[row, step, vocabulary]: logits of the three requests. @device: on meanwhile."""
    if device is not None:
        device.on = True
    with dmi.huggingface.requests(*NAMES):
        out = model.generate(**padded(PROMPTS), max_new_tokens=4, output_logits=True, return_dict_in_generate=True)
    if device is not None:
        device.on = False
    return torch.stack(out.logits, 1)


class Hooks:
    """The same arithmetic, by forward hooks: @edit(x) of the edited request's rows."""

    def __init__(self, model, site, layers, edit, row=ROW):
        path, side = WHERE[site]
        of_all = site in names.ONCE
        modules = [model.get_submodule(path)] if of_all else [layer.get_submodule(path) for layer in (model.model.layers[i] for i in layers)]

        def change(x):
            x = x[0] if isinstance(x, tuple) else x
            x[row].copy_(edit(x[row]))
        self.handles = [module.register_forward_pre_hook(lambda _, given: change(given)) if side == "in" else
                        module.register_forward_hook(lambda _, given, out: change(out)) for module in modules]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for handle in self.handles:
            handle.remove()


def width(model, site):
    config = model.config
    return {"mlp_post": config.intermediate_size, "q": config.num_attention_heads * models.HEAD, "z": config.num_attention_heads * models.HEAD,
            "k": config.num_key_value_heads * models.HEAD, "v": config.num_key_value_heads * models.HEAD}.get(site, config.hidden_size)


def vector_of(folder, n):
    path = folder / f"vector-{n}.npy"
    if not path.exists():
        np.save(path, np.random.default_rng(n).standard_normal(n).astype(np.float32))
    return path, torch.from_numpy(np.load(path))


def same(found, wanted, plain, what, exact=True):
    """The edited request's logits are those of the hooks, the others' those without edits."""
    others = [i for i in range(len(NAMES)) if i != ROW]
    difference = (found[ROW] - wanted[ROW]).abs().max().item() / max(wanted[ROW].abs().max().item(), 1e-9)
    check(torch.equal(found[ROW], wanted[ROW]) if exact else difference <= 1e-6, f"{what}: as PyTorch's arithmetic", difference)
    check(torch.equal(found[others], plain[others]), f"{what}: other requests keep their bits")
    check(not torch.equal(wanted[ROW], plain[ROW]), f"{what}: the edit does something")


def each_site(folder, device, model, plain, kind):
    """`add`, at each place in layers 1 and 2."""
    for site in names.WRITABLE:
        path, v = vector_of(folder, width(model, site))
        layers, once = (None, True) if site in names.ONCE else ("1-2", False)
        with Hooks(model, site, (1, 2), lambda x, v=v: x + 2.5 * v.to(x.dtype)):
            wanted = generate(model)
        with dmi.torch.attach(model, write=site, sink=device), dmi.edit(path, times=2.5, layers=layers, sites=site, requests="b") as done:
            found = generate(model, device)
        same(found, wanted, plain, f"{kind}, add at {site}")
        rows, = done.rows.values()
        due = (len(PROMPTS[ROW]) + 3) * (1 if once else 2)
        check((rows.due, rows.written, rows.missed) == (due, due, {}) and rows.site == site, f"{kind}, {site}: rows are counted", rows)


OPERATIONS = {
    "scale": ("{scale: 0.75}", lambda x, v: x * 0.75), "set": ("{set: v}", lambda x, v: v.to(x.dtype).expand(x.shape)), "zero": ("zero", lambda x, v: x * 0),
    "clamp": ("{clamp: [-0.25, 0.5]}", lambda x, v: x.clamp(-0.25, 0.5)),
    "project_out": ("{project_out: v, times: 0.5}", lambda x, v: (x.double() - 0.5 * (x.double() @ (v / v.norm()).double())[:, None] * (v / v.norm()).double()).to(x.dtype))}


def each_operation(folder, device, model, plain, kind):
    """By a file of edits, at resid_post of layer 1."""
    path, v = vector_of(folder, model.config.hidden_size)
    for name, (text, formula) in OPERATIONS.items():
        if name == "project_out" and model.dtype != torch.float32:
            continue  # what is rounded to another side is a bit of bf16
        file = folder / f"{name}.yaml"
        file.write_text(f"editspec: 1\nvectors: {{v: {{file: {path.name}}}}}\nedits:\n  - {{name: {name}, site: resid_post, layers: '1', do: [{text}], requests: b}}\n")
        with Hooks(model, "resid_post", (1,), lambda x, formula=formula: formula(x, v)):
            wanted = generate(model)
        with dmi.torch.attach(model, write="resid_post", sink=device), dmi.edit(file) as done:
            found = generate(model, device)
        same(found, wanted, plain, f"{kind}, {name}", name != "project_out")
        check(done.rows[name].written == len(PROMPTS[ROW]) + 3, f"{kind}, {name}: rows are counted", done.rows)


def nothing(device, model, plain, kind):
    """Places without edits, and with edits of others."""
    with dmi.torch.attach(model, write=names.WRITABLE, sink=device):
        check(torch.equal(generate(model, device), plain), f"{kind}: without edits all bits are as without the library")


def refused(folder, device, model):
    """What cannot be says so, by name."""
    path, _ = vector_of(folder, 32)

    def wrong(action, kind, words, what):
        try:
            action()
            check(False, what, "nothing is raised")
        except kind as error:
            check(words in str(error), what, error)
    wrong(lambda: dmi.torch.attach(model, write="resid_pre", sink=device), ValueError, "'resid_pre' is no place for edits; there are: embed", "a site that is no place")
    wrong(lambda: dmi.torch.attach(model, write="module:*mlp:out", sink=device), ValueError, "no place", "a module")
    wrong(dmi.edit(path, sites="resid_past").__enter__, ValueError, "resid_past", "no such place")
    wrong(dmi.edit(folder / "none.npy").__enter__, ValueError, "none.npy", "no such file")
    wrong(lambda: dmi.edit("x.yaml", times=2), ValueError, "says times", "a file of edits with times")
    check(not dmi.edits._ask(dmi.edits._runs()[0], "edit list")["edits"], "no edit is left in force")


def printed(folder, device, model):
    """The block says what was written; one in which nothing begins says that."""
    path, _ = vector_of(folder, model.config.hidden_size)

    def block():
        with dmi.torch.attach(model, write="resid_post", sink=device), dmi.edit(path, layers=0, sites="resid_post"):
            generate(model, device)
        with contextlib.suppress(dmi.edits.NotDone), dmi.edit(path, sites="resid_post", times={0: 2.0, 4: 0}, tokens="generated"):
            pass
    said = said_by(block)
    n = sum(len(prompt) + 3 for prompt in PROMPTS)
    check(said == [f"dmi.edit: vector-32 at resid_post: {n} rows written of {n} due",
                   "dmi.edit: vector-32 at resid_post: 0 rows written of 0 due: no request began in the block, or its layers or its pass are others"], "what a block prints", said)


def without_steps(folder, device, model):
    """Where no step is said an edit of all requests and tokens writes every row, and one of some misses them all."""
    path, v = vector_of(folder, model.config.hidden_size)
    ids, found = torch.tensor([PROMPTS[ROW], PROMPTS[ROW][::-1]]), {}
    with contextlib.ExitStack() as hooks:
        for row in range(2):
            hooks.enter_context(Hooks(model, "resid_post", (1,), lambda x: x + v, row=row))
        wanted = model(ids).logits
    plain = model(ids).logits
    for requests in (None, "b"):
        refused = contextlib.suppress(dmi.edits.NotDone) if requests else contextlib.nullcontext()
        with refused, dmi.torch.attach(model, write="resid_post", sink=device), dmi.edit(path, layers=1, sites="resid_post", requests=requests) as done:
            device.on = True
            logits = model(ids).logits
            device.on = False
        found[requests] = logits, done.rows["vector-32"]
    check(torch.equal(found[None][0], wanted) and found[None][1].written == 14, "without steps all rows", found[None][1])
    check(torch.equal(found["b"][0], plain) and found["b"][1].missed == {"no_step": found["b"][1].due}, "and none of one request", found["b"][1])


class Looped(LlamaModel):
    """Each layer runs three times a forward."""

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, past_key_values=None, inputs_embeds=None, use_cache=None, **_):
        x, n = self.embed_tokens(input_ids), input_ids.shape[1]
        places, mask = torch.arange(n)[None], torch.full((n, n), float("-inf")).triu(1)[None, None]
        turned = self.rotary_emb(x, places)
        for layer in [*self.layers] * 3:
            out = layer(x, attention_mask=mask, position_ids=places, position_embeddings=turned)
            x = out[0] if isinstance(out, tuple) else out
        return BaseModelOutputWithPast(last_hidden_state=self.norm(x))


def looped(folder, device, model):
    """An edit that names a pass writes what a hook of that pass alone does; one that names none, in each."""
    path, v = vector_of(folder, model.config.hidden_size)
    model.model.__class__ = Looped
    ids = torch.tensor([PROMPTS[ROW]])

    def hooked(passes):
        seen = iter(range(3))
        with Hooks(model, "resid_post", (1,), lambda x: x + v if next(seen) in passes else x, row=0):
            return model(ids).logits
    wanted = {n: hooked(range(3) if n is None else (n,)) for n in (None, 0, 1, 2)}
    check(len({logits.sum().item() for logits in wanted.values()}) == 4, "hooks of passes differ")
    for n, logits in wanted.items():
        with dmi.torch.attach(model, write="resid_post", sink=device), dmi.edit(path, layers=1, sites="resid_post", pass_=n) as done:
            device.on = True
            with dmi.huggingface.batch(torch.ones_like(ids), [f"pass-{n}"]):
                found = model(ids).logits
            device.on = False
        rows = len(PROMPTS[ROW]) * (3 if n is None else 1)
        check(torch.equal(found, logits) and (done.rows["vector-32"].due, done.rows["vector-32"].written) == (rows, rows), f"pass {n}, in bits", done.rows)


def of_ones_own(folder, device):
    """A program that taps by itself, with gradients or without."""
    path, v = vector_of(folder, 32)
    for grad in (False, True):
        weight = torch.ones(32, requires_grad=True)
        with torch.set_grad_enabled(grad), taps.redirect(device), dmi.edit(path, sites="resid_post"):
            device.on, x, seen = True, weight * torch.zeros(3, 32), torch.zeros(3, 32)
            dmi.torch.tap(x, "resid_post", 0, writable=True)
            dmi.torch.tap(seen, "resid_post", 1)
            device.on = False
        check(torch.equal(x, v.expand(3, 32)) and not seen.any(), "a tap of one's own, where it says so", (x, seen))


def example(folder, device, model):
    """examples/edits/by_tag.yaml: strengths by the request's own tags."""
    path, v = vector_of(folder, model.config.hidden_size)
    np.save(folder / "calm.npy", np.load(path))
    file = folder / "by_tag.yaml"
    file.write_text((pathlib.Path(__file__).parents[2] / "examples/edits/by_tag.yaml").read_text().replace("calm.safetensors", "calm.npy").replace("11-26", "1-2"))
    plain = generate(model)
    with Hooks(model, "resid_post", (1, 2), lambda x: x + 3 * v.to(x.dtype)):
        wanted = generate(model)
    salts = []
    with dmi.torch.attach(model, write="resid_post", sink=device), dmi.edit(file):
        device.on = True
        with dmi.huggingface.requests(*NAMES, tags=[None, {"calm": 3}, {"calm": 0}]):
            out = model.generate(**padded(PROMPTS), max_new_tokens=4, output_logits=True, return_dict_in_generate=True)
        device.on = False
        salts = [dmi.edits.salt("x", tags) for tags in (None, {"calm": 3}, {"calm": 3, "other": 1}, {"calm": 2})]
    same(torch.stack(out.logits, 1), wanted, plain, "by tag")
    check(salts[1] == salts[2] and len(set(salts)) == 3 and salts[1].startswith("dmi-"), "a salt is of what edits do in the request", salts)


def adding(x, times, v):
    for c in times:
        x = x + c * v
    return x


def saved(folder, model):
    """The model for hugging_face.py, with a tokenizer of words, and what it says under two vectors: of layer 1 alone, and of both layers."""
    import tokenizers
    import transformers
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(model.config.vocab_size)}, unk_token="w0"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0").save_pretrained(folder / "model")
    model.save_pretrained(folder / "model")
    v, said = vector_of(folder, model.config.hidden_size)[1], []
    for change in ({}, {1: (2,)}, {1: (2, 3), 2: (3,)}):
        with contextlib.ExitStack() as hooks:
            for layer, times in change.items():
                hooks.enter_context(Hooks(model, "resid_post", (layer,), lambda x, times=times: adding(x, times, v), row=0))
            out = model.generate(torch.tensor([PROMPTS[ROW]]), max_new_tokens=12)[0, len(PROMPTS[ROW]):].tolist()
        said.append(" ".join(f"w{token}" for token in out))
    check(len(set(said)) == 3, "vectors change what is said", said)
    (folder / "said.json").write_text(json.dumps({"prompt": " ".join(f"w{token}" for token in PROMPTS[ROW]), "said": said}))


def main():
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    folder, device = pathlib.Path(sys.argv[1]), sink()
    device.on = False
    for kind in ("float32", "bfloat16"):
        model = small(getattr(torch, kind))
        plain = generate(model)
        nothing(device, model, plain, kind)
        each_site(folder, device, model, plain, kind)
        each_operation(folder, device, model, plain, kind)
    model = small(torch.float32)
    refused(folder, device, model)
    printed(folder, device, model)
    without_steps(folder, device, model)
    looped(folder, device, small(torch.float32))
    of_ones_own(folder, device)
    example(folder, device, model)
    saved(folder, small(torch.float32))


if __name__ == "__main__":
    main()
