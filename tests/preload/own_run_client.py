#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A program that does things with the files of its own run: own_run_client.py OUT COPY. Each line of stdin is one thing to do."""
import os
import pathlib
import select
import shutil
import sys
import time

import dmi
from graph_client import Client


class Owner(Client):
    def __init__(self, out, copy):
        super().__init__()
        self.out, self.copy, self.n = pathlib.Path(out), copy, 0

    @property
    def run(self):
        return next(path for path in self.out.iterdir() if not path.name.startswith(".") and not path.is_symlink())

    def do_launch(self):
        """One record each, apart in time: the drain batches what comes at once."""
        for _ in range(20):
            self.launch("block", self.streams[0], 0, 64, self.n)
            self.sync()
            time.sleep(0.002)
            self.n += 1

    def do_read(self):
        """As a trainer reads what it captures, and an upload copies it."""
        for _ in range(2):
            with dmi.open(self.run) as run:
                self.state = run.state
        for path in self.run.iterdir():
            with open(path, "rb") as file:
                file.read(64)
        shutil.copytree(self.run, self.copy, ignore=shutil.ignore_patterns("*.tmp"))

    def do_close(self):
        """As a program that closes what it did not open."""
        for name in os.listdir("/proc/self/fd"):
            try:
                if os.readlink(f"/proc/self/fd/{name}").startswith(str(self.out)):
                    os.close(int(name))
            except OSError:  # of the listing itself
                pass

    def do_fork(self):
        """A child that executes nothing, and lives on with what it inherited until its stdin ends."""
        if os.fork() == 0:
            os.close(1)
            os.close(2)
            end = select.poll()
            end.register(0, 0)
            end.poll()
            os._exit(0)


if __name__ == "__main__":
    owner = Owner(*sys.argv[1:])
    for line in iter(lambda: os.read(0, 64), b""):
        getattr(owner, f"do_{line.decode().strip()}")()
        print(getattr(owner, "state", "") or "done", flush=True)
