/* SPDX-License-Identifier: Apache-2.0 */
/* What the driver says of stream captures. Thread: any that holds no lock; none of it changes a capture. */
#pragma once

#include "preload/base/cuda_abi.h"

#include <stdbool.h>
#include <stddef.h>

/* A stream as an application names it. */
struct stream {
    CUstream handle;
    bool per_thread; /* a NULL handle means the thread's own stream (_ptsz) */
};

/* Is @stream being captured? Also true where asking is an error: then the launch would be one too. */
bool stream_is_capturing(struct stream stream);

/**
 * stream_capture() - where @stream's capture goes
 * @node: may be NULL; the node that the last launch there has become, NULL where the stream waits for several
 * Return: false if it is not being captured, or the driver does not say.
 */
bool stream_capture(struct stream stream, CUgraph *graph, CUgraphNode *node);

/* The same, with all nodes that @stream's next operation waits for; they are the driver's, until the next call of this kind. */
bool stream_capture_nodes(struct stream stream, CUgraph *graph, const CUgraphNode **nodes,
                          size_t *n);

/* The context that @stream belongs to, NULL: the driver does not say, as of a stream that each context has. Thread: any. */
CUcontext stream_context(struct stream stream);

/* There are green contexts from here on: stream_green_context() has to ask. Thread: any. */
void stream_green_begins(void);

/* The context of the green context that @stream belongs to, NULL: to none. Thread: any. */
CUcontext stream_green_context(struct stream stream);

/* @event, which is created where it is NULL, comes after what @stream has now. Return: false where the driver refuses. Thread: any. */
bool stream_record(struct stream stream, CUevent *event);

/* Between the two, calls of this thread break nobody's capture. */
struct stream_relaxed {
    bool exchanged;
    CUstreamCaptureMode mode;
};
/* The thread is in relaxed capture mode until stream_unrelax(). */
struct stream_relaxed stream_relax(void);
/* It is in the mode that it was in. */
void stream_unrelax(struct stream_relaxed *before);
