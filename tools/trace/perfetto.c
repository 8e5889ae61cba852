/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trace/perfetto.h"

#include "tools/perfetto.pb-c.h"

#include <errno.h>
#include <stdlib.h>

#define SEQUENCE   1u /* all packets are of one writer */
#define MOST_FACTS 24u

typedef DmiPerfetto__TracePacket packet;
typedef DmiPerfetto__TrackEvent event;
typedef DmiPerfetto__TrackDescriptor descriptor;

/* Text that protobuf-c takes but does not change. */
static char *borrow(const char *text)
{
    return (char *)(uintptr_t)text;
}

/* A trace of one packet: such traces one after the other are the trace of all of them. */
static void put(struct perfetto *p, packet *one)
{
    DmiPerfetto__Trace trace = DMI_PERFETTO__TRACE__INIT;
    uint8_t small[4096];
    trace.n_packet = 1;
    trace.packet = &one;
    one->has_trusted_packet_sequence_id = 1;
    one->trusted_packet_sequence_id = SEQUENCE;
    size_t n = dmi_perfetto__trace__get_packed_size(&trace);
    uint8_t *bytes = n <= sizeof small ? small : malloc(n);
    if (!bytes) {
        p->error = p->error ? p->error : ENOMEM;
        return;
    }
    dmi_perfetto__trace__pack(&trace, bytes);
    if (!p->error && fwrite(bytes, 1, n, p->to) != n)
        p->error = errno ? errno : EIO;
    if (bytes != small)
        free(bytes);
}

/* ------------------------------------------------------------------------- tracks */

static uint64_t put_track(struct perfetto *p, descriptor *d, uint64_t parent)
{
    packet one = DMI_PERFETTO__TRACE_PACKET__INIT;
    d->has_uuid = 1;
    d->uuid = ++p->last;
    d->has_parent_uuid = parent != 0;
    d->parent_uuid = parent;
    one.track_descriptor = d;
    put(p, &one);
    return d->uuid;
}

uint64_t perfetto_process(struct perfetto *p, int32_t pid, const char *name)
{
    DmiPerfetto__ProcessDescriptor process = DMI_PERFETTO__PROCESS_DESCRIPTOR__INIT;
    descriptor d = DMI_PERFETTO__TRACK_DESCRIPTOR__INIT;
    process.has_pid = 1;
    process.pid = pid;
    process.process_name = borrow(name);
    d.process = &process;
    return put_track(p, &d, 0);
}

uint64_t perfetto_thread(struct perfetto *p, uint64_t process, int32_t pid, uint32_t tid,
                         const char *name)
{
    DmiPerfetto__ThreadDescriptor thread = DMI_PERFETTO__THREAD_DESCRIPTOR__INIT;
    descriptor d = DMI_PERFETTO__TRACK_DESCRIPTOR__INIT;
    thread.has_pid = thread.has_tid = 1;
    thread.pid = pid;
    thread.tid = tid;
    thread.thread_name = borrow(name);
    d.thread = &thread;
    return put_track(p, &d, process);
}

uint64_t perfetto_track(struct perfetto *p, uint64_t process, const char *name)
{
    descriptor d = DMI_PERFETTO__TRACK_DESCRIPTOR__INIT;
    d.name = borrow(name);
    return put_track(p, &d, process);
}

uint64_t perfetto_counter(struct perfetto *p, uint64_t process, const char *name, const char *unit)
{
    DmiPerfetto__CounterDescriptor counter = DMI_PERFETTO__COUNTER_DESCRIPTOR__INIT;
    descriptor d = DMI_PERFETTO__TRACK_DESCRIPTOR__INIT;
    counter.unit_name = borrow(unit);
    d.name = borrow(name);
    d.counter = &counter;
    return put_track(p, &d, process);
}

/* ------------------------------------------------------------------------- events */

static void put_event(struct perfetto *p, event *e, uint64_t track, uint64_t ns,
                      DmiPerfetto__TrackEvent__Type type)
{
    packet one = DMI_PERFETTO__TRACE_PACKET__INIT;
    e->has_type = e->has_track_uuid = 1;
    e->type = type;
    e->track_uuid = track;
    one.has_timestamp = 1;
    one.timestamp = ns;
    one.track_event = e;
    put(p, &one);
}

/* Numbers that protobuf-c takes but does not change. */
static void link_flows(event *e, const struct perfetto_flows *flows)
{
    uint64_t *ids = flows && flows->n ? (uint64_t *)(uintptr_t)flows->ids : NULL;
    if (!ids)
        return;
    if (flows->ends) {
        e->terminating_flow_ids = ids;
        e->n_terminating_flow_ids = flows->n;
    } else {
        e->flow_ids = ids;
        e->n_flow_ids = flows->n;
    }
}

static void put_named(struct perfetto *p, uint64_t track, uint64_t ns, const char *name,
                      const struct perfetto_fact *facts, size_t n_facts,
                      const struct perfetto_flows *flows, DmiPerfetto__TrackEvent__Type type)
{
    DmiPerfetto__DebugAnnotation all[MOST_FACTS], *list[MOST_FACTS];
    event e = DMI_PERFETTO__TRACK_EVENT__INIT;
    n_facts = n_facts < MOST_FACTS ? n_facts : MOST_FACTS;
    for (size_t i = 0; i < n_facts; i++) {
        all[i] = (DmiPerfetto__DebugAnnotation)DMI_PERFETTO__DEBUG_ANNOTATION__INIT;
        all[i].name = borrow(facts[i].name);
        all[i].string_value = borrow(facts[i].text);
        all[i].has_int_value = !facts[i].text;
        all[i].int_value = facts[i].value;
        list[i] = &all[i];
    }
    e.name = borrow(name);
    e.n_debug_annotations = n_facts;
    e.debug_annotations = list;
    link_flows(&e, flows);
    put_event(p, &e, track, ns, type);
}

void perfetto_begin_linked(struct perfetto *p, uint64_t track, uint64_t ns, const char *name,
                           const struct perfetto_fact *facts, size_t n_facts,
                           const struct perfetto_flows *flows)
{
    p->n_slices++;
    put_named(p, track, ns, name, facts, n_facts, flows,
              DMI_PERFETTO__TRACK_EVENT__TYPE__TYPE_SLICE_BEGIN);
}

void perfetto_begin(struct perfetto *p, uint64_t track, uint64_t ns, const char *name,
                    const struct perfetto_fact *facts, size_t n_facts)
{
    perfetto_begin_linked(p, track, ns, name, facts, n_facts, NULL);
}

void perfetto_instant(struct perfetto *p, uint64_t track, uint64_t ns, const char *name,
                      const struct perfetto_fact *facts, size_t n_facts)
{
    put_named(p, track, ns, name, facts, n_facts, NULL,
              DMI_PERFETTO__TRACK_EVENT__TYPE__TYPE_INSTANT);
}

void perfetto_end(struct perfetto *p, uint64_t track, uint64_t ns)
{
    event e = DMI_PERFETTO__TRACK_EVENT__INIT;
    put_event(p, &e, track, ns, DMI_PERFETTO__TRACK_EVENT__TYPE__TYPE_SLICE_END);
}

void perfetto_count(struct perfetto *p, uint64_t track, uint64_t ns, int64_t value)
{
    event e = DMI_PERFETTO__TRACK_EVENT__INIT;
    e.has_counter_value = 1;
    e.counter_value = value;
    put_event(p, &e, track, ns, DMI_PERFETTO__TRACK_EVENT__TYPE__TYPE_COUNTER);
}
