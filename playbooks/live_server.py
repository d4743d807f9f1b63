"""The server of a run of ours, where it still answers: asked itself whose it is, since another may have its port by now."""

from __future__ import annotations

from dataclasses import dataclass

import httpx

from traces.run import Run

PATIENCE = httpx.Timeout(10.0, connect=3.0)  # seconds


@dataclass(frozen=True, slots=True)
class LiveServer:
    """`url` is None where nothing can be asked; `why` says in words what keeps it from being asked."""

    url: str | None
    why: str = ""


def live_server(run: Run) -> LiveServer:
    """Never raises for a server: one that is gone is an answer."""
    stated, url = run.state, str((run.info.endpoint or {}).get("url") or "")
    if stated != "running":
        return LiveServer(None, f"run {run.id} is {stated}")
    if not url:
        return LiveServer(None, f"run {run.id} has no server")
    try:
        told = httpx.get(f"{url}/health", timeout=PATIENCE, trust_env=False).json()
        whose, status = told["run"], told["status"]
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        return LiveServer(None, f"the server of run {run.id} does not answer at {url}: {error or type(error).__name__}")
    if whose != run.id:
        return LiveServer(None, f"the server at {url} is another run's ({whose})")
    return LiveServer(url) if status == "ok" else LiveServer(None, f"the server of run {run.id} is {status}")
