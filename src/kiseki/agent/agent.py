"""The library's door: one prompt, one agent, one trajectory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from kiseki.agent.context import ON_CONTEXT_FULL, OnContextFull
from kiseki.agent.prefill import prefill_messages as read_messages
from kiseki.agent.rollout import run_rollout
from kiseki.agent.settings import RolloutSettings, ToolsOfRollout
from kiseki.errors import UsageError
from kiseki.models.endpoints import OPENROUTER_URL, ModelSettings, with_fallback
from kiseki.models.factory import check_model, open_model, with_api_key
from kiseki.models.smollm2 import Served
from kiseki.models.spending import with_listed
from kiseki.sandboxes import owners
from kiseki.sandboxes.base import Limits
from kiseki.sandboxes.factory import Sandboxes, why_no_image, with_backend
from kiseki.sandboxes.reaper import reap_orphans
from kiseki.sandboxes.settings import SandboxSettings
from kiseki.tools.gather import Gathered, gather
from kiseki.tools.registry import Tool, tools_in
from kiseki.tools.services import Services
from kiseki.tools.settings import ToolSettings
from kiseki.tools.toolsets import MCP_PREFIX, TOOLSETS, available_toolsets, find_stand_ins, why_unavailable
from kiseki.tools.user_tools import load_user_tools, wanted_entry_points
from kiseki.trajectory.appending import append_line
from kiseki.trajectory.record import own_messages, usage_of
from kiseki.trajectory.sharegpt import Turn, to_sharegpt
from kiseki.trajectory.types import Message, Prompt, Record, RolloutSpec, Usage

LIMITS = Limits()
COMPLETED_FILE = "trajectory_samples.jsonl"
OTHER_FILE = "failed_trajectories.jsonl"


class AgentResult(msgspec.Struct, frozen=True):
    """How one conversation went."""

    final_response: str
    """The model's last text, "" when it gave none."""
    messages: tuple[Message, ...]
    """The prompt, then everything that the model and its tools said."""
    completed: bool
    partial: bool
    """Stopped early; `reason` says why. Neither completed nor partial: it failed, `error` says how."""
    reason: str
    error: str
    api_calls: int
    usage: Usage
    """Of its tools and sub-agents too."""
    conversations: tuple[Turn, ...]
    """The trajectory in ShareGPT form."""
    record: Record


class AIAgent:
    """An agent with tools in a sandbox of its own for each conversation.

    Raises `UsageError` for settings that cannot work.
    """

    def __init__(
        self,
        model: str = "anthropic/claude-sonnet-4.6",
        *,
        base_url: str = OPENROUTER_URL,
        api_key: str | None = None,
        api_mode: str = "auto",
        tool_call_mode: str = "auto",
        extra_body: Mapping[str, Any] | None = None,
        fallback_models: Sequence[str] = (),
        fallback_base_url: str = "",
        max_turns: int = 10,
        enabled_toolsets: Sequence[str] | None = None,
        disabled_toolsets: Sequence[str] = (),
        tools: Sequence[Callable[..., Any] | str | Path] = (),
        tool_settings: ToolSettings | None = None,
        save_trajectories: bool = False,
        output_dir: str | Path = ".",
        ephemeral_system_prompt: str = "",
        prefill_messages: Sequence[Mapping[str, Any] | Message] = (),
        providers_allowed: Sequence[str] = (),
        providers_ignored: Sequence[str] = (),
        providers_order: Sequence[str] = (),
        provider_sort: str = "",
        reasoning_config: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        context_length: int | None = None,
        on_context_full: OnContextFull = "stop",
        temperature: float | None = None,
        top_p: float | None = None,
        stream: bool = False,
        call_timeout: float = 1800.0,
        provider_patience: float = 300.0,
        capture_tokens: bool = False,
        sandbox: str = "auto",
        sandbox_image: str = "",
        network: str = "none",
        sandbox_memory: int = LIMITS.memory_mb,
        sandbox_cpus: float = LIMITS.cpus,
        sandbox_processes: int = LIMITS.processes,
        sandbox_disk: int = LIMITS.disk_mb,
        sandbox_timeout: float = 60.0,
        ssh_host: str = "",
        prompt_timeout: float = 3600.0,
        redact: bool = True,
        seed: int | None = None,
    ) -> None:
        """Check everything; nothing is started yet.

        `api_mode`: `chat`, `responses` or `anthropic`, default by the host. `tool_call_mode`: `native`, `json` or `hermes`,
        default native, and calls in the text of a reply are read. `extra_body`: put into the body of every request.
        `fallback_models`: asked, at `fallback_base_url` or the same place, where the model is gone or refuses.
        `enabled_toolsets`: default every toolset that is available. `tools`: functions declared with `@kiseki.tool`, or
        Python files of such. `tool_settings`: what the toolsets are told (search, corpus, MCP servers, …).
        `prefill_messages`: `{"role": …, "content": …}` ahead of the prompt, never saved.
        `reasoning_config`: `{"effort": "high"}` or `{"enabled": False}`, no other keys. `output_dir`: where
        `save_trajectories` appends. `context_length`: tokens of a prompt and its reply together; default what the endpoint lists,
        which is asked before the first conversation. `on_context_full`: `stop` or `truncate_tool_outputs`, where that is full.
        `call_timeout`: seconds for one model call. `provider_patience`: seconds for which the endpoint may turn a call away
        before it fails. `capture_tokens`: keep token ids and logprobs, where the endpoint is a server that can give them.
        `sandbox`: `auto`, `bubblewrap`, `local`, `docker`, `podman`, `apptainer`,
        `modal` or `ssh` (at `ssh_host`, `[user@]host[:port]`). `sandbox_image`: of conversations that name none; it is not
        pulled here (`kiseki images --pull` does that). `network`: `none` or `on`. `sandbox_memory`, `sandbox_disk`: in MB.
        `sandbox_timeout`: seconds for a sandbox to start. `prompt_timeout`: seconds per conversation. `redact`: take API keys
        and the values of secret environment variables out of tool results. `seed`: sent to the endpoint when given.
        """
        effort, reasoning_disabled = _reasoning(reasoning_config or {})
        settings = ModelSettings(
            model=model,
            base_url=base_url,
            api_key=api_key or "",
            api_mode=api_mode,
            tool_call_mode=tool_call_mode,
            extra_body=dict(extra_body or {}),
            max_tokens=max_tokens,
            context_length=context_length,
            temperature=temperature,
            top_p=top_p,
            stream=stream,
            call_timeout=call_timeout,
            provider_patience=provider_patience,
            providers_allowed=tuple(providers_allowed),
            providers_ignored=tuple(providers_ignored),
            providers_order=tuple(providers_order),
            provider_sort=provider_sort,
            reasoning_effort=effort,
            reasoning_disabled=reasoning_disabled,
            capture_tokens=capture_tokens,
        )
        settings = with_fallback(settings, fallback_models, fallback_base_url)
        check_model(settings)
        self.model = with_api_key(settings, os.environ)
        self._served = Served()
        label = owners.process_label("agent")
        if on_context_full not in ON_CONTEXT_FULL:
            raise UsageError(f"on_context_full must be one of {', '.join(ON_CONTEXT_FULL)}, not {on_context_full!r}")
        if network not in ("none", "on"):
            raise UsageError(f"network must be none or on, not {network!r}")
        limits = Limits(sandbox_memory, sandbox_cpus, sandbox_processes, sandbox_disk, network == "on")
        wanted = SandboxSettings(sandbox, limits, label, start_timeout=sandbox_timeout, image=sandbox_image, host=ssh_host)
        wanted = with_backend(wanted)
        reap_orphans(wanted)
        wanted_here = tool_settings or ToolSettings()
        entry_points = wanted_entry_points(enabled_toolsets or (), [str(item) for item in tools if isinstance(item, str)])
        gathered = gather(entry_points, wanted_here, wanted)
        extra = [*(each for item in tools for each in _own_tools(item)), *gathered.tools]
        self.toolsets, stand_ins = _choose_toolsets(enabled_toolsets, disabled_toolsets, extra, gathered, self.model)
        self.sandbox = msgspec.structs.replace(wanted, owner=owners.hold(label))
        self._settings = RolloutSettings(
            model=self.model,
            sandbox=self.sandbox,
            max_turns=max_turns,
            on_context_full=on_context_full,
            prompt_timeout=prompt_timeout,
            ephemeral_system_prompt=ephemeral_system_prompt,
            prefill=read_messages(prefill_messages, "prefill_messages"),
            tools=gathered.settings,
            stand_ins=stand_ins,
            pass_seed=seed is not None,
            redact=redact,
        )
        self.tools = ToolsOfRollout(self.toolsets, extra, self._settings)
        names = tuple(schema.name for schema in self.tools.toolbox.schemas)
        self._settings = msgspec.structs.replace(self._settings, run_tools=names)
        self._listing = threading.Lock()
        self._listed = False
        self._seed = seed or 0
        self._output = Path(output_dir) if save_trajectories else None

    def run_conversation(self, prompt: str) -> AgentResult:
        """Run one prompt to its end. Works inside a running event loop too (a notebook), on a thread of its own.

        An interrupt (Ctrl-C) ends the conversation; nothing of it is saved.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.arun(prompt))
        return _run_on_a_thread(self.arun(prompt))

    async def arun(self, prompt: str, *, image: str = "", cwd: str = "") -> AgentResult:
        """Run one prompt to its end, in `image` or else the agent's `sandbox_image`, starting in the folder `cwd`. Several may
        run at once.
        """
        if not prompt.strip():
            raise UsageError("the prompt is empty")
        if self.tools.needs_sandbox and (why := why_no_image(self.sandbox, image)):
            raise UsageError(why)
        spec = RolloutSpec(
            key=secrets.token_hex(8),
            prompt=Prompt(index=0, messages=(Message(role="user", content=prompt),), image=image, cwd=cwd),
            sample_index=0,
            batch_num=0,
            attempt=1,
            seed=self._seed,
            toolsets=self.toolsets,
        )
        await asyncio.to_thread(self._find_window)
        settings = msgspec.structs.replace(self._settings, model=await asyncio.to_thread(self._served.get, self._settings.model))
        model = open_model(settings.model)
        sandboxes = Sandboxes(settings.sandbox)
        services = Services(settings.tools, model, settings.model, None, os.environ)
        try:
            record = await run_rollout(spec, settings, model, self.tools, sandboxes, services)
        finally:
            await services.close()
            await sandboxes.close()
            await model.close()
        result = _result(record, self.tools.json)
        if self._output is not None and record.outcome != "failed":
            name = COMPLETED_FILE if result.completed else OTHER_FILE
            append_line(self._output / name, sample_of(result))
        return result

    def _find_window(self) -> None:
        """The endpoint's list says it, asked before the first conversation. Blocks."""
        with self._listing:
            if not self._listed:
                self._settings = msgspec.structs.replace(self._settings, model=with_listed(self.model, "", ()))
                self._listed = True


def sample_of(result: AgentResult) -> dict[str, Any]:
    """One saved trajectory: `conversations`, `timestamp` (UTC), `model`, `completed`."""
    return {
        "conversations": result.conversations,
        "timestamp": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(result.record.started)),
        "model": result.record.model,
        "completed": result.completed,
    }


def _result(record: Record, tools_json: str) -> AgentResult:
    texts = [each.content for each in own_messages(record) if each.role == "assistant"]
    return AgentResult(
        final_response=texts[-1] if texts else "",
        messages=record.messages,
        completed=record.outcome == "completed",
        partial=record.outcome == "partial",
        reason=record.reason,
        error=record.error,
        api_calls=len(record.calls),
        usage=usage_of(record),
        conversations=tuple(to_sharegpt(record.messages, tools_json)),
        record=record,
    )


def _run_on_a_thread(conversation: Coroutine[Any, Any, AgentResult]) -> AgentResult:
    """Run it in an event loop of its own, on a thread of its own. Whatever interrupts the wait for it cancels it."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(conversation)

    async def finish() -> AgentResult:
        return await task

    def work() -> AgentResult:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            return runner.run(finish())

    with ThreadPoolExecutor(1, "kiseki-conversation") as pool:  # left when the thread has ended
        try:
            # not by Thread.join: one that was interrupted takes the thread for ended (CPython 3.11), so a second waits no more
            return pool.submit(work).result()
        except BaseException:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it was over already
                loop.call_soon_threadsafe(task.cancel)
            raise


def _reasoning(config: Mapping[str, Any]) -> tuple[str, bool]:
    """(effort, whether it is disabled)"""
    if unknown := sorted(str(key) for key in config if key not in ("enabled", "effort")):
        raise UsageError(f"reasoning_config has no {', '.join(unknown)}; its keys are enabled and effort")
    enabled, effort = config.get("enabled", True), str(config.get("effort") or "")
    if not isinstance(enabled, bool):
        raise UsageError(f"reasoning_config: enabled must be True or False, not {enabled!r}")
    return effort, not enabled or effort == "none"


def _own_tools(item: Callable[..., Any] | str | Path) -> list[Tool]:
    if isinstance(item, str | Path):
        return load_user_tools(item)
    found = tools_in({"": item})
    if not found:
        raise UsageError(f"{getattr(item, '__name__', item)!r} is no tool; declare it with @kiseki.tool(toolset=…)")
    return found


def _choose_toolsets(
    enabled: Sequence[str] | None, disabled: Sequence[str], extra: list[Tool], gathered: Gathered, model: ModelSettings
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """All toolsets, and those of the built-in ones that are there by the user's tools alone."""
    settings = gathered.settings
    extra_names = tuple(dict.fromkeys(tool.toolset for tool in extra))
    chosen = available_toolsets(settings, model) if enabled is None else tuple(enabled)
    for name in (*chosen, *gathered.lost):
        why = gathered.lost.get(name) or why_unavailable(name, settings, model)
        if name not in extra_names and name not in disabled and why:
            raise UsageError(f"toolset {name!r} is not available: {why}")
    for name in disabled:
        if name not in (*TOOLSETS, *extra_names) and not name.startswith(MCP_PREFIX):
            raise UsageError(f"toolset {name!r} cannot be disabled: {why_unavailable(name, settings, model)}")
    toolsets = tuple(name for name in dict.fromkeys((*chosen, *extra_names)) if name not in disabled)
    return toolsets, find_stand_ins(extra, lambda name: name in chosen and not why_unavailable(name, settings, model))
