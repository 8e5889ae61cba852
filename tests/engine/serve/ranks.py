# SPDX-License-Identifier: Apache-2.0
"""Several processes for one model: sums over tensor-parallel ranks, hand-over between stages, tokens for all.

Every process runs the same scheduler and comes to the same decisions; what one computes of a step the others learn
here, through memory of the host: a process copies a tensor into a slot of its own in a shared file, and says which slot through
a socket. Sums are taken in the order of ranks, so all ranks have the same bits. Nothing overlaps.
"""
import mmap
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

import numpy as np

from .batch import BEST
from .catalogue import Unsaid
from .model import Part

# A process that is in the n-th round has seen all others begin it, so nobody still reads what it wrote two rounds before.
SLOTS, SLOT_BYTES, PATIENCE = 4, 1 << 20, 600


def join(part, group):
    """The Ranks of a process, or None if there is one only."""
    return Ranks(part, pathlib.Path(group)) if part.ranks * part.stages > 1 else None


def part_of(opt):
    return Part(opt.rank % opt.ranks, opt.ranks, opt.rank // opt.ranks, opt.stages)


def start_all(opt):
    """Start this program once for each process of the model and wait for them; returns the exit status."""
    with tempfile.TemporaryDirectory(prefix="serve-") as group:
        children = [subprocess.Popen([sys.executable, *sys.argv, "--rank", str(i), "--group", group])
                    for i in range(opt.ranks * opt.stages)]
        # One that fails leaves its sockets closed, which ends the others.
        statuses = [child.wait() for child in children]
    return next((status for status in statuses if status), 0)


class Ranks:
    def __init__(self, part, folder):
        self.part, self.n, self.me = part, part.ranks * part.stages, part.number
        self.written, self.sockets, self.says = 0, {}, Unsaid()
        fd = os.open(folder / "memory", os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(fd, self.n * SLOTS * SLOT_BYTES)
        self.memory = mmap.mmap(fd, self.n * SLOTS * SLOT_BYTES)
        os.close(fd)
        self.connect(folder)

    def connect(self, folder):
        """A socket to each of the others: to those before this one it goes, the later ones come."""
        door = socket.socket(socket.AF_UNIX)
        door.settimeout(PATIENCE)
        door.bind(str(folder / f"door-{self.me}.new"))
        door.listen(self.n)
        os.rename(folder / f"door-{self.me}.new", folder / f"door-{self.me}")
        for other in range(self.me):
            started = time.monotonic()
            while not (folder / f"door-{other}").exists():
                if time.monotonic() - started > PATIENCE:
                    raise SystemExit(f"process {other} of the model did not start")
                time.sleep(0.02)
            self.sockets[other] = socket.socket(socket.AF_UNIX)
            self.sockets[other].settimeout(PATIENCE)
            self.sockets[other].connect(str(folder / f"door-{other}"))
            self.sockets[other].sendall(bytes([self.me]))
        for _ in range(self.me + 1, self.n):
            came, _ = door.accept()
            came.settimeout(PATIENCE)
            self.sockets[came.recv(1)[0]] = came

    # ---- bytes

    def post(self, data, others):
        """Show @data to @others."""
        if len(data) > SLOT_BYTES:
            raise ValueError(f"{len(data)} bytes for a slot of {SLOT_BYTES}")
        slot, self.written = self.written % SLOTS, self.written + 1
        at = (self.me * SLOTS + slot) * SLOT_BYTES
        self.memory[at:at + len(data)] = data
        for other in others:
            self.sockets[other].sendall(bytes([slot]))

    def wait(self, other, n_bytes):
        """What @other posted next for this process."""
        said = self.sockets[other].recv(1)
        if not said:
            raise SystemExit(f"process {other} of the model has ended")
        at = (other * SLOTS + said[0]) * SLOT_BYTES
        return self.memory[at:at + n_bytes]

    def peers(self, stage):
        return range(stage * self.part.ranks, (stage + 1) * self.part.ranks)

    # ---- what a step needs

    def reduce(self, runner, places, n_rows):
        """The sum over the ranks of this stage, in float32 and in the order of ranks; rounded once."""
        dtype, width = runner.model.dtype, runner.model.shape.width
        mine = runner.device.download(places[0], (n_rows, width), dtype.store)
        peers = self.peers(self.part.stage)
        self.post(mine.tobytes(), [p for p in peers if p != self.me])
        total = np.zeros((n_rows, width), dtype=np.float32)
        for peer in peers:
            part = mine if peer == self.me else np.frombuffer(self.wait(peer, mine.nbytes), dtype.store).reshape(mine.shape)
            total += dtype.decode(part)
        runner.device.upload(dtype.encode(total), places[0])

    def send(self, runner, places, n_rows):
        """Residual and mlp_out to the same rank of the next stage."""
        shape = (n_rows, runner.model.shape.width)
        data = b"".join(runner.device.download(place, shape, runner.model.dtype.store).tobytes() for place in places)
        self.post(data, [self.me + self.part.ranks])

    def receive(self, runner, places, n_rows):
        n_bytes = n_rows * runner.model.shape.width * runner.model.dtype.size
        data = self.wait(self.me - self.part.ranks, n_bytes * len(places))
        for i, place in enumerate(places):
            runner.device.upload(np.frombuffer(data, np.uint8, n_bytes, i * n_bytes), place)

    def tokens(self, best, n, first_token):
        """The likeliest tokens, for all processes. @best: of this rank's part of the vocabulary, None before the last stage;
        @first_token: of each rank's part."""
        last = self.peers(self.part.stages - 1)
        if best is not None:
            with self.says.range("Worker::Response"):
                self.post(best.tobytes(), [p for p in range(self.n) if p != self.me])
        every = [best if p == self.me else np.frombuffer(self.wait(p, n * BEST.itemsize), BEST) for p in last]
        values = np.stack([part["value"] for part in every])
        winner = values.argmax(axis=0)  # of equal ones the first rank, which has the lower tokens
        return [int(every[w]["at"][i]) + first_token[w] for i, w in enumerate(winner)]
