# SPDX-License-Identifier: Apache-2.0
"""Files of a run, changed on purpose. The layout is that of docs/format.md."""
import json
import struct


def write_manifest(run, manifest):
    """With the checksum that it has then. Needs xxhash, of tools/setup/python.txt."""
    import xxhash  # pylint: disable=import-outside-toplevel
    text = json.dumps({**manifest, "checksum": "0" * 16})
    (run / "manifest.json").write_text(text.replace("0" * 16, xxhash.xxh3_64_hexdigest(text.encode()), 1))


def flip_payload(segment, which):
    """Changes one bit of the payload of the chunk number @which that has one."""
    data, at = bytearray(segment.read_bytes()), 128
    while True:
        n_meta, n_payload = struct.unpack("<QQ", data[at + 16:at + 32])
        begin = at + 64 + (n_meta + 7) // 8 * 8
        if n_payload and not which:
            data[begin + n_payload // 2] ^= 1
            segment.write_bytes(data)
            return
        which -= bool(n_payload)
        at = begin + (n_payload + 7) // 8 * 8
