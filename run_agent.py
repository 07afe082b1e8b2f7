"""One prompt → one trajectory: `kiseki agent` as a script. `python run_agent.py --help` explains the flags."""

import sys

from kiseki.commands.main import main

sys.exit(main(["agent", *sys.argv[1:]]))
