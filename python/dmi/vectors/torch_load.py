# SPDX-License-Identifier: Apache-2.0
"""The process that reads a file of torch.save(), with limits: `python torch_load.py FILE PARENT`. torch_file.py starts it and reads its answer.

It imports nothing but the standard library and torch. torch.load(weights_only=True) executes nothing that the file names. A small file can still ask for any
amount of time and memory, so this process has little of both, from the import of torch on. The answer is a line of JSON and the numbers, float32, little-endian.
"""
import os
import sys

if sys.path and sys.path[0] == os.path.dirname(os.path.realpath(__file__)):
    del sys.path[0]  # modules of this folder have names that packages have, too

import ctypes  # noqa: E402
import json  # noqa: E402
import re  # noqa: E402
import resource  # noqa: E402
import signal  # noqa: E402

WALL_S, CPU_S = 120, 30  # of all, by the clock; of what follows the import of torch, of a CPU
MEMORY, OF_ITS_SIZE = 512 << 20, 6
MAX_LAYERS, MAX_KEY = 1024, 200
OLDEST = (2, 6)  # weights_only=True of older ones can execute what a file names: CVE-2025-32434
WAY_OUT = "save the vectors as safetensors (safetensors.torch.save_file), which need no torch here"
ONLY_TENSORS = "only tensors, numbers, texts and containers of them are read. Save it as tensors: torch.save({'dir': torch.as_tensor(...)}, PATH)"
NUMBER = re.compile(r"\d+")
GLOBAL = re.compile(r"GLOBAL ([\w.]{1,100})|global ([\w.]{1,100})")


class Refused(Exception):
    """What is wrong with the file: a sentence that names types, and of values texts and numbers alone."""


def import_torch():
    sys.setdlopenflags(os.RTLD_LAZY)  # a torch whose CUDA libraries lack a function reads files as well
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise Refused(f"{sys.executable} cannot import torch, as it lacks {error.name}: {WAY_OUT}") from None
        raise Refused(f"{sys.executable}, which is to read it, has no torch: name the Python that has it, or {WAY_OUT}") from None
    except Exception as error:
        raise Refused(f"{sys.executable} cannot import torch ({line(error)}): {WAY_OUT}") from None
    version = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))
    if version < OLDEST:
        raise Refused(f"torch {torch.__version__} of {sys.executable} may execute what a file names; expected 2.6 or newer, or {WAY_OUT}")
    torch.set_num_threads(1)
    return torch


def line(error):
    """The first line of an error of torch's own."""
    first = str(error)[:2000].strip().partition("\n")[0][:120]
    return f"{type(error).__name__}: {''.join(c if c.isprintable() else '?' for c in first)}"


def follow(parent):
    """Ends with the process that asked."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def confine(path):
    """From here on: as much memory as the file may need, and a bounded time. A process that is beyond it ends by a signal."""
    with open("/proc/self/statm", "rb") as about:
        has = int(about.read().split()[0]) * resource.getpagesize()
    limits = {resource.RLIMIT_AS: has + MEMORY + OF_ITS_SIZE * os.stat(path).st_size, resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: 0}
    used = resource.getrusage(resource.RUSAGE_SELF)
    limits[resource.RLIMIT_CPU] = int(used.ru_utime + used.ru_stime) + CPU_S
    for which, most in limits.items():
        hard = resource.getrlimit(which)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(which, (most, hard))


class File:
    """What torch.load() found, as rows of numbers. data: of all rows that were taken, one after the other."""

    def __init__(self, torch, size):
        self.torch, self.left, self.data, self.unused = torch, size, [], []
        self.kinds = {torch.float32, torch.float16, torch.bfloat16, torch.float64}

    def is_tensor(self, value):
        return isinstance(value, self.torch.Tensor)

    def numbers(self, tensor, what):
        """(rows, their width, all of them as bytes of float32)"""
        torch = self.torch
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type != "cpu" or tensor.dtype not in self.kinds:
            raise Refused(f"{what} is a tensor of {tensor.dtype}, {str(tensor.layout)[6:]}, {tensor.device.type}; expected float32, float16, bfloat16 or float64")
        if tensor.dim() > 2:
            raise Refused(f"{what} has the shape {list(tensor.shape)}; expected one dimension, or two: layers, elements")
        if any(n > 1 and not step for n, step in zip(tensor.shape, tensor.stride())):
            raise Refused(f"{what} repeats one number; save a copy of its own: tensor.contiguous()")
        n_rows, width = ((1, 1) + tuple(tensor.shape))[-2:]
        self.left -= tensor.numel() * tensor.element_size()
        if self.left < 0 or n_rows > MAX_LAYERS:
            raise Refused("it holds more numbers than its size allows, or more layers than models have")
        found = tensor.detach().to(torch.float32).contiguous()
        if not bool(torch.isfinite(found).all()):
            raise Refused(f"the numbers of {what} are not all finite")
        return n_rows, width, ctypes.string_at(found.data_ptr(), 4 * found.numel()) if found.numel() else b""

    def target(self, value, what, n_rows):
        """avg_proj: a number for each row."""
        if self.is_tensor(value):
            rows, width, data = self.numbers(value, what)
            found = memoryview(data).cast("f").tolist()
        elif type(value) in (int, float) and -1e38 < value < 1e38:
            found = [float(value)]
        else:
            raise Refused(f"{what} is no number, but a {type(value).__name__}")
        if len(found) != n_rows:
            raise Refused(f"{what} has {len(found)} numbers, and dir {n_rows} vectors")
        return found

    def take(self, value, what):
        """(rows, their width, what each is to have along it): of a tensor, or of {"dir", "avg_proj"}"""
        if self.is_tensor(value):
            n_rows, width, data = self.numbers(value, what)
            self.data.append(data)
            return n_rows, width, []
        if not isinstance(value, dict) or "dir" not in value:
            raise Refused(f"{what} is neither a tensor nor a dict with \"dir\", but a {type(value).__name__}")
        if not self.is_tensor(value["dir"]):
            raise Refused(f"dir of {what} is no tensor, but a {type(value['dir']).__name__}")
        n_rows, width, data = self.numbers(value["dir"], f"dir of {what}")
        self.data.append(data)
        self.unused += [[shown(key), f"of {what}"] for key in value if key not in ("dir", "avg_proj")]
        return n_rows, width, self.target(value["avg_proj"], f"avg_proj of {what}", n_rows) if "avg_proj" in value else []

    def by_layer(self, entries):
        """[[layer, width, what it is to have along it, None: not said]]"""
        found, seen = [], set()
        for key, value in entries.items():
            layer, what = layer_of(key), f"entry {shown(key)!r}"
            n_rows, width, to = self.take(value, what)
            if layer in seen or n_rows != 1:
                raise Refused(f"its {what} is of a layer that another one has, or is no single vector")
            seen.add(layer)
            found.append([layer, width, to[0] if to else None])
        return found

    def read(self, found):
        if isinstance(found, (list, tuple)):
            found = dict(enumerate(found))
        if isinstance(found, dict) and "dir" not in found:
            return self.by_layer(found)
        n_rows, width, to = self.take(found, "it")
        return [[None if n_rows == 1 else row, width, to[row] if to else None] for row in range(n_rows)]


def shown(key):
    """A key for people: texts and numbers; of others the type."""
    if type(key) is str and len(key) <= MAX_KEY:
        return key
    return str(key) if type(key) is int and abs(key) < 1 << 63 else f"a {type(key).__name__}"


def layer_of(key):
    numbers = [str(key)] if type(key) is int and abs(key) < 1 << 63 else NUMBER.findall(key) if type(key) is str and len(key) <= MAX_KEY else []
    if len(numbers) != 1 or not numbers[0].isdecimal() or len(numbers[0]) > 4:
        raise Refused(f"its entry {shown(key)!r} has no number of a layer, or several")
    return int(numbers[0])


def load(torch, path):
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:
        text = str(error)[:1 << 16] if isinstance(error, (RuntimeError, ValueError)) or type(error).__name__ == "UnpicklingError" else ""
        if wanted := GLOBAL.search(text):
            raise Refused(f"it wants {wanted[1] or wanted[2]}; {ONLY_TENSORS}") from None
        if isinstance(error, RuntimeError) and "allocate memory" not in text:
            raise Refused(f"torch.load() cannot read it ({line(error)})") from None
        if "allocate memory" in text:
            raise MemoryError from None
        raise Refused(f"torch.load(weights_only=True) cannot read it ({type(error).__name__}); {ONLY_TENSORS}") from None


def answer_of(torch, path):
    """({"layers": [[layer, width, to]], "unused": [[key, of what]]}, numbers), or ({"error": sentence}, [])"""
    try:
        file = File(torch, os.stat(path).st_size)
        return {"layers": file.read(load(torch, path)), "unused": file.unused}, file.data
    except Refused as error:
        return {"error": str(error)}, []
    except MemoryError:
        return {"error": f"reading it takes more than {MEMORY >> 20} MiB and {OF_ITS_SIZE} times its size of memory"}, []
    except Exception as error:  # attributes that a file may set
        return {"error": f"what it holds cannot be read ({type(error).__name__}); {ONLY_TENSORS}"}, []


def main(path, parent):
    follow(int(parent))
    signal.alarm(WALL_S)
    out, none = os.fdopen(os.dup(1), "wb"), os.open(os.devnull, os.O_WRONLY)
    os.dup2(none, 1)  # what torch says while it is imported
    try:
        torch = import_torch()
        confine(path)
        answer, data = answer_of(torch, path)
    except Refused as error:
        answer, data = {"error": str(error)}, []
    out.write(json.dumps(answer).encode() + b"\n")
    for numbers in data:
        out.write(numbers)
    out.flush()
    os._exit(0)  # nothing of what was read is let go one by one


if __name__ == "__main__":
    main(*sys.argv[1:])
