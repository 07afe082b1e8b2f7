"""`kiseki images`: what a dataset needs, what is there, pulling the rest; with a made backend, which gives any answer."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from support import kiseki, write_dataset

from kiseki.commands.main import main
from kiseki.errors import ImageError
from kiseki.sandboxes import factory
from kiseki.sandboxes.settings import Pull, SandboxSettings


class Made:
    """A backend module with images, in the place of `docker`."""

    def __init__(self) -> None:
        self.there = {"debian:12"}
        self.lost: dict[str, str] = {}
        self.pulls: Counter[str] = Counter()
        self.interrupted = False
        self.unavailable = ""

    def why_unavailable(self, settings: SandboxSettings) -> str:
        return self.unavailable

    def open_images(self, settings: SandboxSettings) -> Made:
        return self

    def has(self, image: str) -> bool:
        return image in self.there

    def pull(self, image: str, tell: Callable[[Pull], None]) -> None:
        self.pulls[image] += 1
        tell(Pull(10, 20, "[red]downloading"))
        if self.interrupted:
            raise KeyboardInterrupt
        if image in self.lost:
            raise ImageError(self.lost[image])
        self.there.add(image)

    def close(self) -> None: ...


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Made:
    module, backend = ModuleType("kiseki.sandboxes.made"), Made()
    for name in ("why_unavailable", "open_images"):
        setattr(module, name, getattr(backend, name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(factory.MODULES, "docker", "made")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    rows = [
        {"prompt": "a", "image": "debian:12"},
        {"prompt": "b", "docker_image": "python:3.12"},
        {"prompt": "c"},
        {"prompt": ""},
    ]
    write_dataset(tmp_path / "p.jsonl", [*rows, {"prompt": "d", "image": "debian:12"}])
    return backend


def table(output: str) -> dict[str, tuple[str, str]]:
    """Image → rows and state, of a printed table."""
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in output.splitlines() if line.startswith("│")]
    return {image: (rows, state) for image, rows, state in lines}


def images(*flags: str) -> int:
    return main(["images", "--dataset_file=p.jsonl", *flags])


def test_what_is_needed_and_what_is_there(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    assert images() == 3
    said = capsys.readouterr().out
    assert table(said) == {"debian:12": ("2", "there"), "python:3.12": ("1", "missing")}
    assert "1 rows name no image; --sandbox_image" in said
    assert "1 of 2 are there" in said
    assert "--pull pulls the others" in said
    assert not made.pulls
    assert images("--sandbox_image=debian:12") == 3
    said = capsys.readouterr().out
    assert table(said) == {"debian:12": ("3", "there"), "python:3.12": ("1", "missing")}
    assert "name no image" not in said
    assert images("--max_samples=1") == 0
    assert table(capsys.readouterr().out) == {"debian:12": ("1", "there")}


def test_pulling_what_is_missing(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    assert images("--pull") == 0
    assert made.pulls == {"python:3.12": 1}
    said = capsys.readouterr().out
    assert table(said) == {"debian:12": ("2", "there"), "python:3.12": ("1", "there")}
    assert "images pulled 1/1" in said
    assert images("--pull") == 0
    assert made.pulls == {"python:3.12": 1}, "nothing is missing any more"


def test_an_image_that_cannot_be_had_is_named_with_the_engines_words(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    made.lost["python:3.12"] = "manifest [bold]unknown[/bold]\n\x1b]0;owned\x07"
    assert images("--pull") == 3
    said = capsys.readouterr().out
    assert table(said)["python:3.12"] == ("1", "can't be had")
    assert "image 'python:3.12': manifest [bold]unknown[/bold]  ]0;owned  (rows that need it: 1)" in said
    assert "\x1b" not in said


def test_names_are_shown_as_they_are_and_obeyed_by_no_terminal(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "a", "image": "[red]x[/red]\x1b[2J"}, {"prompt": "b", "image": "y" * 5000}])
    assert images("--pull") == 0
    said = capsys.readouterr().out
    assert next(iter(table(said))) == "[red]x[/red] [2J"
    assert "\x1b" not in said
    assert "y" * 5000 in made.pulls
    assert len(said) < 3000


def test_an_interrupt_while_pulling(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    made.interrupted = True
    assert images("--pull") == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((), "missing --dataset_file"),
        (("--dataset_file=nope.jsonl",), "dataset file not found: nope.jsonl"),
        (("--dataset_file=empty.jsonl",), "the dataset has no usable row (line 1: 'prompt' is empty)"),
        (("--dataset_file=p.jsonl", "--sandbox=bubblewrap"), "'bubblewrap' has no images; docker, podman"),
        (("--dataset_file=p.jsonl", "--sandbox=dokcer"), "'dokcer' has no images; docker, podman"),
    ],
)
def test_what_is_wrong_is_one_line(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], says: str
) -> None:
    write_dataset(tmp_path / "empty.jsonl", [{"prompt": ""}])
    assert main(["images", *flags]) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert (said.out, len(said.err.splitlines())) == ("", 1)


def test_an_engine_that_is_not_there(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    made.unavailable = "cannot connect to the Docker daemon"
    assert images() == 2
    assert "sandbox backend 'docker' does not work here: cannot connect to the Docker daemon" in capsys.readouterr().err


def test_help_teaches(tmp_path: Path) -> None:
    said = kiseki("images", "--help", cwd=tmp_path).stdout
    assert "--pull" in said
    assert "examples:" in said
