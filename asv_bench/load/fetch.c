/* Fetch requests, as Java's consumer makes them, in fetch sessions (KIP-227) or without.
 *
 * A connection's partitions are shared out to its requests in flight, so that each
 * knows the offsets at which it goes on. A request asks for `per_request` of its
 * partitions, in turn. In a session it names only what has changed: partitions that
 * were not asked for before or have been read on, and those to forget. Of an answer
 * only the batches' headers are looked at. At the end of a partition it begins anew,
 * unless it is told to stop there or to wait.
 */
#include <stdlib.h>
#include <string.h>

#include "load.h"
#include "wire.h"

enum {
    MAX_WAIT_MS = 500,
    MIN_BYTES = 1,
    REQUEST_HEAD_BYTES = 512,
    PART_BYTES = 4 + 4 + 8 + 4 + 8 + 4 + 1,
    FORGOTTEN_BYTES = 4,
    OFFSET_OUT_OF_RANGE = 1,
    EARLIEST = -2, /* ListOffsets: the log start offset */
    NOT_ASKED = -1,
    NO_SESSION = 0,
};

typedef struct {
    int64_t offset;       /* of the next record to read */
    int64_t asked_offset; /* in the session: what it was last told, NOT_ASKED if it knows nothing */
    int is_wanted;        /* by the request that is made */
    int is_done;          /* `once`: read to its end */
} Position;

/* What one request in flight is for. */
typedef struct {
    int32_t *partitions;
    int32_t count;
    int32_t next;
} Share;

typedef struct {
    Position *positions; /* by partition */
    Share *shares;
    int share_count;
    int next_share;
    int32_t session_id;
    int32_t session_epoch;
} Consumer;

/* Ask where each partition starts: Kafka does not report it with OFFSET_OUT_OF_RANGE. */
static void find_starts(Connection *c, Position *positions)
{
    uint8_t *p = put_request_head(c->heads, LIST_OFFSETS, LIST_OFFSETS_VERSION, 0);
    int32_t partition, number, topics, count, name_size, found = 0;
    int16_t error;
    size_t size;
    Reader in;
    p = put_int32(p, -1); /* a consumer, not a follower */
    p = put_int8(p, 0);   /* read uncommitted */
    p = put_length(p, 1);
    p = put_string(p, options.topic);
    p = put_length(p, options.partitions);
    for (partition = 0; partition < options.partitions; partition++) {
        p = put_int32(p, partition);
        p = put_int32(p, options.leader_epoch);
        p = put_int64(p, EARLIEST);
        p = put_no_tags(p);
    }
    p = put_no_tags(p);
    p = put_no_tags(p);
    in.p = exchange(c, c->heads, p, &size);
    in.end = in.p + size;
    take(&in, 4); /* correlation id */
    skip_tags(&in);
    take(&in, 4); /* throttle time */
    for (topics = get_length(&in); topics > 0; topics--) {
        get_sized(&in, &name_size);
        count = get_length(&in);
        for (number = 0; number < count; number++) {
            partition = get_int32(&in);
            error = get_int16(&in);
            if (error != 0)
                die("partition %d: ListOffsets was answered with error %d", partition, error);
            if (partition < 0 || partition >= options.partitions)
                die("ListOffsets: partition %d was not asked for", partition);
            take(&in, 8); /* timestamp */
            positions[partition].offset = get_int64(&in);
            take(&in, 4); /* leader epoch */
            skip_tags(&in);
            found++;
        }
        skip_tags(&in);
    }
    if (found != options.partitions)
        die("ListOffsets: %d of %d partitions were answered", found, options.partitions);
}

static void open_consumer(Connection *c)
{
    Consumer *consumer = allocate(sizeof *consumer);
    int32_t partition, owned = 0;
    int share;
    c->state = consumer;
    consumer->positions = allocate((size_t)options.partitions * sizeof *consumer->positions);
    consumer->shares = allocate((size_t)options.in_flight * sizeof *consumer->shares);
    for (share = 0; share < options.in_flight; share++)
        consumer->shares[share].partitions = allocate((size_t)options.partitions * sizeof(int32_t));
    for (partition = 0; partition < options.partitions; partition++) {
        Share *owner = &consumer->shares[owned % options.in_flight];
        consumer->positions[partition].offset = options.from_offset;
        consumer->positions[partition].asked_offset = NOT_ASKED;
        /* Fewer partitions than connections: each reads all of them, as consumers of groups of their own. */
        if (options.partitions >= options.connections &&
            partition % options.connections != c->number)
            continue;
        owner->partitions[owner->count++] = partition;
        owned++;
    }
    if (options.from_start)
        find_starts(c, consumer->positions);
    consumer->share_count = owned < options.in_flight ? owned : options.in_flight;
}

/* Marks what to ask for; 0 if everything has been read. */
static int choose(Consumer *consumer, Share *share)
{
    int32_t looked_at, chosen = 0;
    for (looked_at = 0; looked_at < share->count && chosen < options.per_request; looked_at++) {
        Position *position = &consumer->positions[share->partitions[share->next]];
        share->next = share->next + 1 == share->count ? 0 : share->next + 1;
        if (!position->is_done) {
            position->is_wanted = 1;
            chosen++;
        }
    }
    return chosen;
}

static uint8_t *put_part(uint8_t *p, int32_t partition, const Position *position)
{
    p = put_int32(p, partition);
    p = put_int32(p, options.leader_epoch);
    p = put_int64(p, position->offset);
    p = put_int32(p, -1); /* epoch of the last record: followers' */
    p = put_int64(p, -1); /* log start offset: followers' */
    p = put_int32(p, options.partition_max_bytes);
    return put_no_tags(p);
}

/* The partitions of one kind: those to name, or (if not `wanted`) those to forget. */
static int is_listed(const Position *position, int wanted)
{
    if (!wanted)
        return !position->is_wanted && position->asked_offset != NOT_ASKED;
    return position->is_wanted && position->asked_offset != position->offset;
}

static uint8_t *put_list(Consumer *consumer, const Share *share, uint8_t *p, int wanted)
{
    int32_t listed = 0, number;
    for (number = 0; number < share->count; number++)
        listed += is_listed(&consumer->positions[share->partitions[number]], wanted);
    if (listed == 0)
        return put_length(p, 0);
    p = put_length(p, 1);
    p = put_bytes(p, options.topic_id, TOPIC_ID_BYTES);
    p = put_length(p, listed);
    for (number = 0; number < share->count; number++) {
        int32_t partition = share->partitions[number];
        Position *position = &consumer->positions[partition];
        if (!is_listed(position, wanted))
            continue;
        if (wanted) {
            p = put_part(p, partition, position);
            position->asked_offset = position->offset;
        } else {
            p = put_int32(p, partition);
            position->asked_offset = NOT_ASKED;
        }
    }
    return put_no_tags(p);
}

static int make_fetch(Connection *c)
{
    Consumer *consumer = c->state;
    Share *share = &consumer->shares[consumer->next_share];
    size_t room = REQUEST_HEAD_BYTES + (size_t)share->count * (PART_BYTES + FORGOTTEN_BYTES);
    uint8_t *frame = out_room(c, room, 1);
    uint8_t *p;
    int32_t number;
    if (frame == NULL || c->in_flight >= consumer->share_count || !choose(consumer, share))
        return 0;
    p = put_request_head(frame, FETCH, FETCH_VERSION, c->next_correlation_id++);
    p = put_int32(p, MAX_WAIT_MS);
    p = put_int32(p, MIN_BYTES);
    p = put_int32(p, options.max_bytes);
    p = put_int8(p, 0); /* read uncommitted */
    if (!options.sessions || consumer->session_epoch == 0)
        for (number = 0; number < share->count; number++)
            consumer->positions[share->partitions[number]].asked_offset = NOT_ASKED;
    p = put_int32(p, consumer->session_id);
    p = put_int32(p, options.sessions ? consumer->session_epoch : -1);
    p = put_list(consumer, share, p, 1);
    p = put_list(consumer, share, p, 0);
    p = put_string(p, ""); /* rack */
    p = put_no_tags(p);
    put_int32(frame, (int32_t)(p - frame - 4));
    out_written(c, p);
    for (number = 0; number < share->count; number++)
        consumer->positions[share->partitions[number]].is_wanted = 0;
    consumer->next_share = (consumer->next_share + 1) % consumer->share_count;
    return 1;
}

static void take_records(
    Connection *c, int32_t partition, Position *position, int64_t log_start_offset, const uint8_t *p,
    int64_t size, Counts *counts)
{
    const uint8_t *end = p + size;
    int64_t before = position->offset;
    while (end - p >= BATCH_HEADER_BYTES) {
        int64_t base_offset = be64(p + AT_BASE_OFFSET);
        int64_t batch_bytes = (int64_t)be32(p + AT_BATCH_LENGTH) + BATCH_OVERHEAD;
        int64_t first, unread;
        if (batch_bytes < BATCH_HEADER_BYTES || p[AT_MAGIC] != 2)
            die("connection %d, partition %d: no batch at offset %ld", c->number, partition,
                (long)position->offset);
        if (batch_bytes > end - p)
            break; /* cut where the answer was full: it comes again */
        first = position->offset;
        unread = base_offset + be32(p + AT_LAST_OFFSET_DELTA) + 1 - first;
        /* A log may start inside a batch: only the first batch begins before it. */
        if (base_offset != first && (first != log_start_offset || base_offset > first || unread <= 0))
            die("connection %d, partition %d: offset %ld came where %ld was to be", c->number, partition,
                (long)base_offset, (long)first);
        if (options.check_crcs &&
            crc32c(p + AT_ATTRIBUTES, (size_t)batch_bytes - AT_ATTRIBUTES) != (uint32_t)be32(p + AT_CRC))
            die("connection %d, partition %d: wrong CRC at offset %ld", c->number, partition,
                (long)base_offset);
        position->offset = first + unread;
        if (options.end_to_end)
            records_seen(first, position->offset);
        counts->records += unread < be32(p + AT_RECORDS_COUNT) ? unread : be32(p + AT_RECORDS_COUNT);
        counts->bytes += batch_bytes;
        p += batch_bytes;
    }
    if (size > 0 && position->offset == before)
        die("connection %d, partition %d: a batch is larger than an answer may be", c->number, partition);
}

static void take_part(Connection *c, Reader *in, Counts *counts)
{
    Consumer *consumer = c->state;
    int32_t partition = get_int32(in);
    int16_t error = get_int16(in);
    int64_t high_watermark = get_int64(in);
    int64_t log_start_offset;
    const uint8_t *records;
    Position *position;
    int32_t number, size;
    int is_overtaken;
    take(in, 8); /* last stable offset */
    log_start_offset = get_int64(in);
    for (number = get_length(in); number > 0; number--) {
        take(in, 8 + 8);
        skip_tags(in);
    }
    take(in, 4); /* preferred read replica */
    records = get_sized(in, &size);
    skip_tags(in);
    if (partition < 0 || partition >= options.partitions)
        die("connection %d: partition %d was not asked for", c->number, partition);
    position = &consumer->positions[partition];
    is_overtaken = options.from_start && error == OFFSET_OUT_OF_RANGE &&
                   log_start_offset > position->offset;
    if (error != 0 && !is_overtaken && !is_borne(error, OFFSET_OUT_OF_RANGE))
        die("connection %d, partition %d: Fetch was answered with error %d", c->number, partition, error);
    if (error != 0) {
        if (error == OFFSET_OUT_OF_RANGE) /* retention has overtaken us */
            position->offset = log_start_offset;
        return;
    }
    if (size > 0)
        take_records(c, partition, position, log_start_offset, records, size, counts);
    if (position->offset >= high_watermark) {
        if (options.once)
            position->is_done = 1;
        else if (!options.follow)
            position->offset =
                log_start_offset > options.from_offset ? log_start_offset : options.from_offset;
    }
}

static void follow_session(Connection *c, int32_t session_id)
{
    Consumer *consumer = c->state;
    if (session_id == NO_SESSION) { /* the server keeps none for us: ask anew */
        consumer->session_id = NO_SESSION;
        consumer->session_epoch = 0;
        return;
    }
    if (consumer->session_epoch > 0 && session_id != consumer->session_id)
        die("connection %d: session %d became %d", c->number, consumer->session_id, session_id);
    consumer->session_id = session_id;
    consumer->session_epoch = consumer->session_epoch == INT32_MAX ? 1 : consumer->session_epoch + 1;
}

static Counts take_fetch(Connection *c, const uint8_t *p, const uint8_t *end)
{
    Reader in = {p, end};
    Counts counts = {1, 0, 0};
    int32_t topics, partitions, session_id;
    int16_t error;
    skip_tags(&in);
    take(&in, 4); /* throttle time */
    error = get_int16(&in);
    session_id = get_int32(&in);
    if (error != 0)
        die("connection %d: Fetch was answered with error %d", c->number, error);
    for (topics = get_length(&in); topics > 0; topics--) {
        if (memcmp(take(&in, TOPIC_ID_BYTES), options.topic_id, TOPIC_ID_BYTES) != 0)
            die("connection %d: a topic was not asked for", c->number);
        for (partitions = get_length(&in); partitions > 0; partitions--)
            take_part(c, &in, &counts);
        skip_tags(&in);
    }
    skip_tags(&in);
    if (in.p != end)
        die("connection %d: an answer is longer than what is in it", c->number);
    if (options.sessions)
        follow_session(c, session_id);
    return counts;
}

const Mode fetch_mode = {"fetch", open_consumer, make_fetch, take_fetch};
