"""Words of bounces: in subjects, of failure and of delay, and for what reason, in the languages that servers speak."""

import re
from typing import Final

from postroom.mail.dsn.model import Action

_SUBJECTS: Final = (
    # English
    r"undeliver|delivery status notification|mail delivery (?:failed|failure|problem|error|system|subsystem)|"
    r"returned mail|failure notice|delivery (?:failure|failed|has failed|has been delayed|delayed|report|problem|"
    r"error)|non-?delivery (?:report|notice|notification)|nondeliverable|mail (?:system error|could not be delivered)|"
    r"message (?:undeliverable|delivery|not delivered|could not be delivered|delayed)|"
    r"warning: (?:message|could not send message)|could not send message|unable to deliver|returned to sender|"
    r"email not delivered|bounced mail|"
    # German, French, Spanish, Italian, Dutch, Portuguese
    r"unzustellbar|nicht zustellbar|zustellung fehlgeschlagen|fehler bei der zustellung|"
    r"non remis|non distribu|échec de (?:la )?(?:remise|livraison)|non délivr|"
    r"no se (?:puede|pudo|ha podido) entregar|no entregado|correo devuelto|fallo (?:de|en la) entrega|"
    r"non recapitabile|mancat[oa] (?:recapito|consegna)|impossibile recapitare|"
    r"onbestelbaar|niet (?:af|be)geleverd|kan niet worden bezorgd|"
    r"não (?:entregue|foi entregue|é possível entregar)|falha (?:na|de) entrega|"
    # Scandinavian, Finnish, Polish, Czech, Turkish, Russian, Japanese, Chinese, Korean
    r"kan inte levereras|gick inte att leverera|kan ikke leveres|kunne ikke leveres|toimitus epäonnistui|"
    r"niedostarcz|nie dostarczono|nedoručiteln|teslim edilemedi|не доставлено|недоставлен|не удалось доставить|"
    r"配信不能|配信できません|配信エラー|系统退信|退信|无法(?:传递|投递|送达)|無法傳遞|배달되지|전달할 수 없"
)
BOUNCE_SUBJECT: Final = re.compile(_SUBJECTS, re.IGNORECASE)
BOUNCE_SUBJECT_START: Final = re.compile(
    rf"(?:\[[^\[\]]{{1,40}}\]\s*|\*{{2,5}}[A-Z ]{{1,20}}\*{{2,5}}\s*)?(?:{_SUBJECTS})", re.I
)

_DELAYED: Final = re.compile(
    r"(?:has|have|been|was|is) (?:been )?delayed|not yet been delivered|has not been delivered yet|still undelivered|"
    r"could not be delivered yet|will (?:keep|continue|be retried|retry)|delivery attempts will continue|"
    r"do(?:es)? not need to (?:resend|send) (?:your|the) (?:message|mail)|no action is required|transient non-?fatal|"
    r"temporary (?:delivery failure|problem)|delivery incomplete|(?:we|it)(?:['’]| wi)ll (?:be )?retr|"
    r"noch nicht zugestellt|verzögert|retardée|todavía no|en retraso|ritardata|vertraagd|"
    r"отложен|遅延",
    re.IGNORECASE,
)
_PERMANENT: Final = re.compile(r"permanent (?:fatal |delivery )?(?:error|failure)|failed permanently", re.IGNORECASE)
_FAILED: Final = re.compile(
    r"permanent (?:fatal )?error|permanent failure|failed permanently|fatal errors?|undeliver(?:able|ed)|"
    r"(?:could|can|was|were|has|have|did|is)(?: ?not|n['’]t)(?: be(?:en)?)? (?:deliver|reach|sent|complete|accept)|"
    r"(?:cannot|can ?not|couldn['’]t|unable to) (?:be )?(?:deliver|reach|send|accept|complet|find)|"
    r"delivery (?:to the following recipients? |to these recipients )?(?:has )?failed|failed to deliver|"
    r"following address(?:\(es\)|es)? (?:had (?:delivery )?(?:problem|error|permanent)|failed)|giving up|gave up|"
    r"given up|returned to (?:the )?sender|message (?:was )?rejected|was rejected|has been rejected|"
    r"(?:nicht|konnte) (?:\w+ ){0,4}(?:zugestellt|übermittelt)|unzustellbar|"
    r"(?:n['’]a pas (?:pu|été)|impossible de)[^\n.]{0,40}(?:remis|remettre|distribu|délivr|livr)|échec|"
    r"no (?:se )?(?:ha podido|pudo|puede)[^\n.]{0,30}entreg|non (?:è stato possibile|può essere)[^\n.]{0,30}(?:recapit|"
    r"consegn)|kon niet (?:worden )?(?:be|af)?(?:zorgd|geleverd)|não (?:pôde|foi possível|pode)[^\n.]{0,30}entreg|"
    r"nie (?:można|udało się|mogła)[^\n.]{0,30}dostarcz|не (?:может|удалось|было|была)[^\n.]{0,30}достав|"
    r"(?:kunde|kan|kunne) (?:inte|ikke) (?:\w+ ){0,2}lever|配信(?:できません|に失敗|不能)|无法(?:投递|送达|传递|发送)",
    re.IGNORECASE,
)

# In this order: what is more telling comes first.
_REASONS: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), status)
    for pattern, status in (
        (
            r"mailbox (?:is )?(?:full|over quota|exceeds)|(?:over|exceeded|exceeds|out of)[^\n]{0,20} (?:quota|"
            r"storage)|quota (?:is )?exceeded|postfach (?:ist )?voll|boîte[^\n]{0,30}pleine|buz[oó]n[^\n]{0,20}lleno|"
            r"casella[^\n]{0,20}piena",
            "5.2.2",
        ),
        (
            r"(?:user|recipient|mailbox|account|addressee)[^\n]{0,30}(?:unknown|not found|does ?n[o']t exist|not exist|"
            r"unavailable|invalid|not listed)|(?:unknown|no such|invalid|bad|nonexistent) (?:user|recipient|mailbox|"
            r"address|account)|no mailbox (?:here )?by that name|address (?:(?:was )?not found|couldn['’]t be found)|"
            r"does not (?:exist|have an account)|not listed in|name is not recognized|unbekannter (?:benutzer|"
            r"empfänger)|doesn['’]t have a [^\n]{0,30} account|existiert nicht|n['’]existe pas|no existe|non esiste|"
            r"bestaat niet|não existe|nie istnieje|не существует|不存在|存在しません",
            "5.1.1",
        ),
        (
            r"(?:host|domain)(?: name)? (?:is )?(?:unknown|not found|lookup failure)|unknown (?:host|domain)|"
            r"illegal host|name or service not known|(?:unrouteable|unroutable) (?:address|mail domain)|"
            r"could ?n[o']t find any host|"
            r"domain (?:does ?n[o']t exist|couldn['’]t be found)",
            "5.1.2",
        ),
        (r"(?:account|mailbox|user)[^\n]{0,20}(?:disabled|suspended|inactive|deactivated|locked)", "5.2.1"),
        (r"too (?:large|big|many bytes)|size (?:limit|exceeds)|exceeds (?:the )?(?:maximum|size)", "5.2.3"),
        (r"too many hops|mail loop|loop(?:s)? (?:back|detected)", "5.4.6"),
        (
            r"(?:connection|connect)[^\n]{0,30}(?:timed? ?out|refused)|retry time(?:out)? (?:not reached|exceeded)|"
            r"message expired|(?:been )?in (?:the )?queue too long|max(?:imum)? time|timed out|no route to host|"
            r"would ?n[o']t be able to establish|was ?n[o']t able to establish an smtp connection",
            "4.4.7",
        ),
        (r"spam|blacklist|blocklist|blocked|policy|denied|not (?:allowed|permitted)|prohibited", "5.7.1"),
    )
)


def action_said(text: str) -> Action | None:
    """Whether a notice says that mail failed, or that it still waits; None for text that says neither.

    A warning also says that the mail was not delivered, and a failure may tell of tries in the past: what the notice
    says of waiting counts, unless it says that something is permanent.
    """
    if _DELAYED.search(text) is not None and _PERMANENT.search(text) is None:
        return Action.DELAYED
    return Action.FAILED if _FAILED.search(text) is not None else None


def status_said(text: str) -> str | None:
    """The enhanced code (RFC 3463) that fits the words of a reason; None when they are not known."""
    return next((status for pattern, status in _REASONS if pattern.search(text) is not None), None)
