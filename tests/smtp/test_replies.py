import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.smtp import Reply, replies

pytestmark = pytest.mark.covers("mail-server:A9")


@given(st.integers(200, 599), st.text(max_size=700))
def test_no_text_breaks_the_protocol(code: int, text: str) -> None:
    reply = Reply(code, f"{code // 100}.0.0", text)
    for wire, enhanced in ((reply.wire, rb"\d\.0\.0 "), (reply.bare, b"")):
        *lines, end = wire.split(b"\r\n")
        assert end == b""
        assert all(len(line) <= 510 for line in lines)
        assert all(re.fullmatch(rb"\d{3}-" + enhanced + rb"[\x20-\x7e]*", line) for line in lines[:-1])
        assert re.fullmatch(rb"\d{3} " + enhanced + rb"[\x20-\x7e]*", lines[-1])


@pytest.mark.parametrize(("code", "enhanced"), [(199, None), (600, None), (250, "5.0.0"), (550, "4.0.0")])
def test_impossible_replies(code: int, enhanced: str | None) -> None:
    with pytest.raises(ValueError):
        Reply(code, enhanced, "x")


def test_every_fixed_reply_is_of_the_table() -> None:
    known = {
        (214, "2.0.0"), (220, None), (220, "2.0.0"), (221, "2.0.0"), (250, "2.0.0"), (250, "2.1.0"), (250, "2.1.5"),
        (235, "2.7.0"), (252, "2.5.2"), (334, None), (354, None), (504, "5.5.4"), (530, "5.7.0"), (535, "5.7.8"),
        (538, "5.7.11"), (421, "4.3.2"), (421, "4.4.2"), (421, "4.7.0"), (451, "4.3.0"), (452, "4.5.3"),
        (454, "4.7.0"), (500, "5.5.2"), (501, "5.5.4"), (502, "5.5.1"), (503, "5.5.1"), (552, "5.3.4"),
        (554, "5.4.6"), (554, "5.5.1"), (550, "5.7.30"),  # the last by RFC 8689
    }  # fmt: skip
    fixed = [value for value in vars(replies).values() if isinstance(value, Reply)]
    assert len(fixed) > 30
    assert {(reply.code, reply.enhanced) for reply in fixed} <= known
