"""The producer's side of the wire: one kept-alive connection, one request in flight, and never a wait longer than asked for."""

from __future__ import annotations

import http.client
import select
import time
from dataclasses import dataclass

import msgspec

from traces.address import CollectorAddress

# A collector that commits a backlog on a busy disk answers late; one that is stopped does not answer at all.
PATIENCE = 60.0
_SEND_TIMEOUT = 5.0
PATIENT = {"X-Patient": "1"}


class Answer(msgspec.Struct, frozen=True):
    """The collector's answer to a body of segments. `rejected` are indices of segments it can never read; times are its clock, ns."""

    rejected: list[int] = []
    received: int = 0
    answered: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """`status` 0 means nobody answered. `sent` and `got` are this clock's times around the exchange, ns."""

    status: int
    answer: Answer | None = None
    retry_after: float = 0.0
    sent: int = 0
    got: int = 0

    @property
    def refused(self) -> bool:
        """The body itself is the trouble; sending it again would not help."""
        return self.status in (400, 413, 422)


class Poster:
    """A connection to one collector. Not thread-safe. Failures are replies, never exceptions."""

    def __init__(self, address: CollectorAddress) -> None:
        self.address = address
        self._headers = {**address.headers, "Content-Type": "application/vnd.workbench.segments"}
        self._connection = http.client.HTTPConnection(address.host, address.port, timeout=_SEND_TIMEOUT)
        self._sent = 0
        self._failed = False

    def send(self, body: bytes, patient: bool = False) -> None:
        """Puts a request on the wire. `patient`: the collector may wait for more rows before it commits these."""
        self._sent = time.time_ns()
        self._failed = False
        try:
            self._connection.request("POST", "/v1/segments", body, self._headers | PATIENT if patient else self._headers)
        except (OSError, http.client.HTTPException):
            self._failed = True

    def ready(self, timeout: float) -> bool:
        """Waits up to `timeout` seconds for the answer to the request in flight, or for the end of the patience for it."""
        socket = self._connection.sock
        if self._failed or socket is None:
            return True
        if select.select([socket], [], [], max(0.0, timeout))[0]:
            return True
        self._failed = time.time_ns() - self._sent > PATIENCE * 1e9
        return self._failed

    def receive(self) -> Reply:
        """The answer, after ready()."""
        try:
            if self._failed:
                raise http.client.NotConnected
            response = self._connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException):
            self.close()
            return Reply(0)
        got = time.time_ns()
        if response.status != 200:
            return Reply(response.status, retry_after=_seconds(response.headers.get("Retry-After")))
        try:
            return Reply(200, msgspec.json.decode(content, type=Answer), sent=self._sent, got=got)
        except msgspec.MsgspecError:
            return Reply(0)

    def post(self, body: bytes) -> Reply:
        """Sends and waits."""
        self.send(body)
        self.ready(PATIENCE)
        return self.receive()

    def close(self) -> None:
        self._connection.close()


def _seconds(value: str | None) -> float:
    try:
        return min(60.0, float(value or 0))
    except ValueError:
        return 0.0
