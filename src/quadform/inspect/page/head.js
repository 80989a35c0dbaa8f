// The section of one head: errors beside the baseline, costs, refusals, bounds, structure and the four views.
const panel = document.getElementById("head");
const seconds = value => value === null ? "not timed" : `${Number((1000 * value).toPrecision(3))}\u00a0ms`;

function verdict(cost, attention) {
  if (!cost || !attention) return ["–", ""];
  if (cost[0] !== null && attention[0] !== null) {
    const ratio = attention[0] / cost[0];
    return cost[0] < attention[0] ? [`${ratio.toFixed(ratio < 10 ? 2 : 0)} × faster`, "good"] : ["not cheaper", "warn"];
  }
  return cost[1] < attention[1] ? [`${percent(cost[1] / attention[1])} of the FLOPs`, ""] : ["no fewer FLOPs", "warn"];
}
function costCells(layer, name) {
  const cost = layer.costs[name], [text, look] = name === "attention" ? ["", ""] : verdict(cost, layer.costs.attention);
  if (!cost) return [make("td", {}, "–"), make("td", {}, "–"), make("td", {}, "–"), make("td", {}, "–")];
  return [make("td", { class: "gap" }, seconds(cost[0])), make("td", { class: look || null }, text), make("td", {}, scaled(cost[1], ["", "k", "M", "G", "T"])), make("td", {}, cost[2] === null ? "–" : scaled(cost[2], ["B", "kB", "MB", "GB"]))];
}
function errorTable(layer, head) {
  const forms = data.forms.map((_, i) => i), shown = forms.filter(i => head.e[i] !== null).sort((a, b) => errorOf(head, a) - errorOf(head, b) || a - b);
  const marker = baseline < 0 ? Infinity : errorOf(head, baseline), values = shown.map(i => errorOf(head, i)).filter(isFinite), most = Math.min(1.5, Math.max(1, ...values));
  const track = i => make("span", { class: "track", "aria-hidden": "true" },
    make("i", { class: `f${i} b1`, style: `width:${100 * Math.min(isFinite(errorOf(head, i)) ? errorOf(head, i) : 0, most) / most}%` }), isFinite(marker) ? make("u", { style: `left:${100 * Math.min(marker, most) / most}%` }) : null);
  const name = i => make("th", { scope: "row" }, chip(i), term(`form:${data.forms[i].name}`, data.forms[i].name), data.forms[i].oracle ? " (oracle)" : "");
  const rows = shown.map(i => make("tr", {}, name(i), make("td", { class: "text" }, track(i)), make("td", {}, exact(errorOf(head, i, "raw"))), make("td", {}, exact(errorOf(head, i, "centred"))), ...costCells(layer, data.forms[i].name)));
  const reasons = forms.filter(i => head.e[i] === null).map(i => make("tr", {}, name(i), make("td", { colspan: 7, class: "text wrap" }, `does not apply: ${layer.refusals[data.forms[i].name] || "no reason was recorded"}`)));
  const own = make("tr", { class: "apart" }, make("th", { scope: "row" }, term("attention", "attention as it is")), make("td", {}), make("td", {}, "0\u00a0%"), make("td", {}, "0\u00a0%"), ...costCells(layer, "attention"));
  const column = (key, text, gap) => make("th", { scope: "col", class: gap ? "gap" : null }, key ? term(key, text) : text);
  const timing = data.timing.refusal ? `Nothing was timed: ${data.timing.refusal}.` : `Times were measured on ${data.timing.machine} with ${data.timing.threads} thread${data.timing.threads === 1 ? "" : "s"}.`;
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Errors and costs of every form" }, make("table", { class: "data" },
    make("caption", {}, isFinite(marker) ? `Bars: ${view.metric} error, up to ${percent(most)}; the upright line is the baseline, the mean of v, at ${exact(marker)}. ` : "", `Costs are for one sequence and all ${layer.heads.length} heads of the layer. ${timing}`),
    make("thead", {}, make("tr", {}, column("", "form"), make("th", { scope: "col", class: "text" }, `${view.metric} error`), column("raw", "raw"), column("centred", "centred"), column("time", "time", true), column("", "against attention"), column("flops", "FLOPs"), column("state", "state"))),
    make("tbody", {}, own, ...rows, ...reasons)));
}
function boundTable(head) {
  const families = bounded.filter(family => (head.b || {})[family]);
  if (!families.length) return make("p", { class: "small soft" }, "No lower bounds were computed for this head.");
  const counts = [...new Set(families.flatMap(family => features[family]))].sort((a, b) => a - b);
  const cell = (family, count) => { const value = boundOf(head, family, count); return make("td", { class: value !== null && value > 0.1 ? "warn" : null }, exact(value)); };
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Lower bounds" }, make("table", { class: "data" },
    make("caption", {}, "What no kernel with so many features can go below, however trained, in ‖A − A′‖ / ‖A‖. It speaks of the weights A and not of the outputs Av, so compare it with 0, not with the errors above. Beyond 10 % is marked."),
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "features"), ...counts.map(count => make("th", { scope: "col" }, String(count))))),
    make("tbody", {}, ...families.map(family => make("tr", {}, make("th", { scope: "row" }, term(data.terms[`${family} bound`] ? `${family} bound` : "bound", family)), ...counts.map(count => cell(family, count)))))));
}
const structureList = head => make("dl", { class: "numbers" }, ...data.statistics.flatMap((entry, i) => [make("dt", {}, term(`statistic:${entry.name}`, entry.label)), make("dd", {}, statistic(head, i))]));

function sentence(layer, head) {
  const form = best(head), name = data.forms[form].name, mean = baseline < 0 ? null : errorOf(head, baseline);
  const [text] = verdict(layer.costs[name], layer.costs.attention), attention = layer.costs.attention, kind = head.k < 0 ? "No kind: no form fits within 10 %." : `Kind: ${kindName(head)}.`;
  const times = text === "–" || layer.costs[name][0] === null || attention[0] === null ? "" : ` (${seconds(layer.costs[name][0])} against ${seconds(attention[0])})`;
  const cost = text === "–" ? "" : text.includes("FLOPs") ? ` It was not timed; by its own count it has ${text}${text.startsWith("no") ? " than attention" : " of attention"}.` : ` Here it is ${text} than attention${times}.`;
  return `${kind} The best ${view.oracles ? "" : "cheaper "}form is ${name}, with an error of ${exact(errorOf(head, form, "raw"))} raw and ${exact(errorOf(head, form, "centred"))} centred${mean === null || form === baseline ? "" : `, where the mean of v has ${exact(mean)} raw`}.${cost}`;
}
function paintHead() {
  const [row, column] = view.head || [], layer = section().layers[row], head = layer && layer.heads[column];
  if (!head) { panel.hidden = true; return; }
  const facts = [layer.module, layer.role === "cross" ? "cross-attention" : layer.causal ? "causal" : "bidirectional", sized(layer), `dimension ${layer.dim}`,
    layer.groups !== layer.heads.length ? `${layer.groups} key-value heads` : "", layer.extras.length ? `scores with ${layer.extras.join(", ")}` : "", layer.structured ? "structured mask" : ""];
  const move = (text, name, to) => make("button", { type: "button", class: "plain", "data-open": to && section().layers[to[0]] && section().layers[to[0]].heads[to[1]] ? to.join(",") : null, disabled: !(to && section().layers[to[0]] && section().layers[to[0]].heads[to[1]]), "aria-label": name }, text);
  const views = head.v;
  panel.replaceChildren(
    make("div", { class: "panel-top" }, make("h2", { id: "head-title" }, `Layer ${row}, head ${column}, at ${section().length} tokens`),
      make("span", { class: "moves" }, move("←", "Head before", [row, column - 1]), move("→", "Head after", [row, column + 1]), move("↑", "Layer before", [row - 1, column]), move("↓", "Layer after", [row + 1, column]), make("button", { type: "button", class: "plain", "data-to": "map" }, "Map"))),
    make("p", { class: "facts small" }, facts.filter(Boolean).join(" · ")), make("p", {}, sentence(layer, head)),
    views ? make("div", { class: "split views" }, matrixView(views, layer), kernelView(views, layer, head), stateView(views, layer, head), graphView(views, layer, section()))
      : make("p", { class: "small soft" }, "Too many heads to draw each of them on one page: the JSON report has their views."),
    make("h3", { class: "next" }, "Every form in its place"), errorTable(layer, head),
    make("div", { class: "split" }, head.s ? make("div", {}, make("h3", {}, "The weights in numbers"), structureList(head)) : null, head.b ? make("div", {}, make("h3", {}, term("bound", "Lower bounds")), boundTable(head)) : null),
    make("div", { class: "split" }, headLengths(row, column)));
  panel.hidden = false;
  panel.dataset.head = `${row},${column}`;
  panel.dataset.length = section().length;
}
