# SPDX-License-Identifier: Apache-2.0
"""The group `hugging face`: a model of Qwen3-0.6B's sizes, eagerly, in a CUDA graph, and compiled, without the library and with it.

A configuration of hugging_face_plan.py is a process. Values: what is captured by tap, by NVTX range and by kernel is, bit for bit,
what forward hooks put aside in the same process. Logits: the same bits without the library, with it, and captured. Figures: a step,
the prompt, memory, each beside those of the model alone; nothing is expected of them.
"""
import collections
import json
import pathlib
import shutil
import statistics
import time

import cases
import hugging_face_plan as plan
from cases import DMI_DUMP, DMI_RUN, PRELOAD, clean_environment, read_npy, run

GROUP = "hugging face"
SHARE = 100      # seconds that other groups leave, of a run of all
DISK = 3 << 30   # bytes that a captured configuration may write
MODEL = pathlib.Path(__file__).resolve().parent / "hugging_face_model.py"
OVER = "the time for all is over"
ALONE = f"{OVER}: --only '{GROUP}' --seconds 1800 has time for all of this group"
VALUES = ("--prompt", "64", "--steps", "4")  # enough to compare


def can_run(packages):
    """Whether a machine with these packages, as the table's facts name them, has what the model needs."""
    words = packages.split()
    versions = dict(zip(words[::2], words[1::2]))
    return all(versions.get(name, "none") != "none" for name in ("torch", "transformers"))


class HuggingFace:
    """Runs configurations and adds their rows to @table. @deadline: by time.monotonic(). @program: its words, less the options"""

    def __init__(self, table, folder, python, deadline, program=None, layers=plan.LAYERS):
        self.table, self.folder, self.deadline = table, pathlib.Path(folder), deadline
        self.program, self.layers = program or [python, MODEL], layers
        self.results, self.failed = {}, {}  # by configuration; by mode, why the model does not run without the library

    def left(self):
        return self.deadline - time.monotonic()

    def run_all(self, configurations=plan.PLAN):
        for configuration in configurations:
            if reason := self.why_not(configuration):
                self.table.skip(GROUP, configuration.name, reason)
            else:
                self.run(configuration)

    def why_not(self, configuration):
        """Why it is not begun, or ''."""
        if configuration.mode in self.failed:
            return self.failed[configuration.mode]
        if self.left() < plan.NEEDS[configuration.mode]:
            return ALONE
        if configuration.library == "capture" and shutil.disk_usage(self.folder).free < DISK:
            return f"{self.folder} has less than {DISK >> 30} GiB free"
        return ""

    # ---- one of them

    def run(self, configuration):
        folder = self.folder / configuration.name.replace(",", "").replace(" ", "-")
        folder.mkdir()
        log = self.folder / f"{folder.name}.log"
        limit = plan.SECONDS[configuration.mode]
        seconds = min(limit, self.left())
        ended = run(self.words(configuration, folder), self.environment(configuration), seconds, log)
        said = cases.library_log(folder)
        with open(log, "a", encoding="utf-8") as file:
            file.write("".join(f"library: {line}\n" for line in said))
        if ended.text.startswith("did not end") and seconds < limit:
            self.table.skip(GROUP, configuration.name, f"{ALONE} (it had {seconds:.0f} s)")
        elif self.outcome(configuration, ended):
            self.rows(configuration, folder, log, plan.result_of(ended.stdout))
        shutil.rmtree(folder, ignore_errors=True)

    def words(self, c, folder):
        words = [*self.program, "--mode", c.mode, "--take", c.take, "--sites", c.which]
        if c.take == "values":
            words += [*VALUES, "--aside", folder / "aside"]
        if c.library != "capture":
            return words
        spec = folder / "spec.yaml"
        spec.write_text(plan.spec(c, self.layers))
        return [DMI_RUN, "--strict", "--spec", spec, "--out", folder / "out", "--log", folder / "library.log", "--", *words]

    def environment(self, c):
        """No network; one cache of compiled code for all, so that the same graph is the same code."""
        cache = self.folder / "hugging-face-cache"
        more = {"LD_PRELOAD": PRELOAD} if c.library == "idle" else {}
        return clean_environment(HF_HUB_OFFLINE=1, TRANSFORMERS_OFFLINE=1, TOKENIZERS_PARALLELISM="false", USE_HUB_KERNELS=0,
                                 TORCHINDUCTOR_CACHE_DIR=cache / "inductor", TRITON_CACHE_DIR=cache / "triton", **more)

    def add(self, c, question, answer, expected="", **more):
        return self.table.add(GROUP, c.name, question, answer, expected, **more)

    def outcome(self, c, ended):
        """Return: false if there is nothing to look at."""
        good = not ended.status and plan.result_of(ended.stdout) is not None
        if c.library != "none":
            self.add(c, "under the library it ends", ended.text if ended.status else "with a result" if good else "without a result",
                     "with a result", verdict="crashed" if ended.crashed else None, reason="" if good else ended.last_line())
            return good
        if not good:
            why = ended.last_line().removeprefix("skipped: ") if ended.status == 77 else f"without the library it {ended.text}: {ended.last_line()}"
            self.table.skip(GROUP, c.name, why)
            if c.take == "nothing":
                self.failed[c.mode] = why
        return good

    def rows(self, c, folder, log, result):
        self.results[c.name] = result
        if c.logits_of in self.results:
            same = result["logits"] == self.results[c.logits_of]["logits"]
            self.add(c, f"logits, bit for bit those of `{c.logits_of}`", "the same" if same else "others", "the same")
        if c.take == "values":
            self.values(c, folder, log)
        else:
            self.figures(c, result)
        if c.library == "capture":
            self.account(c, folder, log, result)

    # ---- values

    def values(self, c, folder, log):
        aside = plan.read_aside(folder / "aside")
        ended = run([DMI_DUMP, "export", "--format", "npy", folder / "out", "-o", folder / "npy"], clean_environment(), max(10, self.left()), log)
        captured = exported(folder / "npy") if not ended.status else {}
        for site, keys in by_site(aside).items():
            self.add(c, f"{len(keys)} tensors of {site} ({how_named(site)}), bit for bit what hooks saw",
                     difference(keys, captured, aside), "the same", reason=ended.last_line() if ended.status else "")
        more = sorted(captured.keys() - aside.keys())
        self.add(c, "tensors that no hook saw", ", ".join(more[:5]) or "none", "none")
        verified = run([DMI_DUMP, "verify", folder / "out"], clean_environment(), max(10, self.left()), log)
        self.add(c, "dmi-dump verify", verified.text, "status 0")

    # ---- figures

    def figures(self, c, result):
        plain = self.results.get(f"{c.mode} plain", {})
        for question, key, n_tokens in (("a step", "step_ms", 1), (f"the prompt, {result.get('prompt')} tokens", "prompt_ms", result.get("prompt"))):
            if result.get(key):
                self.add(c, question, time_of(result[key], n_tokens, plain.get(key)), verdict="figure")
        if "skipped_graphs" in result:
            self.add(c, "graphs of the compiler's that are no CUDA graphs", result["skipped_graphs"], verdict="figure")
        if "peak_bytes" in result:
            self.add(c, "memory", memory_of(result, plain), verdict="figure")

    def account(self, c, folder, log, result):
        """All rows of all sites: one for each token that the model was given."""
        stats = run([DMI_DUMP, "stats", "--json", folder / "out"], clean_environment(), max(10, self.left()), log)
        sums = tally(stats.stdout)
        if sums is None:
            self.add(c, "captured + dropped = expected", stats.text, "statistics", reason=stats.last_line())
            return
        answer = f"{sums['captured']} + {sums['dropped']} = {sums['expected']} rows"
        balances = sums["captured"] + sums["dropped"] == sums["expected"] and sums["holds"]
        if c.take != "values":  # there rows of logits and of marks count otherwise
            balances = balances and sums["expected"] == result["n_sites"] * result["n_tokens"]
        self.add(c, "captured + dropped = expected", answer, "one row a site and token", verdict="ok" if balances else "differs",
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


def names():
    """Of all configurations."""
    return [configuration.name for configuration in plan.PLAN]
