"""From what the model names to an image's bytes: an http(s) URL, a `data:` URI, or a file in the sandbox, never the host's."""

from __future__ import annotations

import base64
import binascii
import re
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from kiseki.errors import ToolError
from kiseki.tools.context import ToolContext
from kiseki.tools.paths import absolute, check_path, explain_unreadable

MAX_BYTES = 20_000_000
"""Of an image, before it is made smaller: what cameras and design programs write; vision APIs take 5 to 20 MB themselves."""
FETCH_SECONDS = 60.0
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):")


async def load(context: ToolContext, image_url: str) -> bytes:
    """The bytes, whatever they are. Raises `ToolError` where there are none or too many, and `SandboxError`."""
    scheme = found[1].lower() if (found := _SCHEME.match(image_url)) else ""
    if scheme in ("http", "https"):
        return await _fetched(context, image_url)
    if scheme == "data":
        return _of_data_uri(image_url)
    if scheme == "file":
        parts = urlsplit(image_url)
        if parts.netloc not in ("", "localhost"):
            raise ToolError("a file:// URL names a file in the sandbox, as in file:///home/me/picture.png")
        return await _of_file(context, unquote(parts.path))
    if scheme and "://" in image_url:
        raise ToolError(f"{scheme}:// cannot be read; an image is an http(s) URL, a data: URI or a path in the sandbox")
    return await _of_file(context, image_url)


async def _fetched(context: ToolContext, url: str) -> bytes:
    from kiseki.tools.web.fetching import Fetcher

    fetcher = context.services.get(Fetcher)
    fetched = await fetcher.fetch(url, max_bytes=MAX_BYTES, timeout=FETCH_SECONDS, on_hold=context.on_hold)
    if not 200 <= fetched.status < 300:
        raise ToolError(f"{url[:200]} answers with HTTP status {fetched.status}")
    return fetched.body


def _of_data_uri(uri: str) -> bytes:
    head, comma, text = uri.partition(",")
    if not comma:
        raise ToolError("the data: URI has no comma; it looks like data:image/png;base64,iVBORw0…")
    if len(text) > MAX_BYTES * 4 // 3 + 4:
        raise ToolError(f"the image has more than {MAX_BYTES // 1_000_000} MB")
    if not head.lower().endswith(";base64"):
        return unquote_to_bytes(text)
    text = "".join(unquote(text).split())
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ToolError("the data: URI holds no valid base64; give the path of a file in the sandbox instead") from None


async def _of_file(context: ToolContext, path: str) -> bytes:
    place = await absolute(context, check_path(path, "image_url"))
    try:
        return await context.sandbox.read_file(place, max_bytes=MAX_BYTES)
    except ToolError as error:
        raise await explain_unreadable(context, path, error) from error
