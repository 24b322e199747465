"""The sockets' side of the broker: threads that accept, cut frames and send answers.

Owns every client connection from accept to close, and the memory of requests
until Python lets go of it. Its threads never take the interpreter lock: what they
do not answer themselves (`turn`) lies in a mailbox for Python (`take`), whose
answers come back through the mailbox of the thread that owns the connection.
So a connection is touched by one thread only and needs no lock.

This is the skin; `reactor_loop` is a thread, `turn` what it does for one
connection, `connection` the bytes of one, `acceptor` the door.
"""

from libc.errno cimport errno
from libc.stdint cimport INT32_MAX, INT64_MAX, int64_t, uint8_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy
from posix.fcntl cimport F_DUPFD_CLOEXEC, F_GETFL, F_SETFL, O_NONBLOCK, fcntl
from posix.unistd cimport close

import os
import threading
from typing import NamedTuple

from plog._native.acceptor cimport (
    ADDRESS_BYTES, MAX_LISTENERS, AddressLimit, Door, door_open, door_prepare, door_release)
from plog._native.callout_reasons cimport (
    REASON_APPEND, REASON_BATCH, REASON_NONE, REASON_OTHER_API, REASON_PARTITION, REASON_READ, REASON_REQUEST, REASONS)
from plog._native.error_counts cimport ERROR_CODES, FIRST_ERROR, ErrorCounts
from plog._native.fetch_callout cimport fetch_callout_about
from plog._native.fetch_sessions cimport SessionCache
from plog._native.files cimport calls
from plog._native.frames cimport frame_view
from plog._native.histogram cimport Histogram
from plog._native.locks cimport load as atomic_load, store as atomic_store
from plog._native.mailbox cimport (
    Letter, mailbox_close, mailbox_knock, mailbox_open, mailbox_put, mailbox_release, mailbox_take,
)
from plog._native.notes cimport note_free, note_new, note_text
from plog._native.partition cimport partition_mark_reported
from plog._native.produce_callout cimport produce_callout_about
from plog._native.python_responses cimport fill_answer
from plog._native.reactor_loop cimport free_command, loop_discard_letters, loop_open, loop_release, loop_run
from plog._native.reactor_types cimport (
    ASK_CLOSE, ASK_LISTEN, ASK_MUTE, ASK_RESPOND, EVENT_CALLOUT, EVENT_CLOSED, EVENT_LEFT,
    EVENT_MAY_JOIN, EVENT_OPENED, EVENT_REFUSED, EVENT_REQUEST, KIND_PRODUCE, REASON_BYTES, SOURCE_LISTENER, Command,
    Listener, Loop, Note, Shared)
from plog._native.requests cimport request_free
from plog._native.served cimport ServedPartitions

cdef enum:
    DEFAULT_QUEUED_MAX_BYTES = 512 * 1024 * 1024

OPENED = EVENT_OPENED
REQUEST = EVENT_REQUEST
CLOSED = EVENT_CLOSED
REFUSED = EVENT_REFUSED
LEFT = EVENT_LEFT
CALLOUT = EVENT_CALLOUT
MAY_JOIN = EVENT_MAY_JOIN

cdef dict REASON_TEXTS = {
    REASON_OTHER_API: "other API or version",
    REASON_REQUEST: "unusual request",
    REASON_PARTITION: "unusual partition",
    REASON_BATCH: "unusual batch",
    REASON_APPEND: "unusual append",
    REASON_READ: "unusual read",
}


# --- what Python sees -----------------------------------------------------------------------------

class Event(NamedTuple):
    """What the reactor tells the control plane."""

    kind: int
    connection_id: int
    listener_id: int
    frame: memoryview | None
    peer: str
    reason: str
    received_us: int
    abnormal: bool
    callout: object
    joiner: tuple | None


class ReactorStats(NamedTuple):
    """Counts since the start. Those of connections and `queued_bytes` are of now."""

    connections: int
    connections_by_listener: tuple
    accepted: int
    refused: int
    closed: int
    requests: int
    responses: int
    bytes_in: int
    bytes_out: int
    queued_bytes: int
    fast_requests: int
    callouts: dict
    waiting: int
    produce_times: object
    produce_asked_times: object
    fetch_times: object
    produce_responses: dict
    fetch_asked_times: object
    fetch_responses: dict
    broken: int


cdef int add_errors(dict found, const ErrorCounts* errors) except -1:
    """By error code, those that there were."""
    cdef int at
    for at in range(ERROR_CODES):
        if atomic_load(&errors.counts[at]):
            found[FIRST_ERROR + at] = found.get(FIRST_ERROR + at, 0) + atomic_load(&errors.counts[at])
    return 0


cdef class Reactor:
    cdef Shared shared
    cdef ServedPartitions _served
    cdef SessionCache _sessions
    cdef list _threads
    cdef bint _stopped

    def __cinit__(self):
        self.shared.events.wake_fd = -1
        self.shared.loops = NULL

    def __init__(
        self,
        *,
        int threads=1,
        int64_t max_request_bytes=104857600,
        int64_t queued_max_bytes=DEFAULT_QUEUED_MAX_BYTES,
        int64_t answers_max_bytes=DEFAULT_QUEUED_MAX_BYTES,
        int64_t max_connections=2147483647,
        int64_t max_connections_per_ip=2147483647,
        max_connections_per_ip_overrides=(),
        int64_t idle_timeout_ms=600000,
        int send_buffer_bytes=-1,
        int receive_buffer_bytes=-1,
        bint use_sendfile=True,
        ServedPartitions served=None,
        SessionCache sessions=None,
    ):
        cdef int i
        cdef Loop* loops
        if self.shared.loops != NULL:
            raise RuntimeError("a Reactor is initialised once")
        if threads < 1:
            raise ValueError(f"a reactor needs at least one thread, not {threads}")
        if not 0 <= max_request_bytes <= INT32_MAX:
            raise ValueError(f"max_request_bytes {max_request_bytes} is not a size that a request can state")
        self._threads = []
        self._served = served
        self._sessions = sessions
        if (served is None) != (sessions is None):
            raise ValueError("a fast path needs both `served` and `sessions`")
        if served is not None:
            self.shared.served = &served.table
            self.shared.sessions = &sessions.table
        self.shared.max_request_bytes = max_request_bytes
        self.shared.idle_timeout_us = idle_timeout_ms * 1000
        self.shared.use_sendfile = use_sendfile
        self.shared.budget.max_bytes = queued_max_bytes if queued_max_bytes > 0 else DEFAULT_QUEUED_MAX_BYTES
        self.shared.budget.max_answer_bytes = (
            answers_max_bytes if answers_max_bytes > 0 else DEFAULT_QUEUED_MAX_BYTES)
        self.shared.door.max_connections = max_connections
        self.shared.door.max_connections_per_ip = max_connections_per_ip
        self.shared.door.send_buffer_bytes = send_buffer_bytes
        self.shared.door.receive_buffer_bytes = receive_buffer_bytes
        self.shared.next_id = 1
        loops = <Loop*>calloc(threads, sizeof(Loop))
        if loops == NULL:
            raise MemoryError
        self.shared.loops = loops
        self.shared.threads = threads
        for i in range(threads):
            loops[i].inbox.wake_fd = -1
            loops[i].epoll_fd = -1
        self._open(list(max_connections_per_ip_overrides))

    cdef int _open(self, list overrides) except -1:
        """Open the mailboxes, the door and the loops; `__dealloc__` closes them."""
        cdef Loop* loops = self.shared.loops
        cdef int error
        cdef int i
        error = mailbox_open(&self.shared.events)
        if error == 0:
            error = door_open(&self.shared.door)
        if error == 0:
            self._override(overrides)
        for i in range(self.shared.threads):
            if error == 0:
                error = loop_open(&loops[i], &self.shared, i)
        if error < 0:
            raise OSError(-error, os.strerror(-error))
        return 0

    cdef int _override(self, list overrides) except -1:
        """Set the caps of single addresses: (16 bytes, how many)."""
        cdef Door* door = &self.shared.door
        cdef bytes address
        cdef Py_ssize_t at
        door.overrides = <AddressLimit*>calloc(len(overrides) + 1, sizeof(AddressLimit))
        if door.overrides == NULL:
            raise MemoryError
        for at in range(len(overrides)):
            address, most = overrides[at]
            if len(address) != ADDRESS_BYTES:
                raise ValueError(f"an address of {len(address)} bytes")
            memcpy(door.overrides[at].address, <const uint8_t*>address, ADDRESS_BYTES)
            door.overrides[at].most = most
        door.override_count = len(overrides)
        return 0

    def __dealloc__(self):
        cdef int i
        cdef Letter* letter
        cdef Note* note
        if self.shared.loops == NULL:
            return
        # Running threads hold a reference, so there are none, and no connections: a request that Python was to be asked
        # about is over.
        if self.shared.events.wake_fd >= 0:
            letter = mailbox_take(&self.shared.events, INT64_MAX)
            while letter != NULL:
                note = <Note*>letter
                letter = letter.next
                if note.request != NULL:
                    request_free(note.request)
                note_free(note)
            mailbox_release(&self.shared.events)
        for i in range(self.shared.threads):
            loop_release(&self.shared.loops[i])
        free(self.shared.loops)
        door_release(&self.shared.door)

    cdef int _send(self, Loop* loop, Command* command) except -1:
        """Post a command; it is freed when the reactor has stopped."""
        if not mailbox_put(&loop.inbox, &command.letter, &command.letter, 1):
            free_command(&self.shared, command)
        return 0

    cdef Command* _command(self, int ask, int64_t connection_id) except NULL:
        cdef Command* command = <Command*>calloc(1, sizeof(Command))
        if command == NULL:
            raise MemoryError
        command.ask = ask
        command.connection_id = connection_id
        return command

    cdef Loop* _owner(self, int64_t connection_id) except NULL:
        if connection_id < 0:
            raise ValueError(f"{connection_id} is not a connection id")
        return &self.shared.loops[connection_id % self.shared.threads]

    def add_listener(
            self, int fd, int listener_id, *, bint may_be_fast=True, bint is_exempt=False,
            bint is_between_brokers=False):
        cdef Listener* listener
        cdef Command* command
        cdef int own
        if not 0 <= listener_id < MAX_LISTENERS:
            raise ValueError(f"listener {listener_id}: there may be {MAX_LISTENERS}")
        own = fcntl(fd, F_DUPFD_CLOEXEC, 0)
        if own < 0 or fcntl(own, F_SETFL, fcntl(own, F_GETFL) | O_NONBLOCK) < 0:
            error = errno
            if own >= 0:
                close(own)
            raise OSError(error, os.strerror(error))
        door_prepare(&self.shared.door, own)
        listener = <Listener*>calloc(1, sizeof(Listener))
        if listener == NULL:
            close(own)
            raise MemoryError
        listener.kind = SOURCE_LISTENER
        listener.fd = own
        listener.id = listener_id
        listener.may_be_fast = may_be_fast
        listener.is_exempt = is_exempt
        listener.is_between_brokers = is_between_brokers
        command = self._command(ASK_LISTEN, 0)
        command.listener = listener
        self._send(&self.shared.loops[0], command)

    def start(self):
        if self._threads or self._stopped:
            raise RuntimeError("a Reactor is started once")
        for i in range(self.shared.threads):
            # Daemons: a broker that dies of an exception must not hang for want of stop().
            thread = threading.Thread(target=self._run, args=(i,), name=f"plog-reactor-{i}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self, int index):
        with nogil:
            loop_run(&self.shared.loops[index])

    def stop(self, int64_t drain_ms=0):
        cdef int i
        if self._stopped:
            return
        self._stopped = True
        self.shared.drain_until_us = calls().monotonic_us() + 1000 * max(drain_ms, 0)
        atomic_store(&self.shared.stopping, 1)
        for i in range(self.shared.threads):
            mailbox_knock(&self.shared.loops[i].inbox)
        for thread in self._threads:
            thread.join()
        for i in range(self.shared.threads):
            mailbox_close(&self.shared.loops[i].inbox)
            loop_discard_letters(&self.shared.loops[i])

    @property
    def wake_fd(self):
        return self.shared.events.wake_fd

    def take(self, int64_t limit=256):
        cdef Letter* letter
        cdef Note* note
        cdef list taken = []
        if limit < 1:
            raise ValueError(f"cannot take {limit} events")
        letter = mailbox_take(&self.shared.events, limit)
        while letter != NULL:
            note = <Note*>letter
            letter = letter.next
            taken.append(self._event(note))
        return taken

    cdef object _event(self, Note* note):
        """The event that `note` tells of; frees the note."""
        view = callout = joiner = None
        peer = ""
        reason = ""
        if note.kind == EVENT_REQUEST:
            view = frame_view(self, &self.shared, note)
        elif note.kind == EVENT_CALLOUT:
            callout = (
                produce_callout_about(self, note.request, frame_view(self, &self.shared, note))
                if note.request.kind == KIND_PRODUCE else fetch_callout_about(self, note.request))
        elif note.kind == EVENT_MAY_JOIN:
            # From now on a further note may follow.
            partition_mark_reported(note.partition, note.broker_id, False)
            joiner = (atomic_load(&note.partition.number), note.broker_id)
        elif note.kind == EVENT_OPENED:
            peer = note_text(note).decode("ascii")
        elif note.kind == EVENT_CLOSED:
            reason = note_text(note).decode("utf-8", "replace")
        else:
            peer = note_text(note).decode("ascii")
            reason = (note_text(note) + note.size).decode("utf-8", "replace")
        event = tuple.__new__(Event, (
            note.kind, note.connection_id, note.listener_id, view, peer, reason, note.received_us,
            note.abnormal != 0, callout, joiner))
        note_free(note)
        return event

    def respond(self, int64_t connection_id, pieces):
        cdef Loop* owner = self._owner(connection_id)
        cdef Command* command = self._command(ASK_RESPOND, connection_id)
        try:
            fill_answer(command, pieces if type(pieces) is list else list(pieces))
        except BaseException:
            free_command(&self.shared, command)
            raise
        self._send(owner, command)

    def skip(self, int64_t connection_id):
        cdef Loop* owner = self._owner(connection_id)
        self._send(owner, self._command(ASK_RESPOND, connection_id))

    def mute(self, int64_t connection_id, int64_t for_ms):
        cdef Loop* owner = self._owner(connection_id)
        cdef Command* command = self._command(ASK_MUTE, connection_id)
        command.size = for_ms
        self._send(owner, command)

    def close(self, int64_t connection_id, str reason=""):
        cdef Loop* owner = self._owner(connection_id)
        cdef bytes text = reason.encode("utf-8", "replace")
        cdef Command* command = self._command(ASK_CLOSE, connection_id)
        snprintf(command.reason, REASON_BYTES, "%s", <const char*>text)
        self._send(owner, command)

    def knock(self):
        cdef int i
        if not self._stopped:
            for i in range(self.shared.threads):
                mailbox_knock(&self.shared.loops[i].inbox)

    def turns(self):
        cdef int i
        return [atomic_load(&self.shared.loops[i].turns) for i in range(self.shared.threads)]

    def stats(self):
        cdef Shared* shared = &self.shared
        cdef int64_t closed = 0, requests = 0, responses = 0, bytes_in = 0, bytes_out = 0
        cdef int64_t waiting = 0, broken = 0, asked = 0
        cdef Histogram produce_times = Histogram(), produce_asked_times = Histogram()
        cdef Histogram fetch_times = Histogram(), fetch_asked_times = Histogram()
        cdef int i
        cdef int reason
        produce_responses, fetch_responses = {}, {}
        callouts = dict.fromkeys(REASON_TEXTS.values(), 0)
        for i in range(shared.threads):
            closed += atomic_load(&shared.loops[i].closed)
            requests += atomic_load(&shared.loops[i].requests)
            responses += atomic_load(&shared.loops[i].responses)
            bytes_in += atomic_load(&shared.loops[i].bytes_in)
            bytes_out += atomic_load(&shared.loops[i].bytes_out)
            waiting += atomic_load(&shared.loops[i].waiting)
            broken += atomic_load(&shared.loops[i].broken)
            asked += atomic_load(&shared.loops[i].asked)
            add_errors(produce_responses, &shared.loops[i].produce_errors)
            add_errors(fetch_responses, &shared.loops[i].fetch_errors)
            produce_times.add(&shared.loops[i].produce_times)
            produce_asked_times.add(&shared.loops[i].produce_asked_times)
            fetch_times.add(&shared.loops[i].fetch_times)
            fetch_asked_times.add(&shared.loops[i].fetch_asked_times)
            for reason in range(<int>REASON_NONE + 1, REASONS):
                callouts[REASON_TEXTS[reason]] += atomic_load(&shared.loops[i].callouts[reason])
        return ReactorStats(
            connections=atomic_load(&shared.door.connections),
            connections_by_listener=tuple(
                [atomic_load(&shared.door.by_listener[i]) for i in range(MAX_LISTENERS)]),
            accepted=atomic_load(&shared.door.accepted),
            refused=atomic_load(&shared.door.refused),
            closed=closed,
            requests=requests,
            responses=responses,
            bytes_in=bytes_in,
            bytes_out=bytes_out,
            queued_bytes=atomic_load(&shared.budget.frame_bytes) + atomic_load(&shared.budget.buffer_bytes),
            fast_requests=requests - asked,
            callouts=callouts,
            waiting=waiting,
            produce_times=produce_times,
            produce_asked_times=produce_asked_times,
            fetch_times=fetch_times,
            fetch_asked_times=fetch_asked_times,
            produce_responses=produce_responses,
            fetch_responses=fetch_responses,
            broken=broken,
        )
