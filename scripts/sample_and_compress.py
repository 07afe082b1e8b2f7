"""Datasets → one compressed sample: `kiseki sample` as a script; `python scripts/sample_and_compress.py --help` explains it."""

import sys

from kiseki.commands.main import main

sys.exit(main(["sample", *sys.argv[1:]]))
