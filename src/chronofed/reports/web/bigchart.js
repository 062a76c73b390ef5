// The chart of the first screen: thin curves of the seeds, grey ones of the baselines, and names at the ends.
"use strict";

// curves: [{name, style, x, y, seeds}]; baselines: [{title, x, y}].
cf.BigChart = class extends cf.Chart {
  baselines = [];

  thick(points) { return points < 60 ? 3 : 2; }

  thin() { return [...this.shown().flatMap((c) => (c.seeds ?? []).map((s) => ({ ...s, stroke: cf.withAlpha(cf.series(c.style), 0.4), dash: [] }))), ...this.baselines.map((b) => ({ ...b, stroke: cf.withAlpha(cf.colour("--soft"), 0.6), dash: [] }))]; }

  drawThin(u) {
    const { ctx, bbox } = u, scale = devicePixelRatio || 1;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.lineWidth = 1.2 * scale;
    for (const { x, y, stroke, dash } of this.thin()) {
      ctx.strokeStyle = stroke;
      ctx.setLineDash(dash.map((d) => d * scale));
      ctx.beginPath();
      x.forEach((place, k) => { if (y[k] != null) ctx.lineTo(u.valToPos(place, "x", true), u.valToPos(y[k], "y", true)); });
      ctx.stroke();
    }
    ctx.restore();
  }

  // Names at the ends of the curves, the best first where there is no room for all. A curve that stops long before the end
  // has none: its name would stand beside others.
  ends() {
    const last = this.places.at(-1), first = this.places[0], far = (c) => c.x.at(-1) - first >= 0.8 * (last - first);
    const curves = this.shown().filter(far).map((c) => ({ name: c.name, y: c.y.findLast((v) => v != null), style: c.style })).filter((c) => c.y != null);
    const kept = curves.sort((a, b) => b.y - a.y).slice(0, 12);
    return [...kept, ...this.baselines.map((b) => ({ name: b.title, y: b.y.findLast((v) => v != null), style: null }))];
  }

  // Where there is no room for names, the legend has them.
  margin(width) {
    const named = width >= 520;
    this.node.classList.toggle("named", named);
    if (!named) return 14;
    const context = cf.el("canvas").getContext("2d");
    context.font = "600 13px system-ui, sans-serif";
    const wide = Math.max(0, ...this.ends().map((end) => context.measureText(end.name).width));
    return Math.round(Math.min(250, width * 0.42, 84 + wide));
  }

  drawNames(u) {
    if (u.width < 520) return;
    const { ctx, bbox } = u, scale = devicePixelRatio || 1, ends = this.ends().map((end) => ({ ...end, at: u.valToPos(end.y, "y", true) })).sort((a, b) => a.at - b.at);
    const gap = 17 * scale, left = bbox.left + bbox.width, room = this.margin(u.width) * scale - 72 * scale;
    ends.forEach((end, k) => { end.place = Math.max(end.at, k ? ends[k - 1].place + gap : bbox.top); });
    for (let k = ends.length - 1, low = bbox.top + bbox.height; k >= 0; k--, low -= gap) ends[k].place = Math.min(ends[k].place, low);
    ctx.save();
    ctx.textBaseline = "middle";
    ctx.textAlign = "left";
    for (const { name, y, style, at, place } of ends) {
      ctx.strokeStyle = style == null ? cf.colour("--soft") : cf.series(style);
      ctx.lineWidth = (style == null ? 1.2 : 3) * scale;
      ctx.setLineDash([]);
      ctx.beginPath();
      ctx.moveTo(left, at);
      ctx.lineTo(left + 6 * scale, at);
      ctx.lineTo(left + 14 * scale, place);
      ctx.stroke();
      ctx.fillStyle = cf.colour(style == null ? "--soft" : "--ink");
      ctx.font = `${style == null ? 400 : 600} ${13 * scale}px system-ui, sans-serif`;
      const short = cf.truncate(ctx, name, room);
      ctx.fillText(short, left + 19 * scale, place);
      const after = left + 19 * scale + ctx.measureText(short).width + 6 * scale;
      ctx.font = `${12 * scale}px system-ui, sans-serif`;
      ctx.fillStyle = cf.colour("--soft");
      ctx.fillText(cf.number(y), after, place);
    }
    ctx.restore();
  }

  range(low, high) {
    for (const { y } of this.thin()) for (const v of y) if (v != null) { low = Math.min(low ?? v, v); high = Math.max(high ?? v, v); }
    return super.range(low, high);
  }
};
