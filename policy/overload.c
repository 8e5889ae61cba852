/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/overload.h"

#include "core/any.h"

#include <string.h>
#include <xxhash.h>

bool overload_keeps(const struct overload *o, const char *id, const char *tags)
{
    return ANY(i, o->n_keep, select_request(&o->keep[i], id, tags));
}

bool overload_samples(const struct overload *o, uint64_t hash)
{
    return o->strategy != OVERLOAD_SAMPLE || o->share >= 1 || (double)hash < o->share * 0x1p64;
}

uint64_t overload_hash(const char *id)
{
    return XXH3_64bits(id, strlen(id));
}

const char *overload_mode_name(enum overload_mode mode)
{
    static const char *const names[] = { "drop", "best-effort", "complete" };
    return names[mode];
}

const char *overload_strategy_name(enum overload_strategy strategy)
{
    static const char *const names[] = { "drop-recent", "keep-by-pattern", "sample" };
    return names[strategy];
}
