"use strict";
// Comforts only: without this script all targets stand one below the other and every row is there.
(() => {
  const openAround = (element) => {
    for (let e = element; e; e = e.parentElement) if (e.tagName === "DETAILS") e.open = true;
  };

  const tabs = [...document.querySelectorAll(".tabs a")];
  const panels = tabs.map((tab) => document.getElementById(tab.dataset.target));
  const choose = (index) => {
    tabs.forEach((tab, i) => {
      tab.setAttribute("aria-selected", String(i === index));
      tab.tabIndex = i === index ? 0 : -1;
      panels[i].hidden = i !== index;
    });
  };
  if (tabs.length) {
    document.querySelector(".tabs").setAttribute("role", "tablist");
    tabs.forEach((tab, i) => {
      tab.setAttribute("role", "tab");
      tab.setAttribute("aria-controls", tab.dataset.target);
      panels[i].setAttribute("role", "tabpanel");
      tab.addEventListener("click", (event) => {
        event.preventDefault();
        choose(i);
      });
      tab.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        const next = event.key === "Home" ? 0 : event.key === "End" ? tabs.length - 1 : step ? (i + step + tabs.length) % tabs.length : -1;
        if (next < 0) return;
        event.preventDefault();
        choose(next);
        tabs[next].focus();
      });
    });
    choose(0);
  }

  const follow = () => {
    const target = document.getElementById(location.hash.slice(1));
    if (!target) return;
    const panel = target.closest(".target");
    if (panel && panels.includes(panel)) choose(panels.indexOf(panel));
    openAround(target);
    target.scrollIntoView({ block: "center" });
  };
  addEventListener("hashchange", follow);
  if (location.hash) follow();

  const groups = new Map();
  for (const link of document.querySelectorAll("svg.fabric a[data-group]")) {
    const name = link.dataset.group;
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(link);
  }
  for (const [name, links] of groups) {
    const row = document.getElementById(name);
    const lightOn = (from, to) => {
      from.addEventListener("pointerenter", () => to.forEach((e) => e.classList.add("lit")));
      from.addEventListener("pointerleave", () => to.forEach((e) => e.classList.remove("lit")));
    };
    lightOn(row, links);
    links.forEach((link) => lightOn(link, [row]));
  }

  for (const label of document.querySelectorAll(".filter")) {
    const rows = [...label.parentElement.querySelectorAll("tbody tr")];
    label.hidden = false;
    label.querySelector("input").addEventListener("input", (event) => {
      const wanted = event.target.value.trim().toLowerCase();
      for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
    });
  }
})();
