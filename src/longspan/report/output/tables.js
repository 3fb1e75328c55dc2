// Tables: sorting, filtering, export as CSV. The page's live region announces changes.

const announce = (text) => { document.getElementById("status").textContent = text; };

// Unrounded value of a cell: attributes hold what its text does not.
const valueOf = (cell) => {
  const { n, t } = cell.dataset;
  if ("none" in cell.dataset) return null;
  const text = [...cell.childNodes].find((node) => node.nodeType === 3 || ["B", "U"].includes(node.nodeName))
    ?.textContent ?? "";
  return n !== undefined ? Number(n || text) : t ?? text;
};

const quote = (value) => {
  const text = value === null ? "" : String(value);
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};

const csvOf = (table) => {
  const keys = [...table.tHead.rows[0].cells].map((cell) => cell.dataset.key);
  const rows = [...table.tBodies].flatMap((body) => [...body.rows]).filter((row) => !row.hidden);
  return [keys, ...rows.map((row) => [...row.cells].map(valueOf))]
    .map((row) => `${row.map(quote).join(",")}\n`).join("");
};

const download = (name, content) => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type: "text/csv;charset=utf-8" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
};

const prepareTable = (group) => {
  const table = group.querySelector("table");
  const body = table.tBodies[0];
  const original = [...body.rows];
  const title = table.caption.textContent.trim();
  const box = group.querySelector("input[type=search]");
  const counter = group.querySelector(".count");

  // Numbers by size, texts as people sort them.
  const compare = (a, b) => (typeof a === "number" && typeof b === "number"
    ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true }));

  const sort = (header) => {
    // Three states: the best first, the worst first, the original order.
    const turns = header.className === "higher"
      ? ["descending", "ascending"] : ["ascending", "descending"];
    const order = turns[turns.indexOf(header.getAttribute("aria-sort")) + 1];
    const rows = original.map((row) => [valueOf(row.cells[header.cellIndex]), row]);
    if (order) rows.sort(([a], [b]) => {
      // Missing values stay at the end in both orders.
      if (a === null || b === null) return (a === null) - (b === null);
      return order === "ascending" ? compare(a, b) : compare(b, a);
    });
    body.append(...rows.map(([, row]) => row));
    for (const other of header.parentElement.cells) other.removeAttribute("aria-sort");
    if (order) header.setAttribute("aria-sort", order);
    announce(order
      ? `${title}: sorted by ${header.textContent}, ${order}.` : `${title}: original order.`);
  };

  const filter = () => {
    const words = (box?.value ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    const hidesOthers = document.documentElement.hasAttribute("data-hide-others");
    for (const row of original) {
      const text = row.textContent.toLowerCase();
      const isFaded = row.classList.contains("faded");
      row.hidden = !words.every((word) => text.includes(word)) || (hidesOthers && isFaded);
    }
    const shown = original.filter((row) => !row.hidden).length;
    const all = shown === original.length;
    counter.textContent = all ? `${shown} rows` : `${shown} of ${original.length} rows`;
    if (original.length === 1) counter.textContent = "1 row";
  };

  for (const header of table.tHead.rows[0].cells) {
    header.querySelector("button").addEventListener("click", () => sort(header));
  }
  box?.addEventListener("input", () => {
    filter();
    announce(`${title}: ${counter.textContent} shown.`);
  });
  group.querySelector(".export").addEventListener("click", () => {
    download(`${group.id}.csv`, csvOf(table));
  });
  group.addEventListener("filter", filter);
  filter();
};
