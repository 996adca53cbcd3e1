"""`python -m mjx_lite`, the same as the console script `mjx-lite`."""

import sys

from mjx_lite.cli import main

if __name__ == "__main__":
  sys.exit(main())
