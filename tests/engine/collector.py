# SPDX-License-Identifier: Apache-2.0
"""Takes the stand-in's dumps as they come, through a pipe, and keeps a digest of the rows that sites pick.

A run of all requests dumps some gigabytes (the whole KV cache at every layer of every token), so they are
neither stored nor kept: the rows of each site are cut out and hashed.
"""
import hashlib
import json
import os
import select
import struct
import threading

import numpy as np

import sites
import standin_log


def digest(rows):
    """[rows, width] -> 16 bytes"""
    return hashlib.blake2b(np.ascontiguousarray(rows).tobytes(), digest_size=16).digest()


class LogTail:
    """Launch records of a call log that is still being written, by sequence number."""

    def __init__(self, path):
        self.path, self.file, self.launches, self.part = path, None, {}, b""

    def launch(self, seq):
        if seq not in self.launches:
            self.read()
        return self.launches.get(seq)

    def read(self):
        if self.file is None:
            self.file = open(self.path, "rb")
        lines = (self.part + self.file.read()).split(b"\n")
        self.part = lines.pop()
        for line in lines:
            if b'"ev":"launch"' in line:
                record = json.loads(line)
                record["params"] = bytes.fromhex(record["params"])
                self.launches[record["seq"]] = record


class Collector(threading.Thread):
    """Reads dumps from the pipe at @fifo until stop(); digests: {(launch, site): digest}."""

    HEADER = struct.Struct("<IHHQQQ")

    def __init__(self, fifo, log):
        super().__init__(daemon=True)
        os.mkfifo(fifo, 0o600)
        self.fd = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        self.tail, self.digests, self.error, self.ending = LogTail(log), {}, None, False
        self.rules, of_site = sites.dump_rules()
        self.by_rule = {}
        for site, rule in enumerate(of_site):
            self.by_rule.setdefault(rule, []).append(site)

    def read(self, n):
        """n bytes, or what there was when the writer was gone."""
        parts = bytearray()
        while len(parts) < n:
            # What is not there when the program has ended will not come.
            ready, _, _ = select.select([self.fd], [], [], 0.2)
            if not ready:
                if self.ending:
                    break
                continue
            try:
                part = os.read(self.fd, min(n - len(parts), 1 << 20))
            except BlockingIOError:
                continue
            if not part:
                if self.ending:
                    break
                # Nobody has the pipe open yet.
                threading.Event().wait(0.02)
            parts += part
        return bytes(parts)

    def run(self):
        try:
            while len(head := self.read(self.HEADER.size)) == self.HEADER.size:
                magic, rule, _, seq, _, n_bytes = self.HEADER.unpack(head)
                if magic != standin_log.MAGIC:
                    raise ValueError("no dump record where one was expected")
                data = self.read(n_bytes)
                if len(data) < n_bytes:
                    raise ValueError("a dump was cut short")
                launch = self.tail.launch(seq)
                for i in self.by_rule[rule]:
                    site = sites.SITES[i]
                    picked = site.pick(np.frombuffer(data, dtype=site.dtype), launch)
                    self.digests[seq, i] = digest(picked)
        except Exception as error:  # shown by stop(), in the test's own thread
            self.error = error
            while self.read(1 << 20):
                pass

    def stop(self):
        self.ending = True
        self.join()
        os.close(self.fd)
        if self.error:
            raise self.error
        return self.digests
