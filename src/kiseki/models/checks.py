"""What each check of an endpoint asks, and what the answer means (`checking.py` runs them).

The questions are such that a right answer shows that the thing was really done: the codes that the tool gives can't be guessed,
and the name in the JSON schema is not in the prompt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from kiseki.errors import ProviderError
from kiseki.models.base import ChatReply, ChatRequest, ToolSchema
from kiseki.models.factory import takes_seed
from kiseki.models.prices import Price
from kiseki.trajectory.types import Message, ModelCall, ToolCall

if TYPE_CHECKING:
    from kiseki.models.checking import Asker

State = Literal["yes", "partly", "no", "untried"]

MAX_TURNS = 4
"""Of the tool loop: a small model may call the tool again before it answers."""
EXCERPT = 60
"""Characters of a reply that are shown."""
CODES = {"blue": "7421", "red": "3906"}
LOOK_UP = ToolSchema(
    "look_up_code",
    "Look up the code of a colour.",
    msgspec.Raw(
        b'{"type":"object","properties":{"colour":{"type":"string","description":"Name of the colour."}},"required":["colour"]}'
    ),
)
TOOLS = (LOOK_UP,)
COUNTED = "legs_counted"
SCHEMA = msgspec.Raw(
    b'{"type":"object","properties":{"legs_counted":{"type":"integer"}},"required":["legs_counted"],"additionalProperties":false}'
)
RIDDLE = "A farmer has 17 sheep, and all but 9 run away. How many sheep are left? Think about it, then answer with a number."
REPEATED = "".join(f"Line {number}: the ferry leaves at {number % 24}:00 from pier {number % 7}.\n" for number in range(1, 86))
"""About 1,300 tokens, or 1,800 where each digit is one: most caches begin at 1,024 (OpenAI's and Anthropic's guides to prompt
caching)."""
FOR_CLAUDE = 4
"""Times that: the caches of Claude Opus and Haiku begin at 4,096 from 4.5 on."""


class Answer(msgspec.Struct, frozen=True):
    """What a check found."""

    state: State
    words: str
    detail: str = ""
    """For those who go on with it."""
    error: Exception | None = None


def _asks(text: str, **fields: Any) -> ChatRequest:
    return ChatRequest((Message("user", text),), **fields)


async def plain(ask: Asker) -> Answer:
    """Text in, text out, with none of the flags that an endpoint could refuse."""
    reply = await ask(_asks("Reply with the single word: ready"), stream=False, reasoning_effort="", temperature=None, top_p=None)
    return _as_text(reply, ask)


async def streaming(ask: Asker) -> Answer:
    return _as_text(await ask(_asks("Reply with the single word: ready"), stream=True, reasoning_effort=""), ask)


def _as_text(reply: ChatReply, ask: Asker) -> Answer:
    if reply.message.content.strip():
        return Answer("yes", f"“{_excerpt(reply.message.content)}”")
    if reply.call.finish_reason == "length":
        return Answer("partly", f"no answer within {ask.settings.max_tokens} tokens, all went into reasoning; set --max_tokens")
    return Answer("partly", f"an empty reply ({reply.call.finish_reason or 'no finish reason'})")


async def tools(ask: Asker) -> Answer:
    """A whole loop: a call, its result, an answer."""
    messages = [Message("user", "Look up the code of the colour blue with the tool, then tell me the code.")]
    called = ""
    for _ in range(MAX_TURNS):
        try:
            reply = await ask(ChatRequest(tuple(messages), TOOLS))
        except ProviderError as error:
            if called:
                return Answer("no", f"it calls the tool, but the result is refused: {error}", error=error)
            raise
        said = reply.message
        if not said.tool_calls:
            if not called:
                return Answer("no", f"it answers without the tool: {_shown(reply)}")
            if CODES["blue"] in said.content:
                return Answer("yes", f"{called}; the answer has the tool's result", called)
            return Answer("partly", f"{called}; the answer has not the tool's result: {_shown(reply)}", called)
        if not called:
            if wrong := _wrong(said.tool_calls):
                return Answer("no", wrong)
            called = _way(reply)
        messages += _with_results(said, len(messages))
    return Answer("partly", f"{called}; it calls the tool again and again, {MAX_TURNS} times, and never answers", called)


def _way(reply: ChatReply) -> str:
    """How the calls of a reply were written."""
    as_ = reply.call.tool_calls_as
    if not as_:
        return "by the API's own tool calls"
    return "as JSON" if as_ == "json" else f"in the text of the reply, as {as_}"


def _wrong(calls: tuple[ToolCall, ...]) -> str:
    """What is wrong with the first of them; "" where nothing is."""
    call = calls[0]
    arguments = _object_in(call.arguments)
    if arguments is None:
        return f"the arguments of its call are no JSON object: {_excerpt(call.arguments)}"
    if call.name != LOOK_UP.name:
        return f"it calls {_excerpt(call.name)!r}, which is no tool that it was given"
    if not isinstance(arguments.get("colour"), str):
        return f"its call has not the arguments that the schema asks for: {_excerpt(call.arguments)}"
    return ""


def _with_results(said: Message, turn: int) -> list[Message]:
    calls = tuple(
        call if call.id else msgspec.structs.replace(call, id=f"call_{turn}_{number}")
        for number, call in enumerate(said.tool_calls)
    )
    results = [Message("tool", _result(call), tool_call_id=call.id, name=call.name) for call in calls]
    return [msgspec.structs.replace(said, tool_calls=calls), *results]


def _result(call: ToolCall) -> str:
    arguments = _object_in(call.arguments)
    if arguments is None:
        return "error: the arguments are no JSON object"
    colour = str(arguments.get("colour", ""))
    return CODES.get(colour.strip().lower(), f"error: there is no code of {_excerpt(colour)!r}, only of {', '.join(CODES)}")


async def parallel_tools(ask: Asker) -> Answer:
    words = "Look up the codes of the colours blue and red with the tool. Make both calls at once, in one reply."
    reply = await ask(_asks(words, tools=TOOLS))
    number = len(reply.message.tool_calls)
    if number > 1:
        return Answer("yes", f"{number} calls in one reply")
    if number == 1:
        return Answer("no", "one call in a reply: rollouts work, with more turns")
    return Answer("no", f"no call at all: {_shown(reply)}")


async def reasoning(ask: Asker) -> Answer:
    """With the effort that the user asks for."""
    settings = ask.settings
    if settings.reasoning_disabled:
        return Answer("untried", "--reasoning_disabled is given")
    reply = await ask(_asks(RIDDLE))
    tokens, effort = reply.call.usage.reasoning_tokens, settings.reasoning_effort
    asked = f" with --reasoning_effort={effort}" if effort else ""
    counted = f"{tokens:,} tokens{asked}" if tokens else f"not counted in tokens{asked}"
    if reply.message.reasoning:
        return Answer("yes", f"its text is given, {counted}")
    if tokens:
        return Answer("partly", f"{counted}, but nothing of its text is given")
    return Answer("no", f"there is none{asked}")


async def no_reasoning(ask: Asker) -> Answer:
    reply = await ask(_asks(RIDDLE), reasoning_disabled=True)
    tokens = reply.call.usage.reasoning_tokens
    if tokens or reply.message.reasoning:
        return Answer("no", f"it reasons with --reasoning_disabled, too{f': {tokens:,} tokens' if tokens else ''}")
    return Answer("yes", "--reasoning_disabled switches it off")


async def json_mode(ask: Asker) -> Answer:
    """JSON of a schema that the prompt says nothing of."""
    reply = await ask(_asks("How many legs has a cat? Answer in JSON.", json_schema=SCHEMA))
    said = _object_in(reply.message.content)
    if said is None:
        return Answer("no", f"no JSON object: {_shown(reply)}")
    if list(said) == [COUNTED]:
        return Answer("yes", "output is held to a schema")
    return Answer("partly", f"JSON, but not of the schema: {_shown(reply)}")


async def seed(ask: Asker) -> Answer:
    text = "Name a bird, a fish and a tree."
    if not takes_seed(ask.settings):
        return Answer("untried", "this API has no seed: none is sent")
    first = await ask(_asks(text, seed=7))
    again = await ask(_asks(text, seed=7))
    same = first.message.content == again.message.content
    return Answer("yes", f"taken; {'the same' if same else 'another'} answer the second time")


async def token_ids(ask: Asker) -> Answer:
    reply = await ask(_asks("Reply with the single word: ready"), capture_tokens=True)
    tokens = reply.call.tokens
    if tokens is None:
        return Answer("no", "the answer has none: --capture_tokens would keep nothing")
    if not tokens.whole:
        return Answer("partly", "of the reply only: without those of the prompt they make no sequence to train on")
    return Answer("yes", f"of prompt and reply, {'with' if tokens.logprobs else 'without'} logprobs")


async def prompt_cache(ask: Asker) -> Answer:
    """A longer system prompt twice, with tools, as rollouts ask: without any, Anthropic's dialect does not set all its marks."""
    question = Message("user", "Which pier has line 50? Answer with a number, without the tool.")
    text = REPEATED * (FOR_CLAUDE if "claude" in ask.settings.model.lower() else 1)
    request = ChatRequest((Message("system", text), question), TOOLS)
    await ask(request)
    usage = (await ask(request)).call.usage
    if usage.cached_tokens:
        return Answer("yes", f"{usage.cached_tokens:,} of {usage.prompt_tokens:,} tokens of a repeated prompt came from it")
    return Answer("no", f"none of {usage.prompt_tokens:,} tokens of a repeated prompt is said to come from it")


def usage_and_cost(call: ModelCall | None, price: Price | None) -> Answer:
    """Of an answered call. `price`: as the endpoint lists it, None where it lists none."""
    if call is None:
        return Answer("untried", "no call was answered")
    if not call.usage_reported:
        return Answer("no", "replies do not say how many tokens they took: budgets count each call at its worst")
    if call.cost_reported:
        return Answer("yes", "replies say both")
    if price == Price():
        return Answer("yes", "replies say tokens, and they cost nothing")
    if price is not None:
        return Answer(
            "yes", f"replies say tokens; the endpoint lists ${price.input * 1e6:g} in, ${price.output * 1e6:g} out per million"
        )
    return Answer("partly", "replies say tokens only, and no price is listed: --max_cost needs --prices")


def context_length(given: int | None, listed: int | None) -> Answer:
    """`given`: by the user; `listed`: by the endpoint."""
    if listed:
        but = f", and --context_length={given} is used" if given not in (None, listed) else ""
        return Answer("yes", f"listed: {listed:,} tokens{but}")
    if given:
        return Answer("yes", f"{given:,} tokens, as the settings say")
    return Answer("no", "not listed: a full context is seen only when the endpoint refuses; --context_length=N says it")


def _object_in(text: str) -> dict[str, Any] | None:
    """The JSON object that a model wrote; None where it is none, or one too deep."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return None


def _shown(reply: ChatReply) -> str:
    """A reply in a few words."""
    if reply.message.content.strip():
        return f"“{_excerpt(reply.message.content)}”"
    if reply.call.finish_reason == "length":
        return "nothing within the limit of --max_tokens"
    return "an empty reply"


def _excerpt(text: str) -> str:
    from kiseki.trajectory.text import printable

    return printable(" ".join(text[: 10 * EXCERPT].split()), EXCERPT)
