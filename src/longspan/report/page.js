"use strict";
(() => {
  const specs = JSON.parse(document.getElementById("charts").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const views = new Map();
  let focused = [];

  const config = () => {
    const css = getComputedStyle(document.documentElement);
    const ink = css.getPropertyValue("--ink").trim();
    const soft = css.getPropertyValue("--soft").trim();
    const line = css.getPropertyValue("--line").trim();
    const font = getComputedStyle(document.body).fontFamily;
    return {
      background: "transparent",
      font,
      axis: { labelColor: soft, titleColor: soft, gridColor: line, titleFontWeight: "normal" },
      legend: { labelColor: ink, titleColor: soft, titleFontWeight: "normal" },
    };
  };

  const draw = async (node) => {
    const result = await vegaEmbed(node, specs[node.dataset.chart], {
      renderer: "svg",
      config: config(),
      actions: { export: true, source: false, compiled: false, editor: false },
      downloadFileName: node.dataset.chart,
    });
    views.get(node)?.finalize();
    views.set(node, result);
    result.view.signal("focus", focused).run();
  };

  const show = (node) => draw(node).catch((error) => {
    node.textContent = `This chart cannot be drawn: ${error.message}`;
    console.error(error);
  });

  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((entry) => entry.isIntersecting)) {
      seen.unobserve(entry.target);
      show(entry.target);
    }
  }, { rootMargin: "600px" });
  document.querySelectorAll(".chart").forEach((node) => seen.observe(node));
  dark.addEventListener("change", () => [...views.keys()].forEach(show));

  const focus = (names) => {
    focused = names;
    for (const button of document.querySelectorAll(".legend button")) {
      button.setAttribute("aria-pressed", focused.includes(button.dataset.mechanism));
    }
    for (const { view } of views.values()) view.signal("focus", focused).runAsync();
  };
  document.querySelectorAll(".legend button").forEach((button) => {
    button.addEventListener("click", () => {
      const name = button.dataset.mechanism;
      const on = focused.includes(name);
      focus(on ? focused.filter((other) => other !== name) : [...focused, name]);
    });
  });

  const sort = (header) => {
    const table = header.closest("table");
    const body = table.tBodies[0];
    const at = header.cellIndex;
    const key = (row) => row.cells[at].dataset.value ?? "";
    const text = header.dataset.kind === "text";
    const was = header.getAttribute("aria-sort");
    // The first press puts the best on top: highest scores, first names.
    const ascending = was ? was === "descending" : text || header.dataset.kind === "cost";
    const compare = (a, b) => (text ? a.localeCompare(b) : Number(a) - Number(b));
    const rows = [...body.rows].sort((one, two) => {
      const [a, b] = [key(one), key(two)];
      // What is missing stays at the end, whichever way the others go.
      if (a === "" || b === "") return (a === "") - (b === "");
      return ascending ? compare(a, b) : compare(b, a);
    });
    body.append(...rows);
    for (const other of header.parentElement.cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  };
  document.querySelectorAll("th button").forEach((button) => {
    button.addEventListener("click", () => sort(button.closest("th")));
  });
})();
