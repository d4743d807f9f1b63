"""Notices that a client has gone away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed its connection before the answer was complete."""


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T], answered: Callable[[], bool]) -> T:
    """The result of `work`, which is cancelled with ClientGone raised when the client leaves before all was `answered`.

    The body must have been read. A server also says "disconnect" once the whole response is out.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done() and not answered():
            task.cancel()
            await asyncio.wait((task,))
            raise ClientGone
        return await task
    finally:
        gone.cancel()
        task.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
