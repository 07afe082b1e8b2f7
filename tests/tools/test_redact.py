"""What is taken for a secret and what is not, and that a result stays what it was around it."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import re
import string
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiseki.errors import ToolError
from kiseki.tools.redact import Secrets, redact, secrets_of
from kiseki.tools.registry import make_tool
from kiseki.tools.results import MAX_RESULT_BYTES
from kiseki.tools.toolbox import Toolbox
from kiseki.trajectory.types import ToolCall, ToolRun

LETTERS = string.ascii_letters
ALPHANUMERIC = LETTERS + string.digits
WORD = ALPHANUMERIC + "_-"
BASE64 = ALPHANUMERIC + "+/"
HEX = "0123456789abcdef"
NONE = Secrets()
OWN = "[redacted: secret of this run]"


def made(size: int, alphabet: str = ALPHANUMERIC) -> str:
    """Key material, put together here so that no scanner takes this file for a leak."""
    return "".join(random.Random(f"{size}{alphabet}").choices(alphabet, k=size))


def pem(kind: str, lines: int = 5) -> str:
    body = "\n".join(made(64, BASE64) for _ in range(lines))
    return f"-----BEGIN {kind}PRIVATE KEY-----\n{body}\n{made(22, BASE64)}==\n-----END {kind}PRIVATE KEY-----"


KEYS = {
    "OpenAI old": ("OpenAI key", "sk-" + made(20) + "T3Blbk" + "FJ" + made(20)),
    "OpenAI project": ("OpenAI key", "sk-" + "proj-" + made(124, WORD) + "7A"),
    "OpenAI service": ("OpenAI key", "sk-" + "svcacct-" + made(90, WORD) + "7A"),
    "other sk-": ("API key", "sk-" + made(32, HEX)),
    "OpenRouter": ("OpenRouter key", "sk-" + "or-v1-" + made(64, HEX)),
    "Anthropic": ("Anthropic key", "sk-" + "ant-api03-" + made(93, WORD) + "AA"),
    **{f"GitHub {kind}": ("GitHub token", f"gh{kind}_" + made(36)) for kind in "pousr"},
    "GitHub fine-grained": ("GitHub token", "github_" + "pat_" + made(22) + "_" + made(59)),
    "GitLab": ("GitLab token", "glpat-" + made(20, WORD)),
    "Hugging Face": ("Hugging Face token", "hf_" + made(34, LETTERS)),
    "AWS id": ("AWS access key id", "AKIA" + made(16, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")),
    "AWS session id": ("AWS access key id", "ASIA" + made(16, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")),
    "Google": ("Google API key", "AIza" + made(35, WORD)),
    "Slack": ("Slack token", "xoxb-" + "123456789012-1234567890123-" + made(24)),
    "Stripe": ("Stripe key", "sk_" + "live_" + made(24)),
    "Stripe restricted": ("Stripe key", "rk_" + "live_" + made(24)),
    "npm": ("npm token", "npm_" + made(36)),
    "PyPI": ("PyPI token", "pypi-" + "AgEIcHlwaS5vcmc" + made(150, WORD)),
    "SendGrid": ("SendGrid key", "SG." + made(22, WORD) + "." + made(43, WORD)),
    "JWT": ("JSON web token", "eyJ" + made(33, WORD) + ".eyJ" + made(80, WORD) + "." + made(43, WORD)),
    "PEM": ("private key", pem("")),
    "PEM of RSA": ("private key", pem("RSA ", 26)),
    "PEM of OpenSSH": ("private key", pem("OPENSSH ")),
    "PEM with headers": (
        "private key",
        pem("EC ").replace("KEY-----\n", f"KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,{made(32, HEX)}\n\n", 1),
    ),
}
PLACES: dict[str, Callable[[str], str]] = {
    "alone": lambda key: key,
    "in prose": lambda key: f"The key is {key}, keep it.",
    "in a shell": lambda key: f"$ env\nHOME=/root\nMY_KEY={key}\nTERM=dumb",
    "quoted": lambda key: f"client = Client(key='{key}')",
    "in colour": lambda key: f"\x1b[31m{key}\x1b[0m",
    "in JSON": lambda key: json.dumps({"output": f"one\n{key}\ntwo", "exit_code": 0}),
    "in JSON of letters beyond ASCII": lambda key: json.dumps({"出力": f"鍵\n{key}\n\ud83d"}),
    "in JSON in JSON": lambda key: json.dumps({"output": json.dumps([{"key": f"a\n{key}"}], indent=1)}),
    "in a repr": lambda key: repr({"text": f"a\n{key}\n"}),
    "twice": lambda key: f"{key}\n{key}",
}


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", KEYS)
def test_keys_are_known_by_their_shape(name: str, place: str) -> None:
    kind, key = KEYS[name]
    text = PLACES[place](key)
    cleaned, count = redact(text, NONE)
    assert count == (2 if place == "twice" else 1)
    shown = json.dumps(f"[redacted: {kind}]")[1:-1]
    assert cleaned == PLACES[place](f"[redacted: {kind}]")
    assert shown in cleaned
    assert is_json(cleaned) == is_json(text)
    assert redact(cleaned, NONE) == (cleaned, 0)


SECRET_KEY = made(39, BASE64) + "/"
TOKEN = made(12) + "." + made(20) + "1"


@pytest.mark.parametrize(
    ("before", "secret", "after"),
    [
        ("aws_secret_access_key = ", SECRET_KEY, "\nregion = x"),
        ("export AWS_SECRET_ACCESS_KEY='", SECRET_KEY, "'"),
        ('{"SecretAccessKey": "', SECRET_KEY, '", "Token": ""}'),
        ('{"output":"{\\n  \\"SecretAccessKey\\": \\"', SECRET_KEY, '\\"\\n}"}'),
        ("curl -H 'Authorization: Bearer ", TOKEN, "' http://x"),
        ('{"headers": {"Authorization": "Bearer ', TOKEN, '"}}'),
        ("authorization: Basic ", "dXNlcjpwYXNzd29yZDE=", "\nhost: x"),
        ('{"Authorization": "Basic ', "dXNlcjpwYXNzd29yZDE=", '"}'),
        ("postgres://admin:", "s3cr3t", "@db:5432/x"),
        ("redis://:", "s3cr3t", "@cache"),
        ("git clone https://me:", "p@ss", "@host/x.git"),
        ('{"url":"https://me:', "p-ss%20w", '@host/x.git"}'),
    ],
)
def test_secrets_are_known_by_what_stands_before_them(before: str, secret: str, after: str) -> None:
    cleaned, count = redact(before + secret + after, NONE)
    assert count == 1
    assert cleaned.startswith(f"{before}[redacted: ") and cleaned.endswith(f"]{after}")
    assert secret not in cleaned
    assert redact(cleaned, NONE) == (cleaned, 0)


@pytest.mark.parametrize(
    "text",
    [
        "from sklearn import svm  # pip install sk-learn, sk-learn-contrib-extensions-for-everybody-2024",
        "task-management-system-for-large-organisations-2024 and disk-usage-analyser-1234567890",
        'class="sk-container-id-1 sk-text-repr-fallback sk-estimator-doc-link"',
        "sk-your-api-key-here, sk-ant-your-api-key-goes-here-please-do-not-share, sk-proj-xxxxxxxx",
        "load_dataset('hf_dataset'); hf_transfer hf_hub_download hf_internal_testing_tiny_random_model_for_everything",
        f"commit {made(40, HEX)}\nsha256:{made(64, HEX)}\n{made(32, HEX)}.json",
        f"data:image/png;base64,{base64.b64encode(random.Random(1).randbytes(60_000)).decode()}",
        base64.encodebytes(random.Random(2).randbytes(60_000)).decode(),
        base64.urlsafe_b64encode(random.Random(3).randbytes(60_000)).decode(),
        "ghp_short ghost_writer github_pat_ glpat- npm_config_registry npm_package_dependencies_typescript_version_1",
        "AKIA and ASIA are prefixes; ASIANPACIFICREGIONALOFFICES",
        "xoxb-your-slack-bot-token-goes-here AIzaSy… SG.x.y pypi-server pypi-simple-package-index-mirror",
        "eyJhbGciOiJIUzI1NiJ9 is a header alone; numpy.core.multiarray_umath.something_long_here",
        "Authorization: Bearer <token>; -H 'Authorization: Bearer $TOKEN'; Authorization: Bearer YOUR_ACCESS_TOKEN_HERE",
        'f"Bearer {token}" bearer of bad news 1234567890; Authorization: Basic authentication',
        "http://localhost:8000/@scope/pkg https://user@host/x git@github.com:org/repo.git mailto:a@b.c",
        "postgres://{user}:{password}@{host}/db http://%s:%s@host redis://:$PASS@h http://u:<password>@h http://u:***@h",
        "https://registry/@types/node:18@latest see http://a.b and write to c@d.e",
        "if '-----BEGIN RSA PRIVATE KEY-----' in text and '-----END RSA PRIVATE KEY-----' in text:",
        f"-----BEGIN CERTIFICATE-----\n{made(64, BASE64)}\n-----END CERTIFICATE-----",
        f"-----BEGIN PUBLIC KEY-----\n{made(64, BASE64)}\n-----END PUBLIC KEY-----",
        "aws_secret_access_key = YOUR_SECRET_KEY; aws_secret_access_key: str | None = None; secretAccessKey",
        "a very long line [...] with_something_that_is_cut [...] and more",
        "123e4567-e89b-12d3-a456-426614174000 kubernetes-dashboard-7b544877d5-x2x9v",
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert redact(text, NONE) == (text, 0)
    in_json = json.dumps({"output": text})
    assert redact(in_json, NONE) == (in_json, 0)


# ---- the run's own secrets -----------------------------------------------------------------------------------------------

PLAIN = "wx4T" + made(28)
ODD = 'n"x\\é /+9 pass\tword'


def own(value: str, name: str = "WEATHER_API_TOKEN") -> Secrets:
    return secrets_of("", {"HOME": "/root", name: value})


@pytest.mark.parametrize("secret", [PLAIN, ODD, "hunter2!", "a" * 500 + "1", json.dumps({"key": "a\nb", "n": 1})])
@pytest.mark.parametrize(
    "written",
    [
        lambda value: value,
        lambda value: quote(value, safe=""),
        lambda value: quote_plus(value),
        lambda value: re.sub("%..", lambda code: code[0].lower(), quote(value)),
        lambda value: base64.b64encode(value.encode()).decode(),
        lambda value: base64.urlsafe_b64encode(value.encode()).decode(),
    ],
)
@pytest.mark.parametrize("place", PLACES)
def test_values_of_the_run_are_known_however_they_are_written(secret: str, written: Callable[[str], str], place: str) -> None:
    text = PLACES[place](written(secret))
    cleaned, count = redact(text, own(secret))
    assert count == (2 if place == "twice" else 1), cleaned
    # of base64 that ends in padding, it may stay; JSON gets a string
    assert cleaned.replace("]==", "]").replace("]=", "]").strip('"') == PLACES[place](OWN)
    assert redact(cleaned, own(secret)) == (cleaned, 0)


@pytest.mark.parametrize("levels", range(5))
def test_a_value_with_quotes_is_known_in_json_inside_of_json(levels: int) -> None:
    secret = 'pa"ss\\wörd-9x8y7z'
    text = f"> {secret} <"
    for _ in range(levels):
        text = json.dumps({"arguments": text}, ensure_ascii=False)
    cleaned, count = redact(text, own(secret))
    assert count == 1
    assert "9x8y7z" not in cleaned


@pytest.mark.parametrize("secret", [PLAIN, PLAIN[1:], PLAIN[2:]])
@pytest.mark.parametrize("user", ["", "a", "ab", "abc"])
@pytest.mark.parametrize("more", ["", "\n", "x\n", "some more"])
def test_a_value_inside_of_longer_base64_is_known(secret: str, user: str, more: str) -> None:
    code = base64.b64encode(f"{user}{secret}{more}".encode()).decode()
    cleaned, count = redact(f"> {code}", own(secret))
    assert count == 1
    left = cleaned.replace(OWN, "").removeprefix("> ")
    assert len(left) <= 4 + 4 + len(base64.b64encode((user + more).encode())), "but for the characters that hold neighbours too"


def test_the_models_key_is_one_of_them() -> None:
    assert redact(f"x {PLAIN}", secrets_of(PLAIN, {})) == (f"x {OWN}", 1)


@pytest.mark.parametrize(
    "name",
    [
        "OPENAI_API_KEY",
        "x_token",
        "GITHUB_TOKEN_2",
        "AWS_SECRET_ACCESS_KEY",
        "PGPASSWORD",
        "DB_PASS",
        "SECRET_KEY_BASE",
        "MY_CREDENTIALS",
    ],
)
def test_names_of_variables_say_what_is_secret(name: str) -> None:
    assert redact(PLAIN, own(PLAIN, name)) == (OWN, 1)


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "PATH", "MAX_TOKENS", "COMPAT", "BYPASS", "KEYBOARD", "HOSTNAME"])
def test_other_variables_are_no_secrets(name: str) -> None:
    assert redact(PLAIN, own(PLAIN, name)) == (PLAIN, 0)


@pytest.mark.parametrize(
    "value",
    [
        *("short7c", "/run/secrets/token.json", "~/keys/my.pem", "./certs/key-1.pem", "1234567890", "2024-01-01", "true", ""),
        *("disabled", "REQUIRED", "not-needed", "your-api-key-here", "secret of this run"),
    ],
)
def test_trivial_values_are_no_secrets(value: str) -> None:
    text = f"the value {value} stands here, [redacted: secret of this run]"
    assert redact(text, own(value)) == (text, 0)


def test_a_password_of_words_and_a_key_that_begins_like_a_path_are_secrets() -> None:
    for name, value in (
        ("DB_PASSWORD", "correct horse battery"),
        ("DB_PASSWORD", "letmeinplease"),
        ("AWS_SECRET_ACCESS_KEY", "/" + made(39)),
    ):
        assert redact(f"<{value}>", own(value, name)) == (f"<{OWN}>", 1)


def test_a_value_that_is_no_utf8_is_known_where_it_can_be_written() -> None:
    cleaned, count = redact("token=wx4T%FFabcdefgh", own("wx4T\udcffabcdefgh"))
    assert (cleaned, count) == (f"token={OWN}", 1)


def test_secrets_do_not_show_themselves() -> None:
    assert PLAIN not in repr(own(PLAIN))


# ---- whatever the text ---------------------------------------------------------------------------------------------------

BITS = ("\\n", "\\\\", "\n", "\u2028", "é", "\ud83d", "a", "n", "u00e9", *'"\\{}[]:,')
AROUND = ("Authorization: Basic ", "aws_secret_access_key = ", "://u:", "p@", "Bearer ", " [...] ", "-----END PRIVATE KEY-----")
PIECES = st.sampled_from([*(key for _, key in KEYS.values()), PLAIN, ODD, SECRET_KEY, *BITS, *AROUND])
TEXTS = st.lists(PIECES, max_size=12).map("".join)
BOTH = secrets_of(PLAIN, {"MY_PASSWORD": ODD})


@settings(deadline=None)
@given(st.recursive(TEXTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3)), st.booleans())
def test_json_stays_json_and_no_secret_stays(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    cleaned, count = redact(text, BOTH)
    again = json.loads(cleaned)
    assert type(again) is type(value)
    for secret in (PLAIN, ODD):
        assert secret not in cleaned and json.dumps(secret)[1:-1] not in cleaned
        assert secret not in json.dumps(again, ensure_ascii=False)
    assert redact(cleaned, BOTH) == (cleaned, 0)
    assert (count == 0) == (cleaned == text)


@settings(deadline=None)
@given(TEXTS)
def test_any_text_is_clean_after_once(text: str) -> None:
    cleaned, count = redact(text, BOTH)
    assert PLAIN not in cleaned and ODD not in cleaned
    assert redact(cleaned, BOTH) == (cleaned, 0)
    assert count or cleaned == text


def test_numbers_order_and_layout_of_json_are_kept() -> None:
    text = f'{{"b": 1.0, "a": 12345678901234567890123, "b": [1e5,\n "\\u00e9{PLAIN}"], "\\/": null}}'
    assert redact(text, own(PLAIN)) == (text.replace(PLAIN, OWN), 1)


# ---- cuts ----------------------------------------------------------------------------------------------------------------

CUTS = (
    "\n[... 12,345 of 99,999 bytes left out here ...]\n",
    " [... 1,234 more characters in this line ...]",
    " [...]",
)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("secrets", [own(PLAIN), NONE])
def test_half_a_secret_at_a_cut_is_taken_out(cut: str, secrets: Secrets) -> None:
    key = PLAIN if secrets is not NONE else KEYS["GitHub p"][1]
    for size in range(12, len(key) - 12):
        text = json.dumps({"output": f"a\n{key[:size]}{cut}b c", "truncated": True})
        cleaned, count = redact(text, secrets)
        assert count == 1 and key[:12] not in cleaned and cut.strip() in cleaned and "b c" in cleaned
        assert redact(cleaned, secrets) == (cleaned, 0)


def test_the_other_half_too() -> None:
    for size in range(1, len(PLAIN) - 8):
        assert redact(f"a{CUTS[0]}{PLAIN[size:]} b", own(PLAIN)) == (f"a{CUTS[0]}{OWN} b", 1)
    key = KEYS["OpenAI project"][1]
    for size in range(1, len(key) - 30):
        cleaned, count = redact(f"a{CUTS[0]}{key[size:]} b", NONE)
        assert (count, cleaned) == (1, f"a{CUTS[0]}[redacted: part of a key] b")


@pytest.mark.parametrize("numbered", [False, True])
def test_part_of_a_private_key_is_taken_out(numbered: bool) -> None:
    lines = pem("RSA ", 20).split("\n")
    shown = [f"{number}|{line}" for number, line in enumerate(lines, 1)] if numbered else lines
    body = made(64, BASE64)
    for part in (shown[:9], shown[9:], shown):
        for text in ("\n".join(part), json.dumps({"content": "x\n" + "\n".join(part) + "\ny"})):
            cleaned, count = redact(text, NONE)
            assert count == 1 and body not in cleaned, cleaned


# ---- in a tool's result ---------------------------------------------------------------------------------------------------

KEY = KEYS["OpenAI project"][1]


def leak(how: str) -> Any:
    """Leak."""
    if how == "tool error":
        raise ToolError(f"cannot use {KEY}")
    if how == "crash":
        raise RuntimeError(f"401 for {PLAIN}")
    if how == "at the cut":
        return "x " * (MAX_RESULT_BYTES // 4 - 14) + KEY + " y" * MAX_RESULT_BYTES
    if how == "surrogates":
        return {"name": f"\udc80{PLAIN}"}
    return {"status": KEY, "exit_code": 3, "truncated": True, "error": None}


def call(how: str, secrets: Secrets | None) -> tuple[str, ToolRun]:
    box = Toolbox([make_tool(leak, "mine", "leak", 30.0)], secrets)
    message, run = asyncio.run(box.call(None, ToolCall("c", "leak", json.dumps({"how": how}))))
    return message.content, run


@pytest.mark.parametrize("how", ["tool error", "crash", "at the cut", "surrogates", "object", PLAIN])
def test_results_and_errors_of_tools_are_cleaned(how: str) -> None:
    content, run = call(how, own(PLAIN))
    assert run.redacted == 1
    assert KEY[8:40] not in content and PLAIN[:16] not in content
    assert "[redacted: " in content
    assert run.ok == (how not in ("tool error", "crash"))
    if how == "at the cut":
        assert "[redacted: OpenAI key]" in content, "it was whole when it was looked for"
    if how == "object":
        assert (run.exit_code, run.truncated) == (3, True)


def test_nothing_is_taken_out_when_it_was_switched_off() -> None:
    content, run = call("crash", None)
    assert PLAIN in content and run.redacted == 0
