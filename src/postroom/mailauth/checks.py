"""DKIM, ARC and DMARC of one message together: header read once, body hashed once, all of DNS known beforehand."""

from collections.abc import Sequence
from dataclasses import dataclass

from postroom.mailauth import dmarc
from postroom.mailauth.arc_chain import ArcResult
from postroom.mailauth.arc_verify import ArcVerifier
from postroom.mailauth.authres import AuthenticationResults
from postroom.mailauth.authres_trust import trusted_results
from postroom.mailauth.canonical import BodyHashes, HeaderField, MalformedHeaderError, parse_fields
from postroom.mailauth.dkim_result import SignatureResult
from postroom.mailauth.dkim_verify import Verifier
from postroom.mailauth.dmarc import DmarcResult, SpfOutcome
from postroom.mailauth.resolver import TxtResolver


@dataclass(frozen=True, slots=True)
class Findings:
    """What the checks found."""

    dkim: tuple[SignatureResult, ...]
    arc: ArcResult
    dmarc: DmarcResult


class Checks:
    """The checks of one message: `update` with the body, piece by piece, then `results`, once.

    Of a message as received, without trace fields of our own (mail-server B4). Never raises on its content.
    """

    __slots__ = ("_arc", "_author", "_body", "_dkim", "_fields", "_sender")

    def __init__(self, header: bytes, *, now: int, author: str | None, sender: str | None) -> None:
        """`header`: the header block as received, its blank line included or not; `now`: seconds since 1970.

        `author`: the domain of From (`dmarc.author_domain`); `sender`: the domain that SPF is about, to know what will
        be asked. Both None where there is none.
        """
        fields: Sequence[HeaderField] | None
        try:
            fields = parse_fields(header, mbox=True)
        except MalformedHeaderError:
            fields = None
        self._fields = fields or ()
        self._author = author
        self._sender = sender
        self._body = BodyHashes()
        self._dkim = Verifier(header, now=now, body=self._body, fields=fields)
        self._arc = ArcVerifier(header, now=now, body=self._body, fields=fields)

    @property
    def queries(self) -> tuple[str, ...]:
        """The names whose TXT records `results` will ask for, each once: to be asked for beforehand, all at a time."""
        identifiers = self._dkim.domains if self._sender is None else (*self._dkim.domains, self._sender)
        asked = (*dmarc.queries(self._author, identifiers), *self._dkim.queries, *self._arc.queries)
        return tuple(dict.fromkeys(asked))

    @property
    def needs_body(self) -> bool:
        """Whether any signature covers the body; otherwise `update` may be left out."""
        return self._body.needed

    def trusted(self, authserv_id: str) -> AuthenticationResults | None:
        """What a trusted server found out, on mail that it handed over (`authres_trust.trusted_results`)."""
        return trusted_results(self._fields, authserv_id)

    def update(self, data: bytes) -> None:
        """Take the next octets of the body, as received."""
        self._body.update(data)

    async def results(self, resolver: TxtResolver, spf: SpfOutcome, *, author_exists: bool | None = None) -> Findings:
        """All results, the given one of SPF taken into account (`dmarc.evaluate`)."""
        dkim = await self._dkim.results(resolver)
        arc = await self._arc.result(resolver)
        found = await dmarc.evaluate(self._author, spf, dkim, resolver, author_exists=author_exists)
        return Findings(dkim, arc, found)
