"""What an MCP server answered, as the result of a tool: text as text, everything else as files in the sandbox."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any

from kiseki.tools.context import ToolContext
from kiseki.tools.results import Image, save_file

if TYPE_CHECKING:
    from mcp_types import CallToolResult

MAX_ATTACHMENTS = 50
"""Of one result: files of the sandbox."""
_ENDING = re.compile(r"(?:[\w.+-]+)/(?:x-)?([a-z0-9]{1,8})(?:\+\w+)?(?:;.*)?", re.ASCII)


async def to_result(answer: CallToolResult, context: ToolContext) -> Any:
    """Text alone is the result as it is; with attachments, or an error, it is an object. Raises what `save_file` raises."""
    texts = [each.text for each in answer.content if each.type == "text"]
    others = [each for each in answer.content if each.type != "text"]
    attachments = [await _attachment(each, context) for each in others[:MAX_ATTACHMENTS]]
    if not answer.content and answer.structured_content is not None:
        found: Any = answer.structured_content
        text = ""
    else:
        found = text = "\n".join(texts)
    if answer.is_error:
        found = {"error": text or found or "the MCP server reports an error without a word"}
    elif attachments:
        found = {"text": text} if text else {}
    elif isinstance(found, str) and not found.strip():
        return {"output": found}  # an empty text alone would count as a failure
    if attachments:
        found["attachments"] = attachments
        if len(others) > MAX_ATTACHMENTS:
            found["note"] = f"{len(others) - MAX_ATTACHMENTS} more attachments were left out"
    return found


async def _attachment(block: Any, context: ToolContext) -> Any:
    if block.type == "resource_link":
        return {"uri": block.uri, "name": block.name}
    if block.type != "resource":
        data = _decoded(block.data)
        if data is None:
            return {block.type: "", "note": "its data is not base64"}
        if block.type == "image":
            return Image(data, _ending(block.mime_type))
        path = await save_file(context, data, block.type, _ending(block.mime_type))
        return {block.type: path, "bytes": len(data)}
    resource = block.resource
    if (text := getattr(resource, "text", None)) is not None:
        return {"uri": resource.uri, "text": text}
    data = _decoded(resource.blob)
    if data is None:
        return {"uri": resource.uri, "note": "its data is not base64"}
    path = await save_file(context, data, "resource", _ending(resource.mime_type))
    return {"uri": resource.uri, "file": path, "bytes": len(data)}


def _decoded(text: str) -> bytes | None:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except ValueError:
        return None


def _ending(mime_type: str | None) -> str:
    """Of a file's name, by what its type says; nothing of the server's gets into a path but letters and digits."""
    found = _ENDING.fullmatch((mime_type or "").lower())
    return {"plain": "txt"}.get(found[1], found[1]) if found else "bin"
