/* SPDX-License-Identifier: Apache-2.0 */
#include "cupti/library.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define NEWEST 13 /* majors whose libraries are looked for in the process */
#define OLDEST 11

static void *open_major(int major, int flags)
{
    char name[32];
    snprintf(name, sizeof name, "libcupti.so.%d", major);
    return dlopen(name, RTLD_NOW | RTLD_LOCAL | flags);
}

/* One that is there already. */
static void *open_there(void)
{
    void *handle = NULL;
    for (int major = NEWEST; !handle && major >= OLDEST; major--)
        handle = open_major(major, RTLD_NOLOAD);
    return handle;
}

static void *bring(struct err *err, const char *path, int major)
{
    void *handle = NULL;
    if (path && *path) {
        handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!handle)
            err_set(err, -ENOENT, "DMI_CUPTI=%s cannot be loaded", path);
        return handle;
    }
    for (int m = major; !handle && m >= OLDEST && m > major - 2; m--)
        handle = open_major(m, 0);
    if (!handle)
        err_set(err, -ENOENT,
                "there is no libcupti.so.%d: DMI_CUPTI names where it is, and the package "
                "nvidia-cuda-cupti has it",
                major);
    return handle;
}

/* Return: NULL, or the name of one without which there is no tracer. */
static const char *find_functions(void *handle, library_lookup *lookup, struct library *l)
{
    const struct {
        void *to;
        const char *name;
        bool optional;
    } functions[] = {
        { &l->get_version, "cuptiGetVersion", false },
        { &l->register_callbacks, "cuptiActivityRegisterCallbacks", false },
        { &l->enable, "cuptiActivityEnable", false },
        { &l->disable, "cuptiActivityDisable", false },
        { &l->flush_all, "cuptiActivityFlushAll", false },
        { &l->next_record, "cuptiActivityGetNextRecord", false },
        { &l->get_stream_id, "cuptiGetStreamIdEx", false },
        { &l->get_context_id, "cuptiGetContextId", false },
        { &l->dropped, "cuptiActivityGetNumDroppedRecords", false },
        { &l->set_attribute, "cuptiActivitySetAttribute", true },
        { &l->get_exec_id, "cuptiGetGraphExecId", true },
        { &l->get_node_id, "cuptiGetGraphNodeId", true },
        { &l->get_timestamp, "cuptiGetTimestamp", true },
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *function = lookup(handle, functions[i].name);
        if (!function && !functions[i].optional)
            return functions[i].name;
        memcpy(functions[i].to, &function, sizeof function);
    }
    return NULL;
}

int library_find(struct err *err, struct library *library, library_lookup *lookup, const char *path,
                 int major)
{
    struct link_map *map;
    void *handle = open_there();
    *library = (struct library){ .brought = !handle };
    handle = handle ? handle : bring(err, path, major);
    if (!handle)
        return -ENOENT;
    if (!dlinfo(handle, RTLD_DI_LINKMAP, &map))
        snprintf(library->path, sizeof library->path, "%s", map->l_name);
    const char *lacks = find_functions(handle, lookup, library);
    if (!lacks)
        return 0; /* the handle stays: a library that calls back is never closed */
    return err_set(err, -ENOENT, "%s lacks %s, a function of CUPTI's", library->path, lacks);
}
