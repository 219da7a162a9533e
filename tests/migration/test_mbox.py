"""Files in mbox form: where messages begin and end, what is quoted, flags; the standard library's reader as oracle."""

from __future__ import annotations

import mailbox
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.migration import mbox_format as form
from postroom.migration.mbox import Dialect, MboxSource
from postroom.migration.models import Letter, Problem, SourceError, Trouble
from tests.migration.moving import House, letter

FROM = b"From anna@example.com Tue Jan  1 10:00:00 2019\n"
TEN = datetime(2019, 1, 1, 10, tzinfo=UTC)


def entry(raw: bytes) -> bytes:
    return FROM + raw.replace(b"\r\n", b"\n") + b"\n"


def read(path: Path, dialect: Dialect = Dialect.MBOXRD, limit: int = 1 << 20) -> list[Letter | Problem]:
    source = MboxSource(path, max_bytes=limit, dialect=dialect)
    found = [
        one for folder in source.folders() for page in source.pages(folder) for one in source.read(folder, list(page))
    ]
    source.close()
    return found


def letters(path: Path, dialect: Dialect = Dialect.MBOXRD) -> list[bytes]:
    return [one.raw for one in read(path, dialect) if isinstance(one, Letter)]


@pytest.mark.covers("RFC 4155", "decisions:C7")
def test_messages_and_dates(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(entry(letter(1)) + entry(letter(2, "From here it rains.\r\n\r\nFrom now on, too.")))
    first, second = read(path)
    assert isinstance(first, Letter)
    assert (first.raw, first.date, first.flags) == (letter(1), TEN, ())
    assert isinstance(second, Letter)
    assert second.raw == letter(2, "From here it rains.\r\n\r\nFrom now on, too.")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"From - Tue Jan 01 10:00:00 2019", TEN),
        (b"From 1623@xxx Tue Jan 01 10:00:00 +0000 2019", TEN),
        (b"From a@b Tue Jan  1 12:00:00 2019 +0200", TEN),
        (b"From a b c d Tue Jan  1 10:00 2019", TEN),
        (b"From nobody", None),
    ],
)
def test_dates_of_from_lines(line: bytes, expected: datetime | None) -> None:
    assert form.date_of(line) == expected


@pytest.mark.parametrize(
    ("dialect", "stored", "raw"),
    [
        (Dialect.MBOXRD, b">From a\n>>From b\n", b"From a\r\n>From b\r\n"),
        (Dialect.MBOXO, b">From a\n>>From b\n", b"From a\r\n>>From b\r\n"),
        (Dialect.MBOXCL2, b">From a\n>>From b\n", b">From a\r\n>>From b\r\n"),
    ],
)
def test_quoting(tmp_path: Path, dialect: Dialect, stored: bytes, raw: bytes) -> None:
    path = tmp_path / "m"
    path.write_bytes(FROM + b"Subject: x\n\n" + stored + b"\n")
    assert letters(path, dialect) == [b"Subject: x\r\n\r\n" + raw]


@pytest.mark.parametrize("dialect", [Dialect.MBOXCL, Dialect.MBOXCL2])
@pytest.mark.parametrize("wrong", [0, 7, 10_000])
def test_content_length(tmp_path: Path, dialect: Dialect, wrong: int) -> None:
    """What it says counts where a message ends there; else `From ` lines do."""
    body = b"\n" + FROM + b"is what it says\n" if not wrong else b"one\n"
    head = b"Subject: x\nContent-Length: %d\n" % (len(body) + wrong)
    path = tmp_path / "m"
    path.write_bytes(FROM + head + b"\n" + body + b"\n" + entry(letter(2)))
    assert letters(path, dialect) == [b"Subject: x\r\n\r\n" + body.replace(b"\n", b"\r\n"), letter(2)]


def test_status_fields(tmp_path: Path) -> None:
    path = tmp_path / "m"
    status = b"Status: RO\nX-Status: AFDT\nX-Keywords: $Label1 urgent\n\t\nX-UID: 7\n"
    path.write_bytes(
        FROM + b"Subject: x\n" + status + b"To: b\n\nBody\n\n" + FROM + b"X-Mozilla-Status: 0005\nSubject: y\n\nBody\n"
    )
    first, second = read(path)
    assert isinstance(first, Letter)
    assert first.raw == b"Subject: x\r\nTo: b\r\n\r\nBody\r\n"
    assert set(first.flags) == {"$seen", "$answered", "$flagged", "$deleted", "$draft", "$Label1", "urgent"}
    assert isinstance(second, Letter)
    assert (second.raw, set(second.flags)) == (b"Subject: y\r\n\r\nBody\r\n", {"$seen", "$flagged"})


def test_what_thunderbird_has_deleted(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(FROM + b"X-Mozilla-Status: 0009\nSubject: y\n\nBody\n\n" + entry(letter(1)))
    gone, kept = read(path)
    assert isinstance(gone, Problem)
    assert gone.trouble is Trouble.GONE
    assert isinstance(kept, Letter)


async def test_a_directory_as_thunderbird_keeps_it(home: House, tmp_path: Path) -> None:
    root = tmp_path / "Mail"
    (root / "Work.sbd").mkdir(parents=True)
    (root / "Inbox").write_bytes(entry(letter(1)))
    (root / "Inbox.msf").write_text("// index")
    (root / "notes.txt").write_text("no mail")
    (root / "Work").write_bytes(b"")
    (root / "Work.sbd" / "2026").write_bytes(entry(letter(2)) + entry(letter(2)))
    (root / "Archives.mbox").write_bytes(entry(letter(3)))
    box = await home.box()
    report = await home.bring(box, MboxSource(root, max_bytes=1 << 20))
    seen = await home.seen(box.ref)
    got = {name: [one[0] for one in messages] for name, messages in seen.items() if messages}
    assert got == {"INBOX": [letter(1)], "Work/2026": [letter(2)], "Archive": [letter(3)]}
    assert "Work" in seen
    assert sum(one.duplicates for one in report.folders) == 1
    again = await home.bring(box, MboxSource(root, max_bytes=1 << 20))
    assert [one.earlier for one in again.folders] == [1, 1, 0, 2]


@pytest.mark.parametrize("content", [b"Subject: no mbox\n\n", b""])
def test_no_mbox(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m"
    path.write_bytes(content)
    with pytest.raises(SourceError):
        read(path)


def test_large_and_empty(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(entry(letter(1, "x" * 600_000)) + FROM + b"\n" + entry(letter(2)))
    found = read(path, limit=4096)
    assert [one.trouble for one in found if isinstance(one, Problem)] == [Trouble.TOO_LARGE, Trouble.EMPTY]
    assert len(found) == 3


_LINES = st.lists(
    st.sampled_from(
        [
            b"",
            b"text",
            b"From here",
            b">From there",
            b"From a Tue Jan  1 10:00:00 2019",
            b">>From x",
            b"\xff\x00",
            b"> y",
        ]
    ),
    max_size=8,
)
_FLAGS = st.sets(st.sampled_from(["$seen", "$answered", "$flagged", "$deleted", "$draft", "urgent", "$label1"]))


@pytest.mark.covers("RFC 4155")
@given(bodies=st.lists(st.tuples(_LINES, _FLAGS), min_size=1, max_size=5))
def test_what_is_packed_is_read_again_by_us_and_by_others(
    tmp_path_factory: pytest.TempPathFactory, bodies: list[tuple[list[bytes], set[str]]]
) -> None:
    path = tmp_path_factory.mktemp("mbox") / "m"
    raws = [
        b"Subject: %d\r\nStatus: mine\r\n\r\n" % n + b"".join(line + b"\r\n" for line in lines)
        for n, (lines, _) in enumerate(bodies)
    ]
    flags = [tuple(sorted(words)) for _, words in bodies]
    path.write_bytes(b"".join(form.pack(raw, words, TEN) for raw, words in zip(raws, flags, strict=True)))
    found = read(path)
    assert [one.raw for one in found if isinstance(one, Letter)] == raws
    assert [tuple(sorted(one.flags)) for one in found if isinstance(one, Letter)] == flags
    theirs = list(mailbox.mbox(path, create=False))
    assert [one["Subject"] for one in theirs] == [str(n) for n in range(len(raws))]
    letters_of = {"$seen": "R", "$answered": "A", "$flagged": "F", "$deleted": "D", "$draft": "T"}
    assert [set(one.get_flags()) - {"O"} for one in theirs] == [
        {letters_of[word] for word in words if word in letters_of} for words in flags
    ]


@given(st.binary(max_size=400))
def test_anything_may_stand_in_a_file(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("mbox") / "m"
    path.write_bytes(FROM + content)
    for dialect in Dialect:
        read(path, dialect)


def test_millions_of_fields() -> None:
    tracemalloc.start()
    try:
        found = form.unpack(b"a\n" * 500_000 + b"Status: RO\nb: 1\n\nStatus: no\n", Dialect.MBOXRD)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    assert found.flags == ("$seen",)
    assert found.raw.endswith(b"a\nb: 1\n\nStatus: no\n")
