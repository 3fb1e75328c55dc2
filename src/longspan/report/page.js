// The page: which mechanisms are singled out, the theme, and what is drawn when.

const root = document.documentElement;
const every = (selector) => [...document.querySelectorAll(selector)];

const focus = (names) => {
  focused = names;
  for (const button of every("[data-focus]")) {
    button.setAttribute("aria-pressed", names.includes(button.dataset.focus));
  }
  document.getElementById("focused").textContent = names.length ? `: ${names.length}` : "";
  document.getElementById("everyone").disabled = !names.length;
  for (const row of every("tr[data-mechanism]")) {
    row.classList.toggle("faded", names.length > 0 && !names.includes(row.dataset.mechanism));
  }
  for (const view of views.values()) view.signal("focus", names).runAsync();
  every(".sheet").forEach((sheet) => sheet.dispatchEvent(new Event("sieve")));
};

const single = (name) => {
  focus(focused.includes(name) ? focused.filter((other) => other !== name) : [...focused, name]);
  say(focused.length ? `Singled out: ${focused.join(", ")}.` : "All mechanisms.");
};

const THEMES = ["system", "light", "dark"];
const theme = (name) => {
  if (name === "system") delete root.dataset.theme;
  else root.dataset.theme = name;
  document.getElementById("theme").textContent = `Theme: ${name}`;
  // A page that was opened as a file may have no memory.
  try { localStorage.setItem("longspan-theme", name); } catch { /* as good without */ }
};

const start = () => {
  every(".sheet").forEach(prepare);
  const seen = new IntersectionObserver((entries) => {
    for (const { target } of entries.filter((entry) => entry.isIntersecting)) {
      seen.unobserve(target);
      show(target);
    }
  }, { rootMargin: "800px" });
  every(".chart").forEach((node) => seen.observe(node));
  addEventListener("beforeprint", () => {
    every("details").forEach((fold) => { if (!fold.closest(".bar")) fold.open = true; });
    every(".chart").forEach(show);
  });

  every("[data-focus]").forEach((button) => {
    button.addEventListener("click", () => single(button.dataset.focus));
  });
  document.getElementById("everyone").addEventListener("click", () => {
    focus([]);
    say("All mechanisms.");
  });
  document.getElementById("alone").addEventListener("change", (event) => {
    root.toggleAttribute("data-alone", event.target.checked);
    focus(focused);
  });
  theme(root.dataset.theme ?? "system");
  document.getElementById("theme").addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(root.dataset.theme ?? "system") + 1) % THEMES.length];
    theme(next);
    say(`Theme: ${next}.`);
  });
  const panel = document.getElementById("mechanisms");
  document.addEventListener("keydown", ({ key }) => {
    if (key !== "Escape") return;
    point(null);
    if (panel.open) {
      panel.open = false;
      panel.querySelector("summary").focus();
    }
  });
  document.addEventListener("click", ({ target }) => {
    if (!panel.contains(target)) panel.open = false;
  });
  every(".cells").forEach(cells);
  every("[data-picture]").forEach((button) => {
    const node = button.closest("figure").querySelector(".chart");
    button.addEventListener("click", () => PICTURES[button.dataset.picture](node));
  });
};

start();
