/* SPDX-License-Identifier: Apache-2.0 */
/* What a warp computes together (mma, ldmatrix) against the same computed here, and asynchronous copies. */
#include "test_device.h"

#include <math.h>

enum { WARPS = 2, LANES = 32 * WARPS };

/* Each is a kernel: D = A x B + C twice over, the second time with D as C. */
struct form {
    const char *name, *op;
    char type; /* h, b, t: f16, bf16, tf32 */
    unsigned depth;
    bool half; /* C and D in f16 */
};
static const struct form forms[] = {
    { "f16", "m16n8k16.row.col.f32.f16.f16.f32", 'h', 16, false },
    { "f16_half", "m16n8k16.row.col.f16.f16.f16.f16", 'h', 16, true },
    { "bf16", "m16n8k16.row.col.f32.bf16.bf16.f32", 'b', 16, false },
    { "f16_8", "m16n8k8.row.col.f32.f16.f16.f32", 'h', 8, false },
    { "f16_8_half", "m16n8k8.row.col.f16.f16.f16.f16", 'h', 8, true },
    { "bf16_8", "m16n8k8.row.col.f32.bf16.bf16.f32", 'b', 8, false },
    { "tf32", "m16n8k8.row.col.f32.tf32.tf32.f32", 't', 8, false },
    { "tf32_4", "m16n8k4.row.col.f32.tf32.tf32.f32", 't', 4, false },
};
#define N_FORMS (sizeof forms / sizeof forms[0])

static const char other_kernels[] =
    /* sixteen rows of 16 bytes in shared memory; lane i says that its row is at rows[i] */
    ".visible .entry ldm(.param .u64 tile, .param .u64 rows, .param .u64 out)\n"
    "{ .shared .align 16 .b8 s[1024]; .reg .b64 %d<9>; .reg .b32 %r<20>; .reg .pred %p1;\n"
    "ld.param.u64 %d1, [tile]; ld.param.u64 %d2, [rows]; ld.param.u64 %d3, [out]; mov.u32 %r1, "
    "%tid.x;\n"
    "mul.wide.u32 %d4, %r1, 16; add.s64 %d5, %d1, %d4; ld.global.v4.b32 {%r2, %r3, %r4, %r5}, "
    "[%d5];\n"
    "mov.u32 %r6, s; shl.b32 %r7, %r1, 4; add.u32 %r7, %r6, %r7; st.shared.v4.b32 [%r7], {%r2, "
    "%r3, %r4, %r5};\n"
    "bar.sync 0; mul.wide.u32 %d4, %r1, 4; add.s64 %d5, %d2, %d4; ld.global.b32 %r8, [%d5]; "
    "add.u32 %r8, %r8, %r6;\n"
    "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r9}, [%r8];\n"
    "ldmatrix.sync.aligned.m8n8.x2.trans.shared::cta.b16 {%r10, %r11}, [%r8+0];\n"
    "cvt.u64.u32 %d6, %r8; cvta.shared.u64 %d6, %d6;\n"
    "ldmatrix.sync.aligned.m8n8.x4.b16 {%r12, %r13, %r14, %r15}, [%d6];\n"
    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r16, %r17, %r18, %r19}, [%r8];\n"
    "mul.wide.u32 %d4, %r1, 64; add.s64 %d5, %d3, %d4;\n"
    "st.global.v4.b32 [%d5], {%r9, %r10, %r11, %r12}; st.global.v4.b32 [%d5+16], {%r13, %r14, "
    "%r15, %r16};\n"
    "st.global.v2.b32 [%d5+32], {%r17, %r18}; st.global.b32 [%d5+40], %r19; ret; }\n"
    /* half of a warp has left */
    ".visible .entry half_a_warp()\n{ .reg .b32 %r<9>, %t; .reg .pred %p1;\n"
    "mov.u32 %t, %tid.x; setp.ge.u32 %p1, %t, 16; @%p1 exit;\n"
    "mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%r1, %r2}, {%r3, %r4}, {%r5}, {%r6, %r7}; "
    "ret; }\n"
    /* what a thread finds at its 16 bytes of shared memory: before, after the first group, after both */
    ".visible .entry groups(.param .u64 from, .param .u64 out)\n"
    "{ .shared .align 16 .b8 s[4096]; .reg .b64 %d<9>; .reg .b32 %r<20>;\n"
    "ld.param.u64 %d1, [from]; ld.param.u64 %d2, [out]; mov.u32 %r1, %tid.x; mul.wide.u32 %d3, "
    "%r1, 32;\n"
    "add.s64 %d1, %d1, %d3; mov.u32 %r2, s; shl.b32 %r3, %r1, 5; add.u32 %r2, %r2, %r3;\n"
    "mov.u32 %r4, 5; st.shared.v4.b32 [%r2], {%r4, %r4, %r4, %r4}; st.shared.v4.b32 [%r2+16], "
    "{%r4, %r4, %r4, %r4};\n"
    "cp.async.cg.shared.global [%r2], [%d1], 16; cp.async.commit_group;\n"
    "cp.async.ca.shared.global.L2::128B [%r2+16], [%d1+16], 4; cp.async.ca.shared::cta.global "
    "[%r2+24], [%d1+24], 8;\n"
    "cp.async.commit_group; ld.shared.b32 %r5, [%r2+12]; ld.shared.b32 %r6, [%r2+16];\n"
    "cp.async.wait_group 1; ld.shared.b32 %r7, [%r2+12]; ld.shared.b32 %r8, [%r2+16];\n"
    "cp.async.wait_group 0; bar.sync 0; ld.shared.b32 %r9, [%r2+16]; ld.shared.b32 %r10, "
    "[%r2+20]; ld.shared.b32 %r11, [%r2+28];\n"
    "mul.wide.u32 %d4, %r1, 32; add.s64 %d5, %d2, %d4;\n"
    "st.global.v4.b32 [%d5], {%r5, %r6, %r7, %r8}; st.global.v2.b32 [%d5+16], {%r9, %r10}; "
    "st.global.b32 [%d5+24], %r11; ret; }\n"
    /* no barrier; parts that do not count are zeros, and read from nowhere */
    ".visible .entry parts(.param .u64 from, .param .u32 count, .param .u64 out)\n"
    "{ .shared .align 16 .b8 s[64]; .reg .b64 %d<9>; .reg .b32 %r<20>; .reg .pred %p<3>;\n"
    "ld.param.u64 %d1, [from]; ld.param.u32 %r1, [count]; ld.param.u64 %d2, [out]; mov.u32 %r2, "
    "s;\n"
    "setp.eq.u32 %p1, %r1, 0; cp.async.cg.shared.global [%r2], [%d1], 16, %r1;\n"
    "cp.async.ca.shared.global [%r2+16], [%d1], 8, %p1; cp.async.wait_all;\n"
    "ld.shared.v4.b32 {%r3, %r4, %r5, %r6}, [%r2]; st.global.v4.b32 [%d2], {%r3, %r4, %r5, %r6};\n"
    "ld.shared.v2.b32 {%r3, %r4}, [%r2+16]; st.global.v2.b32 [%d2+16], {%r3, %r4}; ret; }\n"
    /* more under way than there is room for, from a function */
    ".func copy(.param .b32 to, .param .b64 from)\n{ .reg .b32 %r1; .reg .b64 %d1;\n"
    "ld.param.u32 %r1, [to]; ld.param.u64 %d1, [from]; cp.async.ca.shared.global [%r1], [%d1], 4; "
    "ret; }\n"
    ".visible .entry many(.param .u64 from, .param .u64 out)\n"
    "{ .shared .align 16 .b8 s[400]; .reg .b64 %d<9>; .reg .b32 %r<20>; .reg .pred %p1;\n"
    "ld.param.u64 %d1, [from]; ld.param.u64 %d2, [out]; mov.u32 %r1, s; mov.u32 %r2, 0;\n"
    "L: mul.wide.u32 %d3, %r2, 4; add.s64 %d4, %d1, %d3; shl.b32 %r3, %r2, 2; add.u32 %r3, %r3, "
    "%r1;\n"
    "{ .param .b32 p0; .param .b64 p1; st.param.b32 [p0], %r3; st.param.b64 [p1], %d4; call.uni "
    "copy, (p0, p1); }\n"
    "add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 100; @%p1 bra L;\n"
    "cp.async.commit_group; cp.async.wait_group 0; mov.u32 %r2, 0;\n"
    "M: mul.wide.u32 %d3, %r2, 4; add.s64 %d4, %d2, %d3; shl.b32 %r3, %r2, 2; add.u32 %r3, %r3, "
    "%r1;\n"
    "ld.shared.b32 %r4, [%r3]; st.global.b32 [%d4], %r4; add.u32 %r2, %r2, 1; setp.lt.u32 %p1, "
    "%r2, 100; @%p1 bra M; ret; }\n";

static struct ptx_module *module;

static unsigned words_a(const struct form *f)
{
    return f->depth * (f->type == 't' ? 2u : 1u) / 4;
}

/* "{%c0, %c1}": so many registers from a name on */
static void put_registers(FILE *f, char name, unsigned n)
{
    fputc('{', f);
    for (unsigned i = 0; i < n; i++)
        fprintf(f, "%s%%%c%u", i ? ", " : "", name, i);
    fputc('}', f);
}

static void put_access(FILE *f, const char *op, unsigned at, char name, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (op[0] == 'l')
            fprintf(f, "ld.global.b32 %%%c%u, [%%d%u+%u];\n", name, i, at, 4 * i);
        else
            fprintf(f, "st.global.b32 [%%d%u+%u], %%%c%u;\n", at, 4 * i, name, i);
}

static void put_mma(FILE *f, const struct form *form)
{
    unsigned n_a = words_a(form), n_c = form->half ? 2 : 4;
    unsigned n[] = { n_a, n_a / 2, n_c, n_c };

    fprintf(f,
            ".visible .entry %s(.param .u64 p1, .param .u64 p2, .param .u64 p3, .param .u64 p4)\n"
            "{ .reg .b64 %%d<5>; .reg .b32 %%a<4>, %%b<4>, %%c<4>, %%t; mov.u32 %%t, %%tid.x;\n",
            form->name);
    for (unsigned k = 1; k <= 4; k++)
        fprintf(f, "ld.param.u64 %%d%u, [p%u]; mad.wide.u32 %%d%u, %%t, %u, %%d%u;\n", k, k, k,
                4 * n[k - 1], k);
    put_access(f, "ld", 1, 'a', n_a);
    put_access(f, "ld", 2, 'b', n_a / 2);
    put_access(f, "ld", 3, 'c', n_c);
    for (int twice = 0; twice < 2; twice++) {
        fprintf(f, "mma.sync.aligned.%s ", form->op);
        put_registers(f, 'c', n_c);
        fputs(", ", f);
        put_registers(f, 'a', n_a);
        fputs(", ", f);
        put_registers(f, 'b', n_a / 2);
        fputs(", ", f);
        put_registers(f, 'c', n_c);
        fputs(";\n", f);
    }
    put_access(f, "st", 4, 'c', n_c);
    fputs("ret; }\n", f);
}

static void load_all(void)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    fputs(PTX_HEAD, f);
    for (size_t i = 0; i < N_FORMS; i++)
        put_mma(f, &forms[i]);
    fputs(other_kernels, f);
    fclose(f);
    module = device_load(text);
    free(text);
}

/* ------------------------------------------------------------------------- values */

/* To the nearest, ties to even. By hand: not every compiler of ours has the type. */
static uint16_t half_bits(float v)
{
    unsigned sign = signbit(v) ? 0x8000 : 0;
    float a = fabsf(v);
    int e;
    if (isnan(a) || a >= 65520)
        return (uint16_t)(sign | (isnan(a) ? 0x7e00 : 0x7c00));
    if (a < 0x1p-14f)
        return (uint16_t)(sign | (unsigned)nearbyintf(a * 0x1p24f));
    unsigned fraction = (unsigned)nearbyintf(frexpf(a, &e) * 2048); /* 1024 to 2048: carries over */
    return (uint16_t)(sign | ((((unsigned)e + 14) << 10) + fraction - 1024));
}

static float half_value(uint16_t bits)
{
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    float value = exponent == 31  ? (fraction ? NAN : INFINITY)
                  : exponent == 0 ? ldexpf((float)fraction, -24)
                                  : ldexpf((float)(fraction + 1024), exponent - 25);
    return bits & 0x8000 ? -value : value;
}

/* A value that the type holds exactly; tf32 has as many bits of fraction as f16 */
static float exact(char type, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, 4);
    bits &= type == 'b' ? 0xffff0000u : 0xffffe000u;
    memcpy(&v, &bits, 4);
    return type == 'h' ? half_value(half_bits(v)) : v;
}

static float random_value(void)
{
    return (float)(drand48() * 4 - 2);
}

static void put_value(uint32_t *words, const struct form *f, unsigned i, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, 4);
    if (f->type == 't')
        words[i] = bits | 0x1234u >> 2; /* the last 13 bits of a tf32 do not count */
    else
        words[i / 2] |= (f->type == 'h' ? half_bits(v) : bits >> 16) << (16 * (i % 2));
}

/* PTX ISA 9.7.14.5, fragments: row and column of value @i of a lane, for the shapes here */
static void place_a(const struct form *f, unsigned lane, unsigned i, unsigned *row,
                    unsigned *column)
{
    unsigned group = lane >> 2, in_group = lane % 4;
    if (f->type == 't') {
        *row = i % 2 ? group + 8 : group;
        *column = i < 2 ? in_group : in_group + 4;
    } else {
        *row = i < 2 || (4 <= i && i < 6) ? group : group + 8;
        *column = in_group * 2 + (i & 1) + (i < 4 ? 0 : 8);
    }
}

static void place_b(const struct form *f, unsigned lane, unsigned i, unsigned *row,
                    unsigned *column)
{
    unsigned group = lane >> 2, in_group = lane % 4;
    *row = f->type == 't' ? in_group + (i ? 4 : 0) : in_group * 2 + (i & 1) + (i < 2 ? 0 : 8);
    *column = group;
}

static void place_c(unsigned lane, unsigned i, unsigned *row, unsigned *column)
{
    *row = i < 2 ? lane >> 2 : (lane >> 2) + 8;
    *column = (lane % 4) * 2 + (i & 1);
}

START_TEST(mma_multiplies_as_the_isa_lays_fragments_out)
{
    const struct form *f = &forms[_i];
    static float a[WARPS][16][16], b[WARPS][16][8], c[WARPS][16][8];
    static uint32_t wa[LANES][4], wb[LANES][2], wc[LANES][4];
    unsigned n_a = words_a(f), per = f->type == 't' ? 1 : 2, row, column;

    for (unsigned w = 0; w < WARPS; w++)
        for (unsigned i = 0; i < 16; i++)
            for (unsigned j = 0; j < 16; j++) {
                a[w][i][j] = exact(f->type, random_value());
                b[w][i][j % 8] = exact(f->type, random_value());
                c[w][i][j % 8] = f->half ? exact('h', random_value()) : random_value();
            }
    memset(wa, 0, sizeof wa);
    memset(wb, 0, sizeof wb);
    memset(wc, 0, sizeof wc);
    uint64_t at[] = { DEVICE_BASE, DEVICE_BASE + 4096, DEVICE_BASE + 8192, DEVICE_BASE + 12288 };
    for (unsigned l = 0; l < LANES; l++) {
        for (unsigned i = 0; i < n_a * per; i++) {
            place_a(f, l % 32, i, &row, &column);
            put_value(wa[l], f, i, a[l / 32][row][column]);
        }
        for (unsigned i = 0; i < n_a / 2 * per; i++) {
            place_b(f, l % 32, i, &row, &column);
            put_value(wb[l], f, i, b[l / 32][row][column]);
        }
        for (unsigned i = 0; i < 4; i++) {
            place_c(l % 32, i, &row, &column);
            if (f->half)
                wc[l][i / 2] |= (uint32_t)half_bits(c[l / 32][row][column]) << (16 * (i % 2));
            else
                memcpy(&wc[l][i], &c[l / 32][row][column], 4);
        }
        memcpy((char *)device_at(at[0]) + l * n_a * 4, wa[l], n_a * 4);
        memcpy((char *)device_at(at[1]) + l * n_a * 2, wb[l], n_a * 2);
        memcpy((char *)device_at(at[2]) + l * (f->half ? 8 : 16), wc[l], f->half ? 8 : 16);
    }
    ck_assert_int_eq(device_run(device_kernel(module, f->name), 1, LANES, at), PTX_OK);
    const uint32_t *got = device_at(at[3]);
    for (unsigned l = 0; l < LANES; l++)
        for (unsigned i = 0; i < 4; i++) {
            float value;
            double want = 0;
            place_c(l % 32, i, &row, &column);
            for (unsigned k = 0; k < f->depth; k++)
                want += 2.0 * (double)a[l / 32][row][k] * (double)b[l / 32][k][column];
            want += (double)c[l / 32][row][column];
            if (f->half)
                value = half_value((uint16_t)(got[l * 2 + i / 2] >> (16 * (i % 2))));
            else
                memcpy(&value, &got[l * 4 + i], 4);
            ck_assert_msg(fabs((double)value - want) < (f->half ? 0.06 : 1e-4),
                          "%s, lane %u, %u: %g, expected %g", f->name, l, i, (double)value, want);
        }
}
END_TEST

START_TEST(matrices_load_from_the_rows_that_lanes_name)
{
    uint64_t p[] = { DEVICE_BASE, DEVICE_BASE + 4096, DEVICE_BASE + 8192 };
    uint16_t *tile = device_at(p[0]);
    uint32_t *rows = device_at(p[1]);
    for (unsigned i = 0; i < 512; i++)
        tile[i] = (uint16_t)lrand48();
    for (unsigned l = 0; l < LANES; l++)
        rows[l] = (uint32_t)(lrand48() % 64) * 16;
    ck_assert_int_eq(device_run(device_kernel(module, "ldm"), 1, LANES, p), PTX_OK);
    for (unsigned l = 0; l < LANES; l++) {
        const uint32_t *got = (uint32_t *)device_at(p[2]) + 16 * l, *mine = rows + l / 32 * 32;
        unsigned i = l % 32 / 4, j = 2 * (l % 4);
        for (unsigned m = 0; m < 4; m++) {
            const uint16_t *row = tile + mine[8 * m + i] / 2, *upper = tile + mine[8 * m + j] / 2,
                           *lower = tile + mine[8 * m + j + 1] / 2;
            uint32_t plain = row[j] | (uint32_t)row[j + 1] << 16,
                     turned = upper[i] | (uint32_t)lower[i] << 16;
            if (!m)
                ck_assert_uint_eq(got[0], plain);
            if (m < 2)
                ck_assert_uint_eq(got[1 + m], turned);
            ck_assert_uint_eq(got[3 + m], plain);
            ck_assert_uint_eq(got[7 + m], turned);
        }
    }
    rows[40] = 8; /* a row begins at a multiple of 16 */
    ck_assert_int_eq(device_run(device_kernel(module, "ldm"), 1, LANES, p), PTX_E_FAULT);
    rows[40] = 1024;
    ck_assert_int_eq(device_run(device_kernel(module, "ldm"), 1, LANES, p), PTX_E_FAULT);
}
END_TEST

START_TEST(a_part_of_a_warp_is_not_enough)
{
    ck_assert_int_eq(device_run(device_kernel(module, "half_a_warp"), 1, 32, NULL), PTX_E_TRAP);
    ck_assert_int_eq(device_run(device_kernel(module, "half_a_warp"), 1, 8, NULL), PTX_E_TRAP);
}
END_TEST

START_TEST(copies_are_there_when_their_group_was_waited_for)
{
    uint64_t p[] = { DEVICE_BASE, DEVICE_BASE + 8192 };
    uint32_t *from = device_at(p[0]), *got = device_at(p[1]);
    for (unsigned i = 0; i < 1024; i++)
        from[i] = 1000 + i;
    ck_assert_int_eq(device_run(device_kernel(module, "groups"), 1, 128, p), PTX_OK);
    for (unsigned t = 0; t < 128; t++, got += 8) {
        ck_assert_uint_eq(got[0], 5);
        ck_assert_uint_eq(got[1], 5);
        ck_assert_uint_eq(got[2], 1000 + 8 * t + 3);
        ck_assert_uint_eq(got[3], 5);
        ck_assert_uint_eq(got[4], 1000 + 8 * t + 4);
        ck_assert_uint_eq(got[5], 5); /* four bytes were copied, not eight */
        ck_assert_uint_eq(got[6], 1000 + 8 * t + 7);
    }
}
END_TEST

START_TEST(what_does_not_count_is_zero)
{
    struct {
        uint64_t from;
        uint32_t count;
        uint64_t out;
    } p = { DEVICE_BASE, 8, DEVICE_BASE + 8192 };
    uint32_t *from = device_at(p.from), *got = device_at(p.out);
    const struct ptx_kernel *k = device_kernel(module, "parts");
    for (unsigned i = 0; i < 4; i++)
        from[i] = 0x01010101 * (i + 1);
    ck_assert_int_eq(device_run(k, 1, 1, &p), PTX_OK);
    ck_assert_uint_eq(got[1], 0x02020202);
    ck_assert_uint_eq(got[2], 0);
    ck_assert_uint_eq(got[5], 0x02020202);
    p.count = 6;
    ck_assert_int_eq(device_run(k, 1, 1, &p), PTX_OK);
    ck_assert_uint_eq(got[1], 0x0202);
    p.count = 0;
    p.from = 0;
    ck_assert_int_eq(device_run(k, 1, 1, &p), PTX_OK);
    ck_assert_uint_eq(got[0], 0);
    ck_assert_uint_eq(got[4], 0);
    p.count = 17; /* more than the copy holds */
    p.from = DEVICE_BASE;
    ck_assert_int_eq(device_run(k, 1, 1, &p), PTX_E_TRAP);
    p.count = 4;
    p.from = DEVICE_BASE + DEVICE_BYTES;
    ck_assert_int_eq(device_run(k, 1, 1, &p), PTX_E_FAULT);
}
END_TEST

START_TEST(a_hundred_copies_are_under_way_at_once)
{
    uint64_t p[] = { DEVICE_BASE, DEVICE_BASE + 8192 };
    uint32_t *from = device_at(p[0]), *got = device_at(p[1]);
    for (unsigned i = 0; i < 100; i++)
        from[i] = (uint32_t)lrand48();
    ck_assert_int_eq(device_run(device_kernel(module, "many"), 1, 1, p), PTX_OK);
    ck_assert_mem_eq(got, from, 400);
}
END_TEST

int main(void)
{
    device_fresh_cache();
    load_all();
    Suite *s = suite_create("ptx_matrix");
    TCase *t = tcase_create("matrix");
    tcase_add_loop_test(t, mma_multiplies_as_the_isa_lays_fragments_out, 0, (int)N_FORMS);
    tcase_add_test(t, matrices_load_from_the_rows_that_lanes_name);
    tcase_add_test(t, a_part_of_a_warp_is_not_enough);
    tcase_add_test(t, copies_are_there_when_their_group_was_waited_for);
    tcase_add_test(t, what_does_not_count_is_zero);
    tcase_add_test(t, a_hundred_copies_are_under_way_at_once);
    suite_add_tcase(s, t);
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    ptx_module_free(module);
    device_remove_cache();
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
