/* SPDX-License-Identifier: Apache-2.0 */
/* --to clickhouse:// without libcurl. */
#include "tools/replay/sink.h"

#include <errno.h>

static int clickhouse_open(struct err *err, const struct sink_options *options, struct sink **out)
{
    (void)options, (void)out;
    return err_set(err, -ENOTSUP,
                   "--to clickhouse: this dmi-replay was built without libcurl, which it needs");
}

const struct sink_kind sink_clickhouse = {
    .prefix = "clickhouse://",
    .where = "HOST/",
    .what = "a ClickHouse server: not in this build, which lacks libcurl",
    .open = clickhouse_open,
};
