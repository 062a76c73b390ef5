// Common to all parts of a page: elements made from text only (never from HTML), numbers, theme, tooltips.
"use strict";
const cf = {};

cf.el = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (name === "style") Object.assign(node.style, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child != null));
  return node;
};

// Colours of the style sheet by theme and name; reading one lays the page out anew.
cf.inDark = matchMedia("(prefers-color-scheme: dark)");
cf.isDark = () => (document.documentElement.dataset.theme ?? (cf.inDark.matches ? "dark" : "light")) === "dark";
cf.colours = new Map();
cf.colour = (name) => {
  const key = `${cf.isDark()} ${name}`;
  if (!cf.colours.has(key)) cf.colours.set(key, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return cf.colours.get(key);
};
// A style is a number below 32: a colour and a line, given to every method by chronofed.reports.styles.
cf.series = (k) => cf.colour(`--c${k % 8}`);
cf.dash = (k) => [[], [9, 4], [2, 3], [9, 3, 2, 3]][Math.floor(k / 8) % 4];
cf.svg = (tag, attributes = {}, ...children) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) if (value != null) node.setAttribute(name, value);
  node.append(...children.filter((child) => child != null));
  return node;
};
cf.lineSample = (k) => {
  const svg = cf.svg("svg", { class: "line", "data-style": k, viewBox: "0 0 28 6", width: 28, height: 6, "aria-hidden": "true" });
  svg.append(cf.svg("line", { x1: 0, x2: 28, y1: 3, y2: 3, stroke: `var(--c${k % 8})`, "stroke-width": 2.5, "stroke-dasharray": cf.dash(k).join(" ") || null }));
  return svg;
};
cf.withAlpha = (colour, alpha) => colour + Math.round(255 * alpha).toString(16).padStart(2, "0");

cf.number = (value, digits) => {
  if (value == null || Number.isNaN(value)) return "–";
  if (digits != null) return value.toFixed(digits).replace("-", "−");
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2).replace("-", "−");
  return String(Number(value.toPrecision(4))).replace("-", "−");
};

// The name of the period at a round; on the next period that of the one the model is evaluated on.
cf.when = (calendar, round) => (calendar ? calendar.names[Math.floor((round - 1) / calendar.length) + calendar.ahead] ?? null : null);

// The first round of every year, if periods are months.
cf.years = (calendar) => {
  if (!calendar || !calendar.names.every((name) => /^\d{4}-\d{2}$/.test(name))) return null;
  return calendar.names.flatMap((name, k) => (name.endsWith("-01") && k >= calendar.ahead ? [1 + (k - calendar.ahead) * calendar.length] : []));
};

// A number that fits beside an axis.
cf.tick = (value) => {
  const size = Math.abs(value);
  if (size === 0 || (size >= 1e-3 && size < 1e5)) return cf.number(value);
  return Number(value.toPrecision(2)).toExponential().replace(/-/g, "−").replace("+", "");
};

cf.duration = (seconds) => {
  if (seconds == null) return "";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86400).toFixed(1)} d`;
};

// The name of a class; a number alone would not say that it is one.
cf.className = (name) => (/^\d+$/.test(name) ? `class ${name}` : name);

// Numbers of two bytes, the lower one first.
cf.numbers = (text) => {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return Uint16Array.from({ length: bytes.length / 2 }, (_, k) => bytes[2 * k] + 256 * bytes[2 * k + 1]);
};

// A tooltip beside the pointer, and the same text for screen readers.
cf.tooltip = {
  show(lines, x, y) {
    const node = cf.tooltip.node ??= document.body.appendChild(cf.el("div", { class: "tooltip", "aria-hidden": "true" }));
    node.replaceChildren(...lines);
    node.hidden = false;
    const box = node.getBoundingClientRect(), room = document.documentElement.clientWidth;
    const left = x + 16 + box.width > room ? x - 16 - box.width : x + 16;
    node.style.left = `${Math.max(4, Math.min(left, room - box.width - 4))}px`;
    node.style.top = `${Math.max(4, Math.min(y + 14, innerHeight - box.height - 4))}px`;
  },
  hide() { if (cf.tooltip.node) cf.tooltip.node.hidden = true; },
};
cf.announce = (text) => { document.getElementById("spoken").textContent = text; };

// A long work in pieces of 40 ms, so that the page answers in between. It is left when a newer one begins.
cf.pieces = async (jobs, wanted) => {
  let until = performance.now() + 40;
  for (const job of jobs) {
    if (performance.now() > until) {
      await new Promise((done) => { setTimeout(done); });
      if (!wanted()) return;
      until = performance.now() + 40;
    }
    job();
  }
};

// Canvases are repainted when colours or sizes change. While a page is built, painters wait for their turn in cf.waiting.
cf.painters = new Set();
cf.waiting = null;
cf.repaint = () => { for (const painter of cf.painters) if (painter.node.isConnected) painter.paint(); };
cf.sizes = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) {
    const painter = target.painter, width = Math.round(contentRect.width);
    if (width && painter.width !== width) requestAnimationFrame(painter.request);
  }
});
// Returns a function that asks for the painting, which is at once once the page is built.
cf.repaintOnResize = (node, draw) => {
  const painter = { node, paint: () => { painter.width = node.clientWidth; draw(); }, request: () => (cf.waiting ? cf.waiting.add(painter) : painter.paint()) };
  node.painter = painter;
  cf.painters.add(painter);
  cf.sizes.observe(node);
  return painter.request;
};
// Sets the size of a canvas, which empties it; from then on a unit is a CSS pixel.
cf.resize = (context, width, height) => {
  const scale = devicePixelRatio || 1;
  Object.assign(context.canvas, { width: Math.round(width * scale), height: Math.round(height * scale) });
  Object.assign(context.canvas.style, { width: `${width}px`, height: `${height}px` });
  context.setTransform(scale, 0, 0, scale, 0, 0);
};
cf.theme = (choice) => {
  if (choice === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = choice;
  cf.repaint();
};
cf.themeButton = () => {
  const words = { auto: "Auto", light: "Light", dark: "Dark" };
  const remembered = () => { try { return localStorage.getItem("chronofed-theme"); } catch { return null; } };
  let choice = words[remembered()] ? remembered() : "auto";
  const button = cf.el("button", {
    type: "button", class: "quiet", id: "theme", click: () => {
      const names = Object.keys(words);
      choice = names[(names.indexOf(choice) + 1) % names.length];
      try { localStorage.setItem("chronofed-theme", choice); } catch { /* a file may have no storage */ }
      apply();
    },
  });
  const apply = () => {
    button.textContent = `Colours: ${words[choice]}`;
    cf.theme(choice);
  };
  apply();
  cf.inDark.addEventListener("change", cf.repaint);
  addEventListener("beforeprint", () => cf.theme("light"));
  addEventListener("afterprint", () => cf.theme(choice));
  return button;
};
// Saves text as a file; nothing is sent anywhere.
cf.save = (name, text) => {
  const address = URL.createObjectURL(text instanceof Blob ? text : new Blob([text], { type: "text/plain;charset=utf-8" }));
  cf.el("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
};
cf.table = (headings, rows, attributes = {}) => cf.el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": attributes.label ?? "table" },
  cf.el("table", { class: attributes.class },
    cf.el("thead", {}, cf.el("tr", {}, headings.map((h) => cf.el("th", { scope: "col" }, h)))),
    cf.el("tbody", {}, rows.map(([first, ...others]) => cf.el("tr", {},
      cf.el("th", { scope: "row" }, first), others.map((cell) => cf.el("td", {}, cell)))))));

// The numbers of a chart as a table, and files of both, built when it is opened. picture() makes an SVG.
cf.asTable = (make, label, picture) => {
  const box = cf.el("details", { class: "as-table" }, cf.el("summary", {}, "Table and files"));
  const fill = () => {
    if (!box.open) return;
    if (!box.querySelector(".saves")) box.append(cf.saves(label, make, picture));
    box.querySelector(".scroll")?.remove();
    const [headings, rows] = make();
    box.append(cf.table(headings, rows, { label }));
  };
  box.addEventListener("toggle", fill);
  box.refill = fill;
  return box;
};

// The unit behind a number: "12%", but "12 MB".
cf.suffix = (unit) => (unit && unit !== "%" ? ` ${unit}` : unit);

cf.select = (label, options, value, change) => {
  const list = cf.el("select", { change: () => change(list.value) },
    options.map(([key, text]) => cf.el("option", { value: key, selected: String(key) === String(value) }, text)));
  return cf.el("label", { class: "field" }, cf.el("span", {}, label), list);
};

// The sections of a page about some runs, in order of registration:
// id; title; about (a line below the title); make() -> { node, update(content) }; has(content): is there anything to show;
// absent (the text if not).
cf.registered = [];
cf.addSection = (section) => { cf.registered.push(section); };

cf.section = (id, title, about, ...children) => cf.el("section", { id, "aria-labelledby": `${id}-title` },
  cf.el("div", { class: "heading" }, cf.el("h2", { id: `${id}-title` }, title), cf.view.link(id, title)), about ? cf.el("p", { class: "soft about" }, about) : null, children);
