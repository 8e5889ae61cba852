/* SPDX-License-Identifier: Apache-2.0 */
/* info.h of a module, as C. Names in PTX have no character that C would escape. */
#include "emit.h"

static void emit_params(struct emitter *e, const struct function_ir *f)
{
    emit_put(e, "static const struct ptx_param_info params_%s[] = {", f->c_name);
    for (unsigned i = 0; i < f->n_params; i++)
        emit_put(e, "{%zu, %zu, %zu},", f->param_info[i].offset, f->param_info[i].size,
                 f->param_info[i].align);
    emit_put(e, "{0}};\n");
}

static size_t emit_kernels(struct emitter *e)
{
    size_t n = 0;
    for (const struct function_ir *f = e->m->functions; f; f = f->next)
        if (f->is_kernel)
            emit_params(e, f);
    emit_put(e, "static const struct ptx_code kernels[] = {\n");
    for (const struct function_ir *f = e->m->functions; f; f = f->next) {
        if (!f->is_kernel)
            continue;
        n++;
        emit_put(e, "{{\"%s\", %u, params_%s, %zu, %zu, %zu, %u, %u}, k_%s, &frame_bytes_%s},\n",
                 f->name, f->n_params, f->c_name, f->params_bytes, f->static_shared, f->total_local,
                 f->max_threads, f->n_regs > 255 ? 255 : f->n_regs, f->c_name, f->c_name);
    }
    emit_put(e, "{{0}}};\n");
    return n;
}

static void emit_initial_bytes(struct emitter *e, size_t i)
{
    const struct ptx_global *g = &e->m->globals[i];
    size_t n = g->init ? g->size : 0;
    while (n && !g->init[n - 1])
        n--;
    if (g->init)
        emit_put(e, "static const unsigned char init_%zu[%zu] = {", i, g->size ? g->size : 1);
    for (size_t k = 0; k < n; k++)
        emit_put(e, "%u,", g->init[k]);
    if (g->init)
        emit_put(e, "};\n");
}

static void emit_globals(struct emitter *e)
{
    for (size_t i = 0; i < e->m->n_globals; i++)
        emit_initial_bytes(e, i);
    emit_put(e, "static const struct ptx_global globals[] = {\n");
    for (size_t i = 0; i < e->m->n_globals; i++) {
        const struct ptx_global *g = &e->m->globals[i];
        emit_put(e, "{\"%s\", %zu, %zu, %d, %d, ", g->name, g->size, g->align, g->constant,
                 g->external);
        emit_put(e, g->init ? "init_%zu},\n" : "NULL},\n", i);
    }
    emit_put(e, "{0}};\nstatic const struct ptx_fixup fixups[] = {\n");
    for (size_t i = 0; i < e->m->n_fixups; i++) {
        const struct ptx_fixup *f = &e->m->fixups[i];
        emit_put(e, "{%d, %zu, %d, %lld},\n", f->global, f->at, f->target, (long long)f->addend);
    }
    emit_put(e, "{0}};\n");
}

void emit_info(struct emitter *e)
{
    size_t n_kernels = emit_kernels(e);
    emit_globals(e);
    emit_put(e,
             "const struct ptx_module_info ptx_module_info = {kernels, globals, fixups, %zu, %zu, "
             "%zu, %zu};\n",
             n_kernels, e->m->n_globals, e->m->n_fixups, e->m->extern_align);
}
