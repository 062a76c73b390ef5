// Who forgets what, when: the accuracy by client and data set, of two runs side by side, at one round.
"use strict";

cf.forgetting = () => {
  const node = cf.el("div");
  const chosen = { first: null, second: null, mode: "lost", round: null, pair: null };
  let content, tables;
  const controls = cf.el("div", { class: "bar" }), maps = cf.el("div", { class: "beside" }), answer = cf.el("p", { class: "answer", "aria-live": "polite" });
  const rest = cf.el("p", { class: "soft" }), meaning = cf.el("p", { class: "soft" }), list = cf.el("div"), detail = cf.el("div", { class: "charts" });
  const heatmaps = [0, 1].map((k) => new cf.Heatmap({ label: "Accuracy by client and data set", describe: (r, c) => describe(k, r, c), pick: (r, c) => choose(k, r, c) }));
  const heads = [0, 1].map(() => cf.el("figcaption"));
  const scales = [0, 1].map(() => cf.el("div"));
  const figures = [0, 1].map((k) => cf.el("figure", {}, heads[k], heatmaps[k].node, scales[k],
    cf.asTable(() => asRows(k), "Accuracy by client and data set", () => heatmaps[k].picture())));
  const panel = cf.curves("pair");
  const slider = cf.el("input", { type: "range", min: 0, id: "round", input: () => { chosen.round = tables[chosen.first].rounds[slider.value]; change(); } });
  const shownRound = cf.el("output", { for: "round" });
  const mode = cf.el("div", { class: "switch", role: "group", "aria-label": "What is shown" });
  const worstTitle = cf.el("h3");
  node.append(controls, meaning, answer, maps, worstTitle, list, detail, rest);

  const decode = (raw) => {
    const accuracy = cf.numbers(raw.accuracy), best = cf.numbers(raw.best), n = raw.pairs.length / 2;
    const pairs = Array.from({ length: n }, (_, k) => [raw.pairs[2 * k], raw.pairs[2 * k + 1]]);
    const place = new Map(pairs.map(([client, key], k) => [`${client}/${key}`, k]));
    const value = (levels, frame, k) => (frame < 0 || k == null || levels[frame * n + k] === 65535 ? null : levels[frame * n + k] / 10000);
    return {
      ...raw, pairs, place, now: (frame, k) => value(accuracy, frame, k), top: (frame, k) => value(best, frame, k),
      lost(frame, k) { const now = this.now(frame, k); return now == null ? null : this.top(frame, k) - now; },
      frame(round) { return raw.rounds.findLastIndex((r) => r <= round); },
      about: raw.names,
    };
  };
  const style = (t) => content.groups[t.group].style;
  const clientName = (client) => tables[chosen.first].about.client_names?.[client] ?? `client ${client}`;
  const keyName = (key) => tables[chosen.first].about.period_names?.[key] ?? `data set ${key}`;
  const classesOf = (table, k) => {
    const held = table.held[k] ?? [];
    return held.flatMap((c, n) => (n % 2 ? [] : [`${cf.className(table.about.classes?.[c] ?? c)} ${held[n + 1]} %`])).join(", ");
  };
  const table = (k) => tables[k ? chosen.second : chosen.first];
  const estimated = () => table(0).basis === "classes";
  const testedOn = (t, k) => (t.tested[k] == null ? "" : estimated() ? `from ${t.tested[k]} samples of these classes in the common test set` : `n = ${t.tested[k]} test rows`);
  const worstWords = () => (estimated() ? "The worst mix of classes of every client" : "The worst data set of every client");
  const explainCells = () => {
    const t = table(0), counts = t.tested.filter((n) => n != null), [least, most] = [Math.min(...counts), Math.max(...counts)];
    const range = least === most ? `${least}` : `${least} to ${most}`;
    const sample = t.seen > t.followed ? ` A random sample of ${t.followed} of ${t.seen} pairs is followed.` : "";
    const text = estimated()
      ? `A cell is the accuracy on the classes that a client's data set holds, in their proportions, measured on the common test set (${range} samples). It is not measured on the client's own samples: two data sets with the same mix of classes have the same number.`
      : `A cell is the accuracy on a client's own test rows of one period: ${range} rows. With n rows one row is 100 / n points, so small cells are rough.`;
    meaning.textContent = text + sample;
    worstTitle.textContent = worstWords();
  };
  const axes = () => {
    const both = [table(0), table(1)].filter(Boolean);
    const sorted = (n) => [...new Set(both.flatMap((t) => t.pairs.map((pair) => pair[n])))].sort((a, b) => a - b);
    return [sorted(0), sorted(1)];
  };
  let rows = [], columns = [];
  const describe = (k, r, c) => {
    const t = table(k), at = t.place.get(`${rows[r]}/${columns[c]}`), frame = t.frame(chosen.round), now = t.now(frame, at);
    const title = `${clientName(rows[r])}, ${keyName(columns[c])}`;
    if (now == null) return [title, at == null ? "never held" : "not held yet"];
    return [title, classesOf(t, at), testedOn(t, at), `now ${cf.number(100 * now, 1)} %, best so far ${cf.number(100 * t.top(frame, at), 1)} %`, `lost ${cf.number(100 * t.lost(frame, at), 1)} points`].filter(Boolean);
  };
  const asRows = (k) => [["client", ...columns.map(keyName)], rows.map((client) => [clientName(client), ...columns.map((key) => {
    const t = table(k), value = t[chosen.mode === "lost" ? "lost" : "now"](t.frame(chosen.round), t.place.get(`${client}/${key}`));
    return value == null ? "" : cf.number(100 * value, 1);
  })])];
  const choose = (k, r, c) => { chosen.pair = [rows[r], columns[c]]; drawPair(); save(); };

  const ranking = () => {
    const t = table(0), frame = t.frame(chosen.round);
    return t.pairs.map((pair, k) => ({ pair, k, now: t.now(frame, k), top: t.top(frame, k), lost: t.lost(frame, k) }))
      .filter((entry) => entry.lost != null).sort((a, b) => b.lost - a.lost);
  };
  const mean = (t, client) => {
    const frame = t.frame(chosen.round), values = t.pairs.flatMap((pair, k) => (client == null || pair[0] === client ? [t.lost(frame, k)] : [])).filter((v) => v != null);
    return values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
  };
  const points = (value) => `${cf.number(100 * value, 1)} points`;
  const explain = (ranked) => {
    const [a, b] = [table(0), table(1)];
    if (!ranked.length) { answer.textContent = "Nothing has been measured yet."; return; }
    const clients = [...new Set(a.pairs.map((pair) => pair[0]))].map((client) => [client, mean(a, client)]).filter(([, m]) => m != null).sort((x, y) => y[1] - x[1]);
    if (ranked[0].lost <= 0) {
      answer.replaceChildren(`After round ${chosen.round}, `, cf.el("b", {}, a.label), " has forgotten nothing that was measured: every accuracy is at its best so far.");
      return;
    }
    const { pair, k, now, top } = ranked[0], classes = classesOf(a, k);
    const title = (t) => cf.el("b", {}, t.label.replace(/, seed (\d+)$/, " (seed $1)"));
    const [client, most] = clients[0], parts = [`After round ${chosen.round}, `, title(a), ` has forgotten ${points(mean(a))} on average, most on ${clientName(client)} (${points(most)}). `,
      `The worst is ${clientName(pair[0])}, ${keyName(pair[1])}${classes ? ` (${classes})` : ""}: ${estimated() ? "the accuracy on these classes" : "it"} fell from ${cf.number(100 * top, 0)} % to ${cf.number(100 * now, 0)} %${estimated() ? "" : ` (${testedOn(a, k)})`}.`];
    if (b) {
      const there = b.now(b.frame(chosen.round), b.place.get(`${pair[0]}/${pair[1]}`));
      parts.push(" ", title(b), ` has forgotten ${points(mean(b) ?? 0)} on average and ${points(mean(b, client) ?? 0)} on ${clientName(client)}`,
        there == null ? "." : `; there, ${estimated() ? "they are" : "it is"} at ${cf.number(100 * there, 0)} %.`);
    }
    answer.replaceChildren(...parts);
  };
  const drawList = (ranked) => {
    const worst = ranked.filter((entry, k) => ranked.findIndex((other) => other.pair[0] === entry.pair[0]) === k);
    const b = table(1), body = worst.slice(0, 10).map(({ pair, k, now, top, lost }) => {
      const other = b ? b.now(b.frame(chosen.round), b.place.get(`${pair[0]}/${pair[1]}`)) : null;
      const button = cf.el("button", { type: "button", class: "link", click: () => { chosen.pair = pair; drawPair(); save(); } }, `${clientName(pair[0])}, ${keyName(pair[1])}`);
      return [button, classesOf(table(0), k), String(table(0).tested[k] ?? "–"), `${cf.number(100 * top, 1)} %`, `${cf.number(100 * now, 1)} %`, cf.number(100 * lost, 1), ...(b ? [other == null ? "–" : `${cf.number(100 * other, 1)} %`] : [])];
    });
    list.replaceChildren(cf.table(["client, data set", "mostly", estimated() ? "test samples of its classes" : "test rows (n)", "best so far", "now", "lost, points", ...(b ? [`now, ${b.label}`] : [])], body, { label: worstWords(), class: "forgotten" }));
  };
  const drawPair = () => {
    const [client, key] = chosen.pair ?? [];
    detail.hidden = client == null;
    if (client == null) return;
    for (const map of heatmaps) if (map.node.isConnected) { map.at = [rows.indexOf(client), columns.indexOf(key)]; map.paint(); }
    const curves = [0, 1].filter((k) => table(k)).map((k) => {
      const t = table(k), at = t.place.get(`${client}/${key}`), xs = [], ys = [];
      t.rounds.forEach((round, frame) => { const v = t.now(frame, at); if (v != null) { xs.push(round); ys.push(100 * v); } });
      return { x: xs, y: ys };
    });
    const groups = [0, 1].filter((k) => table(k)).map((k) => ({ name: table(k).label, style: style(table(k)) }));
    panel.update({ groups, measures: [{ key: "pair", title: `Accuracy on ${clientName(client)}, ${keyName(key)}`, unit: "%", curves }] });
    panel.panel.charts.get("pair").node.querySelector("figcaption").replaceChildren(`Accuracy on ${clientName(client)}, ${keyName(key)} `, cf.el("span", { class: "soft" }, classesOf(table(0), table(0).place.get(`${client}/${key}`)) || "%"));
    if (!detail.firstChild) detail.append(cf.el("div", {}, panel.legend, panel.results));
  };
  const save = () => {
    const last = table(0).rounds.at(-1);
    cf.view.set("of", chosen.first === byLoss()[0] ? null : table(0).label);
    cf.view.set("beside", chosen.second === usualSecond() ? null : table(1)?.label ?? "nothing");
    cf.view.set("after", chosen.round === last ? null : chosen.round);
    cf.view.set("show", chosen.mode === "lost" ? null : chosen.mode);
    cf.view.set("cell", chosen.pair?.join("."));
  };
  const draw = () => {
    const t = table(0);
    shownRound.textContent = `${chosen.round}`;
    slider.setAttribute("aria-valuetext", `round ${chosen.round}`);
    [rows, columns] = axes();
    [0, 1].forEach((k) => {
      const own = table(k);
      figures[k].hidden = !own;
      if (!own) return;
      const frame = own.frame(chosen.round), ramp = chosen.mode === "lost" ? "less" : "more";
      heads[k].replaceChildren(cf.lineSample(style(own)), own.label);
      scales[k].replaceChildren(cf.scale(ramp, chosen.mode === "lost" ? "nothing lost" : "0 %", chosen.mode === "lost" ? "all lost" : "100 %"));
      heatmaps[k].update({
        rows: rows.map((client) => clientName(client)), columns: columns.map((key) => t.about.period_names?.[key] ?? String(key)), ramp,
        value: (r, c) => own[chosen.mode === "lost" ? "lost" : "now"](frame, own.place.get(`${rows[r]}/${columns[c]}`)),
      });
      figures[k].querySelector("details").refill();
    });
    const ranked = ranking();
    explainCells();
    explain(ranked);
    drawList(ranked);
    drawPair();
  };
  const change = () => { draw(); save(); };
  // Tables by what is lost in the end, most first: the first question is who forgets, the next what helps. Those of runs
  // that did not finish count only where there is no other.
  const byLoss = () => tables.map((t, k) => [t, k]).filter(([t], _, all) => cf.finished(content.groups[t.group]) || !all.some(([o]) => cf.finished(content.groups[o.group]))).map(([t, k]) => {
    const values = t.pairs.map((_, n) => t.lost(t.rounds.length - 1, n)).filter((v) => v != null);
    return [k, values.reduce((a, b) => a + b, 0) / Math.max(1, values.length)];
  }).sort((a, b) => b[1] - a[1]).map(([k]) => k);
  const partners = () => tables.map((t, k) => [k, t]).filter(([k, t]) => k !== chosen.first && t.scenario === tables[chosen.first].scenario);
  const usualSecond = () => {
    const others = partners().filter(([, t]) => t.group !== tables[chosen.first].group).map(([k]) => k);
    return byLoss().filter((k) => others.includes(k)).at(-1) ?? null;
  };
  const arrange = () => {
    if (!chosen.alone && !partners().some(([k]) => k === chosen.second)) chosen.second = usualSecond();
    const rounds = tables[chosen.first].rounds;
    if (chosen.round == null || chosen.following || chosen.round > rounds[rounds.length - 1]) chosen.round = rounds[rounds.length - 1];
    slider.max = rounds.length - 1;
    slider.value = Math.max(0, tables[chosen.first].frame(chosen.round));
    mode.replaceChildren(...[["lost", "Lost since best"], ["now", "Accuracy"]].map(([key, text]) => cf.el("button", {
      type: "button", "aria-pressed": String(chosen.mode === key), click: () => { chosen.mode = key; arrange(); change(); mode.querySelector("[aria-pressed=true]").focus(); },
    }, text)));
    controls.replaceChildren(
      cf.el("label", { class: "field wide" }, cf.el("span", {}, "After round"), slider, shownRound), mode,
      cf.select("Run", tables.map((t, k) => [k, t.label]), chosen.first, (k) => { chosen.first = Number(k); arrange(); change(); }),
      cf.select("Beside", [["", "nothing"], ...partners().map(([k, t]) => [k, t.label])], chosen.second ?? "", (k) => { chosen.second = k === "" ? null : Number(k); change(); }));
    if (!maps.firstChild) maps.append(...figures);
  };
  // What the address says, when the page is opened.
  const restore = (again, usual) => {
    const get = cf.view.get, pair = get("cell")?.split(".").map(Number);
    chosen.first = again(get("of")) ?? usual;
    chosen.alone = get("beside") === "nothing";
    chosen.second = again(get("beside"));
    if (get("show") === "now") chosen.mode = "now";
    if (get("after")) [chosen.round, chosen.following] = [Number(get("after")), false];
    if (pair?.length === 2 && tables[chosen.first].place.has(pair.join("/"))) chosen.pair = pair;
  };
  return {
    node,
    update(fresh) {
      content = fresh;
      chosen.following = !tables || chosen.round === tables[chosen.first]?.rounds.at(-1);
      const before = tables && [tables[chosen.first]?.label, tables[chosen.second]?.label];
      tables = content.periods.map(decode);
      rest.textContent = content.periods_left_out ? `There was no room for ${content.periods_left_out} further runs; make a report of fewer.` : "";
      if (!tables.length) return;
      const again = (label) => { const k = tables.findIndex((t) => t.label === label); return k < 0 ? null : k; };
      const usual = byLoss()[0];
      if (before) [chosen.first, chosen.second] = [again(before[0]) ?? usual, before[1] == null ? null : again(before[1])];
      else restore(again, usual);
      if (document.activeElement?.closest("select") && node.contains(document.activeElement)) { draw(); return; }
      arrange();
      draw();
    },
  };
};
