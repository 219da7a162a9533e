"""Bounces in no standard form: what must be read, and above all what must not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.mail.automation import Kind, classify
from postroom.mail.dsn import Action, Evidence, ReportClass, parse_dsn
from postroom.mail.dsn.words import action_said, status_said

DAEMON = "MAILER-DAEMON@mx.example.net"


def notice(text: str, *, from_: str = DAEMON, subject: str = "Undelivered mail") -> bytes:
    head = f"From: {from_}\r\nTo: ann@example.com\r\nSubject: {subject}\r\nContent-Type: text/plain; charset=utf-8\r\n"
    return (head + "\r\n" + text.replace("\n", "\r\n")).encode()


def told(text: str, **how: str) -> list[tuple[str, str | None, str | None]]:
    found = parse_dsn(notice(text, **how))
    if found is None:
        return []
    assert found.evidence is Evidence.HEURISTIC
    return [(r.final_recipient, r.action and r.action.value, r.status) for r in found.recipients]


BOB = "bob@example.org"


@pytest.mark.covers("FR-DLV-5", "edge:D4")
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (f"Could not be delivered to:\n\n  {BOB}\n\n  mailbox is full", (BOB, "failed", "5.2.2")),
        (f"Delivery failed.\n<{BOB}>: unknown user", (BOB, "failed", "5.1.1")),
        (f"Delivery failed.\n- {BOB} (no such domain: host not found)", (BOB, "failed", "5.1.2")),
        (f"550 5.7.1 <{BOB}>... Access denied", (BOB, "failed", "5.7.1")),
        (f"Your mail was not delivered to <{BOB}>.", (BOB, "failed", "5.0.0")),
        (f"<{BOB}>: temporary failure, message expired\nundeliverable", (BOB, "failed", "4.4.7")),
        (f"Still undelivered, will keep trying:\n{BOB}\n451 4.3.0 later", (BOB, "delayed", "4.3.0")),
        (f"Will keep trying.\n{BOB}\n550 5.1.1 no such user", (BOB, "failed", "5.1.1")),
        (f">>> RCPT TO:<{BOB}>\n<<< 552 5.2.2 Over quota", (BOB, "failed", "5.2.2")),
        (f"Delivery has failed to:\n\n{BOB}<mailto:{BOB}>\nThe address was not found.\n", (BOB, "failed", "5.1.1")),
        (f"Could not be delivered.\n\n  Recipient address: {BOB}\n  Reason: unknown host", (BOB, "failed", "5.1.2")),
        (f"User mailbox exceeds allowed size: {BOB}", (BOB, "failed", "5.2.2")),
        (f"Unknown user: {BOB}\n\nOriginal message follows.", (BOB, "failed", "5.1.1")),
        (f"Delivery failed:\n\n  Bob Smith ({BOB})\n     The address was not found.", (BOB, "failed", "5.1.1")),
        (f"There was a temporary problem delivering to {BOB}. We'll retry for 46 hours; you'll be told if the delivery "
         "fails permanently.", (BOB, "delayed", "4.0.0")),
        (f"could not be delivered\n{BOB}\n\n----- Original message -----\neve@example.org", (BOB, "failed", "5.0.0")),
    ],
)  # fmt: skip
def test_one_recipient(text: str, wanted: tuple[str, str, str]) -> None:
    assert told(text) == [wanted]


@pytest.mark.covers("FR-DLV-5", "edge:D11")
@pytest.mark.parametrize(
    "text",
    [
        "",
        f"Thank you for writing to {BOB}.",
        f"{BOB}",
        f"{BOB}\n250 2.1.5 Ok",
        "Your message could not be delivered. Write to postmaster@example.net for help.",
        "could not be delivered to\nann@example.com",
        "could not be delivered. For help write to <help@example.net>",
        "could not be delivered\nPlease write to <help@example.net>",
        f"could not be delivered\n\n----- Original message -----\n{BOB}",
        "could not be delivered\n\nReceived: from x\nbob@example.org",
    ],
)
def test_nobody_named_or_nothing_said(text: str) -> None:
    assert told(text) == []


@pytest.mark.covers("edge:D4", "edge:D11")
@pytest.mark.parametrize(
    ("from_", "subject"),
    [
        (BOB, "Re: Undelivered mail"),
        (BOB, "Fwd: failure notice"),
        (BOB, "Automatic reply: Offer"),
        (BOB, "About the undelivered mail"),
        ("noreply@example.org", "Your order"),
    ],
)
def test_who_does_not_look_like_a_bounce(from_: str, subject: str) -> None:
    text = f"{BOB}\n550 5.1.1 no such user, could not be delivered"
    assert told(text, from_=from_, subject=subject) == []
    assert classify(notice(text, from_=from_, subject=subject), null_sender=True).kind is Kind.AUTOMATED


@pytest.mark.covers("edge:D4", "FR-IN-6")
def test_text_alone_is_a_bounce_only_with_the_null_sender() -> None:
    raw = notice(f"could not be delivered:\n{BOB}\n550 5.1.1 no such user")
    assert classify(raw, null_sender=True).kind is Kind.DSN
    found = classify(raw, null_sender=False)
    assert (found.kind, found.dsn) == (Kind.NORMAL, None)


@pytest.mark.parametrize(
    ("action", "status", "wanted"),
    [
        ("failed", "5.1.1", ReportClass.PERMANENT),
        ("failed", "4.4.7", ReportClass.TEMPORARY),
        ("delayed", "5.0.0", ReportClass.DELAY),
        ("expanded", "2.0.0", ReportClass.SUCCESS),
        ("nonsense", "5.0.0", ReportClass.PERMANENT),
        ("nonsense", "9.0.0", None),
    ],
)
def test_classes(action: str, status: str, wanted: ReportClass | None) -> None:
    raw = (
        "Content-Type: multipart/report; boundary=b\r\n\r\n--b\r\nContent-Type: message/delivery-status\r\n\r\n"
        f"Final-Recipient: rfc822; {BOB}\r\nAction: {action}\r\nStatus: {status}\r\n--b--"
    ).encode()
    found = parse_dsn(raw)
    assert found is not None
    assert found.evidence is Evidence.STANDARD
    assert (found.report_class, found.recipients[0].report_class) == (wanted, wanted)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("Ihre Nachricht konnte nicht zugestellt werden.", Action.FAILED),
        ("Votre message n'a pas pu être remis.", Action.FAILED),
        ("No se pudo entregar el mensaje.", Action.FAILED),
        ("Non è stato possibile recapitare il messaggio.", Action.FAILED),
        ("Não foi possível entregar a mensagem.", Action.FAILED),
        ("Nie można dostarczyć wiadomości.", Action.FAILED),
        ("Meddelandet kunde inte levereras.", Action.FAILED),
        ("无法投递", Action.FAILED),
        ("Your mail has been delayed.", Action.DELAYED),
        ("This was delayed, and is a permanent failure now.", Action.FAILED),
        ("The meeting was moved.", None),
    ],
)
def test_words(text: str, action: Action | None) -> None:
    assert action_said(text) is action


@given(st.text(max_size=200))
def test_any_words(text: str) -> None:
    action_said(text)
    status = status_said(text)
    assert status is None or status[0] in "45"


LINES = st.sampled_from(
    [BOB, f"<{BOB}>:", "550 5.1.1 no", ">>> RCPT TO:<x@example.org>", "<<< 550 x", "could not be delivered", "",
     "---- original message ----", "Message-ID: <a@example.com>", "From: ann@example.com", "permanent error", "@",
     "<@>"]
)  # fmt: skip


@given(st.lists(LINES | st.text(max_size=10), max_size=30), st.sampled_from(["Hi. This is the qmail\n\n", ""]))
def test_any_notice(lines: list[str], start: str) -> None:
    text = start + "\n".join(lines)
    for address, action, status in told(text.encode("utf-8", "replace").decode()):
        assert "@" in address
        assert action in ("failed", "delayed")
        assert status is not None
        assert status[0] in "45"
