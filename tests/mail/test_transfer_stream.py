"""Decoding in pieces gives what decoding at once gives, wherever the pieces are cut (RFC 2045 §6)."""

from __future__ import annotations

import base64
import quopri

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from postroom.mail.mime import Part
from postroom.mail.transfer import content
from postroom.mail.transfer_stream import MAX_LINE, Irregular, stream_decoder

_CUTS = st.lists(st.integers(1, 40), min_size=1, max_size=8)
_LINES = st.lists(st.binary(max_size=100), max_size=12)
_QP = st.lists(st.sampled_from([b"=", b"\r", b"\n", b"\r\n", b" ", b"\t", b"a", b"=3D", b"=\r\n", b"=41"]), max_size=60)


def _in_pieces(part: Part, data: bytes, cuts: list[int]) -> bytes:
    decoder = stream_decoder(part, data)
    out, at, turn = [], 0, 0
    while at < len(data):
        size = cuts[turn % len(cuts)]
        out.append(decoder.feed(data[at : at + size]))
        at, turn = at + size, turn + 1
    return b"".join((*out, decoder.finish()))


def _part(encoding: str, kind: str = "application") -> Part:
    return Part(0, 0, 0, kind, "octet-stream", encoding=encoding)


@pytest.mark.covers("RFC 2045 §6.8")
@given(_LINES, _CUTS, st.sampled_from([b"\r\n", b"\n", b" "]))
def test_base64(lines: list[bytes], cuts: list[int], end: bytes) -> None:
    whole = b"".join(lines)
    data = end.join(base64.b64encode(whole)[at : at + 60] for at in range(0, len(whole) * 2, 60)) + end
    assert _in_pieces(_part("base64"), data, cuts) == whole


@pytest.mark.covers("RFC 2045 §6.7")
@given(_LINES, _CUTS)
def test_quoted_printable(lines: list[bytes], cuts: list[int]) -> None:
    whole = b"\n".join(lines).replace(b"\r", b"")  # which the encoder takes for ends of lines
    data = quopri.encodestring(whole)
    assert _in_pieces(_part("quoted-printable"), data, cuts) == quopri.decodestring(data) == whole


@given(st.sampled_from(["base64", "quoted-printable", "7bit", "8bit", "x-odd"]), st.binary(max_size=300), _CUTS)
@example("quoted-printable", b"a \nb  ", [1])
@example("quoted-printable", b"a  ", [1])
@example("base64", b"QQ=\r\n=", [2])
@example("base64", b"QUJD=", [3])
@example("base64", b"QUJDR", [3])
def test_whatever_is_decoded_in_pieces_is_decoded_alike(encoding: str, data: bytes, cuts: list[int]) -> None:
    for kind in ("application", "text"):
        part = _part(encoding, kind)
        try:
            shown = _in_pieces(part, data, cuts)
        except Irregular:
            continue
        assert shown == content(data, part)


@given(_QP, _CUTS)
def test_odd_quoted_printable_is_decoded_alike(pieces: list[bytes], cuts: list[int]) -> None:
    data = b"".join(pieces)
    assert _in_pieces(_part("quoted-printable"), data, cuts) == content(data, _part("quoted-printable"))


@given(st.text("AZaz09+/= \r\n", max_size=60), _CUTS)
def test_odd_base64_is_decoded_alike_or_at_once(text: str, cuts: list[int]) -> None:
    data = text.encode()
    try:
        shown = _in_pieces(_part("base64"), data, cuts)
    except Irregular:
        return
    assert shown == content(data, _part("base64"))


def test_what_is_held_is_bounded() -> None:
    decoder = stream_decoder(_part("quoted-printable"), b"a")
    for _ in range(MAX_LINE // 65_536):
        decoder.feed(b"a" * 65_536)
    with pytest.raises(Irregular):
        decoder.feed(b"a")
    with pytest.raises(Irregular):
        stream_decoder(_part("x-uuencode"), b"begin 644 a\n")
