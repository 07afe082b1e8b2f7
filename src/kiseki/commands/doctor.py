"""`kiseki doctor`: what a trainer would make of data, before it does. Nothing is changed."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kiseki.commands.display import make_console
from kiseki.commands.flags import Parser, at_least
from kiseki.errors import DatasetError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from kiseki.trajectory.tokens import Tokenizer

CLEAN, LOSES = 0, 3
EPILOG = """\
examples:
  kiseki doctor data/my_run/trajectories.jsonl
  kiseki doctor data/my_run --for trl
  kiseki doctor train.jsonl --for trl --template qwen3
  kiseki doctor train.jsonl --template models/Qwen3-8B/tokenizer_config.json --tokenizer models/Qwen3-8B --max_tokens 32768

Each check and its fix: docs/doctor.md

exit status: 0 nothing would be lost; 3 something would; 2 unusable arguments or input; 1 anything unexpected"""


def build_parser() -> Parser:
    parser = Parser(
        "kiseki doctor", "Tell what a trainer would make of the data: what it loses, in which rows, and the fix.", EPILOG
    )
    words = "rows: .jsonl, .jsonl.gz, .jsonl.zst or .parquet, a folder of such files, or a run's folder"
    parser.add_argument("input", help=words)
    whom = parser.add_argument_group("for whom")
    words = "trl, axolotl, llamafactory, swift, verl, openai, atif, atropos, sharegpt or messages; a run is exported for it first"
    parser.flag(whom, "for", str, f"{words} (default: whatever would harm any of them)", "")
    words = (
        "chat template: chatml, a name of TRL's (qwen3, glm4moe, …), a .jinja file, a tokenizer_config.json, or a model's folder"
    )
    parser.flag(whom, "template", str, words, "")
    limit = parser.add_argument_group("length")
    words = "Hugging Face id or folder, a tokenizer.json, tiktoken:ENCODING, or bundled (default: bundled)"
    parser.flag(limit, "tokenizer", str, words, "")
    parser.flag(limit, "max_tokens", at_least(1), "report rows with more tokens (default: no limit)")
    group = parser.add_argument_group("output")
    parser.switch(group, "json", "the findings as one JSON object on stdout")
    return parser


def main(argv: Sequence[str]) -> int:
    flags = build_parser().parse(argv)

    from kiseki.doctor.kinds import TARGETS

    target = getattr(flags, "for")
    if target and target not in TARGETS:
        raise UsageError(f"--for {target}: there is no examination for that; there is one for {', '.join(TARGETS)}")
    if flags.tokenizer and flags.max_tokens is None:
        raise UsageError("--tokenizer counts against a limit: give --max_tokens too")
    with tempfile.TemporaryDirectory(prefix="kiseki-doctor-") as folder:
        return _examine(flags, target, Path(folder))


def _examine(flags: argparse.Namespace, target: str, scratch: Path) -> int:
    import sys

    from rich.console import Console

    from kiseki.doctor.examine import Order, examine
    from kiseki.doctor.kinds import LAYOUTS
    from kiseki.doctor.report import as_json, show
    from kiseki.trajectory.json_rows import encode_row
    from kiseki.trajectory.text import printable
    from kiseki.views.bar import counting_bar

    console = Console(stderr=True) if flags.json else make_console()
    asked = Path(flags.input)
    files = _files(asked, target, scratch, console)
    order = Order(files, target, flags.template, _tokenizer(flags, console), flags.max_tokens or 0)
    total = sum(file.stat().st_size for file in files)
    done = 0
    with counting_bar(console, "MB read", -(-total // 2**20)) as show_done:

        def read(count: int) -> None:
            nonlocal done
            done += count
            show_done(done // 2**20)

        examined = examine(order, read)
    name = printable(str(asked), 200)
    if flags.json:
        sys.stdout.write(encode_row(as_json(examined, str(asked), target)).decode() + "\n")
    else:
        trainer = "trl" if target in ("", *LAYOUTS) else target
        fix = {"file": name, "to": target or "messages", "trainer": trainer, "limit": str(flags.max_tokens or "")}
        show(console, examined, name, target, fix)
    return LOSES if examined.findings.loses else CLEAN


def _files(asked: Path, target: str, scratch: Path, console: Console) -> tuple[Path, ...]:
    """What to read. A run is exported for its consumer first, as `kiseki export` would do it."""
    from kiseki.exports.sources import find_source

    source = find_source(asked)
    if not source.is_run:
        return source.files
    if target:
        from kiseki.exports.export import export
        from kiseki.exports.job import ExportJob

        written = export(ExportJob(source=asked, to=target, out=scratch / "export"), console).files
        return tuple(scratch / "export" / each.name for each in written if each.split)
    trajectories = asked / "trajectories.jsonl"
    if not trajectories.exists():
        raise DatasetError(f"{asked} has no trajectories.jsonl yet: kiseki merge {asked} makes it")
    return (trajectories,)


def _tokenizer(flags: argparse.Namespace, console: Console) -> Tokenizer | None:
    from rich.text import Text

    from kiseki.trajectory.tokens import find_tokenizer

    if flags.max_tokens is None:
        return None
    return find_tokenizer(
        flags.tokenizer or "bundled", warn=lambda words: console.print(Text(words), style="yellow", soft_wrap=True)
    )
