"""`python -m cheops` is the `cheops` command."""

import sys

from cheops.cli.main import main

sys.exit(main())
