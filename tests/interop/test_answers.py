"""What becomes of mail that other people's servers refuse, put off or break off (sending, story 2)."""

from __future__ import annotations

import asyncio
import email
import email.policy
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from email.message import EmailMessage
from pathlib import Path
from typing import Any, cast

import pytest

from postroom.mail.dsn import Action, parse_dsn
from tests.interop.exim import Exim
from tests.interop.office import DOMAIN, HOST, Office, arrived, eventually, letter, open_office
from tests.interop.place import SMTP_PORT, Missing, Peer, in_maildir, new_address, our_address, skip_or_fail
from tests.interop.postfix import Postfix
from tests.outbound.fake_mx import FakeMx

SCHEDULE = [60, 300, 900, 3600, 21600, *[86400] * 6]
"""Between the twelve attempts (mail-server C4)."""
LATER = "450 4.2.1 Try again later"
NOBODY = "550 5.1.1 Nobody of that name"


@pytest.fixture
async def office(database_url: str, tmp_path: Path) -> AsyncIterator[Office]:
    """One for each test: they move the clock by days."""
    try:
        our_address()
    except Missing as error:
        skip_or_fail(error)
    async with open_office(database_url, tmp_path) as made:
        yield made


@pytest.fixture(params=["postfix", "exim"])
def told(request: pytest.FixtureRequest, office: Office) -> Postfix | Exim:
    """Those that a test tells what to answer; their domains lead to them."""
    peer: Postfix | Exim = request.getfixturevalue(request.param)
    office.leads_to(peer.domain, (peer.host, peer.address))
    peer.answer({})
    return peer


async def sent(office: Office, name: str, *recipients: str) -> str:
    """A message is submitted; its Message-ID."""
    message_id = f"{name}@{DOMAIN}"
    await office.submit(letter(message_id, f"Some words, {name}\r\n".encode(), to=recipients[0]), *recipients)
    return message_id


def copies(peer: Peer, message_id: str) -> int:
    """How often the peer has the message."""
    return sum(f"<{message_id}>".encode() in raw.partition(b"\n\n")[0] for raw in in_maildir(peer.mail))


async def has_copies(peer: Peer, message_id: str, count: int) -> bool:
    """Whether the peer has it so often, soon: what it takes is in the Maildir a little later."""

    async def look() -> int | None:
        found = copies(peer, message_id)
        return found if found >= count else None

    return await eventually(look, f"{count} copies of {message_id}") == count


@pytest.mark.covers("mail-server:C4", "mail-server:C5")
async def test_put_off_until_it_is_taken(office: Office, told: Postfix | Exim) -> None:
    recipient = f"anna@{told.domain}"
    told.answer({recipient: LATER})
    message_id = await sent(office, f"later.{told.name}", recipient)
    for tries, wait in enumerate(SCHEDULE[:3], 1):
        row = await office.row(message_id, recipient, status="deferred", tries=tries)
        assert (row["smtp_code"], row["enhanced_code"], row["remote_mx"]) == (450, "4.2.1", told.host)
        waits = (row["next_attempt_at"] - office.clock.now()).total_seconds()
        assert 0.9 * wait <= waits <= 1.1 * wait
        # Not before its time.
        await office.wait(waits - 1)
        await asyncio.sleep(0.3)
        assert (await office.rows(message_id))[recipient]["tries"] == tries
        if tries == 3:
            told.answer({})
        await office.wait(2)
    await office.row(message_id, recipient, status="delivered", tries=4)
    assert await office.is_signed(await arrived(told, message_id))
    assert await has_copies(told, message_id, 1)


@pytest.mark.covers("mail-server:C4", "mail-server:C7", "RFC 3464 §2.3")
async def test_put_off_for_ever(office: Office, peer: Peer) -> None:
    """`busy` is always put off: twelve attempts, then a notice."""
    office.leads_to(peer.domain, (peer.host, peer.address))
    recipient = f"busy@{peer.domain}"
    if isinstance(peer, Postfix | Exim):
        peer.answer({recipient: LATER})
    message_id = await sent(office, f"never.{peer.name}", recipient)
    for tries, wait in enumerate(SCHEDULE, 1):
        row = await office.row(message_id, recipient, status="deferred", tries=tries)
        assert 0.9 * wait <= (row["next_attempt_at"] - office.clock.now()).total_seconds() <= 1.1 * wait
        await office.wait(1.1 * wait)
    row = await office.row(message_id, recipient, status="bounced", tries=12)
    assert (row["bounce_type"], row["reason"]) == ("soft", "delivery_expired")
    await noticed(office, message_id, {recipient: "4.4.7"})


async def noticed(office: Office, message_id: str, statuses: dict[str, str]) -> EmailMessage:
    """The notice about a message in Ada's inbox: what our own parser and the standard library read in it."""
    raw = await office.received(b"MAILER-DAEMON")
    report = parse_dsn(raw)
    assert report is not None
    assert (report.reporting_mta, report.original_message_id) == (HOST, message_id)
    assert {one.final_recipient: (one.action, one.status) for one in report.recipients} == {
        recipient: (Action.FAILED, status) for recipient, status in statuses.items()
    }
    parsed = email.message_from_bytes(raw, policy=email.policy.default)
    assert (parsed.get_content_type(), parsed.get_param("report-type")) == ("multipart/report", "delivery-status")
    words, status, original = cast(list[EmailMessage], parsed.get_payload())
    assert all(recipient in words.get_content() for recipient in statuses)
    groups = cast(list[EmailMessage], status.get_payload())
    assert groups[0]["Reporting-MTA"] == f"dns; {HOST}"
    assert {str(one["Final-Recipient"]).partition(";")[2].strip(): one["Status"] for one in groups[1:]} == statuses
    assert {one["Action"] for one in groups[1:]} == {"failed"}
    (returned,) = cast(list[EmailMessage], original.get_payload())
    assert returned["Message-ID"] == f"<{message_id}>"
    assert "Some words" in returned.get_content()
    return parsed


@pytest.mark.covers("mail-server:C5", "mail-server:C7", "RFC 3464 §2.1")
async def test_refused_for_good(office: Office, peer: Peer) -> None:
    office.leads_to(peer.domain, (peer.host, peer.address))
    recipient = f"gone@{peer.domain}"
    if isinstance(peer, Postfix | Exim):
        peer.answer({recipient: NOBODY})
    message_id = await sent(office, f"gone.{peer.name}", recipient)
    row = await office.row(message_id, recipient, status="bounced", tries=1)
    assert (row["smtp_code"], row["enhanced_code"], row["bounce_type"]) == (550, "5.1.1", "hard")
    notice = await noticed(office, message_id, {recipient: "5.1.1"})
    status = str(cast(list[Any], notice.get_payload())[1])
    assert f"Remote-MTA: dns; {peer.host}" in status
    assert "Nobody of that name" in status


@pytest.mark.covers("mail-server:C1", "edge:N20", "mail-server:C5")
async def test_each_recipient_by_its_own_answer(office: Office, peer: Peer) -> None:
    office.leads_to(peer.domain, (peer.host, peer.address))
    anna, busy, gone = (f"{name}@{peer.domain}" for name in ("anna", "busy", "gone"))
    if isinstance(peer, Postfix | Exim):
        peer.answer({busy: LATER, gone: NOBODY})
    message_id = await sent(office, f"mixed.{peer.name}", busy, gone, anna)
    await office.row(message_id, anna, status="delivered")
    await office.row(message_id, busy, status="deferred")
    await office.row(message_id, gone, status="bounced")
    await noticed(office, message_id, {gone: "5.1.1"})
    await arrived(peer, message_id)
    if isinstance(peer, Postfix | Exim):
        peer.answer({})
        await office.wait(70)
        await office.row(message_id, busy, status="delivered", tries=2)
        assert await has_copies(peer, message_id, 2)


@pytest.mark.covers("mail-server:C5")
@pytest.mark.parametrize(
    ("answer", "status"), [("451 4.7.1 Not now", "deferred"), ("554 5.7.1 Not with these words", "bounced")]
)
async def test_refused_after_the_final_dot(office: Office, exim: Exim, answer: str, status: str) -> None:
    office.leads_to(exim.domain, (exim.host, exim.address))
    exim.answer({"final": answer})
    recipient = f"anna@{exim.domain}"
    message_id = await sent(office, f"final.{status}", recipient)
    row = await office.row(message_id, recipient, status=status)
    assert (str(row["smtp_code"]), row["enhanced_code"]) == (answer[:3], answer[4:9])
    exim.answer({})
    await office.wait(100_000)
    if status == "bounced":
        await noticed(office, message_id, {recipient: "5.7.1"})
    else:
        await office.row(message_id, recipient, status="delivered")
    assert await has_copies(exim, message_id, int(status == "deferred"))


# -- servers that go away ---------------------------------------------------------------------------------------------


async def killed(exim: Exim, where: str) -> None:
    """SIGKILL to the process of the Exim that hangs there."""
    before = exim.hanging(where)

    async def look() -> int | None:
        pid = exim.hanging(where)
        return pid if pid != before else None

    os.kill(await eventually(look, f"one that hangs at {where}"), signal.SIGKILL)


@pytest.mark.covers("mail-server:C5", "edge:G2")
async def test_a_server_killed_before_the_final_dot(office: Office, exim: Exim) -> None:
    office.leads_to(exim.domain, (exim.host, exim.address))
    recipient = f"anna@{exim.domain}"
    exim.answer({"predata": "hang"})
    killing = asyncio.create_task(killed(exim, "predata"))
    message_id = await sent(office, "killed-before", recipient)
    await killing
    row = await office.row(message_id, recipient, status="deferred", tries=1)
    assert row["data_started_at"] is None
    exim.answer({})
    await office.wait(70)
    await office.row(message_id, recipient, status="delivered", tries=2)
    await arrived(exim, message_id)
    assert await has_copies(exim, message_id, 1)


@pytest.mark.covers("mail-server:C5", "edge:G2", "edge:N15")
async def test_a_server_killed_after_the_final_dot(office: Office, exim: Exim) -> None:
    office.leads_to(exim.domain, (exim.host, exim.address))
    recipient = f"anna@{exim.domain}"
    exim.answer({"final": "hang"})
    killing = asyncio.create_task(killed(exim, "final"))
    message_id = await sent(office, "killed-after", recipient)
    await killing
    await office.row(message_id, recipient, status="uncertain", tries=1)
    exim.answer({})
    assert await never_again(office, message_id, recipient)
    assert copies(exim, message_id) == 0
    # Whoever wrote it with a mail program is told that nobody knows.
    notice = await office.received(b"MAILER-DAEMON")
    assert b"may have arrived" in notice
    assert f"In-Reply-To: <{message_id}>".encode() in notice


async def never_again(office: Office, message_id: str, recipient: str) -> bool:
    """Whether it stays uncertain, whatever time goes by."""
    for _ in range(3):
        await office.wait(90_000)
        await asyncio.sleep(0.2)
    row = (await office.rows(message_id))[recipient]
    return (row["status"], row["tries"]) == ("uncertain", 1)


@dataclass
class MxAt(FakeMx):
    """One on port 25 of its own address."""

    address: str = ""

    async def __aenter__(self) -> MxAt:
        self.address = new_address()
        self._tasks = set()
        self._server = await asyncio.start_server(self._serve, self.address, SMTP_PORT, limit=2**24)
        return self


@pytest.fixture
async def scripted(office: Office) -> AsyncIterator[MxAt]:
    """A server that breaks off where no real one can be made to."""
    async with MxAt() as server:
        office.leads_to("scripted.example", ("mx.scripted.example", server.address))
        yield server


@pytest.mark.covers("mail-server:C5", "edge:G2")
async def test_dropped_in_the_middle_of_the_message(office: Office, scripted: MxAt) -> None:
    """So large a message that its end is still with us."""
    scripted.drop_before_dot = 30
    message_id = f"dropped-before@{DOMAIN}"
    raw = letter(message_id, (b"x" * 98 + b"\r\n") * 150_000, to="anna@scripted.example")
    await office.submit(raw, "anna@scripted.example")
    await office.row(message_id, "anna@scripted.example", status="deferred", tries=1)
    scripted.drop_before_dot = None
    await office.wait(70)
    await office.row(message_id, "anna@scripted.example", status="delivered", tries=2)
    assert len(scripted.delivered) == len(scripted.messages) == 1
    assert scripted.delivered[0].data.endswith(raw)


@pytest.mark.covers("mail-server:C5", "edge:G2", "edge:N15")
async def test_dropped_after_the_final_dot(office: Office, scripted: MxAt) -> None:
    scripted.drop_after_dot = True
    message_id = await sent(office, "dropped-after", "anna@scripted.example")
    await office.row(message_id, "anna@scripted.example", status="uncertain", tries=1)
    scripted.drop_after_dot = False
    assert await never_again(office, message_id, "anna@scripted.example")
    assert len(scripted.messages) == 1
