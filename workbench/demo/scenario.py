"""How large the demonstration is: ranks, and the traffic of every phase."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from probes.traffic.plan import TrafficPlan

MODEL_NAME = "shapes-moe"


@dataclass(frozen=True, slots=True)
class Scenario:
    """Every phase sends the same two plans with its own seed: short questions that are judged, then long prompts that are measured."""

    ranks: int = 4
    seed: int = 0
    questions: int = 24
    questions_at_once: int = 8
    prompts: int = 120
    prompts_at_once: int = 16  # a step takes in all that wait, so that the run is healthy but for its placement
    verified: int = 60  # of the remedy's own measurement, one a rank: about one step each, and it wants 40
    turns: int = 24  # about 450 tokens
    answer_tokens: int = 1  # of the long prompts: a decode step is all overhead, in which no expert shows
    detail_every: int = 1
    tokens_per_step: int = 1024

    def first(self) -> TrafficPlan:
        """The warm-up: a third of the measured traffic, enough to count which experts are popular."""
        plan = self.measured("warm-up", 0)
        return dataclasses.replace(plan, requests=self.prompts // 3)

    def verifying(self) -> TrafficPlan:
        """What the remedy sends before and after its change, to measure what it gained."""
        return dataclasses.replace(self.measured("verify", 9), requests=self.verified, concurrency=self.ranks)

    def judged(self, phase: str, number: int) -> TrafficPlan:
        """Questions about pictures and text whose right answers are known."""
        return TrafficPlan(
            mix="shapes",
            concurrency=self.questions_at_once,
            requests=self.questions,
            image_share=0.5,
            seed=self.seed * 100 + number,
            phase=f"{phase}-judged",
        )

    def measured(self, phase: str, number: int) -> TrafficPlan:
        """Long conversations, some about a picture, with short answers: the work of the experts is in the prompts."""
        return TrafficPlan(
            mix="prefill-heavy",
            concurrency=self.prompts_at_once,
            requests=self.prompts,
            image_share=0.25,
            turns=self.turns,
            max_tokens=self.answer_tokens,
            seed=self.seed * 100 + number,
            phase=phase,
        )
