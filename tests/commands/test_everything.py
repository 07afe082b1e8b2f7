"""The `default` distribution with everything available, from end to end: the practice model over a local corpus, a real browser
on loopback pages, and the mock server's endpoints for images."""

from __future__ import annotations

from pathlib import Path

from support import kiseki, read_rows, write_dataset
from tools.browser.playing import need_browser
from tools.web.conftest import Reply, Site

from kiseki.models.mock_server import MockServer

ORDER = b"""<html><title>Shop</title><body><h1>Tide tables</h1>
<form action="/order"><label>Name <input name=n></label><button>Order</button></form></body></html>"""
THANKS = b"<html><title>Ordered</title><body><h1>Thank you, tables are on their way</h1></body></html>"
CORPUS = {
    "tides.md": "# Tides\n\nSpring tides come at new moon and full moon, when sun and moon pull in one line.",
    "tea.txt": "Tea was first grown in China.",
}
PROMPTS = (
    "Search the corpus for spring tides and quote the sentence that says when they come.",
    'Open {root}/shop, type "Aki" into the field Name and click the button Order. What does the page say then?',
    "Draw a picture of a harbour at low tide, and tell me what it shows.",
    "Compute 12 * 12.",
)


def test_the_default_distribution_with_everything(tmp_path: Path) -> None:
    need_browser()
    site = Site()
    site.pages |= {"/shop": Reply(ORDER), "/order": Reply(THANKS)}
    (tmp_path / "corpus").mkdir()
    for name, text in CORPUS.items():
        (tmp_path / "corpus" / name).write_text(text)
    write_dataset(tmp_path / "d.jsonl", [{"prompt": each.format(root=site.url)} for each in PROMPTS])
    with MockServer() as server:
        done = kiseki(
            *("batch", "--dataset_file=d.jsonl", "--batch_size=2", "--run_name=r", "--model=builtin/practice"),
            *("--corpus=corpus", f"--web_allow={site.place}", "--vision_model=sees", f"--vision_base_url={server.base_url}"),
            *(f"--image_base_url={server.base_url}", "--num_workers=2", "--output_dir=out"),
            cwd=tmp_path,
            XDG_CACHE_HOME=str(tmp_path / "cache"),
        )
        stats = server.stats()
    site.stop()
    assert "corpus: 2 documents" in done.stdout
    rows = read_rows(tmp_path / "out/r/trajectories.jsonl")
    answers = [row["conversations"][-1]["value"] for row in rows]
    assert "Spring tides come at new moon and full moon" in answers[0] and "corpus://tides.md" in answers[0]
    assert "Thank you, tables are on their way" in answers[1]
    assert "artifacts/image-1.png" in answers[2] and "I see 1 image: PNG, 1536 x 1024 pixels" in answers[2]
    assert "144" in answers[3]
    assert all(row["completed"] and row["metadata"]["unavailable_toolsets"] == "" for row in rows)
    assert {tuple(row["toolsets_used"]) for row in rows} == {("web", "vision", "image_gen", "terminal", "file", "browser")}
    assert [row["tool_stats"]["browser_click"]["success"] for row in rows] == [0, 1, 0, 0]
    assert (stats["images_made"], stats["images_shown"]) == (1, 1)
    assert [request.path for request in site.asked if request.path.startswith("/order")] == ["/order?n=Aki"]
    assert not list((tmp_path / "out/r").glob("web_cache*"))
    kiseki("verify", "out/r", cwd=tmp_path)
