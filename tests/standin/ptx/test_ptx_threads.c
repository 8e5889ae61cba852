/* SPDX-License-Identifier: Apache-2.0 */
/* What threads of a block do together: barriers, shared memory, warps; grids, calls, several host threads. */
#include "test_device.h"

#include <pthread.h>

/* a kernel with one pointer parameter: %t is tid.x, %out its own 4 bytes of the output */
#define KERNEL(name, body)                                                                         \
    ".visible .entry " name "(.param .u64 out)\n{\n"                                               \
    ".reg .pred %p<8>; .reg .b32 %r<16>, %t, %x; .reg .b64 %d<8>, %out, %base; .reg .f32 %f<8>;\n" \
    "ld.param.u64 %base, [out]; mov.u32 %t, %tid.x; mul.wide.u32 %d1, %t, 4;\n"                    \
    "add.s64 %out, %base, %d1; mov.u32 %x, 0;\n" body "\nst.global.u32 [%out], %x; ret;\n}\n"

#define STEP(bytes)                                                                                \
    "ld.volatile.shared.u32 %r5, [%r3]; ld.volatile.shared.u32 %r6, [%r3+" bytes "];\n"            \
    "add.u32 %r5, %r5, %r6; st.volatile.shared.u32 [%r3], %r5;\n"

static const char text[] = PTX_HEAD
    /* tile[t] = t; barrier; x = tile[n - 1 - t] */
    ".shared .align 4 .b32 tile[256];\n"
    ".extern .shared .align 16 .b8 dynamic[];\n" KERNEL(
        "reverse",
        "mov.u32 %r1, tile; shl.b32 %r2, %t, 2; add.u32 %r3, %r1, %r2; st.shared.u32 [%r3], %t;\n"
        "bar.sync 0; mov.u32 %r4, %ntid.x; sub.u32 %r4, %r4, 1; sub.u32 %r4, %r4, %t;\n"
        "shl.b32 %r4, %r4, 2; add.u32 %r4, %r4, %r1; ld.shared.u32 %x, [%r4];")
        KERNEL("reverse_dynamic",
               "mov.u32 %r1, dynamic; shl.b32 %r2, %t, 2; add.u32 %r3, %r1, %r2; st.shared.u32 "
               "[%r3], %t;\n"
               "barrier.sync.aligned 0; mov.u32 %r4, %ntid.x; sub.u32 %r4, %r4, 1; sub.u32 %r4, "
               "%r4, %t;\n"
               "shl.b32 %r4, %r4, 2; add.u32 %r4, %r4, %r1; ld.shared.u32 %x, [%r4];")
    /* a tree: log2(n) barriers in a loop */
    KERNEL("tree",
           "mov.u32 %r1, tile; shl.b32 %r2, %t, 2; add.u32 %r3, %r1, %r2; add.u32 %r4, %t, 1; "
           "st.shared.u32 [%r3], %r4;\n"
           "mov.u32 %r5, %ntid.x;\n"
           "LOOP: bar.sync 0; shr.u32 %r5, %r5, 1; setp.ge.u32 %p1, %t, %r5; @%p1 bra SKIP;\n"
           "shl.b32 %r6, %r5, 2; add.u32 %r6, %r6, %r3; ld.shared.u32 %r7, [%r6]; ld.shared.u32 "
           "%r8, [%r3];\n"
           "add.u32 %r7, %r7, %r8; st.shared.u32 [%r3], %r7;\n"
           "SKIP: setp.gt.u32 %p2, %r5, 1; @%p2 bra LOOP; bar.sync 0; ld.shared.u32 %x, [tile];")
        KERNEL("popc", "and.b32 %r1, %t, 3; setp.eq.u32 %p1, %r1, 0; barrier.red.popc.u32 %x, 0, "
                       "%p1;")
            KERNEL("all_any", "setp.lt.u32 %p1, %t, 7; bar.red.and.pred %p2, 0, %p1; "
                              "bar.red.or.pred %p3, 0, %p1;\n"
                              "bar.red.and.pred %p4, 0, !%p1; setp.ge.u32 %p5, %t, 0; "
                              "bar.red.and.pred %p5, 0, %p5;\n"
                              "selp.b32 %r1, 1, 0, %p2; selp.b32 %r2, 2, 0, %p3; selp.b32 %r3, 4, "
                              "0, %p4; selp.b32 "
                              "%r4, 8, 0, %p5;\n"
                              "or.b32 %x, %r1, %r2; or.b32 %x, %x, %r3; or.b32 %x, %x, %r4;")
    /* some threads have left: the rest still meet */
    KERNEL("leavers", "setp.ge.u32 %p1, %t, 40; @%p1 exit; bar.sync 0; mov.u32 %x, 1; bar.sync 0;")
    /* half of the threads wait at 1, half at 2, 64 each */
    KERNEL("two_barriers",
           "setp.ge.u32 %p1, %t, 64; @%p1 bra B; bar.sync 1, 64; mov.u32 %x, 1; bra E;\n"
           "B: bar.sync 2, 64; mov.u32 %x, 2; E: bar.sync 0;")
    /* producers arrive without waiting, consumers wait */
    KERNEL("arrive", "setp.ge.u32 %p1, %t, 64; @%p1 bra C; mov.u32 %r1, tile; shl.b32 %r2, %t, 2; "
                     "add.u32 %r1, %r1, %r2;\n"
                     "st.shared.u32 [%r1], 5; bar.arrive 1, 128; mov.u32 %x, 1; bra E;\n"
                     "C: bar.sync 1, 128; mov.u32 %r1, tile; sub.u32 %r2, %t, 64; shl.b32 %r2, "
                     "%r2, 2; add.u32 %r1, %r1, %r2;\n"
                     "ld.shared.u32 %x, [%r1]; E:")
        KERNEL(
            "sleep",
            "mov.u64 %d2, %globaltimer; nanosleep.u32 500000; mov.u64 %d3, %globaltimer; sub.s64 "
            "%d3, %d3, %d2; cvt.u32.u64 %x, %d3;")
    /* the first waits for what the last writes, and sleeps in between */
    KERNEL(
        "sleep_and_look",
        "mov.u32 %r1, tile; mov.u32 %r3, %ntid.x; sub.u32 %r3, %r3, 1; st.shared.u32 [%r1], 0; "
        "bar.sync 0; setp.eq.u32 %p1, %t, %r3;\n"
        "@%p1 st.shared.u32 [%r1], 7;\n"
        "L: ld.relaxed.cta.shared.u32 %x, [%r1]; setp.eq.u32 %p2, %x, 7; @%p2 bra E; nanosleep.u32 "
        "20; bra L; E:")
        KERNEL("deadlock",
               "setp.ge.u32 %p1, %t, 1; @%p1 bra B; bar.sync 1; bra E; B: bar.sync 2; E:")
            KERNEL("traps", "setp.eq.u32 %p1, %t, 3; @%p1 trap;")
    /* live values over many barriers: predicates, floats, 64 bits, a guarded write */
    KERNEL("survive",
           "setp.eq.u32 %p1, %t, 5; cvt.rn.f32.u32 %f1, %t; cvt.u64.u32 %d2, %t; shl.b64 %d2, %d2, "
           "33; mov.u32 %r9, 100;\n"
           "bar.sync 0; @%p1 mov.u32 %r9, 200; bar.sync 0; shr.u64 %d3, %d2, 33; cvt.u32.u64 %r1, "
           "%d3;\n"
           "cvt.rzi.u32.f32 %r2, %f1; add.u32 %x, %r1, %r2; bar.sync 0; add.u32 %x, %x, %r9;\n"
           "bar.sync 0; @%p1 add.u32 %x, %x, 1000;")
    /* shuffles */
    KERNEL(
        "up",
        "shfl.sync.up.b32 %x|%p1, %t, 3, 0, -1; selp.b32 %r1, 1000, 0, %p1; add.u32 %x, %x, %r1;")
        KERNEL("down",
               "shfl.sync.down.b32 %x|%p1, %t, 3, 31, -1; selp.b32 %r1, 1000, 0, %p1; "
               "add.u32 %x, %x, %r1;") KERNEL("bfly", "shfl.sync.bfly.b32 %x, %t, 5, 31, -1;")
            KERNEL("idx", "shfl.sync.idx.b32 %x, %t, 9, 31, -1;")
                KERNEL("idx8", "shfl.sync.idx.b32 %x|%p1, %t, 2, 0x181f, -1;") /* segments of 8 */
    KERNEL("down8", "shfl.sync.down.b32 %x|%p1, %t, 3, 0x1807, -1; selp.b32 %r1, 1000, 0, %p1; "
                    "add.u32 %x, %x, %r1;")
        KERNEL("sum",
               "mov.u32 %x, %t; shfl.sync.bfly.b32 %r1, %x, 16, 31, -1; add.u32 %x, %x, %r1;\n"
               "shfl.sync.bfly.b32 %r1, %x, 8, 31, -1; add.u32 %x, %x, %r1; shfl.sync.bfly.b32 "
               "%r1, %x, 4, 31, -1; add.u32 %x, %x, %r1;\n"
               "shfl.sync.bfly.b32 %r1, %x, 2, 31, -1; add.u32 %x, %x, %r1; shfl.sync.bfly.b32 "
               "%r1, %x, 1, 31, -1; add.u32 %x, %x, %r1;")
            KERNEL("fsum", "cvt.rn.f32.u32 %f1, %t; shfl.sync.down.b32 %f2, %f1, 1, 31, -1; "
                           "add.f32 %f1, %f1, %f2; cvt.rzi.u32.f32 %x, %f1;")
    /* lanes below 16 exchange on their own before all meet */
    KERNEL("diverged",
           "mov.u32 %x, %t; and.b32 %r2, %t, 31; setp.ge.u32 %p1, %r2, 16; @%p1 bra M;\n"
           "shfl.sync.bfly.b32 %x, %x, 1, 31, 0xffff; bar.warp.sync 0xffff; shfl.sync.bfly.b32 %x, "
           "%x, 2, 31, 0xffff;\n"
           "M: shfl.sync.bfly.b32 %x, %x, 16, 31, -1;")
        KERNEL("ballot",
               "and.b32 %r1, %t, 1; setp.eq.u32 %p1, %r1, 1; vote.sync.ballot.b32 %x, %p1, -1;")
            KERNEL("votes", "and.b32 %r1, %t, 31; setp.lt.u32 %p1, %r1, 32; vote.sync.all.pred "
                            "%p2, %p1, -1; setp.eq.u32 %p1, %r1, 3;\n"
                            "vote.sync.any.pred %p3, %p1, -1; vote.sync.uni.pred %p4, %p1, -1; "
                            "vote.sync.all.pred %p5, %p1, -1;\n"
                            "selp.b32 %r1, 1, 0, %p2; selp.b32 %r2, 2, 0, %p3; selp.b32 %r3, 4, 0, "
                            "%p4; selp.b32 %r4, 8, 0, %p5;\n"
                            "or.b32 %x, %r1, %r2; or.b32 %x, %x, %r3; or.b32 %x, %x, %r4;")
                KERNEL("match_any", "shr.u32 %r1, %t, 2; match.any.sync.b32 %x, %r1, -1;")
                    KERNEL("match_all",
                           "shr.u32 %r1, %t, 5; match.all.sync.b32 %x|%p1, %r1, -1; cvt.u64.u32 "
                           "%d2, %t; match.all.sync.b64 %r2|%p2, %d2, -1;\n"
                           "@%p2 mov.u32 %x, 1; @!%p1 mov.u32 %x, 2; or.b32 %x, %x, %r2;")
                        KERNEL("redux",
                               "redux.sync.add.u32 %x, %t, -1; redux.sync.max.s32 %r1, %t, -1; "
                               "redux.sync.min.u32 %r2, %t, -1; redux.sync.xor.b32 %r3, %t, -1;\n"
                               "shl.b32 %r1, %r1, 12; shl.b32 %r2, %r2, 20; add.u32 %x, %x, %r1; "
                               "add.u32 %x, %x, %r2; add.u32 %x, %x, %r3;")
                            KERNEL("active", "and.b32 %r1, %t, 31; setp.ge.u32 %p1, %r1, 8; @%p1 "
                                             "bra E; activemask.b32 %x; E:")
    /* the sum of 64 as it was written before __syncwarp(): a warp goes in step */
    KERNEL("in_step",
           "mov.u32 %r1, tile; shl.b32 %r2, %t, 2; add.u32 %r3, %r1, %r2; add.u32 %r4, %t, 1;\n"
           "st.shared.u32 [%r3], %r4; bar.sync 0; setp.ge.u32 %p1, %t, 32; @%p1 bra E;\n" STEP(
               "128") STEP("64") STEP("32") STEP("16") STEP("8")
               STEP("4") "ld.volatile.shared.u32 %x, [tile]; E:")
    /* all threads of all blocks count on one word, seen by all with the right total */
    ".visible .entry count(.param .u64 at)\n{ .reg .b64 %a; ld.param.u64 %a, [at]; "
    "red.global.add.u32 [%a], 1; ret; }\n"
    /* x + y * 100 + z * 10000 of thread and block */
    ".visible .entry where(.param .u64 out)\n{ .reg .b32 %r<16>; .reg .b64 %d<4>;\n"
    "mov.u32 %r1, %ctaid.z; mov.u32 %r2, %nctaid.y; mov.u32 %r3, %ctaid.y; mad.lo.u32 %r1, %r1, "
    "%r2, %r3; mov.u32 %r2, %nctaid.x; mov.u32 %r3, %ctaid.x;\n"
    "mad.lo.u32 %r1, %r1, %r2, %r3; mov.u32 %r2, %ntid.z; mov.u32 %r3, %tid.z; mad.lo.u32 %r1, "
    "%r1, %r2, %r3; mov.u32 %r2, %ntid.y; mov.u32 %r3, %tid.y;\n"
    "mad.lo.u32 %r1, %r1, %r2, %r3; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r1, "
    "%r1, %r2, %r3;\n"
    "ld.param.u64 %d1, [out]; mul.wide.u32 %d2, %r1, 4; add.u64 %d1, %d1, %d2;\n"
    "mov.u32 %r4, %laneid; mov.u32 %r5, %warpid; mad.lo.u32 %r4, %r5, 32, %r4; st.global.u32 "
    "[%d1], %r4; ret; }\n"
    /* functions: by value, by pointer to local memory, a struct, nested */
    ".func (.param .b32 r) twice(.param .b32 a)\n{ .reg .b32 %r1; ld.param.u32 %r1, [a]; shl.b32 "
    "%r1, %r1, 1; st.param.b32 [r], %r1; ret; }\n"
    ".func (.param .b32 r) twice_and_one(.param .b32 a)\n{ .reg .b32 %r1; ld.param.u32 %r1, [a];\n"
    "{ .param .b32 p; .param .b32 q; st.param.b32 [p], %r1; call.uni (q), twice, (p); ld.param.b32 "
    "%r1, [q]; }\n"
    "add.u32 %r1, %r1, 1; st.param.b32 [r], %r1; ret; }\n"
    ".func fill(.param .b64 at, .param .align 8 .b8 pair[16])\n{ .reg .b64 %d<4>; .reg .b32 %r<4>; "
    "ld.param.u64 %d1, [at]; ld.param.u32 %r1, [pair]; ld.param.u32 %r2, [pair+8];\n"
    "add.u32 %r1, %r1, %r2; st.u32 [%d1], %r1; ret; }\n" KERNEL(
        "calls", ".local .align 8 .b8 l[8]; mov.u64 %d1, l; cvta.local.u64 %d1, %d1;\n"
                 "{ .param .b64 p0; .param .align 8 .b8 p1[16]; st.param.b64 [p0], %d1; "
                 "st.param.b32 [p1], %t; st.param.b32 [p1+8], 7; call.uni fill, (p0, p1); }\n"
                 "ld.u32 %r1, [%d1]; { .param .b32 p; .param .b32 q; st.param.b32 [p], %r1; "
                 "call.uni (q), twice_and_one, (p); ld.param.b32 %x, [q]; }");

static struct ptx_module *module;

static uint32_t *output(void)
{
    return device_at(DEVICE_BASE + 4096);
}

static int run(const char *name, unsigned n_threads, unsigned dynamic)
{
    uint64_t out = DEVICE_BASE + 4096;
    struct ptx_grid grid = { .grid = { 1, 1, 1 },
                             .block = { n_threads, 1, 1 },
                             .dynamic_shared = dynamic };
    memset(output(), 0xee, 8192);
    return ptx_launch(device_kernel(module, name), &grid, &out, NULL);
}

START_TEST(barriers_order_shared_memory)
{
    for (unsigned n = 1; n <= 256; n = n * 2 + n % 3) {
        ck_assert_int_eq(run("reverse", n, 0), PTX_OK);
        for (unsigned t = 0; t < n; t++)
            ck_assert_uint_eq(output()[t], n - 1 - t);
    }
    ck_assert_int_eq(run("reverse_dynamic", 100, 400), PTX_OK);
    for (unsigned t = 0; t < 100; t++)
        ck_assert_uint_eq(output()[t], 99 - t);
    ck_assert_int_eq(run("tree", 128, 0), PTX_OK);
    for (unsigned t = 0; t < 128; t++)
        ck_assert_uint_eq(output()[t], 128 * 129 / 2);
}
END_TEST

START_TEST(dynamic_shared_memory_ends_where_the_launch_says)
{
    ck_assert_int_eq(run("reverse_dynamic", 100, 100), PTX_E_FAULT);
    ck_assert_int_eq(run("reverse_dynamic", 100, 400), PTX_OK);
    /* but in units of 128 bytes: nvJitLink writes ld.shared.v4 over the end of 28 */
    ck_assert_int_eq(run("reverse_dynamic", 32, 28), PTX_OK);
    ck_assert_int_eq(run("reverse_dynamic", 33, 28), PTX_E_FAULT);
}
END_TEST

START_TEST(barriers_reduce_predicates)
{
    ck_assert_int_eq(run("popc", 70, 0), PTX_OK);
    ck_assert_uint_eq(output()[0], 18);
    ck_assert_uint_eq(output()[69], 18);
    ck_assert_int_eq(run("all_any", 70, 0), PTX_OK);
    ck_assert_uint_eq(output()[33], 2 + 8);
    ck_assert_int_eq(run("all_any", 7, 0), PTX_OK);
    ck_assert_uint_eq(output()[3], 1 + 2 + 8);
}
END_TEST

START_TEST(barriers_are_by_name_and_count)
{
    ck_assert_int_eq(run("leavers", 64, 0), PTX_OK);
    ck_assert_uint_eq(output()[39], 1);
    ck_assert_uint_eq(output()[40], 0xeeeeeeee);
    ck_assert_int_eq(run("two_barriers", 128, 0), PTX_OK);
    ck_assert_uint_eq(output()[63], 1);
    ck_assert_uint_eq(output()[64], 2);
    ck_assert_int_eq(run("arrive", 128, 0), PTX_OK);
    ck_assert_uint_eq(output()[3], 1);
    ck_assert_uint_eq(output()[127], 5);
}
END_TEST

START_TEST(what_cannot_go_on_traps)
{
    ck_assert_int_eq(run("deadlock", 2, 0), PTX_E_TRAP);
    ck_assert_int_eq(run("traps", 3, 0), PTX_OK);
    ck_assert_int_eq(run("traps", 4, 0), PTX_E_TRAP);
}
END_TEST

START_TEST(threads_sleep_all_at_once_and_others_go_on)
{
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    ck_assert_int_eq(run("sleep", 256, 0), PTX_OK);
    clock_gettime(CLOCK_MONOTONIC, &end);
    for (unsigned t = 0; t < 256; t++)
        ck_assert_uint_ge(output()[t], 500000);
    /* 256 sleeps one after another would take 128 ms */
    ck_assert_int_lt((end.tv_sec - start.tv_sec) * 1000 + (end.tv_nsec - start.tv_nsec) / 1000000,
                     100);
    ck_assert_int_eq(run("sleep_and_look", 64, 0), PTX_OK);
    ck_assert_uint_eq(output()[0], 7);
}
END_TEST

START_TEST(registers_survive_barriers)
{
    ck_assert_int_eq(run("survive", 9, 0), PTX_OK);
    for (unsigned t = 0; t < 9; t++)
        ck_assert_uint_eq(output()[t], 2 * t + (t == 5 ? 1200 : 100));
}
END_TEST

static uint32_t shuffled(const char *name, uint32_t t)
{
    uint32_t lane = t & 31, warp = t & ~31u;
    if (!strcmp(name, "up"))
        return lane >= 3 ? t - 3 + 1000 : t;
    if (!strcmp(name, "down"))
        return lane + 3 <= 31 ? t + 3 + 1000 : t;
    if (!strcmp(name, "bfly"))
        return t ^ 5;
    if (!strcmp(name, "idx"))
        return warp + 9;
    if (!strcmp(name, "idx8"))
        return (t & ~7u) + 2;
    if (!strcmp(name, "down8"))
        return (t & 7) + 3 <= 7 ? t + 3 + 1000 : t;
    if (!strcmp(name, "sum"))
        return 32 * warp + 31 * 16;
    if (!strcmp(name, "fsum"))
        return lane == 31 ? 2 * t : 2 * t + 1;
    /* diverged: lanes below 16 hold t ^ 3 when all meet */
    return (lane ^ 16) < 16 ? (t ^ 16) ^ 3 : t ^ 16;
}

START_TEST(shuffles_move_values_between_lanes)
{
    static const char *const names[] = { "up",    "down", "bfly", "idx",     "idx8",
                                         "down8", "sum",  "fsum", "diverged" };
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        ck_assert_int_eq(run(names[k], 96, 0), PTX_OK);
        for (uint32_t t = 0; t < 96; t++)
            ck_assert_msg(output()[t] == shuffled(names[k], t), "%s, thread %u: %u, expected %u",
                          names[k], t, output()[t], shuffled(names[k], t));
    }
}
END_TEST

START_TEST(votes_matches_and_reductions_are_by_warp)
{
    ck_assert_int_eq(run("ballot", 64, 0), PTX_OK);
    ck_assert_uint_eq(output()[40], 0xaaaaaaaa);
    ck_assert_int_eq(run("ballot", 40, 0), PTX_OK);
    ck_assert_uint_eq(output()[39], 0xaa);
    ck_assert_int_eq(run("votes", 64, 0), PTX_OK);
    ck_assert_uint_eq(output()[0], 1 + 2);
    ck_assert_int_eq(run("match_any", 64, 0), PTX_OK);
    ck_assert_uint_eq(output()[0], 0xf);
    ck_assert_uint_eq(output()[63], 0xf0000000);
    ck_assert_int_eq(run("match_all", 64, 0), PTX_OK);
    ck_assert_uint_eq(output()[50], 0xffffffff);
    ck_assert_int_eq(run("redux", 32, 0), PTX_OK);
    ck_assert_uint_eq(output()[7], 496 + (31u << 12));
    ck_assert_int_eq(run("redux", 64, 0), PTX_OK);
    ck_assert_uint_eq(output()[40], 496 + 1024 + (63u << 12) + (32u << 20));
    ck_assert_int_eq(run("active", 64, 0), PTX_OK);
    ck_assert_uint_eq(output()[7], 0xff);
    ck_assert_uint_eq(output()[8], 0);
}
END_TEST

START_TEST(a_warp_goes_in_step_at_volatile_shared_memory)
{
    ck_assert_int_eq(run("in_step", 64, 0), PTX_OK);
    for (unsigned t = 0; t < 32; t++)
        ck_assert_uint_eq(output()[t], 64 * 65 / 2);
}
END_TEST

START_TEST(grids_have_three_dimensions)
{
    uint64_t out = DEVICE_BASE + 4096;
    struct ptx_grid grid = { .grid = { 2, 3, 2 }, .block = { 4, 5, 3 } };
    memset(output(), 0xee, 8192);
    ck_assert_int_eq(ptx_launch(device_kernel(module, "where"), &grid, &out, NULL), PTX_OK);
    for (uint32_t i = 0; i < 12 * 60; i++)
        ck_assert_uint_eq(output()[i], i % 60);
}
END_TEST

START_TEST(part_of_a_grid_runs_alone)
{
    uint64_t out = DEVICE_BASE + 4096;
    struct ptx_grid grid = {
        .grid = { 2, 3, 2 }, .block = { 4, 1, 1 }, .first_block = 5, .n_blocks = 3
    };
    memset(output(), 0xee, 8192);
    ck_assert_int_eq(ptx_launch(device_kernel(module, "where"), &grid, &out, NULL), PTX_OK);
    for (uint32_t i = 0; i < 48; i++)
        ck_assert_uint_eq(output()[i], i >= 20 && i < 32 ? i % 4 : 0xeeeeeeee);
    grid.n_blocks = 0; /* to the end */
    ck_assert_int_eq(ptx_launch(device_kernel(module, "where"), &grid, &out, NULL), PTX_OK);
    ck_assert_uint_eq(output()[47], 3);
    ck_assert_uint_eq(output()[19], 0xeeeeeeee);
}
END_TEST

START_TEST(functions_are_called)
{
    ck_assert_int_eq(run("calls", 33, 0), PTX_OK);
    for (uint32_t t = 0; t < 33; t++)
        ck_assert_uint_eq(output()[t], 2 * (t + 7) + 1);
}
END_TEST

enum { N_THREADS = 4, N_LAUNCHES = 50 };

static void *count_many(void *unused)
{
    uint64_t at = DEVICE_BASE + 64;
    for (int i = 0; i < N_LAUNCHES; i++) {
        struct ptx_grid grid = { .grid = { 10, 1, 1 },
                                 .block = { 64, 1, 1 },
                                 .first_block = (uint64_t)(i & 1) * 5,
                                 .n_blocks = 5 };
        if (ptx_launch(device_kernel(module, "count"), &grid, &at, NULL) != PTX_OK)
            return unused;
    }
    return NULL;
}

START_TEST(several_host_threads_launch_at_once)
{
    pthread_t threads[N_THREADS];
    uint32_t total = 0;
    memset(device_at(DEVICE_BASE + 64), 0, 4);
    for (int i = 0; i < N_THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, count_many, &total), 0);
    for (int i = 0; i < N_THREADS; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        ck_assert_ptr_null(failed);
    }
    memcpy(&total, device_at(DEVICE_BASE + 64), 4);
    ck_assert_uint_eq(total, N_THREADS * N_LAUNCHES * 5 * 64);
}
END_TEST

int main(void)
{
    device_fresh_cache();
    module = device_load(text);
    Suite *s = suite_create("ptx_threads");
    TCase *t = tcase_create("threads");
    tcase_add_test(t, barriers_order_shared_memory);
    tcase_add_test(t, dynamic_shared_memory_ends_where_the_launch_says);
    tcase_add_test(t, barriers_reduce_predicates);
    tcase_add_test(t, barriers_are_by_name_and_count);
    tcase_add_test(t, what_cannot_go_on_traps);
    tcase_add_test(t, threads_sleep_all_at_once_and_others_go_on);
    tcase_add_test(t, registers_survive_barriers);
    tcase_add_test(t, shuffles_move_values_between_lanes);
    tcase_add_test(t, votes_matches_and_reductions_are_by_warp);
    tcase_add_test(t, a_warp_goes_in_step_at_volatile_shared_memory);
    tcase_add_test(t, grids_have_three_dimensions);
    tcase_add_test(t, part_of_a_grid_runs_alone);
    tcase_add_test(t, functions_are_called);
    tcase_add_test(t, several_host_threads_launch_at_once);
    suite_add_tcase(s, t);
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    ptx_module_free(module);
    device_remove_cache();
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
