# SPDX-License-Identifier: Apache-2.0
"""What dmi.torch.attach() makes of models in wrappers, of models that are no family's, and of layers that are computed twice.

Functions of attach_client.py, in whose process they run: kind(check, Recorder).
"""
import torch
import transformers
from torch import nn

import attach_models as models
import dmi.torch


class Adapter(nn.Module):
    """As PEFT's LoRA: a projection with something added, in the place of the projection."""

    def __init__(self, base):
        super().__init__()
        self.base_layer, self.down = base, nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x):
        return self.base_layer(x) + self.up(self.down(x))


class Passing(nn.Module):
    """As PEFT's models: what it has not itself, its model has; generate() goes to the inner one, and never to forward() of this."""

    def __init__(self, model):
        super().__init__()
        self.base_model = model

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.base_model, name)

    def forward(self, *args, **kwargs):
        return self.base_model(*args, **kwargs)


class Hiding(nn.Module):
    """Keeps its model where PyTorch does not see it."""

    def __init__(self, model):
        super().__init__()
        self.scale, self.kept = nn.Linear(2, 2), [model]

    def forward(self, *args, **kwargs):
        return self.kept[0](*args, **kwargs)


class Plain:
    """No module at all, as a pipeline."""

    def __init__(self, **held):
        self.__dict__.update(held)


class Steered(nn.Module):
    """Stands in the list of layers in the place of one."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, *args, **kwargs):
        return self.block(*args, **kwargs) + 1


def seen_by(Recorder, thing, call, sites="all", layers=None):
    recorder = Recorder()
    with dmi.torch.attach(thing, sites, layers, sink=recorder) as attached:
        call()
    return recorder, attached


def complaint(thing, sites="q", layers=None):
    try:
        dmi.torch.attach(thing, sites, layers, sink=print)
    except ValueError as error:
        return str(error)
    return None


def wrapped(check, Recorder):
    ids = models.prompt()
    for name in ("llama", "gpt2"):
        model = models.model_of(name)
        bare, _ = seen_by(Recorder, model, lambda: model(ids))
        for how, thing in (("passes on what it has not", Passing(Passing(model))), ("is DataParallel's", nn.DataParallel(model)), (
                "hides it in a list", Hiding(model)), ("is no module", Plain(inner=Plain(llm=model), tokenizer=None)), (
                    "is a bound method's object", Plain(call=model.forward))):
            kept, _ = seen_by(Recorder, thing, lambda: model(ids))
            same = set(kept.sites) == set(bare.sites) and all(torch.equal(x, bare.sites[at]) for at, x in kept.sites.items())
            check(same, f"{name}: found in what {how}", set(kept.sites) ^ set(bare.sites))
            check(len(kept.calls) == len(bare.calls), f"{name}: each once in what {how}", (len(kept.calls), len(bare.calls)))
    model = models.model_of("llama")
    for block in model.model.layers:
        block.self_attn.q_proj = Adapter(block.self_attn.q_proj)
    theirs = {}
    model.model.layers[1].self_attn.q_proj.register_forward_hook(lambda module, args, out: theirs.update(q=out))
    kept, _ = seen_by(Recorder, Passing(model), lambda: model(ids))
    check(torch.equal(kept.sites["q", 1], theirs["q"].flatten(0, 1)), "q is what the adapter returns")
    headless = models.model_of("llama").model
    kept, _ = seen_by(Recorder, Passing(headless), lambda: headless(ids), "resid_pre,module:*.layers.*.mlp:out")
    check(sorted(set(kept.calls)) == sorted((site, layer) for site in ("resid_pre", "mlp.out") for layer in range(3)), "without a head", kept.calls)
    model = models.model_of("llama")
    model.model.layers[1] = Steered(model.model.layers[1])
    out = model(ids, output_hidden_states=False).logits
    kept, _ = seen_by(Recorder, model, lambda: model(ids), "resid_pre,resid_post,q,final_logits")
    check(len(kept.sites) == 10 and torch.equal(kept.sites["resid_post", 1], kept.sites["resid_pre", 2]), "a layer in a wrapper", set(kept.sites))
    check(torch.equal(kept.sites["final_logits", None], out.flatten(0, 1)), "final_logits are the model's")
    several = Plain(policy=models.model_of("llama"), reference=models.model_of("gpt2"))
    said = [complaint(Plain(tokenizer=None)), complaint(several), complaint(torch.compile(models.model_of("llama"), backend="eager"))]
    check(all(said) and "holds none" in said[0] and "holds 2 models" in said[1] and "compiled already" in said[2], "an error, or it is found", said)


class Own(nn.Module):
    """A model of no family: layers of norms after each part, and experts in a list of their own; no configuration."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.mixer, self.experts = nn.Linear(8, 8), nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])

        def forward(self, x):
            return x + self.mixer(x) + sum(expert(x) for expert in self.experts)

    def __init__(self, n=12, more=0):
        super().__init__()
        self.tokens, self.stack = nn.Embedding(64, 8), nn.ModuleList([Own.Layer() for _ in range(n)])
        if more:
            self.eyes = nn.Sequential(*[Own.Layer() for _ in range(more)])

    def forward(self, ids):
        x = self.tokens(ids)
        for layer in self.stack:
            x = layer(x)
        return self.eyes(x) if hasattr(self, "eyes") else x


class Nested(nn.Module):
    """A model of one's own, whose calls stand one in the other: attention is named before the norm that runs before it. @after: norms do."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn, self.mlp, self.norm1, self.norm2 = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8), nn.LayerNorm(8)

        def forward(self, x):
            x = x + self.attn(self.norm1(x))
            return x + self.mlp(self.norm2(x))

    class After(Layer):
        def forward(self, x):
            x = x + self.norm1(self.attn(x))
            return x + self.norm2(self.mlp(x))

    def __init__(self, after):
        super().__init__()
        self.embed, self.norm = nn.Embedding(64, 8), nn.LayerNorm(8)
        self.blocks = nn.ModuleList([(Nested.After if after else Nested.Layer)() for _ in range(3)])

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


def nested(check, Recorder):
    """Norms are what they are given in the order of the calls."""
    ids = models.prompt(2, 5)
    for after in (False, True):
        model = Nested(after)
        kept, attached = seen_by(Recorder, model, lambda: model(ids))
        close = [torch.allclose(kept.sites["resid_mid", i], kept.sites["resid_pre", i] + kept.sites["attn_out", i])
                 and torch.allclose(kept.sites["resid_post", i], kept.sites["resid_mid", i] + kept.sites["mlp_out", i]) for i in range(3)]
        check(all(close) and (("ln1", 0) in kept.sites) != after, f"norms after: {after}: residuals are sums of what is added", close)
        check({missing.name for missing in attached.missing} >= {"q", "z", "q_rot", "k_rot", "final_logits"}, "what it lacks is named", attached.missing)


def unknown(check, Recorder):
    ids = models.prompt(2, 5)
    rows = []

    class Rows(Recorder):
        def __call__(self, tensor, name, layer, n_layers, dims):
            rows.append((name, layer, n_layers, tuple(tensor.shape), dims))
            super().__call__(tensor, name, layer, n_layers, dims)
    model = Own()
    kept, attached = seen_by(Rows, model, lambda: model(ids), "module:stack.*.mixer:out,module:tokens:in,module:stack.*.experts.1:in", "1,last")
    check(rows == [("tokens.in", None, 12, (2, 5), (0, 1))] + [(name, layer, 12, (2, 5, 8), (0, 1)) for layer in (1, 11) for name in (
        "mixer.out", "experts.1.in")], "layers are those of the list, ids have a row a token", rows)
    check(torch.equal(kept.sites["tokens.in", None].flatten(), ids.flatten()), "ids", kept.sites["tokens.in", None])
    check(sorted((site.name, site.layers, site.module) for site in attached.sites) == [
        ("experts.1.in", (1, 11), "stack.{i}.experts.1"), ("mixer.out", (1, 11), "stack.{i}.mixer"), ("tokens.in", None, "tokens")],
        "what is tapped is listed", attached)
    check("12, 0 to 11" in complaint(model, "module:stack.*.mixer:out", "12"), "a layer that is not there")
    rows.clear()
    model = Own(3, 2)
    seen_by(Rows, model, lambda: model(ids), "module:*.mixer:out", "last")
    check([row[:3] for row in rows] == [("stack.mixer.out", 2, 3), ("eyes.mixer.out", 1, 2)], "two lists have two names, and their own last layer", rows)
    flat = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    check("no list of layers" in (complaint(flat, "module:0:out", "0") or ""), "layers without a list are refused", complaint(flat, "module:0:out", "0"))
    check("is no known family" in complaint(Own()), "names without a structure are refused", complaint(Own()))
    bloom = transformers.BloomForCausalLM(transformers.BloomConfig(vocab_size=64, hidden_size=16, n_layer=2, n_head=2)).eval()
    check("is no known family" in complaint(bloom), "a layer whose attention adds the residual itself has no names", complaint(bloom))
    rows.clear()
    seen_by(Rows, bloom, lambda: bloom(ids), "module:transformer.h.[01]:in", "last")
    check([row[:4] for row in rows] == [("block.in", 1, 2, (2, 5, 16))], "its modules are tapped by layer", rows)


def recomputed(check, Recorder):
    torch.set_grad_enabled(True)
    ids = models.prompt(1, 6)
    for reentrant in (True, False):
        model, kept, gradients = models.model_of("llama").train(), Recorder(), Recorder()
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model.get_input_embeddings().register_forward_hook(lambda module, args, out: out.requires_grad_())
        with dmi.torch.attach(model, "resid_pre,q,k_rot,q_rot,final_logits,module:*.act_fn:out", sink=kept), dmi.torch.taps.redirect(gradients):
            out = model(input_ids=ids, labels=ids)
            out.logits.register_hook(lambda gradient: dmi.torch.tap(gradient, "gradient"))
            before = list(kept.calls)
            out.loss.backward()
        check(kept.calls == before and len(before) == len(set(before)) > 12, f"reentrant {reentrant}: a recomputation is seen once", kept.calls)
        check(gradients.calls == [("gradient", None)], f"reentrant {reentrant}: a tap on a gradient is seen", gradients.calls)
        check(all(p.grad is not None for p in model.model.layers.parameters()), f"reentrant {reentrant}: gradients are there")


class Filling(nn.Module):
    """Attention that gives a cache its keys."""

    def __init__(self):
        super().__init__()
        self.o_proj = nn.Linear(8, 8)

    def rotate(self, x):
        return x * 2

    def forward(self, x, past_key_values=None):
        x = self.rotate(x)
        if past_key_values is not None:
            past_key_values.update(x[:, None], x[:, None], 0)
        return self.o_proj(x)


class Asking(Filling):
    """Attention that asks more of a cache."""

    def forward(self, x, past_key_values=None):
        x = self.rotate(x)
        if past_key_values is not None:
            past_key_values.update(x[:, None], x[:, None], past_key_values.get_layer(0))
        return self.o_proj(x)


class Late(nn.Module):
    """A layer that keeps what it adds to after its norm, as MiniMax's: no residual stream goes through it."""

    def __init__(self):
        super().__init__()
        self.attn, self.mlp, self.norm1, self.norm2 = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8), nn.LayerNorm(8)

    def forward(self, x):
        x = self.norm1(x)
        residual = x
        x = residual + self.attn(x)
        residual = self.norm2(x)
        return residual + self.mlp(residual)


def without_cache(check, Recorder):
    """A forward without a cache goes on as it would, though its attention asks more of a cache than to take keys."""
    ids = models.prompt()
    for kind, layers in ((Filling, {0, 1, 2}), (Asking, set())):
        model, outs = Nested(False), []
        for block in model.blocks:
            block.attn = kind()
        plain = model(ids)
        kept, _ = seen_by(Recorder, model, lambda: outs.append(model(ids)), "resid_pre,k_rot")
        check(torch.equal(plain, outs[0]), f"{kind.__name__}: outputs have the same bits with taps and without a cache")
        check({layer for site, layer in kept.sites if site == "k_rot"} == layers, f"{kind.__name__}: keys are there where a stand-in will do", set(kept.sites))
    model = Nested(False)
    model.blocks = nn.ModuleList([Late() for _ in range(2)])
    check("is no known family" in (complaint(model) or ""), "a layer that adds to what its norm returned has no names", complaint(model))
    neo = transformers.GPTNeoForCausalLM(transformers.GPTNeoConfig(
        vocab_size=64, hidden_size=32, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], max_position_embeddings=64)).eval()
    _, attached = seen_by(Recorder, neo, lambda: neo(ids))
    check({missing.name for missing in attached.missing} >= {"q_rot", "k_rot"}, "where nothing is rotated, nothing is said to be", attached.missing)


KINDS = {"without_cache": without_cache, "wrapped": wrapped, "unknown": unknown, "nested": nested, "recomputed": recomputed}
