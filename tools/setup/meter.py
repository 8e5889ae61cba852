#!/usr/bin/env -S python3 -S -E
# SPDX-License-Identifier: Apache-2.0
"""Run a command and note the CPU seconds of it and of all that it waited for: meter.py FILE NAME COMMAND...

Exits as the command does. A signal that ends tests goes to their group: the command answers it, this program waits.
"""
import json
import os
import signal
import sys


def main():
    file, name, command = sys.argv[1], sys.argv[2], sys.argv[3:]
    child = os.posix_spawnp(command[0], command, os.environ)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _, status, usage = os.wait4(child, 0)
    with open(file, "a", encoding="utf-8") as out:
        out.write(json.dumps({"name": name, "cpu": round(usage.ru_utime + usage.ru_stime, 2)}) + "\n")
    if os.WIFSIGNALED(status):
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main())
