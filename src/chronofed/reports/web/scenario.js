// Who takes part when, and with which classes.
"use strict";

cf.scenario = () => {
  const bar = cf.el("div", { class: "bar" }), keys = cf.el("div"), note = cf.el("p", { class: "soft" });
  let all = [], inAll = 0, chosen = 0;
  const about = () => all[chosen], kinds = () => about().classes.length, colour = (k) => cf.kind(k, kinds());
  const clientName = (client) => about().client_names?.[client] ?? `${about().returning ? "client" : "new client"} ${client}`;
  const className = (k) => cf.className(about().classes[k]);
  const classNames = () => about().classes.map((_, k) => className(k));
  // Rounds are counted from 1, as everywhere on the page; a round has the name of its period.
  const calendar = () => { const names = about().period_names ?? []; return names.length && about().rounds % names.length === 0 ? { names, length: about().rounds / names.length, ahead: 0 } : null; };
  const when = (c) => cf.when(calendar(), about().shown[c] + 1) ?? String(about().shown[c] + 1);
  const title = (c) => `round ${about().shown[c] + 1}${calendar() ? `, ${when(c)}` : ""}`;
  const columns = () => about().shown.map((_, c) => when(c));
  const counts = (pairs) => [...pairs].sort((a, b) => b[1] - a[1]).slice(0, 8).map(([k, n]) => `${className(k)}: ${n}`);
  const mixed = (c) => about().mix[c].map((n, k) => [k, n]).filter(([, n]) => n);
  const here = (c) => about().there.filter((digits) => digits[c] === "1").length;

  const gantt = new cf.Heatmap({ label: "Who took part, when", describe: (r, c) => [`${clientName(r)}, ${title(c)}`, about().there[r][c] === "1" ? "took part" : "not there"] });
  const mix = new cf.Areas({ label: "Class mix over time", describe: (c) => [title(c), `${here(c)}${about().clients > about().there.length ? " of the clients shown" : " clients"}`, ...counts(mixed(c))] });
  const own = new cf.Areas({
    label: "Classes of every client over time", describe: (c, client) => {
      const held = about().held[client][c];
      return [`${clientName(client)}, ${title(c)}`, ...(held ? counts(held[1]) : ["not there"])];
    },
  });
  const figure = (caption, drawn, rows) => cf.el("figure", {}, cf.el("figcaption", {}, caption), drawn.node, cf.asTable(rows, drawn.label, () => drawn.picture()));
  const figures = {
    gantt: figure("Who took part, when", gantt, () => [["client", ...columns()], about().there.map((digits, client) => [clientName(client), ...[...digits].map((d) => (d === "1" ? "there" : "–"))])]),
    mix: figure("Class mix over time: samples of all clients", mix, () => [["round", ...classNames()], about().mix.map((samples, c) => [when(c), ...samples.map(String)])]),
    own: figure("Class mix of every client", own, () => [["client", ...columns()], about().held.map((cells, client) => [clientName(client), ...cells.map((held) => (held ? counts(held[1]).slice(0, 3).join(", ") : "–"))])]),
  };
  const shares = (cells) => about().classes.map((_, k) => cells.map((held) => held?.[1].find(([kind]) => kind === k)?.[1] ?? 0));
  const draw = () => {
    const known = Boolean(about().there), local = !about().remote;
    figures.gantt.hidden = !known;
    figures.mix.hidden = !known || !local;
    figures.own.hidden = !local;
    if (known) gantt.update({ rows: about().there.map((_, r) => clientName(r)), columns: columns(), joined: true, value: (r, c) => (about().there[r][c] === "1" ? 1 : null) });
    if (known && local) mix.update({ columns: columns(), panels: [{ name: "", values: about().classes.map((_, k) => about().mix.map((samples) => samples[k])) }], colour, tall: 170, below: calendar() ? "period" : "round" });
    if (local) own.update({ columns: columns(), panels: about().held.map((cells, client) => ({ name: clientName(client), values: shares(cells) })), colour, tall: Math.max(14, Math.min(40, 420 / Math.max(1, about().held.length))), below: calendar() ? "period" : "round" });
    keys.replaceChildren(...(local && kinds() <= 24 ? [cf.kindKeys(classNames(), colour)] : []));
    const parts = [`${about().shown.length < about().rounds ? `${about().shown.length} of ${about().rounds} rounds are shown, evenly spread` : "Every round is shown"}.`];
    if (about().remote) parts.push("The clients are elsewhere, and what they hold is not known here.");
    if (!known) parts.push("Who took part was not recorded: an earlier version made these runs.");
    if (known && about().clients > about().there.length) parts.push(`Who took part: the first ${about().there.length} of ${about().clients} clients.`);
    if (local && about().clients > about().held.length) parts.push(`Class mix of every client: the first ${about().held.length} of ${about().clients}; the mix of all has every client.`);
    if (local && kinds() > 24) parts.push(`There are ${kinds()} classes; a colour is read with the pointer.`);
    if (inAll > all.length) parts.push(`There was no room for ${inAll - all.length} further scenarios.`);
    note.textContent = parts.join(" ");
    for (const each of Object.values(figures)) each.querySelector("details").refill();
  };
  return {
    node: cf.el("div", {}, bar, figures.gantt, keys, figures.mix, figures.own, note),
    update(content) {
      const first = !all.length;
      [all, inAll] = [content.scenarios, content.scenarios_in_all];
      if (!all.length) return;
      if (first) chosen = Number(cf.view.get("scenario") ?? 0);
      chosen = Math.min(chosen, all.length - 1);
      bar.replaceChildren(...(all.length > 1 ? [cf.select("Scenario of", all.map((s, k) => [k, s.labels.slice(0, 3).join("; ") + (s.labels.length > 3 ? "; …" : "")]), chosen, (k) => { chosen = Number(k); cf.view.set("scenario", chosen || null); draw(); })] : []));
      draw();
    },
  };
};
