"""Maildirs of other programs: folders, flags, dates, UIDs, and what is wrong in them."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from postroom.mailbox.rules import FlagMode
from postroom.migration.maildir import MaildirSource
from postroom.migration.models import FolderReport, ImportReport, SourceError, Trouble, Uids
from tests.migration.moving import House, letter, make_maildir

LIMIT = 1 << 20
SECOND = datetime.fromtimestamp(1_500_000_000, UTC)


def source(root: Path, limit: int = LIMIT) -> MaildirSource:
    return MaildirSource(root, max_bytes=limit)


@pytest.mark.covers("mail-server:D5", "mail-server:E1", "decisions:C7")
async def test_folders_flags_and_dates(home: House, tmp_path: Path) -> None:
    root = make_maildir(
        tmp_path / "m",
        {
            "new/1.fresh": letter(1),
            "cur/2.seen:2,S": letter(2).replace(b"\r\n", b"\n"),
            "cur/3.all:2,DFPRSTZab": letter(3),
            "cur/4.odd;2,F": letter(4),
            "cur/5.bare:RS": letter(5),
            "tmp/6.unfinished": letter(6),
        },
        dovecot_keywords="0 $Label1\n1 Urgent\n",
    )
    make_maildir(root / ".Work.2026", {"cur/1.w:2,S": letter(7)})
    make_maildir(root / ".Entw&APw-rfe")
    box = await home.box()
    report = await home.bring(box, source(root))
    seen = await home.seen(box.ref)
    assert seen["INBOX"] == [
        (letter(1), (), SECOND),
        (letter(2), ("$seen",), SECOND),
        (
            letter(3),
            ("$answered", "$deleted", "$draft", "$flagged", "$forwarded", "$label1", "$seen", "urgent"),
            SECOND,
        ),
        (letter(4), ("$flagged",), SECOND),
        (letter(5), ("$answered", "$seen"), SECOND),
    ]
    assert seen["Work/2026"] == [(letter(7), ("$seen",), SECOND)]
    assert seen["Entwürfe"] == []
    assert report.is_whole
    assert [(one.folder, one.found, one.imported, one.uids) for one in report.folders] == [
        ("INBOX", 5, 5, Uids.NONE),
        ("Entwürfe", 0, 0, Uids.NONE),
        ("Work/2026", 1, 1, Uids.NONE),
    ]


@pytest.mark.covers("mail-server:E1")
async def test_a_directory_for_each_level(home: House, tmp_path: Path) -> None:
    root = make_maildir(tmp_path / "m")
    make_maildir(root / "Work" / "2026", {"cur/1.w": letter(1)})
    make_maildir(root / "Überall", {"cur/1.u": letter(2)})
    box = await home.box()
    await home.bring(box, source(root))
    seen = await home.seen(box.ref)
    assert [one[0] for one in seen["Work/2026"] + seen["Überall"]] == [letter(1), letter(2)]


@pytest.mark.covers("mail-server:D2", "RFC 6154")
async def test_roles(home: House, tmp_path: Path) -> None:
    """English names that programs give have a role; `Gesendet` may be anything."""
    root = make_maildir(tmp_path / "m")
    for number, name in enumerate(("Sent Items", "Deleted Messages", "Spam", "Gesendet", "Sent Mail")):
        make_maildir(root / f".{name}", {"cur/1.x": letter(number)})
    box = await home.box()
    report = await home.bring(box, source(root))
    assert {one.source: (one.folder, one.renamed) for one in report.folders} == {
        "INBOX": ("INBOX", False),
        "Sent Items": ("Sent", True),
        "Sent Mail": ("Sent Mail", False),
        "Deleted Messages": ("Trash", True),
        "Spam": ("Junk", True),
        "Gesendet": ("Gesendet", False),
    }
    async with home.db.acquire() as conn:
        directions = await conn.fetch(
            "SELECT subject, direction FROM messages WHERE mailbox_id = $1 ORDER BY subject", box.ref.mailbox_id
        )
    assert [row["direction"] for row in directions] == ["outbound", "inbound", "inbound", "inbound", "inbound"]


@pytest.mark.covers("mail-server:D2")
async def test_names_that_we_refuse_are_mapped_and_told(home: House, tmp_path: Path) -> None:
    root = make_maildir(tmp_path / "m")
    for name in (".a:b", ".a\\b", "..x", "." + "n" * 250):
        make_maildir(root / name, {"cur/1.x": letter(len(name))})
    box = await home.box()
    report = await home.bring(box, source(root))
    mapped = {one.source: one.folder for one in report.folders if one.renamed}
    assert mapped == {"a:b": "a_b", "a\\b": "a_b", "/x": "_/x"}
    assert len((await home.seen(box.ref))["a_b"]) == 1  # the same bytes once in a folder


async def test_below_a_folder(home: House, tmp_path: Path) -> None:
    root = make_maildir(tmp_path / "m", {"cur/1.x": letter(1)})
    make_maildir(root / ".Sent", {"cur/1.x": letter(2)})
    box = await home.box()
    await home.bring(box, source(root), under="Old/Mail")
    seen = await home.seen(box.ref)
    assert [len(seen[name]) for name in ("INBOX", "Sent", "Old/Mail/INBOX", "Old/Mail/Sent")] == [0, 0, 1, 1]


@pytest.mark.covers("decisions:C7")
async def test_what_cannot_be_brought_is_counted_and_named(home: House, tmp_path: Path) -> None:
    root = make_maildir(
        tmp_path / "m", {"cur/1.ok:2,": letter(1), "cur/2.large:2,": letter(2, "x" * 5000), "cur/3.empty:2,": b""}
    )
    (tmp_path / "secret").write_bytes(letter(9))
    (root / "cur" / "4.link:2,").symlink_to(tmp_path / "secret")
    os.mkfifo(root / "cur" / "5.pipe:2,")
    (root / "cur" / "6.directory").mkdir()
    make_maildir(tmp_path / "elsewhere", {"cur/1.secret": letter(8)})
    (root / ".Link").symlink_to(tmp_path / "elsewhere")
    box = await home.box()
    report = await home.bring(box, source(root, 4096))
    assert not report.is_whole
    assert report.troubles == {Trouble.TOO_LARGE: 1, Trouble.EMPTY: 1, Trouble.UNREADABLE: 2}
    assert ("INBOX", "2.large", Trouble.TOO_LARGE) in report.problems
    assert [one[0] for one in (await home.seen(box.ref))["INBOX"]] == [letter(1)]
    again = await home.bring(box, source(root, 1 << 20))
    assert (again.folders[0].earlier, again.folders[0].imported) == (1, 1)


@pytest.mark.covers("decisions:C7")
@pytest.mark.parametrize("late", [False, True])
async def test_nothing_is_read_through_a_link_to_a_directory(
    home: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """Whoever owns the Maildir may make links while it is being read, too."""
    elsewhere = make_maildir(tmp_path / "elsewhere", {"new/2.a": letter(9)})
    root = make_maildir(tmp_path / "m", {"cur/1.a:2,": letter(1), "new/2.a": letter(2)})

    def link() -> None:
        (root / "new").rename(root / "old")
        (root / "new").symlink_to(elsewhere / "new")

    if late:
        real = MaildirSource.read

        def read(*arguments: Any) -> Any:
            link()
            return real(*arguments)

        monkeypatch.setattr(MaildirSource, "read", read)
    else:
        link()
    box = await home.box()
    report = await home.bring(box, source(root))
    assert [one[0] for one in (await home.seen(box.ref))["INBOX"]] == [letter(1)]
    assert report.troubles == ({Trouble.UNREADABLE: 1} if late else {})


async def test_hostile_control_files(home: House, tmp_path: Path) -> None:
    root = make_maildir(
        tmp_path / "m",
        {"cur/1.a:2,a": letter(1)},
        dovecot_uidlist="3 V0 N5\n9 :1.a\n3 :1.a\n\x00",
        dovecot_keywords="zero\n0\n99 x\n0 a b\n",
        subscriptions="\x00\xff\n",
    )
    (root / "postroom-export.json").write_bytes(b"[" * 100_000)
    box = await home.box()
    report = await home.bring(box, source(root))
    assert report.folders[0].uids is Uids.NONE
    assert (await home.seen(box.ref))["INBOX"] == [(letter(1), (), SECOND)]


@pytest.mark.parametrize("kind", ["missing", "file", "empty"])
def test_no_maildir(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "m"
    if kind == "file":
        root.write_text("x")
    elif kind == "empty":
        root.mkdir()
    with pytest.raises(SourceError):
        source(root).folders()


# -- UIDs --------------------------------------------------------------------------------------------------------------


def with_uids(root: Path, *, validity: int = 1_400_000_000, following: int = 20) -> Path:
    lines = f"3 V{validity} N{following} Gdead\n3 :1.a\n7 W100 :2.b:2,S\n12 :3.c\n"
    files = {"cur/3.c:2,": letter(3), "cur/1.a:2,S": letter(1), "cur/2.b:2,": letter(2)}
    return make_maildir(root, files, dovecot_uidlist=lines)


def inbox(report: ImportReport) -> FolderReport:
    return next(one for one in report.folders if one.folder == "INBOX")


@pytest.mark.covers("mail-server:D4", "decisions:B21", "decisions:C7", "RFC 3501 §2.3.1.1")
async def test_uids_are_kept_in_an_empty_folder(home: House, tmp_path: Path) -> None:
    root = with_uids(tmp_path / "m")
    box = await home.box()
    report = await home.bring(box, source(root))
    assert inbox(report).uids is Uids.KEPT
    assert await home.uids(box.ref, "INBOX") == (1_400_000_000, 20, [3, 7, 12])
    assert [one[0] for one in (await home.seen(box.ref))["INBOX"]] == [letter(1), letter(2), letter(3)]
    again = await home.bring(box, source(root))
    assert (inbox(again).uids, inbox(again).earlier, inbox(again).imported) == (Uids.KEPT, 3, 0)


@pytest.mark.covers("mail-server:D4")
async def test_what_comes_at_the_source_later_keeps_its_uid_too(home: House, tmp_path: Path) -> None:
    root = with_uids(tmp_path / "m")
    box = await home.box()
    await home.bring(box, source(root))
    make_maildir(root, {"cur/4.d": letter(4)}, dovecot_uidlist="3 V1400000000 N31\n3 :1.a\n7 :2.b\n12 :3.c\n30 :4.d\n")
    report = await home.bring(box, source(root))
    assert inbox(report).uids is Uids.KEPT
    assert await home.uids(box.ref, "INBOX") == (1_400_000_000, 31, [3, 7, 12, 30])


@pytest.mark.covers("mail-server:D4")
async def test_uids_are_new_where_mail_is_already(home: House, tmp_path: Path) -> None:
    box = await home.box()
    await home.bring(box, source(make_maildir(tmp_path / "first", {"cur/1.z": letter(9)})))
    before, _, _ = await home.uids(box.ref, "INBOX")
    report = await home.bring(box, source(with_uids(tmp_path / "m")))
    assert inbox(report).uids is Uids.NEW
    assert await home.uids(box.ref, "INBOX") == (before, 5, [1, 2, 3, 4])


@pytest.mark.covers("mail-server:D4", "RFC 3501 §2.3.1.1")
async def test_mail_between_two_runs_ends_it(home: House, tmp_path: Path) -> None:
    """A client that knows UID 20 of the other server must not take ours for it."""
    root = with_uids(tmp_path / "m")
    box = await home.box()
    await home.bring(box, source(root))
    await home.bring(box, source(make_maildir(tmp_path / "late", {"cur/1.z": letter(9)})))
    make_maildir(root, {"cur/4.d": letter(4)}, dovecot_uidlist="3 V1400000000 N21\n3 :1.a\n7 :2.b\n12 :3.c\n20 :4.d\n")
    report = await home.bring(box, source(root))
    validity, _, uids = await home.uids(box.ref, "INBOX")
    assert inbox(report).uids is Uids.NEW
    assert validity > 1_400_000_000
    assert uids == [3, 7, 12, 20, 21]


@pytest.mark.covers("mail-server:D4", "decisions:B21")
async def test_a_folder_made_again_does_not_take_the_same_uids_twice(home: House, tmp_path: Path) -> None:
    root = make_maildir(tmp_path / "m")
    with_uids(root / ".Work")
    box = await home.box()
    await home.bring(box, source(root))
    folder = await home.boxes.folder(box.ref, "Work")
    assert folder.uid_validity == 1_400_000_000
    await home.boxes.delete_folder(box.ref, folder.id)
    report = await home.bring(box, source(root))
    assert (report.folders[1].earlier, report.folders[1].imported) == (3, 0)  # deleted is deleted
    assert "Work" not in await home.seen(box.ref)
    report = await home.bring(box, source(root), forget=True)
    assert report.folders[1].uids is Uids.NEW
    assert (await home.uids(box.ref, "Work"))[0] > 1_400_000_000
    assert len((await home.seen(box.ref))["Work"]) == 3


@pytest.mark.covers("mail-server:D4")
async def test_a_uidvalidity_that_may_have_been_ours(home: House, tmp_path: Path) -> None:
    ours = int(home.clock.now().timestamp()) + 5
    box = await home.box()
    report = await home.bring(box, source(with_uids(tmp_path / "m", validity=ours)))
    assert inbox(report).uids is Uids.NEW


@pytest.mark.covers("mail-server:D2")
async def test_subscriptions(home: House, tmp_path: Path) -> None:
    root = make_maildir(tmp_path / "m", subscriptions="V\t2\n\nWork\nWork\tOld\n")
    for name in (".Work", ".Work.Old", ".Quiet"):
        make_maildir(root / name)
    box = await home.box()
    await home.bring(box, source(root))
    folders = {one.name: one.subscribed for one in await home.boxes.list_folders(box.ref)}
    assert {name: folders[name] for name in ("Work", "Work/Old", "Quiet", "INBOX")} == {
        "Work": True,
        "Work/Old": True,
        "Quiet": False,
        "INBOX": True,
    }


async def test_a_program_changes_flags_while_it_is_read(home: House, tmp_path: Path) -> None:
    root = make_maildir(tmp_path / "m", {"new/1.a": letter(1), "new/2.b": letter(2)})
    opened = source(root)
    (folder,) = opened.folders()
    (page,) = opened.pages(folder)
    (root / "new" / "1.a").rename(root / "cur" / "1.a:2,S")
    (root / "new" / "2.b").unlink()
    first, second = opened.read(folder, page)
    assert (first.flags, second.trouble) == (("$seen",), Trouble.GONE)  # type: ignore[union-attr] # a letter, a problem


@pytest.mark.covers("decisions:C7")
async def test_what_is_deleted_here_stays_deleted(home: House, tmp_path: Path) -> None:
    root = make_maildir(tmp_path / "m", {"cur/1.a:2,S": letter(1), "cur/2.b": letter(2)})
    box = await home.box()
    await home.bring(box, source(root))
    folder = await home.boxes.folder(box.ref, "INBOX")
    await home.boxes.set_flags(box.ref, folder.id, [1], FlagMode.ADD, ["$deleted"])
    await home.boxes.expunge(box.ref, folder.id)
    report = await home.bring(box, source(root))
    assert (inbox(report).earlier, inbox(report).imported) == (2, 0)
    assert len((await home.seen(box.ref))["INBOX"]) == 1
