// Round weights and the models that clients follow, of one run of every experiment.
"use strict";

// A part that shows one of several runs, which a list chooses; the choice is kept by its label.
cf.oneRun = (key, ...parts) => {
  const bar = cf.el("div", { class: "bar" }), self = { runs: [], label: null, node: cf.el("div", {}, bar, ...parts), draw: () => {} };
  self.run = () => self.runs.find((run) => run.label === self.label) ?? self.runs[0];
  self.show = (runs) => {
    self.runs = runs;
    self.label ??= cf.view.get(key);
    if (!runs.length) return;
    bar.replaceChildren(...(runs.length > 1 ? [cf.select("Run", runs.map((run) => [run.label, run.label]), self.run().label, (label) => { self.label = label; cf.view.set(key, label); self.draw(); })] : [cf.el("span", { class: "soft" }, self.run().label)]));
    self.draw();
  };
  return self;
};

cf.weights = () => {
  const depth = (run) => Math.max(...run.past.map((p) => p.length)), older = (run) => run.older.some((v) => v > 0);
  const name = (k) => (k ? `${k} data set${k > 1 ? "s" : ""} before` : "the present");
  // From the bottom: the present, then the newest past first.
  const layers = (run) => [run.present, ...Array.from({ length: depth(run) }, (_, k) => run.past.map((p) => p[k] ?? 0)), ...(older(run) ? [run.older] : [])];
  const colour = (k) => { const n = layers(part.run()).length; return k ? cf.ramp([...cf.stops("more")].slice(1, 4).reverse(), n < 3 ? 0 : (k - 1) / (n - 2)) : cf.colour("--present"); };
  const areas = new cf.Areas({
    label: "Round weights", describe: (c) => {
      const run = part.run(), all = layers(run).map((layer, k) => [older(run) && k === layers(run).length - 1 ? "older together" : name(k), layer[c]]);
      return [`round ${run.rounds[c]}`, ...all.slice(0, 9).filter(([, v]) => v).map(([who, v]) => `${who}: ${cf.number(v)}`), ...(all.length > 9 ? [`the ${all.length - 9} before these: ${cf.number(all.slice(9).reduce((sum, [, v]) => sum + v, 0))}`] : [])];
    },
  });
  const keys = cf.el("div"), rows = () => { const run = part.run(); return [["round", "present", ...Array.from({ length: depth(run) }, (_, k) => `${k + 1} before`), "older"], run.rounds.map((round, c) => [String(round), ...[run.present[c], ...Array.from({ length: depth(run) }, (_, k) => run.past[c][k] ?? null), run.older[c]].map((v) => (v == null ? "" : cf.number(v)))])]; };
  const table = cf.asTable(rows, "Round weights", () => areas.picture());
  const part = cf.oneRun("weights", cf.el("figure", {}, areas.node, table), keys);
  part.draw = () => {
    const run = part.run(), n = layers(run).length;
    areas.update({ columns: run.rounds.map(String), panels: [{ name: "", values: layers(run) }], colour, tall: 210, top: 1, smooth: true, below: "round" });
    keys.replaceChildren(cf.kindKeys(["the present", "newest data set before", ...(n > 2 ? ["oldest"] : [])], (k) => colour(k < 2 ? k : n - 1)));
    table.refill();
  };
  return { node: part.node, update: (content) => part.show(content.weights) };
};

cf.clusters = () => {
  const note = cf.el("p", { class: "soft" });
  const shown = () => Math.max(...part.run().of.map((models) => models.length)), clientName = (r) => part.run().names[r] ?? `client ${r}`;
  const value = (r, c) => { const model = part.run().of[c][r] ?? -1; return model < 0 ? null : model; };
  const modelName = (r, c) => (value(r, c) == null ? "none" : `model ${value(r, c)}`);
  const heatmap = new cf.Heatmap({
    label: "Models that clients follow",
    describe: (r, c) => [`${clientName(r)}, round ${part.run().rounds[c]}`, modelName(r, c), `${part.run().models[c]} models in use`],
  });
  const table = cf.asTable(() => [["client", ...part.run().rounds.map((round) => `round ${round}`)], Array.from({ length: shown() }, (_, r) => [clientName(r), ...part.run().rounds.map((_, c) => modelName(r, c))])], "Models that clients follow", () => heatmap.picture());
  const part = cf.oneRun("models", cf.el("figure", {}, heatmap.node, table), note);
  part.draw = () => {
    heatmap.update({ rows: Array.from({ length: shown() }, (_, r) => clientName(r)), columns: part.run().rounds.map(String), categories: true, value });
    const hidden = part.run().clients - shown();
    note.textContent = `A row is a client, a column an evaluation, a colour a model; colours repeat after eight models.${hidden > 0 ? ` ${hidden} further clients are not shown.` : ""}`;
    table.refill();
  };
  return { node: part.node, update: (content) => part.show(content.clusters) };
};
