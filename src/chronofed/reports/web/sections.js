// The parts of a page about some runs. Each has a node, and update(content) shows new content.
// The payload that they read is built by chronofed.reports.payload.
"use strict";

cf.badge = (state) => cf.el("span", { class: `badge ${state}` }, state);

cf.summary = () => {
  const holder = cf.el("div");
  const kept = /^(.+) ([+-])$/.exec(cf.view.get("sort") ?? "");
  let order = kept ? { key: kept[1], sign: kept[2] === "+" ? 1 : -1 } : null;
  const draw = (content) => {
    const columns = content.columns.filter((c) => content.groups.some((g) => g.cells[c.key]));
    const numbered = content.groups.map((group, k) => [group, k]);
    numbered.sort(([a], [b]) => cf.finished(b) - cf.finished(a));
    if (order) numbered.sort(([a], [b]) => order.sign * ((a.cells[order.key]?.mean ?? Infinity) - (b.cells[order.key]?.mean ?? Infinity)));
    const sorter = (c) => cf.el("button", {
      type: "button", class: "sorter", click: () => {
        const first = c.better === "higher" ? -1 : 1;
        order = order?.key === c.key ? (order.sign === first ? { key: c.key, sign: -first } : null) : { key: c.key, sign: first };
        cf.view.set("sort", order && `${order.key} ${order.sign > 0 ? "+" : "-"}`);
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

// Settings that differ: an experiment is a column, or a row where there are many. What all have alike is one column.
cf.settings = () => {
  const node = cf.el("div"), all = cf.el("details", { toggle: () => fill() }, cf.el("summary", {}, "All settings"));
  let content;
  const several = (key) => { const values = [...new Set(content.settings.map((s) => s[key] ?? "–"))]; return values.length > 6 ? `${values.slice(0, 6).join("; ")}; … (${values.length} values)` : values.join("; "); };
  const fill = () => {
    all.querySelector(".scroll")?.remove();
    if (!all.open) return;
    const everything = [...new Set(content.settings.flatMap((s) => Object.keys(s)))];
    all.append(cf.table(["setting", content.groups.length > 1 ? "value, or all of them" : "value"], everything.map((key) => [key, several(key)]), { label: "Table of all settings", class: "words" }));
  };
  const differing = () => {
    const names = content.groups.map((group) => group.name), differ = Object.entries(content.differences), about = { label: "Table of settings that differ", class: "words" };
    if (!differ.length) return cf.el("p", { class: "soft" }, names.length > 1 ? "The experiments differ in nothing but their names." : "There is only one experiment.");
    if (names.length <= 6) return cf.table(["setting", ...names], differ.map(([key, values]) => [key, ...values]), about);
    const table = cf.table(["experiment", ...differ.map(([key]) => key)], names.map((name, k) => [name, ...differ.map(([, values]) => values[k])]), about);
    table.classList.add("tall");
    return table;
  };
  return {
    node,
    update(fresh) {
      content = fresh;
      node.replaceChildren(differing(), all);
      fill();
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
  id: "forgetting", title: "Who forgets what, when", make: cf.forgetting, has: (content) => content.periods.length,
  about: "The accuracy of the global model by client and data set. Choose a cell to see it over time.",
  absent: (content) => (content.scenarios.length && content.scenarios.every((about) => !about.returning) ? "Clients do not come back here, so that nobody can be asked again about earlier data." : content.measures.length ? "These runs did not follow single data sets (evaluate.periods), or version 0.1 recorded them." : "No evaluation has been recorded yet."),
});
cf.addSection({
  id: "sweep", title: "Settings and scores", make: cf.sweep, has: (content) => cf.swept(content).length && content.groups.filter((g) => Object.keys(g.cells).length).length > 2,
  about: "A dot is an experiment, its mean over seeds.", absent: null,
});
cf.addSection({
  id: "summary", title: "All results", make: cf.summary, has: (content) => content.groups.length, absent: "No run yet.",
  about: "mean of best 5: over the five best evaluations of a run (the paper's figure, chosen on the test set; it can lie below the last); last: after the last round; anytime: mean over all evaluations. ±: one deviation over seeds; a single run has none.",
});
cf.addSection({
  id: "curves", title: "Curves", has: (content) => content.measures.length, absent: "No evaluation has been recorded yet.",
  about: "Drag to zoom, double-click to show all; bands are one deviation over seeds.",
  make: () => {
    const curves = cf.curves(), note = cf.el("p", { class: "soft thinned" });
    return {
      node: cf.el("div", {}, curves.nodes, note),
      update(content) {
        const points = content.measures.map((m) => m.points).filter(Boolean);
        curves.update({ ...content, calendar: content.overview.calendar });
        note.textContent = points.length ? `Long curves are drawn with ${Math.min(...points)} points${Math.max(...points) > Math.min(...points) ? ` to ${Math.max(...points)}` : ""}; the least and the greatest value of every stretch stay. The runs have all.` : "";
      },
    };
  },
});
cf.addSection({
  id: "scenario", title: "Who took part, with what", make: cf.scenario, has: (content) => content.scenarios.length,
  absent: "These runs have no scenario.json; draw the scenario from the data with: chronofed scenario RUN/spec.toml --plot FILE",
});
cf.addSection({
  id: "weights", title: "Round weights", make: cf.weights, has: (content) => content.weights.length,
  about: "The weight of the present and of each remembered data set, the present at the bottom, then the newest; mean over clients.",
  absent: (content) => (content.groups.some((group) => group.remembers) ? "No round weights were recorded yet: these runs have a memory, but no evaluation." : "Nothing is remembered in these runs: the present has all the weight."),
});
cf.addSection({
  id: "times", title: "Where the time goes", make: cf.phases, has: (content) => content.times.rows.length,
  about: "Wall-clock seconds of a run by phase, mean over seeds.", absent: "No times were recorded.",
});
cf.addSection({
  id: "clusters", title: "Who followed which model, when", make: cf.clusters, has: (content) => content.clusters.length,
  about: "The model of each client. A number is never used twice; models that were merged go on under the oldest number.",
  absent: null,
});
cf.addSection({ id: "settings", title: "Settings that differ", make: cf.settings, has: () => true, absent: "" });
cf.addSection({ id: "environment", title: "Environment", make: cf.environment, has: (content) => content.environments.length, absent: "No environment was recorded." });

// Builds all sections; update() shows new content and keeps what the reader chose.
cf.sections = (root) => {
  let latest = 0;
  const sections = cf.registered.map(({ id, title, about, make, has, absent }) => {
    const part = make(), missing = cf.el("p", { class: "soft", hidden: true });
    const node = cf.section(id, title, about, part.node, missing);
    root.append(node);
    return { id, node, missing, part, has, absent };
  });
  return {
    links: () => cf.el("nav", { "aria-label": "Sections" }, cf.registered.map(({ id, title }) => cf.el("a", { href: `#${id}` }, title))),
    // The first screen at once, the others in pieces; the promise is kept when all are painted.
    update(content) {
      const mine = ++latest;
      const fill = ({ id, node, missing, part, has, absent }) => {
        const show = Boolean(has(content));
        missing.hidden = show;
        node.hidden = !show && absent === null;
        missing.textContent = show ? "" : typeof absent === "function" ? absent(content) : absent;
        document.querySelector(`nav a[href="#${id}"]`)?.toggleAttribute("hidden", !show);
        part.node.hidden = !show;
        node.classList.toggle("absent", !show);
        if (show) part.update(content);
      };
      function* jobs() {
        for (const section of sections) {
          yield () => fill(section);
          yield* painting();
          if (section === sections[0]) performance.mark("first-screen");
        }
      }
      function* painting() {
        for (const painter of cf.waiting) {
          cf.waiting.delete(painter);
          yield painter.paint;
        }
      }
      cf.waiting ??= new Set();
      return cf.pieces(jobs(), () => mine === latest).finally(() => { if (mine === latest) cf.waiting = null; });
    },
  };
};
