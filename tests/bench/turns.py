#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What patch and feature cost where every second step has them: turns.py DMI_RUN [LAYERS [TOKENS [ROUNDS]]].

Eight requests are decoded together by tests/engine/serve.py in graphs, in float32. Edits of these positions are done at every second step, in each layer.
For each clock: the median of the steps without an edit, and the median of what a step with one took more than the step before it. Rounds in turn. A row of a
bank of 64 MiB is patched twice: with the donor's row alone in the bank, and with a bank that earlier requests have filled.
"""
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import serve
from edits import edit, spec, text_of

CLOCKS = "by the clock", "CPU of the process", "CPU of the launching thread"
FIRST = 4  # position of the first token that is decoded
BANK = "edits: {bank: 64M}\n"
ROWS = (64 << 20) // (1040 * 3)  # of 576 elements, for which the bank has room
PROMPT = 96  # tokens of a request that is served before

PATCH_OF_BANK = {"patch": "bank:clean", "times": 0.1}
FULL = "the same, and the bank is full"
WAYS = {
    "patch, one request of eight": ({"patch": "noise", "times": 0.1}, "r3"),
    "feature, all requests": ({"feature": "noise", "encoder": "joy", "to": 2}, "*"),
    "patch of the bank, one request of eight": (PATCH_OF_BANK, "r3"),
    FULL: (PATCH_OF_BANK, "r3"),
}


def report(who, way, steps):
    """@steps: pairs of steps, without the edit and with it; of each the seconds by each clock."""
    for i, clock in enumerate(CLOCKS):
        usual, more = (statistics.median(times) for times in zip(*((plain[i], edited[i] - plain[i]) for plain, edited in steps)))
        print(f"  {who:14} {way:40} {clock:28} {usual * 1e3:8.2f} ms {more * 1e6:+8.0f} us {1 + more / usual:7.4f}")


def served(folder, dmi_run, do, requests, layers, tokens, before=(), save=()):
    """Pairs of decode steps of the eight: one without the edit, the next with @do in each layer. Of each step the seconds by each clock.

    before, save  requests that are served before, and the edits that save rows of them
    """
    folder.mkdir()
    serve.write_requests(folder, tokens, before)
    turns = [edit(f"at{at}", do, requests, tokens=f"{at}:{at + 1}") for at in range(FIRST + 1, FIRST + tokens, 2)]
    (folder / "spec.yaml").write_text(spec(True).replace("sites:", (BANK if save else "") + "sites:", 1))
    (folder / "edits.yaml").write_text(text_of(*save, *turns))
    command = [dmi_run, "--spec", folder / "spec.yaml", "--edits", folder / "edits.yaml", "--out", folder / "out", "--",
               *serve.command_of(folder, layers, "--steps")]
    subprocess.run([str(word) for word in command], check=True, stderr=subprocess.DEVNULL)
    steps = [seconds for seconds, step in serve.steps_of(folder) if step["rows"] == 8 and step["items"][0]["request"] == "r0" and step["items"][0]["start"] >= FIRST]
    return list(zip(steps[0::2], steps[1::2]))


def donors(full, layers):
    """(requests that are served before, edits that save their rows): one row in each layer, or more than the bank has room for."""
    n = 1 if not full else -(-ROWS // (layers * PROMPT)) + 1
    save = edit("clean", {"save": "clean", "keep": True}, "d0", tokens="0:1"), edit("more", {"save": "more", "keep": True}, "d*", tokens="1:")
    return [{"id": f"d{i}", "prompt_tokens": [1, *range(504, 503 + PROMPT)], "max_tokens": 1} for i in range(n)], save[:1 + full]


def check(folder, dmi_run, full):
    """Each row that was to be patched was, and the bank was full or not, as it should be."""
    command = [pathlib.Path(dmi_run).with_name("dmi-dump"), "stats", next((folder / "out").glob("*/manifest.json")).parent, "--edits", "--json"]
    accounts = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["edit_accounts"]
    missed = {account["edit"]: account["missed"] for account in accounts if account["missed"]}
    if missed.keys() != ({"more"} if full else set()):
        raise SystemExit(f"turns.py: rows were missed that should not be, or the bank was not full: {missed}")


def main():
    dmi_run, *more = sys.argv[1:]
    layers, tokens, rounds = (int(word) for word in (more + ["30", "32", "3"][len(more):]))
    pairs = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory(prefix="dmi-bench-turns-") as base:
        for i in range(rounds):
            for n, (way, (do, requests)) in enumerate(WAYS.items()):
                folder = pathlib.Path(base) / f"{i}-{n}"
                pairs[way] += served(folder, dmi_run, do, requests, layers, tokens, *(donors(way == FULL, layers) if do is PATCH_OF_BANK else ()))
                check(folder, dmi_run, way == FULL)
    n = len(pairs[FULL])
    print(f"decode steps of 8 rows, {layers} layers, float32, in graphs: one without the edit, and what the next one takes more, with it at each layer; medians of {n}")
    for way, steps in pairs.items():
        report("dmi, graphs", way, steps)


if __name__ == "__main__":
    main()
