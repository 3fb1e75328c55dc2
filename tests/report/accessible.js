// Returns a list of violations of what screen readers and keyboards need.
() => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const wrong = [];
  const check = (right, why, node) => {
    if (!right) wrong.push([why, node?.outerHTML?.slice(0, 120) ?? node]);
  };
  const referred = (node) => ["aria-labelledby", "aria-describedby"]
    .flatMap((name) => (node.getAttribute(name) ?? "").split(" ")).filter(Boolean);
  const name = (node) => [
    node.getAttribute("aria-label"), node.alt, node.textContent,
    ...referred(node).map((id) => document.getElementById(id)?.textContent),
    ...[...node.labels ?? []].map((label) => label.textContent),
  ].join("").trim();

  const controls = "button, a[href], input, summary, [role=region], [role=group], [tabindex]";
  for (const node of all(controls)) {
    if (!node.closest(".chart svg")) check(name(node), "a control without a name", node);
  }
  for (const node of all("th")) check(node.getAttribute("scope"), "no scope", node);
  for (const node of all("table")) check(node.caption?.textContent.trim(), "no caption", node);
  for (const node of all("img")) {
    check(node.alt || name(node.parentElement), "no text for a picture", node);
  }
  for (const node of all("section")) check(referred(node).length, "a nameless section", node);
  const ids = all("[id]").map((node) => node.id);
  for (const id of ids) check(ids.filter((other) => other === id).length === 1, "id twice", id);
  for (const node of all("[aria-labelledby], [aria-describedby]")) {
    for (const id of referred(node)) check(ids.includes(id), "no such id", node);
  }
  for (const node of all("a[href^='#']")) check(ids.includes(node.hash.slice(1)), "a dead link", node);
  let before = 0;
  for (const node of all("h1, h2, h3, h4")) {
    const level = Number(node.nodeName[1]);
    check(level <= before + 1, "a heading's level is left out", node);
    before = level;
  }
  check(all("h1").length === 1, "one h1");
  check(all("main").length === 1, "one main");
  check(document.documentElement.lang === "en", "no language");
  return wrong;
}
