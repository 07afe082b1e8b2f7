"""What a server sends, before the SDK looks at it: what is a little wrong is put right, since there a single odd tool would cost
all of them, and an odd block the whole result. In place, on plain data."""

from __future__ import annotations

import json
from typing import Any

from kiseki.trajectory.text import clean_text

_BYTES = ("image", "audio")


def mend(result: dict[str, Any]) -> None:
    """The result of any request. Those of `tools/list` and `tools/call` are told by their keys."""
    if isinstance(result.get("tools"), list):
        result["tools"] = [_tool(each) for each in result["tools"] if _is_tool(each)]
        if not isinstance(result.get("nextCursor"), str):
            result.pop("nextCursor", None)
    elif any(key in result for key in ("content", "structuredContent", "isError")):
        _call(result)


def _is_tool(tool: Any) -> bool:
    return isinstance(tool, dict) and isinstance(tool.get("name"), str) and bool(tool["name"])


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    """Without its output schema: results are judged by nobody but the model."""
    description = tool.get("description")
    if not isinstance(description, str) or not description.strip():
        description = tool.get("title")
    schema = tool.get("inputSchema")
    return {
        "name": tool["name"],
        "description": description if isinstance(description, str) else "",
        "inputSchema": _schema(schema if isinstance(schema, dict) else {}),
    }


def _schema(schema: dict[str, Any]) -> dict[str, Any]:
    """As little as makes it pass; `schemas.py` does the rest."""
    mended = {**schema, "type": "object"}
    if not isinstance(mended.get("$schema", ""), str):
        del mended["$schema"]
    if "properties" in mended:
        properties = mended["properties"] if isinstance(mended["properties"], dict) else {}
        mended["properties"] = {name: each if isinstance(each, dict | bool) else {} for name, each in properties.items()}
    if "required" in mended:
        required = mended["required"] if isinstance(mended["required"], list) else []
        mended["required"] = [each for each in required if isinstance(each, str)]
    return mended


def _call(result: dict[str, Any]) -> None:
    content = result.get("content")
    blocks = content if isinstance(content, list) else [] if content is None else [content]
    result["content"] = [_block(each) for each in blocks]
    result["isError"] = result.get("isError") is True
    structured = result.get("structuredContent")
    if structured is not None and not isinstance(structured, dict):
        result["content"] = result["content"] or [_text(structured)]
    if not isinstance(structured, dict):
        result.pop("structuredContent", None)
    if not isinstance(result.get("resultType"), str):
        result.pop("resultType", None)
    result.pop("_meta", None)


def _block(block: Any) -> dict[str, Any]:
    """One block of a result in the form that its type has to have, or the whole of it as text."""
    if not isinstance(block, dict):
        return _text(block)
    kind = block.get("type")
    if kind == "text" and isinstance(block.get("text"), str):
        return _text(block["text"])
    if kind in _BYTES and isinstance(block.get("data"), str):
        return {"type": kind, "data": block["data"], "mimeType": _string(block, "mimeType")}
    if kind == "resource_link" and isinstance(block.get("uri"), str):
        return {"type": kind, "uri": block["uri"], "name": _string(block, "name")}
    inner = block.get("resource")
    if kind == "resource" and isinstance(inner, dict):
        for key in ("text", "blob"):
            if isinstance(inner.get(key), str):
                found = {"uri": _string(inner, "uri"), "mimeType": _string(inner, "mimeType"), key: inner[key]}
                return {"type": kind, "resource": found}
    return _text(block)


def _text(value: Any) -> dict[str, Any]:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return {"type": "text", "text": clean_text(text)}


def _string(values: dict[str, Any], key: str) -> str:
    value = values.get(key)
    return clean_text(value) if isinstance(value, str) else ""
