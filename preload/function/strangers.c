/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/function/strangers.h"

#include "core/any.h"
#include "policy/nearest.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define MOST 1024 /* names that are remembered; more are counted alone */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *names[MOST];
static size_t n_names;
static bool any_more;

void strangers_note(const char *name)
{
    pthread_mutex_lock(&lock);
    if (n_names == MOST)
        any_more = true;
    else if (!ANY(i, n_names, !strcmp(names[i], name)) && (names[n_names] = strdup(name)))
        n_names++;
    pthread_mutex_unlock(&lock);
}

void strangers_near(const char *pattern, char *buffer, size_t n_buffer)
{
    char near[400];
    *buffer = 0;
    pthread_mutex_lock(&lock);
    nearest_kernels(pattern, (const char *const *)names, n_names, near, sizeof near);
    if (n_names)
        snprintf(buffer, n_buffer, "; %s%zu other kernel%s seen%s", any_more ? "more than " : "",
                 n_names, n_names == 1 ? " was" : "s were", near);
    pthread_mutex_unlock(&lock);
}

void strangers_reset(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    n_names = 0;
    any_more = false;
}
