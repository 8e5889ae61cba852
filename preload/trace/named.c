/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/trace/named.h"

#include "core/cleanup.h"
#include "core/log.h"
#include "policy/range_name.h"
#include "preload/base/driver.h"
#include "preload/base/handles.h"
#include "preload/function/functions.h"
#include "preload/function/naming.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct {
    bool read;
    uint32_t source; /* enum dmi_step_source; 0: none */
    const char *text;
    struct pattern pattern; /* of a kernel or a range */
} named;

/* ------------------------------------------------------------------------- kernels */

static const char begins, begins_not; /* what the table keeps: their addresses */
static struct handles answers = HANDLES_INIT;

/* Does a launch of a function of that name begin a step? The table keeps it. */
static bool answer_by_name(const void *function, const char *name)
{
    const void *answer = name && naming_matches(&named.pattern, name) ? &begins : &begins_not;
    handles_set(&answers, function, (void *)(uintptr_t)answer);
    return answer == &begins;
}

bool named_kernel(const void *function)
{
    const void *answer = handles_find(&answers, function);
    if (answer)
        return answer == &begins;
    _cleanup_(freep) char *name = functions_name(function);
    return answer_by_name(function, name);
}

void named_note(CUkernel kernel, const char *name)
{
    int saved = errno;
    if (named.source == DMI_STEP_NAMED_KERNEL && kernel &&
        (name || (driver_table.cuKernelGetName &&
                  driver_table.cuKernelGetName(&name, kernel) == CUDA_SUCCESS)))
        answer_by_name(kernel, name);
    errno = saved;
}

static void forget(const void *handle, void *value, void *ctx)
{
    (void)value;
    (void)ctx;
    handles_set(&answers, handle, NULL);
}

bool named_range(const char *text, size_t n)
{
    char name[RANGE_NAME_MAX];
    if (named.source != DMI_STEP_NAMED_RANGE)
        return false;
    range_name_parse(text, n, name);
    return pattern_matches(&named.pattern, name);
}

void named_forget(void)
{
    if (named.source == DMI_STEP_NAMED_KERNEL)
        handles_each(&answers, forget, NULL);
}

/* ------------------------------------------------------------------------- the variable */

static bool compile(const char *pattern)
{
    struct pattern_error error = { 0 };
    size_t room = PATTERN_MAX_TOTAL;
    int r = pattern_compile(pattern, &room, &named.pattern, &error);
    if (r)
        log_line(NAMED_VARIABLE "=%s: character %zu of the pattern: %s; it begins no step",
                 named.text, error.offset + 1, r < 0 ? strerror(-r) : error.msg);
    return !r;
}

static uint32_t meaning(const char *text)
{
    static const char kernel[] = "kernel:", range[] = "range:";
    if (!strcmp(text, "graph"))
        return DMI_STEP_NAMED_GRAPH;
    if (!strncmp(text, kernel, strlen(kernel)))
        return compile(text + strlen(kernel)) ? DMI_STEP_NAMED_KERNEL : 0;
    if (!strncmp(text, range, strlen(range)))
        return compile(text + strlen(range)) ? DMI_STEP_NAMED_RANGE : 0;
    if (*text)
        log_line(NAMED_VARIABLE "=%s is none of graph, kernel:PATTERN, range:PATTERN: it begins "
                                "no step",
                 text);
    return 0;
}

void named_read(void)
{
    if (named.read)
        return;
    const char *text = getenv(NAMED_VARIABLE);
    named.read = true;
    named.text = text ? text : "";
    named.source = meaning(named.text);
}

uint32_t named_source(void)
{
    return named.source;
}

const char *named_text(void)
{
    return named.text ? named.text : "";
}

bool named_graph(void)
{
    return named.source == DMI_STEP_NAMED_GRAPH;
}

void named_reset(void)
{
    struct handles fresh = HANDLES_INIT;
    answers = fresh;
}
