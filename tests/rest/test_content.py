"""Bytes: raw messages and attachments come out as they went in."""

from __future__ import annotations

import base64
import email
import email.policy
import os
from email.message import EmailMessage
from typing import Any

import pytest

from postroom.accounts import Level
from tests.mail.containers import STRING8, UNICODE, Packed, Prop, embedded, tnef
from tests.rest.world import TRACE, World, simple_mail


def mail_with(*attachments: tuple[str, bytes, str]) -> bytes:
    message = EmailMessage(policy=email.policy.SMTP)
    message["From"], message["To"], message["Subject"] = "anna@example.com", "box@agents.example", "Files"
    message.set_content("See the files.")
    for name, data, kind in attachments:
        main, _, sub = kind.partition("/")
        message.add_attachment(data, maintype=main, subtype=sub, filename=name)
    return message.as_bytes()


async def attachments(world: World, message_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await world.get(world.at(f"/messages/{message_id}"))).json()["attachments"]
    return found


@pytest.mark.covers("mail-server:E2")
@pytest.mark.parametrize(
    "original",
    [
        simple_mail(),
        b"From: a@example.com\n\nbare line feeds\n",
        b"From: a@example.com\r\n\r\n" + bytes(range(256)) * 3,
        b"From: a@example.com\r\nSubject: no body",
        b"\r\n\r\n",
        b"From: a@example.com\r\n\r\n" + os.urandom(1_500_000),
    ],
    ids=["plain", "lf", "binary", "no-body", "empty", "large"],
)
async def test_raw_is_byte_identical(world: World, original: bytes) -> None:
    one = await world.deliver(original)
    response = await world.get(world.at(f"/messages/{one.message_id}/raw"))
    assert response.status_code == 200
    assert response.content == TRACE + original
    assert response.headers["content-type"] == "message/rfc822"
    assert response.headers["content-length"] == str(len(TRACE + original))
    assert response.headers["content-disposition"].startswith("attachment")
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in response.headers["content-security-policy"]


@pytest.mark.covers("edge:B10")
async def test_attachments_are_byte_identical(world: World) -> None:
    files = [
        ("a.bin", bytes(range(256)) * 50, "application/octet-stream"),
        ("empty.txt", b"", "text/plain"),
        ("large.bin", os.urandom(400_000), "application/pdf"),
        ("Grüße – ß.pdf", b"%PDF-1.4 umlaut", "application/pdf"),
        ('quo"te\\.html', b"<script>alert(1)</script>", "text/html"),
    ]
    one = await world.deliver(mail_with(*files))
    listed = await attachments(world, one.message_id)
    assert len(listed) == len(files)
    for shown, (name, data, kind) in zip(listed, files, strict=True):
        response = await world.get(world.at(f"/messages/{one.message_id}/attachments/{shown['id']}"))
        assert response.status_code == 200
        assert response.content == data, name
        assert response.headers["content-type"].partition(";")[0] == kind
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["content-security-policy"].startswith("sandbox")
        assert response.headers["cache-control"] == "no-store"
        disposition = email.message_from_string(
            f"Content-Disposition: {response.headers['content-disposition']}\n\n", policy=email.policy.default
        )
        assert disposition["content-disposition"].content_disposition == "attachment"
        if name.isascii() and '"' not in name:
            assert disposition.get_filename() == name
            assert shown["size"] == len(data)


async def test_encodings_other_than_base64(world: World) -> None:
    parts = [
        ("7bit", b"just text\r\n"),
        ("8bit", "grüße\r\n".encode()),
        ("quoted-printable", b"gr=C3=BC=C3=9Fe=\r\n!"),
        ("base64", base64.encodebytes(b"x" * 100).replace(b"\n", b"\r\n")),
        ("x-unknown", b"as it stands"),
    ]
    decoded = [b"just text\r\n", "grüße\r\n".encode(), "grüße!".encode(), b"x" * 100, b"as it stands"]
    body = b"".join(
        b"--b\r\nContent-Type: application/x-thing\r\nContent-Disposition: attachment; filename=f.bin\r\n"
        b"Content-Transfer-Encoding: " + encoding.encode() + b"\r\n\r\n" + data + b"\r\n"
        for encoding, data in parts
    )
    mail = b"From: a@example.com\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n" + body + b"--b--\r\n"
    one = await world.deliver(mail)
    listed = await attachments(world, one.message_id)
    found = [
        (await world.get(world.at(f"/messages/{one.message_id}/attachments/{shown['id']}"))).content for shown in listed
    ]
    assert found == decoded


async def test_a_forwarded_message(world: World) -> None:
    inner = simple_mail("Inner", "inner text")
    mail = (
        b"From: a@example.com\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\nsee\r\n"
        b"--b\r\nContent-Type: message/rfc822\r\n\r\n" + inner + b"\r\n--b--\r\n"
    )
    one = await world.deliver(mail)
    (shown,) = await attachments(world, one.message_id)
    response = await world.get(world.at(f"/messages/{one.message_id}/attachments/{shown['id']}"))
    assert response.content == inner
    assert response.headers["content-type"] == "message/rfc822"


async def test_declared_types_that_would_break_a_header(world: World) -> None:
    mail = (
        b"From: a@example.com\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n"
        b'--b\r\nContent-Type: text/plain; charset="utf-8\r\n\tX: y"\r\n'
        b"Content-Disposition: attachment; filename=a\r\n\r\nx\r\n"
        b"--b\r\nContent-Type: we=ird/ty,pe\r\n"
        b"Content-Disposition: attachment; filename*=utf-8''%0D%0AX%3A%20y\r\n\r\nx\r\n"
        b"--b--\r\n"
    )
    one = await world.deliver(mail)
    for shown in await attachments(world, one.message_id):
        response = await world.get(world.at(f"/messages/{one.message_id}/attachments/{shown['id']}"))
        assert response.status_code == 200
        assert "x" not in response.headers
        assert "\n" not in response.headers["content-disposition"]


async def test_an_attachment_of_another_message(world: World) -> None:
    one = await world.deliver(mail_with(("a.bin", b"1", "application/octet-stream")))
    two = await world.deliver(simple_mail())
    (shown,) = await attachments(world, one.message_id)
    response = await world.get(world.at(f"/messages/{two.message_id}/attachments/{shown['id']}"))
    assert (response.status_code, response.json()["error"]["code"]) == (404, "attachment_not_found")


async def test_bytes_have_permissions_of_their_own(world: World) -> None:
    one = await world.deliver(mail_with(("a.bin", b"1", "application/octet-stream")))
    (shown,) = await attachments(world, one.message_id)
    path = world.at(f"/messages/{one.message_id}/attachments/{shown['id']}")
    reader = await world.new_key(Level.IDENTITY, ["messages:read"], identity=world.box)
    taker = await world.new_key(Level.IDENTITY, ["attachments:read"], identity=world.box)
    assert (await world.get(path, reader)).status_code == 403
    assert (await world.get(path, taker)).status_code == 200
    assert (await world.get(world.at(f"/messages/{one.message_id}/raw"), taker)).status_code == 403


def winmail(*files: Packed) -> bytes:
    """Text, and `winmail.dat` with these files."""
    return mail_with(("winmail.dat", tnef(files), "application/ms-tnef"))


@pytest.mark.covers("edge:B6", "edge:B10")
async def test_what_is_packed_in_winmail_dat_is_attached(world: World) -> None:
    """Small ones are taken out in a thread, large ones in another process."""
    program = b"MZ" + bytes(100)
    for large in (b"\x89PNG\r\n\x1a\n" + os.urandom(100), os.urandom(300_000)):
        picture = Packed("P.PNG", large, [Prop(0x370E, STRING8, "image/png"), Prop(0x3707, UNICODE, "Grüße.png")])
        odd = Packed("odd", b"x", [Prop(0x370E, STRING8, "te^xt/ht|ml")])
        letter = embedded(tnef([Packed("b.txt", b"inner")], [Prop(0x0037, UNICODE, "Notes")]))
        one = await world.deliver(winmail(picture, Packed("run.exe", program), odd, letter))
        listed = await attachments(world, one.message_id)
        assert [(shown["filename"], shown["content_type"], shown["risk"]) for shown in listed] == [
            ("Grüße.png", "image/png", None),
            ("run.exe", "application/octet-stream", "executable"),
            ("odd", "application/octet-stream", None),
            ("Notes.eml", "message/rfc822", None),
        ]
        responses = [
            await world.get(world.at(f"/messages/{one.message_id}/attachments/{shown['id']}")) for shown in listed
        ]
        for response, shown in zip(responses, listed, strict=True):
            assert response.status_code == 200
            assert len(response.content) == shown["size"]
            assert response.headers["content-type"] == shown["content_type"]
            assert response.headers["content-disposition"].startswith("attachment; filename=")
            assert response.headers["x-content-type-options"] == "nosniff"
            assert response.headers["content-security-policy"].startswith("sandbox")
        assert [response.content for response in responses[:3]] == [large, program, b"x"]
        message = email.message_from_bytes(responses[3].content, policy=email.policy.default)
        assert message["subject"] == "Notes"
        assert [part.get_payload(decode=True) for part in message.iter_attachments()] == [b"inner"]


@pytest.mark.covers("edge:B6")
async def test_a_packed_file_that_is_not_there_is_not_found(world: World) -> None:
    one = await world.deliver(winmail(Packed("a.txt", b"Hello")))
    (shown,) = await attachments(world, one.message_id)
    path = world.at(f"/messages/{one.message_id}/attachments/{shown['id']}")
    assert (await world.get(path)).content == b"Hello"
    async with world.db.acquire() as conn:
        await conn.execute("UPDATE attachments SET part_path = part_path || '7' WHERE public_id = $1", shown["id"])
    response = await world.get(path)
    assert (response.status_code, response.json()["error"]["code"]) == (404, "attachment_not_found")
