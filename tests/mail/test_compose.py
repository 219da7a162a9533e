"""Drafts to octets: fields, structure, encodings. The standard library's reader is the peer beside our own."""

import email
import email.header
import email.message
import email.policy
import re
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from postroom.mail import mime, transfer
from postroom.mail.address import Address
from postroom.mail.body import filename, sanitise_filename
from postroom.mail.compose import (
    Attachment,
    AutoSubmitted,
    Composed,
    ComposeError,
    Draft,
    ListUnsubscribe,
    Reason,
    compose,
)
from postroom.mail.compose.encodings import base64_chunks, base64_size, quoted_printable, shape_of
from postroom.mail.header import unfold

NOW = datetime(2026, 3, 5, 9, 7, 3, tzinfo=timezone(timedelta(hours=-3, minutes=-30)))
ANN = Address("Ann", "ann", "agents.example")
BOB = Address("Bob", "bob", "example.com")
TOKEN = "01j9z3k8v4qw7x2m5n6p8r0t1y"

# Text as it may come from anywhere: emoji, right-to-left, lone surrogates; without controls.
TEXT = st.text(st.characters(exclude_categories=["Cc"], exclude_characters="\u2028\u2029"))
WORDY = st.text(st.sampled_from('ab =?_é漢😀"\\,;<>\t.')) | TEXT


def draft(**changes: object) -> Draft:
    values: dict[str, object] = {"from_": ANN, "date": NOW, "message_id": "m1@agents.example", "to": (BOB,)}
    return Draft(**{**values, **changes})  # type: ignore[arg-type]  # the values are those of the fields


def written(**changes: object) -> bytes:
    return compose(draft(**changes), TOKEN).to_bytes()


def cleaned(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def check_lines(raw: bytes, limit: int = 78) -> None:
    head = raw.partition(b"\r\n\r\n")[0]
    assert re.search(rb"\r(?!\n)|(?<!\r)\n|\x00", raw) is None
    assert all(len(line) <= 998 for line in raw.split(b"\r\n"))
    assert all(len(line) <= limit and line.strip() for line in head.split(b"\r\n"))
    assert all(len(line) <= 76 for line in head.split(b"\r\n") if b"=?utf-8?" in line)


def stdlib(raw: bytes) -> email.message.EmailMessage:
    found = email.message_from_bytes(raw, policy=email.policy.default)
    assert isinstance(found, email.message.EmailMessage)
    return found


def test_plain_message_octet_for_octet() -> None:
    assert written(subject="Hello", text="Hi\nthere") == (
        b"From: Ann <ann@agents.example>\r\nTo: Bob <bob@example.com>\r\nSubject: Hello\r\n"
        b"Date: Thu, 05 Mar 2026 09:07:03 -0330\r\nMessage-ID: <m1@agents.example>\r\nMIME-Version: 1.0\r\n"
        b"Content-Type: text/plain; charset=us-ascii\r\n\r\nHi\r\nthere\r\n"
    )


@given(WORDY)
@example("Re: Ärger mit 漢字 today")
@example("a" * 300)
@example("x  ")
@example("a" + " " * 90 + "b")
@example("=?utf-8?q?x?=")
@example("\ud83d\ude00 \ud800")
@example("é" + " abc" * 40)
def test_subject_comes_back(subject: str) -> None:
    raw = written(subject=subject, text="x")
    check_lines(raw)
    assert raw.partition(b"\r\n\r\n")[0].isascii()
    assert mime.parse(raw).subject == cleaned(subject)
    value = mime.parse(raw).headers.get_raw("subject")
    assert value is not None
    decoded = str(email.header.make_header(email.header.decode_header(unfold(value).decode())))
    assert decoded.split() == cleaned(subject).split()


@given(WORDY, st.integers(0, 3))
def test_display_names_come_back(name: str, others: int) -> None:
    name = name.replace("\t", "")
    people = [BOB] * others + [Address(name, "x.y+z", "example.org"), BOB]
    raw = written(to=people, text="x")
    check_lines(raw)
    found = mime.parse(raw).to
    assert [item.address for item in found] == [item.address for item in people]
    shown = " ".join(cleaned(name).split())
    if shown[:1] == shown[-1:] == "'" and len(shown) > 2:
        shown = shown[1:-1].strip()  # as some programs write names, which nobody means
    assert found[others].name == shown
    assert [item.addr_spec for item in stdlib(raw)["to"].addresses] == [item.address for item in people]


def test_many_recipients_fold() -> None:
    people = [Address(f"Person Number {n}", f"person{n}", "example.com") for n in range(100)]
    raw = written(to=people, cc=people, text="x")
    check_lines(raw)
    assert len(mime.parse(raw).cc) == 100


@pytest.mark.covers("edge:A3", "RFC 6532")
def test_smtputf8_only_for_a_local_part_that_needs_it() -> None:
    plain = compose(draft(to=(Address("Jörg 😀", "joerg", "bücher.example"),), subject="ä", text="ö"), TOKEN)
    assert not plain.smtputf8
    assert plain.to_bytes().isascii()
    assert b"<joerg@xn--bcher-kva.example>" in plain.to_bytes()
    local = compose(draft(cc=(Address("", "jörg", "example.com"),), text="x"), TOKEN)
    assert local.smtputf8
    assert "Cc: jörg@example.com\r\n".encode() in local.to_bytes()


CONTROLS = st.sampled_from([chr(n) for n in (*range(9), *range(10, 32), 127, 0x85, 0x2028)])


@given(CONTROLS, st.sampled_from(["subject", "name", "local", "domain", "id", "references", "header", "type", "cid",
                                  "url", "in_reply_to", "parameter", "reply_to"]))  # fmt: skip
@example("\n", "subject")
@pytest.mark.covers("security-privacy:A5", "RFC 5322 §2.2")
def test_no_control_gets_into_a_field(control: str, where: str) -> None:
    bad = f"a{control}Bcc: evil@example.com"
    file = Attachment("a.txt", "text/plain", b"x")
    cases: dict[str, dict[str, object]] = {
        "subject": {"subject": bad},
        "name": {"to": (Address(bad, "a", "example.com"),)},
        "local": {"to": (Address("", bad, "example.com"),)},
        "domain": {"to": (Address("", "a", bad),)},
        "id": {"message_id": bad + "@example.com"},
        "references": {"references": (bad,)},
        "in_reply_to": {"in_reply_to": bad},
        "header": {"headers": (("X-Thing", bad),)},
        "type": {"attachments": (Attachment("a", f"text/plain; x={bad}", b""),)},
        "parameter": {"attachments": (Attachment("a", f'text/plain; "x{control}y"=z', b""),)},
        "cid": {"attachments": (Attachment("a", "image/png", b"", inline=True, content_id=bad),)},
        "url": {"list_unsubscribe": ListUnsubscribe("https://example.com/" + control)},
        "reply_to": {"reply_to": (Address(bad, "a", "example.com"),)},
    }
    changes = {"text": "x", "attachments": (file,), **cases[where]}
    with pytest.raises(ComposeError) as caught:
        written(**changes)
    assert "evil" not in str(caught.value)


@given(st.text(max_size=80), st.text(max_size=80))
def test_whatever_is_given_makes_no_field_of_its_own(subject: str, name: str) -> None:
    try:
        raw = written(subject=subject, to=(Address(name, "a", "example.com"),), text="x",
                      attachments=(Attachment(name, "text/plain", b"x"),))  # fmt: skip
    except ComposeError:
        return
    names = [name for name, _ in mime.parse(raw).headers]
    assert names == ["From", "To", "Subject", "Date", "Message-ID", "MIME-Version", "Content-Type"]
    assert [key.lower() for key in stdlib(raw)] == [key.lower() for key in names]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"subject": "x" * 999}, Reason.TOO_LONG),
        ({"message_id": "none"}, Reason.SYNTAX),
        ({"message_id": "a b@c"}, Reason.SYNTAX),
        ({"message_id": "ä@example.com"}, Reason.NOT_ASCII),
        ({"date": datetime(2026, 1, 1)}, Reason.SYNTAX),
        ({"to": (Address("", "", "example.com"),)}, Reason.SYNTAX),
        ({"to": (Address("", "a", "exa mple.com"),)}, Reason.SYNTAX),
        ({"to": (Address("", "a", ""),)}, Reason.SYNTAX),
        ({"to": (Address("", "a" * 300, "example.com"),)}, Reason.TOO_LONG),
        ({"to": (BOB,) * 1001}, Reason.TOO_MANY),
        ({"headers": (("Bcc", "x@example.com"),)}, Reason.RESERVED),
        ({"headers": (("content-Type", "x"),)}, Reason.RESERVED),
        ({"headers": (("X-A", "1"), ("x-a", "2"))}, Reason.DUPLICATE),
        ({"headers": (("X A", "1"),)}, Reason.SYNTAX),
        ({"headers": (("X-A:", "1"),)}, Reason.SYNTAX),
        ({"list_unsubscribe": ListUnsubscribe()}, Reason.MISSING),
        ({"list_unsubscribe": ListUnsubscribe("http://x.example", one_click=True)}, Reason.MISSING),
        ({"list_unsubscribe": ListUnsubscribe("https://x.example/>,<b")}, Reason.SYNTAX),
        ({"attachments": (Attachment("a", "multipart/mixed", b""),)}, Reason.SYNTAX),
        ({"attachments": (Attachment("a", "nothing", b""),)}, Reason.SYNTAX),
        ({"attachments": (Attachment("a", "text/plain", lambda: [b""]),)}, Reason.MISSING),
        ({"hop": -1}, Reason.SYNTAX),
    ],
)
def test_refusals(changes: dict[str, object], reason: Reason) -> None:
    with pytest.raises(ComposeError) as caught:
        written(**{"text": "x", **changes})
    assert caught.value.reason is reason


@pytest.mark.parametrize("boundary", ["", "a b", "a" * 61, "ä", 'a"', "a\r\n"])
def test_boundary_is_a_token(boundary: str) -> None:
    with pytest.raises(ComposeError):
        compose(draft(text="x"), boundary)


@pytest.mark.covers("edge:C7")
def test_no_bcc_is_ever_written() -> None:
    raw = written(to=(), text="x")
    assert b"bcc" not in raw.lower()
    assert b"To: undisclosed-recipients:;\r\n" in raw
    assert mime.parse(raw).to == []
    assert "bcc" not in {name.lower() for name in Draft.__dataclass_fields__}


@pytest.mark.covers("FR-OUT-5", "FR-OUT-7", "FR-OUT-8", "edge:E8")
def test_service_fields() -> None:
    raw = written(
        text="x", reply_to=(Address("Ann", "ann+t03k.9f2mq7xa", "agents.example"),), in_reply_to="p@example.com",
        references=("r1@example.com", "p@example.com"), auto_submitted=AutoSubmitted.REPLIED, hop=3, role_hop=True,
        ai_generated=True, sender=BOB, headers=(("X-Order", "12"), ("Organization", "Ünion")),
        list_unsubscribe=ListUnsubscribe("https://example.com/u,1", "mailto:u@example.com?subject=x", one_click=True),
    )  # fmt: skip
    headers = mime.parse(raw).headers
    assert {name: headers.get(name) for name in headers_of(raw)} == {
        "From": "Ann <ann@agents.example>",
        "Sender": "Bob <bob@example.com>",
        "Reply-To": "Ann <ann+t03k.9f2mq7xa@agents.example>",
        "To": "Bob <bob@example.com>",
        "Subject": "",
        "Date": "Thu, 05 Mar 2026 09:07:03 -0330",
        "Message-ID": "<m1@agents.example>",
        "In-Reply-To": "<p@example.com>",
        "References": "<r1@example.com> <p@example.com>",
        "Auto-Submitted": "auto-replied",
        "List-Unsubscribe": "<https://example.com/u%2C1>, <mailto:u@example.com?subject=x>",
        "List-Unsubscribe-Post": "List-Unsubscribe=One-Click",
        "X-Postroom-Hop": "3",
        "X-Postroom-Role-Hop": "1",
        "X-AI-Generated": "true",
        "X-Order": "12",
        "Organization": "Ünion",
        "MIME-Version": "1.0",
        "Content-Type": "text/plain; charset=us-ascii",
    }


def headers_of(raw: bytes) -> list[str]:
    return [name for name, _ in mime.parse(raw).headers]


def test_an_encoded_subject_begins_on_the_line_of_its_name() -> None:
    assert b"\r\nSubject: =?utf-8?" in written(subject="漢字" * 40)
    assert b"\r\nTo: =?utf-8?" in written(to=(Address("漢字" * 40, "a", "example.com"),))


def test_machine_values_stay_whole() -> None:
    token = "x" * 900
    raw = written(text="x", headers=(("X-Token", token),))
    assert f"X-Token: {token}\r\n".encode() in raw
    raw = written(text="x", headers=(("X-Token", "y" * 2048), ("X-" + "n" * 98, "ä" * 40)))
    assert all(len(line) <= 998 for line in raw.split(b"\r\n"))
    assert mime.parse(raw).headers.get("x-token") == "y" * 2048
    assert mime.parse(raw).headers.get("X-" + "n" * 98) == "ä" * 40


def shape(part: mime.Part) -> object:
    return (part.content_type, [shape(child) for child in part.children]) if part.children else part.content_type


IMAGE = Attachment("logo.png", "image/png", b"\x89PNG", inline=True, content_id="logo@x")
FILE = Attachment("a.pdf", "application/pdf", b"%PDF")


@pytest.mark.parametrize(
    ("text", "html", "attachments", "expected"),
    [
        (None, None, (), "text/plain"),
        ("t", None, (), "text/plain"),
        (None, "h", (), "text/html"),
        ("t", "h", (), ("multipart/alternative", ["text/plain", "text/html"])),
        ("t", "h", (IMAGE,), ("multipart/alternative", [
            "text/plain", ("multipart/related", ["text/html", "image/png"])])),
        ("t", None, (IMAGE,), ("multipart/mixed", ["text/plain", "image/png"])),
        (None, None, (FILE,), ("multipart/mixed", ["text/plain", "application/pdf"])),
        (None, "h", (FILE,), ("multipart/mixed", ["text/html", "application/pdf"])),
        ("t", "h", (FILE, IMAGE), ("multipart/mixed", [
            ("multipart/alternative", ["text/plain", ("multipart/related", ["text/html", "image/png"])]),
            "application/pdf"])),
    ],
)  # fmt: skip
def test_structure(text: str | None, html: str | None, attachments: tuple[Attachment, ...], expected: object) -> None:
    composed = compose(draft(text=text, html=html, attachments=attachments), TOKEN)
    raw = composed.to_bytes()
    message = mime.parse(raw)
    assert shape(message.root) == expected
    assert not message.degraded
    assert not stdlib(raw).defects
    assert composed.size == len(raw)
    boundaries = re.findall(rb'boundary="?([^\s";]+)', raw)
    assert len(set(boundaries)) == len(boundaries)
    check_lines(raw)


@given(TEXT, st.booleans())
@example("From here\nFrom there " + "x" * 80, False)
@example(".\n..\n-- \n", False)
@example("a\rb\r\nc\nd\x00", False)
@example("x" * 5000, True)
@example("漢" * 3000, True)
@example(f"--=_{TOKEN}_1--\nnot the end", True)
def test_text_comes_back(text: str, both: bool) -> None:
    raw = written(text=text, html=text if both else None, attachments=(FILE,) if both else ())
    check_lines(raw)
    assert raw.isascii()
    wanted = cleaned(text).replace("\x00", "\ufffd").replace("\r\n", "\n").replace("\r", "\n")
    wanted = wanted if not wanted or wanted.endswith("\n") else wanted + "\n"
    message = mime.parse(raw)
    part = next(p for _, p in mime.walk(message.root) if p.content_type == "text/plain")
    assert transfer.decoded(raw, part).decode().replace("\r\n", "\n") in (wanted, wanted + "\n" * (not both))
    assert not re.search(rb"(?m)^From ", raw.partition(b"\r\n\r\n")[2])
    found = stdlib(raw).get_body(("plain",))
    assert found is not None
    assert found.get_content().replace("\r\n", "\n").rstrip("\n") == wanted.rstrip("\n")


@given(st.text(st.sampled_from("ab \t=.\r\nFromé漢\x0c\x01"), max_size=400))
def test_quoted_printable(text: str) -> None:
    data = re.sub(r"\r\n?|\n", "\r\n", text).encode()
    encoded = quoted_printable(data)
    assert transfer.decode_quoted_printable(encoded) == data
    lines = encoded.split(b"\r\n")
    assert all(len(line) <= 76 and not line.endswith((b" ", b"\t")) and not line.startswith(b"From ") for line in lines)
    assert b"\r" not in encoded.replace(b"\r\n", b"")


def test_eight_bit_when_asked() -> None:
    composed = compose(draft(text="ä"), TOKEN, eight_bit=True)
    assert composed.eight_bit
    assert "\r\n\r\nä\r\n".encode() in composed.to_bytes()
    assert b"Content-Transfer-Encoding: 8bit" in composed.to_bytes()
    assert not compose(draft(text="ä"), TOKEN).eight_bit
    assert b"base64" in written(text="漢" * 200)
    assert b"quoted-printable" in written(text="Grüße aus der Stadt, wo alles wie immer ist, " * 9)


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_base64_in_chunks(chunks: list[bytes]) -> None:
    encoded = b"".join(base64_chunks(chunks))
    assert len(encoded) == base64_size(sum(map(len, chunks)))
    assert transfer.decode_base64(encoded) == b"".join(chunks)
    assert all(len(line) == 76 for line in encoded.split(b"\r\n")[:-1])


@pytest.mark.covers("FR-OUT-10", "edge:G5")
def test_large_attachment_is_streamed_and_its_size_known_before() -> None:
    size, chunk = 25 * 1024 * 1024, bytes(range(256)) * 256
    reads = 0

    def source() -> Iterator[bytes]:
        nonlocal reads
        reads += 1
        for _ in range(size // len(chunk)):
            yield chunk

    file = Attachment("big.bin", "application/octet-stream", source, size)
    composed = compose(draft(text="x", attachments=(file,)), TOKEN)
    assert reads == 0
    tracemalloc.start()
    written_octets = sum(map(len, composed.chunks()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert composed.size == written_octets
    assert reads == 1
    assert peak < 2 * 1024 * 1024


@pytest.mark.parametrize("announced", [3, 5])
def test_a_source_that_lies_about_its_size(announced: int) -> None:
    composed = compose(draft(attachments=(Attachment("a", "text/plain", lambda: [b"ab", b"cd"], announced),)), TOKEN)
    with pytest.raises(ComposeError) as caught:
        composed.to_bytes()
    assert caught.value.reason is Reason.SIZE_MISMATCH


@given(TEXT.filter(str.isprintable))
@example("naïve résumé 漢字 😀 " * 8 + ".pdf")
@example('a "quoted" \\ name;x=y.txt')
@example("../../etc/passwd")
@example("x" * 200 + ".txt")
def test_file_names_come_back(name: str) -> None:
    raw = written(attachments=(Attachment(name, "application/pdf", b"%PDF"),))
    part = mime.parse(raw).root.children[1]
    wanted = sanitise_filename(cleaned(name))
    assert part.disposition_params.get("filename") == wanted
    assert all(len(line) <= 78 for line in raw.split(b"\r\n"))
    attached = next(stdlib(raw).iter_attachments())
    # The standard library trims names, and takes angle brackets about one for quotes (email.utils.unquote).
    if wanted is None or wanted == wanted.strip("<> ") == " ".join(wanted.split()):
        assert attached.get_filename() == wanted
    assert "/" not in (filename(part) or "")


def test_parameters_of_a_type_are_kept() -> None:
    raw = written(attachments=(Attachment("i.ics", 'text/calendar; method=REPLY; name="x"; boundary=y', b"BEGIN"),))
    assert mime.parse(raw).root.children[1].params == {"method": "REPLY", "name": "i.ics"}


MESSAGE = b"From: x@example.com\r\nSubject: s\r\n\r\nbody\r\n"


@pytest.mark.parametrize(
    ("octets", "content_type", "encoding"),
    [
        (MESSAGE, "message/rfc822", "7bit"),
        (MESSAGE + "ä\r\n".encode(), "message/rfc822", "8bit"),
        (MESSAGE + b"x" * 999 + b"\r\n", "application/octet-stream", "base64"),
        (MESSAGE + b"bare\nfeed\r\n", "application/octet-stream", "base64"),
        (MESSAGE + b"nul\x00\r\n", "application/octet-stream", "base64"),
        (MESSAGE + f"--=_{TOKEN}_1\r\n".encode(), "application/octet-stream", "base64"),
    ],
)
@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_attached_messages_keep_their_octets(octets: bytes, content_type: str, encoding: str, step: int) -> None:
    chunks = [octets[at : at + step] for at in range(0, len(octets), step)]
    composed: Composed = compose(
        draft(text="x", attachments=(Attachment("m.eml", "message/rfc822", lambda: chunks, len(octets)),)), TOKEN
    )
    raw = composed.to_bytes()
    part = mime.parse(raw).root.children[1]
    assert (part.content_type, part.encoding) == (content_type, encoding)
    assert composed.eight_bit is (encoding == "8bit")
    assert mime.parse(raw).root.encoding == ("8bit" if encoding == "8bit" else "7bit")
    assert composed.size == len(raw)
    data = raw[part.body_start : part.body_end]
    assert (transfer.decode(data, encoding) if encoding == "base64" else data) == octets


@given(st.lists(st.binary(max_size=5) | st.sampled_from([b"\r\n", b"\r", b"\n", b"x" * 500, b"mark"]), max_size=12))
def test_shape_does_not_depend_on_the_chunks(chunks: list[bytes]) -> None:
    whole = b"".join(chunks)
    found = shape_of(chunks, b"mark")
    assert found == shape_of([whole], b"mark")
    bare = re.search(rb"\r(?!\n)|(?<!\r)\n|\x00", whole)
    assert found.lines_fit is (bare is None and all(len(line) <= 998 for line in whole.split(b"\r\n")))
    assert found.holds_mark is (b"mark" in whole)
    assert found.eight_bit is (not whole.isascii())


def test_the_same_arguments_give_the_same_octets() -> None:
    arguments = draft(text="ä", html="<p>ä</p>", attachments=(FILE, IMAGE))
    assert compose(arguments, TOKEN).to_bytes() == compose(arguments, TOKEN).to_bytes()
    assert compose(arguments, "other").to_bytes() != compose(arguments, TOKEN).to_bytes()


@settings(max_examples=30)
@given(st.datetimes(min_value=datetime(1971, 1, 1), max_value=datetime(2100, 1, 1)), st.integers(-719, 719))
def test_dates_come_back(moment: datetime, minutes: int) -> None:
    aware = moment.replace(tzinfo=timezone(timedelta(minutes=minutes)), microsecond=0)
    assert mime.parse(written(date=aware, text="x")).date == aware.astimezone(UTC)
