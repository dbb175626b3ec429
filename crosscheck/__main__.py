"""python -m crosscheck"""

import os
import sys


def main() -> int:
    """The command line's exit code, also when it is interrupted while it loads."""
    try:
        import signal

        quiet = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if quiet:  # an import that is interrupted may hide it
            signal.signal(signal.SIGINT, lambda *_: os._exit(130))
        from .cli import main as run

        if quiet:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return run()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
