/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors of cold paths (config, open, parse): a code and a sentence that a user can act on.
 * A struct err is the caller's; no function here blocks or allocates. Any thread.
 */
#pragma once

#include <stdarg.h>

struct err {
    int code;      /* 0: none. <0: -errno, >0: MODULE_E_* of the function that set it */
    char msg[504]; /* "" where there is none; cut at the end, never overrun */
};

/**
 * err_set() - record @code and a sentence, unless @err already holds an earlier error
 * @err: may be NULL
 * Return: @code, so that callers write `return err_set(err, -EINVAL, "...")`.
 */
int err_set(struct err *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* As err_set(), followed by `: strerror(errno_value)`. Return: -errno_value. */
int err_set_errno(struct err *err, int errno_value, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "context: " before the message that @err holds. Return: err->code (0 for NULL). */
int err_prefix(struct err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Returns what @call gives, an int, from the function around it, unless that is 0. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        int _failed = (call);                                                                      \
        if (_failed)                                                                               \
            return _failed;                                                                        \
    } while (0)
