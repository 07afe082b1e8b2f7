"""`kiseki images`: which container images a dataset needs, which of them are there, and pulling the others ahead of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kiseki.commands.display import make_console
from kiseki.commands.flags import Parser, at_least
from kiseki.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

EPILOG = """\
examples:
  kiseki images --dataset_file=prompts.jsonl                      which images are missing in Docker
  kiseki images --dataset_file=prompts.jsonl --pull               and pull them, so that a run starts at once
  kiseki images --dataset_file=prompts.jsonl --sandbox=apptainer --sandbox_image=python:3.12 --pull

exit status: 0 every image is there; 3 some are missing, or with --pull could not be had; 2 unusable arguments or input"""

ALL_THERE, SOME_MISSING = 0, 3


def build_parser() -> Parser:
    parser = Parser("kiseki images", "Show which container images the rows of a dataset need and which are there.", EPILOG)
    flag = parser.flag
    group = parser.add_argument_group("the images")
    flag(group, "dataset_file", str, "as of kiseki batch: its columns 'image' and 'docker_image' name the images")
    flag(group, "sandbox", str, "whose images: docker, podman, apptainer or modal", "docker")
    flag(group, "sandbox_image", str, "image of rows that name none, as of kiseki batch", "")
    flag(group, "max_samples", at_least(1), "only the first so many usable rows (default: all)")
    parser.switch(group, "pull", "pull those that are missing, each once, a few at a time")
    return parser


def main(argv: Sequence[str]) -> int:
    flags = build_parser().parse(argv)
    if not flags.dataset_file:
        raise UsageError("missing --dataset_file; kiseki images --help shows an example")

    from rich.text import Text

    from kiseki.batch.images import find_missing, pull_missing, say_lost, with_default
    from kiseki.batch.prompts import check_dataset
    from kiseki.sandboxes.factory import HAS_IMAGES, choose_backend
    from kiseki.sandboxes.settings import SandboxSettings

    if flags.sandbox not in HAS_IMAGES:
        raise UsageError(f"--sandbox: {flags.sandbox!r} has no images; {', '.join(HAS_IMAGES)} have")
    check_dataset(flags.dataset_file)
    settings = SandboxSettings(backend=flags.sandbox, image=flags.sandbox_image)
    choose_backend(settings)
    console = make_console()
    named = _count_images(flags.dataset_file, flags.max_samples)
    images = with_default(named, flags.sandbox_image)
    missing = find_missing(settings, images, console)
    lost = pull_missing(settings, missing, console) if flags.pull and missing else dict.fromkeys(missing, "")
    if images:
        console.print(_table(images, dict.fromkeys(lost, "can't be had" if flags.pull else "missing")))
    if not flags.sandbox_image and (without := named.get("", 0)):
        words = f"{without:,} rows name no image; --sandbox_image names one for them"
        console.print(Text(words), style="yellow", soft_wrap=True)
    if flags.pull:
        say_lost(console, lost, images, most=len(lost))
    there = len(images) - len(lost)
    console.print(Text(f"images of {flags.sandbox}: {there:,} of {len(images):,} are there"), soft_wrap=True)
    if lost and not flags.pull:
        console.print(Text("--pull pulls the others; kiseki batch does it too, before its first model call"), soft_wrap=True)
    return SOME_MISSING if lost else ALL_THERE


def _count_images(dataset_file: str, max_samples: int | None) -> dict[str, int]:
    """Image → rows that name it, "" for those that name none. Raises `DatasetError` where no row is usable."""
    from kiseki.batch.prompts import BadRow, read_prompts
    from kiseki.errors import DatasetError

    counts: dict[str, int] = {}
    first_bad = ""
    for row in read_prompts(dataset_file, max_samples):
        if isinstance(row, BadRow):
            first_bad = first_bad or f" (line {row.line}: {row.reason})"
        else:
            counts[row.image] = counts.get(row.image, 0) + 1
    if not counts:
        raise DatasetError(f"the dataset has no usable row{first_bad}")
    return counts


def _table(images: dict[str, int], missing: dict[str, str]) -> Table:
    from rich.table import Table
    from rich.text import Text

    from kiseki.batch.images import NAME_CHARS
    from kiseki.trajectory.text import printable

    table = Table()
    table.add_column("image", overflow="fold")
    table.add_column("rows", justify="right")
    table.add_column("")
    for image, rows in images.items():
        state = missing.get(image, "there")
        table.add_row(Text(printable(image, NAME_CHARS)), f"{rows:,}", Text(state, "" if image not in missing else "yellow"))
    return table
