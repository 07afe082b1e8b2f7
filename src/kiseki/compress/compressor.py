"""One row: read, brought within the target, written. No I/O, no model: where a summary is wanted, it says what to ask.

The result is a function of the row, the settings and the summary: the same in every process and on every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kiseki.compress.config import CompressionConfig
from kiseki.compress.draft import Draft
from kiseki.compress.ladder import Ladder, clean_all, run_ladder
from kiseki.compress.metrics import Metrics, Region
from kiseki.compress.placement import place
from kiseki.compress.regions import choose_region, spans
from kiseki.compress.segments import split
from kiseki.compress.summary import Answer, Ask, summary_request, tokens_wanted
from kiseki.compress.turns import SUMMARY_MARK, Trajectory, Turn, is_summary, read_trajectory, turn_of, write_row
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


class Compressor:
    """For many rows, one at a time. Holds settings and a token counter; no state between rows."""

    def __init__(self, config: CompressionConfig, counter: TokenCounter) -> None:
        self.config = config
        self.counter = counter
        self._by_template = config.count == "chat_template"
        self.counted_by = counter.name + (" with its chat template" if self._by_template else "")

    def begin(self, row: bytes) -> Done | Ask:
        """The row compressed, or what to ask for it. Raises `ValueError` with the reason for one that is no trajectory."""
        trajectory = read_trajectory(row)
        if self._was_done(trajectory):
            return self._as_it_was(row, trajectory)
        draft = self._draft(trajectory)
        try:
            total = self._total(trajectory, draft)
        except ValueError as error:  # the template refuses the conversation
            return self._unchanged(trajectory, draft, draft.total, str(error))
        config = self.config
        if total <= config.target_max_tokens:
            if config.skip_under_target or config.strategy != "ladder":
                return self._unchanged(trajectory, draft, total)
            steps = clean_all(draft, config)
            return self._changed(trajectory, draft, total, self._total(trajectory, draft), steps=steps)
        work = {"ladder": self._ladder, "segment": self._segments, "summary": self._ask}[config.strategy]
        try:
            return work(trajectory, draft, total)
        except ValueError as error:
            return self._unchanged(trajectory, self._draft(trajectory), total, str(error))

    def finish(self, row: bytes, ask: Ask, answer: Answer) -> Done:
        """The row with its summary; as it was, flagged, where there is none or where it would not make the row smaller."""
        trajectory = read_trajectory(row)
        draft = self._draft(trajectory)
        total = self._total(trajectory, draft)
        error = answer.error
        if not error:
            place(draft, ask.start, ask.end, answer.text, self.config.summary_placement)
            self._add_notice(draft)
            try:
                after = self._total(trajectory, draft)
            except ValueError as refused:
                after, error = total, str(refused)
            if after < total:
                region = Region(ask.start, ask.end, ask.end - ask.start)
                return self._changed(trajectory, draft, total, after, region=region, calls=answer.calls, errors=answer.errors)
            error = error or "the summary is no shorter than what it stands for"
        return self._unchanged(trajectory, self._draft(trajectory), total, error, calls=answer.calls, errors=answer.errors)

    # ---- strategies -------------------------------------------------------------------------------------------------------

    def _ask(self, trajectory: Trajectory, draft: Draft, total: int) -> Done | Ask:
        config = self.config
        overage = total - config.target_max_tokens + self._notice_tokens(draft)
        region = choose_region(
            draft.turns,
            draft.tokens,
            spans(draft.turns, config),
            overage,
            lambda units: config.summary_target_tokens,
            own_turn=config.summary_placement == "human",
        )
        if not region:
            return self._unchanged(trajectory, draft, total, "what may be compressed is no longer than a summary")
        start, end = region[0].start, region[-1].end
        removed = sum(draft.tokens[start:end])
        room = max(removed - overage, 0)
        request = summary_request(draft.turns[start:end], tokens_wanted(room, config))
        after = total - removed + config.summary_target_tokens
        estimate = msgspec.structs.replace(
            self._metrics(draft, draft, total, after, over=after > config.target_max_tokens),
            was_compressed=True,
            compression_region=Region(start, end, end - start),
            compressed_turns=len(draft.turns) - (end - start) + (config.summary_placement == "human"),
            turns_removed=end - start - (config.summary_placement == "human"),
            summarization_api_calls=1,
        )
        kept = _assistant(draft)
        lost = sum(
            tokens for turn, tokens in zip(draft.turns[start:end], draft.tokens[start:end], strict=True) if turn.role == "gpt"
        )
        return Ask(request, start, end, removed, room, estimate, (kept, kept - lost))

    def _ladder(self, trajectory: Trajectory, draft: Draft, total: int) -> Done:
        budget = self.config.target_max_tokens - (total - draft.total)
        for _ in range(ROUNDS):
            draft = self._draft(trajectory)
            steps = run_ladder(draft, self.config, budget - self._notice_tokens(draft))
            self._add_notice(draft)
            after = self._total(trajectory, draft)
            if after <= self.config.target_max_tokens or not self._by_template:
                break
            budget -= after - self.config.target_max_tokens
        if after >= total:
            return self._unchanged(trajectory, self._draft(trajectory), total, "nothing in it may be made shorter")
        return self._changed(trajectory, draft, total, after, region=steps.region, steps=steps)

    def _segments(self, trajectory: Trajectory, draft: Draft, total: int) -> Done:
        budget = self.config.target_max_tokens - max(total - draft.total, 0)
        pieces = split(draft, self.config, budget)
        if len(pieces) < 2:
            return self._unchanged(trajectory, draft, total, "it cannot be split: there is only one unit between its ends")
        done = [
            self._changed(trajectory, piece, total, self._total(trajectory, piece), segment=(number, len(pieces)))
            for number, piece in enumerate(pieces)
        ]
        return Done(
            tuple(each.rows[0] for each in done),
            tuple(each.metrics[0] for each in done),
            (done[0].assistant_tokens[0], sum(each.assistant_tokens[1] for each in done)),
        )

    # ---- counting ---------------------------------------------------------------------------------------------------------

    def _draft(self, trajectory: Trajectory) -> Draft:
        return Draft(trajectory.turns, trajectory.layout, self.counter)

    def _total(self, trajectory: Trajectory, draft: Draft) -> int:
        """What the conversation counts, as it is asked for. Raises `ValueError` where the chat template refuses it."""
        if not self._by_template:
            return draft.total
        tools = trajectory.columns.get("tools")
        listed = msgspec.json.decode(tools) if tools is not None else None
        if isinstance(listed, str):  # as TRL and others take it
            listed = msgspec.json.decode(listed) if listed.strip() else None
        return self.counter.count_chat([trajectory.layout.message(turn) for turn in draft.turns], listed or None)

    def _notice_tokens(self, draft: Draft) -> int:
        config = self.config
        return self.counter.count("\n\n" + config.summary_notice_text) if config.add_summary_notice else 0

    def _add_notice(self, draft: Draft) -> None:
        text = self.config.summary_notice_text
        at = next((at for at, turn in enumerate(draft.turns) if turn.role == "system"), None)
        if self.config.add_summary_notice and at is not None and text not in draft.turns[at].text:
            draft.splice(at, at + 1, [draft.layout.append(draft.turns[at], text)])

    # ---- results ----------------------------------------------------------------------------------------------------------

    def _was_done(self, trajectory: Trajectory) -> bool:
        """Whether the row was compressed before in the same way, and nothing went wrong: then it is done."""
        raw = trajectory.columns.get(METRICS_COLUMN)
        if raw is None:
            return False
        try:
            before = msgspec.json.decode(raw, type=Metrics)
        except msgspec.DecodeError:
            return False
        same = (self.config.strategy, self.config.target_max_tokens, self.counted_by)
        return (before.strategy, before.target_max_tokens, before.tokenizer) == same and not before.error

    def _as_it_was(self, row: bytes, trajectory: Trajectory) -> Done:
        draft = self._draft(trajectory)
        total = self._total(trajectory, draft)
        over = total > self.config.target_max_tokens
        metrics = self._metrics(draft, draft, total, total, over=over, skipped=not over)
        return Done((row.strip(),), (metrics,), (_assistant(draft), _assistant(draft)))

    def _unchanged(
        self, trajectory: Trajectory, draft: Draft, total: int, error: str = "", *, calls: int = 0, errors: int = 0
    ) -> Done:
        over = total > self.config.target_max_tokens
        metrics = self._metrics(
            draft, draft, total, total, over=over, skipped=not over and not error, error=error, calls=calls, errors=errors
        )
        return self._write(trajectory, draft, metrics, _assistant(draft))

    def _changed(
        self,
        trajectory: Trajectory,
        draft: Draft,
        total: int,
        after: int,
        *,
        region: Region = Region(),  # noqa: B008  (frozen)
        steps: Ladder | None = None,
        segment: tuple[int, int] = (0, 1),
        calls: int = 0,
        errors: int = 0,
    ) -> Done:
        before = self._draft(trajectory)
        metrics = self._metrics(
            before, draft, total, after, over=after > self.config.target_max_tokens, calls=calls, errors=errors
        )
        metrics = msgspec.structs.replace(
            metrics,
            was_compressed=draft.turns != before.turns,
            compression_region=region,
            segment_index=segment[0],
            segment_count=segment[1],
        )
        if steps is not None:
            metrics = msgspec.structs.replace(metrics, **steps.counts())
        return self._write(trajectory, draft, metrics, _assistant(before))

    def _metrics(
        self,
        before: Draft,
        draft: Draft,
        total: int,
        after: int,
        *,
        over: bool,
        skipped: bool = False,
        error: str = "",
        calls: int = 0,
        errors: int = 0,
    ) -> Metrics:
        return Metrics(
            original_tokens=total,
            compressed_tokens=after,
            tokens_saved=total - after,
            compression_ratio=round(after / total, 4) if total else 1.0,
            original_turns=len(before.turns),
            compressed_turns=len(draft.turns),
            turns_removed=len(before.turns) - len(draft.turns),
            still_over_limit=over,
            skipped_under_target=skipped,
            summarization_api_calls=calls,
            summarization_errors=errors,
            strategy=self.config.strategy,
            target_max_tokens=self.config.target_max_tokens,
            tokenizer=self.counted_by,
            error=error,
        )

    def _write(self, trajectory: Trajectory, draft: Draft, metrics: Metrics, assistant_before: int) -> Done:
        turns: Sequence[Turn] = draft.turns
        if self.config.mark_summary:
            turns = [_flagged(turn) for turn in turns]
        more: dict[str, Any] = {METRICS_COLUMN: metrics} if self.config.metrics_per_trajectory else {}
        return Done((write_row(trajectory, turns, more),), (metrics,), (assistant_before, _assistant(draft)))


def _assistant(draft: Draft) -> int:
    return sum(tokens for turn, tokens in zip(draft.turns, draft.tokens, strict=True) if turn.role == "gpt")


def _flagged(turn: Turn) -> Turn:
    """With the loss flags that axolotl (`train`) and ms-swift (`loss`) read, where it has none of its own."""
    learned = turn.role == "gpt" and not is_summary(turn)
    data = {"train": learned, "loss": learned} | turn.data
    return turn_of(turn.role, turn.text, {name: data[name] for name in [*turn.data, *(set(data) - set(turn.data))]})


__all__ = ["SUMMARY_MARK", "Answer", "Ask", "Compressor", "Done"]
