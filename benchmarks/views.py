"""Measure the attention views at their maximum size in a real browser: 512 tokens, 24 layers of 16 heads.

    python benchmarks/views.py [--keep page.html]

The weights are real: those of all-MiniLM-L6-v2's 72 heads on six passages of the bundled text, 384 in total. Prints the
file size, the time until the first render, the script memory, and frame times while the pointer moves, a view scrolls
and layers change. For frames, both the CPU time of each and the time between them are given; the latter is longer on a
busy machine.
"""

import argparse
import lzma
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from playwright.sync_api import CDPSession, Page, sync_playwright

from cloze.inspect.views.data import View, view_from_weights
from cloze.inspect.views.page import write_page
from cloze.model.batch import collate
from cloze.predict import Attention, load
from minilm import minilm

LAYERS, HEADS, TOKENS = 24, 16, 512
TEXT = Path(__file__).parent.parent / "src" / "cloze" / "demo" / "data" / "articles.txt.xz"
# Measures the time between frames during an interaction.
FRAMES = """async (moments) => {
  const times = [];
  await new Promise((done) => {
    let last = performance.now();
    const end = last + moments;
    const tick = (now) => {
      times.push(now - last);
      last = now;
      now < end ? requestAnimationFrame(tick) : done();
    };
    requestAnimationFrame(tick);
  });
  return times.slice(1);
}"""
WANDER = """(moments) => {
  const box = document.getElementById("stage").getBoundingClientRect();
  const start = performance.now();
  const step = () => {
    const passed = performance.now() - start;
    const [x, y] = [box.left + 60, box.top + 60 + ((passed / 3) % (box.height - 80))];
    document.getElementById("canvas").dispatchEvent(
      new PointerEvent("pointermove", { clientX: x, clientY: y, bubbles: true }));
    if (passed < moments) requestAnimationFrame(step);
  };
  step();
}"""
SCROLL = """(moments) => {
  const stage = document.getElementById("stage");
  const start = performance.now();
  const step = () => {
    stage.scrollTop += 24;
    if (performance.now() - start < moments) requestAnimationFrame(step);
  };
  step();
}"""


def real_attention() -> Attention:
    """Return the attention weights of MiniLM's heads on as many passages as needed."""
    model = load(minilm())
    tokenizer = model.tokenizer.with_max_length(TOKENS)
    with lzma.open(TEXT, "rt", encoding="utf-8") as file:
        text = file.read(40_000)
    found: list[NDArray[np.float32]] = []
    tokens: list[str] = []
    for start in range(0, 36_000, 6000):
        encoding = tokenizer(text[start : start + 6000])
        assert len(encoding.ids) == TOKENS
        tokens = tokens or encoding.tokens
        batch = collate([encoding], tokenizer.pad_id, model.device)
        with torch.inference_mode():
            output = model.bert.encoder(batch.ids, batch.segments, keep_attentions=True)
        found.append(torch.cat(output.attentions).numpy().reshape(-1, TOKENS, TOKENS))
    weights = np.concatenate(found)[: LAYERS * HEADS].reshape(LAYERS, HEADS, TOKENS, TOKENS)
    segments = [int(place > TOKENS // 2) for place in range(TOKENS)]  # two segments, so that the view has blocks
    return Attention(tokens, segments, weights)


def frames(page: Page, session: CDPSession, what: str, moments: int = 3000) -> str:
    """Return the time between frames and the CPU time that the page spends on each."""
    before = busy(session)
    page.evaluate(what, moments)
    times: list[float] = page.evaluate(FRAMES, moments)
    work = 1000 * (busy(session) - before) / max(1, len(times))
    ordered = sorted(times)
    median, high = statistics.median(ordered), ordered[int(0.95 * len(ordered))]
    every = f"a frame every {median:.0f} ms, 95 % {high:.0f}, largest {ordered[-1]:.0f}"
    return f"{work:4.1f} ms of CPU time per frame; {every}"


def busy(session: CDPSession) -> float:
    """Return the CPU seconds of the page's main thread."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration"))


def switch_layers(page: Page) -> list[float]:
    """Return the milliseconds from a key press until another layer is rendered."""
    found = []
    for layer in range(1, LAYERS):
        start = time.perf_counter()
        page.keyboard.press("]")
        page.locator(f'#stage[data-layer="{layer}"]').wait_for()
        found.append(1000 * (time.perf_counter() - start))
    return found


def measure(path: Path) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = [("file", f"{path.stat().st_size / 1e6:.1f} MB")]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        firsts, wholes = [], []
        for _ in range(3):
            page.goto("about:blank")
            page.goto(path.as_uri(), wait_until="load")
            page.locator("#stage[data-layer]").wait_for()
            firsts.append(page.evaluate("performance.getEntriesByName('first-picture')[0].startTime"))
            wholes.append(page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd"))
        rows.append(("first picture, of three", summary(firsts, "ms")))
        rows.append(("whole file loaded", summary(wholes, "ms")))
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        for name, view in (("words", "columns"), ("matrix", "matrix"), ("heads", "heads")):
            page.click(f"#tab-{view}")
            for what, script in (("pointer", WANDER), ("scrolling", SCROLL)):
                rows.append((f"{name}, {what}", frames(page, session, script)))
        page.click("#tab-columns")
        rows.append(("another layer", summary(switch_layers(page), "ms")))
        memory: Any = page.evaluate("performance.memory?.usedJSHeapSize ?? 0")
        rows.append(("script memory", f"{memory / 1e6:.0f} MB"))
        browser.close()
    return rows


def summary(values: list[float], unit: str) -> str:
    return f"{statistics.median(values):.0f} {unit}, largest {max(values):.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--keep", type=Path, help="write the page to this file")
    arguments = parser.parse_args()
    attention = real_attention()
    start = time.perf_counter()
    view: View = view_from_weights(attention)
    seconds = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.keep or Path(folder) / "page.html"
        write_page(view, path)
        rows = [
            ("made in", f"{seconds:.0f} s"),
            ("levels", f"{view.weights.levels}, so within {view.weights.error:.4f}"),
        ]
        for name, value in [*rows, *measure(path.resolve())]:
            print(f"{name:24} {value}")


if __name__ == "__main__":
    main()
