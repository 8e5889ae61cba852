/* SPDX-License-Identifier: Apache-2.0 */
#include "storage/writer/edit_accounts.h"

#include "core/cleanup.h"
#include "storage/codec/hash.h"
#include "storage/file.h"
#include "storage/folder.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define N_BYTES                                                                                    \
    (sizeof(struct dmi_edit_accounts) + DMI_EDIT_ACCOUNTS * sizeof(struct dmi_edit_account))

/* Written, not only sized: a store to a hole on a full disk would be a SIGBUS in the application. Return: 0 or -errno. */
static int map_file(const char *path, struct dmi_edit_accounts *first,
                    struct dmi_edit_accounts **out)
{
    struct file file = { .fd = -1 };
    struct iovec buffer = { first, N_BYTES };
    int r = file_create(&file, path);
    if (r)
        return r;
    r = file_write_at(&file, &buffer, 1, 0);
    void *map =
        r ? MAP_FAILED : mmap(NULL, N_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd, 0);
    if (!r && map == MAP_FAILED)
        r = -errno;
    file_deinit(&file);
    if (r)
        unlink(path);
    else
        *out = map;
    return r;
}

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
    return map_file(path, first, map);
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
