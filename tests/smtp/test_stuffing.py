"""What is sent after DATA, against what reads it."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.smtp.data import DataReceiver, DotStuffer

_body = st.lists(
    st.one_of(
        st.sampled_from([b"\r\n", b".", b"..", b"\r", b"\n", b"\r\n.\r\n", b"x", b"\n.\n"]), st.binary(max_size=5)
    ),
    max_size=15,
).map(b"".join)


def _stuff(message: bytes, cuts: list[int]) -> bytes:
    places = sorted({min(cut, len(message)) for cut in cuts} | {0, len(message)})
    stuffer = DotStuffer()
    pieces = [stuffer.feed(message[begin:end]) for begin, end in itertools.pairwise(places)]
    return b"".join([*pieces, stuffer.end()])


@pytest.mark.covers("RFC 5321 §4.5.2", "RFC 5321 §2.3.8", "mail-server:A2")
@given(_body, st.lists(st.integers(0, 60), max_size=6), st.binary(max_size=5))
def test_a_strict_receiver_gets_the_message(message: bytes, cuts: list[int], after: bytes) -> None:
    wanted = re.sub(rb"\r\n|\r|\n", b"\r\n", message)
    if wanted and not wanted.endswith(b"\r\n"):
        wanted += b"\r\n"
    receiver = DataReceiver(1 << 20)
    sent = _stuff(message, cuts)
    assert receiver.feed(sent + after) == after
    assert receiver.take() == wanted
    assert sent == _stuff(message, []) == _stuff(message, list(range(len(message))))


@pytest.mark.parametrize(
    ("message", "sent"),
    [
        (b"", b".\r\n"),
        (b".", b"..\r\n.\r\n"),
        (b"a\r\n", b"a\r\n.\r\n"),
        (b"a", b"a\r\n.\r\n"),
        (b"a\r\n.b\r\n..\r\n", b"a\r\n..b\r\n...\r\n.\r\n"),
        (b"a\n.\nb\r", b"a\r\n..\r\nb\r\n.\r\n"),
    ],
)
def test_examples(message: bytes, sent: bytes) -> None:
    assert _stuff(message, []) == sent
