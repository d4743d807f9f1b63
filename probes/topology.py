"""How devices of one machine are joined, as the vendors' tools print it: `nvidia-smi topo -m`, `npu-smi info -t topo`, `mthreads-gmi
topo -m`, `rocm-smi --showtopotype`, and `amd-smi topology --json`.

All of them but the last are tables: a line of names, then a line a device with one word for each. Nothing is measured here.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

from traces.errors import UsageError

TOOLS = (
    ("nvidia-smi", ("topo", "-m")),
    ("npu-smi", ("info", "-t", "topo")),
    ("mthreads-gmi", ("topo", "-m")),
    ("amd-smi", ("topology", "--json")),
    ("rocm-smi", ("--showtopotype",)),
)
"""Which tool is asked, first found first. Forms: reference of each tool; sources in the tests."""

PEER, HOST = "peer", "host"
# Words for a link of the vendor's own between devices; those that go through PCIe, and through the processor, are HOST.
_OWN = re.compile(r"(NV\d+|MT\d+|MLK\d*|HCCS(_SW)?|XGMI|SIO)$")
_NAME = re.compile(r"(GPU|NPU|MLU|NIC)\d+$|mlx5_\d+$|card\d+$", re.IGNORECASE)
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Topology:
    """`links`: (device, device) -> the tool's word for what joins them, both ways, without a device and itself."""

    devices: tuple[str, ...]
    links: dict[tuple[str, str], str]
    affinity: dict[str, str]  # device -> CPUs near it, where the tool tells

    def joined(self, a: str, b: str) -> str:
        """PEER for a link of the vendor's own, HOST for a way through PCIe or the processor; "" where the tool does not tell."""
        word = self.links.get((a, b), "")
        return "" if word in ("", "NA", "N/A") else PEER if _OWN.match(word) else HOST


def parse(text: str) -> Topology:
    """Of what one of the tools printed. Raises UsageError for anything else."""
    text = _ESCAPES.sub("", text)
    found = _json(text) if text.lstrip().startswith(("[", "{")) else _table(text)
    if found is None:
        raise UsageError("this is no topology of devices", f"known: {', '.join(tool for tool, _ in TOOLS)}")
    return found


def read(timeout: float = 20.0) -> Topology | None:
    """From the first tool that is installed here; None where there is none, or it fails."""
    for tool, argv in TOOLS:
        if path := shutil.which(tool):
            try:
                said = subprocess.run([path, *argv], capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
                return parse(said.stdout)
            except (OSError, subprocess.TimeoutExpired, UsageError):
                continue
    return None


def _table(text: str) -> Topology | None:
    lines = text.splitlines()
    head = next((number for number, line in enumerate(lines) if len(_names(line)) >= 2 and not _starts_a_row(line)), None)
    if head is None:
        return None
    columns = _names(lines[head])
    devices: list[str] = []
    links: dict[tuple[str, str], str] = {}
    affinity: dict[str, str] = {}
    for line in lines[head + 1 :]:
        words = line.split()
        if not words or not _NAME.match(words[0]):
            if devices and words:
                break  # the legend
            continue
        if len(words) < len(columns) + 1:
            return None
        devices.append(words[0])
        joined = zip(columns, words[1:], strict=False)
        links |= {(words[0], other): word for other, word in joined if word.upper() != "X" and other != words[0]}
        if len(words) > len(columns) + 1:
            affinity[words[0]] = words[len(columns) + 1]
    return Topology(tuple(devices), links, affinity) if len(devices) >= 2 else None


def _names(line: str) -> list[str]:
    return [word for word in line.split() if _NAME.match(word)]


def _starts_a_row(line: str) -> bool:
    """A row begins with one name, and what follows are words for links."""
    words = line.split()
    return len(words) > 1 and bool(_NAME.match(words[0])) and not _NAME.match(words[1])


def _json(text: str) -> Topology | None:
    """`amd-smi topology --json`: a list of devices, each with `links` to the others."""
    try:
        document: Any = json.loads(text)
        cards = document if isinstance(document, list) else document["gpus"] if "gpus" in document else document["topology"]
        devices = tuple(f"GPU{int(card['gpu'])}" for card in cards)
        links = {
            (f"GPU{int(card['gpu'])}", f"GPU{int(link['gpu'])}"): str(link["link_type"])
            for card in cards
            for link in card["links"]
            if link["gpu"] != card["gpu"]
        }
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return Topology(devices, links, {}) if devices else None
