"""The flags that every command which runs rollouts has: the model, and the agent around it."""

from __future__ import annotations

import argparse

from kiseki.agent.context import ON_CONTEXT_FULL
from kiseki.commands.flags import Parser, at_least, json_object, names, one_of
from kiseki.models.endpoints import API_MODES, OPENROUTER_URL, TOOL_CALL_MODES, ModelSettings, with_fallback
from kiseki.sandboxes.base import Limits
from kiseki.tools.settings import SEARCH_PROVIDERS, ToolSettings

LEAST_MEMORY_MB = 16
"""In much less no shell starts, and every rollout would fail."""
LEAST_PROCESSES = 12
"""With fewer, three tools at once that are pipelines of three programs each find no process, with bubblewrap and Docker alike."""
DEFAULT_MODEL = "anthropic/claude-sonnet-4.6"


def add_model_flags(parser: Parser) -> None:
    group = parser.add_argument_group("model")
    flag, switch = parser.flag, parser.switch
    flag(group, "model", str, "model id; builtin/practice needs no key and no network", DEFAULT_MODEL)
    flag(group, "base_url", str, "base of the endpoint's API", OPENROUTER_URL)
    words = (
        "the API that it speaks: chat (OpenAI's chat completions), responses (OpenAI's), anthropic (Messages); auto: by the host"
    )
    flag(group, "api_mode", one_of(*API_MODES), words, "auto")
    flag(
        group,
        "api_key",
        str,
        "API key; better in the environment or .env (OPENROUTER_API_KEY, … by host), since any process can read a flag",
    )
    flag(group, "max_tokens", at_least(1), "output tokens per model reply at most (default: the model's own)")
    flag(group, "temperature", at_least(0, float), "sampling temperature (default: the endpoint's)")
    flag(group, "top_p", at_least(0, float), "nucleus sampling (default: the endpoint's)")
    words = (
        "how it is told of tools and calls them: native (by the API), json (its output is held to JSON), hermes (in the text);"
        " auto: native, and calls in the text of a reply are read"
    )
    flag(group, "tool_call_mode", one_of(*TOOL_CALL_MODES), words, "auto")
    flag(group, "extra_body", json_object, "JSON object, or @FILE, put into the body of every request", {})
    flag(group, "fallback_model", names, "models asked where it is gone or refuses, in this order (comma-separated)", ())
    flag(group, "fallback_base_url", str, "their API base (default: the same)", "")
    flag(group, "context_length", at_least(1), "tokens of prompt and reply together (default: as the endpoint lists it)")
    switch(group, "stream", "ask for streamed replies: long ones are then less likely to be cut by a proxy")
    flag(group, "call_timeout", at_least(0.001, float), "seconds for one model call, its whole answer included", 1800.0)
    words = "seconds for which the endpoint may turn a call away (429, 503), or fail every call, before that counts"
    flag(group, "provider_patience", at_least(0.001, float), words, 300.0)
    routing = parser.add_argument_group("OpenRouter routing and reasoning")
    flag(routing, "providers_allowed", names, "only these upstream providers (comma-separated)", ())
    flag(routing, "providers_ignored", names, "never these upstream providers (comma-separated)", ())
    flag(routing, "providers_order", names, "try these upstream providers first, in this order (comma-separated)", ())
    flag(routing, "provider_sort", str, "price, throughput or latency", "")
    flag(routing, "reasoning_effort", str, "none, minimal, low, medium, high, xhigh, max or ultra (default: the provider's)", "")
    switch(routing, "reasoning_disabled", "no reasoning tokens at all; wins over --reasoning_effort")


def add_summary_flags(parser: Parser) -> None:
    """What the compressor's summaries may cost."""
    group = parser.add_argument_group("what summaries may cost, over all sessions")
    flag = parser.flag
    flag(group, "max_cost", at_least(0, float), "US dollars (default: no limit)")
    flag(group, "max_total_tokens", at_least(1), "tokens, in and out (default: no limit)")
    words = "YAML with prices that the endpoint does not list: 'model: {input: 3, output: 15}', US dollars per million tokens"
    flag(group, "prices", str, words, "")


def add_agent_flags(parser: Parser) -> argparse._ArgumentGroup:
    """Returns the group, for a command that has more of them."""
    group = parser.add_argument_group("the agent")
    flag = parser.flag
    flag(group, "max_turns", at_least(1), "model calls per rollout at most", 10)
    flag(group, "prompt_timeout", at_least(0.001, float), "seconds per rollout at most, sandbox start included", 3600.0)
    words = (
        "where a conversation no longer fits the model's context window (--context_length): stop ends it, as far as it got;"
        " truncate_tool_outputs goes on, with the oldest tool results sent without their middle"
    )
    flag(group, "on_context_full", one_of(*ON_CONTEXT_FULL), words, "stop")
    flag(group, "ephemeral_system_prompt", str, "system prompt used while running, never saved", "")
    flag(group, "prefill_messages_file", str, "JSON array of {role, content} ahead of the prompt, never saved", "")
    flag(group, "tools", names, "Python files with tools of your own, or kiseki.tools entry points (comma-separated)", ())
    words = "keep the token ids and logprobs of each reply, for the formats rl and atropos: vLLM and SGLang give them"
    parser.switch(group, "capture_tokens", words)
    parser.switch(group, "redact", "take API keys and the run's own secrets out of tool results", default=True)
    return group


def add_tool_flags(parser: Parser) -> None:
    group = parser.add_argument_group("toolsets")
    flag = parser.flag
    words = (
        "brave, tavily, exa, serper, searxng, ddgs or corpus"
        " (default: corpus with --corpus, else the first whose key is in the environment, else ddgs)"
    )
    flag(group, "search_provider", one_of(*SEARCH_PROVIDERS), words)
    flag(group, "corpus", str, "folder, .jsonl or .parquet that web_search searches, with no network", "")
    words = "private hosts, host:port pairs or networks that web and browser tools may reach (comma-separated)"
    flag(group, "web_allow", names, words, ())
    flag(group, "web_record", str, "file that keeps every search and fetch, to be replayed", "")
    flag(group, "web_replay", str, "file that answers every search and fetch; the network is never touched", "")
    flag(group, "vision_model", str, "model id that vision tools ask (default: the run's model)", "")
    flag(group, "vision_base_url", str, "its API base (default: the run's --base_url)", "")
    flag(group, "image_model", str, "model id that image_generate asks (default: by the host)", "")
    flag(group, "image_base_url", str, "its API base: OpenAI-compatible, OpenRouter or fal (default: by which key there is)", "")
    flag(group, "skills_dir", str, "folder of skills, a folder with a SKILL.md each; every sandbox gets a copy", "")
    flag(group, "memory_dir", str, "folder that each rollout's memory begins with (default: an empty one)", "")
    flag(group, "mcp_config", str, "JSON file with mcpServers; each server is the toolset mcp-NAME", "")


def tool_settings(flags: argparse.Namespace) -> ToolSettings:
    """As the flags say."""
    found = ToolSettings.__struct_fields__
    return ToolSettings(**{name: value for name, value in vars(flags).items() if name in found and value is not None})


def add_sandbox_flags(parser: Parser) -> argparse._ArgumentGroup:
    """Returns the group, for a command that has more of them."""
    group = parser.add_argument_group("the sandbox of each rollout, in which its tools run")
    flag, limits = parser.flag, Limits()
    words = (
        "bubblewrap (Linux namespaces), local (a folder: no security boundary), docker, podman, apptainer, modal, ssh;"
        " auto: bubblewrap where it works, else local"
    )
    flag(group, "sandbox", str, words, "auto")
    words = "container image of prompts that name none in their column 'image'; docker, podman, apptainer and modal have images"
    flag(group, "sandbox_image", str, words, "")
    words = "none or on: whether commands reach the network; tools that run outside of it, as your own do, are not affected"
    flag(group, "network", one_of("none", "on"), words, "none")
    flag(group, "sandbox_memory", at_least(LEAST_MEMORY_MB), "MB of memory that one may use", limits.memory_mb)
    flag(group, "sandbox_cpus", at_least(0.01, float), "CPUs that one may use; 0.5 is half of one", limits.cpus)
    flag(group, "sandbox_processes", at_least(LEAST_PROCESSES), "processes and threads at once in one", limits.processes)
    words = "MB of files that one may write; bubblewrap keeps them in memory: half of --sandbox_memory at most"
    flag(group, "sandbox_disk", at_least(1), words, limits.disk_mb)
    flag(group, "sandbox_timeout", at_least(0.001, float), "seconds that one may take to start", 60.0)
    flag(group, "ssh_host", str, "[user@]host[:port] for --sandbox=ssh; keys and known hosts are those of OpenSSH", "")
    return group


def model_settings(flags: argparse.Namespace) -> ModelSettings:
    """As the flags say; the key is still only the flag's."""
    model = ModelSettings(
        model=flags.model,
        base_url=flags.base_url,
        api_key=flags.api_key or "",
        api_mode=flags.api_mode,
        tool_call_mode=flags.tool_call_mode,
        extra_body=flags.extra_body,
        context_length=flags.context_length,
        max_tokens=flags.max_tokens,
        temperature=flags.temperature,
        top_p=flags.top_p,
        stream=flags.stream,
        call_timeout=flags.call_timeout,
        provider_patience=flags.provider_patience,
        providers_allowed=flags.providers_allowed,
        providers_ignored=flags.providers_ignored,
        providers_order=flags.providers_order,
        provider_sort=flags.provider_sort,
        reasoning_effort=flags.reasoning_effort,
        reasoning_disabled=flags.reasoning_disabled,
        capture_tokens=getattr(flags, "capture_tokens", False),  # of commands whose rollouts are kept
    )
    return with_fallback(model, flags.fallback_model, flags.fallback_base_url)
