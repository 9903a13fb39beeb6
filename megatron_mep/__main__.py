"""`python -m megatron_mep` is `mep`."""

import sys

from megatron_mep.cli import main

if __name__ == "__main__":
    sys.exit(main())
