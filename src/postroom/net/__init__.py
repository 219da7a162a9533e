"""The network's edges that are no protocol of ours: TLS contexts and certificates."""
