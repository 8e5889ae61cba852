#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""All that nvcc makes of one source: make_images.py NVCC SOURCE FOLDER STAMP

    sm_75.cubin ...        machine code for each device that this nvcc knows
    text.ptx               PTX
    fat_none.fatbin ...    two devices and PTX, in each way of compression
    usage/sm_75.cubin ...  of usage.cu, which stands beside SOURCE, for some devices; sm_75.txt ...: what ptxas says of it
"""
import pathlib
import re
import subprocess
import sys

FAT = ["-gencode", "arch=compute_80,code=sm_80", "-gencode", "arch=compute_90,code=sm_90",
       "-gencode", "arch=compute_75,code=compute_75"]
MODES = {"none": ["--compress-mode=none"], "balance": ["--compress-mode=balance"], "size": ["--compress-mode=size"],
         "speed": ["--compress-mode=speed"], "lz4": ["--compress-mode=speed", "-Xfatbin", "-compress-all"]}


def main():
    nvcc, source, folder, stamp = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]), pathlib.Path(sys.argv[4])
    folder.mkdir(parents=True, exist_ok=True)

    def make(name, *options):
        subprocess.run([nvcc, *options, "-o", str(folder / name), source], check=True)

    devices = re.findall(r"sm_(\d+)", subprocess.run([nvcc, "--list-gpu-code"], check=True, text=True,
                                                     stdout=subprocess.PIPE).stdout)
    for device in devices:
        make(f"sm_{device}.cubin", "-cubin", f"-arch=sm_{device}")
    make("text.ptx", "-ptx", "-arch=compute_75")
    for mode, options in MODES.items():
        make(f"fat_{mode}.fatbin", "-fatbin", *FAT, *options)
    (folder / "usage").mkdir(exist_ok=True)
    for device in dict.fromkeys((devices[0], "80", "90", devices[-1])):
        cubin = folder / "usage" / f"sm_{device}.cubin"
        said = subprocess.run([nvcc, "-cubin", f"-arch=sm_{device}", "-Xptxas", "-v", "-o", str(cubin), str(pathlib.Path(source).with_name("usage.cu"))],
                              check=True, text=True, stderr=subprocess.PIPE).stderr
        cubin.with_suffix(".txt").write_text(said)
    stamp.write_text(" ".join(devices) + "\n")


if __name__ == "__main__":
    main()
