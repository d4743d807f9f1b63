"""A new expert placement on this rank: weights read in a thread of their own, then a switch between two steps."""

from __future__ import annotations

import threading
from collections.abc import Callable

from runtime import messages as m
from runtime.link import ApiGone, Link
from runtime.model import MoeModel
from runtime.placement import Placement
from traces.errors import WorkbenchError


class PlacementSwitch:
    """One placement at a time: the API process does not send another before this one is in force or has failed."""

    def __init__(self, model: MoeModel, link: Link, rank: int, ranks: int, phase: Callable[[str], None]) -> None:
        self._phase = phase  # tells the memory sampler what is going on
        self._model = model
        self._link = link
        self._rank = rank
        self._ranks = ranks

    def stage(self, message: m.StagePlacement) -> None:
        """Starts to read; answers Staged from the thread when that is done."""
        layers = tuple(tuple(layer) for layer in message.layers)
        hosts = self._model.placement.hosts
        placement = Placement(message.version, layers, self._ranks, message.source, message.reason, hosts)
        self._phase("switch")
        threading.Thread(target=self._read, args=(placement,), name="stage-placement", daemon=True).start()

    def switch(self, version: int, step: int) -> m.Applied:
        """Puts the staged placement into force; the step loop stands still meanwhile."""
        switched = self._model.switch_placement(step)
        assert self._model.placement.version == version, "the API process switches only what was staged"
        self._phase("serve")
        return m.Applied(self._rank, "placement", version, step, switched.moved, switched.stall)

    def _read(self, placement: Placement) -> None:
        error = ""
        try:
            self._model.stage_placement(placement)
        except (WorkbenchError, OSError, MemoryError, RuntimeError) as failure:
            error = str(failure) or type(failure).__name__
            self._phase("serve")
        try:
            self._link.send(m.Staged(self._rank, placement.version, error))
        except ApiGone:
            return  # the step loop notices too and ends the rank
