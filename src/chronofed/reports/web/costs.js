// Where the time of every experiment goes, by phase.
"use strict";

cf.phases = () => {
  let rows = [], groups = [], phases = [];
  const most = 30, keys = cf.el("div"), note = cf.el("p", { class: "soft" }), colour = (k) => cf.kind(k, phases.length);
  const total = (row) => row.seconds.reduce((a, b) => a + b, 0), seconds = (v) => `${cf.number(v)} s`;
  const draw = (width) => {
    const shown = rows.slice(0, most), left = Math.min(220, width * 0.34), right = 74, line = 30, high = Math.max(1e-9, ...shown.map(total)), parts = [];
    shown.forEach((row, k) => {
      const y = line * k + 6;
      let x = left;
      parts.push(cf.text(0, y + 15, cf.short(groups[row.group].name, Math.floor(left / 8)), { class: "name" }));
      row.seconds.forEach((value, p) => {
        const wide = (width - left - right) * value / high;
        if (wide > 0) parts.push(cf.svg("rect", { x, y, width: wide, height: 20, fill: colour(p), "data-phase": phases[p], "data-group": groups[row.group].name }, cf.svg("title", {}, `${groups[row.group].name}, ${phases[p]}: ${seconds(value)}`)));
        x += wide;
      });
      parts.push(cf.text(x + 8, y + 15, seconds(total(row)), { class: "soft" }));
    });
    return { height: line * shown.length + 6, parts, words: shown.map((row) => `${groups[row.group].name} ${seconds(total(row))}`).join("; ") };
  };
  const drawing = new cf.Drawing("Time by phase", draw, () => [["experiment", ...phases, "together"], rows.map((row) => [groups[row.group].name, ...row.seconds.map((v) => cf.number(v)), cf.number(total(row))])]);
  return {
    node: cf.el("div", {}, drawing.node, keys, note),
    update(content) {
      ({ groups, times: { rows, phases } } = content);
      keys.replaceChildren(cf.kindKeys(phases, colour));
      note.textContent = rows.length > most ? `The first ${most} of ${rows.length} experiments are drawn; the table has all.` : "";
      drawing.show();
    },
  };
};
