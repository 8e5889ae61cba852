/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/proof.h"

#include "read/value.h"

#include <stdio.h>

const char *proof_state_name(uint32_t state)
{
    static const char *const names[] = { "not checked", "holds", "fails" };
    return names[state];
}

json_t *proof_value(const struct dmi_analyze_proof *p)
{
    bool compared = p->n_rows;
    return VALUE_OBJECT({ "state", json_string(proof_state_name(p->state)) },
                        { "error", compared ? value_double(p->error) : json_null() },
                        { "worst_row", compared ? value_double(p->worst_row) : json_null() },
                        { "bound", compared ? value_double(p->bound) : json_null() },
                        { "rows", value_u64(p->n_rows) },
                        { "layer", compared ? value_layer(p->layer) : json_null() },
                        { "head", compared ? json_integer(p->head) : json_null() });
}

bool proof_refuses(const struct dmi_analyze_proof *p, const struct dmi_analyze_shape *shape,
                   char *why, size_t n_why)
{
    bool fails = p->state == DMI_ANALYZE_FAILS;
    if (fails)
        snprintf(why, n_why,
                 "attention's weights times v are not z: head %d.%u is off by %.2g of z's norm, "
                 "where %.2g is allowed",
                 p->layer, p->head, p->error, p->bound);
    else if (p->state == DMI_ANALYZE_UNCHECKED && shape->n_borrowed)
        snprintf(why, n_why,
                 "rows of another request stand in for those that a prefix cache had, and without "
                 "v and z nothing shows that they are right");
    else
        return false;
    return true;
}
