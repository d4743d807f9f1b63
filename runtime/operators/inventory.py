"""From a config to workbench.operators.v1: a prefill and a decode step over shapes alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from probes.checkpoint import read_config
from runtime.arch import ArchSpec, read_arch
from runtime.batch import ForwardBatch, StepContext
from runtime.inventory.opening import read_config_file
from runtime.operators.document import LayerKind, Operator, OperatorsDocument
from runtime.operators.execute import Executor
from runtime.operators.kernels import key_of, served
from runtime.operators.recording import Recorder, Seen, recording
from runtime.operators.shape_model import ShapeModel, kind_of

PREFILL, DECODE = "prefill", "decode"
BLOCK = 16


@dataclass(frozen=True, slots=True)
class Asked:
    """`tokens` of a prefill step in two chunks, `sequences` of a decode step, each behind as many cached tokens. `run`: execute them."""

    device: str = "cpu"
    dtype: str | None = None  # None: float32 on a CPU, else bfloat16
    tokens: int = 64
    sequences: int = 4
    run: bool = False


def operators(path: str | Path, asked: Asked) -> OperatorsDocument:
    """CheckpointError for a config that cannot be served, UsageError for a device that torch does not know."""
    place = Path(path)
    arch = read_arch(read_config(place) if place.is_dir() else read_config_file(place))
    key = key_of(asked.device)
    host = key == "CPU"
    dtype = asked.dtype or ("float32" if host else "bfloat16")
    target = torch.device("cpu" if host else "meta")  # only a CPU has a path of its own (runtime/layers/experts.py)
    phases = _recorded(arch, getattr(torch, dtype), target, key, asked)
    executor = Executor(asked.device) if asked.run else None
    found = _operators(phases, key, executor)
    kinds: dict[str, list[int]] = {}
    for i, layer in enumerate(arch.layers):
        kinds.setdefault(kind_of(layer), []).append(i)
    return OperatorsDocument(
        path=str(path), architecture=arch.architecture, device=asked.device, dispatch_key=key, torch=str(torch.__version__), dtype=dtype,
        tokens=asked.tokens, sequences=asked.sequences, kinds=[LayerKind(kind, layers) for kind, layers in kinds.items()], operators=found,
        gaps=[op.name for op in found if op.status == "nothing"], notes=_notes(arch, host),
    )  # fmt: skip


def _recorded(arch: ArchSpec, dtype: torch.dtype, target: torch.device, key: str, asked: Asked) -> dict[str, dict[str, Seen]]:
    recorder = Recorder()
    model = ShapeModel(arch, dtype, recorder)
    half = max(1, asked.tokens // 2)
    context = -(-(asked.tokens + 1) // BLOCK)
    kv = model.kv_cache(context * asked.sequences, BLOCK, asked.sequences)
    top_k, phases = arch.moe.router.top_k, {}
    for phase, rows in ((PREFILL, asked.tokens - half or half), (DECODE, asked.sequences)):
        tables = [torch.arange(i * context, (i + 1) * context) for i in range(asked.sequences)]
        if phase == PREFILL:  # the second chunk of a prompt: it reads the cache
            batch = _batch([rows], [half], tables[:1])
        else:
            batch = _batch([1] * asked.sequences, [asked.tokens] * asked.sequences, tables)
        with recording(recorder, target, key, rows * top_k):
            model.forward(batch, kv, StepContext(1))
        phases[phase] = recorder.take()
    return phases


def _batch(lengths: list[int], cached: list[int], tables: list[torch.Tensor]) -> ForwardBatch:
    starts = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    positions = torch.cat([torch.arange(c, c + n) for n, c in zip(lengths, cached, strict=True)])
    ends = torch.tensor([stop - 1 for stop in starts[1:]])
    slots = torch.arange(len(lengths))
    zeros = torch.zeros(starts[-1], dtype=torch.int64)
    return ForwardBatch(zeros, positions.expand(3, -1), torch.tensor(starts), torch.tensor(cached), tables, ends, state_slots=slots)


def _operators(phases: dict[str, dict[str, Seen]], key: str, executor: Executor | None) -> list[Operator]:
    names = dict.fromkeys(name for seen in phases.values() for name in seen)
    found = []
    for name in names:
        seen = {phase: operators[name] for phase, operators in phases.items() if name in operators}
        largest = {phase: one.largest for phase, one in seen.items() if one.largest is not None}
        status = served(name, next(iter(largest.values())).op, key)
        found.append(
            Operator(
                name=name, status=status.status, how=status.how, advice=status.advice,
                calls={phase: one.calls for phase, one in seen.items()},
                shapes={phase: " ".join(map(str, call.shapes())) for phase, call in largest.items()},
                measured=[executor.measure(call, status.status) for call in largest.values()] if executor is not None else [],
            )
        )  # fmt: skip
    return found


def _notes(arch: ArchSpec, host: bool) -> list[str]:
    notes = ["collectives and the drawing of tokens are not in it; weights are decoded when they are loaded"]
    if arch.attention_residuals:
        notes.append("the mix of frozen streams is shown at the size it has in the first layer that mixes")
    if arch.vision is not None:
        notes.append("the vision tower is not in it")
    if not host:
        notes.append("experts run grouped, as they do on every device but the CPU")
    return notes
