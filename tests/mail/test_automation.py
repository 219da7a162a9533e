"""What kind of message it is: the table of inbound §16, each row alone and all together, and what is kept of it."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.mail import mime
from postroom.mail.automation import MAX_JSON_BYTES, Kind, Sign, classify, reads_content

# (header lines, null sender, sign, kind) of every row of the table that a header decides.
ROWS = [
    ("List-Id: <l.example.org>", Sign.LIST_ID, Kind.LIST),
    ("List-Unsubscribe: <https://example.org/u>", Sign.LIST_UNSUBSCRIBE, Kind.LIST),
    ("List-Post: <mailto:l@example.org>", Sign.LIST_POST, Kind.LIST),
    ("Precedence: list", Sign.PRECEDENCE_LIST, Kind.LIST),
    ("PRECEDENCE: Bulk", Sign.PRECEDENCE_BULK, Kind.LIST),
    ("Auto-Submitted: auto-generated", Sign.AUTO_SUBMITTED, Kind.AUTOMATED),
    ("Auto-Submitted: (x) auto-replied; owner-email=x", Sign.AUTO_SUBMITTED, Kind.AUTOMATED),
    ("X-Autoreply: yes", Sign.X_AUTOREPLY, Kind.AUTOMATED),
    ("X-Autorespond: yes", Sign.X_AUTORESPOND, Kind.AUTOMATED),
    ("X-Auto-Response-Suppress: DR, all", Sign.AUTO_RESPONSE_SUPPRESS, Kind.AUTOMATED),
    ("X-Auto-Response-Suppress:OOF", Sign.AUTO_RESPONSE_SUPPRESS, Kind.AUTOMATED),
    ("Precedence: junk", Sign.PRECEDENCE_JUNK, Kind.AUTOMATED),
    ("Precedence: auto_reply", Sign.PRECEDENCE_AUTO_REPLY, Kind.AUTOMATED),
    ("Precedence: auto-reply", Sign.PRECEDENCE_AUTO_REPLY, Kind.AUTOMATED),
    ("Subject: Out of Office: away", Sign.SUBJECT, Kind.AUTOMATED),
    ("Subject: AUTOMATIC REPLY: away", Sign.SUBJECT, Kind.AUTOMATED),
    ("Subject: Auto: away", Sign.SUBJECT, Kind.AUTOMATED),
    ("Subject: Autosvar: borta", Sign.SUBJECT, Kind.AUTOMATED),
    ("Subject: Abwesenheitsnotiz", Sign.SUBJECT, Kind.AUTOMATED),
    ("Subject: =?utf-8?q?R=C3=A9ponse_automatique?=", Sign.SUBJECT, Kind.AUTOMATED),
    ("Subject: =?utf-8?q?Re=CC=81ponse_automatique?=", Sign.SUBJECT, Kind.AUTOMATED),
    ("From: No-Reply@example.org", Sign.FROM_LOCAL_PART, Kind.AUTOMATED),
    ("From: X <donotreply@example.org>", Sign.FROM_LOCAL_PART, Kind.AUTOMATED),
    ("X-Postroom-Hop: 1", Sign.POSTROOM_AGENT, Kind.NORMAL),
    ("Disposition-Notification-To: x@example.org", Sign.MDN_REQUESTED, Kind.NORMAL),
    ("Content-Type: text/calendar", Sign.CALENDAR_PART, Kind.CALENDAR),
    ("Content-Type: multipart/report; report-type=disposition-notification; boundary=b", Sign.DISPOSITION_REPORT,
     Kind.MDN),
    ("Content-Type: multipart/report; Report-Type=Delivery-Status; boundary=b", Sign.DELIVERY_STATUS_REPORT, Kind.DSN),
    ("Content-Type: multipart/report; report-type=feedback-report; boundary=b", Sign.FEEDBACK_REPORT, Kind.AUTOMATED),
    ("Content-Type: multipart/report; report-type=tlsrpt; boundary=b", Sign.REPORT, Kind.AUTOMATED),
]  # fmt: skip
BODY = "\r\n--b\r\n\r\nx\r\n--b--\r\n"
PLAIN = [
    "Auto-Submitted: no",
    "Auto-Submitted: NO (really)",
    "Auto-Submitted:",
    "X-Auto-Response-Suppress: DR, RN, AutoReply",
    "Precedence: first-class",
    "Subject: Out of Office hours, a proposal"[:9] + "x",
    "Subject: Automobile: news",
    "From: noreply.bob@example.org",
    "X-Postroom-Hop: 0",
    "Content-Type: multipart/mixed; boundary=b",
]
# The order in which kinds win.
ORDER = [Kind.DSN, Kind.MDN, Kind.LIST, Kind.AUTOMATED, Kind.CALENDAR, Kind.NORMAL]


def letter(*lines: str) -> bytes:
    return ("\r\n".join(lines) + "\r\n" + BODY).encode()


@pytest.mark.covers("FR-IN-6", "edge:D6", "edge:B8", "RFC 3834 §5", "RFC 2919", "RFC 2369")
@pytest.mark.parametrize(("line", "sign", "kind"), ROWS)
def test_rows_alone(line: str, sign: Sign, kind: Kind) -> None:
    found = classify(letter(line), null_sender=False)
    assert found.kind is kind
    assert sign in found.evidence
    assert found.automated is (kind not in (Kind.NORMAL, Kind.CALENDAR))


@pytest.mark.parametrize("line", PLAIN)
def test_what_says_nothing(line: str) -> None:
    found = classify(letter(line), null_sender=False)
    assert (found.kind, found.evidence, found.automated) == (Kind.NORMAL, (), False)


@pytest.mark.covers("FR-IN-6", "edge:D6")
@given(st.lists(st.sampled_from(ROWS + [(line, None, Kind.NORMAL) for line in PLAIN]), max_size=6), st.booleans())
def test_the_first_row_wins(rows: list[tuple[str, Sign | None, Kind]], null_sender: bool) -> None:
    chosen: dict[str, tuple[str, Sign | None, Kind]] = {}
    for row in rows:  # of a field that may be there once
        chosen.setdefault(row[0].partition(":")[0].lower(), row)
    found = classify(letter(*(line for line, _, _ in chosen.values())), null_sender=null_sender)
    kinds = {kind for _, _, kind in chosen.values()} | ({Kind.AUTOMATED} if null_sender else set())
    assert found.kind is next((kind for kind in ORDER if kind in kinds), Kind.NORMAL)
    assert {sign for _, sign, _ in chosen.values() if sign} <= set(found.evidence)
    assert (Sign.NULL_SENDER in found.evidence) is null_sender


@pytest.mark.covers("edge:N13", "edge:D6")
@pytest.mark.parametrize(
    ("value", "hop", "kind", "signs"),
    [
        ("1", 1, Kind.NORMAL, (Sign.POSTROOM_AGENT,)),
        (" 9 ", 9, Kind.NORMAL, (Sign.POSTROOM_AGENT,)),
        ("10", 10, Kind.AUTOMATED, (Sign.HOP_LIMIT, Sign.POSTROOM_AGENT)),
        ("many", 11, Kind.AUTOMATED, (Sign.HOP_LIMIT, Sign.POSTROOM_AGENT)),
        ("2\r\nX-Postroom-Hop: 5", 5, Kind.NORMAL, (Sign.POSTROOM_AGENT,)),
    ],
)
def test_hops(value: str, hop: int, kind: Kind, signs: tuple[Sign, ...]) -> None:
    found = classify(letter(f"X-Postroom-Hop: {value}"), null_sender=False)
    assert (found.kind, found.hop, found.evidence) == (kind, hop, signs)
    assert found.to_json() == {"evidence": [sign.value for sign in signs], "hop": hop}


def bounce(recipients: int, diagnostic: str) -> bytes:
    groups = "".join(
        f"\r\nFinal-Recipient: rfc822; {'r' * 60}{n}@example.org\r\nAction: failed\r\nStatus: 5.1.1\r\n"
        f"Diagnostic-Code: smtp; {diagnostic}\r\n"
        for n in range(recipients)
    )
    return (
        "From: mailer-daemon@example.net\r\nContent-Type: multipart/report; report-type=delivery-status; boundary=b\r\n"
        f"\r\n--b\r\nContent-Type: message/delivery-status\r\n\r\nReporting-MTA: dns; mx.example.net\r\n{groups}\r\n"
        "--b\r\nContent-Type: text/rfc822-headers\r\n\r\nFrom: ann@example.com\r\nMessage-ID: <o1@example.com>\r\n"
        "--b--\r\n"
    ).encode()


@pytest.mark.covers("FR-IN-6", "FR-DLV-5")
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 120), st.integers(0, 700), st.sampled_from(["x", '"', "\\", "ä", "漢", "\u2028"]))
def test_what_is_kept_fits(recipients: int, length: int, character: str) -> None:
    found = classify(bounce(recipients, character * length), null_sender=True)
    kept = found.to_json()
    assert len(orjson.dumps(kept)) <= MAX_JSON_BYTES
    report = kept["dsn"]
    assert report["original_message_id"] == "o1@example.com"
    assert report["original_from"] == "ann@example.com"
    assert len(report["recipients"]) == min(recipients, 100), "a hundred recipients fit without their diagnostics"
    for entry in report["recipients"]:
        assert set(entry) == {"final_recipient", "action", "status", "diagnostic_code"}
        assert len(entry["diagnostic_code"] or "") <= 512


@pytest.mark.parametrize(
    ("lines", "null_sender", "wanted"),
    [
        ((), False, False),
        (("List-Id: <l.example.org>", "Auto-Submitted: auto-replied"), False, False),
        ((), True, True),
        (("From: Postmaster@example.org",), False, True),
        (("Content-Type: multipart/report; boundary=b",), False, True),
        (("Content-Type: text/calendar",), False, True),
    ],
)
def test_what_is_read_beyond_the_header(lines: tuple[str, ...], null_sender: bool, wanted: bool) -> None:
    assert reads_content(mime.parse(letter(*lines)), null_sender=null_sender) is wanted


def test_nothing_known_is_left_out_of_json() -> None:
    found = classify(letter("Subject: hello"), null_sender=False)
    assert found.to_json() == {"evidence": []}


@pytest.mark.covers("FR-IN-6")
def test_a_header_alone_is_enough() -> None:
    raw = b"From: bob@example.org\r\nPrecedence: bulk\r\n"
    assert classify(raw, null_sender=False).kind is Kind.LIST


@given(st.binary(max_size=300), st.booleans())
def test_any_octets(raw: bytes, null_sender: bool) -> None:
    for data in (raw, b"Content-Type: text/calendar\r\n\r\n" + raw, b"Content-Type: multipart/report\r\n" + raw):
        found = classify(data, null_sender=null_sender)
        assert len(orjson.dumps(found.to_json())) <= MAX_JSON_BYTES
