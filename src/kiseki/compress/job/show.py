"""One row before and after, side by side, so that a person can judge what compression does."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from kiseki.compress.compressor import Compressor, Done
from kiseki.compress.config import CompressionConfig
from kiseki.compress.job.files import find_files
from kiseki.compress.job.job import CompressionJob
from kiseki.compress.rows import read_trajectory
from kiseki.compress.summarizer import ask_now
from kiseki.compress.summary import Answer, Ask
from kiseki.compress.turns import SUMMARY_MARK, Turn
from kiseki.errors import UsageError
from kiseki.trajectory.row_files import read_lines
from kiseki.trajectory.tokens import find_tokenizer, open_counter

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

SHOWN_CHARS = 1_500
"""Of a turn, at most: head and tail."""


def show_row(number: int, job: CompressionJob, config: CompressionConfig, console: Console) -> None:
    """Print row `number` (from 1) of the job's input as it is and as it would be. Writes nothing; `summary` asks the model, if it
    is no dry run.

    Raises `UsageError` when there is no such row, or it is no trajectory.
    """
    from rich.text import Text

    def note(words: str) -> None:
        console.print(Text(words), style="yellow", soft_wrap=True)

    files = find_files(job.input, job.output, config, note)
    rows = ((target.input, line, row) for target in files.targets for line, row in read_lines(target.input))
    found = next((each for at, each in enumerate(rows, 1) if at == number), None)
    if found is None:
        raise UsageError(f"--show: {job.input} has no row {number}")
    path, line, row = found
    tokenizer = find_tokenizer(
        config.tokenizer, trust_remote_code=config.trust_remote_code, chat_template=config.count == "chat_template", warn=note
    )
    compressor = Compressor(config, open_counter(tokenizer))
    try:
        before = read_trajectory(row).turns
        begun = compressor.begin(row)
    except ValueError as problem:
        raise UsageError(f"--show: {path}, line {line}: {problem}") from None
    count = compressor.counter.count
    done = begun if isinstance(begun, Done) else compressor.finish(row, begun, _answer(begun, job, config, count))
    after = [turn for each in done.rows for turn in read_trajectory(each).turns]
    console.print(Text(f"{path}, line {line}: {_words(done)}"), style="bold", soft_wrap=True)
    console.print(_table(before, after, [count(turn.text) for turn in before], [count(turn.text) for turn in after]))


def _answer(ask: Ask, job: CompressionJob, config: CompressionConfig, count: Callable[[str], int]) -> Answer:
    if job.dry_run:
        return Answer(f"{SUMMARY_MARK} (here would be the summary; {config.model} is not asked in a dry run)")
    return ask_now(ask, config, count, max_cost=job.max_cost, max_total_tokens=job.max_total_tokens, prices=job.prices)


def _words(done: Done) -> str:
    first = done.metrics[0]
    after = sum(each.compressed_tokens for each in done.metrics)
    words = f"{first.original_tokens:,} tokens in {first.original_turns} turns → {after:,} in "
    words += f"{sum(each.compressed_turns for each in done.metrics)} turns"
    if len(done.metrics) > 1:
        words += f" of {len(done.metrics)} rows"
    if first.skipped_under_target:
        words += "; it is within the target"
    if any(each.still_over_limit for each in done.metrics):
        words += "; still over the target"
    return words + (f"; {first.error}" if first.error else "")


def _table(before: Sequence[Turn], after: Sequence[Turn], tokens: Sequence[int], tokens_after: Sequence[int]) -> RenderableType:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, expand=True, show_lines=True)
    table.add_column("before", ratio=1)
    table.add_column("after", ratio=1)
    for left, right in _pairs(before, after):
        same = left is not None and right is not None and before[left].text == after[right].text
        table.add_row(
            "" if left is None else _cell(before[left], tokens[left], same=same, gone=right is None),
            "" if right is None else _cell(after[right], tokens_after[right], same=same, gone=False),
        )
    return table


def _pairs(before: Sequence[Turn], after: Sequence[Turn]) -> list[tuple[int | None, int | None]]:
    """Which turn stands beside which: equal ones, and changed ones in between in their order."""
    matcher = difflib.SequenceMatcher(None, [each.text for each in before], [each.text for each in after], autojunk=False)
    pairs: list[tuple[int | None, int | None]] = []
    for _, start, end, other_start, other_end in matcher.get_opcodes():
        pairs += zip_longest(range(start, end), range(other_start, other_end))
    return pairs


def _cell(turn: Turn, tokens: int, *, same: bool, gone: bool) -> Text:
    from rich.text import Text

    head = f"{turn.role}, {tokens:,} tokens"
    cell = Text(head + (", as it was" if same else ", taken out" if gone else ""), style="bold")
    style = "dim" if same else "red" if gone else "green" if turn.role != "gpt" else ""
    return cell.append("\n" + _shown(turn.text, SHOWN_CHARS // 5 if same else SHOWN_CHARS), style=f"not bold {style}".strip())


def _shown(text: str, limit: int) -> str:
    """Head and tail, with nothing in it that a terminal would obey."""
    if len(text) > limit:
        text = f"{text[: limit * 2 // 3]}\n… {len(text) - limit:,} characters not shown …\n{text[-(limit // 3) :]}"
    return "".join(each if each.isprintable() or each == "\n" else "·" for each in text.replace("\r\n", "\n").expandtabs(4))
