"""Webhooks: who is told of which events, and the telling (events-webhooks-errors, part B).

`dispatch` turns events into tasks, `delivering` works them off, `endpoints` is what people do with endpoints, `replay`
tells once more; `rules` and `signing` are pure.
"""
