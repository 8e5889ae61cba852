# SPDX-License-Identifier: Apache-2.0
"""Tensors of a small program (edits_client.py) and the edits that write into them: what its memory holds afterwards, byte by byte."""
import json
import pathlib
import subprocess
import sys

import numpy as np

import edits_reference as ref
from harness import DMI_RUN, environment
from kit import spec

CLIENT = pathlib.Path(__file__).with_name("edits_client.py")
SIZE = {"f32": 4, "f16": 2, "bf16": 2}
HOWS = ("eager", "graph", "capture", "params", "update")
CANARY, PAGE = 0xa5, 4096


class Tensor:
    """A place: what its kernel copies there, and how its elements lie: @index has the element of row and column, @dims says it to the HookSpec.
    @before: edits write what the kernel is about to read; @stays: the kernel copies it onto itself, so that each launch edits what the last one
    left; @place: there is one; @alone: the kernel copies this row and no other, and each row begins a page."""

    def __init__(self, name, dtype, bits, index=None, dims=None, slots=None, before=False, stays=False, place=True, alone=None, **more):
        self.name, self.dtype, self.more = name, dtype, more
        self.before, self.stays, self.place, self.alone = before, stays, place, alone
        self.bits = np.asarray(bits, ref.BITS[dtype])
        rows, n = self.bits.shape
        self.index = np.arange(rows * n).reshape(rows, n) if index is None else index
        self.dims = dims or f"[{{row: true, count: 'arg[3].u32'}}, {{count: {n}}}]"
        self.slots = slots
        self.n_bytes = (int(self.index.max()) + 1) * SIZE[dtype] + 3 & ~3
        self.edits, self.expected, self.read = [], None, None  # @read: what the kernel read is afterwards, where that is another thing

    @property
    def x(self):
        """True values."""
        x = ref.values(self.bits, self.dtype)
        return x / np.float32(self.more["scale"]) if "scale" in self.more else x

    def site(self):
        more = dict({"write": "{}", "capture": "none", "pointer": "arg[1]" if self.before else "arg[0]"}, **self.more)
        more |= {"when": "before"} if self.before else {}
        return "\n".join([f"  - name: {self.name}", f"    kernel: '^{self.name}$'", f"    dtype: {self.dtype}", f"    dims: {self.dims}"]
                         + [f"    {key}: {value}" for key, value in more.items()])


class Memory:
    """One allocation with regions between canaries."""

    def __init__(self):
        self.bytes = bytearray([CANARY] * 64)

    def add(self, data, page=False):
        self.bytes += bytes([CANARY] * (-len(self.bytes) % PAGE if page else 0))
        at = len(self.bytes)
        self.bytes += data
        self.bytes += bytes([CANARY] * (64 + -len(self.bytes) % 64))
        return at


class Play:
    """Tensors and edits of one process."""

    def __init__(self, bench, tensors, edits=None, vectors=None, head="", sites=()):
        self.bench, self.tensors = bench, tensors
        self.memory, self.kernels, self.rounds = Memory(), [], []
        self.at = {}
        self.folder = bench.folder / f"play{bench.n}"
        self.folder.mkdir()
        self.spec = spec(*[t.site() for t in tensors if t.place], *sites, head=head)
        self.edits = edits if edits is not None else [dict(e, name=f"{t.name}-{i}", site=t.name) for t in tensors for i, e in enumerate(t.edits)]
        self.vectors = {}
        for name, v in (vectors or {}).items():
            np.save(self.folder / f"{name}.npy", np.asarray(v, np.float32))
            self.vectors[name] = {"file": f"{name}.npy"}
        for t in tensors:
            region = np.random.default_rng(len(self.kernels)).integers(0, 256, t.n_bytes, np.uint8).view(ref.BITS[t.dtype])
            region[t.index] = t.bits
            source = self.memory.add(region.tobytes(), t.alone is not None)
            to = source if t.stays else self.memory.add(b"\0" * t.n_bytes, t.alone is not None)
            slots = self.memory.add(np.asarray(t.slots, np.int64).tobytes()) if t.slots is not None else None
            self.at[t.name] = (to, source)
            words, first = (t.n_bytes // 4, 0) if t.alone is None else (PAGE // 4, t.alone * PAGE // 4)
            self.kernels.append({"name": t.name, "to": to, "from": source, "words": words, "first": first, "rows": len(t.bits), "slots": slots})

    def round(self, how, said=None, launches=None, out=True, **more):
        self.rounds.append(dict({"data": str(self.folder / "data"), "how": how, "said": said,
                                 "out": str(self.folder / f"out{len(self.rounds)}") if out else None,
                                 "launches": list(range(len(self.kernels))) if launches is None else launches}, **more))

    def pack(self, env):
        """The file that dmi-run makes of the edits."""
        (self.folder / "spec.yaml").write_text(self.spec)
        sites = {name: e["site"] for e in self.edits for name in self.vectors if f'"{name}"' in json.dumps(e["do"])}
        vectors = {name: v if np.ndim(np.load(self.folder / v["file"])) < 2 or name not in sites else dict(v, layer_is=sites[name])
                   for name, v in self.vectors.items()}
        (self.folder / "edits.json").write_text(json.dumps({"editspec": 1, "vectors": vectors, "edits": self.edits}))
        command = [DMI_RUN, "--lenient", "--spec", self.folder / "spec.yaml", "--edits", self.folder / "edits.json", "--out", self.folder / "packed", "--",
                   "sh", "-c", 'cat "$DMI_EDITS"']
        done = subprocess.run(list(map(str, command)), env=environment(**env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60, check=False)
        self.bench.check(done.returncode == 0, "dmi-run takes the edits", done.stderr.decode())
        (self.folder / "edits").write_bytes(done.stdout)
        return self.folder / "edits"

    def start(self, edits, **env):
        (self.folder / "data").write_bytes(self.memory.bytes)
        (self.folder / "plan.json").write_text(json.dumps({"bytes": len(self.memory.bytes), "kernels": self.kernels, "rounds": self.rounds}))
        result = self.bench.run([], self.spec, command=[sys.executable, CLIENT, self.folder / "plan.json"], timeout=120, DMI_EDITS=edits, **env)
        return result

    def run(self, fails=False, **env):
        result = self.start(self.pack({}), **env)
        if fails:
            return result
        good = result.code == 0 and result.stdout.endswith("done\n") and "changed: edits add" in result.stderr
        assert self.bench.check(good, "the program runs", result.stdout[-500:] + result.stderr[-2000:])
        return result

    def compare(self, number, what, expected=None):
        """Each tensor is as @expected (or what it itself expects), and nothing else has changed."""
        got, wanted = bytearray(pathlib.Path(self.rounds[number]["out"]).read_bytes()), bytearray(self.memory.bytes)
        for t in self.tensors:
            after = t.expected if expected is None else expected[t.name]
            read = t.read or (after if t.before or t.stays else (t.bits, None))
            for at, (bits, slack) in zip(self.at[t.name], (after, read)):
                cells = np.frombuffer(bytes(got[at:at + t.n_bytes]), ref.BITS[t.dtype])
                self.bench.check(*differences(t, cells[t.index], bits, slack, f"{what}: {t.name}"))
                before = self.at[t.name][1]  # what the kernel copies there, too
                whole = np.frombuffer(bytes(self.memory.bytes[before:before + t.n_bytes]), ref.BITS[t.dtype]).copy()
                whole[t.index] = cells[t.index]
                wanted[at:at + t.n_bytes] = whole.tobytes()
        apart = [i for i, (a, b) in enumerate(zip(got, wanted)) if a != b] if got != wanted else []
        self.bench.check(not apart, f"{what}: nothing beside the tensors has changed", apart[:20])


def differences(t, found, wanted, slack, what):
    """@slack: None: bits, but that a NaN which was computed is as any other; else by how much each may differ."""
    if slack is None:
        a, b = ref.values(found, t.dtype), ref.values(wanted, t.dtype)
        bad = (found != wanted) & ~(np.isnan(a) & np.isnan(b) & (wanted != t.bits))
    else:
        bad = ~(np.abs(ref.values(found, t.dtype).astype(np.float64) - wanted) <= slack)
    where = np.argwhere(bad)[:4]
    shown = [(tuple(map(int, i)), hex(t.bits[tuple(i)]), hex(found[tuple(i)]), ref.values(found, t.dtype)[tuple(i)], wanted[tuple(i)]) for i in where]
    return not len(where), what, f"{bad.sum()} of {bad.size}: at, before, after, which is, wanted: {shown}"
