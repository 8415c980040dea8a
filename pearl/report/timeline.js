"use strict";
(() => {
  const picture = document.querySelector(".picture svg");
  const tip = document.getElementById("tip");
  const chosen = document.getElementById("chosen");
  const stacks = JSON.parse(document.getElementById("stacks").textContent);

  // The browser's own tooltips come late and cannot be styled: take the titles over.
  for (const title of picture.querySelectorAll("title")) {
    title.parentNode.dataset.tip = title.textContent;
    title.remove();
  }

  const clock = (seconds) => {
    const s = Math.round(seconds), two = (n) => String(n).padStart(2, "0");
    return `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}`;
  };

  const levels = (target, event) => {
    const box = target.getBoundingClientRect(), stack = stacks[target.dataset.zone];
    const end = stack.edges_s[stack.edges_s.length - 1];
    const at = ((event.clientX - box.left) / box.width) * end;
    const next = stack.edges_s.findIndex((edge) => edge > at);
    const step = next < 0 ? stack.edges_s.length - 2 : Math.max(0, next - 1);
    const lines = stack.layers.filter((layer) => layer.gpus[step] > 0);
    const named = lines.map((layer) => `${layer.phase}: ${layer.gpus[step]} GPUs`);
    return [`${target.dataset.zone} at ${clock(at)}`, ...named.reverse()].join("\n");
  };

  const show = (text, event) => {
    tip.textContent = text;
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - width - 8))}px`;
    tip.style.top = `${event.clientY + 16 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 16}px`;
  };

  picture.addEventListener("pointermove", (event) => {
    const zone = event.target.closest("[data-zone]"), shape = event.target.closest("[data-tip]");
    if (zone) show(levels(zone, event), event);
    else if (shape) show(shape.dataset.tip, event);
    else tip.hidden = true;
  });
  picture.addEventListener("pointerleave", () => { tip.hidden = true; });

  const choose = (link) => {
    const row = document.getElementById(link.getAttribute("href").slice(1));
    for (const old of document.querySelectorAll(".chosen")) old.classList.remove("chosen");
    link.classList.add("chosen");
    row.classList.add("chosen");
    const head = document.createElement("strong");
    head.textContent = link.dataset.tip;
    chosen.replaceChildren(head, row.querySelector(".reasons").cloneNode(true));
  };

  for (const link of picture.querySelectorAll("a.decision")) {
    link.addEventListener("click", (event) => { event.preventDefault(); choose(link); });
  }
  chosen.hidden = false;
})();
