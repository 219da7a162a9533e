"""Judging an Authenticated Received Chain (RFC 8617 §5.2). It never overrides DMARC (inbound §17 step 4)."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

from postroom.mailauth.arc_chain import (
    SEAL,
    ArcError,
    ArcReason,
    ArcResult,
    ArcSet,
    collect,
    highest_instance,
)
from postroom.mailauth.canonical import (
    PIECE,
    BodyHashes,
    Canonicalisation,
    HeaderField,
    MalformedHeaderError,
    canonical_field,
    find_body,
    parse_fields,
)
from postroom.mailauth.dkim_record import KeyRecord
from postroom.mailauth.dkim_result import DkimError, Reason
from postroom.mailauth.dkim_signature import Seal, Signature, read_message_signature, read_seal
from postroom.mailauth.dkim_verify import LARGE_HEADER, check_signature, check_times, fetch_records, found_record
from postroom.mailauth.resolver import TxtResolver
from postroom.mailauth.turns import turn

MAX_KEYS: Final = 6
"""Keys that are asked for: enough for five sets, all with keys of their own, and the newest message signature's."""


class ArcVerifier:
    """The judgement of one message: `update` with the body, piece by piece, then `result`, once.

    Checks of the same message share one `body`, which then is updated by whoever made it.
    """

    __slots__ = ("_error", "_fields", "_is_large", "_seals", "_sets", "_signatures", "body", "instances")

    def __init__(
        self,
        header: bytes,
        *,
        now: int,
        body: BodyHashes | None = None,
        fields: Sequence[HeaderField] | None = None,
    ) -> None:
        """`header`: the header block as received, its blank line included or not; `now`: seconds since 1970.

        `fields`: those of the header, where `parse_fields` has them already.
        """
        self.body = BodyHashes() if body is None else body
        self.instances = 0
        self._is_large = len(header) > LARGE_HEADER
        self._error: ArcError | None = None
        self._sets: tuple[ArcSet, ...] = ()
        self._seals: list[Seal] = []
        self._signatures: dict[int, Signature] = {}
        try:
            self._fields = parse_fields(header, mbox=True) if fields is None else fields
        except MalformedHeaderError:
            self._fields = ()
            if b"arc-seal" in header.lower():
                self._error = ArcError(ArcReason.MALFORMED_MESSAGE)
            return
        self.instances = highest_instance(self._fields)
        try:
            self._sets = collect(self._fields)
            self._read(now)
        except ArcError as error:
            self._error = error
            return
        for signature in self._signatures.values():
            self.body.want(signature.body, signature.body_length)

    @property
    def queries(self) -> tuple[str, ...]:
        """The names whose TXT records `result` will ask for, each once: to be asked for beforehand, all at a time."""
        if self._error is not None or not self._sets:
            return ()
        newest = self._signatures[len(self._sets)]
        return tuple(dict.fromkeys((newest.record_name, *(seal.record_name for seal in reversed(self._seals)))))

    def update(self, data: bytes) -> None:
        """Take the next octets of the body, as received."""
        self.body.update(data)

    async def result(self, resolver: TxtResolver) -> ArcResult:
        """What the chain is worth; never raises on what comes from outside."""
        if self._error is not None:
            return self._failed(self._error)
        if not self._sets:
            return ArcResult(ArcReason.NO_CHAIN)
        records = await fetch_records(resolver, self.queries)
        try:
            self._check_signature(len(self._sets), records)
            await self._check_seals(records)
        except ArcError as error:
            return self._failed(error)
        return ArcResult(
            ArcReason.VERIFIED, len(self._sets), self._seals[-1].domain, oldest_pass=await self._oldest_pass(records)
        )

    def _read(self, now: int) -> None:
        for found in self._sets:
            newest = found is self._sets[-1]
            try:
                self._seals.append(read_seal(found.fields[2], found.seal_tags))
            except DkimError as error:
                raise ArcError(ArcReason.SEAL, found.instance, error.reason) from None
            try:
                signature = read_message_signature(found.fields[1], found.signature_tags)
                if SEAL in signature.signed_fields:  # RFC 8617 §4.1.2; of the others older sealers did sign some
                    raise DkimError(Reason.SYNTAX)
                late = check_times(signature, now) if newest else None
                if late is not None:
                    raise DkimError(late)
            except DkimError as error:
                if newest:
                    raise ArcError(ArcReason.MESSAGE_SIGNATURE, found.instance, error.reason) from None
                continue  # the message may have been changed since; only the newest has to hold
            self._signatures[found.instance] = signature
        if len(self.queries) > MAX_KEYS:
            raise ArcError(ArcReason.TOO_MANY_KEYS)

    def _failed(self, error: ArcError) -> ArcResult:
        return ArcResult(
            error.reason,
            self.instances,
            self._seals[-1].domain if self._seals and len(self._seals) == len(self._sets) else "",
            failed_instance=error.instance,
            detail=error.detail,
        )

    async def _turn(self) -> None:
        """Let others have theirs, where each signature may take milliseconds."""
        if self._is_large:
            await turn()

    def _check_signature(self, instance: int, records: Mapping[str, KeyRecord | DkimError]) -> None:
        signature = self._signatures[instance]
        try:
            check_signature(signature, found_record(records[signature.record_name]), self._fields, self.body)
        except DkimError as error:
            raise ArcError(ArcReason.MESSAGE_SIGNATURE, instance, error.reason) from None

    async def _check_seals(self, records: Mapping[str, KeyRecord | DkimError]) -> None:
        """Each covers the sets up to its own, in order, itself without the value of `b=` (RFC 8617 §5.1.1)."""
        hashed = hashlib.sha256()
        failed: ArcError | None = None
        for found, seal in zip(self._sets, self._seals, strict=True):
            await self._turn()
            for field in found.fields[:2]:
                hashed.update(canonical_field(field, Canonicalisation.RELAXED))
            own = hashed.copy()
            own.update(canonical_field(seal.unsigned, Canonicalisation.RELAXED)[:-2])
            hashed.update(canonical_field(seal.field, Canonicalisation.RELAXED))
            try:
                _check_seal(seal, found_record(records[seal.record_name]), own.digest())
            except DkimError as error:
                failed = ArcError(ArcReason.SEAL, found.instance, error.reason)
        if failed is not None:
            raise failed  # the newest that fails

    async def _oldest_pass(self, records: Mapping[str, KeyRecord | DkimError]) -> int:
        """RFC 8617 §5.2 step 5, with the keys that are at hand."""
        for instance in range(len(self._sets) - 1, 0, -1):
            signature = self._signatures.get(instance)
            if signature is None or signature.record_name not in records:
                return instance + 1
            await self._turn()
            try:
                self._check_signature(instance, records)
            except ArcError:
                return instance + 1
        return 0


def _check_seal(seal: Seal, record: KeyRecord, digest: bytes) -> None:
    record.check_strength()
    if not record.verifies(seal.algorithm, seal.signature, digest):
        raise DkimError(Reason.SIGNATURE)


async def verify_chain(raw: bytes, resolver: TxtResolver, *, now: int, body_start: int | None = None) -> ArcResult:
    """The result for a message as received, as `dkim_verify.verify` takes it. Never raises on its content."""
    at = find_body(raw) if body_start is None else body_start
    verifier = ArcVerifier(raw[:at], now=now)
    if verifier.body.needed:
        for start in range(at, len(raw), PIECE):
            verifier.update(raw[start : start + PIECE])
    return await verifier.result(resolver)
