"""Dataset → trajectories: `kiseki batch` as a script. `python batch_runner.py --help` explains the flags."""

import sys

from kiseki.commands.main import main

sys.exit(main(["batch", *sys.argv[1:]]))
