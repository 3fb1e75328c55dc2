// Charts: drawn when they scroll near, with values under the pointer or by arrow keys.

// Libraries and specifications are compressed in the page; tables need neither.
const inflate = async (name) => {
  const letters = atob(document.getElementById(name).textContent);
  const bytes = Uint8Array.from(letters, (letter) => letter.charCodeAt(0));
  const unpacking = new DecompressionStream("deflate");
  return new Response(new Blob([bytes]).stream().pipeThrough(unpacking)).text();
};
const unpack = async () => {
  const [libraries, charts] = await Promise.all(["libraries", "charts"].map(inflate));
  const script = document.createElement("script");
  script.textContent = libraries;
  document.head.append(script);
  return JSON.parse(charts);
};
let specs = null;

// Charts use the page's CSS variables, so a change of theme needs no redrawing.
const THEME = {
  background: "transparent",
  font: getComputedStyle(document.body).fontFamily,
  mark: { aria: false },
  text: { color: "var(--soft)" },
  axis: {
    labelColor: "var(--soft)", titleColor: "var(--soft)", gridColor: "var(--line)",
    titleFontWeight: "normal", labelFontSize: 11, titleFontSize: 11,
  },
  legend: {
    labelColor: "var(--soft)", titleColor: "var(--soft)", titleFontWeight: "normal",
    labelFontSize: 11, titleFontSize: 11,
  },
  header: { labelColor: "var(--ink)", titleColor: "var(--soft)", titleFontWeight: "normal" },
};
const views = new Map();
let focused = [];

const hint = document.getElementById("hint");
const showHint = (value, x, y) => {
  hint.hidden = value === null || value === undefined || value === "";
  if (hint.hidden) return;
  hint.replaceChildren(...Object.entries(value).map(([name, text]) => {
    const line = document.createElement("div");
    const term = document.createElement("span");
    term.textContent = name;
    line.append(term, String(text));
    return line;
  }));
  const { width, height } = hint.getBoundingClientRect();
  hint.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 8))}px`;
  hint.style.top = `${y + 18 + height > innerHeight ? y - height - 10 : y + 18}px`;
};

// All marks with a tooltip; of a line its end.
const marksWithTooltip = (view) => {
  const found = [];
  const visit = (mark) => {
    const items = mark.marktype === "line" ? mark.items.slice(-1) : mark.items ?? [];
    for (const item of items) {
      if (item.items) item.items.forEach(visit);
      else if (item.tooltip && item.opacity !== 0) found.push(item);
    }
  };
  visit(view.scenegraph().root);
  return found;
};

const centerOf = (item, node) => {
  const box = node.querySelector("svg").getBoundingClientRect();
  let [x, y] = [item.x ?? 0, item.y ?? 0];
  if (item.width) x += item.width / 2;
  for (let group = item.mark.group; group; group = group.mark?.group) {
    x += group.x ?? 0;
    y += group.y ?? 0;
  }
  const [left, top] = views.get(node).origin();
  return [box.left + left + x, box.top + top + y];
};

const readByKeys = (node) => {
  let at = -1;
  node.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const items = by ? marksWithTooltip(views.get(node)) : [];
    if (!items.length) return;
    event.preventDefault();
    at = at < 0 && by < 0 ? items.length - 1 : (at + by + items.length) % items.length;
    showHint(items[at].tooltip, ...centerOf(items[at], node));
    announce(describe(items[at].tooltip, ": "));
  });
  node.addEventListener("blur", () => { at = -1; showHint(null); });
};

const draw = async (node) => {
  specs ??= unpack();
  const spec = (await specs)[node.dataset.chart];
  // Vega sets the role of its element, so the chart's own stays outside.
  const inside = node.appendChild(document.createElement("div"));
  const { view } = await vegaEmbed(inside, spec, {
    renderer: "svg",
    config: THEME,
    actions: false,
    tooltip: (_, event, __, value) => showHint(value, event.clientX, event.clientY),
  });
  views.set(node, view);
  view.addEventListener("mouseover", (_, item) => {
    const name = item?.datum?.mechanism;
    if (name) view.signal("focus", [name]).runAsync();
  });
  view.addEventListener("mouseout", () => view.signal("focus", focused).runAsync());
  readByKeys(node);
  await view.signal("focus", focused).runAsync();
  return view;
};

const describe = (values, separator) => (
  Object.entries(values).map(([name, text]) => `${name}${separator}${text}`).join(", "));

const drawings = new Map();
const drawOnce = (node) => {
  if (!drawings.has(node)) {
    drawings.set(node, draw(node).catch((error) => {
      node.textContent = `This chart cannot be drawn: ${error.message}`;
      console.error(error);
    }));
  }
  return drawings.get(node);
};

// Heatmaps: the value of a cell, under the pointer or by arrow keys.
const prepareHeatmap = (node) => {
  const image = node.querySelector("img");
  const steps = atob(image.dataset.steps);
  const [low, high] = [Number(image.dataset.low), Number(image.dataset.high)];
  let place = [0, 0];
  const read = (column, row) => {
    const size = [image.naturalWidth, image.naturalHeight];
    place = [column, row].map((at, i) => Math.min(Math.max(at, 0), size[i] - 1));
    const share = steps.charCodeAt(place[1] * size[0] + place[0]) / 255;
    const values = {
      Row: place[1] + 1,
      Column: place[0] + 1,
      [image.dataset.name]: (low + share * (high - low)).toPrecision(2),
    };
    const box = image.getBoundingClientRect();
    const [x, y] = place.map((at, i) => (at + 0.5) / size[i]);
    showHint(values, box.left + x * box.width, box.top + y * box.height);
    return describe(values, " ");
  };
  image.addEventListener("mousemove", ({ offsetX, offsetY }) => read(
    Math.floor(offsetX / image.clientWidth * image.naturalWidth),
    Math.floor(offsetY / image.clientHeight * image.naturalHeight),
  ));
  image.addEventListener("mouseleave", () => showHint(null));
  node.addEventListener("blur", () => showHint(null));
  node.addEventListener("keydown", (event) => {
    const by = { ArrowRight: [1, 0], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowUp: [0, -1] }[event.key];
    if (!by) return;
    event.preventDefault();
    announce(read(place[0] + by[0], place[1] + by[1]));
  });
};
