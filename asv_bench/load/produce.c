/* Produce requests, as Java's producer makes them: one batch for each of some partitions.
 *
 * All batches are the same bytes but for who produced them and their sequence. The
 * checksum of the next is not summed anew: CRCs are linear, so each bit of the
 * sequence changes it by a fixed pattern, looked up by bytes.
 */
#include <stdlib.h>
#include <string.h>

#include "load.h"
#include "wire.h"

enum {
    TIMEOUT_MS = 30000,
    /* Smaller ones are copied behind their headers: a piece of writev costs more than that. */
    SMALL_BYTES = 2048,
    REQUEST_HEAD_BYTES = 512,
    PART_HEAD_BYTES = 16,
    PRODUCER_ID_ATTEMPTS = 600,
    COORDINATOR_LOAD_IN_PROGRESS = 14,
    COORDINATOR_NOT_AVAILABLE = 15,
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45,
};

/* An idempotent producer's sequence for one partition, and what a patient one knows of its answers.
 *
 * Whoever asks again must do so from the first batch that was refused, once nothing is in flight: a
 * batch behind it has a gap before it. The first of all is alone in flight, as it is of Java's producer:
 * were it refused, the server would take the next one for the first. */
typedef struct {
    int32_t next;
    int32_t acknowledged; /* what comes below it is */
    int32_t in_flight;
    int is_known; /* a batch was acknowledged */
    int is_refused;
} Sequence;

typedef struct {
    uint8_t header[BATCH_HEADER_BYTES]; /* with sequence 0 */
    uint32_t crc;                       /* of the batch with sequence 0 */
    Sequence *sequences;                /* by partition */
    int32_t next_partition;
} Producer;

static uint8_t *batch;
static size_t batch_size;
static int32_t records_count;
static uint32_t crc_of_sequence[4][256]; /* by byte of the sequence, what it changes */

static void load_batch(void)
{
    int bit, byte, at;
    uint32_t zero;
    if (batch != NULL)
        return;
    batch = read_batch_file(options.batch_file, &batch_size);
    records_count = be32(batch + AT_RECORDS_COUNT);
    put_int32(batch + AT_BASE_SEQUENCE, 0);
    zero = crc32c(batch + AT_ATTRIBUTES, batch_size - AT_ATTRIBUTES);
    for (bit = 0; bit < 32; bit++) {
        uint32_t changed;
        put_int32(batch + AT_BASE_SEQUENCE, (int32_t)(1u << bit));
        changed = zero ^ crc32c(batch + AT_ATTRIBUTES, batch_size - AT_ATTRIBUTES);
        at = bit / 8;
        for (byte = 0; byte < 256; byte++)
            if (byte >> bit % 8 & 1)
                crc_of_sequence[at][byte] ^= changed;
    }
    put_int32(batch + AT_BASE_SEQUENCE, 0);
}

static void init_producer_id(Connection *c, int64_t *producer_id, int16_t *epoch)
{
    int attempt;
    for (attempt = 0; attempt < PRODUCER_ID_ATTEMPTS; attempt++) {
        uint8_t *p = c->heads;
        int16_t error;
        size_t size;
        Reader in;
        p = put_request_head(p, INIT_PRODUCER_ID, INIT_PRODUCER_ID_VERSION, c->next_correlation_id++);
        p = put_length(p, -1); /* no transactional id */
        p = put_int32(p, TIMEOUT_MS);
        p = put_int64(p, -1);
        p = put_int16(p, -1);
        p = put_no_tags(p);
        in.p = exchange(c, c->heads, p, &size);
        in.end = in.p + size;
        take(&in, 4); /* correlation id */
        skip_tags(&in);
        take(&in, 4); /* throttle time */
        error = get_int16(&in);
        *producer_id = get_int64(&in);
        *epoch = get_int16(&in);
        if (error == 0)
            return;
        if (error != COORDINATOR_LOAD_IN_PROGRESS && error != COORDINATOR_NOT_AVAILABLE)
            die("InitProducerId: error %d", error);
        pause_ms(100);
    }
    die("InitProducerId: no coordinator");
}

static void open_producer(Connection *c)
{
    Producer *producer = allocate(sizeof *producer);
    load_batch();
    c->state = producer;
    producer->sequences = allocate((size_t)options.partitions * sizeof *producer->sequences);
    /* Connections begin in different places, or all would write to the same partition at a time. */
    producer->next_partition =
        (int32_t)((int64_t)c->number * options.partitions / options.connections);
    if (options.idempotent) {
        int64_t producer_id;
        int16_t epoch;
        init_producer_id(c, &producer_id, &epoch);
        put_int64(batch + AT_PRODUCER_ID, producer_id);
        put_int16(batch + AT_PRODUCER_EPOCH, epoch);
    } else {
        put_int64(batch + AT_PRODUCER_ID, -1);
        put_int16(batch + AT_PRODUCER_EPOCH, -1);
        put_int32(batch + AT_BASE_SEQUENCE, -1);
    }
    producer->crc = crc32c(batch + AT_ATTRIBUTES, batch_size - AT_ATTRIBUTES);
    put_int32(batch + AT_CRC, (int32_t)producer->crc);
    memcpy(producer->header, batch, BATCH_HEADER_BYTES);
}

static int32_t behind(int32_t sequence)
{
    return (int32_t)(((uint32_t)sequence + (uint32_t)records_count) & 0x7FFFFFFF);
}

static uint8_t *put_batch_header(Producer *producer, int32_t partition, uint8_t *p)
{
    memcpy(p, producer->header, BATCH_HEADER_BYTES);
    if (options.idempotent) {
        uint32_t sequence = (uint32_t)producer->sequences[partition].next;
        uint32_t crc = producer->crc;
        int at;
        for (at = 0; at < 4; at++)
            crc ^= crc_of_sequence[at][sequence >> 8 * at & 0xFF];
        put_int32(p + AT_BASE_SEQUENCE, (int32_t)sequence);
        put_int32(p + AT_CRC, (int32_t)crc);
        producer->sequences[partition].next = behind((int32_t)sequence);
        producer->sequences[partition].in_flight++;
    }
    return p + BATCH_HEADER_BYTES;
}

/* Whether the partitions of the next request may have another batch. */
static int is_ready(const Producer *producer)
{
    int32_t partition = producer->next_partition;
    int number;
    if (!options.patient || !options.idempotent)
        return 1;
    for (number = 0; number < options.per_request; number++) {
        const Sequence *sequence = &producer->sequences[partition];
        if (sequence->in_flight > 0 && (sequence->is_refused || !sequence->is_known))
            return 0;
        partition = partition + 1 == options.partitions ? 0 : partition + 1;
    }
    return 1;
}

static int make_produce(Connection *c)
{
    Producer *producer = c->state;
    int is_small = batch_size <= SMALL_BYTES;
    size_t each = PART_HEAD_BYTES + BATCH_HEADER_BYTES + (is_small ? batch_size : 0);
    size_t room = REQUEST_HEAD_BYTES + (size_t)options.per_request * each;
    uint8_t *frame = out_room(c, room, 2 * options.per_request + 1);
    uint8_t *p;
    int64_t shared = 0;
    int number;
    if (frame == NULL || !is_ready(producer))
        return 0;
    p = put_request_head(frame, PRODUCE, PRODUCE_VERSION, c->next_correlation_id++);
    p = put_length(p, -1); /* no transactional id */
    p = put_int16(p, (int16_t)options.acks);
    p = put_int32(p, TIMEOUT_MS);
    p = put_length(p, 1);
    p = put_string(p, options.topic);
    p = put_length(p, options.per_request);
    for (number = 0; number < options.per_request; number++) {
        int32_t partition = producer->next_partition;
        producer->next_partition = partition + 1 == options.partitions ? 0 : partition + 1;
        p = put_int32(p, partition);
        p = put_length(p, (int32_t)batch_size);
        p = put_batch_header(producer, partition, p);
        if (is_small) {
            p = put_bytes(p, batch + BATCH_HEADER_BYTES, batch_size - BATCH_HEADER_BYTES);
        } else {
            out_written(c, p);
            out_shared(c, batch + BATCH_HEADER_BYTES, batch_size - BATCH_HEADER_BYTES);
            shared += (int64_t)(batch_size - BATCH_HEADER_BYTES);
        }
        p = put_no_tags(p);
    }
    p = put_no_tags(p);
    p = put_no_tags(p);
    put_int32(frame, (int32_t)(p - frame - 4 + shared));
    out_written(c, p);
    if (options.acks == 0) {
        c->unanswered.requests++;
        c->unanswered.records += (int64_t)options.per_request * records_count;
        c->unanswered.bytes += options.per_request * (int64_t)batch_size;
    }
    return 1;
}

/* Whether this answer is that its batch is there, and says so for the first time. */
static int take_part(Connection *c, int32_t partition, int16_t error)
{
    Producer *producer = c->state;
    Sequence *sequence;
    int is_taken;
    if (partition < 0 || partition >= options.partitions)
        die("connection %d: partition %d was not written to", c->number, partition);
    sequence = &producer->sequences[partition];
    if (error != 0 && !is_borne(error, sequence->is_refused ? OUT_OF_ORDER_SEQUENCE_NUMBER : 0))
        die("connection %d, partition %d: Produce was answered with error %d", c->number, partition, error);
    if (!options.idempotent)
        return error == 0;
    is_taken = error == 0 && !sequence->is_refused;
    if (is_taken) {
        sequence->acknowledged = behind(sequence->acknowledged);
        sequence->is_known = 1;
    } else {
        sequence->is_refused = 1;
    }
    if (--sequence->in_flight == 0 && sequence->is_refused) {
        sequence->next = sequence->acknowledged;
        sequence->is_refused = 0;
    }
    return is_taken;
}

static Counts take_produce(Connection *c, const uint8_t *p, const uint8_t *end)
{
    Reader in = {p, end};
    Counts counts = {1, 0, 0};
    int32_t topics, partitions, number, size, parts = 0;
    skip_tags(&in);
    for (topics = get_length(&in); topics > 0; topics--) {
        get_sized(&in, &size);
        for (partitions = get_length(&in); partitions > 0; partitions--) {
            int32_t partition = get_int32(&in);
            int16_t error = get_int16(&in);
            take(&in, 8 + 8 + 8); /* base offset, append time, log start offset */
            for (number = get_length(&in); number > 0; number--) {
                take(&in, 4);
                get_sized(&in, &size);
                skip_tags(&in);
            }
            get_sized(&in, &size);
            skip_tags(&in);
            parts++;
            if (!take_part(c, partition, error))
                continue;
            counts.records += records_count;
            counts.bytes += (int64_t)batch_size;
        }
        skip_tags(&in);
    }
    take(&in, 4); /* throttle time */
    skip_tags(&in);
    if (in.p != end || parts != options.per_request)
        die("connection %d: an answer does not fit its request", c->number);
    return counts;
}

const Mode produce_mode = {"produce", open_producer, make_produce, take_produce};
