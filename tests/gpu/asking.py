# SPDX-License-Identifier: Apache-2.0
"""One entry of the queue while it is asked: where its rows go, its folder, its time, the processes that it runs."""
import errno
import os
import pathlib
import shutil
import threading
import time

import processes

SAID = 16 << 10     # characters of a process's output that are kept
ROOM = 64 << 20     # bytes free on the disk: with less, no entry is begun
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)
LEAST = 45          # seconds for a process at least
OVER = "the time for all is over"


class Over(Exception):
    """The time for all ended while a process ran: its entry is not answered."""


class Skipped(Exception):
    """Why an entry cannot be asked here: its first argument."""


class Asked:
    """@entry: of the queue; @machine: contact.Machine; @deadline: of all, by time.monotonic()"""

    def __init__(self, entry, table, machine, deadline):
        self.entry, self.name, self.table, self.machine, self.python = entry, entry.name, table, machine, machine.python
        self.shared = pathlib.Path(machine.folder)
        self.folder = self.shared / entry.name.replace(" ", "-").replace(",", "")
        self.deadline = deadline
        self.limit = max(LEAST, 3 * entry.seconds) * (3 if machine.is_standin else 1)  # for one process
        self.said = []

    def over(self):
        """Is too little time left to begin?"""
        return time.monotonic() + self.entry.seconds / 2 >= self.deadline

    def left(self):
        """Seconds for the next process."""
        return max(0.1, min(self.limit, self.deadline - time.monotonic()))

    def run(self, words, env=None, at_most=None):
        """Return: processes.Ended; what it said is kept."""
        seconds = min(self.left(), at_most or self.limit)
        ended = processes.run(words, env or processes.clean_environment(), seconds)
        said = [text if len(text) <= SAID else f"{text[:SAID // 2]}\n...\n{text[-SAID // 2:]}" for text in (ended.stdout, ended.stderr)]
        self.said.append(f"$ {' '.join(map(str, words))}\n{said[0]}{said[1]}= {ended.text}\n")
        if ended.timed_out and time.monotonic() >= self.deadline:
            raise Over
        return ended

    def skip(self, reason):
        self.table.begin(self.name)
        self.add("", "", verdict="skipped", reason=reason)
        self.table.end(self.name, False, 0, "")

    def add(self, question, answer, expected="", **more):
        return self.table.add(self.name, question, answer, expected, **more)

    def ended(self, ended, expected="status 0", question="it ends", **more):
        """A row that says how a process ended."""
        more.setdefault("reason", "" if ended.text == expected else ended.last_line())
        return self.add(question, ended.text, expected, verdict="crashed" if ended.crashed else None, **more)

    def ask(self):
        """Ask the entry, whatever becomes of it."""
        start, answered = time.monotonic(), True
        self.table.begin(self.name)
        try:
            if shutil.disk_usage(self.shared).free < ROOM:
                raise Skipped(f"{self.shared} has less than {ROOM >> 20} MiB free")
            self.folder.mkdir(exist_ok=True)
            self.entry.ask(self)
        except Over:
            answered = self.add("", "", verdict="skipped", reason=OVER) and False
        except Skipped as reason:
            answered = self.add("", "", verdict="skipped", reason=reason) and False
        except Exception as problem:  # one entry's fault is not the others'
            no_room = isinstance(problem, OSError) and problem.errno in NO_ROOM
            reason = f"{problem.filename or self.shared}: {problem.strerror}" if no_room else f"{type(problem).__name__}: {problem}"
            answered = self.add("", "", verdict="skipped" if no_room else "crashed", reason=reason) and False
        shutil.rmtree(self.folder, ignore_errors=True)
        self.table.end(self.name, answered, time.monotonic() - start, "\n".join(self.said))


# ---- what entries need of the machine

NEEDS = {
    "torch": "import torch; torch.cuda.init(); torch.zeros(1, device='cuda'); print(torch.__version__)",
    "transformers": "from transformers import Qwen3Config, Qwen3ForCausalLM, StaticCache",
    "triton": "import triton.language",
}
NEED_SECONDS = 200  # an import from a cold disk


class Needs:
    """Asked once each, when the first entry needs it. What is imported for it is in the file cache afterwards."""

    def __init__(self, python):
        self.python, self.found, self.locks = python, {}, {name: threading.Lock() for name in NEEDS}

    def lack(self, name):
        """'', or a sentence that says why the machine has no @name."""
        with self.locks[name]:
            if name not in self.found:
                ended = processes.run([self.python, "-c", NEEDS[name]], processes.clean_environment(), NEED_SECONDS)
                why = ended.last_line() if not ended.timed_out else ended.text
                self.found[name] = f"{name} does not work here: {why}" if ended.status else ""
            return self.found[name]

    def lacks(self, names):
        return next(filter(None, map(self.lack, names)), "")


def cached(folder):
    """Variables by which all programs share what they compile, so that one that ran earlier has done it."""
    cache = pathlib.Path(folder) / "cache"
    return {"TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"), "TRITON_CACHE_DIR": str(cache / "triton"),
            "CUDA_CACHE_PATH": os.environ.get("CUDA_CACHE_PATH", str(cache / "cuda"))}
