"""Trajectories → within a token budget: `kiseki compress` as a script; `python trajectory_compressor.py --help` explains it."""

import sys

from kiseki.commands.main import main

sys.exit(main(["compress", *sys.argv[1:]]))
