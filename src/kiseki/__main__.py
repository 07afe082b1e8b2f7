"""`python -m kiseki` is `kiseki`."""

import sys

from kiseki.commands.main import main

sys.exit(main())
