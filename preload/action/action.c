/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/action/action.h"

#include <assert.h>

static_assert(SPEC_MAX_ACTIONS * ACTION_FORMS <= CONTEXT_KERNELS,
              "struct context_kernels has room for them");

const char *const *action_kernels(uint32_t *n)
{
    static const char *names[CONTEXT_KERNELS];
    *n = spec_n_actions * ACTION_FORMS;
    for (uint32_t i = 0; i < *n; i++) {
        const char *const *forms = action_table[i / ACTION_FORMS]->kernels;
        const char *own = forms[i % ACTION_FORMS];
        names[i] = own ? own : forms[ACTION_NODE];
    }
    return names;
}

struct dmi_gather action_gather(const struct action_launch *l, uint64_t *rows)
{
    struct dmi_gather g = l->operand->view.gather;
    *rows = l->rows ? l->rows + l->first_row * sizeof(uint32_t) : 0;
    if (l->rows)
        return g;
    if (g.slot_bytes)
        g.slots += (uint64_t)l->first_row * g.slot_bytes;
    else
        g.src += (uint64_t)((int64_t)l->first_row * g.stride[0]);
    return g;
}

struct dmi_gather action_node_gather(const struct operand *operand)
{
    struct dmi_gather nothing = { .count = { 1, 1, 1, 1 }, .run_bytes = 1, .access = 1 };
    return operand->view.gather.access ? operand->view.gather : nothing;
}

static CUfunction function_of(const struct context *c, uint32_t action, enum action_form form)
{
    return c->kernels.actions[action * ACTION_FORMS + form];
}

void action_eager(const struct action_launch *launch, struct action_kernel *out)
{
    enum spec_action action = session_site(launch->operand->site)->action;
    action_table[action]->eager(launch, out);
    out->host = action_table[action]->host;
    out->function = function_of(launch->context, action, ACTION_EAGER);
}

void action_node(const struct action_place *place, const struct operand *operand,
                 struct action_kernel *out)
{
    enum spec_action action = session_site(operand->site)->action;
    out->form = action_table[action]->node(place, operand, out);
    out->function = function_of(place->context, action, out->form);
}

CUfunction action_copies(const struct context *c, bool packed, bool alone)
{
    enum action_form form = alone ? ACTION_ALONE : ACTION_NODES;
    return function_of(c, SPEC_CAPTURE, packed ? form : form + 1);
}
