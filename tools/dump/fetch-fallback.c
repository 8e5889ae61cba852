/* SPDX-License-Identifier: Apache-2.0 */
/* --from clickhouse:// without libcurl. */
#include "tools/dump/fetch.h"

#include <errno.h>
#include <stdlib.h>

int fetch(struct err *err, const char *address, char **folder, uint64_t *n_left_out)
{
    *n_left_out = 0;
    (void)address;
    *folder = NULL;
    return err_set(err, -ENOTSUP,
                   "--from: this dmi-dump was built without libcurl, which it needs");
}

void fetch_remove(char *folder)
{
    free(folder);
}
