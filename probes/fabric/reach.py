"""Who reaches whom before any library is asked: real connects, datagrams of growing size, and a stream over each interface. No torch.

Every rank listens (`Listener`) on all its addresses; the others connect to the address that its collective library would use. A size of
datagram that is lost while smaller ones pass is a black hole for large packets: no error ever comes back from one.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import threading
import time

import msgspec
import psutil

from probes.machine import shared_memory

CONNECT = 3.0  # seconds; a silent drop shows as a connect that does not end
DATAGRAM = 0.3  # seconds for an answer
TRIES = 3
HEADERS = 28  # bytes of IPv4 and UDP in front of a datagram
SIZES = (576, 1280, 1500, 4000, 8900)  # bytes of the whole packet; and the interface's own MTU
STREAM, STREAM_SECONDS = 8 << 20, 0.5
_MTU_DISCOVER, _PROBE = 10, 3  # linux/in.h: IP_MTU_DISCOVER, IP_PMTUDISC_PROBE (do not fragment, no cached path MTU)


class Interface(msgspec.Struct, frozen=True):
    """An interface that is up and has an IPv4 address. The loopback is left out."""

    name: str
    address: str
    network: str  # 10.0.0.0/24
    mtu: int


class Place(msgspec.Struct, frozen=True):
    """Where a rank is and how it is reached. `host` differs wherever traffic must leave a network stack."""

    rank: int
    host: str
    address: str
    named: str  # what the host's name resolves to; empty where it does not
    interface: str  # that has `address`; empty for none
    port: int  # TCP and UDP
    interfaces: list[Interface]
    node: str = ""
    shm_size: int | None = None  # bytes of /dev/shm there, and of these free; null where there is none
    shm_free: int | None = None


class Reach(msgspec.Struct, frozen=True):
    """From src to dst. `seconds` to connect, null with the reason in `why`; sizes of packets, bytes, that were answered or not."""

    src: int
    dst: int
    seconds: float | None
    why: str = ""
    passed: list[int] = []
    lost: list[int] = []

    @property
    def swallows(self) -> bool:
        """Large packets vanish where small ones pass."""
        return bool(self.lost) and bool(self.passed) and max(self.passed) < min(self.lost)

    @property
    def cut(self) -> bool:
        """It cannot connect, or large packets vanish: a collective library would wait in vain."""
        return self.seconds is None or self.swallows


class Carried(msgspec.Struct, frozen=True):
    """Bytes per second of a plain TCP stream from src to dst over one interface, null where it did not end in time; `used`: the one that
    the collective library takes.
    """

    src: int
    dst: int
    interface: str
    bandwidth: float | None
    used: bool


class Listener:
    """Answers connects, streams and datagrams on one port of all addresses until it is closed."""

    def __init__(self) -> None:
        self._tcp = socket.create_server(("0.0.0.0", 0), backlog=256)
        self.port = int(self._tcp.getsockname()[1])
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind(("0.0.0.0", self.port))
        for work in (self._accept, self._answer):
            threading.Thread(target=work, name="fabric-listener", daemon=True).start()

    def close(self) -> None:
        for one in (self._tcp, self._udp):
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._tcp.accept()
            except OSError:
                return
            threading.Thread(target=_drain, args=(peer,), daemon=True).start()

    def _answer(self) -> None:
        while True:
            try:
                data, peer = self._udp.recvfrom(65_535)
                self._udp.sendto(struct.pack("!I", len(data)), peer)
            except OSError:
                return


def _drain(peer: socket.socket) -> None:
    """Reads to the end of what is sent, then answers with one byte."""
    with peer:
        peer.settimeout(30)
        try:
            while peer.recv(1 << 18):
                pass
            peer.sendall(b"x")
        except OSError:
            return


def place(rank: int, port: int, node: str = "") -> Place:
    """This rank's place, with the address that gloo binds: of the interface that GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME names, else
    what the host's name resolves to, else the loopback.
    """
    found = interfaces()
    wanted = os.environ.get("GLOO_SOCKET_IFNAME") or os.environ.get("NCCL_SOCKET_IFNAME") or ""
    try:
        named = socket.gethostbyname(socket.gethostname())
    except OSError:
        named = ""
    by_name = {one.name: one.address for one in found}
    address = by_name.get(wanted.split(",")[0].lstrip("="), "") if wanted else named or "127.0.0.1"
    interface = next((one.name for one in found if one.address == address), "")
    host = f"{socket.gethostname()} {os.readlink('/proc/self/ns/net')}"
    shm = shared_memory()
    return Place(rank, host, address, named, interface, port, found, node, shm["size"], shm["free"])


def interfaces() -> list[Interface]:
    stats = psutil.net_if_stats()
    found = []
    for name, addresses in psutil.net_if_addrs().items():
        for one in addresses:
            if one.family == socket.AF_INET and stats[name].isup and not ipaddress.ip_address(one.address).is_loopback:
                network = ipaddress.ip_network(f"{one.address}/{one.netmask}", strict=False)
                found.append(Interface(name, one.address, str(network), stats[name].mtu))
    return found


def reach(src: Place, dst: Place) -> Reach:
    """One connect, then datagrams up to what both interfaces say they carry."""
    if not dst.address:
        return Reach(src.rank, dst.rank, None, "it has no interface of the name that is set")
    began = time.perf_counter()
    try:
        with socket.create_connection((dst.address, dst.port), timeout=CONNECT) as link:
            link.shutdown(socket.SHUT_WR)
            if link.recv(1) != b"x":
                return Reach(src.rank, dst.rank, None, "somebody else answered")
    except TimeoutError:
        return Reach(src.rank, dst.rank, None, "no answer")
    except OSError as error:
        return Reach(src.rank, dst.rank, None, error.strerror or str(error))
    seconds = time.perf_counter() - began
    most = min((one.mtu for at in (src, dst) for one in at.interfaces if one.name == at.interface), default=0)
    passed: list[int] = []
    lost: list[int] = []
    for size in sorted({*(size for size in SIZES if size < most), most} - {0}):
        (passed if _answered(dst, size) else lost).append(size)
    return Reach(src.rank, dst.rank, seconds, "", passed, lost)


def _answered(dst: Place, size: int) -> bool:
    payload = min(size - HEADERS, 65_000)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.setsockopt(socket.IPPROTO_IP, _MTU_DISCOVER, _PROBE)
        probe.settimeout(DATAGRAM)
        probe.connect((dst.address, dst.port))
        for _ in range(TRIES):
            try:
                probe.send(bytes(payload))
                if struct.unpack("!I", probe.recv(4))[0] == payload:
                    return True
            except (OSError, struct.error):
                continue
    return False


def carried(src: Place, dst: Place) -> list[Carried]:
    """A stream over every interface that has a network in common with one of dst's. Fewer than two: there is nothing to compare.

    One address on both hosts (docker0) is a network that each has for itself.
    """
    shared = [
        (mine, theirs)
        for mine in src.interfaces
        for theirs in dst.interfaces
        if mine.network == theirs.network and mine.address != theirs.address
    ]
    if len(shared) < 2:
        return []
    return [
        Carried(src.rank, dst.rank, mine.name, _stream(mine.address, (theirs.address, dst.port)), mine.name == src.interface)
        for mine, theirs in shared
    ]


def _stream(source: str, target: tuple[str, int]) -> float | None:
    block, sent = bytes(1 << 18), 0
    try:
        with socket.create_connection(target, timeout=CONNECT, source_address=(source, 0)) as link:
            link.settimeout(10)
            began = time.perf_counter()
            while sent < STREAM and time.perf_counter() - began < STREAM_SECONDS:
                link.sendall(block)
                sent += len(block)
            link.shutdown(socket.SHUT_WR)
            return sent / (time.perf_counter() - began) if link.recv(1) == b"x" else None
    except OSError:
        return None
