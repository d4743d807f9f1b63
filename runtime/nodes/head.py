"""The head node's side: lets the other nodes in, hands them what their ranks need, and hears of their deaths."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from runtime.layout import Layout
from runtime.nodes.frames import (
    MAX_JOIN,
    Challenge,
    CollectorAt,
    Fingerprint,
    FrameKind,
    Goodbye,
    Join,
    NodeEnded,
    RankDied,
    Refused,
    Welcome,
    Wire,
    proof,
)  # fmt: skip
from runtime.rank_processes import Death
from traces.errors import UsageError
from traces.run import Run

log = logging.getLogger("runtime.nodes")
HANDSHAKE_SECONDS = 10.0
LOOK_SECONDS = 0.5


@dataclass(slots=True)
class Member:
    """A node that has joined."""

    node: int
    host: str
    wire: Wire
    ended: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class HeadNode:
    """`lost` is resolved with a sentence when a node goes away unasked."""

    nodes: int
    layout: Layout
    token: bytes
    run: Run
    on_death: Callable[[Death], None]
    on_join: Callable[[str], None]
    members: dict[int, Member] = field(default_factory=dict)
    lost: asyncio.Future[str] = field(init=False)
    closing: bool = False
    _welcome: asyncio.Future[Welcome] = field(init=False)  # what is the same for all nodes
    _server: asyncio.Server | None = None
    _watch: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.lost, self._welcome = loop.create_future(), loop.create_future()

    @property
    def ranks(self) -> int:
        """Of each node."""
        return self.layout.world // self.nodes

    async def listen(self, host: str, port: int) -> None:
        """UsageError when the address is not this host's, or taken."""
        try:
            self._server = await asyncio.start_server(self._serve, host, port)
        except OSError as error:
            hint = "--head names an address of node 0 that the other nodes can reach"
            raise UsageError(f"cannot wait for the other nodes on {host}:{port}: {error.strerror}", hint) from error

    def open(self, welcome: Welcome) -> None:
        """From now on nodes that have joined are sent to work."""
        self._welcome.set_result(welcome)
        self._watch = asyncio.create_task(self._follow_collector(welcome.collector))

    async def close(self, goodbye: Goodbye, patience: float) -> None:
        """Waits until the other nodes' ranks are gone, and lets the nodes go."""
        self.closing = True
        for member in self.members.values():
            member.wire.send(goodbye)
        waits = [asyncio.ensure_future(member.ended.wait()) for member in self.members.values()]
        if waits:
            _, late = await asyncio.wait(waits, timeout=patience)
            for wait in late:
                wait.cancel()
        if self._watch is not None:
            self._watch.cancel()
        for member in self.members.values():
            await member.wire.close()
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = Wire(reader, writer)
        member = None
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                member = await self._admit(wire)
            if member is None:
                await wire.close()
                return
            welcome = await asyncio.shield(self._welcome)
            wire.send(_for_node(welcome, member.node, self.ranks))
            while True:
                self._handle(member, await wire.read())
        except (ConnectionError, TimeoutError) as error:
            if member is None:
                log.warning("a connection that did not join: %s", error)
                writer.close()
                return
            member.ended.set()
            if not self.closing and not self.lost.done():
                self.lost.set_result(f"node {member.node} ({member.host}) is gone")

    async def _admit(self, wire: Wire) -> Member | None:
        nonce = secrets.token_bytes(32)
        wire.send(Challenge(nonce))
        join = await wire.read(MAX_JOIN)
        if not isinstance(join, Join) or not hmac.compare_digest(join.proof, proof(self.token, nonce, join.node)):
            log.error("a node without the job's token was refused")
            wire.send(Refused("the head does not know this node: the join tokens differ", "set the same token on every node"))
            return None
        if word := self._misfit(join):
            wire.send(Refused(word, "start every node with the same --nodes, --tp, --pp, --dp and --ep, and a --node-rank of its own"))
            return None
        member = self.members[join.node] = Member(join.node, join.host, wire)
        self.on_join(f"node {join.node} ({join.host}) is here")
        return member

    def _misfit(self, join: Join) -> str:
        if join.nodes != self.nodes:
            return f"node {join.node} expects {join.nodes} nodes, the head {self.nodes}"
        if not 0 < join.node < self.nodes:
            return f"there is no node {join.node} among {self.nodes}"
        if join.node in self.members:
            return f"node {join.node} is here already, from {self.members[join.node].host}"
        if join.layout != self.layout.sizes():
            return f"node {join.node} was started with another layout ({_words(join.layout)}) than the head ({_words(self.layout.sizes())})"
        return ""

    def _handle(self, member: Member, frame: FrameKind) -> None:
        if isinstance(frame, RankDied):
            self.on_death(Death(frame.rank, frame.pid, frame.exit_code, f"{member.host}:{frame.log}"))
        elif isinstance(frame, Fingerprint):
            self.run.add_fingerprint(frame.producer, frame.facts)
        elif isinstance(frame, NodeEnded):
            member.ended.set()

    async def _follow_collector(self, known: CollectorAt | None) -> None:
        """A restarted collector has another port."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            found = collector_at(self.run)
            if found is not None and found != known:
                known = found
                for member in self.members.values():
                    member.wire.send(found)


def collector_at(run: Run) -> CollectorAt | None:
    """Where the run's collector is now."""
    address = run.collector()
    return None if address is None else CollectorAt(address.host, address.port, address.pid, address.machine, address.token)


def resolve(head: str, default_port: int) -> tuple[str, int]:
    """HOST or HOST:PORT -> an address and a port. UsageError when it cannot be found."""
    host, _, port = head.rpartition(":") if head.count(":") == 1 else (head, "", "")
    try:
        number = int(port) if port else default_port
        return str(socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0][4][0]), number
    except (OSError, ValueError, OverflowError) as error:
        hint = "give the head's host name or address, and :PORT if it is not the usual"
        raise UsageError(f"--head {head} is no address: {error}", hint) from error


def _for_node(welcome: Welcome, node: int, ranks: int) -> Welcome:
    return msgspec.structs.replace(welcome, first=node * ranks, ranks=ranks)


def _words(layout: dict[str, int]) -> str:
    return " ".join(f"{name} {size}" for name, size in layout.items())
