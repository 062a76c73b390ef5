// The live page: fetches changes once a second while the page is visible.
"use strict";
addEventListener("DOMContentLoaded", () => {
  const PERIOD = 1000, FIRST = 6;
  const main = document.querySelector("main"), counts = document.getElementById("counts");
  const sections = cf.sections(main), empty = cf.el("section", {}, cf.el("p", { class: "soft" }, "Choose runs in the list to see and compare them."));
  const offline = cf.el("p", { class: "offline", role: "alert", hidden: true }, "The server does not answer; is 'chronofed watch' still running?");
  const left = cf.el("p", { class: "soft", role: "status", hidden: true }), links = sections.links();
  main.prepend(offline, links, left, empty);
  document.querySelector("header .tools").append(cf.themeButton());

  const chosen = new Set(cf.view.all("run")), tags = {};
  let at = "", drawn = false;
  const answer = async (address) => {
    const headers = tags[address] ? { "If-None-Match": tags[address] } : {};
    const response = await fetch(address, { headers, cache: "no-store" });
    if (response.status === 304) return null;
    if (!response.ok) throw new Error(String(response.status));
    tags[address] = response.headers.get("ETag");
    return response.json();
  };
  const address = () => `/api/payload?${new URLSearchParams([...chosen].map((id) => ["run", id]))}`;
  const list = new cf.RunList(chosen, () => {
    cf.view.set("run", [...chosen]);
    delete tags[address()];
    show();
  });
  document.querySelector("aside").append(...list.nodes);

  const show = async () => {
    const wanted = address(), there = [...chosen].some((id) => list.rows.has(id));
    empty.hidden = there;
    links.hidden = !there;
    for (const section of main.querySelectorAll("section[id]")) section.classList.toggle("away", !there);
    if (!there) { left.hidden = true; return; }
    const content = await answer(wanted);
    if (content && wanted === address()) {
      sections.update(content);
      left.hidden = !content.runs_left_out;
      left.textContent = `There was no room for ${content.runs_left_out} of the chosen runs.`;
      if (!drawn) cf.view.arrive();
      drawn = true;
    }
    document.body.dataset.ready = "true";
  };
  const poll = async () => {
    try {
      const content = await answer(`/api/runs?since=${at}`);
      if (content) {
        at = content.at;
        list.take(content);
        if (!drawn && !chosen.size) {
          const running = list.found().filter((run) => run.state === "running");
          for (const run of (running.length ? running : list.found()).slice(0, FIRST)) chosen.add(run.id);
          list.draw();
        }
        const words = list.states().filter((s) => list.number(s)).map((s) => `${list.number(s)} ${s}`).join(", "), count = list.rows.size;
        counts.textContent = count ? `${count} run${count > 1 ? "s" : ""}: ${words}` : "No run yet; it appears here as soon as there is one.";
        document.title = `${list.number("running") ? `${list.number("running")} running · ` : ""}Runs · chronofed`;
      }
      await show();
      offline.hidden = true;
      document.body.dataset.ready = "true";
    } catch { offline.hidden = false; }
  };
  const loop = async () => {
    if (!document.hidden) await poll();
    setTimeout(loop, PERIOD);
  };
  document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
  loop();
});
