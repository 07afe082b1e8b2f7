"""What lies beside the data so that whoever loads the folder finds all of it, and nothing else: files that the format's consumer
wants, and, for splits that the datasets library does not know by their names, a README.md that names their files
(https://huggingface.co/docs/hub/datasets-manual-configuration). Pure.

Without that `load_dataset` leaves out a split named `holdout` beside one named `train`, takes `train_a` and `train_b` for one,
and reads the reports as data where it knows none of the names.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kiseki.exports.conditions import Split
from kiseki.exports.job import WrittenFile
from kiseki.exports.target import Target
from kiseki.formats.format import Format

README = "README.md"
_KNOWN = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
"""Split → names of files that the datasets library takes for it (`datasets/data_files.py`, 3.0 to 5.2)."""
_SPLIT_OF = {name: split for split, names in _KNOWN.items() for name in names}


def beside_of(format: Format, target: Target, splits: Sequence[Split], files: Sequence[WrittenFile]) -> dict[str, bytes]:
    """Files by name, from the data files that are written, or one that stands for them."""
    beside = dict(format.beside([each.name for each in files])) if format.beside else {}
    known = {_SPLIT_OF[each.name] for each in splits if each.name in _SPLIT_OF}
    if len(known) < len(splits) and not target.single and not format.file_per_row:
        beside[README] = _readme(files)
    return beside


def _readme(files: Sequence[WrittenFile]) -> bytes:
    """Front matter as the Hub's cards have it; JSON is YAML."""
    names = dict.fromkeys(each.split for each in files)
    data = [{"split": split, "path": [each.name for each in files if each.split == split]} for split in names]
    front = msgspec.json.format(msgspec.json.encode({"configs": [{"config_name": "default", "data_files": data}]}), indent=2)
    return b"---\n" + front + b"\n---\n\nWritten by `kiseki export`: report.json says from what and how.\n"
