"""Summaries from a model, against the mock server over real sockets: what is usable, how often it is asked for, and what it says
when there is none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from support import until

from kiseki.compress.config import CompressionConfig, read_config
from kiseki.compress.metrics import Metrics
from kiseki.compress.summarizer import Summarizer, check_summarizer, open_summarizer
from kiseki.compress.summary import Answer, Ask, Spending
from kiseki.compress.turns import SUMMARY_MARK
from kiseki.errors import UsageError
from kiseki.models.budget import Need
from kiseki.models.mock_server import MockServer

T = TypeVar("T")
SECRET = "sk-very-secret-0123456789"
TOO_LONG = "was too long"
"""In a request for a shorter summary."""
GOOD = "[CONTEXT SUMMARY]: The test passes now."
METRICS = Metrics(
    original_tokens=0,
    compressed_tokens=0,
    original_turns=0,
    compressed_turns=0,
    strategy="",
    target_max_tokens=0,
    tokenizer="",
    settings="",
)


def words(text: str) -> int:
    """Tokens of a text here."""
    return len(text.split())


def an_ask(number: int = 0, *, region_tokens: int = 500, room: int = 300) -> Ask:
    return Ask(f"summarise row {number}.", 2, 8, region_tokens, room, METRICS, (0, 0))


def settings(server: MockServer, **more: Any) -> CompressionConfig:
    fields = {"retry_delay": 0.01, "summary_target_tokens": 300, "per_trajectory_timeout": 20.0} | more
    return CompressionConfig(model="mock", base_url=server.base_url, api_key_env="MY_KEY", **fields)


def use(server: MockServer, work: Callable[[Summarizer], Awaitable[T]], budget: dict[str, Any] | None = None, **more: Any) -> T:
    """What `work` gives, with a summariser that is closed after it."""

    async def run() -> T:
        summarizer = open_summarizer(settings(server, **more), {"MY_KEY": SECRET}, words, **budget or {})
        try:
            return await work(summarizer)
        finally:
            await summarizer.close()

    return asyncio.run(run())


def one(server: MockServer, ask: Ask | None = None, budget: dict[str, Any] | None = None, **more: Any) -> Answer:
    return use(server, lambda summarizer: summarizer.ask(ask or an_ask()), budget, **more)


def says(*contents: Any, **fields: Any) -> dict[str, Any]:
    """A rule that answers every request so."""
    return {"turns": [{"content": content, **fields} for content in contents]}


def test_a_summary_is_asked_for_once_and_as_the_settings_say() -> None:
    with MockServer([says(GOOD)], record=5) as server:
        answer = one(server, temperature=0.7)
        asked = server.stats(log=True)["log"]
    assert answer == Answer(GOOD, calls=1)
    body = asked[0]["body"]
    assert len(asked) == 1
    assert body["messages"] == [{"role": "user", "content": "summarise row 0."}]
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("mock", 0.7, 4_600)
    assert asked[0]["headers"]["authorization"].endswith(SECRET[-4:])


@pytest.mark.parametrize("field", ["think", "think_unopened", "reasoning_content", "parts", "scratchpad"])
def test_reasoning_is_no_part_of_the_summary(field: str) -> None:
    with MockServer([says("The test passes now.", reasoning="Let me see.", reasoning_field=field)]) as server:
        assert one(server).text == GOOD


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("empty", "The reply is empty (finish_reason stop)."),
        ("error_500", "HTTP 500"),
        ("reset", "No connection to"),
        ("torn", "cut short"),
        ("not_json", "upstream says"),
        ("html", "502 Bad Gateway"),
        ("content_filter", "content filter"),
    ],
)
def test_what_may_pass_is_asked_again_and_then_given_up(kind: str, said: str) -> None:
    with MockServer([says(GOOD, fault={"kind": kind, "times": 2})]) as server:
        assert one(server) == Answer(GOOD, calls=3, errors=2)
        assert server.stats()["calls"] == 3
    with MockServer([says(GOOD, fault={"kind": kind})]) as server:
        answer = one(server, max_retries=2)
        assert server.stats()["calls"] == 3
    assert (answer.text, answer.calls, answer.errors) == ("", 3, 3)
    assert answer.error.startswith("no summary after 3 requests: ")
    assert answer.error.endswith("(3 times)")
    assert said in answer.error
    assert "\n" not in answer.error


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (says("", tool_calls=[{"name": "terminal", "arguments": {"command": "ls"}}]), "the reply is a tool call"),
        (says("", reasoning="I only think."), "the reply is empty"),
        (says("[CONTEXT SUMMARY]:"), "the reply is empty"),
        (says("w " * 550), "no shorter than the turns"),
        (says("word " * 5_000), "did not fit into 4,600 tokens"),
    ],
)
def test_a_reply_that_is_no_summary_is_none(rule: dict[str, Any], said: str) -> None:
    with MockServer([rule]) as server:
        answer = one(server, max_retries=1)
    assert (answer.text, answer.calls, answer.errors) == ("", 2, 2)
    assert said in answer.error


@pytest.mark.parametrize("first", [says("w " * 550), says("word " * 5_000), says(GOOD, fault={"kind": "length"})])
def test_a_summary_that_is_cut_or_longer_than_its_turns_is_asked_for_shorter(first: dict[str, Any]) -> None:
    with MockServer([{"match": TOO_LONG, **says(GOOD)}, first]) as server:
        assert one(server) == Answer(GOOD, calls=2, errors=1)


@pytest.mark.parametrize(
    ("second", "room", "retries", "taken", "calls"),
    [
        ("w " * 90, 100, 3, 90, 2),  # it helped
        ("w " * 150, 100, 3, 150, 2),  # it helped too little, and is taken as it is
        ("w " * 450, 100, 3, 200, 2),  # it made it worse
        ("w " * 550, 100, 3, 200, 2),  # it gave nothing
        ("w " * 90, 100, 0, 200, 1),  # no further request may be made
        ("w " * 90, 5, 3, 200, 1),  # no summary is so short: the row is over the target in any case
        ("w " * 90, 300, 3, 200, 1),  # it fits
    ],
)
def test_a_summary_that_is_too_long_for_the_row_is_asked_for_once_more(
    second: str, room: int, retries: int, taken: int, calls: int
) -> None:
    with MockServer([{"match": TOO_LONG, **says(second)}, says("w " * 200)]) as server:
        answer = one(server, an_ask(room=room), max_retries=retries)
        assert server.stats()["calls"] == calls
    assert answer.text == f"{SUMMARY_MARK} " + " ".join(["w"] * taken)
    assert (answer.error, answer.calls) == ("", calls)


def test_no_more_requests_are_made_than_retries_allow_whatever_goes_wrong() -> None:
    """A failure, then a reply that is longer than the row has room for, then another that does not help."""
    rules = [{"match": TOO_LONG, **says("w " * 200)}, says("w " * 200, fault={"kind": "error_500", "times": 1})]
    with MockServer(rules) as server:
        answer = one(server, an_ask(room=100), max_retries=2)
        assert server.stats()["calls"] == answer.calls == 3
    assert (words(answer.text), answer.errors) == (202, 1)


def test_a_row_that_fails_again_and_again_does_not_speak_for_an_outage() -> None:
    """As many different rows would have all others wait while one at a time tries."""
    changes: list[str] = []
    with MockServer([says(GOOD, fault={"kind": "error_500"})]) as server:
        answer = one(
            server,
            budget={"on_change": changes.append, "provider_patience": 5.0},
            max_retries=6,
            retry_delay=0.0,
            max_concurrent_requests=1,
        )
        assert server.stats()["calls"] == answer.errors == 7
    assert not [words for words in changes if "one at a time" in words]


def test_an_endpoint_that_does_not_answer_is_asked_again_until_the_row_s_time_is_over() -> None:
    with MockServer([says(GOOD, fault={"kind": "stall", "times": 1})]) as server:
        assert one(server, per_trajectory_timeout=1.0) == Answer(GOOD, calls=2, errors=1)
    with MockServer([says(GOOD, fault={"kind": "stall"})]) as server:
        answer = one(server, per_trajectory_timeout=0.2, max_retries=9)
        assert 2 <= server.stats()["calls"] == answer.calls == answer.errors <= 3
    assert answer.text == ""
    assert "within 0.1 s" in answer.error
    assert "0.2 s that a trajectory may take" in answer.error


def test_a_row_s_time_stands_still_while_it_waits_to_be_let_in() -> None:
    """All together take longer than each may."""
    rows = 15
    with MockServer([says(GOOD)], latency=0.05) as server:
        answers = use(
            server,
            lambda summarizer: asyncio.gather(*(summarizer.ask(an_ask(number)) for number in range(rows))),
            max_concurrent_requests=1,
            per_trajectory_timeout=0.6,
        )
        assert server.stats()["peak_in_flight"] == 1
    assert answers == [Answer(GOOD, calls=1)] * rows


def test_no_more_requests_are_made_at_once_than_allowed() -> None:
    with MockServer([says(GOOD)], latency=0.02) as server:
        answers = use(
            server,
            lambda summarizer: asyncio.gather(*(summarizer.ask(an_ask(number)) for number in range(30))),
            max_concurrent_requests=5,
        )
        assert server.stats()["peak_in_flight"] == 5
    assert all(answer.text == GOOD for answer in answers)


def test_being_turned_away_is_waited_out_and_is_no_failure() -> None:
    """Most requests get a 429 at first, and not one row is lost for it, though none may be tried again."""
    with MockServer([says(GOOD)], latency=0.02, max_in_flight=2, retry_after=0.05) as server:
        answers = use(
            server,
            lambda summarizer: asyncio.gather(*(summarizer.ask(an_ask(number)) for number in range(12))),
            max_retries=0,
        )
        assert server.stats()["by_status"].get("429", 0) > 0
    assert answers == [Answer(GOOD, calls=1)] * 12


def test_being_turned_away_for_longer_than_there_is_patience_ends_it() -> None:
    with MockServer([says(GOOD)], faults={"rate_limit": 1.0}, retry_after=0.02) as server:
        answer = one(server, budget={"provider_patience": 0.1})
    assert (answer.text, answer.calls, answer.errors) == ("", 1, 1)
    assert "HTTP 429" in answer.error


def test_an_endpoint_that_refuses_the_request_is_not_asked_again() -> None:
    with MockServer([says(GOOD, fault={"kind": "context_length"})]) as server:
        answer = one(server)
        assert server.stats()["calls"] == 1
    assert answer.error.startswith("no summary after 1 request: HTTP 400: This model's maximum context length")


def test_a_bad_key_stops_all_and_is_shown_nowhere() -> None:
    changes: list[str] = []

    async def work(summarizer: Summarizer) -> tuple[list[Answer], Spending]:
        answers = [await summarizer.ask(an_ask(number)) for number in range(3)]
        return answers, summarizer.spending

    with MockServer([says(GOOD, fault={"kind": "auth"})]) as server:
        answers, spending = use(server, work, {"on_change": changes.append})
        assert server.stats()["calls"] == 1
    assert "HTTP 401" in "".join(changes)
    assert [(answer.text, answer.calls, answer.errors) for answer in answers] == [("", 1, 1), ("", 0, 0), ("", 0, 0)]
    assert all("HTTP 401: Incorrect API key provided: Bearer ***" in each for each in (*changes, *(a.error for a in answers[:1])))
    assert SECRET not in repr((answers, changes))
    assert spending == Spending(calls=1, errors=1)


def test_a_spent_budget_is_said_and_no_further_request_made() -> None:
    async def work(summarizer: Summarizer) -> tuple[list[Answer], Spending, Need]:
        answers = [await summarizer.ask(an_ask(number)) for number in range(14)]
        return answers, summarizer.spending, summarizer.spent

    usage = {"prompt_tokens": 400, "completion_tokens": 100, "cost": 0.25}
    with MockServer([says(GOOD, usage=usage)], list_prices=True) as server:
        answers, spending, spent = use(server, work, {"max_total_tokens": 7_000, "spent": Need(0.5, 1_000)})
        assert server.stats()["calls"] == 3, "1,000 before, and the fourth may take more than is left"
        assert [answer.calls for answer in answers] == [1, 1, 1, *[0] * 11]
        assert answers[-1].error.startswith("no summary was asked for: the next call does not fit into the budget: 2,500 of")
        assert spending == Spending(3, 0, 1_200, 300, 0.75)
        assert spent == Need(1.25, 2_500)
        answers, *_ = use(server, work, {"max_cost": 0.55})
        assert [answer.calls for answer in answers] == [1, 1, 1, *[0] * 11], "by what the endpoint said, and not by its list"


def test_a_budget_in_dollars_needs_a_price(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text("mock: {input: 1, output: 1}\n")
    with MockServer([says(GOOD)], report_cost=False) as server:
        with pytest.raises(UsageError, match=r"--max_cost: the price of mock is not known"):
            one(server, budget={"max_cost": 1.0})
        assert one(server, budget={"max_cost": 1.0, "prices": str(file)}).text == GOOD
        assert "does not fit into the budget" in one(server, budget={"max_cost": 1e-6, "prices": str(file)}).error


def test_a_row_that_is_cancelled_leaves_its_place() -> None:
    async def work(summarizer: Summarizer) -> Answer:
        first = asyncio.create_task(summarizer.ask(an_ask(1)))
        await until(lambda: server.stats()["in_flight"] == 1)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        return await summarizer.ask(an_ask(2))

    with MockServer([{"match": "row 1", **says(GOOD, fault={"kind": "stall"})}, says(GOOD)]) as server:
        assert use(server, work, max_concurrent_requests=1) == Answer(GOOD, calls=1)


@pytest.mark.parametrize(
    ("fields", "environ", "said"),
    [
        (
            {},
            {},
            "no API key for openrouter.ai: set OPENROUTER_API_KEY, or name its variable with api_key_env. --strategy=ladder",
        ),
        ({"base_url": "https://api.mistral.ai/v1"}, {"OPENROUTER_API_KEY": SECRET}, "set MISTRAL_API_KEY"),
        ({"api_key_env": "MY_KEY"}, {"OPENROUTER_API_KEY": SECRET}, "the environment variable MY_KEY is not set"),
        ({"api_key_env": "MY_KEY"}, {"MY_KEY": "  "}, "the environment variable MY_KEY is not set"),
        ({"api_key_env": SECRET}, {}, "it must be the name of an environment variable"),
        ({"api_key_env": "MY_KEY"}, {"MY_KEY": f"{SECRET}\nx"}, "The API key has characters"),
        ({"model": "builtin/practice"}, {}, "writes no summaries (summarization.model); --strategy=ladder needs no model"),
        ({"base_url": "openrouter.ai"}, {}, "is not an http:// or https:// URL"),
    ],
)
def test_settings_that_cannot_work_are_refused(fields: dict[str, Any], environ: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        open_summarizer(CompressionConfig(**fields), environ, words)
    assert said in str(refused.value)
    assert SECRET not in str(refused.value)


def test_no_temperature_is_sent_where_the_settings_say_null(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    for text, expected in (("null", None), ("0", 0.0), ("1", 1.0)):
        file.write_text(f"summarization: {{temperature: {text}}}\n")
        assert read_config(file).temperature == expected
    with MockServer([says(GOOD)], record=5) as server:
        one(server)
        one(server, temperature=None)
        first, second = (each["body"] for each in server.stats(log=True)["log"])
    assert first["temperature"] == 0.3 and "temperature" not in second
    file.write_text("summarization: {temperature: warm}\n")
    with pytest.raises(UsageError, match=r"summarization\.temperature: 'warm' is not a number or null"):
        read_config(file)
    file.write_text("summarization: {max_retries: null}\n")
    with pytest.raises(UsageError, match=r"summarization\.max_retries: None is not a whole number"):
        read_config(file)


@pytest.mark.parametrize(
    ("model", "base_url"),
    [
        ("claude-opus-4-8", "https://api.anthropic.com"),
        ("gpt-5.6", "https://api.openai.com/v1"),
        ("o4-mini", "https://api.openai.com/v1"),
    ],
)
def test_a_model_without_sampling_settings_can_sum_up(model: str, base_url: str) -> None:
    """The default is no wish of the user's; any other temperature is."""
    config = CompressionConfig(model=model, base_url=base_url, api_key_env="MY_KEY")
    check_summarizer(config, {"MY_KEY": SECRET})
    with pytest.raises(UsageError) as refused:
        check_summarizer(msgspec.structs.replace(config, temperature=0.7), {"MY_KEY": SECRET})
    said = str(refused.value)
    assert said.startswith(f"summarization.temperature: {model} takes no sampling settings") and "--temperature" not in said
    assert said.endswith("With null, none is sent.")


def test_a_server_of_one_s_own_needs_no_key() -> None:
    async def work() -> Answer:
        summarizer = open_summarizer(CompressionConfig(model="mock", base_url=server.base_url), {}, words)
        try:
            return await summarizer.ask(an_ask())
        finally:
            await summarizer.close()

    with MockServer([says(GOOD)], record=1) as server:
        assert asyncio.run(work()).text == GOOD
        assert "authorization" not in server.stats(log=True)["log"][0]["headers"]


def test_the_built_in_language_model_needs_neither_key_nor_endpoint() -> None:
    """Whatever so small a model says: here everything that is shorter than the turns is a summary."""
    config = CompressionConfig(model="builtin/smollm2", summary_target_tokens=30, max_retries=0)

    async def work() -> Answer:
        summarizer = open_summarizer(config, {}, words)
        try:
            return await summarizer.ask(an_ask(region_tokens=10_000, room=10_000))
        finally:
            await summarizer.close()

    answer = asyncio.run(work())
    assert answer.calls == 1
    assert answer.text or "did not fit into 60 tokens" in answer.error
