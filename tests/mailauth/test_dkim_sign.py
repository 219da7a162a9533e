"""DKIM signatures of ours: which fields, their form, both line ends, refusals."""

import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.mailauth.canonical import Canonicalisation, parse_fields, to_wire
from postroom.mailauth.dkim_key import PrivateKey
from postroom.mailauth.dkim_result import Status
from postroom.mailauth.dkim_sign import (
    SIGNED_ALWAYS,
    SIGNED_IF_PRESENT,
    Signer,
    SigningError,
    SigningPolicy,
    sign,
    sign_message,
)
from postroom.mailauth.tags import parse_tags
from tests.mailauth.dkim_tools import MAIL, NOW, ed_key, one, rsa_key, run, signer

BOTH = [signer(rsa_key()), signer(ed_key())]


def tags_of(field: bytes) -> dict[str, bytes]:
    (parsed,) = parse_fields(field)
    assert parsed.name == "dkim-signature"
    return {name: tag.compact for name, tag in parse_tags(parsed.value).items()}


@pytest.mark.covers("mail-server:C8", "decisions:D2", "RFC 6376 §3.5")
def test_what_a_signature_says() -> None:
    tags = tags_of(sign(MAIL, [signer(rsa_key())], signed_at=NOW, expires_at=NOW + 60))
    assert list(tags) == ["v", "a", "c", "d", "s", "t", "x", "h", "bh", "b"]
    assert tags["v"] == b"1"
    assert tags["a"] == b"rsa-sha256"
    assert tags["c"] == b"relaxed/relaxed"
    assert tags["d"] == b"example.com"
    assert tags["s"] == b"rsa"
    assert tags["t"] == b"%d" % NOW
    assert tags["x"] == b"%d" % (NOW + 60)
    assert "x" not in tags_of(sign(MAIL, [signer(ed_key())], signed_at=NOW))


@pytest.mark.covers("mail-server:C8", "RFC 6376 §5.4")
def test_fields_are_named_once_more_than_there_are() -> None:
    raw = b"Cc: a@example.net\r\nCC: b@example.net\r\n" + MAIL
    named = tags_of(sign(raw, [signer(ed_key())], signed_at=NOW))["h"].decode().lower().split(":")
    present = [field.name for field in parse_fields(raw[: raw.index(b"\r\n\r\n") + 4])]
    for name in SIGNED_ALWAYS:
        assert named.count(name.lower()) == present.count(name.lower()) + 1
    assert named.count("cc") == 3
    assert "received" not in named


@pytest.mark.covers("decisions:D2")
def test_the_ways_to_unsubscribe_are_signed_when_there_are_any() -> None:
    assert SIGNED_IF_PRESENT == ("List-Unsubscribe", "List-Unsubscribe-Post")
    raw = b"List-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n" + MAIL
    named = tags_of(sign(raw, [signer(ed_key())], signed_at=NOW))["h"].split(b":")
    assert named[-2:] == [b"List-Unsubscribe", b"List-Unsubscribe-Post"]
    named = tags_of(sign(b"From: a@example.com\r\n\r\n", [signer(ed_key())], signed_at=NOW))["h"].split(b":")
    assert not any(name.startswith(b"List-") for name in named)


@pytest.mark.covers("mail-server:C8", "RFC 8463 §3")
def test_two_signatures_on_one_message() -> None:
    results = run(sign_message(MAIL, BOTH, signed_at=NOW))
    assert [(r.status, r.algorithm, r.key_bits) for r in results] == [
        (Status.PASS, "rsa-sha256", 2048),
        (Status.PASS, "ed25519-sha256", 256),
    ]
    assert run(MAIL) == ()
    assert sign(MAIL, [], signed_at=NOW) == b""


@pytest.mark.covers("mail-server:C8")
@pytest.mark.parametrize("header", Canonicalisation)
@pytest.mark.parametrize("body", Canonicalisation)
def test_every_pair_of_canonical_forms(header: Canonicalisation, body: Canonicalisation) -> None:
    signed = sign_message(MAIL, BOTH, signed_at=NOW, policy=SigningPolicy(header=header, body=body))
    assert f"c={header}/{body};".encode() in signed
    assert [result.status for result in run(signed)] == [Status.PASS, Status.PASS]


LABEL = st.from_regex(r"[a-z0-9](?:[a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)


@pytest.mark.covers("RFC 5322 §2.1.1")
@settings(deadline=None)
@given(
    st.lists(LABEL, min_size=2, max_size=7).map(".".join),
    LABEL,
    st.lists(st.sampled_from(["Subject", "Cc", "References", "X-Other"]), max_size=20),
    st.sampled_from([rsa_key, ed_key]),
)
def test_lines_are_short(domain: str, selector: str, names: list[str], make: Callable[[], PrivateKey]) -> None:
    raw = b"From: a@example.com\r\n" + "".join(f"{name}: x\r\n" for name in names).encode() + b"\r\nhello\r\n"
    field = sign(raw, [Signer(domain, selector, make())], signed_at=NOW)
    assert field.endswith(b"\r\n")
    lines = field[:-2].split(b"\r\n")
    for line in lines:
        # Nothing may be folded inside of a name.
        assert len(line) <= 78 or line == f" d={domain};".encode()
    assert all(line.startswith(b" ") and line.strip() for line in lines[1:])
    assert tags_of(field)["d"] == domain.encode()


@pytest.mark.covers("RFC 6376 §5.3", "mail-server:C8")
@settings(deadline=None)
@given(
    st.lists(st.sampled_from([b"\r\n", b"\n", b"\r", b"a", b" ", b"\t", b"b c", b"\xff", b".\r\n"]), max_size=20),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.sampled_from(list(Canonicalisation)),
)
def test_any_line_ends(body: list[bytes], end: bytes, how: Canonicalisation) -> None:
    raw = end.join([b"From: a@example.com", b"Subject: a", b" b", b"", b"".join(body)])
    policy = SigningPolicy(header=how, body=how)
    signed = sign_message(raw, [signer(ed_key())], signed_at=NOW, policy=policy)
    assert signed == to_wire(signed)
    assert one(signed).status is Status.PASS
    assert sign(raw, [signer(ed_key())], signed_at=NOW, policy=policy) == signed[: -len(to_wire(raw))]
    # A store that keeps lines apart by LF alone changes nothing.
    assert one(signed.replace(b"\r\n", b"\n")).status is Status.PASS


@pytest.mark.covers("RFC 6376 §3.4.3", "RFC 6376 §3.4.4")
@pytest.mark.parametrize("rest", [b"", b"\r\n", b"\r\n\r\n", b"\r\n\r\n\r\n", b"\r\nno end of line", b"\r\n \r\n"])
@pytest.mark.parametrize("how", Canonicalisation)
def test_short_bodies(rest: bytes, how: Canonicalisation) -> None:
    policy = SigningPolicy(header=how, body=how)
    signed = sign_message(b"From: a@example.com\r\n" + rest, [signer(ed_key())], signed_at=NOW, policy=policy)
    assert one(signed).status is Status.PASS


@pytest.mark.parametrize(
    "raw",
    [b"", b"\r\nFrom: a@example.com\r\n", b"To: a@example.com\r\n\r\n", b"From: a\r\nno field\r\n\r\n",
     b"From a@example.com Mon\r\nFrom: a\r\n\r\n", b"From: a\r\n" + b"Cc: a\r\n" * 3000 + b"\r\n"],
)  # fmt: skip
@pytest.mark.covers("mail-server:C8", "RFC 6376 §3.8")
def test_messages_that_are_not_signed(raw: bytes) -> None:
    with pytest.raises(SigningError):
        sign(raw, [signer(ed_key())], signed_at=NOW)


@pytest.mark.parametrize("times", [(-1, None), (NOW, NOW), (NOW, NOW - 1)])
def test_times_that_make_no_sense(times: tuple[int, int | None]) -> None:
    with pytest.raises(SigningError):
        sign(MAIL, [signer(ed_key())], signed_at=times[0], expires_at=times[1])


@pytest.mark.parametrize(
    ("domain", "selector"),
    [("", "s"), ("com", "s"), ("example.com", ""), ("example.com.", "s"), ("a..com", "s"), ("exa mple.com", "s"),
     ("example.com; l=0", "s"), ("example.com", "s\r\nX: y"), ("-a.com", "s"), ("a" * 64 + ".com", "s"),
     ("a." * 126 + "a", "s")],
)  # fmt: skip
@pytest.mark.covers("mail-server:C8")
def test_names_that_are_none(domain: str, selector: str) -> None:
    with pytest.raises(SigningError):
        Signer(domain, selector, ed_key())


@pytest.mark.covers("RFC 8616 §4")
def test_names_are_written_in_ascii() -> None:
    made = Signer("MÜNCHEN.example", "PM1", ed_key())
    assert (made.domain, made.selector) == ("xn--mnchen-3ya.example", "pm1")


@pytest.mark.covers("mail-server:C8", "RFC 6376 §5.4")
@pytest.mark.parametrize(
    ("always", "if_present"),
    [(("To",), ()), (("To",), ("From",)), (("From", "from"), ()), (("From",), ("FROM",)),
     (("From", "DKIM-Signature"), ()), (("From", "a;b"), ()), (("From", "a:b"), ()), (("From", ""), ()),
     (("From", "a\r\nb"), ()), (("From", "ä"), ())],
)  # fmt: skip
def test_lists_of_fields_that_are_refused(always: tuple[str, ...], if_present: tuple[str, ...]) -> None:
    with pytest.raises(SigningError):
        SigningPolicy(always=always, if_present=if_present)


@pytest.mark.covers("mail-server:C8")
def test_the_key_is_not_in_what_is_shown() -> None:
    assert re.search(r"PrivateKey rsa-sha256 2048 bits", repr(signer(rsa_key())))
