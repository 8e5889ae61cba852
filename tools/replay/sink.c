/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/replay/sink.h"

#include <string.h>

const struct sink_kind *const sinks[] = { &sink_stdout,  &sink_file,       &sink_unix, &sink_tcp,
                                          &sink_command, &sink_clickhouse, NULL };

const struct sink_kind *sink_find(const char *to, const char **where)
{
    for (size_t i = 0; sinks[i]; i++) {
        size_t n = strlen(sinks[i]->prefix);
        bool is_all = !*sinks[i]->where;
        if (strncmp(to, sinks[i]->prefix, n) || (is_all ? to[n] != 0 : to[n] == 0))
            continue;
        *where = to + n;
        return sinks[i];
    }
    return NULL;
}
