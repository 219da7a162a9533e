"""What leaves of a message, and what does not (FR-WH-4): each place of one has a word of its own."""

from __future__ import annotations

import json
import re
from typing import Final

import pytest

from postroom.base.clock import ManualClock
from postroom.base.ids import IdGenerator
from postroom.db import Database
from tests.events.test_catalogue import events, stored
from tests.mailbox.letters import Pen, make_boxes

LETTER: Final = (
    b"Received: from relay (canaryreceived) by mx; Tue, 01 Jan 2030 00:00:00 +0000\r\n"
    b"From: canaryfrom <anna@example.com>\r\nTo: canaryto <box@agents.example>\r\nCc: canarycc <cora@example.com>\r\n"
    b"Reply-To: canaryreplyto <r@example.com>\r\nSender: canarysender <s@example.com>\r\n"
    b"Subject: canarysubject\r\nMessage-ID: <canarymessageid@example.com>\r\n"
    b"References: <canaryreference@example.com>\r\n"
    b"Comments: canarycomment\r\nX-Secret: canaryheader\r\nList-Unsubscribe: <https://example.com/canarylist>\r\n"
    b'MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary="m"\r\n\r\ncanarypreamble\r\n'
    b'--m\r\nContent-Type: multipart/alternative; boundary="a"\r\n\r\n'
    b"--a\r\nContent-Type: text/plain\r\n\r\ncanarytext\r\n\r\n"
    b"On Tue, Anna <anna@example.com> wrote:\r\n> canaryquoted\r\n"
    b"--a\r\nContent-Type: text/html\r\n\r\n<p title=canaryattribute>canarytext</p><!-- canaryhtmlcomment -->\r\n"
    b"--a--\r\n"
    b"--m\r\nContent-Type: text/csv; name=canaryfile.csv\r\n"
    b"Content-Disposition: attachment; filename=canaryfile.csv\r\n"
    b"Content-Description: canarydescription\r\nContent-ID: <canarycontentid@x>\r\n\r\ncanaryattached\r\n"
    b"--m--\r\ncanaryepilogue\r\n"
)
MAY_LEAVE: Final = {"canaryfrom", "canaryto", "canarycc", "canarysubject", "canarytext", "canaryfile"}


@pytest.mark.covers("FR-WH-4")
async def test_nothing_of_a_message_leaves_but_what_is_listed(
    db: Database, clock: ManualClock, ids: IdGenerator
) -> None:
    (box,) = await make_boxes(db, ids, clock)
    await stored(db, Pen(ids, clock), box, LETTER)
    ((row,),) = [await events(db, box)]
    payload = row["payload"].decode()
    assert set(re.findall(r"canary[a-z]+", payload)) == MAY_LEAVE
    data = json.loads(payload)["data"]
    # The text is in the one member that is cut to a measure.
    assert data["extracted_text"] == "canarytext"
    del data["extracted_text"]
    assert "canarytext" not in json.dumps(data)
