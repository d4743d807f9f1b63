"""`workbench serve`: starts the runtime, a run and its collector, and stays until it is stopped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
import msgspec

from runtime.serve_config import ServeConfig, read_config
from workbench.cli.context import Command, finish, json_option
from workbench.cli.model import resolve_model

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class LayerCounts(click.ParamType[list[int]]):
    """30,31 -> [30, 31]."""

    name = "counts"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        try:
            return [int(count) for count in str(value).split(",")]
        except ValueError:
            self.fail(f"{value!r} is no list of numbers", param, ctx)


OPTIONS: dict[str, tuple[Any, str]] = {
    "tp": (int, "Tensor-parallel ranks: they split heads, dense layers and vocabulary."),
    "pp": (int, "Pipeline stages: they split the layers."),
    "dp": (int, "Replicas: requests are spread over them. Otherwise ep / tp."),
    "ep": (int, "Ranks over which the experts of a stage are split: dp x tp."),
    "stage_layers": (LayerCounts(), "Layers of each stage, such as 30,31; even otherwise."),
    "micro_batches": (int, "Most parts in which a step goes through the stages."),
    "nodes": (int, "Hosts, each with an equal part of the ranks; start this command on each of them."),
    "node_rank": (int, "Which host this is; node 0 has the API and the run."),
    "head": (str, "Address of node 0 for the others, HOST or HOST:PORT."),
    "host": (str, "Address to listen on."),
    "port": (int, "Port; 0 takes a free one."),
    "name": (str, "Name of the model in the API; the folder's name otherwise."),
    "max_tokens_per_step": (int, "Tokens a rank computes in one step."),
    "max_sequences": (int, "Sequences a rank runs at once."),
    "max_queue": (int, "Requests in the whole server; more are answered 429."),
    "prefix_cache": (bool, "Keep KV blocks for later prompts that begin alike."),
    "long_prompt": (int, "Tokens above which a prompt shares a budget of its own; 4 x --max-tokens-per-step otherwise."),
    "long_tokens_per_step": (int, "That budget, while others wait; half of --max-tokens-per-step otherwise."),
    "image_patches_per_step": (int, "Image patches a rank encodes in a step, one picture always fits. 0: they stand in line with text."),
    "max_model_len": (int, "Longest prompt plus answer, tokens; the model's own limit otherwise."),
    "kv_blocks": (int, "KV blocks a rank; from the memory there is otherwise."),
    "block_size": (int, "Tokens in a KV block."),
    "detail_every": (int, "Record layers and collectives of one step in N; 0 for none."),
    "seed": (int, "Seed of requests that sample without their own."),
    "agent": (str, "Who starts the ranks: fork (one import of torch, forked) or torchrun."),
    "device": (str, "auto, cpu, cuda or cuda:N."),
    "dtype": (str, "auto, float32, bfloat16 or float16."),
    "kv_dtype": (str, "auto (as computed) or fp8, with a scale for every 64 values."),
    "load_mode": (str, "How the checkpoint is read: auto (by its file system), direct, buffered or network."),
    "placement": (click.Path(exists=True, dir_okay=False), "JSON file with the first expert placement."),
    "expert_memory": (str, "Most memory of a rank for routed experts, such as 4GiB: the others stay in the files."),
    "redundant_experts": (int, "Slots of a layer beyond one for each expert, over all ranks."),
    "run_root": (click.Path(file_okay=False), "Folder of the runs."),
    "max_image_bytes": (int, "Largest image as it is sent, bytes."),
    "max_image_pixels": (int, "Largest image, width x height."),
    "max_images": (int, "Images in one request."),
    "image_workers": (int, "Threads that decode and resize images."),
    "request_timeout": (float, "Seconds from a request's first byte to its last; as long as it takes otherwise."),
    "drain_seconds": (float, "How long a stop waits for requests in flight."),
}
"""Settings of ServeConfig that are options: their type and their help. `model` is the argument, `telemetry` is a switch."""


def settings(command: Decorated) -> Decorated:
    """Adds one option per setting. Their default is None, so that a config file is overruled only by what was really given."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(ServeConfig)}
    for name, (kind, text) in reversed(OPTIONS.items()):
        shown = defaults[name]
        words = text if shown is None or shown is msgspec.NODEFAULT else f"{text}  [default: {shown}]"
        command = click.option(f"--{name.replace('_', '-')}", name, type=kind, default=None, help=words)(command)
    return command


@click.command(cls=Command)
@click.argument("model", required=False)
@settings
@click.option("--no-telemetry", "telemetry", flag_value=False, type=bool, default=None, help="Record nothing.")
@click.option("--config", "config_file", type=click.Path(dir_okay=False), help="TOML file with these settings; flags overrule it.")
@json_option()
def serve(model: str | None, config_file: str | None, as_json: bool, **flags: Any) -> None:
    """Serve MODEL over a mesh of ranks (pp x dp x tp), watched from the first byte read.

    MODEL is a checkpoint folder in Hugging Face layout, or the word "shapes" for the shipped model. Creates a run, starts its
    collector and the ranks, and answers the OpenAI API until it is stopped (Ctrl-C). Says on stderr where it listens.
    """
    config = _config(model, config_file, flags)

    from runtime.launcher import serve as run_server
    from workbench.cli.ready import announce

    finish(run_server(config, on_ready=lambda ready: announce(ready, as_json)))


def _config(model: str | None, config_file: str | None, flags: dict[str, Any]) -> ServeConfig:
    given = {name: value for name, value in flags.items() if value is not None}
    if model is not None:
        given["model"] = resolve_model(model)
    if config_file is not None:
        return read_config(config_file, **given)
    if model is None:
        raise click.UsageError("missing MODEL", click.get_current_context())
    return ServeConfig(**given).checked()
