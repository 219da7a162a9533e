"""What people write, and what they sign in with, is in no log, whatever goes well or wrong (I5)."""

from __future__ import annotations

import asyncio
import random
import secrets
from dataclasses import dataclass, fields

import pytest

from tests.reliability.conftest import Launch
from tests.reliability.helpers import copies, deliver, deliver_in_the_end
from tests.torture.clients import Http, Imap, Lost, Smtp
from tests.torture.deployment import Server


@dataclass(frozen=True)
class Canaries:
    """Words that nothing but what we send can hold."""

    subject: str
    body: str
    attachment: str
    display_name: str
    sender: str
    stranger: str
    file_name: str
    header: str
    flag: str
    folder: str
    password: str
    key: str
    helo: str

    @classmethod
    def hatch(cls) -> Canaries:
        return cls(**{one.name: f"canary{one.name.replace('_', '')}{secrets.token_hex(6)}" for one in fields(cls)})

    @property
    def all(self) -> list[str]:
        return [getattr(self, one.name) for one in fields(self)]

    def letter(self, recipient: str) -> bytes:
        return (
            f"From: {self.display_name} <{self.sender}@example.com>\r\nTo: {self.display_name} <{recipient}>\r\n"
            f"Subject: {self.subject}\r\nMessage-ID: <{self.header}@example.com>\r\nX-Note: {self.header}\r\n"
            "MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n"
            f"--b\r\n\r\n{self.body}\r\n--b\r\nContent-Type: application/pdf\r\n"
            f"Content-Disposition: attachment; filename={self.file_name}.pdf\r\n\r\n{self.attachment}\r\n--b--\r\n"
        ).encode()


@pytest.mark.covers("edge:I5")
async def test_no_log_holds_content_addresses_or_secrets(launch: Launch) -> None:
    server = await launch(extra={"POSTROOM_LOG_LEVEL": "debug"})
    canaries = Canaries.hatch()
    await _over_smtp(server, canaries)
    await _over_imap(server, canaries)
    await _over_rest(server, canaries)
    # A delivery that meets an outage, which is told of at length.
    server.kill_postmaster()
    await deliver_in_the_end(server, canaries.letter(server.deployment.boxes[1].address))
    assert await copies(server, f"{canaries.header}@example.com") >= 2
    assert await server.terminate() == 0, server.tail()
    logs = await asyncio.to_thread(_logs, server)
    assert "message_stored" in logs
    deployment = server.deployment
    secret = {
        *deployment.api_keys,
        *(box.secret for box in deployment.boxes),
        *(box.address for box in deployment.boxes),
    }
    for word in (*canaries.all, *secret):
        assert word not in logs, next(line for line in logs.splitlines() if word in line)


def _logs(server: Server) -> str:
    """The server's log, and every other one below the data directory."""
    others = [path for path in server.deployment.data_dir.rglob("*") if path.is_file() and ".log" in path.name]
    assert others, "the database has a log"
    return "\n".join(path.read_text("utf-8", "replace") for path in (server.log, *others))


async def _over_smtp(server: Server, canaries: Canaries) -> None:
    box = server.deployment.boxes[0]
    assert (await deliver(server, canaries.letter(box.address))).code == 250
    async with Smtp(server.deployment.ports["smtp"]) as client:
        for command, code in (
            (f"EHLO {canaries.helo}.example", 250),
            (f"VRFY {canaries.stranger}@agents.example", 252),
            (f"MAIL FROM:<{canaries.sender}@example.com>", 250),
            (f"RCPT TO:<{canaries.stranger}@agents.example>", 550),
            (f"RCPT TO:<{canaries.stranger}@elsewhere.invalid>", 550),
            (f"RCPT TO:<{canaries.stranger} and more>", 501),
            (f"RCPT TO:<{box.address}>", 250),
            ("DATA", 354),
            (f"Subject: {canaries.subject}\r\n\r\n{canaries.body} and a bare LF\n.\r\n.", 554),
        ):
            await client.send(f"{command}\r\n".encode())
            answer = await client.reply()
            assert answer[0] == code, (command.split()[0], answer)


async def _over_imap(server: Server, canaries: Canaries) -> None:
    person = server.deployment.boxes[server.deployment.people[0]]
    for user, password in ((person.address, canaries.password), (canaries.stranger, canaries.password)):
        async with Imap(server.deployment.ports["imap"]) as client:
            with pytest.raises(Lost, match="login"):
                await client.login(user, password)
    async with Imap(server.deployment.ports["imap"]) as client:
        await client.login(person.address, person.secret)
        for text, literal in (
            ("APPEND INBOX", canaries.letter(person.address)),
            (f"CREATE {canaries.folder}", None),
            ("SELECT INBOX", None),
            (f"STORE 1 +FLAGS ({canaries.flag})", None),
            (f"SEARCH SUBJECT {canaries.subject}", None),
            (f"COPY 1 {canaries.folder}", None),
            ("FETCH 1 (ENVELOPE BODYSTRUCTURE BODY[])", None),
        ):
            assert (await client.command(text, literal)).status == "OK", text.split()[0]
        for text in (f"SELECT {canaries.stranger}", f"{canaries.stranger} {canaries.body}", f"FETCH {canaries.body}"):
            assert (await client.command(text)).status in ("NO", "BAD")


async def _over_rest(server: Server, canaries: Canaries) -> None:
    box, port = server.deployment.boxes[0], server.deployment.ports["http"]
    path = f"/v1/identities/{box.identity_id}/messages"
    async with Http(port, canaries.key) as client:
        assert (await client.request("GET", path))[0] == 401
    # The first key of the deployment reads and writes everywhere in its tenant.
    async with Http(port, server.deployment.api_keys[0]) as client:
        status, page = await client.request("GET", f"{path}?limit=1")
        assert (status, page["data"][0]["subject"]) == (200, canaries.subject)
        message = f"{path}/{page['data'][0]['id']}"
        assert (await client.request("PATCH", message, {"labels_add": [canaries.flag]}))[0] == 200
        for wrong in ({canaries.flag: canaries.body}, [canaries.body], {"labels_add": canaries.body}):
            assert (await client.request("PATCH", message, wrong))[0] == 400
        assert (await client.request("GET", f"{path}/{canaries.stranger}"))[0] == 404
        assert (await client.request("GET", f"{path}?cursor={canaries.body}"))[0] == 400
        attachment = page["data"][0]["attachments"][0]["id"]
        assert (await client.request("GET", f"{message}/attachments/{attachment}"))[0] == 200
        assert (await client.request("GET", f"{message}/raw"))[0] == 200
        wait = f"/v1/identities/{box.identity_id}/wait?timeout=1&subject_contains={canaries.body}"
        assert (await client.request("GET", wait))[0] == 200
        new = {"username": f"agent-{random.randrange(10**6)}", "display_name": canaries.display_name}
        assert (await client.request("POST", f"/v1/tenants/{box.tenant_id}/identities", new))[0] == 201
