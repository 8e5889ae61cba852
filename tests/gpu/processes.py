# SPDX-License-Identifier: Apache-2.0
"""Programs that are run for an answer, whatever they do. What one writes goes to files, so no child of it can keep us waiting at a
pipe. Its process group ends with it. A process that SIGKILL does not end is left to itself after LINGER seconds.
"""
import os
import signal
import subprocess
import tempfile
import threading
import time

LINGER = 2          # seconds for a process to end after SIGKILL: one that waits in a driver may never end
MOST = 8 << 20      # bytes of a process's output that are read
alive = set()       # group ids of the processes that run() waits for
_lock = threading.Lock()
_ended = threading.Event()


class Ended:
    """How a process ended. crashed: by a signal, or not in time; text says how. timed_out: it was ended by us. left: its id if it is still there"""

    def __init__(self, status, stdout="", stderr="", timed_out=0, left=None):
        self.status, self.stdout, self.stderr, self.timed_out, self.left = status, stdout, stderr, bool(timed_out), left
        self.crashed = bool(timed_out) or status < 0
        if timed_out:
            self.text = f"did not end within {timed_out:.0f} s" + (f", nor after SIGKILL: process {left} was left to itself" if left else "")
        elif status < 0:
            self.text = f"died of signal {-status} ({signal.Signals(-status).name})"
        else:
            self.text = f"status {status}"

    def last_line(self):
        lines = (self.stderr if self.status != 77 else self.stdout).strip().splitlines()
        return lines[-1][-300:] if lines else "no reason was given"


def run(words, env, seconds):
    """Return: Ended. Its children end with it, unless they left its group."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            with _lock:
                if _ended.is_set():
                    return Ended(-signal.SIGKILL)
                process = subprocess.Popen([str(word) for word in words], env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                           start_new_session=True)
                alive.add(process.pid)
        except OSError as problem:
            return Ended(127, "", f"{words[0]} could not be started: {problem.strerror}")
        in_time = wait(process.pid, seconds)
        end_group(process.pid)
        there = not in_time and not wait(process.pid, LINGER)
        with _lock:
            alive.discard(process.pid)
        status = -signal.SIGKILL if there else process.wait()
        return Ended(status, text_of(out), text_of(err), 0 if in_time else seconds, process.pid if there else None)


def wait(pid, seconds):
    """Return: whether the child has ended within @seconds. It stays a zombie, so its group's id is not anyone else's."""
    end, pause = time.monotonic() + seconds, 0.002
    while not os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        if time.monotonic() >= end:
            return False
        time.sleep(pause)
        pause = min(0.05, pause * 1.5)
    return True


def end_group(pid):
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # all of it has ended; one of it is another user's
        pass


def end_all():
    """No process of run() goes on, and none is begun."""
    with _lock:
        _ended.set()
        for pid in alive:
            end_group(pid)


def text_of(file):
    file.seek(0)
    return file.read(MOST).decode(errors="replace")


def clean_environment(**more):
    """The caller's, less what steers the library; a Python that dies of a signal says where it was."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("DMI_") or "STANDIN" in k}
    env.pop("LD_PRELOAD", None)
    env.update({"PYTHONDONTWRITEBYTECODE": "1", "PYTHONFAULTHANDLER": "1", **{k: str(v) for k, v in more.items()}})
    return env
