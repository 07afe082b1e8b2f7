"""An image as vision APIs take it: a PNG or JPEG, upright, no larger than they look at.

The bytes are a stranger's: only the decoder of the kind that they claim to be is asked, how many pixels they have is known before
any is decoded, and it all happens in a thread with a time limit.
"""

from __future__ import annotations

import io
import re
import warnings
from typing import TYPE_CHECKING

from kiseki.errors import ToolError
from kiseki.models.image_headers import image_kind, image_size
from kiseki.tools.context import ToolContext
from kiseki.tools.results import Image
from kiseki.tools.running import OutOfTime, run_within

if TYPE_CHECKING:
    import PIL.Image

LONGEST_SIDE = 2048
"""Pixels: no usual vision API looks at more (OpenAI 2,048, Anthropic 1,568 to 2,576, Gemini by tiles of 768)."""
MAX_SENT = 3_700_000
"""Bytes: in base64 just below 5 MB, the smallest limit of a usual API (Anthropic's) for one image."""
MAX_PIXELS = 64_000_000
"""More than any usual camera's; decoded they take 256 MB."""
SECONDS = 30.0
AT_ONCE = 2
"""Images decoded at once in a worker: each may take a core and `MAX_PIXELS` of memory."""
ORIENTATION = 0x0112
"""EXIF tag: how the picture has to be turned to be upright; 1 not at all."""
QUALITY = (90, 75, 50)
"""Of a JPEG, one after the other until it fits."""
warnings.filterwarnings("ignore", module=r"PIL\.")  # of odd files, on the user's screen, where they help nobody
KINDS = "PNG, JPEG, GIF, WebP, BMP and TIFF"


async def prepare(context: ToolContext, image: Image) -> Image:
    """Raises `ToolError` for what is no image, or one that cannot be decoded."""
    kind = image_kind(image.data)
    if not kind:
        raise ToolError(f"this is {_what(image.data)}, not an image that can be looked at: {KINDS} can")
    slots = context.services.slots("decode an image", AT_ONCE)
    with context.on_hold:
        await slots.acquire()
    try:
        converted: Image = await run_within(SECONDS, lambda: _convert(image.data, kind), is_async=False)
    except OutOfTime:
        raise ToolError(f"the image could not be decoded within {SECONDS:g} s") from None
    finally:
        slots.release()
    return converted


def _what(data: bytes) -> str:
    """Bytes that are no image, in words."""
    start = data[:1000].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if not data:
        return "an empty file"
    if b"<svg" in start:
        return "an SVG drawing (which has to be turned into a PNG first)"
    if start.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        return "an HTML page"
    if start.startswith(b"%pdf"):
        return "a PDF document"
    return "a file of another kind"


def _convert(data: bytes, kind: str) -> Image:
    import PIL.Image
    import PIL.ImageOps

    _check_size(*image_size(data))
    try:
        with PIL.Image.open(io.BytesIO(data), formats=[kind.upper()]) as picture:
            size = picture.size
            _check_size(*size)
            turned = picture.getexif().get(ORIENTATION, 1) != 1
            picture.thumbnail((LONGEST_SIDE, LONGEST_SIDE), reducing_gap=3.0)  # a JPEG is decoded at a fraction of its size
            picture.load()
            PIL.ImageOps.exif_transpose(picture, in_place=True)
            can_stay = kind in ("png", "jpeg") and picture.mode != "CMYK" and len(data) <= MAX_SENT
            return Image(data, kind) if can_stay and picture.size == size and not turned else _encode(picture, kind)
    except ToolError:
        raise
    except Exception as error:  # a decoder may raise anything over bytes that are made up
        words = re.sub(r" <.*>", "", str(error), flags=re.DOTALL)  # an object's address is another one each time
        raise ToolError(f"the {kind.upper()} image is torn or broken: {words}") from error


def _check_size(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise ToolError(f"the image has {width:,} x {height:,} pixels; up to {MAX_PIXELS // 1_000_000} million can be looked at")


def _encode(picture: PIL.Image.Image, kind: str) -> Image:
    """As PNG where it comes from none of the photo kinds and that is small enough, else as JPEG."""
    if picture.mode not in ("RGB", "RGBA", "L"):
        picture = picture.convert("RGBA" if picture.has_transparency_data else "RGB")
    buffer = io.BytesIO()
    if kind != "jpeg":
        picture.save(buffer, "PNG")
        if buffer.tell() <= MAX_SENT:
            return Image(buffer.getvalue(), "png")
    for quality in QUALITY:
        buffer = io.BytesIO()
        picture.convert("RGB").save(buffer, "JPEG", quality=quality)
        if buffer.tell() <= MAX_SENT:
            break
    return Image(buffer.getvalue(), "jpeg")
