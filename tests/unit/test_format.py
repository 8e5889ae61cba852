#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/format.md against the code: test_format.py DMI-DUMP MAKE-RUN GOLDEN.  A reader made from the page alone reads
what the library writes, bit for bit as dmi-dump exports it, and refuses what is wrong."""
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

try:
    import format_reader
except ImportError as missing:
    print(f"needs the packages of tools/setup/python.txt: {missing}")
    sys.exit(77)
import json

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/static"))
from tap import Tap  # noqa: E402

DUMP, MAKE, GOLDEN = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])


def exported(run, path):
    """{key: bytes of the tensor} of dmi-dump's safetensors"""
    subprocess.run([DUMP, "export", "--format", "safetensors", "-o", path, run], check=True, stdout=subprocess.DEVNULL)
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    return {key: data[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]]
            for key, v in header.items() if key != "__metadata__"}


def raises(kind, text, folder):
    try:
        format_reader.Run(folder)
    except kind as e:
        return text in str(e)
    return False


def compare(tap, folder):
    made = subprocess.run([MAKE, folder / "out"], check=True, text=True, stdout=subprocess.PIPE).stdout.strip()
    run = format_reader.Run(pathlib.Path(made))
    want = {f"{request.decode()}/{name}": b"".join(rows[p] for p in sorted(rows))
            for (request, name), rows in run.tensors().items()}
    got = exported(made, folder / "x.safetensors")
    differ = [k for k, v in want.items() if got.get(k) != v]
    tap.ok("every tensor of every request is what dmi-dump exports", differ if differ or not want else [])
    tap.ok("requests, sites and layers are all there", [] if len(want) >= 12 else sorted(want))
    balance = [t for t in run.tallies if tuple(a + b for a, b in zip(t["captured"], t["dropped"])) != t["expected"]]
    tap.ok("the accounting balances", balance)
    return made


def damage(tap, made, folder):
    path = pathlib.Path(made)
    names = sorted(p.name for p in path.glob("*"))
    missed = []
    for i in range(200):
        name = names[i % len(names)]
        data = bytearray((path / name).read_bytes())
        if not data:
            continue
        bit = i * 2654435761 % (8 * len(data))
        copy = folder / "flipped"
        shutil.copytree(path, copy)
        data[bit // 8] ^= 1 << bit % 8
        (copy / name).write_bytes(data)
        try:
            format_reader.Run(copy)
            missed.append(f"{name}, bit {bit}")
        except Exception:  # whatever it stumbles over: the bit was found
            pass
        shutil.rmtree(copy)
    tap.ok("200 flipped bits are found by the rules of the page", missed)


def golden(tap):
    run = format_reader.Run(GOLDEN / "v2/valid")
    special = [r for r in run.records if r.n_row_dims == 2]
    tap.ok("the golden run: two row dimensions, kept rows, the prompt's length, the job",
           [] if len(run.records) == 9 and special[0].kept == [11, 3, 4, 0, 7, 1] and special[0].dims == (2, 3, 4) and
           run.steps[special[0].step].spans[0].n_prompt == 40 and run.manifest["job"] == "kit-job" and
           set(run.tensors()[b"c", "bf16.0"]) == {11, 3, 4, 0, 7, 1} else [repr(run.records)])
    tap.ok("a run of version 1 is named as old",
           [] if raises(format_reader.OtherVersion, "has format version 1; this program reads version 2", GOLDEN / "v1/valid")
           else ["it was not"])
    tap.ok("a run of version 3 is named as newer",
           [] if raises(format_reader.OtherVersion, "version 3, which is newer", GOLDEN / "v2/newer") else ["it was not"])


def main():
    tap = Tap()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        made = compare(tap, folder)
        damage(tap, made, folder)
    golden(tap)
    tap.done()


if __name__ == "__main__":
    main()
