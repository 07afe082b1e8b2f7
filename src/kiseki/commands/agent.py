"""`kiseki agent` (`run_agent.py`): one prompt → one trajectory."""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Sequence
from pathlib import Path

from kiseki.commands.display import make_console
from kiseki.commands.flags import Parser, at_least, names
from kiseki.commands.shared_flags import (
    add_agent_flags,
    add_model_flags,
    add_sandbox_flags,
    add_tool_flags,
    model_settings,
    tool_settings,
)
from kiseki.errors import UsageError

EPILOG = """\
examples:
  kiseki agent --query "How many lines of Python are in this folder?" --model=builtin/practice
  kiseki agent --query "Write and test a Roman numeral parser" --enabled_toolsets=terminal,file --save_trajectories
  kiseki agent --list_tools

exit status: 0 done; 2 unusable arguments; 3 the rollout failed; 1 anything unexpected"""

FAILED = 3


def build_parser(prog: str = "kiseki agent") -> Parser:
    parser = Parser(prog, "Run one prompt through a tool-using agent.", EPILOG)
    flag, switch = parser.flag, parser.switch
    main = parser.add_argument_group("the prompt")
    flag(main, "query", str, "what the agent is asked")
    switch(main, "list_tools", "print the tools by toolset and exit")
    switch(main, "save_trajectories", "append to trajectory_samples.jsonl if completed, else to failed_trajectories.jsonl")
    switch(main, "save_sample", "write the trajectory to a file of its own, sample_XXXXXXXX.json")
    switch(main, "verbose", "show tool results in full")
    flag(main, "log_prefix_chars", at_least(0), "length of previews on the screen", 100)
    add_model_flags(parser)
    agent = add_agent_flags(parser)
    add_tool_flags(parser)
    add_sandbox_flags(parser)
    flag(agent, "enabled_toolsets", names, "only these toolsets (comma-separated; default: every one that is available)")
    flag(agent, "disabled_toolsets", names, "not these toolsets (comma-separated)", ())
    flag(agent, "seed", int, "sent to the model's endpoint")
    return parser


def main(argv: Sequence[str], prog: str = "kiseki agent") -> int:
    flags = build_parser(prog).parse(argv)
    if flags.list_tools:
        from kiseki.commands.tools import print_tools

        return print_tools(flags.tools, tool_settings(flags), model_settings(flags), ())
    if not flags.query:
        raise UsageError(f"missing --query; {prog} --help shows an example")
    return _run(flags)


def _run(flags: argparse.Namespace) -> int:
    import msgspec
    from rich.text import Text

    from kiseki.agent.agent import COMPLETED_FILE, OTHER_FILE, AIAgent, sample_of
    from kiseki.agent.prefill import read_prefill
    from kiseki.batch.images import have_images
    from kiseki.sandboxes.factory import HAS_IMAGES
    from kiseki.trajectory.record import own_messages, results_cut

    console = make_console()
    model = model_settings(flags)
    agent = AIAgent(
        model.model,
        base_url=model.base_url,
        api_key=model.api_key,
        api_mode=model.api_mode,
        tool_call_mode=model.tool_call_mode,
        extra_body=model.extra_body,
        fallback_models=flags.fallback_model,
        fallback_base_url=flags.fallback_base_url,
        max_turns=flags.max_turns,
        enabled_toolsets=flags.enabled_toolsets,
        disabled_toolsets=flags.disabled_toolsets,
        tools=flags.tools,
        tool_settings=tool_settings(flags),
        save_trajectories=flags.save_trajectories,
        ephemeral_system_prompt=flags.ephemeral_system_prompt,
        prefill_messages=read_prefill(flags.prefill_messages_file),
        providers_allowed=model.providers_allowed,
        providers_ignored=model.providers_ignored,
        providers_order=model.providers_order,
        provider_sort=model.provider_sort,
        reasoning_config={"enabled": False} if model.reasoning_disabled else {"effort": model.reasoning_effort},
        max_tokens=model.max_tokens,
        context_length=model.context_length,
        on_context_full=flags.on_context_full,
        temperature=model.temperature,
        top_p=model.top_p,
        stream=model.stream,
        call_timeout=model.call_timeout,
        provider_patience=model.provider_patience,
        capture_tokens=model.capture_tokens,
        sandbox=flags.sandbox,
        sandbox_image=flags.sandbox_image,
        network=flags.network,
        sandbox_memory=flags.sandbox_memory,
        sandbox_cpus=flags.sandbox_cpus,
        sandbox_processes=flags.sandbox_processes,
        sandbox_disk=flags.sandbox_disk,
        sandbox_timeout=flags.sandbox_timeout,
        ssh_host=flags.ssh_host,
        prompt_timeout=flags.prompt_timeout,
        redact=flags.redact,
        seed=flags.seed,
    )
    if agent.tools.needs_sandbox and agent.sandbox.backend in HAS_IMAGES:
        if not agent.sandbox.image:
            raise UsageError(f"--sandbox={agent.sandbox.backend} needs --sandbox_image=IMAGE: what the tools run in")
        for reason in have_images(agent.sandbox, [agent.sandbox.image], console).values():
            console.print(Text(f"failed: ImageError: {reason}", style="red"), soft_wrap=True)
            return FAILED
    result = agent.run_conversation(flags.query)
    limit = None if flags.verbose else flags.log_prefix_chars

    def show(label: str, text: str, style: str) -> None:
        text = text if limit is None or len(text) <= limit else f"{text[:limit]}…"
        console.print(Text(f"{label} {text}", style=style), soft_wrap=True)

    for message in own_messages(result.record):
        if message.reasoning:
            show("thinks", message.reasoning, "dim")
        for call in message.tool_calls:
            show(f"calls {call.name}", call.arguments, "cyan")
        if message.role == "tool":
            show("result", message.content, "green")
    if result.final_response:
        console.print(Text(result.final_response))
    if result.error:
        console.print(Text(f"failed: {result.record.error_class}: {result.error}"), style="red", soft_wrap=True)
        return FAILED
    console.print(Text(f"{result.reason}, {result.api_calls} model calls, ${result.usage.cost:.4f}"), style="dim")
    if cut := results_cut(result.record):
        words = f"the context window was full: the model was sent {cut} of the tool results without their middle"
        console.print(Text(words), style="yellow", soft_wrap=True)
    if flags.capture_tokens and not any(call.tokens for call in result.record.calls):
        console.print(Text("no token ids were kept: the endpoint answers without them"), style="yellow", soft_wrap=True)
    if flags.save_trajectories:
        console.print(Text(f"appended to {COMPLETED_FILE if result.completed else OTHER_FILE}"))
    if flags.save_sample:
        path = Path(f"sample_{secrets.token_hex(4)}.json")
        path.write_bytes(msgspec.json.format(msgspec.json.encode(sample_of(result) | {"query": flags.query}), indent=2))
        console.print(Text(f"saved {path}"))
    return 0
