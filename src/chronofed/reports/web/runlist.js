// The list of runs on the live page: found, sorted and chosen; of thousands only those in sight are on the page.
"use strict";

cf.RunList = class {
  static STEP = 100;
  static CHOSEN = 500; // as many as the server shows at once
  static STATES = ["running", "finished", "stopped", "failed"];
  static SORTS = {
    latest: ["latest first", (a, b) => (b.state === "running") - (a.state === "running") || b.updated - a.updated],
    name: ["name", (a, b) => a.name.localeCompare(b.name, "en", { numeric: true }) || a.seed - b.seed],
    best: ["best score", (a, b) => (b.score ?? -Infinity) - (a.score ?? -Infinity)],
    worst: ["lowest score", (a, b) => (a.score ?? Infinity) - (b.score ?? Infinity)],
    round: ["round", (a, b) => b.round - a.round],
    state: ["state", (a, b) => cf.RunList.STATES.indexOf(a.state) - cf.RunList.STATES.indexOf(b.state) || b.updated - a.updated],
  };

  // chosen: a set of ids; changed() is called when the reader changes it.
  constructor(chosen, changed) {
    Object.assign(this, { chosen, changed, rows: new Map(), entries: new Map(), state: "all", sort: "latest", most: cf.RunList.STEP });
    this.filter = cf.el("input", { type: "search", placeholder: "Find a run", "aria-label": "Find a run", input: () => this.again() });
    this.chips = cf.el("div", { class: "chips", role: "group", "aria-label": "State" });
    this.list = cf.el("ul", { class: "runs", scroll: () => this.scrolled() });
    this.count = cf.el("span", { class: "soft" });
    this.sorter = cf.select("Sort", Object.entries(cf.RunList.SORTS).map(([key, [text]]) => [key, text]), this.sort, (key) => { this.sort = key; this.again(); });
    const all = cf.el("button", { type: "button", class: "quiet", click: () => { for (const run of this.found().slice(0, cf.RunList.CHOSEN)) chosen.add(run.id); this.touched(); } }, "Choose these");
    const none = cf.el("button", { type: "button", class: "quiet", click: () => { chosen.clear(); this.touched(); } }, "Choose none");
    this.nodes = [cf.el("div", { class: "find" }, this.filter, this.chips, cf.el("div", { class: "bar" }, this.sorter, all, none), this.count), this.list];
  }

  touched() { this.draw(); this.changed(); }

  again() { this.most = cf.RunList.STEP; this.list.scrollTop = 0; this.draw(); }

  scrolled() {
    if (this.list.scrollTop + this.list.clientHeight < this.list.scrollHeight - 200 || this.most >= this.rows.size) return;
    this.most += cf.RunList.STEP;
    this.draw();
  }

  // An answer of the server: all rows, or those that changed.
  take({ whole, runs, gone }) {
    if (whole) this.rows.clear();
    for (const id of gone) this.rows.delete(id);
    for (const run of runs) this.rows.set(run.id, run);
    this.draw();
  }

  found() {
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    return [...this.rows.values()].filter((run) => {
      const text = `${run.id} ${run.name} ${run.method} seed ${run.seed}`.toLowerCase();
      return (this.state === "all" || run.state === this.state) && words.every((word) => text.includes(word));
    }).sort(cf.RunList.SORTS[this.sort][1]);
  }

  entry(run) {
    const box = cf.el("input", {
      type: "checkbox", checked: this.chosen.has(run.id), change: () => {
        if (box.checked) this.chosen.add(run.id); else this.chosen.delete(run.id);
        this.changed();
      },
    });
    const label = cf.el("label"), item = { box, node: cf.el("li", {}, label), text: null };
    item.fill = (now) => {
      const share = now.rounds ? Math.min(1, now.round / now.rounds) : 0;
      label.replaceChildren(...[box, cf.el("span", { class: "title", title: now.id }, cf.lineSample(now.style), ` ${now.name}, seed ${now.seed}`),
        cf.el("span", { class: "value" }, now.headline),
        cf.el("span", { class: "more" }, cf.badge(now.state), cf.el("span", { class: "where" }, now.state === "finished" ? `${now.round} rounds` : `round ${now.round}${now.rounds ? ` of ${now.rounds}` : ""}${now.eta == null ? "" : `, ${cf.duration(now.eta)} left`}`),
          now.updated ? cf.el("time", {}, cf.date(now.updated)) : null),
        now.state === "running" ? cf.el("span", { class: "progress", role: "progressbar", "aria-valuenow": Math.round(100 * share), "aria-valuemin": 0, "aria-valuemax": 100, "aria-label": `progress of ${now.name}` }, cf.el("span", { style: { width: `${100 * share}%` } })) : null,
        now.note ? cf.el("span", { class: "note" }, now.note) : null].filter(Boolean));
    };
    return item;
  }

  draw() {
    const found = this.found(), shown = found.slice(0, this.most), kept = new Set(shown.map((run) => run.id));
    for (const [id, old] of this.entries) if (!kept.has(id)) { old.node.remove(); this.entries.delete(id); }
    shown.forEach((run, k) => {
      let item = this.entries.get(run.id);
      if (!item) this.entries.set(run.id, item = this.entry(run));
      const text = JSON.stringify(run), focused = item.node.contains(document.activeElement);
      if (item.text !== text) { item.fill(run); item.text = text; }
      item.box.checked = this.chosen.has(run.id);
      if (this.list.children[k] !== item.node) this.list.insertBefore(item.node, this.list.children[k] ?? null);
      if (focused && document.activeElement !== item.box) item.box.focus();
    });
    const there = [...this.chosen].filter((id) => this.rows.has(id)).length;
    this.count.textContent = `${found.length === this.rows.size ? "" : `${found.length} found, `}${there} chosen${shown.length < found.length ? `; scroll for ${found.length - shown.length} more` : ""}`;
    this.drawChips();
  }

  number(state) { return [...this.rows.values()].filter((run) => run.state === state).length; }

  states() { return cf.RunList.STATES.filter((s) => this.number(s) || s === this.state); }

  drawChips() {
    const made = JSON.stringify([this.states(), this.state]);
    if (this.chips.dataset.made === made) return;
    this.chips.dataset.made = made;
    this.chips.replaceChildren(...["all", ...this.states()].map((s) => cf.el("button", { type: "button", "aria-pressed": String(s === this.state), click: () => { this.state = s; this.again(); [...this.chips.children].find((b) => b.textContent === s)?.focus(); } }, s)));
  }
};
// A time as date and minute, of this machine's clock.
cf.date = (seconds) => {
  const at = new Date(1000 * seconds), two = (v) => String(v).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}`;
};
