"""The API process's own life: what the HTTP side needs is built, served and closed here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from probes.fingerprint import fingerprint
from probes.memory import MemorySampler
from probes.recorder import NullRecorder, Recorder, Recording
from probes.spans import Tracing
from runtime.arch import AnyVision, ArchSpec
from runtime.images import ImageSettings
from runtime.placement import Placement
from runtime.serve_config import ServeConfig
from runtime.server.app import build_app
from runtime.server.backpressure import Backpressure
from runtime.server.chat_template import ChatTemplate
from runtime.server.control import Control
from runtime.server.controller import Controller
from runtime.server.gateway import Gateway
from runtime.server.hub import Hub
from runtime.server.image_reader import ImageReader
from runtime.server.metrics import Metrics
from runtime.server.prompt import PromptBuilder
from runtime.server.tokenizer import Tokenizer
from traces.errors import CheckpointError
from traces.run import Run

SHUTDOWN_SECONDS = 2  # for connections that are still open after the drain


class _Server(uvicorn.Server):
    """Signals are the launcher's business."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass(slots=True)
class Api:
    """Serves from `start` to `close`; until the ranks are ready it answers 503."""

    gateway: Gateway
    recorder: Recording
    tracing: Tracing | None
    memory: MemorySampler | None
    _server: _Server
    _task: asyncio.Task[None]

    @classmethod
    async def start(cls, config: ServeConfig, arch: ArchSpec, placement: Placement, hub: Hub, run: Run, listener: socket.socket) -> Api:
        """CheckpointError when the tokenizer, the chat template or the image settings are missing."""
        _log_to(run.path / "logs" / "api.log")
        prompts = build_prompts(config, arch)
        recorder: Recording = Recorder.open(run, "api") if config.telemetry else NullRecorder()
        recorder.register("api")
        tracing = Tracing(recorder, service="workbench.api") if config.telemetry else None
        longest = min(config.max_model_len or arch.max_positions, arch.max_positions)
        metrics, pressure = Metrics(config.served_name, config.layout.dp), Backpressure(config.max_queue, recorder)
        gateway = Gateway(config, hub, prompts, metrics, longest, arch.vocab, tracing, pressure, config.reuses(arch))
        controller = Controller(hub, arch, placement, config.detail_every if config.telemetry else 0)
        control = Control(gateway, controller, recorder, (run.path / "control.token").read_text())
        settings = uvicorn.Config(
            build_app(gateway, control, run.id), log_config=None, access_log=False, lifespan="off",
            timeout_graceful_shutdown=SHUTDOWN_SECONDS, timeout_keep_alive=75,
        )  # fmt: skip
        server = _Server(settings)
        memory = None
        if config.telemetry:
            memory = MemorySampler(recorder, phase="serve")
            memory.start()
            asyncio.get_running_loop().run_in_executor(None, lambda: run.add_fingerprint("api", fingerprint(model=config.model)))
        task = asyncio.create_task(server.serve([listener]))
        return cls(gateway, recorder, tracing, memory, server, task)

    async def drain(self, seconds: float, hurry: asyncio.Event) -> None:
        """New requests are refused; those in flight get `seconds`, or until `hurry`, and then an error."""
        self.gateway.draining = True
        deadline = asyncio.get_running_loop().time() + seconds
        while self.gateway.admitted and not hurry.is_set() and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.05)
        self.gateway.hub.fail_all("the server is shutting down")

    async def close(self) -> None:
        """Lets the last answers out, then closes."""
        self._server.should_exit = True
        await self._task
        self.gateway.prompts.close()
        if self.memory is not None:
            self.memory.stop()
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)
        await asyncio.to_thread(self.recorder.close)


def build_prompts(config: ServeConfig, arch: ArchSpec) -> PromptBuilder:
    """Template, tokenizer and image reader of the checkpoint."""
    folder = Path(config.model)
    images = None
    if arch.vision is not None and arch.tokens.image is not None:
        settings = ImageSettings.read(folder)
        _check_pictures(settings, arch.vision)
        limits = (config.image_workers, config.max_image_bytes, config.max_image_pixels)
        images = ImageReader(settings, arch.tokens.image, arch.spatial_positions, *limits)
    return PromptBuilder(ChatTemplate.of(folder), Tokenizer.of(folder), images, config.max_images)


def _check_pictures(settings: ImageSettings, vision: AnyVision) -> None:
    """CheckpointError when pictures are prepared for another tower than the model's."""
    if settings.family != vision.pictures:
        raise CheckpointError(f"the tower does not read pictures prepared for {settings.family}", "check preprocessor_config.json")
    for name in ("patch", "temporal_patch", "merge"):
        prepared, read = getattr(settings, name), getattr(vision, name)
        if prepared != read:
            message = f"preprocessor_config.json prepares pictures with {name} {prepared}, the tower of config.json reads {name} {read}"
            raise CheckpointError(message, "use the preprocessor_config.json that belongs to the weights")


def _log_to(path: Path) -> None:
    """The libraries' and our own log lines of the API process; the terminal is the person's."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    for name in ("runtime", "uvicorn", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(logging.INFO)
        logger.propagate = False
