"""The arguments of NOTIFY (RFC 5465 §8)."""

from __future__ import annotations

import pytest

from postroom.imap import BadCommand, CommandReader, ParserOptions, ProtocolNo, RawCommand, parse_command
from postroom.imap import commands as c
from postroom.imap.commands import EventGroup, NotifyEvent, NotifyFilter
from postroom.imap.fetch import FetchAtt, FetchItem

NEW, GONE, FLAGS = NotifyEvent.MESSAGE_NEW, NotifyEvent.MESSAGE_EXPUNGE, NotifyEvent.FLAG_CHANGE
NAME, SUBSCRIPTION = NotifyEvent.MAILBOX_NAME, NotifyEvent.SUBSCRIPTION_CHANGE
OPTIONS = ParserOptions(capabilities=frozenset({"NOTIFY"}))


def _parse(line: bytes, options: ParserOptions = OPTIONS) -> c.Command:
    (raw,) = CommandReader(authenticated=True).feed(b"a1 " + line + b"\r\n")
    assert isinstance(raw, RawCommand)
    return parse_command(raw, options)


def _group(which: NotifyFilter, *events: NotifyEvent, names: tuple[str, ...] = ()) -> EventGroup:
    return EventGroup(which, frozenset(events), names)


@pytest.mark.covers("RFC 5465 §8")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"notify none", c.Notify()),
        (b"NOTIFY SET (selected NONE)", c.Notify((_group(NotifyFilter.SELECTED),))),
        (
            b"NOTIFY SET STATUS (Selected-Delayed (messageNEW (UID FLAGS) MessageExpunge)) (subtree Lists NONE)",
            c.Notify(
                (
                    EventGroup(
                        NotifyFilter.SELECTED_DELAYED,
                        frozenset({NEW, GONE}),
                        (),
                        (FetchItem(FetchAtt.UID), FetchItem(FetchAtt.FLAGS)),
                    ),
                    _group(NotifyFilter.SUBTREE, names=("Lists",)),
                ),
                status=True,
            ),
        ),
        (
            b'NOTIFY SET (mailboxes (inbox "a b" {1+}\r\nc inBOX) (FlagChange MessageNew MessageExpunge MailboxName))',
            c.Notify((_group(NotifyFilter.MAILBOXES, FLAGS, NEW, GONE, NAME, names=("INBOX", "a b", "c")),)),
        ),
        (
            b"NOTIFY SET ( inboxes ( MailboxName ) )  (personal (SubscriptionChange))(subscribed NONE)",
            None,
        ),
        (
            b"NOTIFY SET ( inboxes ( MailboxName ) )  (personal (SubscriptionChange)) (subscribed NONE) ",
            c.Notify(
                (
                    _group(NotifyFilter.INBOXES, NAME),
                    _group(NotifyFilter.PERSONAL, SUBSCRIPTION),
                    _group(NotifyFilter.SUBSCRIBED),
                )
            ),
        ),
        (b"NOTIFY SET (status NONE)", None),
        (b"NOTIFY", None),
        (b"NOTIFY SET", None),
        (b"NOTIFY SET STATUS", None),
        (b"NOTIFY SET ()", None),
        (b"NOTIFY SET (selected)", None),
        (b"NOTIFY SET (selected ())", None),
        (b"NOTIFY SET (selected NONE", None),
        (b"NOTIFY SET (mailboxes (MailboxName))", None),
        (b"NOTIFY SET (mailboxes () (MailboxName))", None),
        (b"NOTIFY SET (personal (MailboxName)", None),
        (b"NOTIFY SET (personal (MailboxName(UID)))", None),
        (b"NOTIFY SET (personal (MessageNew () MessageExpunge))", None),
        (b"NOTIFY SET (personal (MessageNew UID MessageExpunge)) x", None),
        (b"NOTIFY NONE x", None),
        # What goes together (§5), and what is of the selected mailbox (§6.1).
        (b"NOTIFY SET (personal (MessageNew))", None),
        (b"NOTIFY SET (personal (MessageExpunge))", None),
        (b"NOTIFY SET (personal (FlagChange))", None),
        (b"NOTIFY SET (personal (FlagChange MessageNew))", None),
        (b"NOTIFY SET (personal (AnnotationChange))", None),
        (b"NOTIFY SET (selected (MailboxName))", None),
        (b"NOTIFY SET (selected (MessageNew MessageExpunge ServerMetadataChange))", None),
        (b"NOTIFY SET (selected NONE) (selected-delayed NONE)", None),
        # What is wrong is told before what we do not have.
        (b"NOTIFY SET (personal (AnythingElse)) (personal (MessageNew))", None),
    ],
)
def test_notify(line: bytes, expected: c.Command | None) -> None:
    if expected is None:
        with pytest.raises(BadCommand):
            _parse(line)
    else:
        assert _parse(line) == expected


@pytest.mark.covers("RFC 5465 §3.1")
@pytest.mark.parametrize(
    "events",
    [
        b"(AnythingElse)",
        b"(MailboxName AnnotationChanges)",
        b"(MessageNew MessageExpunge AnnotationChange)",
    ],
)
def test_events_that_we_do_not_have(events: bytes) -> None:
    with pytest.raises(ProtocolNo) as caught:
        _parse(b"NOTIFY SET (personal " + events + b")")
    assert caught.value.code == (
        "BADEVENT (MessageNew MessageExpunge FlagChange MailboxName SubscriptionChange MailboxMetadataChange"
        " ServerMetadataChange)"
    )


def test_limits() -> None:
    names = b" ".join(b"m%d" % n for n in range(600))
    group = b" (mailboxes (" + names + b") (MailboxName))"
    assert isinstance(_parse(b"NOTIFY SET" + group), c.Notify)
    for line in (b"NOTIFY SET" + 2 * group, b"NOTIFY SET" + 65 * b" (personal NONE)"):
        with pytest.raises(ProtocolNo) as caught:
            _parse(line)
        assert caught.value.code == "NOTIFICATIONOVERFLOW"


def test_unknown_where_it_is_not_on_offer() -> None:
    with pytest.raises(BadCommand):
        _parse(b"NOTIFY NONE", ParserOptions())
