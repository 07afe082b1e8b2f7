"""Everything about a run that can be found out, and refused, before anything is created or paid for."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import msgspec

from kiseki.agent.prefill import read_prefill
from kiseki.agent.settings import tools_json
from kiseki.batch.adopt import batch_files
from kiseki.batch.config import BatchConfig
from kiseki.batch.prompts import check_dataset
from kiseki.errors import UsageError
from kiseki.ledger.ledger import Ledger
from kiseki.ledger.types import RunInfo
from kiseki.models.endpoints import ModelSettings
from kiseki.models.factory import check_model, is_builtin, with_api_key
from kiseki.models.spending import with_listed
from kiseki.sandboxes.factory import HAS_IMAGES, with_backend
from kiseki.sandboxes.settings import SandboxSettings
from kiseki.tools.distributions import Distribution, draw, get_distribution
from kiseki.tools.extra_body import shown_body
from kiseki.tools.gather import gather
from kiseki.tools.registry import Tool
from kiseki.tools.seeding import pack
from kiseki.tools.settings import ToolSettings
from kiseki.tools.toolsets import find_stand_ins, load_tools, why_unavailable
from kiseki.tools.user_tools import wanted_entry_points
from kiseki.trajectory.types import Message
from kiseki.views.build import TRAJECTORIES


class Toolsets(msgspec.Struct, frozen=True):
    """What the distribution offers in this run."""

    distribution: Distribution
    available: frozenset[str]
    unavailable: dict[str, str]
    """Toolset → why."""
    settings: ToolSettings
    """With what was found out from them."""
    tool_files: tuple[str, ...]
    """Python files and entry points with tools of the user's own."""
    always: tuple[str, ...]
    """Toolsets of the user's tools and MCP servers that the distribution does not name: on in every rollout."""
    stand_ins: tuple[str, ...]
    """Built-in toolsets that are there by the user's tools alone."""
    tools: tuple[Tool, ...]
    """Every tool of the run."""

    @property
    def need_sandbox(self) -> bool:
        """Whether any tool of the run does: without one, no image is needed either."""
        return any(each.needs_sandbox for each in self.tools)

    def draw(self, seed: int, key: str) -> tuple[str, ...]:
        return (*draw(self.distribution, seed, key, set(self.available)), *self.always)


class Prepared(msgspec.Struct, frozen=True):
    """A run that is known to be able to start."""

    toolsets: Toolsets
    sandbox: SandboxSettings
    """With the backend that was chosen; the ledger gives label and owner."""
    prefill: tuple[Message, ...]
    info: RunInfo
    model: ModelSettings
    """With its key and price, and its context window."""

    @property
    def config_hash(self) -> str:
        """Names what the rows of this session are made with: rows of two sessions with the same one are of a kind."""
        views_only = (*MAY_CHANGE, "reasoning_filter")
        same = {name: value for name, value in msgspec.structs.asdict(self.info).items() if name not in views_only}
        return hashlib.blake2b(msgspec.json.encode(same, order="sorted"), digest_size=4).hexdigest()


def prepare(config: BatchConfig, indexed: Callable[[int], None] = lambda count: None) -> Prepared:
    """Check all that can be checked. Raises `UsageError` or `DatasetError`; creates nothing but the index of a corpus, whose
    documents `indexed` counts."""
    check_dataset(config.dataset_file)
    check_folder(config)
    check_model(config.model)
    prefill = read_prefill(config.prefill_messages_file)
    sandbox = with_backend(config.sandbox_settings)
    toolsets = prepare_toolsets(config, sandbox, indexed)
    in_dollars = [name for name in ("max_cost", "max_cost_per_prompt") if getattr(config, name) is not None]
    model = with_listed(with_api_key(config.model, os.environ), config.prices, in_dollars)
    return Prepared(toolsets, sandbox, prefill, run_info(config, toolsets, prefill, sandbox.backend), model)


def prepare_toolsets(
    config: BatchConfig, sandbox: SandboxSettings, indexed: Callable[[int], None] = lambda count: None
) -> Toolsets:
    """Which toolsets the run has. Raises `UsageError` for one that is not available, unless told to go on without."""
    distribution = get_distribution(config.distribution)
    named = [name for name, percent in distribution.toolsets.items() if percent > 0]
    files = (*config.tools, *wanted_entry_points(named, config.tools))
    gathered = gather(files, config.tool_settings, sandbox, indexed)
    extra_names = {tool.toolset for tool in gathered.tools}
    reasons = {
        name: gathered.lost.get(name) or why_unavailable(name, gathered.settings, config.model)
        for name in (*named, *gathered.lost)
        if name not in extra_names
    }
    unavailable = {name: why for name, why in reasons.items() if why}
    if unavailable and not (config.skip_unavailable or is_builtin(config.model.model)):
        listed = "; ".join(f"{', '.join(names)}: {why}" for why, names in by_reason(unavailable).items())
        raise UsageError(
            f"distribution {distribution.name!r} has toolsets that are not available ({listed}); "
            "--skip_unavailable runs without them, --list_distributions shows the others"
        )
    available = frozenset(name for name in named if name not in unavailable)
    always = tuple(sorted(extra_names - set(distribution.toolsets)))
    if not available and not always:
        listed = "; ".join(f"{', '.join(names)}: {why}" for why, names in by_reason(unavailable).items())
        raise UsageError(
            f"no toolset of distribution {distribution.name!r} is available ({listed}); --list_distributions shows the others"
        )
    stand_ins = find_stand_ins(
        gathered.tools, lambda name: name in available and not why_unavailable(name, gathered.settings, config.model)
    )
    tools = load_tools((*sorted(available), *always), gathered.tools, stand_ins=stand_ins)
    return Toolsets(distribution, available, unavailable, gathered.settings, files, always, stand_ins, tuple(tools))


def by_reason(unavailable: dict[str, str]) -> dict[str, list[str]]:
    """Reason → the toolsets that it keeps out."""
    reasons: dict[str, list[str]] = {}
    for name, why in unavailable.items():
        reasons.setdefault(why, []).append(name)
    return reasons


def run_info(config: BatchConfig, toolsets: Toolsets, prefill: tuple[Message, ...], backend: str) -> RunInfo:
    return RunInfo(
        run_name=config.run_name,
        model=config.model.model,
        distribution=config.distribution,
        distribution_toolsets=dict(toolsets.distribution.toolsets),
        batch_size=config.batch_size,
        num_samples=config.num_samples,
        max_turns=config.max_turns,
        on_context_full=config.on_context_full,
        max_tokens=config.model.max_tokens,
        temperature=config.model.temperature,
        top_p=config.model.top_p,
        seed=config.seed or 0,
        reasoning=config.reasoning_words,
        reasoning_filter=config.reasoning_filter,
        ephemeral_system_prompt=config.ephemeral_system_prompt,
        prefill=msgspec.json.encode(prefill).decode() if prefill else "",
        tools={tool.name: hashlib.blake2b(tools_json([tool]).encode(), digest_size=8).hexdigest() for tool in toolsets.tools},
        redact=config.redact,
        # Not its limits: rows that ran into them are run again with higher ones, and each row says which it had.
        environment="image" if backend in HAS_IMAGES else "ssh" if backend == "ssh" else "host",
        sandbox_image=config.sandbox_image,
        network=config.network,
        tool_settings=identity_of(toolsets.settings, {*toolsets.available, *toolsets.always}),
        api_mode=config.model.api_mode,
        tool_call_mode=config.model.tool_call_mode,
        extra_body=msgspec.json.encode(shown_body(config.model.extra_body), order="sorted").decode()
        if config.model.extra_body
        else "",
        fallback=",".join(each.model for each in config.model.fallback),
    )


def identity_of(settings: ToolSettings, toolsets: Collection[str]) -> dict[str, str]:
    """The flags of the toolsets of a run that decide what the tools answer; of folders and a corpus a hash of what they hold.
    Where a recording is kept, or read again, is none of them."""
    names = ("search_provider", "vision_model", "vision_base_url", "image_model", "image_base_url")
    found = {name: getattr(settings, name) for name in names}
    found["web_allow"] = ",".join(settings.web_allow)
    if settings.corpus_index:
        from kiseki.tools.web.corpus_index import fingerprint

        found["corpus"] = fingerprint(Path(settings.corpus_index))
    for toolset, folder in (("skills", settings.skills_dir), ("memory", settings.memory_dir)):
        if folder and toolset in toolsets:
            found[f"{toolset}_dir"] = hashlib.blake2b(pack(folder), digest_size=8).hexdigest()
    return {name: value for name, value in found.items() if value}


SHOWN_CHARS = 200
"""Of a value in a message about differences; a system prompt may have pages."""
MAY_CHANGE = ("run_name", "batch_size", "num_samples", "distribution")
"""Of `RunInfo`, what a resume may change without mixing two kinds of rows. A distribution is what it holds, not its name."""


def check_same_run(ledger: Ledger, info: RunInfo, config: BatchConfig) -> None:
    """Raises `UsageError` with the difference when the run began with other settings."""
    began = ledger.get_meta("run")
    (attempts,) = ledger.db.execute("SELECT count(*) FROM attempts").fetchone()
    if not began or not attempts or config.force_config:
        return
    if differences := list(find_differences(msgspec.json.decode(began, type=RunInfo), info)):
        raise UsageError(
            f"{config.folder} was begun with other settings ({'; '.join(differences)}); "
            "use those, another --run_name, or --force_config to mix them"
        )


def find_differences(old: RunInfo, new: RunInfo) -> Iterator[str]:
    """What of two configurations makes two kinds of rows, each as `field: old → new`."""
    for field in new.__struct_fields__:
        before, after = getattr(old, field), getattr(new, field)
        from_older_version = field == "tools" and isinstance(before, str)  # one hash, that cannot be compared with many
        if field in MAY_CHANGE or before == after or from_older_version:
            continue
        if isinstance(before, dict) and isinstance(after, dict):  # name → what it is
            changed = {name: (before.get(name), after.get(name)) for name in {**before, **after}}
            parts = (f"{name} {_shown(one)} → {_shown(other)}" for name, (one, other) in changed.items() if one != other)
            yield f"{field}: {', '.join(parts)}"
        else:
            yield f"{field}: {_shown(before)} → {_shown(after)}"


def _shown(value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"


def check_folder(config: BatchConfig) -> None:
    """Raises `UsageError` for a name that is none, and when there are results and `--resume` was not given."""
    folder = config.folder
    if Path(config.run_name).name != config.run_name or config.run_name in ("", ".", ".."):
        raise UsageError(f"--run_name must be a plain folder name, not {config.run_name!r}")
    if not config.resume and (batch_files(folder) or (folder / TRAJECTORIES).exists()):
        raise UsageError(f"{folder} already has results; --resume goes on with them, another --run_name starts afresh")
