"""How weights come into memory. `stream`, the default, keeps nothing but the targets; the others are how loaders go wrong.

They really do what they are called, on real bytes, so that a drill can show what each of them costs, and the oom-on-load playbook can be
measured. Each is a setting that some engine has, or once had (reference/causes_oom_garbled_image.md, S1.5). The variable
WORKBENCH_DRILL_LOAD_STYLE chooses one, and the rank's log says so; nothing in the store and no fingerprint names it.
"""

from __future__ import annotations

import logging
import mmap
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from runtime.load_account import LoadAccount
from runtime.load_facts import SHARED, placing_facts, record_load_plan
from runtime.load_variable import LOAD_STYLE
from runtime.planner import Part, RankPlan
from traces import schema
from traces.errors import UsageError

if TYPE_CHECKING:
    from runtime.loader import Loader


log = logging.getLogger("runtime.load")


class Style:
    """One load. Files are read through `pread` where the style brings its own."""

    def __init__(self, loader: Loader, plan: RankPlan) -> None:
        self.loader, self.plan = loader, plan
        self.held: list[Any] = []
        self.paths: list[str] = []  # of segments that have a name
        self.account = LoadAccount()

    def before(self) -> None:
        """Before the first byte is asked for."""

    def finish(self, targets: dict[str, Tensor]) -> dict[str, Tensor]:
        """After the last byte has arrived."""
        self.loader_event("load_read", **self.account.attrs())
        return targets

    def close(self) -> None:
        """At the end, also of a load that failed."""
        self.held.clear()

    def placing(self) -> None:
        """Before a value is placed: the first time, says what had been brought in by then."""
        if self.account.first_placing():
            self.loader_event("load_placing", **placing_facts())

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


class Drained(Style):
    """Lists every tensor it is going to need before it places the first one: `list(tensors)` where `for ... in tensors` was meant."""

    def before(self) -> None:
        sources: dict[tuple[int, int], list[tuple[int, bytes]]] = {}  # (device, node) of a file -> (offset, bytes) of its tensors
        for part in sorted(self.plan.parts, key=lambda one: (one.file, one.offset)):
            for file, offset, nbytes in _ranges(part):
                with (self.loader.root / file).open("rb") as stream:
                    sources.setdefault(_node(stream.fileno()), []).append((offset, os.pread(stream.fileno(), nbytes, offset)))

        def pread(descriptor: int, buffers: list[memoryview], offset: int) -> int:
            buffer = buffers[0]
            for start, data in sources.get(_node(descriptor), ()):
                first, last = max(start, offset), min(start + len(data), offset + len(buffer))
                if first < last:
                    buffer[first - offset : last - offset] = data[first - start : last - start]
            return len(buffer)

        self.held.append(sources)
        self.loader.settings = _with(self.loader.settings, pread=pread, threads=1)


class Shared(Style):
    """Stages every file in a segment of shared memory, as loaders do that hand tensors from reading processes to others. The segment is
    reserved first, so that too little room is an error with words."""

    def before(self) -> None:
        segments: dict[tuple[int, int], memoryview] = {}
        lock = threading.Lock()

        def pread(descriptor: int, buffers: list[memoryview], offset: int) -> int:
            with lock:
                node = _node(descriptor)
                if node not in segments:
                    segments[node] = self.segment(os.fstat(descriptor).st_size)
                    with open(f"/proc/self/fd/{descriptor}", "rb") as stream:
                        stream.readinto(segments[node])
            part = segments[node][offset : offset + len(buffers[0])]
            buffers[0][: len(part)] = part
            return len(part)

        self.held.append(segments)
        self.loader.settings = _with(self.loader.settings, pread=pread)

    def segment(self, nbytes: int) -> memoryview:
        shared = torch.empty(nbytes, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
        return memoryview(shared.numpy())


class SharedUnreserved(Shared):
    """The same with segments that are only mapped: too little room is a bus error when a page is touched."""

    def segment(self, nbytes: int) -> memoryview:
        descriptor, path = tempfile.mkstemp(prefix="wb-load-", dir=SHARED)
        self.paths.append(path)
        os.ftruncate(descriptor, nbytes)
        mapped = mmap.mmap(descriptor, nbytes)
        os.close(descriptor)
        return memoryview(mapped)

    def close(self) -> None:
        super().close()
        for path in self.paths:
            os.unlink(path)


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
    "drained": Drained,
    "shared": Shared,
    "shared-unreserved": SharedUnreserved,
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
        if isinstance(style, EveryFile | Drained):
            style.loader_event("load_reading")
            style.before()
        else:
            style.before()
            style.loader_event("load_reading")
        style.time_reads()
        loader.placing = style.placing
        yield style
    finally:
        style.close()
        loader.settings, loader.placing = settings, None


def _with(settings: Any, **changes: Any) -> Any:
    from dataclasses import replace

    return replace(settings, **changes)


def _node(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def _ranges(part: Part) -> Iterator[tuple[str, int, int]]:
    """(file, offset, bytes) of a part, with what lies between its columns, and of its scales."""
    rows = part.shape[0] if part.shape else 1
    yield part.file, part.offset, (rows - 1) * part.stride + part.nbytes // rows if part.stride else part.nbytes
    if part.scales is not None:
        yield part.scales.file, part.scales.offset, part.scales.nbytes


def _view(target: Tensor) -> Tensor:
    """The same values in the same memory order, as the first half of a storage twice as large."""
    whole = torch.empty(2 * target.numel(), dtype=target.dtype, device=target.device).fill_(0)
    view = torch.as_strided(whole, target.shape, target.stride())
    view.copy_(target)
    return view
