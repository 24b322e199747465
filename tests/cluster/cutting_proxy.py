"""A proxy in front of a server that cuts a connection at a chosen byte, or loses an answer."""

from __future__ import annotations

import contextlib
import socket
import threading


class CuttingProxy:
    """Passes bytes on, until it has passed as many as `cut_after` allows.

    A connection that is cut passes nothing more, on neither side, and is closed. The next one
    passes everything again.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._lock = threading.Lock()
        self._allowed: dict[str, int] = {}
        self._open: list[socket.socket] = []
        self.cuts = 0
        self.passed = {"request": 0, "answer": 0}
        self._accepts = True
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_after(self, *, requests: int | None = None, answers: int | None = None) -> None:
        """Pass so many bytes more of requests, or of answers, and then cut, once."""
        with self._lock:
            given = {"request": requests, "answer": answers}
            self._allowed = {kind: size for kind, size in given.items() if size is not None}

    def refuse(self, *, is_refusing: bool = True) -> None:
        """Close each new connection at once, and those there are."""
        with self._lock:
            self._accepts = not is_refusing
            gone, self._open = (self._open, []) if is_refusing else ([], self._open)
        for one in gone:
            _close(one)

    def close(self) -> None:
        """End it, with its connections."""
        self.refuse()
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            with self._lock:
                accepts = self._accepts
            if not accepts:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open += [client, server]
            cut = threading.Event()
            for kind, source, sink in (("request", client, server), ("answer", server, client)):
                threading.Thread(
                    target=self._pass, args=(kind, source, sink, cut), daemon=True
                ).start()

    def _pass(
        self, kind: str, source: socket.socket, sink: socket.socket, cut: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                passed, is_cut = self._take(kind, len(data), cut)
                sink.sendall(data[:passed])
                if is_cut:
                    break
        _close(source)
        _close(sink)

    def _take(self, kind: str, size: int, cut: threading.Event) -> tuple[int, bool]:
        """Return how many bytes pass, and whether the connection is cut behind them."""
        with self._lock:
            if cut.is_set():  # the other side is about to close both
                return 0, False
            allowed = self._allowed.get(kind)
            if allowed is not None and allowed <= size:
                size, self._allowed = allowed, {}
                self.cuts += 1
                cut.set()
            elif allowed is not None:
                self._allowed[kind] = allowed - size
            self.passed[kind] += size
            return size, cut.is_set()


def _close(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
