"""What a run of traffic hands back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from probes.traffic.plan import TrafficPlan
from probes.traffic.record import RequestRecord
from probes.traffic.summary import TrafficSummary

SCHEMA = "workbench.traffic.v1"


@dataclass(frozen=True, slots=True)
class TrafficResult:
    """`ended`: done | cancelled | unreachable (the server went away and requests were no longer sent)."""

    plan: TrafficPlan
    url: str
    model: str
    started: int  # ns since the epoch
    ended: str
    records: list[RequestRecord]
    summary: TrafficSummary

    def document(self) -> dict[str, Any]:
        """Without the single requests, in JSON types."""
        head = {"schema": SCHEMA, "url": self.url, "model": self.model, "started": self.started, "ended": self.ended}
        summary: dict[str, Any] = msgspec.to_builtins(self.summary)
        summary["exact"] |= {"share": self.summary.exact.share}
        return head | {"plan": self.plan.described(), "summary": summary}
