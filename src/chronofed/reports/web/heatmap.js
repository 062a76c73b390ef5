// A heatmap: rows x columns in colours or dots; hover or arrow keys read a cell.
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
    cf.repaintOnResize(this.node, () => this.paint());
  }

  // content: rows and columns (labels), value(row, column) -> null | 0..1, ramp, bands (rows a label is for), dots, categories (values are numbers of colours)
  update(content) {
    Object.assign(this, content);
    this.canvas.setAttribute("aria-label", `${this.label}: ${this.rows.length} rows, ${this.columns.length} columns. Arrow keys read cells.`);
    this.paint();
  }

  paint() {
    const width = this.node.clientWidth;
    if (!width || !this.rows.length) return; // painted as soon as there is room
    const context = this.canvas.getContext("2d"), bands = this.bands ?? 1, scale = devicePixelRatio || 1;
    context.font = "12px system-ui, sans-serif";
    const names = this.rows.filter((_, r) => r % bands === 0);
    const margin = Math.min(width * 0.3, 12 + Math.max(20, ...names.map((name) => context.measureText(name).width)));
    const cell = (width - margin - 1) / Math.max(1, this.columns.length), groups = this.rows.length / bands, space = bands > 1 ? 12 : 0;
    const tall = bands > 1 ? Math.max(1.5, Math.min(8, 900 / this.rows.length)) : Math.max(5, Math.min(26, 340 / this.rows.length, cell * 1.4));
    this.box = { margin, cell, tall, bands, space };
    const height = Math.ceil(groups * (bands * tall + space)) + 24;
    Object.assign(this.canvas, { width: Math.round(width * scale), height: Math.round(height * scale) });
    Object.assign(this.canvas.style, { width: `${width}px`, height: `${height}px` });
    context.setTransform(scale, 0, 0, scale, 0, 0);
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
    const { margin, cell, tall, bands, space } = this.box;
    return [margin + column * cell, space / 2 + row * tall + Math.floor(row / bands) * space];
  }

  drawCells(context) {
    const { cell, tall, bands, margin } = this.box, stops = cf.stops(this.ramp ?? "more");
    const gap = cell > 6 && tall > 6 ? 1 : 0, empty = cf.colour("--empty");
    if (this.dots) {
      context.fillStyle = empty;
      for (let row = 0; row < this.rows.length; row += bands) context.fillRect(margin, this.corner(row, 0)[1] - 1, cell * this.columns.length, bands * tall + 2);
    }
    for (let row = 0; row < this.rows.length; row++) {
      for (let column = 0; column < this.columns.length; column++) {
        const value = this.value(row, column), [x, y] = this.corner(row, column);
        if (this.dots) {
          if (!value) continue;
          context.fillStyle = cf.series(Math.floor(row / bands));
          const radius = Math.min(cell * 0.46, tall * 1.15) * Math.sqrt(value);
          context.globalAlpha = 0.85;
          context.beginPath();
          context.arc(x + cell / 2, y + tall / 2, Math.max(0.6, radius), 0, 7);
          context.fill();
          context.globalAlpha = 1;
        } else {
          context.fillStyle = value == null ? empty : this.categories ? cf.series(value) : cf.ramp(stops, value);
          context.fillRect(x, y, cell - gap, tall - gap);
        }
      }
    }
  }

  drawLabels(context, height, width) {
    const { cell, tall, bands, space, margin } = this.box;
    context.fillStyle = cf.colour("--soft");
    context.textBaseline = "middle";
    context.textAlign = "right";
    const step = Math.ceil(14 / (bands * tall + space));
    for (let row = 0; row < this.rows.length; row += bands * step) context.fillText(cf.truncate(context, this.rows[row], margin - 10), margin - 8, this.corner(row, 0)[1] + bands * tall / 2);
    context.textAlign = "center";
    const wide = 10 + Math.max(...this.columns.map((name) => context.measureText(name).width), 1);
    const skip = Math.max(1, Math.ceil(wide / cell));
    for (let column = 0; column < this.columns.length; column += skip) {
      const half = context.measureText(this.columns[column]).width / 2;
      context.fillText(this.columns[column], Math.min(width - half - 1, margin + (column + 0.5) * cell), height - 10);
    }
  }

  cellAt(event) {
    const box = this.canvas.getBoundingClientRect(), { margin, cell, tall, bands, space } = this.box;
    const column = Math.floor((event.clientX - box.left - margin) / cell), y = event.clientY - box.top - space / 2;
    const group = Math.floor(y / (bands * tall + space)), inside = Math.floor((y - group * (bands * tall + space)) / tall);
    const row = group * bands + inside;
    return inside < bands && row >= 0 && row < this.rows.length && column >= 0 && column < this.columns.length ? [row, column] : null;
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

cf.truncate = (context, text, room) => {
  if (context.measureText(text).width <= room) return text;
  let short = text;
  while (short.length > 1 && context.measureText(`${short}…`).width > room) short = short.slice(0, -1);
  return `${short}…`;
};

// The colour scale below a heatmap.
cf.scale = (name, low, high) => cf.el("div", { class: "scale", role: "img", "aria-label": `colours from ${low} to ${high}` },
  cf.el("span", {}, low), cf.el("span", { class: `ramp ramp-${name}` }), cf.el("span", {}, high));
