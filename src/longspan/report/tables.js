// Sorting and filtering of every table; what changed is said in the page's live region.

const say = (text) => { document.getElementById("status").textContent = text; };

const prepare = (sheet) => {
  const table = sheet.querySelector("table");
  const body = table.tBodies[0];
  const original = [...body.rows];
  const title = table.caption.querySelector("strong").textContent;
  const box = sheet.querySelector("input[type=search]");
  const counter = sheet.querySelector(".count");

  // One order for all cells of a column: numbers by size, texts as people sort them.
  const key = (row, at) => {
    const cell = row.cells[at];
    return entryOf(cell).value;
  };
  const compare = (a, b) => (typeof a === "number" && typeof b === "number"
    ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true }));

  const order = (header) => {
    const downwards = header.className === "score";
    // Three states: the best first, the other way round, and as it was.
    const turns = downwards ? ["descending", "ascending"] : ["ascending", "descending"];
    const way = turns[turns.indexOf(header.getAttribute("aria-sort")) + 1];
    const at = header.cellIndex;
    const keyed = original.map((row) => [key(row, at), row]);
    if (way) keyed.sort(([a], [b]) => {
      // What is missing stays at the end, whichever way the others go.
      if (a === null || b === null) return (a === null) - (b === null);
      return way === "ascending" ? compare(a, b) : compare(b, a);
    });
    body.append(...keyed.map(([, row]) => row));
    for (const other of header.parentElement.cells) other.removeAttribute("aria-sort");
    if (way) header.setAttribute("aria-sort", way);
    say(way ? `${title}: sorted by ${header.textContent}, ${way}.` : `${title}: in its first order.`);
  };

  const sieve = () => {
    const words = (box?.value ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    const alone = document.documentElement.hasAttribute("data-alone");
    for (const row of original) {
      const text = row.textContent.toLowerCase();
      const faded = row.classList.contains("faded");
      row.hidden = !words.every((word) => text.includes(word)) || (alone && faded);
    }
    const shown = original.filter((row) => !row.hidden).length;
    const all = shown === original.length;
    counter.textContent = all ? `${shown} rows` : `${shown} of ${original.length} rows`;
    if (original.length === 1) counter.textContent = "1 row";
  };

  for (const header of table.tHead.rows[0].cells) {
    header.querySelector("button").addEventListener("click", () => order(header));
  }
  box?.addEventListener("input", () => {
    sieve();
    say(`${title}: ${counter.textContent} shown.`);
  });
  for (const button of sheet.querySelectorAll("[data-export]")) {
    button.addEventListener("click", () => {
      const { write, suffix, type } = FORMATS[button.dataset.export];
      save(`${sheet.id}.${suffix}`, write(sheetOf(sheet)), type);
    });
  }
  sheet.addEventListener("sieve", sieve);
  sieve();
};
