"""One outgoing mail transaction: its commands, and what is known about each recipient so far."""

from typing import Final

from postroom.smtp.address import Address, AddressSyntaxError, parse_path
from postroom.smtp.client_events import Extensions, MailRequest, RecipientRequest, RecipientResult
from postroom.smtp.evidence import Evidence, Fault, Stage
from postroom.smtp.params import MAX_ENVID, MAX_ORCPT, Body, Notify, ParameterError, encode_xtext
from postroom.smtp.reply_reader import ServerReply

# RFC 3461 §4.1 has no order; this one is constant.
_NOTIFY_ORDER: Final = (Notify.NEVER, Notify.SUCCESS, Notify.FAILURE, Notify.DELAY)


class Transaction:
    """The state of one transaction. What the server cannot take is decided at the start, before anything is sent.

    Raises `ValueError` for a request that can be sent to nobody: no recipients, or an address or parameter that would
    not come through as one.
    """

    def __init__(self, request: MailRequest, extensions: Extensions, *, encrypted: bool) -> None:
        if not request.recipients:
            raise ValueError("no recipients")
        self._request = request
        self._extensions = extensions
        self._decided: list[Evidence | None] = [None] * len(request.recipients)
        self._needs_utf8 = request.smtputf8 or (request.sender is not None and not request.sender.local.isascii())
        self.accepted: list[int] = []
        self.is_sender_accepted = False
        self.chunk_refusal: ServerReply | None = None
        self.rcpt_lines = [_line(b"RCPT TO:", _path(r.address), self._rcpt_words(r)) for r in request.recipients]
        self._decide_at_once(encrypted)
        self._uses_utf8 = self._needs_utf8 or any(
            not request.recipients[index].address.local.isascii() for index in self.open
        )
        self.mail_line = _line(b"MAIL FROM:", _path(request.sender), self._mail_words())

    def _decide_at_once(self, encrypted: bool) -> None:
        request, offered = self._request, self._extensions
        limit = offered.size
        fault: Fault | None = None
        if limit is not None and request.size is not None and request.size > limit:
            fault = Fault.TOO_LARGE
        elif self._needs_utf8 and "SMTPUTF8" not in offered:
            fault = Fault.UTF8_MISSING
        elif request.body is Body.EIGHT_BIT and "8BITMIME" not in offered:
            fault = Fault.EIGHT_BIT_MISSING
        elif request.body is Body.BINARY and not all(
            keyword in offered for keyword in ("BINARYMIME", "CHUNKING", "PIPELINING")
        ):
            fault = Fault.BINARY_MISSING
        elif request.requiretls and not (encrypted and "REQUIRETLS" in offered):
            fault = Fault.REQUIRETLS_MISSING
        if fault is not None:
            self.decide_open(Evidence(Stage.MAIL, fault=fault))
        elif "SMTPUTF8" not in offered:
            # Only these recipients need what the server lacks (C5).
            for index, recipient in enumerate(request.recipients):
                if not recipient.address.local.isascii():
                    self.decide(index, Evidence(Stage.RCPT, fault=Fault.UTF8_MISSING))

    @property
    def open(self) -> list[int]:
        """The recipients about which nothing is decided."""
        return [index for index, evidence in enumerate(self._decided) if evidence is None]

    @property
    def body(self) -> Body:
        """What octets the message holds."""
        return self._request.body

    def accepted_addresses(self) -> tuple[Address, ...]:
        """The recipients that the server took."""
        return tuple(self._request.recipients[index].address for index in self.accepted)

    def decide(self, index: int, evidence: Evidence) -> None:
        """Say what became of a recipient; what is decided stays."""
        if self._decided[index] is None:
            self._decided[index] = evidence

    def decide_open(self, evidence: Evidence) -> None:
        """Say what became of all the others. A chunk's refusal was the last word, if there was one."""
        if self.chunk_refusal is not None and evidence.reply is None:
            evidence = Evidence(Stage.BODY, self.chunk_refusal)
        for index in self.open:
            self._decided[index] = evidence

    def results(self) -> tuple[RecipientResult, ...]:
        """What became of each recipient. All must be decided."""
        return tuple(
            RecipientResult(recipient.address, evidence)
            for recipient, evidence in zip(self._request.recipients, self._decided, strict=True)
            if evidence is not None
        )

    # -- parameters

    def _mail_words(self) -> list[str]:
        request, offered = self._request, self._extensions
        words = {
            f"SIZE={request.size}": request.size is not None and "SIZE" in offered,
            f"BODY={request.body.value}": request.body is not Body.SEVEN_BIT,
            "SMTPUTF8": self._uses_utf8,
            "REQUIRETLS": request.requiretls,
        }
        chosen = [word for word, is_sent in words.items() if is_sent]
        if "DSN" in offered:
            if request.ret is not None:
                chosen.append(f"RET={request.ret.value}")
            if request.envid is not None:
                chosen.append(f"ENVID={_xtext(request.envid, MAX_ENVID)}")
        return chosen

    def _rcpt_words(self, recipient: RecipientRequest) -> list[str]:
        words = []
        if "DSN" in self._extensions:
            notify, orcpt = recipient.parameters.notify, recipient.parameters.orcpt
            if notify:
                words.append("NOTIFY=" + ",".join(word.value for word in _NOTIFY_ORDER if word in notify))
            # RFC 6533 §3: an original recipient that is not ASCII has an encoding of its own; it is optional, so left.
            if orcpt is not None and orcpt[1].isascii():
                words.append(f"ORCPT={orcpt[0]};{_xtext(orcpt[1], MAX_ORCPT - len(orcpt[0]) - 1)}")
        return words


def _line(command: bytes, path: bytes, words: list[str]) -> bytes:
    return b" ".join([command + path, *(word.encode("ascii") for word in words)]) + b"\r\n"


def _path(address: Address | None) -> bytes:
    if address is None:
        return b"<>"
    path = f"<{address}>".encode()
    try:
        read = parse_path(path)
    except AddressSyntaxError:
        raise ValueError("an address that cannot be sent") from None
    if read.parameters or read.address is None:
        raise ValueError("an address that cannot be sent")
    return path


def _xtext(text: str, limit: int) -> str:
    try:
        encoded = encode_xtext(text)
    except ParameterError as error:
        raise ValueError(str(error)) from None
    if len(encoded) > limit:
        raise ValueError("a parameter that is too long")
    return encoded
