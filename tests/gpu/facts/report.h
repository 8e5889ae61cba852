/* SPDX-License-Identifier: Apache-2.0 */
/* What main.c, which asks, and report.c, which runs in the process that answers, agree on. */
#ifndef TESTS_GPU_FACTS_REPORT_H
#define TESTS_GPU_FACTS_REPORT_H

#define REPORT_FD 3

#endif
