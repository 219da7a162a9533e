"""Steps of the story in which mail is written: a person to the agent, the agent's answer, and the person's to that."""

from __future__ import annotations

import time
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import SMTP, default
from typing import Any, Final

from postroom.demo.clients import idling, imap, submit
from postroom.demo.stage import Stage, Wrong, expect

QUESTION: Final = "Could you book a table for two?\n"
ANSWER: Final = {"text": "Gladly: Friday at seven.\n"}
THANKS: Final = "Perfect, thank you.\n"
PATIENCE: Final = 15.0
"""Seconds that a message may take within one machine before something is broken."""


def submit_to_agent(stage: Stage) -> str:
    """The person writes with a mail program; the agent has it, and the person's Sent folder has it once."""
    letter = _letter(stage, "question", QUESTION)
    submit(stage.ports, stage.cast, letter)
    _arrived(stage, stage.cast.agent.identity_id, "question")
    with imap(stage.ports, stage.cast) as client:
        client.select("Sent", readonly=True)
        _, (numbers,) = client.search(None, "HEADER", "Message-ID", f'"<question.{stage.token}@example.com>"')
        expect(len(numbers.split()) == 1, f"{len(numbers.split())} copies in Sent")
    return "taken under TLS, delivered, one copy in Sent"


def answer_once(stage: Stage) -> str:
    """The agent answers; the same request again sends nothing, with another text it is refused; the person has it."""
    agent = stage.cast.agent.identity_id
    question = stage.find(agent, "question")
    path, key = f"/v1/identities/{agent}/messages/{question['id']}/reply", f"answer-{stage.token}"
    with idling(stage.ports, stage.cast) as idle:
        first = stage.rest.post(path, ANSWER, key=key)
        expect(first.status == 202, f"the reply answered {first.status} {first.code or ''}")
        expect(idle.exists() is not None, "the connection ended")
    again = stage.rest.post(path, ANSWER, key=key)
    expect(again.status == 202 and again.document["deduplicated"] is True, "the same request again was not recognised")
    expect(again.document["id"] == first.document["id"], "the same request again made another message")
    other = stage.rest.post(path, {"text": "Something else"}, key=key)
    expect((other.status, other.code) == (409, "idempotency_conflict"), f"another text answered {other.status}")
    answer = _fetch_answer(stage)
    expect(answer["In-Reply-To"] == f"<question.{stage.token}@example.com>", "In-Reply-To differs")
    expect(f"<question.{stage.token}@example.com>" in (answer["References"] or ""), "References differ")
    expect(answer["DKIM-Signature"] is not None, "the answer is not signed")
    stage.notes["answer"] = str(answer["Message-ID"])
    return "202 once, deduplicated, 409; the person has it, signed and in its thread"


def answer_the_answer(stage: Stage) -> str:
    """The person answers; the agent's thread holds all three."""
    letter = _letter(stage, "thanks", THANKS)
    letter["In-Reply-To"] = stage.notes["answer"]
    letter["References"] = f"<question.{stage.token}@example.com> {stage.notes['answer']}"
    submit(stage.ports, stage.cast, letter)
    agent = stage.cast.agent.identity_id
    thanks = _arrived(stage, agent, "thanks")
    question = stage.find(agent, "question")
    expect(thanks["thread_id"] == question["thread_id"], "it is in another thread")
    thread = stage.rest.get(f"/v1/identities/{agent}/threads/{question['thread_id']}").document
    expect(thread["message_count"] == 3, f"the thread holds {thread['message_count']} messages")
    return "the agent's thread holds question, answer and thanks"


def _letter(stage: Stage, title: str, text: str) -> EmailMessage:
    letter = EmailMessage(SMTP)
    letter["From"] = stage.cast.person.address
    letter["To"] = stage.cast.agent.address
    letter["Subject"] = f"A table {stage.token}"
    letter["Message-ID"] = f"<{title}.{stage.token}@example.com>"
    letter.set_content(text)
    return letter


def _arrived(stage: Stage, identity_id: str, title: str) -> dict[str, Any]:
    """The message, when it is there. Raises Wrong when it does not come."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return stage.find(identity_id, title)
        except Wrong:
            if time.monotonic() > until:
                raise
        time.sleep(0.02)


def _fetch_answer(stage: Stage) -> Any:
    with imap(stage.ports, stage.cast) as client:
        client.select("INBOX", readonly=True)
        _, (numbers,) = client.search(None, "HEADER", "In-Reply-To", f'"<question.{stage.token}@example.com>"')
        expect(len(numbers.split()) == 1, f"{len(numbers.split())} answers in the inbox")
        _, parts = client.fetch(numbers.split()[0].decode(), "(BODY.PEEK[])")
        part = parts[0]
        if not isinstance(part, tuple):
            raise Wrong("FETCH answered without the message")
        return message_from_bytes(part[1], policy=default)
