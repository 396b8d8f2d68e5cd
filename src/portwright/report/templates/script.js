"use strict";
// Comforts only: without this script all targets stand one below the other and every row is there.
(() => {
  const all = (query, root = document) => [...root.querySelectorAll(query)];

  const tabs = all(".tabs a");
  const panels = tabs.map((tab) => document.getElementById(tab.dataset.target));
  const choose = (index) =>
    tabs.forEach((tab, i) => {
      tab.setAttribute("aria-selected", String(i === index));
      tab.tabIndex = i === index ? 0 : -1;
      panels[i].hidden = i !== index;
    });
  tabs.forEach((tab, i) => {
    tab.parentElement.setAttribute("role", "tablist");
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-controls", tab.dataset.target);
    panels[i].setAttribute("role", "tabpanel");
    tab.addEventListener("click", (event) => {
      event.preventDefault();
      choose(i);
    });
    tab.addEventListener("keydown", (event) => {
      const places = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: -1 };
      if (!(event.key in places)) return;
      const next = (places[event.key] + tabs.length) % tabs.length;
      event.preventDefault();
      choose(next);
      tabs[next].focus();
    });
  });
  choose(0);

  const follow = () => {
    const target = document.getElementById(location.hash.slice(1));
    if (!target) return;
    const panel = panels.indexOf(target.closest(".target"));
    if (panel >= 0) choose(panel);
    for (let e = target; e; e = e.parentElement) if (e.tagName === "DETAILS") e.open = true;
    target.scrollIntoView({ block: "center" });
  };
  addEventListener("hashchange", follow);
  follow();

  // A row and the rectangles that lead to it light each other.
  for (const type of ["pointerover", "pointerout"]) {
    addEventListener(type, (event) => {
      const name = event.target.closest("a[data-group]")?.dataset.group ?? event.target.closest(".layers tr[id]")?.id;
      if (!name) return;
      for (const e of all(`a[data-group="${name}"], #${name}`)) e.classList.toggle("lit", type === "pointerover");
    });
  }

  // A field asks for rows whose data of its name has its value; the field of words for rows with all its words.
  for (const filter of all(".filter")) {
    const rows = all(filter.dataset.rows, filter.parentElement), fields = all("input, select", filter);
    const fits = (row, { name, value }) =>
      name === "words"
        ? value.toLowerCase().split(/\s+/).every((word) => `${row.dataset.words ?? ""} ${row.textContent}`.toLowerCase().includes(word))
        : !value || row.dataset[name].split(" ").includes(value);
    const show = () => {
      for (const row of rows) row.hidden = !fields.every((field) => fits(row, field));
      const shown = rows.filter((row) => !row.hidden);
      for (const file of all("details:has(> article)")) file.hidden = !shown.some((row) => file.contains(row));
      for (const output of all("output", filter)) output.textContent = `${shown.length} of ${rows.length} shown`;
    };
    filter.hidden = false;
    filter.addEventListener("input", show, true);
    filter.addEventListener("submit", (event) => event.preventDefault());
    show();
  }
})();
