"""What `workbench serve` is asked to do: one struct, from flags or a TOML file, checked once."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from runtime.arch import ArchSpec
from runtime.budget.units import parse_size
from runtime.layout import BadLayout, Layout
from runtime.load_mode import MODES
from traces.errors import UsageError

JOIN_PORT = 29476  # where node 0 waits for the others
DEVICES = ("auto", "cpu", "cuda")
AGENTS = ("fork", "torchrun")
KV_DTYPES = ("auto", "fp8")
DTYPES = ("auto", "float32", "bfloat16", "float16")


class ServeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one server."""

    model: str  # checkpoint folder in Hugging Face layout
    name: str | None = None  # the model's name in the API; default: the folder's name
    tp: int = 1  # ranks that split every attention head count, dense feed-forward and the vocabulary between them
    pp: int = 1  # stages: each holds some of the layers
    dp: int | None = None  # replicas, over which sequences are spread; default: ep / tp
    ep: int | None = None  # ranks of a stage, over which its experts are split: dp x tp
    stage_layers: list[int] | None = None  # layers of each stage; default: even, longer stages first
    micro_batches: int | None = None  # most parts in which a step goes through the stages; default: 2 pp, or 1 without stages
    nodes: int = 1  # hosts, each with an equal part of the ranks
    node_rank: int = 0  # which of them this is; node 0 has the API, the run and its collector
    head: str | None = None  # node 0's address for the others, HOST or HOST:PORT
    host: str = "127.0.0.1"
    port: int = 8000  # 0: a free one
    max_tokens_per_step: int = 512  # tokens a rank computes in one step: decodes plus prefill chunks
    max_sequences: int = 64  # sequences a rank runs at once
    max_queue: int = 256  # requests inside the whole server; more are answered 429
    prefix_cache: bool = True  # KV blocks are kept for later prompts that begin with the same tokens and images
    long_prompt: int | None = None  # tokens above which a prompt shares a budget of its own; default: 4 x max_tokens_per_step
    long_tokens_per_step: int | None = None  # that budget, while others wait; default: half of max_tokens_per_step
    max_model_len: int | None = None  # longest prompt plus answer, tokens; default: the model's own limit
    kv_blocks: int | None = None  # KV blocks per rank; default: from the memory there is
    block_size: int = 16  # tokens in a KV block
    detail_every: int = 16  # layer and collective rows of one step in N; 0: never
    telemetry: bool = True
    seed: int = 0  # of requests that sample without a seed of their own
    agent: str = "fork"  # who starts the ranks: our own agent, which imports torch once and forks them, or torchrun
    device: str = "auto"
    dtype: str = "auto"  # float32 on a CPU, the checkpoint's own elsewhere
    kv_dtype: str = "auto"  # of what is cached: the compute dtype, or fp8 with scales
    load_mode: str = "auto"  # how the checkpoint is read: direct, buffered, network, or what its file system suggests
    placement: str | None = None  # JSON file with the first expert placement; default: contiguous
    expert_memory: str | None = None  # most memory of a rank for routed experts, such as 4GiB: the rest stay in the files; default: all
    redundant_experts: int = 0  # slots of a layer beyond one for each expert, over all ranks: replicas of what is popular
    run_root: str | None = None
    max_image_bytes: int = 20 << 20  # of one image as it is sent, after base64
    max_image_pixels: int = 64_000_000  # width x height; a larger one is refused before it is decoded
    max_images: int = 16  # in one request
    image_patches_per_step: int = 4096  # that a rank encodes in one step, one picture always fits; 0: pictures stand in line with text
    image_workers: int = 1  # threads that decode and resize images, apart from the event loop
    request_timeout: float | None = None  # seconds from a request's first byte to its last; default: as long as it takes
    drain_seconds: float = 5.0  # how long a stop waits for requests in flight

    @property
    def served_name(self) -> str:
        return self.name or Path(self.model).resolve().name

    @property
    def layout(self) -> Layout:
        """BadLayout when the sizes contradict one another."""
        return Layout.of(self.tp, self.pp, self.dp, self.ep, self.stage_layers)

    @property
    def most_micro_batches(self) -> int:
        return self.micro_batches or (2 * self.pp if self.pp > 1 else 1)

    @property
    def long_above(self) -> int:
        return self.long_prompt if self.long_prompt is not None else 4 * self.max_tokens_per_step

    @property
    def long_budget(self) -> int:
        return self.long_tokens_per_step if self.long_tokens_per_step is not None else -(-self.max_tokens_per_step // 2)

    @property
    def expert_bytes(self) -> int | None:
        """UsageError when `expert_memory` is no size."""
        return None if self.expert_memory is None else parse_size(self.expert_memory)

    def reuses(self, arch: ArchSpec) -> bool:
        """Whether computed KV blocks are kept: not where a sequence has a state too, which is of its whole past."""
        return self.prefix_cache and not arch.recurrent

    def checked(self) -> ServeConfig:
        """Itself, or UsageError naming the setting."""
        _at_least_one(self, "max_tokens_per_step", "max_sequences", "max_queue", "block_size", "max_image_bytes")
        _at_least_one(self, "max_image_pixels", "image_workers", "most_micro_batches")
        for name in ("long_prompt", "long_tokens_per_step"):
            if getattr(self, name) is not None:
                _at_least_one(self, name)
        _not_negative(self, redundant_experts="0 gives every expert one slot", image_patches_per_step="0 takes the limit away")
        if self.expert_bytes is not None and self.redundant_experts:
            raise UsageError(
                "--expert-memory and --redundant-experts do not work together",
                "replicas cost memory that --expert-memory takes away: choose one of them",
            )
        self._check_nodes()
        if not 0 <= self.port < 65536:
            raise UsageError(f"port {self.port} does not exist", "choose --port between 0 (any free one) and 65535")
        if self.max_sequences > self.max_tokens_per_step:
            raise UsageError(
                f"max_sequences {self.max_sequences} is more than max_tokens_per_step {self.max_tokens_per_step}",
                "every running sequence decodes one token in a step: raise --max-tokens-per-step",
            )
        if self.request_timeout is not None and self.request_timeout <= 0:
            raise UsageError(f"request_timeout must be above 0 seconds, not {self.request_timeout:g}")
        if self.kv_blocks is not None and self.kv_blocks < 2:
            raise UsageError(f"{self.kv_blocks} KV blocks hold no sequence", "raise --kv-blocks")
        if self.device not in DEVICES and not self.device.startswith("cuda:"):
            raise UsageError(f"unknown device {self.device}", f"one of {', '.join(DEVICES)}")
        for name, known in (("agent", AGENTS), ("dtype", DTYPES), ("kv_dtype", KV_DTYPES), ("load_mode", MODES)):
            if getattr(self, name) not in known:
                raise UsageError(f"unknown {name} {getattr(self, name)}", f"one of {', '.join(known)}")
        return self

    def _check_nodes(self) -> None:
        world = self.layout.world
        if self.nodes < 1 or world % self.nodes:
            raise BadLayout(f"{world} ranks cannot be spread evenly over {self.nodes} nodes", "choose --nodes that divides the ranks")
        if not 0 <= self.node_rank < self.nodes:
            raise UsageError(f"there is no node {self.node_rank} among {self.nodes}", f"--node-rank is 0 to {self.nodes - 1}")
        if self.nodes > 1 and not self.head:
            raise UsageError("several nodes need --head", "give every node the address of node 0")


def _at_least_one(config: ServeConfig, *names: str) -> None:
    for name in names:
        if getattr(config, name) < 1:
            raise UsageError(f"{name} must be at least 1, not {getattr(config, name)}")


def _not_negative(config: ServeConfig, **hints: str) -> None:
    for name, hint in hints.items():
        if getattr(config, name) < 0:
            raise UsageError(f"{name} must not be negative, not {getattr(config, name)}", hint)


def read_config(path: str | os.PathLike[str], **flags: Any) -> ServeConfig:
    """A TOML file, overruled by `flags` (those that are None are left out). UsageError on anything unknown."""
    try:
        document = tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is no TOML: {error}") from error
    document.update({name: value for name, value in flags.items() if value is not None})
    try:
        return msgspec.convert(document, ServeConfig).checked()
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {error}", "see `workbench serve --help` for the settings") from error
