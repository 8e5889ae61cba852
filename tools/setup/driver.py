#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Print the name of the machine's first CUDA device, as its driver tells it; exit 1 and say why on stderr if there is none.

In a process of its own, because a driver that is there without a working device may take a while,
or the process, with it.
"""
import ctypes
import sys


class NoDevice(Exception):
    """Why there is none: its first argument."""


def ask(cuda, call, *words):
    answer, name = getattr(cuda, call)(*words), ctypes.c_char_p()
    if answer != 0:
        cuda.cuGetErrorName(answer, ctypes.byref(name))
        raise NoDevice(f"{call} gave {answer} ({(name.value or b'unknown').decode()})")


def device():
    """Its name and the driver's CUDA version."""
    cuda = ctypes.CDLL("libcuda.so.1")
    ask(cuda, "cuInit", 0)
    count, version, name = ctypes.c_int(0), ctypes.c_int(0), ctypes.create_string_buffer(256)
    ask(cuda, "cuDeviceGetCount", ctypes.byref(count))
    if count.value < 1:
        raise NoDevice("the driver has no device")
    cuda.cuDriverGetVersion(ctypes.byref(version))
    ask(cuda, "cuDeviceGetName", name, 256, 0)
    return f"{name.value.decode(errors='replace')}, CUDA {version.value // 1000}.{version.value % 1000 // 10}"


def main():
    try:
        print(device())
    except (OSError, AttributeError, NoDevice) as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
