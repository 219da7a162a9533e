"""Re-encoding for peers without 8BITMIME: the content stays, the octets become ASCII."""

import email
import email.policy
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.mail import mime, transfer
from postroom.mail.compose import DowngradeError, Obstacle, downgrade_to_7bit, is_7bit

HEAD = b"From: ann@example.com\r\nTo: bob@example.com\r\nMessage-ID: <1@example.com>\r\n"


def leaf(content_type: str, content: bytes, encoding: str = "8bit") -> bytes:
    return f"Content-Type: {content_type}\r\nContent-Transfer-Encoding: {encoding}\r\n\r\n".encode() + content


def multi(subtype: str, boundary: str, *parts: bytes, encoding: str = "8bit") -> bytes:
    inner = b"".join(b"--" + boundary.encode() + b"\r\n" + part + b"\r\n" for part in parts)
    head = f'Content-Type: multipart/{subtype}; boundary="{boundary}"\r\nContent-Transfer-Encoding: {encoding}\r\n\r\n'
    return head.encode() + inner + f"--{boundary}--\r\n".encode()


def contents(raw: bytes) -> list[tuple[str, bytes]]:
    message = mime.parse(raw)
    return [(p.content_type, transfer.decoded(raw, p)) for _, p in mime.walk(message.root) if not p.children]


def check(raw: bytes) -> bytes:
    made = downgrade_to_7bit(raw)
    assert is_7bit(made)
    assert not mime.parse(made).degraded
    assert [name for name, _ in contents(made)] == [name for name, _ in contents(raw)]
    for (_, new), (_, old) in zip(contents(made), contents(raw), strict=True):
        assert new.removesuffix(b"\r\n") == old.removesuffix(b"\r\n")
    assert not email.message_from_bytes(made, policy=email.policy.default).defects
    assert b"8bit" not in made
    assert b"binary" not in made.lower()
    assert downgrade_to_7bit(made) is made
    return made


def test_what_needs_nothing_stays_itself() -> None:
    raw = HEAD + b"\r\nplain\r\n"
    assert downgrade_to_7bit(raw) is raw


@pytest.mark.covers("mail-server:C5", "RFC 6152 §3")
def test_text() -> None:
    made = check(HEAD + b"MIME-Version: 1.0\r\n" + leaf("text/plain; charset=utf-8", "Grüße\r\n".encode()))
    assert b"\r\nContent-Transfer-Encoding: quoted-printable\r\n" in b"\r\n" + made
    assert made.endswith(b"\r\n\r\nGr=C3=BC=C3=9Fe\r\n")
    assert made.count(b"Content-Transfer-Encoding") == 1


def test_unlabelled_text_gets_what_readers_need() -> None:
    made = check(HEAD + "\r\nGrüße\r\n".encode())
    assert made.count(b"MIME-Version: 1.0\r\n") == made.count(b"Content-Transfer-Encoding: quoted-printable\r\n") == 1


@pytest.mark.covers("mail-server:C5")
def test_nested_parts() -> None:
    inner = HEAD + multi("mixed", "in", leaf("text/html; charset=utf-8", "<p>ä</p>".encode()), leaf("text/plain", b"a"))
    raw = HEAD + multi(
        "mixed", "out",
        leaf("text/plain; charset=utf-8", "漢字 ".encode() * 50),
        leaf("message/rfc822", inner),
        leaf("application/octet-stream", bytes(range(256)) * 9, "binary"),
        leaf("image/png", b"iVBORw0=", "base64"),
        b"\r\nno header \xe4",
        b"no blank line \xe4",
    )  # fmt: skip
    made = check(raw)
    part = mime.parse(made).root.children[1]
    assert (part.content_type, part.encoding) == ("message/rfc822", "7bit")
    assert b"iVBORw0=" in made


def test_long_lines_are_re_encoded() -> None:
    check(HEAD + b"MIME-Version: 1.0\r\n" + leaf("text/plain", b"x" * 5000 + b"\r\n", "7bit"))


def test_wrongly_labelled_content_is_mended() -> None:
    made = check(HEAD + leaf("text/plain; charset=utf-8", b"gr=C3=BC\xc3\x9f\r\n", "quoted-printable"))
    assert b"gr=C3=BC=C3=9F" in made
    made = downgrade_to_7bit(HEAD + leaf("application/x", b"QUJD\xff", "base64"))
    assert b"QUJD" in made


def test_preamble_and_epilogue_lose_what_means_nothing() -> None:
    raw = (
        HEAD + multi("mixed", "b", leaf("text/plain", b"x")).replace(b"\r\n\r\n", b"\r\n\r\npre \xe4\r\n", 1) + b"\xe4"
    )
    made = downgrade_to_7bit(raw)
    assert b"pre ?\r\n" in made
    assert is_7bit(made)


def test_header_text() -> None:
    head = 'From: Jörg "J" <j@example.com>\r\nSubject: Grüße\r\nX-Note: ok ä ok\r\n'.encode()
    part = leaf('image/png; name="ü.png"', b"\xff", "binary").replace(
        b"Content-T", 'Content-Disposition: inline; filename="ü 1.png"\r\nContent-T'.encode(), 1
    )
    made = check(head + multi("mixed", "b", part))
    message = mime.parse(made)
    assert message.subject == "Grüße"
    assert message.headers.get("x-note") == "ok ä ok"
    assert [item.address for item in message.from_] == ["j@example.com"]
    assert message.from_[0].name.startswith("Jörg")
    assert message.root.children[0].params["name"] == "ü.png"
    assert message.root.children[0].disposition_params["filename"] == "ü 1.png"


@pytest.mark.parametrize(
    ("raw", "obstacle"),
    [
        (HEAD + multi("signed", "s", leaf("text/plain", b"\xe4"), leaf("text/x-sig", b"x")), Obstacle.SIGNED),
        (
            HEAD + multi("mixed", "m", multi("signed", "s", leaf("text/plain", b"\xe4")), leaf("text/plain", b"x")),
            Obstacle.SIGNED,
        ),
        ("From: jörg@example.com\r\n\r\nx\r\n".encode(), Obstacle.ADDRESS),
        (HEAD + b"Content-Type: multipart/mixed; boundary=b\r\n\r\n\xe4--b\r\n", None),
        (HEAD + b"not a field \xe4\r\nSubject: x\r\n\r\n", Obstacle.STRUCTURE),
        (HEAD + leaf("message/partial; id=1", b"\xe4"), Obstacle.STRUCTURE),
    ],
)
def test_what_has_no_seven_bit_form(raw: bytes, obstacle: Obstacle | None) -> None:
    if obstacle is None:
        assert is_7bit(downgrade_to_7bit(raw))
        return
    with pytest.raises(DowngradeError) as caught:
        downgrade_to_7bit(raw)
    assert caught.value.obstacle is obstacle
    # It is raised in another process, too.
    assert pickle.loads(pickle.dumps(caught.value)).obstacle is obstacle


def test_signed_parts_stay_beside_others() -> None:
    signed = multi("signed", "s", leaf("text/plain", b"x", "7bit"), leaf("application/pgp-signature", b"y", "7bit"))
    raw = HEAD + multi("mixed", "m", signed, leaf("text/plain; charset=utf-8", "ä".encode()))
    made = downgrade_to_7bit(raw)
    assert is_7bit(made)
    assert signed.partition(b"\r\n\r\n")[2] in made


LINES = st.sampled_from(
    [b"--b\r\n", b"--b--\r\n", b"Content-Type: multipart/mixed; boundary=b\r\n", b"Content-Type: message/rfc822\r\n",
     b"Content-Transfer-Encoding: 8bit\r\n", b"Content-Transfer-Encoding: base64\r\n", b"\r\n", b"\n",
     b"\xc3\xa4 x\r\n",
     b"Subject: \xe4\r\n", b"text\r\n", b"\x00", b" folded\r\n", b"To: \xe4 <a@example.com>\r\n", b"From: x@\xe4\r\n"]
)  # fmt: skip


@settings(max_examples=300)
@given(st.lists(LINES | st.binary(max_size=20), max_size=30))
def test_any_octets(lines: list[bytes]) -> None:
    raw = b"".join(lines)
    try:
        made = downgrade_to_7bit(raw)
    except DowngradeError:
        return
    assert made.isascii()
    assert b"\x00" not in made
