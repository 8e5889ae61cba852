/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file `edits` of a run with places for edits, mapped: the process stores into the mapping (core/atomic.h). It stays when the run
 * is closed. One thread. Source: docs/format.md 10.2.
 */
#pragma once

#include <dmi/edit_account.h>

/**
 * edit_accounts_create() - the file in the folder @folder, mapped
 * Return: 0 or -errno; after a failure there is no file.
 */
int edit_accounts_create(struct dmi_edit_accounts **map, const char *folder,
                         const uint8_t run_uuid[16]);

/* The size of the file. */
uint64_t edit_accounts_bytes(void);

/* Of the file, once nobody changes it any more. */
uint64_t edit_accounts_hash(const struct dmi_edit_accounts *map);

/* Unmaps it; the file stays. Accepts NULL. */
void edit_accounts_deinit(struct dmi_edit_accounts *map);
