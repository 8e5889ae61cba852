# SPDX-License-Identifier: Apache-2.0
"""Entries that run a model of Hugging Face's: Qwen3 of several sizes, eagerly, in CUDA graphs, and compiled, without the library and with it.

A configuration of hugging_face_plan.py is a process. Values: what is captured by tap, by NVTX range and by kernel is, bit for bit,
what forward hooks put aside in the same process. Logits: the same bits without the library, with it, and captured. Figures: a step,
the prompt, memory, each beside those of the model alone; nothing is expected of them.
"""
import collections
import json
import pathlib
import shutil
import statistics

import hugging_face_plan as plan
from asking import Skipped, cached
from cases import DMI_DUMP, DMI_RUN, PRELOAD, library_log, read_npy
from processes import clean_environment

DISK = 3 << 30   # bytes that a captured configuration may write
MODEL = pathlib.Path(__file__).resolve().parent / "hugging_face_model.py"
VALUES = ("--prompt", "64", "--steps", "4")  # enough to compare


def ask(configuration, program=None, layers=None):
    """Return: what asks an entry that runs @configuration. @program: its words, less the options"""
    return lambda asked: Run(asked, configuration, program, layers).all()


class Run:
    """One configuration, whose rows go to @asked. table.kept has the results of those before it."""

    def __init__(self, asked, configuration, program, layers):
        self.asked, self.c, self.folder, self.add = asked, configuration, asked.folder, asked.add
        self.program, self.layers = program or [asked.python, MODEL], layers or plan.layers_of(configuration.size)
        self.results = asked.table.kept

    def all(self):
        alone = plan.alone(self.c)
        if alone != self.c.name and alone in self.results and "failed" in self.results[alone]:
            raise Skipped(self.results[alone]["failed"])
        disk = DISK * (2 if self.c.batch > 1 else 1)
        if self.c.library == "capture" and shutil.disk_usage(self.folder).free < disk:
            raise Skipped(f"{self.folder} has less than {disk >> 30} GiB free")
        ended = self.asked.run(self.words(), self.environment())
        self.asked.said.append("".join(f"library: {line}\n" for line in library_log(self.folder)))
        if self.outcome(ended):
            self.rows(plan.result_of(ended.stdout))

    def words(self):
        c = self.c
        words = [*self.program, "--mode", c.mode, "--take", c.take, "--sites", c.which, "--size", c.size, "--batch", c.batch, "--prompt", c.prompt]
        if c.take == "values":
            words += [*VALUES, "--aside", self.folder / "aside"]
        if c.library != "capture":
            return words
        spec = self.folder / "spec.yaml"
        spec.write_text(plan.spec(c, self.layers))
        return [DMI_RUN, "--strict", "--spec", spec, "--out", self.folder / "out", "--log", self.folder / "library.log", "--", *words]

    def environment(self):
        """No network; one cache of compiled code for all, so that the same graph is the same code."""
        more = {"LD_PRELOAD": PRELOAD} if self.c.library == "idle" else {}
        return clean_environment(HF_HUB_OFFLINE=1, TRANSFORMERS_OFFLINE=1, TOKENIZERS_PARALLELISM="false", USE_HUB_KERNELS=0,
                                 **cached(self.asked.shared), **more)

    def outcome(self, ended):
        """Return: false if there is nothing to look at."""
        good = not ended.status and plan.result_of(ended.stdout) is not None
        if self.c.library != "none":
            self.add("under the library it ends", ended.text if ended.status else "with a result" if good else "without a result",
                     "with a result", verdict="crashed" if ended.crashed else None, reason="" if good else ended.last_line())
            return good
        if not good:
            why = ended.last_line().removeprefix("skipped: ") if ended.status == 77 else f"without the library it {ended.text}: {ended.last_line()}"
            if self.c.take == "nothing":
                self.asked.table.keep(self.c.name, {"failed": why})
            raise Skipped(why)
        return good

    def rows(self, result):
        self.asked.table.keep(self.c.name, result)
        same = self.results.get(self.c.logits_of, {}).get("logits")
        if same:
            self.add(f"logits, bit for bit those of `{self.c.logits_of}`", "the same" if result["logits"] == same else "others", "the same")
        if self.c.take == "values":
            self.values()
        else:
            self.figures(result)
        if self.c.library == "capture":
            self.account(result)

    # ---- values

    def dump(self, *words):
        return self.asked.run([DMI_DUMP, *words])

    def values(self):
        folder = self.folder
        aside = plan.read_aside(folder / "aside")
        ended = self.dump("export", "--format", "npy", folder / "out", "-o", folder / "npy")
        captured = exported(folder / "npy") if not ended.status else {}
        for site, keys in by_site(aside).items():
            self.add(f"{len(keys)} tensors of {site} ({how_named(site)}), bit for bit what hooks saw",
                     difference(keys, captured, aside), "the same", reason=ended.last_line() if ended.status else "")
        more = sorted(captured.keys() - aside.keys())
        self.add("tensors that no hook saw", ", ".join(more[:5]) or "none", "none")
        self.asked.ended(self.dump("verify", folder / "out"), question="dmi-dump verify")

    # ---- figures

    def figures(self, result):
        plain = self.results.get(plan.alone(self.c), {})
        for question, key, n_tokens in (("a step", "step_ms", self.c.batch), (f"the prompt, {result.get('prompt')} tokens", "prompt_ms", result.get("prompt"))):
            if result.get(key):
                self.add(question, time_of(result[key], n_tokens, plain.get(key)), verdict="figure")
        for what, key in (("a step", "turns_ms"), ("the prompt", "prompt_turns_ms")):
            for name, times in result.get(key, {}).items():
                off = statistics.median(result[key]["off"])
                self.add(f"{what}, {name}", time_of(times, self.c.batch, plain.get(key.replace("turns", "step").replace("prompt_step", "prompt")))
                         + f", {statistics.median(times) / off:.4f} x off", verdict="figure")
        if "skipped_graphs" in result:
            self.add("graphs of the compiler's that are no CUDA graphs", result["skipped_graphs"], verdict="figure")
        if "peak_bytes" in result:
            self.add("memory", memory_of(result, plain), verdict="figure")

    def account(self, result):
        """All rows of all sites: one for each token that the model was given."""
        stats = self.dump("stats", "--json", self.folder / "out")
        sums = tally(stats.stdout)
        if sums is None:
            self.add("captured + dropped = expected", stats.text, "statistics", reason=stats.last_line())
            return
        answer = f"{sums['captured']} + {sums['dropped']} = {sums['expected']} rows"
        balances = sums["captured"] + sums["dropped"] == sums["expected"] and sums["holds"]
        if self.c.take == "taps":  # there rows of logits and of marks count otherwise, and switched sites are not asked for
            balances = balances and sums["expected"] == result["n_sites"] * result["n_tokens"]
        self.add("captured + dropped = expected", answer, "one row a site and token", verdict="ok" if balances else "differs",
                 reason=", ".join(f"{k} {v}" for k, v in sums["reasons"].items()))


# ---- what a run holds, against what was put aside


def exported(folder):
    """{key: bytes} of what `dmi-dump export --format npy` wrote."""
    index = json.loads((folder / "index.json").read_text())
    return {key: read_npy(folder / entry["file"])[1] for key, entry in index["tensors"].items()}


def by_site(aside):
    """{site: its keys}, in the order of the first ones."""
    found = {}
    for key in aside:
        found.setdefault(key.partition(".")[0], []).append(key)
    return found


def how_named(site):
    return "by NVTX range" if site.startswith("nvtx") else "by kernel" if site == "marked" else "by tap"


def difference(keys, captured, aside):
    """'the same', or what is otherwise."""
    missing = [key for key in keys if key not in captured]
    if missing:
        return f"{len(missing)} of {len(keys)} are missing, the first is {missing[0]}"
    wrong = [key for key in keys if captured[key] != aside[key]]
    if not wrong:
        return "the same"
    ours, theirs = captured[wrong[0]], aside[wrong[0]]
    if len(ours) != len(theirs):
        return f"{len(wrong)} of {len(keys)} differ: {wrong[0]} has {len(ours)} bytes, not {len(theirs)}"
    at = next(i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b)
    return f"{len(wrong)} of {len(keys)} differ: {wrong[0]} from byte {at} of {len(ours)}"


def tally(text):
    """Rows of all sites together, as `dmi-dump stats --json` says; None if it does not."""
    try:
        sites = json.loads(text)["sites"]
        sums = {key: sum(site[key]["rows"] for site in sites) for key in ("expected", "captured", "dropped")}
        reasons = collections.Counter()
        for site in sites:
            reasons.update(site["dropped_by_reason"])
        return {**sums, "reasons": reasons, "holds": all(site["holds"] for site in sites)}
    except (ValueError, KeyError, TypeError):
        return None


# ---- figures as text


def ratio(value, plain):
    return f", {value / plain:.3f} x plain" if plain else ""


def time_of(times, n_tokens, plain):
    """@times, @plain: milliseconds; None where there is no plain one."""
    median = statistics.median(times)
    text = f"median {median:.3f} ms of {len(times)}, least {min(times):.3f} ms"
    if median:
        text += f", {1e3 * n_tokens / median:.0f} tokens/s"
    return text + ratio(median, statistics.median(plain) if plain else None)


def memory_of(result, plain):
    def of(key):
        more = f" ({(result[key] - plain[key]) / (1 << 20):+.0f} to plain)" if key in plain else ""
        return f"{result[key] / (1 << 20):.0f} MiB{more}"

    return f"tensors at most {of('peak_bytes')}, of the device in use {of('in_use_bytes')}"

