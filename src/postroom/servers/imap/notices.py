"""What a session needs of whoever tells a client what it did not ask for (NOTIFY, RFC 5465)."""

from __future__ import annotations

from typing import Protocol

from postroom.imap import commands as c
from postroom.servers.imap.selected import Selected


class Notices(Protocol):
    """What NOTIFY asked for (`notify.Notifier`)."""

    async def tell(self) -> bool:
        """Tell what is due, between commands. False when nothing was. Raises `Disconnected`."""

    async def tell_idle(self, *, force: bool) -> None:
        """Tell what is due, during IDLE. Raises `Disconnected`."""

    async def tell_arrived(self, selected: Selected, known: int, /) -> None:
        """Messages beyond the UID `known` were just told of."""

    def caused(self, command: c.Command, /) -> None:
        """The client did this itself."""

    def follow(self, selected: Selected, /) -> None:
        """Another folder was selected."""

    def grants_changed(self) -> None:
        """The mailboxes of others are not what they were."""

    def close(self) -> None:
        """The session is over."""
