"""A rank's connection to the API process: frames out from any thread, frames in between two steps."""

from __future__ import annotations

import select
import socket
import threading

from runtime import messages as m
from runtime.framing import take_frames

READ = 1 << 18


class ApiGone(Exception):
    """The API process closed the connection: there is nobody left to serve for."""


class Link:
    """One socket. `send` blocks; `poll` never does."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = bytearray()
        self._sending = threading.Lock()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @classmethod
    def connect(cls, address: str, token: str, rank: int, pid: int) -> Link:
        """Raises OSError when the API process is not there."""
        host, _, port = address.rpartition(":")
        connection = socket.create_connection((host, int(port)), timeout=30)
        connection.settimeout(None)
        link = cls(connection)
        link.send(m.Hello(token, rank, pid, socket.gethostname()))
        return link

    def send(self, message: m.Message) -> None:
        """Raises ApiGone."""
        try:
            with self._sending:
                self._socket.sendall(m.frame(message))
        except OSError as error:
            raise ApiGone(str(error)) from error

    def wait(self, timeout: float) -> bool:
        """Sleeps until something has arrived, at most `timeout` seconds."""
        readable, _, _ = select.select([self._socket], [], [], timeout)
        return bool(readable)

    def poll(self) -> list[m.ToRank]:
        """Every frame that is complete by now. Raises ApiGone."""
        while True:
            try:
                data = self._socket.recv(READ, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except OSError as error:
                raise ApiGone(str(error)) from error
            if not data:
                raise ApiGone("the API process closed the connection")
            self._buffer += data
        return [m.decode_to_rank(body) for body in take_frames(self._buffer)]

    def close(self) -> None:
        self._socket.close()
