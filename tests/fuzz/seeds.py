"""What fuzzing begins with: the messages of the corpus, and a few lines of each grammar."""

from __future__ import annotations

from pathlib import Path
from typing import Final

CORPUS: Final = Path(__file__).resolve().parents[1] / "corpus"
REGRESSIONS: Final = Path(__file__).resolve().parent / "regressions"
"""`<target>/<name>`: bytes that broke a target once."""

_LINES: Final = (
    b'From: =?utf-8?q?Ann_Example?= <ann@example.com>, "B, C" <b@example.net> (x), Group: d@example.org, e;\r\n'
    b"Subject: =?iso-2022-jp?B?GyRCJCIbKEI=?= =?utf-8?b?w6Q=?=\r\nDate: Thu, 05 Mar 2026 09:07:03 -0330 (x)\r\n"
    b"Message-ID: <m1@example.com>\r\nReferences: <a@example.com> <b@example.com>\r\n"
    b"Content-Type: multipart/mixed; boundary*0*=utf-8''a%20; boundary*1=\"b\"\r\n\r\n"
    b"--a b\r\nContent-Type: text/plain; charset=utf-16; format=flowed; delsp=yes\r\n"
    b"Content-Transfer-Encoding: base64\r\n\r\n//5oAGkA\r\n--a b\r\n\r\n> quoted \r\n-- \r\nAnn\r\n--a b--\r\n",
    b"DKIM-Signature: v=1; a=rsa-sha256; c=relaxed/simple; d=example.com; s=s1; h=from:to;\r\n"
    b" bh=47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=; b=AAAA\r\nFrom: a@example.com\r\n\r\nhi\r\n",
    b"a1 LOGIN {3+}\r\njoe {2}\r\npw\r\na2 UID FETCH 1:*,7 (FLAGS BODY.PEEK[1.2.HEADER.FIELDS (TO)]<0.10>)\r\n"
    b'a3 SEARCH RETURN (ALL) OR NOT SEEN (FROM "a" SINCE 1-Feb-2026)\r\na4 LIST "" %\r\n',
    b"p=tls-server-end-point,a=ann,n=ann,r=abc\nc=cD10bHMtc2VydmVyLWVuZC1wb2ludCxhPWFubiwAAAA=,r=abcnonce,x=1,p=AAAA",
    b"n,,n=a=2C\xc2\xaab=3D,r=abc\nc=biws,r=abcnonce,p=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
    b'b1 ENABLE UTF8=ACCEPT\r\nb2 AUTHENTICATE PLAIN\r\nAGEAYg==\r\nb3 IDLE\r\nDONE\r\nb4 ID ("name" {1}\r\nx)\r\n'
    b"b5 SELECT {5+}\r\nINBOX (QRESYNC (1 2 3:4))\r\nb6 NOTIFY SET (selected (MessageNew (UID) MessageExpunge))\r\n",
    b"c1 APPEND x (\\Seen) {2}\r\nhi ~{3+}\r\n\0\r\n CATENATE (TEXT {1+}\r\ny URL {6+}\r\n;UID=9)\r\n"
    b"c2 UID REPLACE 7 {1+}\r\nx ~{2}\r\n\0y\r\nc3 SETMETADATA {0+}\r\n (/private/x ~{2+}\r\n\0\0)\r\n"
    b"c4 X {99999+}\r\n",
    b"joe\nHello =?\nx\nSome text, with umlauts: \xc3\xa4\n",
)


def seeds() -> list[bytes]:
    """The corpus in a fixed order, then one text for each grammar."""
    return [*(path.read_bytes() for path in sorted(CORPUS.rglob("*.eml"))), *_LINES]
