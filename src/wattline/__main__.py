"""Entry point of `python -m wattline`."""

import sys

from wattline.cli import main

if __name__ == "__main__":
    sys.exit(main())
