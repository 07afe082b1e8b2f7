"""Trajectories → within a token budget: `kiseki compress` as a script; `python trajectory_compressor.py --help` explains it."""

import sys

from kiseki.commands.main import main

if __name__ == "__main__":  # processes that it starts may import it
    sys.exit(main(["compress", *sys.argv[1:]]))
