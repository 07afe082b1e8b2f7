"""An environment for Atropos (`atroposlib`) whose rollouts are this project's: agent loop, sandboxes, toolsets.

A user's file subclasses `KisekiEnv`, says what a rollout is worth (`reward`), and calls `cli()`. Everything else is configuration
(`KisekiEnvConfig`). What reaches the trainer is a `ScoredDataGroup` per prompt, with one sequence for each of its `group_size`
rollouts, as the API server wants it: the sequence of the rollout's last reply (`managed.py`).

A group is whole or it is not sent: a rollout that the infrastructure broke is run again, `ATTEMPTS` times in all, and then its
group is dropped with a line in the log. It never counts as a bad one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import traceback
import warnings
from collections.abc import Coroutine
from typing import Any

import msgspec

try:
    from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig, ScoredDataGroup
    from atroposlib.envs.server_handling.openai_server import OpenAIServer
    from pydantic import Field
except ImportError as error:
    raise ImportError(f"kiseki.integrations.atropos needs atroposlib ({error}): pip install 'kiseki[atropos]'") from None

from kiseki.batch.config import BatchConfig
from kiseki.batch.prompts import BadRow
from kiseki.errors import KisekiError, UsageError
from kiseki.integrations.managed import ManagedModel, Node, Sampling, chat_message, why_not_exact
from kiseki.integrations.place import Item, Place, Prompts
from kiseki.integrations.runner import ERROR_CHARS, RewardFailed, Rollout, Runner, prepare
from kiseki.models.endpoints import ModelSettings
from kiseki.sandboxes.base import Limits
from kiseki.tools.running import end_others
from kiseki.tools.settings import ToolSettings
from kiseki.trajectory.record import own_messages
from kiseki.trajectory.text import printable
from kiseki.trajectory.types import Record

__all__ = ["KisekiEnv", "KisekiEnvConfig", "Rollout"]

ATTEMPTS = 3
"""At a rollout that the infrastructure breaks: as a batch run has them."""
LIMITS = Limits()

logger = logging.getLogger(__name__)


class KisekiEnvConfig(BaseEnvConfig):  # type: ignore[misc]  # it comes without types
    """Of every environment of Atropos, and of the rollouts. What a flag of `kiseki batch` has for a name means the same here."""

    max_token_length: int = Field(default=16_384, description="Tokens of one rollout's sequence at most, prompt included")
    use_wandb: bool = Field(default=False, description="Whether to use wandb")
    worker_timeout: float = Field(default=-1, description="Seconds for a whole group; -1: only prompt_timeout and reward_timeout")
    dataset_file: str = Field(default="", description="Prompts: JSONL, .gz, .zst, CSV, parquet, or hf://org/name[:split]")
    epochs: int = Field(default=0, description="Times that the dataset is gone through; 0: without end")
    distribution: str = Field(default="terminal_only", description="Of toolsets: a built-in one, FILE.yaml or FILE.yaml:NAME")
    skip_unavailable: bool = Field(default=False, description="Go on without toolsets that are not available here")
    tools: str = Field(default="", description="Python files and entry points with own tools, separated by commas")
    seed: int = Field(default=0, description="Of the toolset draws")
    max_turns: int = Field(default=10, description="Model calls per rollout at most")
    max_tokens: int | None = Field(default=None, description="Tokens per reply at most; default: what max_token_length leaves")
    temperature: float = Field(default=1.0, description="Sampling temperature")
    top_p: float = Field(default=1.0, description="Nucleus sampling, 0 to 1")
    ephemeral_system_prompt: str = Field(default="", description="System prompt, a part of the sequence that is not trained")
    prompt_timeout: float = Field(default=3600.0, description="Seconds for one rollout, sandbox start included")
    reward_timeout: float = Field(default=600.0, description="Seconds for the reward of one rollout")
    sandbox: str = Field(default="auto", description="auto, bubblewrap, local, docker, podman, apptainer, modal or ssh")
    sandbox_image: str = Field(default="", description="Image of prompts that name none")
    network: str = Field(default="none", description="none or on")
    sandbox_memory: int = Field(default=LIMITS.memory_mb, description="MB per sandbox")
    sandbox_cpus: float = Field(default=LIMITS.cpus, description="CPUs per sandbox")
    sandbox_processes: int = Field(default=LIMITS.processes, description="Processes per sandbox")
    sandbox_disk: int = Field(default=LIMITS.disk_mb, description="MB of disk per sandbox")
    sandbox_timeout: float = Field(default=60.0, description="Seconds for a sandbox to start")
    ssh_host: str = Field(default="", description="[user@]host[:port] of sandbox ssh")
    search_provider: str = Field(default="", description="Of toolset web and search")
    corpus: str = Field(default="", description="Folder, JSONL or parquet file that web_search searches")
    web_allow: str = Field(default="", description="Private hosts and networks that tools may reach, separated by commas")
    web_record: str = Field(default="", description="File that keeps every search and fetch")
    web_replay: str = Field(default="", description="File that answers every search and fetch")
    skills_dir: str = Field(default="", description="Folder of skills")
    memory_dir: str = Field(default="", description="Folder that each rollout's memory begins with")
    mcp_config: str = Field(default="", description="JSON file with mcpServers")


class GroupLost(KisekiError):
    """A rollout of a group cannot be had, so the group cannot either."""


class Scored(msgspec.Struct, frozen=True):
    """One rollout as it goes into its group."""

    node: Node
    score: float
    record: Record


class KisekiEnv(BaseEnv):  # type: ignore[misc]
    """Base of a user's environment: `reward` is what it must have, `name` what it should have."""

    name = "kiseki"
    env_config_cls = KisekiEnvConfig
    config: KisekiEnvConfig

    async def reward(self, rollout: Rollout) -> float:
        """What `rollout` is worth; may also be a plain function, which then runs on a thread. It is asked about rollouts that
        ended by themselves or at a limit, never about broken ones."""
        raise NotImplementedError

    @classmethod
    def config_init(cls) -> tuple[Any, list[Any]]:
        """The defaults: a vLLM server of Atropos' own on this machine."""
        server = APIServerConfig(base_url="http://localhost:9001/v1", api_key="x", server_type="vllm", model_name="default")
        return cls.env_config_cls(), [server]  # a list, since a single one would be taken for a cluster's

    @classmethod
    def cli(cls) -> None:
        """Run `serve`, `process` or `evaluate` as the command line says. Ends the process."""
        try:
            super().cli()
        except KisekiError as error:
            sys.stderr.write(f"error: {error}\n")
            sys.exit(2)
        except (KeyboardInterrupt, asyncio.CancelledError):
            sys.stderr.write("interrupted\n")
            sys.exit(130)

    def __init__(self, config: KisekiEnvConfig, *args: Any, **options: Any) -> None:
        config.wandb_name = config.wandb_name or self.name  # the API takes no environment without one
        super().__init__(config, *args, **options)
        self.place: dict[str, Any] = {}
        """In the dataset (`Place`): what a checkpoint of the environment holds."""
        self._runner: Runner | None = None
        self._prompts: Prompts | None = None
        self._reading = asyncio.Lock()
        self._groups: set[asyncio.Task[Any]] = set()
        self._told_rewritten = False
        self._told_end = False
        self._shown: set[str] = set()
        """What reward functions raised, of which the log has the traceback."""

    # ---- what Atropos calls ---------------------------------------------------------------------------------------------

    async def setup(self) -> None:
        """Check everything. Raises `UsageError`."""
        if type(self).reward is KisekiEnv.reward:
            raise UsageError(f"{type(self).__name__} says no reward: give it `async def reward(self, rollout) -> float`")
        if not self.config.dataset_file:
            raise UsageError("env.dataset_file (--env.dataset_file): which prompts?")
        if any(isinstance(each, OpenAIServer) for each in self.server.servers):
            raise UsageError("openai.server_type openai gives neither token ids nor logprobs; take vllm or sglang")
        if self.server.use_proxy:
            raise UsageError("ATROPOS_PROXY_URL is set: the managed server has to be in this process; unset it")
        if not self.tokenizer.chat_template:
            raise UsageError(f"env.tokenizer_name: the tokenizer {self.config.tokenizer_name} has no chat template")
        # any parser will do: without one the managed server leaves the tools out of the prompt
        self.server.tool_parser = "hermes"
        warnings.filterwarnings("ignore", "vLLM is not installed", UserWarning)
        self._runner = Runner(await asyncio.to_thread(prepare, batch_config(self.config, self.server.servers[0].config)))

    async def get_next_item(self) -> Item | None:
        """The next prompt; None after the last epoch."""
        async with self._reading:
            if self._prompts is None:  # not before a checkpoint had its say
                place = msgspec.convert(self.place, Place)
                self._prompts = Prompts(self.config.dataset_file, self.config.epochs, place, _say_bad_row)
            item = await asyncio.to_thread(self._prompts.next)
            if item is None and not self._told_end:
                self._told_end = True
                logger.warning("the dataset has been gone through (epochs: %d): no prompt is left", self.config.epochs)
            return item

    async def collect_trajectories(self, item: Item) -> tuple[Any, list[Any]]:
        """The group of a prompt; None where it was lost."""
        task = asyncio.current_task()
        assert task is not None and self._prompts is not None
        self._groups.add(task)
        group: Any = None
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(self._scored(item, sample)) for sample in range(self.config.group_size)]
            group = self._group(item, [each.result() for each in running])
        except* GroupLost as lost:
            logger.warning("prompt %d is left out: %s", item.prompt.index, lost.exceptions[0])
        except* Exception as errors:
            logger.exception("prompt %d is left out: the environment's own code failed", item.prompt.index, exc_info=errors)
        finally:
            self._groups.discard(task)
        self._prompts.finish(item)
        return group, []

    async def evaluate(self, *args: Any, **options: Any) -> None:
        """Nothing, unless a subclass does something."""

    def save_checkpoint(self, step: int, data: dict[str, Any] | None = None) -> None:
        """With the place in the dataset."""
        if self._prompts is not None:
            self.place = msgspec.to_builtins(self._prompts.place())
        super().save_checkpoint(step, {"place": self.place, **(data or {})})

    async def env_manager(self) -> None:
        await self._to_its_end(super().env_manager())

    async def process_manager(self) -> None:
        await self._to_its_end(super().process_manager())

    async def _run_evaluate(self) -> None:
        await self._to_its_end(super()._run_evaluate())

    # ---- rollouts ---------------------------------------------------------------------------------------------------------

    async def _scored(self, item: Item, sample: int) -> Scored:
        """One rollout of the group. Raises `GroupLost`, and what the reward function raises."""
        why = ""
        for attempt in range(1, ATTEMPTS + 1):
            found, why, retryable = await self._tried(item, sample, attempt)
            if found is not None:
                return found
            logger.warning("prompt %d, rollout %d, attempt %d: %s", item.prompt.index, sample, attempt, why)
            if not retryable:
                break
        raise GroupLost(f"rollout {sample} failed ({why})")

    async def _tried(self, item: Item, sample: int, attempt: int) -> tuple[Scored | None, str, bool]:
        """The rollout; or None, why there is none, and whether another attempt may help."""
        assert self._runner is not None
        runner, config = self._runner, self.config
        spec = runner.spec(item.prompt, item.epoch, sample, attempt)
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            sampling = Sampling(config.temperature, config.top_p, config.max_tokens, self._max_sequence())
            model = ManagedModel(managed, self.tokenizer, runner.opening(item.prompt), sampling)
            try:
                record, score = await runner.run(spec, model, self.reward, config.reward_timeout)
            except RewardFailed as failed:
                self._show_once(failed)
                return None, str(failed), False
            except UsageError:
                raise
            except KisekiError as error:  # the sandbox died under the reward function
                return None, f"the reward: {_shown(error)}", error.retryable
            if score is None:
                return None, f"{record.error_class}: {printable(record.error, ERROR_CHARS)}", record.retryable
            if model.sequence is None or (why := why_not_exact(model.sequence)):
                return None, f"its tokens cannot be trained on: {why if model.sequence else 'there are none'}", False
            if model.rewritten and not self._told_rewritten:
                self._told_rewritten = True
                logger.warning("the chat template changes earlier turns: only what was sampled after the last change is trained")
            return Scored(model.sequence, score, record), "", False

    def _show_once(self, failed: RewardFailed) -> None:
        """Where the user's function raised: whole the first time, since thousands of rollouts raise the same."""
        raised = failed.__cause__
        if raised is not None and str(failed) not in self._shown:
            self._shown.add(str(failed))
            chain = raised.__cause__ is not None  # what is only its context is Atropos' own: all runs inside an `except`
            logger.warning("%s\n%s", failed, "".join(traceback.format_exception(raised, chain=chain)).rstrip())

    def _max_sequence(self) -> int:
        """Tokens. A sequence of the trainer's `max_token_len` is refused, not only a longer one."""
        most = self.config.max_token_length
        return min(most, self.max_token_len - 1) if self.max_token_len > 0 else most

    def _group(self, item: Item, scored: list[Scored]) -> Any:
        group = ScoredDataGroup(
            tokens=[list(each.node.tokens) for each in scored],
            masks=[list(each.node.masked_tokens) for each in scored],
            inference_logprobs=[list(each.node.logprobs) for each in scored],
            scores=[each.score for each in scored],
            generation_params={"temperature": self.config.temperature, "top_p": self.config.top_p},
        )
        if self.config.include_messages:
            group["messages"] = [self._messages(item, each.record) for each in scored]
        return group

    def _messages(self, item: Item, record: Record) -> list[dict[str, Any]]:
        """As the template got them, up to the last reply, with which the sequence ends."""
        assert self._runner is not None
        own = own_messages(record)
        last = max(at for at, each in enumerate(own) if each.role == "assistant")
        return [chat_message(each) for each in (*self._runner.opening(item.prompt), *own[: last + 1])]

    # ---- the end ----------------------------------------------------------------------------------------------------------

    async def _to_its_end(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`; however it ends, a SIGTERM included, no sandbox is left."""
        task = asyncio.current_task()
        assert task is not None
        with contextlib.suppress(RuntimeError, NotImplementedError):  # not the main thread: then whoever runs it sees to that
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        try:
            await work
        finally:
            for group in self._groups:
                group.cancel()
            await asyncio.gather(*self._groups, return_exceptions=True)
            if self._runner is not None:
                await self._runner.close()
            await end_others()


def batch_config(config: KisekiEnvConfig, server: Any) -> BatchConfig:
    """What the rollouts are told, in the words of a batch run. `server`: the first inference server's configuration."""
    model = ModelSettings(
        server.model_name,
        server.base_url,
        server.api_key or "",
        max_tokens=config.max_tokens,
        temperature=config.temperature,
        top_p=config.top_p,
    )
    same = {name for name in BatchConfig.__struct_fields__ if name in type(config).model_fields} - {"batch_size", "tools"}
    of_tools = {name for name in ToolSettings.__struct_fields__ if name in type(config).model_fields} - {"web_allow"}
    return BatchConfig(
        batch_size=1,
        run_name="atropos",
        model=model,
        tools=_listed(config.tools),
        tool_settings=ToolSettings(
            web_allow=_listed(config.web_allow), **{name: getattr(config, name) for name in sorted(of_tools)}
        ),
        **{name: getattr(config, name) for name in sorted(same)},
    )


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part for each in text.split(",") if (part := each.strip()))


def _say_bad_row(row: BadRow) -> None:
    logger.warning("dataset line %d is left out: %s", row.line, printable(row.reason, ERROR_CHARS))


def _shown(error: BaseException) -> str:
    return f"{type(error).__name__}: {printable(str(error), ERROR_CHARS)}"
