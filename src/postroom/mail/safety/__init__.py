"""What an attachment is, by its content, and whether it may reach an agent (inbound §25; edge row B10)."""

from postroom.mail.safety.inspection import Inspected, inspect
from postroom.mail.safety.risk import Risk
from postroom.mail.safety.signatures import UNKNOWN, sniff

__all__ = ["UNKNOWN", "Inspected", "Risk", "inspect", "sniff"]
