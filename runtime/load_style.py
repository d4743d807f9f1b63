"""How weights come into memory. `stream`, the default, keeps nothing but the targets; the others are how loaders go wrong.

They really do what they are called, on real bytes, so that a drill can show what each of them costs, and the oom-on-load playbook can be
measured. Each is a setting that some engine has, or once had (reference/causes_oom_garbled_image.md, S1.5). The variable
WORKBENCH_DRILL_LOAD_STYLE chooses one, and the rank's log says so; nothing in the store and no fingerprint names it.
"""

from __future__ import annotations

import logging
import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from runtime.load_account import LoadAccount
from runtime.load_facts import record_load_plan
from runtime.load_variable import LOAD_STYLE
from runtime.planner import RankPlan
from traces import schema
from traces.errors import UsageError

if TYPE_CHECKING:
    from runtime.loader import Loader


log = logging.getLogger("runtime.load")
STYLES = ("stream", "whole-files", "every-file", "mapped", "mapped-list", "views", "stack", "construct", "single-thread")
_HELD: list[Any] = []  # what a faulty loader never lets go of


class Style:
    """One load. Files are read through `pread` where the style brings its own."""

    def __init__(self, loader: Loader, plan: RankPlan) -> None:
        self.loader, self.plan = loader, plan
        self.held: list[Any] = []
        self.account = LoadAccount()

    def before(self) -> None:
        """Before the first byte is asked for."""

    def finish(self, targets: dict[str, Tensor]) -> dict[str, Tensor]:
        """After the last byte has arrived."""
        self.loader_event("load_read", **self.account.attrs())
        return targets

    def loader_event(self, kind: str, **attrs: Any) -> None:
        if self.loader.recorder is not None:
            self.loader.recorder.row(schema.EVENT, dur=0, rank=self.loader.rank, kind=kind, attrs=attrs)

    def time_reads(self) -> None:
        settings = self.loader.settings
        self.loader.settings = _with(settings, pread=self.account.timed(settings.pread or os.preadv))


class WholeFiles(Style):
    """Reads each file whole into memory when its first tensor is wanted, and keeps it until the last has been taken."""

    def before(self) -> None:
        sources: dict[int, bytes] = {}

        def pread(descriptor: int, buffers: list[memoryview], offset: int) -> int:
            node = os.fstat(descriptor).st_ino
            if node not in sources:
                sources[node] = Path(f"/proc/self/fd/{descriptor}").read_bytes()
            part = sources[node][offset : offset + len(buffers[0])]
            buffers[0][: len(part)] = part
            return len(part)

        self.held.append(sources)
        self.loader.settings = _with(self.loader.settings, pread=pread, threads=1)


class EveryFile(WholeFiles):
    """Every rank brings in all files, whatever it needs of them."""

    def before(self) -> None:
        super().before()
        self.held.append([path.read_bytes() for path in sorted(self.loader.root.glob("*.safetensors"))])


class MappedList(Style):
    """Maps every file, touches it, and keeps the maps: the list that should have been a generator."""

    def before(self) -> None:
        for path in sorted(self.loader.root.glob("*.safetensors")):
            with path.open("rb") as stream:
                mapped = mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ)
            _HELD.append(mapped)
            sum(mapped[:: mmap.PAGESIZE])


class Mapped(Style):
    """Reads through a mapping, page by page as they are touched; the kernel is told that nobody reads ahead."""

    def before(self) -> None:
        maps: dict[int, mmap.mmap] = {}
        lock = threading.Lock()

        def pread(descriptor: int, buffers: list[memoryview], offset: int) -> int:
            node = os.fstat(descriptor).st_ino
            with lock:
                if node not in maps:
                    maps[node] = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
                    maps[node].madvise(mmap.MADV_RANDOM)
            part = maps[node][offset : offset + len(buffers[0])]
            buffers[0][: len(part)] = part
            return len(part)

        self.held.append(maps)
        self.loader.settings = _with(self.loader.settings, pread=pread, threads=1)


class Views(Style):
    """Every target becomes a view into a larger tensor, whose other part stays in memory as well."""

    def finish(self, targets: dict[str, Tensor]) -> dict[str, Tensor]:
        for name in list(targets):
            targets[name] = _view(targets.pop(name))
        return super().finish(targets)


class Stack(Style):
    """Experts are kept in a list, one tensor each, and stacked when all are there."""

    def finish(self, targets: dict[str, Tensor]) -> dict[str, Tensor]:
        super().finish(targets)
        lists = {name: [slot.clone() for slot in target] for name, target in targets.items() if ".experts." in name}
        for name, slots in lists.items():
            torch.stack(slots, out=targets[name])
        return targets


class Construct(Style):
    """The whole model is built in real memory first, and replaced tensor by tensor afterwards."""

    def before(self) -> None:
        values = sum(os.path.getsize(path) for path in self.loader.root.glob("*.safetensors")) // 2
        self.held.append(torch.zeros(values, dtype=self.loader.dtype).fill_(1))


class SingleThread(Style):
    """One thread, one tensor at a time, small reads."""

    def before(self) -> None:
        self.loader.settings = _with(self.loader.settings, threads=1, chunk=1 << 16)


_CLASSES: dict[str, type[Style]] = {
    "stream": Style,
    "whole-files": WholeFiles,
    "every-file": EveryFile,
    "mapped": Mapped,
    "mapped-list": MappedList,
    "views": Views,
    "stack": Stack,
    "construct": Construct,
    "single-thread": SingleThread,
}


@contextmanager
def loading(loader: Loader, plan: RankPlan) -> Iterator[Style]:
    """Around one load: says what is planned, applies the style, and lets go of what it held. UsageError for an unknown style."""
    name = os.environ.get(LOAD_STYLE, "stream")
    if name not in _CLASSES:
        raise UsageError(f"there is no load style {name!r}", f"{LOAD_STYLE} is one of {', '.join(_CLASSES)}")
    if name != "stream":
        log.warning("%s=%s: this loader goes wrong on purpose; unset it", LOAD_STYLE, name)
    settings = loader.settings
    whole = sum(os.path.getsize(path) for path in loader.root.glob("*.safetensors"))
    record_load_plan(loader.recorder, loader.rank, plan, loader.dtype, whole, loader.beside)
    style = _CLASSES[name](loader, plan)
    try:
        if isinstance(style, EveryFile):
            style.loader_event("load_reading")
            style.before()
        else:
            style.before()
            style.loader_event("load_reading")
        style.time_reads()
        yield style
    finally:
        style.held.clear()
        loader.settings = settings


def _with(settings: Any, **changes: Any) -> Any:
    from dataclasses import replace

    return replace(settings, **changes)


def _view(target: Tensor) -> Tensor:
    """The same values in the same memory order, as the first half of a storage twice as large."""
    whole = torch.empty(2 * target.numel(), dtype=target.dtype, device=target.device).fill_(0)
    view = torch.as_strided(whole, target.shape, target.stride())
    view.copy_(target)
    return view
