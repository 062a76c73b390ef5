"""What a reader sees of a page: texts on canvases, colours of pixels, tooltips under the pointer."""

import base64
import io
import re

import numpy as np

CHART = "figure[data-measure=test_accuracy]"
MAIN = "figure[data-main=test_accuracy]"

# Texts of a canvas since it was last cleared, with their places.
RECORD = """(() => {
  const own = CanvasRenderingContext2D.prototype, { fillText, clearRect } = own;
  own.fillText = function (text, x, y, ...rest) {
    (this.canvas.texts ??= []).push([String(text), x, y]);
    return fillText.call(this, text, x, y, ...rest);
  };
  own.clearRect = function (...box) { this.canvas.texts = []; return clearRect.apply(this, box); };
})()"""


def rgb(text):
    """Numbers of ``#aabbcc``, or of ``rgb(1, 2, 3)``."""
    if text.startswith("#"):
        return [int(text[k : k + 2], 16) for k in (1, 3, 5)]
    return [int(number) for number in re.findall(r"\d+", text)[:3]]


def number(text):
    """A number as the page writes it."""
    return float(text.replace("−", "-").replace("+", ""))


def image(canvas):
    """Pixels of a canvas: ``(height, width, 4)``."""
    from PIL import Image

    data = canvas.evaluate("(c) => c.toDataURL()").partition(",")[2]
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGBA")).astype(int)


def near(pixels, colour, most=60, alpha=150):
    """Whether pixels have a colour, but for the smoothing of edges, and cover what is below them."""
    return (np.abs(pixels[..., :3] - colour).sum(-1) < most) & (pixels[..., 3] > alpha)


def ticks(canvas):
    """The rounds and values that the axes of a chart name, each as places in pixels by number."""
    texts = canvas.evaluate("(c) => c.texts ?? []")
    numbers = [(number(t), x, y) for t, x, y in texts if re.fullmatch(r"[−+]?[\d.]+", t)]
    rows, columns = {}, {}
    for value, x, y in numbers:
        rows.setdefault(round(y), {})[value] = x
        columns.setdefault(round(x), {})[value] = y
    return rows[max(k for k, v in rows.items() if len(v) > 1)], columns[min(columns)]


def line(places):
    """The straight line through ticks: the place of any number."""
    slope, start = np.polyfit(list(places), list(places.values()), 1)
    return lambda value: slope * value + start


def hover(page, chart, share, height=40):
    """Point at a share of a chart's width; return the lines of the tooltip."""
    over = page.locator(f"{chart} .u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    page.mouse.move(box["x"] + share * box["width"], box["y"] + height)
    return page.locator(".tooltip").inner_text().split("\n")


def probe(page, canvas, across, down):
    """Point at a share of a canvas; return the lines of the tooltip and the pixels around the pointer."""
    canvas.scroll_into_view_if_needed()
    page.mouse.move(2, 2)
    box, pixels = canvas.bounding_box(), image(canvas)
    x, y = int(across * (pixels.shape[1] - 1)), int(down * (pixels.shape[0] - 1))
    page.mouse.move(box["x"] + x + 0.5, box["y"] + y + 0.5)
    tip = page.locator(".tooltip")
    return (tip.inner_text().split("\n") if tip.is_visible() else []), pixels[
        y - 2 : y + 3, x - 2 : x + 3
    ]


def colour(page, expression):
    """Evaluate a colour of the page, such as ``cf.kind(0, 3)``, as numbers."""
    code = f"""() => {{ const e = document.createElement('i'); e.style.color = {expression};
      document.body.append(e); const found = getComputedStyle(e).color; e.remove(); return found; }}"""
    return rgb(page.evaluate(code))
