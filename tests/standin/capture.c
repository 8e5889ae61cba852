/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture.c - stream capture
 */
#include "driver.h"
#include "impl.h"

CUresult capture_unsafe(void) { return CUDA_SUCCESS; }
CUresult capture_implicit(struct context *ctx) { (void)ctx; return CUDA_SUCCESS; }
CUresult capture_add(struct stream *stream, struct work *work) { (void)stream; work_unref(work); return CUDA_ERROR_NOT_SUPPORTED; }
void capture_invalidate(struct stream *stream) { (void)stream; }
CUresult capture_event_record(struct stream *stream, struct event *event, unsigned flags) { (void)stream; (void)event; (void)flags; return CUDA_ERROR_NOT_SUPPORTED; }
CUresult capture_event_wait(struct stream *stream, struct event *event, unsigned flags) { (void)stream; (void)event; (void)flags; return CUDA_ERROR_NOT_SUPPORTED; }
CUresult capture_event_misused(struct event *event) { (void)event; return CUDA_ERROR_NOT_SUPPORTED; }
