"""Threads of a broker, single-stepped by ptrace: which kernel calls which.

Works on the release build: the kernel is the shared object that holds the instruction. So a
function counts as the kernel's that inlines it. The reactor's thread steps alone until it waits in
epoll. The others step from then on, so the trace does not depend on which thread is faster. The
monotonic clock of the kernels stands still meanwhile: single steps are slow, and the limits of a
turn would expire.
"""

from __future__ import annotations

import bisect
import ctypes
import os
import platform
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

PEEK, CONTINUE, STEP, GET_REGISTERS, SET_REGISTERS, DETACH = 1, 7, 9, 12, 13, 17
SEIZE, INTERRUPT = 0x4206, 0x4207
"""Requests of ptrace."""
WAIT_ALL = 0x40000000
"""Of waitpid: __WALL, also for threads."""
REGISTERS = 27
R10, RAX, RDI, RIP, RSP = 7, 10, 14, 16, 19
"""Indexes in user_regs_struct of x86-64."""
EPOLL_WAITS = (232, 281)
"""epoll_wait, epoll_pwait: their fourth argument is the time to wait."""
SYSCALL = 0x050F
MAX_SECONDS = 120

KERNELS = "/plog/_native/"
CLOCK = "files"
"""The kernel that reads the clocks, by the vDSO."""
VDSO = "[vdso]"

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


class TraceRefused(Exception):
    """This machine does not let a process trace its descendants."""


def _ptrace(request: int, tid: int, data: object = None, address: int = 0) -> int:
    ctypes.set_errno(0)
    result: int = _libc.ptrace(request, tid, address, data)
    if result == -1 and ctypes.get_errno():
        raise OSError(ctypes.get_errno(), f"ptrace {request:#x}: {os.strerror(ctypes.get_errno())}")
    return result


@dataclass(frozen=True)
class Call:
    """A kernel calls another."""

    tid: int
    stack: tuple[str, ...]
    """The kernels that have called each other, the one that is entered last."""
    at: int
    """Where it is entered: the place in its shared object."""
    is_jump: bool
    """The caller is done: the call is its last act."""


@dataclass(frozen=True)
class _Mapping:
    start: int
    end: int
    kernel: str | None
    is_vdso: bool
    offset: int


_NOWHERE = _Mapping(0, 0, None, False, 0)


def _mappings(pid: int) -> list[_Mapping]:
    found = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        words = line.split(maxsplit=5)
        if "x" not in words[1]:
            continue
        start, end = (int(word, 16) for word in words[0].split("-"))
        name = words[5] if len(words) > 5 else ""
        kernel = name.rpartition("/")[2].partition(".")[0] if KERNELS in name else None
        found.append(_Mapping(start, end, kernel, name == VDSO, int(words[2], 16)))
    return sorted(found, key=lambda mapping: mapping.start)


@dataclass(eq=False)
class _Thread:
    tid: int
    registers: ctypes.Array[ctypes.c_ulonglong] = field(
        default_factory=(ctypes.c_ulonglong * REGISTERS)
    )
    stack: list[tuple[str, int]] = field(default_factory=list)
    """Kernels, and where each one's return address lies."""
    mapping: _Mapping = _NOWHERE
    kernel: str | None = None
    """The last one in which it was."""
    reads_monotonic: bool = False

    def seize(self) -> None:
        _ptrace(SEIZE, self.tid)
        self.interrupt()

    def interrupt(self) -> None:
        _ptrace(INTERRUPT, self.tid)
        os.waitpid(self.tid, WAIT_ALL)

    def detach(self, *, is_stepping: bool) -> None:
        with suppress(
            ProcessLookupError, ChildProcessError, FileNotFoundError
        ):  # the thread has ended
            if is_stepping:
                self.interrupt()
            # The end of its last step may be a signal that is still on its way, and would kill it.
            while self._is_trapped():
                _ptrace(CONTINUE, self.tid)
                os.waitpid(self.tid, WAIT_ALL)
            _ptrace(DETACH, self.tid)

    def _is_trapped(self) -> bool:
        status = Path(f"/proc/{self.tid}/status")
        pending = re.search(r"^SigPnd:\s*(\w+)", status.read_text(), re.MULTILINE)
        return pending is not None and bool(int(pending[1], 16) >> (signal.SIGTRAP - 1) & 1)

    def step(self) -> None:
        _ptrace(STEP, self.tid)

    def has_stopped(self) -> bool:
        tid, status = os.waitpid(self.tid, WAIT_ALL | os.WNOHANG)
        if tid == 0:
            return False
        assert os.WIFSTOPPED(status), f"thread {self.tid} ended with status {status:#x}"
        _ptrace(GET_REGISTERS, self.tid, ctypes.byref(self.registers))
        return True

    def is_at_epoll(self) -> bool:
        """Whether its next instruction waits for events, and not only looks for them."""
        if self.registers[RAX] not in EPOLL_WAITS or self.registers[R10] == 0:
            return False
        return _ptrace(PEEK, self.tid, address=self.registers[RIP]) & 0xFFFF == SYSCALL

    def found_events(self) -> bool:
        """Whether epoll, which has just returned, has any: their number is no error, nor zero."""
        return 0 < self.registers[RAX] < 1 << 63


class Stepper:
    """The threads of one process, except its first."""

    def __init__(self, pid: int) -> None:
        self.calls: list[Call] = []
        self.steps = 0
        self._mappings = _mappings(pid)
        self._starts = [mapping.start for mapping in self._mappings]
        self._now_us: int | None = None
        self._is_timer = False
        """The reactor's round has no event: it has nothing to do with the request."""
        tids = [int(name) for name in os.listdir(f"/proc/{pid}/task") if int(name) != pid]
        (reactor,) = [tid for tid in tids if _waits_in_epoll(pid, tid)]
        self._reactor = _Thread(reactor)
        self._others = [_Thread(tid) for tid in tids if tid != reactor]
        self._stepping: list[_Thread] = []

    @property
    def reactor(self) -> int:
        return self._reactor.tid

    def trace(self, send: Callable[[], None], is_answered: Callable[[], bool]) -> None:
        """Step from the moment a request is sent until the reactor waits after its response."""
        with self._attached():
            self._step_until(lambda: True)
            self.calls.clear()
            self.steps = 0
            send()
            self._step_until(is_answered)

    @contextmanager
    def _attached(self) -> Iterator[None]:
        seized: list[_Thread] = []
        try:
            for thread in (self._reactor, *self._others):
                with suppress(ProcessLookupError):  # it has ended
                    thread.seize()
                    seized.append(thread)
            self._others = seized[1:]
            yield
        except PermissionError as error:
            raise TraceRefused(
                f"{error}: let the tests trace their brokers "
                "(container: --cap-add=SYS_PTRACE; sysctl: kernel.yama.ptrace_scope=1)"
            ) from error
        finally:
            for thread in seized:
                thread.detach(is_stepping=thread in self._stepping)
            self._stepping.clear()

    def _step_until(self, is_over: Callable[[], bool]) -> None:
        end = time.monotonic() + MAX_SECONDS
        has_waited = True
        self._step(self._reactor)
        while True:
            for thread in self._stepping.copy():
                if not thread.has_stopped():
                    continue
                self._stepping.remove(thread)
                if thread is self._reactor and has_waited:
                    has_waited, self._is_timer = False, not thread.found_events()
                self._note(thread)
                if thread is self._reactor and thread.is_at_epoll():
                    if is_over():
                        return
                    has_waited = True
                    for other in self._others:
                        if other not in self._stepping:
                            self._step(other)
                self._step(thread)
            assert time.monotonic() < end, f"no response after {self.steps} steps"

    def _step(self, thread: _Thread) -> None:
        thread.step()
        self._stepping.append(thread)

    def _note(self, thread: _Thread) -> None:
        """Record the call if the thread has entered a kernel by one."""
        self.steps += 1
        at, top = thread.registers[RIP], thread.registers[RSP]
        mapping = thread.mapping
        if not mapping.start <= at < mapping.end:
            mapping = thread.mapping = self._mappings[bisect.bisect_right(self._starts, at) - 1]
            if mapping.is_vdso:
                thread.reads_monotonic = thread.registers[RDI] == time.CLOCK_MONOTONIC
        if mapping.kernel is None or mapping.kernel == thread.kernel:
            return
        left, thread.kernel = thread.kernel, mapping.kernel
        while thread.stack and thread.stack[-1][1] < top:
            thread.stack.pop()
        if thread.stack and thread.stack[-1][0] == mapping.kernel:
            if left == CLOCK and thread.reads_monotonic:
                self._hold_clock(thread)
            return
        thread.reads_monotonic = False
        is_jump = bool(thread.stack) and thread.stack[-1][1] == top
        if is_jump:
            thread.stack.pop()
        thread.stack.append((mapping.kernel, top))
        place = at - mapping.start + mapping.offset
        if thread is self._reactor and self._is_timer:
            return
        stack = tuple(name for name, _ in thread.stack)
        self.calls.append(Call(thread.tid, stack, place, is_jump))

    def _hold_clock(self, thread: _Thread) -> None:
        if self._now_us is None:
            self._now_us = thread.registers[RAX]
        thread.registers[RAX] = self._now_us
        _ptrace(SET_REGISTERS, thread.tid, ctypes.byref(thread.registers))


def _waits_in_epoll(pid: int, tid: int) -> bool:
    number = Path(f"/proc/{pid}/task/{tid}/syscall").read_text().split()[0]
    return number in map(str, EPOLL_WAITS)


def waits_for_events(pid: int) -> bool:
    """Whether a thread besides the first does. With one reactor, it is the reactor's."""
    tids = map(int, os.listdir(f"/proc/{pid}/task"))
    return sum(tid != pid and _waits_in_epoll(pid, tid) for tid in tids) == 1


def stepper_of(pid: int) -> Stepper:
    """Return a stepper once the reactor of the process waits. It must have one reactor."""
    if platform.machine() != "x86_64":
        raise TraceRefused(f"single steps are read on x86-64 only, not on {platform.machine()}")
    try:
        return Stepper(pid)
    except PermissionError as error:
        raise TraceRefused(f"{error}: let the tests read /proc of their brokers") from error
