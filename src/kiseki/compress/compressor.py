"""One row: read, brought within the target, written. No I/O, no model: where a summary is wanted, it says what to ask.

The result is a function of the row, the settings and the summary: the same in every process and on every run.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kiseki.compress.config import CompressionConfig, digest_of
from kiseki.compress.draft import Draft
from kiseki.compress.ladder.ladder import clean_all, run_ladder
from kiseki.compress.metrics import Metrics, Region
from kiseki.compress.placement import place
from kiseki.compress.regions import choose_region, spans
from kiseki.compress.rows import Trajectory, read_trajectory, write_row
from kiseki.compress.segments import split
from kiseki.compress.summary import Answer, Ask, summary_request, tokens_wanted
from kiseki.compress.turns import Turn, turn_of
from kiseki.trajectory.tokens import TokenCounter

METRICS_COLUMN = "compression_metrics"
ROUNDS = 4
"""Attempts at a chat template's budget, whose overhead is only known of a whole conversation."""


class Done(msgspec.Struct, frozen=True):
    """What became of one row: one row, or several with `segment`."""

    rows: tuple[bytes, ...]
    """JSON text, without line ends."""
    metrics: tuple[Metrics, ...]
    """One for each."""
    assistant_tokens: tuple[int, int] = (0, 0)
    """Of the gpt turns, before and after."""


class _Row(msgspec.Struct, frozen=True):
    """One row at work."""

    trajectory: Trajectory
    before: Draft
    """Its turns as they came; strategies work on copies."""
    total: int
    """What it counts as it came."""


class Compressor:
    """For many rows, one at a time. Holds settings and a token counter; no state between rows."""

    def __init__(self, config: CompressionConfig, counter: TokenCounter) -> None:
        self.config = config
        self.counter = counter
        self._target = config.target_max_tokens
        self._settings = digest_of(config)
        self._by_template = config.count == "chat_template"
        self.counted_by = counter.name + (" with its chat template" if self._by_template else "")

    def begin(self, text: bytes) -> Done | Ask:
        """The row compressed, or what to ask for it. Raises `ValueError` with the reason for one that is no trajectory."""
        trajectory = read_trajectory(text)
        before = Draft(trajectory.turns, trajectory.layout, self.counter)
        try:
            row = _Row(trajectory, before, self._total(trajectory, before))
        except ValueError as error:  # the template refuses the conversation
            return self._unchanged(_Row(trajectory, before, before.total), error=str(error))
        if self._was_done(row):
            over = row.total > self._target
            metrics = self._metrics(row, before, row.total, skipped_under_target=not over)
            if self.config.mark_summary:  # it may have been compressed without
                text = write_row(trajectory, [_flagged(turn) for turn in trajectory.turns], {})
            return Done((text.strip(),), (metrics,), (before.of_role("gpt"),) * 2)
        try:
            if row.total > self._target:
                return {"ladder": self._ladder, "segment": self._segments, "summary": self._ask}[self.config.strategy](row)
            if self.config.skip_under_target or self.config.strategy != "ladder":
                return self._unchanged(row)
            draft = before.copy()
            steps = clean_all(draft, self.config)
            return self._changed(row, draft, self._total(trajectory, draft), **steps.counts())
        except ValueError as error:  # the template refuses what came of it
            return self._unchanged(row, error=str(error))

    def finish(self, text: bytes, ask: Ask, answer: Answer) -> Done:
        """The row with its summary; as it was, flagged, where there is none or where it would not make the row smaller."""
        trajectory = read_trajectory(text)
        before = Draft(trajectory.turns, trajectory.layout, self.counter)
        row = _Row(trajectory, before, self._total(trajectory, before))
        asked = {"summarization_api_calls": answer.calls, "summarization_errors": answer.errors}
        if answer.error:
            return self._unchanged(row, error=answer.error, **asked)
        draft = before.copy()
        place(draft, ask.start, ask.end, answer.text, self.config.summary_placement)
        self._add_notice(draft)
        try:
            after = self._total(trajectory, draft)
        except ValueError as error:
            return self._unchanged(row, error=str(error), **asked)
        if after >= row.total:
            return self._unchanged(row, error="the summary is no shorter than what it stands for", **asked)
        return self._changed(row, draft, after, compression_region=Region(ask.start, ask.end, ask.end - ask.start), **asked)

    # ---- strategies -------------------------------------------------------------------------------------------------------

    def _ask(self, row: _Row) -> Done | Ask:
        config, draft = self.config, row.before
        overage = row.total - self._target + self._notice_tokens()
        region = choose_region(
            draft.turns,
            draft.tokens,
            spans(draft.turns, config),
            overage,
            lambda units: config.summary_target_tokens,
            own_turn=config.summary_placement == "human",
        )
        if not region:
            return self._unchanged(row, error="what may be compressed is no longer than a summary")
        start, end = region[0].start, region[-1].end
        removed = sum(draft.tokens[start:end])
        room = max(removed - overage, 0)
        shortened = draft.copy()
        shortened.splice(start, end, [])
        estimate = msgspec.structs.replace(
            self._metrics(row, shortened, row.total - removed + config.summary_target_tokens),
            was_compressed=True,
            compression_region=Region(start, end, end - start),
            summarization_api_calls=1,
        )
        request = summary_request(draft.turns[start:end], tokens_wanted(room, config))
        return Ask(request, start, end, removed, room, estimate, (draft.of_role("gpt"), shortened.of_role("gpt")))

    def _ladder(self, row: _Row) -> Done:
        budget = self._target - (row.total - row.before.total) - self._notice_tokens()
        for _ in range(ROUNDS):
            draft = row.before.copy()
            steps = run_ladder(draft, self.config, budget)
            self._add_notice(draft)
            after = self._total(row.trajectory, draft)
            if after <= self._target or not self._by_template:
                break
            budget = draft.total - (after - self._target) - self._notice_tokens()
        if after >= row.total:
            return self._unchanged(row, error="nothing in it may be made shorter")
        return self._changed(row, draft, after, compression_region=steps.region, **steps.counts())

    def _segments(self, row: _Row) -> Done:
        whole = row.before.copy()
        self._add_notice(whole)
        segments = split(whole, self.config, self._target, lambda draft: self._total(row.trajectory, draft))
        if max((each.tokens for each in segments), default=row.total) >= row.total:
            return self._unchanged(row, error="it cannot be split: nearly all of it is the prompt and one unit")
        metrics = [
            msgspec.structs.replace(
                self._metrics(row, each.draft, each.tokens, **each.steps.counts()),
                tokens_saved=each.left_out,
                turns_removed=0,  # what one segment lacks, another has
                was_compressed=True,
                segment_index=number,
                segment_count=len(segments),
            )
            for number, each in enumerate(segments)
        ]
        return Done(
            tuple(self._row_text(row, each.draft, made) for each, made in zip(segments, metrics, strict=True)),
            tuple(metrics),
            (row.before.of_role("gpt"), sum(each.draft.of_role("gpt") for each in segments)),
        )

    # ---- counting ---------------------------------------------------------------------------------------------------------

    def _total(self, trajectory: Trajectory, draft: Draft) -> int:
        """What the conversation counts, as it is asked for. Raises `ValueError` where the chat template refuses it."""
        if not self._by_template:
            return draft.total
        messages = [trajectory.layout.message(turn) for turn in draft.turns]
        return self.counter.count_chat(messages, _tools(trajectory.columns.get("tools")))

    def _notice_tokens(self) -> int:
        config = self.config
        return self.counter.count("\n\n" + config.summary_notice_text) if config.add_summary_notice else 0

    def _add_notice(self, draft: Draft) -> None:
        text = self.config.summary_notice_text
        at = next((at for at, turn in enumerate(draft.turns) if turn.role == "system"), None)
        if self.config.add_summary_notice and at is not None and text not in draft.turns[at].text:
            draft.splice(at, at + 1, [draft.layout.append(draft.turns[at], text)])

    # ---- results ----------------------------------------------------------------------------------------------------------

    def _was_done(self, row: _Row) -> bool:
        """Whether the row was compressed before: in the same way and nothing went wrong, or far enough for this target."""
        raw = row.trajectory.columns.get(METRICS_COLUMN)
        if raw is None:
            return False
        try:
            before = msgspec.json.decode(raw, type=Metrics)
        except msgspec.DecodeError:
            return False
        same = before.settings == self._settings and not before.error
        return same or (before.was_compressed and row.total <= self._target)

    def _unchanged(self, row: _Row, *, error: str = "", **more: int) -> Done:
        skipped = row.total <= self._target and not error
        metrics = self._metrics(row, row.before, row.total, skipped_under_target=skipped, error=error, **more)
        return self._write(row, row.before, metrics)

    def _changed(self, row: _Row, draft: Draft, after: int, **more: int | Region) -> Done:
        changed = draft.turns != row.before.turns
        return self._write(row, draft, self._metrics(row, draft, after, was_compressed=changed, **more))

    def _metrics(self, row: _Row, draft: Draft, after: int, **more: Any) -> Metrics:
        """`more`: fields that are not as they are by default."""
        turns_before, turns_after = len(row.before.turns), len(draft.turns)
        return Metrics(
            original_tokens=row.total,
            compressed_tokens=after,
            tokens_saved=row.total - after,
            compression_ratio=round(after / row.total, 4) if row.total else 1.0,
            original_turns=turns_before,
            compressed_turns=turns_after,
            turns_removed=turns_before - turns_after,
            still_over_limit=after > self._target,
            strategy=self.config.strategy,
            target_max_tokens=self._target,
            tokenizer=self.counted_by,
            settings=self._settings,
            **more,
        )

    def _write(self, row: _Row, draft: Draft, metrics: Metrics) -> Done:
        assistant_tokens = (row.before.of_role("gpt"), draft.of_role("gpt"))
        return Done((self._row_text(row, draft, metrics),), (metrics,), assistant_tokens)

    def _row_text(self, row: _Row, draft: Draft, metrics: Metrics) -> bytes:
        turns = [_flagged(turn) for turn in draft.turns] if self.config.mark_summary else draft.turns
        more = {METRICS_COLUMN: metrics} if self.config.metrics_per_trajectory else {}
        return write_row(row.trajectory, turns, more)


def _tools(column: msgspec.Raw | None) -> list[Any] | None:
    """The row's tool schemas: a list, or text that holds one, as TRL takes it. Raises `ValueError` for anything else."""
    try:
        listed = msgspec.json.decode(column) if column is not None else None
        if isinstance(listed, str):
            listed = msgspec.json.decode(listed) if listed.strip() else None
    except msgspec.DecodeError as error:
        raise ValueError(f"column 'tools' holds text that is no JSON: {error}") from error
    if listed and not isinstance(listed, list):
        raise ValueError("column 'tools' is no list of tool schemas")
    return listed or None


def _flagged(turn: Turn) -> Turn:
    """With the loss flags that axolotl (`train`) and ms-swift (`loss`) read, where it has none of its own."""
    learned = turn.role == "gpt"
    return turn_of(turn.role, turn.text, turn.data | {name: learned for name in ("train", "loss") if name not in turn.data})
