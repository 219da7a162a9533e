"""Receipts and feedback reports: as the RFCs write them, as others do, and whatever else comes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.mail.arf import parse_arf
from postroom.mail.mdn import parse_mdn


def wrapped(kind: str, fields: str, returned: str | None = "text/rfc822-headers") -> bytes:
    last = "" if returned is None else (
        f"--b\r\nContent-Type: {returned}\r\n\r\nFrom: ann@example.com\r\nTo: bob@example.org\r\n"
        "Message-ID: <o1@Example.com>\r\n\r\n"
    )  # fmt: skip
    return (
        f"Content-Type: multipart/report; report-type=x; boundary=b\r\n\r\n--b\r\n\r\nwords\r\n--b\r\n"
        f"Content-Type: {kind}\r\n\r\n{fields}\r\n{last}--b--\r\n"
    ).encode()


MDN, ARF = "message/disposition-notification", "message/feedback-report"


@pytest.mark.covers("edge:B8", "RFC 8098 §3.2.6")
@pytest.mark.parametrize(
    ("value", "kind", "modifiers", "automatic"),
    [
        ("manual-action/MDN-sent-manually; displayed", "displayed", (), False),
        ("Automatic-Action/MDN-sent-automatically;deleted/error", "deleted", ("error",), True),
        ("automatic-action/MDN-sent-automatically; processed/error, warning", "processed", ("error", "warning"), True),
        ("displayed", "displayed", (), None),
        ("", None, (), None),
    ],
)
def test_dispositions(value: str, kind: str | None, modifiers: tuple[str, ...], automatic: bool | None) -> None:
    found = parse_mdn(wrapped(MDN, f"Disposition: {value}"))
    assert found is not None
    assert (found.disposition, found.modifiers, found.automatic) == (kind, modifiers, automatic)
    assert found.original_message_id == "o1@example.com", "of the returned message, where the fields name none"


@pytest.mark.covers("RFC 8098 §3")
def test_a_receipt() -> None:
    fields = (
        "Reporting-UA: host.example.org; Mailer 3\r\nOriginal-Recipient: rfc822;info@example.org\r\n"
        "Final-Recipient: rfc822; Bob <bob@example.org>\r\nOriginal-Message-ID: <X@Example.com>"
    )
    found = parse_mdn(wrapped(MDN, fields))
    assert found is not None
    assert (found.original_message_id, found.final_recipient) == ("X@example.com", "bob@example.org")
    assert (found.original_recipient, found.reporting_ua) == ("info@example.org", "host.example.org; Mailer 3")


@pytest.mark.covers("RFC 5965 §3", "RFC 6591 §3")
def test_a_complaint() -> None:
    fields = (
        "Feedback-Type: Fraud\r\nUser-Agent: X/1\r\nOriginal-Mail-From: <>\r\nSource-IP: [IPv6:2001:DB8::1]\r\n"
        "Original-Rcpt-To: <a@example.org>\r\nOriginal-Rcpt-To: b@example.org\r\nOriginal-Rcpt-To: <a@example.org>\r\n"
        "Incidents: 12\r\nReported-Domain: Example.COM\r\nAuth-Failure: DMARC\r\nDKIM-Domain: example.com"
    )
    found = parse_arf(wrapped(ARF, fields))
    assert found is not None
    assert (found.kind, found.original_mail_from, found.incidents) == ("fraud", None, 12)
    assert found.original_recipients == ("a@example.org", "b@example.org")
    assert found.reported_domains == ("example.com",)
    assert (found.original_message_id, found.original_to) == ("o1@example.com", ("bob@example.org",))
    assert found.auth_failure is not None
    assert (found.auth_failure.kind, found.auth_failure.dkim_domain) == ("dmarc", "example.com")


@pytest.mark.parametrize(
    ("value", "wanted"), [("192.0.2.9", "192.0.2.9"), ("1.2.3", None), ("", None), ("x" * 99, None)]
)
def test_source_addresses(value: str, wanted: str | None) -> None:
    found = parse_arf(wrapped(ARF, f"Source-IP: {value}"))
    assert found is not None
    assert (found.source_ip, found.kind) == (wanted, "other")


def test_what_is_neither() -> None:
    for raw in (b"", b"Subject: x\r\n\r\nDisposition: displayed\r\n", wrapped("text/plain", "Feedback-Type: abuse")):
        assert parse_mdn(raw) is None
        assert parse_arf(raw) is None


PIECES = st.sampled_from(
    ["Disposition:", "Final-Recipient:", "Original-Message-ID:", "Feedback-Type:", "Original-Rcpt-To:", "Incidents:",
     "/", ";", "<", ">", "a@example.org", "\r\n", " ", "\x00", "ä", "9" * 30, "rfc822;", "utf-8;"]
)  # fmt: skip


@given(st.lists(PIECES | st.text(max_size=5), max_size=40))
def test_whatever_comes(pieces: list[str]) -> None:
    fields = "".join(pieces).encode("utf-8", "replace").decode()
    receipt, complaint = parse_mdn(wrapped(MDN, fields)), parse_arf(wrapped(ARF, fields, None))
    assert receipt is not None
    assert complaint is not None
    for address in (receipt.final_recipient, *complaint.original_recipients):
        assert address is None or (address.isprintable() and "@" in address and len(address) <= 320)
    assert 0 <= complaint.incidents < 10**9
    repr((receipt, complaint)).encode()
