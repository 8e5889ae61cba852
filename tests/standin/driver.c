/* SPDX-License-Identifier: Apache-2.0 */
/*
 * driver.c - process state: cuInit, configuration, the frame around every call, fork and exit
 */
#include "driver.h"
#include "image.h"
#include "impl.h"
#include "times.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct driver driver = { .lock = PTHREAD_MUTEX_INITIALIZER };
_Thread_local struct tls tls __attribute__((tls_model("initial-exec")));

static pthread_once_t config_once = PTHREAD_ONCE_INIT;

uint64_t clock_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* As the driver has it: indices; the first one that is none ends the list. Return: how many devices @n leaves. */
static int visible_devices(const char *list, int n)
{
    int visible = 0;

    for (char *end; visible < n && *list; list = end + 1) {
        long index = strtol(list, &end, 10);
        if (end == list || (*end && *end != ',') || index < 0 || index >= n)
            break;
        visible++;
        if (!*end)
            break;
    }
    return visible;
}

static uint64_t env_number(const char *name, uint64_t fallback)
{
    const char *text = getenv(name);
    char *end;
    uint64_t value;

    if (!text || !*text)
        return fallback;
    errno = 0;
    value = strtoull(text, &end, 0);
    switch (*end) {
    case 'k':
    case 'K': value <<= 10; break;
    case 'm':
    case 'M': value <<= 20; break;
    case 'g':
    case 'G': value <<= 30; break;
    default: break;
    }
    return errno || end == text ? fallback : value;
}

static bool env_is(const char *name, const char *value)
{
    const char *text = getenv(name);

    return text && strcmp(text, value) == 0;
}

static enum handles_mode handles_mode(const char *text)
{
    if (text && !strcmp(text, "lenient"))
        return HANDLES_LENIENT;
    return text && !strcmp(text, "reuse") ? HANDLES_REUSE : HANDLES_STRICT;
}

static void config_read(void)
{
    struct config *c = &driver.config;
    const char *loading = getenv("CUDA_MODULE_LOADING");

    c->handles = handles_mode(getenv("DMI_STANDIN_HANDLES"));
    c->load_waits = env_number("DMI_STANDIN_LOAD_WAITS", 1) != 0;
    c->lazy = !loading || strcmp(loading, "EAGER") != 0;

    c->log = getenv("DMI_STANDIN_LOG");
    c->dump = getenv("DMI_STANDIN_DUMP");
    c->dump_file = getenv("DMI_STANDIN_DUMP_FILE");
    c->delay_seed = env_number("DMI_STANDIN_DELAY_SEED", 0);
    c->delay_max_ns = env_number("DMI_STANDIN_DELAY_MAX_NS", 200000);
    c->pause_one_in = env_number("DMI_STANDIN_PAUSE", 0);
    c->dtoh_bps = env_number("DMI_STANDIN_DTOH_BPS", 0);
    c->dtoh_latency_ns = env_number("DMI_STANDIN_DTOH_LATENCY_NS", 0);
    c->memory_bytes = env_number("DMI_STANDIN_MEMORY", 8ull << 30);
    c->sm = (int)env_number("DMI_STANDIN_SM", 80);
    c->n_devices = (int)env_number("DMI_STANDIN_DEVICES", 1);
    c->n_threads = (int)env_number("DMI_STANDIN_THREADS", 4);
    c->node_bytes = env_number("DMI_STANDIN_NODE_BYTES", 16384);
    c->alike_edges = env_is("DMI_STANDIN_EDGES", "alike");
    c->green_functions = env_is("DMI_STANDIN_GREEN_FUNCTIONS", "any");
    c->share_users = env_is("DMI_STANDIN_CLONE_USERS", "share");
    if (c->memory_bytes > DEVICE_SPAN / 4)
        c->memory_bytes = DEVICE_SPAN / 4;
    if (c->n_devices < 0 || c->n_devices > MAX_DEVICES)
        c->n_devices = MAX_DEVICES;
    if (c->n_threads < 1)
        c->n_threads = 1;
    if (c->n_threads > MAX_WORKERS)
        c->n_threads = MAX_WORKERS;
    if (getenv("CUDA_VISIBLE_DEVICES"))
        c->n_devices = visible_devices(getenv("CUDA_VISIBLE_DEVICES"), c->n_devices);
    fail_parse(getenv("DMI_STANDIN_FAIL"), getenv("DMI_STANDIN_STALL"));
    times_read(getenv("DMI_STANDIN_TIMES"));
    if (c->log && *c->log)
        log_open(c->log);
    if (c->dump && *c->dump)
        dump_open(c->dump, c->dump_file);
}

/**
 * entry_enter() - what every exported function does first
 * Return: CUDA_SUCCESS, or what the call must return without doing anything.
 */
CUresult entry_enter(struct entry_frame *frame, enum entry_id id)
{
    const struct entry *entry = &entry_table[id];

    pthread_once(&config_once, config_read);
    frame->id = id;
    frame->saved_per_thread = tls.per_thread;
    frame->saved_entry = tls.entry;
    tls.entry = id;
    frame->start_ns = 0;
    tls.per_thread = entry->per_thread;
    if (tls.depth++ == 0)
        tls.n_detail = 0;
    if (log_enabled())
        frame->start_ns = clock_ns();
    CUresult failed = fail_check(id);
    if (failed != CUDA_SUCCESS)
        return failed;
    if (entry->always)
        return CUDA_SUCCESS;
    if (atomic_load_explicit(&driver.forked, memory_order_relaxed))
        return CUDA_ERROR_NOT_INITIALIZED;
    if (atomic_load_explicit(&driver.ended, memory_order_relaxed))
        return CUDA_ERROR_DEINITIALIZED;
    if (!atomic_load_explicit(&driver.ready, memory_order_acquire))
        return CUDA_ERROR_NOT_INITIALIZED;
    if (tls.in_callback)
        return CUDA_ERROR_NOT_PERMITTED;
    return CUDA_SUCCESS;
}

CUresult entry_leave(struct entry_frame *frame, CUresult res)
{
    tls.per_thread = frame->saved_per_thread;
    tls.entry = frame->saved_entry;
    tls.depth--;
    if (fail_own(frame->id))
        log_detail("\"own\":%lu", fail_own(frame->id));
    if (log_enabled())
        log_call(entry_table[frame->id].symbol, res, frame->start_ns);
    return res;
}

CUresult entry_not_supported(enum entry_id id)
{
    struct entry_frame frame;
    CUresult res = entry_enter(&frame, id);

    if (res == CUDA_SUCCESS) {
        log_detail("\"not_implemented\":true");
        res = CUDA_ERROR_NOT_SUPPORTED;
    }
    return entry_leave(&frame, res);
}

/* Workers must stop before the process's data is torn down; calls after this are refused. */
static void driver_exit(void)
{
    if (atomic_load(&driver.forked))
        return;
    atomic_store(&driver.ended, true);
    queue_stop();
}

/* As with a driver, the child of a process that used it cannot. The lock may be held by a thread that
 * does not exist here, so the calls that need no device get a new one. */
static void driver_fork_child(void)
{
    if (!atomic_load(&driver.ready))
        return;
    atomic_store(&driver.forked, true);
    pthread_mutex_init(&driver.lock, NULL);
    queue_fork_child();
}

CUresult impl_cuInit(unsigned int Flags)
{
    CUresult res;
    DRIVER_LOCKED;

    if (Flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (atomic_load(&driver.forked))
        return CUDA_ERROR_NOT_INITIALIZED;
    if (atomic_load(&driver.ended))
        return CUDA_ERROR_DEINITIALIZED;
    if (atomic_load(&driver.ready))
        return CUDA_SUCCESS;
    if (driver.config.n_devices == 0)
        return CUDA_ERROR_NO_DEVICE;
    res = memory_init();
    if (res == CUDA_SUCCESS)
        res = guard_init();
    if (res != CUDA_SUCCESS)
        return res;
    image_init();
    pthread_atfork(NULL, NULL, driver_fork_child);
    atexit(driver_exit);
    atomic_store(&driver.ready, true);
    return CUDA_SUCCESS;
}

CUresult impl_cuDriverGetVersion(int *driverVersion)
{
    if (!driverVersion)
        return CUDA_ERROR_INVALID_VALUE;
    *driverVersion = driver_version;
    return CUDA_SUCCESS;
}

static const struct result_name {
    CUresult value;
    const char *name;
} result_names[] = {
#define RESULT(name, value) { name, #name },
#include "results.inc"
#undef RESULT
};

CUresult impl_cuGetErrorName(CUresult error, const char **pStr)
{
    if (!pStr)
        return CUDA_ERROR_INVALID_VALUE;
    *pStr = NULL;
    for (size_t i = 0; i < ARRAY_SIZE(result_names); i++) {
        if (result_names[i].value == error)
            *pStr = result_names[i].name;
    }
    return *pStr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* The name in words: "CUDA_ERROR_INVALID_VALUE" reads "invalid value". */
CUresult impl_cuGetErrorString(CUresult error, const char **pStr)
{
    static char texts[ARRAY_SIZE(result_names)][64];
    DRIVER_LOCKED;

    if (!pStr)
        return CUDA_ERROR_INVALID_VALUE;
    *pStr = NULL;
    for (size_t i = 0; i < ARRAY_SIZE(result_names); i++) {
        const char *name = result_names[i].name;
        char *text = texts[i];

        if (result_names[i].value != error)
            continue;
        *pStr = text;
        if (error == CUDA_SUCCESS)
            *pStr = "no error";
        else if (error == CUDA_ERROR_ILLEGAL_ADDRESS)
            *pStr = "an illegal memory access was encountered";
        else if (!*text) {
            name += strlen("CUDA_ERROR_");
            for (size_t j = 0; name[j] && j < sizeof(texts[0]) - 1; j++)
                text[j] = name[j] == '_'
                              ? ' '
                              : (char)(name[j] + ('a' - 'A') * (name[j] >= 'A' && name[j] <= 'Z'));
        }
    }
    return *pStr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuGetExportTable(const void **ppExportTable, const CUuuid *pExportTableId)
{
    if (!ppExportTable || !pExportTableId)
        return CUDA_ERROR_INVALID_VALUE;
    *ppExportTable = NULL;
    return CUDA_ERROR_NOT_FOUND;
}
