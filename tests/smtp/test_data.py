import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.smtp.data import HEADER_SCAN, BareLineEndingError, DataReceiver, count_received

_line = st.one_of(
    st.binary(max_size=20).map(lambda raw: raw.replace(b"\r", b"").replace(b"\n", b"")),
    st.sampled_from([b"", b".", b"..", b".x", b"Received: x"]),
)
_message = st.lists(_line, max_size=12).map(lambda lines: b"".join(line + b"\r\n" for line in lines))


def _stuff(message: bytes) -> bytes:
    """Dot-stuffing done the other way: line by line (RFC 5321 §4.5.2)."""
    return b"".join(b"." + line if line.startswith(b".") else line for line in message.splitlines(keepends=True))


def _feed(data: bytes, cuts: list[int], limit: int = 1 << 20) -> tuple[DataReceiver, bytes]:
    receiver = DataReceiver(limit)
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    for begin, end in itertools.pairwise(places):
        rest = receiver.feed(data[begin:end])
        if rest is not None:
            return receiver, rest + data[end:]
    raise AssertionError("no end of data")


@pytest.mark.covers("mail-server:A2")
@given(_message, st.lists(st.integers(0, 300), max_size=8), st.binary(max_size=10))
def test_round_trip_in_any_chunks(message: bytes, cuts: list[int], after: bytes) -> None:
    receiver, rest = _feed(_stuff(message) + b".\r\n" + after, cuts)
    assert receiver.take() == message
    assert receiver.size == len(message)
    assert rest == after


@given(_message, _message)
def test_byte_by_byte(message: bytes, after: bytes) -> None:
    data = _stuff(message) + b".\r\n" + after
    receiver, rest = _feed(data, list(range(len(data))))
    assert (receiver.take(), rest) == (message, after)


@pytest.mark.covers("mail-server:A2", "mail-server:A9")
@given(
    _message,
    st.sampled_from([b"\n", b"\r", b"\n.\r\n", b"\r.\r\n", b"\r\n.\n", b"\r\n.\r.", b"\n.\n", b"\r\r\n"]),
    _message,
    st.lists(st.integers(0, 300), max_size=8),
)
def test_bare_line_ending(before: bytes, bare: bytes, after: bytes, cuts: list[int]) -> None:
    with pytest.raises(BareLineEndingError):
        _feed(_stuff(before) + b"x" + bare + b"x" + _stuff(after) + b"\r\n.\r\n", cuts)


@pytest.mark.covers("edge:B1")
@given(st.integers(0, 200), st.integers(0, 200), st.lists(st.integers(0, 300), max_size=8))
def test_limit_is_exact_and_bounds_memory(size: int, limit: int, cuts: list[int]) -> None:
    message = b"." * max(size - 2, 0) + b"\r\n" if size >= 2 else b""
    receiver, _ = _feed(_stuff(message) + b".\r\n", cuts, limit)
    assert receiver.is_oversize == (len(message) > limit)
    assert receiver.held <= limit
    assert receiver.take() == (b"" if receiver.is_oversize else message)


@pytest.mark.parametrize(
    ("message", "count"),
    [
        (b"", 0),
        (b"Received: a\r\nRECEIVED: b\r\n\r\nReceived: body\r\n", 2),
        (b"X-Received: a\r\nreceived: b\r\n", 1),
        (b"Received : not ours to read\r\n\r\n", 0),
        (b"\r\nReceived: body\r\n", 0),
        (b"X: " + b"y" * HEADER_SCAN + b"\r\nReceived: far\r\n\r\n", 0),
    ],
)
def test_count_received(message: bytes, count: int) -> None:
    assert count_received(message) == count
