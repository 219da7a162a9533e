import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.smtp.reply_reader import MAX_LINE, MAX_LINES, MAX_REPLY, ReplyError, ReplyReader, ServerReply

_text = st.text(st.characters(blacklist_characters="\r\n", blacklist_categories=["Cs"]), max_size=30)
_reply = st.tuples(st.integers(200, 599), st.lists(_text, min_size=1, max_size=4))


def _wire(code: int, lines: list[str]) -> bytes:
    *first, last = lines
    return "".join([*(f"{code}-{line}\r\n" for line in first), f"{code} {last}\r\n"]).encode()


def _read(chunks: list[bytes]) -> list[ServerReply]:
    reader = ReplyReader()
    read = []
    for chunk in chunks:
        reader.feed(chunk)
        while (reply := reader.next_reply()) is not None:
            read.append(reply)
    assert reader.is_empty
    return read


@pytest.mark.covers("RFC 5321 §4.2")
@given(st.lists(_reply, max_size=5), st.lists(st.integers(0, 300), max_size=8))
def test_any_chunks(replies: list[tuple[int, list[str]]], cuts: list[int]) -> None:
    data = b"".join(_wire(code, lines) for code, lines in replies)
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    assert _read([data[begin:end] for begin, end in itertools.pairwise(places)]) == [
        ServerReply(code, tuple(lines)) for code, lines in replies
    ]
    assert _read([data[i : i + 1] for i in range(len(data))]) == _read([data])


@pytest.mark.parametrize(
    ("wire", "reply"),
    [
        (b"250\r\n", ServerReply(250, ("",))),
        (b"250 \r\n", ServerReply(250, ("",))),
        (b"250-a\n250 b\n", ServerReply(250, ("a", "b"))),
        (b"250 caf\xe9\r\n", ServerReply(250, ("caf\ufffd",))),
    ],
)
def test_what_is_let_pass(wire: bytes, reply: ServerReply) -> None:
    assert _read([wire]) == [reply]


@pytest.mark.parametrize(
    "wire",
    [
        b"\r\n", b"hello\r\n", b"25\r\n", b"2500\r\n", b"250x\r\n", b"150 x\r\n", b"650 x\r\n", b"250-a\r\n251 b\r\n",
        b"250 " + b"x" * MAX_LINE, b"250-x\r\n" * (MAX_LINES + 1), (b"250-" + b"x" * 1200 + b"\r\n") * 60,
    ],
)  # fmt: skip
def test_what_is_no_reply(wire: bytes) -> None:
    reader = ReplyReader()
    reader.feed(wire)
    with pytest.raises(ReplyError):
        list(iter(reader.next_reply, None))


def test_limits_are_consistent() -> None:
    assert MAX_LINE < MAX_REPLY < MAX_LINE * MAX_LINES


@pytest.mark.parametrize(
    ("code", "text", "enhanced"),
    [
        (550, "5.1.1 no such user", "5.1.1"),
        (550, "5.1.10", "5.1.10"),
        (550, "4.1.1 of another class", None),
        (550, "no such user", None),
        (550, "5.1.1.1 x", None),
        (250, "2.01.005 ok", "2.1.5"),
        (550, "5.1.1x", None),
    ],
)
@pytest.mark.covers("RFC 2034 §4")
def test_enhanced(code: int, text: str, enhanced: str | None) -> None:
    assert ServerReply(code, (text,)).enhanced == enhanced
