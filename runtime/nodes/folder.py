"""The folder that stands for a run on a host that does not collect it: logs, spools, and where the collector is."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from runtime.nodes.frames import CollectorAt, Welcome
from runtime.serve_config import ServeConfig
from traces.address import CollectorAddress
from traces.folder import writable, write_atomic
from traces.run import SUBFOLDERS, Run, RunInfo, runs_root


def node_run(config: ServeConfig, welcome: Welcome) -> Run:
    """<runs>/nodes/<run-id>.<node>, beside the runs and not among them. Raises NotWritable."""
    root = Path(config.run_root) if config.run_root else runs_root()
    path = root / "nodes" / f"{welcome.run}.{config.node_rank}"
    info = RunInfo(id=welcome.run, created=time.time_ns(), engine="workbench", model=config.served_name, config=welcome.config)
    with writable(root):
        for folder in SUBFOLDERS:
            (path / folder).mkdir(parents=True, exist_ok=True)
        write_atomic(path / "run.json", msgspec.json.format(msgspec.json.encode(info), indent=1))
    run = Run(path)
    if welcome.collector is not None:
        point_to_collector(run, welcome.collector)
    return run


def point_to_collector(run: Run, at: CollectorAt) -> None:
    """Where this host's ranks send what they record. The token is readable by the owner only."""
    token = run.path / "collector.token"
    write_atomic(token, at.token.encode(), mode=0o600)
    address = CollectorAddress(host=at.host, port=at.port, pid=at.pid, token_file=str(token), machine=at.machine)
    write_atomic(run.path / "collector.json", msgspec.json.encode(address))
