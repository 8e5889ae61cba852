# SPDX-License-Identifier: Apache-2.0
"""Lines on the stderr of a program that is not DMI's.

A line never raises into the program, never ends it by a signal, never waits for a reader, never lands in stdout or in another file,
and leaves nothing in Python's buffers, as what cannot be flushed at exit makes the program's status 120.
"""
import os
import select
import signal
import sys

RAISED = {signal.SIGPIPE, signal.SIGXFSZ}
PIPE_BUF = 4096  # a pipe takes as much as one piece


def _stderr():
    """Which file descriptor 2 is; None: none."""
    try:
        found = os.fstat(2)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_rdev


_AT_START = _stderr()


def _write(text):
    """One write to descriptor 2, if it is the file that it was and takes it now."""
    if _AT_START is None or _stderr() != _AT_START:
        return
    poll = select.poll()
    poll.register(2, select.POLLOUT)
    if any(events & select.POLLOUT for _, events in poll.poll(0)):
        os.write(2, text.encode(errors="replace")[:PIPE_BUF - 1] + b"\n")


def say(text):
    """A line on stderr, or nothing."""
    if sys.stderr is None:
        return
    try:
        if sys.stderr is not sys.__stderr__:  # a notebook's, a test's
            print(text, file=sys.stderr)
            return
        before = signal.sigpending()
        held = signal.pthread_sigmask(signal.SIG_BLOCK, RAISED)
        try:
            _write(text)
        finally:
            for raised in RAISED & (signal.sigpending() - before):
                signal.sigtimedwait({raised}, 0)
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
    except (OSError, ValueError):
        pass
