"""Real hosts on one machine: network namespaces on a bridge, each with an interface of its own whose link can be shaped.

Needs root and iproute2 (`ip`, `tc`). The bridge lives in a namespace too: nothing is made in the machine's own. Names carry the process
id, so that what a crash left behind is found and removed by the next lab.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field

from traces.errors import UsageError

PREFIX = "wb"
NETWORK, SLOW_NETWORK = "10.83.0", "10.84.0"
LARGE_FRAMES = 9000
BURST = "64kb"  # a larger burst hides the limit from messages of a megabyte (reference/fault_lab.md)


def unavailable() -> str:
    """Why there can be no lab here; empty when there can."""
    if os.geteuid() != 0:
        return "namespaces need root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} missing: apt-get install iproute2"
    name = f"{PREFIX}{os.getpid()}try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return "" if made.returncode == 0 else f"namespaces cannot be made: {made.stderr.strip()}"


@dataclass(slots=True)
class Hosts:
    """`count` of them, reachable from one another at `address(i)`. A context manager: at its end everything is gone.

    `second`: every host has another interface, mgmt0, on a switch of its own. `halves`: the first and the second half of the hosts are on
    two switches with one link between them.
    """

    count: int
    second: bool = False
    halves: bool = False
    _names: list[str] = field(default_factory=list)

    def __enter__(self) -> Hosts:
        if reason := unavailable():
            raise UsageError(reason, "run as root on a machine with iproute2, or in a privileged container")
        remove_leftovers()
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def name(self, host: int) -> str:
        return f"{PREFIX}{os.getpid()}h{host}"

    def address(self, host: int) -> str:
        return f"{NETWORK}.{host + 1}"

    def second_address(self, host: int) -> str:
        return f"{SLOW_NETWORK}.{host + 1}"

    def command(self, host: int, argv: Sequence[str]) -> list[str]:
        """The argv that runs `argv` on a host."""
        return ["ip", "netns", "exec", self.name(host), *argv]

    def shape_sending(self, host: int, megabits: float) -> None:
        """What a host sends passes a token bucket."""
        _run("ip", "netns", "exec", self.name(host), *_bucket("eth0", megabits))

    def shape_receiving(self, host: int, megabits: float) -> None:
        """What a host receives passes one, at the switch."""
        _run("ip", "netns", "exec", self._hub, *_bucket(f"p{host}", megabits))

    def shape_second(self, megabits: float) -> None:
        """The second interface of every host, in both directions."""
        for host in range(self.count):
            _run(*self.command(host, _bucket("mgmt0", megabits)))
            _run("ip", "netns", "exec", self._hub, *_bucket(f"m{host}", megabits))

    def shape_between_halves(self, megabits: float) -> None:
        """The link between the switches, in both directions."""
        for device in ("up0", "up1"):
            _run("ip", "netns", "exec", self._hub, *_bucket(device, megabits))

    def police_sending(self, host: int, megabits: float) -> None:
        """What a host sends above the rate is thrown away after the shortest of queues, as a policer does."""
        bucket = ["tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", f"{megabits:g}mbit", "burst", "16kb", "limit", "24kb"]
        _run(*self.command(host, bucket))

    def drop_between(self, a: int, b: int) -> None:
        """Frames between two hosts vanish at the switch, without a word; all others pass (both ports are isolated)."""
        links = {}
        for host in (a, b):
            told = subprocess.run(["ip", "-j", "-n", self.name(host), "link", "show", "eth0"], capture_output=True, text=True, check=True)
            links[host] = json.loads(told.stdout)[0]["address"]
            _run("ip", "-n", self._hub, "link", "set", "dev", f"p{host}", "type", "bridge_slave", "isolated", "on")
        for host, other in ((a, b), (b, a)):  # else a host without an answer to its ARP request would be told so
            known = ("lladdr", links[other], "dev", "eth0", "nud", "permanent")
            _run("ip", "-n", self.name(host), "neigh", "replace", self.address(other), *known)

    def cut(self, host: int) -> None:
        """The cable of a host is pulled at the switch."""
        _run("ip", "-n", self._hub, "link", "set", f"p{host}", "down")

    def lose_large_frames(self, host: int) -> None:
        """Everybody sends frames of 9000 bytes; the switch port of one host carries 1500 and says nothing."""
        for other in range(self.count):
            # One segment a packet: else the kernel hands large packets over whole and the port's limit is never asked.
            _run("ip", "-n", self.name(other), "link", "set", "eth0", "mtu", str(LARGE_FRAMES), "gso_max_segs", "1")
            if other != host:
                _run("ip", "-n", self._hub, "link", "set", f"p{other}", "mtu", str(LARGE_FRAMES))

    def small_frames(self, host: int, size: int) -> None:
        """A host sends and announces frames of `size` bytes."""
        _run("ip", "-n", self.name(host), "link", "set", "eth0", "mtu", str(size), "gso_max_segs", "1")

    def close(self) -> None:
        for name in self._names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        self._names.clear()

    @property
    def _hub(self) -> str:
        return f"{PREFIX}{os.getpid()}hub"

    def _build(self) -> None:
        self._add(self._hub)
        switches = ["br0", *(["br1"] if self.halves else []), *(["brm"] if self.second else [])]
        for switch in switches:
            _run("ip", "-n", self._hub, "link", "add", switch, "type", "bridge")
            _run("ip", "-n", self._hub, "link", "set", switch, "up")
        if self.halves:
            _run("ip", "-n", self._hub, "link", "add", "up0", "type", "veth", "peer", "name", "up1")
            for device, switch in (("up0", "br0"), ("up1", "br1")):
                _run("ip", "-n", self._hub, "link", "set", device, "master", switch, "up")
        for host in range(self.count):
            name = self.name(host)
            self._add(name)
            self._plug(host, f"p{host}", "eth0", "br1" if self.halves and host >= self.count // 2 else "br0", NETWORK)
            if self.second:
                self._plug(host, f"m{host}", "mgmt0", "brm", SLOW_NETWORK)
            _run("ip", "-n", name, "link", "set", "lo", "up")

    def _plug(self, host: int, port: str, interface: str, switch: str, network: str) -> None:
        name = self.name(host)
        _run("ip", "-n", self._hub, "link", "add", port, "type", "veth", "peer", "name", interface, "netns", name)
        _run("ip", "-n", self._hub, "link", "set", port, "master", switch, "up")
        _run("ip", "-n", name, "address", "add", f"{network}.{host + 1}/24", "dev", interface)
        _run("ip", "-n", name, "link", "set", interface, "up")

    def _add(self, name: str) -> None:
        _run("ip", "netns", "add", name)
        self._names.append(name)


def remove_leftovers() -> list[str]:
    """Namespaces of labs whose process is gone are removed. Their names."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    removed = []
    for name in re.findall(rf"^({PREFIX}(\d+)(?:h\d+|hub|try))\b", listed, re.MULTILINE):
        if not os.path.exists(f"/proc/{name[1]}"):
            subprocess.run(["ip", "netns", "del", name[0]], capture_output=True)
            removed.append(name[0])
    return removed


def _bucket(device: str, megabits: float) -> list[str]:
    return ["tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate", f"{megabits:g}mbit", "burst", BURST, "latency", "200ms"]


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise UsageError(f"`{' '.join(argv)}` failed: {done.stderr.strip()}", "namespaces need root and iproute2")
