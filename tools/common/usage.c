/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/usage.h"

#include "tools/common/say.h"

#include <errno.h>

int usage_hint(void)
{
    complain("try: %s --help", program_invocation_short_name);
    return USAGE_WRONG;
}

int usage_wrong(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    complain_of(fmt, ap);
    va_end(ap);
    return usage_hint();
}

int usage_command(const char *word, const char *commands)
{
    if (word && *word)
        return usage_wrong("'%s' is no command: expected %s", word, commands);
    return usage_wrong("expected a command: %s", commands);
}
