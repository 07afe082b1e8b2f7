"""Takes API keys and other secrets out of text before it is kept or shown. Pure: text in, text and a count out.

Two kinds: keys that their shape gives away (`_KEYS`, `_TOKENS`, …), and the run's own secrets by their values, also
URL-quoted, in base64, and escaped as in JSON or a repr. What was JSON stays JSON: there every string is cleaned by itself.
Cleaning twice changes nothing more. What a marker says instead of a secret is of no use to anyone, and names the kind.

Nearly every text is clean, so `redact` first asks a few quick questions that no text with a secret passes: some microseconds
for a usual result. Only then come the patterns.
"""

from __future__ import annotations

import base64
import functools
import json
import re
import string
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from urllib.parse import quote, quote_plus

import msgspec

MIN_SECRET = 8
"""Characters; a shorter value would be found in ordinary text, and is guessed anyway."""
_MIN_WORD = 12
"""Characters of letters alone that are taken for a password and not for a word like `required`."""
ESCAPED = 4
"""Times that it may be escaped: JSON inside a call's arguments, which are JSON text in messages that are JSON text in a row."""
_OWN = "secret of this run"


class Secrets(msgspec.Struct, frozen=True):
    """The run's own secrets, in every form that is looked for. Make it with `secrets_of`."""

    forms: tuple[str, ...] = ()
    """Longest first."""
    anywhere: tuple[str, ...] = ()
    """Of the forms that hold no other, those that have to be looked for in every text."""
    in_runs: tuple[str, ...] = ()
    """The others: each holds a `_RUN`."""

    def __repr__(self) -> str:
        return f"Secrets(<{len(self.forms)} forms>)"  # a traceback or a log may show it


def secrets_of(api_key: str, environ: Mapping[str, str]) -> Secrets:
    """The model's key, and what the environment holds under names that say it is secret, but for trivial values."""
    named = [(name, environ[name]) for name in environ if is_secret_name(name)]
    found = {value.strip() for name, value in [("API_KEY", api_key), *named] if not _is_trivial(name, value.strip())}
    return _prepared(tuple(sorted(found)))


_SECRET_NAME = re.compile(
    r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|(?:^|_)(?:AUTH|CREDS|PASS|PAT|PWD))(?:_?\d+)?$|SECRET_",
    re.IGNORECASE,
)
_PATH = re.compile(r"(?:~|\.{1,2})?(?:/[\w.@%+-]{0,30})+", re.ASCII)  # longer parts are keys that happen to begin with "/"
_NUMBER = re.compile(r"[\d.,:_+-]+")
_WORDS = re.compile(r"[a-z]+(?:[ ._-][a-z]+)*|[A-Z]+(?:[ ._-][A-Z]+)*")


def is_secret_name(name: str) -> bool:
    """Whether the name of a variable or flag says that its value is secret."""
    return _SECRET_NAME.search(name) is not None


def _is_trivial(name: str, value: str) -> bool:
    """Whether a value is none that anyone would guard, or one that would tear up ordinary text: `true`, a path, `not-needed`."""
    if len(value) < MIN_SECRET or _PATH.fullmatch(value) or _NUMBER.fullmatch(value):
        return True
    if any(value in marker for marker in _markers()):
        return True
    if not _WORDS.fullmatch(value):
        return False
    return len(value) < _MIN_WORD or (not value.isalpha() and "PASS" not in name.upper())


@functools.lru_cache(maxsize=4)
def _prepared(values: tuple[str, ...]) -> Secrets:
    forms = {form for value in values for form in _forms(value) if len(form) >= MIN_SECRET}
    ordered = tuple(sorted(forms, key=lambda form: (-len(form), form)))
    shortest = [form for form in ordered if not any(other in form for other in forms - {form})]
    in_runs = tuple(form for form in shortest if _RUN in _classes(form))
    return Secrets(ordered, tuple(form for form in shortest if form not in in_runs), in_runs)


def _forms(value: str) -> Iterator[str]:
    """As programs write it: raw, escaped, URL-quoted, in base64 alone or inside of something longer."""
    plain, ascii_only = value, value
    yield from (value, repr(value)[1:-1])
    for _ in range(ESCAPED):
        plain, ascii_only = json.dumps(plain, ensure_ascii=False)[1:-1], json.dumps(ascii_only)[1:-1]
        yield from (plain, ascii_only)
    bare = value.encode("utf-8", "surrogateescape")
    quoted = (quote(bare), quote(bare, safe=""), quote_plus(bare))
    yield from quoted
    yield from (re.sub(r"%..", lambda code: code[0].lower(), each) for each in quoted)
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode(bare).decode().rstrip("=")
        for before in range(3):  # bytes ahead of it in its group of three: each shifts the code
            code = encode(bytes(before) + bare).decode()
            padding = code.count("=")
            # the first and last characters hold bits of the neighbours too
            yield code[(0, 2, 3)[before] : len(code) - (padding + 1 if padding else 0)]


# ---- keys by their shape --------------------------------------------------------------------------------------------------


class _Pattern(NamedTuple):
    kind: str
    guard: str
    """What every match holds: looked for first, since that is quick."""
    regex: re.Pattern[str]
    """Group 1, where there is one, is what stands before the secret and stays."""


def _starts(prefix: str) -> str:
    """`prefix` where a key can start: not inside a word; after an escaped line break or a colour code, though.

    The prefix itself comes first, so that the search is one for literal text.
    """
    return rf"{prefix}(?:(?<![A-Za-z0-9]{prefix})|(?<=\\[nrtbf]{prefix})|(?<=[\d;\[]m{prefix}))"


def _pattern(kind: str, guard: str, regex: str) -> _Pattern:
    return _Pattern(kind, guard, re.compile(regex, re.ASCII))


_DIGIT = r"(?=[A-Za-z_-]{0,80}\d)"  # what a placeholder such as sk-ant-your-key-goes-here does not have
_KEYS = (
    _pattern("Anthropic key", "sk-ant-", _starts("sk-ant-") + _DIGIT + r"[\w-]{32,}"),
    _pattern("OpenRouter key", "sk-or-", _starts("sk-or-") + r"(?:v\d-)?[A-Za-z0-9]{32,}"),
    _pattern("OpenAI key", "sk-", _starts("sk-") + r"(?:proj|svcacct|admin|None)-" + _DIGIT + r"[\w-]{32,}"),
    _pattern("OpenAI key", "T3BlbkFJ", _starts("sk-") + r"[A-Za-z0-9]{16,}T3BlbkFJ[A-Za-z0-9]{16,}"),
    _pattern("API key", "sk-", _starts("sk-") + r"[A-Za-z0-9]{32,}"),
    _pattern("GitHub token", "gh", _starts("gh[pousr]_") + r"[A-Za-z0-9]{36,}"),
    _pattern("GitHub token", "github_pat_", _starts("github_pat_") + r"\w{50,}"),
    _pattern("GitLab token", "glpat-", _starts("glpat-") + r"[\w-]{20,}(?:\.[0-9a-z]{2}\.[0-9a-z]{9})?"),
    _pattern("Hugging Face token", "hf_", _starts("hf_") + r"[A-Za-z0-9]{34,}"),
    _pattern("AWS access key id", "A", _starts("A(?:KI|SI)A") + r"[A-Z2-7]{16}(?![A-Za-z0-9])"),
    _pattern("Google API key", "AIza", _starts("AIza") + r"[\w-]{35}(?![\w-])"),
    _pattern("Slack token", "xox", _starts("xox[abeprs]-") + r"(?=[A-Za-z-]{0,80}\d)[A-Za-z0-9-]{20,}"),
    _pattern("Stripe key", "k_live_", _starts("[rs]k_live_") + r"[A-Za-z0-9]{20,}"),
    _pattern("npm token", "npm_", _starts("npm_") + r"[A-Za-z0-9]{36,}"),
    _pattern("PyPI token", "pypi-", _starts("pypi-Ag") + r"[\w-]{50,}"),
)
"""Each begins with its prefix and is one run of key characters. The first that fits names it."""
_PREFIX = re.compile(r"sk-|gh[pousr]_|github_pat_|glpat-|hf_|A(?:KI|SI)A|AIza|xox[abeprs]-|[rs]k_live_|npm_|pypi-Ag")
_TOKENS = (
    _pattern("JSON web token", "eyJ", _starts("eyJ") + r"[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}"),
    _pattern("SendGrid key", "SG.", _starts(r"SG\.") + r"[\w-]{16,32}\.[\w-]{32,64}"),
)
"""Runs of key characters with dots between them."""

_PRIVATE = r"(?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----"
_LINE_END = r"""(?>(?:\\+["'nrt]|\d{1,5}\||[\s|>:,'"]|(?<=[\snr])[+-](?=[A-Za-z0-9+/=\s])){1,40})"""
"""Between the lines of a key in a file, in a literal, in a diff, or numbered. Atomic, as the lines are: else a search could take
for ever."""
_FULL_LINE, _LAST_LINE = r"(?>[A-Za-z0-9+/=]{16,})", r"(?>[A-Za-z0-9+/=]{1,15})"
_OTHERS = (
    _pattern(
        "private key",
        "PRIVATE KEY",
        # whole, or as far as it was shown: without its end, or (the next one) without its beginning
        rf"-----BEGIN {_PRIVATE}(?:{_LINE_END}[A-Z][\w-]+: [^\n\"\\]{{1,120}}){{0,4}}(?:{_LINE_END}{_FULL_LINE})+"
        rf"(?:{_LINE_END}{_LAST_LINE})?(?:{_LINE_END}-----END {_PRIVATE})?",
    ),
    _pattern(
        "private key",
        "PRIVATE KEY",
        r"(?:(?<![A-Za-z0-9+/=\\])|(?<=\\[nrt]))"
        rf"(?:{_FULL_LINE}{_LINE_END}){{1,60}}(?:{_LAST_LINE}{_LINE_END})?-----END {_PRIVATE}",
    ),
    _pattern("bearer token", "earer", r"([Bb]earer +)(?=[A-Za-z._~+/=-]{0,200}\d)[A-Za-z0-9._~+/=-]{20,}"),
    _pattern(
        "password in a URL",
        "://",
        r"""(://[^\s/?#:@"'\\<>]{0,256}:)(?!%[s(]|[$<{*\[])[^\s/?#"'\\<>]{3,256}(?=@)""",
    ),
)
_FORTY = r"""(?:\\*["'\s:=>]|\\+[nrt]){1,12})[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])"""
_ACROSS = (
    _pattern("AWS secret key", "ccess_key", "(ecret_access_key" + _FORTY),
    _pattern("AWS secret key", "ccessKey", "(ecretAccessKey" + _FORTY),
    _pattern("AWS secret key", "CCESS_KEY", "(ECRET_ACCESS_KEY" + _FORTY),
    _pattern(
        "credentials",
        "uthorization",
        r"""(uthorization(?:\\*["'\s:=]){1,12}(?:[Bb]asic|[Tt]oken)\s+)(?=[A-Za-z._~+/=-]{0,200}\d)[A-Za-z0-9._~+/=-]{12,}""",
    ),
)
"""These go from one string of a JSON text to the next, and replace nothing that has a meaning in JSON."""


def _marker(kind: str) -> str:
    return f"[redacted: {kind}]"  # goes into JSON strings as it is


@functools.cache
def _markers() -> tuple[str, ...]:
    kinds = [pattern.kind for pattern in (*_KEYS, *_TOKENS, *_OTHERS, *_ACROSS)]
    return tuple(_marker(kind) for kind in (*kinds, _TORN, _OWN))


# ---- cleaning -------------------------------------------------------------------------------------------------------------

_KEY_CHARACTERS = string.ascii_letters + string.digits + "_-"
_CLASSES = "".join("x" if chr(code) in _KEY_CHARACTERS else "." if code == ord(".") else " " for code in range(256)).encode()
_RUN = b"x" * 20
"""No key of `_KEYS` is shorter."""
_AFTER_PREFIX = 16
"""Key characters that each of them has after its prefix at least."""
_DOTTED = b"xxxxxxxxxx.xxxxxxxxxx"
_whole_run = re.compile(rb"x*").match


def _classes(text: str) -> bytes:
    """A byte per character: "x" for what keys are made of, "." for itself, a space for the rest."""
    return text.encode("latin-1", "replace").translate(_CLASSES)


def redact(text: str, secrets: Secrets) -> tuple[str, int]:
    """`text` with a marker in the place of each secret, and how many there were."""
    total = 0
    while _may_hold_any(text, secrets):
        text, count = _clean(text, secrets)
        if not count:  # else once more: with its neighbour gone, a secret may stand out that did not before
            break
        total += count
    return text, total


def _may_hold_any(text: str, secrets: Secrets) -> bool:
    if any(form in text for form in secrets.anywhere):
        return True
    classes = _classes(text)
    at = classes.find(_RUN)
    if at >= 0 and any(form in text for form in secrets.in_runs):
        return True
    while at >= 0:
        run = _whole_run(classes, at)
        assert run
        if _PREFIX.search(text, at, run.end() - _AFTER_PREFIX):
            return True
        at = classes.find(_RUN, run.end())
    return (
        (_DOTTED in classes and ("eyJ" in text or "SG." in text))
        or "PRIVATE KEY" in text
        or "earer " in text
        or any(pattern.guard in text for pattern in _ACROSS)
        or ("@" in text and "://" in text)
        or "...]" in text
    )


def _clean(text: str, secrets: Secrets) -> tuple[str, int]:
    """The same for text that may well hold some."""
    total = 0
    for pattern in _ACROSS:
        if pattern.guard in text:
            text, count = _replace(pattern, text)
            total += count
    text, count = _clean_strings(text, secrets)
    return text, total + count


_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


def _clean_strings(text: str, secrets: Secrets) -> tuple[str, int]:
    """Every string of a JSON text cleaned by itself, JSON inside of JSON too; any other text as a whole."""
    if not _is_json(text):
        return _clean_plain(text, secrets)
    total = 0
    for form in secrets.forms:  # such as an account's credentials, which are an object
        if form in text and _is_json(form):
            total += text.count(form)
            text = text.replace(form, f'"{_marker(_OWN)}"')

    def one(found: re.Match[str]) -> str:
        nonlocal total
        cleaned, count = _clean_strings(json.loads(found[0]), secrets)
        total += count
        return json.dumps(cleaned, ensure_ascii=found[0].isascii() or "\\u" in found[0]) if count else found[0]

    return _STRING.sub(one, text), total


def _is_json(text: str) -> bool:
    """Whether it is JSON with strings in it."""
    if text.lstrip()[:1] not in ("{", "[", '"') or '"' not in text:
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _clean_plain(text: str, secrets: Secrets) -> tuple[str, int]:
    total = 0
    found = [form for form in secrets.forms if form in text]
    if found:
        text, total = re.subn("|".join(map(re.escape, found)), _marker(_OWN), text)
    for pattern in (*_KEYS, *_TOKENS, *_OTHERS):
        if pattern.guard in text:
            text, count = _replace(pattern, text)
            total += count
    if "...]" in text:
        text, count = _clean_cuts(text, secrets)
        total += count
    return text, total


def _replace(pattern: _Pattern, text: str) -> tuple[str, int]:
    kept = r"\g<1>" if pattern.regex.groups else ""
    return pattern.regex.subn(kept + _marker(pattern.kind), text)


# ---- where a tool has cut its output --------------------------------------------------------------------------------------

_TORN = "part of a key"
_CUT = re.compile(
    r"[\n ]?\[\.\.\. [\d,]+ (?:of [\d,]+ bytes left out here|more characters in this line) \.\.\.\]\n?| ?\[\.\.\.\] ?"
)
_TORN_HEAD = re.compile(rf"(?<![A-Za-z0-9])(?:{_PREFIX.pattern})(?=[A-Za-z_-]*\d)[A-Za-z0-9_-]{{{MIN_SECRET},}}\Z")
_TORN_TAIL = re.compile(r"(?=[A-Za-z_-]*\d)(?=[A-Z0-9_-]*[a-z])(?=[a-z0-9_-]*[A-Z])[A-Za-z0-9_-]{20,}")
_KEY_CHARS = 300
"""On each side of a cut that are looked at: more than a key has."""


def _clean_cuts(text: str, secrets: Secrets) -> tuple[str, int]:
    """Take out what is left of a secret that a cut went through: nothing of its shape may be left to tell."""
    parts: list[str] = []
    total = done = 0
    reach = max(_KEY_CHARS, len(secrets.forms[0]) if secrets.forms else 0)
    for cut in _CUT.finditer(text):
        head, head_kind = _torn_head(text[max(done, cut.start() - reach) : cut.start()], secrets.forms)
        tail, tail_kind = _torn_tail(text[cut.end() : cut.end() + reach], secrets.forms)
        parts += (text[done : cut.start() - head], _marker(head_kind) if head else "", cut[0], _marker(tail_kind) if tail else "")
        total += bool(head) + bool(tail)
        done = cut.end() + tail
    return "".join((*parts, text[done:])), total


def _torn_head(before: str, forms: tuple[str, ...]) -> tuple[int, str]:
    """How many characters at the end of `before` begin a secret, and its kind."""
    if len(last := before[-MIN_SECRET:]) < MIN_SECRET:
        return 0, ""
    own = (size for form in forms if last in form for size in range(MIN_SECRET, len(form)) if before.endswith(form[:size]))
    if size := max(own, default=0):
        return size, _OWN
    found = _TORN_HEAD.search(before, len(before.rstrip(_KEY_CHARACTERS)))
    return (len(found[0]), _TORN) if found else (0, "")


def _torn_tail(after: str, forms: tuple[str, ...]) -> tuple[int, str]:
    """How many characters at the beginning of `after` end a secret, and its kind."""
    if len(first := after[:MIN_SECRET]) < MIN_SECRET:
        return 0, ""
    own = (size for form in forms if first in form for size in range(MIN_SECRET, len(form)) if after.startswith(form[-size:]))
    if size := max(own, default=0):
        return size, _OWN
    found = _TORN_TAIL.match(after)
    return (len(found[0]), _TORN) if found else (0, "")
