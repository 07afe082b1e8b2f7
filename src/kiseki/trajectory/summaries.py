"""How a summary that stands for turns which were taken out is known again."""

from __future__ import annotations

SUMMARY_MARK = "[CONTEXT SUMMARY]:"
"""How every summary and digest begins."""
