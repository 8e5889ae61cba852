/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What NVTX 3 and an injection library know of each other. Source: nvtx3/nvtxDetail/nvtxTypes.h and nvtx3/nvToolsExt.h of
 * CUDA 13.0; the same since NVTX 3.0. tests/preload/nvtx_client.c compares it with the headers. Plain types: any thread.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <wchar.h>

#define NVTX_NO_TRACKING (-2) /* NVTX_NO_PUSH_POP_TRACKING: what push and pop say without a tool */

/* nvtxEventAttributes_t, version 2 */
enum { NVTX_MESSAGE_IS_ASCII = 1, NVTX_MESSAGE_IS_UNICODE = 2, NVTX_MESSAGE_IS_REGISTERED = 3 };
struct nvtx_event {
    uint16_t version, size; /* size: in bytes */
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    union {
        const char *ascii;
        const wchar_t *unicode;
        const void *registered; /* of a call that registers a string */
    } message;
};

/* NvtxExportTableID, NvtxCallbackModule */
enum { NVTX_TABLE_CALLBACKS = 1, NVTX_MODULE_CORE = 1, NVTX_MODULE_CORE2 = 5 };

typedef void nvtx_fn(void);

/* NvtxExportTableCallbacks */
struct nvtx_callbacks {
    size_t struct_size;
    /* @table: gets an array of addresses of function pointers; @size: its entries. Return: 0: there is no such module */
    int (*get_module_table)(int module, nvtx_fn ****table, unsigned *size);
};

typedef const void *nvtx_get_export_table(uint32_t id);
/* InitializeInjectionNvtx2, called once by each module of the application that has NVTX. Return: 0: it does nothing. */
typedef int nvtx_initialize(nvtx_get_export_table *get);

/* NvtxCallbackIdCore, NvtxCallbackIdCore2: X(name, module, number in the module's table) */
#define NVTX_CALLS(X)                                                                              \
    X(range_start_ex, CORE, 4)                                                                     \
    X(range_start_a, CORE, 5)                                                                      \
    X(range_start_w, CORE, 6)                                                                      \
    X(range_end, CORE, 7)                                                                          \
    X(range_push_ex, CORE, 8)                                                                      \
    X(range_push_a, CORE, 9)                                                                       \
    X(range_push_w, CORE, 10)                                                                      \
    X(range_pop, CORE, 11)                                                                         \
    X(domain_range_start_ex, CORE2, 2)                                                             \
    X(domain_range_end, CORE2, 3)                                                                  \
    X(domain_range_push_ex, CORE2, 4)                                                              \
    X(domain_range_pop, CORE2, 5)                                                                  \
    X(domain_register_string_a, CORE2, 10)                                                         \
    X(domain_register_string_w, CORE2, 11)                                                         \
    X(domain_create_a, CORE2, 12)                                                                  \
    X(domain_create_w, CORE2, 13)

typedef uint64_t nvtx_range_start_ex_fn(const struct nvtx_event *event);
typedef uint64_t nvtx_range_start_a_fn(const char *text);
typedef uint64_t nvtx_range_start_w_fn(const wchar_t *text);
typedef void nvtx_range_end_fn(uint64_t id);
typedef int nvtx_range_push_ex_fn(const struct nvtx_event *event);
typedef int nvtx_range_push_a_fn(const char *text);
typedef int nvtx_range_push_w_fn(const wchar_t *text);
typedef int nvtx_range_pop_fn(void);
typedef uint64_t nvtx_domain_range_start_ex_fn(void *domain, const struct nvtx_event *event);
typedef void nvtx_domain_range_end_fn(void *domain, uint64_t id);
typedef int nvtx_domain_range_push_ex_fn(void *domain, const struct nvtx_event *event);
typedef int nvtx_domain_range_pop_fn(void *domain);
typedef void *nvtx_domain_register_string_a_fn(void *domain, const char *text);
typedef void *nvtx_domain_register_string_w_fn(void *domain, const wchar_t *text);
typedef void *nvtx_domain_create_a_fn(const char *name);
typedef void *nvtx_domain_create_w_fn(const wchar_t *name);
