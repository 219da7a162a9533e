"""The mail of the demo: a few conversations as they would come from outside. Pure: same arguments, same bytes.

That the bytes repeat makes delivering them again harmless: a message that is there already is not stored twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from typing import Final

MARTA: Final = Address("Marta Nováková", "marta", "example.com")
JIRO: Final = Address("山田 次郎", "jiro", "example.net")
SHOP: Final = Address("Lampenladen Müller", "bestellung", "shop.example.org")
ELENA: Final = Address("Elena Rossi", "elena", "example.org")
NEWS: Final = Address("The Lighthouse", "news", "letters.example.net")


@dataclass(frozen=True, slots=True)
class Sample:
    """One message on its way: reverse-path, recipients, bytes in wire form."""

    sender: str
    recipients: tuple[str, ...]
    raw: bytes


def samples(person: Address, agent: Address, now: datetime) -> Iterator[Sample]:
    """The conversations, oldest message first, spread over the three days before *now*."""
    yield from _delivery_question(agent, person, now - timedelta(days=3))
    yield from _meeting(person, now - timedelta(days=2))
    yield from _order(agent, now - timedelta(days=1, hours=4))
    yield from _newsletter(person, now - timedelta(hours=9))
    yield from _contract(agent, person, now - timedelta(hours=2))


def _delivery_question(agent: Address, person: Address, at: datetime) -> Iterator[Sample]:
    first = _letter(
        MARTA,
        (agent,),
        "Where is my parcel? 📦",
        "Hello,\n\norder 4711 was to arrive on Monday, and it hasn't. Could you look where it is?\n\nMarta\n",
        at,
        "parcel-1",
    )
    yield _sample(first)
    second = _letter(
        MARTA,
        (agent, person),
        "Re: Where is my parcel? 📦",
        "One more thing: nobody is at home on Thursday, Friday is better.\n\nMarta\n",
        at + timedelta(hours=3),
        "parcel-2",
        after=(first,),
    )
    yield _sample(second)
    yield _sample(
        _letter(
            MARTA,
            (agent,),
            "Re: Where is my parcel? 📦",
            "It came! Thank you, děkuji.\n\nMarta\n\n> One more thing: nobody is at home on Thursday.\n",
            at + timedelta(days=1),
            "parcel-3",
            after=(first, second),
        )
    )


def _meeting(person: Address, at: datetime) -> Iterator[Sample]:
    first = _letter(
        JIRO,
        (person,),
        "打ち合わせの日程について",
        "お世話になっております。\n\n来週の火曜日、15時はいかがでしょうか。\n\n山田\n",
        at,
        "meeting-1",
    )
    yield _sample(first)
    yield _sample(
        _letter(
            JIRO,
            (person,),
            "Re: 打ち合わせの日程について",
            "水曜日でも大丈夫です。よろしくお願いします。\n\n山田\n",
            at + timedelta(hours=20),
            "meeting-2",
            after=(first,),
        )
    )


def _order(agent: Address, at: datetime) -> Iterator[Sample]:
    letter = _letter(
        SHOP,
        (agent,),
        "Ihre Rechnung für Bestellung 2049 – 39,90 €",
        "Guten Tag,\n\nim Anhang finden Sie die Rechnung. Vielen Dank für Ihren Einkauf!\n\nLampenladen Müller\n",
        at,
        "invoice-2049",
    )
    letter.add_attachment(
        pdf("Rechnung 2049: 39,90 EUR"), maintype="application", subtype="pdf", filename="Rechnung-2049.pdf"
    )
    yield _sample(letter)


def _newsletter(person: Address, at: datetime) -> Iterator[Sample]:
    letter = _letter(
        NEWS,
        (person,),
        "Letters from the lighthouse, № 12",
        "The lamp was lit at 16:05 today.\n\nRead on: https://letters.example.net/12\n",
        at,
        "letter-12",
    )
    letter["List-Id"] = "The Lighthouse <letters.example.net>"
    letter["List-Unsubscribe"] = "<https://letters.example.net/leave>"
    letter.add_alternative(
        "<!doctype html><html><body style='font-family: serif'>"
        "<h1>Letters from the lighthouse</h1><p>The lamp was lit at <b>16:05</b> today. The sea is <i>calm</i>.</p>"
        "<p><a href='https://letters.example.net/12'>Read on</a></p></body></html>\n",
        subtype="html",
    )
    yield _sample(letter)


def _contract(agent: Address, person: Address, at: datetime) -> Iterator[Sample]:
    letter = _letter(
        ELENA,
        (person,),
        "Contratto: una domanda sulla clausola 3",
        "Ciao,\n\npuoi guardare la clausola 3 prima di domani? Metto in copia il vostro assistente.\n\nElena\n",
        at,
        "contract-1",
        cc=(agent,),
    )
    yield _sample(letter)


def _letter(
    sender: Address,
    to: tuple[Address, ...],
    subject: str,
    text: str,
    at: datetime,
    name: str,
    *,
    cc: tuple[Address, ...] = (),
    after: tuple[EmailMessage, ...] = (),
) -> EmailMessage:
    letter = EmailMessage(SMTP)
    letter["From"] = sender
    letter["To"] = to
    if cc:
        letter["Cc"] = cc
    letter["Subject"] = subject
    letter["Date"] = at.replace(microsecond=0)
    letter["Message-ID"] = f"<{name}@{sender.domain}>"
    if after:
        letter["In-Reply-To"] = after[-1]["Message-ID"]
        letter["References"] = " ".join(one["Message-ID"] for one in after)
    letter.set_content(text)
    return letter


def _sample(letter: EmailMessage) -> Sample:
    if letter.is_multipart():
        # The library would draw it at random.
        letter.set_boundary(f"=_postroom-demo-{letter['Message-ID'][1:].partition('@')[0]}")
    recipients = [one.addr_spec for field in ("To", "Cc") if field in letter for one in letter[field].addresses]
    return Sample(letter["From"].addresses[0].addr_spec, tuple(recipients), letter.as_bytes())


def pdf(text: str) -> bytes:
    """A document of one page that says *text* (ISO 32000-1 §7.5): small, and right to the byte."""
    shown = text.encode("latin-1", "replace").replace(b"\\", b"\\\\").replace(b"(", b"\\(").replace(b")", b"\\)")
    drawing = b"BT /F1 18 Tf 72 720 Td (" + shown + b") Tj ET"
    objects = (
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R"
        b" /Resources << /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >> >>",
        b"<< /Length %d >>\nstream\n%b\nendstream" % (len(drawing), drawing),
    )
    out = bytearray(b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n")
    places = []
    for number, body in enumerate(objects, start=1):
        places.append(len(out))
        out += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    for place in places:
        out += b"%010d 00000 n \n" % place
    out += b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, start)
    return bytes(out)
