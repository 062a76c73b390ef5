// Stacked columns over time: shares of several kinds; hover or arrow keys read a column.
"use strict";

// Colours of kinds (classes, phases, ages), which are not those of methods: hues around the circle, light and dark in turn.
cf.kind = (k, n) => {
  const dark = cf.isDark();
  const hue = (200 + 360 * k / Math.max(3, n)) % 360, light = (dark ? [58, 42, 74] : [46, 66, 32])[k % 3];
  return `hsl(${Math.round(hue)}, ${k % 3 === 1 ? 58 : 48}%, ${light}%)`;
};
cf.kindKeys = (names, colour) => cf.el("div", { class: "keys" }, names.map((name, k) => cf.el("span", {}, cf.el("span", { class: "swatch", style: { background: colour(k) } }), name)));

cf.Areas = class {
  // options: label, describe(column, panel) -> lines of text
  constructor(options) {
    Object.assign(this, { panels: [], columns: [], at: null }, options);
    this.canvas = cf.el("canvas", {
      tabindex: "0", role: "application", mousemove: (event) => this.hover(event), mouseleave: () => cf.tooltip.hide(),
      keydown: (event) => this.key(event), blur: () => { cf.tooltip.hide(); this.paint(); }, focus: () => this.paint(),
    });
    this.node = cf.el("div", { class: "painted" }, this.canvas);
    this.request = cf.repaintOnResize(this.node, () => this.paint());
  }

  // content: columns (labels), panels [{name, values: one list for each layer, from the bottom}], colour(layer), tall (pixels
  // of a panel), top (the value at its top; by default the largest), smooth (lines between columns), suffix (of the axis), below
  update(content) {
    Object.assign(this, { top: null, smooth: false, suffix: "", below: "" }, content);
    const sums = this.panels.flatMap(({ values }) => this.columns.map((_, c) => values.reduce((sum, layer) => sum + (layer[c] ?? 0), 0)));
    this.most = this.top ?? Math.max(1e-12, ...sums);
    this.canvas.setAttribute("aria-label", `${this.label}: ${this.columns.length} columns${this.panels.length > 1 ? `, ${this.panels.length} rows` : ""}. Arrow keys read them.`);
    this.request();
  }

  paint() {
    const width = this.node.clientWidth;
    if (!width || !this.panels.length) return; // painted as soon as there is room
    const context = this.canvas.getContext("2d"), height = this.arrange(context, width);
    cf.resize(context, width, height);
    this.draw(context, height, width);
  }

  arrange(context, width) {
    context.font = "12px system-ui, sans-serif";
    const names = this.panels.length > 1 ? this.panels.map((panel) => panel.name) : [cf.tick(this.most) + this.suffix];
    const margin = Math.min(width * 0.3, 14 + Math.max(34, ...names.map((name) => context.measureText(name).width)));
    this.box = { margin, cell: (width - margin - 1) / Math.max(1, this.columns.length), pitch: this.tall + (this.panels.length > 1 ? 5 : 0) };
    return Math.ceil(this.panels.length * this.box.pitch) + (this.below ? 50 : 32);
  }

  picture() {
    const pen = new cf.SvgContext(), width = 720, height = this.arrange(pen, width);
    this.draw(pen, height, width);
    this.arrange(pen, this.node.clientWidth);
    return pen.svg(width, height);
  }

  draw(context, height, width) {
    const { margin, pitch, cell } = this.box, one = this.panels.length === 1;
    context.font = "12px system-ui, sans-serif"; // a new size resets everything
    context.textBaseline = "middle";
    this.panels.forEach((panel, p) => {
      const bottom = 8 + p * pitch + this.tall;
      context.fillStyle = cf.colour("--empty");
      context.fillRect(margin, bottom - this.tall, width - margin - 1, this.tall);
      this.drawLayers(context, panel.values, bottom);
      context.fillStyle = cf.colour("--soft");
      context.textAlign = "right";
      if (!one) context.fillText(cf.truncate(context, panel.name, margin - 10), margin - 8, bottom - this.tall / 2);
      else for (const mark of cf.marks(0, this.most, 4)) {
        context.fillText(cf.tick(mark) + this.suffix, margin - 8, bottom - this.tall * mark / this.most);
        context.fillRect(margin - 4, bottom - this.tall * mark / this.most, 4, 1);
      }
    });
    context.fillStyle = cf.colour("--soft");
    cf.drawColumns(context, this.columns, this.box, 8 + this.panels.length * pitch + 14, width);
    if (this.below) { context.textAlign = "center"; context.fillText(this.below, (margin + width) / 2, height - 9); }
    if (this.at && this.at[0] < this.panels.length && this.at[1] < this.columns.length) {
      Object.assign(context, { strokeStyle: cf.colour("--ink"), lineWidth: 2 });
      context.strokeRect(margin + this.at[1] * cell, 8 + this.at[0] * pitch, Math.max(3, cell), this.tall);
    }
  }

  drawLayers(context, values, bottom) {
    const { margin, cell } = this.box, low = this.columns.map(() => 0), up = (v) => bottom - this.tall * Math.min(1, v / this.most);
    values.forEach((layer, k) => {
      const high = low.map((v, c) => v + (layer[c] ?? 0));
      context.fillStyle = this.colour(k);
      if (this.smooth && this.columns.length > 1) {
        const edge = (levels) => levels.map((v, c) => [margin + (c + 0.5) * cell, up(v)]), ends = (points) => [[margin, points[0][1]], ...points, [margin + cell * this.columns.length, points.at(-1)[1]]];
        context.beginPath();
        for (const point of [...ends(edge(high)), ...ends(edge(low)).reverse()]) context.lineTo(...point);
        context.closePath();
        context.fill();
      } else {
        const edge = (c) => Math.round(margin + c * cell); // whole pixels, without seams
        layer.forEach((v, c) => { if (v) context.fillRect(edge(c), up(high[c]), edge(c + 1) - edge(c), up(low[c]) - up(high[c])); });
      }
      high.forEach((v, c) => { low[c] = v; });
    });
  }

  cellAt(event) {
    const box = this.canvas.getBoundingClientRect(), { margin, cell, pitch } = this.box;
    const column = Math.floor((event.clientX - box.left - margin) / cell), panel = Math.floor((event.clientY - box.top - 8) / pitch);
    return panel >= 0 && panel < this.panels.length && column >= 0 && column < this.columns.length ? [panel, column] : null;
  }

  show([panel, column], x, y) {
    const lines = this.describe(column, panel);
    cf.tooltip.show(lines.map((line, k) => cf.el(k ? "div" : "b", {}, line)), x, y);
    return lines;
  }

  hover(event) {
    const cell = this.cellAt(event);
    if (cell) this.show(cell, event.clientX, event.clientY);
    else cf.tooltip.hide();
  }

  key(event) {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (!moves[event.key]) return;
    event.preventDefault();
    const [panel, column] = this.at ?? [0, 0], [down, right] = moves[event.key], within = (v, n) => Math.max(0, Math.min(n - 1, v));
    this.at = [within(panel + down, this.panels.length), within(column + right, this.columns.length)];
    this.paint();
    const box = this.canvas.getBoundingClientRect(), { margin, cell, pitch } = this.box;
    cf.announce(this.show(this.at, box.left + margin + this.at[1] * cell, box.top + this.at[0] * pitch).join(", "));
  }
};
