// The parts of a page about some runs; each has a node and takes new content by update(content).
"use strict";

cf.badge = (state) => cf.el("span", { class: `badge ${state}` }, state);

cf.summary = () => {
  const holder = cf.el("div");
  let order = null;
  const draw = (content) => {
    const columns = content.columns.filter((c) => content.groups.some((g) => g.cells[c.key]));
    const best = new Map(columns.map((c) => {
      const values = content.groups.map((g) => g.cells[c.key]?.[0]).filter((v) => v != null);
      return [c.key, content.groups.length > 1 ? Math[c.better === "more" ? "max" : "min"](...values) : null];
    }));
    const numbered = content.groups.map((group, k) => [group, k]);
    if (order) numbered.sort(([a], [b]) => order.sign * ((a.cells[order.key]?.[0] ?? Infinity) - (b.cells[order.key]?.[0] ?? Infinity)));
    const sorter = (c) => cf.el("button", {
      type: "button", class: "sorter", click: () => {
        const first = c.better === "more" ? -1 : 1;
        order = order?.key === c.key ? (order.sign === first ? { key: c.key, sign: -first } : null) : { key: c.key, sign: first };
        draw(content);
        holder.querySelectorAll("button.sorter")[columns.indexOf(c)].focus();
      },
    }, c.heading, cf.el("span", { "aria-hidden": "true" }, order?.key === c.key ? (order.sign > 0 ? " ↑" : " ↓") : ""));
    const sorted = (c) => (order?.key === c.key ? (order.sign > 0 ? "ascending" : "descending") : null);
    holder.replaceChildren(cf.el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Summary" }, cf.el("table", { class: "summary" },
      cf.el("thead", {}, cf.el("tr", {}, cf.el("th", { scope: "col" }, "experiment"), cf.el("th", { scope: "col" }, "runs × rounds"),
        columns.map((c) => cf.el("th", { scope: "col", "aria-sort": sorted(c) }, sorter(c))))),
      cf.el("tbody", {}, numbered.map(([group, k]) => cf.el("tr", {},
        cf.el("th", { scope: "row" }, cf.el("span", { class: "swatch", style: { background: `var(--c${k % 8})` } }), cf.el("span", { class: "name" }, group.name),
          cf.el("div", { class: "soft method" }, `${group.method} `, ...cf.unfinished(group))),
        cf.el("td", {}, `${group.runs.length} × ${group.rounds}`),
        columns.map((c) => cf.el("td", { class: group.cells[c.key]?.[0] === best.get(c.key) ? "best" : null },
          cf.cell(group.cells[c.key], c, group.runs.length)))))))));
  };
  return { node: holder, update: draw };
};
cf.cell = (pair, column, runs) => {
  if (!pair) return "–";
  return runs > 1 ? [cf.number(pair[0], column.digits), cf.el("div", { class: "deviation" }, `± ${cf.number(pair[1], column.digits)}`)] : cf.number(pair[0], column.digits);
};
cf.unfinished = (group) => [...new Set(group.runs.map((run) => run.state))].filter((state) => state !== "finished").map((state) => cf.badge(state));

// Who forgets what, when: two runs beside each other, at one round.
cf.forgetting = () => {
  const node = cf.el("div");
  const chosen = { first: null, second: null, mode: "lost", round: null, pair: null };
  let content, tables;
  const controls = cf.el("div", { class: "bar" }), fields = cf.el("div", { class: "beside" }), answer = cf.el("p", { class: "answer", "aria-live": "polite" });
  const rest = cf.el("p", { class: "soft" }), list = cf.el("div"), detail = cf.el("div", { class: "charts" });
  const field = [0, 1].map((k) => new cf.Field({ label: "Accuracy by client and data set", words: (r, c) => words(k, r, c), pick: (r, c) => choose(k, r, c) }));
  const heads = [0, 1].map(() => cf.el("figcaption"));
  const scales = [0, 1].map(() => cf.el("div"));
  const figures = [0, 1].map((k) => cf.el("figure", {}, heads[k], field[k].node, scales[k],
    cf.asTable(() => asRows(k), "Accuracy by client and data set")));
  const panel = cf.curves("pair");
  const slider = cf.el("input", { type: "range", min: 0, id: "round", input: () => { chosen.round = tables[chosen.first].rounds[slider.value]; draw(); } });
  const shownRound = cf.el("output", { for: "round" });
  const mode = cf.el("div", { class: "switch", role: "group", "aria-label": "What is shown" });
  node.append(controls, answer, fields, cf.el("h3", {}, "The worst data set of every client"), list, detail, rest);

  const decode = (raw) => {
    const accuracy = cf.bytes(raw.accuracy), best = cf.bytes(raw.best), n = raw.pairs.length / 2;
    const pairs = Array.from({ length: n }, (_, k) => [raw.pairs[2 * k], raw.pairs[2 * k + 1]]);
    const place = new Map(pairs.map(([client, key], k) => [`${client}/${key}`, k]));
    const value = (bytes, frame, k) => (frame < 0 || k == null || bytes[frame * n + k] === 255 ? null : bytes[frame * n + k] / 200);
    return {
      ...raw, pairs, place, now: (frame, k) => value(accuracy, frame, k), top: (frame, k) => value(best, frame, k),
      lost(frame, k) { const now = this.now(frame, k); return now == null ? null : this.top(frame, k) - now; },
      frame(round) { return raw.rounds.findLastIndex((r) => r <= round); },
      about: raw.names,
    };
  };
  const clientName = (client) => tables[chosen.first].about.client_names?.[client] ?? `client ${client}`;
  const keyName = (key) => tables[chosen.first].about.period_names?.[key] ?? `data set ${key}`;
  const classesOf = (table, k) => {
    const held = table.held[k] ?? [];
    return held.flatMap((c, n) => (n % 2 ? [] : [`${table.about.classes?.[c] ?? `class ${c}`} ${held[n + 1]} %`])).join(", ");
  };
  const table = (k) => tables[k ? chosen.second : chosen.first];
  const axes = () => {
    const both = [table(0), table(1)].filter(Boolean);
    const sorted = (n) => [...new Set(both.flatMap((t) => t.pairs.map((pair) => pair[n])))].sort((a, b) => a - b);
    return [sorted(0), sorted(1)];
  };
  let rows = [], columns = [];
  const words = (k, r, c) => {
    const t = table(k), at = t.place.get(`${rows[r]}/${columns[c]}`), frame = t.frame(chosen.round), now = t.now(frame, at);
    const title = `${clientName(rows[r])}, ${keyName(columns[c])}`;
    if (now == null) return [title, at == null ? "never held" : "not held yet"];
    return [title, classesOf(t, at), `now ${cf.number(100 * now, 1)} %, best so far ${cf.number(100 * t.top(frame, at), 1)} %`, `lost ${cf.number(100 * t.lost(frame, at), 1)} points`].filter(Boolean);
  };
  const asRows = (k) => [["client", ...columns.map(keyName)], rows.map((client) => [clientName(client), ...columns.map((key) => {
    const t = table(k), value = t[chosen.mode === "lost" ? "lost" : "now"](t.frame(chosen.round), t.place.get(`${client}/${key}`));
    return value == null ? "" : cf.number(100 * value, 1);
  })])];
  const choose = (k, r, c) => { chosen.pair = [rows[r], columns[c]]; drawPair(); };

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
    const { pair, k, now, top } = ranked[0], classes = classesOf(a, k);
    const title = (t) => cf.el("b", {}, t.label.replace(/, seed (\d+)$/, " (seed $1)"));
    const [client, most] = clients[0], parts = [`After round ${chosen.round}, `, title(a), ` has forgotten ${points(mean(a))} on average, most on ${clientName(client)} (${points(most)}). `,
      `The worst is ${clientName(pair[0])}, ${keyName(pair[1])}${classes ? ` (${classes})` : ""}: it fell from ${cf.number(100 * top, 0)} % to ${cf.number(100 * now, 0)} %.`];
    if (b) {
      const there = b.now(b.frame(chosen.round), b.place.get(`${pair[0]}/${pair[1]}`));
      parts.push(" ", title(b), ` has forgotten ${points(mean(b) ?? 0)} on average and ${points(mean(b, client) ?? 0)} on ${clientName(client)}`,
        there == null ? "." : `; there, that data set is at ${cf.number(100 * there, 0)} %.`);
    }
    answer.replaceChildren(...parts);
  };
  const drawList = (ranked) => {
    const worst = ranked.filter((entry, k) => ranked.findIndex((other) => other.pair[0] === entry.pair[0]) === k);
    const b = table(1), body = worst.slice(0, 10).map(({ pair, k, now, top, lost }) => {
      const other = b ? b.now(b.frame(chosen.round), b.place.get(`${pair[0]}/${pair[1]}`)) : null;
      const button = cf.el("button", { type: "button", class: "link", click: () => { chosen.pair = pair; drawPair(); } }, `${clientName(pair[0])}, ${keyName(pair[1])}`);
      return [button, classesOf(table(0), k), `${cf.number(100 * top, 1)} %`, `${cf.number(100 * now, 1)} %`, cf.number(100 * lost, 1), ...(b ? [other == null ? "–" : `${cf.number(100 * other, 1)} %`] : [])];
    });
    list.replaceChildren(cf.table(["client, data set", "mostly", "best so far", "now", "lost, points", ...(b ? [`now, ${b.label}`] : [])], body, { label: "The worst data set of every client", class: "forgotten" }));
  };
  const drawPair = () => {
    const [client, key] = chosen.pair ?? [];
    detail.hidden = client == null;
    if (client == null) return;
    for (const f of field) if (f.node.isConnected) { f.at = [rows.indexOf(client), columns.indexOf(key)]; f.paint(); }
    const curves = [0, 1].filter((k) => table(k)).map((k) => {
      const t = table(k), at = t.place.get(`${client}/${key}`), xs = [], ys = [];
      t.rounds.forEach((round, frame) => { const v = t.now(frame, at); if (v != null) { xs.push(round); ys.push(100 * v); } });
      return { x: xs, y: ys };
    });
    const groups = [0, 1].filter((k) => table(k)).map((k) => ({ name: table(k).label, colour: table(k).group }));
    panel.update({ groups, measures: [{ key: "pair", title: `Accuracy on ${clientName(client)}, ${keyName(key)}`, unit: "%", curves }] });
    panel.panel.charts.get("pair").node.querySelector("figcaption").replaceChildren(`Accuracy on ${clientName(client)}, ${keyName(key)} `, cf.el("span", { class: "soft" }, classesOf(table(0), table(0).place.get(`${client}/${key}`)) || "%"));
    if (!detail.firstChild) detail.append(cf.el("div", {}, panel.nodes[0], panel.nodes[2]));
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
      heads[k].replaceChildren(cf.el("span", { class: "swatch", style: { background: `var(--c${own.group % 8})` } }), own.label);
      scales[k].replaceChildren(cf.scale(ramp, chosen.mode === "lost" ? "nothing lost" : "0 %", chosen.mode === "lost" ? "all lost" : "100 %"));
      field[k].update({
        rows: rows.map((client) => clientName(client)), columns: columns.map((key) => t.about.period_names?.[key] ?? String(key)), ramp,
        value: (r, c) => own[chosen.mode === "lost" ? "lost" : "now"](frame, own.place.get(`${rows[r]}/${columns[c]}`)),
      });
      figures[k].querySelector("details").refill();
    });
    const ranked = ranking();
    explain(ranked);
    drawList(ranked);
    drawPair();
  };
  // Tables by what is lost in the end, most first: the first question is who forgets, the next what helps.
  const byLoss = () => tables.map((t, k) => {
    const values = t.pairs.map((_, n) => t.lost(t.rounds.length - 1, n)).filter((v) => v != null);
    return [k, values.reduce((a, b) => a + b, 0) / Math.max(1, values.length)];
  }).sort((a, b) => b[1] - a[1]).map(([k]) => k);
  const partners = () => tables.map((t, k) => [k, t]).filter(([k, t]) => k !== chosen.first && t.scenario === tables[chosen.first].scenario);
  const arrange = () => {
    if (!partners().some(([k]) => k === chosen.second)) {
      const others = partners().filter(([, t]) => t.group !== tables[chosen.first].group).map(([k]) => k);
      chosen.second = byLoss().filter((k) => others.includes(k)).at(-1) ?? null;
    }
    const rounds = tables[chosen.first].rounds;
    if (chosen.round == null || chosen.following || chosen.round > rounds[rounds.length - 1]) chosen.round = rounds[rounds.length - 1];
    slider.max = rounds.length - 1;
    slider.value = Math.max(0, tables[chosen.first].frame(chosen.round));
    mode.replaceChildren(...[["lost", "Lost since best"], ["now", "Accuracy"]].map(([key, text]) => cf.el("button", {
      type: "button", "aria-pressed": String(chosen.mode === key), click: () => { chosen.mode = key; arrange(); draw(); mode.querySelector("[aria-pressed=true]").focus(); },
    }, text)));
    controls.replaceChildren(
      cf.el("label", { class: "field wide" }, cf.el("span", {}, "After round"), slider, shownRound), mode,
      cf.select("Run", tables.map((t, k) => [k, t.label]), chosen.first, (k) => { chosen.first = Number(k); arrange(); draw(); }),
      cf.select("Beside", [["", "nothing"], ...partners().map(([k, t]) => [k, t.label])], chosen.second ?? "", (k) => { chosen.second = k === "" ? null : Number(k); draw(); }));
    if (!fields.firstChild) fields.append(...figures);
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
      [chosen.first, chosen.second] = before ? [again(before[0]) ?? usual, before[1] == null ? null : again(before[1])] : [usual, null];
      if (document.activeElement?.closest("select") && node.contains(document.activeElement)) { draw(); return; }
      arrange();
      draw();
    },
  };
};

cf.weights = () => {
  const node = cf.el("div"), bar = cf.el("div", { class: "bar" });
  let runs = [], chosen = 0;
  const top = (run) => Math.max(...run.present, ...run.past.flat(), 1e-9);
  const value = (run, r, c) => (r ? run.past[c][r - 1] ?? null : run.present[c]);
  const depth = (run) => 1 + Math.max(...run.past.map((p) => p.length));
  const name = (r) => (r ? `${r} before` : "present");
  const field = new cf.Field({
    label: "Round weights",
    words: (r, c) => [`round ${runs[chosen].rounds[c]}, ${r ? `${r} data set${r > 1 ? "s" : ""} before the present` : "the present"}`, `weight ${cf.number(value(runs[chosen], r, c))}`],
  });
  const scale = cf.el("div"), table = cf.asTable(() => {
    const run = runs[chosen];
    return [["round", "present", "past together", "newest past"], run.rounds.map((round, c) => [String(round), cf.number(run.present[c]), cf.number(run.past[c].reduce((a, b) => a + b, 0) + run.older[c]), cf.number(run.past[c][0])])];
  }, "Round weights");
  node.append(bar, cf.el("figure", {}, field.node, scale, table));
  const draw = () => {
    const run = runs[chosen], most = top(run);
    field.update({
      rows: Array.from({ length: depth(run) }, (_, r) => name(r)), columns: run.rounds.map(String), ramp: "more",
      value: (r, c) => { const v = value(run, r, c); return v == null ? null : v / most; },
    });
    scale.replaceChildren(cf.scale("more", "0", cf.number(most)));
    table.refill();
  };
  return {
    node,
    update(content) {
      runs = content.weights;
      if (!runs.length) return;
      chosen = Math.min(chosen, runs.length - 1);
      bar.replaceChildren(cf.select("Run", runs.map((run, k) => [k, run.label]), chosen, (k) => { chosen = Number(k); draw(); }));
      draw();
    },
  };
};

cf.scenario = () => {
  const node = cf.el("div"), bar = cf.el("div", { class: "bar" });
  let all = [], inAll = 0, chosen = 0, counts = [], most = 1;
  const about = () => all[chosen];
  const clientName = (client) => about().client_names?.[client] ?? `${about().returning ? "client" : "new client"} ${client}`;
  const field = new cf.Field({
    label: "Clients, rounds and classes",
    words: (r, c) => {
      const kinds = about().classes.length, client = Math.floor(r / kinds), held = about().held[client][c];
      const lines = [`${clientName(client)}, round ${about().shown[c]}`];
      if (held && about().elsewhere) return [...lines, "asked; its data are its own"];
      return held ? [...lines, ...held[1].slice(0, 6).map(([k, n]) => `${about().classes[k]}: ${n}`)] : [...lines, "not there"];
    },
  });
  const table = cf.asTable(() => [["client", ...about().shown.map((round) => `round ${round}`)], about().held.map((cells, client) => [clientName(client), ...cells.map((held) => (held && about().elsewhere ? "asked" : held ? held[1].slice(0, 3).map(([k, n]) => `${about().classes[k]} ${n}`).join(", ") : "–"))])], "Clients, rounds and classes");
  const note = cf.el("p", { class: "soft" });
  node.append(bar, cf.el("figure", {}, field.node, table), note);
  const draw = () => {
    const kinds = about().classes.length;
    counts = about().held.flatMap((cells) => {
      const band = Array.from({ length: kinds }, () => new Array(cells.length).fill(0));
      cells.forEach((held, c) => held?.[1].forEach(([k, n]) => { band[k][c] = n; }));
      return band;
    });
    most = Math.max(1, ...counts.flat());
    field.update({
      rows: counts.map((_, r) => clientName(Math.floor(r / kinds))), columns: about().shown.map(String), bands: kinds, dots: true,
      value: (r, c) => counts[r][c] / most,
    });
    const hiddenClients = about().clients - about().held.length;
    const dots = about().elsewhere ? "clients are elsewhere, and what they hold is not known here." : `the area of a dot is the number of samples, at most ${most}.`;
    note.textContent = `A band is a client, a line in it one of ${kinds} classes (${about().classes.slice(0, 12).join(", ")}${kinds > 12 ? ", …" : ""}, from the top), a column a round; ${dots}${hiddenClients > 0 ? ` ${hiddenClients} further clients are not shown.` : ""}${inAll > all.length ? ` There was no room for ${inAll - all.length} further scenarios.` : ""}`;
    table.refill();
  };
  return {
    node,
    update(content) {
      [all, inAll] = [content.scenarios, content.scenarios_in_all];
      if (!all.length) return;
      chosen = Math.min(chosen, all.length - 1);
      bar.replaceChildren(...(all.length > 1 ? [cf.select("Scenario of", all.map((s, k) => [k, s.labels.slice(0, 3).join("; ") + (s.labels.length > 3 ? "; …" : "")]), chosen, (k) => { chosen = Number(k); draw(); })] : []));
      draw();
    },
  };
};

cf.settings = () => {
  const node = cf.el("div");
  return {
    node,
    update(content) {
      const names = content.groups.map((group) => group.name), differ = Object.entries(content.differences).map(([key, values]) => [key, ...values]);
      const everything = [...new Set(content.settings.flatMap((s) => Object.keys(s)))];
      const open = node.querySelector("details")?.open;
      node.replaceChildren(
        differ.length ? cf.table(["setting", ...names], differ, { label: "Settings that differ", class: "words" })
          : cf.el("p", { class: "soft" }, names.length > 1 ? "The experiments differ in nothing but their names." : "There is only one experiment."),
        cf.el("details", { open: Boolean(open) }, cf.el("summary", {}, "All settings"),
          cf.table(["setting", ...names], everything.map((key) => [key, ...content.settings.map((s) => s[key] ?? "–")]), { label: "All settings", class: "words" })));
    },
  };
};

cf.environment = () => {
  const node = cf.el("div");
  return {
    node,
    update(content) {
      node.replaceChildren(...content.environments.map((entry) => cf.el("div", { class: "environment" },
        content.environments.length > 1 ? cf.el("h3", {}, entry.of.join("; ")) : null,
        cf.el("dl", {}, Object.entries(entry.about).map(([key, value]) => cf.el("div", {}, cf.el("dt", {}, key.replace("packages.", "")), cf.el("dd", {}, value)))),
        cf.el("details", {}, cf.el("summary", {}, "Command lines"), entry.commands.map((line) => cf.el("pre", {}, line))))));
    },
  };
};

// All sections of a page about some runs; update() shows new content and keeps what the reader chose.
cf.sections = (root) => {
  const curves = cf.curves();
  const parts = [
    ["summary", "Summary", "best-5: mean of the five best evaluations (the paper's figure, optimistic); last: after the last round; anytime: mean over all evaluations. ±: one deviation over seeds.", cf.summary(), (c) => c.groups.length, "No run yet."],
    ["curves", "Curves", "Drag to zoom, double-click to show all; bands are one deviation over seeds.", { ...curves, node: cf.el("div", {}, curves.nodes) }, (c) => c.measures.length, "No evaluation has been recorded yet."],
    ["forgetting", "Who forgets what, when", "Every client's data sets, and how the global model does on them. Choose a cell to see it over time.", cf.forgetting(), (c) => c.periods.length, "These runs did not follow single data sets (evaluate.periods)."],
    ["weights", "Round weights", "How much the present counts, and each remembered data set, newest first; mean over clients.", cf.weights(), (c) => c.weights.length, "Nothing is remembered in these runs: the present has all the weight."],
    ["scenario", "Scenario", null, cf.scenario(), (c) => c.scenarios.length, "These runs were made before scenarios were recorded; draw one from its data with: chronofed scenario RUN/spec.toml --plot FILE"],
    ["settings", "Settings that differ", null, cf.settings(), () => true, ""],
    ["environment", "Environment", null, cf.environment(), (c) => c.environments.length, "No environment was recorded."],
  ];
  const sections = parts.map(([id, title, about, part, , absent]) => {
    const missing = cf.el("p", { class: "soft", hidden: true }, absent);
    const section = cf.section(id, title, about, part.node, missing);
    root.append(section);
    return { section, missing, part };
  });
  return {
    links: () => cf.el("nav", { "aria-label": "Sections" }, parts.map(([id, title]) => cf.el("a", { href: `#${id}` }, title))),
    update(content) {
      parts.forEach(([, , , , there], k) => {
        const { missing, part, section } = sections[k], show = Boolean(there(content));
        missing.hidden = show;
        part.node.hidden = !show;
        section.classList.toggle("absent", !show);
        if (show) part.update(content);
      });
    },
  };
};
