"""`kiseki batch` (`batch_runner.py`): a dataset of prompts → trajectories."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from kiseki.commands.display import make_console
from kiseki.commands.flags import Parser, at_least, one_of
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
  kiseki batch --dataset_file=examples/prompts.jsonl --batch_size=5 --run_name=first --model=builtin/practice
  kiseki batch --dataset_file=prompts.jsonl --batch_size=100 --run_name=my_run --distribution=terminal_only --num_workers=2
  kiseki batch --dataset_file=prompts.jsonl --batch_size=100 --run_name=my_run --distribution=terminal_only --resume

exit status: 0 done; 2 unusable arguments or input; 3 finished, but some rollouts failed (--resume tries them again);
130 interrupted (everything done is saved); 1 anything unexpected"""


def build_parser(prog: str = "kiseki batch") -> Parser:
    parser = Parser(prog, "Run a dataset of prompts through a tool-using agent and write the trajectories.", EPILOG)
    flag, switch = parser.flag, parser.switch
    main = parser.add_argument_group("the run")
    flag(main, "dataset_file", str, "JSONL with a 'prompt' in each row; also .gz, .zst, .parquet, .csv, hf://org/name[:split]")
    flag(main, "batch_size", at_least(1), "prompts per batch: the unit of files and checkpoints")
    flag(main, "run_name", str, "output goes to data/RUN_NAME/")
    flag(main, "distribution", str, "toolset distribution: a name, or FILE.yaml[:NAME]", "default")
    switch(main, "list_distributions", "print the distributions and exit")
    switch(main, "resume", "go on with an interrupted run")
    flag(main, "max_samples", at_least(1), "only the first so many usable rows (default: all)")
    flag(main, "num_samples", at_least(1), "rollouts per prompt", 1)
    flag(main, "output_dir", str, "folder of the run folders", "data")
    flag(
        main,
        "seed",
        int,
        "of every draw; given, it is also sent to the model's endpoint, varied per rollout (default: 0, not sent)",
    )
    switch(main, "force_config", "resume although the settings differ from those that the run began with")
    switch(main, "verbose", "log every failure and retry")
    flag(main, "log_prefix_chars", at_least(0), "length of previews in log lines", 100)
    add_model_flags(parser)
    agent = add_agent_flags(parser)
    add_tool_flags(parser)
    sandbox = add_sandbox_flags(parser)
    words = "sandboxes that each worker keeps started ahead of need, for each image that several prompts share"
    flag(sandbox, "warm", at_least(0), words, 0)
    switch(agent, "skip_unavailable", "run without the distribution's toolsets that are not available here")
    engine = parser.add_argument_group("running it")
    flag(engine, "num_workers", at_least(1), "worker processes", 4)
    flag(engine, "concurrency", at_least(1), "rollouts at once in the whole run (default: by the machine)")
    flag(engine, "engine", one_of("auto", "inprocess", "processes"), "where rollouts run", "auto")
    flag(engine, "max_attempts", at_least(1), "attempts per rollout and session before it counts as failed", 3)
    words = "also run rollouts again that have killed their worker twice (they are left out otherwise)"
    switch(engine, "retry_poison", words)
    hub = parser.add_argument_group("the Hugging Face Hub: a private dataset there, as kiseki push makes it")
    flag(hub, "push_to", str, "ORG/NAME that the dataset is pushed to at the end", "")
    words = "rollouts after each of which the finished batches are pushed meanwhile (default: only at the end)"
    flag(hub, "push_every", at_least(1), words)
    budget = parser.add_argument_group("budgets: reserved before each model call, over all sessions of the run")
    flag(budget, "max_cost", at_least(0, float), "US dollars that the whole run may cost (default: no limit)")
    flag(budget, "max_total_tokens", at_least(1), "tokens, in and out, that the whole run may take (default: no limit)")
    words = "US dollars that one rollout may cost, all its attempts included (default: no limit)"
    flag(budget, "max_cost_per_prompt", at_least(0, float), words)
    words = "YAML with prices that the endpoint does not list: 'model: {input: 3, output: 15}', US dollars per million tokens"
    flag(budget, "prices", str, words, "")
    flag(
        engine,
        "reasoning_filter",
        one_of("auto", "on", "off"),
        "discard rollouts without any reasoning; auto: unless it was disabled",
        "auto",
    )
    return parser


def main(argv: Sequence[str], prog: str = "kiseki batch") -> int:
    parser = build_parser(prog)
    flags = parser.parse(argv)
    if flags.list_distributions:
        from kiseki.tools.distributions import format_table

        sys.stdout.write(format_table() + "\n")
        return 0
    if missing := [f"--{name}" for name in ("dataset_file", "batch_size", "run_name") if getattr(flags, name) is None]:
        raise UsageError(f"missing {', '.join(missing)}; {prog} --help shows an example")
    if flags.push_every and not flags.push_to:
        raise UsageError("--push_every needs --push_to=ORG/NAME, the dataset on the Hub")
    return _run(flags)


def _run(flags: argparse.Namespace) -> int:
    from kiseki.batch.config import BatchConfig
    from kiseki.batch.run import run_batch

    own = {name: value for name, value in vars(flags).items() if name in BatchConfig.__struct_fields__ and name != "model"}
    return run_batch(BatchConfig(model=model_settings(flags), tool_settings=tool_settings(flags), **own), make_console())
