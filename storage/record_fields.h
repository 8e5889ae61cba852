/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is known of a captured tensor from its launch on and stays as it is on its way: from the ring's note to struct
 * run_record, struct dmi_record on the disk, libdmi_read and what tools write. A field is a row: FIELD(type, name). Each struct that
 * has it and each copy of one into another expands the rows, so that none is forgotten on the way.
 */
#pragma once

/* The launching thread says them: struct record_note has them while the record lies in the ring. */
#define RECORD_NOTED(FIELD)                                                                        \
    FIELD(int32_t, layer)       /* RUN_NO_LAYER: none */                                           \
    FIELD(uint32_t, occurrence) /* within the forward */                                           \
    FIELD(uint64_t, forward)    /* forward sequence of the process, from 0 */                      \
    FIELD(uint64_t, time_ns)    /* CLOCK_REALTIME when the launch was handed to the driver */

/* The drain knows them of the slot and its context. */
#define RECORD_DRAINED(FIELD)                                                                      \
    FIELD(uint64_t, launch) /* launch sequence of the process, rising */                           \
    FIELD(uint32_t, device) /* CUDA ordinal, DMI_NO_DEVICE */

/* All of them: others write them as they are, by these names. */
#define RECORD_FIELDS(FIELD) RECORD_NOTED(FIELD) RECORD_DRAINED(FIELD)

/* What a tensor is of, too: each reader of records has it, and writers of tables say it in words. */
#define RECORD_FACTS(FIELD)                                                                        \
    RECORD_FIELDS(FIELD)                                                                           \
    FIELD(uint32_t, site)  /* id */                                                                \
    FIELD(uint32_t, dtype) /* enum dmi_dtype */

/* What a segment's footer says of each record, beside its place and rows: struct dmi_footer_entry. */
#define RECORD_INDEXED(FIELD)                                                                      \
    FIELD(uint32_t, site)                                                                          \
    FIELD(int32_t, layer)                                                                          \
    FIELD(uint64_t, step)                                                                          \
    FIELD(uint64_t, launch)                                                                        \
    FIELD(uint64_t, forward)                                                                       \
    FIELD(uint32_t, occurrence)

#define RECORD_DECLARE(type, name) type name;
#define RECORD_TAKE(type, name)                                                                    \
    .name = from->name, /* in an initializer; @from: a struct that has it */
