"""How a rollout goes when a script solves the task: look, write, run, see the mistake, fix, run again, check, answer.

A flow is at most eight turns long, the answer included. It says what it saw: an answer never claims a run, a fix or a check
that did not happen.
"""

from __future__ import annotations

import random
import re

from kiseki.models.practice.task import Mistake, Task
from kiseki.models.practice.view import Call, Flow, Kit, Result, Turn, brief, shell_write, stop

FIRST_TIME_RIGHT = 0.15
"""Share of rollouts in which the first version has no mistake, so that a dataset does not teach that one always fails."""


_OPENINGS = (
    "The request is to {}. A short script will do; first I look at the folder I am in.",
    "I am asked to {}. I could guess, but a script that I can run is safer. What is in this folder?",
    "Task: {}. I will let Python do it, so that the answer comes from a run. A look around before I write anything.",
)
_WRITING = (
    "I write {}: the script prints the result and nothing else.",
    "Now {}, short enough to read at a glance.",
    "I put the work into {}, one step per line.",
)
_RUNNING = ("Now I run {}.", "Let me see what {} prints.", "Written; running {} shows whether it works.")
_AGAIN = ("With that changed, I run it again.", "Fixed, I think; another run will tell.", "The same run again, after the fix.")


def solve(task: Task, kit: Kit, draw: random.Random, japanese: bool) -> Flow:
    """Do the task with whatever the kit has."""
    possible = task.mistakes()
    mistake = draw.choice(possible) if possible and draw.random() >= FIRST_TIME_RIGHT else None
    if kit.shell:
        yield from _with_shell(task, kit, draw, mistake, japanese)
    elif "execute_code" in kit.known:
        yield from _with_code_tool(task, draw, mistake, japanese)
    elif kit.can_write:
        yield from _with_files(task, kit, draw, japanese)
    elif "todo" in kit.known:
        yield from _with_todo(task, draw, japanese)
    else:
        tools = "I was given no tool that could run anything" if kit.others else "I was given no tools"
        yield _by_head(task, japanese, f"The request is to {task.understood}. {tools}, so I work it out by hand.", tools)


def todo_call(items: tuple[str, ...], done: int, merge: bool = False) -> Call:
    """The list with its first `done` items completed and the next one in progress."""
    states = ["completed" if at < done else "in_progress" if at == done else "pending" for at in range(len(items))]
    todos = [{"id": str(at + 1), "content": text, "status": states[at]} for at, text in enumerate(items)]
    return Call("todo", {"todos": todos, "merge": merge} if merge else {"todos": todos})


def _with_shell(task: Task, kit: Kit, draw: random.Random, mistake: Mistake | None, japanese: bool) -> Flow:
    plan = (f"write {task.script}", "run it and fix what fails", "check the result")
    planned = "todo" in kit.known and draw.random() < 0.6
    failure = ""

    looks = kit.look(draw)
    opening = draw.choice(_OPENINGS).format(task.understood)
    seen = yield Turn(opening, (todo_call(plan, 0), *looks) if planned else looks, _aside(draw, "Let me look around first."))
    if planned:
        seen = seen[1:]

    first = mistake.spoil(task.source) if mistake else task.source
    files = (*task.inputs, (task.script, first))
    writes = tuple(kit.write(path, content) for path, content in files)
    state = f"{brief(seen[0].error)}. That need not matter" if seen and seen[0].error else _state(seen)
    written = yield Turn(f"{state}. {draw.choice(_WRITING).format(_list([path for path, _ in files]))}", writes)
    if any(each.failed for each in written):
        bad = next(each for each in written if each.failed)
        again = tuple(kit.run(_into_tmp(path, content)) for path, content in files)
        written = yield Turn(f"Writing failed: {stop(bad.complaint)} I try the folder for temporary files instead.", again)
        if any(each.failed for each in written):
            yield _gave_up(task, f"I could not write the script: {bad.complaint}", japanese)
            return

    python = "python3"
    (ran,) = yield Turn(
        draw.choice(_RUNNING).format(task.script), (kit.run(f"{python} {task.script}"),), _aside(draw, "Running it.")
    )
    if _no_python(ran):
        python = "python"
        (ran,) = yield Turn(
            f"There is no python3 here ({ran.complaint}); perhaps `python`.", (kit.run(f"{python} {task.script}"),)
        )
        if _no_python(ran):
            yield from _without_python(task, kit, ran, japanese)
            return

    problem = _problem(task, ran)
    if problem:
        thought, fix = _repair(task, kit, mistake, ran, problem, draw)
        failure = problem
        (fixed,) = yield Turn(thought, (fix,), _aside(draw, "I see the mistake."))
        if fixed.failed:
            rewrite = kit.write(task.script, task.source)
            (fixed,) = yield Turn(f"The edit was refused: {stop(fixed.complaint)} I write the whole file again.", (rewrite,))
        (ran,) = yield Turn(draw.choice(_AGAIN), (kit.run(f"{python} {task.script}"),))
        problem = _problem(task, ran)
        if problem:
            yield _gave_up(task, f"after a fix, {task.script} still does not do what it should: {problem}", japanese)
            return
    output = ran.output.strip()
    yield from _check_and_answer(task, kit, output, failure, plan if planned else (), japanese)


def _check_and_answer(task: Task, kit: Kit, output: str, failure: str, plan: tuple[str, ...], japanese: bool) -> Flow:
    check = ""
    if task.check:
        calls = (kit.run(task.check), todo_call(plan, len(plan))) if plan else (kit.run(task.check),)
        why = task.check_why or "I check it in a second way."
        checked, *_ = yield Turn(f"It printed {brief(output, 80)!r}. {why}", calls)
        if checked.failed:
            check = f"could not be made ({checked.complaint})"
        elif task.agrees(checked.output.strip(), output):
            check = "agrees"
        else:
            check = f"does NOT agree: it gives `{brief(checked.output, 80)}`, so treat the result with care"
        closing = "The check agrees, so I can answer." if check == "agrees" else "The check does not settle it; I say so."
    else:
        if plan:
            yield Turn(f"It printed {brief(output, 80)!r}. I tick the plan off.", (todo_call(plan, len(plan)),))
        closing = f"It ran and printed {brief(output, 80)!r}, which is what was asked for."
    yield Turn(closing, text=answer_text(task, output, _how(task.script, failure, check, japanese), japanese))


def _with_code_tool(task: Task, draw: random.Random, mistake: Mistake | None, japanese: bool) -> Flow:
    """`execute_code` alone: the program goes in the call; input files are written by the program itself."""
    head = "".join(f"with open({path!r}, 'w', encoding='utf-8') as f:\n    f.write({text!r})\n" for path, text in task.inputs)
    first = head + (mistake.spoil(task.source) if mistake else task.source)
    (ran,) = yield Turn(f"The request is to {task.understood}. I run a short program.", (Call("execute_code", {"code": first}),))
    failure = problem = _problem(task, ran)
    if problem:
        thought = f"It failed: {stop(problem)} {mistake.why if mistake else 'I try the program once more.'}"
        (ran,) = yield Turn(thought, (Call("execute_code", {"code": head + task.source}),))
        problem = _problem(task, ran)
        if problem:
            yield _gave_up(task, f"the program still fails: {problem}", japanese)
            return
    output = ran.output.strip()
    thought = f"The program printed {brief(output, 80)!r}; that answers it."
    yield Turn(thought, text=answer_text(task, output, _how("a program", failure, "", japanese), japanese))


def _with_files(task: Task, kit: Kit, draw: random.Random, japanese: bool) -> Flow:
    """File tools and nothing that runs: the script is written and read back; the result is worked out by hand."""
    looks = kit.look(draw)
    if looks:
        yield Turn(f"The request is to {task.understood}. I can use files but run nothing; I look at what is there.", looks)
    writes = tuple(kit.write(path, content) for path, content in (*task.inputs, (task.script, task.source)))
    written = yield Turn(f"I write {task.script}, so that it can be run later, and work the result out by hand.", writes)
    if bad := next((each for each in written if each.failed), None):
        yield _by_head(task, japanese, f"Writing failed: {bad.complaint}", f"I could not write {task.script} ({bad.complaint})")
        return
    note = f"I wrote {task.script} but had no tool to run it"
    if kit.can_read:
        (back,) = yield Turn("I read the script back to be sure that it is whole.", (kit.read(task.script),))
        last = task.source.strip().splitlines()[-1].strip()
        whole = not back.failed and last in back.output
        note += (
            ", only to read it back" if whole else f"; reading it back failed ({back.complaint if back.failed else 'not whole'})"
        )
    yield _by_head(task, japanese, f"{note}, so the result is mine, by hand.", note)


def _with_todo(task: Task, draw: random.Random, japanese: bool) -> Flow:
    plan = ("understand the request", "work it out by hand", "say how sure I am")
    thought = f"The request is to {task.understood}. All I have is a todo list, so I plan and work by hand."
    (noted,) = yield Turn(thought, (todo_call(plan, 1),))
    note = "I had only a todo list, nothing that runs"
    if not noted.failed:
        (noted,) = yield Turn("I have worked it out; I tick that off.", (todo_call(plan, len(plan), merge=True),))
    if noted.failed:
        note += f", and the list itself failed ({noted.complaint})"
    yield _by_head(task, japanese, f"{note}. I answer from what I worked out.", note)


def _without_python(task: Task, kit: Kit, ran: Result, japanese: bool) -> Flow:
    """No Python in the sandbox: the shell alone where it can, else say so."""
    if not task.without_python:
        yield _gave_up(task, f"there is no Python in this sandbox ({ran.complaint})", japanese)
        return
    (ran,) = yield Turn("No Python at all. The shell itself can do this one.", (kit.run(task.without_python),))
    if ran.failed or not ran.output.strip():
        yield _gave_up(task, f"there is no Python here, and the shell command failed too ({ran.complaint})", japanese)
        return
    how = "There is no Python in this sandbox, so I used a shell command instead."
    yield Turn("The shell gave the result.", text=answer_text(task, ran.output.strip(), how, japanese))


def _problem(task: Task, ran: Result) -> str:
    """What is wrong with a run; "" when nothing is."""
    if ran.failed:
        return ran.complaint
    # plain-text tools give no exit status
    if "Traceback (most recent call last)" in ran.output or re.search(r"^\w*Error: ", ran.output[-500:], re.MULTILINE):
        return ran.complaint
    if not ran.output.strip():
        return "it printed nothing"
    return task.suspicious(ran.output.strip())


def _repair(task: Task, kit: Kit, mistake: Mistake | None, ran: Result, problem: str, draw: random.Random) -> tuple[str, Call]:
    """What the policy thinks on seeing the failure, and the call that mends it."""
    if mistake and (mistake.error in ran.output if mistake.error else not ran.failed):
        line = re.findall(rf"{re.escape(task.script)}\", line (\d+)", ran.output[-4000:])
        where = f"Line {line[-1]}: " if line else ""
        thought = f"{where}{stop(problem)} {mistake.why}" if mistake.error else f"It ran, but {stop(problem)} {mistake.why}"
        if draw.random() < 0.75:
            return thought, kit.fix(task.script, mistake.bad, mistake.good, task.source)
        return thought + " I write the file again.", kit.write(task.script, task.source)
    return f"{stop(problem)} That is not what I expected; I write the script again from the start.", kit.write(
        task.script, task.source
    )


def _no_python(ran: Result) -> bool:
    return ran.exit_code == 127 or bool(re.search(r"python3?: (?:command )?not found", ran.output[-500:]))


def _state(seen: list[Result]) -> str:
    """What looking around told, in half a sentence."""
    names: list[str] = []
    for each in seen:
        for line in each.output[:4000].splitlines():
            words = line.split()
            if line.startswith(("-", "d")) and len(words) > 7:
                names.append(words[-1])  # of `ls -l`
            elif line and not line.startswith(("/", "{", "total ")):
                names.append(line.strip())
        files = each.data.get("files")
        names += [str(name) for name in files[:4]] if isinstance(files, list) else []
    shown = [brief(name, 40) for name in names if name not in (".", "..")]
    return f"The folder holds {_list(shown[:3])}{' and more' * (len(shown) > 3)}" if shown else "The folder is empty"


def _list(names: list[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def _into_tmp(path: str, content: str) -> str:
    return f'cd "${{TMPDIR:-/tmp}}" && {shell_write(path.rsplit("/", 1)[-1], content)}'


def _aside(draw: random.Random, text: str) -> str:
    """Models say something beside their calls now and then, and often nothing."""
    return text if draw.random() < 0.4 else ""


def _how(script: str, failure: str, check: str, japanese: bool) -> str:
    """How the result was got: what ran, what went wrong at first, what a check said."""
    if japanese:
        parts = [f"{script} を実行して得た結果です。"]
        parts += [f"最初の版には誤りがあり（{failure}）、修正しました。"] if failure else []
        parts += ["別の方法で確かめ、一致しました。" if check == "agrees" else f"確認の結果: {check}"] if check else []
        return "".join(parts)
    parts = [f"I ran {script} to get this"]
    parts += [f"its first version went wrong ({failure})"] if failure else []
    parts += [f"a check of the result {check}"] if check else []
    return "; ".join(parts) + "."


def answer_text(task: Task, output: str, how: str, japanese: bool) -> str:
    """The final text: the result, how it was got, and what the prompt wants last."""
    shown = output if len(output) <= 4000 else output[:4000] + "\n…"
    first, second, *_ = [*shown.split(), "", ""]
    said = task.answer_ja if japanese else task.answer
    parts = [said.replace("{first}", first).replace("{second}", second).replace("{out}", shown), how]
    if task.caveat:
        parts.append(task.caveat)
    if task.last_line:
        parts.append(task.last_line.replace("{out}", (output.splitlines() or [""])[-1].strip()))
    return "\n\n".join(part for part in parts if part)


def _by_head(task: Task, japanese: bool, thought: str, note: str) -> Turn:
    if not task.in_head:
        return _gave_up(task, f"{note}, and this is nothing that I can work out without running something", japanese, thought)
    how = f"{note}, so this was worked out by hand and not checked by a run."
    return Turn(thought, text=answer_text(task, task.in_head, how, japanese))


def _gave_up(task: Task, why: str, japanese: bool, thought: str = "") -> Turn:
    said = f"I could not {task.understood}: {stop(why)}"
    if japanese:
        said = f"申し訳ありませんが、最後までできませんでした。\n\n{said}"
    return Turn(thought or f"This did not work: {stop(why)} I say so instead of guessing.", text=said)
