"""The ARC sets of a message as they stand in its header (RFC 8617 §4.2, §5.2), and what comes of judging them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from postroom.mailauth.authres import AuthenticationResults, arc_instance, parse_arc
from postroom.mailauth.canonical import HeaderField
from postroom.mailauth.dkim_result import DkimError, Reason
from postroom.mailauth.dkim_signature import read_tags
from postroom.mailauth.tags import Tag

RESULTS: Final = "arc-authentication-results"
MESSAGE_SIGNATURE: Final = "arc-message-signature"
SEAL: Final = "arc-seal"
FIELD_NAMES: Final = (RESULTS, MESSAGE_SIGNATURE, SEAL)
"""Of a set, in the order in which a seal covers them (RFC 8617 §5.1.1)."""
MAX_SETS: Final = 50
"""RFC 8617 §4.2.1."""


class ArcStatus(StrEnum):
    """Chain validation status (RFC 8617 §4.4). A DNS failure is a failure, too (§5.2.1)."""

    NONE = "none"
    PASS = "pass"
    FAIL = "fail"


class ArcReason(StrEnum):
    """Why a chain has its status; each belongs to one."""

    NO_CHAIN = "no_chain"
    VERIFIED = "verified"
    MALFORMED_MESSAGE = "malformed_message"
    """The message's header is no list of fields."""
    TOO_MANY_SETS = "too_many_sets"
    MALFORMED_FIELD = "malformed_field"
    """A field cannot be read, or has no instance between 1 and 50."""
    INCOMPLETE = "incomplete"
    """A set has not one of each field, or one is left out."""
    FAILED_BEFORE = "failed_before"
    """The newest seal says that the chain had failed already."""
    WRONG_STATUS = "wrong_status"
    """`cv=` is not `none` in the first set, or not `pass` in another."""
    MESSAGE_SIGNATURE = "message_signature"
    SEAL = "seal"
    TOO_MANY_KEYS = "too_many_keys"
    """More keys than are asked for."""

    @property
    def status(self) -> ArcStatus:
        if self is ArcReason.NO_CHAIN:
            return ArcStatus.NONE
        return ArcStatus.PASS if self is ArcReason.VERIFIED else ArcStatus.FAIL


class ArcError(Exception):
    """Ends the judgement of a chain, with its reason; `instance` and `detail` say where and why, where they can."""

    def __init__(self, reason: ArcReason, instance: int | None = None, detail: Reason | None = None) -> None:
        super().__init__(reason.value)
        self.reason = reason
        self.instance = instance
        self.detail = detail


@dataclass(frozen=True, slots=True)
class ArcSet:
    """One set. Its seal's `cv=` is in lower case."""

    instance: int
    fields: tuple[HeaderField, HeaderField, HeaderField]
    """As `FIELD_NAMES`."""
    signature_tags: Mapping[str, Tag]
    seal_tags: Mapping[str, Tag]
    status: str

    @property
    def results(self) -> AuthenticationResults | None:
        """What its sealer says that it found out; nobody vouches for it but the sealer."""
        return parse_arc(self.fields[0].value)


@dataclass(frozen=True, slots=True)
class ArcResult:
    """The result for a message."""

    reason: ArcReason
    instances: int = 0
    """The highest instance that there is; a seal's would be one more."""
    domain: str = ""
    """Who sealed last, `d=` of the newest seal, once the chain has been read."""
    oldest_pass: int | None = None
    """Of a chain that passes, the oldest message signature that still verifies, 0 when all do (RFC 8617 §5.2)."""
    failed_instance: int | None = None
    detail: Reason | None = None
    """What is wrong with the signature that failed."""

    @property
    def status(self) -> ArcStatus:
        return self.reason.status

    def document(self) -> dict[str, str | int]:
        """As JSON keeps it (inbound §17 step 8)."""
        return {"result": self.status.value, "instances": self.instances, "reason": self.reason.value}


NO_CHAIN: Final = ArcResult(ArcReason.NO_CHAIN)


def collect(fields: Sequence[HeaderField]) -> tuple[ArcSet, ...]:
    """The sets, the oldest first. Raises `ArcError` for a chain that is not sound (RFC 8617 §5.2 steps 1 to 3)."""
    found: dict[tuple[int, str], HeaderField] = {}
    tags: dict[tuple[int, str], Mapping[str, Tag]] = {}
    mine = [field for field in fields if field.name in FIELD_NAMES]
    if len(mine) > MAX_SETS * len(FIELD_NAMES):
        raise ArcError(ArcReason.TOO_MANY_SETS)
    for field in mine:
        instance, read = _read(field)
        key = (instance, field.name)
        if key in found:
            raise ArcError(ArcReason.INCOMPLETE, instance)
        found[key], tags[key] = field, read
    highest = max((instance for instance, _ in found), default=0)
    if _status(tags.get((highest, SEAL), {})) == "fail":
        raise ArcError(ArcReason.FAILED_BEFORE, highest)
    sets: list[ArcSet] = []
    for instance in range(1, highest + 1):
        try:
            one, two, three = (found[instance, name] for name in FIELD_NAMES)
        except KeyError:
            raise ArcError(ArcReason.INCOMPLETE, instance) from None
        seal = tags[instance, SEAL]
        made = ArcSet(instance, (one, two, three), tags[instance, MESSAGE_SIGNATURE], seal, _status(seal))
        if made.status != ("none" if instance == 1 else "pass"):
            raise ArcError(ArcReason.WRONG_STATUS, instance)
        sets.append(made)
    return tuple(sets)


def highest_instance(fields: Sequence[HeaderField]) -> int:
    """The highest instance of any field that can be read, of a sound chain or not; 0 when there is none."""
    highest = 0
    for field in fields:
        if field.name in FIELD_NAMES:
            try:
                highest = max(highest, _read(field)[0])
            except ArcError:
                continue
    return highest


def failed_before(fields: Sequence[HeaderField]) -> bool:
    """Whether the newest seal says `cv=fail`: nothing is to be added to such a chain (RFC 8617 §5.1 step 2)."""
    highest, failed = 0, False
    for field in fields:
        if field.name == SEAL:
            try:
                instance, tags = _read(field)
            except ArcError:
                continue
            if instance >= highest:
                failed = _status(tags) == "fail" or (failed and instance == highest)
                highest = instance
    return failed


def _status(tags: Mapping[str, Tag]) -> str:
    return tags["cv"].value.decode("ascii", "replace").lower() if "cv" in tags else ""


def _read(field: HeaderField) -> tuple[int, Mapping[str, Tag]]:
    """Instance and tags; of ARC-Authentication-Results, which is no tag list, the instance alone."""
    tags: Mapping[str, Tag] = {}
    if field.name == RESULTS:
        instance = arc_instance(field.value) or 0
    else:
        try:
            tags = read_tags(field)
        except DkimError as error:
            raise ArcError(ArcReason.MALFORMED_FIELD, detail=error.reason) from None
        text = tags["i"].value if "i" in tags else b""
        instance = int(text) if text.isdigit() and len(text) <= 9 else 0
    if instance == 0:
        raise ArcError(ArcReason.MALFORMED_FIELD)
    if instance > MAX_SETS:
        raise ArcError(ArcReason.TOO_MANY_SETS, instance)
    return instance, tags
