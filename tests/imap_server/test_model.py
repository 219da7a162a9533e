"""Several sessions at once, each with its client's picture of the folder, against what the folder is.

Whatever the server says is applied to the picture as RFC 9051 §5.2, §7 and RFC 7162 have it; when all have been told
everything, each picture must be what a session sees that comes anew.
"""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroom.mailbox import batch, folders
from postroom.mailbox.models import Folder, MailboxRef
from postroom.mailbox.writing import MailboxWrite
from tests.imap_server.conftest import mail
from tests.imap_server.neighbours import Street, street_of
from tests.rest.test_fuzz import run

_FETCH = re.compile(rb"\* (\d+) FETCH \((.*)\)", re.DOTALL)
_FLAGS = re.compile(rb"FLAGS \(([^)]*)\)")
_UID = re.compile(rb"UID (\d+)")
_IN_INBOX = """
SELECT DISTINCT m.public_id FROM messages m JOIN placements p ON p.message_id = m.id
JOIN folders f ON f.id = p.folder_id WHERE m.tenant_id = $1 AND m.mailbox_id = $2 AND f.name = 'INBOX' ORDER BY 1
"""
KEEPS_NUMBERS = (b"FETCH", b"STORE", b"SEARCH")


class Picture:
    """What a client knows: for each number the UID, if it was told, and the flags, if they were."""

    def __init__(
        self, client: Any, *, enabled: bytes = b"", folder: bytes = b"INBOX", elsewhere: bytes = b"Archive"
    ) -> None:
        self.client = client
        self.enabled = enabled
        self.folder, self.elsewhere = b'"%b"' % folder, b'"%b"' % elsewhere
        self.uids: list[int] = []
        self.flags: dict[int, frozenset[bytes]] = {}

    async def select(self) -> None:
        if self.enabled:
            await self.client.ok(b"ENABLE " + self.enabled)
        self.take(b"SELECT", await self.client.ok(b"SELECT " + self.folder))
        await self.learn()

    async def learn(self) -> None:
        """Ask for what EXISTS said is there and is not known."""
        while 0 in self.uids:
            if not (await self.say(b"FETCH %d:* (UID FLAGS)" % (self.uids.index(0) + 1))).startswith(b"OK"):
                await self.say(b"NOOP")  # some of them went already, which numbers may not tell

    async def say(self, command: bytes) -> bytes:
        lines = await self.client.ask(command)
        self.take(command, lines)
        return bytes(lines[-1])

    def take(self, command: bytes, lines: list[bytes]) -> None:
        frozen = command.split()[0] in KEEPS_NUMBERS
        for line in lines:
            if told := re.fullmatch(rb"\* (\d+) EXISTS", line):
                assert int(told[1]) >= len(self.uids), "messages do not go by EXISTS"
                self.uids += [0] * (int(told[1]) - len(self.uids))
            elif told := re.fullmatch(rb"\* (\d+) EXPUNGE", line):
                assert not frozen, (command, line)
                assert self.enabled != b"QRESYNC"
                assert int(told[1]) <= len(self.uids)
                self.flags.pop(self.uids.pop(int(told[1]) - 1), None)
            elif told := re.fullmatch(rb"\* VANISHED ([\d:,]+)", line):
                assert not frozen, (command, line)
                assert self.enabled == b"QRESYNC"
                for part in told[1].split(b","):
                    low, _, high = part.partition(b":")
                    for uid in range(int(low), int(high or low) + 1):
                        assert uid in self.uids or 0 in self.uids, "it was told before, or never known"
                        self.uids.pop(self.uids.index(uid) if uid in self.uids else self._unknown(uid))
                        self.flags.pop(uid, None)
            elif told := _FETCH.fullmatch(line):
                self._fetched(int(told[1]), told[2])

    def _unknown(self, uid: int) -> int:
        """Where a message is whose UID was never told: UIDs ascend (RFC 9051 §2.3.1.1), so it is among those between
        the ones that are known."""
        after = next((at for at, one in enumerate(self.uids) if one > uid), len(self.uids))
        before = max((at for at, one in enumerate(self.uids[:after]) if one), default=-1)
        return self.uids.index(0, before + 1, after)

    def _fetched(self, number: int, items: bytes) -> None:
        assert 0 < number <= len(self.uids), "a number that is not there"
        if found := _UID.search(items):
            uid = int(found[1])
            assert self.uids[number - 1] in (0, uid), "a number means another message than before"
            self.uids[number - 1] = uid
        if (flags := _FLAGS.search(items)) and self.uids[number - 1]:
            self.flags[self.uids[number - 1]] = frozenset(flags[1].split()) - {rb"\Recent"}


def _examples(count: int) -> settings:
    # One office serves all examples: each begins with an empty folder and sessions of its own.
    return settings(
        max_examples=count,
        deadline=None,
        suppress_health_check=[
            *(HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large),
            HealthCheck.large_base_example,
        ],
    )


_STEPS = st.lists(st.integers(0, 2**16), min_size=24, max_size=60).map(lambda seeds: [*map(random.Random, seeds)])
"""What decides which session does what, for each step by itself: what is drawn must not depend on what the server has
told by then. A run that fails is made shorter.
"""


@pytest.mark.covers("RFC 9051 §5.2", "RFC 9051 §7.5.1", "RFC 7162 §3.2.10", "decisions:C1")
async def test_every_picture_is_the_folder(office: Any) -> None:
    nodes = [await office.listen(), await office.listen()]

    @_examples(12)
    @given(_STEPS)
    async def inner(steps: list[random.Random]) -> None:
        await _emptied(await office.client())
        pictures = [
            Picture(await office.client(None, nodes[n % 2]), enabled=enabled)
            for n, enabled in enumerate((b"", b"", b"CONDSTORE", b"QRESYNC", b"QRESYNC"))
        ]
        for picture in pictures:
            await picture.select()
        for step, rng in enumerate(steps):
            await _anything(office, office.box, rng.choice(pictures), rng)
            if step % 15 == 14 or rng is steps[-1]:
                await _agree(Picture(await office.client(None)), pictures)
        await _away(pictures)

    await run(inner)


@pytest.mark.covers("RFC 9051 §5.2", "RFC 2342 §5", "decisions:A2", "decisions:B10")
async def test_every_picture_is_the_folder_of_whoever_it_is(office: Any) -> None:
    """Bob's INBOX, as bob and as carol see it; what she moves goes into her own mailbox, or comes from there."""
    async with street_of(office) as street:
        await street.grant("bob", "carol", "full")
        nodes = [await office.listen(), await office.listen()]

        @_examples(6)
        @given(_STEPS)
        async def inner(steps: list[random.Random]) -> None:
            await _in_two_mailboxes(office, street, nodes, steps)

        await run(inner)


async def _in_two_mailboxes(office: Any, street: Street, nodes: list[Any], steps: list[random.Random]) -> None:
    there = street.prefix("bob") + b"INBOX"
    for name in ("bob", "carol"):
        await _emptied(await street.client(name), b"INBOX")
    pictures = [
        Picture(await street.client("bob", node=nodes[0])),
        Picture(await street.client("bob", node=nodes[1]), enabled=b"QRESYNC", elsewhere=b"Junk"),
        Picture(await street.client("carol", node=nodes[1]), folder=there, elsewhere=b"INBOX"),
        Picture(await street.client("carol", node=nodes[0]), folder=there, elsewhere=b"Junk", enabled=b"QRESYNC"),
    ]
    for picture in pictures:
        await picture.select()
    mover = await street.client("carol")
    for step, rng in enumerate(steps):
        if step % 8 == 7:
            await mover.ok(b"SELECT INBOX")
            assert (await mover.ask(b'UID MOVE 1:* "%b"' % there))[-1].startswith(b"OK")
        await _anything(office, street.boxes["bob"], rng.choice(pictures), rng)
        if step % 12 == 11 or rng is steps[-1]:
            await _agree(Picture(await street.client("bob")), pictures)
    await mover.close()
    await _away(pictures)


async def _emptied(client: Any, folder: bytes = b"") -> None:
    if folder:
        await client.ok(b"SELECT " + folder)
    await client.ok(b"UID STORE 1:* +FLAGS.SILENT (\\Deleted)")
    await client.ok(b"CLOSE")
    await client.close()


async def _away(pictures: list[Picture]) -> None:
    for picture in pictures:
        await picture.client.close()


async def _anything(office: Any, box: Any, picture: Picture, rng: random.Random) -> None:
    """One command of one session, or one change from elsewhere."""
    count, uids = len(picture.uids), [uid for uid in picture.uids if uid]
    number = rng.randrange(count) + 1 if count else 0
    flag = rng.choice((b"\\Seen", b"\\Flagged", b"work", b"\\Deleted"))
    sign = rng.choice((b"+", b"-", b"")) + b"FLAGS" + rng.choice((b"", b".SILENT"))
    match rng.randrange(14):
        case 0 | 1:
            await office.deliver(mail(f"Number {rng.random()}"), box=box)
        case 2:
            raw = mail(f"Number {rng.random()}")
            await picture.say(b"APPEND %b (\\Seen) {%d+}\r\n%b" % (picture.folder, len(raw), raw))
        case 3 | 4 if number:
            # What it says of flags that it does not tell is what the client has to know by itself.
            await _store(picture, b"STORE %d %b (%b)" % (number, sign, flag), picture.uids[number - 1])
        case 5 if uids:
            uid = rng.choice(uids)
            await _store(picture, b"UID STORE %d %b (%b)" % (uid, sign, flag), uid)
        case 6:
            await picture.say(b"EXPUNGE")
        case 7 if uids:
            await picture.say(b"UID MOVE %d %b" % (rng.choice(uids), rng.choice((picture.folder, picture.elsewhere))))
        case 8 if number:
            await picture.say(b"COPY %d %b" % (number, rng.choice((picture.folder, picture.elsewhere))))
        case 9:
            await picture.say(rng.choice((b"NOOP", b"SEARCH UNSEEN", b"UID SEARCH ALL", b"CHECK")))
        case 10 if number:
            await picture.say(b"FETCH %d (UID FLAGS BODY[])" % number)
        case 11 | 12:
            await _over_rest(office, MailboxRef(box.tenant_id, box.id), rng)
        case _:
            await picture.learn()


async def _over_rest(office: Any, ref: MailboxRef, rng: random.Random) -> None:
    """What the routes for many messages do."""
    async with office.db.acquire() as conn:
        found = [row["public_id"] for row in await conn.fetch(_IN_INBOX, ref.tenant_id, ref.mailbox_id)]
    if not found:
        return
    named = batch.Named(sorted({rng.choice(found) for _ in range(3)}))

    async def archive(write: MailboxWrite) -> Folder:
        return await folders.by_name(write.conn, write.ref, "Archive")

    word = frozenset({rng.choice(("$seen", "$flagged", "work"))})
    await office.boxes.batch(
        ref,
        rng.choice(
            (
                batch.edit(named, batch.Edit(add=word)),
                batch.edit(named, batch.Edit(remove=word)),
                batch.edit(named, batch.Edit(exactly=word)),
                batch.move(named, archive),
                batch.copy(named, archive),
                batch.remove(named),
            )
        ),
    )


async def _store(picture: Picture, command: bytes, uid: int) -> None:
    before = picture.flags.get(uid)
    answer = await picture.say(command)
    if b".SILENT" not in command or before is None or not answer.startswith(b"OK"):
        return
    if uid in picture.flags and picture.flags[uid] == before:
        # Nothing else was told, so it is what the command made of what was known.
        words = frozenset(re.search(rb"\(([^)]*)\)", command)[1].split())  # type: ignore[index]  # it is there
        made = before | words if b"+FLAGS" in command else before - words if b"-FLAGS" in command else words
        picture.flags[uid] = made


async def _agree(anew: Picture, pictures: list[Picture]) -> None:
    """`anew` has seen nothing yet."""
    await anew.select()
    for picture in pictures:
        await picture.say(b"NOOP")
        await picture.learn()
        await picture.say(b"NOOP")
        assert picture.uids == anew.uids
        assert picture.flags == anew.flags
    await anew.client.close()
