"""The report as a reader meets it: a double click on a file."""

import pytest

EVIL = "<script>alert(1)</script>"
COUNT = """(canvas) => {
  const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  const colours = new Set();
  for (let k = 0; k < data.length; k += 4) if (data[k + 3] > 200) colours.add(data.slice(k, k + 3).join());
  return colours.size;
}"""
NEAR = """(canvas, [r, g, b]) => {
  const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  let count = 0;
  for (let k = 0; k < data.length; k += 4) {
    const away = Math.abs(data[k] - r) + Math.abs(data[k + 1] - g) + Math.abs(data[k + 2] - b);
    if (data[k + 3] > 150 && away < 60) count++;
  }
  return count;
}"""
BLUE, ORANGE = [47, 109, 179], [217, 102, 43]  # the first two of figure.COLOURS
LIGHT_BLUE = [106, 167, 232]  # the first on dark ground
CHART = "figure[data-measure=test_accuracy]"


def pixels(page, colour, chart="figure[data-measure=test_accuracy]"):
    """Count the pixels of a colour in a chart."""
    return page.locator(f"{chart} canvas").evaluate(NEAR, colour)


def test_it_opens_from_a_file_without_a_request(tab, report):
    watched = tab()
    page = watched.open(report)
    assert [url for url in watched.requests if url != report] == []
    assert page.title() == "A report"
    assert page.locator("section").count() == 11
    assert page.locator("table.summary tbody tr").count() == 3


def test_a_name_that_is_code_stays_text(tab, report):
    page = tab().open(report)
    assert EVIL in page.locator("table.summary").inner_text()
    assert EVIL in page.locator("#curves .legend").inner_text()
    assert page.locator("main script").count() == 0


def test_curves_are_drawn(tab, report):
    page = tab().open(report)
    for key in ("test_accuracy", "test_loss"):
        assert pixels(page, BLUE, f"figure[data-measure={key}]") > 200
        assert pixels(page, ORANGE, f"figure[data-measure={key}]") > 100
    inner, outer = (page.locator(f"{CHART}{part}").bounding_box() for part in (" canvas", ""))
    assert inner["x"] + inner["width"] <= outer["x"] + outer["width"] + 1


def test_hovering_shows_values(tab, report):
    page = tab().open(report)
    over = page.locator(f"{CHART} .u-over")
    over.scroll_into_view_if_needed()
    over.hover(position={"x": 200, "y": 80})
    tooltip = page.locator(".tooltip").inner_text()
    assert "round " in tooltip
    assert "FedAvg: " in tooltip
    assert "±" in tooltip
    assert "%" in tooltip
    page.mouse.move(2, 2)
    assert not page.locator(".tooltip").is_visible()


def axis(page):
    return page.locator("#curves .bar input[type=number]").evaluate_all(
        "(all) => all.map((e) => Number(e.value))"
    )


def test_dragging_zooms_all_charts_and_double_click_shows_all(tab, report):
    page = tab().open(report)
    assert axis(page) == [4, 160]
    over = page.locator(f"{CHART} .u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 60, steps=5)
    page.mouse.up()
    low, high = axis(page)
    assert 38 <= low <= 48
    assert 77 <= high <= 87
    scale = "() => [...document.querySelectorAll('#curves .chart')].length"
    assert page.evaluate(scale) >= 2
    over.dblclick(position={"x": 50, "y": 50})
    assert axis(page) == [4, 160]
    page.get_by_label("first round shown").fill("100")
    page.get_by_label("first round shown").press("Enter")
    assert axis(page) == [100, 160]
    page.get_by_role("button", name="Show all").click()
    assert axis(page) == [4, 160]


def test_the_legend_hides_and_shows(tab, report):
    page = tab().open(report)
    key = page.locator("#curves .key", has_text="FedAvg")
    assert pixels(page, BLUE) > 200
    key.click()
    # another variant of the method, which has its colour and another line
    page.locator("#curves .key", has_text=EVIL).click()
    page.wait_for_timeout(100)
    assert key.get_attribute("aria-pressed") == "false"
    assert pixels(page, BLUE) == 0
    key.click()
    page.wait_for_timeout(100)
    assert pixels(page, BLUE) > 200


def test_smoothing_flattens_the_curves(tab, report):
    page = tab().open(report)
    image = "() => document.querySelector('#curves canvas').toDataURL()"
    before = page.evaluate(image)
    slider = page.locator("#curves-smoothing")
    slider.focus()
    for _ in range(5):
        slider.press("ArrowRight")
    page.wait_for_timeout(100)
    assert page.locator("#curves-smoothing + output").inner_text() == "mean of 11"
    assert page.evaluate(image) != before
    assert page.evaluate("() => cf.smooth([0, 3, 6, 0], 3)") == [0, 3, 3, 0]


def test_who_forgot_what_after_round_120_in_three_steps(tab, report):
    """The colleague's question, with the answer that the runs were made with: client 3."""
    page = tab().open(report)
    page.locator("nav").get_by_role("link", name="Who forgets what, when").click()
    slider = page.locator("#round")
    assert slider.get_attribute("aria-valuetext") == "round 160"
    slider.evaluate("(e) => { e.value = 29; e.dispatchEvent(new Event('input')); }")
    answer = page.locator(".answer").inner_text()
    assert "After round 120, FedAvg" in answer
    assert "most on client 3" in answer
    assert "CFL-Core-Set" in answer
    worst = page.locator("table.forgotten tbody tr").first.inner_text()
    assert worst.startswith("client 3")
    assert "coat 100 %" in worst
    page.locator("table.forgotten button").first.click()
    assert (
        page.locator("figure[data-measure=pair] figcaption")
        .inner_text()
        .startswith("Accuracy on client 3")
    )
    page.get_by_role("button", name="Accuracy", exact=True).click()
    assert page.locator("#forgetting .scale").first.inner_text().split("\n")[0] == "0 %"
    # what a cell is, and on how many samples it rests
    meaning = page.locator("#forgetting").inner_text()
    assert "measured on the common test set (20 samples)" in meaning
    assert "not measured on the client's own samples" in meaning
    assert "test samples of its classes" in meaning


def test_before_it_happened_nobody_had_forgotten(tab, report):
    page = tab().open(report)
    page.locator("#round").evaluate("(e) => { e.value = 15; e.dispatchEvent(new Event('input')); }")
    words = page.locator(".answer").inner_text()
    assert "After round 64" in words
    assert float(words.split("has forgotten ")[1].split(" points")[0]) < 10


def test_maps_are_drawn_and_read(tab, report):
    page = tab().open(report)
    for place in ("#forgetting", "#weights", "#scenario"):
        canvas = page.locator(f"{place} .painted canvas").first
        canvas.scroll_into_view_if_needed()
        assert canvas.evaluate(COUNT) > 8
        box = canvas.bounding_box()
        page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 12)
        assert page.locator(".tooltip").is_visible()


def test_every_chart_has_a_table(tab, report):
    page = tab().open(report)
    figures = page.locator("main figure").filter(visible=True)
    for k in range(figures.count()):
        figure = figures.nth(k)
        figure.locator("details.as-table > summary").click()
        figure.locator("details.as-table tbody tr").nth(1).wait_for()  # built after it was opened


def test_dark_mode_follows_the_system_and_the_button(tab, report):
    light, dark = tab(), tab(scheme="dark")
    ground = "() => getComputedStyle(document.body).backgroundColor"
    assert light.open(report).evaluate(ground) == "rgb(246, 247, 249)"
    assert dark.open(report).evaluate(ground) == "rgb(16, 20, 24)"
    assert pixels(dark.page, LIGHT_BLUE) > 200
    button = light.page.locator("#theme")
    button.click()
    button.click()
    assert button.inner_text() == "Colours: Dark"
    assert light.page.evaluate(ground) == "rgb(16, 20, 24)"
    assert pixels(light.page, LIGHT_BLUE) > 200


def test_with_the_keyboard_alone(tab, report):
    page = tab().open(report)
    reached = []
    for _ in range(70):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                "() => { const e = document.activeElement; return e.id || e.className || e.tagName; }"
            )
        )
    assert {"theme", "A", "sorter", "key", "curves-smoothing", "chart"} <= set(reached)
    chart = page.locator(f"{CHART} .chart")
    chart.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert page.locator("#spoken").inner_text().startswith("round 8: FedAvg ")
    assert page.locator(".tooltip").is_visible()
    page.keyboard.press("End")
    assert page.locator("#spoken").inner_text().startswith("round 160: ")
    page.keyboard.press("+")
    assert axis(page) == [82, 160]
    page.keyboard.press("0")
    assert axis(page) == [4, 160]
    page.locator("#forgetting canvas").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert page.locator("#spoken").inner_text().startswith("client 1, data set 1")
    page.keyboard.press("Enter")
    assert (
        "client 1, data set 1" in page.locator("figure[data-measure=pair] figcaption").inner_text()
    )
    page.locator(".sorter").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("th[aria-sort=descending]").count() == 1
    assert page.evaluate("() => document.activeElement.className") == "sorter"


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_nothing_is_cut(tab, report, width):
    page = tab(width=width, height=844).open(report)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    wide = """() => [...document.querySelectorAll('section *')].filter((e) => {
      const box = e.getBoundingClientRect();
      return !e.closest('.scroll') && !e.closest('.unseen') && box.width && box.right > innerWidth + 1;
    }).map((e) => e.className || e.tagName)"""
    assert page.evaluate(wide) == []


def test_it_prints_in_light_colours_without_controls(tab, report):
    watched = tab(scheme="dark")
    page = watched.open(report)
    page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    page.wait_for_timeout(100)
    assert pixels(page, BLUE) > 100
    assert not page.locator("nav").is_visible()
    assert not page.locator("#curves .bar").is_visible()
    assert len(page.pdf()) > 20_000


def test_without_scripts_the_summary_is_there(chromium, report):
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report)
    assert "FedAvg" in page.inner_text("noscript table")
    context.close()


def test_models_that_clients_follow_are_colours_with_names(tab, report):
    page = tab().open(report)
    canvas = page.locator("#clusters canvas")
    canvas.scroll_into_view_if_needed()
    for colour in (BLUE, ORANGE):
        assert canvas.evaluate(NEAR, colour) > 200
    canvas.focus()
    for key in ("ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    assert "client 1, round 8" in page.locator(".tooltip").inner_text()
    assert "none" in page.locator(".tooltip").inner_text()
    page.locator("#clusters details summary").click()
    page.locator("#clusters details tbody tr").first.wait_for()  # built after it was opened
    assert "model 2" in page.locator("#clusters details").inner_text()
