/* SPDX-License-Identifier: Apache-2.0 */
/*
 * entries.h - the driver's entry points, each by the name that it is exported under, and by the name and
 * version that the resolver knows it by. CALL() takes either way, at random.
 */
#ifndef GRAPH_CALLS_ENTRIES_H
#define GRAPH_CALLS_ENTRIES_H

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <stdbool.h>

struct program;

#define ENTRIES(E)                                                                                 \
    E(cuInit, cuInit, 2000)                                                                        \
    E(cuDeviceGet, cuDeviceGet, 2000)                                                              \
    E(cuCtxCreate_v2, cuCtxCreate, 3020)                                                           \
    E(cuCtxDestroy_v2, cuCtxDestroy, 4000)                                                         \
    E(cuCtxSetCurrent, cuCtxSetCurrent, 4000)                                                      \
    E(cuCtxSynchronize, cuCtxSynchronize, 2000)                                                    \
    E(cuModuleLoadData, cuModuleLoadData, 2000)                                                    \
    E(cuModuleGetFunction, cuModuleGetFunction, 2000)                                              \
    E(cuLibraryLoadData, cuLibraryLoadData, 12000)                                                 \
    E(cuLibraryGetKernel, cuLibraryGetKernel, 12000)                                               \
    E(cuKernelGetFunction, cuKernelGetFunction, 12000)                                             \
    E(cuMemAlloc_v2, cuMemAlloc, 3020)                                                             \
    E(cuMemsetD8_v2, cuMemsetD8, 3020)                                                             \
    E(cuMemsetD8Async, cuMemsetD8Async, 3020)                                                      \
    E(cuMemcpyHtoD_v2, cuMemcpyHtoD, 3020)                                                         \
    E(cuMemcpyDtoH_v2, cuMemcpyDtoH, 3020)                                                         \
    E(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync, 3020)                                               \
    E(cuMemAllocHost_v2, cuMemAllocHost, 3020)                                                     \
    E(cuEventCreate, cuEventCreate, 2000)                                                          \
    E(cuEventRecord, cuEventRecord, 2000)                                                          \
    E(cuEventRecordWithFlags, cuEventRecordWithFlags, 11010)                                       \
    E(cuEventQuery, cuEventQuery, 2000)                                                            \
    E(cuStreamCreate, cuStreamCreate, 2000)                                                        \
    E(cuStreamSynchronize, cuStreamSynchronize, 2000)                                              \
    E(cuStreamWaitEvent, cuStreamWaitEvent, 3020)                                                  \
    E(cuStreamBeginCapture, cuStreamBeginCapture, 10000)                                           \
    E(cuStreamBeginCapture_v2, cuStreamBeginCapture, 10010)                                        \
    E(cuStreamBeginCapture_v2_ptsz, cuStreamBeginCapture, 10010)                                   \
    E(cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph, 12030)                             \
    E(cuStreamEndCapture, cuStreamEndCapture, 10000)                                               \
    E(cuStreamEndCapture_ptsz, cuStreamEndCapture, 10000)                                          \
    E(cuStreamIsCapturing, cuStreamIsCapturing, 10000)                                             \
    E(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo, 10010)                                       \
    E(cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo, 11030)                                    \
    E(cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo, 12030)                                    \
    E(cuStreamUpdateCaptureDependencies, cuStreamUpdateCaptureDependencies, 11030)                 \
    E(cuStreamUpdateCaptureDependencies_v2, cuStreamUpdateCaptureDependencies, 12030)              \
    E(cuLaunchKernel, cuLaunchKernel, 4000)                                                        \
    E(cuLaunchKernel_ptsz, cuLaunchKernel, 7000)                                                   \
    E(cuLaunchKernelEx, cuLaunchKernelEx, 11060)                                                   \
    E(cuLaunchKernelEx_ptsz, cuLaunchKernelEx, 11060)                                              \
    E(cuLaunchHostFunc, cuLaunchHostFunc, 10000)                                                   \
    E(cuUserObjectCreate, cuUserObjectCreate, 11030)                                               \
    E(cuUserObjectRetain, cuUserObjectRetain, 11030)                                               \
    E(cuUserObjectRelease, cuUserObjectRelease, 11030)                                             \
    E(cuGraphRetainUserObject, cuGraphRetainUserObject, 11030)                                     \
    E(cuGraphReleaseUserObject, cuGraphReleaseUserObject, 11030)                                   \
    E(cuGraphConditionalHandleCreate, cuGraphConditionalHandleCreate, 12030)                       \
    E(cuGraphCreate, cuGraphCreate, 10000)                                                         \
    E(cuGraphDestroy, cuGraphDestroy, 10000)                                                       \
    E(cuGraphClone, cuGraphClone, 10000)                                                           \
    E(cuGraphDestroyNode, cuGraphDestroyNode, 10000)                                               \
    E(cuGraphDebugDotPrint, cuGraphDebugDotPrint, 11030)                                           \
    E(cuGraphAddNode, cuGraphAddNode, 12020)                                                       \
    E(cuGraphAddNode_v2, cuGraphAddNode, 12030)                                                    \
    E(cuGraphAddKernelNode, cuGraphAddKernelNode, 10000)                                           \
    E(cuGraphAddKernelNode_v2, cuGraphAddKernelNode, 12000)                                        \
    E(cuGraphAddMemcpyNode, cuGraphAddMemcpyNode, 10000)                                           \
    E(cuGraphAddMemsetNode, cuGraphAddMemsetNode, 10000)                                           \
    E(cuGraphAddHostNode, cuGraphAddHostNode, 10000)                                               \
    E(cuGraphAddEmptyNode, cuGraphAddEmptyNode, 10000)                                             \
    E(cuGraphAddChildGraphNode, cuGraphAddChildGraphNode, 10000)                                   \
    E(cuGraphAddEventRecordNode, cuGraphAddEventRecordNode, 11010)                                 \
    E(cuGraphAddEventWaitNode, cuGraphAddEventWaitNode, 11010)                                     \
    E(cuGraphAddMemAllocNode, cuGraphAddMemAllocNode, 11040)                                       \
    E(cuGraphAddMemFreeNode, cuGraphAddMemFreeNode, 11040)                                         \
    E(cuGraphAddDependencies, cuGraphAddDependencies, 10000)                                       \
    E(cuGraphAddDependencies_v2, cuGraphAddDependencies, 12030)                                    \
    E(cuGraphRemoveDependencies, cuGraphRemoveDependencies, 10000)                                 \
    E(cuGraphRemoveDependencies_v2, cuGraphRemoveDependencies, 12030)                              \
    E(cuGraphGetNodes, cuGraphGetNodes, 10000)                                                     \
    E(cuGraphGetRootNodes, cuGraphGetRootNodes, 10000)                                             \
    E(cuGraphGetEdges, cuGraphGetEdges, 10000)                                                     \
    E(cuGraphGetEdges_v2, cuGraphGetEdges, 12030)                                                  \
    E(cuGraphNodeGetDependencies, cuGraphNodeGetDependencies, 10000)                               \
    E(cuGraphNodeGetDependencies_v2, cuGraphNodeGetDependencies, 12030)                            \
    E(cuGraphNodeGetDependentNodes, cuGraphNodeGetDependentNodes, 10000)                           \
    E(cuGraphNodeGetDependentNodes_v2, cuGraphNodeGetDependentNodes, 12030)                        \
    E(cuGraphNodeGetType, cuGraphNodeGetType, 10000)                                               \
    E(cuGraphNodeFindInClone, cuGraphNodeFindInClone, 10000)                                       \
    E(cuGraphNodeSetParams, cuGraphNodeSetParams, 12020)                                           \
    E(cuGraphChildGraphNodeGetGraph, cuGraphChildGraphNodeGetGraph, 10000)                         \
    E(cuGraphKernelNodeGetParams, cuGraphKernelNodeGetParams, 10000)                               \
    E(cuGraphKernelNodeGetParams_v2, cuGraphKernelNodeGetParams, 12000)                            \
    E(cuGraphKernelNodeSetParams, cuGraphKernelNodeSetParams, 10000)                               \
    E(cuGraphKernelNodeSetParams_v2, cuGraphKernelNodeSetParams, 12000)                            \
    E(cuGraphKernelNodeGetAttribute, cuGraphKernelNodeGetAttribute, 11000)                         \
    E(cuGraphKernelNodeSetAttribute, cuGraphKernelNodeSetAttribute, 11000)                         \
    E(cuGraphKernelNodeCopyAttributes, cuGraphKernelNodeCopyAttributes, 11000)                     \
    E(cuGraphMemcpyNodeGetParams, cuGraphMemcpyNodeGetParams, 10000)                               \
    E(cuGraphMemcpyNodeSetParams, cuGraphMemcpyNodeSetParams, 10000)                               \
    E(cuGraphMemsetNodeGetParams, cuGraphMemsetNodeGetParams, 10000)                               \
    E(cuGraphMemsetNodeSetParams, cuGraphMemsetNodeSetParams, 10000)                               \
    E(cuGraphHostNodeGetParams, cuGraphHostNodeGetParams, 10000)                                   \
    E(cuGraphHostNodeSetParams, cuGraphHostNodeSetParams, 10000)                                   \
    E(cuGraphEventRecordNodeGetEvent, cuGraphEventRecordNodeGetEvent, 11010)                       \
    E(cuGraphEventRecordNodeSetEvent, cuGraphEventRecordNodeSetEvent, 11010)                       \
    E(cuGraphEventWaitNodeGetEvent, cuGraphEventWaitNodeGetEvent, 11010)                           \
    E(cuGraphEventWaitNodeSetEvent, cuGraphEventWaitNodeSetEvent, 11010)                           \
    E(cuGraphMemAllocNodeGetParams, cuGraphMemAllocNodeGetParams, 11040)                           \
    E(cuGraphMemFreeNodeGetParams, cuGraphMemFreeNodeGetParams, 11040)                             \
    E(cuGraphInstantiate, cuGraphInstantiate, 10000)                                               \
    E(cuGraphInstantiate_v2, cuGraphInstantiate, 11000)                                            \
    E(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, 11040)                             \
    E(cuGraphInstantiateWithParams, cuGraphInstantiateWithParams, 12000)                           \
    E(cuGraphInstantiateWithParams_ptsz, cuGraphInstantiateWithParams, 12000)                      \
    E(cuGraphExecDestroy, cuGraphExecDestroy, 10000)                                               \
    E(cuGraphExecGetFlags, cuGraphExecGetFlags, 12000)                                             \
    E(cuGraphUpload, cuGraphUpload, 11010)                                                         \
    E(cuGraphLaunch, cuGraphLaunch, 10000)                                                         \
    E(cuGraphLaunch_ptsz, cuGraphLaunch, 10000)                                                    \
    E(cuGraphExecUpdate, cuGraphExecUpdate, 10020)                                                 \
    E(cuGraphExecUpdate_v2, cuGraphExecUpdate, 12000)                                              \
    E(cuGraphExecNodeSetParams, cuGraphExecNodeSetParams, 12020)                                   \
    E(cuGraphExecKernelNodeSetParams, cuGraphExecKernelNodeSetParams, 10010)                       \
    E(cuGraphExecKernelNodeSetParams_v2, cuGraphExecKernelNodeSetParams, 12000)                    \
    E(cuGraphExecMemcpyNodeSetParams, cuGraphExecMemcpyNodeSetParams, 10020)                       \
    E(cuGraphExecMemsetNodeSetParams, cuGraphExecMemsetNodeSetParams, 10020)                       \
    E(cuGraphExecHostNodeSetParams, cuGraphExecHostNodeSetParams, 10020)                           \
    E(cuGraphExecChildGraphNodeSetParams, cuGraphExecChildGraphNodeSetParams, 11010)               \
    E(cuGraphExecEventRecordNodeSetEvent, cuGraphExecEventRecordNodeSetEvent, 11010)               \
    E(cuGraphExecEventWaitNodeSetEvent, cuGraphExecEventWaitNodeSetEvent, 11010)                   \
    E(cuGraphNodeSetEnabled, cuGraphNodeSetEnabled, 11060)                                         \
    E(cuGraphNodeGetEnabled, cuGraphNodeGetEnabled, 11060)

enum entry_id {
#define ENTRY_ID(symbol, name, version) ENTRY_##symbol,
    ENTRIES(ENTRY_ID)
#undef ENTRY_ID
};

/* Those whose NULL stream is the thread's own are declared nowhere. */
__typeof__(cuGraphLaunch) cuGraphLaunch_ptsz;
__typeof__(cuLaunchKernel) cuLaunchKernel_ptsz;
__typeof__(cuLaunchKernelEx) cuLaunchKernelEx_ptsz;
__typeof__(cuStreamBeginCapture_v2) cuStreamBeginCapture_v2_ptsz;
__typeof__(cuStreamEndCapture) cuStreamEndCapture_ptsz;
__typeof__(cuGraphInstantiateWithParams) cuGraphInstantiateWithParams_ptsz;

/* Loads libcuda.so.1, and asks it for all of these. Ends the process (77) where there is none. */
void entries_load(void);
/* Is the driver too old for it? Its calls then answer CUDA_ERROR_NOT_SUPPORTED. */
bool entries_lack(enum entry_id id);
/* A call has an older form: true in @percent of all cases, and where the driver lacks the @newer one. */
bool older_form(struct program *p, unsigned percent, enum entry_id newer);
/* As dlsym gave it, or as cuGetProcAddress, its _v2, or a cuGetProcAddress obtained from either gave it. */
void *entry(struct program *p, enum entry_id id);

/* A call with a stream: NULL may mean the thread's own too, where the entry point has such a form. */
#define STREAM_CALL(p, name, stream, r, ...)                                                       \
    do {                                                                                           \
        CUstream s_ = (stream);                                                                    \
        if (s_ == CU_STREAM_PER_THREAD && chance(p, 50)) {                                         \
            s_ = NULL;                                                                             \
            r = CALL(p, name##_ptsz, __VA_ARGS__);                                                 \
        } else {                                                                                   \
            r = CALL(p, name, __VA_ARGS__);                                                        \
        }                                                                                          \
    } while (0)

/* errno belongs to the application: a call that succeeds leaves it alone. */
#define CALL(p, name, ...) (errno = 4242, ((__typeof__(name) *)entry(p, ENTRY_##name))(__VA_ARGS__))

#endif
