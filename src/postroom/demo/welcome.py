"""What a demo says when it is up: where everything is, and what to try. Each line to try works when it is pasted."""

from __future__ import annotations

import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from postroom.demo.place import DOMAIN, HOST, RECORD, Cast, Ports

FIRST_ID: Final = 'import json, sys; print(json.load(sys.stdin)["data"][0]["id"])'


class Running(Protocol):
    """What is told of a demo (`runner.Demo`)."""

    @property
    def data_dir(self) -> Path: ...
    @property
    def ports(self) -> Ports: ...
    @property
    def cast(self) -> Cast: ...
    @property
    def throw_away(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Try:
    """Something to try: lines for a shell, in this order."""

    title: str
    lines: tuple[str, ...]


def text(demo: Running, program: str | None = None) -> str:
    """The whole of it. `program` is what runs our commands, as a shell wants it."""
    cast, ports = demo.cast, demo.ports
    kept = "thrown away at the end" if demo.throw_away else "kept"
    tries = "\n\n".join(
        f"{at}. {one.title}:\n\n" + "\n\n".join(f"   {line}" for line in one.lines)
        for at, one in enumerate(things_to_try(demo, program or own_program()), 1)
    )
    return f"""
Postroom is running. Everything listens on this machine alone.

  HTTP        {ports.url}   (REST: /v1, its description: /openapi.json)
  SMTP        {HOST}:{ports.smtp}   (mail for @{DOMAIN})
  submission  {HOST}:{ports.submission}   (what 587 is elsewhere: STARTTLS with a self-signed certificate, or plain)
              {HOST}:{ports.smtps}   (what 465 is elsewhere: TLS from the first byte)
  IMAP        {HOST}:{ports.imap}   (STARTTLS with a self-signed certificate, or plain)

  person      {cast.person.address}   password {cast.person.password}
  agent       {cast.agent.address}   password {cast.agent.key}
              {cast.agent.identity_id}
  API key     {cast.api_key}
  data        {demo.data_dir}   ({kept}; all of the above is in {RECORD})

Both read by IMAP and send by submission with address and password; the agent answers, and does not write to strangers.

Things to try, each in another terminal:

{tries}

Ctrl-C ends it."""


def things_to_try(demo: Running, program: str) -> tuple[Try, ...]:
    """In an order in which each finds what it needs."""
    cast, ports = demo.cast, demo.ports
    person, agent = cast.person.address, cast.agent.address
    curl = f"curl -s -H 'Authorization: Bearer {cast.api_key}'"
    mailbox = f"{ports.url}/v1/identities/{cast.agent.identity_id}"
    at = f"--data-dir {shlex.quote(str(demo.data_dir))}"
    newest = f"{curl} '{mailbox}/messages?limit=1&direction=inbound' | python3 -c {shlex.quote(FIRST_ID)}"
    return (
        Try(
            "Wait for mail as the agent, over REST; then send some, as another server would",
            (
                f"{curl} '{mailbox}/wait?timeout=60'",
                f"python3 -c \"import smtplib; smtplib.SMTP('{HOST}', {ports.smtp}).sendmail('you@example.com', "
                f"'{agent}', 'From: you@example.com\\r\\nTo: {agent}\\r\\nSubject: Hello\\r\\n\\r\\nHello, agent.')\"",
            ),
        ),
        Try("List the agent's mail", (f"{curl} '{mailbox}/messages?limit=5'",)),
        Try(
            "Write to the agent as the person, by submission under TLS as a mail program does, and by a command",
            (
                f"printf 'From: {person}\\r\\nTo: {agent}\\r\\nSubject: A table\\r\\n\\r\\nFor two, please.\\r\\n' | "
                f"curl -sS -k --ssl-reqd -u '{person}:{cast.person.password}' "
                f"--mail-from {person} --mail-rcpt {agent} -T - smtp://{HOST}:{ports.submission}",
                f"{program} mail send {at} --from {person} --to {agent} --subject 'Another table' --text 'For four.'",
            ),
        ),
        Try(
            "Answer the newest message as the agent",
            (f"{program} mail reply {at} --from {agent} --text 'Gladly: Friday at seven.' \"$({newest})\"",),
        ),
        Try(
            "Read the person's mail over IMAP, here or in any mail client",
            (
                f"python3 -c \"import imaplib; i = imaplib.IMAP4('{HOST}', {ports.imap}); "
                f"i.login('{person}', '{cast.person.password}'); i.select('INBOX'); "
                "print(i.fetch('1:*', '(FLAGS BODY.PEEK[HEADER.FIELDS (SUBJECT)])'))\"",
            ),
        ),
    )


def own_program() -> str:
    """How a shell, in whatever directory, runs the program that runs now."""
    given = sys.argv[0] if sys.argv else ""
    if Path(given).name != "postroom":
        return f"{shlex.quote(sys.executable)} -m postroom"
    found = shutil.which("postroom")
    path = Path(given).absolute()
    return "postroom" if found is not None and Path(found) == path else shlex.quote(str(path))
