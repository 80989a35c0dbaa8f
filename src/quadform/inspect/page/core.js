// What every part of the page uses: the data, the view's state, small makers of elements, and the choice of a form.
const data = JSON.parse(document.getElementById("data").textContent);
const view = { length: 0, metric: "raw", colour: "form", oracles: false, layer: "", kind: "", form: "", side: "within", level: "", sort: "layer", down: false, head: null };
const fresh = Object.freeze({ ...view });
const LEVELS = [0.05, 0.1, 0.2];

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) if (value !== null && value !== false) node.setAttribute(key, value === true ? "" : value);
  node.append(...children.filter(child => child !== null));
  return node;
}
function draw(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children.filter(child => child !== null && child !== ""));
  return node;
}
const label = (x, y, content, anchor = "middle", extra = {}) => draw("text", { x, y, "text-anchor": anchor, ...extra }, content);
const picture = (width, height, name, ...children) => draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": name }, ...children);
const term = (key, text) => make("button", { type: "button", class: "term", "data-term": key }, text);
const chip = i => make("span", { class: `chip f${i} b1` }, data.forms[i].letter);
const percent = (x, digits = 0) => x === null || !isFinite(x) ? "–" : (100 * x).toFixed(digits) + "\u00a0%";
const exact = x => percent(x, x !== null && x < 0.0995 ? 1 : 0);
const number = x => x === null || x === undefined ? "–" : Math.abs(x) >= 1e4 ? x.toExponential(1) : String(Number(x.toPrecision(3)));
function scaled(x, units) {
  if (x === null) return "–";
  let at = 0;
  while (Math.abs(x) >= 1000 && at < units.length - 1) { x /= 1000; at++; }
  return `${Number(x.toPrecision(3))}\u00a0${units[at]}`.trim();
}
const statistic = (head, i) => {
  const value = head.s ? head.s[i] : null;
  return value === null ? "–" : data.statistics[i].unit === "share" ? percent(value) : number(value);
};
const named = (head, name) => {
  const i = data.statistics.findIndex(s => s.name === name);
  return i < 0 || !head.s ? null : head.s[i];
};

const cheaper = (i, oracles) => oracles || !data.forms[i].oracle;
const errorOf = (head, i, metric = view.metric) => {
  const value = (metric === "raw" ? head.e : head.c)[i];
  return value === null ? Infinity : value / 10000;
};
function best(head, metric = view.metric, oracles = view.oracles) {
  const allowed = data.forms.map((_, i) => cheaper(i, oracles) ? errorOf(head, i, metric) : Infinity), least = Math.min(...allowed);
  return Math.max(0, allowed.findIndex((value, i) => cheaper(i, oracles) && value <= least + data.tie));
}
const band = error => 1 + LEVELS.filter(level => error > level).length;
const section = () => data.sections[view.length];
const kindName = head => head.k < 0 ? "none" : data.kinds[head.k];
const kindForm = k => data.forms.findIndex(form => form.kind === data.kinds[k]);
const baseline = data.forms.findIndex(form => form.kind === "mean");
const everyHead = part => part.layers.flatMap((layer, row) => layer.heads.map((head, column) => ({ layer, row, head, column })));
