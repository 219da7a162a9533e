"""The story that the server plays against itself: `postroom demo --check`. Real clients, each step a line.

A step that goes wrong does not end the story: one fault rarely comes alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email import message_from_bytes
from email.policy import default
from typing import Final

from postroom.demo import hostile, judging, reading, writing
from postroom.demo.clients import deliver, idling
from postroom.demo.place import Cast, Ports
from postroom.demo.samples import Sample, pdf
from postroom.demo.stage import ATTACHMENT, TEXT, Stage, Wrong, expect

WAIT_SECONDS: Final = 1.0
"""From the `250` to the answer of an open `wait`."""
IDLE_SECONDS: Final = 0.1
"""From the `250` to EXISTS in another connection."""
MAX_SUBJECT: Final = 200
"""Characters that `wait` takes of a subject."""
TRIES: Final = 5
"""A busy machine may be late once: a limit is missed when every try misses it."""

Step = Callable[[Stage], str]
"""Plays a step; what it saw, in a few words. Raises Wrong, OSError and what the clients raise."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a step went. `seconds` is what it took in all; `note` what was seen, or what was wrong."""

    title: str
    ok: bool
    seconds: float
    note: str


def play(ports: Ports, cast: Cast) -> Iterator[Outcome]:
    """The whole story, step by step. Blocking: call it from a thread."""
    stage = Stage(ports, cast)
    for title, step in STEPS:
        began = time.perf_counter()
        try:
            note, ok = step(stage), True
        except Exception as error:  # noqa: BLE001 - whatever a client or an answer of a wrong shape raises, the step failed
            note, ok = str(error) if isinstance(error, Wrong) else f"{type(error).__name__}: {error}"[:200], False
        yield Outcome(title, ok, time.perf_counter() - began, note)


def _mail_reaches_the_agent(stage: Stage) -> str:
    """An open REST `wait` returns the message soon after the sender has its `250`."""
    took = WAIT_SECONDS + 1
    for attempt in range(TRIES):
        took = min(took, _wait_for(stage, stage.letter(stage.cast.agent.address, f"agent-{attempt}")))
        if took <= WAIT_SECONDS:
            return f"250, and the open wait returned {_ms(took)} later"
    raise Wrong(f"the wait returned {_ms(took)} after the 250")


def _wait_for(stage: Stage, letter: Sample) -> float:
    """Seconds from the `250` for *letter* until an open `wait` has it."""
    subject = str(message_from_bytes(letter.raw, policy=default)["Subject"])
    query = {
        "since": (datetime.now(UTC) - timedelta(seconds=1)).isoformat().replace("+00:00", "Z"),
        "subject_contains": subject[-MAX_SUBJECT:],
        "timeout": "15",
    }
    path = f"/v1/identities/{stage.cast.agent.identity_id}/wait"
    with ThreadPoolExecutor(max_workers=1) as pool:
        waiting = pool.submit(lambda: (stage.rest.get(path, query, timeout=30), time.perf_counter()))
        deliver(stage.ports, letter)
        accepted = time.perf_counter()
        answer, returned = waiting.result()
    expect(answer.status == 200, f"wait answered {answer.status}")
    message = answer.document["message"]
    expect(message is not None, "wait returned without the message")
    expect(message["subject"] == subject, "wait returned another message")
    return max(0.0, returned - accepted)


def _message_is_whole(stage: Stage) -> str:
    """Text and attachment are there, and the raw bytes are those that were sent, below our trace headers."""
    identity = stage.cast.agent.identity_id
    found = stage.find(identity, "agent-0")
    path = f"/v1/identities/{identity}/messages/{found['id']}"
    message = stage.rest.get(path, {"include": "quoted"}).document
    sent = message_from_bytes(stage.sent["agent-0"].raw, policy=default)
    expect(message["subject"] == str(sent["Subject"]), "the subject differs")
    for member in ("text", "extracted_text"):
        seen = (message[member] or "").replace("\r\n", "\n")
        expect(seen.strip() == TEXT.strip(), f"{member} differs")
    attachments = message["attachments"]
    expect([one["filename"] for one in attachments] == [ATTACHMENT], "the attachment's name differs")
    content = stage.rest.get(f"{path}/attachments/{attachments[0]['id']}")
    expect(content.status == 200 and content.body == pdf(stage.token), "the attachment's bytes differ")
    raw = stage.rest.get(f"{path}/raw").body
    sent_bytes = stage.sent["agent-0"].raw
    expect(raw.endswith(sent_bytes), "the raw bytes differ")
    trace = raw[: len(raw) - len(sent_bytes)]
    expect(trace.startswith(b"Return-Path:") and b"\r\nReceived:" in trace, "there are no trace headers")
    return f"text, attachment and {len(raw)} raw bytes are right"


def _idle_sees_it(stage: Stage) -> str:
    """IDLE in another connection sees EXISTS at once."""
    took = IDLE_SECONDS * 100
    for attempt in range(TRIES):
        letter = stage.letter(stage.cast.person.address, f"person-{attempt}")
        with idling(stage.ports, stage.cast) as idle:
            deliver(stage.ports, letter)
            accepted = time.perf_counter()
            expect(idle.exists() is not None, "the connection ended")
            took = min(took, max(0.0, time.perf_counter() - accepted))
        if took <= IDLE_SECONDS:
            return f"EXISTS {_ms(took)} after the 250"
    raise Wrong(f"EXISTS came {_ms(took)} after the 250")


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


STEPS: Final[tuple[tuple[str, Step], ...]] = (
    ("SMTP to the agent while a REST wait is open", _mail_reaches_the_agent),
    ("the message over REST", _message_is_whole),
    ("who wrote it: one passes, a forgery does not", judging.authors_are_known),
    ("SMTP to the person while IMAP IDLE listens", _idle_sees_it),
    ("FETCH of envelope, structure, parts and partials", reading.fetch),
    ("flags and labels, IMAP to REST and back", reading.flags),
    ("COPY, EXPUNGE and MOVE keep the message's id", reading.places),
    ("a person writes to the agent by submission", writing.submit_to_agent),
    ("the agent answers over REST, once", writing.answer_once),
    ("the person answers, and the thread holds all", writing.answer_the_answer),
    *hostile.STEPS,
)
