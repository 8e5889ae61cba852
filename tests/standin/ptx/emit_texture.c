/* SPDX-License-Identifier: Apache-2.0 */
/* Reading through texture objects: tex.1d, .2d, .3d without levels, gradients, layers, cubes or references. */
#include "emit.h"

#include <string.h>

/* tex.2d.v4.f32.f32 {a, b, c, d}, [handle, {x, y}] */
void emit_tex(struct emitter *e)
{
    const struct operand *to = &e->i->operand[0], *from = &e->i->operand[1];
    unsigned n = op_has(e, "1d") ? 1 : op_has(e, "2d") ? 2 : op_has(e, "3d") ? 3 : 0;
    enum type d = op_type(e, 0), c = op_type(e, 1);
    op_only(e, "1d 2d 3d v4");
    op_need(e, 2);
    if (e->i->n_operands != 2 || !n || e->i->n_parts != 5 || !op_has(e, "v4") ||
        (d != T_F32 && d != T_U32 && d != T_S32) || (c != T_F32 && c != T_S32))
        emit_unsupported(e);
    /* PTX ISA, tex: a 3d coordinate has a fourth element, which is ignored */
    if (to->kind != O_VEC || to->n_parts != 4 || from->kind != O_MEM || from->value || !from->sym ||
        from->sym->kind != SYM_REG || from->n_parts != (n == 3 ? 4 : n))
        emit_unsupported(e);
    emit_put(e, "{ struct rt_sample s = { .handle = (u64)r%u, .n = %u, .whole = %d }; u32 v[4];",
             from->sym->index, n, c == T_S32);
    for (unsigned k = 0; k < n; k++)
        emit_put(e, " s.%s[%u] = %s;", c == T_S32 ? "element" : "at", k,
                 operand_as(e, &from->parts[k], c));
    emit_put(e, " E->sample(E, T, &s, v);");
    for (unsigned k = 0; k < 4; k++)
        operand_write(e, &to->parts[k], T_B32, emit_say(e, "v[%u]", k));
    emit_put(e, " }\n");
}
