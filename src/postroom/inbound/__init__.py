"""Inbound: an envelope and bytes become stored, threaded, announced messages, before the sender is told `250` (B2)."""
