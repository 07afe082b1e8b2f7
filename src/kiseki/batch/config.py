"""Everything that a batch run can be told, and what of it makes a run the run it is."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from kiseki.agent.context import OnContextFull
from kiseki.models.endpoints import ModelSettings
from kiseki.models.factory import is_builtin
from kiseki.models.smollm2 import SLOTS, SMOLLM2
from kiseki.sandboxes.base import Limits
from kiseki.sandboxes.settings import SandboxSettings
from kiseki.tools.settings import ToolSettings


class BatchConfig(msgspec.Struct, frozen=True):
    """The flags of `batch_runner.py`, checked for their form. Meaning and defaults: `commands/batch.py`."""

    dataset_file: str
    batch_size: int
    run_name: str
    model: ModelSettings
    distribution: str = "default"
    max_turns: int = 10
    on_context_full: OnContextFull = "stop"
    num_workers: int = 4
    concurrency: int | None = None
    engine: str = "auto"
    resume: bool = False
    force_config: bool = False
    verbose: bool = False
    max_samples: int | None = None
    num_samples: int = 1
    seed: int | None = None
    sandbox: str = "auto"
    sandbox_image: str = ""
    network: str = "none"
    sandbox_memory: int = Limits().memory_mb
    sandbox_cpus: float = Limits().cpus
    sandbox_processes: int = Limits().processes
    sandbox_disk: int = Limits().disk_mb
    sandbox_timeout: float = 60.0
    warm: int = 0
    ssh_host: str = ""
    redact: bool = True
    prompt_timeout: float = 3600.0
    max_attempts: int = 3
    ephemeral_system_prompt: str = ""
    prefill_messages_file: str = ""
    tools: tuple[str, ...] = ()
    tool_settings: ToolSettings = ToolSettings()
    output_dir: str = "data"
    reasoning_filter: str = "auto"
    skip_unavailable: bool = False
    log_prefix_chars: int = 100
    max_cost: float | None = None
    max_total_tokens: int | None = None
    max_cost_per_prompt: float | None = None
    prices: str = ""
    retry_poison: bool = False
    push_to: str = ""
    push_every: int | None = None

    @property
    def folder(self) -> Path:
        return Path(self.output_dir) / self.run_name

    @property
    def filters_reasoning(self) -> bool:
        """What `auto` means: on, unless reasoning was switched off."""
        reasons = not (self.model.reasoning_disabled or self.model.reasoning_effort == "none")
        return self.reasoning_filter == "on" or (self.reasoning_filter == "auto" and reasons)

    @property
    def reasoning_words(self) -> str:
        return "disabled" if self.model.reasoning_disabled else self.model.reasoning_effort

    @property
    def sandbox_settings(self) -> SandboxSettings:
        """As far as the flags say it: the run gives it a label, an owner, and the backend that was chosen."""
        return SandboxSettings(
            backend=self.sandbox,
            limits=Limits(
                memory_mb=self.sandbox_memory,
                cpus=self.sandbox_cpus,
                processes=self.sandbox_processes,
                disk_mb=self.sandbox_disk,
                network=self.network == "on",
            ),
            start_timeout=self.sandbox_timeout,
            image=self.sandbox_image,
            host=self.ssh_host,
            warm=self.warm,
        )


def default_concurrency(model: str) -> int:
    """Rollouts at once when the user did not say.

    The practice model is pure CPU: more than a few per core only wait for each other. The language model that is built in answers
    so many at once as it has slots. An endpoint is waited for, so memory
    is the bound: 64 MB for each rollout's sandbox with a command in it, within half of what is free, 256 at most (what
    common rate limits carry).
    """
    if model == SMOLLM2:
        return SLOTS
    if is_builtin(model):
        return 4 * (os.cpu_count() or 1)
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(8, min(256, free // 2 // (64 << 20)))
