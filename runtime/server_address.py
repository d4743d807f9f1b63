"""The API's listening socket, bound before any rank starts, so that a port in use costs nobody a minute."""

from __future__ import annotations

import errno
import socket

from traces.errors import UsageError


class PortInUse(UsageError):
    """Somebody else listens there."""


def bind(host: str, port: int) -> socket.socket:
    """A bound socket; PortInUse or UsageError when that is impossible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(f"port {port} on {host} is in use", "choose another with --port, or --port 0 for any free one") from error
        if error.errno == errno.EACCES:
            raise UsageError(f"port {port} needs privileges", "choose a --port of 1024 or above") from error
        raise UsageError(f"cannot listen on {host} port {port}: {error.strerror}", "check --host") from error
    listener.set_inheritable(False)
    return listener


def url_of(listener: socket.socket, host: str) -> str:
    """The URL for clients on this machine; a wildcard address becomes loopback."""
    port = listener.getsockname()[1]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}"
