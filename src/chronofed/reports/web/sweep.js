// A sweep: a setting against the score, and the ten best experiments.
"use strict";

cf.sweep = () => {
  let content, parameter = null, score = null;
  const bar = cf.el("div", { class: "bar" }), best = cf.el("div"), note = cf.el("p", { class: "soft" });
  const column = () => content.columns.find((c) => c.key === score), better = () => (column().better === "lower" ? 1 : -1);
  const numeric = (key) => content.differences[key].every((v) => v === "–" || Number.isFinite(Number(v)));
  const value = (k) => content.differences[parameter][k], mean = (k) => content.groups[k].cells[score]?.mean * column().scale;
  const scored = () => content.groups.map((_, k) => k).filter((k) => Number.isFinite(mean(k)) && value(k) !== "–");
  // A run that stopped early has a score of fewer rounds: it is drawn, and not ranked.
  const finished = (k) => cf.finished(content.groups[k]);
  const written = (v) => (Number.isFinite(Number(v)) ? cf.number(Number(v)) : v);
  const text = (k) => content.groups[k].cells[score].text.replaceAll("-", "−");
  const ranked = () => scored().filter(finished).sort((a, b) => better() * (mean(a) - mean(b)));
  // A few values, such as those of a grid, are marked themselves.
  const valued = (places, width) => { const own = [...new Set(places)].sort((a, b) => a - b), span = own.at(-1) - own[0]; return own.length <= 8 && span > 0 && own.every((v, k) => !k || (v - own[k - 1]) * width > 40 * span); };
  const draw = (width) => {
    const shown = scored(), [left, right, top, bottom] = [56, width - 16, 10, 290], scores = shown.map(mean), isNumber = numeric(parameter);
    const places = isNumber ? shown.map((k) => Number(value(k))) : null, names = isNumber ? [] : [...new Set(shown.map(value))];
    const wide = isNumber && Math.min(...places) > 0 && Math.max(...places) / Math.min(...places) > 20, turn = wide ? Math.log10 : (v) => v;
    const [low, high] = isNumber ? [turn(Math.min(...places)), turn(Math.max(...places))] : [0, names.length - 1];
    const [least, most] = [Math.min(...scores), Math.max(...scores)], room = 0.06 * (most - least || 1);
    const across = (v) => left + 14 + (right - left - 28) * (high > low ? (v - low) / (high - low) : 0.5), up = (v) => bottom - (bottom - top) * (v - least + room) / (most - least + 2 * room), parts = [];
    for (const mark of cf.marks(least - room, most + room, 6)) parts.push(cf.svg("line", { x1: left, x2: right, y1: up(mark), y2: up(mark), class: "grid" }), cf.text(left - 8, up(mark) + 4, cf.tick(mark), { "text-anchor": "end", class: "soft" }));
    const marks = !isNumber ? names.map((name, k) => [k, name]) : valued(places.map(turn), right - left) ? [...new Set(places)].map((v) => [turn(v), cf.tick(v)]) : wide ? cf.logMarks(low, high, Math.floor((right - left) / 60)) : cf.marks(low, high, Math.floor((right - left) / 70)).map((v) => [v, cf.tick(v)]);
    for (const [mark, name] of marks) parts.push(cf.svg("line", { x1: across(mark), x2: across(mark), y1: bottom, y2: bottom + 4, class: "zero" }), cf.text(across(mark), bottom + 18, cf.short(name, 18), { "text-anchor": "middle", class: "soft" }));
    parts.push(cf.text((left + right) / 2, bottom + 38, `${parameter}${wide ? " (logarithmic)" : ""}`, { "text-anchor": "middle", class: "soft" }));
    const top10 = new Set(ranked().slice(0, 10));
    for (const k of [...shown].sort((a, b) => top10.has(a) - top10.has(b))) parts.push(cf.svg("circle", {
      cx: across(isNumber ? turn(Number(value(k))) : names.indexOf(value(k))), cy: up(mean(k)), r: top10.has(k) ? 5.5 : 4, "data-group": k,
      fill: !finished(k) ? "none" : top10.has(k) ? "var(--accent)" : "var(--open)", stroke: finished(k) ? null : "var(--open)", "fill-opacity": top10.has(k) ? 0.9 : 0.45,
    }, cf.svg("title", {}, `${content.groups[k].name}: ${parameter} ${value(k)}, ${column().heading} ${text(k)}`)));
    const first = ranked()[0];
    return { height: bottom + 46, parts, words: `${shown.length} experiments${first == null ? "" : `; the best, ${content.groups[first].name}, has ${parameter} ${written(value(first))} and ${text(first)}`}` };
  };
  const rows = () => ranked().map((k) => [content.groups[k].name, value(k), text(k)]);
  const drawing = new cf.Drawing("Score by setting", draw, () => [["experiment", parameter, column().heading], rows()]);
  const show = () => {
    const keys = cf.swept(content), others = Object.keys(content.differences).filter((key) => key !== parameter);
    bar.replaceChildren(
      cf.select("Setting", keys.map((key) => [key, key]), parameter, (key) => { parameter = key; cf.view.set("setting", key); show(); }),
      cf.select("Score", content.columns.filter((c) => content.groups.some((g) => g.cells[c.key])).map((c) => [c.key, c.heading]), score, (key) => { score = key; cf.view.set("score", key); show(); }));
    const top = ranked().slice(0, 10);
    best.replaceChildren(cf.el("h3", {}, top.length < 10 ? "Best first " : "The ten best ", cf.el("span", { class: "soft" }, "blue above")), cf.table(["rank", "experiment", column().heading, parameter, ...others], top.map((k, n) => [String(n + 1), cf.el("span", {}, cf.lineSample(content.groups[k].style), ` ${content.groups[k].name}`), text(k), written(value(k)), ...others.map((key) => written(content.differences[key][k]))]), { label: "The ten best experiments", class: "best-ten" }));
    const without = content.groups.length - scored().length;
    const open = scored().length - ranked().length;
    note.textContent = [open ? "A hollow dot is a run that did not finish; its score is of fewer rounds, and is not ranked." : "", without ? `${without} of ${content.groups.length} have no such score: they did not finish, or lack the setting.` : ""].filter(Boolean).join(" ");
    drawing.show();
  };
  return {
    node: cf.el("div", {}, bar, drawing.node, note, best),
    update(fresh) {
      content = fresh;
      const keys = cf.swept(content), known = content.columns.filter((c) => content.groups.some((g) => g.cells[c.key]));
      parameter = [parameter, cf.view.get("setting")].find((key) => keys.includes(key)) ?? keys[0];
      score = [score, cf.view.get("score")].find((key) => known.some((c) => c.key === key)) ?? (known.find((c) => c.key.startsWith("anytime")) ?? known[0]).key;
      show();
    },
  };
};
// Settings with three values or more, numbers first, then those with most values.
cf.swept = (content) => {
  const keys = Object.entries(content.differences).map(([key, values]) => [key, new Set(values.filter((v) => v !== "–"))]).filter(([, values]) => values.size > 2);
  const numeric = (values) => [...values].every((v) => Number.isFinite(Number(v)));
  // Three methods are a comparison, and no sweep.
  return keys.filter(([, values]) => numeric(values) || content.groups.length > 4).sort(([, a], [, b]) => numeric(b) - numeric(a) || b.size - a.size).map(([key]) => key);
};
// Marks at 1, 2 and 5 times powers of ten between two logarithms, or at the powers alone.
cf.logMarks = (low, high, most) => {
  const powers = Array.from({ length: Math.floor(high) - Math.floor(low) + 1 }, (_, k) => Math.floor(low) + k);
  const all = (factors) => powers.flatMap((p) => factors.map((f) => p + Math.log10(f))).filter((v) => v >= low - 1e-9 && v <= high + 1e-9);
  const found = all([1, 2, 5]).length <= most ? all([1, 2, 5]) : all([1]);
  return found.map((v) => [v, cf.tick(Number((10 ** v).toPrecision(3)))]);
};
