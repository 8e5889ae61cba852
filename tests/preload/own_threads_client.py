#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Launches `block`, with its thread pinned to one CPU where there are two, and says of each other thread of the process: name, nice,
CPUs. own_threads_client.py LAUNCHES"""
import json
import os
import sys
import time

from graph_client import Client


def threads():
    """{name: [(nice, CPUs)]} of all threads but this one"""
    found = {}
    for number in sorted(os.listdir("/proc/self/task")):
        if int(number) != os.getpid():
            with open(f"/proc/self/task/{number}/comm", encoding="utf-8") as file:
                name = file.read().strip()
            found.setdefault(name, []).append((os.getpriority(os.PRIO_PROCESS, int(number)), sorted(os.sched_getaffinity(int(number)))))
    return found


def settled():
    """The threads of the library, once all have begun; they may take their time. Until then a thread has the name of the one that started it."""
    end = time.monotonic() + 10
    with open("/proc/self/comm", encoding="utf-8") as file:
        begins = file.read().strip()
    while True:
        found = threads()
        own = {name: of for name, of in found.items() if name.startswith("dmi-")}
        if begins not in found and all(nice >= 10 for nice, _ in own.get("dmi-encode", ())) or time.monotonic() > end:
            return own
        time.sleep(0.01)


def main():
    given = sorted(os.sched_getaffinity(0))
    if len(given) > 1:
        os.sched_setaffinity(0, given[:1])
    client = Client()
    for seed in range(int(sys.argv[1])):
        client.launch("block", client.streams[0], 0, 64, seed)
    client.sync()
    own = settled()
    print(f"threads {json.dumps([given, own])}", file=sys.stderr)
    print(len(given) > 1 and sorted(os.sched_getaffinity(0)) == given[:1], os.getpriority(os.PRIO_PROCESS, 0))


main()
