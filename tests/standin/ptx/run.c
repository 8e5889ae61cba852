/* SPDX-License-Identifier: Apache-2.0 */
/* Loaded modules, and the launch of blocks. */
#include "build.h"
#include "ir.h"
#include "print.h"
#include "texture.h"

#include <dlfcn.h>
#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ptx_kernel {
    const struct ptx_code *code;
    const struct ptx_module *module;
};

struct ptx_module {
    void *object; /* owns all that @info holds */
    const struct ptx_module_info *info;
    struct ptx_kernel *kernels;
    uint64_t *addresses; /* of variables */
};

static struct ptx_memory memory;
void (*ptx_pause)(void);
int (*ptx_set_conditional)(uint64_t handle, uint32_t value);

void ptx_set_memory(const struct ptx_memory *m)
{
    memory = *m;
}

/* ------------------------------------------------------------------------- loading */

int ptx_translate(struct module_ir *ir, const char *text, size_t n_text, bool pausable,
                  struct text *out)
{
    if (setjmp(ir->on_error))
        return ir->status;
    ptx_parse(ir, text, n_text);
    ptx_indirect_calls(ir);
    ptx_calls(ir);
    ptx_emit(ir, out, pausable);
    return PTX_OK;
}

/* Its machine code. To translate it takes long: once is enough. */
static int load_object(struct ptx_module *m, const struct build_from *from, char *log, size_t n_log)
{
    struct module_ir ir = { .functions = NULL };
    struct text c = { .data = NULL };
    m->object = build_known(from);
    if (m->object)
        return PTX_OK;
    int r = ptx_translate(&ir, from->ptx, from->n, from->pausable, &c);
    if (r)
        snprintf(log, n_log, "%s", ir.message);
    else
        m->object = build_shared(c.data ? c.data : "", c.n, from, log, n_log);
    free(c.data);
    ir_free(&ir);
    return r || m->object ? r : PTX_E_COMPILE;
}

static int bind_kernels(struct ptx_module *m)
{
    m->info = dlsym(m->object, "ptx_module_info");
    if (!m->info)
        return PTX_E_COMPILE;
    m->kernels = calloc(m->info->n_kernels + 1, sizeof *m->kernels);
    m->addresses = calloc(m->info->n_globals + 1, sizeof *m->addresses);
    if (!m->kernels || !m->addresses)
        return PTX_E_MEMORY;
    for (size_t i = 0; i < m->info->n_kernels; i++)
        m->kernels[i] = (struct ptx_kernel){ &m->info->kernels[i], m };
    return PTX_OK;
}

int ptx_module_load(const char *text, size_t n_text, const struct ptx_options *options,
                    struct ptx_module **out, char *log, size_t n_log)
{
    char ignored[1];
    if (!log || !n_log) {
        log = ignored;
        n_log = sizeof ignored;
    }
    log[0] = 0;
    struct ptx_module *m = calloc(1, sizeof *m);
    const struct build_from from = { text, n_text, options && options->pausable };
    if (!m)
        return PTX_E_MEMORY;
    int r = load_object(m, &from, log, n_log);
    if (!r)
        r = bind_kernels(m);
    if (r) {
        ptx_module_free(m);
        return r;
    }
    *out = m;
    return PTX_OK;
}

void ptx_module_free(struct ptx_module *m)
{
    if (!m)
        return;
    if (m->object)
        dlclose(m->object);
    free(m->kernels);
    free(m->addresses);
    free(m);
}

size_t ptx_module_n_kernels(const struct ptx_module *m)
{
    return m->info->n_kernels;
}

const struct ptx_kernel *ptx_module_kernel(const struct ptx_module *m, size_t i)
{
    return &m->kernels[i];
}

const struct ptx_kernel_info *ptx_kernel_info(const struct ptx_kernel *kernel)
{
    return &kernel->code->info;
}

size_t ptx_module_n_globals(const struct ptx_module *m)
{
    return m->info->n_globals;
}

const struct ptx_global *ptx_module_global(const struct ptx_module *m, size_t i)
{
    return &m->info->globals[i];
}

void ptx_module_bind(struct ptx_module *m, size_t i, uint64_t address)
{
    m->addresses[i] = address;
}

void ptx_module_init_addresses(const struct ptx_module *m,
                               void (*write)(void *ctx, uint64_t address, uint64_t value),
                               void *ctx)
{
    for (size_t i = 0; i < m->info->n_fixups; i++) {
        const struct ptx_fixup *f = &m->info->fixups[i];
        write(ctx, m->addresses[f->global] + f->at, m->addresses[f->target] + (uint64_t)f->addend);
    }
}

/* ------------------------------------------------------------------------- running */

/* The launch that this thread runs, if any: where a fault leaves to. */
static _Thread_local struct {
    sigjmp_buf *leave;
    uint64_t address;
    int status;
    struct ptx_together *together;
    const struct ptx_dependents *dependents;
    bool triggered; /* this block's griddepcontrol.launch_dependents */
} running __attribute__((tls_model("initial-exec")));

static __attribute__((noreturn)) void on_fault(u64 address)
{
    running.address = address;
    running.status = PTX_E_FAULT;
    siglongjmp(*running.leave, 1);
}

static __attribute__((noreturn)) void on_trap(void)
{
    running.status = PTX_E_TRAP;
    siglongjmp(*running.leave, 1);
}

void ptx_stop(struct ptx_together *together)
{
    __atomic_store_n(&together->stop, 1, __ATOMIC_RELAXED);
}

/* A block looks at what another writes, perhaps again and again: let that one run, and end if it never will. */
static void on_look(void)
{
    if (__atomic_load_n(&running.together->stop, __ATOMIC_RELAXED))
        siglongjmp(*running.leave, 1);
    sched_yield();
}

static void on_trigger(void)
{
    if (!running.triggered)
        running.dependents->trigger(running.dependents->data);
    running.triggered = true;
}

static void on_depend(void)
{
    running.dependents->wait(running.dependents->data);
}

/* A block that lets no dependent start earlier does so as it ends. */
static void run_block(const struct ptx_kernel *k, struct rt_env *env)
{
    running.triggered = false;
    if (running.dependents)
        running.dependents->begin(running.dependents->data);
    k->code->run(env);
    if (running.dependents)
        on_trigger();
}

void ptx_signal(uint64_t address)
{
    if (!running.leave)
        return;
    uint64_t device = address - (uint64_t)memory.alias_delta;
    on_fault(device - memory.device_base < memory.device_size ? device : address);
}

static int host_ok(u64 address, size_t n)
{
    return memory.host_ok && memory.host_ok(address, n);
}

/* What one thread runs blocks with, kept from launch to launch; freed when the thread ends. */
struct workspace {
    u8 *bytes;
    size_t size;
};

static _Thread_local struct workspace workspace __attribute__((tls_model("initial-exec")));
static pthread_once_t workspace_once = PTHREAD_ONCE_INIT;
static pthread_key_t workspace_key;
static bool workspace_key_made;

static void workspace_make_key(void)
{
    workspace_key_made = !pthread_key_create(&workspace_key, free);
}

static u8 *workspace_get(size_t n)
{
    if (workspace.size >= n)
        return workspace.bytes;
    pthread_once(&workspace_once, workspace_make_key);
    free(workspace.bytes);
    workspace.bytes = aligned_alloc(64, (n + 63) & ~(size_t)63);
    workspace.size = workspace.bytes ? n : 0;
    if (workspace_key_made)
        pthread_setspecific(workspace_key, workspace.bytes);
    return workspace.bytes;
}

static void run_blocks(const struct ptx_kernel *k, const struct ptx_grid *grid, struct rt_env *env,
                       size_t n_frames)
{
    uint64_t total = (uint64_t)grid->grid[0] * grid->grid[1] * grid->grid[2];
    uint64_t first = grid->first_block, end = grid->n_blocks ? first + grid->n_blocks : total;
    end = end < total ? end : total;
    for (uint64_t b = first; b < end; b++) {
        env->block_at[0] = (u32)(b % env->grid[0]);
        env->block_at[1] = (u32)(b / env->grid[0] % env->grid[1]);
        env->block_at[2] = (u32)(b / env->grid[0] / env->grid[1]);
        if (n_frames)
            memset(env->frames, 0, n_frames);
        if (env->n_shared) /* what shared memory holds at first is undefined: NaN shows who reads it */
            memset(env->shared, 0xff, env->n_shared);
        run_block(k, env);
    }
}

static size_t align_up(size_t n, size_t align)
{
    return (n + align - 1) & ~(align - 1);
}

/* What shared memory a block gets comes in units of so many bytes (cuda_occupancy.h, compute capability 8 and later). */
#define SHARED_UNIT 128

/* The dynamic part begins after the static one, as strictly aligned as any array that may lie there. */
static size_t dynamic_at(const struct ptx_kernel *k)
{
    size_t align = k->module->info->extern_align;
    return align_up(k->code->info.static_shared, align > 16 ? align : 16);
}

/* Runs the blocks in the numeric mode that translated code expects: the application may have set another. */
static void run_guarded(const struct ptx_kernel *k, const struct ptx_grid *grid, struct rt_env *env,
                        size_t n_frames, struct ptx_fault *fault)
{
    sigjmp_buf leave, *const outer = running.leave;
    fenv_t host;

    fegetenv(&host);
    fesetenv(FE_DFL_ENV);
    running.status = PTX_OK;
    if (!sigsetjmp(leave, 1)) {
        running.leave = &leave;
        run_blocks(k, grid, env, n_frames);
    } else if (fault) {
        *fault = (struct ptx_fault){ .address = running.address, .kernel = k->code->info.name };
    }
    running.leave = outer;
    fesetenv(&host);
}

int ptx_launch(const struct ptx_kernel *k, const struct ptx_grid *grid, const void *params,
               struct ptx_fault *fault)
{
    size_t n_threads = (size_t)grid->block[0] * grid->block[1] * grid->block[2];
    size_t statics = dynamic_at(k);
    size_t used =
        grid->dynamic_shared ? statics + grid->dynamic_shared : k->code->info.static_shared;
    size_t n_shared = align_up(used, SHARED_UNIT);
    size_t n_frames = align_up(n_threads * *k->code->frame_bytes, 64),
           n_params = align_up(k->code->info.params_bytes, 64);
    u8 *bytes =
        workspace_get(n_shared + n_frames + n_params + n_threads * k->code->info.local_bytes + 64);
    if (!bytes)
        return PTX_E_MEMORY;
    u8 *frames = bytes + n_shared, *param = frames + n_frames, *local = param + n_params;
    if (k->code->info.params_bytes)
        memcpy(param, params, k->code->info.params_bytes);
    struct rt_env env = {
        .device_base = memory.device_base,
        .device_size = memory.device_size,
        .alias_delta = memory.alias_delta,
        .host_ok = host_ok,
        .fault = on_fault,
        .trap = on_trap,
        .pause = ptx_pause,
        .set_conditional = ptx_set_conditional,
        .print = print_formatted,
        .sample = texture_sample,
        .owner = grid->owner,
        .workspace = grid->together ? (u8 *)grid->together->workspace : NULL,
        .n_workspace = grid->together ? sizeof grid->together->workspace : 0,
        .look = grid->together ? on_look : NULL,
        .trigger = grid->dependents ? on_trigger : NULL,
        .depend = grid->dependents ? on_depend : NULL,
        .globals = k->module->addresses,
        .params = param,
        .n_params = k->code->info.params_bytes,
        .shared = bytes,
        .n_shared = n_shared,
        .static_shared = statics,
        .dynamic_shared = grid->dynamic_shared,
        .frames = frames,
        .local = local,
        .grid = { grid->grid[0], grid->grid[1], grid->grid[2] },
        .block = { grid->block[0], grid->block[1], grid->block[2] },
    };
    running.together = grid->together;
    running.dependents = grid->dependents;
    run_guarded(k, grid, &env, n_frames, fault);
    if (running.status && grid->together)
        ptx_stop(grid->together);
    return running.status;
}
