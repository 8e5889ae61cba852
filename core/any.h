/* SPDX-License-Identifier: Apache-2.0 */
/* Whether something holds of any of several, and of which first. Pure: any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Does @holds, an expression in @i, hold of any number below @n? The lower ones are asked first, and none after it does. */
#define ANY(i, n, holds)                                                                           \
    ({                                                                                             \
        size_t i = 0;                                                                              \
        while (i < (n) && !(holds))                                                                \
            i++;                                                                                   \
        i < (n);                                                                                   \
    })

/* Does it hold of all of them? None is asked after one of which it does not. */
#define ALL(i, n, holds) (!ANY(i, n, !(holds)))

/* @found, an expression in @i, of the lowest number of which @holds does; @none where it holds of none. */
#define FIRST(i, n, holds, found, none)                                                            \
    ({                                                                                             \
        size_t i = 0;                                                                              \
        while (i < (n) && !(holds))                                                                \
            i++;                                                                                   \
        i < (n) ? (found) : (none);                                                                \
    })
