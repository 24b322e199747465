/* The servers that plog is compared with: what the machine allows, and nothing beside it.
 *
 * echo    answers each Produce as soon as its frame is there; looks at nothing.
 * sink    receives, checks the CRC, stamps the offset, writes to a file for each
 *         partition, answers: all that a log on one disk must do. With `sync`, what
 *         a round wrote is on disk before its answers go out.
 * source  answers Fetch from files that hold the batch of the batch file again and again,
 *         by sendfile or by pread and send.
 *
 * One thread. Each round reads what there is on all ready connections, then syncs,
 * then sends. Every answer has the form and the size of a broker's.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#include "load.h"
#include "wire.h"

enum {
    IN_BYTES = 4 << 20,
    OUT_BYTES = 1 << 20,
    MOST_EVENTS = 256,
    MOST_FILES = 10000,
    COPY_BYTES = 1 << 20,
    ANSWER_HEAD_BYTES = 1024,
    CORRUPT_MESSAGE = 2,
    FETCH_SESSION_ID = 1,
    PRODUCER_ID = 1000,
};

/* Of an answer: bytes of `out`, or of a file. */
typedef struct {
    int fd; /* -1: out */
    int64_t at;
    int64_t size;
} Piece;

typedef struct {
    int64_t offset;
    int32_t max_bytes;
    int is_asked;
} Asked;

typedef struct {
    int fd;
    int wants_write;
    uint8_t *in;
    size_t in_capacity, in_used;
    uint8_t *out;
    size_t out_capacity, out_used;
    Piece *pieces;
    int piece_count, piece_capacity, first_piece;
    Asked *asked; /* source: the session, or the request in hand */
} Peer;

typedef struct {
    int fd;
    int is_dirty;
    int64_t position;
    int64_t next_offset;
} File;

typedef void (*Handler)(Peer *peer, uint8_t *frame, uint8_t *end);

static int epoll_fd;
static File *files;
static uint8_t *copy_buffer;
static Handler handle;

/* --- answers -------------------------------------------------------------------------------------- */

static uint8_t *out_place(Peer *peer, size_t bytes)
{
    if (peer->out_used + bytes > peer->out_capacity) {
        peer->out_capacity = 2 * (peer->out_used + bytes);
        peer->out = realloc(peer->out, peer->out_capacity);
        if (peer->out == NULL)
            die("out of memory");
    }
    return peer->out + peer->out_used;
}

static void add_piece(Peer *peer, int fd, int64_t at, int64_t size)
{
    if (peer->piece_count == peer->piece_capacity) {
        peer->piece_capacity = peer->piece_capacity > 0 ? 2 * peer->piece_capacity : 16;
        peer->pieces = realloc(peer->pieces, (size_t)peer->piece_capacity * sizeof *peer->pieces);
        if (peer->pieces == NULL)
            die("out of memory");
    }
    peer->pieces[peer->piece_count++] = (Piece){fd, at, size};
}

static void out_done(Peer *peer, const uint8_t *end)
{
    int64_t size = end - (peer->out + peer->out_used);
    Piece *last = peer->piece_count > 0 ? &peer->pieces[peer->piece_count - 1] : NULL;
    if (last != NULL && last->fd < 0)
        last->size += size;
    else
        add_piece(peer, -1, (int64_t)peer->out_used, size);
    peer->out_used += (size_t)size;
}

static ssize_t send_piece(Peer *peer, const Piece *piece, int more)
{
    off_t at = piece->at;
    ssize_t got;
    if (piece->fd < 0)
        return send(peer->fd, peer->out + piece->at, (size_t)piece->size, more ? MSG_MORE : 0);
    if (options.use_sendfile)
        return sendfile(peer->fd, piece->fd, &at, (size_t)piece->size);
    got = pread(piece->fd, copy_buffer, (size_t)(piece->size < COPY_BYTES ? piece->size : COPY_BYTES), at);
    if (got <= 0)
        die("a file ends too early");
    return send(peer->fd, copy_buffer, (size_t)got, more || got < piece->size ? MSG_MORE : 0);
}

static void want(Peer *peer, int wants_write)
{
    struct epoll_event event = {.events = wants_write ? EPOLLOUT : EPOLLIN, .data.ptr = peer};
    if (peer->wants_write != wants_write)
        epoll_ctl(epoll_fd, EPOLL_CTL_MOD, peer->fd, &event);
    peer->wants_write = wants_write;
}

static void close_peer(Peer *peer)
{
    close(peer->fd);
    free(peer->in);
    free(peer->out);
    free(peer->pieces);
    free(peer->asked);
    free(peer);
}

/* 0 if the client has gone. */
static int flush(Peer *peer)
{
    while (peer->first_piece < peer->piece_count) {
        Piece *piece = &peer->pieces[peer->first_piece];
        ssize_t sent = send_piece(peer, piece, peer->first_piece + 1 < peer->piece_count);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR)) {
            want(peer, 1);
            return 1;
        }
        if (sent <= 0)
            return 0;
        piece->at += sent;
        piece->size -= sent;
        if (piece->size == 0)
            peer->first_piece++;
    }
    peer->first_piece = peer->piece_count = 0;
    peer->out_used = 0;
    want(peer, 0);
    return 1;
}

static uint8_t *put_answer_head(uint8_t *p, const uint8_t *frame)
{
    p = put_bytes(p + 4, frame + 4 + 4, 4); /* the length stays open; the correlation id */
    return put_no_tags(p);
}

/* --- echo ----------------------------------------------------------------------------------------- */

static void answer_init_producer_id(Peer *peer, const uint8_t *frame)
{
    static int64_t producer_id = PRODUCER_ID;
    uint8_t *start = out_place(peer, ANSWER_HEAD_BYTES);
    uint8_t *p = put_answer_head(start, frame);
    p = put_int32(p, 0);
    p = put_int16(p, 0);
    p = put_int64(p, producer_id++);
    p = put_int16(p, 0);
    p = put_no_tags(p);
    put_int32(start, (int32_t)(p - start - 4));
    out_done(peer, p);
}

static uint8_t *put_produced(uint8_t *p, int32_t partition, int16_t error, int64_t base_offset)
{
    p = put_int32(p, partition);
    p = put_int16(p, error);
    p = put_int64(p, base_offset);
    p = put_int64(p, -1);
    p = put_int64(p, 0);
    p = put_length(p, 0);
    p = put_length(p, -1);
    return put_no_tags(p);
}

static uint8_t *put_end_of_answer(uint8_t *start, uint8_t *p)
{
    p = put_no_tags(p); /* of the topic */
    p = put_int32(p, 0);
    p = put_no_tags(p);
    put_int32(start, (int32_t)(p - start - 4));
    return p;
}

static void echo(Peer *peer, uint8_t *frame, uint8_t *end)
{
    uint8_t *start, *p;
    (void)end;
    if (be16(frame + 4) == INIT_PRODUCER_ID) {
        answer_init_producer_id(peer, frame);
        return;
    }
    start = out_place(peer, ANSWER_HEAD_BYTES);
    p = put_answer_head(start, frame);
    p = put_length(p, 1);
    p = put_string(p, options.topic);
    p = put_length(p, 1);
    p = put_produced(p, 0, 0, 0);
    out_done(peer, put_end_of_answer(start, p));
}

/* --- sink ----------------------------------------------------------------------------------------- */

static int16_t write_batch(int32_t partition, uint8_t *batch, int32_t size, int64_t *base_offset)
{
    File *file;
    ssize_t written;
    if (partition < 0 || partition >= options.partitions || size < BATCH_HEADER_BYTES)
        die("a batch that is none, or of no partition");
    file = &files[partition];
    if ((uint32_t)be32(batch + AT_CRC) != crc32c(batch + AT_ATTRIBUTES, (size_t)size - AT_ATTRIBUTES))
        return CORRUPT_MESSAGE;
    *base_offset = file->next_offset;
    put_int64(batch + AT_BASE_OFFSET, file->next_offset);
    file->next_offset += be32(batch + AT_LAST_OFFSET_DELTA) + 1;
    if (options.file_bytes > 0 && file->position + size > options.file_bytes)
        file->position = 0;
    written = pwrite(file->fd, batch, (size_t)size, file->position);
    if (written != size)
        die("pwrite: %s", strerror(errno));
    file->position += size;
    file->is_dirty = 1;
    return 0;
}

static void sink(Peer *peer, uint8_t *frame, uint8_t *end)
{
    Reader in = {frame + 4, end};
    uint8_t *start, *p;
    const uint8_t *topic;
    int32_t topic_size, partitions, size;
    int16_t acks;
    if (be16(frame + 4) == INIT_PRODUCER_ID) {
        answer_init_producer_id(peer, frame);
        return;
    }
    if (be16(frame + 4) != PRODUCE || be16(frame + 6) != PRODUCE_VERSION)
        die("the sink takes Produce v%d alone", PRODUCE_VERSION);
    skip_request_head(&in);
    get_sized(&in, &size); /* transactional id */
    acks = get_int16(&in);
    take(&in, 4);
    if (get_length(&in) != 1)
        die("the sink takes one topic");
    topic = get_sized(&in, &topic_size);
    partitions = get_length(&in);
    start = out_place(peer, ANSWER_HEAD_BYTES + (size_t)partitions * 64);
    p = put_answer_head(start, frame);
    p = put_length(p, 1);
    p = put_bytes(put_length(p, topic_size), topic, (size_t)topic_size);
    p = put_length(p, partitions);
    for (; partitions > 0; partitions--) {
        int32_t partition = get_int32(&in);
        uint8_t *batch = (uint8_t *)get_sized(&in, &size);
        int64_t base_offset = -1;
        int16_t error;
        skip_tags(&in);
        error = write_batch(partition, batch, size, &base_offset);
        p = put_produced(p, partition, error, base_offset);
    }
    p = put_end_of_answer(start, p);
    if (acks != 0)
        out_done(peer, p);
}

static void sync_files(void)
{
    int32_t partition;
    for (partition = 0; partition < options.partitions; partition++) {
        if (!files[partition].is_dirty)
            continue;
        if (fdatasync(files[partition].fd) != 0)
            die("fdatasync: %s", strerror(errno));
        files[partition].is_dirty = 0;
    }
}

/* --- source --------------------------------------------------------------------------------------- */

static size_t batch_size;
static int32_t batch_records;

static void read_asked(Peer *peer, Reader *in)
{
    int32_t topics, partitions;
    for (topics = get_length(in); topics > 0; topics--) {
        take(in, TOPIC_ID_BYTES);
        for (partitions = get_length(in); partitions > 0; partitions--) {
            int32_t partition = get_int32(in);
            Asked *asked;
            if (partition < 0 || partition >= options.partitions)
                die("partition %d is asked for", partition);
            asked = &peer->asked[partition];
            asked->is_asked = 1;
            take(in, 4);
            asked->offset = get_int64(in);
            take(in, 4 + 8);
            asked->max_bytes = get_int32(in);
            skip_tags(in);
        }
        skip_tags(in);
    }
}

static void read_forgotten(Peer *peer, Reader *in)
{
    int32_t topics, partitions;
    for (topics = get_length(in); topics > 0; topics--) {
        take(in, TOPIC_ID_BYTES);
        for (partitions = get_length(in); partitions > 0; partitions--)
            peer->asked[get_int32(in)].is_asked = 0;
        skip_tags(in);
    }
}

/* Whole batches from an offset on, at least one. */
static int64_t bytes_found(const Asked *asked, int64_t budget)
{
    int64_t position = asked->offset / batch_records * (int64_t)batch_size;
    int64_t most = asked->max_bytes < budget ? asked->max_bytes : budget;
    most -= most % (int64_t)batch_size;
    if (most == 0)
        most = (int64_t)batch_size;
    return most < options.file_bytes - position ? most : options.file_bytes - position;
}

static void source(Peer *peer, uint8_t *frame, uint8_t *end)
{
    Reader in = {frame + 4, end};
    size_t asked_bytes = (size_t)options.partitions * sizeof *peer->asked;
    int64_t high_watermark = options.file_bytes / (int64_t)batch_size * batch_records;
    int64_t budget, left, answer_bytes;
    int32_t session_epoch, partition, found = 0;
    uint8_t *start, *p;
    size_t start_at;
    if (be16(frame + 4) != FETCH || be16(frame + 6) != FETCH_VERSION)
        die("the source takes Fetch v%d alone", FETCH_VERSION);
    if (peer->asked == NULL)
        peer->asked = allocate(asked_bytes);
    skip_request_head(&in);
    take(&in, 4 + 4);
    budget = get_int32(&in);
    take(&in, 1 + 4);
    session_epoch = get_int32(&in);
    if (session_epoch <= 0)
        memset(peer->asked, 0, asked_bytes);
    read_asked(peer, &in);
    read_forgotten(peer, &in);
    for (partition = 0, left = budget; partition < options.partitions && left > 0; partition++)
        if (peer->asked[partition].is_asked) {
            left -= bytes_found(&peer->asked[partition], left);
            found++;
        }
    start_at = peer->out_used;
    start = out_place(peer, ANSWER_HEAD_BYTES + (size_t)found * 64);
    answer_bytes = 0;
    p = put_answer_head(start, frame);
    p = put_int32(p, 0);
    p = put_int16(p, 0);
    p = put_int32(p, session_epoch < 0 ? 0 : FETCH_SESSION_ID);
    p = put_length(p, found > 0);
    if (found > 0) {
        p = put_bytes(p, options.topic_id, TOPIC_ID_BYTES);
        p = put_length(p, found);
    }
    for (partition = 0, left = budget; found > 0; partition++) {
        Asked *asked = &peer->asked[partition];
        int64_t size;
        if (!asked->is_asked)
            continue;
        found--;
        size = bytes_found(asked, left);
        left -= size;
        p = put_int32(p, partition);
        p = put_int16(p, 0);
        p = put_int64(p, high_watermark);
        p = put_int64(p, high_watermark);
        p = put_int64(p, 0);
        p = put_length(p, -1);
        p = put_int32(p, -1);
        p = put_length(p, (int32_t)size);
        out_done(peer, p);
        add_piece(peer, files[partition].fd, asked->offset / batch_records * (int64_t)batch_size, size);
        answer_bytes += size;
        p = put_no_tags(p);
        if (found == 0)
            p = put_no_tags(p); /* of the topic */
    }
    p = put_no_tags(p);
    out_done(peer, p);
    put_int32(peer->out + start_at, (int32_t)(p - (peer->out + start_at) - 4 + answer_bytes));
}

/* --- files ---------------------------------------------------------------------------------------- */

static void write_all(int fd, const uint8_t *data, size_t size)
{
    if (write(fd, data, size) != (ssize_t)size)
        die("write: %s", strerror(errno));
}

static void open_files(void)
{
    char path[4096];
    int32_t partition;
    if (options.directory == NULL || options.partitions > MOST_FILES)
        die("--directory is missing, or too many partitions");
    files = allocate((size_t)options.partitions * sizeof *files);
    for (partition = 0; partition < options.partitions; partition++) {
        if ((size_t)snprintf(path, sizeof path, "%s/%d.log", options.directory, partition) >= sizeof path)
            die("the directory's name is too long");
        files[partition].fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        if (files[partition].fd < 0)
            die("%s: %s", path, strerror(errno));
    }
}

/* Pages that are there before the measurement: overwritten, they cost a copy and nothing else. */
static void touch_files(void)
{
    uint8_t *noise = allocate(COPY_BYTES);
    int64_t done;
    int32_t partition;
    memset(noise, 1, COPY_BYTES);
    for (partition = 0; partition < options.partitions; partition++) {
        for (done = 0; done < options.file_bytes; done += COPY_BYTES)
            write_all(files[partition].fd, noise, COPY_BYTES);
        fdatasync(files[partition].fd);
    }
    free(noise);
}

/* The larger the writes, the larger the pieces of the page cache, and the cheaper they are to send. */
static void fill_files(void)
{
    uint8_t *batch = read_batch_file(options.batch_file, &batch_size);
    int64_t batches = options.file_bytes / (int64_t)batch_size;
    int64_t at_once = (int64_t)batch_size < options.fill_bytes ? options.fill_bytes / (int64_t)batch_size : 1;
    uint8_t *chunk = allocate((size_t)at_once * batch_size);
    int32_t partition;
    batch_records = be32(batch + AT_RECORDS_COUNT);
    if (batches < 1)
        die("--file-bytes is less than a batch");
    options.file_bytes = batches * (int64_t)batch_size;
    for (partition = 0; partition < options.partitions; partition++) {
        int64_t done = 0;
        while (done < batches) {
            int64_t number, count = batches - done < at_once ? batches - done : at_once;
            for (number = 0; number < count; number++, done++) {
                put_int64(batch + AT_BASE_OFFSET, done * batch_records);
                memcpy(chunk + number * (int64_t)batch_size, batch, batch_size);
            }
            write_all(files[partition].fd, chunk, (size_t)count * batch_size);
        }
    }
    free(chunk);
    free(batch);
}

/* --- the loop ------------------------------------------------------------------------------------- */

static void take_requests(Peer *peer)
{
    size_t at = 0;
    while (peer->in_used - at >= 4) {
        int32_t size = be32(peer->in + at);
        size_t frame_bytes = 4 + (size_t)size;
        if (size < 8)
            die("a request of %d bytes", size);
        if (peer->in_used - at < frame_bytes) {
            if (2 * frame_bytes > peer->in_capacity) {
                peer->in_capacity = 2 * frame_bytes;
                memmove(peer->in, peer->in + at, peer->in_used - at);
                peer->in_used -= at;
                peer->in = realloc(peer->in, peer->in_capacity);
                if (peer->in == NULL)
                    die("out of memory");
                return;
            }
            break;
        }
        handle(peer, peer->in + at, peer->in + at + frame_bytes);
        at += frame_bytes;
    }
    memmove(peer->in, peer->in + at, peer->in_used - at);
    peer->in_used -= at;
}

/* 0 if the client has gone. */
static int receive(Peer *peer)
{
    ssize_t got = recv(peer->fd, peer->in + peer->in_used, peer->in_capacity - peer->in_used, 0);
    if (got < 0)
        return errno == EAGAIN || errno == EINTR;
    if (got == 0)
        return 0;
    peer->in_used += (size_t)got;
    take_requests(peer);
    return 1;
}

static void accept_peer(int listener)
{
    struct epoll_event event = {.events = EPOLLIN};
    int one = 1;
    Peer *peer;
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0)
        return;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    peer = allocate(sizeof *peer);
    peer->fd = fd;
    peer->in = allocate(IN_BYTES);
    peer->in_capacity = IN_BYTES;
    peer->out = allocate(OUT_BYTES);
    peer->out_capacity = OUT_BYTES;
    event.data.ptr = peer;
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

static int listen_anywhere(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)options.port)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, size) != 0 ||
        listen(listener, 1024) != 0 || getsockname(listener, (struct sockaddr *)&address, &size) != 0)
        die("listening: %s", strerror(errno));
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return listener;
}

static void *spin(void *unused)
{
    volatile unsigned turns = 0;
    (void)unused;
    for (;;)
        turns++;
    return NULL;
}

static void serve(Handler handler, int syncs)
{
    pthread_t spinning;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    struct epoll_event events[MOST_EVENTS];
    int listener = listen_anywhere();
    handle = handler;
    if (options.spin && pthread_create(&spinning, NULL, spin, NULL) != 0)
        die("no thread to spin");
    copy_buffer = allocate(COPY_BYTES);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int count = epoll_wait(epoll_fd, events, MOST_EVENTS, -1);
        int number;
        for (number = 0; number < count; number++) {
            Peer *peer = events[number].data.ptr;
            if (peer == NULL) {
                accept_peer(listener);
            } else if (!peer->wants_write && !receive(peer)) {
                close_peer(peer);
                events[number].data.ptr = NULL;
            }
        }
        if (syncs)
            sync_files();
        for (number = 0; number < count; number++) {
            Peer *peer = events[number].data.ptr;
            if (peer != NULL && !flush(peer))
                close_peer(peer);
        }
    }
}

void serve_echo(void) { serve(echo, 0); }

void serve_sink(void)
{
    open_files();
    if (options.file_bytes > 0)
        touch_files();
    serve(sink, options.sync);
}

void serve_source(void)
{
    open_files();
    fill_files();
    serve(source, 0);
}
