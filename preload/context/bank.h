/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bank of a capture context: device memory in which rows wait that edits save (<dmi/edit.h>). Kernels find a row by its donor's
 * number, layer and row. Donors: edit/donors.h. Nothing is here unless the HookSpec asks for a bank.
 */
#pragma once

#include "core/err.h"

#include <stdint.h>

struct context;

/* The bank of a context that is created, empty. Return: 0 or -errno. Thread: of device_init(). */
int bank_init(struct err *err, struct context *context);

/* Gives its memory back, and forgets it. Thread: of device_give_back(), of device_forget(). */
void bank_give_back(struct context *context);
void bank_forget(struct context *context);

/* Forgets the rows of a donor in all contexts, soon. No kernel in flight takes or saves any. Thread: any that holds no context's lock. */
void bank_drop(uint32_t donor);

/* Thread: the context's drain. */
void bank_follow(struct context *context);
