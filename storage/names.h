/* SPDX-License-Identifier: Apache-2.0 */
/* Names in a run's folder and in its manifest that writers and readers share. Source: docs/format.md 1, 9. */
#pragma once

/* A file of the run's folder: how many segments, from the first on, somebody has taken elsewhere. */
#define RUN_CONSUMED "consumed"

/* A link in a folder of runs: the run that was started last. */
#define RUN_LATEST "latest"

/* What stands for the manifest's own checksum while it is computed. */
#define MANIFEST_CHECKSUM_KEY  "\"checksum\": \""
#define MANIFEST_CHECKSUM_ZERO "0000000000000000"
