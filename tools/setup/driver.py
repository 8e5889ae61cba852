#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Print the name of the machine's first CUDA device, as its driver tells it; exit 1 if there is none.

In a process of its own, because a driver that is there without a working device may take a while,
or the process, with it.
"""
import ctypes
import sys


def main():
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        if cuda.cuInit(0) != 0:
            return 1
        count = ctypes.c_int(0)
        if cuda.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value < 1:
            return 1
        version = ctypes.c_int(0)
        cuda.cuDriverGetVersion(ctypes.byref(version))
        name = ctypes.create_string_buffer(256)
        if cuda.cuDeviceGetName(name, 256, 0) != 0:
            return 1
    except (OSError, AttributeError):
        return 1
    print(f"{name.value.decode(errors='replace')}, CUDA {version.value // 1000}."
          f"{version.value % 1000 // 10}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
