"""What a ladder stands on: the model, the settings, and the server that its upper rungs ask."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from playbooks.environment.drift import PER_RUN
from playbooks.symptoms import names
from probes.fingerprint import fingerprint, flat, is_volatile, model_revision
from runtime.serve_config import ServeConfig
from runtime.server_process import ServerProcess, start_server


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What `workbench bringup` was told. Sizes in bytes, contexts in tokens."""

    config: ServeConfig  # of one host; its nodes and head are those of all hosts
    layout_given: bool = True  # or it is one that was chosen for a server of ours
    endpoint: str | None = None
    served_name: str | None = None  # in the API of the endpoint; its first model otherwise
    baseline: dict[str, Any] | None = None  # fingerprint of an environment in which all was well
    accepted: tuple[str, ...] = ()  # shell patterns of facts that may differ from it
    device_memory: int | None = None
    context: int | None = None
    concurrency: int = 8
    every_value: bool = True  # read all weights, not only the headers
    start_seconds: float = 600.0


@dataclass(slots=True)
class Site:
    """`folder` holds the record. `close` ends the server."""

    model: Path
    options: Options
    folder: Path
    server: ServerProcess | None = None
    _facts: dict[str, Any] = field(default_factory=dict)

    @property
    def url(self) -> str | None:
        return self.options.endpoint or (self.server.url if self.server is not None else None)

    @property
    def full_precision(self) -> bool:
        """Whether answers are computed by a server of ours in float32: then only near ties may differ."""
        config = self.options.config
        exact = config.dtype == "float32" or (config.dtype == "auto" and not config.device.startswith("cuda"))
        return self.options.endpoint is None and exact and config.kv_dtype == "auto"

    @property
    def run_flag(self) -> str:
        """`--run ID` of the server of ours; empty where there is none."""
        return f"--run {self.server.run.id}" if self.server is not None else ""

    @property
    def device(self) -> str:
        """Of one rank. Imports torch."""
        name = self.options.config.device
        if name != "auto":
            return name
        from torch.cuda import is_available

        return "cuda" if is_available() else "cpu"

    def serve(self, config: ServeConfig) -> ServerProcess:
        """Starts a server in place of the one there was. StartFailed, UsageError."""
        self.close()
        self.server = start_server(config, timeout=self.options.start_seconds)
        return self.server

    def close(self) -> None:
        if self.server is not None:
            self.server.stop()
            self.server = None

    def facts(self) -> dict[str, Any]:
        """The fingerprint of this process's surroundings, taken once."""
        if not self._facts:
            self._facts = fingerprint(torch_info=self.options.endpoint is None, model=self.model)
        return self._facts

    def aspects(self) -> dict[str, str]:
        """Digests of what results depend on: environment, baseline, config, weights, settings, endpoint."""
        options = self.options
        facts = {key: value for key, value in flat(self.facts()) if steady(key) and not key.startswith("model.")}
        small = {name: digest for name, digest in model_revision(self.model).items() if not name.endswith(".safetensors")}
        files = {path.name: [path.stat().st_size, path.stat().st_mtime_ns] for path in sorted(self.model.glob("*.safetensors"))}
        numbers = [options.device_memory, options.context, options.concurrency, options.every_value, options.layout_given]
        return {
            "environment": _digest(facts),
            "baseline": _digest([options.baseline, options.accepted]),
            "config": _digest(small),
            "weights": _digest(files),
            "settings": _digest([msgspec.to_builtins(options.config), numbers]),
            "endpoint": _digest([options.endpoint, options.served_name]),
        }


def steady(key: str) -> bool:
    """Whether a fact is the same in two healthy runs on one host."""
    from fnmatch import fnmatchcase

    return not is_volatile(key) and not any(fnmatchcase(key, pattern) for pattern in PER_RUN)


def diagnose(symptom: str, arguments: str = "") -> tuple[str, ...]:
    """The command that runs a playbook; nothing where this installation has no such playbook."""
    return (f"workbench diagnose {symptom} {arguments}".rstrip(),) if symptom in names() else ()


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]
