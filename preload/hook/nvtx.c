/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How NVTX finds the library: by the environment, where that names no tool; else the library stands before the tool that it
 * names. Nothing of it happens in processes without a trace whose spec has no NVTX ranges.
 */
#include "preload/nvtx/attach.h"

#include "core/cleanup.h"
#include "preload/hook/hook.h"
#include "preload/hook/wrapper.h"
#include "preload/lifecycle.h"
#include "preload/nvtx/consumers.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#define INJECTION "NVTX_INJECTION64_PATH"

EXPORT int InitializeInjectionNvtx2(nvtx_get_export_table *get)
{
    int saved = errno;
    nvtx_initialize *tool = hook_nvtx_tool;
    hook_nvtx_tool = NULL;
    lifecycle_read_spec(); /* or no consumer knows what it wants */
    int attached = consumers_want() ? nvtx_attach(get, tool) : tool ? tool(get) : 0;
    errno = saved;
    return attached;
}

/* A spec that names ranges holds the word; nothing else is known of it before there is a driver. */
static bool mentions_nvtx(const char *path)
{
    _cleanup_(freep) char *text = malloc(SPEC_MAX_BYTES);
    _cleanup_(closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    ssize_t n, at = 0;
    while (text && fd >= 0 && (n = read(fd, text + at, SPEC_MAX_BYTES - (size_t)at)) > 0)
        at += n;
    return text && memmem(text, (size_t)at, "nvtx", strlen("nvtx"));
}

/* NVTX asks at the first range of each module, perhaps before there is a driver, and children inherit it. */
__attribute__((constructor)) static void announce(void)
{
    int saved = errno;
    Dl_info self;
    const char *spec = getenv("DMI_SPEC");

    const char *trace = getenv("DMI_TRACE");
    hook_wants_nvtx = (trace && *trace) || (spec && *spec && mentions_nvtx(spec));
    if (hook_wants_nvtx && dladdr((void *)announce, &self)) {
        _cleanup_(freep) char *path = realpath(self.dli_fname, NULL);
        setenv(INJECTION, path ? path : self.dli_fname, 0);
    }
    errno = saved;
}
