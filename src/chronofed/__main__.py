"""``python -m chronofed``."""

import sys

from chronofed.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
