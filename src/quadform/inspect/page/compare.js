// The switches of the comparison, and one head of both on demand.
const panel = document.getElementById("head");

function paintHead() {
  const found = view.head && data.sections.map(part => part.layers[view.head[0]] && part.layers[view.head[0]].heads[view.head[1]]);
  panel.hidden = !found || !found.some(Boolean);
  if (panel.hidden) return;
  const value = (head, i, metric) => head ? errorOf(head, i, metric) : Infinity, points = x => !isFinite(x) ? "–" : Math.round(100 * x) === 0 ? "0" : (x > 0 ? "+" : "−") + Math.abs(100 * x).toFixed(0);
  const cells = i => ["raw", "centred"].flatMap(metric => { const [a, b] = found.map(head => value(head, i, metric)); return [make("td", { class: "gap" }, exact(a)), make("td", {}, exact(b)), make("td", { class: "soft" }, points(b - a))]; });
  panel.replaceChildren(make("h2", { id: "head-title" }, `Layer ${view.head[0]}, head ${view.head[1]}`),
    make("p", {}, found.map((head, at) => head ? `${"AB"[at]}: kind ${kindName(head)}, best ${data.forms[best(head)].name} at ${exact(errorOf(head, best(head)))} (${view.metric}).` : `${"AB"[at]} has no such head.`).join(" ")),
    make("div", { class: "scroll", tabindex: 0, role: "region", "aria-labelledby": "head-title" }, make("table", { class: "data" },
      make("thead", {}, make("tr", {}, ...["form", "raw A", "raw B", "B − A", "centred A", "centred B", "B − A"].map(text => make("th", { scope: "col" }, text)))),
      make("tbody", {}, ...data.forms.map((form, i) => make("tr", {}, make("th", { scope: "row" }, chip(i), form.name), ...cells(i)))))));
}
function paint() {
  paintLegends();
  maps.forEach(paintMap);
  paintHead();
}
document.addEventListener("click", event => {
  const at = event.target.closest("[data-at]");
  if (!at) return;
  view.head = at.dataset.at.split(",").map(Number);
  paint();
  panel.focus({ preventScroll: true });
  panel.scrollIntoView({ block: "nearest" });
});
document.addEventListener("change", event => {
  const { name, type, checked, value } = event.target;
  view[name] = type === "checkbox" ? checked : value;
  paint();
});
document.addEventListener("submit", event => event.preventDefault());

maps.forEach(prepareMap);
document.querySelector(".controls").hidden = false;
paint();
