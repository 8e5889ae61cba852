#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Work that is always the same, of the kinds that tests do: its CPU seconds say how fast the machine is at the time (results.py)."""
import hashlib
import json
import zlib

words = [str(i * 2654435761 % 2**32) for i in range(60000)]
for _ in range(3):
    words = json.loads(json.dumps(sorted(words, key=lambda word: word[::-1])))
data = "".join(words).encode() * 4
hashlib.sha256(zlib.decompress(zlib.compress(data))).digest()
