"""The datasets library: `rows.py COUNT FILE…`. For each file a line: how many rows load, and the last COUNT of them.

Keys whose value is null are left out, as no reader tells them from missing ones.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def main(count: int, paths: list[str]) -> None:
    import datasets

    datasets.disable_progress_bars()
    for path in paths:
        kind = "parquet" if path.endswith(".parquet") else "json"
        try:
            found = datasets.load_dataset(kind, data_files=path, split="train")
        except Exception as error:  # each library has its own
            cause = error.__cause__ or error
            print(json.dumps({"error": f"{type(cause).__name__}: {cause}"[:600]}))
            continue
        last = [without_nulls(found[at]) for at in range(len(found) - count, len(found))]
        print(json.dumps({"rows": len(found), "last": last}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
