// The view's state, kept in the address after #, and what clicks and keys change in it.
const OPTIONS = ["metric", "colour", "layer", "kind", "form", "side", "level", "sort"];

function address() {
  const parts = view.head ? [`head-${view.head.join("-")}`] : [];
  if (view.length) parts.push(`length=${section().length}`);
  for (const name of OPTIONS) if (view[name] !== fresh[name]) parts.push(`${name}=${encodeURIComponent(view[name])}`);
  for (const name of ["oracles", "down"]) if (view[name]) parts.push(`${name}=1`);
  return parts.join("&");
}
function read(fragment) {
  Object.assign(view, fresh);
  for (const part of fragment.replace(/^#/, "").split("&")) {
    const linked = /^head-(\d+)-(\d+)$/.exec(part), [name, value = ""] = part.split("=");
    if (linked) view.head = [Number(linked[1]), Number(linked[2])];
    else if (name === "length") view.length = Math.max(0, data.sections.findIndex(found => String(found.length) === value));
    else if (OPTIONS.includes(name)) { try { view[name] = decodeURIComponent(value); } catch { view[name] = fresh[name]; } }
    else if (name === "oracles" || name === "down") view[name] = value === "1";
  }
  if (view.metric !== "centred") view.metric = "raw";
  if (view.colour !== "kind") view.colour = "form";
}
function controls() {
  for (const input of document.querySelectorAll(".controls input, .filters select, .filters input")) {
    if (input.type === "radio") input.checked = input.value === String(view[input.name]);
    else if (input.type === "checkbox") input.checked = view[input.name];
    else if (document.activeElement !== input) input.value = view[input.name];
  }
}
function paint() {
  document.querySelectorAll(".length").forEach((part, i) => { part.hidden = i !== view.length; });
  paintLegends();
  paintMap(maps[view.length]);
  paintTable();
  paintHead();
  controls();
}
function update(change) {
  Object.assign(view, change);
  history.replaceState(null, "", "#" + address());
  paint();
}
function show(node) {
  node.focus({ preventScroll: true });
  node.scrollIntoView({ block: "start" });
}
function lowest() {
  const all = everyHead(section()).map(at => [errorOf(at.head, best(at.head, "raw", false), "raw"), at]).sort((a, b) => a[0] - b[0]);
  return all.length ? [all[0][1].row, all[0][1].column] : null;
}

document.addEventListener("click", event => {
  const at = event.target.closest("[data-at], [data-open]"), sort = event.target.closest("[data-sort]"), link = event.target.closest("a[href^='#']");
  if (at && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    event.preventDefault();
    const said = at.closest("#head") ? at.getAttribute("aria-label") : null;
    update({ head: (at.dataset.at || at.dataset.open).split(",").map(Number) });
    const again = said && panel.querySelector(`[aria-label="${said}"]:not([disabled])`);
    if (again) again.focus({ preventScroll: true }); else show(panel);
  } else if (sort) update({ sort: sort.dataset.sort, down: view.sort === sort.dataset.sort && !view.down });
  else if (event.target.closest("#reset")) update({ layer: "", kind: "", form: "", level: "", side: "within" });
  else if (event.target.closest("#more")) { showAll = true; paint(); }
  else if (event.target.closest("[data-to]")) show(maps[view.length].querySelector("[aria-current]") || maps[view.length]);
  else if (link && document.querySelector(link.getAttribute("href"))) { event.preventDefault(); show(document.querySelector(link.getAttribute("href"))); }
});
for (const kind of ["change", "input"]) document.addEventListener(kind, event => {
  const { name, type, checked, value } = event.target;
  if (!name || (kind === "input" && type !== "number")) return;
  update({ [name]: type === "checkbox" ? checked : name === "length" ? Number(value) : value });
});
document.addEventListener("submit", event => event.preventDefault());
addEventListener("hashchange", () => { read(location.hash); paint(); if (view.head) show(panel); });
matchMedia("(prefers-color-scheme:dark)").addEventListener("change", paintHead);

maps.forEach(prepareMap);
prepareTable();
lengthsSection();
read(location.hash);
const linkedHead = view.head && section().layers[view.head[0]] && section().layers[view.head[0]].heads[view.head[1]];
if (!linkedHead) view.head = lowest();
document.querySelector(".controls").hidden = false;
paint();
if (linkedHead) panel.scrollIntoView({ block: "start" });
