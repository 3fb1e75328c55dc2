// Tables: sorting, filtering, means of chosen tasks, commands, export as CSV. The page's live region
// announces changes.

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

// Numbers by size, texts as people sort them.
const compare = (a, b) => (typeof a === "number" && typeof b === "number"
  ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true }));

const sortRows = (rows, place, order) => {
  const keyed = rows.map((row) => [valueOf(row.cells[place]), row]);
  keyed.sort(([a], [b]) => {
    // Missing values stay at the end in both orders.
    if (a === null || b === null) return (a === null) - (b === null);
    return order === "ascending" ? compare(a, b) : compare(b, a);
  });
  return keyed.map(([, row]) => row);
};

const emptyCell = (label) => {
  const cell = document.createElement("td");
  cell.dataset.none = "";
  cell.dataset.label = label;
  cell.textContent = "–";
  return cell;
};

// Mean over chosen tasks. It has no interval and no rank: those belong to the mean of the protocol.
const meanCell = (cells, head, label) => {
  const values = cells.map(valueOf);
  const cell = emptyCell(label);
  if (!values.length || values.includes(null)) return cell;
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  delete cell.dataset.none;
  cell.dataset.n = mean;
  cell.textContent = (mean * head.dataset.scale).toFixed(head.dataset.decimals);
  const atChance = cells.filter((one) => "chance" in one.dataset).length;
  if (atChance) {
    const note = document.createElement("small");
    note.textContent = `${atChance} at chance`;
    cell.append(note);
  }
  return cell;
};

const prepareMean = (group, table, rearrange) => {
  const boxes = [...group.querySelectorAll("input[data-task]")];
  const heads = [...table.tHead.rows[0].cells];
  const head = heads.find((one) => one.dataset.role === "mean");
  if (!boxes.length || !head) return;
  const button = head.querySelector("button");
  const whole = { name: button.textContent, key: head.dataset.key };
  const rank = heads.findIndex((one) => one.dataset.role === "rank");
  const kept = [...table.tBodies].flatMap((body) => [...body.rows]).map((row) => (
    { row, mean: row.cells[head.cellIndex], rank: row.cells[rank] }));
  const show = () => {
    const chosen = boxes.filter((box) => box.checked);
    const isWhole = chosen.length === boxes.length;
    const names = chosen.map((box) => box.parentElement.textContent.trim());
    const label = isWhole ? whole.name : `Mean of ${names.join(", ") || "no task"}`;
    button.textContent = label;
    head.dataset.key = isWhole
      ? whole.key : `mean_of_${names.map((_, i) => heads[chosen[i].dataset.task].dataset.key).join("_")}`;
    for (const one of kept) {
      const cells = chosen.map((box) => one.row.cells[box.dataset.task]);
      one.row.cells[head.cellIndex].replaceWith(isWhole ? one.mean : meanCell(cells, head, label));
      if (rank >= 0) one.row.cells[rank].replaceWith(isWhole ? one.rank : emptyCell("Rank"));
    }
    rearrange(isWhole ? null : head);
    announce(isWhole ? `${label}.` : `${label}: without rank and interval.`);
  };
  boxes.forEach((box) => box.addEventListener("change", show));
};

// A page opened as a file may have no clipboard: then the command is shown and selected.
const copyCommand = async (group, place) => {
  const fold = group.querySelector(".commands");
  const code = fold.querySelectorAll("code")[place];
  try {
    await navigator.clipboard.writeText(code.textContent);
    announce("Command copied.");
    return true;
  } catch {
    fold.open = true;
    getSelection().selectAllChildren(code);
    code.scrollIntoView({ block: "center" });
    announce("Command selected.");
    return false;
  }
};

const prepareCopy = (group) => {
  for (const button of group.querySelectorAll(".copy")) {
    button.addEventListener("click", async () => {
      const copied = await copyCommand(group, button.dataset.place);
      button.textContent = copied ? "copied" : "selected";
      setTimeout(() => { button.textContent = "command"; }, 1500);
    });
  }
};

const prepareTable = (group) => {
  const table = group.querySelector("table");
  const body = table.tBodies[0];
  const original = [...body.rows];
  const title = table.caption.textContent.trim();
  const box = group.querySelector("input[type=search]");
  const traits = [...group.querySelectorAll("select[data-trait]")];
  const counter = group.querySelector(".count");
  let sorted = null;
  let byDefault = null; // heading of a mean that the reader chose

  const arrange = () => {
    const by = sorted ?? (byDefault && { head: byDefault, order: firstOrder(byDefault) });
    body.append(...(by ? sortRows(original, by.head.cellIndex, by.order) : original));
  };
  const firstOrder = (head) => (head.className === "higher" ? "descending" : "ascending");

  const sort = (head) => {
    // Three states: the best first, the worst first, the original order.
    const first = firstOrder(head);
    const turns = [first, first === "ascending" ? "descending" : "ascending"];
    const order = turns[turns.indexOf(head.getAttribute("aria-sort")) + 1];
    sorted = order ? { head, order } : null;
    arrange();
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    if (order) head.setAttribute("aria-sort", order);
    announce(order
      ? `${title}: sorted by ${head.textContent}, ${order}.` : `${title}: original order.`);
  };

  const filter = () => {
    const words = (box?.value ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    const hidesOthers = document.documentElement.hasAttribute("data-hide-others");
    for (const row of original) {
      const text = row.textContent.toLowerCase();
      const isFaded = row.classList.contains("faded");
      const fits = words.every((word) => text.includes(word))
        && traits.every(({ value, dataset }) => !value || row.dataset[dataset.trait] === value);
      row.hidden = !fits || (hidesOthers && isFaded);
    }
    const shown = original.filter((row) => !row.hidden).length;
    const all = shown === original.length;
    counter.textContent = all ? `${shown} rows` : `${shown} of ${original.length} rows`;
    if (original.length === 1) counter.textContent = "1 row";
  };

  for (const head of table.tHead.rows[0].cells) {
    head.querySelector("button").addEventListener("click", () => sort(head));
  }
  for (const control of [box, ...traits]) {
    control?.addEventListener("input", () => {
      filter();
      announce(`${title}: ${counter.textContent} shown.`);
    });
  }
  group.querySelector(".export").addEventListener("click", () => {
    download(`${group.id}.csv`, csvOf(table));
  });
  prepareMean(group, table, (head) => {
    byDefault = head;
    arrange();
  });
  prepareCopy(group);
  group.addEventListener("filter", filter);
  filter();
};
