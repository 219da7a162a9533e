"""Who sent a case, as the judge says with the DNS of the corpus: without a listener, a store or an interface."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from postroom.base.clock import ManualClock
from postroom.inbound.describe import describe
from postroom.inbound.judging import Judge, JudgingRules
from postroom.inbound.receive import judged
from postroom.mailbox.models import Content
from postroom.net.known_names import KnownNames
from tests.corpus.cases import Case, zone
from tests.corpus.reading import NOW
from tests.inbound.fakes import To, envelope

DOMAIN: Final = "agents.example"
HOST: Final = "mx.agents.example"
FRONT: Final = "front.example"
"""Whose results are believed on what comes by LMTP."""
LOCAL: Final = "127.0.0.1"
HELO: Final = "mx.example.com"
METHODS: Final = ("spf", "dkim", "dmarc", "arc")


@dataclass(frozen=True)
class Judged:
    """What is kept of who sent it, and what is left of the message."""

    content: Content
    auth: Mapping[str, Any]
    raw: bytes


def judge(case: Case) -> Judged:
    return asyncio.run(_judge(case))


async def _judge(case: Case) -> Judged:
    known = case.envelope
    session = envelope(To("box@agents.example"), mail_from=known["from"], tls=False)._replace(
        peer_ip=known.get("ip", LOCAL), helo=known.get("helo", HELO), lmtp=known.get("via") == "lmtp"
    )
    judge = Judge(KnownNames(zone()), ManualClock(NOW), JudgingRules(trusted_id=FRONT), hostname=HOST)
    found = await judge.judge(session, case.raw)
    raw = await judge.purge(case.raw)
    content = judged(describe(b"", raw, NOW), found)
    return Judged(content, content.auth or {}, raw)


def check_auth(auth: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Compare the evidence with what is known of it; an empty text stands for nothing."""
    found = {name: AUTH[name](auth) for name in wanted}
    assert {name: "" if value is None else value for name, value in found.items()} == wanted


def _of_dmarc(name: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda auth: auth["dmarc"][name]


AUTH: Final[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = {
    "policy": _of_dmarc("policy"),
    "record_domain": _of_dmarc("record_domain"),
    "aligned_by": _of_dmarc("aligned_by"),
    "reason": _of_dmarc("reason"),
    "spf": lambda auth: [auth["spf"][name] for name in ("result", "domain", "reason")],
    "dkim": lambda auth: [one["result"] for one in auth["dkim"]],
    "reasons": lambda auth: [one["reason"] for one in auth["dkim"]],
    "instances": lambda auth: auth["arc"]["instances"],
    "multiple_from": lambda auth: auth["multiple_from"],
    "authserv": lambda auth: auth["authserv"],
}
