"""The load: many clients of every door, who write down what was answered."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Coroutine
from typing import Final

from tests.torture.clients import Answer, Http, Imap, Lost, Smtp
from tests.torture.deployment import Deployment
from tests.torture.ledger import FOLDERS, Document, Kind, Ledger, Marks, Pending, Place
from tests.torture.letters import Letter, make

SENDERS: Final = 200
ACTORS: Final = 10
"""IMAP clients, shared out over the people's mailboxes."""
PATCHERS: Final = 3
LETTERS_PER_ROUND: Final = 2500
HANG_UP: Final = 0.02
"""Share of messages whose answer the sender does not stay to hear."""
SAY_AGAIN: Final = 0.02
"""Share of stored messages that are sent once more, by a sender that forgot."""
_APPENDUID: Final = re.compile(r"\[APPENDUID (\d+) (\d+)\]")
_COPYUID: Final = re.compile(r"\[COPYUID (\d+) (\d+) (\d+)\]")
_KEYWORDS: Final = {"\\Seen": "$seen", "\\Flagged": "$flagged", "\\Answered": "$answered", "Urgent": "urgent"}
_FLAGS: Final = tuple(_KEYWORDS)


class Load:
    """The clients of one round. `start`, then `finish`: every transaction that was begun is ended or lost by then."""

    def __init__(self, deployment: Deployment, ledger: Ledger, round_: int, rng: random.Random) -> None:
        self._deployment = deployment
        self._ledger = ledger
        self._round = round_
        self._rng = rng
        self._left = LETTERS_PER_ROUND
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.answers = 0
        """Acknowledgements of all kinds in this round."""

    def start(self) -> None:
        people = self._deployment.people
        work: list[Coroutine[None, None, None]] = [self._sender(self._new_rng()) for _ in range(SENDERS)]
        work += [self._actor(n, people[n % len(people)], self._new_rng()) for n in range(ACTORS)]
        work += [self._patcher(n, self._new_rng()) for n in range(PATCHERS)]
        self._tasks = [asyncio.create_task(one) for one in work]

    async def answered(self, more: int, seconds: float) -> bool:
        """Whether `more` acknowledgements came within the time."""
        goal, deadline = self.answers + more, asyncio.get_running_loop().time() + seconds
        while self.answers < goal:
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(0.02)
        return True

    async def finish(self, seconds: float = 120.0) -> None:
        """Let every client end what it is at; raises the first error of a client that should not have one."""
        self._stopping.set()
        _, late = await asyncio.wait(self._tasks, timeout=seconds)
        for task in late:
            task.cancel()
        if late:
            self._ledger.fault(f"{len(late)} clients still had no answer {seconds:.0f} s after the load ended")
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    def _new_rng(self) -> random.Random:
        return random.Random(self._rng.getrandbits(64))

    async def _pause(self, rng: random.Random) -> None:
        """Before trying again what failed."""
        try:
            await asyncio.wait_for(self._stopping.wait(), rng.uniform(0.05, 0.4))
        except TimeoutError:
            return

    # -- SMTP

    def _next_letter(self, rng: random.Random) -> Letter | None:
        ledger = self._ledger
        if ledger.again and rng.random() < 0.7:
            ledger.tally.retried += 1
            return ledger.again.popleft()
        if self._left <= 0:
            return None
        self._left -= 1
        count = rng.choice((1, 1, 1, 1, 2, 3))
        letter = Letter(len(ledger.letters) + 1, ledger.seed, tuple(rng.sample(range(ledger.boxes), count)))
        ledger.letters.append(letter)
        return letter

    async def _sender(self, rng: random.Random) -> None:
        while not self._stopping.is_set():
            try:
                async with Smtp(self._deployment.ports["smtp"]) as client:
                    for _ in range(rng.randint(1, 8)):
                        letter = self._next_letter(rng)
                        if self._stopping.is_set() or letter is None:
                            if letter is not None:
                                self._ledger.again.append(letter)
                            break
                        await self._send(client, letter, rng)
            except Lost:
                self._ledger.tally.lost += 1
            if self._left <= 0 or self._ledger.tally.lost:
                await self._pause(rng)

    async def _send(self, client: Smtp, letter: Letter, rng: random.Random) -> None:
        ledger, addresses = self._ledger, [self._deployment.boxes[box].address for box in letter.to]
        letter.tries += 1
        try:
            sent = await client.deliver(addresses, letter.octets(), hang_up=rng.random() < HANG_UP)
        except Lost:
            ledger.again.append(letter)
            raise
        if sent.code == 250:
            letter.stored = True
            ledger.tally.stored += 1
            self.answers += 1
            if rng.random() < SAY_AGAIN:
                ledger.again.append(letter)
        elif 400 <= sent.code < 500:
            ledger.tally.deferred[f"{sent.code} {sent.text}"] += 1
            ledger.again.append(letter)
            await self._pause(rng)
        else:
            ledger.fault(f"letter {letter.number} was refused for good: {sent.code} {sent.text}")

    # -- IMAP

    async def _actor(self, number: int, box: int, rng: random.Random) -> None:
        """Appends messages, and changes only those that it appended itself."""
        mine: list[Document] = []
        there = self._deployment.boxes[box]
        count = 0
        while not self._stopping.is_set():
            try:
                async with Imap(self._deployment.ports["imap"]) as client:
                    await client.login(there.address, there.secret)
                    while not self._stopping.is_set():
                        mine = [document for document in mine if document.pending is None and document.places]
                        if len(mine) < 3 or (len(mine) < 30 and rng.random() < 0.4):
                            count += 1
                            document = self._new_document(box, f"{self._round}-{number}-{count}")
                            mine.append(document)
                            await self._append(client, document, rng)
                        else:
                            document = rng.choice(mine)
                            await self._change(client, document, rng)
                        if document.pending is not None:
                            await self._pause(rng)
            except Lost as lost:
                self._ledger.tally.logins_refused += str(lost).startswith("login")
                await self._pause(rng)

    def _new_document(self, box: int, name: str) -> Document:
        message_id = f"{name}.{self._ledger.seed}@client.example"
        token = f"zd{name.replace('-', 'x')}s{self._ledger.seed}"
        text = make(self._ledger.seed, 1, message_id, token, "someone@example.net")
        document = Document(box, message_id, token, text)
        self._ledger.documents[(box, message_id)] = document
        return document

    async def _append(self, client: Imap, document: Document, rng: random.Random) -> None:
        folder = rng.choice(FOLDERS)
        flags = rng.sample(_FLAGS, k=rng.randint(0, 2))
        words = frozenset(_KEYWORDS[flag] for flag in flags)
        document.pending = Pending(Kind.APPEND, target=folder, flags=words)
        answer = await client.command(f"APPEND {folder} ({' '.join(flags)})", document.text)
        if not self._settled(document, answer):
            return
        found = _APPENDUID.search(answer.text)
        if found is None:
            self._ledger.fault(f"APPEND of {document.message_id} was answered without APPENDUID: {answer.text}")
            return
        self._place(document, (folder, int(found[2])), words)

    async def _change(self, client: Imap, document: Document, rng: random.Random) -> None:
        at = rng.choice(sorted(document.places))
        folder, uid = at
        if (await client.command(f"SELECT {folder}")).status != "OK":
            await self._pause(rng)
            return
        kind = rng.choice((Kind.STORE, Kind.STORE, Kind.STORE, Kind.COPY, Kind.MOVE, Kind.MOVE, Kind.EXPUNGE))
        if kind is Kind.STORE:
            await self._store(client, document, at, rng.choice(_FLAGS), rng.choice("+-"))
        elif kind is Kind.EXPUNGE:
            if await self._store(client, document, at, "\\Deleted", "+"):
                document.pending = Pending(Kind.EXPUNGE, at)
                if self._settled(document, await client.command(f"UID EXPUNGE {uid}")):
                    del document.places[at]
        else:
            await self._transfer(client, document, at, kind, rng.choice(FOLDERS))

    async def _store(self, client: Imap, document: Document, at: Place, flag: str, sign: str) -> bool:
        word = frozenset({_KEYWORDS.get(flag, "$deleted")})
        old = document.places[at]
        new = old | word if sign == "+" else old - word
        document.pending = Pending(Kind.STORE, at, flags=new)
        if not self._settled(document, await client.command(f"UID STORE {at[1]} {sign}FLAGS.SILENT ({flag})")):
            return False
        document.places[at] = new
        return True

    async def _transfer(self, client: Imap, document: Document, at: Place, kind: Kind, target: str) -> None:
        document.pending = Pending(kind, at, target)
        answer = await client.command(f"UID {kind.value.upper()} {at[1]} {target}")
        if not self._settled(document, answer):
            return
        texts = [answer.text, *(line.decode("utf-8", "replace") for line in answer.untagged)]
        found = next((match for text in texts if (match := _COPYUID.search(text))), None)
        if found is None or int(found[2]) != at[1]:
            self._ledger.fault(f"{kind} of {document.message_id} at {at} was answered {texts}")
            return
        flags = document.places[at]
        if kind is Kind.MOVE:
            del document.places[at]
        self._place(document, (target, int(found[3])), flags)

    def _settled(self, document: Document, answer: Answer) -> bool:
        """Whether the change was made for sure; what was refused stays pending, for it may have been made."""
        if answer.status != "OK":
            if answer.status == "BAD" or "SERVERBUG" in answer.text:
                self._ledger.fault(f"{document.pending} of {document.message_id}: {answer.status} {answer.text}")
            return False
        document.pending = None
        self._ledger.tally.imap += 1
        self.answers += 1
        return True

    def _place(self, document: Document, place: Place, flags: frozenset[str]) -> None:
        self._ledger.saw_uid(document.box, *place, document.message_id)
        document.places[place] = flags

    # -- REST

    async def _patcher(self, number: int, rng: random.Random) -> None:
        """Labels messages of the agents, each client with words of its own."""
        deployment = self._deployment
        agents = deployment.agents
        count = 0
        while not self._stopping.is_set():
            try:
                async with Http(deployment.ports["http"], deployment.api_keys[number]) as client:
                    while not self._stopping.is_set():
                        box = rng.choice(agents)
                        base = f"/v1/identities/{deployment.boxes[box].identity_id}/messages"
                        status, page = await client.request("GET", f"{base}?limit=20")
                        messages = page["data"] if status == 200 else []
                        for message in rng.sample(messages, k=min(3, len(messages))):
                            count += 1
                            label = f"r{self._round}c{number}n{count % 20}"
                            await self._label(client, base, box, message["id"], label)
                        await asyncio.sleep(0.2)
            except Lost:
                await self._pause(rng)

    async def _label(self, client: Http, base: str, box: int, message: str, label: str) -> None:
        marks = self._ledger.marks.setdefault(message, Marks(box))
        marks.perhaps.add(label)
        status, body = await client.request("PATCH", f"{base}/{message}", {"labels_add": [label]})
        if status == 200:
            marks.sure.add(label)
            self._ledger.tally.rest += 1
            self.answers += 1
        elif status not in (429, 500, 503):
            self._ledger.fault(f"PATCH of {message} was answered {status} {body}")
        elif status == 500:
            self._ledger.fault(f"PATCH of {message} was answered 500 {body}")
