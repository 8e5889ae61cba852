/* SPDX-License-Identifier: Apache-2.0 */
/* Wrappers: calls in which the host waits for the device, or asks whether it is done. A trace looks at them; nothing else does. */
#include "preload/hook/wrapper.h"
#include "preload/trace/lanes.h"

/* @idle: is called when the wait has succeeded, and says what has been idle since @now_ns. */
#define WAITS_FOR_DEVICE(name, declare, pass, idle)                                                \
    EXPORT CUresult CUDAAPI name declare                                                           \
    {                                                                                              \
        __typeof__(name) *real = REAL(name);                                                       \
        uint64_t begin_ns = wait_begins();                                                         \
        CUresult r = real pass;                                                                    \
        uint64_t now_ns = wait_ends(begin_ns, #name);                                              \
        if (now_ns && r == CUDA_SUCCESS)                                                           \
            idle;                                                                                  \
        return r;                                                                                  \
    }
#define NOTHING ((void)0) /* that is known: a part of what was launched is over */
WAITS_FOR_DEVICE(cuCtxSynchronize, (void), (), lanes_context_idle(NULL, now_ns))
WAITS_FOR_DEVICE(cuCtxSynchronize_v2, (CUcontext context), (context),
                 lanes_context_idle(context, now_ns))
WAITS_FOR_DEVICE(cuStreamSynchronize, (CUstream stream), (stream),
                 lanes_stream_idle((struct stream){ stream, false }, now_ns))
WAITS_FOR_DEVICE(cuStreamSynchronize_ptsz, (CUstream stream), (stream),
                 lanes_stream_idle((struct stream){ stream, true }, now_ns))
WAITS_FOR_DEVICE(cuEventSynchronize, (CUevent event), (event), NOTHING)
WAITS_FOR_DEVICE(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t n), (to, from, n), NOTHING)
WAITS_FOR_DEVICE(cuMemcpy_ptds, (CUdeviceptr to, CUdeviceptr from, size_t n), (to, from, n),
                 NOTHING)
WAITS_FOR_DEVICE(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t n), (to, from, n), NOTHING)
WAITS_FOR_DEVICE(cuMemcpyDtoH_v2_ptds, (void *to, CUdeviceptr from, size_t n), (to, from, n),
                 NOTHING)

/* Engines that wait by asking again and again. */
#define ASKS_DEVICE(name, type)                                                                    \
    EXPORT CUresult CUDAAPI name(type it)                                                          \
    {                                                                                              \
        __typeof__(name) *real = REAL(name);                                                       \
        if (session_does(SESSION_TRACE))                                                           \
            steps_look();                                                                          \
        return real(it);                                                                           \
    }
ASKS_DEVICE(cuStreamQuery, CUstream)
ASKS_DEVICE(cuStreamQuery_ptsz, CUstream)
ASKS_DEVICE(cuEventQuery, CUevent)
