"""Session states and the commands each allows (RFC 9051 §3, spec D1, decision D21)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from postroom.imap import commands as c
from postroom.imap.errors import BadCommand


class SessionState(Enum):
    """Where a session stands."""

    NOT_AUTHENTICATED = "not authenticated"
    AUTHENTICATED = "authenticated"
    SELECTED = "selected"
    LOGOUT = "logout"


WRONG_STATE = "Command not valid in this state"

_BEFORE = frozenset({SessionState.NOT_AUTHENTICATED})
_SELECTED = frozenset({SessionState.SELECTED})
_AFTER = frozenset({SessionState.AUTHENTICATED, SessionState.SELECTED})
_ALIVE = _BEFORE | _AFTER

#: Command → states in which it is valid. IDLE needs no folder (D21); ENABLE is not held to "before SELECT", a check
#: that RFC 5161 §3.1 leaves to the server.
COMMAND_STATES: Mapping[type[c.Command], frozenset[SessionState]] = MappingProxyType(
    {
        **dict.fromkeys((c.Capability, c.Noop, c.Logout, c.Id), _ALIVE),
        **dict.fromkeys((c.StartTls, c.Login, c.Authenticate), _BEFORE),
        **dict.fromkeys((c.Enable, c.Select, c.Create, c.Delete, c.Rename, c.Subscribe, c.Unsubscribe), _AFTER),
        **dict.fromkeys((c.List, c.Lsub, c.Namespace, c.StatusCommand, c.Append, c.Idle, c.Done, c.Notify), _AFTER),
        **dict.fromkeys((c.GetQuota, c.GetQuotaRoot, c.GetMetadata, c.SetMetadata, c.Compress), _AFTER),
        **dict.fromkeys((c.SetAcl, c.DeleteAcl, c.GetAcl, c.ListRights, c.MyRights), _AFTER),
        **dict.fromkeys((c.Check, c.Close, c.Unselect, c.Expunge, c.Search, c.Fetch, c.Store), _SELECTED),
        **dict.fromkeys((c.Copy, c.Move, c.Replace, c.Sort, c.Thread, c.CancelUpdate), _SELECTED),
    }
)


def allowed(state: SessionState, command: c.Command) -> bool:
    """Whether `command` is valid in `state`."""
    return state in COMMAND_STATES.get(type(command), frozenset())


def require(state: SessionState, command: c.Command) -> None:
    """Raise `BadCommand` with the text of spec D1 when `command` is not valid in `state`."""
    if not allowed(state, command):
        raise BadCommand(WRONG_STATE)
