# SPDX-License-Identifier: Apache-2.0
"""Where the tensors of a model are that stands in no table of families: by its list of layers, and what a layer calls in which order.

A layer calls norms, attention and an MLP. The order of these calls, which its source says, tells what each norm is given: with
norm, attention, norm, MLP the second norm is given the residual stream between them; with attention, norm, MLP, norm it is given what
attention returns. A layer with another order, or whose attention or MLP does the adding itself, has no names.
"""
import ast
import functools
import inspect
import re
import textwrap
from dataclasses import dataclass

import torch

from dmi.torch import families, taps
from dmi.torch.families import Family, Point, given, returned

NORM, ATTENTION, MLP = "norm", "attention", "mlp"
PLAIN, PARALLEL, AFTER, AROUND = "nanm", "nam", "anmn", "nannmn"  # calls of a layer, by their first letters
LAST_OF_ATTENTION = ("o_proj", "out_proj", "dense", "c_proj", "wo")
ROUTERS = ("gate", "router")
LAST_OF_MLP = ("down_proj", "fc2", "c_proj", "dense_4h_to_h", "w2")


@dataclass(frozen=True)
class Layer:
    """calls: of the orders above; norms: their attributes as they are called; scales: what else of the layer its forward() reads."""
    calls: str
    norms: tuple
    attention: str
    mlp: str
    scales: tuple


def lists_of(model, main=None):
    """{path: its modules} of @main and of the other lists of layers, the outermost ones: a list of experts is a part of a layer."""
    found = {} if main is None else {main: list(model.get_submodule(main).children())}
    for path, module in model.named_modules():
        inside = any(path.startswith(above + ".") for above in found)
        if path not in found and not inside and not (main or "").startswith(path + ".") and _is_list(module) and not _holds_one(module):
            found[path] = list(module.children())
    return found


def _holds_one(module):
    """Is it a list of one model, which has a longer list itself?"""
    return len(module) == 1 and any(_is_list(part) and len(part) > 1 for part in module.modules())


def _is_list(module):
    """Layers by number: a ModuleList, or a Sequential or ModuleDict with modules of one class that have parts."""
    children = dict(module.named_children())
    if not children or list(children) != [str(i) for i in range(len(children))]:
        return False
    return isinstance(module, torch.nn.ModuleList) or isinstance(module, (torch.nn.Sequential, torch.nn.ModuleDict)) and len(
        {type(child) for child in children.values()}) == 1 and all(next(child.children(), None) is not None for child in children.values())


# ---------------------------------------------------------------------------------------- a layer


def _kind(name, module):
    """What a part of a layer is; None: none of the three. PEFT and others put modules of their own in the place of a norm."""
    if "norm" in type(module).__name__.lower() or re.search(r"norm|(^|_)ln(_|$)", name):
        return NORM
    if next(module.parameters(), None) is None:
        return None
    if re.search(r"att(entio)?n", name):
        return ATTENTION
    return MLP if re.search(r"mlp|feed_forward|ffn|moe", name) else None


class _Calls(ast.NodeVisitor):
    """The methods and modules of `self` that a function calls, in the order in which they run; other attributes that it reads."""

    def __init__(self):
        self.called, self.read = [], []

    def visit_Call(self, node):
        for inside in (*node.args, *(keyword.value for keyword in node.keywords)):
            self.visit(inside)
        if isinstance(node.func, ast.Attribute) and _is_self(node.func.value):
            if node.func.attr not in self.called:
                self.called.append(node.func.attr)
        else:
            self.visit(node.func)

    def visit_Attribute(self, node):
        if _is_self(node.value):
            self.read.append(node.attr)
        self.generic_visit(node)


def _is_self(node):
    return isinstance(node, ast.Name) and node.id == "self"


@functools.lru_cache(maxsize=256)
def _tree_of(function):
    """The syntax of a function; None without its source."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError, TypeError):
        return None


def _calls_of(function):
    calls = _Calls()
    if tree := _tree_of(function):
        calls.visit(tree)
    return tuple(calls.called), tuple(dict.fromkeys(calls.read))


def _keeps_normed(forward, norm):
    """Is what the layer adds to (`residual`, where it has that name) kept only after its first @norm?"""
    kept = [node.lineno for node in ast.walk(_tree_of(forward)) if isinstance(node, ast.Name) and node.id == "residual"]
    normed = [node.lineno for node in ast.walk(_tree_of(forward)) if isinstance(node, ast.Attribute) and node.attr == norm and _is_self(node.value)]
    return bool(kept) and min(kept) > min(normed)


def read(block):
    """The Layer that @block is, or None."""
    forward = inspect.unwrap(type(block).forward)
    called, attributes = _calls_of(forward)
    parts = {name: _kind(name, block._modules[name]) for name in called if block._modules.get(name) is not None}
    named = {kind: tuple(name for name, of in parts.items() if of == kind) for kind in (NORM, ATTENTION, MLP)}
    order = "".join(kind[0] for kind in parts.values() if kind)
    if order not in (PLAIN, PARALLEL, AFTER, AROUND) or order == PLAIN and getattr(block, "use_parallel_residual", False):
        return None
    attention, mlp = named[ATTENTION][0], named[MLP][0]
    if order != AFTER and _keeps_normed(forward, named[NORM][0]):
        return None
    for part in (attention, mlp):
        if "residual" in inspect.signature(inspect.unwrap(type(block._modules[part]).forward)).parameters:
            return None
    scales = tuple(name for name in attributes if re.search(r"multiplier|scale|factor", name) and name not in block._modules)
    return Layer(order, named[NORM], attention, mlp, scales)


ROUTED = {"router_logits": ("router_logits",), "topk_weights": ("topk_weights", "top_k_weights", "router_scores", "routing_weights"),
          "topk_ids": ("topk_indices", "top_k_index", "router_indices", "selected_experts")}


def _picks_of(router):
    """{site: pick} of what a router returns: a projection its logits; a module of transformers' three tensors, which its source names."""
    if isinstance(router, torch.nn.Linear):
        return {"router_logits": returned}
    tree = _tree_of(inspect.unwrap(type(router).forward))
    last = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return)] if tree else []
    told = [getattr(one, "id", None) for one in last[0].elts] if len(last) == 1 and isinstance(last[0], ast.Tuple) else []
    if len(told) != 3 or "router_logits" not in told:
        return {}
    return {site: pick for name, pick in zip(told, (returned, families.second, families.third)) for site, words in ROUTED.items() if name in words}


def only_updates(forward, cache):
    """Does an attention's forward() do nothing with its argument @cache but update() it? Then a stand-in can be given where it is given none."""
    if (tree := _tree_of(forward)) is None:
        return False
    used = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == cache]
    updated = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "update" and isinstance(node.value, ast.Name)
               and node.value.id == cache]
    compared = [node for node in ast.walk(tree) if isinstance(node, ast.Compare) and isinstance(node.left, ast.Name) and node.left.id == cache]
    return len(used) == len(updated) + len(compared)


def _rotates(attention):
    return any(re.search(r"rot|rope", name) for name in inspect.unwrap(type(attention).forward).__code__.co_names)


# ---------------------------------------------------------------------------------------- a family


def has_parts(backbone, family):
    """Have the layers of a known family its parts under the names of the table? Versions of transformers differ."""
    block = next((part for part in backbone._modules[family.blocks].modules() if family.attention in part._modules), None)
    return block is None or family.points["mlp_in"].path in block._modules


def family_of(backbone, vllm=False):
    """The Family of a module that has a list of layers, an embedding of tokens and a norm after the layers; None: it is not one."""
    for name, module in backbone.named_children():
        if not isinstance(module, torch.nn.ModuleList):
            continue
        block = next((block for block in module if next(block.children(), None) is not None), None)
        layer = block is not None and read(block)
        embedding, norm = _embedding_of(backbone), _norm_of(backbone)
        if layer and embedding and norm:
            mlps = [found for other in module if (found := other._modules.get(layer.mlp)) is not None]  # with experts and without
            return (_of_vllm if vllm else _of_hugging_face)(name, embedding, norm, layer, block._modules[layer.attention], mlps)
    return None


def _embedding_of(backbone):
    names = [name for name, module in backbone.named_children() if "embedding" in type(module).__name__.lower()
             and not re.search(r"rotary|rope|pos|patch|type", name + type(module).__name__, re.I)]
    return names[0] if names else None


def _norm_of(backbone):
    names = [name for name, module in backbone.named_children() if _kind(name, module) == NORM]
    return names[-1] if names else None


def _first_there(modules, names):
    return next((name for name in names for module in modules if name in module._modules), None)


def _in_layer(layer, residual):
    """{site: Point} of the residual stream, norms, attention and MLP. @residual: side and pick of the stream where a norm reads it."""
    n, out = layer.norms, ("out", returned)
    points = {"mlp_in": Point(layer.mlp, "in", given), "attn_out": Point(layer.attention, *out), "mlp_out": Point(layer.mlp, *out)}
    if layer.calls != AFTER:
        points |= {"resid_pre": Point(n[0], *residual), "ln1": Point(n[0], *out)}
    if layer.calls == PLAIN:
        points |= {"resid_mid": Point(n[1], *residual), "ln2": Point(n[1], *out)}
    elif layer.calls == AROUND:
        points |= {"attn_out": Point(n[1], *out), "resid_mid": Point(n[2], *residual), "ln2": Point(n[2], *out), "mlp_out": Point(n[3], *out)}
    elif layer.calls == AFTER:
        points |= {"attn_out": Point(n[0], *out), "resid_mid": Point(layer.mlp, "in", given), "mlp_out": Point(n[1], *out)}
    return points


def _lacks(layer):
    lacks = {"q": "its projection is none of those that are known", "z": "its projection is none of those that are known",
             "mlp_post": families.NO_EXPERT, **dict.fromkeys(families.ROUTER_SITES, families.NO_ROUTER)}
    lacks |= dict.fromkeys(("k", "v"), lacks["q"])
    if layer.calls == AFTER:
        lacks |= dict.fromkeys(("ln1", "ln2"), families.NORMS_AFTER)
    if layer.calls == PARALLEL:
        lacks |= {"resid_mid": families.SIDE_BY_SIDE, "ln2": "attention and MLP share one norm: ln1"}
    return lacks


def _notes(layer):
    if not layer.scales:
        return {}
    return dict.fromkeys(("attn_out", "mlp_out"), f"before the layer scales it: {', '.join(layer.scales)}")


def _add_projections(points, layer, attention, mlps, rows):
    """q, k, v, z, mlp_post: what the projections of attention and the last one of the MLP return and are given."""
    if "qkv_proj" in attention._modules and families.Packed.shape_of(attention, "head_dim"):
        points |= {site: Point(f"{layer.attention}.qkv_proj", "out", (families.Packed, returned, part), rows) for part, site in enumerate("qkv")}
    elif _is_by_head(attention):
        points |= {site: Point(f"{layer.attention}.{site}_proj", "out", (families.Heads, returned), rows) for site in "qkv"}
    if last := _first_there([attention], LAST_OF_ATTENTION):
        points["z"] = Point(f"{layer.attention}.{last}", "in", (families.ValueHeads, given), rows)
    if last := _first_there(mlps, LAST_OF_MLP):
        points["mlp_post"] = Point(f"{layer.mlp}.{last}", "in", given)


def _is_by_head(attention):
    """Are there projections whose elements are those of heads, and nothing besides (a gate)?"""
    head, config = getattr(attention, "head_dim", 0), getattr(attention, "config", None)
    sizes = [getattr(attention._modules.get(f"{site}_proj"), "out_features", 0) for site in "qkv"]
    n_heads = getattr(config, "num_attention_heads", None)
    return bool(head) and all(size and size % head == 0 for size in sizes) and sizes[0] == (n_heads or sizes[0] // head) * head


def _of_hugging_face(blocks, embedding, norm, layer, attention, mlps):
    points = _in_layer(layer, ("in", given)) | {"resid_pre": Point("", "in", given), "resid_post": Point("", "out", returned)}
    _add_projections(points, layer, attention, mlps, (0, 1))
    lacks = _lacks(layer) | dict.fromkeys(("q_rot", "k_rot"), families.NO_ROTATION)
    if _rotates(attention):
        points |= {"q_rot": Point("", "attention", None, (0, 2)), "k_rot": Point("", "cache", None, (0, 2))}
    if router := _first_there(mlps, ROUTERS):
        module = next(mlp._modules[router] for mlp in mlps if router in mlp._modules)
        points |= {site: Point(f"{layer.mlp}.{router}", "out", pick) for site, pick in _picks_of(module).items()}
        lacks |= {site: families.NO_CHOICE for site in families.ROUTER_SITES if site not in points}
    return Family(blocks, embedding, norm, layer.attention, points, lacks=lacks, notes=_notes(layer))


def _of_vllm(blocks, embedding, norm, layer, attention, mlps):
    """Of vLLM rows are tokens, and norms do the adding: a norm with two arguments returns what it normed and the sum."""
    if layer.calls == AFTER:
        return None
    points = _in_layer(layer, ("both", families.summed))
    _add_projections(points, layer, attention, mlps, (0,))
    if "attn" in attention._modules and "q" in points:
        points |= {"q_rot": Point(f"{layer.attention}.attn", "in", (families.Heads, given), (0,)),
                   "k_rot": Point(f"{layer.attention}.attn", "in", (families.Heads, families.given_second), (0,))}
    points["router_logits"] = Point(f"{layer.mlp}.{_first_there(mlps, ROUTERS) or 'gate'}", "out", returned)
    once = {"token_ids": Point(embedding, "in", given), "embed": Point(embedding, "out", returned),
            "resid_final": Point(norm, "both", families.summed), "final_ln": Point(norm, "out", returned),
            "final_logits": Point("logits_processor", "out", returned, (0, taps.REQUESTS))}
    lacks = _lacks(layer) | {"resid_post": "the next norm adds it up: resid_pre of the next layer, and resid_final"} | dict.fromkeys(
        ("topk_ids", "topk_weights"), "vLLM's kernels for experts choose them: no module returns them") | dict.fromkeys(
        ("q_rot", "k_rot"), "its attention is given no queries and keys by head")
    rotated = "what attention is given, rotated; [token, head, d]"
    notes = {"q_rot": rotated, "k_rot": rotated, "final_logits": "the model's logits, of the tokens that it samples after",
             "embed": "the embedding's output, before any factor of the model's"}
    return Family(blocks, embedding, norm, layer.attention, points, lacks=lacks, notes=notes | _notes(layer), once=once)
