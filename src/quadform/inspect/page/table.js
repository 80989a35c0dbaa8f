// The table of all heads: filters, sorting by headers, and how many rows are shown.
const SHOWN = 200;
let showAll = false;
const bounded = [...new Set(data.sections.flatMap(part => everyHead(part).flatMap(({ head }) => Object.keys(head.b || {}))))];
const features = Object.fromEntries(bounded.map(family => {
  const all = [...new Set(data.sections.flatMap(part => everyHead(part).flatMap(({ head }) => Object.keys((head.b || {})[family] || {}))))].map(Number).sort((a, b) => a - b);
  return [family, all];
}));
const usual = family => features[family].includes(64) ? 64 : features[family][features[family].length - 1];
const boundOf = (head, family, count) => { const row = (head.b || {})[family]; return row && row[count] !== undefined ? row[count] / 10000 : null; };

const columns = [
  { key: "layer", name: "layer", value: at => at.row + at.column / 1e4, cell: at => String(at.row), text: true },
  { key: "head", name: "head", value: at => at.column + at.row / 1e4, cell: at => make("a", { href: `#head-${at.row}-${at.column}`, "data-open": `${at.row},${at.column}`, "aria-label": `Layer ${at.row}, head ${at.column}` }, String(at.column)) },
  { key: "kind", name: "kind", term: "kind", value: at => at.head.k < 0 ? 1e9 : at.head.k, cell: at => at.head.k < 0 ? "–" : kindName(at.head), text: true },
  { key: "form", name: "best form", value: at => best(at.head), cell: at => make("span", {}, chip(best(at.head)), data.forms[best(at.head)].name), text: true },
  { key: "raw", name: "raw error", term: "raw", value: at => errorOf(at.head, best(at.head), "raw"), cell: at => exact(errorOf(at.head, best(at.head), "raw")) },
  { key: "centred", name: "centred error", term: "centred", value: at => errorOf(at.head, best(at.head), "centred"), cell: at => exact(errorOf(at.head, best(at.head), "centred")) },
  ...(baseline < 0 ? [] : [{ key: "mean", name: "mean of v", term: "baseline", value: at => errorOf(at.head, baseline), cell: at => exact(errorOf(at.head, baseline)) }]),
  ...data.statistics.map((entry, i) => !entry.key ? null : ({ key: entry.name, name: entry.label, term: `statistic:${entry.name}`, value: at => at.head.s && at.head.s[i] !== null ? at.head.s[i] : Infinity, cell: at => statistic(at.head, i) })),
  ...bounded.map(family => ({ key: `bound.${family}`, name: `${family} bound, ${usual(family)}`, term: data.terms[`${family} bound`] ? `${family} bound` : "bound", value: at => boundOf(at.head, family, usual(family)) ?? Infinity, cell: at => exact(boundOf(at.head, family, usual(family))) })),
].filter(Boolean);

function rows() {
  const limit = Number(view.level) / 100, kept = everyHead(section()).filter(at => {
    const form = best(at.head), error = errorOf(at.head, form);
    return (view.layer === "" || at.row === Number(view.layer)) && (view.kind === "" || kindName(at.head) === view.kind)
      && (view.form === "" || data.forms[form].name === view.form) && (view.level === "" || (view.side === "within" ? error <= limit : error > limit));
  });
  const column = columns.find(column => column.key === view.sort) || columns[0], sign = view.down ? -1 : 1;
  const value = new Map(kept.map(at => [at, column.value(at)]));
  return kept.sort((a, b) => {
    const [x, y] = [value.get(a), value.get(b)];
    if (isFinite(x) !== isFinite(y)) return isFinite(x) ? -1 : 1;
    return (x === y ? 0 : sign * (x - y)) || a.row - b.row || a.column - b.column;
  });
}
function select(name, text, options) {
  const box = make("select", { name }, make("option", { value: "" }, "all"), ...options.map(([value, shown]) => make("option", { value }, shown)));
  return make("label", {}, text, box);
}
function prepareTable() {
  const layers = Math.max(...data.sections.map(part => part.layers.length)), level = make("input", { type: "number", name: "level", min: 0, step: 1, "aria-label": "error in per cent" });
  const side = make("select", { name: "side", "aria-label": "within or beyond" }, make("option", { value: "within" }, "within"), make("option", { value: "beyond" }, "beyond"));
  const header = column => {
    const button = make("button", { type: "button", class: "sort", "data-sort": column.key, "data-term": column.term || null }, column.name);
    return make("th", { scope: "col", class: column.text ? "text" : null, "data-column": column.key }, button);
  };
  document.getElementById("heads-body").replaceChildren(
    make("form", { class: "filters", "aria-label": "Filters of the table" },
      select("layer", "layer", Array.from({ length: layers }, (_, i) => [i, i])), select("kind", "kind", [...data.kinds, "none"].map(kind => [kind, kind])),
      select("form", "best form", data.forms.map(form => [form.name, form.name])), make("label", {}, "error ", side, level, "%"),
      make("button", { type: "button", class: "plain", id: "reset" }, "Show all heads"), make("span", { id: "count", class: "soft", role: "status" })),
    make("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-labelledby": "heads-title" },
      make("table", { class: "data" }, make("thead", {}, make("tr", {}, ...columns.map(header))), make("tbody", { id: "rows" }))),
    make("p", { id: "more", hidden: true }, make("button", { type: "button", class: "plain" })));
}
function paintTable() {
  const found = rows(), all = everyHead(section()).length, shown = showAll ? found : found.slice(0, SHOWN);
  for (const cell of document.querySelectorAll("[data-column]")) {
    if (cell.dataset.column === view.sort) cell.setAttribute("aria-sort", view.down ? "descending" : "ascending");
    else cell.removeAttribute("aria-sort");
  }
  document.getElementById("rows").replaceChildren(...shown.map(at => {
    const open = view.head && view.head[0] === at.row && view.head[1] === at.column;
    return make("tr", { "aria-current": open ? "true" : null }, ...columns.map(column => make("td", { class: column.text ? "text" : null }, column.cell(at))));
  }));
  document.getElementById("count").textContent = `${found.length} of ${all} heads`;
  const more = document.getElementById("more");
  more.hidden = shown.length === found.length;
  more.firstElementChild.textContent = `Show all ${found.length} rows`;
}
