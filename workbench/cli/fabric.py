"""`workbench fabric`: the network, before a model is blamed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from workbench.cli.context import Command, finish, json_option
from workbench.cli.output import answer, answer_json, note, table

if TYPE_CHECKING:
    from probes.fabric.answer import Fabric
    from probes.topology import Topology

BAD, INCONCLUSIVE = 3, 5


@click.command(cls=Command)
@click.option("--ranks", type=click.IntRange(min=1), default=2, show_default=True, help="Ranks on this host.")
@click.option("--nodes", type=click.IntRange(min=1), default=1, show_default=True, help="Hosts; run the command on each.")
@click.option("--node-rank", type=click.IntRange(min=0), default=0, show_default=True, help="Number of this host.")
@click.option("--head", metavar="HOST:PORT", default="", help="Where host 0 listens; needed with --nodes.")
@click.option("--backend", default="gloo", show_default=True, help="gloo (CPU) or nccl.")
@click.option("--largest", metavar="MIB", type=click.IntRange(2, 16), default=16, show_default=True, help="Largest message, MiB.")
@click.option("--timeout", metavar="SECONDS", type=click.FloatRange(min=1), default=600, show_default=True, help="For the whole test.")
@click.option("--scale", metavar="MODEL", help="Also time this model's own dispatch over 1, 2, 4 ... ranks.")
@click.option("--tokens", type=click.IntRange(min=1), default=256, show_default=True, help="With --scale: tokens of a rank in a step.")
@click.option("--soak", metavar="SECONDS", type=click.FloatRange(min=0), default=0, help="Repeat the pairs for so long, and report drift.")
@json_option()
def fabric(
    ranks: int,
    nodes: int,
    node_rank: int,
    head: str,
    backend: str,
    largest: int,
    timeout: float,
    scale: str | None,
    tokens: int,
    soak: float,
    as_json: bool,
) -> None:
    """Test who reaches whom, collectives, and every ordered pair of ranks, alone and all at once; say what is slow or wrong.

    Before any collective every pair connects, and packets up to the interface's MTU are tried; each interface that hosts have in
    common is measured. A pair that cannot connect ends the test there. On several hosts run it on each, with the same --nodes and
    --head; host 0 answers. The measured links go into a run, for `workbench diagnose cross-node-throughput`. Exit code 3 when a
    collective gives wrong numbers, a pair does not connect or a path is slow, 5 when there are too few ranks to tell a slow path
    (three are enough).
    """
    from probes.fabric.launch import FabricTest, run

    note(f"testing {ranks * nodes} ranks over {backend}")
    rows = model_rows(scale, tokens) if scale else None
    found = run(FabricTest(ranks, nodes, node_rank, head, backend, largest << 20, timeout + soak, soak=soak, rows=rows))
    if found is None:
        note("done; host 0 has the answer")
        return
    from playbooks.runner import diagnose
    from probes.fabric.record import record
    from probes.topology import read

    run_made = record(found)
    name, diagnosis = run_made.id, diagnose(run_made, "cross-node-throughput")
    topology = read()
    if as_json:
        import msgspec

        answer_json({**msgspec.to_builtins(found), "run": name, "topology": joined(topology), "diagnosis": diagnosis.to_dict()})
    else:
        show(found)
        for a, b, word in joined(topology):
            answer(f"{a} and {b} of this host: {word}")
        for one in diagnosis.findings:
            answer(f"\n{one.title}\n  {one.summary}")
        note(f"run {name}: `workbench diagnose cross-node-throughput --run {name}`")
    if found.wrong or any(one.severity in ("critical", "error") for one in diagnosis.findings):
        finish(BAD)
    judged = next(check for check in diagnosis.checks if check.id == "net.degraded-link")
    if judged.outcome == "skipped":
        note(f"paths were not judged: {judged.summary}")
    finish(INCONCLUSIVE if judged.outcome == "skipped" else 0)


def joined(topology: Topology | None) -> list[tuple[str, str, str]]:
    """(device, device, the tool's word for what joins them), each pair once; empty where no vendor's tool is installed."""
    return [] if topology is None else [(a, b, word) for (a, b), word in sorted(topology.links.items()) if a < b]


def model_rows(model: str, tokens: int) -> tuple[int, int, int]:
    """Tokens, experts of a token and bytes of a row, as our runtime sends it. Raises UsageError for a model without experts."""
    from runtime.budget.estimates import ITEM
    from runtime.inventory.opening import open_inventory
    from traces.errors import UsageError
    from workbench.cli.model import planned_model

    mixture = open_inventory(planned_model(model)).mixture
    if mixture is None or mixture.top_k is None:
        raise UsageError(f"{model} has no experts: nothing is dispatched", "give a Mixture-of-Experts model")
    return tokens, mixture.top_k, mixture.width * ITEM


def show(found: Fabric) -> None:
    """Who is not reached; collectives, pairs, and what else was asked for."""
    if found.cut:
        cut = [(one.src, one.dst, one.why or f"packets of {min(one.lost)} bytes and more vanish") for one in found.cut]
        answer(table(("from", "to", "does not reach"), cut))
        return
    worst: dict[str, tuple[str, str]] = {}
    for one in found.collectives:
        if one.name not in worst or one.status != "ok":
            worst[one.name] = (one.status, f"ranks {one.ranks} {one.detail}".strip() if one.status != "ok" else "")
    answer(table(("collective", "result", ""), [(name, status, detail) for name, (status, detail) in worst.items()]))
    rows = [(p.src, p.dst, _us(p.latency), _mb(p.bandwidth), _mb(p.concurrent)) for p in found.pairs]
    answer("\n" + table(("from", "to", "latency us", "MB/s alone", "MB/s all at once"), rows))
    if found.carried:
        ways = [(one.src, one.dst, one.interface, _mb(one.bandwidth), "in use" if one.used else "") for one in found.carried]
        answer("\n" + table(("from", "to", "interface", "MB/s", ""), ways))
    if found.scale:
        groups = [(s.ranks, s.hosts, s.bytes, _us(s.seconds), s.departure and round(s.departure, 2)) for s in found.scale]
        answer("\n" + table(("ranks", "hosts", "bytes a rank sends", "us", "over linear"), groups))
    if found.rounds and not found.drift:
        note(f"{found.rounds} rounds were measured, three are needed for a drift: give --soak more seconds")
    if found.drift:
        drifts = [(d.src, d.dst, _mb(d.first), _mb(d.last), f"{d.change:+.0%}", _mb(d.lowest)) for d in found.drift]
        answer(f"\n{found.rounds} rounds\n" + table(("from", "to", "MB/s first", "MB/s last", "change", "MB/s lowest"), drifts))
    for node in found.nodes:
        for device in node.devices:
            answer(f"rank {node.rank}: device {device.index} {device.name}, reaches {device.peers or 'no other'} directly")


def _us(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e6, 1)


def _mb(rate: float | None) -> float | None:
    return None if rate is None else round(rate / 1e6, 1)
