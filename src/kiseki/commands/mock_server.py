"""`kiseki mock-server`: a fault-injecting model server on loopback, for tries without a key and for load tests."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kiseki.commands.flags import Parser
from kiseki.errors import UsageError
from kiseki.models.mock_script import FAULT_KINDS, IDS_AS, REASONING_FIELDS, MockConfig, load_script

DEFAULT_PORT = 8099


EPILOG = f"""\
example: kiseki mock-server --port=8099 --fault rate_limit=0.1 --fault torn=0.05
         kiseki mock-server --requests_per_minute=600 --fail_after=100 --fail_kind=no_credit --price=3,15
then:    kiseki batch … --base_url=http://127.0.0.1:8099/v1 --model=any [--api_mode=anthropic or responses]

A script is JSON or YAML; the first rule that matches the last user text wins:
  [{{"match": "weather", "turns": [{{"tool_calls": [{{"name": "terminal", "arguments": {{"command": "date"}}}}]}},
                                  {{"content": "{{{{last_tool_result}}}}", "fault": {{"kind": "error_503", "times": 1}}}}]}}]
It also draws (/v1/images/generations, modalities ["image"], /fal/MODEL) and says what kind and size the images it is shown are.
Kinds of fault: {", ".join(FAULT_KINDS)}."""


def build_parser() -> Parser:
    words = "A model server on loopback that injects faults: OpenAI's chat and Responses APIs, and Anthropic's Messages."
    parser = Parser("kiseki mock-server", words, EPILOG)

    def add(name: str, **options: Any) -> None:
        parser.add_argument(f"--{name}", **options)

    add("port", type=int, default=DEFAULT_PORT, help=f"port on 127.0.0.1, 0 for a free one (default {DEFAULT_PORT})")
    add("script", type=Path, metavar="FILE", help="scripted conversations (default: tool turns, then an answer)")
    add("turns", type=int, default=1, metavar="N", help="tool turns of the default script before its answer (default 1)")
    add("tool", default="terminal", help="tool that the default script calls; if not offered, the first one (default terminal)")
    fields = ", ".join(REASONING_FIELDS)
    add("reasoning_field", default="reasoning_content", metavar="FIELD", help=f"where reasoning stands in a reply: {fields}")
    add("latency", type=float, default=0.0, metavar="SECONDS", help="from request to answer (default 0)")
    add("jitter", type=float, default=0.0, metavar="SECONDS", help="at most added to the latency (default 0)")
    add("fault", action="append", default=[], metavar="KIND=RATE", help="probability of a kind of fault; may be repeated")
    add("rate_limit_every", type=int, default=0, metavar="K", help="every K-th request gets a 429 (default: none)")
    add("max_in_flight", type=int, default=0, metavar="N", help="more requests than N at once get a 429 (default: no limit)")
    add("retry_after", type=float, default=1.0, metavar="SECONDS", help="told with a 429 (default 1); a bucket tells its own")
    add("requests_per_minute", type=float, default=0.0, metavar="N", help="a token bucket, as hosted APIs have (default: none)")
    add("tokens_per_minute", type=float, default=0.0, metavar="N", help="the same for tokens (default: none)")
    add("burst", type=float, default=60.0, metavar="SECONDS", help="refill that these buckets hold (default 60)")
    add("fail_after", type=int, default=0, metavar="N", help="from the N-th request on, every one fails (default: none does)")
    add("fail_kind", default="error_503", metavar="KIND", help="the fault that they get (default error_503)")
    add("fail_for", type=int, default=0, metavar="N", help="requests until that ends (default: it does not)")
    add("price", type=_price, default=(1.0, 1.0), metavar="IN,OUT", help="US dollars per million tokens (default 1,1)")
    boolean: dict[str, Any] = {"type": _truth, "nargs": "?", "const": True, "metavar": "BOOL"}
    add("report_cost", default=True, help="replies carry their cost, as OpenRouter's do (default true)", **boolean)
    add("list_prices", default=False, help="GET /v1/models lists the price, as OpenRouter's does (default false)", **boolean)
    words = f"where token ids stand in replies to return_token_ids: {', '.join(IDS_AS)} (default vllm)"
    add("ids_as", default="vllm", metavar="SERVER", help=words)
    words = "prompts without the reasoning of earlier turns, so that none begins with the ids of the one before (default false)"
    add("strip_reasoning", default=False, help=words, **boolean)
    words = "tokenizer for POST /generate, which takes ids of ChatML and gives ids and logprobs (default: no such endpoint)"
    add("tokenizer", default="", metavar="FOLDER", help=words)
    add("seed", type=int, default=0, help="of faults and jitter (default 0)")
    add("record", type=int, default=0, metavar="N", help="keep the last N requests for GET /stats?log=1 (default 0)")
    return parser


def main(argv: Sequence[str]) -> int:
    """Serve until interrupted. Raises UsageError for what cannot be used."""
    options = vars(build_parser().parse(argv))
    port, script, rates = options.pop("port"), options.pop("script"), options.pop("fault")
    try:
        config = MockConfig(script=load_script(script) if script else (), faults=dict(map(_rate, rates)), **options)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if config.tokenizer:
        from kiseki.models.mock_completions import open_tokenizer

        open_tokenizer(config.tokenizer)  # now, not at the first request
    from kiseki.models.mock_server import serve

    def started(actual: int) -> None:
        print(f"Serving http://127.0.0.1:{actual}/v1 (statistics at /stats); Ctrl-C ends it.", flush=True)  # noqa: T201

    try:
        asyncio.run(serve(config, port, started))
    except OSError as error:
        raise UsageError(f"--port {port}: {error.strerror or error}") from None
    except KeyboardInterrupt:
        pass
    return 0


def _price(text: str) -> tuple[float, float]:
    try:
        prompt, completion = map(float, text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no IN,OUT such as 3,15") from None
    return prompt, completion


def _truth(text: str) -> bool:
    if text not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text == "true"


def _rate(text: str) -> tuple[str, float]:
    kind, _, rate = text.partition("=")
    try:
        return kind, float(rate)
    except ValueError:
        raise UsageError(f"--fault {text!r} is no KIND=RATE such as rate_limit=0.1") from None
