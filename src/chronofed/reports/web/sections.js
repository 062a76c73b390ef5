// The parts of a page about some runs. Each has a node, and update(content) shows new content.
// The payload that they read is built by chronofed.reports.payload.
"use strict";

cf.badge = (state) => cf.el("span", { class: `badge ${state}` }, state);

cf.summary = () => {
  const holder = cf.el("div");
  let order = null;
  const draw = (content) => {
    const columns = content.columns.filter((c) => content.groups.some((g) => g.cells[c.key]));
    const numbered = content.groups.map((group, k) => [group, k]);
    if (order) numbered.sort(([a], [b]) => order.sign * ((a.cells[order.key]?.mean ?? Infinity) - (b.cells[order.key]?.mean ?? Infinity)));
    const sorter = (c) => cf.el("button", {
      type: "button", class: "sorter", click: () => {
        const first = c.better === "higher" ? -1 : 1;
        order = order?.key === c.key ? (order.sign === first ? { key: c.key, sign: -first } : null) : { key: c.key, sign: first };
        draw(content);
        holder.querySelectorAll("button.sorter")[columns.indexOf(c)].focus();
      },
    }, c.heading, cf.el("span", { "aria-hidden": "true" }, order?.key === c.key ? (order.sign > 0 ? " ↑" : " ↓") : ""));
    const sorted = (c) => (order?.key === c.key ? (order.sign > 0 ? "ascending" : "descending") : null);
    holder.replaceChildren(cf.el("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": "Summary" }, cf.el("table", { class: "summary" },
      cf.el("thead", {}, cf.el("tr", {}, cf.el("th", { scope: "col" }, "experiment"), cf.el("th", { scope: "col" }, "runs × rounds"),
        columns.map((c) => cf.el("th", { scope: "col", "aria-sort": sorted(c) }, sorter(c))))),
      cf.el("tbody", {}, numbered.map(([group, k]) => cf.el("tr", {},
        cf.el("th", { scope: "row" }, cf.lineSample(group.style), cf.el("span", { class: "name" }, group.name),
          cf.el("div", { class: "soft method" }, `${group.method} `, ...cf.unfinished(group)), cf.failure(group)),
        cf.el("td", {}, group.size.replace("x", "×")),
        columns.map((c) => cf.el("td", { class: content.best[c.key] === k ? "best" : null }, cf.cell(group.cells[c.key])))))))),
    cf.el("div", { class: "bar" }, [["csv", "CSV"], ["tex", "LaTeX"]].map(([kind, name]) => cf.el("button", {
      type: "button", class: "quiet", click: () => cf.save(`results.${kind}`, content.downloads[kind]),
    }, `Save as ${name}`))),
    cf.el("ul", { class: "soft notes" }, content.notes.map((note) => cf.el("li", {}, note))));
  };
  return { node: holder, update: draw };
};
// Numbers of tables are rounded by chronofed.reports.spread alone; the page shows its text.
cf.cell = (cell) => {
  if (!cell) return "–";
  const [mean, ...rest] = cell.text.replaceAll("-", "−").split(" ± ");
  return rest.length ? [mean, cf.el("div", { class: "deviation" }, `± ${rest[0]}`)] : mean;
};
cf.unfinished = (group) => [...new Set(group.runs.map((run) => run.state))].filter((state) => state !== "finished").map((state) => cf.badge(state));

cf.failure = (group) => {
  const reasons = [...new Set(group.runs.map((run) => run.failure).filter(Boolean))];
  return reasons.length ? cf.el("div", { class: "failure" }, reasons.join("; ")) : null;
};

cf.weights = () => {
  const node = cf.el("div"), bar = cf.el("div", { class: "bar" });
  let runs = [], chosen = 0;
  const top = (run) => Math.max(...run.present, ...run.past.flat(), 1e-9);
  const value = (run, r, c) => (r ? run.past[c][r - 1] ?? null : run.present[c]);
  const depth = (run) => 1 + Math.max(...run.past.map((p) => p.length));
  const name = (r) => (r ? `${r} before` : "present");
  const heatmap = new cf.Heatmap({
    label: "Round weights",
    describe: (r, c) => [`round ${runs[chosen].rounds[c]}, ${r ? `${r} data set${r > 1 ? "s" : ""} before the present` : "the present"}`, `weight ${cf.number(value(runs[chosen], r, c))}`],
  });
  const scale = cf.el("div"), table = cf.asTable(() => {
    const run = runs[chosen];
    return [["round", "present", "past together", "newest past"], run.rounds.map((round, c) => [String(round), cf.number(run.present[c]), cf.number(run.past[c].reduce((a, b) => a + b, 0) + run.older[c]), cf.number(run.past[c][0])])];
  }, "Round weights");
  node.append(bar, cf.el("figure", {}, heatmap.node, scale, table));
  const draw = () => {
    const run = runs[chosen], most = top(run);
    heatmap.update({
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

cf.clusters = () => {
  const node = cf.el("div"), bar = cf.el("div", { class: "bar" }), note = cf.el("p", { class: "soft" });
  let runs = [], chosen = 0;
  const run = () => runs[chosen], shown = () => Math.max(...run().of.map((models) => models.length));
  const clientName = (r) => run().names[r] ?? `client ${r}`;
  const value = (r, c) => { const model = run().of[c][r] ?? -1; return model < 0 ? null : model; };
  const modelName = (r, c) => (value(r, c) == null ? "none" : `model ${value(r, c)}`);
  const heatmap = new cf.Heatmap({
    label: "Models that clients follow",
    describe: (r, c) => [`${clientName(r)}, round ${run().rounds[c]}`, modelName(r, c), `${run().models[c]} models in use`],
  });
  const table = cf.asTable(() => [["client", ...run().rounds.map((round) => `round ${round}`)], Array.from({ length: shown() }, (_, r) => [clientName(r), ...run().rounds.map((_, c) => modelName(r, c))])], "Models that clients follow");
  node.append(bar, cf.el("figure", {}, heatmap.node, table), note);
  const draw = () => {
    heatmap.update({ rows: Array.from({ length: shown() }, (_, r) => clientName(r)), columns: run().rounds.map(String), categories: true, value });
    const hidden = run().clients - shown();
    note.textContent = `A row is a client, a column an evaluation, a colour a model; colours repeat after eight models.${hidden > 0 ? ` ${hidden} further clients are not shown.` : ""}`;
    table.refill();
  };
  return {
    node,
    update(content) {
      runs = content.clusters;
      if (!runs.length) return;
      chosen = Math.min(chosen, runs.length - 1);
      bar.replaceChildren(cf.select("Run", runs.map((one, k) => [k, one.label]), chosen, (k) => { chosen = Number(k); draw(); }));
      draw();
    },
  };
};

cf.scenario = () => {
  const node = cf.el("div"), bar = cf.el("div", { class: "bar" });
  let all = [], inAll = 0, chosen = 0, counts = [], most = 1;
  const about = () => all[chosen];
  const clientName = (client) => about().client_names?.[client] ?? `${about().returning ? "client" : "new client"} ${client}`;
  const heatmap = new cf.Heatmap({
    label: "Clients, rounds and classes",
    describe: (r, c) => {
      const kinds = about().classes.length, client = Math.floor(r / kinds), held = about().held[client][c];
      const lines = [`${clientName(client)}, round ${about().shown[c]}`];
      if (held && about().remote) return [...lines, "asked; its data stay with it"];
      return held ? [...lines, ...held[1].slice(0, 6).map(([k, n]) => `${about().classes[k]}: ${n}`)] : [...lines, "not there"];
    },
  });
  const table = cf.asTable(() => [["client", ...about().shown.map((round) => `round ${round}`)], about().held.map((cells, client) => [clientName(client), ...cells.map((held) => (held && about().remote ? "asked" : held ? held[1].slice(0, 3).map(([k, n]) => `${about().classes[k]} ${n}`).join(", ") : "–"))])], "Clients, rounds and classes");
  const note = cf.el("p", { class: "soft" });
  node.append(bar, cf.el("figure", {}, heatmap.node, table), note);
  const draw = () => {
    const kinds = about().classes.length;
    counts = about().held.flatMap((cells) => {
      const band = Array.from({ length: kinds }, () => new Array(cells.length).fill(0));
      cells.forEach((held, c) => held?.[1].forEach(([k, n]) => { band[k][c] = n; }));
      return band;
    });
    most = Math.max(1, ...counts.flat());
    heatmap.update({
      rows: counts.map((_, r) => clientName(Math.floor(r / kinds))), columns: about().shown.map(String), bands: kinds, dots: true,
      value: (r, c) => counts[r][c] / most,
    });
    const hiddenClients = about().clients - about().held.length;
    const dots = about().remote ? "clients are elsewhere, and what they hold is not known here." : `the area of a dot is the number of samples, at most ${most}.`;
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
        differ.length ? cf.table(["setting", ...names], differ, { label: "Table of settings that differ", class: "words" })
          : cf.el("p", { class: "soft" }, names.length > 1 ? "The experiments differ in nothing but their names." : "There is only one experiment."),
        cf.el("details", { open: Boolean(open) }, cf.el("summary", {}, "All settings"),
          cf.table(["setting", ...names], everything.map((key) => [key, ...content.settings.map((s) => s[key] ?? "–")]), { label: "Table of all settings", class: "words" })));
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

cf.addSection({
  id: "overview", title: "What was found", make: cf.overview, has: (content) => content.groups.length, absent: "No run yet.",
});
cf.addSection({
  id: "summary", title: "All results", make: cf.summary, has: (content) => content.groups.length, absent: "No run yet.",
  about: "mean of best 5: over the five best evaluations of a run (the paper's figure, chosen on the test set; it can lie below the last); last: after the last round; anytime: mean over all evaluations. ±: one deviation over seeds; a single run has none.",
});
cf.addSection({
  id: "curves", title: "Curves", has: (content) => content.measures.length, absent: "No evaluation has been recorded yet.",
  about: "Drag to zoom, double-click to show all; bands are one deviation over seeds.",
  make: () => { const curves = cf.curves(); return { node: cf.el("div", {}, curves.nodes), update: (content) => curves.update({ ...content, calendar: content.overview.calendar }) }; },
});
cf.addSection({
  id: "forgetting", title: "Who forgets what, when", make: cf.forgetting, has: (content) => content.periods.length,
  about: "The accuracy of the global model by client and data set. Choose a cell to see it over time.",
  absent: (content) => (content.measures.length ? "These runs did not follow single data sets (evaluate.periods), or version 0.1 recorded them." : "No evaluation has been recorded yet."),
});
cf.addSection({
  id: "weights", title: "Round weights", make: cf.weights, has: (content) => content.weights.length,
  about: "The weight of the present and of each remembered data set, newest first; mean over clients.",
  absent: (content) => (content.groups.some((group) => group.remembers) ? "No round weights were recorded yet: these runs have a memory, but no evaluation." : "Nothing is remembered in these runs: the present has all the weight."),
});
cf.addSection({
  id: "clusters", title: "Who followed which model, when", make: cf.clusters, has: (content) => content.clusters.length,
  about: "The model of each client. A number is never used twice; models that were merged go on under the oldest number.",
  absent: "These runs have one global model.",
});
cf.addSection({
  id: "scenario", title: "Scenario", make: cf.scenario, has: (content) => content.scenarios.length,
  absent: "These runs have no scenario.json; draw the scenario from the data with: chronofed scenario RUN/spec.toml --plot FILE",
});
cf.addSection({ id: "settings", title: "Settings that differ", make: cf.settings, has: () => true, absent: "" });
cf.addSection({ id: "environment", title: "Environment", make: cf.environment, has: (content) => content.environments.length, absent: "No environment was recorded." });

// Builds all sections; update() shows new content and keeps what the reader chose.
cf.sections = (root) => {
  const sections = cf.registered.map(({ id, title, about, make, has, absent }) => {
    const part = make(), missing = cf.el("p", { class: "soft", hidden: true });
    const node = cf.section(id, title, about, part.node, missing);
    root.append(node);
    return { id, node, missing, part, has, absent };
  });
  return {
    links: () => cf.el("nav", { "aria-label": "Sections" }, cf.registered.map(({ id, title }) => cf.el("a", { href: `#${id}` }, title))),
    update(content) {
      for (const { id, node, missing, part, has, absent } of sections) {
        const show = Boolean(has(content));
        missing.hidden = show;
        missing.textContent = show ? "" : typeof absent === "function" ? absent(content) : absent;
        document.querySelector(`nav a[href="#${id}"]`)?.toggleAttribute("hidden", !show);
        part.node.hidden = !show;
        node.classList.toggle("absent", !show);
        if (show) part.update(content);
      }
    },
  };
};
