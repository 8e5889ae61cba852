/* SPDX-License-Identifier: Apache-2.0 */
/* What edit.cu does, done by the calling thread: tensor, tables, lists, bank and counters lie in host memory. */
#pragma once

#include <dmi/edit.h>

/**
 * edit_host() - write into rows, as dmi_edit_eager does, to the bit
 * @edit: addresses of host memory; rows in slots of a paged cache are not written
 * When it returns the rows are written. Thread: the launching one. All that it reads and writes is mapped.
 */
void edit_host(const struct dmi_edit *edit);

/* Keeps rows in the bank, as dmi_save_eager does. As edit_host(). */
void edit_host_save(const struct dmi_edit *edit);

/* Forgets rows of donors, as dmi_bank_drop does. Thread: any. */
void edit_host_drop(const struct dmi_bank_drop *drop);
