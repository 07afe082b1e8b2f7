""" "Complete this Python function": solution.py with an honest attempt, its examples run, and a truthful count of passes."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Generator

import msgspec

from kiseki.models.practice.bodies import CANDIDATES, attempt, slip
from kiseki.models.practice.flows import todo_call
from kiseki.models.practice.view import Call, Flow, Kit, Result, Turn, brief, stop

_SIGNATURE = re.compile(r"^def (\w{1,80})\(([^\n]{0,400}?)\)\s*(?:->\s*([^\n:]{1,100}))?\s*:[ \t]*$", re.MULTILINE)
_ASKS = re.compile(r"\b(?:complete|implement|finish|fill in|write the body)\b|完成|実装", re.IGNORECASE)
_EXAMPLE = re.compile(
    r"^[ \t*]*(?:>>> )?(\w+\(.{0,300}\))\s*(?:==>|=>|->|➞|==|=|#=>|returns|should return)\s*(\S.{0,300})$", re.MULTILINE
)
_DOCTEST = re.compile(r"^[ \t]*>>> (\w+\(.{0,300}\))[ \t]*\n[ \t]*(\S.{0,300})$", re.MULTILINE)
_MOST_EXAMPLES = 12


class Request(msgspec.Struct, frozen=True):
    """One function to be completed."""

    code: str
    """Everything up to the end of the docstring: imports, helpers, signature."""
    name: str
    parameters: tuple[str, ...]
    returns: str
    """The annotation as written, "" without one."""
    doc: str
    doctests: int
    """`>>>` examples in the docstring."""
    examples: tuple[tuple[str, str], ...]
    """Examples of whatever form: (call, expected), both plain literals."""


def read_request(prompt: str) -> Request | None:
    """The function that a prompt asks for, None when it does not ask for one."""
    if "def " not in prompt or not _ASKS.search(prompt[:2000]):
        return None
    signatures = list(_SIGNATURE.finditer(prompt))
    if not signatures:
        return None
    signature = signatures[-1]
    name, parameters, returns = signature[1], _parameters(signature[2]), (signature[3] or "").strip()
    after = prompt[signature.end() :]
    doc, end = "", 0
    if opened := re.match(r"\s*(?:[rR])?(\"\"\"|''')", after):
        closed = after.find(opened[1], opened.end())
        if closed > 0:
            doc, end = after[opened.end() : closed], closed + 3
    head = re.search(r"^(?:from \w|import \w|def |[A-Z_]+ = |class |@)", prompt, re.MULTILINE)
    start = min(head.start() if head else 0, signature.start())
    code = prompt[start : signature.end()] + after[:end]
    code = code.replace("\x00", "")
    body = f"{code}\n    pass\n"
    try:
        ast.parse(body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        code = f"{prompt[signature.start() : signature.end()]}"  # keep to the signature where the rest does not parse
        try:
            ast.parse(f"{code}\n    pass\n")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        return Request(code, name, parameters, returns, doc, 0, ())
    # ">>> f(1) == 2" with nothing below is no doctest, though it looks like one
    doctests = sum(not _EXAMPLE.match(line) for line in re.findall(r"^[ \t]*>>> .*", doc, re.MULTILINE))
    return Request(code, name, parameters, returns, doc, doctests, _examples(doc, name))


def _parameters(text: str) -> tuple[str, ...]:
    depth, parts, part = 0, [], ""
    for char in text:
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += char
    names = [re.match(r"\s*(\w+)", each) for each in [*parts, part]]
    return tuple(match[1] for match in names if match)


def _examples(doc: str, name: str) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    for match in _EXAMPLE.finditer(doc[:6000]):
        call, expected = match[1], re.sub(r"\s+#.*$", "", match[2]).strip().rstrip(".,;")
        expected = {"true": "True", "false": "False", "none": "None", "null": "None"}.get(expected.lower(), expected)
        if _plain(call, expected, name):
            found.append((call, expected))
    for call, expected in _DOCTEST.findall(doc[:6000]):
        if _plain(call.strip(), expected.strip(), name):
            found.append((call.strip(), expected.strip()))
    return tuple(found[:_MOST_EXAMPLES])


def _plain(call: str, expected: str, name: str) -> bool:
    """Whether an example can be written into a program: a call of the function with literals, and a literal."""
    try:
        ast.literal_eval(expected)
        ast.literal_eval(f"[{call[len(name) + 1 : -1]}]")
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return False
    return call.startswith(f"{name}(") and call.endswith(")")


def complete_function(request: Request, kit: Kit, draw: random.Random, japanese: bool) -> Flow:
    """Write solution.py, run its examples, mend it, answer with the count."""
    body, thought, known = attempt(request.name, request.parameters, request.returns, request.doc)
    right = _solution(request, body)
    wrong = slip(body, draw) if known and draw.random() < 0.85 else None
    first = _solution(request, wrong[0]) if wrong else right
    if not kit.shell:
        yield from _unrun(request, right, kit, thought, japanese)
        return

    planned = known and "todo" in kit.known and draw.random() < 0.5
    plan = (f"write {request.name} in solution.py", "run its examples", "fix what fails")
    looks = kit.look(draw) if draw.random() < 0.5 else (kit.run("ls -la && python3 --version"),)
    opening = f"I am to complete `{request.name}`. First: where am I, and is there a Python?"
    yield Turn(opening, (todo_call(plan, 0), *looks) if planned else looks)

    files = [kit.write("solution.py", first)]
    if request.examples and not request.doctests:
        files.append(kit.write("check.py", _checker(request)))
    extra = " The docstring has examples in plain text, so a check.py goes beside it." if len(files) > 1 else ""
    written = yield Turn(f"{thought}{extra}", tuple(files))
    if bad := next((each for each in written if each.failed), None):
        yield _answer(f"I could not write the solution: {bad.complaint}", "Without a file there is nothing to run.", japanese)
        return
    command = (
        "python3 check.py" if len(files) > 1 else "python3 -m doctest -v solution.py | tail -n 30" if request.doctests else ""
    )
    command = command or f"python3 -c {_quoted(f'import solution; print(callable(solution.{request.name}))')}"
    (ran,) = yield Turn(
        "I run the examples." if len(files) > 1 or request.doctests else "No examples, so I see at least that it loads.",
        (kit.run(command),),
    )
    if ran.exit_code == 127 or "python3: command not found" in ran.output or "python3: not found" in ran.output:
        yield _answer(
            f"solution.py is written, but there is no Python in this sandbox to run it ({ran.complaint}), so it is unchecked.",
            "Nothing here can run it. I say so.", japanese)  # fmt: skip
        return
    history = ""
    passed, tried = _score(ran, request)
    if wrong and not (tried and passed == tried and not ran.failed):
        thought = f"{_failure(ran)} {wrong[1]}"
        (fixed,) = yield Turn(
            thought,
            (kit.fix("solution.py", wrong[0], body, right) if first.count(wrong[0]) == 1 else kit.write("solution.py", right),),
        )
        if fixed.failed:
            (fixed,) = yield Turn(
                f"The edit failed ({fixed.complaint}); I write the file whole.", (kit.write("solution.py", right),)
            )
        (ran,) = yield Turn("Now the examples again.", (kit.run(command),))
        history = " The first version had a slip that the run showed; it is mended."
        passed, tried = _score(ran, request)
    elif passed < tried and not known and len(request.examples) > 1 and len(request.parameters) in CANDIDATES:
        found = yield from _try_bodies(request, kit, ran)
        if found:
            body = f"    return {found}\n"
            thought = f"`return {found}` fits every example. I put it in."
            (fixed,) = yield Turn(thought, (kit.write("solution.py", _solution(request, body)),))
            (ran,) = yield Turn("Now the real check.", (kit.run(command),))
            history = " I found this body by trying common one-liners on the examples, so it may be wrong beyond them."
            passed, tried = _score(ran, request)
        else:
            history = " I also tried a list of common one-liners on the examples; none fits them all."
    if planned:
        yield Turn("That is the plan done; I tick it off.", (todo_call(plan, len(plan)),))
    text = _verdict(request, passed, tried, ran)
    closing = "All examples pass." if tried and passed == tried else "I report exactly what the run showed."
    shown = f"\n\n```python\n{body.rstrip()}\n```" if tried and passed == tried else ""
    yield _answer(f"{text}{history}{shown}", closing, japanese)


def _solution(request: Request, body: str) -> str:
    return f"{request.code.rstrip()}\n{body}"


def _quoted(text: str) -> str:
    return f"'{text}'"


def _checker(request: Request) -> str:
    lines = [f"    ({call!r}, {expected}),\n" for call, expected in request.examples]
    return (
        f"# The examples in the docstring of {request.name}\nimport solution\n\nexamples = [\n{''.join(lines)}]\npassed = 0\n"
        "for call, expected in examples:\n    got = eval(call, vars(solution))\n    if got == expected:\n        passed += 1\n"
        '    else:\n        print(f"{call} gave {got!r}, expected {expected!r}")\n'
        'print(f"{passed} of {len(examples)} examples passed")\n'
    )


def _try_bodies(request: Request, kit: Kit, ran: Result) -> Generator[Turn, list[Result], str]:
    """Try common one-liners on the examples, in the sandbox; the first that fits all, or ""."""
    candidates = [each.format(*request.parameters) for each in CANDIDATES[len(request.parameters)]]
    examples = "".join(f"    ({call!r}, {expected}),\n" for call, expected in request.examples)
    bodies = "".join(f"    {each!r},\n" for each in candidates)
    source = (
        f"# Which common one-liner fits the examples of {request.name}?\nexamples = [\n{examples}]\nbodies = [\n{bodies}]\n"
        f"for body in bodies:\n    function = eval('lambda {', '.join(request.parameters)}: ' + body)\n    try:\n"
        f"        fits = all(eval(call, {{{request.name!r}: function}}) == expected for call, expected in examples)\n"
        "    except Exception:\n        fits = False\n    if fits:\n        print('fits:', body)\n        break\n"
        "else:\n    print('none fits')\n"
    )
    thought = f"{_failure(ran)} I have no better idea, but common one-liners can be tried on the examples."
    (written,) = yield Turn(thought, (kit.write("try_bodies.py", source),))
    if written.failed:
        return ""
    (tried,) = yield Turn("Let me see whether one fits.", (kit.run("python3 try_bodies.py"),))
    found = re.search(r"^fits: (.+)$", tried.output, re.MULTILINE)
    return found[1] if found and found[1] in candidates else ""


def _score(ran: Result, request: Request) -> tuple[int, int]:
    """(examples passed, examples run), as the run said; (0, 0) where it said nothing."""
    tail = ran.output[-3000:]
    if found := re.findall(r"(\d+) of (\d+) examples passed", tail):
        return int(found[-1][0][:9]), int(found[-1][1][:9])
    passed = re.findall(r"^(\d+) passed(?: and (\d+) failed)?", tail, re.MULTILINE)
    if passed:
        return int(passed[-1][0][:9]), int(passed[-1][0][:9]) + int((passed[-1][1] or "0")[:9])
    return 0, 0


def _failure(ran: Result) -> str:
    lines = [line.strip() for line in ran.output[-4000:].splitlines() if line.strip()]
    for line in reversed(lines):
        if re.match(r"\w*(?:Error|Exception)\b", line):
            return f"The run says: {stop(brief(line, 160))}"
    for line in lines:
        if " gave " in line and "expected" in line:
            return f"The run says: {stop(brief(line, 160))}"
    if "Expected:" in lines:
        at = lines.index("Expected:")
        return f"An example differs: {stop(brief(' '.join(lines[at : at + 4]), 160))}"
    return f"The run says: {stop(ran.complaint)}"


def _verdict(request: Request, passed: int, tried: int, ran: Result) -> str:
    name = f"`{request.name}`"
    if tried and passed == tried:
        return f"{name} is complete in solution.py: {passed} of {tried} examples pass."
    if tried:
        return (
            f"solution.py has an attempt at {name} that is not right: {passed} of {tried} examples pass. "
            f"{_failure(ran)} The practice model knows only a few common patterns, and this is none of them."
        )
    if not ran.failed and "True" in ran.output:
        return (
            f"solution.py has an attempt at {name}. It loads, but there were no examples that could be run, so it is unchecked."
        )
    return f"solution.py has an attempt at {name}, but running it failed: {_failure(ran)}"


def _unrun(request: Request, right: str, kit: Kit, thought: str, japanese: bool) -> Flow:
    """No terminal: write or run what can be, and say what is unchecked."""
    if "execute_code" in kit.known:
        code = right + _inline_check(request)
        (ran,) = yield Turn(thought, (Call("execute_code", {"code": code}),))
        passed, tried = _score(ran, request)
        yield _answer(
            _verdict(request, passed, tried, ran).replace("solution.py", "the program"), "That is what it printed.", japanese
        )
        return
    if kit.can_write:
        (written,) = yield Turn(f"{thought} I can write it but run nothing.", (kit.write("solution.py", right),))
        if not written.failed:
            back = (
                yield Turn("I read it back.", (kit.read("solution.py"),))
                if kit.can_read
                else Turn("I look.", kit.look(random.Random(0)))
            )
            whole = bool(back) and not back[0].failed
            note = "and read it back" if whole else "but could not read it back"
            yield _answer(
                f"I wrote solution.py {note}. No tool could run it, so its examples are unchecked.",
                "Unrun is unchecked.",
                japanese,
            )
            return
        yield _answer(f"Writing solution.py failed: {written.complaint}", "It could not be written.", japanese)
        return
    code = right[-3000:]
    yield _answer(
        f"This is my attempt; with the tools given I could not run it, so it is unchecked:\n\n```python\n{code}\n```",
        thought,
        japanese,
    )


def _inline_check(request: Request) -> str:
    if request.doctests:
        return "\n\nimport doctest\nr = doctest.testmod()\nprint(f'{r.attempted - r.failed} of {r.attempted} examples passed')\n"
    tests = "".join(f"    {call} == {expected},\n" for call, expected in request.examples)
    return (
        f"\n\nresults = [\n{tests}]\nprint(f'{{sum(results)}} of {{len(results)}} examples passed')\n"
        if tests
        else "\nprint(True)\n"
    )


def _answer(text: str, thought: str, japanese: bool) -> Turn:
    return Turn(thought, text=f"関数の実装について報告します。\n\n{text}" if japanese else text)
