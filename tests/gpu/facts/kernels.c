/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels, as PTX that every driver since 10.1 makes code from, for every device since sm_75.
 *
 * empty(), empty8(u64)            nothing
 * poke(u64 p, u32 v)              *p = v
 * move(u64 from, u64 to)          *to = *from, u32
 * gate(u64 w, u64 flag, u64 ns)   *w = 1; waits until *flag or for ns, then *w = 2
 * spin(u64 ns)                    waits
 * slow_poke(u64 p, u32 v, u64 ns) waits, then *p = v
 * crowd(u64 p, u64 ns)            p[0] counts those that run, p[1] the most at a time; takes ns
 * bulk(struct dmi_open)           state[close_slot] = the parameter's last four bytes
 * idle_copy(struct dmi_graph_copy) what a copy without a ticket does: reads its state and leaves
 * litmus(u64 p, u32 n)            n rounds: every thread stores the round at p + 8 + 4 * tid, then a barrier,
 *                                 then thread 0 releases the round at p to the system
 * fetch(u64 ring, u64 state)      256 threads copy slot state[0] % 16 of 4 KiB to state + 64, then state[0] is one more
 * lazy_0() ... lazy_2()           nothing: kernels that no other question uses
 */
#include "facts.h"

#include <dmi/ring.h>

#include <assert.h>

#define TEXT(x)  TEXT_(x)
#define TEXT_(x) #x

/* The sizes and offsets that the text below holds. */
#define OPEN_BYTES 4088
#define OPEN_LAST  4084
#define COPY_BYTES 144
static_assert(OPEN_BYTES == sizeof(struct dmi_open), "bulk's parameter");
static_assert(offsetof(struct dmi_open, ticket.close_slot) == 20, "bulk");
static_assert(COPY_BYTES == sizeof(struct dmi_graph_copy), "idle_copy's parameter");
static_assert(offsetof(struct dmi_graph_copy, state) == 96, "idle_copy");
static_assert(offsetof(struct dmi_ticket, n_actions) == 8, "idle_copy");

const char kernels_ptx[] =
    ".version 6.4\n.target sm_75\n.address_size 64\n"
    ".visible .entry fetch(.param .u64 ring, .param .u64 state)\n{\n"
    " .reg .pred %p<2>; .reg .b32 %r<9>; .reg .b64 %d<8>;\n"
    " ld.param.u64 %d1, [ring]; ld.param.u64 %d2, [state]; mov.u32 %r1, %tid.x;\n"
    " ld.global.u32 %r2, [%d2]; and.b32 %r3, %r2, 15; mul.wide.u32 %d3, %r3, 4096;\n"
    " mul.wide.u32 %d4, %r1, 16; add.u64 %d5, %d1, %d3; add.u64 %d5, %d5, %d4;\n"
    " ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%d5]; add.u64 %d6, %d2, %d4;\n"
    " st.global.v4.u32 [%d6+64], {%r4, %r5, %r6, %r7}; bar.sync 0;\n"
    " setp.ne.u32 %p1, %r1, 0; @%p1 bra done; add.u32 %r8, %r2, 1; st.global.u32 [%d2], %r8;\n"
    "done: ret;\n}\n"
    ".visible .entry empty()\n{\n ret;\n}\n"
    ".visible .entry lazy_0()\n{\n ret;\n}\n"
    ".visible .entry lazy_1()\n{\n ret;\n}\n"
    ".visible .entry lazy_2()\n{\n ret;\n}\n"
    ".visible .entry empty8(.param .u64 p)\n{\n ret;\n}\n"
    ".visible .entry poke(.param .u64 p, .param .u32 v)\n{\n"
    " .reg .b32 %r<2>; .reg .b64 %d<2>;\n"
    " ld.param.u64 %d1, [p]; ld.param.u32 %r1, [v]; st.global.u32 [%d1], %r1; ret;\n}\n"
    ".visible .entry move(.param .u64 from, .param .u64 to)\n{\n"
    " .reg .b32 %r<2>; .reg .b64 %d<3>;\n"
    " ld.param.u64 %d1, [from]; ld.param.u64 %d2, [to];\n"
    " ld.volatile.global.u32 %r1, [%d1]; st.global.u32 [%d2], %r1; ret;\n}\n"
    ".visible .entry gate(.param .u64 w, .param .u64 flag, .param .u64 ns)\n{\n"
    " .reg .pred %p<3>; .reg .b32 %r<3>; .reg .b64 %d<7>;\n"
    " ld.param.u64 %d1, [w]; ld.param.u64 %d2, [flag]; ld.param.u64 %d3, [ns];\n"
    " mov.u64 %d4, %globaltimer; mov.u32 %r1, 1; st.release.sys.global.u32 [%d1], %r1;\n"
    "again: ld.acquire.sys.global.u32 %r2, [%d2]; setp.ne.u32 %p1, %r2, 0; @%p1 bra done;\n"
    " mov.u64 %d5, %globaltimer; sub.u64 %d6, %d5, %d4; setp.lt.u64 %p2, %d6, %d3; @%p2 bra "
    "again;\n"
    " mov.u32 %r1, 2; st.release.sys.global.u32 [%d1], %r1;\n"
    "done: ret;\n}\n"
    ".visible .entry spin(.param .u64 ns)\n{\n"
    " .reg .pred %p<2>; .reg .b64 %d<5>;\n"
    " ld.param.u64 %d1, [ns]; mov.u64 %d2, %globaltimer;\n"
    "again: mov.u64 %d3, %globaltimer; sub.u64 %d4, %d3, %d2; setp.lt.u64 %p1, %d4, %d1; @%p1 bra "
    "again;\n"
    " ret;\n}\n"
    ".visible .entry slow_poke(.param .u64 p, .param .u32 v, .param .u64 ns)\n{\n"
    " .reg .pred %p<2>; .reg .b32 %r<2>; .reg .b64 %d<6>;\n"
    " ld.param.u64 %d5, [p]; ld.param.u32 %r1, [v]; ld.param.u64 %d1, [ns]; mov.u64 %d2, "
    "%globaltimer;\n"
    "again: mov.u64 %d3, %globaltimer; sub.u64 %d4, %d3, %d2; setp.lt.u64 %p1, %d4, %d1; @%p1 bra "
    "again;\n"
    " st.global.u32 [%d5], %r1; ret;\n}\n"
    ".visible .entry crowd(.param .u64 p, .param .u64 ns)\n{\n"
    " .reg .pred %p<2>; .reg .b32 %r<5>; .reg .b64 %d<6>;\n"
    " ld.param.u64 %d5, [p]; ld.param.u64 %d1, [ns];\n"
    " atom.global.add.u32 %r1, [%d5], 1; add.u32 %r2, %r1, 1; atom.global.max.u32 %r3, [%d5+4], "
    "%r2;\n"
    " mov.u64 %d2, %globaltimer;\n"
    "again: mov.u64 %d3, %globaltimer; sub.u64 %d4, %d3, %d2; setp.lt.u64 %p1, %d4, %d1; @%p1 bra "
    "again;\n"
    " atom.global.add.u32 %r4, [%d5], -1; ret;\n}\n"
    ".visible .entry bulk(.param .align 8 .b8 o[" TEXT(
        OPEN_BYTES) "])\n{\n"
                    " .reg .b32 %r<3>; .reg .b64 %d<4>;\n"
                    " ld.param.u64 %d1, [o]; ld.param.u32 %r1, [o+20]; ld.param.u32 %r2, [o+" TEXT(
                        OPEN_LAST) "];\n"
                                   " mul.wide.u32 %d2, %r1, 4; add.u64 %d3, %d1, %d2; "
                                   "st.global.u32 [%d3], %r2; ret;\n}\n"
                                   ".visible .entry idle_copy(.param .align 8 .b8 c[" TEXT(
                                       COPY_BYTES) "])\n{\n"
                                                   " .reg .pred %p<2>; .reg .b32 %r<2>; .reg .b64 "
                                                   "%d<2>;\n"
                                                   " ld.param.u64 %d1, [c+96]; ld.global.u32 %r1, "
                                                   "[%d1+8]; setp.eq.u32 %p1, %r1, 0; @%p1 bra "
                                                   "done;\n"
                                                   " st.global.u32 [%d1+16], %r1;\n"
                                                   "done: ret;\n}\n"
                                                   ".visible .entry litmus(.param .u64 p, .param "
                                                   ".u32 n)\n{\n"
                                                   " .reg .pred %p<3>; .reg .b32 %r<4>; .reg .b64 "
                                                   "%d<4>;\n"
                                                   " ld.param.u64 %d1, [p]; ld.param.u32 %r1, [n]; "
                                                   "mov.u32 %r2, %tid.x; mov.u32 %r3, 1;\n"
                                                   " mul.wide.u32 %d2, %r2, 4; add.u64 %d3, %d1, "
                                                   "%d2; setp.ne.u32 %p1, %r2, 0;\n"
                                                   "again: st.global.u32 [%d3+8], %r3; bar.sync 0; "
                                                   "@%p1 bra next;\n"
                                                   " st.release.sys.global.u32 [%d1], %r3;\n"
                                                   "next: bar.sync 0; add.u32 %r3, %r3, 1; "
                                                   "setp.le.u32 %p2, %r3, %r1; @%p2 bra again;\n"
                                                   " ret;\n}\n";

/*
 * pdl_step(u64 ns)                    lets the next one start, waits for the one before, takes ns
 * pdl_slow_poke(u64 p, u32 v, u64 ns) the same, then *p = v
 * pdl_move(u64 from, u64 to)          waits for those before, then *to = *from
 */
const char kernels_sm90_ptx[] =
    ".version 7.8\n.target sm_90\n.address_size 64\n"
    ".visible .entry pdl_step(.param .u64 ns)\n{\n"
    " .reg .pred %p<2>; .reg .b64 %d<5>;\n"
    " griddepcontrol.launch_dependents; ld.param.u64 %d1, [ns]; griddepcontrol.wait;\n"
    " mov.u64 %d2, %globaltimer;\n"
    "again: mov.u64 %d3, %globaltimer; sub.u64 %d4, %d3, %d2; setp.lt.u64 %p1, %d4, %d1; @%p1 bra "
    "again;\n"
    " ret;\n}\n"
    ".visible .entry pdl_slow_poke(.param .u64 p, .param .u32 v, .param .u64 ns)\n{\n"
    " .reg .pred %p<2>; .reg .b32 %r<2>; .reg .b64 %d<6>;\n"
    " griddepcontrol.launch_dependents;\n"
    " ld.param.u64 %d5, [p]; ld.param.u32 %r1, [v]; ld.param.u64 %d1, [ns]; griddepcontrol.wait;\n"
    " mov.u64 %d2, %globaltimer;\n"
    "again: mov.u64 %d3, %globaltimer; sub.u64 %d4, %d3, %d2; setp.lt.u64 %p1, %d4, %d1; @%p1 bra "
    "again;\n"
    " st.global.u32 [%d5], %r1; ret;\n}\n"
    ".visible .entry pdl_move(.param .u64 from, .param .u64 to)\n{\n"
    " .reg .b32 %r<2>; .reg .b64 %d<3>;\n"
    " ld.param.u64 %d1, [from]; ld.param.u64 %d2, [to]; griddepcontrol.wait;\n"
    " ld.volatile.global.u32 %r1, [%d1]; st.global.u32 [%d2], %r1; ret;\n}\n";
