"""python -m crosscheck"""

import sys


def main() -> int:
    """The command line's exit code, also when it is interrupted while it loads."""
    try:
        from .cli import main as run

        return run()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
