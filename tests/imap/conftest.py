"""Hypothesis without its time limit per example: machines that are busy are not bugs."""

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
