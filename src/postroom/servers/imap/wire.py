"""What a session needs of its connection."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Wire(Protocol):
    """What a session needs of its connection."""

    peer_ip: str
    secure: bool

    @property
    def binding(self) -> bytes | None:
        """What binds to the TLS channel, if anything does (tls-server-end-point, RFC 5929 §4)."""

    @property
    def compressed(self) -> bool:
        """Whether the connection is compressed (RFC 4978)."""

    def send(self, buffers: Iterable[bytes | memoryview], /) -> None:
        """Hand bytes to the transport."""

    async def drained(self) -> None:
        """Wait until the client has read enough. Raises `Disconnected`."""

    async def wait(self, *, reading: bool = True) -> None:
        """Wait until there is more input, or `notify` was called. Raises `Disconnected`.

        Without `reading` no more input is taken than there is room for.
        """

    def notify(self) -> None:
        """End a `wait`, or the next one."""

    def attend(self) -> None:
        """There is something to tell that no command asked for: see that `Session.run` or a `wait` sees to it."""

    def account(self) -> None:
        """What the session holds has changed."""

    async def start_tls(self) -> None:
        """Go on under TLS. Raises `Disconnected`."""

    def compress(self, received: bytes, /) -> None:
        """Go on compressed, both ways; `received` came after the command already (RFC 4978)."""

    def expect(self, seconds: float, farewell: str, /) -> None:
        """Without anything from the client for so long, say BYE and go."""

    def dismiss(self, farewell: str, /) -> None:
        """Say BYE and go, unless a command is under way."""
