/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels: out[i] = seed * 65536 + i for i < rows, and one more in count. The seed is the number of the
 * place that they write, so all who write it write the same. They differ in name and in layout; pa, pb and
 * pe are sites of the spec that the test gives to the library, pe twice.
 */
#include "program.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define HEAD ".version 6.4\n.target sm_75\n.address_size 64\n"
#define KERNEL(name, params)                                                                       \
    ".visible .entry " name "(" params ")\n{\n"                                                    \
    ".reg .b32 %r<8>; .reg .b64 %d<6>; .reg .pred %q, %z;\n"                                       \
    "ld.param.u64 %d1, [out]; ld.param.u64 %d2, [count]; ld.param.u32 %r1, [rows]; ld.param.u32 "  \
    "%r2, [seed];\n"                                                                               \
    "mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mul.lo.u32 %r3, %r3, %r4; mov.u32 %r5, "         \
    "%tid.x;\n"                                                                                    \
    "add.u32 %r3, %r3, %r5; setp.ne.u32 %z, %r3, 0; @%z bra past;\n"                               \
    "red.global.add.u32 [%d2], 1;\n"                                                               \
    "past: setp.ge.u32 %q, %r3, %r1; @%q ret;\n"                                                   \
    "shl.b32 %r2, %r2, 16; add.u32 %r2, %r2, %r3; mul.wide.u32 %d3, %r3, 4; add.u64 %d4, %d1, "    \
    "%d3;\n"                                                                                       \
    "st.global.u32 [%d4], %r2;\nret;\n}\n"

static const char ptx[] = HEAD KERNEL(
    "pa", ".param .u64 out, .param .u32 rows, .param .u32 seed, .param .u64 count")
    KERNEL("pb", ".param .u32 seed, .param .u32 rows, .param .u64 count, .param .u64 out") KERNEL(
        "pc", ".param .u64 out, .param .u32 rows, .param .u32 seed, .param .u64 count")
        KERNEL("pd", ".param .u64 count, .param .u64 out, .param .u32 rows, .param .u32 seed")
            KERNEL("pe", ".param .u32 seed, .param .u64 out, .param .u32 rows, .param .u64 count");

/* Offsets of out, rows, seed and count; which parameter each is; bytes of all. */
static const struct layout {
    const char *name;
    unsigned char out, rows, seed, count, n;
    unsigned char order[4]; /* parameters as letters: o r s c */
    unsigned sites;
} layouts[N_KINDS] = {
    [KIND_A] = { "pa", 0, 8, 12, 16, 24, "orsc", 1 << 0 },
    [KIND_B] = { "pb", 16, 4, 0, 8, 24, "srco", 1 << 1 },
    [KIND_C] = { "pc", 0, 8, 12, 16, 24, "orsc", 0 },
    [KIND_D] = { "pd", 8, 16, 20, 0, 24, "cors", 0 },
    [KIND_E] = { "pe", 8, 16, 0, 24, 32, "sorc", 1 << 2 | 1 << 3 },
};

unsigned sites_of(enum kind kind)
{
    return layouts[kind].sites;
}

const char *kind_name(enum kind kind)
{
    return layouts[kind].name;
}

void kernels_load(struct program *p)
{
    CUresult r = CALL(p, cuModuleLoadData, &p->module, ptx);
    bool libraries = !entries_lack(ENTRY_cuLibraryLoadData);
    if (r == CUDA_SUCCESS && libraries)
        r = CALL(p, cuLibraryLoadData, &p->library, ptx, NULL, NULL, 0, NULL, NULL, 0);
    for (int i = 0; i < N_KINDS && r == CUDA_SUCCESS; i++) {
        r = CALL(p, cuModuleGetFunction, &p->functions[i], p->module, layouts[i].name);
        p->kernel_functions[i] = p->functions[i];
        p->kernels[i] = (CUkernel)p->functions[i];
        if (r == CUDA_SUCCESS && libraries)
            r = CALL(p, cuLibraryGetKernel, &p->kernels[i], p->library, layouts[i].name);
        if (r == CUDA_SUCCESS && libraries)
            r = CALL(p, cuKernelGetFunction, &p->kernel_functions[i], p->kernels[i]);
    }
    if (r != CUDA_SUCCESS) {
        fprintf(stderr, "graph_calls: the kernels cannot be loaded: %d\n", (int)r);
        exit(2);
    }
}

struct work some_work(struct program *p)
{
    struct work w = {
        .kind = (enum kind)pick(p, N_KINDS),
        .as_kernel = chance(p, 25),
        .slot = p->next_slot++ % N_SLOTS,
        .rows = chance(p, 10) ? 0 : 1 + pick(p, SLOT_ROWS),
        .block = 1u << pick(p, 6),
        .shared = chance(p, 10) ? 64 : 0,
    };
    w.grid = (w.rows + w.block - 1) / w.block;
    if (!w.grid && !chance(p, 20))
        w.grid = 1; /* else a kernel that cannot be launched */
    return w;
}

void arguments_of(struct program *p, const struct work *w, struct arguments *a)
{
    const struct layout *l = &layouts[w->kind];
    memset(a, 0, sizeof *a);
    a->out = p->slots + w->slot * SLOT_BYTES;
    a->count = a->out + SLOT_ROWS * 4;
    a->rows = w->rows;
    a->seed = w->slot;
    memcpy(a->packed + l->out, &a->out, 8);
    memcpy(a->packed + l->rows, &a->rows, 4);
    memcpy(a->packed + l->seed, &a->seed, 4);
    memcpy(a->packed + l->count, &a->count, 8);
    a->n_packed = l->n;
    for (int i = 0; i < 4; i++)
        a->params[i] = l->order[i] == 'o'   ? (void *)&a->out
                       : l->order[i] == 'r' ? (void *)&a->rows
                       : l->order[i] == 's' ? (void *)&a->seed
                                            : (void *)&a->count;
    a->extra[0] = CU_LAUNCH_PARAM_BUFFER_POINTER;
    a->extra[1] = a->packed;
    a->extra[2] = CU_LAUNCH_PARAM_BUFFER_SIZE;
    a->extra[3] = &a->n_packed;
    a->extra[4] = CU_LAUNCH_PARAM_END;
}

void node_params(struct program *p, const struct work *w, struct arguments *a, bool packed,
                 CUDA_KERNEL_NODE_PARAMS_v2 *k)
{
    arguments_of(p, w, a);
    *k = (CUDA_KERNEL_NODE_PARAMS_v2){
        .func = w->as_kernel ? NULL : p->functions[w->kind],
        .kern = w->as_kernel ? p->kernels[w->kind] : NULL,
        .ctx = w->as_kernel ? p->context : NULL,
        .gridDimX = w->grid,
        .gridDimY = 1,
        .gridDimZ = 1,
        .blockDimX = w->block,
        .blockDimY = 1,
        .blockDimZ = 1,
        .sharedMemBytes = w->shared,
        .kernelParams = packed ? NULL : a->params,
        .extra = packed ? a->extra : NULL,
    };
}

/* The values of a node's arguments, as either array gives them; false: there are none. */
static bool read_arguments(const CUDA_KERNEL_NODE_PARAMS_v2 *k, const struct layout *l,
                           struct arguments *a)
{
    const unsigned char *packed = NULL;
    for (void **e = k->kernelParams ? NULL : k->extra; e && *e != CU_LAUNCH_PARAM_END; e += 2)
        if (*e == CU_LAUNCH_PARAM_BUFFER_POINTER)
            packed = e[1];
    if (!k->kernelParams && !packed)
        return false;
    for (int i = 0; i < 4; i++) {
        char which = (char)l->order[i];
        size_t n = which == 'o' || which == 'c' ? 8 : 4;
        void *to = which == 'o'   ? (void *)&a->out
                   : which == 'c' ? (void *)&a->count
                   : which == 'r' ? (void *)&a->rows
                                  : &a->seed;
        unsigned at = which == 'o'   ? l->out
                      : which == 'c' ? l->count
                      : which == 'r' ? l->rows
                                     : l->seed;
        memcpy(to, packed ? packed + at : k->kernelParams[i], n);
    }
    return true;
}

void say_work(struct program *p, const struct work *w)
{
    say(p, " %s%s slot %u rows %u grid %u block %u shared %u", layouts[w->kind].name,
        w->as_kernel ? "*" : "", w->slot, w->rows, w->grid, w->block, w->shared);
}

void say_params(struct program *p, const CUDA_KERNEL_NODE_PARAMS_v2 *k, struct work *w)
{
    int kind = -1;
    bool as_kernel = false;
    for (int i = 0; i < N_KINDS; i++) {
        if (k->func && k->func == p->functions[i])
            kind = i;
        if ((k->kern && k->kern == p->kernels[i]) ||
            (k->func &&
             (k->func == p->kernel_functions[i] || (void *)k->func == (void *)p->kernels[i]))) {
            kind = i;
            as_kernel = true;
        }
    }
    *w = (struct work){ .kind = KIND_C };
    if (kind < 0) {
        say(p, " unknown function");
        return;
    }
    struct arguments a = { 0 };
    bool read = read_arguments(k, &layouts[kind], &a);
    *w = (struct work){
        .kind = (enum kind)kind,
        .as_kernel = as_kernel,
        .slot = a.seed % N_SLOTS,
        .rows = a.rows,
        .grid = k->gridDimX,
        .block = k->blockDimX,
        .shared = k->sharedMemBytes,
    };
    say_work(p, w);
    say(p, " %ux%u %ux%u", k->gridDimY, k->gridDimZ, k->blockDimY, k->blockDimZ);
    if (read) {
        say(p, " (%s", k->kernelParams ? "params" : "packed");
        say_pointer(p, a.out);
        say(p, " %u %u", a.rows, a.seed);
        say_pointer(p, a.count);
        say(p, ")");
    } else {
        say(p, " (no arguments)");
    }
}

CUresult launch_work(struct program *p, const struct work *w, CUstream stream)
{
    struct arguments a;
    arguments_of(p, w, &a);
    bool packed = chance(p, 40), own = stream == CU_STREAM_PER_THREAD && chance(p, 50);
    void **params = packed ? NULL : a.params, **extra = packed ? a.extra : NULL;
    CUfunction f = w->as_kernel ? (CUfunction)p->kernels[w->kind] : p->functions[w->kind];
    if (chance(p, 30)) {
        CUlaunchConfig config = { w->grid, 1, 1, w->block, 1, 1, w->shared, own ? NULL : stream,
                                  NULL,    0 };
        return own ? CALL(p, cuLaunchKernelEx_ptsz, &config, f, params, extra)
                   : CALL(p, cuLaunchKernelEx, &config, f, params, extra);
    }
    return own ? CALL(p, cuLaunchKernel_ptsz, f, w->grid, 1, 1, w->block, 1, 1, w->shared, NULL,
                      params, extra)
               : CALL(p, cuLaunchKernel, f, w->grid, 1, 1, w->block, 1, 1, w->shared, stream,
                      params, extra);
}
