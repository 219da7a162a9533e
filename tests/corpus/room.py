"""The whole server in this process, and the corpus through it: in by SMTP, back by REST and IMAP.

The server is composed as `serve` does it; only clock and DNS are the tests'. Each case has a mailbox of its own, since
messages of one mailbox know each other, with nothing in it but what it comes `after`.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from postroom.accounts import Level, NewKey
from postroom.accounts.models import NewTenant
from postroom.accounts.permissions import MAY_HOLD, OWNER_ONLY
from postroom.app import Core, open_core
from postroom.base.clock import ManualClock
from postroom.base.secrets import ensure_secrets, load_secrets
from postroom.base.settings import load as load_settings
from postroom.directory.models import Identity, IdentityKind, NewIdentity
from postroom.inbound.thread_tokens import ThreadTokens
from postroom.net.known_names import KnownNames
from postroom.node import Node
from tests.cli.driver import free_base
from tests.corpus.cases import Case, zone
from tests.corpus.judging import DOMAIN, FRONT, HELO, HOST, LOCAL
from tests.corpus.reading import NOW

SECONDS: Final = 60.0
TENANTS: Final = 8
"""A tenant has so many keys, and so many calls a minute."""
_QUEUED: Final = re.compile(r"msg_\w+")
SESSIONS: Final = 8
"""Connections over which everything goes, each message after message."""


@dataclass
class Served:
    """What became of a case: the answers of the session, and what the interfaces say of the message."""

    replies: list[str] = field(default_factory=list)
    """The last reply of each time that it was sent; `data` is what came of DATA where another way was taken then."""
    message: dict[str, Any] = field(default_factory=dict)
    thread: dict[str, Any] = field(default_factory=dict)
    threads: dict[str, str] = field(default_factory=dict)
    """Ids of the threads of the cases that are in the mailbox."""
    raw: bytes = b""
    """As REST has it, our trace lines included."""
    fetched: bytes = b""
    """The answer to FETCH."""
    stored: dict[str, Any] = field(default_factory=dict)
    """What no interface shows."""
    bodies: list[bytes] = field(default_factory=list)
    """The attachments, decoded."""

    @property
    def is_stored(self) -> bool:
        return bool(self.message)


@dataclass
class Mailbox:
    identity: Identity
    key: str
    threads: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By case: its thread's id, and its number."""


class Line:
    """One connection to the MX, or to LMTP."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, port: int, ip: str, helo: str, *, lmtp: bool) -> Line:
        # The peer's address is what SPF is about; all of 127.0.0.0/8 is this machine.
        made = cls(*await asyncio.open_connection(LOCAL, port, local_addr=(ip, 0), limit=1 << 20))
        assert (await made.reply()).startswith("220")
        assert (await made.ask(f"{'LHLO' if lmtp else 'EHLO'} {helo}")).startswith("250")
        return made

    async def reply(self) -> str:
        while True:
            line = (await asyncio.wait_for(self._reader.readline(), SECONDS)).decode().rstrip()
            assert line, "the connection ended"
            if line[3:4] != "-":
                return line

    async def has_ended(self) -> bool:
        """Whether the server hangs up, which it does at once if it does."""
        return await asyncio.wait_for(self._reader.read(1), SECONDS) == b""

    async def ask(self, command: str) -> str:
        self._writer.write(command.encode() + b"\r\n")
        return await self.reply()

    async def begin(self, mail_from: str, to: Sequence[str], *, binary: bool) -> str:
        """MAIL and RCPT; the first reply that is no 250, or the last."""
        body = "BINARYMIME" if binary else "8BITMIME"
        utf8 = "" if mail_from.isascii() else " SMTPUTF8"
        reply = await self.ask(f"MAIL FROM:<{mail_from}> BODY={body}{utf8}")
        for address in to:
            if reply.startswith("250"):
                reply = await self.ask(f"RCPT TO:<{address}>")
        return reply

    async def send(self, raw: bytes) -> str:
        """DATA. Of the message as it stands: its line ends are not made good."""
        assert (await self.ask("DATA")).startswith("354")
        self._writer.write(
            re.sub(rb"(^|\r\n)\.", rb"\1..", raw) + (b".\r\n" if raw.endswith(b"\r\n") else b"\r\n.\r\n")
        )
        return await self.reply()

    async def send_octets(self, raw: bytes) -> str:
        """BDAT, for which no octet is special (RFC 3030 §2)."""
        self._writer.write(b"BDAT %d LAST\r\n" % len(raw) + raw)
        return await self.reply()

    async def close(self) -> None:
        await self.ask("QUIT")
        self._writer.close()


class Lines:
    """One worker's connections, by who they come from and where they lead."""

    def __init__(self, ports: Mapping[str, int]) -> None:
        self._ports = ports
        self._open: dict[tuple[str, str, str], Line] = {}

    async def get(self, case: Case, *, anew: bool = False) -> Line:
        envelope = case.envelope
        at = envelope.get("ip", LOCAL), envelope.get("helo", HELO), envelope.get("via", "smtp")
        if anew or at not in self._open:
            self._open[at] = await Line.open(self._ports[at[2]], at[0], at[1], lmtp=at[2] == "lmtp")
        return self._open[at]

    async def close(self) -> None:
        for line in self._open.values():
            await line.close()


@dataclass
class Room:
    """The server while it runs."""

    core: Core
    node: Node
    http: httpx.AsyncClient
    ports: dict[str, int]
    tenants: Sequence[int]
    made: int = 0

    async def mailbox(self, kind: IdentityKind = IdentityKind.AGENT) -> Mailbox:
        """A new one, with a key that reads it."""
        tenant_id = self.tenants[self.made % TENANTS]
        self.made += 1
        identity, _ = await self.core.identities.create(tenant_id, NewIdentity(f"box{self.made}", "Box", kind))
        rights = tuple(sorted(MAY_HOLD[Level.IDENTITY] - OWNER_ONLY))
        _, text = await self.core.keys.create(None, NewKey("k", Level.IDENTITY, rights, tenant_id, identity.id))
        return Mailbox(identity, text)

    async def deliver(self, lines: Lines, case: Case, box: Mailbox) -> Served:
        """Send it in the session; by BDAT what DATA does not carry, or not as it is."""
        served = Served()
        to = await self.recipients(case, box)
        carried = case.raw.endswith(b"\r\n") and "data" not in case.session
        line = await lines.get(case)
        if "data" in case.session:
            assert (await line.begin(case.envelope["from"], to, binary=False)).startswith("250")
            served.replies.append(await line.send(case.raw))
            assert await line.has_ended()
            line = await lines.get(case, anew=True)
        reply = await line.begin(case.envelope["from"], to, binary=not carried)
        if reply.startswith("250"):
            reply = await (line.send if carried else line.send_octets)(case.raw)
        served.replies.append(reply)
        return served

    async def recipients(self, case: Case, box: Mailbox) -> list[str]:
        address, token = box.identity.primary.address, case.session.get("token")
        detail = case.session.get("detail", "") if token is None else await self.token(token, box)
        return [address.replace("@", f"+{detail}@") if detail else address]

    async def token(self, wanted: dict[str, str], box: Mailbox) -> str:
        """The token of a thread, whole or spoilt as the case wants it."""
        number = box.threads[wanted["thread"]][1]
        identity = box.identity
        if wanted.get("spoilt") == "identity":
            identity = (await self.mailbox()).identity
        tokens = ThreadTokens(self.core.signing_keys, self.core.clock)
        minted = await tokens.mint(identity.public_id, number + int(wanted.get("further", 0)))
        if wanted.get("spoilt") == "mac":
            return minted[:-1] + ("0" if minted[-1] != "0" else "1")
        return minted.upper() if wanted.get("spoilt") == "case" else minted

    async def get(self, box: Mailbox, path: str, **params: Any) -> httpx.Response:
        response = await self.http.get(
            f"/v1/identities/{box.identity.public_id}{path}",
            headers={"authorization": f"Bearer {box.key}"},
            params=params or None,
        )
        assert response.status_code == 200, response.text
        return response

    async def look(self, served: Served, case: Case, box: Mailbox, message_id: str) -> None:
        """What REST says of the message."""
        path = f"/messages/{message_id}"
        served.message = (await self.get(box, path, include="quoted,html,headers")).json()
        served.raw = (await self.get(box, f"{path}/raw")).content
        if case.path.parent.name == "threading":
            served.thread = (await self.get(box, f"/threads/{served.message['thread_id']}")).json()
        for one in served.message["attachments"] if "contents" in case.known.get("read", {}) else ():
            served.bodies.append((await self.get(box, f"{path}/attachments/{one['id']}")).content)

    async def append(self, box: Mailbox, raw: bytes) -> None:
        """Put a message into the folder Sent, as a mail program does with what it sent."""
        async with self.imap(box) as ask:
            await ask(b"APPEND Sent {%d+}\r\n%b" % (len(raw), raw))

    async def fetch(self, box: Mailbox) -> bytes:
        """What IMAP says of the only message."""
        async with self.imap(box) as ask:
            await ask(b"EXAMINE INBOX")
            return await ask(b"FETCH * (RFC822.SIZE ENVELOPE BODYSTRUCTURE BODY.PEEK[])")

    @asynccontextmanager
    async def imap(self, box: Mailbox) -> AsyncIterator[Callable[[bytes], Awaitable[bytes]]]:
        reader, writer = await asyncio.open_connection(LOCAL, self.ports["imap"], limit=1 << 27)

        async def answer(tag: bytes) -> bytes:
            found = b""
            while True:
                line = await asyncio.wait_for(reader.readline(), SECONDS)
                assert line, found
                found += line
                literal = re.search(rb"\{(\d+)\}\r\n$", line)
                if literal:
                    found += await asyncio.wait_for(reader.readexactly(int(literal[1])), SECONDS)
                elif line.startswith(tag):
                    return found

        async def ask(command: bytes) -> bytes:
            writer.write(b"a " + command + b"\r\n")
            found = await answer(b"a ")
            assert b"\r\na OK" in b"\r\n" + found, found[-200:]
            return found

        await answer(b"* OK")
        await ask(b"LOGIN %b %b" % (box.identity.primary.address.encode(), box.key.encode()))
        yield ask
        await ask(b"LOGOUT")
        writer.close()


@asynccontextmanager
async def open_room(database_url: str, data_dir: Path) -> AsyncIterator[Room]:
    base = free_base()
    ports = {name: base + at for at, name in enumerate(("smtp", "lmtp", "imap", "http"))}
    settings = load_settings(
        {
            "env": "local",
            "platform_domain": DOMAIN,
            "mx_hosts": HOST,
            "server.hostname": HOST,
            "server.data_dir": str(data_dir),
            "server.roles": "smtp,lmtp,imap,http",
            "server.shutdown_timeout_secs": 5.0,
            "database.url": database_url,
            "storage.fsync_on_write": False,
            "smtp.host": LOCAL,
            "smtp.port": ports["smtp"],
            "lmtp.listen": f"{LOCAL}:{ports['lmtp']}",
            "imap.host": LOCAL,
            "imap.port": ports["imap"],
            "api.host": LOCAL,
            "api.port": ports["http"],
            "metrics.listen": "",
            "policy.trusted_authserv_id": FRONT,
        },
        {},
        data_dir=data_dir,
        host_name="corpus",
    )
    ensure_secrets(data_dir, os.urandom, {})
    core_of = open_core(
        settings,
        load_secrets(data_dir, {}),
        database_url,
        clock=ManualClock(NOW),
        migrate=False,
        resolver=KnownNames(zone()),
    )
    async with core_of as core:
        tenants = [(await core.tenants.create(NewTenant(slug=f"t{at}", name="Tenant"))).id for at in range(TENANTS)]
        node = Node(core)
        await node.start()
        try:
            async with httpx.AsyncClient(base_url=f"http://{LOCAL}:{ports['http']}", timeout=SECONDS) as client:
                yield Room(core, node, client, ports, tenants)
            assert not node.failed.is_set()
        finally:
            await node.drain()


STORED: Final = """
SELECT t.public_id AS thread_id, t.seq, m.facts, m.reference_ids, m.automated::text AS automated, m.auth::text AS auth,
  ARRAY(SELECT sniffed_type FROM attachments a WHERE a.message_id = m.id ORDER BY a.position) AS sniffed,
  (SELECT json_object_agg(v.kind, v.value)::text FROM verifications v WHERE v.message_id = m.id) AS verifications
FROM messages m
JOIN threads t ON (t.tenant_id, t.mailbox_id, t.seq) = (m.tenant_id, m.mailbox_id, m.thread_seq)
WHERE m.public_id = $1
"""


async def run_all(cases: Iterable[Case], database_url: str, data_dir: Path) -> dict[str, Served]:
    """Everything through the server; by case."""
    async with open_room(database_url, data_dir) as room:
        return await Run(room, list(cases)).everything()


class Run:
    def __init__(self, room: Room, cases: list[Case]) -> None:
        self._room = room
        self._cases = {case.name: case for case in cases}
        self._served: dict[str, Served] = {}

    async def everything(self) -> dict[str, Served]:
        waiting = iter(self._cases.values())

        async def work() -> None:
            lines = Lines(self._room.ports)
            for case in waiting:
                self._served[case.name] = await self._alone(lines, case)
            await lines.close()

        async with asyncio.TaskGroup() as tasks:
            for _ in range(SESSIONS):
                tasks.create_task(work())
        return self._served

    async def _alone(self, lines: Lines, case: Case) -> Served:
        """A mailbox with what came `after`, and then the case."""
        box = await self._room.mailbox()
        for name in case.known.get("after", ()):
            await self._put(lines, self._cases[name], box)
        served = await self._put(lines, case, box)
        if is_backscatter(case) and not served.is_stored:
            # Agents are not told of bounces of what they never sent (D4); people have them in Junk.
            assert (await self._room.get(box, "/messages")).json()["data"] == []
            again = await self._put(lines, case, await self._room.mailbox(IdentityKind.PERSON))
            again.replies[:0] = served.replies
            return again
        return served

    async def _put(self, lines: Lines, case: Case, box: Mailbox) -> Served:
        room = self._room
        if case.session.get("place") == "sent":
            await room.append(box, case.raw)
            (listed,) = (await room.get(box, "/messages", direction="outbound")).json()["data"]
            served, message_id = Served(), listed["id"]
        else:
            served = await room.deliver(lines, case, box)
            found = _QUEUED.search(served.replies[-1])
            message_id = "" if found is None else found[0]
            if message_id and box.identity.kind is IdentityKind.AGENT:
                served.fetched = await room.fetch(box)
        if message_id:
            await room.look(served, case, box, message_id)
            async with room.core.database.acquire() as conn:
                (row,) = await conn.fetch(STORED, message_id)
            served.stored = dict(row)
            box.threads[case.name] = served.stored["thread_id"], served.stored["seq"]
            served.threads = {name: thread for name, (thread, _) in box.threads.items()}
        return served


def is_backscatter(case: Case) -> bool:
    """Whether it is a bounce, from nobody, that says what it is about: and nobody here sent that."""
    about = case.expect.get("dsn", {}).get("original_message_id")
    return case.expect.get("kind") == "dsn" and about is not None and case.envelope["from"] == ""
