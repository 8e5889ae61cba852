# SPDX-License-Identifier: Apache-2.0
"""How tensors of a model are asked for: names, groups of them, layers. Knows nothing of PyTorch.

The names are DMI-Lib's; docs/taps.md says what each holds.
"""
import difflib
import fnmatch
import re
from dataclasses import dataclass

PER_LAYER = ("resid_pre", "ln1", "q", "k", "v", "q_rot", "k_rot", "z", "attn_out", "resid_mid", "ln2", "mlp_in", "mlp_post",
             "mlp_out", "resid_post", "router_logits", "topk_ids", "topk_weights")
ONCE = ("token_ids", "embed", "resid_final", "final_ln", "final_logits")
NAMES = PER_LAYER + ONCE
IDS = ("token_ids", "topk_ids")  # no gradient flows into these
GRADIENTS = "gradients"  # the word among sites that asks for the gradients of all others

# What modules that come later read from the very tensor that is tapped, which this forward computed; with a row for each of its tokens.
WRITABLE = ("embed", "ln1", "q", "k", "v", "z", "attn_out", "resid_mid", "ln2", "mlp_post", "mlp_out", "resid_post", "final_ln")

# name: (its names, the layers that go with it). As dmi-run's groups.
PRESETS = {
    "residuals": ("resid_pre,resid_mid,resid_final", None),
    "attention": ("q,k,v,q_rot,k_rot,z,attn_out", None),
    "mlp": ("mlp_in,mlp_post,mlp_out,router_logits,topk_ids,topk_weights", None),
    "logits": ("final_logits", None),
    # What vLLM's models give an EAGLE-3 head by default: the residual stream as it enters these layers
    # (get_eagle3_aux_hidden_state_layers in vllm/model_executor/models/llama.py: 2, n // 2, n - 3).
    "eagle3": ("resid_pre", "2,middle,last-2"),
    "all": ("*", None),
}

# TransformerLens's names, where they mean the same. Its norms' hook_normalized is taken before the weight, its hook_mlp_in is
# the residual stream before the norm, and its mlp.hook_pre comes before the activation: these have no name here.
LENS = {"hook_tokens": "token_ids", "hook_embed": "embed", "hook_resid_pre": "resid_pre", "hook_resid_mid": "resid_mid",
        "hook_resid_post": "resid_post", "hook_attn_out": "attn_out", "hook_mlp_out": "mlp_out", "attn.hook_q": "q",
        "attn.hook_k": "k", "attn.hook_v": "v", "attn.hook_z": "z", "attn.hook_rot_q": "q_rot", "attn.hook_rot_k": "k_rot",
        "mlp.hook_post": "mlp_post"}
# Names of docs/taps.md that attach() cannot tap.
NOT_KEPT = ("attn_scores", "pattern")
WHY_NOT_KEPT = ("attention functions keep no scores in memory, so attach() finds none. Capture q_rot and k_rot: the scores are q_rot k_rot^T times "
                "the model's scaling, and pattern is their softmax over the positions that the mask allows. An attention function of your own "
                "that computes them can tap them: dmi.torch.tap(scores, {name!r}, layer)")
IN_LENS_BLOCK = re.compile(r"blocks\.(\d+|\*|\{\w+\})\.(.+)")
MODULE = re.compile(r"module:(.+):(in|out)")
PATTERN = re.compile(r"[*?[]")


@dataclass(frozen=True)
class Wish:
    """A part of what was asked for.

    text    as it was written
    names   that it stands for, a tuple
    layers  text that goes with it alone, or None
    exact   was one tensor named, and no pattern or group?
    module  (pattern, "in" or "out") of module:PATTERN:in|out, else None
    """
    text: str
    names: tuple = ()
    layers: str | None = None
    exact: bool = False
    module: tuple | None = None


def _words(sites):
    return [word.strip() for text in ([sites] if isinstance(sites, str) else sites) for word in text.split(",")]


def parse_sites(sites):
    """[Wish] of a text with commas, or of a list of texts, without the word "gradients"; ValueError, with the nearest names, where nothing has one."""
    wishes = [_wish(word) for word in _words(sites) if word and word != GRADIENTS]
    if not wishes:
        raise ValueError("no sites are named" + (f" beside {GRADIENTS}, as residuals,{GRADIENTS}" if asks_gradients(sites) else ""))
    return wishes


def asks_gradients(sites):
    """Is the word "gradients" among @sites?"""
    return GRADIENTS in _words(sites)


def parse_places(write):
    """[Wish] of places for edits, as of parse_sites(); ValueError where one of them is none."""
    wishes = parse_sites(write)
    for wish in wishes:
        if wrong := [wish.text] if wish.module else [name for name in wish.names if name not in WRITABLE]:
            raise ValueError(f"{wrong[0]!r} is no place for edits; there are: {', '.join(WRITABLE)}")
    return wishes


def _wish(word):
    if word.startswith("module:"):
        if not (found := MODULE.fullmatch(word)):
            raise ValueError(f"{word!r}: module:PATTERN:in or module:PATTERN:out is expected")
        return Wish(word, module=found.groups())
    if word in PRESETS:
        names, layers = PRESETS[word]
        return Wish(word, tuple(name for part in names.split(",") for name in fnmatch.filter(NAMES, part)), layers)
    name, layers = _lens(word)
    if PATTERN.search(name):
        if names := tuple(fnmatch.filter(NAMES, name)):
            return Wish(word, names, layers)
    elif name in NAMES:
        return Wish(word, (name,), layers, exact=True)
    if name.endswith(".grad"):
        raise ValueError(f"{word!r}: the word {GRADIENTS} beside sites asks for the gradients of all of them, as {name.removesuffix('.grad')},{GRADIENTS}")
    if (kept := name.rpartition("hook_")[2]) in NOT_KEPT:
        raise ValueError(f"{word!r}: " + WHY_NOT_KEPT.format(name=kept))
    raise ValueError(unknown(name, NAMES + tuple(PRESETS) + tuple(LENS)))


def _lens(word):
    """(name, layers) of a name of TransformerLens, else (@word, None)."""
    if in_block := IN_LENS_BLOCK.fullmatch(word):
        layer, name = in_block.groups()
        return LENS.get(name, name), layer if layer.isdigit() else None
    return LENS.get(word, word), None


def unknown(word, known):
    """What to say of a name that nothing has."""
    near = difflib.get_close_matches(word, known, n=3, cutoff=0.5)
    if near:
        return f"nothing is called {word!r}; near it: {', '.join(near)}"
    return f"nothing is called {word!r}; there are: {', '.join(known[:40])}" + (" ..." if len(known) > 40 else "")


LAYER = re.compile(r"(\d+)(?:-(\d+|last))?|last(?:-(\d+))?(-last)?|(middle)")


def layer_words(text):
    """The words of "3,7-12,last", as tools and HookSpecs have them (docs/selections.md); an int, or several, will do, too."""
    parts = text.split(",") if isinstance(text, str) else [text] if isinstance(text, int) else list(text)
    words = [str(part).strip() for part in parts]
    if not words:
        raise ValueError("no layers are named")
    for word in words:
        found = LAYER.fullmatch(word)
        ends = [int(end) for end in found.group(1, 2) if end and end != "last"] if found else [1, 0]
        if ends != sorted(ends) or max(ends, default=0) >= 2**31 or int(found[3] or 0) > 31:
            raise ValueError(f"layers {word!r}: a number, a range as 7-12 (12 is included) or 7-last, middle, last or last-2 is expected{_written(word)}")
    return words


def _written(word):
    """How it is written if it was meant as positions are."""
    if not (found := re.fullmatch(r"(\d*):(\d*)", word)) or found[2] and int(found[2]) <= int(found[1] or 0):
        return ""
    first, last = int(found[1] or 0), int(found[2]) - 1 if found[2] else "last"
    return f"; {word!r} is written {first}" + (f"-{last}" if last != first else "")


def layers_of(word, n_layers):
    """The range that one word means, in a model of @n_layers."""
    first, end, back, to_last, middle = LAYER.fullmatch(word).groups()
    if middle:
        return range(n_layers // 2, n_layers // 2 + 1)
    if first is None:
        at = n_layers - 1 - int(back or 0)
        return range(at, n_layers if to_last else at + 1)
    return range(int(first), n_layers if end == "last" else int(end or first) + 1)


def parse_layers(text, n_layers):
    """The set of layers that "3,7-12,last" means in a model of @n_layers; None: all.

    "middle" is n_layers // 2, "last" n_layers - 1, "last-2" the second before it. An int, or several, will do, too.
    """
    if text is None:
        return set(range(n_layers))
    chosen = set()
    for word in layer_words(text):
        layers = layers_of(word, n_layers)
        if not layers or layers[0] < 0 or layers[-1] >= n_layers:
            raise ValueError(f"layers {word!r}: the model has {n_layers}, 0 to {n_layers - 1}")
        chosen.update(layers)
    return chosen

