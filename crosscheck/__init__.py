"""The simulator against a GPU or captured words: diff, report, command line.

What is exported loads when it is asked for, so that the command line can be interrupted from its first moment.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .diff import Diff, Difference, assert_same_words

__all__ = ["Diff", "Difference", "assert_same_words", "diff"]


def __getattr__(name: str) -> object:
    """`diff` is the module, the other names are its own."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = import_module(".diff", __name__)
    return module if name == "diff" else getattr(module, name)
