"""Several growing answers read as one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def merged(sources: Sequence[AsyncGenerator[T]]) -> AsyncGenerator[tuple[int, T]]:
    """(number of the source, item) as items come. The first error of a source ends all of them and is raised here."""
    if len(sources) == 1:
        async with aclosing(sources[0]) as only:
            async for item in only:
                yield 0, item
        return
    queue: asyncio.Queue[tuple[int, T | None]] = asyncio.Queue()

    async def pump(number: int, source: AsyncGenerator[T]) -> None:
        try:
            async with aclosing(source) as items:
                async for item in items:
                    queue.put_nowait((number, item))
        finally:
            queue.put_nowait((number, None))

    tasks = [asyncio.create_task(pump(number, source)) for number, source in enumerate(sources)]
    try:
        running = len(tasks)
        while running:
            number, got = await queue.get()
            if got is None:
                running -= 1
                await tasks[number]
            else:
                yield number, got
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
