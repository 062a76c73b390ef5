// Curves over rounds: all charts share a legend, a zoom and a smoothing; hover or arrow keys read values.
"use strict";

// Centred moving mean; near the ends over as many values as there are on both sides.
cf.smooth = (values, window) => {
  const reach = Math.floor(window / 2);
  if (!reach) return values;
  return values.map((value, k) => {
    const near = Math.min(reach, k, values.length - 1 - k);
    let sum = 0, count = 0;
    for (let j = k - near; j <= k + near; j++) if (values[j] != null) { sum += values[j]; count++; }
    return value == null || !count ? value : sum / count;
  });
};

// Linear interpolation at other places; nothing outside the curve.
cf.interpolate = (x, y, places) => {
  let k = 0;
  return places.map((place) => {
    if (!x.length || place < x[0] || place > x[x.length - 1]) return null;
    while (k < x.length - 2 && x[k + 1] < place) k++;
    if (x.length === 1 || x[k] === place) return y[k];
    if (y[k] == null || y[k + 1] == null) return null;
    return y[k] + (y[k + 1] - y[k]) * (place - x[k]) / (x[k + 1] - x[k]);
  });
};

cf.Chart = class {
  // curves: [{name, style, x, y, d}]; panel: what all charts of a group share.
  constructor(title, unit, panel) {
    Object.assign(this, { title, unit: cf.suffix(unit), panel, curves: [] });
    this.box = cf.el("div", {
      class: "chart", tabindex: "0", role: "application", keydown: (event) => this.key(event),
      mouseleave: () => cf.tooltip.hide(), blur: () => cf.tooltip.hide(),
    });
    this.table = cf.asTable(() => this.rows(), title, () => cf.chartPicture(this));
    this.node = cf.el("figure", {}, cf.el("figcaption", {}, title, unit ? cf.el("span", { class: "soft" }, ` ${unit}`) : null),
      this.box, this.table);
    this.request = cf.repaintOnResize(this.node, () => this.paint());
  }

  update(curves) {
    const shape = (list) => list.map((c) => `${c.style}${c.d ? 1 : 0}${c.name}`).join();
    this.same = this.plot && shape(curves) === shape(this.curves);
    this.curves = curves;
    this.box.setAttribute("aria-label", this.description());
    this.table.refill();
    this.request();
  }

  refresh() {
    this.plot.setData(this.data(), false);
    this.view();
  }

  description() {
    const shown = this.shown(), ends = shown.slice(0, 12).map((c) => `${c.name} ends at ${cf.number(c.y[c.y.length - 1])}${this.unit}`);
    return `${this.title}. ${ends.join("; ")}${shown.length > 12 ? `; and ${shown.length - 12} more curves` : ""}. Arrow keys read values, plus and minus zoom, 0 shows all.`;
  }

  shown() { return this.curves.filter((c) => c.x.length && !this.panel.hidden.has(c.name)); }

  rows() {
    const places = [...new Set(this.curves.flatMap((c) => c.x))].sort((a, b) => a - b);
    const lookup = this.curves.map((c) => new Map(c.x.map((x, k) => [x, k])));
    return [["round", ...this.curves.map((c) => c.name)], places.map((x) => [String(x), ...this.curves.map((c, k) => {
      const at = lookup[k].get(x);
      return at == null ? "" : cf.number(c.y[at]) + (c.d?.[at] != null ? ` ± ${cf.number(c.d[at])}` : "");
    })])];
  }

  data() {
    const places = [...new Set(this.curves.flatMap((c) => c.x))].sort((a, b) => a - b);
    this.places = places;
    this.columns = [];
    const data = [places];
    for (const curve of this.curves) {
      const y = cf.smooth(curve.y, this.panel.window);
      this.columns.push(data.length);
      data.push(cf.interpolate(curve.x, y, places));
      if (curve.d) {
        const d = cf.smooth(curve.d, this.panel.window);
        data.push(cf.interpolate(curve.x, y.map((v, k) => (v == null || d[k] == null ? null : v + d[k])), places));
        data.push(cf.interpolate(curve.x, y.map((v, k) => (v == null || d[k] == null ? null : v - d[k])), places));
      }
    }
    return data;
  }

  paint() {
    const width = this.box.clientWidth;
    if (!width || !this.curves.length) return; // painted as soon as there is room
    const same = this.same && this.plot.width === width;
    this.same = false;
    if (same) { this.refresh(); return; }
    const data = this.data(), ink = cf.colour("--soft"), line = cf.colour("--line");
    const series = [{}], bands = [];
    for (const curve of this.curves) {
      const colour = cf.series(curve.style), show = !this.panel.hidden.has(curve.name);
      series.push({
        show, stroke: colour, width: this.thick(data[0].length), dash: cf.dash(curve.style), spanGaps: true,
        points: { show: curve.x.length < 2, size: 7, fill: colour },
      });
      if (curve.d) {
        const edge = { show, stroke: "transparent", width: 0, points: { show: false }, spanGaps: true };
        series.push({ ...edge }, { ...edge });
        bands.push({ series: [series.length - 2, series.length - 1], fill: cf.withAlpha(colour, 0.15) });
      }
    }
    this.plot?.destroy();
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    this.plot = new uPlot({
      width, height: Math.round(this.panel.height ? Math.min(this.panel.height, Math.max(260, width * 0.8)) : Math.max(200, Math.min(280, width * 0.55))), series, bands,
      padding: [10, this.margin(width), 0, 0], legend: { show: false },
      scales: { x: { time: false }, y: { range: (u, low, high) => this.range(low, high) } },
      axes: [
        {
          ...axis, size: 30, gap: 6, grid: { show: false }, label: this.below(), labelSize: 20, labelFont: "12px system-ui, sans-serif", space: this.panel.calendar ? 70 : width > 600 ? 90 : 50,
          ...(cf.years(this.panel.calendar) ? { splits: (u, _, low, high) => this.splits(low, high, u.width) } : {}),
          values: (u, ticks) => ticks.map((tick) => this.mark(tick)), incrs: [1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000, 2000, 2500, 5000, 10000, 20000, 50000, 100000],
        },
        { ...axis, size: 48, gap: 6, values: (u, ticks) => ticks.map(cf.tick) },
      ],
      cursor: {
        sync: { key: this.panel.key }, drag: { x: true, y: false, setScale: false }, y: false, focus: { prox: 16 },
        points: { size: 7, show: (u, k) => (this.columns.includes(k) ? this.point(u, k) : false) },
      },
      hooks: {
        drawAxes: [(u) => this.drawThin(u)],
        draw: [(u) => this.drawNames(u)],
        setCursor: [(u) => this.hover(u)],
        setSelect: [(u) => {
          if (u.select.width > 4) this.panel.zoom(u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x"));
          u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        }],
      },
    }, data, this.box);
    this.plot.over.addEventListener("mouseenter", () => { this.panel.hovered = this; });
    this.plot.over.addEventListener("mouseleave", () => { this.panel.hovered = null; cf.tooltip.hide(); });
    this.plot.over.addEventListener("dblclick", () => this.panel.zoom());
    this.view();
  }

  point(u, k) {
    const colour = cf.series(this.curves[this.columns.indexOf(k)].style);
    return cf.el("div", { class: "u-cursor-pt", style: { background: colour, width: "7px", height: "7px", marginLeft: "-3.5px", marginTop: "-3.5px" } });
  }

  // A chart of the first screen draws more, and leaves room for it (bigchart.js).
  drawThin() {}

  drawNames() {}

  margin() { return 14; }

  thick() { return 2; }

  // Months are marked at every January, by the year alone, or one by one where few are shown.
  splits(low, high, width) {
    const years = cf.years(this.panel.calendar).filter((round) => round >= low && round <= high), room = Math.max(2, Math.floor(width / 70));
    if (years.length > 2) { const step = Math.ceil(years.length / room); return years.filter((_, k) => k % step === 0); }
    const rounds = Array.from({ length: Math.floor(high) - Math.ceil(low) + 1 }, (_, k) => Math.ceil(low) + k), step = Math.ceil(rounds.length / room);
    return rounds.filter((_, k) => k % step === 0);
  }

  mark(round) {
    const [low, high] = this.panel.limits ?? [this.places[0], this.places[this.places.length - 1]];
    const years = cf.years(this.panel.calendar)?.filter((one) => one >= low && one <= high) ?? [];
    return years.length > 2 ? this.when(round).slice(0, 4) : this.when(round);
  }

  when(round) { return cf.when(this.panel.calendar, round) ?? cf.tick(round); }

  below() { return this.panel.calendar ? (this.panel.calendar.ahead ? "period evaluated" : "period") : "round"; }

  range(low, high) {
    if (low == null || high == null) return [0, 1];
    if (low === high) return [low - 0.5, high + 0.5];
    const room = 0.06 * (high - low);
    return [low >= 0 && low < room ? 0 : low - room, high + room];
  }

  // Shows or hides the curves of some names, as the legend has it.
  toggle(names) {
    this.curves.forEach((curve, k) => {
      const at = this.columns[k], show = !this.panel.hidden.has(curve.name);
      if (names.has(curve.name)) for (let s = at; s <= at + (curve.d ? 2 : 0); s++) this.plot.setSeries(s, { show }, false);
    });
    this.plot.redraw();
    this.box.setAttribute("aria-label", this.description());
  }

  view() {
    const last = this.places[this.places.length - 1] ?? 1, first = Math.min(this.places[0] ?? 0, last - 1);
    const [min, max] = this.panel.limits ?? [first, last];
    this.plot.setScale("x", { min, max });
  }

  hover(u) {
    if (this.panel.hovered !== this) return;
    if (u.cursor.idx == null || u.cursor.left < 0) { cf.tooltip.hide(); return; }
    const x = this.places[u.cursor.idx], lines = this.values(u.cursor.idx);
    const box = u.over.getBoundingClientRect();
    const name = cf.when(this.panel.calendar, x), most = 12, here = u.cursor.top;
    // The nearest curves first where there are too many for a tooltip.
    const near = lines.length <= most ? lines : [...lines].sort((a, b) => Math.abs(u.valToPos(a[2], "y") - here) - Math.abs(u.valToPos(b[2], "y") - here)).slice(0, most);
    cf.tooltip.show([cf.el("b", {}, `round ${x}${name ? `, ${name}` : ""}`), ...near.map(([curve, text]) => cf.el("div", {},
      cf.el("span", { class: "swatch", style: { background: cf.series(curve.style) } }), `${curve.name}: ${text}`)), lines.length > most ? cf.el("div", {}, `and ${lines.length - most} more`) : null].filter(Boolean),
    box.left + u.cursor.left, box.top + (u.cursor.top > 0 ? u.cursor.top : 20));
  }

  values(index) {
    return this.shown().flatMap((curve) => {
      const value = this.plot.data[this.columns[this.curves.indexOf(curve)]][index];
      if (value == null) return [];
      const high = curve.d ? this.plot.data[this.columns[this.curves.indexOf(curve)] + 1][index] : null;
      return [[curve, cf.number(value) + this.unit + (high == null ? "" : ` ± ${cf.number(high - value)}`), value]];
    });
  }

  key(event) {
    const u = this.plot, at = u.cursor.idx ?? this.places.length - 1, step = event.shiftKey ? 10 : 1;
    const span = this.panel.limits ?? [this.places[0], this.places[this.places.length - 1]];
    const width = span[1] - span[0], middle = this.places[at];
    const zoomed = (share) => this.panel.zoom(middle - (middle - span[0]) * share, middle + (span[1] - middle) * share);
    const actions = {
      ArrowLeft: () => this.read(Math.max(0, at - step)),
      ArrowRight: () => this.read(Math.min(this.places.length - 1, at + step)),
      Home: () => this.read(0),
      End: () => this.read(this.places.length - 1),
      "+": () => zoomed(0.5), "=": () => zoomed(0.5), "-": () => width && zoomed(2),
      0: () => this.panel.zoom(), Escape: () => this.panel.zoom(),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }

  read(index) {
    const best = this.values(index)[0];
    this.panel.hovered = this;
    this.plot.setCursor({
      left: this.plot.valToPos(this.places[index], "x"), top: best ? this.plot.valToPos(best[2], "y") : 10,
    });
    cf.announce(`round ${this.places[index]}: ${this.values(index).map(([c, text]) => `${c.name} ${text}`).join(", ")}`);
  }
};

// Topics of the measures, each with a heading of its own.
cf.topics = { results: "Results", drift: "Drift and information loss", costs: "Traffic and privacy" };

// Experiments that are drawn at first: of more, the best.
cf.MOST_CURVES = 60;

cf.curves = (key = "curves") => {
  const kept = key === "curves", saved = (name) => (kept ? cf.view.get(name) : null), window = 2 * Number(saved("smooth") ?? 0) + 1;
  const panel = { key, hidden: new Set(kept ? cf.view.all("hide") : []), window, limits: saved("rounds")?.split("-").map(Number) ?? null, hovered: null, charts: new Map() };
  const every = (act) => { for (const chart of panel.charts.values()) if (chart.plot) act(chart); };
  const from = cf.el("input", { type: "number", min: 0, "aria-label": "first round shown", change: () => typed() });
  const to = cf.el("input", { type: "number", min: 0, "aria-label": "last round shown", change: () => typed() });
  const all = cf.el("button", { type: "button", class: "quiet", disabled: true, click: () => panel.zoom() }, "Show all");
  const typed = () => panel.zoom(Number(from.value), Number(to.value));
  panel.zoom = (low, high) => {
    const places = [...panel.charts.values()].flatMap((chart) => chart.curves.flatMap((curve) => [curve.x[0], curve.x.at(-1)])).filter((x) => x != null);
    const first = Math.min(...places), last = Math.max(...places);
    const limits = low == null ? [first, last] : [Math.max(first, low), Math.min(last, high)];
    if (!(limits[1] > limits[0])) return;
    panel.limits = limits[0] <= first && limits[1] >= last ? null : limits;
    [from.value, to.value] = limits.map(Math.round);
    all.disabled = !panel.limits;
    if (kept) cf.view.set("rounds", panel.limits && panel.limits.map(Math.round).join("-"));
    every((chart) => chart.view());
  };
  const smoothing = () => (panel.window === 1 ? "off" : `mean of ${panel.window}`);
  const shown = cf.el("output", {}, smoothing());
  const slider = cf.el("input", {
    type: "range", min: 0, max: 25, value: (panel.window - 1) / 2, id: `${key}-smoothing`, input: () => {
      panel.window = 2 * Number(slider.value) + 1;
      shown.textContent = smoothing();
      if (kept) cf.view.set("smooth", Number(slider.value) || null);
      every((chart) => chart.refresh());
    },
  });
  const legend = cf.el("div", { class: "legend", role: "group", "aria-label": "Curves shown" });
  // Which curves a reader chose is kept by the shorter list: of those hidden, or of those shown.
  panel.asked = kept && Boolean(cf.view.all("hide").length || cf.view.all("only").length);
  const drawn = () => panel.all.filter((name) => !panel.hidden.has(name));
  const saveHidden = () => {
    panel.asked = true;
    say();
    if (!kept) return;
    const hidden = panel.all.filter((name) => panel.hidden.has(name)), few = hidden.length > drawn().length;
    cf.view.set("hide", few ? null : hidden);
    cf.view.set("only", few ? (drawn().length ? drawn() : [""]) : null);
  };
  const said = cf.el("p", { class: "soft few", role: "status", hidden: true });
  const say = () => {
    const number = drawn().length, all = panel.all.length;
    said.hidden = all <= cf.MOST_CURVES || number === all;
    said.textContent = said.hidden ? "" : `${number} of ${all} experiments are drawn${panel.asked ? "." : `, the best by ${panel.ranked}; choose others above, or all with All curves.`}`;
  };
  const begin = (content) => {
    if (kept && panel.all && cf.view.all("only").length) {
      const only = new Set(cf.view.all("only"));
      for (const name of panel.all) if (!only.has(name)) panel.hidden.add(name);
    } else if (kept && !panel.asked) {
      const column = content.columns?.find((c) => content.groups.some((g) => g.cells[c.key])), sign = column?.better === "lower" ? 1 : -1;
      const score = (g) => sign * (g.cells[column?.key]?.mean ?? sign * Infinity);
      const best = [...content.groups].sort((a, b) => cf.finished(b) - cf.finished(a) || (score(a) > score(b)) - (score(a) < score(b)));
      panel.ranked = column?.heading ?? "what is recorded";
      panel.hidden = new Set(best.slice(cf.MOST_CURVES).map((g) => g.name));
      for (const g of best.slice(0, cf.MOST_CURVES)) panel.hidden.delete(g.name);
    }
  };
  const choose = (hide) => {
    for (const name of panel.all) if (hide) panel.hidden.add(name); else panel.hidden.delete(name);
    for (const key of legend.children) key.setAttribute("aria-pressed", String(!hide));
    saveHidden();
    every((chart) => chart.toggle(new Set(panel.all)));
  };
  const both = cf.el("div", { class: "field", hidden: true }, cf.el("button", { type: "button", class: "quiet", click: () => choose(false) }, "All curves"), cf.el("button", { type: "button", class: "quiet", click: () => choose(true) }, "No curves"));
  const grids = Object.entries(cf.topics).map(([topic, title]) => cf.el("div", { "data-topic": topic, id: kept ? `curves-${topic}` : null, hidden: true }, kept ? cf.el("h3", {}, title) : null, cf.el("div", { class: "charts" })));
  const grid = (topic) => grids.find((one) => one.dataset.topic === (topic ?? "results"));
  const bar = cf.el("div", { class: "bar" }, both,
    cf.el("label", { class: "field" }, cf.el("span", {}, "Smoothing"), slider, shown),
    cf.el("div", { class: "field" }, cf.el("span", {}, "Rounds"), from, cf.el("span", {}, "to"), to, all));
  const button = (group, k) => cf.el("button", {
    type: "button", class: "key", "aria-pressed": String(!panel.hidden.has(group.name)), click: (event) => {
      if (!panel.hidden.delete(group.name)) panel.hidden.add(group.name);
      event.currentTarget.setAttribute("aria-pressed", String(!panel.hidden.has(group.name)));
      saveHidden();
      every((chart) => chart.toggle(new Set([group.name])));
    },
  }, cf.lineSample(group.style ?? k), group.name);
  return {
    nodes: [legend, bar, said, ...grids],
    legend,
    results: grids[0],
    panel,
    update(content) {
      const names = content.groups.map((group) => `${group.name} ${group.style}`).join("\n");
      panel.all = content.groups.map((group) => group.name);
      panel.calendar = content.calendar ?? null;
      both.hidden = panel.all.length < 6;
      if (names !== panel.names) {
        begin(content);
        legend.replaceChildren(...content.groups.map(button));
      }
      panel.names = names;
      say();
      const keys = content.measures.map((measure) => measure.key);
      for (const old of [...panel.charts.keys()]) if (!keys.includes(old)) { panel.charts.get(old).node.remove(); panel.charts.delete(old); }
      for (const measure of content.measures) {
        if (panel.charts.has(measure.key)) continue;
        const chart = new cf.Chart(measure.title, measure.unit, panel);
        chart.node.dataset.measure = measure.key;
        panel.charts.set(measure.key, chart);
        grid(measure.topic).querySelector(".charts").append(chart.node);
      }
      for (const one of grids) one.hidden = !one.querySelector("figure");
      for (const measure of content.measures) {
        const chart = panel.charts.get(measure.key);
        chart.update(measure.curves.map((curve, k) => ({ ...curve, name: content.groups[k].name, style: content.groups[k].style ?? k })));
      }
      if (document.activeElement !== from && document.activeElement !== to) panel.zoom(...(panel.limits ?? []));
    },
  };
};
