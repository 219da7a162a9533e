"""Sending: send, reply, reply to all, forward; cancel and resolve (rest-api §4, §5.11; outbound §2)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final, Literal

from fastapi import Query
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictStr, StringConstraints, model_validator
from starlette.responses import Response

from postroom.accounts import idempotency
from postroom.accounts.permissions import Permission
from postroom.base.errors import PostroomError
from postroom.db import Connection
from postroom.inbound.parsing import ParserBusy, ParsingFailed
from postroom.outbound import ledger
from postroom.outbound import request as asked
from postroom.outbound.closing import Closing, Resolution
from postroom.outbound.models import Operation, SendKind
from postroom.outbound.submit import Sending
from postroom.servers.http import fields
from postroom.servers.http.answers import JsonAnswer
from postroom.servers.http.bodies import JsonRequest
from postroom.servers.http.call import Call, CurrentCall, actor
from postroom.servers.http.failures import invalid
from postroom.servers.http.fields import NotNull
from postroom.servers.http.rest import message_schemas as schemas
from postroom.servers.http.rest.messages import check_visible
from postroom.servers.http.rest.once import IdempotencyKey
from postroom.servers.http.rest.texts import Texts
from postroom.servers.http.services import HttpServices
from postroom.servers.http.table import ALL_LEVELS, Bucket, Idempotency, Reach, RouteTable, Rule

QUICK_OCTETS: Final = 32 * 1024
"""Of a body whose fingerprint is taken on the event loop; of a larger one in another process."""
MAX_RECIPIENTS: Final = 49
MAX_FILES: Final = 32
_REVIEW: Final = frozenset({Permission.QUARANTINE_REVIEW})


def _storable(text: str) -> str:
    # As `fields.Storable`, for texts of megabytes; parsing JSON has refused lone surrogates already.
    if "\x00" in text:
        raise ValueError("must not contain U+0000")
    return text


BodyText = Annotated[StrictStr, AfterValidator(_storable)]
_ONE_LINE: Final = r"^[^\r\n]*$"
Name = Annotated[StrictStr, StringConstraints(pattern=_ONE_LINE), AfterValidator(_storable)]
# Addresses are judged by the policy, which tells the wrong from the unsupported.
AddressText = Annotated[
    StrictStr,
    StringConstraints(max_length=320),
    AfterValidator(_storable),
    Field(json_schema_extra={"format": "email"}),
]


class NamedRecipient(fields.RequestBody):
    address: AddressText
    name: Annotated[Name | None, NotNull()] = None


Recipient = AddressText | NamedRecipient
Recipients = Annotated[list[Recipient], Field(max_length=MAX_RECIPIENTS)]


class AttachmentInput(fields.RequestBody):
    filename: Annotated[StrictStr, StringConstraints(min_length=1, max_length=255), AfterValidator(_storable)]
    content_type: Annotated[StrictStr, AfterValidator(_storable)]
    content_base64: Annotated[StrictStr, Field(json_schema_extra={"contentEncoding": "base64"})]
    disposition: Literal["attachment", "inline"] = "attachment"
    content_id: Annotated[Annotated[StrictStr, AfterValidator(_storable)] | None, NotNull()] = None


class Unsubscribe(fields.RequestBody):
    url: Annotated[StrictStr, StringConstraints(pattern="^https://"), Field(json_schema_extra={"format": "uri"})]
    mailto: Annotated[StrictStr | None, NotNull()] = None


class Consent(fields.RequestBody):
    basis: BodyText
    recorded_at: fields.Time


class SendHeaders(BaseModel):
    """Further header fields; the values of the first three are closed lists."""

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[
        str,
        Annotated[StrictStr, StringConstraints(min_length=1, max_length=2048, pattern=r"^[^\r\n]+$")],
    ]

    importance_field: Annotated[Literal["high", "normal", "low"] | None, NotNull()] = Field(None, alias="Importance")
    priority_field: Annotated[Literal["normal", "non-urgent", "urgent"] | None, NotNull()] = Field(
        None, alias="Priority"
    )
    sensitivity_field: Annotated[Literal["personal", "private", "company-confidential"] | None, NotNull()] = Field(
        None, alias="Sensitivity"
    )

    def named(self) -> dict[str, str]:
        """The fields that were given."""
        return dict(self.model_dump(by_alias=True, exclude_unset=True))


MetadataBody = Annotated[
    dict[fields.Text, Annotated[StrictStr, StringConstraints(max_length=512), fields.Storable]], Field(max_length=16)
]


class _Content(fields.RequestBody):
    """What all four have in common."""

    text: BodyText | None = None
    html: BodyText | None = None
    attachments: Annotated[Annotated[list[AttachmentInput], Field(max_length=MAX_FILES)] | None, NotNull()] = None
    labels: Annotated[Annotated[list[fields.StrictLabel], Field(max_length=64)] | None, NotNull()] = None
    headers: Annotated[SendHeaders | None, NotNull()] = None
    metadata: Annotated[MetadataBody | None, NotNull()] = None

    def request(self, operation: Operation, message_id: str | None = None) -> asked.SendRequest:
        """As the service takes it."""
        return asked.SendRequest(operation, message_id=message_id, **self._values())

    def _values(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "html": self.html,
            "files": tuple(
                asked.File(
                    one.filename,
                    one.content_type,
                    one.content_base64,
                    inline=one.disposition == "inline",
                    content_id=one.content_id,
                )
                for one in self.attachments or ()
            ),
            "labels": tuple(self.labels or ()),
            "headers": {} if self.headers is None else self.headers.named(),
            "metadata": self.metadata or {},
        }


class _Kind(_Content):
    kind: SendKind = SendKind.TRANSACTIONAL
    unsubscribe: Annotated[Unsubscribe | None, NotNull()] = None
    consent: Annotated[Consent | None, NotNull()] = None

    @model_validator(mode="after")
    def _says_something(self) -> _Kind:
        if self.text is None and self.html is None:
            raise ValueError("needs text or html")
        return self

    def _values(self) -> dict[str, Any]:
        leave = self.unsubscribe
        return {
            **super()._values(),
            "kind": self.kind,
            "unsubscribe": None if leave is None else asked.Unsubscribe(leave.url, leave.mailto),
            "has_consent": self.consent is not None,
        }


class _Addressed(_Content):
    to: Annotated[list[Recipient], Field(min_length=1, max_length=MAX_RECIPIENTS)]
    cc: Annotated[Recipients | None, NotNull()] = None
    bcc: Annotated[Recipients | None, NotNull()] = None

    def _values(self) -> dict[str, Any]:
        return {
            **super()._values(),
            "to": _people(self.to),
            "cc": _people(self.cc or ()),
            "bcc": _people(self.bcc or ()),
        }


class SendRequest(_Addressed, _Kind):
    subject: Annotated[Name, StringConstraints(max_length=998)]
    thread_id: fields.ThreadId | None = None
    from_address: AddressText | None = None

    def _values(self) -> dict[str, Any]:
        own = {"subject": self.subject, "thread_id": self.thread_id, "from_address": self.from_address}
        return {**super()._values(), **own}


class ReplyRequest(_Kind):
    @model_validator(mode="before")
    @classmethod
    def _goes_to_whom_it_answers(cls, given: Any) -> Any:
        if isinstance(given, Mapping):
            for name in ("to", "cc", "bcc"):
                if name in given:
                    raise ValueError(f"{name} cannot be given: an answer goes to whom it answers")
        return given


class ForwardRequest(_Addressed):
    include_attachments: fields.Flag = True

    def _values(self) -> dict[str, Any]:
        return {**super()._values(), "include_attachments": self.include_attachments}


class ResolveRequest(fields.RequestBody):
    outcome: Literal["sent", "not_sent"]


class SendQuery(fields.Query):
    dry_run: bool = False


def _people(listed: Any) -> tuple[asked.Person, ...]:
    return tuple(
        asked.Person(one) if isinstance(one, str) else asked.Person(one.address, one.name or "") for one in listed
    )


class _Routes:
    def __init__(self, services: HttpServices, sending: Sending, closing: Closing) -> None:
        self._services = services
        self._sending = sending
        self._closing = closing
        self._queries = services.mailboxes.queries
        self._texts = Texts(services.database, services.blobs, services.parser)

    # -- the four operations

    async def send(
        self,
        identity_id: fields.IdentityId,
        body: SendRequest,
        query: Annotated[SendQuery, Query()],
        call: CurrentCall,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        return await self._send(call, body.request(Operation.SEND), query, idempotency_key)

    async def reply(
        self,
        identity_id: fields.IdentityId,
        message_id: fields.MessageId,
        body: ReplyRequest,
        query: Annotated[SendQuery, Query()],
        call: CurrentCall,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        return await self._send(call, body.request(Operation.REPLY, message_id), query, idempotency_key)

    async def reply_all(
        self,
        identity_id: fields.IdentityId,
        message_id: fields.MessageId,
        body: ReplyRequest,
        query: Annotated[SendQuery, Query()],
        call: CurrentCall,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        return await self._send(call, body.request(Operation.REPLY_ALL, message_id), query, idempotency_key)

    async def forward(
        self,
        identity_id: fields.IdentityId,
        message_id: fields.MessageId,
        body: ForwardRequest,
        query: Annotated[SendQuery, Query()],
        call: CurrentCall,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        return await self._send(call, body.request(Operation.FORWARD, message_id), query, idempotency_key)

    async def _send(self, call: Call, request: asked.SendRequest, query: SendQuery, key: str | None) -> Response:
        identity = call.the_identity
        who: dict[str, Any] = {"may_review": call.may_review, "person": call.person}
        if query.dry_run:
            foreseen = await self._sending.dry_run(identity, request, **who)
            recipients = [
                {"address": one.address, "field": one.field.value, "status": one.status.value}
                | ({} if one.reason is None else {"reason": one.reason})
                for one in foreseen
            ]
            return JsonAnswer({"would_send": True, "recipients": recipients})
        if key is None:
            raise PostroomError("idempotency_key_required")
        ledger.check_key(key)
        target = identity.public_id if request.message_id is None else f"{identity.public_id}/{request.message_id}"
        printed = await self._fingerprint(await call.request.body(), request.operation, target)
        done = await self._sending.submit(identity, request, key=key, fingerprint=printed, **who)
        headers = {"Idempotent-Replayed": "true"} if done.deduplicated else None
        return JsonAnswer({**done.message, "deduplicated": done.deduplicated}, 202, headers)

    async def _fingerprint(self, octets: bytes, operation: Operation, target: str) -> str:
        try:
            if len(octets) <= QUICK_OCTETS:
                found = ledger.try_fingerprint(octets, operation, target)
            else:
                found = await self._services.parser.run(len(octets), ledger.try_fingerprint, octets, operation, target)
        except ParserBusy:
            raise PostroomError("unavailable", retry_after=1) from None
        except ParsingFailed:
            found = None
        if found is None:
            raise invalid("body", "names a member twice, or cannot be read the same by everybody")
        return found

    # -- what is decided later

    async def cancel(
        self,
        identity_id: fields.IdentityId,
        message_id: fields.MessageId,
        call: CurrentCall,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        async def run(then: Then | None) -> None:
            await self._closing.cancel(call.mailbox, message_id, then=then, by=actor(call))

        return await self._once(call, message_id, idempotency_key, None, run)

    async def resolve(
        self,
        identity_id: fields.IdentityId,
        message_id: fields.MessageId,
        body: ResolveRequest,
        call: CurrentCall,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        async def run(then: Then | None) -> None:
            outcome = Resolution(body.outcome)
            await self._closing.resolve(call.mailbox, message_id, outcome, then=then, by=actor(call))

        assert isinstance(call.request, JsonRequest)
        return await self._once(call, message_id, idempotency_key, call.request.parsed, run)

    async def _once(
        self, call: Call, message_id: str, key: str | None, body: Any, run: Callable[[Then | None], Awaitable[None]]
    ) -> Response:
        """Once for a key, whose record names the message and is answered by reading it again (outbound §3.5)."""
        check_visible(call, await self._queries.get_message(call.mailbox, message_id))
        if key is None:
            await run(None)
            return await self._message(call, message_id)
        method, path = call.rule.method, call.request.url.path
        request = idempotency.Request(
            slot=idempotency.Slot(
                call.the_identity.tenant_public_id, call.principal.public_id, idempotency.check_key(key)
            ),
            method=method,
            path=path,
            fingerprint=idempotency.fingerprint(method, path, body),
            tenant_id=call.mailbox.tenant_id,
            identity_id=call.mailbox.mailbox_id,
        )
        database = self._services.database
        async with database.transaction() as conn:
            begun = await idempotency.begin(conn, self._services.clock, request)
        if isinstance(begun, idempotency.Replay):
            return await self._message(call, message_id, {"Idempotent-Replayed": "true"})

        async def then(conn: Connection) -> None:
            await idempotency.complete(conn, begun, 200, {"$ref": {"message_id": message_id}}, reference=None)

        try:
            await run(then)
        except PostroomError:
            async with database.transaction() as conn:
                await idempotency.abandon(conn, begun)
            raise
        return await self._message(call, message_id)

    async def _message(self, call: Call, message_id: str, headers: Mapping[str, str] | None = None) -> Response:
        view = await self._queries.get_message(call.mailbox, message_id)
        check_visible(call, view)
        return JsonAnswer((await self._texts.shapes(call.mailbox, [view]))[0], headers=headers)


Then = Callable[[Connection], Awaitable[None]]

_COMMON: Final[dict[str, Any]] = {"tag": "Sending", "reach": Reach.IDENTITY_PATH, "levels": ALL_LEVELS}
_SENDING: Final[dict[str, Any]] = {
    **_COMMON,
    "permissions": frozenset({Permission.MESSAGES_SEND}),
    "bucket": Bucket.SEND,
    "idempotency": Idempotency.REQUIRED,
    "body": True,
}
_REFUSALS: Final[dict[int, tuple[str, ...]]] = {
    400: (
        *("address_invalid", "address_unsupported", "header_not_allowed"),
        *("marketing_requirements_missing", "too_many_recipients"),
    ),
    402: ("billing_limit",),
    403: ("test_mode_recipient", "policy_denied"),
    409: (
        *("identity_paused", "identity_owner_required", "thread_busy", "domain_not_ready", "auto_reply_not_allowed"),
        *("loop_detected", "sending_paused"),
    ),
    413: ("message_too_large", "mailbox_full"),
    422: ("transport_unavailable", "all_recipients_suppressed", "recipient_blocked"),
    429: ("daily_cap_reached",),
    504: ("timeout",),
}
_ANSWERS: Final[dict[int, type[BaseModel] | None]] = {200: schemas.DryRunResult, 202: schemas.SendResponse}
_BOX: Final = "/v1/identities/{identity_id}/messages"


def register(table: RouteTable, services: HttpServices) -> None:
    """Register the operations, if this deployment sends."""
    if services.sending is None or services.closing is None:
        return
    routes = _Routes(services, services.sending, services.closing)
    table.add(
        Rule(
            "POST",
            _BOX,
            "sendMessage",
            errors={**_REFUSALS, 404: ("identity_not_found", "thread_not_found")},
            **_SENDING,
        ),
        routes.send,
        summary="Send a message",
        answers=_ANSWERS,
    )
    for path, operation, endpoint, summary in (
        ("reply", "replyToMessage", routes.reply, "Answer the sender"),
        ("reply-all", "replyAllToMessage", routes.reply_all, "Answer everybody"),
        ("forward", "forwardMessage", routes.forward, "Hand a message on"),
    ):
        expired = {410: ("raw_expired",)} if path == "forward" else {}
        table.add(
            Rule(
                "POST",
                f"{_BOX}/{{message_id}}/{path}",
                operation,
                conditional=_REVIEW,
                errors={**_REFUSALS, **expired, 404: ("identity_not_found", "message_not_found")},
                **_SENDING,
            ),
            endpoint,
            summary=summary,
            answers=_ANSWERS,
        )
    _register_later(table, routes)


def _register_later(table: RouteTable, routes: _Routes) -> None:
    deciding: dict[str, Any] = {**_COMMON, "bucket": Bucket.API, "idempotency": Idempotency.OPTIONAL}
    missing = ("identity_not_found", "message_not_found")
    table.add(
        Rule(
            "POST",
            f"{_BOX}/{{message_id}}/cancel",
            "cancelMessage",
            permissions=frozenset({Permission.MESSAGES_SEND}),
            errors={404: missing, 409: ("not_cancelable",)},
            **deciding,
        ),
        routes.cancel,
        summary="Cancel a message that waits",
        answers={200: schemas.Message},
    )
    table.add(
        Rule(
            "POST",
            f"{_BOX}/{{message_id}}/resolve",
            "resolveMessage",
            permissions=frozenset({Permission.MESSAGES_WRITE}),
            body=True,
            errors={404: missing, 409: ("not_uncertain",)},
            **deciding,
        ),
        routes.resolve,
        summary="Say what became of an uncertain message",
        answers={200: schemas.Message},
    )
