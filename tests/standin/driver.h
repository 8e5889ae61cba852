/* SPDX-License-Identifier: Apache-2.0 */
/*
 * driver.h - what the files of the stand-in driver share
 *
 * The stand-in is a test double for the CUDA Driver API: a libcuda.so.1 that executes the PTX it is
 * given on the CPU. README.md says what it does and does not do. It never pretends to the NVIDIA
 * runtime: cuGetExportTable() has nothing to give.
 *
 * Locking: driver.lock protects every object, list and table. impl_*() functions take it with
 * DRIVER_LOCKED; what they call says "lock held" where it matters. Workers execute without it.
 */
#ifndef STANDIN_DRIVER_H
#define STANDIN_DRIVER_H

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <cudaProfiler.h>
#include <cudaTypedefs.h>
#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "entries.h"
#include "version.h"

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

enum { MAX_DEVICES = 8, MULTIPROCESSORS = 8, MAX_PARAM_BYTES = 32764 };

/* ---- entries and log ---- */

/** struct entry - one exported symbol; the table is generated from driver.def */
struct entry {
    const char *symbol;
    const char *name; /* what cuGetProcAddress() is asked for */
    void (*fn)(void);
    int version; /* first CUDA version that has it, 1000 * major + 10 * minor */
    int per_thread;
    int always; /* callable before cuInit() and after exit handlers */
};
extern const struct entry entry_table[N_ENTRIES];

/** struct entry_frame - one call in progress; nests when a host function calls the driver */
struct entry_frame {
    enum entry_id id;
    int saved_per_thread;
    enum entry_id saved_entry;
    uint64_t start_ns;
};

CUresult entry_enter(struct entry_frame *frame, enum entry_id id);
CUresult entry_leave(struct entry_frame *frame, CUresult res);
CUresult entry_not_supported(enum entry_id id);

/** fail_parse() - read DMI_STANDIN_FAIL and DMI_STANDIN_STALL */
void fail_parse(const char *fail, const char *stall);
/** fail_check() - count a call, and take as long as a rule says; its result is what a rule says: CUDA_SUCCESS if none speaks of it */
CUresult fail_check(enum entry_id id);
/** fail_own() - the number of the program's own call that this one is, by what the program said to standin_own(); 0: none */
unsigned long fail_own(enum entry_id id);

void log_open(const char *path);
bool log_enabled(void);
/** log_detail() - add `"key":value` text to the record of the API call in progress on this thread */
void log_detail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/** log_call() - one record for an API call that returns now */
void log_call(const char *symbol, CUresult res, uint64_t start_ns);
/** log_fault() - one record for a handle that ends the process */
void log_fault(const char *symbol, const void *handle, const char *wanted, const char *state,
               const char *what);

/* ---- configuration, read once ---- */

/** enum handles_mode - what a handle that has ended, or is of another kind, does, and when it comes back */
enum handles_mode {
    HANDLES_STRICT,  /* SIGSEGV; comes back late */
    HANDLES_LENIENT, /* the error that cuda.h names for the call; comes back at once */
    HANDLES_REUSE,   /* SIGSEGV until it comes back, which is at once; device addresses too */
};

#define MAX_WORKERS 64

struct config {
    enum handles_mode handles;
    bool load_waits; /* what load.c says */
    bool lazy;       /* functions are loaded by their first use */
    const char *log;
    const char *dump;
    const char *dump_file;
    const char *fail;
    uint64_t delay_seed; /* 0: no delays */
    uint64_t delay_max_ns;
    uint64_t pause_one_in; /* kernels pause at one store in so many; 0: never */
    uint64_t dtoh_bps;     /* bytes a second; 0: as fast as memcpy */
    uint64_t dtoh_latency_ns;
    uint64_t memory_bytes;
    int sm; /* compute capability, 10 * major + minor */
    int n_devices;
    int n_threads;
    size_t node_bytes;    /* of device memory, that a node of an exec costs */
    bool alike_edges;     /* execs with programmatic edges beside others are refused */
    bool green_functions; /* a primary context's functions run on green streams */
    bool share_users;     /* a clone's references to user objects are its source's */
};

/* ---- objects ---- */

enum object_kind {
    OBJECT_CONTEXT = 1,
    OBJECT_STREAM,
    OBJECT_EVENT,
    OBJECT_MODULE,
    OBJECT_LIBRARY,
    OBJECT_KERNEL,
    OBJECT_FUNCTION,
    OBJECT_GRAPH,
    OBJECT_NODE,
    OBJECT_EXEC,
    OBJECT_USER,
    OBJECT_POOL,
    OBJECT_ARRAY,
    OBJECT_MIPMAP,
    OBJECT_TEXTURE,
    OBJECT_SURFACE,
    OBJECT_GREEN,
    OBJECT_RESOURCE_DESC,
    OBJECT_PHYSICAL, /* memory without addresses: a CUmemGenericAllocationHandle */
    N_OBJECT_KINDS,
};

/** struct object - first member of everything that a handle points to */
struct object {
    uint32_t magic; /* OBJECT_MAGIC + kind while alive, OBJECT_ENDED + kind after */
    uint32_t size;
    struct object *next_ended;
};
#define OBJECT_MAGIC 0x5d310000u
#define OBJECT_ENDED 0xdead0000u

/* No pointer of x86-64 or aarch64: reading it is a SIGSEGV. */
#define HANDLE_POISON 0xdead0baddead0bd0ull

/** object_new() - a zeroed object; lock held */
void *object_new(enum object_kind kind, size_t size);
void object_free(void *object);
/** object_end() - the handle has ended, the memory is still in use: object_free() comes later */
void object_end(void *object);
/**
 * object_is() - is @handle, which a caller gave, a living @kind
 * NULL is not, and the call returns its error. Whatever else is not ends the process with SIGSEGV, unless
 * handles are lenient.
 */
bool object_is(const void *handle, enum object_kind kind);
/** object_live() - the same for pointers that may be something else by right: never a fault of ours */
bool object_live(const void *pointer, enum object_kind kind);
/** object_wild() - say what object_is() was asked for when reading it faulted; in the signal's handler */
void object_wild(void);
/** handles_poison() - entries @first to @n of an array of handles, which the answer leaves unused */
void handles_poison(void *array, size_t first, size_t n);

struct context;
struct green;
struct stream;
struct event;
struct event_shared;
struct function;
struct graph;
struct graph_node;
struct graph_exec;
struct cond_run;
struct op;
struct capture;
struct capture_deps;

struct context {
    struct object object;
    struct context *next;
    unsigned long long id;
    int device;
    unsigned flags;
    unsigned api_version;
    bool primary;
    int n_refs;            /* cuCtxAttach, primary retains */
    CUresult sticky;       /* a failed operation sets it; every later call returns it */
    struct stream *legacy; /* the NULL stream */
    struct stream *streams;
    struct module *modules;
    struct event *events;
    struct array *arrays; /* array.h */
    struct mipmap *mipmaps;
    struct texture *textures;
    size_t limits[16];
    struct print *prints,
        *last_print; /* print.c, under its lock: what kernels printed, oldest first */
    size_t n_printed;
    CUfunc_cache cache_config;
    CUsharedconfig shared_config;
    uint64_t peers;  /* bit per device whose memory is enabled */
    uint64_t loader; /* thread that holds the load lock (load.c), 0: none */
    unsigned n_loads;
    struct green *green; /* whose context it is, or NULL */
    struct op *barrier;  /* what is queued comes after it */
};

struct device {
    struct context *primary;
    unsigned primary_flags;
    bool resetting; /* its primary context ends and begins anew, and the lock is free meanwhile */
    int n_released; /* references given back meanwhile */
    uint64_t used_bytes;
    uint64_t graph_bytes, graph_used_high, graph_reserved_high;
    int memfd;
    uint64_t link_free_ns; /* when the link to the host has carried what was queued on it */
};

/** struct driver - the state of the process */
extern struct driver {
    pthread_mutex_t lock;
    atomic_bool ready;  /* cuInit() succeeded */
    atomic_bool ended;  /* exit handlers ran */
    atomic_bool forked; /* we are the child of a process that had called cuInit() */
    struct config config;
    struct device devices[MAX_DEVICES];
    struct context *contexts;
    unsigned long long n_contexts_made;
} driver;

/** struct tls - per-thread state, small and zero-initialised */
struct tls {
    int per_thread;             /* the stream that NULL stands for in the call in progress */
    bool in_callback;           /* on the host thread, inside a user's function */
    int depth;                  /* of API calls */
    enum entry_id entry;        /* the innermost */
    const void *volatile asked; /* by object_is(), while it reads it */
    enum object_kind asked_kind;
    uint64_t id;       /* of the thread, for per-thread default streams */
    unsigned long own; /* the program's own call in progress, 0: none said; see fail.c */
    enum entry_id own_entry;
    unsigned n_stack;
    struct context *stack[64];
    CUstreamCaptureMode capture_mode;
    char *detail;
    size_t n_detail, cap_detail;
};
extern _Thread_local struct tls tls __attribute__((tls_model("initial-exec")));

static inline void driver_unlock(int *unused)
{
    (void)unused;
    pthread_mutex_unlock(&driver.lock);
}
#define DRIVER_LOCKED                                                                              \
    __attribute__((cleanup(driver_unlock), unused)) int driver_locked_ =                           \
        pthread_mutex_lock(&driver.lock)

/** thread_id() - small number of the calling thread, never 0, never reused */
uint64_t thread_id(void);
uint64_t clock_ns(void);
/** random_next() - splitmix64 over @state */
uint64_t random_next(uint64_t *state);

/* ---- contexts ---- */

/** context_current() - the calling thread's context, or the error that its calls must return; lock held */
CUresult context_current(struct context **ctx);
/** context_resolve() - check a context given by handle, NULL meaning the current one; lock held */
CUresult context_resolve(CUcontext handle, struct context **ctx);
struct context *context_new(int device, unsigned flags, bool primary);
void context_destroy(struct context *ctx);
/** context_base() - the context whose memory and libraries @ctx uses: its own, or for a green one the primary */
struct context *context_base(struct context *ctx);
/** context_fail() - an operation of @ctx failed: every later call in it, and in those that share its memory, does */
void context_fail(struct context *ctx, CUresult res);
/** context_depend() - @op comes after all that is queued in @ctx, for a primary context in its green ones too */
void context_depend(struct op *op, struct context *ctx);
/** context_drain() - wait until what was submitted to @ctx so far is done; lock held, dropped while waiting */
void context_drain(struct context *ctx);

/* ---- the lock that loading takes ---- */

/**
 * load_begin() - take @ctx's load lock, then wait for what is queued there; driver.lock held, dropped meanwhile
 * Return: the context, for load_end(); NULL if it ended meanwhile.
 */
struct context *load_begin(struct context *ctx);
void load_end(struct context **ctx);
/** LOADING - hold @ctx's load lock until the end of the block */
#define LOADING(ctx)                                                                               \
    __attribute__((cleanup(load_end), unused)) struct context *loading_ = load_begin(ctx)
/** load_result() - what the call that holds @ctx's lock returns for it: its error, or that it has ended */
CUresult load_result(const struct context *ctx);
/** function_load() - the first use of a function loads it, where loading is lazy; lock held */
CUresult function_load(struct function *function);

/* ---- work: what an operation or a graph node does ---- */

enum work_kind {
    WORK_KERNEL,
    WORK_COPY,
    WORK_SET,
    WORK_HOST,
    WORK_CALLBACK,
    WORK_FREE, /* of a pool allocation, in stream order */
    WORK_WRITE_VALUE,
    WORK_WAIT_VALUE,
    WORK_CONDITION,    /* look at a conditional node's value */
    WORK_EVENT_SHARED, /* wait for a record of another process's */
    WORK_EVENT_RECORD, /* graph nodes only: becomes an event's marker when launched */
    WORK_EVENT_WAIT,   /* graph nodes only */
    WORK_CHILD,        /* graph nodes only */
    WORK_EMPTY,
    WORK_ALLOC,      /* graph nodes only: the addresses live as long as the work */
    WORK_ALLOC_FREE, /* graph nodes only */
};

struct kernel_work {
    struct function *function;
    unsigned grid[3], block[3], cluster[3];
    unsigned shared_bytes;
    bool cooperative;
    bool programmatic; /* launched with programmatic stream serialization */
    bool updatable;    /* of kernels: kept only for queries */
    int priority;
    size_t n_params_bytes;
    unsigned char *params; /* packed as the kernel declares them */
    void **values;         /* what cuGraphKernelNodeGetParams() returns: pointers into params */
    void *extra[5];
    size_t extra_size;
    bool from_extra; /* the caller gave `extra` */
    CUkernel kern;   /* a node created with a CUkernel reports it as such */
};

/** struct copy_side - one end of a copy: byte address, pitches; @array when it is one */
struct copy_side {
    CUmemorytype type; /* as the caller wrote it */
    uint64_t address;
    size_t pitch, height;
    size_t x, y, z;
    struct array *array;
};

struct copy_work {
    struct copy_side src, dst;
    size_t width, height, depth;
    CUDA_MEMCPY3D params; /* as given, for node queries */
    void *staged;         /* owned copy of a pageable source */
    bool to_host;         /* device to host: takes the modelled link's time */
};

struct set_work {
    uint64_t address;
    size_t pitch, width, height;
    unsigned element, value;
};

/** struct work - immutable once submitted; shared by operations, nodes and execs */
struct work {
    atomic_int refs;
    enum work_kind kind;
    struct context *ctx; /* borrowed */
    union {
        struct kernel_work kernel;
        struct copy_work copy;
        struct set_work set;
        struct {
            CUhostFn fn;
            void *data;
        } host;
        struct {
            CUstreamCallback fn;
            void *data;
            CUstream stream;
        } callback;
        struct {
            uint64_t address;
            unsigned long long id;
        } free;
        struct {
            uint64_t address;
            size_t bytes;
        } alloc;
        struct {
            uint64_t address;
            uint64_t value;
            unsigned flags;
            bool wide;
        } value;
        struct {
            struct event *event;
        } event;
        struct {
            struct cond_run *run;
        } condition;
        struct {
            struct event_shared *event;
            uint64_t number;
        } shared;
        struct {
            struct graph *graph;
        } child;
    };
};

struct work *work_new(enum work_kind kind, struct context *ctx);
struct work *work_ref(struct work *work);
void work_unref(struct work *work);
/** work_execute() - do it, on a worker; never with the lock held. Return: error that becomes sticky */
CUresult work_execute(struct work *work, struct op *op);

/* ---- queue: operations, their order, the workers ---- */

/** struct op - a piece of work queued to run once those it depends on are done */
struct op {
    int refs;
    int n_pending;
    bool done;
    int n_waiters;
    struct work *work;
    struct context *ctx; /* borrowed: a context drains before it is destroyed */
    struct op **dependents;
    int n_dependents, cap_dependents;
    struct op *inline_dependents[3];
    struct op *next_ready;
    uint64_t seq; /* of launches, 0 for others */
    /* for activity.c: of the call that queued it; the stream's number; of a graph's node the exec's, and the node's */
    uint64_t correlation, stream, exec, node;
    uint64_t order;
    uint64_t searched; /* number of the last search that came by */
    uint64_t ready_ns; /* with times.c: it was queued by then, and those before it have ended */
    uint64_t end_ns;
    void (*on_done)(struct op *op, void *data); /* lock held */
    void *on_done_data;
    /* programmatic.c: who may start before it ends, whose end its griddepcontrol.wait waits for, how far its blocks are */
    struct early *early;
    int n_early;
    struct op **prior;
    int n_prior;
    uint64_t n_blocks;
    atomic_ullong n_begun, n_triggered;
    bool begun, triggered; /* all blocks have */
    bool stands;           /* at its griddepcontrol.wait, or there was one */
};

/* All lock held, but for queue_wait() dropping it while it waits. */
struct op *op_new(struct context *ctx, struct work *work);
void op_depend(struct op *op, struct op *on);
/** op_precedes() - must @first be done before @second starts; both may be NULL */
bool op_precedes(struct op *first, struct op *second);
void op_commit(struct op *op);
struct op *op_ref(struct op *op);
void op_unref(struct op *op);
void queue_wait(struct op *op);
/** op_release() - one of those that @op waits for is over */
void op_release(struct op *op);
/** op_draw() - a number of its own by the delay seed, 0 without one; @state takes more draws */
uint64_t op_draw(const struct op *op, uint64_t *state);
/** queue_pause() - until @op is done, queue_tell() was called, or @until (CLOCK_REALTIME). Return: false when that is past */
bool queue_pause(struct op *op, const struct timespec *until);
/** queue_tell() - threads that pause look again */
void queue_tell(void);
CUresult queue_share(uint64_t first, uint64_t n_blocks, uint64_t chunk,
                     CUresult (*run)(uint64_t first, uint64_t n, void *data), void *data);
CUresult queue_start(void);
void queue_stop(void);
void queue_fork_child(void);

/* ---- what was executed, for an observer: activity.c ---- */

bool activity_observed(void);
/** activity_clock() - CLOCK_REALTIME, nanoseconds */
uint64_t activity_clock(void);
/** activity_tell() - @op was executed, without an error; no lock held */
void activity_tell(const struct op *op, uint64_t begin_ns, uint64_t end_ns);

/* ---- streams and events ---- */

struct stream {
    struct object object;
    struct stream *next;
    struct context *ctx; /* NULL: it was a green one, and is destroyed */
    unsigned flags;
    int priority;
    unsigned long long id;
    uint64_t thread; /* owner of a per-thread default stream */
    struct op *tail;
    bool destroyed;
    struct capture *capture;   /* in which what is queued here becomes nodes; NULL: none */
    struct capture_deps *deps; /* what the next node will depend on */
};

struct event {
    struct object object;
    struct event *next;
    struct context *ctx;
    unsigned flags;
    struct op *marker;           /* NULL: never recorded */
    struct event_shared *shared; /* of one that other processes use too */
    struct capture *capture;     /* last recorded on a capturing stream */
    struct capture_deps *deps;
};

/** stream_resolve() - handle to stream, with the special handles; lock held */
CUresult stream_resolve(CUstream handle, struct stream **stream);
struct stream *stream_create(struct context *ctx, unsigned flags, int priority);
/** stream_open() - an uncommitted operation ordered after @stream's work, and its new tail; lock held */
struct op *stream_open(struct stream *stream, struct work *work);
/** stream_wait() - wait for all work queued on @stream so far; lock held, dropped while waiting */
CUresult stream_wait(struct stream *stream);
bool stream_idle(struct stream *stream);
void event_set_marker(struct event *event, struct op *op);
/** event_new() - @shared (reference taken over) may be NULL; lock held */
struct event *event_new(struct context *ctx, unsigned flags, struct event_shared *shared);

/* Events of several processes: ipc_event.c. Lock held, but for event_shared_wait(), and where work goes. */
struct event_shared *event_shared_new(void);
struct event_shared *event_shared_ref(struct event_shared *shared);
void event_shared_unref(struct event_shared *shared);
/** event_shared_record() - @op, the last record of it, is what the others wait for */
void event_shared_record(struct event_shared *shared, struct op *op);
/** event_shared_done() - is the last record's work done; its number, to wait for */
bool event_shared_done(const struct event_shared *shared, uint64_t *number);
/** event_shared_is_mine() - did this process make the last record */
bool event_shared_is_mine(const struct event_shared *shared);
void event_shared_wait(const struct event_shared *shared, uint64_t number);
void event_destroy(struct event *event);

/* ---- capture ---- */

/** capture_unsafe() - CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED if a call that synchronises is forbidden now; lock held */
CUresult capture_unsafe(void);
/** capture_implicit() - the same for work on the legacy stream, which would wait for capturing ones */
CUresult capture_implicit(struct context *ctx);
/** capture_add() - add @work (reference taken over) as a node that depends on the stream's last ones; lock held */
CUresult capture_add(struct stream *stream, struct work *work);
/** capture_invalidate() - a capturing stream got a forbidden call; lock held */
void capture_invalidate(struct stream *stream);
/** capture_forget() - @stream is destroyed, whatever captures it took part in; lock held */
void capture_forget(struct stream *stream);
void capture_forget_origin(struct stream *stream);
void capture_deps_free(struct capture_deps *deps);
/** capture_deps_spoil() - a call operates on a capturing stream: arrays shown before are no longer valid; lock held */
void capture_deps_spoil(struct capture_deps *deps);
/** capture_add_exec() - embed what @exec would run as a child graph; lock held */
CUresult capture_add_exec(struct stream *stream, struct graph_exec *exec);
CUresult capture_event_record(struct stream *stream, struct event *event, unsigned flags);
/** capture_event_launched() - the stream's last node, a kernel, records @event by its outgoing @port */
CUresult capture_event_launched(struct stream *stream, struct event *event, unsigned char port);
CUresult capture_event_wait(struct stream *stream, struct event *event, unsigned flags);
/** capture_event_asked() - an event that was recorded in a capture has no state: the capture is invalid, the error to return */
CUresult capture_event_asked(struct event *event);
/** stream_do() - submit to a stream, or capture; reference taken over. *out (may be NULL) gets the op, borrowed while the lock is held */
CUresult stream_do(struct stream *stream, struct work *work, struct op **out);
/** stream_mark() - the same of an operation that does nothing; the stream is not captured */
CUresult stream_mark(struct stream *stream, struct op **out);

/* ---- memory ---- */

enum alloc_kind {
    ALLOC_DEVICE,
    ALLOC_POOL,
    ALLOC_MANAGED,
    ALLOC_HOST,
    ALLOC_REGISTERED,
    ALLOC_GLOBAL, /* a module's variables */
    ALLOC_MAPPED, /* a physical piece at reserved addresses */
    ALLOC_IPC,    /* another process's, opened by a handle */
    ALLOC_ARRAY,
    ALLOC_GRAPH, /* by a node of a graph */
};

struct alloc {
    uint64_t address;
    size_t size;
    size_t mapped; /* bytes of its pages */
    enum alloc_kind kind;
    int device;
    unsigned flags;
    struct context *ctx;
    unsigned long long id;
    bool freed;  /* given back, in stream order */
    bool backed; /* its addresses have memory: of @fd, from @offset on */
    int fd;
    off_t offset;
    struct pool *pool;
    struct op *last; /* after it the memory serves nobody */
    /* a pool's: */
    struct alloc *next_block;
    unsigned long long last_stream; /* id of the one that it was freed on */
    bool closed;                    /* that free is over: kernels cannot reach it */
    bool imported;                  /* the memory is another process's */
    /* another process's, opened by a handle: */
    int ipc_pid;
    unsigned n_opens;
    uint64_t ipc_id;
    /* a mapped piece's: */
    struct physical *physical;
    unsigned char access[MAX_DEVICES]; /* CUmemAccess_flags */
    /* a graph's: */
    unsigned long long graph; /* id of the graph that allocates it */
    bool has_node;
    bool live;                            /* allocated by what is queued, and not freed by it */
    bool freed_in_graph, freed_elsewhere; /* there is a free node */
};

/* Kernels and copies reach device address A at A + ALIAS_DELTA; the host cannot touch A itself. */
#define DEVICE_BASE 0x700000000000ull
#define DEVICE_SPAN 0x010000000000ull
#define ALIAS_DELTA (-0x400000000000ll)

CUresult memory_init(void);
CUresult memory_alloc(int device, struct context *ctx, size_t size, enum alloc_kind kind,
                      uint64_t *address);
CUresult memory_free(uint64_t address);
/** memory_find() - the allocation that holds @address, or NULL; lock held */
struct alloc *memory_find(uint64_t address);
/** memory_is_device() - does @address lie in the window that the host must not touch */
static inline bool memory_is_device(uint64_t address)
{
    return address >= DEVICE_BASE && address < DEVICE_BASE + MAX_DEVICES * DEVICE_SPAN;
}
/** memory_check() - may a copy of @n bytes at @address be queued; lock held */
CUresult memory_check(uint64_t address, size_t n, bool *pinned);
/** memory_host() - where this process reads and writes @address */
static inline void *memory_host(uint64_t address)
{
    return (void *)(uintptr_t)(memory_is_device(address) ? address + ALIAS_DELTA : address);
}
/** memory_host_ok() - may a kernel touch host memory there: it is pinned; any thread, no lock */
bool memory_host_ok(uint64_t address, size_t n);
void memory_free_context(struct context *ctx);

/* ---- pools ---- */

/** pool_release() - the stream has got to the free of memory at @address, when it had that id; any thread */
void pool_release(uint64_t address, unsigned long long id);
bool pool_exportable(const struct pool *pool);
/** pool_free() - memory of a pool is freed now; its streams have drained; lock held */
void pool_free(struct alloc *alloc);
/** pool_synchronized() - the host has seen work of @device end: pools keep what their threshold allows; lock held */
void pool_synchronized(int device);
/** pool_trim_all() - pools of @device give back what nobody uses; lock held. Return: was there any */
bool pool_trim_all(int device);

/* ---- modules ---- */

/** struct image - code from one load, shared by the modules that contexts make of it */
struct image;

struct kernel_param {
    size_t offset, size;
};

/** struct kernel_info - what a kernel's declaration says; owned by the image */
struct kernel_info {
    const char *name;
    unsigned n_params;
    const struct kernel_param *params;
    size_t params_bytes;
    unsigned static_shared;
    unsigned local_bytes;
    int max_threads; /* .maxntid, 0 if not given */
    int registers;
};

struct function {
    struct object object; /* OBJECT_FUNCTION */
    struct module *module;
    struct function *next;
    struct kernel *kernel; /* the CUkernel that it came from, or NULL */
    const struct kernel_info *info;
    unsigned index; /* in the image */
    const char *name;
    int max_dynamic_shared;
    int attributes[CU_FUNC_ATTRIBUTE_MAX];
    bool loaded;            /* has been used */
    atomic_ullong block_ns; /* what a block took when it was last run, for sharing grids out */
    /* cuFuncSetBlockShape() and friends, for the oldest clients */
    unsigned set_block[3];
    unsigned set_shared;
    size_t set_params_bytes;
    unsigned char *set_params;
};

struct module {
    struct object object;
    struct module *next;
    struct context *ctx;
    struct library *library;
    struct image *image;
    struct function *functions;
    uint64_t globals; /* device address of the block of module variables, 0 if it has none */
};

struct kernel {
    struct object object; /* OBJECT_KERNEL */
    struct kernel *next;
    struct library *library;
    unsigned index;
    const struct kernel_info *info;
    int attributes[CU_FUNC_ATTRIBUTE_MAX];
};

/** function_resolve() - CUfunction, or CUkernel cast to it; lock held */
CUresult function_resolve(CUfunction handle, struct context *ctx, struct function **function);
void module_destroy(struct module *module);

/* ---- launch ---- */

/** kernel_work_new() - check and copy a launch's arguments; lock held */
CUresult kernel_work_new(struct context *ctx, CUfunction handle, const unsigned grid[3],
                         const unsigned block[3], unsigned shared_bytes, void **params,
                         void **extra, struct work **out);
CUresult kernel_run(struct kernel_work *kernel, struct op *op);
void kernel_attribute(struct kernel_work *kernel, CUlaunchAttributeID id,
                      const CUlaunchAttributeValue *value);
/** function_occupancy() - how many blocks of @block threads a multiprocessor holds */
int function_occupancy(const struct function *function, int block, size_t dynamic);
CUresult together_run(const struct kernel_work *kernel);
CUresult together_fits(const struct kernel_work *kernel);
/** launch_log() - one record for a kernel that was queued; lock held */
uint64_t launch_log(struct kernel_work *kernel, struct stream *stream, uint64_t exec, int node);

/* ---- what kernels print ---- */
void print_add(void *owner, const char *text, size_t n);
void print_flush(struct context *ctx);

/* ---- dump ---- */
void dump_open(const char *rules, const char *path);
/** dump_launch() - write what the rules ask for at this launch; @after: it has run */
void dump_launch(const struct kernel_work *kernel, uint64_t seq, bool after);

/** guarded() - run fn(data); false if it touched memory that is not there */
bool guarded(void (*fn)(void *data), void *data);
CUresult guard_init(void);

CUresult copy_execute(struct copy_work *copy, struct op *op);
CUresult copy_work_from_params(const CUDA_MEMCPY3D *params, struct copy_work *copy);
CUresult copy_work_check(struct copy_work *copy);
CUresult set_execute(struct set_work *set);
CUresult set_work_check(const struct set_work *set);

#endif
