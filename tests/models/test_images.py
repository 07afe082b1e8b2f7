"""Images in a chat request, and the mock server's own: what it is shown, and what it draws."""

from __future__ import annotations

import base64
import http.client
import io
from typing import Any

import msgspec
import pytest
from PIL import Image
from support import with_client
from tools.pictures import picture

from kiseki.models.asking import AskedModel
from kiseki.models.base import ChatReply, ChatRequest, Encoded
from kiseki.models.dialects.base import IMAGE_SIZE
from kiseki.models.endpoints import ModelSettings
from kiseki.models.factory import open_client
from kiseki.models.image_headers import image_kind, image_size
from kiseki.models.mock_server import MockServer
from kiseki.trajectory.types import Message


def uri(data: bytes) -> str:
    return f"data:image/x;base64,{base64.b64encode(data).decode()}"


def post(server: MockServer, path: str, body: Any, method: str = "POST") -> tuple[int, Any]:
    connection = http.client.HTTPConnection(server.root_url.removeprefix("http://"), timeout=30)
    connection.request(method, path, msgspec.json.encode(body))
    answer = connection.getresponse()
    raw = answer.read()
    connection.close()
    return answer.status, msgspec.json.decode(raw) if answer.getheader("Content-Type") == "application/json" else raw


def opened(data: bytes) -> Image.Image:
    """Whole, or an error."""
    found = Image.open(io.BytesIO(data))
    found.load()
    return found


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF"])
def test_kind_and_size_from_the_first_bytes(kind: str) -> None:
    data = picture(kind, (77, 33))
    assert image_kind(data) == kind.lower()
    assert image_size(data) == ((0, 0) if kind in ("BMP", "TIFF") else (77, 33))
    assert all(image_size(data[:end]) in ((0, 0), (77, 33)) for end in range(60))


@pytest.mark.parametrize(
    "data",
    [
        picture("JPEG", (77, 33), progressive=True, comment=b"\xff\xc0 no frame"),
        picture("WEBP", (77, 33), lossless=True),
        picture("WEBP", (77, 33), mode="RGBA"),
    ],
)
def test_size_in_other_layouts(data: bytes) -> None:
    assert image_size(data) == (77, 33)


def test_images_go_with_the_last_message_alone() -> None:
    shown = (uri(picture("PNG")), uri(picture("JPEG", (5, 7))))
    request = ChatRequest((Message("system", "s"), Message("user", "What is it?")), images=shown)

    async def ask(client: AskedModel) -> ChatReply:
        return await client.complete(request)

    with MockServer(record=1) as server:
        reply = with_client(server.base_url, ask)
        stats = server.stats(log=True)
    images = [{"type": "image_url", "image_url": {"url": each}} for each in shown]
    assert stats["log"][0]["body"]["messages"] == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "What is it?"}, *images]},
    ]
    assert reply.message.content == "I see 2 images: PNG, 64 x 48 pixels; JPEG, 5 x 7 pixels."
    assert stats["images_shown"] == 2


def test_an_image_counts_as_tokens_and_not_as_text() -> None:
    client = open_client(ModelSettings("m", "http://127.0.0.1:1/v1"))
    messages = (Message("user", "What is it?"),)
    encoded = Encoded()
    _, text = client.encode(ChatRequest(messages, encoded=encoded))
    before = list(encoded)
    small = client.encode(ChatRequest(messages, images=("data:image/png;base64,AAAA",)))[1]
    large = client.encode(ChatRequest(messages, images=("data:image/png;base64," + "A" * 1_000_000,), encoded=Encoded()))[1]
    assert text + IMAGE_SIZE < small == large < text + IMAGE_SIZE + 100
    assert encoded == before


@pytest.mark.parametrize("url", ["https://example.org/a.png", uri(b"no image"), "data:image/png;base64,*"])
def test_it_says_what_it_cannot_see(url: str) -> None:
    content = [{"type": "text", "text": "?"}, {"type": "image_url", "image_url": {"url": url}}]
    with MockServer() as server:
        status, answer = post(server, "/v1/chat/completions", {"messages": [{"role": "user", "content": content}]})
    assert status == 200
    assert answer["choices"][0]["message"]["content"] in {
        "I see 1 image: one at an address, which I do not fetch.",
        "I see 1 image: 8 bytes of no kind that I know.",
        "I see 1 image: one that is no base64.",
    }


def test_it_draws_in_three_dialects() -> None:
    message = {"role": "user", "content": "a fox"}
    chat = {"messages": [message], "modalities": ["image", "text"], "image_config": {"aspect_ratio": "16:9"}}
    with MockServer() as server:
        ours = post(server, "/v1/images/generations", {"prompt": "a fox", "size": "96x64"})[1]
        again = post(server, "/v1/images/generations", {"prompt": "a fox", "size": "96x64"})[1]
        other = post(server, "/v1/images/generations", {"prompt": "a dog", "size": "96x64"})[1]
        router = post(server, "/v1/chat/completions", chat)[1]["choices"][0]["message"]["images"][0]["image_url"]["url"]
        fal = post(server, "/fal/some/model", {"prompt": "a fox", "image_size": {"width": 40, "height": 20}})[1]["images"][0]
        status, fetched = post(server, fal["url"].removeprefix(server.root_url), None, "GET")
        stats = server.stats()
    assert ours == again != other
    assert opened(base64.b64decode(ours["data"][0]["b64_json"])).size == (96, 64)
    assert opened(base64.b64decode(router.removeprefix("data:image/png;base64,"))).size == (1344, 768)
    assert status == 200 and opened(fetched).size == (40, 20)
    assert (stats["calls"], stats["images_made"], stats["images_shown"]) == (5, 5, 0)
    assert stats["cost"] == pytest.approx(4 * 0.04, rel=0.01)


def test_faults_hold_for_images_too() -> None:
    kinds = {"rate_limit": 429, "error_500": 500, "content_filter": 400, "not_json": 200, "empty": 200}
    for kind, status in kinds.items():
        with MockServer(faults={kind: 1.0}) as server:
            assert post(server, "/v1/images/generations", {"prompt": "a fox"})[0] == status
            assert server.stats()["by_fault"] == {kind: 1}
    with MockServer(fail_after=2, fail_for=1) as server:
        assert [post(server, "/v1/images/generations", {"prompt": "x", "size": "8x8"})[0] for _ in range(3)] == [200, 503, 200]
        assert post(server, "/v1/images/generations", {"no": "prompt"})[0] == 400
