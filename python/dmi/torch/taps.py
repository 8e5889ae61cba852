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
"""
import os
import threading
import weakref

import torch

from dmi import taps as library
from dmi.saying import say

PLACE, OWNER = "_dmi_place", "_dmi_owner"  # a buffer, and an attribute, of attached modules
REQUESTS = library.MAX_DIMS  # among rows: they are requests', each that of the last token that its request has in the step
ROWS = {1: (0,), 2: (0,), 3: (0, 1), 4: (0, 2)}  # where nothing is said, by the number of dimensions
_DTYPES = {getattr(torch, name): number for name, number in library.DTYPES.items() if hasattr(torch, name)}
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def to_library(tensor, name, layer, n_layers, rows, writable=False, requests=False):
    """The sink that hands a tensor to the library: nothing happens without it, or where the tensor is neither on a CUDA device nor on the CPU.
    @writable: edits may write into it; @requests: its rows are requests'."""
    if not _is_seen(tensor) or not library.loaded():
        say_of_device(tensor)
        return
    if type(tensor) not in _PLAIN or not (dtype := _DTYPES.get(tensor.dtype)):
        raise TypeError(f"{name}: a tensor of {type(tensor).__name__}, {tensor.dtype} cannot be tapped")
    if tensor.dim() > library.MAX_DIMS:
        raise TypeError(f"{name}: a tensor has at most {library.MAX_DIMS} dimensions, not {tensor.dim()}")
    if tensor.is_neg():  # its memory holds the values with the other sign: what is tapped is a copy, which nothing reads later
        tensor, writable = tensor.detach().resolve_neg(), False
    index = tensor.device.index
    stream, flags = (0, library.HOST) if tensor.is_cpu else (torch._C._cuda_getCurrentRawStream(index), 0)
    flags |= (library.WRITABLE if writable else 0) | (library.REQUESTS if requests else 0)
    given = (name, tensor.data_ptr(), stream, dtype, tensor.shape, tensor.stride(), tensor.element_size(), mask_of(rows),
             library.NO_LAYER if layer is None else layer, n_layers or 0, flags)
    if tensor.is_cpu:
        say_of_cpu()
        library.send(*given)
    elif index == torch._C._cuda_getDevice():
        library.send(*given)
    else:  # the library takes the current context to be the stream's
        with torch.cuda.device(index):
            library.send(*given)


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


def tap(tensor, name, layer=None, rows=None, n_layers=None, writable=False):
    """Point out @tensor, on the stream that is current for its device, or on the CPU: it is read as it is now.

    name      letters, digits, and _ - .
    layer     from 0; None: it belongs to no layer. n_layers: how many the model has, if known
    rows      dimensions that count tokens, one or two: row = first * count[second] + second. By default (0,) of
              [token, H], (0, 1) of [batch, token, H], (0, 2) of [batch, head, token, d]
    writable  edits may write into @tensor (docs/edits.md): what the program computes next reads it, and nothing has read it yet. In graphs of
              the compiler edit() does it
    Without the library, and for tensors that are neither on a CUDA device nor on the CPU, nothing happens. Never raises.
    """
    sink = _sink
    if sink is None or sink is to_library and not _is_seen(tensor):
        if sink is not None and not torch.compiler.is_compiling():
            say_of_device(tensor)
        return
    if torch.compiler.is_compiling():
        torch.ops.dmi.tap(tensor, _token(tensor.device), None, name, -1 if layer is None else layer, n_layers or 0,
                          mask_of(rows or ROWS.get(tensor.dim(), (0,))))
    else:
        deliver(sink, tensor, name, layer, n_layers, rows, of_module=False, **_marked(writable))


def edit(tensor, name, layer=None, rows=None, n_layers=None):
    """The tensor to go on with in place of @tensor, which keeps its values: what edits leave of it (docs/edits.md). Also a tap.

    @tensor itself comes back without the library, where it is neither on a CUDA device nor on the CPU, and eagerly where `dmi-run --write` names other places: then it is
    tapped alone. Else a copy. Arguments as of tap(). Never raises. A gradient passes as if a constant had been added.
    """
    sink = _sink
    if sink is None or sink is to_library and not _is_seen(tensor):
        if sink is not None and not torch.compiler.is_compiling():
            say_of_device(tensor)
        return tensor
    if torch.compiler.is_compiling():
        return torch.ops.dmi.edit(tensor, None, name, -1 if layer is None else layer, n_layers or 0, mask_of(rows or ROWS.get(tensor.dim(), (0,))))
    if sink is to_library and _places and name not in _places:
        deliver(sink, tensor, name, layer, n_layers, rows, of_module=False)
        return tensor
    after = tensor.clone()
    deliver(sink, after.detach(), name, layer, n_layers, rows, of_module=False, writable=True)
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
    if _backward() != -1 and (of_module or torch.is_grad_enabled()):
        return
    try:
        if tensor.dim() == 0:
            tensor = tensor.reshape(1)
        if rows and REQUESTS in rows:
            rows = tuple(row for row in rows if row != REQUESTS)
            if sink is to_library:
                more["requests"] = True
        sink(tensor, name, layer, n_layers, rows or ROWS.get(tensor.dim(), (0,)), **more)
    except Exception as error:
        complain(f"{name}: {error!r}")


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


# ---------------------------------------------------------------------------------------- places


class Owner:
    """Whose taps those of a module are.

    layer, n_layers  of the module; None, or a number
    sink             where they go
    everywhere       of tensors on any device?
    writes           names of those into which edits may write
    """
    __slots__ = ("layer", "n_layers", "sink", "everywhere", "writes")

    def __init__(self, layer, n_layers, sink, writes=frozenset()):
        self.layer, self.n_layers, self.sink, self.everywhere, self.writes = layer, n_layers, sink, sink is not to_library, writes


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
    module.__dict__.pop(OWNER, None)


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


def tap_of(module, tensor, name, rows=None):
    """A tap of an attached module; also within graphs of the compiler. Edits write into the tensor itself, where they may."""
    if torch.compiler.is_compiling():
        if name in module._dmi_owner.writes:
            after = edit_of(module, tensor, name, rows)
            if after is not tensor:
                tensor.copy_(after)
        elif _is_seen(tensor) or module._dmi_owner.everywhere:
            torch.ops.dmi.tap(tensor, _token(tensor.device), module._dmi_place, name, -1, 0, mask_of(rows or ROWS.get(tensor.dim(), (0,))))
    else:
        owner = module.__dict__[OWNER]
        deliver(owner.sink, tensor, name, owner.layer, owner.n_layers, rows, **_marked(name in owner.writes))


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
