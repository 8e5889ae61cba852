# SPDX-License-Identifier: Apache-2.0
"""Runs of serve.py for tests, with and without the library, and comparisons of what they leave.

What a run computed is known from its dump (serve/dump.py): synchronous copies after each launch. What was captured is read
by segments.py, and by `dmi-dump export`. Comparisons return complaints, so that a test may check more about the same run.
"""
import json
import random
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import harness
from harness import BUILD, DMI_DUMP, DMI_RUN, ROOT
from segments import read_run
from serve.dtypes import from_bf16
from serve.dump import DumpReader, array_of, key_of

SPEC = ROOT / "specs" / "engine-smollm2.yaml"
TAPS = ROOT / "specs" / "taps.yaml"
PROGRAM = ROOT / "tests" / "engine" / "serve.py"
REFERENCE = ROOT / "tests" / "reference"
KERNELS = [BUILD / "tests" / "engine" / "serve" / f"{draft}kernels_{dtype}.fatbin" for draft in ("", "draft_") for dtype in ("f32", "bf16")]
REQUESTS = {r["id"]: r for r in json.loads((REFERENCE / "requests.json").read_text())["requests"]}
HF_BF16_ERROR = json.loads((REFERENCE / "requests.json").read_text())["hf_bf16_error"]
SUFFIX = {"float32": "f32", "bfloat16": "bf16"}
OTHER_SUFFIX = {"float32": "bf16", "bfloat16": "f32"}


def some(*names, tokens=None):
    """Reference requests, their forced tokens cut to @tokens; all if no name is given."""
    return [{**REQUESTS[name], "forced_tokens": REQUESTS[name]["forced_tokens"][:tokens]} for name in names or REQUESTS]


def free(*names, tokens=12):
    """The same prompts, their tokens sampled."""
    return [{"id": name, "prompt_tokens": REQUESTS[name]["prompt_tokens"], "max_tokens": tokens} for name in names or REQUESTS]


def spec_text(dtype, leave_out=()):
    """The HookSpec with the sites of one dtype, so that every one of them matches; @leave_out: names of sites."""
    head, *sites = re.split(r"(?m)^(?=  - name: )", SPEC.read_text())
    kept = [s for s in sites if f"_{OTHER_SUFFIX[dtype]}$'" not in s and re.match(r"  - name: (\S+)", s)[1] not in leave_out]
    return head + "".join(kept)


def paged(text, dtype):
    """The same HookSpec with k_rot and v from the paged cache, after they were written into it."""
    head, *sites = re.split(r"(?m)^(?=  - name: )", text)
    for name, cache in (("k_rot", 0), ("v", 1)):
        i, = (i for i, site in enumerate(sites) if site.startswith(f"  - name: {name}\n"))
        sites[i] = f"""  - name: {name}
    kernel: '^kv_write_{SUFFIX[dtype]}$'
    pointer: arg[{cache}]
    dtype: {re.search("    dtype: (.*)", sites[i])[1]}
    dims: [{{row: true, count: 'arg[5].i32', slots: {{pointer: 'arg[4]', dtype: i32}}}}, {{count: 'arg[7].i32'}}]
    shard: {{dim: 1, of: tp}}
    layer: occ + first_layer
"""
    return head + "".join(sites)


def write_meaningless(folder, dtype):
    """Kernels for --kernels whose names say nothing: k0, k1, ... without order. Those of equal code have one name."""
    text = re.sub(r"//.*", "", (KERNELS[0].parent / f"kernels_{SUFFIX[dtype]}.ptx").read_text())
    text, *entries = re.split(r"(?m)^(?=\.visible \.entry )", text)
    random.Random(11).shuffle(entries)
    names, name_of = {}, {}
    for entry in entries:
        name = re.match(r"\.visible \.entry (\w+)\(", entry)[1]
        code = re.sub(r"\$L__BB\d+", "", entry.replace(name, ""))
        if code not in name_of:
            name_of[code] = f"k{len(name_of)}"
            text += re.sub(rf"\b{name}(?=\(|_param_)", name_of[code], entry)
        names[name] = name_of[code]
    folder.mkdir()
    (folder / f"kernels_{SUFFIX[dtype]}.fatbin").write_bytes(text.encode() + b"\0")
    (folder / "names.json").write_text(json.dumps(names))
    return names


class Served:
    """What a run left: results, a line a step in trace, its dump, and the runs that the library wrote."""

    def __init__(self, folder, result, out="run"):
        self.folder, self.out, self.stderr = folder, folder / out, result.stderr
        self.results = [json.loads(line) for line in (folder / "results").read_text().splitlines()]
        self.trace = [json.loads(line) for line in (folder / "trace").read_text().splitlines()]

    @property
    def tokens(self):
        return {r["id"]: r["tokens"] for r in self.results}

    @property
    def sampled(self):
        return {r["id"]: r["sampled"] for r in self.results}

    def dump(self, sites=None, part=None):
        return DumpReader(self.folder / "dump", sites, part)

    @property
    def run(self):
        return harness.only_run(self.out)


class Server:
    """Runs of serve.py, in a folder each."""

    def __init__(self, folder, layers=2):
        self.folder, self.layers = folder, layers

    def command(self, folder, requests, options, dtype, layers, dump, spec):
        """The program with its options, its files in a new folder."""
        folder.mkdir()
        (folder / "requests").write_text(json.dumps({"requests": requests}))
        command = [sys.executable, PROGRAM, "--requests", folder / "requests", "--dtype", dtype, "--layers", layers or self.layers,
                   "--check", "--out", folder / "results", "--trace", folder / "trace", *options]
        if dump:
            command += ["--dump", folder / "dump"]
        if spec:
            (folder / "spec.yaml").write_text(spec)
            command += ["--steps", *(["--taps"] if "tap: " in spec else [])]
        return command

    @staticmethod
    def run(command, folder, spec, out, defines=(), **env):
        if spec:
            more = [word for define in defines for word in ("-D", define)]
            if (folder / "edits.yaml").exists():
                more += ["--lenient", "--edits", folder / "edits.yaml"]  # the tests judge what was written
            command = [DMI_RUN, "--spec", folder / "spec.yaml", "--out", out, *more, "--", *command]
        return harness.run(command, env=harness.environment(DMI_TEST_BUILD=BUILD, **env), timeout=1800)

    def serve(self, name, requests, *options, dtype="float32", layers=None, dump=False, spec=None, edits=None, **env):
        """@spec: the text of a HookSpec to run under; the engine then says what its steps are. @edits: the text of a file of edits."""
        folder = self.folder / name
        command = self.command(folder, requests, options, dtype, layers, dump, spec)
        if edits:
            (folder / "edits.yaml").write_text(edits)
        return Served(folder, self.run(command, folder, spec, folder / "run", **env))

    def serve_parts(self, name, requests, *options, defines, dtype="float32", layers=None, spec=None, edits=None, **env):
        """The same with a process for each part of the model, started one by one: each has variables of the spec (@defines, a list
        of lists) and an --out folder of its own. Returns a Served for each; what they say of tokens is the same."""
        folder = self.folder / name
        command = self.command(folder, requests, options, dtype, layers, False, spec)
        if edits:
            (folder / "edits.yaml").write_text(edits)
        with tempfile.TemporaryDirectory(prefix="serve-") as group, ThreadPoolExecutor(len(defines)) as pool:
            running = [pool.submit(self.run, [*command, "--rank", i, "--group", group], folder, spec, folder / f"run-{i}", more, **env)
                       for i, more in enumerate(defines)]
            return [Served(folder, future.result(), f"run-{i}") for i, future in enumerate(running)]


# ---- comparisons

def differing_rows(a, b):
    """(rows compared, complaints): rows that two dumps have of one request, site and position are the same bits.

    Of a position that was computed several times every computation counts, but for rejected drafts.
    """
    n, wrong = 0, []
    for key in a.rows.keys() & b.rows.keys():
        want = a.rows[key][-1].data.tobytes()
        for row in b.rows[key]:
            n += 1
            if row.data.tobytes() != want:
                wrong.append(f"{key} in step {row.step}")
    return n, sorted(wrong)


def site_names(run):
    return [site["name"] for site in json.loads((run / "manifest.json").read_text())["dictionary"]["sites"]]


def record_complaints(run, dump):
    """(rows compared, complaints): each record is, bit for bit, what the dump has of its step, and none is missing.

    Superseded computations are compared as well; rows of padding, the last ones of a step, are in no record.
    """
    records, steps = read_run(run)
    names, n, wrong, seen = site_names(run), 0, [], set()
    for record in records:
        step, key = steps[record.step][0], key_of(names[record.site], None if record.layer < 0 else record.layer)
        where = f"{key} of step {step}"
        tensor = dump.steps_of.get((step, key))
        if tensor is None or (step, key) in seen:
            wrong.append(f"{where}: a record too many")
            continue
        seen.add((step, key))
        width = tensor[0].nbytes if len(tensor) else 0
        rows = [record.data[i * width:(i + 1) * width] for i in range(record.dims[0])]
        owned = dump.owned[step, key]
        if len(rows) != owned:
            wrong.append(f"{where}: {len(rows)} rows, {owned} of {len(tensor)} are somebody's")
        differ = [i for i in range(min(owned, len(rows))) if rows[i] != tensor[i].tobytes()]
        if differ:
            wrong.append(f"{where}: rows {differ[:5]} of {owned} differ")
        n += owned
    missing = dump.steps_of.keys() - seen
    if missing:
        wrong.append(f"{len(missing)} tensors have no record, for one {min(missing)}")
    return n, wrong


def exported_rows(out, path, *options):
    """{(request, site with layer): (positions, [rows, width])} of `dmi-dump export`; bfloat16 as uint16."""
    harness.run([DMI_DUMP, "export", "--format", "safetensors", *options, out, "--force", "-o", path])
    data = path.read_bytes()
    n = int.from_bytes(data[:8], "little")
    head = json.loads(data[8:8 + n])
    meta = head.pop("__metadata__")
    ranges, infos, found = json.loads(meta["positions"]), json.loads(meta["tensors"]), {}
    for name, info in head.items():
        positions = [p for first, count in ranges[infos[name]["positions"]] for p in range(first, first + count)]
        request, _, key = name.rpartition("/")
        found[request, key] = positions, array_of(data, 8 + n, info)
    return found


def export_complaints(exported, dump):
    """(rows compared, complaints): requests' tensors hold their latest computations at their positions."""
    n, wrong, tensors = 0, [], dump.tensors()
    if exported.keys() != tensors.keys():
        wrong.append(f"missing {sorted(tensors.keys() - exported.keys())[:3]}, too many {sorted(exported.keys() - tensors.keys())[:3]}")
    for key in exported.keys() & tensors.keys():
        (positions, rows), (want_positions, want) = exported[key], tensors[key]
        n += len(positions)
        if list(positions) != list(want_positions):
            wrong.append(f"{key}: positions {positions[:40]}, those of the dump are {want_positions[:40]}")
        elif rows.reshape(len(rows), -1).tobytes() != want.tobytes():
            wrong.append(f"{key} differs")
    return n, wrong


# ---- several processes

SIDE_BY_SIDE = {"q", "k", "v", "q_rot", "k_rot", "z", "mlp_post", "final_logits"}  # each rank has columns of its own
PARTIAL = {"attn_out", "mlp_out"}                                                 # each rank has a part of the sum


def joined(dumps, n_ranks):
    """{(request, site with layer): (positions, float32 [rows, width])} of a model whose processes, stage by stage, left @dumps."""
    found = {}
    for stage in range(0, len(dumps), n_ranks):
        parts = [{key: (positions, from_bf16(rows) if dump.dtypes[key[1]] == "BF16" else rows)
                  for key, (positions, rows) in dump.tensors().items()} for dump in dumps[stage:stage + n_ranks]]
        for key, (positions, rows) in parts[0].items():
            every, site = [part[key][1] for part in parts], key[1].split(".")[0]
            found[key] = positions, (np.concatenate(every, axis=1) if site in SIDE_BY_SIDE else sum(every) if site in PARTIAL else rows)
    return found


# ---- fingerprints

def fingerprint(rows):
    """[(request's number, position)] of rows that `--fingerprint` made: digits of 128, the lower one first."""
    digits = rows[:, :4].astype(np.int64)
    return [(int(a + 128 * b), int(c + 128 * d)) for a, b, c, d in digits]
