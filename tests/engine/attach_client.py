#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What dmi.torch.attach() taps of families' small models, against hooks of attach_models.py: attach_client.py WHAT FAMILY...

WHAT: eager, or a backend of torch.compile. A FAMILY may be one of attach_kinds.py: what models are found in. Each family has a process of its own, a copy of one that has imported PyTorch.
Prints a line of JSON for each thing that must hold: [holds, what, detail].
"""
import json
import os
import sys

sys.setdlopenflags(os.RTLD_LAZY)  # of the CUDA libraries that torch is linked to, most are not there
import torch  # noqa: E402
import transformers  # noqa: E402
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS  # noqa: E402

import attach_kinds  # noqa: E402
import attach_models as models  # noqa: E402
import dmi.torch  # noqa: E402
from dmi.torch import names  # noqa: E402

TOLERANCE = {"aot_eager": 0.0, "inductor": 2e-5}


def check(holds, what, detail=""):
    print(json.dumps([bool(holds), what, str(detail)]), flush=True)


class Recorder:
    """A sink: {(site, layer): tensor as it was, with its row dimensions moved to the front as one}."""

    def __init__(self):
        self.sites, self.calls, self.n_layers = {}, [], set()

    def __call__(self, tensor, name, layer, n_layers, rows):
        self.calls.append((name, layer))
        self.n_layers.add(n_layers)
        kept = tensor.detach().movedim(rows, tuple(range(len(rows)))).clone()
        kept = kept.flatten(0, len(rows) - 1)
        self.sites[name, layer] = kept.reshape(len(kept), -1)


def by_row(name, site, x):
    """A reference's tensor in the form of Recorder's."""
    if site.endswith("_rot"):
        x = x.transpose(1, 2)
    return x.reshape(x.shape[0] * x.shape[1], -1) if not site.startswith(("router", "topk")) else x


def worst(name, taps, reference):
    """(largest difference relative to the reference's largest element, its site); of partial rotation the rotated part."""
    found = (-1.0, "none")
    for (site, layer), x in reference.items():
        ours, theirs = taps.get((site, layer)), by_row(name, site, x)
        if ours is None:
            return float("inf"), f"{site}.{layer} is missing"
        if site.endswith("_rot") and ours.shape != theirs.shape:
            ours = ours.unflatten(1, (-1, models.HEAD))[..., :x.shape[-1]].flatten(1)
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return float("inf"), f"{site}.{layer}: {ours.shape} {ours.dtype}, not {theirs.shape} {theirs.dtype}"
        difference = (ours.double() - theirs.double()).abs().max() / theirs.double().abs().max()
        found = max(found, (difference.item(), f"{site}.{layer}"))
    return found


def expected(name):
    """{(site, layer)} of the family, from what is known of it and not from the code."""
    sites = set()
    for layer in range(models.LAYERS):
        sparse = layer in models.SPARSE.get(name, ())
        without = {"router_logits", "topk_ids", "topk_weights"} if not sparse else {"mlp_post"}
        without |= {"q_rot", "k_rot"} if name == "gpt2" else {"q", "k", "v"} if name in models.LATENT else set()
        without |= {"resid_mid"} if name in models.PARALLEL else set()
        without |= {"ln2"} if name in ("phi", "cohere") else {"ln1", "ln2"} if name in models.NORMS_AFTER else set()
        sites |= {(site, layer) for site in names.PER_LAYER if site not in without | models.LACKS.get(name, set())}
    return sites | {(site, None) for site in names.ONCE}


def trace(model):
    """All that a detach must leave as it was."""
    found = {}
    for path, module in model.named_modules():
        for key, value in vars(module).items():
            if key == "rope_deltas":  # of Qwen's models for images, which keep it from one forward to the next
                continue
            inside = [(repr(k), id(v)) for k, v in value.items()] if isinstance(value, dict) else sorted(map(repr, value)) \
                if isinstance(value, set) else None
            found[path, key] = (id(value), inside)
    scope = vars(sys.modules[type(model).__module__])
    return found, dict(ALL_ATTENTION_FUNCTIONS._local_mapping), dict(ALL_ATTENTION_FUNCTIONS._global_mapping), {
        key: id(value) for key, value in scope.items() if callable(value)}


def eager(name):
    for attention in ("sdpa", "eager"):
        model, ids = models.model_of(name, attention=attention), models.prompt()
        plain = model(ids, output_hidden_states=True)
        before, recorder = trace(model), Recorder()
        attached = dmi.torch.attach(model, "all", sink=recorder)
        reference = models.Reference(name, model)
        out = model(ids)
        reference.end()
        check(torch.equal(out.logits, plain.logits), f"{attention}: logits have the same bits with taps")
        check(set(recorder.sites) == expected(name), f"{attention}: the sites are those of the family",
              set(recorder.sites) ^ expected(name))
        check(len(recorder.calls) == len(recorder.sites) and recorder.n_layers == {models.LAYERS}, f"{attention}: each once")
        seen = {at: x for at, x in reference.sites.items() if at in expected(name)}
        difference, site = worst(name, recorder.sites, seen)
        apart = {("final_logits", None)} | {at for at in expected(name) if (models.OLD or name in models.LATENT) and at[0].endswith("_rot")}
        check(difference == 0 and set(seen) >= expected(name) - apart, f"{attention}: each has the bits that hooks see",
              f"{site}: {difference}")
        hidden = {("resid_pre", i): x for i, x in enumerate(plain.hidden_states[:-1])} | {
            ("final_ln", None): plain.hidden_states[-1], ("final_logits", None): plain.logits}
        if models.OLD and name == "qwen3_vl":  # whose last is not normed there
            hidden["resid_final", None] = hidden.pop(("final_ln", None))
        check(worst(name, recorder.sites, hidden)[0] == 0, f"{attention}: resid_pre is hidden_states[i], final_ln the last, final_logits the model's",
              worst(name, recorder.sites, hidden))
        check_sums(name, recorder.sites, attention)
        check_missing(name, attached)
        check(not any("dmi" in key for key in model.state_dict()), f"{attention}: nothing in the state to be saved")
        attached.detach()
        check(trace(model) == before, f"{attention}: detach() leaves no trace", [
            key for key in before[0] if trace(model)[0].get(key) != before[0][key]])
        recorder.calls.clear()
        model(ids)
        check(not recorder.calls, f"{attention}: nothing is tapped after it")


def check_sums(name, sites, attention):
    """The residual stream is the sum that the names say."""
    for layer in range(models.LAYERS):
        at = {site: x for (site, of), x in sites.items() if of == layer}
        times = models.MULTIPLIED.get(name, 1)
        middle = at["resid_pre"] + times * at["attn_out"]
        if name in models.PARALLEL:
            close = torch.allclose(at["resid_post"], middle + at["mlp_out"], atol=1e-5)
        else:
            close = torch.allclose(at["resid_mid"], middle, atol=1e-5) and torch.allclose(
                at["resid_post"], at["resid_mid"] + times * at["mlp_out"], atol=1e-5)
        after = sites["resid_pre", layer + 1] if layer + 1 < models.LAYERS else sites["resid_final", None]
        if not (close and torch.equal(at["resid_post"], after)):
            check(False, f"{attention}: residuals of layer {layer} are sums of what is added")
            return
    check(True, f"{attention}: residuals are sums of what is added")


def check_missing(name, attached):
    said = {(missing.name, layer) for missing in attached.missing for layer in missing.layers}
    every = {(site, layer) for site in names.PER_LAYER for layer in range(models.LAYERS)}
    check(said == every - expected(name), "what the family lacks is named", said ^ (every - expected(name)))
    check(all(len(missing.reason) > 10 for missing in attached.missing), "with a reason")
    check([missing.name for missing in sorted(attached.missing)] == sorted(missing.name for missing in attached.missing), "they can be sorted")
    told = {(site.name, layer) for site in attached.sites for layer in site.layers or (None,)}
    check(told == expected(name), "and what is tapped is listed", told ^ expected(name))


def count_graphs(backend):
    """(a backend that counts, [count])"""
    from torch._dynamo.backends.registry import lookup_backend
    count = [0]

    def counting(graph, inputs):
        count[0] += 1
        return lookup_backend(backend)(graph, inputs)
    return counting, count


def compiled(name, backend):
    model, ids = models.model_of(name, experts="batched_mm"), models.prompt()
    reference, recorder = models.Reference(name, model), Recorder()
    plain = model(ids)
    reference.end()
    counting, count = count_graphs(backend)
    with dmi.torch.attach(model, "all", sink=recorder):
        fast = torch.compile(model, backend=counting, fullgraph=True)
        for round_ in range(3):
            recorder.calls.clear()
            out = fast(ids)
        # The model is one; a hook on the module that was compiled is another one.
        check(count[0] <= 2, f"whole: {count[0]} graphs")
        difference, site = worst(name, recorder.sites, reference.sites | {("final_logits", None): plain.logits})
        check(difference <= TOLERANCE[backend], "whole: each tap has the values that hooks see eagerly", f"{site}: {difference}")
        check(set(recorder.calls) == expected(name) and len(recorder.calls) == len(expected(name)), "whole: each once a forward",
              set(recorder.calls) ^ expected(name))
        close = (out.logits - plain.logits).abs().max() / plain.logits.abs().max()
        check(close <= TOLERANCE[backend], "whole: logits", close.item())
        try:
            dmi.torch.attach(model, "q")
            check(False, "a compiled model is refused")
        except ValueError as error:
            check("compiled already" in str(error) or "attached already" in str(error), "a compiled model is refused", error)
    recorder.calls.clear()
    fast(ids)
    check(not recorder.calls, "after detach() the compiled model taps nothing")


def layer_by_layer(name, backend, n=12):
    """More layers than the compiler takes of one function before it gives up."""
    plain = 0
    for attach in (False, True):
        torch._dynamo.reset()
        models.LAYERS, key = n, "n_layer" if name == "gpt2" else "num_hidden_layers"
        models.CONFIGS[name][1][key] = n
        model, ids, recorder = models.model_of(name, experts="batched_mm"), models.prompt(), Recorder()
        reference = models.Reference(name, model)
        model(ids, use_cache=False)
        reference.end()
        attached = dmi.torch.attach(model, "all", sink=recorder) if attach else None
        counting, count = count_graphs(backend)
        for block in models.blocks_of(model):
            block.compile(backend=counting)
        for round_ in range(2):
            recorder.calls.clear()
            model(ids, use_cache=False)
        if not attach:
            plain = count[0]
    # A block's own hooks are graphs of their own, before it and after it.
    check(count[0] <= plain + 2, f"layer by layer: {count[0]} graphs of {n} layers, {plain} without taps")
    difference, site = worst(name, recorder.sites, reference.sites)
    wanted = set(reference.sites) | {("final_logits", None)}
    check(difference <= TOLERANCE[backend] and set(recorder.calls) == wanted, "layer by layer: each tap has the values that hooks see",
          f"{site}: {difference}; {set(recorder.calls) ^ wanted}")
    attached.detach()


def caches(name):
    """Rows of a forward with a cache are its tokens', as those of a forward without one."""
    model, ids = models.model_of(name), models.prompt(1, 9)
    whole, part = Recorder(), Recorder()
    with dmi.torch.attach(model, "all", sink=whole):
        model(ids, use_cache=False)
    for kind in ("DynamicCache", "StaticCache"):
        options = {"config": model.config} | ({"max_cache_len": 16} if kind == "StaticCache" else {})
        cache = getattr(transformers, kind)(**options)
        with dmi.torch.attach(model, "all", sink=part), torch.no_grad():
            for start, stop in ((0, 6), (6, 7), (7, 9)):
                model(ids[:, start:stop], past_key_values=cache)
                of_rows = {at: x[start:stop] for at, x in whole.sites.items()}
                far = max((x.double() - part.sites[at].double()).abs().max().item() if x.shape == part.sites[at].shape else 9e9
                          for at, x in of_rows.items() if at[0] != "topk_ids")
                check(far < 2e-5, f"{kind}: rows {start} to {stop} are those of the whole prompt", far)


def try_family(what, name):
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    if name in attach_kinds.KINDS:
        attach_kinds.KINDS[name](check, Recorder)
    elif not hasattr(transformers, models.CONFIGS[name][0] + "Config"):
        print(f"transformers {transformers.__version__} has none")
    elif what == "eager":
        eager(name)
        if not (models.OLD and name in models.VISION):  # they take positions of a forward before
            caches(name)
    else:
        compiled(name, what)
        if what == "aot_eager" and name in ("llama", "qwen3_moe"):
            layer_by_layer(name, what)


def main():
    what, *families = sys.argv[1:]
    for name in families:
        print(name, flush=True)
        child = os.fork()
        if not child:
            try_family(what, name)
            sys.stdout.flush()
            os._exit(0)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        check(ended == 0, f"{name} ends", ended)


if __name__ == "__main__":
    main()
