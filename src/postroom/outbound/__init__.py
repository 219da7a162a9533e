"""Mail that leaves: accepted durably once, sent exactly as often as SMTP allows, and what became of it known."""
