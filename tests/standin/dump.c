/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dump.c - what buffers held when launches ran, for tests that compare bits
 *
 * DMI_STANDIN_DUMP holds rules, separated by ';' or newlines:
 *
 *     WHEN OFFSET BYTES REGEX
 *
 * WHEN is before or after; OFFSET the byte offset, in the kernel's parameters, of a 64-bit pointer;
 * BYTES a number, or "all" for what follows the pointer in its allocation; REGEX (POSIX extended)
 * must match the complete kernel name. Each dump is a record in DMI_STANDIN_DUMP_FILE (%p: process id):
 * struct dump_record, then its bytes; one write each. standin_log.py reads it.
 */
#include "driver.h"

#include <errno.h>
#include <fcntl.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

struct dump_rule {
    bool after;
    unsigned offset;
    size_t bytes; /* SIZE_MAX: the rest of the allocation */
    regex_t regex;
};
static struct dump_rule rules[64];
static unsigned n_rules;
static int dump_fd = -1;

/** struct dump_record - header of a record, little-endian */
struct dump_record {
    uint32_t magic; /* "DMP1" */
    uint16_t rule;
    uint16_t after;
    uint64_t seq; /* of the launch, as in the call log */
    uint64_t pointer;
    uint64_t bytes; /* that follow; 0 when the pointer was in no allocation */
};
static_assert(sizeof(struct dump_record) == 32, "read by standin_log.py");
#define DUMP_MAGIC 0x31504d44u

static void rule_parse(char *text)
{
    struct dump_rule *rule = &rules[n_rules];
    char when[8], bytes[24], pattern[1024];
    int start = 0;

    if (n_rules == ARRAY_SIZE(rules) ||
        sscanf(text, " %7s %u %23s %n", when, &rule->offset, bytes, &start) < 3 || !start)
        return;
    rule->after = strcmp(when, "before") != 0;
    rule->bytes = strcmp(bytes, "all") == 0 ? SIZE_MAX : strtoull(bytes, NULL, 0);
    snprintf(pattern, sizeof(pattern), "^(%s)$", text + start);
    if (regcomp(&rule->regex, pattern, REG_EXTENDED | REG_NOSUB) == 0)
        n_rules++;
}

void dump_open(const char *text, const char *path)
{
    char *copy = strdup(text), *save = NULL;
    char name[4096];
    const char *mark;

    if (!copy || !path || !*path) {
        free(copy);
        return;
    }
    for (char *rule = strtok_r(copy, ";\n", &save); rule; rule = strtok_r(NULL, ";\n", &save))
        rule_parse(rule);
    free(copy);
    mark = strstr(path, "%p");
    if (mark)
        snprintf(name, sizeof(name), "%.*s%d%s", (int)(mark - path), path, (int)getpid(), mark + 2);
    else
        snprintf(name, sizeof(name), "%s", path);
    dump_fd = open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (dump_fd >= 0 && dump_fd < 3) {
        int high = fcntl(dump_fd, F_DUPFD_CLOEXEC, 3);

        close(dump_fd);
        dump_fd = high;
    }
}

static void dump_write(struct dump_record *record, const void *data)
{
    struct iovec parts[2] = { { record, sizeof(*record) },
                              { (void *)(uintptr_t)data, record->bytes } };
    ssize_t done;

    do
        done = writev(dump_fd, parts, record->bytes ? 2 : 1);
    while (done < 0 && errno == EINTR);
}

void dump_launch(const struct kernel_work *kernel, uint64_t seq, bool after)
{
    if (dump_fd < 0)
        return;
    for (unsigned i = 0; i < n_rules; i++) {
        struct dump_rule *rule = &rules[i];
        struct dump_record record = {
            .magic = DUMP_MAGIC, .rule = (uint16_t)i, .after = after, .seq = seq
        };
        struct alloc *alloc;

        if (rule->after != after || rule->offset + 8 > kernel->n_params_bytes ||
            regexec(&rule->regex, kernel->function->name, 0, NULL, 0) != 0)
            continue;
        memcpy(&record.pointer, kernel->params + rule->offset, 8);
        pthread_mutex_lock(&driver.lock);
        alloc = memory_find(record.pointer);
        if (alloc) {
            record.bytes = alloc->address + alloc->size - record.pointer;
            if (record.bytes > rule->bytes)
                record.bytes = rule->bytes;
        }
        pthread_mutex_unlock(&driver.lock);
        dump_write(&record, memory_host(record.pointer));
    }
}
