/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/writer/edit_accounts.h"

#include "core/cleanup.h"
#include "storage/codec/hash.h"
#include "storage/file.h"
#include "storage/folder.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define N_BYTES                                                                                    \
    (sizeof(struct dmi_edit_accounts) + DMI_EDIT_ACCOUNTS * sizeof(struct dmi_edit_account))

int edit_accounts_create(struct dmi_edit_accounts **map, const char *folder,
                         const uint8_t run_uuid[16])
{
    _cleanup_(freep) struct dmi_edit_accounts *first = calloc(1, N_BYTES);
    _cleanup_(freep) char *path = folder_file(folder, "edits");
    if (!first || !path)
        return -ENOMEM;
    first->magic = DMI_EDIT_ACCOUNTS_MAGIC;
    first->version = DMI_EDIT_ACCOUNTS_VERSION;
    first->n = DMI_EDIT_ACCOUNTS;
    memcpy(first->run_uuid, run_uuid, sizeof first->run_uuid);
    void *mapped = NULL;
    int r = file_create_mapped(path, first, N_BYTES, &mapped);
    *map = mapped;
    return r;
}

uint64_t edit_accounts_bytes(void)
{
    return N_BYTES;
}

uint64_t edit_accounts_hash(const struct dmi_edit_accounts *map)
{
    return hash_bytes(map, N_BYTES);
}

void edit_accounts_deinit(struct dmi_edit_accounts *map)
{
    if (map)
        munmap(map, N_BYTES);
}
