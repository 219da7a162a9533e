"""Our own results as Authentication-Results (RFC 8601 §2.7, RFC 8617 §6, RFC 7489 §11), for the field and for ARC."""

from collections.abc import Iterator

from postroom.mailauth.authres import AuthenticationResults, MethodResult, Property
from postroom.mailauth.dmarc import SpfOutcome
from postroom.mailauth.verdict import MAX_SIGNATURES, Evidence, settled_dmarc


def authentication_results(
    evidence: Evidence, authserv_id: str, *, mail_from: str | None = None, helo: str | None = None
) -> AuthenticationResults:
    """What we found out, in our name. `mail_from`: the reverse-path; with none SPF was about `helo`.

    Only what was checked here is told, so not the SPF of another server.
    """
    results = (
        *_spf(evidence.spf, mail_from, helo),
        *_dkim(evidence),
        *_dmarc(evidence),
        *_arc(evidence),
    )
    return AuthenticationResults(authserv_id, results)


def _spf(spf: SpfOutcome, mail_from: str | None, helo: str | None) -> Iterator[MethodResult]:
    if spf.checked and spf.source != "header":
        about = [Property("smtp", "mailfrom", mail_from)] if mail_from else []
        about += [Property("smtp", "helo", helo)] if helo and not mail_from else []
        yield MethodResult("spf", spf.result.value, tuple(about))


def _dkim(evidence: Evidence) -> Iterator[MethodResult]:
    for found in evidence.dkim[:MAX_SIGNATURES]:
        about = (
            Property("header", name, value)
            for name, value in (
                ("d", found.domain),
                ("s", found.selector),
                ("a", found.algorithm),
                ("b", found.signature_start),
            )
            if value
        )
        yield MethodResult("dkim", found.status.value, tuple(about), comment=found.reason.value.replace("_", " "))
    if not evidence.dkim:
        yield MethodResult("dkim", "none")


def _dmarc(evidence: Evidence) -> Iterator[MethodResult]:
    dmarc = evidence.dmarc
    about = [Property("header", "from", dmarc.author_domain)] if dmarc.author_domain else []
    about += [Property("policy", "dmarc", dmarc.policy.value)] if dmarc.policy is not None else []
    yield MethodResult("dmarc", settled_dmarc(evidence)[0].value, tuple(about))


def _arc(evidence: Evidence) -> Iterator[MethodResult]:
    arc = evidence.arc
    about = [] if arc.oldest_pass is None else [Property("header", "oldest-pass", str(arc.oldest_pass))]
    about += [Property("smtp", "remote-ip", evidence.client.ip)] if evidence.client is not None else []
    yield MethodResult("arc", arc.status.value, tuple(about))
