/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any chunks as a recording: u8 type (the top bit: a zstd frame follows), u16 bytes, the bytes. Heads and checksums are added
 * here, so that all that follows them is reached. Whatever is accepted can be read at any time.
 */
#include "core/cleanup.h"
#include "storage/codec/hash.h"
#include "tools/sites/memory.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static bool add_chunk(int fd, uint8_t type, const uint8_t *data, uint16_t n)
{
    struct dmi_recording_chunk chunk = { .type = type & 0x7f,
                                         .n_stored = n,
                                         .n_plain = type & 0x80 ? 4096 : 0,
                                         .hash = hash_bytes(data, n) };
    return write(fd, &chunk, sizeof chunk) == sizeof chunk && write(fd, data, n) == n;
}

static bool add_chunks(int fd, const uint8_t *data, size_t n)
{
    struct dmi_recording_header header = {
        DMI_RECORDING_MAGIC, DMI_RECORDING_VERSION, sizeof header, 1, { 0 }
    };
    bool good = write(fd, &header, sizeof header) == sizeof header;
    while (good && n >= 3) {
        uint16_t size;
        memcpy(&size, data + 1, sizeof size);
        size = size < n - 3 ? size : (uint16_t)(n - 3);
        good = add_chunk(fd, *data, data + 3, size);
        data += 3 + size;
        n -= 3u + size;
    }
    return good;
}

/* Each pointer's bytes, before and after its launch. */
static void look_at(const struct recording *rec, const struct memory *memory)
{
    uint8_t bytes[64], known[64];
    for (size_t i = 0; i < rec->n_launches; i++) {
        const struct rec_launch *l = &rec->launches[i];
        require(recording_name(rec, l) && l->first_run + l->n_runs <= rec->n_runs);
        for (uint32_t k = 0; k < l->head.n_pointers; k++) {
            size_t found = memory_read(memory, l->pointers[k].address, sizeof bytes, REC_AFTER(i),
                                       bytes, known);
            require(found <= sizeof bytes && l->pointers[k].offset + 8 <= l->head.n_params);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    _cleanup_(closep) int fd = memfd_create("recording", MFD_CLOEXEC);
    struct recording rec;
    struct memory memory;
    struct err err = { 0 };
    char path[40];
    if (fd < 0 || !add_chunks(fd, data, n))
        return 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (recording_open(&err, path, &rec)) {
        require(err.code < 0 && *err.msg);
        return 0;
    }
    if (!memory_build(&rec, &memory))
        look_at(&rec, &memory);
    memory_deinit(&memory);
    recording_deinit(&rec);
    return 0;
}
