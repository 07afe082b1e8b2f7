"""`kiseki push` and what it is told wrongly: one line and exit status 2, before the Hub is asked for anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from hub_uploads import UploadHub, upload_hub
from pushing import make_run, push, start_push

pytest.importorskip("huggingface_hub")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("push")
    make_run(folder, "r", [{"prompt": "Say hi aloud."}])
    (folder / "empty").mkdir()
    (folder / "file").write_text("")
    (folder / "damaged").mkdir()
    (folder / "damaged/run.db").write_text("no database" * 100)
    return folder


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["org/x"], "missing --run: kiseki push org/x --run data/my_run"),
        (["x", "--run=data/r"], "'x' is no name of a dataset on the Hub; it is org/name"),
        (["a/b/c", "--run=data/r"], "'a/b/c' is no name"),
        (["../x", "--run=data/r"], "'../x' is no name"),
        (["org/a--b", "--run=data/r"], "'org/a--b' is no name"),
        (["org/\x1b[31mx", "--run=data/r"], "is no name"),
        (["https://huggingface.co/datasets/org/x", "--run=data/r"], "is no name"),
        (["org/x", "--run=nothing"], "nothing"),
        (["org/x", "--run=file"], "file"),
        (["org/x", "--run=empty"], "empty"),
        (["org/x", "--run=damaged"], "damaged"),
        (["org/x", "--run=data/r", "--to=nonsense"], "nonsense"),
        (["org/x", "--run=data/r", "--to=sts"], "--to=sts makes a file of each row"),
        (["org/x", "--run=data/r", "--to=rl"], "no token ids"),
        (["org/x", "--run=data/r", "--split=train=0.5,val=0.5"], "--split needs --to"),
        (["org/x", "--run=data/r", "--to=messages", "--split=train=2"], "--split"),
        (["org/x", "--run=data/r", "--to=messages", "--checkpoint"], "leave out --to"),
        (["org/x", "--run=data/r", "--seed=x"], "--seed"),
        (["org/x", "--run=data/r", "--nonsense"], "--nonsense"),
        (["org/x", "org/y", "--run=data/r"], "org/y"),
    ],
)
def test_what_cannot_be_pushed_is_one_line(place: Path, arguments: list[str], words: str) -> None:
    with upload_hub() as hub:
        said = push(hub, place, *arguments[1:], to=arguments[0], status=2)
        assert words in said
        assert said.startswith("kiseki: ")
        assert len(said.splitlines()) == 1
        assert "\x1b" not in said
        assert not hub.repos


def test_a_repository_is_to_be_named(place: Path) -> None:
    with upload_hub() as hub:
        assert "missing ORG/NAME" in start_push(hub, place, "--run=data/r", to="--redact", status=2)


def test_help_says_how_it_ends(place: Path) -> None:
    said = start_push(UploadHub(), place, "--help")
    assert "exit status: 0 pushed" in said
    assert "--redact" in said
