"""A stand-in for the hub of Hugging Face: serves folders as repositories, as far as downloading files goes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hub_server import SHA, Answering, serving


@contextmanager
def hub(repositories: dict[str, Path]) -> Iterator[tuple[str, list[str]]]:
    """A stand-in for Hugging Face: its address, and the paths that were asked for."""
    asked: list[str] = []

    class Hub(Answering):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            asked.append(path)
            for name, folder in repositories.items():
                files = sorted(folder.iterdir())
                if path == f"/api/models/{name}/tree/{SHA}":
                    entries = [
                        {"type": "file", "path": each.name, "size": each.stat().st_size, "oid": each.name} for each in files
                    ]
                    return self.answer(200, json.dumps(entries).encode(), Content_Type="application/json")
                if path.startswith(f"/api/models/{name}"):
                    siblings = [{"rfilename": each.name} for each in files]
                    about = {"id": name, "sha": SHA, "siblings": siblings}
                    return self.answer(200, json.dumps(about).encode(), Content_Type="application/json")
                if path.startswith(f"/{name}/resolve/{SHA}/"):
                    file = folder / path.rpartition("/")[2]
                    return self.answer(200, file.read_bytes(), ETag=f'"{file.name}"', X_Repo_Commit=SHA)
            return self.answer(404, b"", X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")

        do_HEAD = do_GET

    with serving(Hub) as address:
        yield address, asked
