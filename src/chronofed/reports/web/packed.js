// Restores what chronofed.reports.web.packed packed. What was stored once is one object here, too, in all its places.
"use strict";

cf.unpacked = ({ content, shared }) => {
  const known = new Map();
  const restore = (value) => {
    if (Array.isArray(value)) return value.some((own) => own !== null && typeof own === "object") ? value.map(restore) : value;
    if (value === null || typeof value !== "object") return value;
    if ("~" in value) {
      if (!known.has(value["~"])) known.set(value["~"], restore(shared[value["~"]]));
      return known.get(value["~"]);
    }
    if ("~pairs" in value) return Object.fromEntries(restore(value["~pairs"]));
    if ("~table" in value) return rows(...restore(value["~table"]));
    return Object.fromEntries(Object.entries(value).map(([key, own]) => [key, restore(own)]));
  };
  const rows = (count, alike, own) => {
    const columns = Object.entries(own);
    return Array.from({ length: count }, (_, k) => ({ ...alike, ...Object.fromEntries(columns.map(([key, column]) => [key, column[k]])) }));
  };
  return restore(content);
};
