// A heatmap: rows x columns in colours; hover or arrow keys read a cell.
"use strict";

cf.ramp = (stops, share) => {
  const at = Math.max(0, Math.min(1, share)) * (stops.length - 1), k = Math.min(stops.length - 2, Math.floor(at));
  const part = (hex, n) => parseInt(hex.slice(1 + 2 * n, 3 + 2 * n), 16);
  return `rgb(${[0, 1, 2].map((n) => Math.round(part(stops[k], n) + (part(stops[k + 1], n) - part(stops[k], n)) * (at - k)))})`;
};
cf.stops = (name) => cf.colour(`--ramp-${name}`).split(/\s+/);

cf.Heatmap = class {
  // options: label, describe(row, column) -> lines of text, pick(row, column)
  constructor(options) {
    Object.assign(this, { rows: [], columns: [], at: null }, options);
    this.canvas = cf.el("canvas", {
      tabindex: "0", role: "application",
      mousemove: (event) => this.hover(event), mouseleave: () => cf.tooltip.hide(),
      click: (event) => { const cell = this.cellAt(event); if (cell) { this.at = cell; this.pick?.(...cell); this.paint(); } },
      keydown: (event) => this.key(event), blur: () => { cf.tooltip.hide(); this.paint(); }, focus: () => this.paint(),
    });
    this.node = cf.el("div", { class: "painted" }, this.canvas);
    this.request = cf.repaintOnResize(this.node, () => this.paint());
  }

  // content: rows and columns (labels), value(row, column) -> null | 0..1, ramp, joined (cells in a row touch), categories (values are numbers of colours)
  update(content) {
    Object.assign(this, content);
    this.canvas.setAttribute("aria-label", `${this.label}: ${this.rows.length} rows, ${this.columns.length} columns. Arrow keys read cells.`);
    this.request();
  }

  paint() {
    const width = this.node.clientWidth;
    if (!width || !this.rows.length) return; // painted as soon as there is room
    const context = this.canvas.getContext("2d");
    const height = this.arrange(context, width);
    cf.resize(context, width, height);
    this.draw(context, height, width);
  }

  // Sizes of all parts for a width; returns the height.
  arrange(context, width) {
    context.font = "12px system-ui, sans-serif";
    const margin = Math.min(width * 0.3, 12 + Math.max(20, ...this.rows.map((name) => context.measureText(name).width)));
    const cell = (width - margin - 1) / Math.max(1, this.columns.length);
    const few = this.joined && this.rows.length <= 60; // each with its name, as are twelve rows of any map
    const tall = few ? Math.max(14, Math.min(26, 340 / this.rows.length)) : Math.max(this.rows.length <= 12 ? 15 : 5, Math.min(26, 340 / this.rows.length, cell * 1.4));
    this.box = { margin, cell, tall };
    return Math.ceil(this.rows.length * tall) + 30;
  }

  // The same as an SVG.
  picture() {
    const pen = new cf.SvgContext(), width = 720, height = this.arrange(pen, width);
    this.draw(pen, height, width);
    this.arrange(pen, this.node.clientWidth);
    return pen.svg(width, height);
  }

  draw(context, height, width) {
    const { cell, tall } = this.box;
    context.font = "12px system-ui, sans-serif"; // a new size resets everything
    this.drawCells(context);
    this.drawLabels(context, height, width);
    if (this.at && this.at[0] < this.rows.length && this.at[1] < this.columns.length) {
      context.strokeStyle = cf.colour("--ink");
      context.lineWidth = 2;
      const [x, y] = this.corner(...this.at);
      context.strokeRect(x, y, Math.max(3, cell), Math.max(3, tall));
    }
  }

  corner(row, column) {
    const { margin, cell, tall } = this.box;
    return [margin + column * cell, 6 + row * tall]; // names of low rows are taller than these
  }

  drawCells(context) {
    const { cell, tall } = this.box, stops = cf.stops(this.ramp ?? "more"), gap = cell > 6 && tall > 6 ? 1 : 0, empty = cf.colour("--empty");
    for (let row = 0; row < this.rows.length; row++) {
      for (let column = 0; column < this.columns.length; column++) {
        const value = this.value(row, column), [x, y] = this.corner(row, column);
        let wide = 1;
        if (this.joined) while (column + wide < this.columns.length && this.value(row, column + wide) === value) wide++;
        context.fillStyle = value == null ? empty : this.categories ? cf.series(value) : this.joined ? stops[2] : cf.ramp(stops, value);
        context.fillRect(x, y, cell * wide - (this.joined ? 0 : gap), tall - (this.joined ? 1 : gap));
        column += wide - 1;
      }
    }
  }

  drawLabels(context, height, width) {
    const { tall, margin } = this.box, step = Math.ceil(14 / tall);
    context.fillStyle = cf.colour("--soft");
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (let row = 0; row < this.rows.length; row += step) context.fillText(cf.truncate(context, this.rows[row], margin - 10), margin - 8, this.corner(row, 0)[1] + tall / 2);
    cf.drawColumns(context, this.columns, this.box, height - 10, width);
  }

  cellAt(event) {
    const box = this.canvas.getBoundingClientRect(), { margin, cell, tall } = this.box;
    const column = Math.floor((event.clientX - box.left - margin) / cell), row = Math.floor((event.clientY - box.top - 6) / tall);
    return row >= 0 && row < this.rows.length && column >= 0 && column < this.columns.length ? [row, column] : null;
  }

  hover(event) {
    const cell = this.cellAt(event);
    if (cell) cf.tooltip.show(this.describe(...cell).map((line, k) => cf.el(k ? "div" : "b", {}, line)), event.clientX, event.clientY);
    else cf.tooltip.hide();
  }

  key(event) {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (!moves[event.key] && event.key !== "Enter") return;
    event.preventDefault();
    const [row, column] = this.at ?? [0, 0], [down, right] = moves[event.key] ?? [0, 0];
    this.at = [Math.max(0, Math.min(this.rows.length - 1, row + down)), Math.max(0, Math.min(this.columns.length - 1, column + right))];
    this.paint();
    const lines = this.describe(...this.at), box = this.canvas.getBoundingClientRect(), [x, y] = this.corner(...this.at);
    cf.tooltip.show(lines.map((line, k) => cf.el(k ? "div" : "b", {}, line)), box.left + x, box.top + y);
    cf.announce(lines.join(", "));
    if (event.key === "Enter") this.pick?.(...this.at);
  }
};

// Labels below the columns, as many as there is room for.
cf.drawColumns = (context, names, { margin, cell }, level, width) => {
  context.textAlign = "center";
  const wide = 10 + Math.max(...names.map((name) => context.measureText(name).width), 1), skip = Math.max(1, Math.ceil(wide / cell));
  let end = -Infinity; // of the name before, which the last one must not touch where it is moved inside
  for (let column = 0; column < names.length; column += skip) {
    const half = context.measureText(names[column]).width / 2, place = Math.min(width - half - 1, margin + (column + 0.5) * cell);
    if (place - half < end + 6) continue;
    context.fillText(names[column], place, level);
    end = place + half;
  }
};

cf.truncate = (context, text, room) => {
  if (context.measureText(text).width <= room) return text;
  let short = text;
  while (short.length > 1 && context.measureText(`${short}…`).width > room) short = short.slice(0, -1);
  return `${short}…`;
};

// The colour scale below a heatmap.
cf.scale = (name, low, high) => cf.el("div", { class: "scale", role: "img", "aria-label": `colours from ${low} to ${high}` },
  cf.el("span", {}, low), cf.el("span", { class: `ramp ramp-${name}` }), cf.el("span", {}, high));
