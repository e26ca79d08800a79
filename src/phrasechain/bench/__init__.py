"""Benchmarks of speed and memory, against named peers and a lower bound."""
