"""Datasets → one compressed sample: `kiseki sample` as a script; `python scripts/sample_and_compress.py --help` explains it."""

import sys

from kiseki.commands.main import main

if __name__ == "__main__":  # processes that it starts may import it
    sys.exit(main(["sample", *sys.argv[1:]]))
