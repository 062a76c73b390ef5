// What a reader chose, kept in the address: a link opens the same view again. Written as #at=SECTION&key=value.
"use strict";

cf.view = {
  params: new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : ""),
  get(key) { return cf.view.params.get(key); },
  all(key) { return cf.view.params.getAll(key); },
  // A value, several in a list, or null for what is usual.
  set(key, value) {
    const values = Array.isArray(value) ? value : value == null || value === "" ? [] : [value], before = cf.view.all(key);
    if (values.map(String).join("\n") === before.join("\n")) return;
    cf.view.params.delete(key);
    for (const each of values) cf.view.params.append(key, each);
    cf.view.save();
  },
  address(at) {
    const params = new URLSearchParams(cf.view.params);
    if (at) params.set("at", at);
    return `#${params}`;
  },
  save() {
    const address = cf.view.address();
    cf.view.written = address;
    history.replaceState(null, "", address === "#" ? location.href.split("#")[0] : address);
    for (const link of document.querySelectorAll("a.anchor")) link.href = cf.view.address(link.dataset.at);
  },
  // The link beside the title of a section.
  link: (id, title) => cf.el("a", {
    class: "anchor", href: cf.view.address(id), "data-at": id, "aria-label": `Link to ${title} as it is shown now`, click: (event) => {
      event.preventDefault();
      cf.view.set("at", id);
      cf.announce("The address now leads to this view.");
    },
  }, "link"),
  // Go to the section that the address names, once it is drawn.
  arrive() {
    const place = document.getElementById(cf.view.get("at"));
    if (place && !place.hidden) place.scrollIntoView();
  },
};
// An address that is pasted into an open page.
addEventListener("hashchange", () => { if (location.hash.includes("=") && location.hash !== cf.view.written) location.reload(); });
