"""The load of mail that leaves: agents over REST with a key for each message, people by submission."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.torture.clients import Http, Lost, Smtp
from tests.torture.deployment import Box, Deployment
from tests.torture.sink import END

AGENTS: Final = 6
"""REST clients,"""
PEOPLE: Final = 3
"""and mail programs."""
SAY_AGAIN: Final = 0.15
"""Share of accepted requests that are made once more, by a client that forgot."""
HANG_UP: Final = 0.05
"""Share of submissions whose answer the client does not stay to hear."""
IN_PROGRESS: Final = 409


@dataclass(slots=True)
class Send:
    """One message that somebody means to send. `message_id`: how it was accepted; over REST the same each time."""

    subject: str
    to: tuple[str, ...]
    retried: bool
    accepted: bool = False
    message_id: str | None = None
    tries: int = 0

    @property
    def text(self) -> str:
        return f"Hello.\n.\n{END}{self.subject}\n"


@dataclass(slots=True)
class Outbox:
    """Every message that was ever to be sent, and what clients saw that must never be."""

    seed: int
    sends: dict[str, Send] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def new(self, rng: random.Random, *, retried: bool) -> Send:
        subject = f"n{len(self.sends) + 1}s{self.seed}"
        to = tuple(f"{name}-{subject}@elsewhere.example" for name in ("ann", "bo", "cy")[: rng.choice((1, 1, 1, 2, 3))])
        send = self.sends[subject] = Send(subject, to, retried)
        return send


class Submitter(Smtp):
    """A mail program that has signed in."""

    def __init__(self, port: int, box: Box) -> None:
        super().__init__(port)
        self._box = box

    async def _greet(self) -> None:
        await super()._greet()
        secret = base64.b64encode(f"\0{self._box.address}\0{self._box.secret}".encode()).decode()
        await self.send(f"AUTH PLAIN {secret}\r\n".encode())
        await self._expect(235)


class Sending:
    """The clients of one round. `start`, then `finish`: by then every key has an answer, and every submission is
    answered for or lost."""

    def __init__(self, deployment: Deployment, outbox: Outbox, rng: random.Random, *, most: int) -> None:
        self._deployment = deployment
        self._outbox = outbox
        self._rng = rng
        self._left = most
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.answers = 0
        self.lost = 0
        self.deduplicated = 0

    def start(self) -> None:
        agents, people = self._deployment.agents, self._deployment.people
        work = [self._agent(agents[n % len(agents)], n, self._new_rng()) for n in range(AGENTS)]
        work += [self._person(people[n % len(people)], self._new_rng()) for n in range(PEOPLE)]
        self._tasks = [asyncio.create_task(one) for one in work]

    async def answered(self, more: int, seconds: float) -> bool:
        """Whether so many more were accepted within the time; that all were is as good."""
        goal, deadline = self.answers + more, asyncio.get_running_loop().time() + seconds
        while self.answers < goal and not all(task.done() for task in self._tasks):
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(0.01)
        return True

    async def finish(self, seconds: float) -> None:
        """Begin nothing new, and let everybody come to an end. Raises a client's error."""
        self._stopping.set()
        _, late = await asyncio.wait(self._tasks, timeout=seconds)
        for task in late:
            task.cancel()
        if late:
            self._outbox.faults.append(f"{len(late)} clients still had no answer {seconds:.0f} s after the load ended")
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    def _new_rng(self) -> random.Random:
        return random.Random(self._rng.getrandbits(64))

    def _next(self, rng: random.Random, *, retried: bool) -> Send | None:
        if self._stopping.is_set() or self._left <= 0:
            return None
        self._left -= 1
        return self._outbox.new(rng, retried=retried)

    # -- REST

    async def _agent(self, box: int, number: int, rng: random.Random) -> None:
        """Each message has its key, which is used until there is an answer."""
        keys = self._deployment.api_keys
        path = f"/v1/identities/{self._deployment.boxes[box].identity_id}/messages"
        send = self._next(rng, retried=True)
        while send is not None:
            try:
                async with Http(self._deployment.ports["http"], keys[number % len(keys)]) as client:
                    while send is not None:
                        if not send.accepted:
                            await self._post(client, path, send, rng)
                        if rng.random() < SAY_AGAIN:
                            await self._post(client, path, send, rng)
                        send = self._next(rng, retried=True)
            except Lost:
                self.lost += 1
                await asyncio.sleep(rng.uniform(0.02, 0.2))

    async def _post(self, client: Http, path: str, send: Send, rng: random.Random) -> None:
        """Until it is accepted. Raises Lost."""
        body = {"to": list(send.to), "subject": send.subject, "text": send.text}
        while True:
            send.tries += 1
            headers = {"Idempotency-Key": f"key of {send.subject}"}
            status, answer = await client.request("POST", path, body, headers=headers)
            if status == 202:
                self._accepted(send, answer)
                return
            code = answer.get("error", {}).get("code") if isinstance(answer, dict) else None
            if not (status in (429, 503) or (status == IN_PROGRESS and code == "request_in_progress")):
                self._outbox.faults.append(f"{send.subject} was answered {status} {code}")
                return
            await asyncio.sleep(rng.uniform(0.05, 0.3))

    def _accepted(self, send: Send, answer: Any) -> None:
        if send.message_id not in (None, answer["id"]):
            self._outbox.faults.append(f"{send.subject} became {send.message_id} and {answer['id']}")
        if send.accepted and not answer["deduplicated"]:
            self._outbox.faults.append(f"{send.subject} was accepted twice")
        self.deduplicated += bool(answer["deduplicated"])
        self.answers += not send.accepted
        send.accepted, send.message_id = True, answer["id"]

    # -- submission

    async def _person(self, box: int, rng: random.Random) -> None:
        """What is lost with the connection is not sent again: nobody could know it for the same."""
        there = self._deployment.boxes[box]
        while not self._stopping.is_set() and self._left > 0:
            try:
                async with Submitter(self._deployment.ports["submission"], there) as client:
                    while (send := self._next(rng, retried=False)) is not None:
                        await self._submit(client, there, send, rng)
            except Lost:
                self.lost += 1
                await asyncio.sleep(rng.uniform(0.02, 0.2))

    async def _submit(self, client: Submitter, box: Box, send: Send, rng: random.Random) -> None:
        head = [f"From: Person <{box.address}>", f"To: {', '.join(send.to)}", f"Subject: {send.subject}"]
        text = "\r\n".join([*head, "", *send.text.splitlines()]) + "\r\n"
        send.tries += 1
        hang_up = rng.random() < HANG_UP
        sent = await client.deliver(_once(send.to), text.encode(), hang_up=hang_up, sender=box.address)
        if sent.code == 250:
            send.accepted = True
            self.answers += 1
        elif not 400 <= sent.code < 500:
            self._outbox.faults.append(f"{send.subject} was refused: {sent.code} {sent.text}")


def _once(to: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(to))
