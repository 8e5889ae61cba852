/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of session.h share; no other file includes it. Thread: as session.h. */
#pragma once

#include "preload/session/session.h"

/* What a thread may do. Initial-exec: a preloaded library has its room, and no access allocates. */
struct session_thread {
    bool open; /* it entered while the session was armed, or is one of our own */
    struct session_deferred *deferred; /* takes its problems; NULL: they are reported */
    const char *kernel; /* that its problems are about; NULL: they say it themselves */
    bool unlogged;      /* problems go to the manifest alone */
};
extern __thread __attribute__((tls_model("initial-exec"),
                               visibility("hidden"))) struct session_thread session_thread;
