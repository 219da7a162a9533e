"""Every error code with its HTTP status, whether a retry can help, its words and its fix (events-webhooks-errors §17).

The codes are those of the published contract and of decisions, section E.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ErrorSpec:
    """One row of the table. `retryable`: the same request, unchanged, may succeed later."""

    code: str
    status: int
    retryable: bool
    message: str
    fix: str


def _no(status: int, code: str, message: str, fix: str) -> ErrorSpec:
    return ErrorSpec(code, status, False, message, fix)


def _retry(status: int, code: str, message: str, fix: str) -> ErrorSpec:
    return ErrorSpec(code, status, True, message, fix)


_LOOK: Final = "Check the id; things outside your key's scope look the same as missing ones."


def _missing(code: str, thing: str) -> ErrorSpec:
    return ErrorSpec(code, 404, False, f"No such {thing}.", _LOOK)


_ACCESS: Final = (
    _no(401, "unauthenticated", "No valid credentials were given.", "Send a valid key or session token as a bearer."),
    _no(401, "key_expired", "This API key has expired.", "Create or rotate to a new key and use that."),
    _no(401, "key_revoked", "This API key has been revoked.", "Use another key, or ask its owner for a new one."),
    _no(401, "invalid_credentials", "The sign-in was not accepted.", "Check the address and password, then try again."),
    _no(401, "totp_required", "A second factor is needed.", "Repeat the request with a current code in `totp`."),
    _no(
        403,
        "permission_denied",
        "The credentials lack a permission for this.",
        "Use a key with what `details.required` lists, see `details.reason`, or ask a person to do it.",
    ),
    _no(
        403,
        "scope_denied",
        "This is beyond what the level of these credentials may touch.",
        "Use a key of a higher level, or keep the value within the stated ceiling.",
    ),
    _no(
        403,
        "key_scope_exceeded",
        "A key may not handle a key with wider rights than its own.",
        "Ask for no more permissions and scope than the calling key has.",
    ),
    _no(403, "tenant_suspended", "The tenant is suspended.", "Ask whoever suspended the tenant to resume it."),
    _no(403, "partner_suspended", "The partner is suspended.", "Ask the platform's operator to resume the partner."),
    _no(
        403,
        "partner_tenant_limit",
        "The partner has as many tenants as it may have.",
        "Erase an unused tenant, or ask the operator to raise the limit.",
    ),
    _no(
        403,
        "test_mode_recipient",
        "A test tenant does not send to this recipient.",
        "Send to the simulator or to an address of the same tenant or partner, or use a live tenant.",
    ),
    _no(
        403,
        "policy_denied",
        "The policy in force does not allow this.",
        "See `details.reason`, and ask whoever sets the policy to allow it.",
    ),
    _no(
        403,
        "invalid_signature",
        "The signature of the notification could not be verified.",
        "Deliver the notification as its provider signed it.",
    ),
    _no(
        426, "client_outdated", "This client speaks a version no longer served.", "Update the client and connect again."
    ),
    _retry(
        429,
        "too_many_attempts",
        "There were too many failed attempts.",
        "Wait as long as `Retry-After` says before trying again.",
    ),
)

_VALIDATION: Final = (
    _no(400, "invalid_request", "The request is malformed.", "Correct what `details.errors` lists and send it again."),
    _no(
        400,
        "idempotency_key_required",
        "This request needs an idempotency key.",
        "Add an `Idempotency-Key` header with a value unique to this operation.",
    ),
    _no(
        400,
        "invalid_idempotency_key",
        "The idempotency key is not usable.",
        "Use 1 to 255 printable ASCII characters.",
    ),
    _no(
        400,
        "invalid_query",
        "The search query could not be read.",
        "Correct the query at `details.position`, where `details.expected` was looked for.",
    ),
    _no(400, "address_invalid", "The address is not a valid mail address.", "Write it as local-part@domain, RFC 5321."),
    _no(
        400,
        "address_unsupported",
        "The local part has characters that hosted addresses cannot have.",
        "Use ASCII letters, digits, dots and hyphens before the @.",
    ),
    _no(400, "address_reserved", "This local part is reserved.", "Choose another name."),
    _no(
        400,
        "local_part_too_long",
        "The name and the tenant's suffix are too long together.",
        "Choose a name that leaves the whole at 40 characters or fewer.",
    ),
    _no(
        400,
        "header_not_allowed",
        "A custom header is not one that may be set.",
        "Use an `X-` header or one of the named headers of the documentation.",
    ),
    _no(
        400,
        "marketing_requirements_missing",
        "Marketing mail lacks what it must carry.",
        "Give both `unsubscribe` and `consent`.",
    ),
    _no(
        400,
        "too_many_recipients",
        "The message has more recipients than one send may have.",
        "Split the recipients over several messages.",
    ),
    _no(400, "smtp_port_not_allowed", "The relay port is not allowed.", "Use port 465 or 587."),
    _no(
        400,
        "spf_lookup_limit",
        "The resulting SPF record would need more look-ups than receivers make.",
        "Remove or flatten includes until at most ten look-ups and two void ones remain.",
    ),
    _no(
        413,
        "message_too_large",
        "The message is larger than may be sent.",
        "Shrink or remove attachments, or send links to them.",
    ),
    _no(413, "payload_too_large", "The request body is too large.", "Send a smaller body, or upload in parts."),
    _no(
        413,
        "mailbox_full",
        "The mailbox has no room for this.",
        "Expunge mail or have the mailbox's quota raised, then try again.",
    ),
    _no(
        422,
        "scope_too_large",
        "The search spans too many identities.",
        "Name the identities to search in `identity_ids`.",
    ),
)

_MISSING: Final = (
    _missing("tenant_not_found", "tenant"),
    _missing("identity_not_found", "identity"),
    _missing("address_not_found", "address"),
    _missing("domain_not_found", "domain"),
    _missing("thread_not_found", "thread"),
    _missing("message_not_found", "message"),
    _missing("attachment_not_found", "attachment"),
    _missing("webhook_not_found", "webhook endpoint"),
    _missing("key_not_found", "key"),
    _missing("erasure_not_found", "erasure request"),
    _missing("export_not_found", "export"),
    _missing("suppression_not_found", "suppression"),
    _missing("list_entry_not_found", "list entry"),
    _missing("member_not_found", "member"),
    _missing("invitation_not_found", "invitation"),
    _missing("job_not_found", "job"),
    _missing("dlq_item_not_found", "dead-letter item"),
    _missing("partner_not_found", "partner"),
    _missing("account_not_found", "service account"),
    _missing("folder_not_found", "folder"),
    _missing("draft_not_found", "draft"),
    _missing("upload_not_found", "upload"),
    _missing("person_not_found", "person"),
    _missing("device_not_found", "device"),
    _missing("session_not_found", "session"),
    _missing("app_password_not_found", "application password"),
    _missing("passkey_not_found", "passkey"),
    _missing("grant_not_found", "grant"),
    _no(404, "route_not_found", "This host has no such path.", "Check the host and path against the documentation."),
    _no(405, "method_not_allowed", "The path has no such method.", "Use one of the methods in the `Allow` header."),
)

_STATE: Final = (
    _no(
        409,
        "idempotency_conflict",
        "This idempotency key was used with a different request.",
        "Repeat the original request exactly, or use a new key for a new operation.",
    ),
    _retry(
        409,
        "request_in_progress",
        "A request with this idempotency key is still running.",
        "Wait a moment and repeat it with the same key.",
    ),
    _no(
        409,
        "client_id_conflict",
        "This `client_id` already names a different identity.",
        "Repeat the original body, or choose another `client_id`.",
    ),
    _no(
        409,
        "passkey_registered",
        "The authenticator's passkey is registered already.",
        "Use another authenticator, or remove the passkey where it is registered.",
    ),
    _no(
        409,
        "totp_enabled",
        "Two-step verification is on already.",
        "Disable it first to enrol another device.",
    ),
    _no(
        409,
        "totp_not_enabled",
        "Two-step verification is off, or no enrolment waits to be confirmed.",
        "Enrol, and confirm with a code within ten minutes.",
    ),
    _no(409, "username_taken", "This username is in use.", "Choose another username."),
    _no(409, "slug_taken", "This slug is in use.", "Choose another slug."),
    _no(409, "suffix_taken", "This address suffix is in use or too like another.", "Choose another suffix."),
    _no(409, "not_quarantined", "The message is not quarantined.", "Read the message again; it needs no release."),
    _no(409, "domain_not_suspended", "The domain is not suspended.", "Read the domain again; it needs no new proof."),
    _no(
        409,
        "existing_mx",
        "The name already receives mail elsewhere.",
        "Repeat with `replace_mx: true` if that mail is to come here.",
    ),
    _no(
        409,
        "domain_not_dedicated",
        "The name carries records besides mail.",
        "Use a name of its own, or repeat with `confirm_dedicated` after reading `details.records`.",
    ),
    _no(409, "zone_hold", "The DNS provider holds this zone.", "Have the provider release the zone, then try again."),
    _no(
        409,
        "domain_exists",
        "The name is not available.",
        "Publish the TXT record of `details.claim` and repeat with `claim: true` if the name is yours.",
    ),
    _retry(
        409,
        "domain_claim_pending",
        "The claim is proved and the former holder is being removed.",
        "Wait as long as `Retry-After` says and repeat.",
    ),
    _no(
        409,
        "domain_in_use",
        "The domain still has addresses or depends on a policy.",
        "Retire what uses the domain first.",
    ),
    _retry(
        409,
        "domain_not_ready",
        "The domain or address is not ready for use yet.",
        "Finish the domain's set-up and wait until it is healthy.",
    ),
    _no(409, "owner_required", "A workspace needs its owner.", "Transfer the ownership first."),
    _no(
        409,
        "plan_managed_by_stripe",
        "The plan is paid through Stripe.",
        "Change or cancel it in the billing portal.",
    ),
    _no(409, "partner_has_tenants", "The partner still has tenants.", "Erase the tenants in `details.tenants` first."),
    _no(409, "tenant_erased", "The tenant is erased or being erased.", "Use another tenant."),
    _no(409, "address_taken", "The address is not available.", "Choose another address."),
    _no(
        409,
        "address_is_primary",
        "The identity's primary address cannot be retired.",
        "Promote another address first.",
    ),
    _no(409, "address_in_use", "The address has received mail.", "Retire the address in place of deleting it."),
    _no(
        409,
        "identity_paused",
        "The identity is paused.",
        "See `details.reason`, and have whoever may do so resume the identity.",
    ),
    _no(
        409,
        "identity_owner_required",
        "The identity has no accountable human.",
        "Set an owner for the identity first.",
    ),
    _no(
        409,
        "sending_paused",
        "Sending is paused.",
        "Resolve the reason in `details`, then ask the platform's operator to resume it.",
    ),
    _retry(409, "thread_busy", "Another reply to this thread is being made.", "Wait `retry_after` seconds and repeat."),
    _no(
        409,
        "loop_detected",
        "The exchange has passed through too many automatic hands.",
        "Let a person continue the conversation.",
    ),
    _no(
        409,
        "auto_reply_not_allowed",
        "An automatic reply is not allowed here.",
        "Leave it unanswered, or have a person answer.",
    ),
    _no(
        409,
        "not_cancelable",
        "The message can no longer be cancelled.",
        "Read its delivery status to see how far it got.",
    ),
    _no(409, "not_uncertain", "The message has no uncertain delivery.", "Read its delivery status again."),
    _no(409, "triage_not_eligible", "This message is not triaged.", "Choose ordinary, released mail."),
    _no(409, "account_exists", "The ledger already has this account.", "Use the entry in `details.account_id`."),
    _no(409, "account_not_pending", "The ledger entry is already decided.", "Read the entry for its status."),
    _no(
        409,
        "erasure_not_completed",
        "The erasure request did not complete.",
        "Apply again only requests that completed.",
    ),
    _no(409, "not_frozen", "The deployment is not frozen.", "Freeze the deployment before restoring."),
    _no(
        409,
        "resync_required",
        "The change log no longer reaches back to this cursor.",
        "Take a new snapshot and follow the changes from its cursor.",
    ),
    _no(409, "folder_exists", "A folder of this name exists.", "Use it, or choose another name."),
    _no(409, "folder_not_empty", "The folder is not empty.", "Move or expunge what it holds first."),
    _no(410, "raw_expired", "The raw message is past its retention.", "Use the stored text and attachments."),
    _no(410, "cursor_expired", "The cursor is too old.", "Start again from the first page."),
    _no(
        423,
        "legal_hold",
        "The thread is under legal hold.",
        "Have the hold lifted before deleting from this thread.",
    ),
)

_POLICY: Final = (
    _no(
        402,
        "billing_limit",
        "The plan's allowance is used up.",
        "Upgrade, or wait until `details.resets_at`, and repeat.",
    ),
    _no(
        422,
        "all_recipients_suppressed",
        "Every recipient is suppressed.",
        "See each recipient's reason. Agents write to strangers only if their send_policy allows it.",
    ),
    _no(
        422,
        "recipient_blocked",
        "The send policy does not allow a recipient.",
        "Have the recipient allowed, or remove it.",
    ),
    _no(
        422,
        "transport_unavailable",
        "The transport for this is not available.",
        "See `details.reason`, and set up the transport or choose another.",
    ),
    _no(422, "smtp_tls_required", "The relay offers no TLS.", "Use a relay, or a port of it, that offers TLS."),
    _no(422, "smtp_auth_failed", "The relay refused the login.", "Correct the relay's user name and password."),
    _no(
        422,
        "dns_provider_required",
        "This needs a DNS provider with credentials for the zone.",
        "Configure the provider that holds the zone, or publish the records by hand.",
    ),
    _no(422, "agentic_disabled", "Agentic search is off.", "Use another search mode, or have it enabled."),
    _no(
        422,
        "address_limit_reached",
        "The identity has as many addresses as it may have.",
        "Delete an unused address, or use another identity.",
    ),
    _no(
        422,
        "unverified_domain_limit",
        "The tenant has too many domains never verified.",
        "Verify or remove one of them first.",
    ),
    _no(
        422,
        "zone_domain_limit",
        "The provider's zone is full.",
        "Remove an unused domain of the zone, or use another zone.",
    ),
    _no(
        422,
        "account_limit_reached",
        "The identity's ledger is full.",
        "Decide pending entries or close unused ones first.",
    ),
    _no(
        422,
        "webhook_limit_reached",
        "There are as many webhook endpoints as may be.",
        "Delete an unused endpoint first.",
    ),
    _no(
        422,
        "app_password_limit_reached",
        "There are as many application passwords as may be.",
        "Revoke an unused one first.",
    ),
    _no(422, "passkey_limit_reached", "There are as many passkeys as may be.", "Remove an unused one first."),
    _no(422, "key_limit_reached", "There are as many active keys as may be.", "Revoke an unused key first."),
    _no(
        422,
        "web_bot_auth_disabled",
        "Web Bot Auth is off on this deployment.",
        "Ask the operator to turn it on.",
    ),
    _retry(429, "rate_limited", "Too many requests.", "Wait as long as `Retry-After` says and repeat."),
    _retry(
        429,
        "daily_cap_reached",
        "The daily cap is reached.",
        "Wait until `details.resets_at`, or have the cap raised.",
    ),
    _retry(
        429,
        "agentic_budget_exhausted",
        "The tenant's agentic budget for today is spent.",
        "Use another search mode, or wait until tomorrow.",
    ),
    _retry(
        429,
        "upstream_rate_limited",
        "A provider limits how often this may be done.",
        "Wait as long as `Retry-After` says and repeat.",
    ),
)

_SERVER: Final = (
    _retry(
        500,
        "internal_error",
        "Something went wrong on our side.",
        "Repeat the request; if it fails again, report the `request_id`.",
    ),
    _retry(502, "upstream_error", "A service this depends on failed.", "Repeat the request in a little while."),
    _retry(
        503, "unavailable", "This is not available at the moment.", "Wait as long as `Retry-After` says and repeat."
    ),
    _retry(
        503,
        "search_degraded",
        "The required search mode is not available now.",
        "Repeat later, or leave out `require_mode`.",
    ),
    _retry(504, "timeout", "The request took too long.", "Repeat the request; sends with the same idempotency key."),
)

ENTRIES: Final = (*_ACCESS, *_VALIDATION, *_MISSING, *_STATE, *_POLICY, *_SERVER)
