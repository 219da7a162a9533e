"""Many messages at once: moved, copied, flagged, removed (decisions E, D11; sync-webmail-client B4, A4).

Each message has a result of its own. `operation_id`, or `Idempotency-Key`, makes a request one that can be repeated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, StrictStr, StringConstraints, model_validator
from starlette.responses import Response

from postroom.accounts import idempotency
from postroom.accounts.permissions import Permission
from postroom.base.errors import PostroomError
from postroom.mailbox import batch, folders, tree
from postroom.mailbox.batch import Edit, FindFolder, Named, Result, Results, Step
from postroom.mailbox.models import FLAG_DELETED, MAX_FLAGS, SYSTEM_FLAGS, Folder, SpecialUse
from postroom.mailbox.rules import MAX_FLAG_LENGTH, flag_word
from postroom.mailbox.writing import MailboxWrite
from postroom.servers.http import fields
from postroom.servers.http.answers import JsonAnswer
from postroom.servers.http.call import Call, CurrentCall
from postroom.servers.http.failures import invalid
from postroom.servers.http.fields import Answer, NotNull
from postroom.servers.http.operations import Kept
from postroom.servers.http.rest.folders import check_may_remove
from postroom.servers.http.rest.messages import reading_rule
from postroom.servers.http.rest.once import IdempotencyKey
from postroom.servers.http.rest.shapes import Json
from postroom.servers.http.services import HttpServices
from postroom.servers.http.table import Idempotency, RouteTable, Rule

PATH: Final = "/v1/identities/{identity_id}/messages"
MAX_IDS: Final = 500
"""Messages that one request names (sync-webmail-client B4): what one transaction may touch, twice."""
MAX_WORDS: Final = MAX_FLAGS + len(SYSTEM_FLAGS)


def _word(value: str) -> str:
    try:
        return flag_word(value)
    except PostroomError:
        raise ValueError("must be a word without spaces, quotes, brackets or wildcards") from None


Word = Annotated[StrictStr, StringConstraints(min_length=1, max_length=MAX_FLAG_LENGTH), AfterValidator(_word)]
Words = Annotated[Annotated[list[Word], Field(max_length=MAX_WORDS)] | None, NotNull()]
OperationId = Annotated[
    StrictStr, StringConstraints(max_length=255, pattern=r"^[\x21-\x7e]([\x20-\x7e]{0,253}[\x21-\x7e])?$")
]


class _Batch(fields.RequestBody):
    """`operation_id`: one that the client made up; a repetition with it changes nothing and gets the first answer."""

    ids: Annotated[list[fields.MessageId], Field(min_length=1, max_length=MAX_IDS)]
    operation_id: Annotated[OperationId | None, NotNull()] = None

    def named(self, call: Call) -> Named:
        return Named(list(dict.fromkeys(self.ids)), call.may_review)


class TransferMessagesRequest(_Batch):
    """The target is named by its id, or by its special use."""

    folder_id: Annotated[fields.FolderId | None, NotNull()] = None
    special_use: Annotated[SpecialUse | None, NotNull()] = None

    @model_validator(mode="after")
    def _one_target(self) -> TransferMessagesRequest:
        if (self.folder_id is None) == (self.special_use is None):
            raise ValueError("must have either folder_id or special_use")
        return self

    def finder(self, call: Call) -> FindFolder:
        """Finds the target once the mailbox is locked."""
        folder_id, use, may_review = self.folder_id, self.special_use, call.may_review

        async def find(write: MailboxWrite) -> Folder:
            wanted = folder_id
            if use is not None:
                wanted = (await folders.by_use(write.conn, write.ref, use)).public_id
            assert wanted is not None
            return await tree.find(write.conn, write.ref, wanted, sees_quarantine=may_review)

        return find


class ExpungeMessagesRequest(_Batch):
    pass


class FlagMessagesRequest(_Batch):
    """`$seen`, `$answered`, `$flagged`, `$deleted`, `$draft`, and keywords, which are labels when they have no `$`.
    `set` is all that they have then; else what is in `add` and in `remove` is there afterwards.
    """

    add: Words = None
    remove: Words = None
    exactly: Annotated[Words, Field(alias="set")] = None

    @model_validator(mode="after")
    def _one_change(self) -> FlagMessagesRequest:
        changes = self.add is not None or self.remove is not None
        if changes == (self.exactly is not None):
            raise ValueError("must have either set, or add or remove")
        return self

    def edit(self) -> Edit:
        exactly = None if self.exactly is None else frozenset(self.exactly)
        return Edit(frozenset(self.add or ()), frozenset(self.remove or ()), exactly)


ResultName = Literal["moved", "copied", "expunged", "changed", "unchanged", "not_found", "in_use", "limit_exceeded"]


class MessageResult(Answer):
    """What became of one message. `unchanged`: it was so already; `in_use`: it is still to be sent, and stays."""

    id: fields.MessageId
    result: ResultName


class MessageResults(Answer):
    """In the order of `ids`, each once."""

    data: list[MessageResult]


class _Routes:
    def __init__(self, services: HttpServices) -> None:
        self._mailboxes = services.mailboxes

    async def move(
        self,
        identity_id: fields.IdentityId,
        body: TransferMessagesRequest,
        call: CurrentCall,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        return await self._run(call, body, idempotency_key, batch.move(body.named(call), body.finder(call)))

    async def copy(
        self,
        identity_id: fields.IdentityId,
        body: TransferMessagesRequest,
        call: CurrentCall,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        return await self._run(call, body, idempotency_key, batch.copy(body.named(call), body.finder(call)))

    async def expunge(
        self,
        identity_id: fields.IdentityId,
        body: ExpungeMessagesRequest,
        call: CurrentCall,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        check_may_remove(call)
        return await self._run(call, body, idempotency_key, batch.remove(body.named(call)))

    async def flags(
        self,
        identity_id: fields.IdentityId,
        body: FlagMessagesRequest,
        call: CurrentCall,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        change = body.edit()
        if FLAG_DELETED in change.add or FLAG_DELETED in (change.exactly or ()):
            check_may_remove(call)
        return await self._run(call, body, idempotency_key, batch.edit(body.named(call), change))

    async def _run(self, call: Call, body: _Batch, header: str | None, step: Step) -> Response:
        outcome = await self._mailboxes.batch(call.mailbox, step, _once(call, body, header))
        headers = {"Idempotent-Replayed": "true"} if outcome.replayed else None
        return JsonAnswer(_shape(outcome.results), headers=headers)


def _once(call: Call, body: _Batch, header: str | None) -> Kept[Results] | None:
    key = body.operation_id
    if header is not None:
        idempotency.check_key(header)
        if key is not None and key != header:
            raise invalid("operation_id", "is another than that of Idempotency-Key")
        key = header
    if key is None:
        return None
    return Kept(call, key, body.model_dump(mode="json", exclude={"operation_id"}), _shape, _read)


def _shape(results: Results) -> Json:
    return {"data": [{"id": message, "result": result.value} for message, result in results.items()]}


def _read(kept: Any) -> Results:
    return {one["id"]: Result(one["result"]) for one in kept["data"]}


def register(table: RouteTable, services: HttpServices) -> None:
    """Register the operations."""
    routes = _Routes(services)

    def add(
        name: str,
        operation: str,
        endpoint: Callable[..., Awaitable[Response]],
        summary: str,
        *,
        missing: tuple[str, ...] = (),
        full: bool = False,
        conditional: frozenset[Permission] = frozenset(),
    ) -> None:
        errors: dict[int, tuple[str, ...]] = {404: ("identity_not_found", *missing)}
        if full:
            errors[413] = ("mailbox_full",)
        options = reading_rule("Messages", Permission.MESSAGES_WRITE) | {"idempotency": Idempotency.OPTIONAL}
        rule = Rule("POST", f"{PATH}/{name}", operation, body=True, errors=errors, conditional=conditional, **options)
        table.add(rule, endpoint, summary=summary, answers={200: MessageResults})

    folder, erasing = ("folder_not_found",), frozenset({Permission.ERASURE_MANAGE})
    add(
        "move",
        "moveMessages",
        routes.move,
        "Have messages stand in a folder and nowhere else",
        missing=folder,
        full=True,
    )
    add("copy", "copyMessages", routes.copy, "Have messages stand in a folder also", missing=folder, full=True)
    add("expunge", "expungeMessages", routes.expunge, "Remove messages for good", conditional=erasing)
    add("flags", "flagMessages", routes.flags, "Change flags and keywords", conditional=erasing)
