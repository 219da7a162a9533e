"""References in mail: amounts, numbers, dates and the like, in one normal form each (inbound §15, edge row F5).

Everything is pure, bounded, and linear in the text.
"""

from postroom.mail.refs.custom import CustomRef, CustomRefError, Normalise, compile_custom
from postroom.mail.refs.extract import MAX_PER_KIND, MAX_REFS, MAX_VALUE, Ref, RefRules, extract, may_stand_unfenced

__all__ = [
    "MAX_PER_KIND",
    "MAX_REFS",
    "MAX_VALUE",
    "CustomRef",
    "CustomRefError",
    "Normalise",
    "Ref",
    "RefRules",
    "compile_custom",
    "extract",
    "may_stand_unfenced",
]
