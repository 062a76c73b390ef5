// The live page: fetches changes once a second while the page is visible.
"use strict";
addEventListener("DOMContentLoaded", () => {
  const PERIOD = 1000, FIRST = 6;
  const aside = document.querySelector("aside"), main = document.querySelector("main"), counts = document.getElementById("counts");
  const sections = cf.sections(main), empty = cf.el("section", {}, cf.el("p", { class: "soft" }, "Choose runs in the list to see and compare them."));
  const offline = cf.el("p", { class: "offline", role: "alert", hidden: true }, "The server does not answer; is 'chronofed watch' still running?");
  main.prepend(offline, empty);
  const filter = cf.el("input", { type: "search", placeholder: "Find a run", "aria-label": "Find a run", input: () => applyFilter() });
  const chips = cf.el("div", { class: "chips", role: "group", "aria-label": "State" }), list = cf.el("ul", { class: "runs" });
  aside.append(cf.el("div", { class: "find" }, filter, chips), list);
  document.querySelector("header .tools").append(cf.themeButton());

  const chosen = new Set(new URLSearchParams(location.hash.slice(1)).getAll("run")), entries = new Map(), tags = {};
  let state = "all", runs = [], drawn = false;
  const answer = async (address) => {
    const headers = tags[address] ? { "If-None-Match": tags[address] } : {};
    const response = await fetch(address, { headers, cache: "no-store" });
    if (response.status === 304) return null;
    if (!response.ok) throw new Error(String(response.status));
    tags[address] = response.headers.get("ETag");
    return response.json();
  };
  const address = () => `/api/payload?${new URLSearchParams([...chosen].map((id) => ["run", id]))}`;
  const saveSelection = () => history.replaceState(null, "", `#${new URLSearchParams([...chosen].map((id) => ["run", id]))}`);

  const entry = (run) => {
    const box = cf.el("input", {
      type: "checkbox", checked: chosen.has(run.id), change: () => {
        if (box.checked) chosen.add(run.id); else chosen.delete(run.id);
        saveSelection();
        delete tags[address()];
        show();
      },
    });
    const label = cf.el("label"), node = cf.el("li", {}, label);
    const fill = (now) => {
      const share = now.rounds ? Math.min(1, now.round / now.rounds) : 0;
      box.checked = chosen.has(now.id);
      label.replaceChildren(...[box, cf.el("span", { class: "title", title: now.id }, `${now.name}, seed ${now.seed}`),
        cf.el("span", { class: "value" }, now.headline),
        cf.el("span", { class: "more" }, cf.badge(now.state), cf.el("span", { class: "where" }, `round ${now.round}${now.rounds ? ` of ${now.rounds}` : ""}${now.eta == null ? "" : `, ${cf.duration(now.eta)} left`}`)),
        now.state === "running" ? cf.el("span", { class: "progress", role: "progressbar", "aria-valuenow": Math.round(100 * share), "aria-valuemin": 0, "aria-valuemax": 100, "aria-label": `progress of ${now.name}` }, cf.el("span", { style: { width: `${100 * share}%` } })) : null,
        now.note ? cf.el("span", { class: "note" }, now.note) : null].filter(Boolean));
    };
    fill(run);
    return { node, fill, text: JSON.stringify(run) };
  };
  const applyFilter = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const run of runs) {
      const text = `${run.id} ${run.name} ${run.method} seed ${run.seed}`.toLowerCase();
      entries.get(run.id).node.hidden = !(state === "all" || run.state === state) || !words.every((word) => text.includes(word));
    }
  };
  const drawList = () => {
    const known = new Set(runs.map((run) => run.id));
    for (const [id, old] of entries) if (!known.has(id)) { old.node.remove(); entries.delete(id); }
    runs.forEach((run, k) => {
      let item = entries.get(run.id);
      if (!item) entries.set(run.id, item = entry(run));
      const text = JSON.stringify(run), focused = item.node.contains(document.activeElement);
      if (item.text !== text) { item.fill(run); item.text = text; if (focused) item.node.querySelector("input").focus(); }
      if (list.children[k] !== item.node) { list.insertBefore(item.node, list.children[k] ?? null); if (focused) item.node.querySelector("input").focus(); }
    });
    const number = (s) => runs.filter((run) => run.state === s).length;
    const states = ["running", "finished", "stopped", "failed"].filter((s) => number(s) || s === state);
    const words = states.map((s) => `${number(s)} ${s}`).join(", ");
    counts.textContent = runs.length ? `${runs.length} run${runs.length > 1 ? "s" : ""}: ${words}` : "No run yet; it appears here as soon as there is one.";
    document.title = `${number("running") ? `${number("running")} running · ` : ""}Runs · chronofed`;
    const made = JSON.stringify([states, state]);
    if (chips.dataset.made !== made) {
      chips.dataset.made = made;
      chips.replaceChildren(...["all", ...states].map((s) => cf.el("button", { type: "button", "aria-pressed": String(s === state), click: () => { state = s; drawList(); [...chips.children].find((b) => b.textContent === s)?.focus(); } }, s)));
    }
    applyFilter();
  };
  const show = async () => {
    const wanted = address();
    const there = [...chosen].some((id) => entries.has(id));
    empty.hidden = there;
    for (const section of main.querySelectorAll("section[id]")) section.hidden = !there;
    if (!there) return;
    const content = await answer(wanted);
    if (content && wanted === address()) { sections.update(content); drawn = true; }
    document.body.dataset.ready = "true";
  };
  const poll = async () => {
    try {
      const content = await answer("/api/runs");
      if (content) {
        runs = content.runs;
        if (!drawn && !chosen.size) {
          const running = runs.filter((run) => run.state === "running");
          for (const run of (running.length ? running : runs).slice(0, FIRST)) chosen.add(run.id);
        }
        drawList();
      }
      await show();
      offline.hidden = true;
      document.body.dataset.ready = "true";
    } catch { offline.hidden = false; }
  };
  const loop = async () => {
    if (!document.hidden) await poll();
    setTimeout(loop, PERIOD);
  };
  document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
  loop();
});
