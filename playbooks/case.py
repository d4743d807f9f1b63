"""What the checks of one diagnosis share: the run, the window, and what was read from it. Everything is read once, when first asked for."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from playbooks.attribution.clock_offsets import Offsets, estimate
from playbooks.attribution.frontier import Frontier, frontier
from playbooks.attribution.rates import CostModel, fit
from playbooks.document import Evidence, EvidenceKind, Observed
from playbooks.measured import Floats, Layers, Steps, read_layers, read_steps
from playbooks.window import Period
from traces.run import Run
from traces.store import Store

# Host contention, above which wall clocks lie and bandwidth is undetermined: PSI "some" of 40 %, reference section 3.2.
CONTENDED_PSI = 0.40
# Wall over CPU time of compute segments: on a quiet host it is 1.0-1.1; 2x oversubscription measured 1.7-3.6 (fault_lab.md section 3).
CONTENDED_INFLATION = 1.4


@dataclass
class Case:
    """One run in one window. `baseline` is a run from when all was well."""

    run: Run
    store: Store
    period: Period
    baseline: Run | None = None
    memo: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def steps(self) -> Steps:
        return read_steps(self.store, self.period)

    @cached_property
    def placement(self) -> int | None:
        """The placement version in force at the end of the window."""
        if not len(self.steps.step):
            return None
        versions = self.steps["placement"][-1]
        return int(np.nanmax(versions))

    @cached_property
    def first_step(self) -> int:
        """The first step computed under that version: older ones would mix two layouts."""
        same = np.nanmax(self.steps["placement"], axis=1) == self.placement
        changes = np.flatnonzero(~same)
        return int(self.steps.step[changes[-1] + 1]) if len(changes) else int(self.steps.step[0])

    @cached_property
    def layers(self) -> Layers:
        """Detailed layers under the present placement."""
        layers = read_layers(self.store, self.period, self.first_step if len(self.steps.step) else 0)
        return layers.select(np.isin(layers.step, self.steps.step))

    @cached_property
    def hosts(self) -> dict[int, str]:
        rows = self.store.rows("SELECT rank, any_value(host) AS host FROM resource WHERE rank IS NOT NULL GROUP BY rank")
        return {int(row["rank"]): str(row["host"]) for row in rows}

    @cached_property
    def leads(self) -> NDArray[np.bool_]:
        """[R] ranks of `steps` that hold a replica's sequences: the first of its lanes and stages. All, where the layout is not known."""
        query = "SELECT rank FROM resource WHERE rank IS NOT NULL AND (coalesce(tp, 0) > 0 OR coalesce(pp, 0) > 0)"
        others = {int(row["rank"]) for row in self.store.rows(query)}
        return np.array([rank not in others for rank in self.steps.ranks], dtype=bool)

    @property
    def one_clock(self) -> bool:
        return len(set(self.hosts.values())) <= 1

    @cached_property
    def offsets(self) -> Offsets:
        """Clocks of the ranks against the first one's, from the exits of the count exchange (a tiny collective) of every layer."""
        layers = self.layers
        enter = layers["ts"] + layers["attention"] + layers["router"]
        return estimate(enter, enter + layers["exchange"])

    @cached_property
    def frontier(self) -> Frontier:
        """On one clock; the clocks of several hosts are corrected where every rank has the layer, else aligned on the count exchange."""
        layers = self.layers
        if self.one_clock or not len(layers.step) or np.isnan(layers["ts"]).any():
            return layers.frontier(self.one_clock)
        return frontier(layers["ts"] - self.offsets.offset, layers.segments)

    @cached_property
    def psi_cpu(self) -> float | None:
        """Highest over the hosts of the median pressure in the window."""
        rows = self.store.rows(self.psi_sql())
        return None if not rows or rows[0]["psi"] is None else float(rows[0]["psi"])

    def psi_sql(self) -> str:
        inner = f"SELECT host, median(psi_cpu) AS psi FROM host WHERE ts BETWEEN {self.period.t0} AND {self.period.t1} GROUP BY host"
        return f"SELECT max(psi) AS psi FROM ({inner})"

    @cached_property
    def inflation(self) -> float | None:
        """Wall over CPU time of the compute segments, of the median rank: one rank that is interrupted is no contention. None
        without CPU times.
        """
        layers = self.layers
        known = np.isfinite(layers["attention_cpu"]) & np.isfinite(layers["experts_cpu"])
        wall = np.where(known, layers["attention"] + layers["experts"], 0.0).sum(axis=0)
        cpu = np.where(known, layers["attention_cpu"] + layers["experts_cpu"], 0.0).sum(axis=0)
        return float(np.median(wall[cpu > 0] / cpu[cpu > 0])) if (cpu > 0).any() else None

    @property
    def contended(self) -> bool:
        """The host, not the engine, decides how long things take."""
        pressed = self.psi_cpu is not None and self.psi_cpu > CONTENDED_PSI
        return pressed or (self.inflation is not None and self.inflation > CONTENDED_INFLATION)

    @property
    def basis(self) -> str:
        """`cpu` on a contended host whose ranks record CPU time, `wall` otherwise."""
        return "cpu" if self.contended and self.inflation is not None else "wall"

    def expert_cost(self, basis: str) -> CostModel:
        """Cost of the experts by rows received and active experts, and the slowness of every rank."""
        name = "experts_cpu" if basis == "cpu" else "experts"
        return self._model(f"expert-{basis}", name, ("tokens_routed", "active"))

    def attention_cost(self, basis: str) -> CostModel:
        """Cost of the attention by the tokens of the rank that enter the layer, and the slowness of every rank."""
        name = "attention_cpu" if basis == "cpu" else "attention"
        return self._model(f"attention-{basis}", name, ("tokens_in", "context"))

    def _model(self, key: str, cost: str, features: tuple[str, ...]) -> CostModel:
        if key not in self.memo:
            self.memo[key] = fit(self.layers[cost], tuple(self.feature(name) for name in features))
        model: CostModel = self.memo[key]
        return model

    def feature(self, name: str) -> Floats:
        """[n, R] a column of `layer`, or `context`: the cached tokens the rank attends to in the step."""
        if name != "context":
            return self.layers[name]
        place = np.searchsorted(self.steps.step, self.layers.step)
        return self.steps["context_tokens"][np.minimum(place, len(self.steps.step) - 1)]

    @cached_property
    def step_wall(self) -> Floats:
        """[detailed steps] ns: wall time of each detailed step."""
        _, first = np.unique(self.layers.key, return_index=True)
        return self.steps.wall[np.searchsorted(self.steps.step, self.layers.step[first])]

    @cached_property
    def step_time(self) -> Floats:
        """[detailed steps] ns in the currency of `basis`: on a contended host the wall time is divided by the inflation of compute."""
        return self.step_wall / self.inflation if self.basis == "cpu" and self.inflation else self.step_wall

    # -- evidence -------------------------------------------------------------------------------------------------------------------

    def sql(self, query: str, expected: Observed = None, unit: str = "", note: str = "") -> Evidence:
        """Evidence whose number is the first cell of the answer, with a hash of all its rows."""
        rows = self.store.rows(query)
        observed = next(iter(rows[0].values())) if rows else None
        digest = hashlib.sha256(repr([tuple(row.values()) for row in rows]).encode()).hexdigest()
        return Evidence(
            kind="sql", source=self.source, query=query, observed=observed, expected=expected, unit=unit, note=note, rows_sha256=digest
        )

    @staticmethod
    def literal(text: str) -> str:
        """A text from outside as an SQL literal: evidence keeps whole queries, so that they can be asked again."""
        return "'" + text.replace("'", "''") + "'"

    def derived(
        self, how: str, observed: Observed, expected: Observed = None, unit: str = "", note: str = "", kind: EvidenceKind = "metric"
    ) -> Evidence:
        """Evidence computed here from rows: `how` names the function and its inputs."""
        return Evidence(kind=kind, source=self.source, query=how, observed=observed, expected=expected, unit=unit, note=note)

    @property
    def source(self) -> str:
        return f"run:{self.run.id}"
