/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvtx_tool.c - a tool that NVTX loads: it writes each call to the file that NVTX_TOOL_LOG names. It leaves wide texts and
 * RangeStartEx alone, as tools do that know less than NVTX.
 */
#include <nvtx3/nvToolsExt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get);

static int depth;

static void note(const char *fmt, ...)
{
    const char *path = getenv("NVTX_TOOL_LOG");
    FILE *log = path ? fopen(path, "a") : NULL;
    va_list ap;
    if (!log)
        return;
    va_start(ap, fmt);
    vfprintf(log, fmt, ap);
    va_end(ap);
    fclose(log);
}

static const char *text_of(const nvtxEventAttributes_t *event)
{
    return event->messageType == NVTX_MESSAGE_TYPE_ASCII ? event->message.ascii
           : event->messageType == NVTX_MESSAGE_TYPE_REGISTERED
               ? (const char *)event->message.registered
               : "?";
}

static int push_a(const char *text)
{
    note("push %s\n", text);
    return depth++;
}

static int push_ex(const nvtxEventAttributes_t *event)
{
    note("push %s\n", text_of(event));
    return depth++;
}

static int pop(void)
{
    note("pop\n");
    return --depth;
}

static void mark_a(const char *text)
{
    note("mark %s\n", text);
}

static int domain_push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *event)
{
    note("push %s in %s\n", text_of(event), (const char *)domain);
    return 100;
}

static int domain_pop(nvtxDomainHandle_t domain)
{
    note("pop in %s\n", (const char *)domain);
    return 101;
}

static nvtxRangeId_t domain_start(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *event)
{
    note("start %s in %s\n", text_of(event), (const char *)domain);
    return 4711;
}

static void domain_end(nvtxDomainHandle_t domain, nvtxRangeId_t id)
{
    note("end %d in %s\n", (int)id, (const char *)domain);
}

/* Handles are the texts themselves, which the test keeps short. */
static char *copy(const char *text)
{
    static char texts[64][64];
    static int n;
    snprintf(texts[n % 64], 64, "%s", text);
    return texts[n++ % 64];
}

static nvtxDomainHandle_t domain_create(const char *name)
{
    note("domain %s\n", name);
    return (nvtxDomainHandle_t)copy(name);
}

static nvtxStringHandle_t string_register(nvtxDomainHandle_t domain, const char *text)
{
    note("string %s in %s\n", text, domain ? (const char *)domain : "none");
    return (nvtxStringHandle_t)copy(text);
}

static void put(NvtxFunctionTable table, int number, NvtxFunctionPointer function)
{
    *table[number] = function;
}

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get)
{
    const NvtxExportTableCallbacks *callbacks = get(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable core, core2;
    unsigned n;
    if (!callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &core, &n) ||
        !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &core2, &n))
        return 0;
    put(core, NVTX_CBID_CORE_MarkA, (NvtxFunctionPointer)mark_a);
    put(core, NVTX_CBID_CORE_RangePushA, (NvtxFunctionPointer)push_a);
    put(core, NVTX_CBID_CORE_RangePushEx, (NvtxFunctionPointer)push_ex);
    put(core, NVTX_CBID_CORE_RangePop, (NvtxFunctionPointer)pop);
    put(core2, NVTX_CBID_CORE2_DomainRangePushEx, (NvtxFunctionPointer)domain_push);
    put(core2, NVTX_CBID_CORE2_DomainRangePop, (NvtxFunctionPointer)domain_pop);
    put(core2, NVTX_CBID_CORE2_DomainRangeStartEx, (NvtxFunctionPointer)domain_start);
    put(core2, NVTX_CBID_CORE2_DomainRangeEnd, (NvtxFunctionPointer)domain_end);
    put(core2, NVTX_CBID_CORE2_DomainCreateA, (NvtxFunctionPointer)domain_create);
    put(core2, NVTX_CBID_CORE2_DomainRegisterStringA, (NvtxFunctionPointer)string_register);
    note("attached\n");
    return 1;
}
