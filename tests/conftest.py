"""Hypothesis in the whole suite: the same examples in every run, and no deadline (the specification is slow)."""

from hypothesis import settings

settings.register_profile("exact", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("exact")
