"""One session of a batch run, from settings to files: check, plan, drive, make the views, report."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from kiseki.agent.settings import RolloutSettings
from kiseki.batch import leftovers
from kiseki.batch.adopt import adopt, adopted_tools, begin_anew, finish_adoption, foreign_files
from kiseki.batch.config import BatchConfig, default_concurrency
from kiseki.batch.driver import Driver, Tally
from kiseki.batch.engines import Engine, InProcess, Processes
from kiseki.batch.images import have_images, refuse_rows, say_lost, with_default
from kiseki.batch.plan import Plan, make_plan, read_into_ledger
from kiseki.batch.prepare import Prepared, Toolsets, by_reason, check_same_run, prepare
from kiseki.batch.progress import Progress
from kiseki.batch.prompts import BadRow, read_prompts
from kiseki.errors import HubError, KisekiError, RunStopped, UsageError
from kiseki.hub.background import Checkpoints
from kiseki.ledger.ledger import Ledger
from kiseki.ledger.opening import open_ledger
from kiseki.models.admission import Admission
from kiseki.models.budget import Need
from kiseki.models.factory import ignored_flags, is_builtin, takes_seed
from kiseki.models.smollm2 import serving
from kiseki.models.spending import open_admission
from kiseki.sandboxes.factory import HAS_IMAGES
from kiseki.sandboxes.local import LOCAL_WARNING
from kiseki.tools.extra_body import shown_body
from kiseki.tools.running import end_others
from kiseki.tools.settings import ToolSettings
from kiseki.trajectory.replacing import replacing
from kiseki.trajectory.text import printable
from kiseki.views.bar import counting_bar
from kiseki.views.build import Views, ViewSettings, load_view_settings, mark_behind, save_view_settings
from kiseki.views.finish import finish_views
from kiseki.views.report import print_report
from kiseki.views.statistics import Statistics

DONE, FAILED, INTERRUPTED = 0, 3, 130
SKIPPED_ROWS = "skipped_rows.jsonl"
WEB_CACHE = "web_cache.db"
"""What the workers of a run have fetched; gone when all is done (`--web_record` keeps such a file)."""
BAD_ROWS_SHOWN = 10
"""Unusable rows named on the screen; all of them are in `skipped_rows.jsonl`."""


def run_batch(config: BatchConfig, console: Console) -> int:
    """Run (or go on with) a batch run. Returns the exit status.

    Raises `UsageError`, `DatasetError` and `LedgerError` before anything is created or paid for; `KeyboardInterrupt` when
    the user wanted out at once.
    """
    prepared = _prepare(config, console)
    created = make_folder(config.folder)
    with open_ledger(config.folder, create=True) as ledger:
        ledger.waiting = lambda line: console.print(Text(line), style="yellow", soft_wrap=True)
        try:
            check_same_run(ledger, prepared.info, config)
            check_push(config, ledger)
            ledger.start_session(session_settings(config, prepared), prepared.config_hash, prepared.info)
            if config.retry_poison:
                ledger.forgive_poison()
            plan = plan_run(ledger, config, console, prepared)
        except (UsageError, HubError):
            if created:  # nothing was to be run: take back what was only just made, as long as it is locked
                shutil.rmtree(config.folder)
            raise
        with serving(prepared.model) if plan.to_run else nullcontext(prepared.model) as model:
            return _run(config, console, msgspec.structs.replace(prepared, model=model), ledger, plan)


def session_settings(config: BatchConfig, prepared: Prepared) -> str:
    """What the ledger keeps of this session, as JSON: without keys, and with the context window that was found."""
    body = shown_body(config.model.extra_body)
    fallback = tuple(msgspec.structs.replace(each, api_key="", extra_body=body) for each in config.model.fallback)
    window = prepared.model.context_length
    model = msgspec.structs.replace(config.model, api_key="", extra_body=body, fallback=fallback, context_length=window)
    return msgspec.json.encode(msgspec.structs.replace(config, model=model)).decode()


def _prepare(config: BatchConfig, console: Console) -> Prepared:
    if not config.tool_settings.corpus:
        return prepare(config)
    with counting_bar(console, "indexing the corpus") as indexed:
        return prepare(config, indexed)


def make_folder(folder: Path) -> bool:
    """Whether it is there only now. Raises `UsageError` where it cannot be made."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    except OSError as error:
        raise UsageError(f"cannot make {folder}: {error.strerror}; --output_dir names another place") from error
    return True


def _run(config: BatchConfig, console: Console, prepared: Prepared, ledger: Ledger, plan: Plan) -> int:
    toolsets = prepared.toolsets
    names = tuple(tool.name for tool in toolsets.tools)
    # also those of earlier sessions: rows that used one that has another name by now keep its figures
    before = load_view_settings(ledger)
    of_rows = dict.fromkeys((*(before.tools if before else ()), *names, *adopted_tools(ledger)))
    view_settings = ViewSettings(config.filters_reasoning, tuple(of_rows))
    ledger.set_meta("run", msgspec.json.encode(prepared.info).decode())
    mark_behind(ledger)
    save_view_settings(ledger, view_settings)
    sandbox = leftovers.owned(ledger, prepared.sandbox)
    leftovers.clear(ledger, sandbox, lambda line: console.print(Text(line), soft_wrap=True))
    settings = RolloutSettings(
        model=prepared.model,
        sandbox=sandbox,
        max_turns=config.max_turns,
        on_context_full=config.on_context_full,
        prompt_timeout=config.prompt_timeout,
        ephemeral_system_prompt=config.ephemeral_system_prompt,
        prefill=prepared.prefill,
        tools=with_cache(toolsets.settings, config),
        tool_files=tuple(str(Path(file).resolve()) if Path(file).is_file() else file for file in toolsets.tool_files),
        stand_ins=toolsets.stand_ins,
        run_tools=names,
        pass_seed=config.seed is not None,
        redact=config.redact,
        unavailable=tuple(toolsets.unavailable),
        max_cost=config.max_cost_per_prompt,
        config=prepared.config_hash,
    )
    views = Views(ledger, view_settings)
    _say_what_runs(config, console, prepared, plan)
    end = End()
    if plan.to_run:
        settings = with_images(settings, config, console, prepared, ledger)
        concurrency = min(config.concurrency or default_concurrency(config.model.model), plan.to_run)
        admission = open_admission(
            prepared.model,
            concurrency,
            max_cost=config.max_cost,
            max_total_tokens=config.max_total_tokens,
            spent=Need(*ledger.spent()),
            works=plan.done > 0,
        )
        tally = Tally(total=plan.rollouts, done=plan.done, failed=plan.poison)
        engine = choose_engine(config, toolsets, settings, admission, concurrency)
        with Progress(console, tally, admission.words, verbose=config.verbose) as progress:
            waiting, ledger.waiting = ledger.waiting, progress.log
            checkpoints = checkpoint_pushes(config, plan, prepared, progress.log)
            driver = Driver(
                ledger,
                engine,
                admission,
                views,
                batches=plan.batches,
                tally=tally,
                draw=lambda key: toolsets.draw(prepared.info.seed, key),
                run_seed=prepared.info.seed,
                num_samples=config.num_samples,
                max_attempts=config.max_attempts,
                reasoning_filter=config.filters_reasoning,
                preview_chars=config.log_prefix_chars,
                log=progress.log,
                detail=progress.detail,
                ended=checkpoints.finished if checkpoints else lambda count: None,
            )
            try:
                interrupted = asyncio.run(_drive(driver, progress.log))
                budget_spent = admission.budget.words() if admission.turned_down else ""
                end = End(interrupted, admission.breaker.stopped, budget_spent, settings.sandbox.lost_images)
            finally:
                ledger.waiting = waiting
                if checkpoints:
                    checkpoints.close()
                leftovers.clear_workers(sandbox, progress.log)
    statistics = finish_views(ledger, views, view_settings, console)
    print_report(console, statistics)
    console.print(Text(f"trajectories: {config.folder / 'trajectories.jsonl'}"), soft_wrap=True)
    if config.push_to and not (end.interrupted or end.stopped):
        push_at_the_end(config, console, prepared.model.api_key, ledger)
    status = _conclude(config, console, ledger, statistics, end)
    if status == DONE:  # until then a resume asks nobody twice for the same page
        for ending in ("", "-wal", "-shm"):
            (config.folder / f"{WEB_CACHE}{ending}").unlink(missing_ok=True)
    return status


def check_push(config: BatchConfig, ledger: Ledger) -> None:
    """Have the repository that the run is pushed to. Raises `UsageError` and `HubError` where that would not work at the end."""
    if config.push_to:
        from kiseki.hub.facts import run_id
        from kiseki.hub.push import check_target

        check_target(config.push_to, public=False, run=run_id(ledger), make=True)


def checkpoint_pushes(config: BatchConfig, plan: Plan, prepared: Prepared, log: Callable[[str], None]) -> Checkpoints | None:
    if not config.push_every:
        return None
    ended, key = plan.done + plan.poison, prepared.model.api_key
    return Checkpoints(config.folder, config.push_to, config.push_every, log, finished=ended, api_key=key)


def push_at_the_end(config: BatchConfig, console: Console, api_key: str, ledger: Ledger) -> None:
    """The whole dataset, in the place of checkpoints. What goes wrong is said: the run is what it is."""
    from kiseki.hub.push import print_pushed, push_run

    try:
        print_pushed(console, push_run(config.folder, config.push_to, console, api_key=api_key, ledger=ledger))
    except KisekiError as error:
        words = f"not pushed: {error}; later: kiseki push {config.push_to} --run {config.folder}"
        console.print(Text(printable(words, 2000)), style="yellow", soft_wrap=True)


class End(msgspec.Struct, frozen=True):
    """What ended the rollouts of a session before there were none left."""

    interrupted: bool = False
    stopped: str = ""
    """Why the endpoint is of no use."""
    budget_spent: str = ""
    """How much of which."""
    lost_images: dict[str, str] = {}
    """Images that could not be had → the engine's words."""


def _conclude(config: BatchConfig, console: Console, ledger: Ledger, statistics: Statistics, end: End) -> int:
    """Say what is left and how it goes on. Returns the exit status; raises `RunStopped`."""
    if end.interrupted:
        console.print(Text("interrupted: everything done is saved; the same command with --resume goes on"), style="yellow")
        return INTERRUPTED
    if end.stopped:
        raise RunStopped(f"the run was stopped: {end.stopped}; everything done is saved, --resume goes on when that is put right")
    poison = ledger.count_poison(config.num_samples)
    failed = statistics.outcomes["failed"] - poison
    left = {
        "were left by the budget; a higher one with --resume runs them": statistics.outcomes["pending"],
        "failed; the same command with --resume tries them again": failed,
        "killed their worker twice and are left out from here on; --retry_poison tries them again": poison,
    }
    cut = statistics.stop_reasons.get("budget", 0)
    if end.budget_spent:
        words = f"the budget is spent ({end.budget_spent}); rollouts that it cut short, kept as partial: {cut:,}"
        console.print(Text(words), style="yellow", soft_wrap=True)
    for words, count in left.items():
        if count:
            console.print(Text(f"{count:,} rollouts {words}"), style="yellow", soft_wrap=True)
    if end.lost_images:
        say_lost(console, end.lost_images, with_default(ledger.open_images(config.num_samples), config.sandbox_image))
    return FAILED if any(left.values()) else DONE


async def _drive(driver: Driver, log: Callable[[str], None]) -> bool:
    """Run to the end, or to the user's Ctrl-C, a SIGTERM or the end of the terminal. Returns whether it was interrupted."""
    signals = 0

    def on_signal() -> None:
        nonlocal signals
        signals += 1
        if signals == 1:
            log("stopping: what runs gets a few seconds to finish; Ctrl-C once more stops at once")
            driver.stop()
        else:
            driver.stop_now()

    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    if before[signal.SIGHUP] is signal.SIG_IGN:  # as nohup starts it: a run that is to outlive its terminal
        del before[signal.SIGHUP]
    for number in before:
        loop.add_signal_handler(number, on_signal)
    try:
        await driver.run()
    finally:
        await end_others()
        for number, handler in before.items():  # the loop would leave a signal that ends the process in the middle of the views
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
    if signals > 1:
        raise KeyboardInterrupt
    return signals > 0


def with_images(
    settings: RolloutSettings, config: BatchConfig, console: Console, prepared: Prepared, ledger: Ledger
) -> RolloutSettings:
    """Have the images of all open rollouts there; `settings` with those that cannot be had. Nothing is paid for by then, and an
    interrupt leaves nothing that was not there before but images."""
    sandbox = settings.sandbox
    if sandbox.backend not in HAS_IMAGES or not prepared.toolsets.need_sandbox:
        return settings
    wanted = with_default(ledger.open_images(config.num_samples), sandbox.image)
    lost = have_images(sandbox, wanted, console)
    say_lost(console, lost, wanted)
    return msgspec.structs.replace(settings, sandbox=msgspec.structs.replace(sandbox, lost_images=lost))


def with_cache(settings: ToolSettings, config: BatchConfig) -> ToolSettings:
    """Every worker of the run, now and on resume, shares what was fetched."""
    return msgspec.structs.replace(settings, web_cache=str((config.folder / WEB_CACHE).resolve()))


def plan_run(ledger: Ledger, config: BatchConfig, console: Console, prepared: Prepared) -> Plan:
    """Plan the dataset, adopt another tool's files, name unusable rows."""
    old_files = foreign_files(ledger)
    if old_files:
        begin_anew(ledger)
    (attempts,) = ledger.db.execute("SELECT count(*) FROM attempts").fetchone()
    if attempts and not config.resume:
        raise UsageError(f"{config.folder} already has results; --resume goes on with them")

    def warn(line: str) -> None:
        console.print(Text(line), style="yellow", soft_wrap=True)

    shown: list[BadRow] = []
    with replacing(config.folder / SKIPPED_ROWS) as file, counting_bar(console, "reading the dataset") as planned:

        def bad_row(row: BadRow) -> None:
            file.write(msgspec.json.encode(row) + b"\n")
            if len(shown) < BAD_ROWS_SHOWN:
                shown.append(row)

        prompts = read_prompts(config.dataset_file, config.max_samples)
        rows = refuse_rows(prompts, prepared.sandbox, needs_sandbox=prepared.toolsets.need_sandbox)
        unusable = read_into_ledger(ledger, rows, num_samples=config.num_samples, bad_row=bad_row, planned=planned)
    if unusable:
        for row in shown:
            warn(f"{config.dataset_file} line {row.line}: skipped, {row.reason}")
        more = f"; the first {len(shown)} are above" if unusable > len(shown) else ""
        warn(f"unusable rows skipped: {unusable:,}, listed in {config.folder / SKIPPED_ROWS}{more}")
    else:
        (config.folder / SKIPPED_ROWS).unlink()
    if old_files:
        adopted = adopt(ledger, old_files, config.num_samples, warn)
        finish_adoption(ledger, old_files, adopted.tools)
        console.print(
            f"adopted {adopted.rows} rows of {len(old_files)} batch files ({adopted.damaged} damaged,"
            f" {adopted.unmatched} whose prompt is not in the dataset)"
        )
    else:
        finish_adoption(ledger, {}, set(adopted_tools(ledger)))
    first_batch = max(old_files, default=-1) + 1
    return make_plan(ledger, num_samples=config.num_samples, batch_size=config.batch_size, first_batch=first_batch)


IN_SANDBOX = {"terminal", "file", "todo"}
"""Toolsets of which everything heavy is done in the sandbox: they need no browser, no parser and no one else's code."""


def choose_engine(
    config: BatchConfig, toolsets: Toolsets, settings: RolloutSettings, admission: Admission, concurrency: int
) -> Engine:
    """By itself in this process only where one worker is enough and nothing in it can take the driver along: the built-in model
    with tools that run in the sandbox."""
    foreign = toolsets.tool_files or toolsets.settings.mcp_servers
    harmless = is_builtin(config.model.model) and not foreign and IN_SANDBOX.issuperset(toolsets.available)
    if config.engine == "inprocess" or (config.engine == "auto" and harmless and min(config.num_workers, concurrency) == 1):
        return InProcess(settings, admission, concurrency)
    return Processes(settings, admission, concurrency, config.num_workers)


def _say_what_runs(config: BatchConfig, console: Console, prepared: Prepared, plan: Plan) -> None:
    toolsets = prepared.toolsets
    lines = [
        f"run {config.run_name}: {plan.rollouts:,} rollouts, {plan.to_run:,} to run in {len(plan.batches):,} batches"
        + (f" ({plan.done:,} done before)" if plan.done else ""),
        f"model {config.model.model}, distribution {config.distribution}, sandbox {prepared.sandbox.backend}",
        f"toolsets: {', '.join((*sorted(toolsets.available), *toolsets.always))}",
    ]
    if toolsets.settings.corpus:
        from kiseki.tools.web.corpus_index import describe

        lines.append(f"corpus {toolsets.settings.corpus}: {describe(Path(toolsets.settings.corpus_index))}")
    for line in lines:
        console.print(Text(line), soft_wrap=True)
    for why, names in by_reason(toolsets.unavailable).items():
        console.print(Text(f"without {', '.join(names)}: {why}"), style="yellow", soft_wrap=True)
    if ignored := ignored_flags(config.model):
        console.print(Text(f"{config.model.model} takes no notice of {', '.join(ignored)}"), style="yellow", soft_wrap=True)
    if config.seed is not None and not takes_seed(config.model):
        words = f"--seed is of Kiseki's own draws alone: {config.model.base_url} has no field for one"
        console.print(Text(words), style="yellow", soft_wrap=True)
    if prepared.sandbox.backend == "local":
        console.print(Text(LOCAL_WARNING), style="yellow", soft_wrap=True)
