/* SPDX-License-Identifier: Apache-2.0 */
/*
 * driver_calls.c - an engine that does what a text says
 *
 * driver_calls SCRIPT [WAY]: runs the script's lines, each one driver call or one way to start, stop or
 * split the process, and prints what each call returned, errno, and a digest of what it read back. It
 * knows nothing of DMI but the public functions of <dmi/dmi.h>, looked up as that header says. So the
 * same script with and without the library must print the same.
 *
 * WAY is how entry points are found: dlopen (default), default (RTLD_DEFAULT), proc1, proc2
 * (cuGetProcAddress), ptsz (proc2 with per-thread default stream), chain (a cuGetProcAddress that
 * cuGetProcAddress returned), link (the program driver_calls_link).
 *
 * Names are variables that hold 64-bit handles. %i in a line is the repetition, %t the thread.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dmi/dmi.h>

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

/* ---- kernels ---- */

#define HEAD ".version 6.4\n.target sm_75\n.address_size 64\n"
/* out[i] = seed * 65536 + i for i < n, one block of any size */
#define FILL(name)                                                                                 \
    ".visible .entry " name "(.param .u64 " name "_p, .param .u32 " name "_n, .param .u32 " name   \
    "_s, .param .u64 " name "_x)\n{\n.reg .b32 %r<8>;\n.reg .b64 %d<4>;\n.reg .pred %q;\n"         \
    "ld.param.u64 %d1, [" name "_p];\nld.param.u32 %r1, [" name "_n];\nld.param.u32 %r5, [" name   \
    "_s];\nmov.u32 %r2, %ctaid.x;\nmov.u32 %r3, %ntid.x;\nmul.lo.u32 %r2, %r2, %r3;\n"             \
    "mov.u32 %r4, %tid.x;\nadd.u32 %r2, %r2, %r4;\nsetp.ge.u32 %q, %r2, %r1;\n@%q ret;\n"          \
    "shl.b32 %r5, %r5, 16;\nadd.u32 %r5, %r5, %r2;\nmul.wide.u32 %d2, %r2, 4;\n"                   \
    "add.u64 %d3, %d1, %d2;\nst.global.u32 [%d3], %r5;\nret;\n}\n"
/* writes nothing: its arguments only describe a tensor that is there */
#define VIEW(name)                                                                                 \
    ".visible .entry " name "(.param .u64 " name "_p, .param .u32 " name "_a, .param .u32 " name   \
    "_b, .param .u64 " name "_c)\n{\nret;\n}\n"

/* runs until the word at p is not 0 */
#define SPIN(name)                                                                                 \
    ".visible .entry " name "(.param .u64 " name "_p, .param .u32 " name "_a, .param .u32 " name   \
    "_b, .param .u64 " name "_c)\n{\n.reg .b32 %r1;\n.reg .b64 %d1;\n.reg .pred %q;\n"             \
    "ld.param.u64 %d1, [" name "_p];\nagain:\nld.volatile.global.u32 %r1, [%d1];\n"                \
    "setp.eq.u32 %q, %r1, 0;\n@%q bra again;\nret;\n}\n"

static const char ptx_fill[] = HEAD FILL("first") FILL("block") FILL("other") FILL("last");
static const char ptx_again[] = HEAD FILL("other") FILL("last") FILL("first") FILL("block");
static const char ptx_spin[] = HEAD SPIN("spin");
static const char ptx_view[] =
    HEAD VIEW("view0") VIEW("view1") VIEW("view2") VIEW("view3") VIEW("view4") VIEW("view5")
        VIEW("view6") VIEW("view7") VIEW("view8") VIEW("view9") VIEW("view10") VIEW("view11");

static const char *ptx_of(const char *name)
{
    return !strcmp(name, "view")    ? ptx_view
           : !strcmp(name, "again") ? ptx_again
           : !strcmp(name, "spin")  ? ptx_spin
                                    : ptx_fill;
}

/* ---- entry points ---- */

static const char *way = "dlopen";
static void *library;

struct entry {
    const char *symbol; /* exported */
    const char *name;   /* to ask the resolver for */
    int version;
    void *linked;
    void *found;
};

#ifdef LINKED
/* NULL where the driver is too old for one */
#pragma weak cuLibraryLoadData
#pragma weak cuLibraryLoadFromFile
#pragma weak cuLibraryEnumerateKernels
#pragma weak cuModuleEnumerateFunctions
#pragma weak cuFuncLoad
#pragma weak cuGraphExecUpdate_v2
#pragma weak cuLibraryGetKernel
#pragma weak cuLibraryGetModule
#pragma weak cuLibraryUnload
#pragma weak cuKernelGetFunction
#define LINK(symbol) (void *)(uintptr_t)symbol
#else
#define LINK(symbol) NULL
#endif
#define E(symbol, name, version)                                                                   \
    {                                                                                              \
#symbol, #name, version, LINK(symbol), NULL                                                \
    }
static struct entry entries[] = {
    E(cuInit, cuInit, 2000),
    E(cuDeviceGet, cuDeviceGet, 2000),
    E(cuCtxCreate_v2, cuCtxCreate, 3020),
    E(cuCtxDestroy_v2, cuCtxDestroy, 4000),
    E(cuCtxAttach, cuCtxAttach, 2000),
    E(cuCtxDetach, cuCtxDetach, 2000),
    E(cuCtxSetCurrent, cuCtxSetCurrent, 4000),
    E(cuCtxSynchronize, cuCtxSynchronize, 2000),
    E(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000),
    E(cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease, 11000),
    E(cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset, 11000),
    E(cuModuleLoadData, cuModuleLoadData, 2000),
    E(cuModuleGetFunction, cuModuleGetFunction, 2000),
    E(cuModuleUnload, cuModuleUnload, 2000),
    E(cuModuleLoad, cuModuleLoad, 2000),
    E(cuModuleLoadDataEx, cuModuleLoadDataEx, 2010),
    E(cuModuleLoadFatBinary, cuModuleLoadFatBinary, 2000),
    E(cuLibraryLoadData, cuLibraryLoadData, 12000),
    E(cuLibraryLoadFromFile, cuLibraryLoadFromFile, 12000),
    E(cuLibraryGetModule, cuLibraryGetModule, 12000),
    E(cuModuleEnumerateFunctions, cuModuleEnumerateFunctions, 12040),
    E(cuLibraryGetKernel, cuLibraryGetKernel, 12000),
    E(cuLibraryEnumerateKernels, cuLibraryEnumerateKernels, 12040),
    E(cuLibraryUnload, cuLibraryUnload, 12000),
    E(cuKernelGetFunction, cuKernelGetFunction, 12000),
    E(cuMemAlloc_v2, cuMemAlloc, 3020),
    E(cuMemFree_v2, cuMemFree, 3020),
    E(cuMemHostAlloc, cuMemHostAlloc, 2020),
    E(cuMemAllocAsync, cuMemAllocAsync, 11020),
    E(cuMemAddressReserve, cuMemAddressReserve, 10020),
    E(cuMemCreate, cuMemCreate, 10020),
    E(cuMemMap, cuMemMap, 10020),
    E(cuMemSetAccess, cuMemSetAccess, 10020),
    E(cuFuncLoad, cuFuncLoad, 12040),
    E(cuMemcpyHtoD_v2, cuMemcpyHtoD, 3020),
    E(cuMemcpyDtoH_v2, cuMemcpyDtoH, 3020),
    E(cuStreamCreate, cuStreamCreate, 2000),
    E(cuStreamDestroy_v2, cuStreamDestroy, 4000),
    E(cuStreamSynchronize, cuStreamSynchronize, 2000),
    E(cuStreamBeginCapture_v2, cuStreamBeginCapture, 10010),
    E(cuStreamEndCapture, cuStreamEndCapture, 10000),
    E(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, 11040),
    E(cuGraphExecUpdate_v2, cuGraphExecUpdate, 12000),
    E(cuGraphExecDestroy, cuGraphExecDestroy, 10000),
    E(cuGraphLaunch, cuGraphLaunch, 10000),
    E(cuLaunchKernel, cuLaunchKernel, 4000),
    E(cuLaunchKernelEx, cuLaunchKernelEx, 11060),
    E(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel, 9000),
};

static void *resolver_of(void *lib, const char *symbol)
{
    void *found = dlsym(lib, symbol);
    if (!found) {
        fprintf(stderr, "driver_calls: libcuda has no %s\n", symbol);
        exit(2);
    }
    return found;
}

static void *resolve(const struct entry *e)
{
    void *found = NULL;
    if (!strcmp(way, "link"))
        return e->linked;
    if (!strcmp(way, "default"))
        return dlsym(RTLD_DEFAULT, e->symbol);
    if (!strcmp(way, "dlopen"))
        return dlsym(library, e->symbol);
    bool ptsz = !strcmp(way, "ptsz");
    if (!strcmp(way, "proc1")) {
        __typeof__(cuGetProcAddress) *ask = resolver_of(library, "cuGetProcAddress");
        return ask(e->name, &found, e->version, 0) == CUDA_SUCCESS ? found : NULL;
    }
    __typeof__(cuGetProcAddress_v2) *ask = resolver_of(library, "cuGetProcAddress_v2");
    if (!strcmp(way, "chain")) {
        void *again = NULL;
        if (ask("cuGetProcAddress", &again, 12000, 0, NULL) != CUDA_SUCCESS || !again)
            return NULL;
        ask = again;
    }
    return ask(e->name, &found, e->version, ptsz ? 2 : 0, NULL) == CUDA_SUCCESS ? found : NULL;
}

static void *entry(const char *symbol)
{
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        struct entry *e = &entries[i];
        if (strcmp(e->symbol, symbol))
            continue;
        if (!e->found)
            e->found = resolve(e);
        if (!e->found) {
            fprintf(stderr, "driver_calls: no %s by way of %s\n", symbol, way);
            exit(2);
        }
        return e->found;
    }
    abort();
}

#define CALL(name, ...) ((__typeof__(name) *)entry(#name))(__VA_ARGS__)

/* ---- variables ---- */

static struct {
    char name[24];
    uint64_t value;
} vars[512];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t *var(const char *name)
{
    pthread_mutex_lock(&lock);
    uint64_t *found = NULL;
    for (size_t i = 0; i < sizeof vars / sizeof vars[0] && !found; i++) {
        if (!vars[i].name[0])
            snprintf(vars[i].name, sizeof vars[i].name, "%s", name);
        if (!strcmp(vars[i].name, name))
            found = &vars[i].value;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

/* "12", "0x10", "p", "p+64", "p-8" */
static uint64_t value(const char *text)
{
    char name[32];
    size_t n = strcspn(text, "+-");
    if ((text[0] >= '0' && text[0] <= '9') || text[0] == '-')
        return strtoull(text, NULL, 0);
    snprintf(name, sizeof name, "%.*s", (int)n, text);
    uint64_t base = *var(name);
    return text[n] ? base + (uint64_t)strtoll(text + n, NULL, 0) : base;
}

static void *handle(const char *text)
{
    return text && strcmp(text, "0") ? (void *)(uintptr_t)value(text) : NULL;
}

static uint32_t number(const char *text)
{
    return text ? (uint32_t)strtoul(text, NULL, 0) : 0;
}

/* ---- lines ---- */

enum { MAX_WORDS = 24, MAX_LINES = 10000 };

static char *lines[MAX_LINES];
static int n_lines;
static bool quiet; /* inside of threads the order of prints is not the script's */

struct where {
    long i, t;
};

static void told(const char *what, int result)
{
    int e = errno;
    if (!quiet || result) {
        /* loading PTX may start a compiler, which may change errno */
        printf("%s %d %d\n", what, result,
               !strcmp(what, "module") || !strcmp(what, "library") || !strcmp(what, "load") ? 0
                                                                                            : e);
        fflush(stdout);
    }
    errno = 0;
}

static unsigned char pattern(uint64_t seed, uint64_t at)
{
    uint64_t z = (at + seed * 1000003) * 0x9E3779B97F4A7C15u;
    return (unsigned char)(z >> 56);
}

/* launch F STREAM GRID BLOCK PTR N SEED [X], parameters as the kernels above have them */
static CUresult launch(const char *how, char **w)
{
    CUfunction f = handle(w[1]);
    CUstream stream = handle(w[2]);
    unsigned grid = number(w[3]), block = number(w[4]);
    uint64_t p = value(w[5]), x = w[8] ? value(w[8]) : 0;
    uint32_t n = (uint32_t)value(w[6]), seed = (uint32_t)value(w[7]);
    void *params[] = { &p, &n, &seed, &x };
    struct {
        uint64_t p;
        uint32_t n, seed;
        uint64_t x;
    } packed = { p, n, seed, x };
    size_t n_packed = sizeof packed;
    void *extra[] = { CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE,
                      &n_packed, CU_LAUNCH_PARAM_END };
    errno = 0;
    if (!strcmp(how, "launchpacked"))
        return CALL(cuLaunchKernel, f, grid, 1, 1, block, 1, 1, 0, stream, NULL, extra);
    if (!strcmp(how, "launchcoop"))
        return CALL(cuLaunchCooperativeKernel, f, grid, 1, 1, block, 1, 1, 0, stream, params);
    if (!strcmp(how, "launchex") || !strcmp(how, "launchexpacked")) {
        CUlaunchConfig config = { grid, 1, 1, block, 1, 1, 0, stream, NULL, 0 };
        if (!strcmp(how, "launchex"))
            return CALL(cuLaunchKernelEx, &config, f, params, NULL);
        return CALL(cuLaunchKernelEx, &config, f, NULL, extra);
    }
    return CALL(cuLaunchKernel, f, grid, 1, 1, block, 1, 1, 0, stream, params, NULL);
}

/* launchodd F STREAM GRID BLOCK PTR N SEED: a struct between two small parameters, each in memory of its own */
static CUresult launch_odd(char **w)
{
    struct {
        uint32_t n;
        uint64_t p;
        uint32_t seed;
    } args = { (uint32_t)value(w[6]), value(w[5]), (uint32_t)value(w[7]) };
    uint8_t before = 0x5a;
    uint32_t after = 0xa5a5a5a5;
    void *params[] = { &before, &args, &after };
    errno = 0;
    return CALL(cuLaunchKernel, handle(w[1]), number(w[3]), 1, 1, number(w[4]), 1, 1, 0,
                handle(w[2]), params, NULL);
}

/* A file in memory, and a zero byte; the memory is of this size only, and of this call only. */
static void *image_of(const char *path)
{
    FILE *f = fopen(path, "rb");
    long n = f && !fseek(f, 0, SEEK_END) ? ftell(f) : -1;
    char *bytes = n >= 0 ? calloc(1, (size_t)n + 1) : NULL;
    if (!bytes || fseek(f, 0, SEEK_SET) || fread(bytes, 1, (size_t)n, f) != (size_t)n) {
        fprintf(stderr, "driver_calls: cannot read %s\n", path);
        exit(2);
    }
    fclose(f);
    return bytes;
}

/* load HOW NAME PATH: a module or library, by one of the calls that do it */
static CUresult load_image(const char *how, void *out, const char *path)
{
    if (!strcmp(how, "modulefile"))
        return CALL(cuModuleLoad, out, path);
    if (!strcmp(how, "libraryfile"))
        return CALL(cuLibraryLoadFromFile, out, path, NULL, NULL, 0, NULL, NULL, 0);
    void *image = image_of(path), *given = image;
    struct {
        uint32_t magic, version;
        const void *data, *more;
    } wrapper = { 0x466243b1, 1, image, NULL };
    if (!strncmp(how, "wrapped", 7)) {
        given = &wrapper;
        how += 7;
    }
    CUresult r = !strcmp(how, "module")     ? CALL(cuModuleLoadData, out, given)
                 : !strcmp(how, "moduleex") ? CALL(cuModuleLoadDataEx, out, given, 0, NULL, NULL)
                 : !strcmp(how, "modulefat")
                     ? CALL(cuModuleLoadFatBinary, out, given)
                     : CALL(cuLibraryLoadData, out, given, NULL, NULL, 0, NULL, NULL, 0);
    free(image);
    return r;
}

/* An entry point as the driver has it: found by a way that no preload sees. */
static void *unseen(const char *symbol)
{
    void *(*real)(void *, const char *) =
        (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    void *found = real ? real(library, symbol) : NULL;
    if (!found) {
        fprintf(stderr, "driver_calls: no %s\n", symbol);
        exit(2);
    }
    return found;
}

/* functions NAME MODULE N: NAME0 and so on are what came */
static CUresult functions(char **w)
{
    CUfunction found[64] = { NULL };
    char name[32];
    CUresult r = CALL(cuModuleEnumerateFunctions, found, number(w[3]) < 64 ? number(w[3]) : 64,
                      handle(w[2]));
    for (unsigned i = 0; i < 64 && r == CUDA_SUCCESS; i++) {
        snprintf(name, sizeof name, "%s%u", w[1], i);
        *var(name) = (uintptr_t)found[i];
    }
    return r;
}

static CUresult digest(char **w)
{
    size_t n = value(w[2]);
    unsigned char *bytes = malloc(n + 1);
    CUresult r = bytes ? CALL(cuMemcpyDtoH_v2, bytes, (CUdeviceptr)value(w[1]), n)
                       : CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; r == CUDA_SUCCESS && i < n; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    if (r == CUDA_SUCCESS)
        printf("digest %016llx\n", (unsigned long long)hash);
    free(bytes);
    return r;
}

static CUresult write_pattern(char **w)
{
    size_t n = value(w[2]);
    unsigned char *bytes = malloc(n + 1);
    for (size_t i = 0; bytes && i < n; i++)
        bytes[i] = pattern(value(w[3]), i);
    CUresult r = bytes ? CALL(cuMemcpyHtoD_v2, (CUdeviceptr)value(w[1]), bytes, n)
                       : CUDA_ERROR_OUT_OF_MEMORY;
    free(bytes);
    return r;
}

/* kernels NAME LIBRARY N: room for N, NAME0 and so on are what came */
static CUresult kernels(char **w)
{
    CUkernel found[64] = { NULL };
    unsigned n = number(w[3]);
    char name[32];
    CUresult r = CALL(cuLibraryEnumerateKernels, found, n < 64 ? n : 64, handle(w[2]));
    for (unsigned i = 0; i < 64 && r == CUDA_SUCCESS; i++) {
        snprintf(name, sizeof name, "%s%u", w[1], i);
        *var(name) = (uintptr_t)found[i];
    }
    return r;
}

/* step NUMBER ROWS [tp=RANK/SIZE] [REQUEST:FIRST_ROW:N:POSITION[:PHASE]]...; a phase that is not said is prefill */
static int step(char **w)
{
    struct dmi_span spans[MAX_WORDS] = { 0 };
    char ids[MAX_WORDS][32];
    struct dmi_step s = { .size = sizeof s,
                          .version = DMI_STEP_VERSION,
                          .step = value(w[1]),
                          .n_rows = number(w[2]),
                          .span_size = sizeof spans[0],
                          .spans = spans,
                          .tp_size = 1,
                          .pp_size = 1,
                          .dp_size = 1,
                          .ep_size = 1 };
    for (char **word = w + 3; *word; word++) {
        struct dmi_span *span = &spans[s.n_spans];
        unsigned first, n, phase = DMI_PHASE_PREFILL;
        long long position;
        if (sscanf(*word, "tp=%d/%d", &s.tp_rank, &s.tp_size) == 2)
            continue;
        if (sscanf(*word, "%31[^:]:%u:%u:%lld:%u", ids[s.n_spans], &first, &n, &position, &phase) <
            4)
            continue;
        *span = (struct dmi_span){ .request_id = ids[s.n_spans],
                                   .first_position = position,
                                   .first_row = first,
                                   .n_tokens = n,
                                   .phase = phase };
        s.n_spans++;
    }
    int (*begin)(const struct dmi_step *) = dlsym(RTLD_DEFAULT, "dmi_step_begin");
    return begin ? begin(&s) : DMI_STATUS_OFF;
}

/* accept REQUEST STEP N */
static int accept_rows(char **w)
{
    int (*accept)(const char *, uint64_t, uint32_t) = dlsym(RTLD_DEFAULT, "dmi_accept");
    return accept ? accept(w[1], value(w[2]), number(w[3])) : DMI_STATUS_OFF;
}

/* end REQUEST REASON */
static int end_request(char **w)
{
    int (*end)(const char *, uint32_t) = dlsym(RTLD_DEFAULT, "dmi_request_end");
    return end ? end(w[1], number(w[2])) : DMI_STATUS_OFF;
}

/* overlaps NAME MS: a range that began so many milliseconds ago, and ends */
static int overlapping_range(char **w)
{
    int (*begin)(const char *, uint64_t, uint32_t) = dlsym(RTLD_DEFAULT, "dmi_range_begin_at");
    int (*end)(void) = dlsym(RTLD_DEFAULT, "dmi_range_end");
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    int r =
        begin ? begin(w[1], ns - value(w[2]) * 1000000u, DMI_RANGE_FLAG_OVERLAPS) : DMI_STATUS_OFF;
    return r || !end ? r : end();
}

/* range NAME; rangefact KEY VALUE; rangeend */
static int range(const char *op, char **w)
{
    int (*begin)(const char *) = dlsym(RTLD_DEFAULT, "dmi_range_begin");
    int (*fact)(const char *, int64_t) = dlsym(RTLD_DEFAULT, "dmi_range_fact");
    int (*end)(void) = dlsym(RTLD_DEFAULT, "dmi_range_end");
    if (!begin || !fact || !end)
        return DMI_STATUS_OFF;
    return !strcmp(op, "rangeend")    ? end()
           : !strcmp(op, "rangefact") ? fact(w[1], (int64_t)value(w[2]))
                                      : begin(w[1]);
}

/* cupti load PATH: another user of CUPTI's, built of cupti_user.c; cupti OP [ARGUMENT]: what it is to do */
static int cupti(char **w)
{
    static int (*user)(const char *, const char *);
    void *lib = strcmp(w[1], "load") ? NULL : dlopen(w[2], RTLD_NOW | RTLD_LOCAL);
    if (lib)
        *(void **)&user = dlsym(lib, "cupti_user");
    errno = 4242;
    return lib ? 0 : user ? user(w[1], w[2]) : -1;
}

static int dmi_end(void)
{
    int (*end)(void) = dlsym(RTLD_DEFAULT, "dmi_step_end");
    return end ? end() : DMI_STATUS_OFF;
}

static int dmi_wait(const char *ms)
{
    int (*flush)(uint64_t) = dlsym(RTLD_DEFAULT, "dmi_flush");
    return flush ? flush(value(ms) * 1000000u) : DMI_STATUS_OFF;
}

/* The line that ends what line @from begins; "endfork" ends "fork". */
static int find(int from, const char *word)
{
    int depth = 0;
    for (int i = from; i < n_lines; i++) {
        size_t n = strlen(word + 3);
        if (!strncmp(lines[i], word + 3, n) && (!lines[i][n] || lines[i][n] == ' '))
            depth++;
        else if (!strcmp(lines[i], word) && --depth == 0)
            return i;
    }
    fprintf(stderr, "driver_calls: no %s\n", word);
    exit(2);
}

static void run(int from, int to, struct where at);

struct job {
    int from, to;
    struct where at;
};

static void *thread_main(void *arg)
{
    struct job *job = arg;
    run(job->from, job->to, job->at);
    return NULL;
}

/* @kib: of stack; 0: as many as threads have */
static void threads(long n, long kib, int from, int to, struct where at)
{
    pthread_t ids[64];
    struct job jobs[64];
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    if (kib)
        pthread_attr_setstacksize(&attr, (size_t)kib << 10);
    quiet = true;
    for (long t = 0; t < n && t < 64; t++) {
        jobs[t] = (struct job){ from, to, { at.i, t } };
        pthread_create(&ids[t], &attr, thread_main, &jobs[t]);
    }
    for (long t = 0; t < n && t < 64; t++)
        pthread_join(ids[t], NULL);
    quiet = false;
}

static void *exit_main(void *arg)
{
    exit((int)(intptr_t)arg);
}

static void status_told(const char *what, pid_t pid)
{
    int status = 0;
    waitpid(pid, &status, 0);
    told(what, WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
}

/* plugin PATH SYMBOL...: these functions are from now on what the plugin's own scope gives it */
static void plugin(const char *op, char **w)
{
    void *lib = dlopen(w[1], RTLD_NOW | RTLD_LOCAL | (!strcmp(op, "plugin") ? 0 : RTLD_DEEPBIND));
    void *(*entry_of)(const char *) =
        lib ? (void *(*)(const char *))dlsym(lib, "plugin_entry") : NULL;
    for (char **symbol = w + 2; entry_of && *symbol; symbol++)
        for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++)
            if (!strcmp(entries[i].symbol, *symbol))
                entries[i].found = entry_of(*symbol);
    if (!entry_of) {
        fprintf(stderr, "driver_calls: no plugin %s\n", w[1]);
        exit(2);
    }
}

static void disk(char **w)
{
    const char *path = getenv("FAIL_DISK");
    char words[256] = "";
    for (size_t n = 0; *++w && n < sizeof words;)
        n += (size_t)snprintf(words + n, sizeof words - n, !strcmp(*w, "+") ? "\n" : "%s ", *w);
    FILE *file = path ? fopen(path, "w") : NULL;
    if (file) {
        fprintf(file, "%s\n", words);
        fclose(file);
    }
}

/* Return: the next line. */
static int process_line(const char *op, char **w, int line, struct where at)
{
    if (!strcmp(op, "repeat")) {
        int end = find(line, "endrepeat");
        for (long i = 0; i < (long)number(w[1]); i++)
            run(line + 1, end, (struct where){ i, at.t });
        return end + 1;
    }
    if (!strcmp(op, "threads")) {
        int end = find(line, "endthreads");
        threads((long)number(w[1]), w[2] ? (long)number(w[2]) : 0, line + 1, end, at);
        return end + 1;
    }
    if (!strcmp(
            op,
            "fork")) { /* the child runs up to endfork, and exits with 0 unless it says otherwise */
        int end = find(line, "endfork");
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0) {
            run(line + 1, end, at);
            exit(0);
        }
        status_told("child", pid);
        return end + 1;
    }
    if (!strcmp(op, "vfork")) {
        pid_t pid = vfork();
        if (pid == 0)
            _exit(7);
        status_told("vfork", pid);
    } else if (!strcmp(op, "spawn")) {
        pid_t pid;
        int r = posix_spawnp(&pid, w[1], NULL, NULL, w + 1, environ);
        if (!r)
            status_told("spawn", pid);
    } else if (!strcmp(op, "exec")) {
        fflush(NULL);
        execvp(w[1], w + 1);
        told("exec", errno);
    } else if (!strcmp(op, "execl")) { /* a path, and an argument */
        fflush(NULL);
        execl(w[1], w[1], w[2], NULL);
    } else if (!strcmp(op, "execle")) {
        fflush(NULL);
        execle(w[1], w[1], w[2], NULL, environ);
    } else if (!strcmp(op, "execve")) {
        fflush(NULL);
        execve(w[1], w + 1, environ);
    } else if (!strcmp(op, "quick_exit")) {
        fflush(NULL);
        quick_exit((int)number(w[1]));
    } else if (!strcmp(op, "exit")) {
        exit((int)number(w[1]));
    } else if (!strcmp(op, "_exit")) {
        fflush(NULL);
        _exit((int)number(w[1]));
    } else if (!strcmp(op, "_Exit")) {
        fflush(NULL);
        _Exit((int)number(w[1]));
    } else if (!strcmp(op, "threadexit")) {
        pthread_t id;
        pthread_create(&id, NULL, exit_main, (void *)(intptr_t)number(w[1]));
        pthread_join(id, NULL);
    } else if (!strcmp(op, "kill9")) {
        fflush(NULL);
        kill(getpid(), SIGKILL);
    } else if (!strcmp(op, "limit")) { /* bytes a file may have; SIGXFSZ as it is */
        struct rlimit limit = { value(w[1]), value(w[1]) };
        setrlimit(RLIMIT_FSIZE, &limit);
    } else if (
        !strcmp(
            op,
            "disk")) { /* rules of fail_disk.c's with + between them, in place of those before */
        disk(w);
    } else if (!strcmp(op, "dlopen")) { /* for this program alone, as Python loads its modules */
        if (!dlopen(w[1], RTLD_NOW | RTLD_LOCAL))
            exit(2);
    } else if (!strcmp(op, "plugin") || !strcmp(op, "deepplugin")) {
        plugin(op, w);
    } else if (!strcmp(op, "close")) {
        dlclose(library);
    } else if (!strcmp(op, "store")) { /* a word of pinned memory */
        __atomic_store_n((uint32_t *)handle(w[1]), number(w[2]), __ATOMIC_RELEASE);
    } else if (!strcmp(op, "sleep")) {
        struct timespec pause = { (time_t)(number(w[1]) / 1000),
                                  (long)(number(w[1]) % 1000) * 1000000 };
        nanosleep(&pause, NULL);
    } else {
        return -1;
    }
    return line + 1;
}

/* mapped NAME BYTES DEVICE: whole pieces of 2 MiB */
static CUresult mapped(CUdeviceptr *p, size_t n, int device)
{
    CUmemGenericAllocationHandle memory;
    CUmemLocation here = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device };
    CUmemAllocationProp props = { .type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = here };
    CUmemAccessDesc access = { here, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    CUresult r = CALL(cuMemAddressReserve, p, n, 0, 0, 0);
    r = r ? r : CALL(cuMemCreate, &memory, n, &props, 0);
    r = r ? r : CALL(cuMemMap, *p, n, 0, memory, 0);
    return r ? r : CALL(cuMemSetAccess, *p, n, &access, 1);
}

/* Return: the result, or -1 where the word means nothing here. */
static int driver_line(const char *op, char **w)
{
#define OUT(type) ((type *)(void *)var(w[1]))
    if (!strcmp(op, "unseeninit"))
        return ((__typeof__(cuInit) *)unseen("cuInit"))((unsigned)number(w[1]));
    if (!strcmp(op, "init"))
        return CALL(cuInit, number(w[1]));
    if (!strcmp(op, "device"))
        return CALL(cuDeviceGet, OUT(CUdevice), (int)number(w[2]));
    if (!strcmp(op, "ctx"))
        return CALL(cuCtxCreate_v2, OUT(CUcontext), 0, (CUdevice)value(w[2]));
    if (!strcmp(op, "ctxdestroy"))
        return CALL(cuCtxDestroy_v2, handle(w[1]));
    if (!strcmp(op, "ctxattach"))
        return CALL(cuCtxAttach, OUT(CUcontext), 0);
    if (!strcmp(op, "ctxdetach"))
        return CALL(cuCtxDetach, handle(w[1]));
    if (!strcmp(op, "setctx"))
        return CALL(cuCtxSetCurrent, handle(w[1]));
    if (!strcmp(op, "sync"))
        return CALL(cuCtxSynchronize);
    if (!strcmp(op, "retain"))
        return CALL(cuDevicePrimaryCtxRetain, OUT(CUcontext), (CUdevice)value(w[2]));
    if (!strcmp(op, "unseenretain"))
        return ((__typeof__(cuDevicePrimaryCtxRetain) *)unseen("cuDevicePrimaryCtxRetain"))(
            OUT(CUcontext), (CUdevice)value(w[2]));
    if (!strcmp(op, "release"))
        return CALL(cuDevicePrimaryCtxRelease_v2, (CUdevice)value(w[1]));
    if (!strcmp(op, "reset"))
        return CALL(cuDevicePrimaryCtxReset_v2, (CUdevice)value(w[1]));
    if (!strcmp(op, "module"))
        return CALL(cuModuleLoadData, OUT(CUmodule), ptx_of(w[2]));
    if (!strcmp(op, "func"))
        return CALL(cuModuleGetFunction, OUT(CUfunction), handle(w[2]), w[3]);
    if (!strcmp(op, "unload"))
        return CALL(cuModuleUnload, handle(w[1]));
    if (!strcmp(op, "library"))
        return CALL(cuLibraryLoadData, OUT(CUlibrary), ptx_of(w[2]), NULL, NULL, 0, NULL, NULL, 0);
    if (!strcmp(op, "load"))
        return load_image(w[1], var(w[2]), w[3]);
    if (!strcmp(op, "libmodule"))
        return CALL(cuLibraryGetModule, OUT(CUmodule), handle(w[2]));
    if (!strcmp(op, "functions"))
        return functions(w);
    if (!strcmp(op, "unseenkernel"))
        return ((__typeof__(cuLibraryGetKernel) *)unseen("cuLibraryGetKernel"))(OUT(CUkernel),
                                                                                handle(w[2]), w[3]);
    if (!strcmp(op, "launchodd"))
        return launch_odd(w);
    if (!strcmp(op, "kernel"))
        return CALL(cuLibraryGetKernel, OUT(CUkernel), handle(w[2]), w[3]);
    if (!strcmp(op, "kernels"))
        return kernels(w);
    if (!strcmp(op, "libunload"))
        return CALL(cuLibraryUnload, handle(w[1]));
    if (!strcmp(op, "kfunc"))
        return CALL(cuKernelGetFunction, OUT(CUfunction), handle(w[2]));
    if (!strcmp(op, "alloc"))
        return CALL(cuMemAlloc_v2, OUT(CUdeviceptr), (size_t)value(w[2]));
    if (!strcmp(op, "free"))
        return CALL(cuMemFree_v2, (CUdeviceptr)value(w[1]));
    if (!strcmp(op, "hostalloc"))
        return CALL(cuMemHostAlloc, OUT(void *), (size_t)value(w[2]), 0);
    if (!strcmp(op, "allocasync"))
        return CALL(cuMemAllocAsync, OUT(CUdeviceptr), (size_t)value(w[2]), handle(w[3]));
    if (!strcmp(op, "mapped"))
        return mapped(OUT(CUdeviceptr), value(w[2]), (int)value(w[3]));
    if (!strcmp(op, "funcload"))
        return CALL(cuFuncLoad, handle(w[1]));
    if (!strcmp(op, "write"))
        return write_pattern(w);
    if (!strcmp(op, "digest"))
        return digest(w);
    if (!strcmp(op, "stream"))
        return CALL(cuStreamCreate, OUT(CUstream), w[2] ? number(w[2]) : CU_STREAM_NON_BLOCKING);
    if (!strcmp(op, "streamdestroy"))
        return CALL(cuStreamDestroy_v2, handle(w[1]));
    if (!strcmp(op, "ssync"))
        return CALL(cuStreamSynchronize, handle(w[1]));
    if (!strcmp(op, "capture"))
        return CALL(cuStreamBeginCapture_v2, handle(w[1]), CU_STREAM_CAPTURE_MODE_GLOBAL);
    if (!strcmp(op, "endcapture"))
        return CALL(cuStreamEndCapture, handle(w[2]), OUT(CUgraph));
    if (!strcmp(op, "graphexec"))
        return CALL(cuGraphInstantiateWithFlags, OUT(CUgraphExec), handle(w[2]), 0);
    if (!strcmp(op, "graphupdate"))
        return CALL(cuGraphExecUpdate_v2, handle(w[1]), handle(w[2]),
                    &(CUgraphExecUpdateResultInfo){ 0 });
    if (!strcmp(op, "graphdestroy"))
        return CALL(cuGraphExecDestroy, handle(w[1]));
    if (!strcmp(op, "graphlaunch"))
        return CALL(cuGraphLaunch, handle(w[1]), w[2] ? handle(w[2]) : NULL);
    if (!strncmp(op, "launch", 6))
        return launch(op, w);
    return -1;
}

static int dmi_line(const char *op, char **w)
{
    if (!strcmp(op, "step"))
        return step(w);
    if (!strcmp(op, "accept"))
        return accept_rows(w);
    if (!strcmp(op, "end"))
        return end_request(w);
    if (!strcmp(op, "stepend"))
        return dmi_end();
    if (!strncmp(op, "range", 5))
        return range(op, w);
    if (!strcmp(op, "cupti"))
        return cupti(w);
    if (!strcmp(op, "overlaps"))
        return overlapping_range(w);
    if (!strcmp(op, "flush"))
        return dmi_wait(w[1]);
    return -100;
}

/* %i and %t become numbers, words are cut apart. */
static int split(const char *line, struct where at, char *text, size_t room, char **words)
{
    size_t n = 0;
    for (const char *p = line; *p && n + 24 < room; p++) {
        if (*p == '%' && (p[1] == 'i' || p[1] == 't'))
            n += (size_t)snprintf(text + n, room - n, "%ld", *++p == 'i' ? at.i : at.t);
        else
            text[n++] = *p;
    }
    text[n] = 0;
    int count = 0;
    char *save = NULL;
    for (char *w = strtok_r(text, " ", &save); w && count < MAX_WORDS - 1;
         w = strtok_r(NULL, " ", &save))
        words[count++] = w;
    return count;
}

static void run(int from, int to, struct where at)
{
    char text[512];
    for (int line = from; line < to;) {
        char *words[MAX_WORDS] = { 0 };
        if (!split(lines[line], at, text, sizeof text, words)) {
            line++;
            continue;
        }
        int next = process_line(words[0], words, line, at);
        if (next >= 0) {
            line = next;
            continue;
        }
        errno = 4242; /* of the application: a call that succeeds leaves it alone */
        int r = dmi_line(words[0], words);
        if (r == -100)
            r = driver_line(words[0], words);
        if (r == -1) {
            fprintf(stderr, "driver_calls: what is \"%s\"?\n", lines[line]);
            exit(2);
        }
        told(words[0], r);
        line++;
    }
}

int main(int argc, char **argv)
{
    static char text[1 << 20];
    FILE *f = argc > 1 ? fopen(argv[1], "r") : NULL;
    if (!f)
        return 2;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    char *save = NULL;
    char *l = strtok_r(text, "\n", &save);
    for (; l && n_lines < MAX_LINES; l = strtok_r(NULL, "\n", &save))
        lines[n_lines++] = l;
    if (l || n == sizeof text - 1) {
        fprintf(stderr, "driver_calls: %s is longer than %d lines or %zu bytes\n", argv[1],
                MAX_LINES, sizeof text - 1);
        return 2;
    }
    if (argc > 2)
        way = argv[2];
    if (strcmp(way, "link")) {
        library = dlopen("libcuda.so.1", RTLD_NOW | (!strcmp(way, "default") ? RTLD_GLOBAL : 0));
        if (!library) {
            fprintf(stderr, "driver_calls: %s\n", dlerror());
            return 77;
        }
    }
    run(0, n_lines, (struct where){ 0, 0 });
    return 0;
}
