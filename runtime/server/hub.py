"""The ranks as the API process sees them: their connections, their load, and the requests they hold."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from runtime import messages as m
from runtime.framing import read_frame
from runtime.layout import Layout
from runtime.server.inflight import Emitted, Inflight, Lost

log = logging.getLogger("runtime.hub")
HELLO_SECONDS = 10.0
MAX_HELLO = 4 << 10  # bytes: whoever connects is a stranger until it has said the token


@dataclass(slots=True)
class RankState:
    """One rank. `outstanding`: prompt and answer tokens of its requests that are still to be computed, at most."""

    rank: int
    pid: int = 0
    host: str = ""
    writer: asyncio.StreamWriter | None = None
    progress: m.Progress | None = None
    ready: m.Ready | None = None
    outstanding: int = 0
    taken: int = 0  # requests it has been given so far
    step: int = 0
    running: int = 0
    waiting: int = 0
    kv_used: int = 0
    preemptions: int = 0

    def send(self, message: m.Message) -> None:
        if self.writer is not None and not self.writer.is_closing():
            self.writer.write(m.frame(message))


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a rank is no good any more. `error` is for a person; exit_code 2 when the input is to blame."""

    rank: int
    error: str
    hint: str = ""
    exit_code: int = 1
    expected: bool = False  # a sentence was sent before the end: no need to ask for a signal


Listener = Callable[[m.Applied | m.Staged], None]


@dataclass(slots=True)
class Hub:
    """Listens for the ranks. `ready` and `trouble` are resolved once."""

    layout: Layout
    token: str
    states: list[RankState] = field(init=False)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    trouble: asyncio.Future[Trouble] = field(init=False)
    requests: dict[int, Inflight] = field(default_factory=dict)
    progress_listener: Callable[[m.Progress], None] | None = None
    control_listener: Listener | None = None
    closing: bool = False
    _server: asyncio.Server | None = None
    _wake: int = 0
    _next_id: int = 0

    @property
    def world(self) -> int:
        return self.layout.world

    @property
    def leaders(self) -> list[RankState]:
        """The rank of each replica that takes requests, and speaks for it."""
        return [self.states[rank] for rank in self.layout.leaders]

    def __post_init__(self) -> None:
        self.states = [RankState(rank) for rank in range(self.world)]
        self.trouble = asyncio.get_running_loop().create_future()

    async def listen(self, host: str = "127.0.0.1") -> str:
        """Starts to listen; the address for the ranks as host:port."""
        self._server = await asyncio.start_server(self._serve, host, 0, limit=1 << 20)
        port = self._server.sockets[0].getsockname()[1]
        return f"{host}:{port}"

    async def close(self) -> None:
        self.closing = True
        for state in self.states:
            if state.writer is not None:
                state.writer.close()
        if self._server is not None:
            self._server.close()

    # --- requests ----------------------------------------------------------------------------------------------------

    def next_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def submit(self, request: Inflight, submit: m.Submit) -> None:
        """Hands a request to its rank and wakes the others, who compute their experts' share of it."""
        state = self.states[request.rank]
        request.outstanding = request.prompt_tokens + request.max_tokens
        request.prompt_left = request.prompt_tokens
        state.outstanding += request.outstanding
        state.taken += 1
        self.requests[request.id] = request
        request.trace.at_rank()
        state.send(msgspec.structs.replace(submit, wake=self.next_wake()))
        self.wake(but=request.rank)

    def next_wake(self) -> int:
        self._wake += 1
        return self._wake

    def wake(self, but: int | None = None) -> None:
        for state in self.states:
            if state.rank != but:
                state.send(m.Wake(self._wake))

    def broadcast(self, message: m.Message) -> None:
        for state in self.states:
            state.send(message)

    def cancel(self, request: Inflight) -> None:
        """The client is gone or has enough. The rank's last stage still comes."""
        if not request.over:
            self.states[request.rank].send(m.Cancel(request.id))

    def stop_ranks(self) -> None:
        """They end together, at the next header."""
        self.closing = True
        self.broadcast(m.Stop(self.next_wake()))

    def fail_all(self, message: str) -> None:
        """Every request in flight gets an error."""
        for request in list(self.requests.values()):
            request.tokens.put_nowait(Lost(message))
            self._over(request)

    def _over(self, request: Inflight) -> None:
        request.over = True
        self.requests.pop(request.id, None)
        self.states[request.rank].outstanding -= request.outstanding
        request.outstanding = 0
        request.trace.rank_done()

    # --- frames ------------------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        state = None
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                state = self._admit(await self._read(reader, MAX_HELLO), writer)
            while state is not None:
                self._handle(state, await self._read(reader))
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            if state is not None and not self.closing:
                self._report(Trouble(state.rank, "the process ended without a word"))
        except msgspec.MsgspecError as error:
            log.error("a frame that is none of ours: %s", error)
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader, largest: int = m.MAX_FRAME) -> m.FromRank:
        return m.decode_from_rank(await read_frame(reader, largest))

    def _admit(self, hello: m.FromRank, writer: asyncio.StreamWriter) -> RankState | None:
        known = isinstance(hello, m.Hello) and hmac.compare_digest(hello.token.encode(), self.token.encode())
        if not known or not isinstance(hello, m.Hello) or not 0 <= hello.rank < self.world:
            log.error("a connection without the ranks' token was closed")
            return None
        state = self.states[hello.rank]
        state.pid, state.host, state.writer = hello.pid, hello.host, writer
        return state

    def _handle(self, state: RankState, message: m.FromRank) -> None:
        if isinstance(message, m.StepOutput):
            self._step(state, message)
        elif isinstance(message, m.Applied | m.Staged):
            if self.control_listener:
                self.control_listener(message)
        elif isinstance(message, m.Failed):
            if request := self.requests.get(message.id):
                request.tokens.put_nowait(Lost(message.error))
                self._over(request)
        elif isinstance(message, m.Progress | m.Ready):
            self._starting(state, message)
        else:
            self._ending(state, message)

    def _starting(self, state: RankState, message: m.Progress | m.Ready) -> None:
        if isinstance(message, m.Ready):
            state.ready = message
            if all(s.ready for s in self.states):
                self.ready.set()
            return
        state.progress = message
        if self.progress_listener:
            self.progress_listener(message)

    def _ending(self, state: RankState, message: m.FromRank) -> None:
        if isinstance(message, m.LoadFailed):
            self._report(Trouble(state.rank, message.message, message.hint, message.exit_code, expected=True))
        elif isinstance(message, m.Died):
            self._report(Trouble(state.rank, message.error, expected=True))
        elif isinstance(message, m.PeerLost):
            log.warning("rank %d lost a peer: %s", state.rank, message.error)

    def _report(self, trouble: Trouble) -> None:
        if not self.trouble.done() and not self.closing:
            self.trouble.set_result(trouble)

    def _step(self, state: RankState, output: m.StepOutput) -> None:
        state.step, state.running, state.waiting = output.step, output.running, output.waiting
        state.kv_used = output.kv_used
        state.preemptions += output.preempted
        for stage in output.stages:
            if request := self.requests.get(stage.id):
                self._stage(state, request, stage)
        for token in output.tokens:
            if request := self.requests.get(token.id):
                self._token(state, request, token, output.ts)
        for number in output.ended:
            if request := self.requests.get(number):
                self._over(request)

    def _stage(self, state: RankState, request: Inflight, stage: m.Stage) -> None:
        request.trace.rank_stage(stage)
        if stage.name == "queue":
            request.queued, request.began = stage.end - stage.start, stage.end
        elif stage.name == "prefill":
            found = int(stage.attributes.get("cached_tokens", 0))
            if request.cached is None:
                request.cached = found
            self._computed(state, request, min(found + stage.tokens, request.prompt_left))
        request.preemptions += stage.name == "preempted"

    def _computed(self, state: RankState, request: Inflight, prompt: int, answer: int = 0) -> None:
        """Tokens that need not be computed any more."""
        request.prompt_left -= prompt
        request.outstanding -= prompt + answer
        state.outstanding -= prompt + answer

    def _token(self, state: RankState, request: Inflight, token: m.Token, ts: int) -> None:
        self._computed(state, request, request.prompt_left, 1)
        if request.first_token is None:
            request.first_token = ts
        request.last_token = ts
        request.generated = token.index + 1
        request.tokens.put_nowait(Emitted(token, ts))
        if token.finish:
            self._over(request)
