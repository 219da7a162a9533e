"""Functions that any bytes may be thrown at, and what must hold whatever the bytes (requirements §7)."""
