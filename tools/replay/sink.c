/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/replay/sink.h"

#include "core/cleanup.h"
#include "read/value.h"
#include "tools/common/say.h"

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

void sink_fail(struct sink *sink, const char *fmt, ...)
{
    _cleanup_(freep) char *s = NULL;
    va_list ap;
    va_start(ap, fmt);
    if (vasprintf(&s, fmt, ap) < 0)
        s = NULL;
    va_end(ap);
    complain("%s", s ? s : "out of memory");
    if (!sink->failed)
        sink->failed = json_array();
    json_array_append_new(sink->failed, value_text(s ? s : "?"));
}
