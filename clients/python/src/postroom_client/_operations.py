"""Every operation: how it is asked and what it answers.

Made by scripts/sdk.py from the server's OpenAPI document; change the server, then run it again.
"""

from __future__ import annotations

from typing import Any, Final

from . import models
from ._core import Keyed, Operation

GET_HEALTH: Final[Operation[models.Health]] = Operation("getHealth", "GET", "/health", {200: models.Health})
GET_READINESS: Final[Operation[models.Readiness]] = Operation(
    "getReadiness", "GET", "/health/ready", {200: models.Readiness}
)
GET_OPEN_API_DOCUMENT: Final[Operation[dict[str, Any]]] = Operation(
    "getOpenApiDocument", "GET", "/openapi.json", {200: dict}
)
GET_ME: Final[Operation[models.Me]] = Operation("getMe", "GET", "/v1/me", {200: models.Me})
CREATE_TENANT: Final[Operation[models.Tenant]] = Operation(
    "createTenant", "POST", "/v1/tenants", {201: models.Tenant}, Keyed.OPTIONAL
)
LIST_TENANTS: Final[Operation[models.TenantPage]] = Operation(
    "listTenants", "GET", "/v1/tenants", {200: models.TenantPage}
)
GET_TENANT: Final[Operation[models.Tenant]] = Operation(
    "getTenant", "GET", "/v1/tenants/{tenant_id}", {200: models.Tenant}
)
UPDATE_TENANT: Final[Operation[models.Tenant]] = Operation(
    "updateTenant", "PATCH", "/v1/tenants/{tenant_id}", {200: models.Tenant}
)
GET_TENANT_POLICY: Final[Operation[models.TenantPolicyView]] = Operation(
    "getTenantPolicy", "GET", "/v1/tenants/{tenant_id}/policy", {200: models.TenantPolicyView}
)
UPDATE_TENANT_POLICY: Final[Operation[models.TenantPolicyView]] = Operation(
    "updateTenantPolicy", "PATCH", "/v1/tenants/{tenant_id}/policy", {200: models.TenantPolicyView}
)
CREATE_PARTNER: Final[Operation[models.Partner]] = Operation(
    "createPartner", "POST", "/v1/partners", {201: models.Partner}, Keyed.OPTIONAL
)
LIST_PARTNERS: Final[Operation[models.PartnerPage]] = Operation(
    "listPartners", "GET", "/v1/partners", {200: models.PartnerPage}
)
GET_PARTNER: Final[Operation[models.Partner]] = Operation(
    "getPartner", "GET", "/v1/partners/{partner_id}", {200: models.Partner}
)
UPDATE_PARTNER: Final[Operation[models.Partner]] = Operation(
    "updatePartner", "PATCH", "/v1/partners/{partner_id}", {200: models.Partner}
)
DELETE_PARTNER: Final[Operation[None]] = Operation("deletePartner", "DELETE", "/v1/partners/{partner_id}", {204: None})
CREATE_IDENTITY: Final[Operation[models.Identity]] = Operation(
    "createIdentity",
    "POST",
    "/v1/tenants/{tenant_id}/identities",
    {200: models.Identity, 201: models.Identity},
    Keyed.OPTIONAL,
)
LIST_TENANT_IDENTITIES: Final[Operation[models.IdentityPage]] = Operation(
    "listTenantIdentities", "GET", "/v1/tenants/{tenant_id}/identities", {200: models.IdentityPage}
)
LIST_IDENTITIES: Final[Operation[models.IdentityPage]] = Operation(
    "listIdentities", "GET", "/v1/identities", {200: models.IdentityPage}
)
LOOKUP_IDENTITY: Final[Operation[models.Identity]] = Operation(
    "lookupIdentity", "GET", "/v1/identities/lookup", {200: models.Identity}
)
GET_IDENTITY: Final[Operation[models.Identity]] = Operation(
    "getIdentity", "GET", "/v1/identities/{identity_id}", {200: models.Identity}
)
UPDATE_IDENTITY: Final[Operation[models.Identity]] = Operation(
    "updateIdentity", "PATCH", "/v1/identities/{identity_id}", {200: models.Identity}
)
DELETE_IDENTITY: Final[Operation[models.ErasureRequest]] = Operation(
    "deleteIdentity", "DELETE", "/v1/identities/{identity_id}", {200: models.ErasureRequest, 202: models.ErasureRequest}
)
LIST_ADDRESSES: Final[Operation[models.AddressPage]] = Operation(
    "listAddresses", "GET", "/v1/identities/{identity_id}/addresses", {200: models.AddressPage}
)
CREATE_ADDRESS: Final[Operation[models.Address]] = Operation(
    "createAddress", "POST", "/v1/identities/{identity_id}/addresses", {201: models.Address}, Keyed.OPTIONAL
)
PROMOTE_ADDRESS: Final[Operation[models.Identity]] = Operation(
    "promoteAddress",
    "POST",
    "/v1/identities/{identity_id}/addresses/{address_id}/promote",
    {200: models.Identity},
    Keyed.OPTIONAL,
)
RETIRE_ADDRESS: Final[Operation[models.Address]] = Operation(
    "retireAddress",
    "POST",
    "/v1/identities/{identity_id}/addresses/{address_id}/retire",
    {200: models.Address},
    Keyed.OPTIONAL,
)
DELETE_ADDRESS: Final[Operation[None]] = Operation(
    "deleteAddress", "DELETE", "/v1/identities/{identity_id}/addresses/{address_id}", {204: None}
)
LIST_LIST_ENTRIES: Final[Operation[models.ListEntryPage]] = Operation(
    "listListEntries", "GET", "/v1/tenants/{tenant_id}/lists/{direction}/{kind}", {200: models.ListEntryPage}
)
GET_LIST_ENTRY: Final[Operation[models.ListEntry]] = Operation(
    "getListEntry", "GET", "/v1/tenants/{tenant_id}/lists/{direction}/{kind}/{entry}", {200: models.ListEntry}
)
PUT_LIST_ENTRY: Final[Operation[models.ListEntry]] = Operation(
    "putListEntry", "PUT", "/v1/tenants/{tenant_id}/lists/{direction}/{kind}/{entry}", {200: models.ListEntry}
)
DELETE_LIST_ENTRY: Final[Operation[None]] = Operation(
    "deleteListEntry", "DELETE", "/v1/tenants/{tenant_id}/lists/{direction}/{kind}/{entry}", {204: None}
)
LIST_AUDIT_EVENTS: Final[Operation[models.AuditEventPage]] = Operation(
    "listAuditEvents", "GET", "/v1/audit-events", {200: models.AuditEventPage}
)
CREATE_ALIAS: Final[Operation[models.Alias]] = Operation(
    "createAlias", "POST", "/v1/tenants/{tenant_id}/aliases", {201: models.Alias}, Keyed.OPTIONAL
)
LIST_ALIASES: Final[Operation[models.AliasPage]] = Operation(
    "listAliases", "GET", "/v1/tenants/{tenant_id}/aliases", {200: models.AliasPage}
)
GET_ALIAS: Final[Operation[models.Alias]] = Operation(
    "getAlias", "GET", "/v1/tenants/{tenant_id}/aliases/{alias_id}", {200: models.Alias}
)
DELETE_ALIAS: Final[Operation[None]] = Operation(
    "deleteAlias", "DELETE", "/v1/tenants/{tenant_id}/aliases/{alias_id}", {204: None}
)
LIST_MESSAGES: Final[Operation[models.MessagePage]] = Operation(
    "listMessages", "GET", "/v1/identities/{identity_id}/messages", {200: models.MessagePage}
)
SEND_MESSAGE: Final[Operation[models.DryRunResult | models.SendResponse]] = Operation(
    "sendMessage",
    "POST",
    "/v1/identities/{identity_id}/messages",
    {200: models.DryRunResult, 202: models.SendResponse},
    Keyed.REQUIRED,
)
GET_MESSAGE: Final[Operation[models.Message]] = Operation(
    "getMessage", "GET", "/v1/identities/{identity_id}/messages/{message_id}", {200: models.Message}
)
UPDATE_MESSAGE: Final[Operation[models.Message]] = Operation(
    "updateMessage", "PATCH", "/v1/identities/{identity_id}/messages/{message_id}", {200: models.Message}
)
LIST_FOLDERS: Final[Operation[models.FolderPage]] = Operation(
    "listFolders", "GET", "/v1/identities/{identity_id}/folders", {200: models.FolderPage}
)
CREATE_FOLDER: Final[Operation[models.Folder]] = Operation(
    "createFolder", "POST", "/v1/identities/{identity_id}/folders", {201: models.Folder}, Keyed.OPTIONAL
)
GET_FOLDER: Final[Operation[models.Folder]] = Operation(
    "getFolder", "GET", "/v1/identities/{identity_id}/folders/{folder_id}", {200: models.Folder}
)
UPDATE_FOLDER: Final[Operation[models.Folder]] = Operation(
    "updateFolder", "PATCH", "/v1/identities/{identity_id}/folders/{folder_id}", {200: models.Folder}
)
DELETE_FOLDER: Final[Operation[None]] = Operation(
    "deleteFolder", "DELETE", "/v1/identities/{identity_id}/folders/{folder_id}", {204: None}
)
MOVE_MESSAGES: Final[Operation[models.MessageResults]] = Operation(
    "moveMessages", "POST", "/v1/identities/{identity_id}/messages/move", {200: models.MessageResults}, Keyed.OPTIONAL
)
COPY_MESSAGES: Final[Operation[models.MessageResults]] = Operation(
    "copyMessages", "POST", "/v1/identities/{identity_id}/messages/copy", {200: models.MessageResults}, Keyed.OPTIONAL
)
EXPUNGE_MESSAGES: Final[Operation[models.MessageResults]] = Operation(
    "expungeMessages",
    "POST",
    "/v1/identities/{identity_id}/messages/expunge",
    {200: models.MessageResults},
    Keyed.OPTIONAL,
)
FLAG_MESSAGES: Final[Operation[models.MessageResults]] = Operation(
    "flagMessages", "POST", "/v1/identities/{identity_id}/messages/flags", {200: models.MessageResults}, Keyed.OPTIONAL
)
REPLY_TO_MESSAGE: Final[Operation[models.DryRunResult | models.SendResponse]] = Operation(
    "replyToMessage",
    "POST",
    "/v1/identities/{identity_id}/messages/{message_id}/reply",
    {200: models.DryRunResult, 202: models.SendResponse},
    Keyed.REQUIRED,
)
REPLY_ALL_TO_MESSAGE: Final[Operation[models.DryRunResult | models.SendResponse]] = Operation(
    "replyAllToMessage",
    "POST",
    "/v1/identities/{identity_id}/messages/{message_id}/reply-all",
    {200: models.DryRunResult, 202: models.SendResponse},
    Keyed.REQUIRED,
)
FORWARD_MESSAGE: Final[Operation[models.DryRunResult | models.SendResponse]] = Operation(
    "forwardMessage",
    "POST",
    "/v1/identities/{identity_id}/messages/{message_id}/forward",
    {200: models.DryRunResult, 202: models.SendResponse},
    Keyed.REQUIRED,
)
CANCEL_MESSAGE: Final[Operation[models.Message]] = Operation(
    "cancelMessage",
    "POST",
    "/v1/identities/{identity_id}/messages/{message_id}/cancel",
    {200: models.Message},
    Keyed.OPTIONAL,
)
RESOLVE_MESSAGE: Final[Operation[models.Message]] = Operation(
    "resolveMessage",
    "POST",
    "/v1/identities/{identity_id}/messages/{message_id}/resolve",
    {200: models.Message},
    Keyed.OPTIONAL,
)
GET_MESSAGE_RAW: Final[Operation[None]] = Operation(
    "getMessageRaw", "GET", "/v1/identities/{identity_id}/messages/{message_id}/raw", {}
)
GET_ATTACHMENT: Final[Operation[None]] = Operation(
    "getAttachment", "GET", "/v1/identities/{identity_id}/messages/{message_id}/attachments/{attachment_id}", {}
)
LIST_THREADS: Final[Operation[models.ThreadPage]] = Operation(
    "listThreads", "GET", "/v1/identities/{identity_id}/threads", {200: models.ThreadPage}
)
GET_THREAD: Final[Operation[models.Thread]] = Operation(
    "getThread", "GET", "/v1/identities/{identity_id}/threads/{thread_id}", {200: models.Thread}
)
UPDATE_THREAD: Final[Operation[models.ThreadSummary]] = Operation(
    "updateThread", "PATCH", "/v1/identities/{identity_id}/threads/{thread_id}", {200: models.ThreadSummary}
)
WAIT_FOR_MESSAGE: Final[Operation[models.WaitResponse]] = Operation(
    "waitForMessage", "GET", "/v1/identities/{identity_id}/wait", {200: models.WaitResponse}
)
LIST_EVENTS: Final[Operation[models.EventPage]] = Operation("listEvents", "GET", "/v1/events", {200: models.EventPage})
LIST_QUEUE: Final[Operation[models.QueueDeliveryPage]] = Operation(
    "listQueue", "GET", "/v1/platform/queue", {200: models.QueueDeliveryPage}
)
GET_QUEUE_STATISTICS: Final[Operation[models.QueueStatistics]] = Operation(
    "getQueueStatistics", "GET", "/v1/platform/queue/stats", {200: models.QueueStatistics}
)
GET_QUEUE_ITEM: Final[Operation[models.QueueDeliveryDetail]] = Operation(
    "getQueueItem", "GET", "/v1/platform/queue/{queue_id}", {200: models.QueueDeliveryDetail}
)
RETRY_QUEUE_ITEM: Final[Operation[models.QueueDeliveryDetail]] = Operation(
    "retryQueueItem", "POST", "/v1/platform/queue/{queue_id}/retry", {200: models.QueueDeliveryDetail}, Keyed.OPTIONAL
)
CANCEL_QUEUE_ITEM: Final[Operation[models.QueueDeliveryDetail]] = Operation(
    "cancelQueueItem", "POST", "/v1/platform/queue/{queue_id}/cancel", {200: models.QueueDeliveryDetail}, Keyed.OPTIONAL
)
HOLD_QUEUE_ITEM: Final[Operation[models.QueueDeliveryDetail]] = Operation(
    "holdQueueItem", "POST", "/v1/platform/queue/{queue_id}/hold", {200: models.QueueDeliveryDetail}, Keyed.OPTIONAL
)
RELEASE_QUEUE_ITEM: Final[Operation[models.QueueDeliveryDetail]] = Operation(
    "releaseQueueItem",
    "POST",
    "/v1/platform/queue/{queue_id}/release",
    {200: models.QueueDeliveryDetail},
    Keyed.OPTIONAL,
)
LIST_DLQ_ITEMS: Final[Operation[models.DlqItemPage]] = Operation(
    "listDlqItems", "GET", "/v1/platform/dlq", {200: models.DlqItemPage}
)
REDRIVE_DLQ_ITEM: Final[Operation[models.DlqItem]] = Operation(
    "redriveDlqItem", "POST", "/v1/platform/dlq/{dlq_id}/redrive", {200: models.DlqItem}, Keyed.OPTIONAL
)
GET_PLATFORM_STATUS: Final[Operation[models.PlatformStatus]] = Operation(
    "getPlatformStatus", "GET", "/v1/platform/status", {200: models.PlatformStatus}
)
SET_SWITCH: Final[Operation[models.Switch]] = Operation(
    "setSwitch", "PUT", "/v1/platform/switches", {200: models.Switch}, Keyed.OPTIONAL
)
ROTATE_SIGNING_KEY: Final[Operation[models.SigningKeyRotation]] = Operation(
    "rotateSigningKey", "POST", "/v1/platform/keys/{purpose}/rotate", {200: models.SigningKeyRotation}, Keyed.OPTIONAL
)
CREATE_KEY: Final[Operation[models.ApiKeyCreated]] = Operation(
    "createKey", "POST", "/v1/keys", {201: models.ApiKeyCreated}, Keyed.OPTIONAL
)
LIST_KEYS: Final[Operation[models.ApiKeyPage]] = Operation("listKeys", "GET", "/v1/keys", {200: models.ApiKeyPage})
GET_KEY: Final[Operation[models.ApiKey]] = Operation("getKey", "GET", "/v1/keys/{key_id}", {200: models.ApiKey})
REVOKE_KEY: Final[Operation[None]] = Operation("revokeKey", "DELETE", "/v1/keys/{key_id}", {204: None})
ROTATE_KEY: Final[Operation[models.ApiKeyCreated]] = Operation(
    "rotateKey", "POST", "/v1/keys/{key_id}/rotate", {200: models.ApiKeyCreated}, Keyed.OPTIONAL
)
GET_SIGNED_LINK: Final[Operation[None]] = Operation("getSignedLink", "GET", "/v1/links/{token}", {})
CREATE_SESSION: Final[Operation[models.SignedIn]] = Operation(
    "createSession", "POST", "/v1/auth/session", {201: models.SignedIn}
)
DELETE_SESSION: Final[Operation[None]] = Operation("deleteSession", "DELETE", "/v1/auth/session", {204: None})
RECOVER_SESSION: Final[Operation[models.SignedIn]] = Operation(
    "recoverSession", "POST", "/v1/auth/recover", {201: models.SignedIn}
)
GET_PASSKEY_REQUEST_OPTIONS: Final[Operation[models.PasskeyRequestOptions]] = Operation(
    "getPasskeyRequestOptions", "POST", "/v1/auth/passkeys/options", {200: models.PasskeyRequestOptions}
)
CREATE_PASSKEY_SESSION: Final[Operation[models.SignedIn]] = Operation(
    "createPasskeySession", "POST", "/v1/auth/passkeys", {201: models.SignedIn}
)
GET_ACCOUNT: Final[Operation[models.AccountView]] = Operation(
    "getAccount", "GET", "/v1/account", {200: models.AccountView}
)
UPDATE_ACCOUNT: Final[Operation[models.AccountView]] = Operation(
    "updateAccount", "PATCH", "/v1/account", {200: models.AccountView}
)
LIST_ACCOUNT_MAILBOXES: Final[Operation[models.AccountMailboxPage]] = Operation(
    "listAccountMailboxes", "GET", "/v1/account/mailboxes", {200: models.AccountMailboxPage}
)
CHANGE_PASSWORD: Final[Operation[None]] = Operation("changePassword", "POST", "/v1/account/password", {204: None})
GET_TOTP: Final[Operation[models.TotpStatus]] = Operation(
    "getTotp", "GET", "/v1/account/totp", {200: models.TotpStatus}
)
ENROL_TOTP: Final[Operation[models.TotpEnrolment]] = Operation(
    "enrolTotp", "POST", "/v1/account/totp", {201: models.TotpEnrolment}
)
CONFIRM_TOTP: Final[Operation[models.RecoveryCodes]] = Operation(
    "confirmTotp", "POST", "/v1/account/totp/confirm", {200: models.RecoveryCodes}
)
DISABLE_TOTP: Final[Operation[None]] = Operation("disableTotp", "POST", "/v1/account/totp/disable", {204: None})
REPLACE_RECOVERY_CODES: Final[Operation[models.RecoveryCodes]] = Operation(
    "replaceRecoveryCodes", "POST", "/v1/account/recovery-codes", {200: models.RecoveryCodes}
)
LIST_APP_PASSWORDS: Final[Operation[models.AppPasswordPage]] = Operation(
    "listAppPasswords", "GET", "/v1/account/app-passwords", {200: models.AppPasswordPage}
)
CREATE_APP_PASSWORD: Final[Operation[models.AppPasswordCreated]] = Operation(
    "createAppPassword", "POST", "/v1/account/app-passwords", {201: models.AppPasswordCreated}
)
REVOKE_APP_PASSWORD: Final[Operation[None]] = Operation(
    "revokeAppPassword", "DELETE", "/v1/account/app-passwords/{app_password_id}", {204: None}
)
LIST_PASSKEYS: Final[Operation[models.PasskeyPage]] = Operation(
    "listPasskeys", "GET", "/v1/account/passkeys", {200: models.PasskeyPage}
)
CREATE_PASSKEY: Final[Operation[models.Passkey]] = Operation(
    "createPasskey", "POST", "/v1/account/passkeys", {201: models.Passkey}
)
GET_PASSKEY_CREATION_OPTIONS: Final[Operation[models.PasskeyCreationOptions]] = Operation(
    "getPasskeyCreationOptions", "POST", "/v1/account/passkeys/options", {200: models.PasskeyCreationOptions}
)
UPDATE_PASSKEY: Final[Operation[models.Passkey]] = Operation(
    "updatePasskey", "PATCH", "/v1/account/passkeys/{passkey_id}", {200: models.Passkey}
)
DELETE_PASSKEY: Final[Operation[None]] = Operation(
    "deletePasskey", "DELETE", "/v1/account/passkeys/{passkey_id}", {204: None}
)
LIST_SESSIONS: Final[Operation[models.SessionPage]] = Operation(
    "listSessions", "GET", "/v1/account/sessions", {200: models.SessionPage}
)
REVOKE_OTHER_SESSIONS: Final[Operation[None]] = Operation(
    "revokeOtherSessions", "DELETE", "/v1/account/sessions", {204: None}
)
REVOKE_SESSION: Final[Operation[None]] = Operation(
    "revokeSession", "DELETE", "/v1/account/sessions/{session_id}", {204: None}
)
LIST_DEVICES: Final[Operation[models.DevicePage]] = Operation(
    "listDevices", "GET", "/v1/account/devices", {200: models.DevicePage}
)
REVOKE_DEVICE: Final[Operation[None]] = Operation(
    "revokeDevice", "DELETE", "/v1/account/devices/{device_id}", {204: None}
)
LIST_PEOPLE: Final[Operation[models.PersonPage]] = Operation(
    "listPeople", "GET", "/v1/tenants/{tenant_id}/people", {200: models.PersonPage}
)
CREATE_PERSON: Final[Operation[models.Person]] = Operation(
    "createPerson", "POST", "/v1/tenants/{tenant_id}/people", {201: models.Person}
)
GET_PERSON: Final[Operation[models.Person]] = Operation(
    "getPerson", "GET", "/v1/tenants/{tenant_id}/people/{person_id}", {200: models.Person}
)
UPDATE_PERSON: Final[Operation[models.Person]] = Operation(
    "updatePerson", "PATCH", "/v1/tenants/{tenant_id}/people/{person_id}", {200: models.Person}
)
REMOVE_PERSON: Final[Operation[None]] = Operation(
    "removePerson", "DELETE", "/v1/tenants/{tenant_id}/people/{person_id}", {204: None}
)
LIST_GRANTS: Final[Operation[models.GrantPage]] = Operation(
    "listGrants", "GET", "/v1/tenants/{tenant_id}/people/{person_id}/grants", {200: models.GrantPage}
)
PUT_GRANT: Final[Operation[None]] = Operation(
    "putGrant", "PUT", "/v1/tenants/{tenant_id}/people/{person_id}/grants/{identity_id}", {204: None}
)
REMOVE_GRANT: Final[Operation[None]] = Operation(
    "removeGrant", "DELETE", "/v1/tenants/{tenant_id}/people/{person_id}/grants/{identity_id}", {204: None}
)
GET_PERSON_TOTP: Final[Operation[models.TotpStatus]] = Operation(
    "getPersonTotp", "GET", "/v1/tenants/{tenant_id}/people/{person_id}/totp", {200: models.TotpStatus}
)
LIST_PERSON_APP_PASSWORDS: Final[Operation[models.AppPasswordPage]] = Operation(
    "listPersonAppPasswords",
    "GET",
    "/v1/tenants/{tenant_id}/people/{person_id}/app-passwords",
    {200: models.AppPasswordPage},
)
REVOKE_PERSON_APP_PASSWORD: Final[Operation[None]] = Operation(
    "revokePersonAppPassword",
    "DELETE",
    "/v1/tenants/{tenant_id}/people/{person_id}/app-passwords/{app_password_id}",
    {204: None},
)
REVOKE_PERSON_SESSIONS: Final[Operation[None]] = Operation(
    "revokePersonSessions", "DELETE", "/v1/tenants/{tenant_id}/people/{person_id}/sessions", {204: None}
)
LIST_MEMBERS: Final[Operation[models.MemberList]] = Operation(
    "listMembers", "GET", "/v1/tenants/{tenant_id}/members", {200: models.MemberList}
)
CREATE_INVITATION: Final[Operation[models.Invitation]] = Operation(
    "createInvitation", "POST", "/v1/tenants/{tenant_id}/invitations", {201: models.Invitation}, Keyed.OPTIONAL
)
REVOKE_INVITATION: Final[Operation[None]] = Operation(
    "revokeInvitation", "DELETE", "/v1/tenants/{tenant_id}/invitations/{invitation_id}", {204: None}
)
REMOVE_MEMBER: Final[Operation[None]] = Operation(
    "removeMember", "DELETE", "/v1/tenants/{tenant_id}/members/{user_id}", {204: None}
)
ACCEPT_INVITATION: Final[Operation[models.JoinedTenant]] = Operation(
    "acceptInvitation", "POST", "/v1/account/invitations/accept", {200: models.JoinedTenant}
)
JOIN_BY_INVITATION: Final[Operation[models.JoinedTenant]] = Operation(
    "joinByInvitation", "POST", "/v1/auth/invitation", {201: models.JoinedTenant}
)
CREATE_PLATFORM_WEBHOOK: Final[Operation[models.WebhookCreated]] = Operation(
    "createPlatformWebhook", "POST", "/v1/webhooks", {201: models.WebhookCreated}, Keyed.OPTIONAL
)
LIST_WEBHOOKS: Final[Operation[models.WebhookPage]] = Operation(
    "listWebhooks", "GET", "/v1/webhooks", {200: models.WebhookPage}
)
CREATE_TENANT_WEBHOOK: Final[Operation[models.WebhookCreated]] = Operation(
    "createTenantWebhook", "POST", "/v1/tenants/{tenant_id}/webhooks", {201: models.WebhookCreated}, Keyed.OPTIONAL
)
LIST_TENANT_WEBHOOKS: Final[Operation[models.WebhookPage]] = Operation(
    "listTenantWebhooks", "GET", "/v1/tenants/{tenant_id}/webhooks", {200: models.WebhookPage}
)
GET_WEBHOOK: Final[Operation[models.Webhook]] = Operation(
    "getWebhook", "GET", "/v1/webhooks/{webhook_id}", {200: models.Webhook}
)
UPDATE_WEBHOOK: Final[Operation[models.Webhook]] = Operation(
    "updateWebhook", "PATCH", "/v1/webhooks/{webhook_id}", {200: models.Webhook}
)
DELETE_WEBHOOK: Final[Operation[None]] = Operation("deleteWebhook", "DELETE", "/v1/webhooks/{webhook_id}", {204: None})
ROTATE_WEBHOOK_SECRET: Final[Operation[models.WebhookCreated]] = Operation(
    "rotateWebhookSecret",
    "POST",
    "/v1/webhooks/{webhook_id}/rotate-secret",
    {200: models.WebhookCreated},
    Keyed.OPTIONAL,
)
TEST_WEBHOOK: Final[Operation[models.WebhookDelivery]] = Operation(
    "testWebhook", "POST", "/v1/webhooks/{webhook_id}/test", {200: models.WebhookDelivery}, Keyed.OPTIONAL
)
LIST_WEBHOOK_DELIVERIES: Final[Operation[models.WebhookDeliveryPage]] = Operation(
    "listWebhookDeliveries", "GET", "/v1/webhooks/{webhook_id}/deliveries", {200: models.WebhookDeliveryPage}
)
REPLAY_WEBHOOK_EVENTS: Final[Operation[models.ReplayResponse]] = Operation(
    "replayWebhookEvents", "POST", "/v1/webhooks/{webhook_id}/replay", {202: models.ReplayResponse}, Keyed.OPTIONAL
)
