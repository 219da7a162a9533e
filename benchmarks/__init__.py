"""Benchmarks: `python -m benchmarks` runs them all and prints one table (see `benchmarks.__main__`)."""
