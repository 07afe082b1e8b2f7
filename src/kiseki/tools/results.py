"""What a tool returned, as the text that the model gets: one way for every tool, whatever it returned.

JSON-able values become JSON. Bytes that are text are text. Images and other bytes become files in the sandbox, and the result
keeps a reference: no base64 ever gets into a trajectory. Lone surrogates, NUL and sizes are dealt with here, and secrets taken
out; whether a result counts as a success is for `outcome.py` to say, and asked of all of it, before anything is cut.
"""

from __future__ import annotations

import asyncio
import dataclasses
import posixpath
import re
from typing import Any

import msgspec

from kiseki.errors import ToolError
from kiseki.tools.context import ToolContext
from kiseki.tools.redact import Secrets, redact
from kiseki.trajectory.outcome import result_ok
from kiseki.trajectory.text import clean_text, cut_middle, shorten

MAX_RESULT_BYTES = 100_000
"""No tool result is longer: about 25,000 tokens, a large part of a context window already. Built-in tools stay well below."""
_LOOKED_AT = 2 * MAX_RESULT_BYTES
"""Characters of a longer result that anything is done with, so that one of 50 MB holds nobody up. As much again as is shown is
room for what cleaning it needs to see: half a key at the edge would not be known for one."""
MAX_FILE_BYTES = 50_000_000
"""Of one image or other file that a tool returns."""
FOLDER = "artifacts"
"""In the sandbox's home folder: where files that tools return are put."""
_PLAIN = frozenset({str, int, float, bool, type(None)})
_LOOKED_THROUGH = 100_000
"""Values inside of a result among which images and bytes are looked for; more are only text and numbers anyway."""
_MAX_NAME = 60
"""Characters of a file's name."""
_MAX_ARRAY = 1_000_000
"""Bytes of an array that is written as a list of its values. A longer one is shown as it shows itself, much shortened."""
_ADDRESS = re.compile(r"<.* at 0x[0-9a-f]+>", re.DOTALL)
"""What an object says of itself that has nothing to say."""


class Image(msgspec.Struct, frozen=True):
    """An image that a tool returns, anywhere in its result. The model gets `{"image": path in the sandbox, …}`."""

    data: bytes
    format: str = "png"
    """Ending of its file name: png, jpeg, webp, gif."""
    name: str = "image"
    """Beginning of its file name."""


class Finished(msgspec.Struct, frozen=True):
    """A result as it is kept."""

    text: str
    ok: bool
    """Whether it counts as a success."""
    exit_code: int | None
    """That it names."""
    cut: bool
    """Whether anything was left out of it."""
    redacted: int
    """Secrets that were taken out."""


async def settle(value: Any, context: ToolContext | None) -> Any:
    """`value` with its images and bytes put into files. Raises `ToolError` for one that cannot be kept, and `SandboxError`."""
    return await _settle(value, context, {}) if _holds_bytes(value) else value


def _holds_bytes(value: Any) -> bool:
    """Or anything of a type of its own, in which some might be."""
    if type(value) in _PLAIN:
        return False
    left, seen = [value], set[int]()
    while left and len(seen) < _LOOKED_THROUGH:
        each = left.pop()
        kind = type(each)
        if kind is dict or kind is list or kind is tuple:
            if id(each) not in seen:  # a result may hold itself
                seen.add(id(each))
                if kind is dict and bytes in map(type, each):
                    return True
                left += each.values() if kind is dict else each
        elif kind not in _PLAIN:
            return True
    return False


def _is_pillow(value: Any) -> bool:
    return type(value).__module__.startswith("PIL.") and hasattr(value, "save")


async def _settle(value: Any, context: ToolContext | None, done: dict[int, Any]) -> Any:
    """`done`: what has become of which containers, since one may be there twice, or in itself."""
    if id(value) in done:
        return done[id(value)]
    if isinstance(value, dict):
        done[id(value)] = of_dict = dict[Any, Any]()
        for key, each in value.items():
            name = key.decode("utf-8", "backslashreplace") if isinstance(key, bytes) else key
            of_dict[name] = await _settle(each, context, done)
        return of_dict
    if isinstance(value, list | tuple | set | frozenset):
        done[id(value)] = of_list = list[Any]()
        for each in value:
            of_list.append(await _settle(each, context, done))
        return of_list
    if _is_pillow(value):
        value = await asyncio.to_thread(_from_pillow, value)
    if isinstance(value, Image):
        path = await save_file(context, value.data, value.name, value.format)
        return {"image": path, "format": value.format, "bytes": len(value.data)}
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        try:
            text = data.decode()
            if "\0" not in text:
                return text
        except UnicodeDecodeError:
            pass
        return {"file": await save_file(context, data, "data", "bin"), "bytes": len(data)}
    fields = _fields(value)
    return value if fields is None or not _holds_bytes(fields) else await _settle(fields, context, done)


def _fields(value: Any) -> dict[str, Any] | None:
    """Of an object that is written as them; None for any other."""
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        return {encoded: getattr(value, name) for encoded, name in names}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    attrs = getattr(type(value), "__attrs_attrs__", None)
    if attrs:
        return {field.name: getattr(value, field.name) for field in attrs}
    return dict(value) if hasattr(type(value), "__pydantic_serializer__") else None  # iterating one gives its fields


def _from_pillow(picture: Any) -> Image:
    import io

    buffer = io.BytesIO()
    try:
        picture.save(buffer, "PNG")
    except OSError:  # PNG has no CMYK, no YCbCr, no floats
        buffer = io.BytesIO()
        picture.convert("RGB").save(buffer, "PNG")
    return Image(buffer.getvalue())


async def save_file(context: ToolContext | None, data: bytes, name: str, ending: str) -> str:
    """Put `data` into a new file of the rollout's `FOLDER` and return its path in the sandbox; "" where there is no sandbox.

    Raises `ToolError` for one that is too large or cannot be written, and `SandboxError`.
    """
    if len(data) > MAX_FILE_BYTES:
        raise ToolError(f"the file has {len(data):,} bytes, more than {MAX_FILE_BYTES:,}")
    if context is None or not context.has_sandbox:
        return ""
    files: dict[str, Any] = context.rollout_state.setdefault("artifacts", {"count": 0})
    if "home" not in files:
        _, home = await context.sandbox.run(["sh", "-c", 'printf %s "$HOME"'], timeout=20.0)
        files["home"] = home.decode("utf-8", "replace")
    files["count"] += 1
    path = posixpath.join(files["home"], FOLDER, f"{_in_a_path(name)}-{files['count']}.{_in_a_path(ending)}")
    await context.sandbox.write_file(path, data)
    return path


def _in_a_path(name: str) -> str:
    """A part of a file's name, which a stranger may have given."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).lstrip("._-")[:_MAX_NAME] or "file"


def finish(content: Any, secrets: Secrets | None) -> Finished:
    """A settled result as text within the size limit. `secrets` None: they are left where they are. Raises what the result's
    own `__str__` raises."""
    code = content.get("exit_code") if isinstance(content, dict) else None
    code = code if type(code) is int and abs(code) < 2**31 else None
    cut = isinstance(content, dict) and content.get("truncated") is True
    lost = 0
    if isinstance(content, dict) and any(isinstance(each, str) and len(each) > _LOOKED_AT for each in content.values()):
        shortened = {key: shorten(each, _LOOKED_AT) for key, each in content.items() if isinstance(each, str)}
        content = content | {key: text for key, (text, _) in shortened.items()}
        lost = sum(bytes_lost for _, bytes_lost in shortened.values())
    if isinstance(content, str):
        content = str.__str__(content)  # no class of its own: records hold none
    else:
        try:
            content = msgspec.json.encode(content, enc_hook=_plain).decode()
        except UnicodeEncodeError:  # lone surrogates, as in file names that are no UTF-8
            content = msgspec.json.encode(_clean(msgspec.to_builtins(content, enc_hook=_plain))).decode()
    ok = result_ok(content)
    content, more_lost = shorten(content, _LOOKED_AT)
    lost += more_lost
    text, redacted = (clean_text(content), 0) if secrets is None else redact(clean_text(content), secrets)
    if len(text) > MAX_RESULT_BYTES // 4 and len(data := text.encode()) > MAX_RESULT_BYTES:
        text = cut_middle(data, MAX_RESULT_BYTES, total=len(data) + lost).decode("utf-8", "replace")
        cut = True
    return Finished(text, ok, code, cut or lost > 0, redacted)


def _plain(value: Any) -> Any:
    """What JSON has for an object that it does not know: the fields of a pydantic model, the values of an array or a number of
    NumPy's, else its text. Raises TypeError for one that has no text either: a generator, a function, a lock."""
    if hasattr(type(value), "__pydantic_serializer__"):
        return value.model_dump(mode="json")
    if hasattr(type(value), "tolist") and getattr(value, "nbytes", 0) <= _MAX_ARRAY and not _holds_bytes(value.tolist()):
        return value.tolist()
    text = str(value)
    if _ADDRESS.fullmatch(text):
        raise TypeError(f"it holds an object of the type {type(value).__name__}, which is no value of JSON's")
    return text


def _clean(value: Any) -> Any:
    """Plain data with `clean_text` applied to every text in it."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {_clean(key) if isinstance(key, str) else key: _clean(each) for key, each in value.items()}
    return [_clean(each) for each in value] if isinstance(value, list | tuple) else value
