"""A strict reader of what a server says: RFC 9051 §9, RFC 3501 §9, and the grammars of extensions.

Independent of `postroom.imap`, and as strict as the ABNF: one space where it has one, upper and lower case alike, no
trailing blanks, quoted strings without what they cannot hold. Raises AssertionError, which says where.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_ATOM = rb'[^\x00-\x20\x7f-\xff(){%*"\\\]]+'
_ASTRING = rb'[^\x00-\x20\x7f-\xff(){%*"\\]+'
_TEXT = rb"[\x01-\x09\x0b\x0c\x0e-\x7f]+"
_QUOTED = rb'"(?:[\x01-\x09\x0b\x0c\x0e-\x21\x23-\x5b\x5d-\x7f]|\\["\\])*"'
_QUOTED_UTF8 = rb'"(?:[\x01-\x09\x0b\x0c\x0e-\x21\x23-\x5b\x5d-\xff]|\\["\\])*"'
_NUMBER = rb"(?:0|[1-9][0-9]*)"
_NZ = rb"[1-9][0-9]*"
_SET = rb"[1-9][0-9]*(?::[1-9][0-9]*)?(?:,[1-9][0-9]*(?::[1-9][0-9]*)?)*"
_FLAG = rb"\\?" + _ATOM
_DATE_TIME = (
    rb'"(?: [0-9]|[0-9]{2})-(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)-[0-9]{4} '
    rb'[0-9]{2}:[0-9]{2}:[0-9]{2} [+-][0-9]{4}"'
)
_LITERAL = re.compile(rb"(~?)\{([0-9]+)\}\r\n")
_TAG = rb'[^\x00-\x20\x7f-\xff(){%*"\\+]+'


class Reader:
    """A place in one response, literals included, its last CRLF taken off."""

    def __init__(self, data: bytes, *, utf8: bool = False) -> None:
        self.data = data
        self.at = 0
        self.utf8 = utf8

    def fail(self, wanted: str) -> AssertionError:
        return AssertionError(f"{wanted} expected at {self.at}: {self.data[max(0, self.at - 40) : self.at + 40]!r}")

    def match(self, pattern: bytes, wanted: str) -> bytes:
        found = re.compile(pattern, re.IGNORECASE).match(self.data, self.at)
        if found is None:
            raise self.fail(wanted)
        self.at = found.end()
        return found[0]

    def ahead(self, pattern: bytes) -> bool:
        return re.compile(pattern, re.IGNORECASE).match(self.data, self.at) is not None

    def space(self) -> None:
        self.match(rb" (?! )", "one space")

    def end(self) -> None:
        if self.at != len(self.data):
            raise self.fail("the end")

    # -- terminals

    def literal(self, *, binary: bool, nul: bool = False) -> None:
        found = _LITERAL.match(self.data, self.at)
        if found is None or (found[1] and not binary):
            raise self.fail("a literal")
        octets = self.data[found.end() : found.end() + int(found[2])]
        if len(octets) != int(found[2]) or (not found[1] and not nul and b"\0" in octets):
            raise self.fail("the octets of a literal")
        self.at = found.end() + len(octets)

    def string(self, *, binary: bool = False) -> None:
        if self.ahead(rb'"'):
            text = self.match(_QUOTED_UTF8 if self.utf8 else _QUOTED, "a quoted string")
            if self.utf8:
                text.decode("utf-8")
        else:
            self.literal(binary=binary)

    def nstring(self, *, binary: bool = False) -> None:
        if self.ahead(rb"NIL(?=[ )]|\Z)"):
            self.match(rb"NIL", "NIL")
        else:
            self.string(binary=binary)

    def astring(self) -> None:
        if self.ahead(_ASTRING):
            self.match(_ASTRING, "an astring")
        else:
            self.string()

    def some(self, one: Callable[[], object], *, empty: bool = False) -> None:
        """A list in parentheses, its members one space apart."""
        self.match(rb"\(", "(")
        if empty and self.ahead(rb"\)"):
            self.at += 1
            return
        one()
        while not self.ahead(rb"\)"):
            self.space()
            one()
        self.at += 1

    def word(self) -> bytes:
        return self.match(rb"[A-Z0-9.=+$_-]+", "a word").upper()

    def number(self) -> None:
        self.match(_NUMBER, "a number")

    def flags(self, *, more: bytes = b"") -> None:
        self.some(lambda: self.match(more + _FLAG, "a flag"), empty=True)


# -- codes

_CODES_ALONE = frozenset(
    b"ALERT ALREADYEXISTS AUTHENTICATIONFAILED AUTHORIZATIONFAILED CANNOT CLIENTBUG CLOSED COMPRESSIONACTIVE"
    b" CONTACTADMIN CORRUPTION EXPIRED EXPUNGEISSUED HASCHILDREN INUSE LIMIT NOMODSEQ NONEXISTENT NOPERM NOTSAVED"
    b" OVERQUOTA PARSE PRIVACYREQUIRED READ-ONLY READ-WRITE SERVERBUG TOOBIG TRYCREATE UIDNOTSTICKY UNAVAILABLE"
    b" UNKNOWN-CTE USEATTR NOTIFICATIONOVERFLOW TEMPFAIL MAXCONVERTPARTS".split()
)


def _code(r: Reader) -> None:
    r.match(rb"\[", "[")
    word = r.word()
    arguments: dict[bytes, Callable[[], object]] = {
        b"CAPABILITY": lambda: _capabilities(r),
        b"PERMANENTFLAGS": lambda: r.flags(more=rb"\\\*|"),
        b"UIDNEXT": lambda: r.match(_NZ, "a number"),
        b"UIDVALIDITY": lambda: r.match(_NZ, "a number"),
        b"UNSEEN": lambda: r.match(_NZ, "a number"),
        b"HIGHESTMODSEQ": lambda: r.match(_NZ, "a modseq"),
        b"MODIFIED": lambda: r.match(_SET, "a set"),
        b"MAILBOXID": lambda: r.match(rb"\([A-Za-z0-9_-]{1,255}\)", "an object id"),
        b"APPENDUID": lambda: r.match(_NZ + rb" " + _SET, "a set"),
        b"COPYUID": lambda: r.match(_NZ + rb" " + _SET + rb" " + _SET, "two sets"),
        b"BADCHARSET": lambda: r.some(r.astring),
        b"BADURL": lambda: r.match(rb"[^\x00-\x1f\x7f\]]*", "a URL"),
        b"METADATA": lambda: r.match(rb"(?:LONGENTRIES|MAXSIZE) [0-9]+|TOOMANY|NOPRIVATE", "a word of METADATA"),
        b"INPROGRESS": lambda: r.match(rb'\((?:"[^"]*"|NIL) (?:[0-9]+|NIL) (?:[0-9]+|NIL)\)', "how far it is"),
        b"MESSAGELIMIT": lambda: r.match(rb"[0-9]+(?: [0-9]+)?", "a limit"),
        b"NOUPDATE": lambda: r.string(),
        b"BADEVENT": lambda: r.some(lambda: r.match(_ATOM, "an event")),
        b"LIMIT": lambda: r.match(rb"[^\]]+", "a limit"),
    }
    if r.ahead(rb" "):
        r.space()
        if word not in arguments:
            raise r.fail("a code that takes an argument")
        arguments[word]()
    elif word not in _CODES_ALONE:
        raise r.fail(f"a known code, not {word!r},")
    r.match(rb"\]", "]")


def _capabilities(r: Reader) -> None:
    words = [r.match(_ATOM, "a capability").upper()]
    while r.ahead(rb" "):
        r.space()
        words.append(r.match(_ATOM, "a capability").upper())
    assert len(set(words)) == len(words), "a capability stands twice"
    assert {b"IMAP4REV1", b"IMAP4REV2"} & set(words)


def _resp_text(r: Reader) -> None:
    if r.ahead(rb"\["):
        _code(r)
        r.space()
    r.match(_TEXT, "text")
    r.end()


# -- FETCH


def _address(r: Reader) -> None:
    r.match(rb"\(", "(")
    for number in range(4):
        if number:
            r.space()
        r.nstring()
    r.match(rb"\)", ")")


def _addresses(r: Reader) -> None:
    """One or more addresses with nothing between them, or NIL: an empty list is none."""
    if r.ahead(rb"NIL"):
        r.at += 3
        return
    r.match(rb"\(", "(")
    _address(r)
    while not r.ahead(rb"\)"):
        _address(r)
    r.at += 1


def _envelope(r: Reader) -> None:
    r.match(rb"\(", "(")
    r.nstring()
    r.space()
    r.nstring()
    for _ in range(6):
        r.space()
        _addresses(r)
    for _ in range(2):
        r.space()
        r.nstring()
    r.match(rb"\)", ")")


def _parameters(r: Reader) -> None:
    if r.ahead(rb"NIL"):
        r.at += 3
        return

    def one() -> None:
        r.string()
        r.space()
        r.string()

    r.some(one)


def _disposition(r: Reader) -> None:
    if r.ahead(rb"NIL"):
        r.at += 3
        return
    r.match(rb"\(", "(")
    r.string()
    r.space()
    _parameters(r)
    r.match(rb"\)", ")")


def _language(r: Reader) -> None:
    if r.ahead(rb"\("):
        r.some(r.string)
    else:
        r.nstring()


def _extensions(r: Reader, first: Callable[[], None]) -> None:
    """`first`, disposition, language, location: each only with those before it."""
    for one in (first, lambda: _disposition(r), lambda: _language(r), r.nstring):
        if not r.ahead(rb" "):
            return
        r.space()
        one()


def _body(r: Reader, *, extensible: bool) -> None:
    r.match(rb"\(", "(")
    start = r.at
    if r.ahead(rb"\("):
        while r.ahead(rb"\("):
            _body(r, extensible=extensible)
        r.space()
        r.string()
        last: Callable[[], None] = lambda: _parameters(r)  # noqa: E731 - one of two
    else:
        head = r.match(rb'"[^"]*" "[^"]*"', "media type and subtype").upper()
        r.space()
        _parameters(r)
        for one in (r.nstring, r.nstring, r.string, r.number):
            r.space()
            one()
        if head.startswith((b'"MESSAGE" "RFC822"', b'"MESSAGE" "GLOBAL"')):
            r.space()
            _envelope(r)
            r.space()
            _body(r, extensible=extensible)
            r.space()
            r.number()
        elif head.startswith(b'"TEXT"'):
            r.space()
            r.number()
        last = r.nstring
    if extensible:
        _extensions(r, last)
    if not r.ahead(rb"\)"):
        raise r.fail(f"the end of the body that begins at {start}")
    r.at += 1


_SECTION = (
    rb"(?:[1-9][0-9]*(?:\.[1-9][0-9]*)*(?:\.(?:MIME|HEADER(?:\.FIELDS(?:\.NOT)? %(f)b)?|TEXT))?"
    rb"|HEADER(?:\.FIELDS(?:\.NOT)? %(f)b)?|TEXT|)"
) % {b"f": rb"\((?:" + _ASTRING + rb"|" + _QUOTED + rb")(?: (?:" + _ASTRING + rb"|" + _QUOTED + rb"))*\)"}


def _octets(r: Reader) -> None:
    """Octets of a message are what they are, U+0000 too, which no CHAR8 is: only BINARY can say so (decision 55)."""
    if r.ahead(rb"~?\{"):
        r.literal(binary=False, nul=True)
    else:
        r.nstring()


def _message_attribute(r: Reader) -> None:
    if r.ahead(rb"BODY\["):
        r.match(rb"BODY\[" + _SECTION + rb"\](?:<[0-9]+>)? ", "a section")
        _octets(r)
        return
    if r.ahead(rb"BINARY\["):
        r.match(rb"BINARY\[(?:[1-9][0-9]*(?:\.[1-9][0-9]*)*)?\](?:<[0-9]+>)? ", "a part")
        r.nstring(binary=True)
        return
    if r.ahead(rb"BINARY\.SIZE\["):
        r.match(rb"BINARY\.SIZE\[(?:[1-9][0-9]*(?:\.[1-9][0-9]*)*)?\] [0-9]+", "a size")
        return
    word = r.word()
    r.space()
    values: dict[bytes, Callable[[], object]] = {
        b"FLAGS": r.flags,
        b"UID": lambda: r.match(_NZ, "a UID"),
        b"INTERNALDATE": lambda: r.match(_DATE_TIME, "a date"),
        b"SAVEDATE": lambda: r.match(_DATE_TIME + rb"|NIL", "a date"),
        b"ENVELOPE": lambda: _envelope(r),
        b"BODY": lambda: _body(r, extensible=False),
        b"BODYSTRUCTURE": lambda: _body(r, extensible=True),
        b"RFC822": lambda: _octets(r),
        b"RFC822.HEADER": lambda: _octets(r),
        b"RFC822.TEXT": lambda: _octets(r),
        b"RFC822.SIZE": r.number,
        b"MODSEQ": lambda: r.match(rb"\([1-9][0-9]*\)", "a modseq"),
        b"EMAILID": lambda: r.match(rb"\([A-Za-z0-9_-]{1,255}\)", "an object id"),
        b"THREADID": lambda: r.match(rb"\([A-Za-z0-9_-]{1,255}\)|NIL", "an object id"),
        b"PREVIEW": r.nstring,
    }
    values[word]()


# -- data


def _list(r: Reader) -> None:
    r.some(lambda: r.match(rb"\\" + _ATOM, "an attribute"), empty=True)
    r.space()
    r.match(rb'"(?:[^"\\]|\\["\\])"|NIL', "a separator")
    r.space()
    r.astring()
    if r.ahead(rb" "):
        r.space()

        def extended() -> None:
            r.astring()
            r.space()
            if r.ahead(rb"\("):
                r.some(r.astring)
            else:
                r.astring()

        r.some(extended)


def _status(r: Reader) -> None:
    r.astring()
    r.space()

    def one() -> None:
        word = r.word()
        r.space()
        if word == b"MAILBOXID":
            r.match(rb"\([A-Za-z0-9_-]{1,255}\)", "an object id")
        elif word == b"APPENDLIMIT":
            r.match(_NUMBER + rb"|NIL", "a number")
        else:
            r.number()

    r.some(one, empty=True)


def _numbers(r: Reader) -> None:
    while r.ahead(rb" [0-9]"):
        r.space()
        r.match(_NZ, "a number")
    if r.ahead(rb" \(MODSEQ"):
        r.match(rb" \(MODSEQ [1-9][0-9]*\)", "a modseq")


def _esearch(r: Reader) -> None:
    if r.ahead(rb" \(TAG"):
        r.match(rb' \(TAG "[^"]*"\)', "a correlator")
    if r.ahead(rb" UID(?= |\Z)"):
        r.match(rb" UID", "UID")
    while r.ahead(rb" "):
        r.space()
        word = r.word()
        r.space()
        if word in (b"ALL",):
            r.match(_SET, "a set")
        elif word == b"PARTIAL":
            r.match(rb"\(-?[1-9][0-9]*:-?[1-9][0-9]* (?:NIL|" + _SET + rb")\)", "a part")
        elif word in (b"ADDTO", b"REMOVEFROM"):
            r.match(rb"\([0-9]+ " + _SET + rb"(?: [0-9]+ " + _SET + rb")*\)", "positions")
        elif word == b"RELEVANCY":
            r.match(rb"\([0-9]+(?: [0-9]+)*\)", "scores")
        else:
            assert word in (b"MIN", b"MAX", b"COUNT", b"MODSEQ"), word
            r.number()


def _thread(r: Reader) -> None:
    """``(2)(3 6 (4 23)(44 7 96))`` (RFC 5256 §4)."""
    r.match(rb"\(", "(")
    if not r.ahead(rb"\("):
        r.match(_NZ, "a number")
        while r.ahead(rb" [0-9]"):
            r.space()
            r.match(_NZ, "a number")
        if r.ahead(rb" \("):
            r.space()
    branches = 0
    while r.ahead(rb"\("):
        branches += 1
        _thread(r)
    assert branches != 1 or r.data[r.at - 1 : r.at] == b")"
    r.match(rb"\)", ")")


def _threads(r: Reader) -> None:
    if r.ahead(rb" "):
        r.space()
        _thread(r)
        while r.ahead(rb"\("):
            _thread(r)


def _namespaces(r: Reader) -> None:
    for number in range(3):
        if number:
            r.space()
        if r.ahead(rb"NIL"):
            r.at += 3
            continue
        r.match(rb"\(", "(")
        while not r.ahead(rb"\)"):
            r.match(rb"\(", "(")
            r.string()
            r.space()
            r.match(rb'"(?:[^"\\]|\\["\\])"|NIL', "a separator")
            r.match(rb"\)", ")")
        r.at += 1


def _words(r: Reader) -> None:
    while r.ahead(rb" "):
        r.space()
        r.match(_ATOM, "a word")


def _id(r: Reader) -> None:
    if r.ahead(rb"NIL"):
        r.at += 3
        return

    def pair() -> None:
        r.string()
        r.space()
        r.nstring()

    r.some(pair, empty=True)


def _quota(r: Reader) -> None:
    r.astring()
    r.space()
    r.some(lambda: r.match(_ATOM + rb" [0-9]+ [0-9]+", "a resource"), empty=True)


def _quota_root(r: Reader) -> None:
    r.astring()
    while r.ahead(rb" "):
        r.space()
        r.astring()


def _metadata(r: Reader) -> None:
    r.astring()
    r.space()

    def pair() -> None:
        r.match(rb"/(?:private|shared)(?:/[^/*% \x00-\x1f()]+)+", "an entry")
        r.space()
        r.nstring(binary=True)

    if r.ahead(rb"\("):
        r.some(pair)
    else:
        _quota_root(r)


def _rights(r: Reader) -> None:
    """``*(LOWER-ALPHA / DIGIT)`` as astring (RFC 4314 §6)."""
    start = r.at
    r.astring()
    assert re.fullmatch(rb'"[a-z0-9]*"|[a-z0-9]+', r.data[start : r.at]), "rights"


def _acl(r: Reader) -> None:
    r.astring()
    while r.ahead(rb" "):
        r.space()
        r.astring()
        r.space()
        _rights(r)


def _list_rights(r: Reader) -> None:
    r.astring()
    r.space()
    r.astring()
    while True:
        r.space()
        _rights(r)
        if not r.ahead(rb" "):
            return


def _my_rights(r: Reader) -> None:
    r.astring()
    r.space()
    _rights(r)


def _vanished(r: Reader) -> None:
    if r.ahead(rb"\(EARLIER\)"):
        r.match(rb"\(EARLIER\) ", "EARLIER")
    r.match(_SET, "a set")


_AFTER_SPACE: dict[bytes, Callable[[Reader], None]] = {
    b"CAPABILITY": _capabilities,
    b"FLAGS": Reader.flags,
    b"LIST": _list,
    b"LSUB": _list,
    b"STATUS": _status,
    b"NAMESPACE": _namespaces,
    b"ID": _id,
    b"QUOTA": _quota,
    b"QUOTAROOT": _quota_root,
    b"METADATA": _metadata,
    b"ACL": _acl,
    b"LISTRIGHTS": _list_rights,
    b"MYRIGHTS": _my_rights,
    b"VANISHED": _vanished,
}
_WITH_SPACES: dict[bytes, Callable[[Reader], None]] = {
    b"SEARCH": _numbers,
    b"SORT": _numbers,
    b"ESEARCH": _esearch,
    b"THREAD": _threads,
    b"ENABLED": _words,
}


def check(response: bytes, *, utf8: bool = False) -> None:
    """Read one whole response, without the CRLF at its end. `utf8`: after ENABLE of UTF8=ACCEPT or IMAP4rev2."""
    r = Reader(response, utf8=utf8)
    if r.ahead(rb"\+"):
        r.match(rb"\+ ", "a continuation")
        if not r.ahead(rb"\Z"):
            _resp_text(r)
        return
    if not r.ahead(rb"\* "):
        r.match(_TAG, "a tag")
        r.space()
        r.match(rb"(?:OK|NO|BAD)(?= )", "a status")
        r.space()
        _resp_text(r)
        return
    r.at = 2
    if r.ahead(rb"[0-9]"):
        number = r.match(_NUMBER, "a number")
        r.space()
        word = r.word()
        if word == b"FETCH":
            assert number != b"0"
            r.space()
            r.some(lambda: _message_attribute(r))
        else:
            assert word in (b"EXISTS", b"RECENT", b"EXPUNGE"), word
            assert word != b"EXPUNGE" or number != b"0"
        r.end()
        return
    word = r.word()
    if word in (b"OK", b"NO", b"BAD", b"BYE", b"PREAUTH"):
        r.space()
        _resp_text(r)
        return
    if word in _WITH_SPACES:
        _WITH_SPACES[word](r)
    elif word in _AFTER_SPACE:
        r.space()
        _AFTER_SPACE[word](r)
    else:
        raise r.fail(f"a known response, not {word!r},")
    r.end()
