// A table as values, read from the page, and the texts that it is exported as.

const entryOf = (cell) => {
  const shown = [...cell.childNodes].find((node) => node.nodeType === 3 || node.nodeName === "B")
    ?.textContent ?? "";
  const { n, t } = cell.dataset;
  return {
    value: "none" in cell.dataset ? null : n !== undefined ? Number(n || shown) : t ?? shown,
    shown,
    detail: cell.querySelector(":scope > small")?.textContent ?? "",
    strong: cell.querySelector(":scope > b") !== null,
  };
};

const sheetOf = (sheet) => {
  const table = sheet.querySelector("table");
  const [rows, footer] = [0, 1].map((part) => [...table.tBodies[part]?.rows ?? []]
    .filter((row) => !row.hidden).map((row) => [...row.cells].map(entryOf)));
  return {
    name: sheet.id,
    title: table.caption.querySelector("strong").textContent,
    about: [...sheet.querySelectorAll(".about, .rest")].map((part) => part.textContent).join(" "),
    headings: [...table.tHead.rows[0].cells].map((cell) => ({
      name: cell.textContent, kind: cell.className, about: cell.dataset.about ?? "",
    })),
    rows,
    footer,
    notes: [...sheet.querySelectorAll(":scope > .notes > li")].map((note) => note.textContent),
  };
};

// Names of the columns for programs: small letters, digits and underscores, each once.
const keys = (sheet) => sheet.headings.reduce((found, { name }) => {
  const key = name.toLowerCase().replace(/[^a-z0-9]+/g, "_").replace(/^_|_$/g, "") || "column";
  return [...found, found.includes(key) ? `${key}_${found.length + 1}` : key];
}, []);

const quoted = (value) => {
  const text = value === null ? "" : String(value);
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};

const csv = (sheet) => [
  keys(sheet),
  ...[...sheet.rows, ...sheet.footer].map((row) => row.map(({ value }) => value)),
].map((row) => `${row.map(quoted).join(",")}\n`).join("");

const json = (sheet) => {
  const names = keys(sheet);
  const values = (rows) => rows.map((row) => (
    Object.fromEntries(row.map(({ value }, i) => [names[i], value]))));
  const { name, title, about, notes } = sheet;
  const columns = sheet.headings.map((heading, i) => ({ key: names[i], ...heading }));
  const parts = { rows: values(sheet.rows), footer: values(sheet.footer) };
  return `${JSON.stringify({ name, title, about, columns, ...parts, notes }, null, 1)}\n`;
};

const LATEX = {
  "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}",
  "<": "\\textless{}", ">": "\\textgreater{}", "|": "\\textbar{}",
  "–": "--", "−": "$-$", "·": "$\\cdot$", "↑": "$\\uparrow$", "↓": "$\\downarrow$",
  "±": "$\\pm$", "×": "$\\times$",
};
const tight = (text) => text.split(/\s+/).filter(Boolean).join(" ");
const tex = (text) => tight(
  text.replace(/[\\~^<>|–−·↑↓±×]|[&%$#_{}]/g, (sign) => LATEX[sign] ?? `\\${sign}`),
);

const latex = (sheet) => {
  const set = ({ shown, detail, strong }) => {
    const text = strong ? `\\textbf{${tex(shown)}}` : tex(shown);
    return detail ? `${text} {\\scriptsize ${tex(detail)}}` : text;
  };
  const line = (cells) => `  ${cells.join(" & ")} \\\\`;
  const columns = sheet.headings.map(({ kind }) => (kind === "text" ? "l" : "r")).join("");
  return [
    "\\begin{table}",
    "\\centering",
    `\\caption{${tex(sheet.title)}}`,
    `\\label{tab:${sheet.name}}`,
    `\\begin{tabular}{${columns}}`,
    "\\toprule",
    line(sheet.headings.map(({ name }) => tex(name))),
    "\\midrule",
    ...sheet.rows.map((row) => line(row.map(set))),
    ...(sheet.footer.length ? ["\\midrule"] : []),
    ...sheet.footer.map((row) => line(row.map(set))),
    "\\bottomrule",
    "\\end{tabular}",
    ...[...sheet.notes, sheet.about].filter(Boolean)
      .map((note) => `\\par\\smallskip{\\footnotesize ${tex(note)}}`),
    "\\end{table}",
    "",
  ].join("\n");
};

const plain = (text) => tight(text.replace(/[\\|<*_`[]/g, "\\$&"));

const markdown = (sheet) => {
  const line = (cells) => `| ${cells.join(" | ")} |`;
  const set = ({ shown, detail, strong }) => (
    `${strong ? `**${plain(shown)}**` : plain(shown)} ${plain(detail)}`.trim());
  const table = [
    sheet.headings.map(({ name }) => plain(name)),
    sheet.headings.map(({ kind }) => (kind === "text" ? ":--" : "--:")),
    ...[...sheet.rows, ...sheet.footer].map((row) => row.map(set)),
  ].map(line).join("\n");
  const below = [...sheet.notes, sheet.about].filter(Boolean).map(plain);
  return `${[`### ${plain(sheet.title)}`, table, ...below].join("\n\n")}\n`;
};

const FORMATS = {
  csv: { write: csv, suffix: "csv", type: "text/csv" },
  json: { write: json, suffix: "json", type: "application/json" },
  latex: { write: latex, suffix: "tex", type: "application/x-tex" },
  markdown: { write: markdown, suffix: "md", type: "text/markdown" },
};

const save = (name, content, type) => {
  const blob = new Blob([content], { type: `${type};charset=utf-8` });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
};
