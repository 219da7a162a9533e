"""The fuzz targets in the normal run: over the corpus, over damaged corpus, over any octets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroom.mail import body, mime, transfer
from tests.fuzz import kinds

CORPUS: Final = Path(__file__).resolve().parents[1] / "corpus"
MESSAGES: Final = [path.read_bytes() for path in sorted(CORPUS.glob("*/*.eml"))]


def _contents() -> Iterator[bytes]:
    for raw in MESSAGES:
        message = mime.parse(raw)
        for item in body.attachments(message, raw):
            part = message.part(item.path)
            if part is not None:
                yield transfer.decoded(raw, part)


CONTENTS: Final = list(_contents())
SEEDS: Final[dict[Callable[[bytes], None], list[bytes]]] = {
    kinds.dsn_parse: MESSAGES,
    kinds.attachment_sniff: CONTENTS,
    kinds.tnef_parse: [data for data in CONTENTS if data.startswith(b"\x78\x9f\x3e\x22")],
}
TOKENS: Final = st.sampled_from(
    [b"\r\n", b"\r\n\r\n", b"--", b": ", b"<", b">", b"@", b"PK\x01\x02", b"\xff\xff\xff\xff", b"\x00\x00\x00\x00",
     b"=_b", b"Final-Recipient: rfc822; ", b"550 5.1.1 ", b"bob@example.org", b"\x0d\x00\x01\x37"]
)  # fmt: skip


@pytest.mark.parametrize("target", SEEDS, ids=lambda target: target.__name__)
def test_corpus(target: Callable[[bytes], None]) -> None:
    assert len(SEEDS[target]) >= 6
    for seed in SEEDS[target]:
        target(seed)


@pytest.mark.parametrize("target", SEEDS, ids=lambda target: target.__name__)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_damaged(target: Callable[[bytes], None], data: st.DataObject) -> None:
    raw = bytearray(data.draw(st.sampled_from(SEEDS[target])))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(0, len(raw) - 1)))
        size = data.draw(st.integers(0, 12))
        raw[at : at + size] = data.draw(TOKENS | st.binary(max_size=8))
    target(bytes(raw))
    target(bytes(raw[: data.draw(st.integers(0, len(raw)))]))


@pytest.mark.parametrize("target", SEEDS, ids=lambda target: target.__name__)
@given(data=st.binary(max_size=500))
def test_any_octets(target: Callable[[bytes], None], data: bytes) -> None:
    target(data)
