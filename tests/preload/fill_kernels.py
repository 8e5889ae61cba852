# SPDX-License-Identifier: Apache-2.0
"""Kernels of the clients in Python: each writes out[i] = seed * 65536 + i for i < n."""


def fill(name):
    return f"""
.visible .entry {name}(.param .u64 {name}_p, .param .u32 {name}_n, .param .u32 {name}_s)
{{
.reg .b32 %r<8>; .reg .b64 %d<4>; .reg .pred %q;
ld.param.u64 %d1, [{name}_p]; ld.param.u32 %r1, [{name}_n]; ld.param.u32 %r5, [{name}_s];
mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mul.lo.u32 %r2, %r2, %r3; mov.u32 %r4, %tid.x; add.u32 %r2, %r2, %r4;
setp.ge.u32 %q, %r2, %r1; @%q ret;
shl.b32 %r5, %r5, 16; add.u32 %r5, %r5, %r2; mul.wide.u32 %d2, %r2, 4; add.u64 %d3, %d1, %d2; st.global.u32 [%d3], %r5;
ret;
}}
"""


PTX = ".version 6.4\n.target sm_75\n.address_size 64\n" + fill("first") + fill("block") + fill("other")
