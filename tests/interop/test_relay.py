"""A real server as the relay that takes all mail for elsewhere (mail-server C6)."""

from __future__ import annotations

import email
import email.policy
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

import pytest

from postroom.mail.dsn import Action, parse_dsn
from tests.interop.exim import PASSWORD, SUBMISSION_PORT, USERNAME, Exim
from tests.interop.office import DOMAIN, Office, arrived, letter, open_office
from tests.interop.place import Missing, our_address, skip_or_fail
from tests.interop.postfix import Postfix
from tests.interop.tls import Authority


class Open(Protocol):
    def __call__(
        self, relay: Postfix | Exim, *, password: str = PASSWORD, trusted: bool = True
    ) -> AbstractAsyncContextManager[Office]: ...


@pytest.fixture
def opening(database_url: str, tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Open:
    """A Postroom that gives everything to a relay; the authority of its certificate is trusted or not."""
    try:
        our_address()
    except Missing as error:
        skip_or_fail(error)

    def make(relay: Postfix | Exim, *, password: str = PASSWORD, trusted: bool = True) -> Any:
        if trusted:
            # Where OpenSSL looks for the authorities of the system.
            monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
        settings: dict[str, object] = {
            "relay_host": relay.address,
            "relay_port": SUBMISSION_PORT,
            "relay_username": USERNAME,
        }
        return open_office(database_url, tmp_path, relay=settings, relay_password=password)

    return make


@pytest.fixture(params=["postfix", "exim"])
def relay(request: pytest.FixtureRequest) -> Postfix | Exim:
    peer: Postfix | Exim = request.getfixturevalue(request.param)
    peer.answer({})
    return peer


@pytest.mark.covers("mail-server:C6", "RFC 4954", "RFC 3207")
async def test_signed_in_over_tls(opening: Open, relay: Postfix | Exim) -> None:
    recipient, message_id = f"anna@{relay.domain}", f"relayed.{relay.name}@{DOMAIN}"
    async with opening(relay) as office:
        raw = letter(message_id, b"Hello\r\n..\r\n", to=recipient)
        await office.submit(raw, recipient)
        await office.row(message_id, recipient, status="submitted", remote_mx=relay.address)
        there = await arrived(relay, message_id)
        assert there.endswith(raw)
        assert await office.is_signed(there)
    received = email.message_from_bytes(there, policy=email.policy.default).get_all("Received", [])[0]
    assert "ESMTPSA" in received.upper()
    assert f"{'A=plain:' if isinstance(relay, Exim) else 'sasl_method=PLAIN, sasl_username='}{USERNAME}" in relay.log()


@pytest.mark.covers("mail-server:C6", "edge:N14")
async def test_a_wrong_password_is_waited_for(opening: Open, relay: Postfix | Exim) -> None:
    recipient, message_id = f"anna@{relay.domain}", f"unknown.{relay.name}@{DOMAIN}"
    async with opening(relay, password="no password") as office:
        await office.submit(letter(message_id, b"Hello\r\n", to=recipient), recipient)
        # It is the operator who has to mend that, which is no try of the message.
        row = await office.row(message_id, recipient, status="queued", tries=0, smtp_code=535)
        assert row["next_attempt_at"] > office.clock.now()


@pytest.mark.covers("mail-server:C6", "edge:N16")
async def test_a_certificate_that_does_not_hold(opening: Open, relay: Postfix | Exim) -> None:
    recipient, message_id = f"anna@{relay.domain}", f"untrusted.{relay.name}@{DOMAIN}"
    before = len(relay.log())
    async with opening(relay, trusted=False) as office:
        await office.submit(letter(message_id, b"Hello\r\n", to=recipient), recipient)
        row = await office.row(message_id, recipient, status="queued", tries=1, enhanced_code="4.7.5")
        assert row["smtp_code"] is None
    assert USERNAME not in relay.log()[before:], "the password was not sent"


@pytest.mark.covers("mail-server:C6", "mail-server:C7", "FR-DLV-5", "RFC 3464 §2.1")
async def test_the_notice_of_a_relay_comes_back(opening: Open, postfix: Postfix, exim: Exim) -> None:
    """Postfix takes it from us, Exim refuses it, Postfix tells Ada by mail to our MX."""
    recipient, message_id = f"gone@{exim.domain}", f"comes-back@{DOMAIN}"
    exim.answer({recipient: "550 5.1.1 Nobody of that name"})
    async with opening(postfix) as office:
        await office.submit(letter(message_id, b"Hello\r\n", to=recipient), recipient)
        await office.row(message_id, recipient, status="submitted")
        notice = await office.received(b"multipart/report")
    report = parse_dsn(notice)
    assert report is not None
    assert (report.reporting_mta, report.original_message_id) == (postfix.host, message_id)
    (gone,) = report.recipients
    assert (gone.final_recipient, gone.action, gone.status) == (recipient, Action.FAILED, "5.1.1")
    assert gone.remote_mta == exim.address or gone.remote_mta == f"[{exim.address}]"
    assert "Nobody of that name" in (gone.diagnostic_code or "")
