"""HTML of received mail: what `mail.html` and `mail.content` make of it, under the names that the doors use."""

from postroom.mail.content import safe_html
from postroom.mail.html import sanitise

__all__ = ["safe_html", "sanitise"]
