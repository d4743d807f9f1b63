"""A live server's control endpoint, for playbooks and screens. Imports no torch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import httpx

from traces.errors import Unreachable, UsageError
from traces.run import Run

TIMEOUT = httpx.Timeout(30.0, connect=3.0)
PLACEMENT_SECONDS = 700.0  # reading the weights of every moved expert, and the switch


class ControlRefused(UsageError):
    """The server answered, and said no."""


class ControlClient:
    """Blocking calls, one connection. Raises Unreachable when the server does not answer, ControlRefused when it refuses."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        # Loopback or a given host: a proxy from the environment has no business in between.
        self._client = httpx.Client(base_url=url, headers={"authorization": f"Bearer {token}"}, timeout=TIMEOUT, trust_env=False)

    @classmethod
    def for_run(cls, run: Run) -> ControlClient:
        """The server of a run; Unreachable when the run has none, or none that still runs."""
        endpoint = run.info.endpoint
        if not endpoint or run.info.state != "running":
            raise Unreachable(f"the run {run.id} has no live server", "start one with `workbench serve`; recorded runs cannot be changed")
        try:
            token = Path(endpoint["control_token_file"]).read_text().strip()
        except OSError as error:
            raise Unreachable(f"the control token of {run.id} cannot be read: {error.strerror}", "run as the user who serves") from error
        return cls(str(endpoint["url"]), token)

    def state(self) -> dict[str, Any]:
        """model, world, layout, step, placement (version), detail_every, requests, draining, loads (one per rank)."""
        return self._call("GET", "/control/state")

    def placement(self) -> dict[str, Any]:
        """The placement in force: version, layers, source, reason, ranks, hosts, groups."""
        return self._call("GET", "/control/placement")

    def set_placement(self, layers: list[list[int]], source: str = "control", reason: str = "") -> dict[str, Any]:
        """Waits until every rank has switched: version, step, moved, stall_ns."""
        body = {"layers": layers, "source": source, "reason": reason}
        return self._call("POST", "/control/placement", body, PLACEMENT_SECONDS)

    def set_detail(self, every: int) -> dict[str, Any]:
        """Layer and collective rows for one step in `every` (0: none)."""
        return self._call("POST", "/control/detail", {"every": every})

    def window(self, steps: int) -> dict[str, Any]:
        """Full detail for the next `steps` steps on all ranks: first, last."""
        return self._call("POST", "/control/window", {"steps": steps})

    def profile(self, steps: int) -> dict[str, Any]:
        """torch.profiler over the next `steps` steps on all ranks: first, last. The operators come into table `operator`."""
        return self._call("POST", "/control/profile", {"steps": steps})

    def stacks(self, rank: int) -> dict[str, Any]:
        """What every thread of a rank is doing now; also recorded in table `stack`."""
        return self._call("POST", "/control/stacks", {"rank": rank})

    def prompt(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        """What a rank would be given of one user message: tokens, positions, images (start, count, grid, width, pixels)."""
        return self._call("POST", "/control/prompt", {"messages": [{"role": "user", "content": content}]})

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None, seconds: float | None = None) -> dict[str, Any]:
        timeout = TIMEOUT if seconds is None else httpx.Timeout(seconds, connect=3.0)
        try:
            response = self._client.request(method, path, json=body, timeout=timeout)
        except httpx.TransportError as error:
            hint = "is it still running? `workbench runs` tells; a hung server shows in `workbench diagnose hang`"
            raise Unreachable(f"the server at {self.url} does not answer: {type(error).__name__}", hint) from error
        if response.status_code >= 400:
            raise ControlRefused(_message(response), f"{method} {path} of the server at {self.url}")
        document: dict[str, Any] = response.json()
        return document


def _message(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {response.status_code}{os.linesep}{response.text[:200]}"
