# SPDX-License-Identifier: Apache-2.0
"""attach(): taps on a model of Hugging Face's by its module structure, and on any module by its path.

Tensors that modules are given or return are tapped by hooks. Rotated queries come from the attention function, which is
exchanged where models look it up; rotated keys from the cache, in whose place attention gets a stand-in that passes on.
Under the compiler all layers share their hooks, by function and by key, so that what one layer compiled serves the others.
"""
import fnmatch
import functools
import gc
import inspect
import itertools
import os
import sys
from dataclasses import dataclass, replace

import torch

from dmi import adapters
from dmi import taps as library
from dmi.torch import config, families, names, structure, taps

KEY, QUERY = "dmi", "_dmi_query"
# Sums that vLLM's layers pass on in two tensors, and what is written there.
PAIRS = {"resid_mid": "hidden + residual as the norm before the MLP is given them: float32",
         "resid_post": "hidden + residual as the layer returns them: float32"}


@dataclass(frozen=True)
class Site:
    """What is tapped: its name, layers (None: it belongs to none), module (layer numbers are {i}), side, and what it holds."""
    name: str
    layers: tuple | None
    module: str
    side: str
    convention: str


@dataclass(frozen=True)
class Missing:
    """What was asked for and is not there: its name, in which layers (None: the model), and why. They sort by name, then by layers, those of the model first."""
    name: str
    layers: tuple | None
    reason: str

    def __lt__(self, other):
        return self._order() < other._order() if isinstance(other, Missing) else NotImplemented

    def _order(self):
        return self.name, self.layers is not None, self.layers or (), self.reason


def family_of(model):
    """The name of the family that @model, or the first part of it that is of one, belongs to; None: of none."""
    found = _backbone(_module_in(model))
    return found and getattr(getattr(found[0], "config", None), "model_type", type(found[0]).__name__)


def attach(model, sites=None, layers=None, sink=None, write=None, gradients=False):
    """Tap @model's tensors by name: before it is compiled, if it is.

    model   a module, or what holds one in an attribute: a pipeline, PEFT's wrapper, one of your own
    sites   names, patterns (resid_*), groups (residuals, attention, mlp, logits, eagle3, all), TransformerLens's names, and
            module:PATTERN:in or :out for any module by its path; a text with commas, or a list of texts; None: residuals,
            or nothing beside @write
    layers  "3,7-12,middle,last-2", a number, or several; None: all
    sink    function(tensor, name, layer, n_layers, rows) that gets the tensors instead of the library, from any device; those of
            @write with writable=True
    write   names, as of @sites, of tensors that are tapped as places for edits (docs/edits.md): names.WRITABLE. Edits write into
            the memory that the next modules read. In models of vLLM, whose layers pass the residual stream on as (hidden, residual), resid_mid and
            resid_post are the sum: float32, and what an edit changes of it is stored in hidden
    gradients  what flows back into each tensor that is tapped is tapped, too, as NAME.grad, of the same rows: once for each backward pass that reaches
            it. The word "gradients" among @sites says the same. Code that the compiler builds of tensors that need a gradient is then an error
    Returns an Attached, by which to detach. Raises ValueError where a name means nothing, no tensor is found, or the model is
    compiled already. Without the library and without a sink the model stays as it is.
    """
    places = names.parse_places(write) if write else []
    wishes = names.parse_sites(sites or "residuals") if sites or not places else []
    model = _module_in(model)
    _refuse(model)
    plan = _Plan(model)
    plan.gradients = gradients or bool(sites) and names.asks_gradients(sites)
    if plan.gradients and _is_vllms(model):
        raise ValueError("gradients: vLLM computes none")
    for wish in wishes:
        plan.add(wish, layers)
    for wish in places:
        plan.add_place(wish, layers)
    if not plan.modules:
        raise ValueError("nothing to tap: " + "; ".join(f"{missing.name}: {missing.reason}" for missing in plan.missing))
    return Attached(plan, sink)


def _module_in(model):
    """@model, or the module that it holds where PyTorch does not see it: as an object's attribute, or in a list. ValueError: none, or several."""
    if isinstance(model, torch.nn.Module) and _backbone(model):
        return model
    found = [one for one in adapters.held_by(model, lambda one: one is not model and isinstance(one, torch.nn.Module) and _backbone(one))]
    if len(found) > 1:
        raise ValueError(f"{type(model).__name__} holds {len(found)} models ({', '.join(type(one).__name__ for one in found)}): attach one of them")
    if not found and not isinstance(model, torch.nn.Module):
        found = adapters.held_by(model, lambda one: isinstance(one, torch.nn.Module))
        if len(found) != 1:
            raise ValueError(f"{type(model).__name__} is no PyTorch module, and holds {len(found) or 'none'}")
    return found[0] if found else model


def _refuse(model):
    """ValueError if hooks would not be called, or be called twice."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    compiled = _given_to_compiler(model, frames) if frames else set()
    for path, module in model.named_modules():
        what = f"{type(module).__name__} {path}".strip()
        if taps.OWNER in module.__dict__:
            mend = ": detach() first"
            if os.environ.get("DMI_ATTACH") or os.environ.get("DMI_ATTACH_WRITE"):
                mend = (", by dmi-run: --attach, --steer, and --write without --tap attach models. "
                        "This program does it itself: give dmi-run --tap and --write")
            raise ValueError(f"{what} is attached already{mend}")
        if frames and (isinstance(module, frames.OptimizedModule) or module._compiled_call_impl is not None
                       or hasattr(module.forward, "_torchdynamo_orig_callable")) or id(module) in compiled:
            raise ValueError(f"{what} is compiled already, so that hooks would be ignored: attach first, then compile")


def _given_to_compiler(model, frames):
    """The ids of @model's modules for which torch.compile() returned something that still exists: they bear no mark of it."""
    ids = {id(module) for module in model.modules()}
    for attempt in range(2):
        found = {id(thing.__dict__["_modules"].get("_orig_mod")) for thing in gc.get_objects()
                 if issubclass(type(thing), frames.OptimizedModule) and "_modules" in thing.__dict__} & ids
        if not found:
            break
        if not attempt:
            gc.collect()  # what nobody holds any more may be in a circle
    return found


# ---------------------------------------------------------------------------------------- what is tapped where


def _backbone(model):
    """(module, Family, path) of the first module that has the blocks of a known family, or of a structure that is understood."""
    of_vllm = _is_vllms(model)
    for path, module in model.named_modules():
        family = None if of_vllm else families.family_of_config(getattr(module, "config", None))
        if family and isinstance(module._modules.get(family.blocks), torch.nn.ModuleList) and structure.has_parts(module, family):
            return module, family, path
    tokens = _embedding_of(model)
    for path, module in model.named_modules():
        if tokens is None or any(child is tokens for child in module.children()):
            if family := structure.family_of(module, of_vllm):
                return module, family, path
    return None


def _is_vllms(model):
    return any(type(module).__module__.startswith("vllm.") for module in (model, *model.children()))


def _embedding_of(model):
    """The embedding of tokens, where @model says which one that is."""
    try:
        return model.get_input_embeddings()
    except (AttributeError, NotImplementedError, TypeError):  # vLLM's own asks for tokens, and models of one's own may do anything
        return None


def _submodule(module, path):
    try:
        return module.get_submodule(path)
    except AttributeError:
        return None


def _joined(*parts):
    return ".".join(part for part in parts if part)


def _path_to(model, path):
    """[(path, module)] from @model to its part at @path."""
    parts = path.split(".") if path else []
    return [(".".join(parts[:n]), model.get_submodule(".".join(parts[:n]))) for n in range(len(parts) + 1)]


def _unwrapped(block, attention):
    """@block, or the part of it that has the attention: a wrapper of the user's stands in the list in its place."""
    return next((module for module in block.modules() if attention in module._modules), block)


class _Module:
    """What is tapped of a module: {side: [(name, pick, rows)]}; among: the layers that its own is one of; keys: what it calls its cache."""

    def __init__(self, module, layer, among):
        self.module, self.layer, self.among, self.query, self.keys = module, layer, among, False, None
        self.points = {"in": [], "out": [], "both": [], "logits": [], "pair_in": [], "pair_out": []}


class _Plan:
    """All that is to be tapped of a model."""

    def __init__(self, model):
        self.model, self.modules, self.found, self.missing, self.picks, self.writes, self.gradients = model, {}, {}, [], {}, {}, False
        self.backbone, self.family, self.path = _backbone(model) or (None, None, "")
        self.blocks = list(getattr(self.backbone, self.family.blocks)) if self.family else []
        self.block_path = _joined(self.path, self.family.blocks) if self.family else None
        self.lists = structure.lists_of(model, self.block_path)
        if not self.family and len(self.lists) == 1:
            (self.block_path, self.blocks), = self.lists.items()

    def add(self, wish, layers):
        if wish.module:
            self._add_modules(wish, layers)
            return
        if not self.family:
            kind = getattr(getattr(self.model, "config", None), "model_type", type(self.model).__name__)
            raise ValueError(f"{wish.text!r}: {kind} is no known family ({', '.join(families.known())}), and its layers are not built as "
                             "theirs; module:PATTERN:in and module:PATTERN:out work on any model")
        chosen = sorted(names.parse_layers(wish.layers or layers, len(self.blocks)))
        for name in wish.names:
            if name in names.PER_LAYER:
                self._add_in_blocks(name, chosen)
            elif reason := self._add_once(name):
                self._lacks(name, None, reason)

    def add_place(self, wish, layers):
        """As add(); edits may write there. writes: {layer, or None: names}"""
        pairs = PAIRS if _is_vllms(self.model) else ()
        self.add(replace(wish, names=tuple(name for name in wish.names if name not in pairs)), layers)
        chosen = sorted(names.parse_layers(wish.layers or layers, len(self.blocks)))
        for name in filter(pairs.__contains__, wish.names):
            self._add_pair(name, chosen)
        for name in wish.names:
            for layer in chosen if name in names.PER_LAYER else (None,):
                self.writes.setdefault(layer, set()).add(name)

    def _add_pair(self, name, layers):
        """A sum that vLLM's layers pass on as (hidden, residual): what a layer returns, or the norm before the MLP is given."""
        for layer in layers:
            path = "" if name == "resid_post" else self.family.points[name].path
            if (module := _submodule(self.blocks[layer], path) if path else self.blocks[layer]) is None or next(module.parameters(), None) is None:
                self._lacks(name, (layer,), "another process has the block")
            else:
                self._tap(name, module, layer, "pair_out" if name == "resid_post" else "pair_in", None, (0,), path, convention=PAIRS[name])

    def _add_in_blocks(self, name, layers):
        lacking = {}
        for layer in layers:
            if reason := self._add_in_block(name, layer):
                lacking.setdefault(reason, []).append(layer)
        for reason, where in lacking.items():
            self._lacks(name, tuple(where), reason)

    def _add_in_block(self, name, layer):
        """Why there is no such tensor, or None."""
        family, block = self.family, _unwrapped(self.blocks[layer], self.family.attention)
        if (attention := block._modules.get(family.attention)) is None:
            return f"the block has no {family.attention}" if next(block.children(), None) is not None else "another process has the block"
        if (point := family.points.get(name)) is None:
            return family.lacks.get(name, "this family has none")
        if point.side in ("attention", "cache"):
            return self._add_rotated(name, attention, point, layer)
        if (module := _submodule(block, point.path) if point.path else self.blocks[layer]) is None:
            return family.lacks.get(name, f"the block has no {point.path}")
        if point.pick in (families.second, families.third) and isinstance(module, torch.nn.Linear):  # transformers before 5
            return families.NO_CHOICE
        self._tap(name, module, layer, point.side, self._pick(point.pick, attention), point.rows, point.path)
        return None

    def _add_rotated(self, name, attention, point, layer):
        forward = inspect.unwrap(type(attention).forward)
        entry = self._module(attention, layer)
        if point.side == "attention":
            if "ALL_ATTENTION_FUNCTIONS" not in forward.__code__.co_names:
                return "its attention does not go through ALL_ATTENTION_FUNCTIONS"
            entry.query = True
        else:
            parameters = list(inspect.signature(forward).parameters)
            if (cache := next((name for name in adapters.CACHES if name in parameters), None)) is None:
                return "its attention is given no cache"
            entry.keys = (cache, parameters.index(cache) - 1, structure.only_updates(forward, cache))
        self.modules[id(attention)] = entry
        self._note(name, layer, self.family.attention, point.side)
        return None

    def _add_once(self, name):
        """Why there is no such tensor, or None."""
        if point := self.family.all_once().get(name):
            return self._add_point(name, point)
        for path, module in reversed(_path_to(self.model, self.path)):  # what wraps a model may pass its head on, and never be called
            if getattr(module, "get_output_embeddings", None) and module.get_output_embeddings() is not None:
                self._tap(name, module, None, "logits", families.logits, (0, 1), path, root="")
                return None
        return "the model has no output head"

    def _add_point(self, name, point):
        """Why there is no such tensor, or None."""
        if name == "final_logits":  # of the model around the backbone, which may be a part of another
            path, module = next((at for at in reversed(_path_to(self.model, self.path)) if point.path in at[1]._modules), ("", self.model))
            path, module, root = _joined(path, point.path), _submodule(module, point.path), ""
        else:
            path, module, root = point.path, _submodule(self.backbone, point.path), None
        if module is None:
            return f"the model has no {point.path}"
        self._tap(name, module, None, point.side, point.pick, point.rows, path, root)
        return None

    def _add_modules(self, wish, layers):
        pattern, side = wish.module
        paths = [path for path, _ in self.model.named_modules() if path]
        if not (matching := fnmatch.filter(paths, pattern)):
            raise ValueError(f"{wish.text!r}: no module: " + names.unknown(pattern, paths))
        if layers is not None and not self.lists:
            raise ValueError(f"{wish.text!r}: layers {layers!r}: {type(self.model).__name__} has no list of layers")
        chosen = {path: names.parse_layers(layers, len(blocks)) for path, blocks in self._lists_of(matching).items()}
        rows = _rows_of_ids if side == "in" and not _is_vllms(self.model) else None
        for path in matching:
            among, layer, inner = self._place_of(path)
            if among is None or layer in chosen[among]:
                name = f"{inner}.{side}"
                if len(name + taps.GRADIENT * self.gradients) > library.MAX_NAME:
                    raise ValueError(f"{wish.text!r}: {name!r} is longer than {library.MAX_NAME}")
                module = self.model.get_submodule(path)
                self._tap(name, module, layer, side, _first_given if side == "in" else _first_returned, rows, path, among or "",
                          convention=f"what {inner} {'is given' if side == 'in' else 'returns'}")

    def _lists_of(self, paths):
        return {among: self.lists[among] for among, _, _ in map(self._place_of, paths) if among is not None}

    def _place_of(self, path):
        """(path of the list of layers, layer, name in the layer) of a module, or (None, None, @path). In another list than that of the
        model's blocks the name begins with the list's path."""
        for among in self.lists:
            if path.startswith(among + "."):
                layer, _, inner = path[len(among) + 1:].partition(".")
                inner = inner or "block"
                return among, int(layer), inner if among == self.block_path else f"{among}.{inner}"
        return None, None, path

    def _pick(self, pick, attention):
        """The function for a pick of the family's table; one for all layers."""
        if not isinstance(pick, tuple):
            return pick
        kind, inner, *more = pick
        shape = kind.shape_of(attention, self.family.head)
        return self.picks.setdefault((pick, shape), kind(inner, *shape, *more))

    def _module(self, module, layer, among=None):
        return self.modules.get(id(module)) or _Module(module, layer, self.lists[among or self.block_path] if layer is not None else ())

    def _tap(self, name, module, layer, side, pick, rows, path, root=None, convention=None):
        """@root: of @path; None: the block, or the backbone. "": the model. Another: the list of layers whose path it is, and which is in @path."""
        entry = self.modules.setdefault(id(module), self._module(module, layer, root))
        taps_there = entry.points[side]
        if (name, pick, rows) not in taps_there:
            taps_there.append((name, pick, rows))
        self._note(name, layer, path, "out" if side == "logits" else side, root, convention)

    def _note(self, name, layer, path, side, root=None, convention=None):
        if root is None:
            path = _joined(self.path, self.family.blocks + ".{i}", path) if layer is not None else _joined(self.path, path)
        elif layer is not None:
            path = _joined(root, "{i}", path[len(root) + 1:].partition(".")[2])
        notes = self.family.notes if self.family else {}
        convention = convention or notes.get(name) or families.CONVENTIONS[name]
        self.found.setdefault((name, path, side, convention), set()).add(layer)

    def _lacks(self, name, layers, reason):
        missing = Missing(name, layers, reason)
        if missing not in self.missing:
            self.missing.append(missing)

    def device_of(self, entry):
        """Of the module's parameters; without any, of its block's, or the model's."""
        around = self.model if entry.layer is None else entry.among[entry.layer]
        parameter = next(itertools.chain(entry.module.parameters(), around.parameters(), self.model.parameters()), None)
        return torch.device("cpu") if parameter is None else parameter.device

    def sites(self):
        found = [Site(name, None if None in layers else tuple(sorted(layers)), path, side, convention)
                 for (name, path, side, convention), layers in self.found.items()]
        return found + [replace(site, name=site.name + taps.GRADIENT, convention=f"what flows back into {site.name}") for site in found
                        if self.gradients and site.name not in names.IDS]


def _first(values):
    return next(value for value in values if isinstance(value, torch.Tensor))


def _first_given(args, kwargs):
    return _first((*args, *kwargs.values()))


def _rows_of_ids(tensor):
    """Ids, and masks, are [batch, token]; None: as many rows as the tensor's dimensions say."""
    return (0, 1) if tensor.dim() == 2 and not tensor.is_floating_point() else None


def _first_returned(out):
    if isinstance(out, torch.Tensor):
        return out
    return _first(out.values() if isinstance(out, dict) else out)


# ---------------------------------------------------------------------------------------- hooks


class _Hook:
    """A hook that can be saved with its module. points: (name, pick, rows) of each tap."""

    def __init__(self, points):
        self.points = points

    def tap_all(self, module, *given):
        for name, pick, rows in self.points:
            try:
                whole, shaped = (pick.whole(*given), pick.shaped) if isinstance(pick, families.Heads) else (pick(*given), None)
                tensor = whole if shaped is None else shaped(whole)
                taps.tap_of(module, tensor, name, rows(tensor) if callable(rows) else rows, whole, shaped)
            except Exception as error:
                taps.complain(f"{name}: {error!r}")


class _InputHook(_Hook):
    def __call__(self, module, args, kwargs):
        self.tap_all(module, args, kwargs)


class _OutputHook(_Hook):
    def __call__(self, module, args, out):
        self.tap_all(module, out)


class _BothHook(_Hook):
    def __call__(self, module, args, out):
        self.tap_all(module, args, out)


class _LogitsHook(_Hook):
    """Of what a whole model returns: logits of all tokens, or of each request's last one alone."""

    def __call__(self, module, args, kwargs, out):
        (name, pick, rows), = self.points
        try:
            logits = pick(out)
            given = next((kwargs[key] for key in ("input_ids", "inputs_embeds") if kwargs.get(key) is not None), args[0] if args else None)
            is_batch = kwargs.get("logits_indices") is not None and kwargs.get("logits_to_keep") is not None  # continuous batching of transformers
            if not is_batch and (given is None or logits.dim() != 3 or logits.shape[1] == given.shape[1]):
                taps.tap_of(module, logits, name, rows)
            elif is_batch or logits.shape[1] == 1:
                taps.tap_of(module, logits, name, (*rows, taps.REQUESTS))
            else:
                taps.complain(f"{name}: where a forward computes logits of the last few tokens of a prompt, nobody says whose they are: they are not tapped")
        except Exception as error:
            taps.complain(f"{name}: {error!r}")


class _Keys:
    """Stands in for a cache, or for none, within one call of attention."""

    def __init__(self, cache, module):
        self.cache, self.module = cache, module

    def update(self, keys, values, *args, **kwargs):
        taps.tap_of(self.module, keys, "k_rot", (0, 2))
        return (keys, values) if self.cache is None else self.cache.update(keys, values, *args, **kwargs)

    def __getattr__(self, name):
        return getattr(self.cache, name)


class _PairHook:
    """Edits write into the sum of vLLM's (hidden, residual); their change is stored in hidden. Rows without an edit keep their bits."""

    def __init__(self, points):
        self.points = points

    def changed(self, module, hidden, residual):
        total = hidden.float() + residual.float()
        after = total
        for name, _, rows in self.points:
            after = taps.edit_of(module, after, name, rows)
        same = total.view(torch.int32) == after.view(torch.int32)
        return torch.where(same, hidden, (after - residual.float()).to(hidden.dtype))


class _PairInHook(_PairHook):
    def __call__(self, module, args, kwargs):
        if len(args) > 1 and args[1] is not None:
            return (self.changed(module, *args[:2]), *args[1:]), kwargs
        taps.complain(f"{self.points[0][0]}: the norm was given no residual, so that edits are not done there")
        return None


class _PairOutHook(_PairHook):
    def __call__(self, module, args, out):
        if isinstance(out, tuple) and len(out) == 2 and out[1] is not None:
            return self.changed(module, *out), out[1]
        taps.complain(f"{self.points[0][0]}: the layer returned no (hidden, residual), so that edits are not done there")
        return None


class _KeysHook:
    """points: what attention calls its cache, its place among the arguments, and whether a stand-in will do where there is none."""

    def __init__(self, points):
        self.keyword, self.place, self.for_none = points

    def __call__(self, module, args, kwargs):
        if len(args) > self.place:
            taps.complain(f"k_rot: {self.keyword} was given by its place")
            return None
        older = (name for name in adapters.CACHES if name in kwargs and name != "cache")  # which is what continuous batching has for the attention function
        keyword = self.keyword if self.keyword in kwargs else next(older, self.keyword)
        if kwargs.get(keyword) is None and not self.for_none:
            taps.complain("k_rot: there is no cache in this forward, and attention does more with one than fill it")
            return None
        return args, {**kwargs, keyword: _Keys(kwargs.get(keyword), module)}


def _tapping(attention):
    """An attention function that taps the queries of attached modules."""
    @functools.wraps(attention)
    def tap_query(module, query, *args, **kwargs):
        if getattr(module, QUERY, False):
            taps.tap_of(module, query, "q_rot", (0, 2))
        return attention(module, query, *args, **kwargs)
    return tap_query


class _Exchange:
    """Functions in dictionaries of others, exchanged while somebody needs it."""

    def __init__(self):
        self.entries = {}

    def take(self, mapping, key, function):
        at = (id(mapping), key)
        if at not in self.entries:
            self.entries[at] = [0, mapping, mapping.get(key), _tapping(function)]
            mapping[key] = self.entries[at][3]
        self.entries[at][0] += 1
        return at

    def give_back(self, at):
        entry = self.entries[at]
        entry[0] -= 1
        if entry[0]:
            return
        _, mapping, before, ours = self.entries.pop(at)
        if mapping.get(at[1]) is not ours:
            return  # somebody wrapped it once more; without attached modules it only passes on
        if before is None:
            del mapping[at[1]]
        else:
            mapping[at[1]] = before


_exchange = _Exchange()


def _exchange_attention(modules):
    """What was taken, for all functions that these modules may look up, now or after their configuration changes."""
    functions = sys.modules["transformers.modeling_utils"].ALL_ATTENTION_FUNCTIONS
    taken = [_exchange.take(functions._local_mapping, key, functions[key]) for key in list(functions)]
    for scope in {id(scope): scope for scope in (inspect.unwrap(type(module).forward).__globals__ for module in modules)}.values():
        if "eager_attention_forward" in scope:  # the one that has no name there
            taken.append(_exchange.take(scope, "eager_attention_forward", scope["eager_attention_forward"]))
    return taken


def _unhook(module):
    taps.unsettle(module)
    module.__dict__.pop(QUERY, None)
    for hooks in (module._forward_hooks, module._forward_hooks_with_kwargs, module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs):
        for key in [key for key in hooks if isinstance(key, str) and key.partition(".")[0] == KEY]:
            del hooks[key]


def detach_from(model):
    """Take away what any attach() put on @model's modules; attention functions stay exchanged, and only pass on."""
    config.may_not_edit(model)
    for module in model.modules():
        if taps.OWNER in module.__dict__:
            _unhook(module)


class Attached:
    """Taps on a model.

    sites    [Site]: what is tapped
    missing  [Missing]: what was asked for and is not there
    active   are they there? Not without the library, if no sink was given
    Ends with detach(), or as a context.
    """

    def __init__(self, plan, sink):
        self.sites, self.missing, self._modules, self._taken, self._model = plan.sites(), plan.missing, [], [], plan.model
        self.active = sink is not None or library.loaded()
        if self.active:
            self._install(plan, list(plan.modules.values()), sink or taps.to_library)
        if self.active and sink is None:
            config.describe(plan.model)
        if self.active and plan.writes:
            config.may_edit(plan.model)

    def _install(self, plan, entries, sink):
        owners, hooks = {}, {}
        for entry in entries:
            n_layers = len(entry.among) or len(plan.blocks)
            owner = owners.setdefault((entry.layer, n_layers), taps.Owner(entry.layer, n_layers, sink, frozenset(plan.writes.get(entry.layer, ())), plan.gradients))
            taps.settle(entry.module, owner, plan.device_of(entry))
            self._modules.append(entry.module)
            sides = {side: tuple(points) for side, points in entry.points.items()}
            for kind, points in ((_InputHook, sides["in"]), (_OutputHook, sides["out"]), (_BothHook, sides["both"]), (_LogitsHook, sides["logits"]),
                                 (_PairInHook, sides["pair_in"]), (_PairOutHook, sides["pair_out"]), (_KeysHook, entry.keys)):
                if points:
                    if (kind, points) not in hooks:
                        hooks[kind, points] = kind(points)
                    self._hook(entry.module, hooks[kind, points])
            if entry.query:
                entry.module.__dict__[QUERY] = True
        if queries := [entry.module for entry in entries if entry.query]:
            self._taken = _exchange_attention(queries)

    @staticmethod
    def _hook(module, hook):
        """Under a key of our own: the compiler compares keys, and those that modules give out are numbers that differ."""
        key = f"{KEY}.{type(hook).__name__}"
        if isinstance(hook, (_OutputHook, _BothHook, _LogitsHook, _PairOutHook)):
            module._forward_hooks[key] = hook
            if isinstance(hook, _LogitsHook):
                module._forward_hooks_with_kwargs[key] = True
            return
        module._forward_pre_hooks[key] = hook
        module._forward_pre_hooks_with_kwargs[key] = True

    def detach(self):
        """Take all taps away; the model is as it was. A graph that was compiled with them stays, and taps nothing."""
        for module in self._modules:
            _unhook(module)
        config.may_not_edit(self._model)
        for at in self._taken:
            _exchange.give_back(at)
        self._modules, self._taken, self.active = [], [], False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.detach()

    def __str__(self):
        lines = [f"{site.name}: {_spell(site.layers)}{site.module} {site.side}: {site.convention}" for site in self.sites]
        return "\n".join(lines + [f"missing {one.name}: {_spell(one.layers)}{one.reason}" for one in self.missing])


def _spell(layers):
    """(1, 2, 3, 7) as "layers 1-3,7, "."""
    if layers is None:
        return ""
    runs = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return "layers " + ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs) + ", "
