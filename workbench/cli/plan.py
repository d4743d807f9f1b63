"""`workbench plan`: what a model costs on a layout, or which layout of a cluster is best. Nothing is loaded, torch is not needed."""

from __future__ import annotations

from typing import Any

import click

from workbench.cli.context import Command, complete_run, finish, json_option
from workbench.cli.output import answer, answer_json

BAD_ANSWER = 3


@click.command(cls=Command)
@click.argument("model", required=False)
@click.option("--tp", type=click.IntRange(1), help="Tensor-parallel ranks of a group.")
@click.option("--pp", type=click.IntRange(1), help="Pipeline stages.")
@click.option("--dp", type=click.IntRange(1), help="Data-parallel attention groups.")
@click.option("--ep", type=click.IntRange(1), help="Ranks that share the experts: dp x tp, give it instead of --dp.")
@click.option("--redundant-experts", type=click.IntRange(0), default=0, help="Replicas of experts beside the experts, a layer.")
@click.option("--devices", type=click.IntRange(1), help="Devices in one node; shorthand for --nodes 1 --devices-per-node N.")
@click.option("--nodes", type=click.IntRange(1), default=1, show_default=True)
@click.option("--devices-per-node", type=click.IntRange(1), help="Default: as many as the layout needs, in one node.")
@click.option("--device-memory", metavar="SIZE", help="Of one device: 141GiB. Without it nothing is judged.")
@click.option("--overhead", metavar="SIZE", default="2GiB", show_default=True, help="Of a device, for driver, runtime, graphs.")
@click.option("--context", metavar="TOKENS", default="8192", show_default=True, help="Tokens of a sequence: 131072, 128k or 1M.")
@click.option("--concurrency", type=click.IntRange(1), default=1, show_default=True, help="Sequences over the whole deployment.")
@click.option("--batch-tokens", metavar="TOKENS", default="8192", show_default=True, help="Tokens a rank computes in one step.")
@click.option("--micro-batches", type=click.IntRange(1), help="In flight in the pipeline; default: as many as stages.")
@click.option("--weights", type=click.Choice(["stored", "bf16", "fp8", "int8", "int4", "mxfp4"]), default="stored", help="Experts in this.")
@click.option("--kv", type=click.Choice(["bf16", "fp8", "fp32"]), default="bf16", show_default=True, help="Precision of the KV cache.")
@click.option("--intra", metavar="RATE", help="Between devices of a node, one device and direction: 900GB/s.")
@click.option("--inter", metavar="RATE", help="Out of a node, one device and direction: 50GB/s.")
@click.option("--hbm", metavar="RATE", help="Of device memory: 4.8TB/s.")
@click.option("--flops", type=float, help="Of one device, operations a second: 990e12.")
@click.option("--load-rate", metavar="RATE", help="Of a node's storage: 6GB/s.")
@click.option("--verify", "verified", metavar="RUN", shell_complete=complete_run, help="Compare the plan with what a run of ours used.")
@json_option()
def plan(model: str | None, verified: str | None, as_json: bool, **options: Any) -> None:
    """Plan MODEL: memory and traffic of every rank on a layout, or the best layouts of a cluster.

    MODEL is a checkpoint folder, a folder with a config.json, or a config.json. With --tp, --pp, --dp or --ep that layout is planned;
    without, all layouts of the cluster are compared. Exit code 3: it does not fit, or with --verify: the run used something else.
    """
    from runtime.budget.planning import Question
    from runtime.budget.planning import plan as answer_question
    from runtime.inventory.opening import open_inventory
    from workbench.cli.model import planned_model
    from workbench.cli.plan_question import cluster_of, layout_of, plan_of_run, workload_of
    from workbench.cli.plan_text import plan_text

    if verified is not None:
        document = plan_of_run(verified, options)
    else:
        if model is None:
            raise click.UsageError("missing MODEL", click.get_current_context())
        layout = layout_of(options)
        path = planned_model(model)
        cluster = cluster_of(options, layout)
        question = Question(path, open_inventory(path), cluster, workload_of(options), layout, options["redundant_experts"])
        document = answer_question(question)
    if as_json:
        answer_json(document)
    else:
        answer(plan_text(document))
    wrong = document.verification is not None and not document.verification.agrees
    finish(BAD_ANSWER if document.fits is False or wrong else 0)
