// Returns the texts with a contrast below 4.5 to 1 (WCAG 2, AA).
() => {
  const canvas = document.createElement("canvas");
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  const light = (color) => {
    pen.fillStyle = color;
    pen.fillRect(0, 0, 1, 1);
    const [red, green, blue] = [...pen.getImageData(0, 0, 1, 1).data].map((part) => {
      const share = part / 255;
      return share > 0.04045 ? ((share + 0.055) / 1.055) ** 2.4 : share / 12.92;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const paper = light(getComputedStyle(document.body).backgroundColor);
  const found = {};
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    const hidden = !node.checkVisibility() || node.disabled || node.closest(".unseen, script");
    if (!own || hidden) continue;
    const style = getComputedStyle(node);
    const color = node.closest("svg") ? style.fill : style.color;
    if (color === "none") continue;
    const [dim, bright] = [light(color), paper].sort((a, b) => a - b);
    const ratio = (bright + 0.05) / (dim + 0.05);
    if (ratio < 4.5) found[`${node.nodeName} ${node.textContent.slice(0, 30)}`] = [color, ratio];
  }
  return found;
}
