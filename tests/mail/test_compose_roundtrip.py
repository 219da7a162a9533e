"""What is written is read again as the same draft, whatever it says; and the standard library reads the same."""

from __future__ import annotations

import email
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.mail import mime, transfer
from postroom.mail.address import Address
from postroom.mail.body import attachments, body_parts, filename, sanitise_filename
from postroom.mail.compose import Attachment, AutoSubmitted, Draft, ListUnsubscribe, compose, downgrade_to_7bit
from postroom.mail.header import Headers

PRINTABLE = st.characters(codec="utf-8", exclude_categories=["Cc", "Cf", "Zl", "Zp", "Zs", "Cn", "Co"])
WORD = st.text(PRINTABLE | st.sampled_from('=?_",;<>()\\.漢é'), min_size=1, max_size=30)
LINE = st.lists(WORD, max_size=8).map(" ".join)
# Alone in quotes a name is Outlook's for none: what is read leaves them out.
NAME = LINE.filter(lambda text: not (text[:1] == text[-1:] == "'"))
LOCAL = st.text("abcdefghijklmnopqrstuvwxyz0123456789.+_-'\" @", min_size=1, max_size=20)
DOMAIN = st.sampled_from(["example.com", "mail.example.net", "xn--bcher-kva.example", "[192.0.2.1]"])
ADDRESS = st.builds(Address, NAME, LOCAL.filter(lambda text: text[0] != "'"), DOMAIN)
ID = st.builds(
    "{}@{}".format, st.text("abcABC0123456789.$+-", min_size=1, max_size=40), st.sampled_from(["example.com"])
)
TEXT = st.lists(LINE | st.text("ab ", max_size=200) | st.just("From me"), max_size=12).map(
    lambda lines: "".join(line + "\n" for line in lines)
)
CONTENT_TYPE = st.sampled_from(["application/pdf", "image/png", "text/plain", "text/csv; charset=utf-8"])
FILE = st.builds(
    Attachment,
    filename=LINE.map(sanitise_filename),
    content_type=CONTENT_TYPE,
    content=st.binary(max_size=200),
    inline=st.booleans(),
    content_id=st.none() | ID,
)
MOMENT = st.builds(
    lambda moment, minutes: moment.replace(microsecond=0, tzinfo=timezone(timedelta(minutes=minutes))),
    st.datetimes(datetime(1970, 1, 2), datetime(2100, 1, 1)),
    st.integers(-14 * 60, 14 * 60),
)
DRAFT = st.builds(
    Draft,
    from_=ADDRESS,
    date=MOMENT,
    message_id=ID,
    to=st.lists(ADDRESS, max_size=4).map(tuple),
    cc=st.lists(ADDRESS, max_size=2).map(tuple),
    sender=st.none() | ADDRESS,
    reply_to=st.lists(ADDRESS, max_size=2).map(tuple),
    subject=LINE,
    text=st.none() | TEXT,
    html=st.none() | TEXT.map(lambda text: f"<p>{text}</p>\n"),
    attachments=st.lists(FILE, max_size=3).map(tuple),
    in_reply_to=st.none() | ID,
    references=st.lists(ID, max_size=6).map(tuple),
    auto_submitted=st.none() | st.sampled_from(AutoSubmitted),
    list_unsubscribe=st.none() | st.just(ListUnsubscribe("https://example.com/u", "u@example.com", one_click=True)),
    hop=st.none() | st.integers(0, 20),
    role_hop=st.booleans(),
    ai_generated=st.booleans(),
    headers=st.sampled_from([(), (("X-Order", "12"), ("Organization", "Ünion & Söhne"))]),
)


def people(addresses: list[Address]) -> tuple[Address, ...]:
    return tuple(addresses)


def read(raw: bytes) -> Draft:
    """The draft that a composed message was made of."""
    message = mime.parse(raw)
    assert not message.degraded
    headers = message.headers
    bodies: dict[str, str | None] = {"plain": None, "html": None}
    parts = body_parts(message.root)
    listed = {item.path for item in attachments(message, raw)}
    for path, part in {**dict(parts.text), **dict(parts.html)}.items():
        if path not in listed:
            bodies[part.subtype] = transfer.decoded(raw, part).decode().replace("\r\n", "\n")
    found = [message.part(path) for path in sorted(listed)]
    (sender,) = message.sender or (None,)
    (parent,) = message.in_reply_to or (None,)
    assert message.date is not None
    return Draft(
        from_=message.from_[0],
        date=message.date,
        message_id=message.message_id or "",
        to=people(message.to),
        cc=people(message.cc),
        sender=sender,
        reply_to=people(message.reply_to),
        subject=message.subject or "",
        text=bodies["plain"],
        html=bodies["html"],
        attachments=tuple(_file(raw, part) for part in found if part is not None),
        in_reply_to=parent,
        references=tuple(message.references),
        auto_submitted=AutoSubmitted(headers.get("Auto-Submitted") or "") if "auto-submitted" in headers else None,
        list_unsubscribe=_unsubscribe(headers),
        hop=int(headers.get("X-Postroom-Hop") or "") if "x-postroom-hop" in headers else None,
        role_hop="x-postroom-role-hop" in headers,
        ai_generated=headers.get("X-AI-Generated") == "true",
        headers=tuple((name, value) for name, value in headers if name in ("X-Order", "Organization")),
    )


def _file(raw: bytes, part: mime.Part) -> Attachment:
    kept = {key: value for key, value in part.params.items() if key != "name"}
    return Attachment(
        filename=filename(part),
        content_type="; ".join((part.content_type, *(f"{key}={value}" for key, value in kept.items()))),
        content=transfer.decoded(raw, part),
        inline=part.disposition == "inline",
        content_id=part.content_id.strip("<>") if part.content_id else None,
    )


def _unsubscribe(headers: Headers) -> ListUnsubscribe | None:
    value = headers.get("List-Unsubscribe")
    if value is None:
        return None
    url, mailto = re.findall(r"<([^>]*)>", value)
    return ListUnsubscribe(url, mailto.removeprefix("mailto:"), one_click="list-unsubscribe-post" in headers)


def as_written(draft: Draft) -> dict[str, Any]:
    """The draft without what no message can say: the order of inline parts, an absent body of none at all."""
    values = {name: getattr(draft, name) for name in Draft.__dataclass_fields__}
    if draft.text is None and draft.html is None:
        values["text"] = ""
    values["attachments"] = sorted(
        ((item.filename, item.content_type, item.content, item.inline, item.content_id) for item in draft.attachments),
        key=repr,
    )
    return values


@pytest.mark.covers("FR-OUT-5", "FR-OUT-7", "FR-OUT-10", "RFC 5322", "RFC 2045", "RFC 2047", "RFC 2231", "RFC 6532")
@settings(max_examples=150, deadline=None)
@given(DRAFT, st.booleans())
def test_what_is_written_is_read_again(draft: Draft, eight_bit: bool) -> None:
    # A part without a name that is inline text is a body as well (decision D26), and a sheet of text inline is shown.
    if any(item.content_type.startswith("text/plain") and item.inline for item in draft.attachments):
        return
    composed = compose(draft, "b0undary", eight_bit=eight_bit)
    raw = composed.to_bytes()
    assert composed.size == len(raw)
    wanted = as_written(draft)
    found = as_written(read(raw))
    if found["text"] == "\n" and not draft.text and not draft.attachments:
        found["text"] = ""  # an empty body still ends in a line break
    if found["text"] == "" and draft.text is None and draft.html is None:
        wanted["text"] = ""
    assert found == wanted
    head = raw.partition(b"\r\n\r\n")[0]
    assert all(len(line) <= 998 for line in raw.split(b"\r\n"))
    assert all(line.strip() for line in head.split(b"\r\n"))
    assert re.search(rb"\r(?!\n)|(?<!\r)\n|\x00", raw) is None
    if composed.eight_bit and not composed.smtputf8:
        assert as_written(read(downgrade_to_7bit(raw))) == as_written(read(raw))


@settings(max_examples=100, deadline=None)
@given(FILE)
def test_names_of_files_stand_twice(file: Attachment) -> None:
    """RFC 2231 for those who know it; encoded words in `name` for Outlook and Gmail, which show nothing else."""
    sender = Address("", "ann", "example.com")
    moment = datetime(2026, 2, 2, tzinfo=UTC)
    raw = compose(Draft(sender, moment, "m@example.com", text="x", attachments=(file,)), "b").to_bytes()
    part = mime.parse(raw).root.children[1]
    assert part.disposition_params.get("filename") == file.filename
    part.disposition_params = {}
    assert filename(part) == file.filename
    block = raw[part.header_start : part.body_start]
    assert block.isascii()
    assert all(len(line) <= 78 for line in block.split(b"\r\n"))
    assert all(len(line) <= 76 for line in block.split(b"\r\n") if b"=?utf-8?" in line)
    _, theirs = [item for item in email.message_from_bytes(raw).walk() if not item.is_multipart()]
    assert (theirs.get_param("name") is None) is (file.filename is None)
