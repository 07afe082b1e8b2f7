"""A stand-in for the hub of Hugging Face: serves folders as datasets, as far as streaming them goes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hub_server import SHA, Answering, serving


@contextmanager
def dataset_hub(datasets: dict[str, Path], *, held: set[str], refused: set[str]) -> Iterator[str]:
    """Its address. Files whose names are in `held` are not answered for as long as they are, those in `refused` with 403."""

    class Hub(Answering):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            for name, folder in datasets.items():
                if path.startswith(f"/api/datasets/{name}/tree/{SHA}"):
                    return self.list(folder, path.partition(SHA)[2].strip("/"))
                if path in (f"/api/datasets/{name}", f"/api/datasets/{name}/revision/{SHA}"):
                    files = [str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()]
                    about = {"id": name, "sha": SHA, "siblings": [{"rfilename": file} for file in files]}
                    return self.answer(200, json.dumps(about).encode(), Content_Type="application/json")
                if path.startswith(f"/datasets/{name}/resolve/{SHA}/"):
                    return self.give(folder / path.partition(f"{SHA}/")[2])
            return self.answer(404, b"", X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")

        do_HEAD = do_GET

        def list(self, folder: Path, under: str) -> None:
            if not (folder / under).is_dir():
                return self.answer(404, b"", X_Error_Code="EntryNotFound")
            entries = [
                {"type": "file", "path": str(each.relative_to(folder)), "size": each.stat().st_size, "oid": each.name}
                if each.is_file()
                else {"type": "directory", "path": str(each.relative_to(folder)), "oid": each.name}
                for each in sorted((folder / under).iterdir())
            ]
            return self.answer(200, json.dumps(entries).encode(), Content_Type="application/json")

        def give(self, file: Path) -> None:
            if not file.is_file():
                return self.answer(404, b"", X_Error_Code="EntryNotFound")
            data = file.read_bytes()
            headers = {"ETag": f'"{file.name}"', "X_Repo_Commit": SHA, "Accept_Ranges": "bytes"}
            if self.command == "HEAD":
                return self.answer(200, data, **headers)
            while file.name in held:
                time.sleep(0.01)
            if file.name in refused:
                return self.answer(403, b"")
            first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
            part = data[int(first) : int(last or len(data)) + 1]
            span = f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"
            return self.answer(206, part, Content_Range=span, **headers)

    with serving(Hub) as address:
        try:
            yield address
        finally:
            held.clear()
