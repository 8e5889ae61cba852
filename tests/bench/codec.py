#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench_codec, and ZipNN on the same bytes in the same run, where it is installed (pip install zipnn).

    tests/bench/codec.py BENCH_CODEC FILE.safetensors|RUN...
"""
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import time

ROUNDS, LEAST_S = 5, 0.15


def zipnn_figures(name, data):
    """ratio, GB/s of compressing and of decompressing: in CPU time; one thread"""
    from zipnn import ZipNN
    codec = ZipNN(bytearray_dtype={"f32": "float32", "bf16": "bfloat16"}[name], input_format="byte", threads=1)
    rates, packed, back = {"pack": 0.0, "unpack": 0.0}, None, None
    for direction in ("pack", "unpack") * ROUNDS:
        spent, rounds = 0.0, 0
        while spent < LEAST_S:
            # ZipNN may change the bytes that it is given
            source = bytearray(data) if direction == "pack" else packed
            start = time.process_time()
            if direction == "pack":
                packed = codec.compress(source)
            else:
                back = codec.decompress(source)
            spent += time.process_time() - start
            rounds += 1
        rates[direction] = max(rates[direction], len(data) * rounds / spent / 1e9)
    if bytes(back) != data:
        print(f"  ZipNN on {name}: what comes back differs")
    return len(data) / len(packed), *rates.values()


def main():
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    for path in sys.argv[2:]:
        if not pathlib.Path(path).exists():
            print(f"skipped: {path} is not there (./bootstrap demo captures it)")
            raise SystemExit(77)
    with tempfile.TemporaryDirectory() as folder:
        status = subprocess.run([sys.argv[1], "--dump", folder, *sys.argv[2:]], check=False).returncode
        if importlib.util.find_spec("zipnn") is None:
            print("ZipNN is not installed (pip install zipnn): no figures for it")
            raise SystemExit(status)
        for path in sorted(pathlib.Path(folder).glob("*.bin")):
            data = path.read_bytes()
            if data:
                ratio, pack, unpack = zipnn_figures(path.stem, data)
                print(f"  ZipNN, {path.stem:<30}  {ratio:7.3f} {pack:12.2f} {unpack:12.2f}")
    raise SystemExit(status)


if __name__ == "__main__":
    main()
