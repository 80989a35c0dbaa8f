// How measures change with the number of tokens: small line charts.
const middle = values => {
  const sorted = values.filter(isFinite).sort((a, b) => a - b);
  return sorted.length ? (sorted[Math.floor((sorted.length - 1) / 2)] + sorted[Math.ceil((sorted.length - 1) / 2)]) / 2 : null;
};

/** A chart with one line for each of `series` ({values, dash, name}); null values leave a gap. */
function chart(title, series, format, top = null) {
  if (series.every(line => line.values.every(value => value === null))) return null;
  const width = 190, height = 118, left = 34, right = 10, base = 94, head = 8, sizes = data.sections.map(part => part.length);
  const known = series.flatMap(line => line.values).filter(value => value !== null), most = top ?? Math.max(1e-9, ...known), logs = sizes.map(Math.log);
  const x = i => left + (width - left - right) * (logs[i] - logs[0]) / Math.max(1e-9, logs[logs.length - 1] - logs[0]), y = value => base - (base - head) * Math.min(value / most, 1);
  const grid = [0, most / 2, most].flatMap(value => [draw("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), class: "axis" }), label(left - 5, y(value) + 4, format(value), "end")]);
  const lines = series.flatMap(line => {
    const colour = line.dash ? "var(--ahead)" : "var(--past)", points = line.values.map((value, i) => [i, value]).filter(([, value]) => value !== null);
    return [draw("polyline", { points: points.map(([i, value]) => `${x(i)},${y(value)}`).join(" "), fill: "none", stroke: colour, "stroke-width": 2, "stroke-dasharray": line.dash ? "5 3" : "none" }),
      ...points.map(([i, value]) => draw("circle", { cx: x(i), cy: y(value), r: 2.8, fill: line.dash ? "var(--paper)" : colour, stroke: colour, "stroke-width": 1.5 }, draw("title", {}, `${sizes[i]} tokens, ${line.name}: ${format(value)}`)))];
  });
  const ticks = sizes.map((size, i) => label(x(i), base + 14, String(size), i === 0 ? "start" : i === sizes.length - 1 ? "end" : "middle"));
  const said = series.map(line => `${line.name} ${line.values.map((value, i) => `${value === null ? "undefined" : format(value)} at ${sizes[i]}`).join(", ")}`).join("; ");
  return make("figure", {}, make("h4", {}, ...[title].flat()), picture(width, height, said, ...grid, ...lines, ...ticks));
}
const pairOf = values => [{ name: "raw", values: values("raw") }, { name: "centred", values: values("centred"), dash: true }];
const finite = value => isFinite(value) ? value : null;
const legendLine = () => make("p", { class: "small soft" }, "Solid with filled points: raw error. Dashed with open points: centred error. The horizontal axis is the number of tokens, on a logarithmic scale; errors beyond 150 % are drawn at the top.");

function lengthsSection() {
  const place = document.getElementById("lengths");
  if (data.sections.length < 2) return;
  const heads = data.sections.map(part => everyHead(part).map(at => at.head));
  const share = i => pairOf(metric => heads.map(list => list.length ? list.filter(head => errorOf(head, i, metric) <= 0.1).length / list.length : null));
  const median = i => pairOf(metric => heads.map(list => middle(list.map(head => errorOf(head, i, metric)))));
  const title = i => [chip(i), data.forms[i].name], forms = data.forms.map((_, i) => i);
  const most = Math.min(1.5, Math.max(1, ...forms.flatMap(i => median(i).flatMap(line => line.values)).filter(value => value !== null)));
  const statistics = data.statistics.map((entry, i) => chart(entry.label, [{ name: "median", values: heads.map(list => middle(list.map(head => head.s && head.s[i] !== null ? head.s[i] : NaN))) }], entry.unit === "share" ? value => percent(value) : number, entry.unit === "share" ? 1 : null));
  const bounds = bounded.map(family => chart(`${family} bound, ${usual(family)} features`, [{ name: "median", values: heads.map(list => middle(list.map(head => boundOf(head, family, usual(family)) ?? NaN))) }], value => percent(value), 1));
  place.replaceChildren(make("h2", { id: "lengths-title" }, "How it changes with the number of tokens"), legendLine(),
    make("h3", {}, "Share of heads within 10 %"), make("div", { class: "small-charts" }, ...forms.map(i => chart(title(i), share(i), value => percent(value), 1))),
    make("h3", {}, "Median error"), make("div", { class: "small-charts" }, ...forms.map(i => chart(title(i), median(i), value => percent(value), most))),
    make("h3", {}, "Median of the weights' statistics"), make("div", { class: "small-charts" }, ...statistics, ...bounds));
  place.hidden = false;
}

function headLengths(row, column) {
  const found = data.sections.map(part => part.layers[row] && part.layers[row].heads[column] || null);
  if (data.sections.length < 2 || found.some(head => head === null)) return null;
  const most = Math.min(1.5, Math.max(1, ...found.flatMap(head => data.forms.flatMap((_, i) => ["raw", "centred"].map(metric => errorOf(head, i, metric)))).filter(isFinite)));
  const applying = data.forms.map((_, i) => i).filter(i => found.some(head => head.e[i] !== null));
  return make("div", { class: "whole" }, make("h3", {}, "This head at other lengths"), legendLine(), make("div", { class: "small-charts" },
    ...applying.map(i => chart([chip(i), data.forms[i].name], pairOf(metric => found.map(head => finite(errorOf(head, i, metric)))), value => percent(value), most)),
    ...data.statistics.map((entry, i) => chart(entry.label, [{ name: entry.label, values: found.map(head => head.s ? head.s[i] : null) }], entry.unit === "share" ? value => percent(value) : number, entry.unit === "share" ? 1 : null))));
}
