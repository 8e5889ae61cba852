/* SPDX-License-Identifier: Apache-2.0 */
#include "core/err.h"

#include <stdio.h>
#include <string.h>

int err_set(struct err *err, int code, const char *fmt, ...)
{
    if (!err || err->code)
        return code;
    err->code = code;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    return code;
}

int err_set_errno(struct err *err, int errno_value, const char *fmt, ...)
{
    if (!err || err->code)
        return -errno_value;
    err->code = -errno_value;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    size_t used = strlen(err->msg);
    char text[128];
    /* GNU strerror_r: may or may not use the buffer, never fails */
    const char *why = strerror_r(errno_value, text, sizeof text);
    snprintf(err->msg + used, sizeof err->msg - used, ": %s", why);
    return -errno_value;
}

int err_prefix(struct err *err, const char *fmt, ...)
{
    if (!err)
        return 0;
    char old[sizeof err->msg];
    memcpy(old, err->msg, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    size_t used = strlen(err->msg);
    snprintf(err->msg + used, sizeof err->msg - used, ": %s", old);
    return err->code;
}
