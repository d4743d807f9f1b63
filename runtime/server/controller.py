"""Changes settings and the expert placement of all ranks together: stage on every rank, switch at one step."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from runtime import messages as m
from runtime.arch import ArchSpec
from runtime.placement import Layers, Placement
from runtime.server.errors import ApiError, invalid
from runtime.server.hub import Hub

APPLY_SECONDS = 60.0  # a step of a stuck rank may take long; then the caller is told
STAGE_SECONDS = 600.0  # reading the weights of every moved expert


@dataclass(frozen=True, slots=True)
class Switched:
    """A placement in force: its first step, slots that moved, and the longest time a rank stood still for it (ns)."""

    version: int
    step: int
    moved: int
    stall_ns: int


@dataclass(slots=True)
class _Round:
    """Answers of all ranks about one version."""

    version: int
    answers: dict[int, m.Applied | m.Staged] = field(default_factory=dict)
    complete: asyncio.Event = field(default_factory=asyncio.Event)


class Controller:
    """One change at a time; a second caller waits for the first."""

    def __init__(self, hub: Hub, arch: ArchSpec, placement: Placement, detail_every: int) -> None:
        self.placement = placement
        self.detail_every = detail_every
        self._hub = hub
        self._arch = arch
        self._lock = asyncio.Lock()
        self._settings = 0
        self._staged: _Round | None = None
        self._applied: _Round | None = None
        hub.control_listener = self._on_answer

    def describe(self) -> dict[str, Any]:
        """The placement in force, and how many groups of experts the router knows."""
        return {**self.placement.to_json(), "groups": self._arch.moe.router.groups}

    async def set_detail(self, every: int) -> int:
        """Full detail for one step in `every` (0: none). The first step it holds for."""
        async with self._lock:
            step = await self._setting(detail_every=every)
            self.detail_every = every
            return step

    async def window(self, steps: int) -> tuple[int, int]:
        """Full detail for the next `steps` steps on all ranks: the first and the last of them."""
        async with self._lock:
            first = await self._setting(window=steps)
            return first, first + steps - 1

    async def profile(self, steps: int) -> tuple[int, int]:
        """torch.profiler over the next `steps` steps on all ranks: the first and the last of them."""
        async with self._lock:
            first = await self._setting(profile=steps)
            return first, first + steps - 1

    async def set_placement(self, layers: Layers, source: str, reason: str) -> Switched:
        """Reads the weights on every rank while serving goes on, then switches. ApiError 400, 409 or 504. Raises BadPlacement."""
        async with self._lock:
            old = self.placement
            new = Placement(old.version + 1, layers, old.ranks, source, reason, old.hosts).checked(self._arch.moe.experts)
            self._check(new)
            self._staged, self._applied = _Round(new.version), _Round(new.version)
            self._hub.broadcast(m.StagePlacement(new.version, [list(layer) for layer in layers], source, reason))
            await self._wait(self._staged, STAGE_SECONDS, "read the weights of the new placement")
            failed = {a.rank: a.error for a in self._staged.answers.values() if isinstance(a, m.Staged) and a.error}
            if failed:
                rank, error = min(failed.items())
                raise ApiError(409, f"rank {rank} cannot read the weights of the new placement: {error}", kind="server_error")
            self._hub.broadcast(m.SwitchPlacement(new.version, self._hub.next_wake()))
            await self._wait(self._applied, APPLY_SECONDS, "switch to the new placement")
            old, self.placement = self.placement, new
            return _switched(new.version, sum(old.moved(new)), self._applied)

    def _check(self, new: Placement) -> None:
        layers = len(self._arch.moe_layers)
        if new.layers != layers:
            raise invalid(f"the placement has {new.layers} layers, the model has {layers} MoE layers", "layers")
        if new.slots != self.placement.slots:
            raise invalid(f"the placement has {new.slots} slots a layer, the server was started with {self.placement.slots}", "layers")

    async def _setting(self, detail_every: int | None = None, window: int | None = None, profile: int | None = None) -> int:
        self._settings += 1
        self._applied = _Round(self._settings)
        self._hub.broadcast(m.Setting(self._settings, self._hub.next_wake(), detail_every, window, profile))
        await self._wait(self._applied, APPLY_SECONDS, "take over the setting")
        return max(a.step for a in self._applied.answers.values() if isinstance(a, m.Applied))

    async def _wait(self, round_: _Round, seconds: float, what: str) -> None:
        try:
            await asyncio.wait_for(self._unless_trouble(round_.complete.wait), seconds)
        except TimeoutError as error:
            late = sorted(set(range(self._hub.world)) - set(round_.answers))
            raise ApiError(504, f"ranks {late} did not {what} within {seconds:.0f} s", kind="server_error") from error

    async def _unless_trouble(self, wait: Callable[[], Awaitable[object]]) -> None:
        done = asyncio.ensure_future(wait())
        await asyncio.wait((done, self._hub.trouble), return_when=asyncio.FIRST_COMPLETED)
        if not done.done():
            done.cancel()
            raise ApiError(503, "a rank has died", kind="server_error")

    def _on_answer(self, answer: m.Applied | m.Staged) -> None:
        round_ = self._staged if isinstance(answer, m.Staged) else self._applied
        if round_ is not None and answer.version == round_.version:
            round_.answers[answer.rank] = answer
            if len(round_.answers) == self._hub.world:
                round_.complete.set()


def _switched(version: int, moved: int, applied: _Round) -> Switched:
    answers = [a for a in applied.answers.values() if isinstance(a, m.Applied)]
    return Switched(version, max(a.step for a in answers), moved, max(a.stall for a in answers))
