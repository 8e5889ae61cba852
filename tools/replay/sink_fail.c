/* SPDX-License-Identifier: Apache-2.0 */
#include "core/cleanup.h"
#include "read/value.h"
#include "tools/common/say.h"
#include "tools/replay/sink.h"

#include <stdarg.h>
#include <stdio.h>

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
