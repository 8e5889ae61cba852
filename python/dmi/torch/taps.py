# SPDX-License-Identifier: Apache-2.0
"""Taps: a program, or a hook in it, points out a tensor where it holds its values.

Eagerly a tap goes straight to its sink, which by default is the library. In graphs of the compiler it is the operator
dmi::tap. That form was found by trial (PyTorch 2.14): an operator that changes nothing is removed; one that is said to change
its tensor is reordered, and removed where the tensor is not used later; an ordered effect keeps graphs out of caches. This one
is said to change a token, one static tensor of one element a device, which it never touches.

Edits write into what is tapped for them (docs/edits.md): eagerly into the tensor itself, in graphs of the compiler into the copy that the operator
dmi::edit returns. A tap of a module puts it in by copy_(): all that reads the tensor later in the graph reads the copy, through views and other
names for it, too. (An operator that is said to change its tensor does the same with one view. With q, k and v as views of one tensor the compiler
of PyTorch 2.14 gave it memory that had not been computed yet.)

A graph that one layer compiled serves the others, too, so a layer's number must not stand in it: an attached module has a
`place`, a buffer of one element by whose address the operator finds the layer.

What flows back into a tensor is tapped as NAME.grad by a hook that autograd calls, in whichever thread, with the whole of it. That may be when other steps are under
way, so where the tensor is tapped a moment is taken, which says whose rows these are, and the gradient is tapped at that moment. Each pass that reaches the
tensor is a record; of a pass that never comes nothing is expected. In graphs of the compiler no hook is called: it is an error there.
"""
import os
import threading
import weakref

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from dmi import taps as library
from dmi.saying import say

PLACE, OWNER = "_dmi_place", "_dmi_owner"  # a buffer, and an attribute, of attached modules
REQUESTS = library.MAX_DIMS  # among rows: they are requests', each that of the last token that its request has in the step
ROWS = library.ROWS
_DTYPES = {getattr(torch, name): number for name, number in library.DTYPES.items() if hasattr(torch, name)}
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_forms = {}  # what send() says of tensors on the CPU, but their address; the key: what that follows from
MOST_FORMS = 1024


def _key(tensor, *said):
    return *said, tensor.dtype, tensor.shape, tensor.stride()


def _sent_again(tensor, *said):
    """Was it a tensor on the CPU of a kind that was sent before, and is sent now? A decode step taps the same kinds of tensors again and again."""
    form = _forms.get(_key(tensor, *said))
    if form is None or not tensor.is_cpu or tensor.is_neg():
        return False
    library.send_form(form, tensor.data_ptr())
    return True


def to_library(tensor, name, layer, n_layers, rows, writable=False, requests=False, at=None):
    """The sink that hands a tensor to the library: nothing happens without it, or where the tensor is neither on a CUDA device nor on the CPU.
    @writable: edits may write into it; @requests: its rows are requests'. @at: the library's Moment that it belongs to; None: now."""
    if _forms and at is None and type(tensor) in _PLAIN and tensor.layout is torch.strided and _sent_again(tensor, name, layer, n_layers, tuple(rows), writable, requests):
        return
    if not _is_seen(tensor) or not library.loaded():
        say_of_device(tensor)
        return
    if type(tensor) not in _PLAIN or tensor.layout is not torch.strided or not (dtype := _DTYPES.get(tensor.dtype)):
        raise TypeError(f"{name}: a tensor of {type(tensor).__name__}, {tensor.dtype}, {tensor.layout} cannot be tapped")
    if tensor.dim() > library.MAX_DIMS:
        raise TypeError(f"{name}: a tensor has at most {library.MAX_DIMS} dimensions, not {tensor.dim()}")
    if tensor.is_neg():  # its memory holds the values with the other sign: what is tapped is a copy, which nothing reads later
        tensor, writable = tensor.detach().resolve_neg(), False
    stream, flags = _way_of(tensor)
    flags |= (library.WRITABLE if writable else 0) | (library.REQUESTS if requests else 0)
    given = (name, tensor.data_ptr(), stream, dtype, tensor.shape, tensor.stride(), tensor.element_size(), mask_of(rows),
             library.NO_LAYER if layer is None else layer, n_layers or 0, flags, at)
    if tensor.is_cpu:
        say_of_cpu()
        if at is None:
            if len(_forms) >= MOST_FORMS:
                _forms.clear()
            _forms[_key(tensor, name, layer, n_layers, tuple(rows), writable, requests)] = library.form(*given[:-1])
    _in_context(tensor, library.send, *given)


def _way_of(tensor):
    """(the stream that is current for its device, flags) of a tap."""
    return (0, library.HOST) if tensor.is_cpu else (torch._C._cuda_getCurrentRawStream(tensor.device.index), 0)


def _in_context(tensor, call, *given):
    """@call(*@given): the library takes the current context to be that of the tensor's stream."""
    if tensor.is_cpu or tensor.device.index == torch._C._cuda_getDevice():
        return call(*given)
    with torch.cuda.device(tensor.device.index):
        return call(*given)


def _is_seen(tensor):
    """Is there memory that the library can look at? Also in graphs of the compiler."""
    return getattr(getattr(tensor, "device", None), "type", None) in ("cuda", "cpu")


def say_of_device(tensor):
    """One line where the library is there, and @tensor, of a model or given to tap(), is neither on a CUDA device nor on the CPU."""
    if isinstance(tensor, torch.Tensor) and not _is_seen(tensor) and library.loaded():
        complain(f"the model's tensors are on {tensor.device.type}: nothing is captured there, and no edit is done; DMI sees what is on CUDA devices and on the CPU")


_said_of_cpu = False


def say_of_cpu():
    """One line where tensors on the CPU are tapped, unless the program uses a GPU, too."""
    global _said_of_cpu
    if _said_of_cpu:
        return
    _said_of_cpu = True
    if not torch.cuda.is_initialized():
        say("dmi: the model's tensors are on the CPU: taps read them there (kernels and graphs are what a GPU adds)")


# Where the taps of tap() go. None: nowhere.
_sink = to_library if library.loaded() else None


class redirect:
    """A context in which the taps of tap() go to @sink(tensor, name, layer, n_layers, rows), of tensors on any device."""

    def __init__(self, sink):
        self.sink = sink

    def __enter__(self):
        global _sink
        self.before, _sink = _sink, self.sink

    def __exit__(self, *_):
        global _sink
        _sink = self.before


def tap(tensor, name, layer=None, rows=None, n_layers=None, writable=False, gradient=False):
    """Point out @tensor, on the stream that is current for its device, or on the CPU: it is read as it is now.

    name      letters, digits, and _ - .
    layer     from 0; None: it belongs to no layer. n_layers: how many the model has, if known
    rows      dimensions that count tokens, one or two: row = first * count[second] + second. By default (0,) of
              [token, H], (0, 1) of [batch, token, H], (0, 2) of [batch, head, token, d]
    writable  edits may write into @tensor (docs/edits.md): what the program computes next reads it, and nothing has read it yet. In graphs of
              the compiler edit() does it
    gradient  what flows back into @tensor is tapped, too, as NAME.grad: once for each backward pass that reaches it, of this step. Of no tensor that
              needs none
    Without the library, and for tensors that are neither on a CUDA device nor on the CPU, nothing happens. Never raises, but for a gradient in graphs of
    the compiler: a RuntimeError.
    """
    sink = _sink
    if sink is None or sink is to_library and not _is_seen(tensor):
        if sink is not None and not torch.compiler.is_compiling():
            say_of_device(tensor)
        return
    if torch.compiler.is_compiling():
        if gradient and tensor.requires_grad:
            _refuse_compiled(name)
        torch.ops.dmi.tap(tensor, _token(tensor.device), None, name, -1 if layer is None else layer, n_layers or 0,
                          mask_of(rows or ROWS.get(tensor.dim(), (0,))))
    else:
        deliver(sink, tensor, name, layer, n_layers, rows, of_module=False, **_marked(writable))
        if gradient:
            _watch(tensor, name, layer, n_layers, rows, sink)


def edit(tensor, name, layer=None, rows=None, n_layers=None, gradient=False):
    """The tensor to go on with in place of @tensor, which keeps its values: what edits leave of it (docs/edits.md). Also a tap.

    @tensor itself comes back without the library, where it is neither on a CUDA device nor on the CPU, and eagerly where `dmi-run --write` names other places: then it is
    tapped alone. Else a copy. Arguments as of tap(); the gradient is that of what comes back. Raises as tap(). A gradient passes as if a constant had been added.
    """
    sink = _sink
    if sink is None or sink is to_library and not _is_seen(tensor):
        if sink is not None and not torch.compiler.is_compiling():
            say_of_device(tensor)
        return tensor
    if torch.compiler.is_compiling():
        if gradient and tensor.requires_grad:
            _refuse_compiled(name)
        return torch.ops.dmi.edit(tensor, None, name, -1 if layer is None else layer, n_layers or 0, mask_of(rows or ROWS.get(tensor.dim(), (0,))))
    if sink is to_library and _places and name not in _places:
        after = tensor
        deliver(sink, tensor, name, layer, n_layers, rows, of_module=False)
    else:
        after = tensor.clone()
        deliver(sink, after.detach(), name, layer, n_layers, rows, of_module=False, writable=True)
    if gradient:
        _watch(after, name, layer, n_layers, rows, sink)
    return after


# Names of places, where dmi-run names them; empty: a HookSpec does.
_places = frozenset(filter(None, os.environ.get("DMI_TAP_WRITE", "").split(",")))


def _marked(writable):
    """What a sink is given besides: sinks that only read need not know of it."""
    return {"writable": True} if writable else {}


# Of the autograd pass that this thread is in, -1: in none. Gradient checkpointing computes a part of the forward again there.
_backward = getattr(torch._C, "_current_graph_task_id", lambda: -1)


def deliver(sink, tensor, name, layer, n_layers, rows, of_module=True, **more):
    """Call @sink, which may fail: the program goes on. A tap in a recomputation was seen in the forward. What tap() is given in a backward
    pass may also be a gradient (@of_module: it is not): these come without a graph of their own. @more: what the sink is given besides.
    """
    if not _is_recomputed(of_module):
        _give(sink, tensor, name, layer, n_layers, rows, **more)


def _is_recomputed(of_module):
    return _backward() != -1 and (of_module or torch.is_grad_enabled())


def _give(sink, tensor, name, layer, n_layers, rows, shaped=None, **more):
    """deliver(), wherever it is called. @shaped: as of _watch(). Returns whether the sink took it."""
    try:
        tensor = tensor if shaped is None else shaped(tensor)
        if tensor.dim() == 0:
            tensor = tensor.reshape(1)
        if rows and REQUESTS in rows:
            rows = tuple(row for row in rows if row != REQUESTS)
            if sink is to_library:
                more["requests"] = True
        sink(tensor, name, layer, n_layers, rows or ROWS.get(tensor.dim(), (0,)), **more)
        return True
    except Exception as error:
        complain(f"{name}: {error!r}")
        return False


_complained, _lock = set(), threading.Lock()


def complain(text):
    """One line a text; at most 20 texts."""
    with _lock:
        if text in _complained or len(_complained) >= 20:
            return
        _complained.add(text)
    say(f"dmi.torch: {text}")


def rows_of(mask):
    return tuple(d for d in range(REQUESTS + 1) if mask >> d & 1)


_MASKS = {rows_of(mask): mask for mask in range(2 << REQUESTS)}


def mask_of(rows):
    """(0, 2) as bits."""
    return _MASKS[tuple(sorted(rows))]


# ---------------------------------------------------------------------------------------- gradients

GRADIENT = ".grad"  # what comes after the name of a tap
_leaves = WeakTensorKeyDictionary()  # {tensor that nothing computed: {(name, layer): the handle of its hook}}


def _watch(tensor, name, layer, n_layers, rows, sink, owner=None, shaped=None):
    """Tap what flows back into @tensor, if anything may. Never raises.

    name, layer, n_layers, rows  as the tensor is tapped
    owner   of the module's that it is a tap of; None: of tap()
    shaped  how the gradient is seen, as the tensor is; None: as it is
    """
    if not isinstance(tensor, torch.Tensor) or not tensor.requires_grad:
        return
    name += GRADIENT
    try:
        if _is_recomputed(owner is not None):
            _say_of_recomputed(tensor, name)
            return
        at = None
        if sink is to_library and (at := _moment_of(tensor, name, layer, n_layers)) is None:
            return
        _hook(tensor, _Gradient(name, layer, n_layers, rows, sink, owner, shaped, at))
    except Exception as error:
        complain(f"{name}: {error!r}")


def _moment_of(tensor, name, layer, n_layers):
    """The library's Moment of what is tapped as @name later, and belongs where @tensor stands now; None: no site wants it."""
    if not _is_seen(tensor) or not library.loaded():
        return None
    stream, flags = _way_of(tensor)
    return _in_context(tensor, library.moment, name, tensor.data_ptr(), stream, library.NO_LAYER if layer is None else layer, n_layers or 0, flags)


def _say_of_recomputed(tensor, name):
    """A checkpoint computes the tensor again. One that kept the forward's graph needs no more: the forward's tensor has a hook. So has what a reentrant
    one was given, of which there is a detached copy now; what that computes has none."""
    node = torch._C._current_autograd_node()
    if node is not None and node.name() == "CheckpointFunctionBackward" and not tensor.is_leaf:
        complain(f"{name}: a reentrant checkpoint computes its forward without a graph, so gradients inside are not tapped: use_reentrant=False")


def _hook(tensor, hook):
    """A tensor that nothing computed lives on, and forward after forward may tap it: it has one gradient, which is the latest one's."""
    handle = tensor.register_hook(hook)
    if tensor.is_leaf:
        of = _leaves.setdefault(tensor, {})
        if before := of.pop((hook.name, hook.layer), None):
            before.remove()
        of[hook.name, hook.layer] = handle


class _Gradient:
    """A hook of a tensor's. at: the library's Moment, of its sink."""
    __slots__ = ("name", "layer", "n_layers", "rows", "sink", "owner", "shaped", "at")
    __torch_unserializable__ = True  # a leaf that is saved goes without it

    def __init__(self, name, layer, n_layers, rows, sink, owner, shaped, at):
        self.name, self.layer, self.n_layers, self.rows, self.sink, self.owner, self.shaped, self.at = name, layer, n_layers, rows, sink, owner, shaped, at

    def __call__(self, gradient):
        if gradient is None or self.owner is not None and self.owner.ended:
            return
        if torch.compiler.is_compiling():  # compiled autograd
            _refuse_compiled(self.name.removesuffix(GRADIENT))
        more = {} if self.at is None else {"at": self.at}
        given = _give(self.sink, gradient.detach(), self.name, self.layer, self.n_layers, self.rows, self.shaped, **more)
        if not given and self.at is not None:  # a counted drop
            library.send(self.name, 0, 0, 0, (), (), 0, 0, library.NO_LAYER if self.layer is None else self.layer, 0, at=self.at)


def _refuse_compiled(name):
    raise RuntimeError(f"dmi: {name}{GRADIENT}: gradients are not tapped in compiled code: run the model eagerly, or attach without gradients")


# The compiler calls it while it traces, so that its exception is the compiler's: neither code that is traced catches it, nor is the code run uncompiled.
_refuse_compiled._dynamo_marked_constant = True


# ---------------------------------------------------------------------------------------- places


class Owner:
    """Whose taps those of a module are.

    layer, n_layers  of the module; None, or a number
    sink             where they go
    everywhere       of tensors on any device?
    writes           names of those into which edits may write
    gradients        is what flows back into them tapped, too?
    ended            it was detached
    """
    __slots__ = ("layer", "n_layers", "sink", "everywhere", "writes", "gradients", "ended")

    def __init__(self, layer, n_layers, sink, writes=frozenset(), gradients=False):
        self.layer, self.n_layers, self.sink, self.everywhere, self.writes = layer, n_layers, sink, sink is not to_library, writes
        self.gradients, self.ended = gradients, False


_attached = weakref.WeakSet()  # modules that have a place
_by_address = {}               # address of a place: weak reference to its module


def settle(module, owner, device):
    """Give @module a place on @device; its taps are those of @owner."""
    module.register_buffer(PLACE, torch.zeros(1, dtype=torch.uint8, device=device), persistent=False)
    module.__dict__[OWNER] = owner
    _attached.add(module)


def unsettle(module):
    _attached.discard(module)
    module._buffers.pop(PLACE, None)
    module._non_persistent_buffers_set.discard(PLACE)
    if owner := module.__dict__.pop(OWNER, None):
        owner.ended = True


def _owner_at(address):
    """The Owner of the module whose place has this address; places move with their modules, and addresses are used again."""
    for attempt in range(2):
        module = _by_address.get(address, lambda: None)()
        place = module._buffers.get(PLACE) if module is not None else None
        if place is not None and place.data_ptr() == address:
            return module.__dict__.get(OWNER)
        if not attempt:
            _by_address.clear()
            _by_address.update((module._buffers[PLACE].data_ptr(), weakref.ref(module)) for module in list(_attached))
    return None


def tap_of(module, tensor, name, rows=None, whole=None, shaped=None):
    """A tap of an attached module; also within graphs of the compiler. Edits write into the tensor itself, where they may.
    @whole: the tensor of the model's that it is a view of: what flows back into that one is @shaped(); None: @tensor itself"""
    if torch.compiler.is_compiling():
        if module._dmi_owner.gradients and tensor.requires_grad:
            _refuse_compiled(name)
        if name in module._dmi_owner.writes:
            after = edit_of(module, tensor, name, rows)
            if after is not tensor:
                tensor.copy_(after)
        elif _is_seen(tensor) or module._dmi_owner.everywhere:
            torch.ops.dmi.tap(tensor, _token(tensor.device), module._dmi_place, name, -1, 0, mask_of(rows or ROWS.get(tensor.dim(), (0,))))
    else:
        owner = module.__dict__[OWNER]
        deliver(owner.sink, tensor, name, owner.layer, owner.n_layers, rows, **_marked(name in owner.writes))
        if owner.gradients:
            _watch(tensor if whole is None else whole, name, owner.layer, owner.n_layers, rows, owner.sink, owner, shaped)


def edit_of(module, tensor, name, rows=None):
    """What edits leave of a tensor of an attached module: a copy, or itself where its taps go nowhere."""
    if torch.compiler.is_compiling():
        if not _is_seen(tensor) and not module._dmi_owner.everywhere:
            return tensor
        return torch.ops.dmi.edit(tensor, module._dmi_place, name, -1, 0, mask_of(rows or ROWS.get(tensor.dim(), (0,))))
    owner = module.__dict__[OWNER]
    if not _is_seen(tensor) and not owner.everywhere:
        return tensor
    after = tensor.clone()
    deliver(owner.sink, after.detach(), name, owner.layer, owner.n_layers, rows, writable=True)
    return after


# ---------------------------------------------------------------------------------------- the operator

_tokens = {}


def _token(device):
    """The token of @device. The compiler calls this while it traces, and takes the tensor as a constant."""
    if device not in _tokens:
        _tokens[device] = torch.zeros(1, dtype=torch.uint8, device=device)
        torch._dynamo.mark_static_address(_tokens[device])
    return _tokens[device]


# What torch.compiler.assume_constant_result() does, which would import the compiler into programs that never compile.
_token._dynamo_marked_constant = True


def _run(x, token, place, name, layer, n_layers, rows):
    _deliver_at(place, x, name, layer, n_layers, rows, {})


def _run_edit(x, place, name, layer, n_layers, rows):
    after = x.clone()
    _deliver_at(place, after, name, layer, n_layers, rows, _marked(True))
    return after


def _deliver_at(place, x, name, layer, n_layers, rows, more):
    if place is None:
        sink, layer = _sink, None if layer < 0 else layer
    elif (owner := _owner_at(place.data_ptr())) is not None:
        sink, layer, n_layers = owner.sink, owner.layer, owner.n_layers
    else:
        return  # detached, and the graph is still there
    if sink is not None:
        deliver(sink, x, name, layer, n_layers or None, rows_of(rows), place is not None, **more)


_WHERE = "Tensor? place, str name, int layer, int n_layers, int rows"


def _define():
    operators = torch.library.Library("dmi", "DEF")
    flexible = (torch.Tag.flexible_layout,)
    operators.define(f"tap(Tensor x, Tensor(a!) token, {_WHERE}) -> ()", tags=flexible)
    operators.define(f"edit(Tensor x, {_WHERE}) -> Tensor", tags=flexible)
    for name, run, shape in (("tap", _run, lambda *_: None), ("edit", _run_edit, lambda x, *_: torch.empty_like(x))):
        for where in ("CPU", "CUDA"):
            operators.impl(name, run, where)
        operators.impl(name, shape, "Meta")
    torch.library.register_autograd("dmi::edit", lambda _, gradient: (gradient, *(None,) * 5), lib=operators)
    return operators


_operators = _define()