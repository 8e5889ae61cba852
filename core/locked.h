/* SPDX-License-Identifier: Apache-2.0 */
/* What is done, or looked at, under a lock that is held for nothing else. Any thread. */
#pragma once

#include <pthread.h>

/* The value of an expression. */
#define LOCKED(lock, value)                                                                        \
    ({                                                                                             \
        pthread_mutex_lock(lock);                                                                  \
        __typeof__(value) _value = (value);                                                        \
        pthread_mutex_unlock(lock);                                                                \
        _value;                                                                                    \
    })

/* A statement. */
#define UNDER(lock, work)                                                                          \
    do {                                                                                           \
        pthread_mutex_lock(lock);                                                                  \
        work;                                                                                      \
        pthread_mutex_unlock(lock);                                                                \
    } while (0)
