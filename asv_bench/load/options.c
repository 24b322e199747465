/* A load for servers of the Kafka protocol.
 *
 *     produce --port N --topic NAME --batch-file FILE [...]
 *     produce --end-to-end --rate R --topic-id HEX [...]
 *     fetch --port N --topic NAME --topic-id HEX [...]
 *
 * It prints one line of JSON. `plog perf` and asv_bench/bench.py run it; they also make the
 * topics and the file with the batch.
 */
#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "load.h"
#include "wire.h"

Options options = {
    .connections = 1,
    .in_flight = 5,
    .partitions = 1,
    .per_request = 1,
    .acks = -1,
    .max_bytes = 50 * 1024 * 1024,
    .partition_max_bytes = 1024 * 1024,
    .leader_epoch = -1,
    .host = "127.0.0.1",
    .topic = "load",
    .seconds = 10,
};

void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("load: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

void *allocate(size_t size)
{
    void *memory = calloc(1, size > 0 ? size : 1);
    if (memory == NULL)
        die("out of memory");
    return memory;
}

uint8_t *read_batch_file(const char *path, size_t *size)
{
    FILE *file = path == NULL ? NULL : fopen(path, "rb");
    uint8_t *batch;
    long length;
    if (file == NULL || fseek(file, 0, SEEK_END) != 0 || (length = ftell(file)) < 0)
        die("the batch file cannot be read: %s", path == NULL ? "none is given" : path);
    rewind(file);
    batch = allocate((size_t)length);
    if (fread(batch, 1, (size_t)length, file) != (size_t)length)
        die("the batch file cannot be read: %s", path);
    fclose(file);
    if (length < BATCH_HEADER_BYTES || batch[AT_MAGIC] != 2 ||
        be32(batch + AT_BATCH_LENGTH) + (long)BATCH_OVERHEAD != length ||
        (uint32_t)be32(batch + AT_CRC) != crc32c(batch + AT_ATTRIBUTES, (size_t)length - AT_ATTRIBUTES))
        die("%s does not hold one batch", path);
    *size = (size_t)length;
    return batch;
}

/* --- options -------------------------------------------------------------------------------------- */

typedef enum { NUMBER, LARGE, REAL, TEXT, TOPIC_ID, FLAG } Kind;

typedef struct {
    const char *name;
    Kind kind;
    void *to;
} Known;

static const Known known[] = {
    {"host", TEXT, &options.host},
    {"port", NUMBER, &options.port},
    {"connections", NUMBER, &options.connections},
    {"in-flight", NUMBER, &options.in_flight},
    {"partitions", NUMBER, &options.partitions},
    {"per-request", NUMBER, &options.per_request},
    {"acks", NUMBER, &options.acks},
    {"idempotent", FLAG, &options.idempotent},
    {"sessions", FLAG, &options.sessions},
    {"once", FLAG, &options.once},
    {"follow", FLAG, &options.follow},
    {"from-offset", LARGE, &options.from_offset},
    {"from-start", FLAG, &options.from_start},
    {"end-to-end", FLAG, &options.end_to_end},
    {"check-crcs", FLAG, &options.check_crcs},
    {"patient", FLAG, &options.patient},
    {"max-bytes", NUMBER, &options.max_bytes},
    {"partition-max-bytes", NUMBER, &options.partition_max_bytes},
    {"leader-epoch", NUMBER, &options.leader_epoch},
    {"topic", TEXT, &options.topic},
    {"topic-id", TOPIC_ID, options.topic_id},
    {"batch-file", TEXT, &options.batch_file},
    {"rate", REAL, &options.rate},
    {"warmup", REAL, &options.warmup_s},
    {"seconds", REAL, &options.seconds},
    {"requests", LARGE, &options.most_requests},
    {"bytes", LARGE, &options.most_bytes},
    {"watch", NUMBER, &options.watched_pid},
    {"directory", TEXT, &options.directory},
    {"file-bytes", LARGE, &options.file_bytes},
    {"fill-bytes", LARGE, &options.fill_bytes},
    {"sync", FLAG, &options.sync},
    {"spin", FLAG, &options.spin},
    {"sendfile", FLAG, &options.use_sendfile},
};

enum { MOST_KNOWN_AGAIN = 5, MOST_STARTS = 30000 };

enum { KNOWN_COUNT = sizeof known / sizeof *known };

static void set(const Known *option, const char *text)
{
    char *end = "";
    switch (option->kind) {
    case NUMBER:
        *(int *)option->to = (int)strtol(text, &end, 10);
        break;
    case LARGE:
        *(int64_t *)option->to = strtoll(text, &end, 10);
        break;
    case REAL:
        *(double *)option->to = strtod(text, &end);
        break;
    case TEXT:
        *(const char **)option->to = text;
        break;
    case FLAG:
        *(int *)option->to = 1;
        break;
    case TOPIC_ID: {
        uint8_t *to = option->to;
        int at;
        for (at = 0; at < TOPIC_ID_BYTES; at++)
            if (strlen(text) != 2 * TOPIC_ID_BYTES || sscanf(text + 2 * at, "%2hhx", &to[at]) != 1)
                die("--topic-id wants 32 hexadecimal digits");
        break;
    }
    }
    if (*end != '\0')
        die("--%s: %s is no number", option->name, text);
}

void read_options(int argc, char **argv)
{
    struct option long_options[KNOWN_COUNT + 1];
    int number, chosen;
    memset(long_options, 0, sizeof long_options);
    for (number = 0; number < KNOWN_COUNT; number++) {
        long_options[number].name = known[number].name;
        long_options[number].has_arg = known[number].kind == FLAG ? no_argument : required_argument;
    }
    while ((chosen = getopt_long(argc, argv, "", long_options, &number)) != -1) {
        if (chosen != 0)
            exit(2);
        set(&known[number], optarg);
    }
    if (optind != argc)
        die("what is %s?", argv[optind]);
}

static void check_options(int is_fetch)
{
    if (options.port <= 0)
        die("--port is missing");
    if (options.connections < 1 || options.in_flight < 1 || options.partitions < 1)
        die("connections, requests in flight and partitions are at least 1");
    if (options.per_request < 1 || options.per_request > options.partitions || options.per_request > 400)
        die("a request names 1 to 400 partitions, each once");
    if (options.sessions && options.in_flight != 1)
        die("a fetch session has one request in flight");
    if (options.from_start && (options.topic == NULL || options.partitions > MOST_STARTS))
        die("--from-start requires a topic of at most %d partitions", MOST_STARTS);
    if (options.in_flight > 60000 || options.connections > 100000)
        die("too many connections or requests in flight");
    if (options.acks < -1 || options.acks > 1 || (options.idempotent && options.acks != -1))
        die("acks are 0, 1 or -1; -1 for idempotent producers");
    if (options.patient && options.idempotent && options.in_flight > MOST_KNOWN_AGAIN)
        die("a server knows a producer's last %d batches again, no more", MOST_KNOWN_AGAIN);
    if (is_fetch && options.rate > 0)
        die("only Produce has a rate");
    if (options.end_to_end && (is_fetch || options.rate <= 0 || options.connections != 1 ||
                               options.partitions != 1))
        die("end to end goes one paced producer, over one empty partition");
    if (options.acks == 0 && !is_fetch && options.rate > 0)
        die("without answers there is no latency");
}

int load_main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    crc_init();
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (strcmp(mode, "produce") != 0 && strcmp(mode, "fetch") != 0)
        die("produce or fetch?");
    read_options(argc - 1, argv + 1);
    check_options(*mode == 'f');
    options.follow |= options.end_to_end;
    run_client(*mode == 'f' ? &fetch_mode : &produce_mode);
    fflush(stdout);
    return 0;
}
