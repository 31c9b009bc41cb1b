"""``python -m gpurbf``."""

import sys

from gpurbf.cli import main

if __name__ == "__main__":
    sys.exit(main())
