"""What the HTTP endpoints share: the model's limits, admission, and handing a prompt to a rank."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field

from probes.spans import Tracing
from runtime import messages as m
from runtime.prefix_digest import packed
from runtime.serve_config import ServeConfig
from runtime.server.backpressure import Backpressure
from runtime.server.errors import ApiError, invalid, unavailable
from runtime.server.generation_request import GenerationRequest
from runtime.server.hub import Hub
from runtime.server.inflight import Inflight
from runtime.server.metrics import Gauges, Metrics
from runtime.server.prompt import Prompt, PromptBuilder
from runtime.server.request_trace import RequestTrace
from runtime.server.router import Router


@dataclass(slots=True)
class Gateway:
    """One for all requests."""

    config: ServeConfig
    hub: Hub
    prompts: PromptBuilder
    metrics: Metrics
    max_model_len: int
    vocabulary: int  # token ids there are
    tracing: Tracing | None
    pressure: Backpressure
    reuses: bool  # the ranks keep computed blocks for later prompts
    started: int = field(default_factory=time.time_ns)
    draining: bool = False
    router: Router = field(init=False)
    _seeds: itertools.count[int] = field(init=False)

    def __post_init__(self) -> None:
        self.router = Router(self.hub.world, self.config.block_size)
        self._seeds = itertools.count(self.config.seed)

    @property
    def model(self) -> str:
        return self.config.served_name

    def admit(self) -> None:
        """One more request is inside, until `pressure.leave`. ApiError 503 while the server cannot serve, 429 when it is full."""
        if not self.hub.ready.is_set():
            raise unavailable("the model is still loading", retry_after=2)
        if self.hub.trouble.done():
            raise unavailable("a rank has died; the server is going down", retry_after=None)
        if self.draining:
            raise unavailable("the server is shutting down", retry_after=None)
        self.pressure.enter()

    @property
    def admitted(self) -> int:
        """Requests inside."""
        return self.pressure.inside

    def check_model(self, name: str) -> None:
        if name not in (self.model, self.config.model):
            message = f"the model {name!r} does not exist; this server has {self.model!r}"
            raise ApiError(404, message, param="model", code="model_not_found")

    def replica(self, given: str | None) -> int | None:
        """The data-parallel replica that a client asks for by X-Data-Parallel-Rank, as with vLLM. ApiError 400 where there is none such."""
        if given is None:
            return None
        replicas = len(self.hub.leaders)
        if not (given.isascii() and given.isdigit() and len(given) < 6 and int(given) < replicas):
            message = f"X-Data-Parallel-Rank is {given[:20]!r}; this server has the replicas 0 to {replicas - 1}"
            raise invalid(message, "X-Data-Parallel-Rank")
        return int(given)

    def trace(self, received: int, traceparent: str | None) -> RequestTrace:
        return RequestTrace(self.tracing, received, traceparent)

    def submit(
        self, request: GenerationRequest, prompt: Prompt, trace: RequestTrace, answer: int = 0, replica: int | None = None
    ) -> Inflight:
        """Chooses the rank and hands the prompt over. `answer` numbers the choices of one prompt, `replica` is the client's choice.

        ApiError 400 when prompt and answer do not fit.
        """
        length = len(prompt.tokens)
        limit = self._answer_limit(request, length)
        salt, priority = request.cache_salt or "", request.priority or 0
        prefix = prompt.prefix(self.config.block_size, salt) if self.reuses else []
        leaders = self.hub.leaders
        route = self.router.choose(leaders if replica is None else [leaders[replica]], prefix, length)
        trace.set({
            "moe.priority": priority, "moe.route_queued_tokens": route.queued, "moe.route_cached_tokens": route.cached,
            "moe.route_by_client": replica is not None,
        })  # fmt: skip
        inflight = Inflight(self.hub.next_id(), route.rank, length, limit, trace)
        stops = [*(request.stop_token_ids or []), *([] if request.ignore_eos else self.prompts.tokenizer.stops)]
        sampling = request.sampling(next(self._seeds), answer)
        submitted = time.time_ns()
        self.hub.submit(
            inflight,
            m.Submit(
                inflight.id, trace.trace_id, prompt.tokens, limit, stops, sampling, submitted, 0, prompt.positions, prompt.images,
                priority, packed(prefix), salt,
            ),
        )  # fmt: skip
        ready = self.hub.states[route.rank].ready
        self.router.sent(route.rank, prefix, ready.kv_blocks if ready else 0)
        return inflight

    def _answer_limit(self, request: GenerationRequest, prompt: int) -> int:
        longest = self.longest
        if prompt >= longest:
            message = f"the prompt has {prompt} tokens; this server takes at most {longest - 1} and leaves one for the answer"
            raise invalid(message, "messages", "context_length_exceeded")
        room = longest - prompt
        if request.limit is not None and request.limit > room:
            message = f"{prompt} prompt tokens and max_tokens {request.limit} are more than this server's {longest} tokens"
            raise invalid(message, "max_tokens", "context_length_exceeded")
        limit = request.limit if request.limit is not None else room
        if (request.min_tokens or 0) > limit:
            raise invalid(f"min_tokens {request.min_tokens} is more than the {limit} tokens that the answer may have", "min_tokens")
        return limit

    @property
    def longest(self) -> int:
        """Tokens of one sequence: the model's limit, or what the KV cache of a rank holds."""
        ready = self.hub.states[0].ready
        return self.max_model_len if ready is None else min(self.max_model_len, ready.kv_blocks * ready.block_size)

    def gauges(self) -> list[Gauges]:
        """One per replica."""
        return [
            Gauges(s.running, s.waiting, s.kv_used / s.ready.kv_blocks if s.ready else 0.0, s.preemptions) for s in self.hub.leaders
        ]

    def observe(self, request: Inflight, token_times: list[int], finish: str, end: int) -> None:
        """Metrics of a finished request. Times in ns, metrics in seconds."""
        engine = self.metrics.engines[self.hub.layout.place(request.rank).dp]
        received = request.trace.received
        engine.success[finish] = engine.success.get(finish, 0) + 1
        engine.e2e.observe((end - received) / 1e9)
        engine.queue.observe(request.queued / 1e9)
        engine.prompt.observe(request.prompt_tokens)
        engine.generation.observe(len(token_times))
        engine.prompt_tokens += request.prompt_tokens
        engine.generation_tokens += len(token_times)
        if self.reuses:
            engine.prefix_queries += request.prompt_tokens
            engine.prefix_hits += request.cached or 0
        if token_times:
            engine.observe_tokens(token_times, received, request.began)
