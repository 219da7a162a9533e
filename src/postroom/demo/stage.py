"""What the steps of the story share: who plays, the messages they send, and how a step says that something is wrong."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from typing import Any, Final

from postroom.demo.clients import Rest
from postroom.demo.place import Cast, Ports
from postroom.demo.samples import Sample, pdf

SENDER: Final = "olga@example.com"
ATTACHMENT: Final = "Měsíční zpráva.pdf"
TEXT: Final = "Dobrý den,\n\nv příloze je měsíční zpráva. 🗻\n\nOlga\n"


class Wrong(Exception):
    """The server did something else than it should have. The message says what, in a few words."""


def expect(holds: object, what: str) -> None:
    """Raises Wrong unless *holds*."""
    if not holds:
        raise Wrong(what)


@dataclass(slots=True)
class Stage:
    """One performance of the story. `token` sets its messages apart from those of every other one."""

    ports: Ports
    cast: Cast
    token: str = field(default_factory=lambda: secrets.token_hex(4))
    sent: dict[str, Sample] = field(default_factory=dict)
    """What was sent so far, by the name of the step that sent it."""
    notes: dict[str, str] = field(default_factory=dict)
    """What a step leaves for a later one."""

    @property
    def rest(self) -> Rest:
        return Rest(self.ports, self.cast.api_key)

    def letter(self, recipient: str, title: str) -> Sample:
        """A multipart message with UTF-8 subject, HTML and a PDF; its bytes are remembered under *title*."""
        letter = EmailMessage(SMTP)
        letter["From"] = f"Olga Example <{SENDER}>"
        letter["To"] = recipient
        letter["Subject"] = f"Měsíční zpráva № {title} 🗻 {self.token}"
        letter["Date"] = datetime.now(UTC).replace(microsecond=0)
        letter["Message-ID"] = f"<{title}.{self.token}@example.com>"
        letter.set_content(TEXT)
        letter.add_alternative("<p>Dobrý den,</p><p>v příloze je <b>měsíční zpráva</b>. 🗻</p>\n", subtype="html")
        letter.add_attachment(pdf(self.token), maintype="application", subtype="pdf", filename=ATTACHMENT)
        self.sent[title] = Sample(SENDER, (recipient,), letter.as_bytes())
        return self.sent[title]

    def find(self, identity_id: str, title: str) -> dict[str, Any]:
        """The message of *title* as the REST API lists it. Raises Wrong when it does not."""
        answer = self.rest.get(f"/v1/identities/{identity_id}/messages", {"limit": "50"})
        expect(answer.status == 200, f"the list of messages answered {answer.status}")
        wanted = f"{title}.{self.token}@example.com"
        for message in answer.document["data"]:
            if (message["rfc_message_id"] or "").strip("<>") == wanted:
                return dict(message)
        raise Wrong("the message is not in the list")
