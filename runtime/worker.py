"""The main of a rank. Finds its place in torchrun's environment variables, and everything else in the run's worker spec."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
import traceback
from pathlib import Path

import torch.distributed as dist

from runtime import messages as m
from runtime.child import PARENT, die_with_parent, name_process
from runtime.link import ApiGone, Link
from runtime.rank_log import rank_log_path, redirect_to_log
from runtime.rank_start import Place, start_rank
from runtime.worker_spec import WorkerSpec
from traces.errors import WorkbenchError

log = logging.getLogger("runtime.worker")
LINGER_SECONDS = 15.0  # a rank that lost a peer waits to be stopped, so that the peer is seen to have ended first


def main() -> None:
    """Exit code 0 after a stop, 1 after an error; the error went to the API process and to the rank's log."""
    began = time.time()
    place = Place.from_environment()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the launcher decides
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    if PARENT in os.environ:
        die_with_parent(int(os.environ[PARENT]))
    name_process(f"wb-rank{place.rank}")
    spec = WorkerSpec.from_environment()
    redirect_to_log(rank_log_path(Path(spec.run), place.rank))
    try:
        link = Link.connect(spec.api, spec.token, place.rank, os.getpid())
    except OSError as error:
        log.error("no API process at %s: %s", spec.api, error)
        sys.exit(1)
    sys.exit(_serve(spec, place, link, began))


def _serve(spec: WorkerSpec, place: Place, link: Link, began: float) -> int:
    try:
        with start_rank(spec, place, link, began) as engine:
            engine.run()
        return 0
    except ApiGone as error:
        log.warning("ending: %s", error)
    except WorkbenchError as error:
        log.exception("cannot start")
        _say(link, m.LoadFailed(place.rank, error.message, error.hint, error.exit_code))
    except Exception as error:
        log.exception("rank %d ends", place.rank)
        if _is_peer_loss(error):
            _say(link, m.PeerLost(place.rank, _last_line(error)))
            _linger(link)
        else:
            _say(link, m.Died(place.rank, _last_line(error)))
    return 1


def _is_peer_loss(error: Exception) -> bool:
    """Another rank is gone: torch's own error types, or gloo's and NCCL's plain RuntimeErrors."""
    if isinstance(error, dist.DistBackendError | dist.DistNetworkError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and any(word in text for word in ("gloo", "NCCL", "Connection closed by peer"))


def _last_line(error: Exception) -> str:
    return "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]


def _say(link: Link, message: m.Message) -> None:
    try:
        link.send(message)
    except ApiGone:
        log.warning("the API process is gone too")


def _linger(link: Link) -> None:
    until = time.monotonic() + LINGER_SECONDS
    try:
        while time.monotonic() < until:
            link.wait(0.2)
            link.poll()
    except ApiGone:
        return


if __name__ == "__main__":
    main()
