"""The mock server's images: draws them, and tells which ones it was shown. Pure.

What it draws is a real PNG of coloured fields that depends on nothing but the prompt and the size, in the answers of three APIs:
OpenAI's (`POST …/images/generations`), OpenRouter's (a chat request with the modality `image`) and fal's (`POST …/fal/MODEL` or
`…/fal-ai/MODEL`), which gives an address (`GET …/images/NAME.png`) instead of the bytes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import struct
import zlib
from typing import Any

import msgspec

from kiseki.models.image_headers import image_kind, image_size

FIELDS = 8
"""Coloured fields in each direction."""
MOST_PIXELS = 4096
"""In each direction; larger sizes are drawn so large."""
IMAGE_COST = 0.04
"""US dollars for one image, where the server reports costs."""
IMAGE_TOKENS = 1056
"""Of one that it draws."""
IMAGE_CHARS = 4_000
"""Of prompt that one which it is shown counts as: 1,000 tokens."""
RATIOS = {"1:1": (1024, 1024), "16:9": (1344, 768), "9:16": (768, 1344), "3:2": (1248, 832), "2:3": (832, 1248)}
FAL_SIZES = {
    "square": (512, 512),
    "square_hd": (1024, 1024),
    "landscape_4_3": (1024, 768),
    "landscape_16_9": (1024, 576),
    "portrait_4_3": (768, 1024),
    "portrait_16_9": (576, 1024),
}
_SIZE = re.compile(r"(\d{1,5})x(\d{1,5})")
_PICTURE = re.compile(r"/images/([0-9a-f]{8})-(\d{1,4})x(\d{1,4})\.png")
_DATA_URI = re.compile(r"data:[^,;]*;base64,", re.IGNORECASE)


class AskedImage(msgspec.Struct):
    """What the server reads of a request for an image, whatever API it is."""

    prompt: str
    model: str = ""
    size: str = ""
    """OpenAI: WIDTHxHEIGHT or `auto`."""
    response_format: str = ""
    """OpenAI, of the models `dall-e-…`: `b64_json`, or an address."""
    image_size: str | dict[str, int] = ""
    """fal: a name in `FAL_SIZES`, or width and height."""
    sync_mode: bool = False
    """fal: the bytes and not an address."""


def wants_image(path: str) -> bool:
    """Whether a POST to `path` is one for an image."""
    return path.endswith("/images/generations") or is_fal(path)


def is_fal(path: str) -> bool:
    return "/fal/" in path or "/fal-ai/" in path


def image_answer(asked: AskedImage, path: str, host: str, *, report_cost: bool, empty: bool) -> tuple[dict[str, Any], float]:
    """The answer to a request for an image, and what it costs. `host`: as the client names the server. `empty`: it has none."""
    name = hashlib.blake2b(asked.prompt.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    if is_fal(path):
        size = asked.image_size
        width, height = (
            (size.get("width", 1024), size.get("height", 1024)) if isinstance(size, dict) else FAL_SIZES.get(size, (1024, 768))
        )
        url = f"http://{host}/images/{name}-{width}x{height}.png"
        if asked.sync_mode:
            url = data_uri(draw_png(name, width, height))
        image = {"url": url, "width": width, "height": height, "content_type": "image/png"}
        return {"images": [] if empty else [image], "seed": 0, "has_nsfw_concepts": [False], "prompt": asked.prompt}, IMAGE_COST
    found = _SIZE.fullmatch(asked.size)
    width, height = (int(found[1]), int(found[2])) if found else (1024, 1024)
    if asked.model.startswith("dall-e") and asked.response_format != "b64_json":  # their default; newer ones give bytes only
        given = {"url": f"http://{host}/images/{name}-{width}x{height}.png"}
    else:
        given = {"b64_json": base64.b64encode(draw_png(name, width, height)).decode()}
    tokens = len(asked.prompt) // 4 + 1
    usage: dict[str, Any] = {"input_tokens": tokens, "output_tokens": IMAGE_TOKENS, "total_tokens": tokens + IMAGE_TOKENS}
    if report_cost:
        usage["cost"] = IMAGE_COST
    return {"created": 0, "data": [] if empty else [given], "usage": usage}, IMAGE_COST


def chat_images(prompt: str, image_config: dict[str, Any]) -> list[dict[str, Any]]:
    """What a chat message holds beside its text where an image was asked for."""
    name = hashlib.blake2b(prompt.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    size = RATIOS.get(image_config.get("aspect_ratio", ""), RATIOS["1:1"])
    return [{"type": "image_url", "image_url": {"url": data_uri(draw_png(name, *size))}, "index": 0}]


def picture_at(path: str) -> bytes | None:
    """The PNG that `GET path` gives; None where there is none."""
    found = _PICTURE.search(path)
    return draw_png(found[1], int(found[2]), int(found[3])) if found else None


def data_uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def draw_png(name: str, width: int, height: int) -> bytes:
    """A PNG of `FIELDS` by `FIELDS` colours that `name` decides."""
    width, height = (min(max(each, 1), MOST_PIXELS) for each in (width, height))
    rows = []
    for row in range(FIELDS):
        colours = hashlib.blake2b(f"{name}/{row}".encode(), digest_size=3 * FIELDS).digest()
        edges = [column * width // FIELDS for column in range(FIELDS + 1)]
        line = b"".join(colours[3 * at : 3 * at + 3] * (edges[at + 1] - edges[at]) for at in range(FIELDS))
        rows.append((b"\0" + line) * ((row + 1) * height // FIELDS - row * height // FIELDS))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(b"".join(rows), 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def shown_images(content: Any) -> list[str]:
    """The addresses of the images in a chat message's content."""
    parts = content if isinstance(content, list) else []
    return [_url(part) for part in parts if isinstance(part, dict) and part.get("type") == "image_url"]


def _url(part: dict[str, Any]) -> str:
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, dict) else image
    return url if isinstance(url, str) else ""


def describe(urls: list[str]) -> str:
    """What the server sees of them: how many, and of each its kind and size."""
    count = f"{len(urls)} image{'s' * (len(urls) != 1)}"
    return f"I see {count}: {'; '.join(map(_described, urls))}."


def _described(url: str) -> str:
    head = _DATA_URI.match(url)
    if head is None:
        return "one at an address, which I do not fetch"
    try:
        data = base64.b64decode(url[head.end() :], validate=True)
    except binascii.Error:
        return "one that is no base64"
    kind, (width, height) = image_kind(data), image_size(data)
    return f"{kind.upper()}, {width} x {height} pixels" if kind else f"{len(data):,} bytes of no kind that I know"
