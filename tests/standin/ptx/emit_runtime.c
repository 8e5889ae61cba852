/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of the device runtime, which modules declare and nobody defines. */
#include "emit.h"

#include <string.h>

/* A .param variable of the caller's, of at least so many bytes */
static bool is_argument(const struct operand *o, size_t size)
{
    return o->kind == O_SYM && o->sym->kind == SYM_VAR && o->sym->space == SPACE_PARAM &&
           o->sym->argument == -1 && !o->sym->kernel_param && o->sym->size >= size;
}

/* call cudaGraphSetConditional, (handle, value) */
static void emit_set_conditional(struct emitter *e)
{
    const struct instruction *i = e->i;
    if (i->n_call_arguments != 2 || !is_argument(&i->call_arguments[0], 8) ||
        !is_argument(&i->call_arguments[1], 4) || i->call_return.kind != O_SINK)
        emit_unsupported(e);
    emit_put(e,
             "{ u64 handle; u32 value; memcpy(&handle, C + %zu, 8); memcpy(&value, C + %zu, 4); "
             "if (!E->set_conditional || !E->set_conditional(handle, value)) E->trap(); }\n",
             i->call_arguments[0].sym->offset, i->call_arguments[1].sym->offset);
}

void emit_call_or_runtime(struct emitter *e)
{
    const struct function_ir *callee = e->i->callee ? e->i->callee->function : NULL;
    if (callee && !callee->has_body && !strcmp(callee->name, "cudaGraphSetConditional"))
        emit_set_conditional(e);
    else
        emit_call(e);
}
