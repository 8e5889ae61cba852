/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory that kernels and copies write, and in which order it is seen. */
#include "facts.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define THREADS 32

/*
 * litmus() stores a round's number in 32 words, then releases it in the word before them. A reader that acquires
 * a number there must find at least that number in all the words.
 */
void ask_release_order(void)
{
    uint32_t *words, n = rounds(200000);
    CUdeviceptr device;
    void *params[] = { &device, &n };
    CUfunction litmus;
    CUstream stream;
    unsigned long looked = 0, seen = 0, between = 0, wrong = 0;

    TRY(pinned_memory(&words, &device, 4096));
    TRY(new_stream(&stream));
    TRY(kernel(&litmus, "litmus"));
    TRY(launch(litmus, 1, THREADS, stream, params));
    uint64_t end = now_ns() + 10000000000u;
    uint32_t last = 0;
    while (last != n && now_ns() < end) {
        uint32_t round = __atomic_load_n(&words[0], __ATOMIC_ACQUIRE);
        looked++;
        seen += round != last;
        last = round;
        for (int i = 0; i < THREADS; i++) {
            uint32_t word = __atomic_load_n(&words[2 + i], __ATOMIC_RELAXED);
            wrong += word < round;
            between += word > round;
        }
    }
    holds("all rounds came", last == n);
    figure("rounds", n, "");
    figure("rounds that the host saw", (double)seen, "");
    figure("looks", (double)looked, "");
    figure("words of a round to come", (double)between, "");
    figure("words of a round before the released one", (double)wrong, "");
    holds("nothing released comes before its payload", !wrong);
    TRY(CU(cuStreamSynchronize, stream));
}

/* ------------------------------------------------------------------ registered memory */

#define MAP_BYTES (1u << 20)

static void *map_memory(size_t n)
{
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static CUresult poke_now(CUdeviceptr p, uint32_t value)
{
    void *params[] = { &p, &value };
    CUfunction poke;
    CUstream stream;

    PASS(kernel(&poke, "poke"));
    PASS(new_stream(&stream));
    PASS(launch(poke, 1, 1, stream, params));
    return CU(cuStreamSynchronize, stream);
}

static void ask_registered(const char *how, unsigned flags)
{
    volatile uint32_t *memory = map_memory(MAP_BYTES);
    CUdeviceptr device = 0;
    char what[96];

    if (!memory)
        return;
    madvise((void *)memory, MAP_BYTES, MADV_DONTFORK);
    TRY(CU(cuMemHostRegister_v2, (void *)memory, MAP_BYTES, flags));
    TRY(CU(cuMemHostGetDevicePointer_v2, &device, (void *)memory, 0));
    snprintf(what, sizeof what, "%s: device and host address are the same", how);
    says(what, device == (CUdeviceptr)(uintptr_t)memory ? "yes" : "no");
    TRY(poke_now(device + 4096, 41));
    snprintf(what, sizeof what, "%s: kernels write it", how);
    holds(what, memory[1024] == 41);
    TRY(CU(cuMemHostUnregister, (void *)memory));
}

void ask_registered_memory(void)
{
    ask_registered("DEVICEMAP", CU_MEMHOSTREGISTER_DEVICEMAP);
    ask_registered("PORTABLE | DEVICEMAP",
                   CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
}

static void ask_other_context(const char *how, unsigned flags)
{
    volatile uint32_t *memory = map_memory(MAP_BYTES);
    CUdeviceptr device = 0;
    CUcontext other;
    char what[96];

    if (!memory)
        return;
    TRY(CU(cuCtxCreate_v2, &other, 0, driver.device));
    TRY(CU(cuMemHostRegister_v2, (void *)memory, MAP_BYTES, flags));
    TRY(CU(cuMemHostGetDevicePointer_v2, &device, (void *)memory, 0));
    TRY(CU(cuMemsetD8_v2, device, 1, 4));
    TRY(CU(cuCtxSetCurrent, driver.context));
    snprintf(what, sizeof what, "%s: its device address in another context", how);
    result(what, CU(cuMemHostGetDevicePointer_v2, &device, (void *)memory, 0));
    TRY(CU(cuCtxDestroy_v2, other));
    memory[0] += 1;
    snprintf(what, sizeof what, "%s: the host can use it after its context is gone", how);
    holds(what, memory[0] == 0x01010102);
    snprintf(what, sizeof what, "%s: unregistering it then", how);
    result(what, CU(cuMemHostUnregister, (void *)memory));
    snprintf(what, sizeof what, "%s: registering it again", how);
    result(what, CU(cuMemHostRegister_v2, (void *)memory, MAP_BYTES, flags));
    TRY(CU(cuMemHostUnregister, (void *)memory));
}

void ask_registered_contexts(void)
{
    ask_other_context("DEVICEMAP", CU_MEMHOSTREGISTER_DEVICEMAP);
    ask_other_context("PORTABLE | DEVICEMAP",
                      CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
}

/* ------------------------------------------------------------------ waiting and copying */

void ask_context_wait(void)
{
    uint64_t ns = 100000000;
    void *params[] = { &ns };
    CUfunction spin;
    CUstream stream;

    TRY(kernel(&spin, "spin"));
    TRY(new_stream(&stream));
    TRY(launch(spin, 1, 1, stream, params));
    uint64_t start = now_ns();
    TRY(CU(cuCtxSynchronize));
    double ms = (double)(now_ns() - start) / 1e6;
    figure("cuCtxSynchronize with 100 ms of work in a non-blocking stream", ms, "ms");
    says("it waits for that", ms > 50 ? "yes" : "no");
}

#define COPIES 20

static void ask_copies(const char *what, CUdeviceptr from, void *to, size_t n, CUstream stream)
{
    double call_us[COPIES], us[COPIES], back_to_back;
    char text[96];

    for (int i = -1; i < COPIES; i++) {
        uint64_t start = now_ns();
        TRY(CU(cuMemcpyDtoHAsync_v2, to, from, n, stream));
        uint64_t called = now_ns();
        TRY(CU(cuStreamSynchronize, stream));
        if (i < 0)
            continue;
        call_us[i] = (double)(called - start) / 1000;
        us[i] = (double)(now_ns() - start) / 1000;
    }
    uint64_t start = now_ns();
    for (int i = 0; i < COPIES; i++)
        TRY(CU(cuMemcpyDtoHAsync_v2, to, from, n, stream));
    TRY(CU(cuStreamSynchronize, stream));
    back_to_back = (double)(now_ns() - start) / COPIES;
    snprintf(text, sizeof text, "%s: the call", what);
    figure(text, median(call_us, COPIES), "us");
    snprintf(text, sizeof text, "%s: until it is there", what);
    figure(text, median(us, COPIES), "us");
    snprintf(text, sizeof text, "%s: one after the other", what);
    figure(text, (double)n / back_to_back, "GB/s");
}

void ask_copy_bandwidth(void)
{
    size_t n = 16u << 20;
    CUdeviceptr device;
    CUstream stream;
    void *registered = map_memory(n), *pageable = map_memory(n);

    if (!registered || !pageable)
        return;
    TRY(device_memory(&device, n));
    TRY(new_stream(&stream));
    TRY(CU(cuMemHostRegister_v2, registered, n, 0));
    ask_copies("4 KiB, registered", device, registered, 4u << 10, stream);
    ask_copies("64 KiB, registered", device, registered, 64u << 10, stream);
    ask_copies("1 MiB, registered", device, registered, 1u << 20, stream);
    ask_copies("4 MiB, registered", device, registered, 4u << 20, stream);
    ask_copies("16 MiB, registered", device, registered, n, stream);
    memset(pageable, 1, n);
    ask_copies("16 MiB, pageable", device, pageable, n, stream);
}
