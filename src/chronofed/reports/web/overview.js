// The first screen: the verdict, the numbers behind it, one large chart, differences, clients and classes.
// Words and numbers are made by chronofed.reports.verdict and chronofed.reports.overview; nothing is computed here.
"use strict";

cf.verdict = (about) => [
  cf.el("h2", { class: "headline" }, about.verdict.headline),
  ...[["clear", about.verdict.clear], ["unresolved", about.verdict.unresolved], ...about.verdict.failures.map((text) => ["failed", text]), ...about.verdict.remarks.map((text) => ["remark", text])]
    .filter(([, text]) => text).map(([kind, text]) => cf.el("p", { class: `verdict ${kind}` }, text)),
];

cf.tiles = (about) => cf.el("div", { class: "tiles" }, about.tiles.map((tile) => cf.el("div", { class: "tile" },
  cf.el("div", { class: "soft" }, tile.label),
  cf.el("div", { class: "value" }, tile.value.replace(/ ± .*/, ""), cf.el("span", { class: "spread" }, / ± .*/.exec(tile.value)?.[0] ?? "")),
  tile.about ? cf.el("div", { class: "soft" }, tile.about) : null)));

// A chart of text and shapes that is drawn again at its new width.
cf.Drawing = class {
  constructor(label, draw, table) {
    this.svg = cf.svg("svg", { role: "img", class: "drawing" });
    this.node = cf.el("div", {}, this.svg, cf.asTable(table, label, () => cf.drawingPicture(this.svg)));
    this.draw = draw;
    this.label = label;
    this.request = cf.repaintOnResize(this.node, () => this.paint());
  }

  show() { this.ready = true; this.request(); }

  paint() {
    const width = this.node.clientWidth;
    if (!width || !this.ready) return; // painted as soon as there is room, and something to show
    const { height, parts, words } = this.draw(width);
    for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}`, "aria-label": `${this.label}: ${words}` })) this.svg.setAttribute(name, value);
    this.svg.replaceChildren(...parts);
    this.node.querySelector("details").refill();
  }
};
cf.text = (x, y, text, attributes = {}) => cf.svg("text", { x, y, ...attributes }, text);
cf.short = (text, letters) => (text.length > letters ? `${text.slice(0, Math.max(1, letters - 1))}…` : text);
// Round marks of an axis from low to high.
cf.marks = (low, high, most) => {
  const raw = (high - low) / Math.max(1, most) || 1, power = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 2.5, 5, 10].map((k) => k * power).find((s) => s >= raw);
  return Array.from({ length: Math.floor(high / step) - Math.ceil(low / step) + 1 }, (_, k) => (Math.ceil(low / step) + k) * step);
};

cf.differences = () => {
  let about, groups, row = null;
  const items = () => { const all = about.differences.filter((d) => d.row === row), points = all.filter((d) => d.points); return (points.length ? points : all).slice(0, 6); };
  const ends = (d) => (d.ends ? `${cf.number(d.ends[0], 2)} to ${cf.number(d.ends[1], 2)}` : "no interval of one seed");
  const table = () => [["number", "difference", "95 % interval", "p", "seeds"], about.differences.filter((d) => d.row === row).map((d) => [d.heading, d.text, ends(d), d.p, d.seeds.map(([seed, value]) => `${seed}: ${cf.number(value, 2)}`).join("; ")])];
  const draw = (width) => {
    const shown = items(), left = Math.min(170, width * 0.34), right = 74, line = 42, top = 10;
    const every = shown.flatMap((d) => [...(d.ends ?? []), ...d.seeds.map((s) => s[1]), d.mean, 0]);
    // A very wide interval may leave the chart; its ends are cut there.
    const near = Math.max(1e-9, ...shown.flatMap((d) => [...d.seeds.map((s) => Math.abs(s[1])), Math.abs(d.mean)])) * 2.5;
    const low = Math.max(-near, Math.min(...every)), high = Math.min(near, Math.max(...every)), pad = 0.05 * (high - low || 1);
    const span = width - left - right, at = (v) => left + span * (Math.max(low - pad, Math.min(high + pad, v)) - low + pad) / (high - low + 2 * pad);
    const bottom = top + line * shown.length, parts = [];
    for (const mark of cf.marks(low, high, Math.max(4, Math.floor(span / 45)))) parts.push(
      cf.svg("line", { x1: at(mark), x2: at(mark), y1: top, y2: bottom, class: mark === 0 ? "zero" : "grid" }),
      cf.text(at(mark), bottom + 16, `${mark > 0 ? "+" : ""}${cf.tick(mark)}`, { "text-anchor": "middle", class: "soft" }));
    shown.forEach((d, k) => {
      const y = top + line * (k + 0.42), kind = d.resolved ? (d.better ? "gain" : "loss") : "open";
      parts.push(cf.text(0, y + 4, cf.short(d.heading, Math.floor(left / 7)), {}), cf.text(width, y + 4, d.ends ? d.p : "one seed", { "text-anchor": "end", class: d.resolved ? "clear" : "soft" }));
      if (d.ends) parts.push(cf.svg("line", { x1: at(d.ends[0]), x2: at(d.ends[1]), y1: y, y2: y, class: `interval ${kind}` }));
      parts.push(...d.seeds.slice(0, 40).map(([, v]) => cf.svg("line", { x1: at(v), x2: at(v), y1: y + 9, y2: y + 15, class: `tick ${kind}` })));
      parts.push(cf.svg("circle", { cx: at(d.mean), cy: y, r: 5, class: `mean ${kind}`, "data-key": d.key, "data-resolved": d.resolved }));
    });
    parts.push(cf.text(at(0) - 10, bottom + 34, "◂ lower", { "text-anchor": "end", class: "soft" }), cf.text(at(0) + 10, bottom + 34, "higher ▸", { class: "soft" }));
    return { height: bottom + 42, parts, words: shown.map((d) => `${d.heading} ${d.text} (${d.p})`).join("; ") };
  };
  const title = cf.el("h3"), drawing = new cf.Drawing("Differences", draw, table), bar = cf.el("div", { class: "bar" });
  const show = () => {
    const other = about.differences.find((d) => d.row === row);
    title.replaceChildren(`${groups[row].name} minus ${groups[other.reference].name}, seed by seed `, cf.el("span", { class: "soft" }, `${items()[0].points ? "points, " : ""}mean and 95 % interval; ticks are seeds`));
    drawing.show();
  };
  return {
    node: cf.el("div", { class: "differences" }, title, bar, drawing.node),
    update(content) {
      [about, groups] = [content.overview, content.groups];
      const rows = [...new Set(about.differences.map((d) => d.row))];
      if (!rows.includes(row)) row = about.subject;
      bar.replaceChildren(...(rows.length > 1 ? [cf.select("Experiment", rows.map((k) => [k, groups[k].name]), row, (k) => { row = Number(k); show(); })] : []));
      show();
    },
  };
};

cf.clients = () => {
  let about, groups;
  const rows = () => {
    const first = [about.subject, about.reference].filter((k) => k != null), all = about.clients.rows, rank = (r) => 2 * first.includes(r.group) + cf.finished(groups[r.group]);
    return [...all].sort((a, b) => rank(b) - rank(a)).slice(0, 6).sort((a, b) => a.group - b.group);
  };
  const table = () => [["experiment", "clients", "worst", "%"], about.clients.rows.map((r) => [groups[r.group].name, String(r.clients), r.worst[0], r.worst[2]])];
  const draw = (width) => {
    const shown = rows(), longest = Math.max(...shown.map((r) => groups[r.group].name.length)), left = Math.min(width * 0.38, Math.max(90, 18 + 8 * longest)), line = 44, values = shown.flatMap((r) => r.values.map((v) => v[1]));
    const low = Math.max(0, 10 * Math.floor(Math.min(...values) / 10)), at = (v) => left + (width - left - 20) * (v - low) / (100 - low || 1), bottom = line * shown.length + 8, parts = [];
    for (const mark of cf.marks(low, 100, Math.max(2, Math.floor((width - left) / 70)))) parts.push(cf.svg("line", { x1: at(mark), x2: at(mark), y1: 4, y2: bottom, class: "grid" }), cf.text(at(mark), bottom + 16, `${cf.tick(mark)} %`, { "text-anchor": "middle", class: "soft" }));
    shown.forEach((r, k) => {
      const y = line * k + 32, words = `worst: ${cf.short(r.worst[0], 26)}, ${r.worst[2]} %`, wide = 6.8 * words.length;
      const middle = Math.max(wide / 2, Math.min(width - wide / 2, at(r.worst[1])));
      parts.push(cf.text(0, y + 4, cf.short(groups[r.group].name, Math.floor((left - 12) / 7.6)), { class: "name" }));
      parts.push(...r.values.map(([name, value]) => cf.svg("circle", { cx: at(value), cy: y, r: 5, fill: `var(--c${groups[r.group].style % 8})`, "fill-opacity": 0.55 }, cf.svg("title", {}, `${name}: ${cf.number(value)} %`))));
      parts.push(cf.text(middle, y - 12, words, { class: "soft", "text-anchor": "middle" }));
    });
    const words = shown.map((r) => `${groups[r.group].name}, worst ${r.worst[0]} at ${r.worst[2]} %`).join("; ");
    return { height: bottom + 24, parts, words };
  };
  const drawing = new cf.Drawing("Accuracy by client", draw, table), title = cf.el("h3");
  return {
    node: cf.el("div", { class: "clients" }, title, drawing.node),
    update(content) {
      [about, groups] = [content.overview, content.groups];
      const left = about.clients.rows.length - rows().length;
      title.replaceChildren("Accuracy by client ", cf.el("span", { class: "soft" }, `${about.clients.about}${left > 0 ? `; ${left} further experiments are in the table` : ""}`));
      drawing.show();
    },
  };
};

cf.classMaps = () => {
  let about, groups, maps = [], chosen = [null, null];
  const value = (k, r, c) => { const v = maps[chosen[k]].numbers[r * about.classes.rounds.length + c]; return v === 65535 ? null : v / 10000; };
  const when = (c) => cf.when(about.calendar, about.classes.rounds[c]) ?? String(about.classes.rounds[c]);
  const describe = (k) => (r, c) => [`${about.classes.classes[r]}, ${about.calendar ? `${when(c)} (round ${about.classes.rounds[c]})` : `round ${when(c)}`}`, groups[maps[chosen[k]].group].name, value(k, r, c) == null ? "not known" : `recall ${cf.number(100 * value(k, r, c), 1)} %`];
  const heads = [0, 1].map(() => cf.el("figcaption")), heatmaps = [0, 1].map((k) => new cf.Heatmap({ label: "Recall by class over time", describe: describe(k) }));
  const asRows = (k) => () => [["class", ...about.classes.rounds.map((_, c) => when(c))], about.classes.classes.map((name, r) => [name, ...about.classes.rounds.map((_, c) => (value(k, r, c) == null ? "" : cf.number(100 * value(k, r, c), 1)))])];
  const figures = [0, 1].map((k) => cf.el("figure", { class: "class-map" }, heads[k], heatmaps[k].node, cf.asTable(asRows(k), "Recall by class over time", () => heatmaps[k].picture())));
  const bar = cf.el("div", { class: "bar" }), scale = cf.scale("known", "0 %", "100 %");
  const show = () => figures.forEach((figure, k) => {
    figure.hidden = chosen[k] == null;
    if (figure.hidden) return;
    const group = groups[maps[chosen[k]].group];
    figure.dataset.group = group.name;
    heads[k].replaceChildren(cf.lineSample(group.style), ` ${group.name}`);
    heatmaps[k].update({ rows: about.classes.classes, columns: about.classes.rounds.map((_, c) => when(c)), ramp: "known", value: (r, c) => value(k, r, c) });
    figure.querySelector("details").refill();
  });
  return {
    node: cf.el("div", { class: "classes" }, cf.el("h3", {}, "What is known, when ", cf.el("span", { class: "soft" }, "recall of each class over time, mean over seeds; brown is lost, blue is known")), bar, cf.el("div", { class: "beside" }, figures), scale),
    update(content) {
      [about, groups] = [content.overview, content.groups];
      const names = chosen.map((k) => (k == null ? null : maps[k] && maps[k].name));
      maps = about.classes.maps.map((map) => ({ ...map, name: groups[map.group].name, numbers: cf.numbers(map.values) }));
      const place = (group) => { const k = maps.findIndex((map) => map.group === group); return k < 0 ? null : k; };
      const again = names.map((name) => { const k = maps.findIndex((map) => map.name === name); return k < 0 ? null : k; });
      const first = again[0] ?? place(about.reference) ?? 0, others = maps.map((_, k) => k).filter((k) => k !== first);
      chosen = [first, again[1] ?? (others.includes(place(about.subject)) ? place(about.subject) : others[0] ?? null)];
      const pick = (k) => cf.select(k ? "Beside" : "Experiment", maps.map((map, n) => [n, map.name]), chosen[k], (n) => { chosen[k] = Number(n); show(); });
      bar.replaceChildren(...(maps.length > 2 ? [pick(0), pick(1)] : []));
      show();
    },
  };
};

cf.finished = (group) => group.runs.every((run) => run.state === "finished");
// The height of the large chart: about that of what stands beside it.
cf.firstHeight = (about) => {
  if (!about.differences.length) return 360;
  const rows = new Set(about.differences.map((d) => d.row)).size, numbers = about.differences.filter((d) => d.row === about.subject && d.points).length;
  return Math.max(330, Math.min(620, 42 * Math.min(6, numbers) + 44 * Math.min(6, about.clients.rows.length) + (rows > 1 ? 230 : 190)));
};

cf.overview = () => {
  const words = cf.el("div", { class: "words-of-verdict" }), tiles = cf.el("div"), grid = cf.el("div", { class: "first" });
  const main = cf.el("div", { class: "card" }), side = cf.el("div", { class: "card" }), clients = cf.el("div", { class: "card" }), below = cf.el("div", { class: "card" });
  const panel = { key: "main", hidden: new Set(), window: 1, limits: null, hovered: null, charts: new Map(), height: 450, zoom: (low, high) => { panel.limits = low == null ? null : [low, high]; chart?.view(); } };
  const parts = { differences: cf.differences(), clients: cf.clients(), classes: cf.classMaps() }, legend = cf.el("div", { class: "legend small" });
  let chart = null;
  side.append(parts.differences.node);
  const unknown = cf.el("p", { class: "soft unknown" }, 'The recall of every class over time was not recorded; evaluate.measures = ["macro_f1"] records it.');
  below.append(parts.classes.node, unknown);
  grid.append(main, side, clients);
  return {
    node: cf.el("div", {}, words, tiles, grid, below),
    update(content) {
      const about = content.overview, measure = about.main && content.measures.find((m) => m.key === about.main.measure);
      // The head of a report has these words, also where no script runs.
      if (document.body.classList.contains("live")) words.replaceChildren(...cf.verdict(about), cf.el("p", { class: "soft provenance" }, about.provenance));
      tiles.replaceChildren(cf.tiles(about));
      main.hidden = !measure;
      if (measure) {
        panel.calendar = about.calendar;
        if (!chart || chart.title !== measure.title) { chart = new cf.BigChart(measure.title, measure.unit, panel); chart.node.dataset.main = measure.key; main.replaceChildren(chart.node); chart.node.querySelector("figcaption").after(legend); }
        chart.baselines = about.main.baselines;
        const seeds = about.main.seeds.some((s) => s.length) ? "thin: seeds, thick: mean" : "", season = about.main.season > 1 ? `mean of the last ${about.main.season} periods` : "";
        chart.node.querySelector("figcaption").replaceChildren(`${measure.title}${measure.unit ? `, ${measure.unit}` : ""} `, cf.el("span", { class: "soft" }, [season, seeds, about.main.baselines.length ? "grey: baselines" : ""].filter(Boolean).join("; ")));
        panel.height = cf.firstHeight(about);
        chart.update((about.main.curves ?? measure.curves).map(({ x, y }, k) => ({ x, y, name: content.groups[k].name, style: content.groups[k].style, seeds: about.main.seeds[k] })));
        const baselines = [...about.main.baselines].sort((a, b) => b.y.at(-1) - a.y.at(-1)).map((b) => `${b.title} ${cf.number(b.y.at(-1))}`);
        const named = [...content.groups].sort((a, b) => cf.finished(b) - cf.finished(a)).slice(0, 24), more = content.groups.length - named.length;
        legend.replaceChildren(...named.map((group) => cf.el("span", {}, cf.lineSample(group.style), group.name)), ...(more ? [`and ${more} more`] : []), ...(baselines.length ? [cf.el("p", { class: "soft" }, `Grey, in the end from the top: ${baselines.join("; ")}`)] : []));
      }
      // Without differences the chart has the whole width, and the clients stand below it.
      (about.differences.length ? side : clients).append(parts.clients.node);
      const has = { differences: about.differences.length, clients: about.clients.rows.length, classes: about.classes.maps.length };
      for (const [name, part] of Object.entries(parts)) { part.node.hidden = !has[name]; if (has[name]) part.update(content); }
      side.hidden = !has.differences;
      clients.hidden = side.hidden ? !has.clients : true;
      below.hidden = !has.classes && measure?.key !== "test_accuracy";
      unknown.hidden = has.classes;
      grid.classList.toggle("alone", main.hidden || side.hidden);
    },
  };
};
