"""The simulator against a GPU or captured words: diff, report, command line."""

from .diff import Diff, Difference, assert_same_words, diff

__all__ = ["Diff", "Difference", "assert_same_words", "diff"]
