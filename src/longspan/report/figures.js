// The charts: drawn when they come near, with values under the pointer or the arrow keys.

// The libraries and the charts stand deflated in the page; tables need neither.
const unpacked = async (name) => {
  const letters = atob(document.getElementById(name).textContent);
  const bytes = Uint8Array.from(letters, (letter) => letter.charCodeAt(0));
  const unpacking = new DecompressionStream("deflate");
  return new Response(new Blob([bytes]).stream().pipeThrough(unpacking)).text();
};
const unpack = async () => {
  const [libraries, charts] = await Promise.all(["libraries", "charts"].map(unpacked));
  const script = document.createElement("script");
  script.textContent = libraries;
  document.head.append(script);
  return JSON.parse(charts);
};
let specs = null;

// Charts take the colours of the page, so that another theme needs no other drawing.
const PRINTED = { "--ink": "#1c2024", "--soft": "#555d65", "--line": "#dfe3e6", "--paper": "#ffffff" };
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
const pairs = (value) => Object.entries(value).filter(([name]) => name !== "image");
const point = (value, x, y) => {
  hint.hidden = value === null || value === undefined || value === "";
  if (hint.hidden) return;
  hint.replaceChildren(...pairs(value).map(([name, text]) => {
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

// Whatever says something when pointed at; of a line its end.
const speaking = (view) => {
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

const middle = (item, node) => {
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

const step = (node) => {
  let at = -1;
  node.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const items = by ? speaking(views.get(node)) : [];
    if (!items.length) return;
    event.preventDefault();
    at = at < 0 && by < 0 ? items.length - 1 : (at + by + items.length) % items.length;
    point(items[at].tooltip, ...middle(items[at], node));
    say(pairs(items[at].tooltip).map(([name, text]) => `${name}: ${text}`).join(", "));
  });
  node.addEventListener("blur", () => { at = -1; point(null); });
};

const draw = async (node) => {
  specs ??= unpack();
  const spec = (await specs)[node.dataset.chart];
  // An element of its own: Vega gives it another role.
  const inside = node.appendChild(document.createElement("div"));
  const { view } = await vegaEmbed(inside, spec, {
    renderer: "svg",
    config: THEME,
    actions: false,
    tooltip: (_, event, __, value) => point(value, event.clientX, event.clientY),
  });
  views.set(node, view);
  view.addEventListener("mouseover", (_, item) => {
    const name = item?.datum?.mechanism;
    if (name) view.signal("focus", [name]).runAsync();
  });
  view.addEventListener("mouseout", () => view.signal("focus", focused).runAsync());
  step(node);
  await view.signal("focus", focused).runAsync();
  return view;
};

const drawn = new Map();
const show = (node) => {
  if (!drawn.has(node)) {
    drawn.set(node, draw(node).catch((error) => {
      node.textContent = `This chart cannot be drawn: ${error.message}`;
      console.error(error);
    }));
  }
  return drawn.get(node);
};

const printed = async (node) => {
  const text = await (await show(node)).toSVG();
  return text.replace(/var\((--\w+)\)/g, (_, name) => PRINTED[name])
    .replace(/<svg[^>]*>/, '$&<rect width="100%" height="100%" fill="#ffffff"/>');
};

const raster = async (text) => {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [3 * image.width, 3 * image.height];
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => { canvas.toBlob(done, "image/png"); });
};

const PICTURES = {
  svg: async (node) => save(`${node.dataset.chart}.svg`, await printed(node), "image/svg+xml"),
  png: async (node) => save(`${node.dataset.chart}.png`, await raster(await printed(node)), "image/png"),
};

// The value of a cell of a picture, under the pointer or moved to with the arrow keys.
const cells = (node) => {
  const image = node.querySelector("img");
  const steps = atob(image.dataset.steps);
  const [low, high] = [Number(image.dataset.low), Number(image.dataset.high)];
  let place = [0, 0];
  const tell = (column, row) => {
    const [wide, tall] = [image.naturalWidth, image.naturalHeight];
    place = [Math.min(Math.max(column, 0), wide - 1), Math.min(Math.max(row, 0), tall - 1)];
    const share = steps.charCodeAt(place[1] * wide + place[0]) / 255;
    const box = image.getBoundingClientRect();
    const told = {
      Row: place[1] + 1,
      Column: place[0] + 1,
      [image.dataset.what]: (low + share * (high - low)).toPrecision(2),
    };
    const at = place.map((cell, i) => (cell + 0.5) / [wide, tall][i]);
    point(told, box.left + at[0] * box.width, box.top + at[1] * box.height);
    return pairs(told).map(([name, text]) => `${name} ${text}`).join(", ");
  };
  image.addEventListener("mousemove", ({ offsetX, offsetY }) => tell(
    Math.floor(offsetX / image.clientWidth * image.naturalWidth),
    Math.floor(offsetY / image.clientHeight * image.naturalHeight),
  ));
  image.addEventListener("mouseleave", () => point(null));
  node.addEventListener("blur", () => point(null));
  node.addEventListener("keydown", (event) => {
    const by = { ArrowRight: [1, 0], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowUp: [0, -1] }[event.key];
    if (!by) return;
    event.preventDefault();
    say(tell(place[0] + by[0], place[1] + by[1]));
  });
};
