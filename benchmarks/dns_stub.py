"""A name server for the senders of the benchmarks' mail: each has an SPF record and a DMARC record, nobody a key."""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import Final, Self

import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

TTL_SECS: Final = 300


class DnsStub:
    """Answers by UDP on a loopback port, from a thread of its own, until the context ends."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True, name="dns-stub")

    @property
    def address(self) -> str:
        host, port = self._socket.getsockname()
        return f"{host}:{port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.sendto(b"", self._socket.getsockname())
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            data, peer = self._socket.recvfrom(4096)
            if not data:
                return
            self._socket.sendto(answer(dns.message.from_wire(data)).to_wire(), peer)


def answer(question: dns.message.Message) -> dns.message.Message:
    """SPF at every name, DMARC below `_dmarc`, and no record of another type or name."""
    made = dns.message.make_response(question, recursion_available=True)
    asked = question.question[0]
    name = asked.name.to_text()
    if asked.rdtype == dns.rdatatype.TXT and not name.startswith("_dmarc.") and name.startswith("_"):
        made.set_rcode(dns.rcode.NXDOMAIN)
    elif asked.rdtype == dns.rdatatype.TXT:
        text = '"v=DMARC1; p=none"' if name.startswith("_dmarc.") else '"v=spf1 ip4:127.0.0.0/8 -all"'
        made.answer.append(dns.rrset.from_text(name, TTL_SECS, "IN", "TXT", text))
    return made
