// The page: selected mechanisms, theme, drawing of charts.

const root = document.documentElement;
const every = (selector) => [...document.querySelectorAll(selector)];

const select = (names) => {
  focused = names;
  for (const button of every("[data-focus]")) {
    button.setAttribute("aria-pressed", names.includes(button.dataset.focus));
  }
  document.getElementById("focused").textContent = names.length ? `: ${names.length}` : "";
  document.getElementById("show-all").disabled = !names.length;
  for (const row of every("tr[data-mechanism]")) {
    row.classList.toggle("faded", names.length > 0 && !names.includes(row.dataset.mechanism));
  }
  for (const view of views.values()) view.signal("focus", names).runAsync();
  every(".table").forEach((table) => table.dispatchEvent(new Event("filter")));
};

const toggle = (name) => {
  select(focused.includes(name) ? focused.filter((other) => other !== name) : [...focused, name]);
  announce(focused.length ? `Selected: ${focused.join(", ")}.` : "All mechanisms.");
};

const THEMES = ["system", "light", "dark"];
const setTheme = (name) => {
  if (name === "system") delete root.dataset.theme;
  else root.dataset.theme = name;
  document.getElementById("theme").textContent = `Theme: ${name}`;
  // A page opened as a file may have no storage.
  try { localStorage.setItem("longspan-theme", name); } catch { /* the theme lasts for this visit */ }
};

const start = () => {
  every(".table").forEach(prepareTable);
  const observer = new IntersectionObserver((entries) => {
    for (const { target } of entries.filter((entry) => entry.isIntersecting)) {
      observer.unobserve(target);
      drawOnce(target);
    }
  }, { rootMargin: "800px" });
  every(".chart").forEach((node) => observer.observe(node));
  addEventListener("beforeprint", () => {
    every("details").forEach((fold) => { if (!fold.closest(".bar")) fold.open = true; });
    every(".chart").forEach(drawOnce);
  });

  every("[data-focus]").forEach((button) => {
    button.addEventListener("click", () => toggle(button.dataset.focus));
  });
  document.getElementById("show-all").addEventListener("click", () => {
    select([]);
    announce("All mechanisms.");
  });
  document.getElementById("hide-others").addEventListener("change", (event) => {
    root.toggleAttribute("data-hide-others", event.target.checked);
    select(focused);
  });
  setTheme(root.dataset.theme ?? "system");
  document.getElementById("theme").addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(root.dataset.theme ?? "system") + 1) % THEMES.length];
    setTheme(next);
    announce(`Theme: ${next}.`);
  });
  const panel = document.getElementById("mechanisms");
  document.addEventListener("keydown", ({ key }) => {
    if (key !== "Escape") return;
    showHint(null);
    if (panel.open) {
      panel.open = false;
      panel.querySelector("summary").focus();
    }
  });
  document.addEventListener("click", ({ target }) => {
    if (!panel.contains(target)) panel.open = false;
  });
  every(".cells").forEach(prepareHeatmap);
};

start();
