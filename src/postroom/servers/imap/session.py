"""One IMAP session: commands in, one after the other, answers out (RFC 3501 §5.5, mail-server D1).

The session knows no socket: a `Wire` moves its bytes. Commands are dispatched by their type through a table; each
handler does its work and returns the words of the tagged answer, before which everything that happened meanwhile is
told. A handler that has to say something first writes it itself.
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from postroom.accounts.models import Principal, PrincipalKind
from postroom.base import log as base_log
from postroom.base.settings_tree import PlaintextAuth
from postroom.imap import (
    BadCommand,
    Code,
    CommandError,
    CommandReader,
    Continuation,
    Line,
    ProtocolNo,
    RawCommand,
    ReaderLimits,
    Rejected,
    SessionState,
    Status,
    parse_command,
    render,
    require,
)
from postroom.imap import commands as c
from postroom.imap.errors import NotSaved
from postroom.imap.search import ReturnOption
from postroom.servers.imap.answers import Done, InFlight, PendingAnswer
from postroom.servers.imap.boxes import Box, Boxes, Found
from postroom.servers.imap.capabilities import UTF8_WORDS, capabilities, options
from postroom.servers.imap.config import ImapServices
from postroom.servers.imap.failures import Disconnected, as_answer
from postroom.servers.imap.notices import Notices
from postroom.servers.imap.progress import StillAtIt
from postroom.servers.imap.selected import Selected
from postroom.servers.imap.shared import SharedState
from postroom.servers.imap.views import FolderGone
from postroom.servers.imap.wire import Wire
from postroom.servers.limits import is_loopback

_log = base_log.get("servers.imap")

SIGNED_OUT: Final = "Signed out; sign in again"
TAKEN_AWAY: Final = "Selected mailbox is not open to you any more"

OUTPUT_CHUNK: Final = 64 * 1024
"""Octets that gather before they are written."""


Handler = Callable[["Session", Any], Awaitable[Done | PendingAnswer]]

# During these no message may lose its number (RFC 3501 §7.4.1); their UID forms are other commands.
_KEEPS_NUMBERS: Final = (c.Fetch, c.Store, c.Search, c.Sort, c.Thread)


class Session:
    """State and dispatch. `run` handles whatever input is complete and returns when there is none."""

    __slots__ = (
        "_bad",
        "_executing",
        "_handlers",
        "_in_flight",
        "_out",
        "_out_size",
        "_unwatch",
        "append_target",
        "boxes",
        "enabled",
        "farewell",
        "gathered",
        "login_failures",
        "notices",
        "principal",
        "reader",
        "selected",
        "shared",
        "state",
        "tag",
        "wire",
    )

    def __init__(self, shared: SharedState, wire: Wire, handlers: Mapping[type[c.Command], Handler]) -> None:
        self.shared = shared
        self.wire = wire
        size = shared.config.max_append_size
        total = max(size, ReaderLimits().max_append_total)
        self.reader = CommandReader(ReaderLimits(max_append_size=size, max_append_total=total))
        self.state = SessionState.NOT_AUTHENTICATED
        self.principal: Principal | None = None
        self.boxes = Boxes(shared.services.sharing, self._grants_changed)
        self.selected: Selected | None = None
        self.tag = b""
        self.login_failures = 0
        self.append_target: tuple[str, Found] | None = None
        self.enabled: frozenset[str] = frozenset()
        self.gathered = 0
        """Octets of stored messages that a command has in memory."""
        self._handlers = handlers
        self._in_flight: InFlight | None = None
        self._bad = 0
        self._executing: int | None = None
        self._out: list[bytes | memoryview] = []
        self._out_size = 0
        self._unwatch: Callable[[], None] = _nothing
        self.farewell = ""
        self.notices: Notices | None = None

    # -- what a client may do

    @property
    def services(self) -> ImapServices:
        return self.shared.services

    @property
    def may_sign_in(self) -> bool:
        """Whether a password may travel on this connection (D1)."""
        rule = self.shared.config.plaintext_auth
        if self.wire.secure or rule is PlaintextAuth.ALWAYS:
            return True
        return rule is PlaintextAuth.LOOPBACK and is_loopback(self.wire.peer_ip)

    @property
    def may_start_tls(self) -> bool:
        """Whether STARTTLS is on offer now."""
        return self.shared.tls_available and not self.wire.secure and self.principal is None

    @property
    def scram_mechanisms(self) -> tuple[str, ...]:
        """Those that AUTHENTICATE takes on this connection, where one may sign in at all."""
        offer = self.services.scram
        return () if offer is None else offer.mechanisms(self.wire.binding)

    def capabilities(self) -> tuple[str, ...]:
        """What CAPABILITY answers now."""
        return capabilities(
            signed_in=self.principal is not None,
            may_sign_in=self.may_sign_in,
            may_start_tls=self.may_start_tls,
            append_limit=self.shared.config.max_append_size,
            message_limit=self.shared.config.message_limit,
            scram=self.scram_mechanisms,
            compressed=self.wire.compressed,
            may_replace=not self.is_key,
        )

    def signed_in(self, principal: Principal) -> None:
        """The principal's from now on, for as long as what they gave counts."""
        self.principal = principal
        self.boxes.open(principal)
        if self.services.standing is not None:
            self._unwatch = self.services.standing.watch(principal, self._dismiss)

    def _dismiss(self) -> None:
        self._dismiss_with(SIGNED_OUT)

    def _dismiss_with(self, farewell: str) -> None:
        # What is under way ends with its answer; the next command is not begun (execute).
        self.farewell = self.farewell or farewell
        self.wire.dismiss(self.farewell)

    @property
    def is_dismissed(self) -> bool:
        """Whether the session is to end as soon as nothing is under way; `farewell` says why."""
        return bool(self.farewell)

    def require_standing(self) -> None:
        """Where much is written and none of it in part: raises `Disconnected`, after BYE, for who is dismissed."""
        if self.farewell:
            self.bye(self.farewell)
            raise Disconnected

    def _grants_changed(self) -> None:
        """Somebody changed what this person may open. No client knows of a folder that is taken from it: it has to come
        again, as when the folder is removed (D2); what it has opened otherwise stays open.
        """
        self.append_target = None
        selected = self.selected
        if selected is not None and not selected.box.is_own:
            now = self.boxes.now(selected.box)
            if now is None:
                self._dismiss_with(TAKEN_AWAY)
                return
            selected.box = now
            if not now.may_write and not selected.read_only:
                selected.read_only = selected.must_tell_read_only = True
                self.wire.notify()
        if self.notices is not None:
            self.notices.grants_changed()

    # -- what the client asked for once and for all

    @property
    def follows_modseq(self) -> bool:
        """Whether FETCH responses that the client did not ask for have MODSEQ (RFC 7162 §3.1)."""
        return "CONDSTORE" in self.enabled

    @property
    def is_rev2(self) -> bool:
        """Whether the client speaks IMAP4rev2 (RFC 9051 §6.3.1)."""
        return "IMAP4REV2" in self.enabled

    @property
    def resyncs(self) -> bool:
        """Whether what went is told by UID (RFC 7162 §3.2.10)."""
        return "QRESYNC" in self.enabled

    @property
    def utf8(self) -> bool:
        """Whether names, and strings in quotes, are UTF-8 (RFC 6855 §3, RFC 9051 §5.1)."""
        return not self.enabled.isdisjoint(UTF8_WORDS)

    def enable(self, *words: str) -> None:
        """From now on; also by commands that only those use who know it (RFC 7162 §3.1)."""
        if not self.enabled.issuperset(words):
            self.enabled |= frozenset(words)

    @property
    def is_key(self) -> bool:
        """Whether an agent signed in with its API key: it may not remove anything for good (D1)."""
        return self.principal is not None and self.principal.kind is PrincipalKind.KEY

    def require_write(self, box: Box) -> None:
        """Raises `ProtocolNo` [NOPERM] for whoever may only read the mailbox."""
        if not box.may_write:
            raise ProtocolNo(Code.NOPERM, "Not permitted")

    def forbid_keys(self) -> None:
        """Raises `ProtocolNo` [NOPERM] for API keys: removal for good is for people (D1)."""
        if self.is_key:
            raise ProtocolNo(Code.NOPERM, "Not permitted with an API key")

    def folder(self) -> Selected:
        """The selected folder, which the state guarantees."""
        assert self.selected is not None
        return self.selected

    def writable_folder(self) -> Selected:
        """The selected folder for a command that changes it. Raises `ProtocolNo` [READ-ONLY] or [NOPERM]."""
        selected = self.folder()
        self.require_write(selected.box)
        if selected.read_only:
            raise ProtocolNo(Code.READ_ONLY, "Mailbox is selected read-only")
        return selected

    # -- output

    def write(self, *data: bytes | memoryview) -> None:
        """Queue output; it is sent in large pieces, at the latest when the command ends."""
        self._out += data
        self._out_size += sum(map(len, data))

    def flush(self) -> None:
        """Send what is queued."""
        if self._out:
            out, self._out, self._out_size = self._out, [], 0
            self.wire.send(out)

    async def drain(self) -> None:
        """For handlers that write much: send if there is enough, and wait while the client does not read."""
        if self._out_size >= OUTPUT_CHUNK:
            self.flush()
            await self.wire.drained()

    def greet(self) -> None:
        """The greeting (RFC 3501 §7.1.1)."""
        code = render.code_capability(self.capabilities())
        self.write(render.untagged(Status.OK, self.shared.config.banner, code))
        self.flush()

    def bye(self, text: str, code: str | None = None) -> None:
        """Say goodbye; the connection is to be closed then."""
        self.write(render.untagged(Status.BYE, text, code))
        self.state = SessionState.LOGOUT
        self.flush()

    # -- selection

    def select(self, selected: Selected) -> None:
        self.selected = selected
        self.state = SessionState.SELECTED
        if self.notices is not None:
            self.notices.follow(selected)

    def deselect(self) -> None:
        """Leave the selected folder, if there is one."""
        if self.selected is not None:
            self.shared.views.release(self.selected.view)
            self.selected = None
        if self.state is SessionState.SELECTED:
            self.state = SessionState.AUTHENTICATED

    async def refresh(self, *, force: bool = False) -> None:
        """Bring the selected folder's view up to date. Raises `Disconnected` after BYE when the folder is gone (D2)."""
        if self.selected is None:
            return
        try:
            await self.selected.view.ensure_fresh(force=force)
        except FolderGone:
            self.bye("Selected mailbox was removed")
            raise Disconnected from None

    async def tell_updates(self, *, expunge: bool, flags: bool = True, force: bool = False) -> None:
        """Untagged responses for what happened in the selected folder. Raises `Disconnected`."""
        selected = self.selected
        if selected is None:
            return
        await self.refresh(force=force)
        await selected.claim_recent()
        if selected.must_tell_read_only:
            # RFC 3501 §7.1: from being read and written it has become to be read only.
            selected.must_tell_read_only = False
            self.write(
                render.untagged(Status.OK, "Only reading is permitted now", Code.READ_ONLY),
                render.untagged(Status.OK, "Flags permitted", "PERMANENTFLAGS ()"),
            )
        known, upto, behind = selected.top, selected.view.journal_end, True
        while behind:
            if selected.contexts:
                self.write(*selected.contexts.before(expunge=expunge))
            self.write(
                *selected.updates(upto, expunge=expunge, flags=flags, modseq=self.follows_modseq, vanished=self.resyncs)
            )
            behind = selected.is_behind(upto, expunge=expunge, flags=flags)
            if behind:
                # Others have their turn, and no more is made than the client reads.
                self.flush()
                await self.wire.drained()
        if self.notices is not None and known < selected.top:
            await self.notices.tell_arrived(selected, known)
        if selected.contexts:
            async for line in selected.contexts.after():
                self.write(line)
        await self.drain()

    # -- input

    async def run(self) -> None:
        """Handle the input that is there. Returns when more is needed, or the session is over."""
        while self.state is not SessionState.LOGOUT:
            event = self.reader.next_event()
            self._executing = _literal_octets(event)
            self.wire.account()
            in_flight = self._in_flight
            if in_flight:
                await self._finish_pending(in_flight, in_flight.room_for(event))
                if event is None and in_flight:
                    self.flush()
                    await self.wire.wait()
                    continue
            if event is None:
                self._in_flight = None
                if self.notices is not None and not self.reader.mid_command and await self.notices.tell():
                    continue
                break
            await self._handle(event)
            if self._out_size >= OUTPUT_CHUNK:
                self.flush()
                await self.wire.drained()
        self._executing = None
        self.flush()

    async def _finish_pending(self, in_flight: InFlight, enough: Callable[[], bool]) -> None:
        """Answer APPENDs that are done, in their order, and wait for more of them until it is `enough`."""
        while True:
            if ready := in_flight.take_ready():
                await self._answer_pending(ready)
                self.wire.account()
            if enough():
                return
            self.flush()
            await self.wire.wait(reading=False)

    async def _answer_pending(self, finished: Iterable[PendingAnswer]) -> None:
        told = False
        for pending in finished:
            try:
                done = pending.done()
                if not told:
                    told = True
                    await self._tell_after(None)
                self.write(render.tagged(pending.tag, done.status, done.text, done.code))
            except Disconnected:
                raise
            except Exception as error:  # noqa: BLE001 - every command is answered; the cause is in the log
                self.write(render.failure(pending.tag, as_answer(error)))

    @property
    def held(self) -> int:
        """Octets of messages that this session has in memory: coming in, being worked on, being committed."""
        held = self.reader.held + (self._executing or 0) + self.gathered
        return held + self._in_flight.size if self._in_flight else held

    @property
    def awaits_input(self) -> bool:
        """Whether a command came in part, and nothing else is to be done until more of it comes."""
        return self._executing is None and self.reader.mid_command

    async def read_line(self) -> bytes:
        """The next line, which is no command: call `reader.expect_line` before. Raises `BadCommand`, `Disconnected`."""
        while (event := self.reader.next_event()) is None:
            self.flush()
            await self.wire.wait()
        if isinstance(event, Line):
            return event.data
        raise BadCommand("Line too long")

    async def _handle(self, event: object) -> None:
        if isinstance(event, RawCommand):
            await self.execute(event)
        elif isinstance(event, Continuation):
            self.write(render.continuation("OK"))
            self.flush()
        elif isinstance(event, Rejected):
            self.write(render.rejection(event))
            self.count_bad()
            if event.close:
                self.state = SessionState.LOGOUT
        elif isinstance(event, Line):
            self.write(render.untagged(Status.BAD, "Unexpected line"))
            self.count_bad()

    def count_bad(self) -> None:
        """One more command that made no sense; too many of them end the session (D21)."""
        self._bad += 1
        if self._bad >= self.shared.config.max_bad_commands:
            self.bye("Too many bad commands")

    async def execute(self, raw: RawCommand) -> None:
        """One command, from its text to its tagged answer."""
        self.require_standing()
        self.tag = raw.tag
        command: c.Command | None = None
        try:
            command = parse_command(raw, options(self.enabled))
            require(self.state, command)
            with StillAtIt(self, raw.tag, command):
                answer = await self._handlers[type(command)](self, command)
            if not isinstance(answer, Done):
                if self._in_flight is None:
                    self._in_flight = InFlight()
                self._in_flight.add(answer)
                return
            if answer.nothing:
                return
            if self.notices is not None:
                self.notices.caused(command)
            if not answer.quiet:
                await self._tell_after(command)
            self._bad = max(0, self._bad - 1)
            code = answer.code
            if answer.went and self.resyncs and self.selected is not None and self.selected.up_to_date:
                highest = render.code_highest_modseq(self.selected.view.folder.highest_modseq)
                if code is not None:
                    self.write(render.untagged(Status.OK, "Highest", highest))
                else:
                    code = highest
            self.write(render.tagged(raw.tag, answer.status, answer.text, code))
        except Disconnected:
            raise
        except Exception as error:  # noqa: BLE001 - every command is answered; the cause is in the log
            failure = as_answer(error)
            if self._in_flight:
                await self._finish_pending(self._in_flight, self._in_flight.is_over)
            if isinstance(failure, BadCommand):
                self.write(render.failure(raw.tag, failure))
                self.count_bad()
                return
            if self.selected is not None and _was_to_be_saved(command, failure):
                self.selected.saved = array("I")
            if command is not None:
                await self._tell_after(command)
            self.write(render.failure(raw.tag, failure))

    @property
    def has_pending(self) -> bool:
        """Whether commands are still to be answered that were read already."""
        return bool(self._in_flight)

    async def _tell_after(self, command: c.Command | None) -> None:
        """What happened during a command, before its tagged answer."""
        uid = getattr(command, "uid", False)
        force = isinstance(command, c.Noop | c.Check)
        await self._tell_if_possible(expunge=uid or not isinstance(command, _KEEPS_NUMBERS), force=force)

    async def tell_meanwhile(self) -> None:
        """In the middle of a command that changes much: numbers stay, and what is to be told does not gather."""
        await self._tell_if_possible(expunge=False, force=False)

    async def _tell_if_possible(self, *, expunge: bool, force: bool) -> None:
        """A command does not fail when what happened cannot be read now."""
        try:
            await self.tell_updates(expunge=expunge, force=force)
        except Disconnected:
            raise
        except Exception as error:  # noqa: BLE001 - it stays to be told
            _log.warning("imap_updates_deferred", error=type(error).__name__)

    def close(self) -> None:
        """The connection is gone."""
        self._unwatch()
        self.boxes.close()
        if self.notices is not None:
            self.notices.close()
        self.deselect()
        self.state = SessionState.LOGOUT


def _was_to_be_saved(command: c.Command | None, failure: CommandError) -> bool:
    """Whether a search failed whose result ``$`` was to be: it is empty then (RFC 5182 §2.1)."""
    if isinstance(command, c.Search | c.Sort):
        return ReturnOption.SAVE in (command.returns or ())
    return isinstance(failure, NotSaved)


def _nothing() -> None:
    pass


def _literal_octets(event: object) -> int | None:
    """Octets that a command brought beside its text; None when there is nothing to work on."""
    if event is None:
        return None
    return sum(map(len, event.literals)) if isinstance(event, RawCommand) else 0
