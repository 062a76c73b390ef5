// The report: the content is in the page itself.
"use strict";
addEventListener("DOMContentLoaded", () => {
  const content = cf.unpacked(JSON.parse(document.getElementById("content").textContent));
  const main = document.querySelector("main"), sections = cf.sections(main);
  document.querySelector("header .tools").append(cf.themeButton());
  document.querySelector("header").append(sections.links());
  sections.update(content).then(() => {
    cf.view.arrive();
    document.body.dataset.ready = "true";
  });
});
