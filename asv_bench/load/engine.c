/* The client's loop: connections, what goes out and comes in, pace, limits, and the figures.
 *
 * Owns when a request is made; the mode owns what is in it. One thread. A request
 * is made when fewer than `in_flight` wait for their answers, or (with a rate) when
 * its time has come, whatever waits: its latency counts from the time at which it
 * should have been sent, so that a server that stalls cannot hide the requests that
 * it kept from being made.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "load.h"
#include "wire.h"

enum {
    IN_BYTES = 1 << 20,
    MOST_IN_FLIGHT = 1 << 16, /* a power of two */
    MOST_EVENTS = 256,
    STALL_S = 60,
    NOT_LEADER_OR_FOLLOWER = 6,
    KAFKA_STORAGE_ERROR = 56,
};

/* What was so far, at one moment. */
typedef struct {
    int64_t at_ns;
    Counts counts;
    double own_cpu_s;
    double watched_cpu_s;
    double busy_cpu_s;
} Moment;

static Connection *connections;
static int connection_count;
static int64_t *due_of_record; /* end to end: when the record of an offset was to be sent */
static int64_t seen_requests;  /* end to end: what the fetching side has got */
static int epoll_fd;
static Counts made;     /* requested */
static Counts answered; /* of which */
static int64_t borne;   /* partitions' answers that were errors, of which a patient client asks again */
static Histogram latencies;
static Histogram lags; /* paced: how late requests were sent, the client's own share of the latency */
static Moment begin, end;
static int measuring, stopping;

static void add(Counts *to, Counts more)
{
    to->requests += more.requests;
    to->records += more.records;
    to->bytes += more.bytes;
}

static Moment moment(void)
{
    return (Moment){now_ns(), answered, own_cpu_s(), cpu_s_of(options.watched_pid), busy_cpu_s()};
}

static int is_unanswered(const Connection *c) { return options.acks == 0 && c->mode == &produce_mode; }

/* --- out ------------------------------------------------------------------------------------------ */

uint8_t *out_room(Connection *c, size_t bytes, int pieces)
{
    if (c->heads_used + bytes > HEADS_BYTES || c->piece_count + pieces > MOST_PIECES)
        return NULL;
    return c->heads + c->heads_used;
}

static void add_piece(Connection *c, const uint8_t *data, size_t size)
{
    struct iovec *last = c->pieces + (c->piece_count > 0 ? c->piece_count - 1 : 0);
    if (c->piece_count > c->first_piece && (uint8_t *)last->iov_base + last->iov_len == data) {
        last->iov_len += size;
        return;
    }
    c->pieces[c->piece_count++] = (struct iovec){(void *)data, size};
}

void out_written(Connection *c, uint8_t *written_to)
{
    uint8_t *from = c->heads + c->heads_used;
    add_piece(c, from, (size_t)(written_to - from));
    c->heads_used += (size_t)(written_to - from);
}

void out_shared(Connection *c, const uint8_t *data, size_t size) { add_piece(c, data, size); }

static void want(Connection *c, int wants_write)
{
    struct epoll_event event = {.events = EPOLLIN | (wants_write ? EPOLLOUT : 0), .data.ptr = c};
    if (c->wants_write == wants_write)
        return;
    c->wants_write = wants_write;
    if (epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &event) != 0)
        die("epoll_ctl: %s", strerror(errno));
}

static void flush(Connection *c)
{
    while (c->first_piece < c->piece_count) {
        ssize_t sent = writev(c->fd, c->pieces + c->first_piece, c->piece_count - c->first_piece);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR)) {
            want(c, 1);
            return;
        }
        if (sent < 0)
            die("connection %d: %s", c->number, strerror(errno));
        while (sent > 0) {
            struct iovec *piece = &c->pieces[c->first_piece];
            size_t part = (size_t)sent < piece->iov_len ? (size_t)sent : piece->iov_len;
            piece->iov_base = (uint8_t *)piece->iov_base + part;
            piece->iov_len -= part;
            sent -= (ssize_t)part;
            if (piece->iov_len == 0)
                c->first_piece++;
        }
    }
    c->first_piece = c->piece_count = 0;
    c->heads_used = 0;
    add(&answered, c->unanswered);
    c->unanswered = (Counts){0, 0, 0};
    /* No answer will say that there is room for more. */
    want(c, is_unanswered(c));
}

/* --- requests ------------------------------------------------------------------------------------- */

static int limits_are_reached(void)
{
    return (options.most_requests > 0 && made.requests >= options.most_requests) ||
           (options.most_bytes > 0 && measuring &&
            answered.bytes - begin.counts.bytes >= options.most_bytes);
}

/* Whether there is a place for the time of one more; a pace that is not kept waits for it. */
static int has_place(const Connection *c)
{
    if (due_of_record != NULL && c->is_paced && made.requests - seen_requests >= MOST_IN_FLIGHT)
        return 0;
    return is_unanswered(c) || c->in_flight <= c->sent_mask;
}

static int make_request(Connection *c, int64_t due_ns)
{
    if (stopping || limits_are_reached() || !has_place(c) || !c->mode->request(c))
        return 0;
    if (due_of_record != NULL && c->is_paced)
        due_of_record[made.requests % MOST_IN_FLIGHT] = due_ns;
    if (due_of_record == NULL || c->is_paced)
        made.requests++;
    if (is_unanswered(c))
        return 1;
    c->sent_ns[(c->next_correlation_id - 1) & c->sent_mask] = due_ns;
    c->in_flight++;
    return 1;
}

static void fill(Connection *c, int64_t now)
{
    int depth = is_unanswered(c) ? MOST_IN_FLIGHT : options.in_flight;
    /* One that is written in part leaves no room: its pieces and heads are still needed. */
    if (c->first_piece < c->piece_count)
        return;
    while (c->in_flight < depth && make_request(c, now))
        ;
    if (c->piece_count > 0)
        flush(c);
    else
        want(c, 0);
}

int is_borne(int16_t error, int16_t other)
{
    /* The first two are heard while a replica moves between log directories. */
    if (!options.patient ||
        (error != NOT_LEADER_OR_FOLLOWER && error != KAFKA_STORAGE_ERROR && error != other))
        return 0;
    borne++;
    return 1;
}

/* --- in ------------------------------------------------------------------------------------------- */

void records_seen(int64_t first, int64_t end_offset)
{
    int64_t now = now_ns();
    seen_requests = end_offset;
    for (; measuring && first < end_offset; first++)
        histogram_add(&latencies, now - due_of_record[first % MOST_IN_FLIGHT]);
}

static void take_answer(Connection *c, const uint8_t *frame, int32_t size, int64_t now)
{
    Counts counts;
    int32_t correlation_id = be32(frame);
    int64_t sent_ns = c->sent_ns[correlation_id & c->sent_mask];
    if (c->in_flight == 0 || correlation_id != c->next_answer_id)
        die("connection %d: answer %d came where %d was to be", c->number, correlation_id,
            c->next_answer_id);
    c->next_answer_id++;
    c->answers++;
    c->in_flight--;
    counts = c->mode->answer(c, frame + 4, frame + size);
    if (due_of_record != NULL) {
        if (c->is_paced)
            add(&answered, counts);
        return;
    }
    add(&answered, counts);
    if (measuring)
        histogram_add(&latencies, now - sent_ns);
}

static void make_room(Connection *c, size_t frame_bytes)
{
    /* Room for two, so that the next answer begins to come in while one is incomplete. */
    size_t capacity = 2 * frame_bytes;
    if (capacity <= c->in_capacity)
        return;
    c->in = realloc(c->in, capacity);
    if (c->in == NULL)
        die("out of memory");
    c->in_capacity = capacity;
}

static void take_answers(Connection *c, int64_t now)
{
    size_t at = 0;
    while (c->in_used - at >= 4) {
        int32_t size = be32(c->in + at);
        if (size < 4)
            die("connection %d: an answer of %d bytes", c->number, size);
        if (c->in_used - at < 4 + (size_t)size) {
            memmove(c->in, c->in + at, c->in_used - at);
            c->in_used -= at;
            make_room(c, 4 + (size_t)size);
            return;
        }
        take_answer(c, c->in + at + 4, size, now);
        at += 4 + (size_t)size;
    }
    memmove(c->in, c->in + at, c->in_used - at);
    c->in_used -= at;
}

static void receive(Connection *c)
{
    ssize_t got = recv(c->fd, c->in + c->in_used, c->in_capacity - c->in_used, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got < 0)
        die("connection %d: %s", c->number, strerror(errno));
    if (got == 0) {
        if (!stopping || c->in_flight > 0)
            die("connection %d was closed with %d requests in flight", c->number, c->in_flight);
        c->ended = 1;
        epoll_ctl(epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
        return;
    }
    c->in_used += (size_t)got;
    take_answers(c, now_ns());
}

/* --- connections ---------------------------------------------------------------------------------- */

static void connect_to(Connection *c, int number, const Mode *mode, int is_paced)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)options.port)};
    int one = 1;
    int32_t depth = options.rate > 0 ? MOST_IN_FLIGHT : 1;
    while (depth < options.in_flight)
        depth *= 2;
    c->mode = mode;
    c->is_paced = is_paced;
    c->number = number;
    c->heads = allocate(HEADS_BYTES);
    c->pieces = allocate(MOST_PIECES * sizeof *c->pieces);
    c->in = allocate(IN_BYTES);
    c->in_capacity = IN_BYTES;
    c->sent_ns = allocate((size_t)depth * sizeof *c->sent_ns);
    c->sent_mask = depth - 1;
    if (inet_pton(AF_INET, options.host, &address.sin_addr) != 1)
        die("%s is no IPv4 address", options.host);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&address, sizeof address) != 0)
        die("connecting to %s:%d: %s", options.host, options.port, strerror(errno));
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

const uint8_t *exchange(Connection *c, uint8_t *request, uint8_t *request_end, size_t *size)
{
    size_t used = 0;
    put_int32(request, (int32_t)(request_end - request - 4));
    if (send(c->fd, request, (size_t)(request_end - request), MSG_NOSIGNAL) != request_end - request)
        die("connection %d: %s", c->number, strerror(errno));
    while (used < 4 || used < 4 + (size_t)be32(c->in)) {
        ssize_t got = recv(c->fd, c->in + used, c->in_capacity - used, 0);
        if (got <= 0)
            die("connection %d was closed instead of an answer", c->number);
        used += (size_t)got;
    }
    *size = used - 4;
    return c->in + 4;
}

static void begin_to_poll(Connection *c)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (fcntl(c->fd, F_SETFL, O_NONBLOCK) != 0 || epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &event) != 0)
        die("epoll_ctl: %s", strerror(errno));
}

/* --- the run -------------------------------------------------------------------------------------- */

static int all_is_answered(void)
{
    int number;
    for (number = 0; number < connection_count; number++)
        if (connections[number].in_flight > 0 || connections[number].piece_count > 0)
            return 0;
    return 1;
}

/* Nothing tells how far a server is that does not answer, but that it has read up to the end. */
static void end_unanswered(void)
{
    int number;
    for (number = 0; number < connection_count; number++)
        shutdown(connections[number].fd, SHUT_WR);
}

static int all_has_ended(void)
{
    int number;
    for (number = 0; number < connection_count; number++)
        if (!connections[number].ended)
            return 0;
    return 1;
}

/* A producer's first batch for a partition is no ordinary one: the broker gets to know the producer. */
static int is_warm(void)
{
    int32_t first = (options.partitions + options.per_request - 1) / options.per_request;
    int number;
    if (options.warmup_s <= 0 || !options.idempotent)
        return 1;
    for (number = 0; number < connection_count; number++)
        if (connections[number].answers < first)
            return 0;
    return 1;
}

static void make_due_requests(int64_t first_ns, int64_t *done, int64_t now)
{
    int number;
    while (!stopping) {
        int64_t due = first_ns + (int64_t)((double)*done * 1e9 / options.rate);
        Connection *c = &connections[*done % options.connections];
        if (due > now || !make_request(c, due))
            break;
        if (measuring)
            histogram_add(&lags, now - due);
        ++*done;
    }
    for (number = 0; number < connection_count; number++)
        if (connections[number].piece_count > 0 && !connections[number].wants_write)
            flush(&connections[number]);
}

static void wait_for_events(int64_t until_ns)
{
    struct epoll_event events[MOST_EVENTS];
    int64_t left = until_ns - now_ns();
    struct timespec timeout = {0, 0};
    int count, number;
    if (left > 0) {
        timeout.tv_sec = left / 1000000000;
        timeout.tv_nsec = left % 1000000000;
    }
    count = epoll_pwait2(epoll_fd, events, MOST_EVENTS, &timeout, NULL);
    if (count < 0 && errno != EINTR)
        die("epoll_pwait2: %s", strerror(errno));
    for (number = 0; number < count; number++) {
        Connection *c = events[number].data.ptr;
        if (events[number].events & EPOLLOUT)
            flush(c);
        if (events[number].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
            receive(c);
        if (!c->is_paced && !c->ended)
            fill(c, now_ns());
    }
}

static void print_figures(void)
{
    double elapsed = (double)(end.at_ns - begin.at_ns) / 1e9;
    double own = end.own_cpu_s - begin.own_cpu_s;
    double watched = end.watched_cpu_s - begin.watched_cpu_s;
    double requests = (double)(end.counts.requests - begin.counts.requests);
    double records = (double)(end.counts.records - begin.counts.records);
    double bytes = (double)(end.counts.bytes - begin.counts.bytes);
    printf("{\"mode\": \"%s\", \"seconds\": %.6f, \"requests\": %.0f, \"records\": %.0f, \"bytes\": %.0f, ",
           connections[0].mode->name, elapsed, requests, records, bytes);
    printf("\"requests_per_s\": %.1f, \"records_per_s\": %.1f, \"mb_per_s\": %.3f, ", requests / elapsed,
           records / elapsed, bytes / 1e6 / elapsed);
    printf("\"latency_us\": {\"p50\": %.1f, \"p99\": %.1f, \"p999\": %.1f, \"max\": %.1f}, ",
           histogram_us(&latencies, 0.5), histogram_us(&latencies, 0.99), histogram_us(&latencies, 0.999),
           (double)latencies.most_ns / 1e3);
    printf("\"lag_us\": {\"p50\": %.1f, \"p99\": %.1f}, ", histogram_us(&lags, 0.5),
           histogram_us(&lags, 0.99));
    printf("\"cpu_s\": %.6f, \"server_cpu_s\": %.6f, \"foreign_cores\": %.3f, \"refused\": %ld, ", own, watched,
           (end.busy_cpu_s - begin.busy_cpu_s - own - watched) / elapsed, (long)borne);
    printf("\"total\": {\"requests\": %ld, \"records\": %ld, \"bytes\": %ld}}\n", (long)answered.requests,
           (long)answered.records, (long)answered.bytes);
}

void run_client(const Mode *mode)
{
    int64_t started, begins, ends = INT64_MAX, paced = 0, last_change, last_requests = 0, now;
    int number, has_ended = 0;
    int is_paced = options.rate > 0;
    int unanswered;
    prctl(PR_SET_TIMERSLACK, 1); /* 50 us by default: too coarse for a pace */
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    connection_count = options.connections + options.end_to_end;
    connections = allocate((size_t)connection_count * sizeof *connections);
    if (options.end_to_end)
        due_of_record = allocate(MOST_IN_FLIGHT * sizeof *due_of_record);
    for (number = 0; number < connection_count; number++) {
        if (number < options.connections)
            connect_to(&connections[number], number, mode, is_paced);
        else
            connect_to(&connections[number], 0, &fetch_mode, 0);
        connections[number].mode->open(&connections[number]);
        connections[number].next_answer_id = connections[number].next_correlation_id;
    }
    unanswered = is_unanswered(&connections[0]);
    for (number = 0; number < connection_count; number++)
        begin_to_poll(&connections[number]);
    started = last_change = now_ns();
    begins = started + (int64_t)(options.warmup_s * 1e9);
    for (number = 0; number < connection_count; number++)
        if (!connections[number].is_paced)
            fill(&connections[number], started);
    for (;;) {
        int64_t until;
        now = now_ns();
        if (!measuring && !stopping && now >= begins && is_warm()) {
            measuring = 1;
            begin = moment();
            ends = begin.at_ns + (int64_t)(options.seconds * 1e9);
        }
        if (!stopping && now >= ends) {
            /* What is still in flight is waited for, but not counted in the figures. */
            end = moment();
            stopping = 2;
        }
        if (!stopping && limits_are_reached())
            stopping = 1;
        if (options.rate > 0)
            make_due_requests(started, &paced, now);
        if (!stopping && !unanswered && all_is_answered() && options.rate <= 0)
            stopping = 1; /* there is nothing left to ask */
        if (stopping && all_is_answered()) {
            if (unanswered && !has_ended) {
                end_unanswered();
                has_ended = 1;
            }
            if (!unanswered || all_has_ended())
                break;
        }
        if (answered.requests != last_requests) {
            last_requests = answered.requests;
            last_change = now;
        }
        if (now - last_change > STALL_S * 1000000000LL)
            die("nothing was answered for %d s", STALL_S);
        until = now + 10000000;
        if (options.rate > 0 && !stopping) {
            int64_t due = started + (int64_t)((double)paced * 1e9 / options.rate);
            until = due < until ? due : until;
        }
        wait_for_events(until);
    }
    if (stopping == 1) {
        if (!measuring)
            die("the load was over before its warm-up");
        end = moment();
    }
    print_figures();
}
