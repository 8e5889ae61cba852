/* SPDX-License-Identifier: Apache-2.0 */
/* In place of export.c where protobuf-c was not there when this was built. */
#include "tools/common/report.h"
#include "tools/common/say.h"
#include "tools/trace/export.h"

int trace_export(char **paths, const char *file, const struct export_asked *asked)
{
    (void)paths, (void)file, (void)asked;
    complain("export: this dmi-trace was built without protobuf-c (Debian: libprotobuf-c-dev, "
             "protobuf-c-compiler)");
    return REPORT_IMPOSSIBLE;
}
