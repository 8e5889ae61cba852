# SPDX-License-Identifier: Apache-2.0
"""What modules are loaded from: for tests of layouts and of the ways to a function."""
import struct

HEAD = ".version 6.4\n.target sm_75\n.address_size 64\n"
STORE = """
mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mul.lo.u32 %r2, %r2, %r3; mov.u32 %r4, %tid.x; add.u32 %r2, %r2, %r4;
setp.ge.u32 %q, %r2, %r1; @%q ret; shl.b32 %r5, %r5, 16; add.u32 %r5, %r5, %r2; mul.wide.u32 %d2, %r2, 4;
add.u64 %d3, %d1, %d2; st.global.u32 [%d3], %r5; ret;
}
"""
REGISTERS = "{\n.reg .b32 %r<8>; .reg .b64 %d<4>; .reg .pred %q;\n"


def fill(name):
    """A kernel that the lines `launch` and `launchpacked` of driver_calls launch."""
    return (f".visible .entry {name}(\n\t.param .u64 {name}_p, // where to\n\t.param .u32 {name}_n,\n\t.param .u32 {name}_s,\n"
            f"\t.param .u64 {name}_x /* , .param .u8 no */\n)\n{REGISTERS}ld.param.u64 %d1, [{name}_p];\n"
            f"ld.param.u32 %r1, [{name}_n]; ld.param.u32 %r5, [{name}_s];{STORE}")


def odd(name, align=8):
    """A kernel that the line `launchodd` launches: a struct of 24 bytes at byte @align, between two small parameters."""
    return (f".visible .entry {name}(.param .u8 {name}_a, .param .align {align} .b8 {name}_b[24], .param .u32 {name}_c)\n{REGISTERS}"
            f"ld.param.u64 %d1, [{name}_b+8]; ld.param.u32 %r1, [{name}_b]; ld.param.u32 %r5, [{name}_b+16];{STORE}")


def ptx(*kernels):
    return (HEAD + "".join(kernels)).encode()


def entry(code, kind=1, arch=75, flags=0, n_unpacked=0):
    """One entry of a fatbin, padded to 8 bytes as nvcc does."""
    stored = code + bytes(-len(code) % 8)
    return struct.pack("<HHIQIIHHIIIQQQ", kind, 0x101, 64, len(stored), len(code) if n_unpacked else 0, 0, 4, 6, arch, 0, 0,
                       0x11 | flags, 0, n_unpacked) + stored


def zstd_entry(code, **about):
    """The same as a frame with one block that is stored as it is (RFC 8878, 3.1.1)."""
    frame = struct.pack("<IBI", 0xFD2FB528, 0xA0, len(code)) + (len(code) << 3 | 1).to_bytes(3, "little") + code
    return entry(frame, flags=0x8000, n_unpacked=len(code), **about)


def lz4_entry(code, **about):
    """The same as a block of one sequence that is all literals (LZ4 block format)."""
    n = len(code) - 15
    block = bytes([0xF0]) + b"\xff" * (n // 255) + bytes([n % 255]) + code
    return entry(block, flags=0x2000, n_unpacked=len(code), **about)


def fatbin(*entries):
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body
