/* Kafka's numbers, strings and lengths, in the flexible form (KIP-482): all that the load speaks.
 *
 * Writers return the place behind what they wrote and trust in the room. Readers
 * take the end and stop the program where bytes are missing: an answer that makes
 * no sense is no measurement.
 */
#ifndef LOAD_WIRE_H
#define LOAD_WIRE_H

#include <stdint.h>
#include <string.h>

#include "load.h"

enum { PRODUCE = 0, FETCH = 1, LIST_OFFSETS = 2, INIT_PRODUCER_ID = 22 };

/* The highest that plog, Kafka 3.9 and Kafka 4 all serve; Java's clients choose these with plog, but
   of Produce 12, which has the form of 11. */
enum { PRODUCE_VERSION = 11, FETCH_VERSION = 17, LIST_OFFSETS_VERSION = 7, INIT_PRODUCER_ID_VERSION = 4 };

enum { TOPIC_ID_BYTES = 16, MOST_VARINT_BYTES = 5 };

/* Where a record batch (magic 2) has its fields. */
enum {
    AT_BASE_OFFSET = 0,
    AT_BATCH_LENGTH = 8,
    AT_LEADER_EPOCH = 12,
    AT_MAGIC = 16,
    AT_CRC = 17,
    AT_ATTRIBUTES = 21,
    AT_LAST_OFFSET_DELTA = 23,
    AT_PRODUCER_ID = 43,
    AT_PRODUCER_EPOCH = 51,
    AT_BASE_SEQUENCE = 53,
    AT_RECORDS_COUNT = 57,
    BATCH_HEADER_BYTES = 61,
    /* What the length in a batch does not count: the base offset and the length itself. */
    BATCH_OVERHEAD = 12,
};

static inline uint8_t *put_int8(uint8_t *p, int8_t value)
{
    *p = (uint8_t)value;
    return p + 1;
}

static inline uint8_t *put_int16(uint8_t *p, int16_t value)
{
    uint16_t big = __builtin_bswap16((uint16_t)value);
    memcpy(p, &big, sizeof big);
    return p + sizeof big;
}

static inline uint8_t *put_int32(uint8_t *p, int32_t value)
{
    uint32_t big = __builtin_bswap32((uint32_t)value);
    memcpy(p, &big, sizeof big);
    return p + sizeof big;
}

static inline uint8_t *put_int64(uint8_t *p, int64_t value)
{
    uint64_t big = __builtin_bswap64((uint64_t)value);
    memcpy(p, &big, sizeof big);
    return p + sizeof big;
}

static inline uint8_t *put_bytes(uint8_t *p, const void *data, size_t size)
{
    memcpy(p, data, size);
    return p + size;
}

static inline uint8_t *put_varint(uint8_t *p, uint32_t value)
{
    for (; value >= 0x80; value >>= 7)
        *p++ = (uint8_t)(value | 0x80);
    *p++ = (uint8_t)value;
    return p;
}

/* The length of a compact array, string or byte string; -1 is null. */
static inline uint8_t *put_length(uint8_t *p, int32_t length)
{
    return put_varint(p, (uint32_t)length + 1);
}

static inline uint8_t *put_string(uint8_t *p, const char *text)
{
    size_t size = strlen(text);
    return put_bytes(put_length(p, (int32_t)size), text, size);
}

static inline uint8_t *put_no_tags(uint8_t *p) { return put_int8(p, 0); }

/* A request's header, its length left open: `end_request` puts it. */
static inline uint8_t *put_request_head(
    uint8_t *p, int16_t api_key, int16_t version, int32_t correlation_id)
{
    static const char client_id[] = "load";
    p = put_int16(p + 4, api_key);
    p = put_int16(p, version);
    p = put_int32(p, correlation_id);
    p = put_int16(p, sizeof client_id - 1);
    p = put_bytes(p, client_id, sizeof client_id - 1);
    return put_no_tags(p);
}

typedef struct {
    const uint8_t *p;
    const uint8_t *end;
} Reader;

static inline const uint8_t *take(Reader *in, int64_t size)
{
    const uint8_t *here = in->p;
    if (size < 0 || size > in->end - here)
        die("a message ends too early");
    in->p += size;
    return here;
}

static inline int16_t be16(const uint8_t *p)
{
    uint16_t big;
    memcpy(&big, p, sizeof big);
    return (int16_t)__builtin_bswap16(big);
}

static inline int32_t be32(const uint8_t *p)
{
    uint32_t big;
    memcpy(&big, p, sizeof big);
    return (int32_t)__builtin_bswap32(big);
}

static inline int64_t be64(const uint8_t *p)
{
    uint64_t big;
    memcpy(&big, p, sizeof big);
    return (int64_t)__builtin_bswap64(big);
}

static inline int8_t get_int8(Reader *in) { return (int8_t)*take(in, 1); }
static inline int16_t get_int16(Reader *in) { return be16(take(in, 2)); }
static inline int32_t get_int32(Reader *in) { return be32(take(in, 4)); }
static inline int64_t get_int64(Reader *in) { return be64(take(in, 8)); }

static inline uint32_t get_varint(Reader *in)
{
    uint64_t value = 0;
    int shift;
    for (shift = 0; shift < 7 * MOST_VARINT_BYTES; shift += 7) {
        uint8_t byte = *take(in, 1);
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80)
            break;
    }
    if (shift == 7 * MOST_VARINT_BYTES || value > 0x7FFFFFFF)
        die("a length makes no sense");
    return (uint32_t)value;
}

static inline int32_t get_length(Reader *in) { return (int32_t)get_varint(in) - 1; }

/* Strings and byte strings; NULL for null. */
static inline const uint8_t *get_sized(Reader *in, int32_t *size)
{
    *size = get_length(in);
    return *size < 0 ? NULL : take(in, *size);
}

static inline void skip_tags(Reader *in)
{
    uint32_t fields = get_varint(in);
    for (; fields > 0; fields--) {
        get_varint(in);
        take(in, get_varint(in));
    }
}

static inline void skip_request_head(Reader *in)
{
    int16_t client_id_size;
    take(in, 2 + 2 + 4);
    client_id_size = get_int16(in);
    take(in, client_id_size < 0 ? 0 : client_id_size);
    skip_tags(in);
}

#endif
