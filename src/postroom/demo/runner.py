"""Runs a demo: everything in this process, from the database to the doors, until Ctrl-C or the end of the story."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from email.headerregistry import Address
from functools import partial
from pathlib import Path
from typing import Protocol

from postroom.app import make_resolver, open_core, open_postgres
from postroom.base.clock import SystemClock
from postroom.base.secrets import ensure_secrets, load_secrets
from postroom.base.settings import Settings
from postroom.demo import place, story
from postroom.demo.clients import deliver
from postroom.demo.names import zone
from postroom.demo.place import Cast, Ports
from postroom.demo.samples import samples
from postroom.demo.seed import AGENT, PERSON, seed
from postroom.net.known_names import KnownNames
from postroom.node import Node
from postroom.supervisor import stop_on_signals


class NotADemo(Exception):
    """The data directory is a deployment's own, which a demo must not touch. The message says so."""


class Teller(Protocol):
    """Where the demo tells what it does."""

    def step(self, text: str, seconds: float) -> None:
        """Something was done, in so many seconds."""

    def outcome(self, outcome: story.Outcome) -> None:
        """A step of the story was played."""

    def ready(self, demo: Demo) -> None:
        """Everything is up."""

    def stopping(self) -> None:
        """It is coming down."""


@dataclass(frozen=True, slots=True)
class Demo:
    """A demo that runs."""

    data_dir: Path
    ports: Ports
    cast: Cast
    throw_away: bool

    @property
    def record(self) -> Path:
        return self.data_dir / place.RECORD


@dataclass(slots=True)
class _Watch:
    tell: Teller

    @contextmanager
    def __call__(self, text: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.tell.step(text, time.monotonic() - began)


async def run(data_dir: Path | None, ports: Ports, tell: Teller, *, check: bool, up: Callable[[], None]) -> bool:
    """Run a demo until a signal, or with *check* until its story is over; whether all went well.

    Without *data_dir* its data goes with it. *up* is called when the database can be connected to. Raises NotADemo,
    and what starting a server raises.
    """
    stop = stop_on_signals()
    async with _running(data_dir, ports, tell, up) as (demo, node):
        if check:
            return await _check(demo, tell, stop)
        tell.ready(demo)
        waits = [asyncio.create_task(event.wait()) for event in (stop, node.failed)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        tell.stopping()
        return not node.failed.is_set()


async def _check(demo: Demo, tell: Teller, stop: asyncio.Event) -> bool:
    """Play the story; a signal ends it after the step in hand."""
    outcomes = story.play(demo.ports, demo.cast)
    ok = True
    while not stop.is_set():
        outcome = await asyncio.to_thread(next, outcomes, None)
        if outcome is None:
            return ok
        tell.outcome(outcome)
        ok = ok and outcome.ok
    raise KeyboardInterrupt


@asynccontextmanager
async def _running(
    data_dir: Path | None, ports: Ports, tell: Teller, up: Callable[[], None]
) -> AsyncIterator[tuple[Demo, Node]]:
    """Everything up, with its cast and mail; all of it down again afterwards, the database last."""
    watch = _Watch(tell)
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(_directory(data_dir))
        settings = await asyncio.to_thread(_prepare, directory, ports)
        with watch("database"):
            url = await stack.enter_async_context(open_postgres(settings))
            # The database is this demo's now. Written before, it would tell another that runs here of wrong ports.
            await asyncio.to_thread(place.write_private, directory / place.CONFIG, place.config_text(ports))
            outside = await asyncio.to_thread(make_resolver, settings, SystemClock())
            stack.push_async_callback(outside.aclose)
            known = KnownNames(zone(), outside)
            core = await stack.enter_async_context(
                open_core(settings, load_secrets(directory, {}), url, resolver=known)
            )
        up()
        with watch("a tenant, a person, an agent and a key"):
            cast, began = await seed(core, place.read_known(directory))
        node = Node(core, reload=partial(load_secrets, directory, {}))
        stack.push_async_callback(node.drain)
        with watch("SMTP, submission, IMAP and HTTP"):
            await node.start()
        with watch("conversations, delivered over SMTP"):
            await asyncio.to_thread(_deliver_samples, ports, cast, began)
        demo = Demo(directory, ports, cast, throw_away=data_dir is None)
        # Last, so that whoever waits for it finds everything.
        await asyncio.to_thread(place.write_private, demo.record, dump(place.record(cast, ports)))
        yield demo, node


@contextmanager
def _directory(given: Path | None) -> Iterator[Path]:
    """The data directory: the one given, or one that goes when the demo ends."""
    if given is not None:
        given.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield given.resolve()
        return
    made = Path(tempfile.mkdtemp(prefix="postroom-demo-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _prepare(directory: Path, ports: Ports) -> Settings:
    """The settings of a demo, whose secrets are written. Raises NotADemo."""
    config = directory / place.CONFIG
    if config.exists():
        with config.open(encoding="utf-8", errors="replace") as file:
            ours = file.readline().strip() == place.config_text(ports).partition("\n")[0]
        if not ours:
            raise NotADemo(f"{directory} holds a deployment of its own, which a demo would spoil")
    settings = place.demo_settings(directory, ports)
    ensure_secrets(directory)
    return settings


def _deliver_samples(ports: Ports, cast: Cast, began: datetime) -> None:
    person = Address(PERSON.display_name, addr_spec=cast.person.address)
    agent = Address(AGENT.display_name, addr_spec=cast.agent.address)
    for sample in samples(person, agent, began):
        deliver(ports, sample)


def dump(document: object) -> str:
    """*document* as the text of a JSON file."""
    return json.dumps(document, indent=2) + "\n"
