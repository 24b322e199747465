/* What the parts of the load generator share: options, counters, and the engine's connection. */
#ifndef LOAD_H
#define LOAD_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

typedef struct {
    const char *host;  /* an IPv4 address */
    int port;
    int connections;
    int in_flight;     /* requests of a connection that wait for their answers */
    int partitions;
    int per_request;   /* partitions named in a request */
    int acks;
    int idempotent;
    int sessions;      /* KIP-227 */
    int once;          /* fetch: each partition from its start to its end, then stop */
    int follow;        /* fetch: at the end wait for more, instead of beginning anew */
    int64_t from_offset; /* fetch: of every partition; what is before it is not read */
    int from_start;    /* fetch: begin each partition at its log start offset, wherever that is */
    int end_to_end;    /* a consumer follows the paced producer; latency is until it has the record */
    int check_crcs;
    int patient;       /* what is refused for a moment is asked again */
    int max_bytes;     /* fetch: of an answer */
    int partition_max_bytes;
    int leader_epoch;
    const char *topic;
    uint8_t topic_id[16];
    const char *batch_file;
    double rate;       /* requests a second, paced; 0 sends as fast as answers allow */
    double warmup_s;
    double seconds;
    int64_t most_requests;
    int64_t most_bytes; /* after the warm-up */
    int watched_pid;
    /* servers */
    const char *directory;
    int64_t file_bytes; /* sink: files are made so large beforehand and overwritten; source: hot data */
    int64_t fill_bytes; /* source: of a write that makes it; a batch at least */
    int sync;
    int spin; /* a thread beside the server never rests */
    int use_sendfile;
} Options;

typedef struct {
    int64_t requests;
    int64_t records;
    int64_t bytes; /* of record batches */
} Counts;

/* Times by logarithm, 64 steps to a power of two: an error of 1.6% at most. */
enum { STEP_BITS = 6, BUCKETS = (64 - STEP_BITS) << STEP_BITS };

typedef struct {
    uint64_t counts[BUCKETS];
    uint64_t total;
    int64_t most_ns;
} Histogram;

typedef struct Mode Mode;

typedef struct {
    const Mode *mode;
    int fd;
    int number;
    int is_paced;
    int in_flight;
    int wants_write;
    int ended;
    int32_t next_correlation_id;
    int32_t next_answer_id;
    int64_t answers;
    /* What is on its way out: pieces of `heads` and of the shared payload. */
    uint8_t *heads;
    size_t heads_used;
    struct iovec *pieces;
    int first_piece;
    int piece_count;
    Counts unanswered; /* acks=0: counted once it is written */
    /* What came in: bytes from `in_used` on are free. */
    uint8_t *in;
    size_t in_capacity;
    size_t in_used;
    /* When each request in flight was sent, or should have been; in the order of the answers. */
    int64_t *sent_ns;
    int32_t sent_mask;
    void *state; /* the mode's */
} Connection;

enum { HEADS_BYTES = 1 << 20, MOST_PIECES = 1024 };

/* What a connection asks, and what an answer means. */
struct Mode {
    const char *name;
    void (*open)(Connection *connection);
    /* Appends the next request by `out_*`; 0 if there is no room, or nothing left to ask. */
    int (*request)(Connection *connection);
    /* Of the answer between its correlation id and its end. */
    Counts (*answer)(Connection *connection, const uint8_t *p, const uint8_t *end);
};

extern Options options;
extern const Mode produce_mode;
extern const Mode fetch_mode;

/* options.c */
void read_options(int argc, char **argv);
/* Run `produce` or `fetch`, the first argument, and print its figures. */
int load_main(int argc, char **argv);
void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
void *allocate(size_t size);
uint8_t *read_batch_file(const char *path, size_t *size);
int64_t now_ns(void);
void pause_ms(int ms);

/* engine.c */
void run_client(const Mode *mode);
uint8_t *out_room(Connection *connection, size_t bytes, int pieces);
void out_written(Connection *connection, uint8_t *end);
void out_shared(Connection *connection, const uint8_t *data, size_t size);
/* End to end: the records of these offsets have come back. */
void records_seen(int64_t first, int64_t end);
/* Whether a patient client asks again after this error: it passes, or is the other one; then it is counted. */
int is_borne(int16_t error, int16_t other);
/* One request and its answer, before the load begins; returns the answer behind its length. */
const uint8_t *exchange(Connection *connection, uint8_t *request, uint8_t *end, size_t *size);

/* histogram.c */
void histogram_add(Histogram *histogram, int64_t ns);
double histogram_us(const Histogram *histogram, double quantile);

/* machine.c */
double own_cpu_s(void);
double cpu_s_of(int pid);
double busy_cpu_s(void);

/* crc.c */
void crc_init(void);
uint32_t crc32c(const uint8_t *data, size_t size);

/* serve.c */
void serve_echo(void);
void serve_sink(void);
void serve_source(void);

#endif
