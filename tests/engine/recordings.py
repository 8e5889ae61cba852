# SPDX-License-Identifier: Apache-2.0
"""Recordings of dmi-sites, read and written from docs/sites.md ("The file") alone."""
import struct

import xxhash
import zstandard

HEADER, CHUNK = struct.Struct("<QIIQ40x"), struct.Struct("<IIQQQ")
KERNEL, PARAM, LAUNCH, POINTER = struct.Struct("<II"), struct.Struct("<II"), struct.Struct("<QII3I3IIIII"), struct.Struct("<IIQQQ")
BYTES, RUN, END = struct.Struct("<QII"), struct.Struct("<QQ"), struct.Struct("<QII")
MAGIC, VERSION = int.from_bytes(b"DMIREC1\0", "little"), 1
NO_LAYOUT, IN_GRAPH = 2**32 - 1, 1
REASONS = ("exit", "forwards", "budget", "error")


class Launch:
    """One launch: name, grid, block, params (packed), pointers [(offset, address, base, bytes)], before and after:
    [(address, bytes)] that memory held where that was new."""

    def __init__(self, name, layout, fields, pointers, params, before):
        self.name, self.layout = name, layout
        self.sequence, _, self.flags, *rest = fields
        self.grid, self.block, self.shared = tuple(rest[:3]), tuple(rest[3:6]), rest[6]
        self.pointers, self.params, self.before, self.after = pointers, params, before, []

    @property
    def in_graph(self):
        return bool(self.flags & IN_GRAPH)


class Recording:
    """What a file holds."""

    def __init__(self, path):
        data = path.read_bytes()
        magic, version, n_header, self.pid = HEADER.unpack_from(data)
        assert (magic, version, n_header) == (MAGIC, VERSION, HEADER.size)
        self.kernels, self.launches, self.unseen, self.end, self.reason, before = [], [], [], None, None, []
        at = n_header
        while at < len(data):
            kind, _, n_stored, n_plain, checksum = CHUNK.unpack_from(data, at)
            chunk = data[at + CHUNK.size:at + CHUNK.size + n_stored]
            at += CHUNK.size + n_stored
            assert xxhash.xxh3_64_intdigest(chunk) == checksum
            if n_plain:
                chunk = zstandard.ZstdDecompressor().decompress(chunk, max_output_size=n_plain)
                assert len(chunk) == n_plain
            before = self.take(kind, chunk, before)

    def take(self, kind, chunk, before):
        if kind == 1:
            number, n = KERNEL.unpack_from(chunk)
            n_layout = 0 if n == NO_LAYOUT else n
            layout = [PARAM.unpack_from(chunk, KERNEL.size + i * PARAM.size) for i in range(n_layout)]
            assert number == len(self.kernels)
            self.kernels.append((chunk[KERNEL.size + n_layout * PARAM.size:].decode(), None if n == NO_LAYOUT else layout))
        elif kind == 2:
            fields = LAUNCH.unpack_from(chunk)
            n_pointers, n_params = fields[10:12]
            pointers = [POINTER.unpack_from(chunk, LAUNCH.size + i * POINTER.size) for i in range(n_pointers)]
            params = chunk[LAUNCH.size + n_pointers * POINTER.size:]
            assert len(params) == n_params and fields[0] == len(self.launches)
            self.launches.append(Launch(*self.kernels[fields[1]], fields, [(p[0], *p[2:]) for p in pointers], params, before))
            return []
        elif kind == 3:
            sequence, after, n = BYTES.unpack_from(chunk)
            at, runs = BYTES.size + n * RUN.size, []
            for i in range(n):
                address, size = RUN.unpack_from(chunk, BYTES.size + i * RUN.size)
                runs.append((address, chunk[at:at + size]))
                at += size
            assert at == len(chunk) and sequence + after == len(self.launches)
            if not after:
                return before + runs
            self.launches[sequence].after += runs
        elif kind == 4:
            self.unseen.append(chunk.decode())
        elif kind == 5:
            n, reason, self.n_unseen = END.unpack(chunk)
            assert n == len(self.launches)
            self.end, self.reason = n, REASONS[reason]
        return before


class Writer:
    """Writes a recording, launch by launch."""

    def __init__(self, path):
        self.file, self.kernels, self.n = path.open("wb"), {}, 0
        self.file.write(HEADER.pack(MAGIC, VERSION, HEADER.size, 1))

    def chunk(self, kind, data, compress=False):
        stored = zstandard.ZstdCompressor().compress(data) if compress else data
        self.file.write(CHUNK.pack(kind, 0, len(stored), len(data) if compress else 0, xxhash.xxh3_64_intdigest(stored)) + stored)

    def kernel(self, name, layout):
        if name not in self.kernels:
            self.kernels[name] = len(self.kernels)
            n = NO_LAYOUT if layout is None else len(layout)
            self.chunk(1, KERNEL.pack(self.kernels[name], n) + b"".join(PARAM.pack(*p) for p in layout or ()) + name.encode())
        return self.kernels[name]

    def bytes(self, after, runs):
        if runs:
            self.chunk(3, BYTES.pack(self.n, after, len(runs)) + b"".join(RUN.pack(a, len(d)) for a, d in runs)
                       + b"".join(d for _, d in runs), compress=True)

    def launch(self, name, args, grid=(1, 1, 1), block=(1, 1, 1), before=(), after=(), layout=True):
        """@args: ints of 4 bytes, and pointers (address, base, bytes); they are packed as a C struct is."""
        places, params, pointers = [], b"", []
        for arg in args:
            size = 8 if isinstance(arg, tuple) else 4
            params += bytes(-len(params) % size)
            places.append((len(params), size))
            if size == 8:
                pointers.append(POINTER.pack(len(params), 0, *arg))
            params += struct.pack("<Q", arg[0]) if size == 8 else struct.pack("<i", arg)
        number = self.kernel(name, places if layout else None)
        self.bytes(0, list(before))
        self.chunk(2, LAUNCH.pack(self.n, number, 0, *grid, *block, 0, len(pointers), len(params), 0) + b"".join(pointers) + params)
        self.bytes(1, list(after))
        self.n += 1

    def close(self):
        self.chunk(5, END.pack(self.n, 0, 0))
        self.file.close()
