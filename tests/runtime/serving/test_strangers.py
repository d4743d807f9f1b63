"""Whoever connects to the ports of a server without its secrets: nothing is read of them, nothing breaks, nothing stays open."""

from __future__ import annotations

import asyncio
import struct

import msgspec
import pytest

from runtime import messages as m
from runtime.layout import Layout
from runtime.server import hub as hub_module
from runtime.server.hub import Hub


async def answer_to(data: bytes, hub: Hub, address: str) -> bytes:
    """What comes back until the other side closes."""
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    try:
        return await asyncio.wait_for(reader.read(), 5)
    finally:
        writer.close()


def framed(body: bytes, length: int | None = None) -> bytes:
    return struct.pack(">I", len(body) if length is None else length) + body


STRANGERS = {
    "a huge frame is announced": framed(b"", 1 << 30),
    "no frame of ours": framed(b"GET / HTTP/1.1"),
    "a token that is no ASCII": m.frame(m.Hello("gehörtnicht", 0, 1)),
    "the wrong token": m.frame(m.Hello("wrong", 0, 1)),
    "a frame before the greeting": m.frame(m.Died(0, "x")),
    "silence": b"",
}


@pytest.mark.parametrize("name", STRANGERS)
def test_a_stranger_at_the_ranks_port_is_closed(name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(hub_module, "HELLO_SECONDS", 0.3)

    async def scenario() -> None:
        hub = Hub(Layout(dp=2), "the-token-of-the-ranks")
        address = await hub.listen()
        assert await answer_to(STRANGERS[name], hub, address) == b""
        assert not hub.trouble.done() and all(state.writer is None for state in hub.states)
        await hub.close()

    asyncio.run(scenario())
    assert not [record for record in caplog.records if record.exc_info], "no traceback"


def test_a_node_number_that_is_none_is_no_frame() -> None:
    from runtime.nodes.frames import Join

    for node in (-1, 1 << 33):
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(msgspec.msgpack.encode(Join(node, 2, "h", {}, b"")), type=Join)
