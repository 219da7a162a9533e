"""Events: the outward vocabulary of what happened, and the live wake-ups of those who wait for it."""
