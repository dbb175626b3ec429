"""Side-by-side measurements, each a ratio against a named peer in the same run: python -m bench [--quick]."""

import sys

from bench import attention

if sys.argv[1:] not in ([], ["--quick"]):
    sys.exit(__doc__)
attention.main(quick=sys.argv[1:] == ["--quick"])
