// Figures as files: SVG from the same drawing commands as on the page, PNG from the SVG, CSV from the table.
"use strict";

// The part of a canvas' drawing commands that this page uses, written as SVG.
cf.SvgContext = class {
  constructor() {
    Object.assign(this, { parts: [], path: "", dash: [], fillStyle: "#000", strokeStyle: "#000", lineWidth: 1, globalAlpha: 1, font: "12px sans-serif", textAlign: "left", textBaseline: "alphabetic" });
    this.ruler = cf.el("canvas").getContext("2d");
  }

  add(tag, attributes, text) {
    const faint = this.globalAlpha < 1 ? { opacity: this.globalAlpha } : {};
    const words = Object.entries({ ...attributes, ...faint }).filter(([, value]) => value != null).map(([name, value]) => `${name}="${typeof value === "number" ? Number(value.toFixed(2)) : cf.escaped(value)}"`);
    this.parts.push(`<${tag} ${words.join(" ")}${text == null ? "/>" : `>${cf.escaped(text)}</${tag}>`}`);
  }

  setTransform() {}
  setLineDash(dash) { this.dash = dash; }
  measureText(text) { this.ruler.font = this.font; return this.ruler.measureText(text); }
  fillRect(x, y, width, height) { if (width > 0 && height > 0) this.add("rect", { x, y, width, height, fill: this.fillStyle }); }
  strokeRect(x, y, width, height) { this.add("rect", { x, y, width, height, fill: "none", stroke: this.strokeStyle, "stroke-width": this.lineWidth }); }
  beginPath() { this.path = ""; }
  moveTo(x, y) { this.path += `M${x.toFixed(2)} ${y.toFixed(2)}`; }
  lineTo(x, y) { this.path += `${this.path ? "L" : "M"}${x.toFixed(2)} ${y.toFixed(2)}`; }
  closePath() { this.path += "Z"; }
  fill() { this.add("path", { d: this.path, fill: this.fillStyle }); }
  stroke() { this.add("path", { d: this.path, fill: "none", stroke: this.strokeStyle, "stroke-width": this.lineWidth, "stroke-dasharray": this.dash.join(" ") || null }); }

  fillText(text, x, y) {
    const [, weight, size] = /(\d{3})?\s*([\d.]+)px/.exec(this.font), anchor = { left: "start", center: "middle", right: "end" }[this.textAlign];
    this.add("text", { x, y: y + (this.textBaseline === "middle" ? 0.34 * size : 0), fill: this.fillStyle, "font-size": Number(size), "font-weight": weight, "text-anchor": anchor }, text);
  }

  svg(width, height) { return cf.wrapped(width, height, this.parts.join("\n")); }
};
cf.escaped = (text) => String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
cf.wrapped = (width, height, inside) => `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="Helvetica, Arial, sans-serif"><rect width="${width}" height="${height}" fill="#ffffff"/>\n${inside}\n</svg>\n`;

// A chart of curves, drawn anew: white ground, names below.
cf.chartPicture = (chart) => {
  const u = chart.plot, pen = new cf.SvgContext(), width = 720, tall = 330, [left, right, top] = [56, width - 12, 34], bottom = top + tall;
  const [x, y] = [u.scales.x, u.scales.y], across = (v) => left + (right - left) * (v - x.min) / (x.max - x.min || 1), up = (v) => bottom - (bottom - top) * (v - y.min) / (y.max - y.min || 1);
  const ink = cf.colour("--ink"), soft = cf.colour("--soft"), write = (text, place, level, align, font = "12px") => { Object.assign(pen, { font, textAlign: align, fillStyle: ink }); pen.fillText(text, place, level); };
  write(chart.title + (chart.unit ? `, ${chart.unit.trim()}` : ""), left, 20, "left", "600 14px");
  for (const mark of cf.marks(y.min, y.max, 6)) {
    pen.fillStyle = cf.colour("--line");
    pen.fillRect(left, up(mark), right - left, 1);
    write(cf.tick(mark), left - 6, up(mark) + 4, "right");
  }
  for (const mark of cf.years(chart.panel.calendar) ? chart.splits(x.min, x.max, right - left) : cf.marks(x.min, x.max, 8).filter(Number.isInteger)) write(chart.mark(mark), across(mark), bottom + 18, "center");
  write(chart.below(), (left + right) / 2, bottom + 36, "center");
  const line = (xs, ys, stroke, wide, dash) => {
    Object.assign(pen, { strokeStyle: stroke, lineWidth: wide, dash });
    pen.beginPath();
    xs.forEach((place, k) => { if (ys[k] != null && place >= x.min && place <= x.max) pen.lineTo(across(place), up(ys[k])); });
    if (pen.path) pen.stroke();
  };
  const column = (curve, more) => u.data[chart.columns[chart.curves.indexOf(curve)] + more];
  const inside = chart.places.map((place) => place >= x.min && place <= x.max);
  for (const curve of chart.shown().filter((c) => c.d)) {
    const edge = (more) => chart.places.flatMap((place, k) => (inside[k] && column(curve, more)[k] != null ? [[across(place), up(column(curve, more)[k])]] : []));
    pen.beginPath();
    for (const point of [...edge(1), ...edge(2).reverse()]) pen.lineTo(...point);
    pen.closePath();
    Object.assign(pen, { fillStyle: cf.series(curve.style), globalAlpha: 0.15 });
    if (pen.path !== "Z") pen.fill();
    pen.globalAlpha = 1;
  }
  for (const { x: xs, y: ys, stroke, dash } of chart.thin?.() ?? []) line(xs, ys, stroke.slice(0, 7), 0.7, dash);
  for (const curve of chart.shown()) line(chart.places, column(curve, 0), cf.series(curve.style), 2.2, cf.dash(curve.style));
  let [place, level] = [left, bottom + 58];
  for (const curve of chart.shown()) {
    pen.font = "12px";
    const wide = 42 + pen.measureText(curve.name).width;
    if (place > left && place + wide > right) [place, level] = [left, level + 18];
    Object.assign(pen, { strokeStyle: cf.series(curve.style), lineWidth: 2.2, dash: cf.dash(curve.style) });
    pen.beginPath();
    pen.moveTo(place, level - 4);
    pen.lineTo(place + 26, level - 4);
    pen.stroke();
    write(curve.name, place + 32, level, "left");
    place += wide;
  }
  pen.strokeStyle = soft;
  return pen.svg(width, level + 14);
};

// SVG that is on the page, with the colours of its style sheet.
cf.drawingPicture = (svg) => {
  const copy = svg.cloneNode(true), own = svg.querySelectorAll("*"), box = svg.viewBox.baseVal;
  copy.querySelectorAll("*").forEach((node, k) => {
    const style = getComputedStyle(own[k]);
    for (const name of ["fill", "stroke", "stroke-width", "fill-opacity", "font-size", "font-weight"]) node.setAttribute(name, style.getPropertyValue(name));
  });
  const writer = new XMLSerializer();
  return cf.wrapped(box.width, box.height, [...copy.children].map((node) => writer.serializeToString(node)).join("\n"));
};

// Makes a picture in light colours, whatever the page has.
cf.inLight = (make) => {
  const root = document.documentElement, { theme } = root.dataset;
  root.dataset.theme = "light";
  try { return make(); } finally { if (theme) root.dataset.theme = theme; else delete root.dataset.theme; }
};
cf.savePng = async (name, text) => {
  const image = new Image(), scale = 2;
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = cf.el("canvas", { width: scale * image.width, height: scale * image.height });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => cf.save(name, blob));
};
cf.csv = ([headings, rows]) => [headings, ...rows].map((row) => row.map((cell) => {
  const text = (cell instanceof Node ? cell.textContent : String(cell ?? "")).replaceAll("−", "-");
  return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}).join(",")).join("\n") + "\n";

// Buttons that save a figure, and its numbers.
cf.saves = (label, make, picture) => {
  const name = label.toLowerCase().replace(/[^a-z0-9]+/g, "-"), button = (kind, click) => cf.el("button", { type: "button", class: "quiet", click, "aria-label": `Save ${label} as ${kind}` }, kind);
  return cf.el("div", { class: "saves" }, "Save as", button("CSV", () => cf.save(`${name}.csv`, cf.csv(make()))),
    picture ? [button("SVG", () => cf.save(`${name}.svg`, cf.inLight(picture))), button("PNG", () => cf.savePng(`${name}.png`, cf.inLight(picture)))] : []);
};
