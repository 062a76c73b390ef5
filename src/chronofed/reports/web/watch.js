// The live page: fetches changes once a second while the page is visible.
"use strict";
addEventListener("DOMContentLoaded", () => {
  const PERIOD = 1000, FIRST = 6;
  // Hundreds of runs take seconds to read and to draw: a few of them are shown before, and the page then waits three times as
  // long as it worked.
  const MANY = 100, FEW = 40, REST = 3;
  const main = document.querySelector("main"), counts = document.getElementById("counts");
  const sections = cf.sections(main), empty = cf.el("section", {}, cf.el("p", { class: "soft" }, "Choose runs in the list to see and compare them."));
  const offline = cf.el("p", { class: "offline", role: "alert", hidden: true }, "The server does not answer; is 'chronofed watch' still running?");
  const left = cf.el("p", { class: "soft", role: "status", hidden: true }), links = sections.links();
  main.prepend(offline, links, left, empty);
  document.querySelector("header .tools").append(cf.themeButton());

  const chosen = new Set(cf.view.all("run")), tags = {};
  let at = "", drawn = false, known = 0, rest = 0;
  const answer = async (address) => {
    const headers = tags[address] ? { "If-None-Match": tags[address] } : {};
    const response = await fetch(address, { headers, cache: "no-store" });
    if (response.status === 304) return null;
    if (!response.ok) throw new Error(String(response.status));
    tags[address] = response.headers.get("ETag");
    return response.json();
  };
  const address = (most) => `/api/payload?${new URLSearchParams([...chosen].slice(0, most).map((id) => ["run", id]))}`;
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
    if (!there) { left.hidden = true; known = 0; return; }
    const began = performance.now();
    if (chosen.size - known > MANY) await showFew(wanted);
    const content = await answer(wanted);
    if (content && wanted === address()) {
      known = chosen.size;
      await sections.update(content);
      left.hidden = !content.runs_left_out;
      left.textContent = `There was no room for ${content.runs_left_out} of the chosen runs.`;
      if (!drawn) cf.view.arrive();
      drawn = true;
    }
    rest = performance.now() + REST * (performance.now() - began);
    document.body.dataset.ready = "true";
  };
  const showFew = async (wanted) => {
    left.hidden = false;
    left.textContent = `Reading ${chosen.size} runs …`;
    delete tags[address(FEW)];
    const content = await answer(address(FEW));
    if (!content || wanted !== address()) return;
    left.textContent = `Here are ${FEW} of the ${chosen.size} chosen runs; the others are being read.`;
    await sections.update(content);
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
      if (performance.now() > rest) await show();
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
