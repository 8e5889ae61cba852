/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvtx_client.c - a program that opens NVTX ranges and launches kernels as a text says
 *
 * nvtx_client SCRIPT [MODULE]: a line is a command; "@N COMMAND" is done by thread N, which the main thread waits for. Kernels
 * write out[i] = seed * 65536 + i. MODULE is a library with NVTX of its own. It knows nothing of DMI but <dmi/tap.h>, and says the
 * same with and without it: what push and pop returned, and what is in memory at the end.
 *
 *   push, pushw, mpush TEXT      ranges of the default domain: text, wide text, by MODULE
 *   pushx MESSAGE TEXT           by event attributes; MESSAGE: ascii, unicode, registered, none
 *   dpush DOMAIN MESSAGE TEXT    within a domain, a letter
 *   pop, mpop, dpop DOMAIN
 *   start ID MESSAGE TEXT, dstart DOMAIN ID MESSAGE TEXT, end ID, dend DOMAIN ID      ID: a letter
 *   mark TEXT
 *   launch KERNEL SEED           on the stream; `try`: it may be refused
 *   tap NAME LAYER               what is in memory now
 *   capture, endcapture GRAPH    GRAPH: a letter
 *   build GRAPH KERNEL SEED ...  a graph of nodes in a chain, added by hand
 *   instantiate GRAPH, replay GRAPH, update GRAPH FROM
 *   storm                        all threads at once, each with ranges, a stream and memory of its own
 *   fork, environment
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include "preload/nvtx/abi.h"

#include <assert.h>
#include <dmi/dtype.h>
#include <dmi/tap.h>
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <dlfcn.h>

/* The library's own idea of NVTX is that of the headers. */
static_assert(sizeof(struct nvtx_event) == sizeof(nvtxEventAttributes_t), "size");
static_assert(offsetof(struct nvtx_event, size) == offsetof(nvtxEventAttributes_t, size), "size");
static_assert(offsetof(struct nvtx_event, message_type) ==
                  offsetof(nvtxEventAttributes_t, messageType),
              "message type");
static_assert(offsetof(struct nvtx_event, message) == offsetof(nvtxEventAttributes_t, message),
              "message");
static_assert(NVTX_MESSAGE_IS_ASCII == (int)NVTX_MESSAGE_TYPE_ASCII &&
                  NVTX_MESSAGE_IS_UNICODE == (int)NVTX_MESSAGE_TYPE_UNICODE &&
                  NVTX_MESSAGE_IS_REGISTERED == (int)NVTX_MESSAGE_TYPE_REGISTERED,
              "types of messages");
static_assert(NVTX_NO_TRACKING == NVTX_NO_PUSH_POP_TRACKING, "without a tool");

enum { WORDS = 64, THREADS = 8, ROUNDS = 40 };

#define FILL(name)                                                                                 \
    ".visible .entry " name "(.param .u64 p, .param .u32 n, .param .u32 s)\n{\n"                   \
    ".reg .b32 %r<6>;\n.reg .b64 %d<4>;\n.reg .pred %q;\nld.param.u64 %d1, [p];\n"                 \
    "ld.param.u32 %r1, [n];\nld.param.u32 %r5, [s];\nmov.u32 %r2, %tid.x;\n"                       \
    "setp.ge.u32 %q, %r2, %r1;\n@%q ret;\nshl.b32 %r5, %r5, 16;\nadd.u32 %r5, %r5, %r2;\n"         \
    "mul.wide.u32 %d2, %r2, 4;\nadd.u64 %d3, %d1, %d2;\nst.global.u32 [%d3], %r5;\nret;\n}\n"

static const char ptx[] = ".version 6.4\n.target sm_75\n.address_size 64\n" FILL("first")
    FILL("block") FILL("other") FILL("swapped");

static struct {
    CUcontext context;
    CUmodule module;
    CUstream stream;
    CUdeviceptr buffer;
    CUgraph graphs[26];
    CUgraphExec execs[26];
    nvtxDomainHandle_t domains[26];
    nvtxRangeId_t ids[26];
    void *library; /* MODULE */
} world;

static void check(CUresult r, const char *what)
{
    if (r == CUDA_SUCCESS)
        return;
    printf("%s: %d\n", what, (int)r);
    fflush(stdout);
    _exit(3);
}

#define CHECK(call) check(call, #call)

/* ------------------------------------------------------------------------- words of a line */

static char *word(char **line)
{
    char *w = strsep(line, " ");
    return w ? w : (char *)"";
}

static int letter(char **line)
{
    return (*word(line) - 'a') % 26;
}

static char *rest(char **line)
{
    return *line ? *line : (char *)"";
}

static void widen(wchar_t *to, size_t room, const char *text)
{
    size_t i = 0;
    for (; text[i] && i < room - 1; i++)
        to[i] = text[i] == '~' ? 0xe4 : (unsigned char)text[i]; /* a letter that is no ASCII */
    to[i] = 0;
}

/* ------------------------------------------------------------------------- ranges */

static nvtxDomainHandle_t domain(int i)
{
    char name[2] = { (char)('a' + i), 0 };
    if (!world.domains[i])
        world.domains[i] = nvtxDomainCreateA(name);
    return world.domains[i];
}

struct message {
    nvtxEventAttributes_t event;
    wchar_t wide[256];
};

static void fill(struct message *m, nvtxDomainHandle_t in, const char *kind, const char *text)
{
    m->event =
        (nvtxEventAttributes_t){ .version = NVTX_VERSION, .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE };
    if (!strcmp(kind, "ascii")) {
        m->event.messageType = NVTX_MESSAGE_TYPE_ASCII;
        m->event.message.ascii = text;
    } else if (!strcmp(kind, "unicode")) {
        widen(m->wide, 256, text);
        m->event.messageType = NVTX_MESSAGE_TYPE_UNICODE;
        m->event.message.unicode = m->wide;
    } else if (!strcmp(kind, "registered")) {
        m->event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
        m->event.message.registered = nvtxDomainRegisterStringA(in, text);
    }
}

static void say(const char *what, int value)
{
    printf("%s %d\n", what, value);
}

static bool ranges(const char *command, char *line)
{
    struct message m;
    wchar_t wide[256];
    if (!strcmp(command, "push")) {
        say(command, nvtxRangePushA(line));
    } else if (!strcmp(command, "pushw")) {
        widen(wide, 256, line);
        say(command, nvtxRangePushW(wide));
    } else if (!strcmp(command, "pushx")) {
        char *kind = word(&line);
        fill(&m, NULL, kind, rest(&line));
        say(command, nvtxRangePushEx(&m.event));
    } else if (!strcmp(command, "dpush")) {
        nvtxDomainHandle_t d = domain(letter(&line));
        char *kind = word(&line);
        fill(&m, d, kind, rest(&line));
        say(command, nvtxDomainRangePushEx(d, &m.event));
    } else if (!strcmp(command, "pop")) {
        say(command, nvtxRangePop());
    } else if (!strcmp(command, "dpop")) {
        say(command, nvtxDomainRangePop(domain(letter(&line))));
    } else if (!strcmp(command, "mark")) {
        nvtxMarkA(line);
    } else {
        return false;
    }
    return true;
}

static bool started(const char *command, char *line)
{
    struct message m;
    bool in_domain = command[0] == 'd';
    if (strcmp(command + in_domain, "start") && strcmp(command + in_domain, "end"))
        return false;
    nvtxDomainHandle_t d = in_domain ? domain(letter(&line)) : NULL;
    nvtxRangeId_t *id = &world.ids[letter(&line)];
    if (!strcmp(command + in_domain, "start")) {
        char *kind = word(&line);
        fill(&m, d, kind, rest(&line));
        *id = in_domain ? nvtxDomainRangeStartEx(d, &m.event) : nvtxRangeStartEx(&m.event);
    } else if (in_domain) {
        nvtxDomainRangeEnd(d, *id);
    } else {
        nvtxRangeEnd(*id);
    }
    return true;
}

static bool by_module(const char *command, char *line)
{
    typedef int module_push(const char *);
    typedef int module_pop(void);
    if (!strcmp(command, "mpush"))
        say(command, ((module_push *)dlsym(world.library, "module_push"))(line));
    else if (!strcmp(command, "mpop"))
        say(command, ((module_pop *)dlsym(world.library, "module_pop"))());
    else
        return false;
    return true;
}

/* ------------------------------------------------------------------------- kernels and graphs */

static CUfunction function(const char *name)
{
    CUfunction f;
    CHECK(cuModuleGetFunction(&f, world.module, name));
    return f;
}

static CUresult launch_at(CUfunction f, unsigned seed, CUstream stream, CUdeviceptr at)
{
    unsigned n = WORDS;
    void *params[] = { &at, &n, &seed };
    return cuLaunchKernel(f, 1, 1, 1, WORDS, 1, 1, 0, stream, params, NULL);
}

static CUresult launch(char *line)
{
    CUfunction f = function(word(&line));
    return launch_at(f, (unsigned)strtoul(word(&line), NULL, 10), world.stream, world.buffer);
}

/* Round r of thread t is layer t * ROUNDS + r, whose kernels have seeds from three times that on. */
static void *storm_thread(void *arg)
{
    unsigned thread = (unsigned)(uintptr_t)arg;
    CUstream stream;
    CUdeviceptr at;
    char text[128];
    CHECK(cuCtxSetCurrent(world.context));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemAlloc_v2(&at, WORDS * 4));
    for (unsigned layer = thread * ROUNDS; layer < (thread + 1) * ROUNDS; layer++) {
        snprintf(text, sizeof text, "{'Module': 'model.layers.%u.mlp', 'Inputs': [[8]]}", layer);
        nvtxRangePushA("around");
        nvtxRangePushA(text);
        CHECK(launch_at(function("block"), layer * 3 + 1, stream, at));
        CHECK(launch_at(function("other"), layer * 3 + 2, stream, at));
        CHECK(launch_at(function("block"), layer * 3 + 3, stream, at));
        nvtxRangePop();
        CHECK(launch_at(function("other"), 0, stream, at));
        nvtxRangePop();
    }
    return NULL;
}

static void storm(void)
{
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, storm_thread, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

static void tap(char *line)
{
    struct dmi_tap t = { .size = sizeof t,
                         .version = DMI_TAP_VERSION,
                         .data = (const void *)(uintptr_t)world.buffer,
                         .stream = world.stream,
                         .dtype = DMI_DTYPE_U32,
                         .n_dims = 1,
                         .row_dims = 1,
                         .count = { WORDS },
                         .stride = { 4 } };
    t.name = word(&line);
    t.layer = (int32_t)strtol(word(&line), NULL, 10);
    dmi_tap_here(&t);
}

static void build(char *line)
{
    CUgraph *graph = &world.graphs[letter(&line)];
    CUgraphNode node = NULL;
    CHECK(cuGraphCreate(graph, 0));
    while (*rest(&line)) {
        CUgraphNode before = node;
        CUfunction f = function(word(&line));
        unsigned n = WORDS, seed = (unsigned)strtoul(word(&line), NULL, 10);
        void *params[] = { &world.buffer, &n, &seed };
        CUDA_KERNEL_NODE_PARAMS_v1 p = { f, 1, 1, 1, WORDS, 1, 1, 0, params, NULL };
        CHECK(cuGraphAddKernelNode(&node, *graph, before ? &before : NULL, before ? 1 : 0, &p));
    }
}

static void update(char *line)
{
    CUgraphExec exec = world.execs[letter(&line)];
    CUgraphExecUpdateResultInfo info;
    CHECK(cuGraphExecUpdate_v2(exec, world.graphs[letter(&line)], &info));
}

static bool graphs(const char *command, char *line)
{
    if (!strcmp(command, "launch")) {
        CHECK(launch(line));
    } else if (!strcmp(command, "tap")) {
        tap(line);
    } else if (!strcmp(command, "try")) {
        say(command, (int)launch(line));
    } else if (!strcmp(command, "build")) {
        build(line);
    } else if (!strcmp(command, "update")) {
        update(line);
    } else if (!strcmp(command, "capture")) {
        CHECK(cuStreamBeginCapture_v2(world.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    } else if (!strcmp(command, "endcapture")) {
        CHECK(cuStreamEndCapture(world.stream, &world.graphs[letter(&line)]));
    } else if (!strcmp(command, "instantiate")) {
        int i = letter(&line);
        CHECK(cuGraphInstantiateWithFlags(&world.execs[i], world.graphs[i], 0));
    } else if (!strcmp(command, "replay")) {
        CHECK(cuGraphLaunch(world.execs[letter(&line)], world.stream));
    } else {
        return false;
    }
    return true;
}

/* ------------------------------------------------------------------------- lines */

static void in_child(void)
{
    pid_t child = fork();
    if (!child) {
        nvtxRangePop();
        nvtxRangePushA("layers.9.mlp");
        nvtxRangePop();
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    say("child", status);
}

static void others(const char *command)
{
    if (!strcmp(command, "fork"))
        in_child();
    else if (!strcmp(command, "storm"))
        storm();
    else if (!strcmp(command, "environment"))
        say("injection", getenv("NVTX_INJECTION64_PATH") != NULL);
    else
        say("no such command", 0);
}

static void run(char *line)
{
    char *command = word(&line);
    line = rest(&line);
    if (!ranges(command, line) && !started(command, line) && !by_module(command, line) &&
        !graphs(command, line))
        others(command);
}

/* A thread that does the lines it is given, one at a time. */
static struct worker {
    pthread_t id;
    pthread_barrier_t given, done;
    char *line; /* NULL: no more */
    bool runs;
} workers[THREADS];

static void *work(void *arg)
{
    struct worker *w = arg;
    CHECK(cuCtxSetCurrent(world.context));
    for (;;) {
        pthread_barrier_wait(&w->given);
        if (!w->line)
            return NULL;
        run(w->line);
        pthread_barrier_wait(&w->done);
    }
}

static void give(struct worker *w, char *line)
{
    if (!w->runs) {
        pthread_barrier_init(&w->given, NULL, 2);
        pthread_barrier_init(&w->done, NULL, 2);
        pthread_create(&w->id, NULL, work, w);
        w->runs = true;
    }
    w->line = line;
    pthread_barrier_wait(&w->given);
    if (line)
        pthread_barrier_wait(&w->done);
    else
        pthread_join(w->id, NULL);
}

static void play(FILE *script)
{
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, script) > 0) {
        line[strcspn(line, "\n")] = 0;
        if (line[0] == '@')
            give(&workers[(line[1] - '0') % THREADS], line + 3);
        else if (line[0])
            run(line);
    }
    free(line);
    for (int i = 0; i < THREADS; i++)
        if (workers[i].runs)
            give(&workers[i], NULL);
}

static void begin(void)
{
    CUdevice device;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuCtxCreate_v2(&world.context, 0, device));
    CHECK(cuModuleLoadData(&world.module, ptx));
    CHECK(cuStreamCreate(&world.stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemAlloc_v2(&world.buffer, WORDS * 4));
}

int main(int argc, char **argv)
{
    uint32_t words[WORDS];
    FILE *script = argc > 1 ? fopen(argv[1], "r") : NULL;
    if (!script)
        return 2;
    world.library = argc > 2 ? dlopen(argv[2], RTLD_NOW | RTLD_LOCAL) : NULL;
    begin();
    play(script);
    CHECK(cuCtxSynchronize());
    CHECK(cuMemcpyDtoH_v2(words, world.buffer, sizeof words));
    printf("%u %u\n", words[0], words[WORDS - 1]);
    fclose(script);
    return 0;
}
