/* SPDX-License-Identifier: Apache-2.0 */
/* --from clickhouse:// without libcurl. */
#include "tools/dump/fetch.h"

#include <errno.h>
#include <stdlib.h>

int fetch(struct err *err, const char *address, char **folder)
{
    (void)address;
    *folder = NULL;
    return err_set(err, -ENOTSUP,
                   "--from: this dmi-dump was built without libcurl, which it needs");
}

void fetch_remove(char *folder)
{
    free(folder);
}
