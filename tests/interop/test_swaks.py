"""swaks, the mail operators' probe, against submission and the MX listener."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.interop.exim import Exim
from tests.interop.office import ADA, DOMAIN, PASSWORD, SMTPS_PORT, SUBMISSION_PORT, Office, arrived
from tests.interop.place import PLACE, SMTP_PORT, Missing, our_address, skip_or_fail, unpacked

pytestmark = pytest.mark.asyncio(loop_scope="module")

REFUSED_AT_AUTH, REFUSED_AT_MAIL, REFUSED_AT_RCPT = 28, 23, 24
"""Exit statuses."""
SIGN_IN = ("--auth-user", ADA, "--auth-password", PASSWORD)


@pytest.fixture
def swaks() -> list[str]:
    """The beginning of its command."""
    try:
        (program,) = unpacked("swaks", "usr/bin/swaks")
        if shutil.which("perl") is None:
            raise Missing("swaks wants perl, which is not installed")
    except Missing as error:
        skip_or_fail(error)
    modules: list[Path] = [*PLACE.glob("usr/lib/*/perl5/*"), PLACE / "usr/share/perl5"]
    return ["perl", *(f"-I{path}" for path in modules), str(program), "--timeout", "20", "--helo", "client.example"]


async def probed(swaks: list[str], port: int, *options: str) -> tuple[int, str]:
    """Exit status and the transcript."""
    process = await asyncio.create_subprocess_exec(
        *(*swaks, "--server", our_address(), "--port", str(port), *options),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, output.decode("utf-8", "replace")


@pytest.mark.covers("mail-server:A1", "RFC 6409 §4.3", "RFC 4954 §4", "RFC 8314 §3.3")
@pytest.mark.parametrize(
    ("name", "port", "options"),
    [
        ("starttls-plain", SUBMISSION_PORT, ("--tls", "--auth", "PLAIN")),
        ("starttls-login", SUBMISSION_PORT, ("--tls", "--auth", "LOGIN")),
        ("implicit-tls", SMTPS_PORT, ("--tls-on-connect", "--auth", "PLAIN")),
        ("pipelined", SUBMISSION_PORT, ("--tls", "--auth", "PLAIN", "--pipeline")),
        ("at-the-mx", SMTP_PORT, ("--tls", "--auth", "PLAIN")),
    ],
)
async def test_submission(
    office: Office, exim: Exim, swaks: list[str], name: str, port: int, options: tuple[str, ...]
) -> None:
    office.leads_to(exim.domain, (exim.host, exim.address))
    exim.answer({})
    message_id = f"{name}@{DOMAIN}"
    recipients = f"anna@{exim.domain},bob@{exim.domain}"
    what = ("--h-From", f"Ada <{ADA}>", "--header", f"Message-Id: <{message_id}>", "--body", f".\n..\nFrom {name}\n")
    code, transcript = await probed(
        swaks, port, "--from", ADA, "--to", recipients, *SIGN_IN, *what, *options, "--attach", "@/etc/hostname"
    )
    assert code == 0, transcript
    assert await office.is_signed(await arrived(exim, message_id))
    for recipient in recipients.split(","):
        await office.row(message_id, recipient, status="delivered")


@pytest.mark.covers("RFC 6409 §4.3", "mail-server:A1", "decisions:D1")
@pytest.mark.parametrize(
    ("options", "code", "reply"),
    [
        (("--tls", "--auth", "PLAIN", "--auth-user", ADA, "--auth-password", "another"), REFUSED_AT_AUTH, "535 5.7.8"),
        (("--tls",), REFUSED_AT_MAIL, "530 5.7.0"),
        (("--tls", "--auth", "PLAIN", *SIGN_IN, "--from", "eve@elsewhere.example"), REFUSED_AT_MAIL, "550 5.7.1"),
        (("--auth", "CRAM-MD5", *SIGN_IN), REFUSED_AT_AUTH, "AUTH"),
    ],
)
async def test_submission_refused(
    office: Office, swaks: list[str], options: tuple[str, ...], code: int, reply: str
) -> None:
    sender = () if "--from" in options else ("--from", ADA)
    found, transcript = await probed(swaks, SUBMISSION_PORT, *sender, "--to", "anna@example.com", *options)
    assert found == code, transcript
    assert reply in transcript


@pytest.mark.covers("mail-server:A9", "RFC 5321 §3.3")
async def test_the_mx_listener(office: Office, swaks: list[str]) -> None:
    olga = ("--from", "olga@example.com", "--tls", "--h-Subject", "By swaks")
    code, transcript = await probed(swaks, SMTP_PORT, *olga, "--to", ADA, "--pipeline", "--body", "Hello\n.\n")
    assert code == 0, transcript
    assert b"\r\nHello\r\n.\r\n" in await office.received(b"Subject: By swaks")
    code, transcript = await probed(swaks, SMTP_PORT, *olga, "--to", f"nobody@{DOMAIN}")
    assert (code, "550 5.1.1" in transcript) == (REFUSED_AT_RCPT, True), transcript
    code, transcript = await probed(swaks, SMTP_PORT, *olga, "--to", "anna@example.com")
    assert (code, "550 5.7.1" in transcript) == (REFUSED_AT_RCPT, True), transcript
