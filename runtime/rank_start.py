"""Brings a rank up: process group, weights, KV cache, warm-up, probes; and down again."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from probes.checkpoint import Checkpoint
from probes.memory import MemorySampler
from probes.recorder import NullRecorder, Recorder, Recording
from runtime import messages as m
from runtime.arch import ArchSpec, read_arch
from runtime.batch import StepContext
from runtime.changes import Detail
from runtime.engine import Engine
from runtime.first_placement import first_placement
from runtime.header import Header
from runtime.kv import KVCache
from runtime.kv_size import kv_blocks
from runtime.layout import BadLayout
from runtime.link import Link
from runtime.load_window import ExpertCounter
from runtime.mesh import Mesh
from runtime.model import MoeModel
from runtime.peer_check import Facts, check_peers
from runtime.pipeline import Pipeline
from runtime.placement_switch import PlacementSwitch
from runtime.profile_window import ProfileWindow
from runtime.rank_probes import OomNote, device_memory_of, phase_announcer, start_probes
from runtime.requests_on_rank import RankRequests
from runtime.scheduler import LongPrompts, Scheduler
from runtime.serve_config import ServeConfig
from runtime.sharing import Sharing
from runtime.step_record import StepRecord
from runtime.warmup import warm_up
from runtime.worker_spec import WorkerSpec
from traces.run import Run

PROGRESS_SECONDS = 0.25
COLLECTIVE_TIMEOUT = timedelta(hours=1)  # a stuck rank is for a person to find out about, not for an abort


@dataclass(frozen=True, slots=True)
class Place:
    """This rank among all, as torchrun's environment variables say."""

    rank: int
    world: int
    local_rank: int
    local_world: int

    @classmethod
    def from_environment(cls) -> Place:
        get = os.environ.get
        world = int(get("WORLD_SIZE", "1"))
        return cls(int(get("RANK", "0")), world, int(get("LOCAL_RANK", "0")), int(get("LOCAL_WORLD_SIZE", str(world))))


@contextmanager
def start_rank(spec: WorkerSpec, place: Place, link: Link, began: float) -> Iterator[Engine]:
    """A rank that is ready to step. Errors on the way are raised; what was opened is closed in any case."""
    config, run = spec.config, Run(Path(spec.run))
    with ExitStack() as stack:
        recorder: Recording = Recorder.open(run, f"rank{place.rank}") if config.telemetry else NullRecorder()
        stack.callback(recorder.close)
        device = _device(config, place)
        memory = MemorySampler(recorder, place.rank, device=device_memory_of(device))
        stack.push(OomNote(recorder, place.rank, memory))
        if config.telemetry:
            start_probes(stack, recorder, run, place.rank, memory)
        enter = phase_announcer(memory, link, place.rank, began)
        enter("plan")
        checkpoint = Checkpoint.open(config.model)
        arch = read_arch(checkpoint.config)
        mesh = _join(config, place, device)
        if place.world > 1:
            check_peers(Facts.of(config.model), mesh.world)
        at = mesh.place
        recorder.register("rank", str(device), rank=place.rank, tp=at.tp, pp=at.pp, dp=at.dp, ep=at.ep)
        enter("load")
        model = _load(config, checkpoint, arch, mesh, device, recorder, link)
        if model.tier is not None:
            stack.callback(model.tier.close)
        enter("kv_cache")
        float8 = config.kv_dtype == "fp8"
        kv = model.kv_cache(_agreed_blocks(config, model, place), config.block_size, config.max_sequences, float8)
        enter("warmup")
        warm_up(model, kv, at.dp, config.max_tokens_per_step)
        switch = PlacementSwitch(model, link, place.rank, mesh.layout.ep, memory.phase)
        engine = _engine(config, model, kv, recorder, link, switch)
        stack.callback(engine.record.close)
        gc.collect()
        gc.freeze()  # weights and modules live as long as the process: no collection need look at them again
        enter("serve")
        dtype = str(model.dtype).removeprefix("torch.")
        link.send(m.Ready(place.rank, kv.blocks, kv.block_size, str(device), dtype, time.time() - began))
        yield engine
        memory.phase("stop")


def _engine(config: ServeConfig, model: MoeModel, kv: KVCache, recorder: Recording, link: Link, switch: PlacementSwitch) -> Engine:
    mesh, arch = model.mesh, model.arch
    scheduler = Scheduler(
        kv.allocator, kv.block_size, config.max_tokens_per_step, config.max_sequences,
        max_patches=config.image_patches_per_step or None,
        long=LongPrompts(config.long_above, config.long_budget),
        prefix_cache=config.reuses(arch),
    )  # fmt: skip
    counter = ExpertCounter(model.placement, model.moe_layers, arch.moe.experts, mesh.ep.rank)
    return Engine(
        rank=mesh.rank,
        model=model,
        pipeline=Pipeline(model, kv),
        sharing=Sharing(mesh, arch, model.dtype, model.device),
        most_micro_batches=config.most_micro_batches,
        scheduler=scheduler,
        requests=RankRequests(mesh.rank, scheduler, kv.blocks * kv.block_size, Path(config.model) / "tokenizer.json"),
        header=Header(mesh.world, mesh.layout.most_moe_layers(arch)),
        link=link,
        record=StepRecord(recorder, mesh, counter, scheduler),
        detail=Detail(config.detail_every if config.telemetry else 0),
        switch=switch,
        profile=ProfileWindow(recorder, mesh.rank, model.device),
    )


def _load(
    config: ServeConfig, checkpoint: Checkpoint, arch: ArchSpec, mesh: Mesh, device: torch.device, recorder: Recording, link: Link
) -> MoeModel:
    began, told = time.time(), 0.0

    def progress(done: int, total: int) -> None:
        nonlocal told
        if done == total or time.time() - told >= PROGRESS_SECONDS:
            told = time.time()
            link.send(m.Progress(mesh.rank, "load", done, total, told - began))

    placement = first_placement(config, arch)
    dtype = _dtype(config, checkpoint, device)
    return MoeModel.load(checkpoint, arch, mesh, placement, device, dtype, recorder, progress, config.load_mode, config.expert_bytes)


def _join(config: ServeConfig, place: Place, device: torch.device) -> Mesh:
    """The process groups; none for a single rank. BadLayout when other ranks were started than the layout has."""
    layout = config.layout
    if place.world != layout.world:
        message = f"the layout has {layout.world} ranks (pp {layout.pp} x dp {layout.dp} x tp {layout.tp}), {place.world} were started"
        raise BadLayout(message, "start as many ranks as the layout has")
    if place.world == 1:
        return Mesh.alone()
    if not dist.is_initialized():
        backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT)
    return Mesh.join(layout)


def _agreed_blocks(config: ServeConfig, model: MoeModel, place: Place) -> int:
    """KV blocks: what the rank with the least room for them can hold. A collective."""
    own = kv_blocks(config, model.arch, model.share, model.device, model.dtype, place.local_world)
    gathered = model.mesh.world.all_gather(torch.tensor([own]), "kv_blocks", StepContext(step=-1))
    return int(gathered.min())


def _device(config: ServeConfig, place: Place) -> torch.device:
    name = config.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        device = torch.device("cuda", place.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        return device
    return torch.device(name)


def _dtype(config: ServeConfig, checkpoint: Checkpoint, device: torch.device) -> torch.dtype:
    """On a CPU float32: bfloat16 decodes about four times slower there (reference/models_and_runtime.md, 5.1)."""
    if config.dtype != "auto":
        return getattr(torch, config.dtype)  # type: ignore[no-any-return]
    if device.type == "cpu":
        return torch.float32
    text = checkpoint.config.get("text_config") or {}
    stored = checkpoint.config.get("dtype") or checkpoint.config.get("torch_dtype") or text.get("dtype") or "bfloat16"
    return getattr(torch, str(stored))  # type: ignore[no-any-return]
