/* SPDX-License-Identifier: Apache-2.0 */
/*
 * <cuda.h> with every ABI declared under its exported name. By itself cuda.h maps each name to its
 * newest ABI and leaves the older ones, and all per-thread-stream variants, undeclared.
 */
#pragma once

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

/* _ptsz variants differ in which stream NULL means, not in type */
__typeof__(cuLaunchKernel) cuLaunchKernel_ptsz;
__typeof__(cuLaunchKernelEx) cuLaunchKernelEx_ptsz;
__typeof__(cuLaunchCooperativeKernel) cuLaunchCooperativeKernel_ptsz;
__typeof__(cuMemAllocAsync) cuMemAllocAsync_ptsz;
__typeof__(cuMemAllocFromPoolAsync) cuMemAllocFromPoolAsync_ptsz;
__typeof__(cuMemFreeAsync) cuMemFreeAsync_ptsz;
__typeof__(cuStreamIsCapturing) cuStreamIsCapturing_ptsz;
__typeof__(cuStreamGetCaptureInfo_v2) cuStreamGetCaptureInfo_v2_ptsz;
__typeof__(cuStreamGetCaptureInfo_v3) cuStreamGetCaptureInfo_v3_ptsz;
__typeof__(cuStreamBeginCapture_v2) cuStreamBeginCapture_v2_ptsz;
__typeof__(cuStreamBeginCaptureToGraph) cuStreamBeginCaptureToGraph_ptsz;
__typeof__(cuStreamEndCapture) cuStreamEndCapture_ptsz;
__typeof__(cuEventRecord) cuEventRecord_ptsz;
__typeof__(cuStreamSynchronize) cuStreamSynchronize_ptsz;
__typeof__(cuStreamQuery) cuStreamQuery_ptsz;
__typeof__(cuMemcpy) cuMemcpy_ptds;
__typeof__(cuMemcpyDtoH_v2) cuMemcpyDtoH_v2_ptds;
__typeof__(cuGraphLaunch) cuGraphLaunch_ptsz;
__typeof__(cuGraphInstantiateWithParams) cuGraphInstantiateWithParams_ptsz;
