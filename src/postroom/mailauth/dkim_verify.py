"""Judging the DKIM signatures of a message (RFC 6376 §6, RFC 8301, RFC 8463; rule B4).

`Verifier` takes the header, then the body as it comes, then a resolver; `verify` does all of it for a message in
memory. A message never makes them raise: what is wrong with a signature is its result.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from postroom.mailauth.canonical import (
    PIECE,
    BodyHashes,
    HeaderField,
    MalformedHeaderError,
    find_body,
    header_digest,
    parse_fields,
)
from postroom.mailauth.dkim_record import KeyRecord, fetch_record
from postroom.mailauth.dkim_result import DkimError, Reason, SignatureResult
from postroom.mailauth.dkim_signature import FIELD_NAME, Signature, describe, read_signature, read_tags
from postroom.mailauth.resolver import TxtResolver
from postroom.mailauth.tags import Tag
from postroom.mailauth.turns import turn

MAX_SIGNATURES: Final = 10
"""Signatures that are looked at, the topmost first (inbound §17); each costs a look-up and a public-key operation."""
MAX_SKEW: Final = 300
"""Seconds that a signature is believed beyond its end: clocks differ (RFC 6376 §3.5, x=)."""
MAX_AHEAD: Final = 86_400
"""Seconds that a signature may lie ahead: more than a clock in the wrong time zone."""
LARGE_HEADER: Final = 32 * 1024
"""Octets of a header that each signature over it may take milliseconds for: between them others have their turn."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A signature field as far as it can be judged without body and key: `reason` says if that was all."""

    tags: Mapping[str, Tag]
    signature: Signature | None
    reason: Reason | None

    @property
    def domain(self) -> str:
        return describe(Reason.SYNTAX, self.tags).domain if self.signature is None else self.signature.domain


class Verifier:
    """The verification of one message: `update` with the body, piece by piece, then `results`, once.

    Checks of the same message share one `body`, which then is updated by whoever made it.
    """

    __slots__ = ("_candidates", "_fields", "_is_large", "_now", "body", "unchecked")

    def __init__(
        self,
        header: bytes,
        *,
        now: int,
        max_signatures: int = MAX_SIGNATURES,
        body: BodyHashes | None = None,
        fields: Sequence[HeaderField] | None = None,
    ) -> None:
        """`header`: the header block as received, its blank line included or not; `now`: seconds since 1970.

        `fields`: those of the header, where `parse_fields` has them already.
        """
        self._now = now
        self._is_large = len(header) > LARGE_HEADER
        self._candidates: list[_Candidate] = []
        self._fields: Sequence[HeaderField] = fields or ()
        self.body = BodyHashes() if body is None else body
        self.unchecked = 0
        """Signatures beyond `max_signatures`, that have no result."""
        malformed = False
        if fields is None:
            try:
                self._fields = parse_fields(header, mbox=True)
            except MalformedHeaderError:
                malformed = True
        if malformed:
            if b"dkim-signature" in header.lower():
                self._candidates.append(_Candidate({}, None, Reason.MALFORMED_MESSAGE))
        else:
            found = [field for field in self._fields if field.name == FIELD_NAME]
            self.unchecked = max(0, len(found) - max_signatures)
            self._candidates = [self._read(field) for field in found[:max_signatures]]
        for signature in self._pending():
            self.body.want(signature.body, signature.body_length)

    @property
    def queries(self) -> tuple[str, ...]:
        """The names whose TXT records `results` will ask for, each once: to be asked for beforehand, all at a time."""
        return tuple(dict.fromkeys(signature.record_name for signature in self._pending()))

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains that the results will name, each once: those whose alignment will be asked for."""
        named = (candidate.domain for candidate in self._candidates)
        return tuple(dict.fromkeys(domain for domain in named if domain))

    def update(self, data: bytes) -> None:
        """Take the next octets of the body, as received."""
        self.body.update(data)

    async def results(self, resolver: TxtResolver) -> tuple[SignatureResult, ...]:
        """One result for each signature, in the order of their fields; none when the message has none."""
        records = await fetch_records(resolver, self.queries)
        judged: list[SignatureResult] = []
        for candidate in self._candidates:
            if judged and self._is_large:
                await turn()
            judged.append(self._judge(candidate, records))
        return tuple(judged)

    def _pending(self) -> Iterator[Signature]:
        """Those that body and key are needed for."""
        for candidate in self._candidates:
            if candidate.signature is not None and candidate.reason is None:
                yield candidate.signature

    def _read(self, field: HeaderField) -> _Candidate:
        tags: Mapping[str, Tag] = {}
        signature = None
        try:
            tags = read_tags(field)
            signature = read_signature(field, tags)
        except DkimError as error:
            return _Candidate(tags, None, error.reason)
        return _Candidate(tags, signature, check_times(signature, self._now))

    def _judge(self, candidate: _Candidate, records: Mapping[str, KeyRecord | DkimError]) -> SignatureResult:
        signature, reason, record = candidate.signature, candidate.reason, None
        if signature is None:
            return describe(reason or Reason.SYNTAX, candidate.tags)
        if reason is None:
            try:
                record = found_record(records[signature.record_name])
                check_signature(signature, record, self._fields, self.body)
                reason = Reason.VERIFIED
            except DkimError as error:
                reason = error.reason
        return SignatureResult(
            reason=reason,
            domain=signature.domain,
            selector=signature.selector,
            identity=signature.identity,
            algorithm=signature.algorithm.value,
            signature_start=signature.signature_start,
            signed_fields=signature.signed_fields,
            signed_at=signature.signed_at,
            expires_at=signature.expires_at,
            body_length=signature.body_length,
            key_bits=None if record is None else record.bits,
            testing=record is not None and record.testing,
            strict_identity=record is not None and record.strict_identity,
        )


async def fetch_records(resolver: TxtResolver, names: Iterable[str]) -> dict[str, KeyRecord | DkimError]:
    """The keys at `names`, or why there is none."""
    records: dict[str, KeyRecord | DkimError] = {}
    for name in names:
        try:
            records[name] = await fetch_record(resolver, name)
        except DkimError as error:
            records[name] = error
    return records


def found_record(record: KeyRecord | DkimError) -> KeyRecord:
    """The key, or its error raised."""
    if isinstance(record, DkimError):
        raise record
    return record


def check_times(signature: Signature, now: int) -> Reason | None:
    """Whether a signature is too old or too young (RFC 6376 §3.5, t= and x=), clocks being what they are."""
    if signature.expires_at is not None and signature.expires_at < now - MAX_SKEW:
        return Reason.EXPIRED
    if signature.signed_at is not None and signature.signed_at > now + MAX_AHEAD:
        return Reason.FUTURE
    return None


def check_signature(signature: Signature, record: KeyRecord, fields: Sequence[HeaderField], body: BodyHashes) -> None:
    """RFC 6376 §6.1.2 and §6.1.3. Raises `DkimError` unless the signature is good."""
    if record.key_type != signature.algorithm.key_type:
        raise DkimError(Reason.KEY_MISMATCH)
    if record.strict_identity and signature.identity_domain != signature.domain:
        raise DkimError(Reason.DOMAIN_MISMATCH)
    record.check_strength()
    digest, limit = body.digest(signature.body, signature.body_length), signature.body_length
    length = body.length(signature.body)
    if limit is not None and limit > length:
        raise DkimError(Reason.BODY_LENGTH)
    if digest != signature.body_hash:
        raise DkimError(Reason.BODY_HASH)
    if not record.verifies(signature.algorithm, signature.signature, _header_digest(signature, fields)):
        raise DkimError(Reason.SIGNATURE)
    if limit is not None and limit < length:
        raise DkimError(Reason.UNSIGNED_TAIL)


def _header_digest(signature: Signature, fields: Sequence[HeaderField]) -> bytes:
    """RFC 6376 §3.7: the fields that `h=` names, then the signature itself, without its value and line end."""
    if signature.field.name in signature.signed_fields:
        fields = [field for field in fields if field is not signature.field]
    return header_digest(fields, signature.signed_fields, signature.unsigned, signature.header)


async def verify(
    raw: bytes,
    resolver: TxtResolver,
    *,
    now: int,
    body_start: int | None = None,
    max_signatures: int = MAX_SIGNATURES,
) -> tuple[SignatureResult, ...]:
    """The results for the signatures of a message as received, without trace fields of our own (rule B4).

    `now`: seconds since 1970; `body_start`: offset of the body where the caller has it already, as `mail.mime` finds
    it. Takes time linear in `raw`; never raises on its content.
    """
    at = find_body(raw) if body_start is None else body_start
    verifier = Verifier(raw[:at], now=now, max_signatures=max_signatures)
    if verifier.body.needed:
        for start in range(at, len(raw), PIECE):
            verifier.update(raw[start : start + PIECE])
    return await verifier.results(resolver)
