"""Delivery reports: written, read back, read as others write them, and withheld."""

import email
import email.policy
from datetime import UTC, datetime, timedelta
from email.message import Message

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.mail import mime
from postroom.mail.address import Address
from postroom.mail.compose import ComposeError
from postroom.mail.dsn import (
    Action,
    DeliveryReport,
    Notify,
    RecipientReport,
    Report,
    ReportedRecipient,
    Return,
    Withheld,
    compose_dsn,
    parse_dsn,
    read_orcpt,
    unicode_decode,
    unicode_encode,
    withheld,
    xtext_decode,
    xtext_encode,
)

NOW = datetime(2026, 3, 5, 9, 7, 3, tzinfo=UTC)
DAEMON = Address("Mail Delivery", "MAILER-DAEMON", "mx.example.net")
ANN = Address("", "ann", "example.com")
ORIGINAL = (
    b"From: Ann <ann@example.com>\r\nSubject: Offer =?utf-8?q?=C3=A4?=\r\nMessage-ID: <o1@Example.com>\r\n"
    b"\r\nsecret body\r\n"
)
FAILED = RecipientReport(
    Address("", "bob", "example.org"), Action.FAILED, "5.1.1", "550 5.1.1 No such user\r\nBcc: evil@example.com",
    "mx1.example.org (192.0.2.1)", "rfc822;Bob+2Bx@example.org", NOW,
)  # fmt: skip


def built(
    *recipients: RecipientReport, original: bytes = ORIGINAL, ret: Return = Return.FULL, smtputf8: bool = False,
    envid: str | None = "env+2Bid",
) -> bytes:  # fmt: skip
    report = Report("mx.example.net", recipients, NOW - timedelta(days=5), envid)
    composed = compose_dsn(
        report, original, from_=DAEMON, to=ANN, date=NOW, message_id="d1@mx.example.net", boundary="tok", ret=ret,
        smtputf8=smtputf8,
    )  # fmt: skip
    raw = composed.to_bytes()
    assert composed.size == len(raw)
    assert all(len(line) <= 998 for line in raw.split(b"\r\n"))
    assert not email.message_from_bytes(raw, policy=email.policy.default).defects
    return raw


def types(raw: bytes) -> list[str]:
    return [part.content_type for part in mime.parse(raw).root.children]


@pytest.mark.covers("mail-server:C7", "RFC 3464 §2")
def test_a_failure() -> None:
    raw = built(FAILED)
    message = mime.parse(raw)
    assert message.root.content_type == "multipart/report"
    assert message.root.params["report-type"] == "delivery-status"
    assert types(raw) == ["text/plain", "message/delivery-status", "message/rfc822"]
    assert message.subject == "Undelivered: Offer ä"
    assert message.headers.get("auto-submitted") == "auto-replied"
    assert message.in_reply_to == message.references == ["o1@example.com"]
    assert "bcc" not in message.headers
    status = message.root.children[1]
    assert raw[status.body_start : status.body_end] == (
        b"Original-Envelope-Id: env+id\r\nReporting-MTA: dns; mx.example.net\r\n"
        b"Arrival-Date: Sat, 28 Feb 2026 09:07:03 +0000\r\n\r\n"
        b"Original-Recipient: rfc822; Bob+x@example.org\r\nFinal-Recipient: rfc822; bob@example.org\r\n"
        b"Action: failed\r\nStatus: 5.1.1\r\nRemote-MTA: dns; mx1.example.org (192.0.2.1)\r\n"
        b"Diagnostic-Code: smtp; 550 5.1.1 No such user Bcc: evil@example.com\r\n"
        b"Last-Attempt-Date: Thu, 05 Mar 2026 09:07:03 +0000\r\n"
    )
    report = email.message_from_bytes(raw, policy=email.policy.default)
    groups = list(report.iter_parts())[1].get_payload()
    assert isinstance(groups, list)  # one for the message, one for the recipient
    assert [group.get("status") for group in groups if isinstance(group, Message)] == [None, "5.1.1"]


@pytest.mark.covers("mail-server:C7", "RFC 3461 §4.3")
@pytest.mark.parametrize(
    ("action", "ret", "size", "returned"),
    [
        (Action.FAILED, Return.FULL, 10, "message/rfc822"),
        (Action.FAILED, Return.HDRS, 10, "text/rfc822-headers"),
        (Action.FAILED, Return.FULL, 64 * 1024, "text/rfc822-headers"),
        (Action.DELAYED, Return.FULL, 10, "text/rfc822-headers"),
        (Action.DELIVERED, Return.FULL, 10, "text/rfc822-headers"),
        (Action.RELAYED, Return.FULL, 10, "text/rfc822-headers"),
        (Action.EXPANDED, Return.FULL, 10, "text/rfc822-headers"),
    ],
)
def test_what_comes_back(action: Action, ret: Return, size: int, returned: str) -> None:
    item = RecipientReport(ANN, action, "4.4.7", will_retry_until=NOW)
    raw = built(item, original=ORIGINAL + b"x\r\n" * (size // 3), ret=ret)
    assert types(raw)[2] == returned
    assert (b"secret body" in raw) is (returned == "message/rfc822")
    assert (b"Will-Retry-Until" in raw) is (action is Action.DELAYED)
    found = parse_dsn(raw)
    assert found is not None
    assert (found.original_message_id, found.original_from) == ("o1@example.com", "ann@example.com")
    assert found.recipients[0].action is action


def test_an_original_that_cannot_be_sent_as_it_stands() -> None:
    raw = built(FAILED, original=b"From: ann@example.com\nSubject: \xc3\xa4\nMessage-ID: <x@y>\n\nbare\n")
    assert types(raw)[2] == "text/rfc822-headers"
    assert raw.isascii()
    assert parse_dsn(raw) is not None
    raw = built(FAILED, original=b"no header")
    assert types(raw)[2] == "message/rfc822"


@pytest.mark.covers("RFC 6533")
def test_international_addresses() -> None:
    item = RecipientReport(Address("", "jörg", "example.org"), Action.FAILED, "5.1.1", "550 Kein Gerät", None,
                           "utf-8;j\\x{F6}rg@example.org")  # fmt: skip
    plain = built(item)
    assert types(plain)[1] == "message/delivery-status"
    assert b"Final-Recipient: utf-8; j\\x{F6}rg@example.org\r\n" in plain
    assert b"Original-Recipient: utf-8; j\\x{F6}rg@example.org\r\n" in plain
    assert b"550 Kein Ger?t" in plain
    wide = built(item, smtputf8=True, original="Subject: ä\r\nMessage-ID: <o@x>\r\n\r\n".encode())
    assert types(wide) == ["text/plain", "message/global-delivery-status", "message/global"]
    narrow = built(item, smtputf8=True, ret=Return.HDRS, original="Subject: ä\r\nMessage-ID: <o@x>\r\n\r\n".encode())
    assert types(narrow)[2] == "message/global-headers"
    for raw in (plain, wide, narrow):
        found = parse_dsn(raw)
        assert found is not None
        assert found.recipients[0].final_recipient == "jörg@example.org"
        assert found.recipients[0].original_recipient == "jörg@example.org"
        assert found.original_message_id is not None


def test_several_recipients() -> None:
    good = RecipientReport(Address("", "c", "example.org"), Action.DELIVERED, "2.0.0")
    raw = built(good, FAILED)
    assert mime.parse(raw).subject == "Undelivered: Offer ä"
    found = parse_dsn(raw)
    assert found == DeliveryReport(
        "mx.example.net", "env+id", "o1@example.com", "ann@example.com",
        (
            ReportedRecipient("c@example.org", Action.DELIVERED, "2.0.0", None),
            ReportedRecipient(
                "bob@example.org", Action.FAILED, "5.1.1", "550 5.1.1 No such user Bcc: evil@example.com",
                "Bob+x@example.org", "mx1.example.org (192.0.2.1)",
            ),
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    "recipients",
    [(), (FAILED,) * 1001, (RecipientReport(ANN, Action.FAILED, "550"),),
     (RecipientReport(Address("", "a\r\nb", "c.example"), Action.FAILED, "5.0.0"),)],
)  # fmt: skip
def test_reports_that_cannot_be_written(recipients: tuple[RecipientReport, ...]) -> None:
    with pytest.raises(ComposeError):
        built(*recipients)


REPLIES = st.text(st.characters(codec="utf-8"), max_size=700)


@settings(max_examples=60)
@given(REPLIES, REPLIES, REPLIES, st.booleans())
def test_no_peer_writes_a_field(diagnostic: str, mta: str, orcpt: str, smtputf8: bool) -> None:
    items = tuple(
        RecipientReport(Address("", local, "example.org"), Action.FAILED, "5.0.0", diagnostic, mta, "rfc822;" + orcpt)
        for local in ("a", "ö")
    )
    try:
        raw = built(*items, smtputf8=smtputf8, envid=orcpt)
    except ComposeError:
        assert len(mta) + len(diagnostic) + len(orcpt) > 200  # a word that no line can hold
        return
    found = parse_dsn(raw)
    assert found is not None
    assert [item.final_recipient for item in found.recipients] == ["a@example.org", "ö@example.org"]
    assert {item.status for item in found.recipients} == {"5.0.0"}


@pytest.mark.covers("mail-server:C7", "edge:N19", "RFC 3461 §4.1")
@pytest.mark.parametrize(
    ("path", "changes", "wanted"),
    [
        (ANN, {}, None),
        (None, {}, Withheld.NULL_SENDER),
        (ANN, {"is_bounce": True}, Withheld.BOUNCE),
        (ANN, {"authenticated": False}, Withheld.UNAUTHENTICATED),
        (ANN, {"suppressed": True}, Withheld.SUPPRESSED),
        (ANN, {"notify": {Notify.NEVER}}, Withheld.NOT_WANTED),
        (ANN, {"notify": {Notify.SUCCESS, Notify.DELAY}}, Withheld.NOT_WANTED),
        (ANN, {"notify": {Notify.FAILURE}}, None),
        (ANN, {"action": Action.DELIVERED}, Withheld.NOT_WANTED),
        (ANN, {"action": Action.RELAYED, "notify": {Notify.SUCCESS}}, None),
        (ANN, {"action": Action.DELAYED}, None),
    ],
)
def test_to_whom_none_is_sent(path: Address | None, changes: dict[str, object], wanted: Withheld | None) -> None:
    values: dict[str, object] = {
        "action": Action.FAILED, "is_bounce": False, "authenticated": True, "suppressed": False, **changes}  # fmt: skip
    assert withheld(path, **values) is wanted  # type: ignore[arg-type]  # the values are those of the arguments


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters="\u2028\u2029")))
def test_xtext(text: str) -> None:
    assert xtext_decode(xtext_encode(text)) == text
    assert all("!" <= char <= "~" and char != "=" for char in xtext_encode(text))
    assert unicode_decode(unicode_encode(text)) == text
    assert unicode_encode(text).isascii()


@given(st.text())
def test_any_parameter(text: str) -> None:
    for decoded in (xtext_decode(text), unicode_decode(text), (read_orcpt("rfc822;" + text) or ("", ""))[1]):
        assert "\n" not in decoded
        decoded.encode()


@pytest.mark.parametrize(
    ("orcpt", "found"),
    [
        ("rfc822;a+2Bb@example.com", ("rfc822", "a+b@example.com")),
        ("RFC822;a", ("rfc822", "a")),
        ("utf-8;\\x{E4}@example.com", ("utf-8", "ä@example.com")),
        ("utf-8;\\x{D800}\\x{FFFFFF}", ("utf-8", "\\x{D800}\\x{FFFFFF}")),
        ("rfc822;a+0D+0Ab", ("rfc822", "a b")),
        ("a@example.com", None),
        ("rfc822;", None),
        ("r f;x", None),
        ("rfc822;" + "x" * 500, None),
    ],
)
def test_orcpt(orcpt: str, found: tuple[str, str] | None) -> None:
    assert read_orcpt(orcpt) == found


def wrapped(status: str, kind: str = "message/delivery-status", returned: str = "message/rfc822") -> bytes:
    return (
        "From: MAILER-DAEMON@mx.example.org\r\nContent-Type: multipart/report; report-type=delivery-status; boundary=b"
        f"\r\n\r\n--b\r\nContent-Type: text/plain\r\n\r\nsorry\r\n--b\r\nContent-Type: {kind}\r\n\r\n{status}\r\n"
        f"--b\r\nContent-Type: {returned}\r\n\r\nFrom: ann@example.com\r\nMessage-ID: <o1@example.com>\r\n\r\n"
        "x\r\n--b--"
    ).encode()


def told(status: str, **how: str) -> list[tuple[str, str | None, str | None]]:
    found = parse_dsn(wrapped(status, **how))
    assert found is not None
    assert (found.original_message_id, found.original_from) == ("o1@example.com", "ann@example.com")
    return [(r.final_recipient, r.action.value if r.action else None, r.status) for r in found.recipients]


A_FAILED = [("a@example.com", "failed", "5.1.1")]
PLAIN = "Final-Recipient: rfc822; a@example.com\r\nAction: failed\r\nStatus: 5.1.1"


@pytest.mark.covers("FR-DLV-5", "edge:D4")
@pytest.mark.parametrize(
    ("status", "wanted"),
    [
        ("Reporting-MTA: dns; x\r\n\r\n" + PLAIN, A_FAILED),
        ("Reporting-MTA: dns; x\r\n" + PLAIN, A_FAILED),
        ("Final-Recipient: RFC822;<a@example.com>\r\nAction: Failed (bounced)\r\nStatus: 5.1.1 (no user)", A_FAILED),
        ("Final-Recipient: a@example.com\r\nACTION:failure\r\nstatus:5.01.1", A_FAILED),
        ("\n\nFinal-Recipient: rfc822; a@example.com\n\n\nAction: failed\n\nStatus: 5.1.1\n", A_FAILED),
        ("Final-Recipient: rfc822; a@example.com\r\nDiagnostic-Code: smtp; 550-5.1.1 no\r\n user", A_FAILED),
        ("Original-Recipient: rfc822; a@example.com\r\nFinal-Recipient: unknown; x\r\nStatus: 5.1.1", A_FAILED),
        ("Final-Recipient: rfc822; a@example.com\r\nDiagnostic-Code: 550 no", [("a@example.com", "failed", "5.0.0")]),
        ("Final-Recipient: rfc822; a@example.com\r\nStatus: 4.4.7", [("a@example.com", "delayed", "4.4.7")]),
        ("Final-Recipient: rfc822; a@example.com\r\nStatus: 9.9.9\r\nDiagnostic-Code: smtp; to [192.0.2.250]: late",
         [("a@example.com", None, None)]),
        ("Final-Recipient: rfc822; a@example.com\r\nAction: relayed\r\nStatus: 2.0.0",
         [("a@example.com", "relayed", "2.0.0")]),
        ("Original-Recipient: rfc822; a@example.com\r\nAction: failed\r\nStatus: 5.1.1\r\n"
         "Final-Recipient: rfc822; b@example.com\r\nAction: failed\r\nStatus: 5.2.2",
         [*A_FAILED, ("b@example.com", "failed", "5.2.2")]),
        (PLAIN + "\r\nOriginal-Recipient: rfc822; b@example.com\r\nAction: failed\r\nStatus: 5.2.2",
         [*A_FAILED, ("b@example.com", "failed", "5.2.2")]),
        ("Final-Recipient: rfc822; not an address\r\nAction: failed\r\nStatus: 5.1.1", []),
        ("Final-Recipient: rfc822; a@example.com\r\nAction: failed\r\nStatus: 5.1.1\r\n"
         "Final-Recipient: rfc822; b@example.com\r\nOriginal-Recipient: rfc822;b@x\r\nAction: failed\r\nStatus: 5.2.2",
         [*A_FAILED, ("b@example.com", "failed", "5.2.2")]),
        ("Original-Recipient: rfc822; o@example.com\r\nFinal-Recipient: rfc822; a@example.com\r\nAction: failed\r\n"
         "Status: 5.1.1\r\nOriginal-Recipient: rfc822; b@example.com\r\nAction: failed\r\nStatus: 5.2.2",
         [*A_FAILED, ("b@example.com", "failed", "5.2.2")]),
    ],
)  # fmt: skip
def test_reports_as_they_are_written(status: str, wanted: list[tuple[str, str | None, str | None]]) -> None:
    assert told(status) == wanted
    assert told(status, kind="text/plain") == wanted


@pytest.mark.parametrize(
    "returned",
    ["text/rfc822-headers", "message/rfc822-headers", "message/global", "message/global-headers", "text/plain"],
)
def test_where_the_original_stands(returned: str) -> None:
    status = "Final-Recipient: rfc822; a@example.com\r\nAction: failed\r\nStatus: 5.1.1"
    assert told(status, returned=returned) == A_FAILED


@pytest.mark.covers("FR-DLV-5")
def test_limits() -> None:
    group = "Final-Recipient: rfc822; a{}@example.com\r\nAction: failed\r\nDiagnostic-Code: smtp; {}\r\n\r\n"
    found = parse_dsn(wrapped("".join(group.format(n, "550 " + "x" * 900) for n in range(150))))
    assert found is not None
    assert len(found.recipients) == 100
    assert all(len(item.diagnostic_code or "") == 512 for item in found.recipients)


def test_failed_recipients_field() -> None:
    raw = (
        b"From: Mailer-Daemon@mx.example.org\r\nX-Failed-Recipients: a@example.com, b@example.com\r\n\r\n"
        b"------ This is a copy of the message ------\r\nMessage-ID: <o1@example.com>\r\nFrom: ann@example.com\r\n"
    )
    found = parse_dsn(raw)
    assert found is not None
    assert [item.final_recipient for item in found.recipients] == ["a@example.com", "b@example.com"]
    assert found.original_message_id == "o1@example.com"
    assert found.original_from == "ann@example.com"


def test_qmail() -> None:
    raw = (
        b"From: MAILER-DAEMON@mx.example.org\r\nSubject: failure notice\r\n\r\nHi. This is the mail program at mx.\r\n"
        b"I gave up.\r\n\r\n<a@example.com>:\r\n192.0.2.1 does not like it.\r\nRemote host said: 550 no such user"
        b"\r\n\r\n<b@example.com>:\r\nSorry (#5.1.2)\r\n\r\n--- Below this line is a copy of the message.\r\n\r\n"
        b"Message-ID: <o1@example.com>\r\nFrom: ann@example.com\r\n\r\nx\r\n"
    )
    found = parse_dsn(raw)
    assert found is not None
    assert [(item.final_recipient, item.status) for item in found.recipients] == [
        ("a@example.com", "5.1.1"), ("b@example.com", "5.1.2")]  # fmt: skip
    assert found.original_message_id == "o1@example.com"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"From: ann@example.com\r\n\r\nFinal-Recipient: rfc822; a@example.com\r\n",
        b"Content-Type: multipart/report; boundary=b\r\n\r\n--b\r\n\r\nx\r\n--b--",
        b"Content-Type: multipart/mixed; boundary=m\r\n\r\n--m\r\nContent-Type: message/rfc822\r\n\r\n"
        + wrapped("Final-Recipient: rfc822; a@example.com\r\nStatus: 5.1.1") + b"\r\n--m--",
    ],
)  # fmt: skip
def test_what_is_no_report(raw: bytes) -> None:
    assert parse_dsn(raw) is None


PIECES = st.sampled_from(
    ["Final-Recipient: rfc822; ", "Original-Recipient:", "Action: ", "Status: ", "Diagnostic-Code: smtp; ", "\r\n",
     "\n", " ", "a@example.com", "5.1.1", "failed", "utf-8;", "\\x{110000}", "<", ">", '"', ";", "\x00", "ä", "@"]
)  # fmt: skip


@settings(max_examples=300)
@given(st.lists(PIECES | st.text(max_size=5), max_size=40), st.sampled_from(["message/delivery-status", "text/plain"]))
def test_recipients_are_valid_or_absent(pieces: list[str], kind: str) -> None:
    found = parse_dsn(wrapped("".join(pieces).encode("utf-8", "replace").decode(), kind))
    if found is None:
        return
    for item in found.recipients:
        local, _, domain = item.final_recipient.rpartition("@")
        assert local
        assert domain
        assert item.final_recipient.isprintable()
        assert item.status is None or (item.status[0] in "245" and item.status.count(".") == 2)
    repr(found).encode("utf-8", "strict")


@given(st.binary(max_size=200))
def test_any_octets(raw: bytes) -> None:
    parse_dsn(raw)
    parse_dsn(b"Content-Type: message/delivery-status\r\n\r\n" + raw)
    parse_dsn(b"From: x@example.com\r\n\r\nHi. This is the\r\n<" + raw)
