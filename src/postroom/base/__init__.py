"""Foundations every other package may use: settings, ids, clock, errors and logging. It imports nothing of ours."""
