/* SPDX-License-Identifier: Apache-2.0 */
/* The manifest of a run, and what is in it: its segments, its problems. */
#include "core/cleanup.h"
#include "core/err.h"
#include "core/grow.h"
#include "storage/folder.h"
#include "storage/writer/run_private.h"

#include <errno.h>

/* What the engine said and could not be taken, as problems. The counters have a field for steps alone. */
static void note_refused(struct run *run)
{
    struct pending_refusals refused[PENDING_KINDS], back;
    pending_refused(&run->pending, refused, &back);
    manifest_set_problem(&run->manifest, "steps_refused", refused[PENDING_STEP].first,
                         refused[PENDING_STEP].n);
    manifest_set_problem(&run->manifest, "ids_refused", refused[PENDING_SPAN].first,
                         refused[PENDING_SPAN].n);
    manifest_set_problem(&run->manifest, "outcomes_refused", refused[PENDING_OUTCOME].first,
                         refused[PENDING_OUTCOME].n);
    manifest_set_problem(&run->manifest, "taps_refused", refused[PENDING_TAP].first,
                         refused[PENDING_TAP].n);
    manifest_set_problem(&run->manifest, "steps_overlap", refused[PENDING_OVERLAP].first,
                         refused[PENDING_OVERLAP].n);
    manifest_set_problem(&run->manifest, "steps_went_back", back.first, back.n);
}

int run_write_manifest(struct run *run, bool sync)
{
    _cleanup_(freep) char *path = folder_file(run->path, "manifest.json");
    if (!path)
        return -ENOMEM;
    _cleanup_(text_deinit) struct text text = { 0 };
    note_refused(run);
    manifest_write(&text, &run->manifest);
    if (text.failed)
        return -ENOMEM;
    int r = file_replace(path, text.data, text.n, sync);
    run->manifest_stale = r != 0;
    return r;
}

int run_add_segment(struct run *run, uint32_t number)
{
    struct manifest *m = &run->manifest;
    if (grow((void **)&m->segments, number, &m->segments_room, sizeof *m->segments, 8))
        return -ENOMEM;
    struct segment next;
    TRY(segment_open(&next, run->path, number, m->run_uuid, run->next_sequence, m->sites));
    m->segments[number] = (struct manifest_segment){ 0 };
    m->n_segments = number + 1;
    run->next_sequence++;
    segment_deinit(&run->segment);
    run->segment = next;
    run->segment.file.direct = &run->direct;
    run->segment_begun_ns = 0;
    run->folder_synced = false;
    return 0;
}

void run_problem(struct run *run, const char *site, const char *reason, const char *sentence)
{
    RUN_HOLD(run);
    manifest_add_problem(&run->manifest, site, reason, sentence);
    run->manifest_stale = true;
}
