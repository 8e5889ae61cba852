/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PTX modules, executed on the CPU: text -> C (parse.c, live.c, emit.c) -> the system's C compiler
 * -> a shared object, cached by content (build.c) -> blocks of threads (run.c).
 *
 * It knows nothing of streams, contexts or the Driver API. Loading is for any thread; a loaded
 * module is immutable but for ptx_module_bind(), which precedes its first launch.
 */
#ifndef STANDIN_PTX_PTX_H
#define STANDIN_PTX_PTX_H

#include "info.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where device memory is. Set once, before the first launch; the same for all modules. */
struct ptx_memory {
    uint64_t device_base, device_size; /* addresses that kernels are given */
    int64_t alias_delta;               /* what is added to them to read and write */
    /* true if a kernel may touch [address, address + n) of host memory (pinned and mapped) */
    bool (*host_ok)(uint64_t address, size_t n);
};
void ptx_set_memory(const struct ptx_memory *memory);

enum ptx_status {
    PTX_OK = 0,
    PTX_E_SYNTAX,      /* not PTX: the log says where */
    PTX_E_UNSUPPORTED, /* an instruction that the translator lacks: kernel, line, opcode in the log */
    PTX_E_COMPILE,     /* the system's compiler failed: its messages in the log */
    PTX_E_MEMORY,
    PTX_E_FAULT, /* launch: an address that the kernel may not touch */
    PTX_E_TRAP,  /* launch: trap, or a barrier that some threads never reached */
};

struct ptx_module;
struct ptx_kernel;

struct ptx_options {
    bool pausable; /* call ptx_pause between any two global stores or atomics */
};
/* Called by modules loaded as pausable; NULL: not called. Set before launches begin. */
extern void (*ptx_pause)(void);
/* Takes what kernels print, a call of vprintf at a time, from any thread that runs one; NULL: nobody reads it. */
extern void (*ptx_print)(void *owner, const char *text, size_t n);

/* cudaGraphSetConditional() in kernels; returns 0 for an unknown handle, which ends the kernel. Set before launches. */
extern int (*ptx_set_conditional)(uint64_t handle, uint32_t value);

/**
 * ptx_module_load() - translate, compile (or take from the cache) and load
 * @text: @n_text bytes, need not be NUL-terminated; may be hostile
 * @log: takes a message on failure; @n_log may be 0
 */
int ptx_module_load(const char *text, size_t n_text, const struct ptx_options *options,
                    struct ptx_module **out, char *log, size_t n_log);
void ptx_module_free(struct ptx_module *module);

size_t ptx_module_n_kernels(const struct ptx_module *module);
const struct ptx_kernel *ptx_module_kernel(const struct ptx_module *module, size_t i);
const struct ptx_kernel_info *ptx_kernel_info(const struct ptx_kernel *kernel);

size_t ptx_module_n_globals(const struct ptx_module *module);
const struct ptx_global *ptx_module_global(const struct ptx_module *module, size_t i);
/* Variable @i lives at @address. Its initial bytes are for the caller to write there. */
void ptx_module_bind(struct ptx_module *module, size_t i, uint64_t address);
/* Writes the addresses of variables that other variables' initial bytes hold: call after all binds. */
void ptx_module_init_addresses(const struct ptx_module *module,
                               void (*write)(void *ctx, uint64_t address, uint64_t value),
                               void *ctx);

/* What blocks share that run at once and may wait for each other: each in a ptx_launch() and thread of its own */
struct ptx_together {
    uint32_t workspace[64]; /* zero at first; kernels find its address in %envreg1 and %envreg2 */
    int stop; /* a block has failed: the others end at their next look at what may change */
};
void ptx_stop(struct ptx_together *together);

/* What tex instructions read through: rows of elements at a device address, and how */
enum ptx_address_mode { PTX_WRAP, PTX_CLAMP, PTX_MIRROR, PTX_BORDER };
enum ptx_channel { PTX_UNSIGNED, PTX_SIGNED, PTX_FLOATING };
struct ptx_texture {
    uint64_t address;
    size_t extent[3], pitch,
        slice; /* elements, at least 1; bytes from row to row, from slice to slice */
    unsigned n_channels, channel_bytes;
    enum ptx_channel channel;
    enum ptx_address_mode mode[3];
    bool normalized_coordinates;
    bool linear_filter;
    bool as_fraction; /* integers of 8 and 16 bits are read as 0..1 or -1..1 */
    float border[4];
};
/* The texture that a kernel names by its handle, or NULL; from any thread that runs one. NULL: there are none. */
extern const struct ptx_texture *(*ptx_texture_find)(uint64_t handle);

/* What griddepcontrol of a grid means: each block calls begin once, trigger once, at its end at the latest, and wait as it asks */
struct ptx_dependents {
    void (*begin)(void *data), (*trigger)(void *data), (*wait)(void *data);
    void *data;
};

struct ptx_grid {
    unsigned grid[3], block[3];
    unsigned dynamic_shared;
    uint64_t first_block, n_blocks; /* linear, x fastest; n_blocks 0: all from first_block on */
    void *owner;                    /* for ptx_print */
    struct ptx_together *together;  /* or NULL */
    const struct ptx_dependents *dependents; /* NULL: griddepcontrol means nothing */
};

struct ptx_fault {
    uint64_t address;
    const char *kernel;
};

/**
 * ptx_launch() - run blocks of a kernel to their end, in the calling thread
 * @params: params_bytes of the packed parameter buffer
 * Several threads may run the same kernel, or parts of one grid, at once. A fault leaves through
 * longjmp to here; SIGSEGV in the alias mapping does so too once ptx_signal() is asked by the
 * process's handler.
 * Return: PTX_OK, PTX_E_FAULT, PTX_E_TRAP, PTX_E_MEMORY.
 */
int ptx_launch(const struct ptx_kernel *kernel, const struct ptx_grid *grid, const void *params,
               struct ptx_fault *fault);

/* From a SIGSEGV/SIGBUS/SIGFPE handler: does not return if this thread runs a kernel. */
void ptx_signal(uint64_t address);

#endif
