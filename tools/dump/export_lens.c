/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/dump/export_lens.h"

#include <string.h>

static const struct {
    const char *ours, *theirs;
} names[] = {
    { "token_ids", "hook_tokens" },
    { "embed", "hook_embed" },
    { "resid_pre", "hook_resid_pre" },
    { "resid_mid", "hook_resid_mid" },
    { "resid_post", "hook_resid_post" },
    { "attn_out", "hook_attn_out" },
    { "mlp_out", "hook_mlp_out" },
    { "q", "attn.hook_q" },
    { "k", "attn.hook_k" },
    { "v", "attn.hook_v" },
    { "z", "attn.hook_z" },
    { "q_rot", "attn.hook_rot_q" },
    { "k_rot", "attn.hook_rot_k" },
    { "mlp_post", "mlp.hook_post" },
};

const char *lens_name(const char *site)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!strcmp(site, names[i].ours))
            return names[i].theirs;
    return NULL;
}
