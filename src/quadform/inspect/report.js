"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const panel = document.getElementById("head");
  const SVG = "http://www.w3.org/2000/svg";
  const percent = (x, digits = 0) => x === null ? "–" : (100 * x).toFixed(digits) + " %";

  function make(tag, attributes = {}, ...children) {
    const svg = attributes.svg, node = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) if (key !== "svg") node.setAttribute(key, value);
    node.append(...children);
    return node;
  }
  const s = (tag, attributes, ...children) => make(tag, { svg: true, ...attributes }, ...children);
  const figure = (title, drawing, caption) => make("figure", {}, make("h3", {}, title), drawing, make("figcaption", {}, caption));
  const picture = (width, height, label, ...children) =>
    s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, s("title", {}, label), ...children);
  const text = (x, y, content, anchor = "middle", extra = {}) => s("text", { x, y, "text-anchor": anchor, ...extra }, content);

  function matrix(head, section) {
    const label = `Attention weights of one measured sequence of ${section.length} tokens; the largest cell is ${percent(head.peak)}`;
    const image = make("img", { class: "matrix", src: "data:image/png;base64," + head.png, alt: label, title: label });
    return figure("As a matrix", image,
      `Weights of one measured sequence: each row receives, each column sends. Square-root scale, darkest is ${percent(head.peak)}.`);
  }

  function kernel(head, layer) {
    const reach = (head.kernel.length - 1) / 2, values = layer.causal ? head.kernel.slice(0, reach + 1) : head.kernel;
    const first = -reach, top = Math.max(...values, 1e-9), width = 460, height = 190, base = 160, left = 8;
    const step = (width - 2 * left) / values.length, peak = values.indexOf(Math.max(...values)) + first;
    const bars = values.map((value, i) => s("rect", {
      x: left + i * step, width: Math.max(step - 0.8, 0.6), y: base - 140 * value / top, height: Math.max(140 * value / top, 0.5),
      fill: "var(--accent)" }, s("title", {}, `j − i = ${i + first}: ${percent(value, 1)}`)));
    const ticks = [];
    for (let o = first; o < first + values.length; o++)
      if (o % 16 === 0 || o === first) ticks.push(text(left + (o - first + 0.5) * step, base + 15, String(o)));
    const label = `Mean weight by offset; highest at ${peak} with ${percent(top, 1)}`;
    return figure("As a kernel over j − i", picture(width, height, label, ...bars,
      s("line", { x1: left, x2: width - left, y1: base, y2: base, stroke: "var(--line)" }), ...ticks,
      text(width / 2, height - 1, "j − i: tokens before (−) or after (+) the receiver")),
      `Mean weight at each offset; the highest is ${percent(top, 1)} at ${peak}. Offsets alone explain ${percent(head.structure[3])} of the weights' variance: a convolution would reach 100 %.`);
  }

  function graph(head, section) {
    const n = section.tokens.length, step = 22, width = n * step + 20, base = 176, height = base + 74, strongest = head.edges.length ? head.edges[0][2] : 1;
    const at = i => 10 + (i + 0.5) * step, arcs = [];
    for (const [i, j, weight] of head.edges.slice().reverse()) {
      const look = { stroke: i >= j ? "var(--accent)" : "var(--far)", "stroke-width": 0.8 + 3 * weight / strongest, "stroke-opacity": 0.25 + 0.65 * weight / strongest, fill: "none" };
      const tip = s("title", {}, `${section.tokens[i]} (${i}) ← ${section.tokens[j]} (${j}): ${percent(weight)}`);
      if (i === j) arcs.push(s("circle", { cx: at(i), cy: base - 7, r: 5, ...look }, tip));
      else {
        const radius = Math.abs(at(i) - at(j)) / 2, rise = Math.min(radius, 150) * (radius > 60 ? 0.62 : 1);
        arcs.push(s("path", { d: `M ${at(j)} ${base} A ${radius} ${Math.min(Math.max(rise, 8), 165)} 0 0 ${at(j) < at(i) ? 1 : 0} ${at(i)} ${base}`, ...look }, tip));
      }
    }
    const words = section.tokens.map((token, i) => text(at(i) + 4, base + 8, token.length > 11 ? token.slice(0, 10) + "…" : token, "end", { class: "tok", transform: `rotate(-60 ${at(i) + 4} ${base + 8})` }));
    const label = `The ${head.edges.length} strongest edges among the first ${n} tokens`;
    const drawing = picture(width, height, label, ...arcs, ...words);
    drawing.style.minWidth = "560px";
    return figure("As a graph", make("div", { class: "scroll" }, drawing),
      head.edges.length ? `The ${head.edges.length} strongest edges among the first ${n} tokens carry ${percent(head.share)} of what these tokens receive. Blue looks back, orange looks ahead; circles are a token's own edge.` : "No edge among these tokens reaches 1 %: the weight is spread thin.");
  }

  function state(head, layer) {
    const sinks = head.structure[1], near = 1 - sinks, where = head.distances;
    const total = where.map((_, i) => head.past[i] + head.future[i]), window = where.filter(d => d <= (layer.causal ? 31 : 16)).length - 1;
    const carried = Math.min(total[Math.max(window, 0)], near), parts = [["sinks", sinks, "#56b4e9"], ["window", near - carried, "#e69f00"], ["state", carried, "#cc79a7"]];
    const split = make("div", { class: "split", role: "img", "aria-label": parts.map(([name, share]) => `${name} ${percent(share)}`).join(", ") },
      ...parts.map(([name, share, colour]) => make("span", { style: `width:${100 * share}%;background:${colour}`, title: `${name} ${percent(share, 1)}` }, share > 0.16 ? `${name} ${percent(share)}` : "")));
    const width = 460, height = 160, left = 34, base = 122, span = width - left - 10;
    const x = i => left + span * i / Math.max(where.length - 1, 1), y = value => base - 108 * Math.min(value, 1);
    const line = (values, colour, dash) => s("polyline", { points: values.map((value, i) => `${x(i)},${y(value)}`).join(" "), fill: "none", stroke: colour, "stroke-width": 2.2, "stroke-dasharray": dash });
    const area = s("polygon", { points: `${x(0)},${base} ` + total.map((value, i) => `${x(i)},${y(value)}`).join(" ") + ` ${x(where.length - 1)},${base}`, fill: "#cc79a7", "fill-opacity": 0.22 });
    const grid = [0, 0.5, 1].flatMap(value => [s("line", { x1: left, x2: width - 10, y1: y(value), y2: y(value), stroke: "var(--line)" }), text(left - 6, y(value) + 4, percent(value).replace(" ", ""), "end")]);
    const ticks = where.map((d, i) => i % 2 === 0 || i === where.length - 1 ? text(x(i), base + 15, String(d)) : "");
    const lines = layer.causal ? [line(head.past, "var(--accent)", "none")] : [line(head.past, "var(--accent)", "none"), line(head.future, "var(--far)", "5 4")];
    const label = `Weight beyond a distance, sinks apart: ${where.map((d, i) => `${d}: ${percent(total[i])}`).join(", ")}`;
    const drawing = make("div", {}, split, picture(width, height, label, ...grid, area, ...lines, ...ticks, text(left + span / 2, height - 4, "weight on tokens further away than this, sinks apart")));
    return figure("As a recurrence: what a state would hold", drawing, layer.causal
      ? `A stream that keeps the sinks and the last 32 tokens exactly must carry the remaining ${percent(carried)} of the weight in its state (S, z).`
      : `Read from both ends, a stream that keeps the sinks and ±16 tokens exactly must carry the remaining ${percent(carried)} of the weight in two states (S, z). Blue: tokens before; dashed orange: tokens after.`);
  }

  function errors(head) {
    const order = head.errors.map((_, i) => i).sort((a, b) => head.errors[a][0] - head.errors[b][0]);
    const meter = (value, colour) => make("span", { class: "meter wide", style: `--form:${colour}` }, make("i", { style: `width:${Math.min(100, 100 * (value === null ? 0 : value))}%` }));
    const rows = order.map(i => {
      const form = data.forms[i], [raw, centred] = head.errors[i];
      return make("tr", {}, make("th", { scope: "row", title: form.description }, make("span", { class: `chip f${i}`, style: `--form:${form.colour}` }, form.letter), form.name),
        make("td", {}, percent(raw, 1), meter(raw, form.colour)), make("td", {}, percent(centred, 1)));
    });
    return make("table", { class: "data" }, make("thead", {}, make("tr", {}, make("th", {}, "form"), make("th", {}, "raw error"), make("th", {}, "centred"))), make("tbody", {}, ...rows));
  }

  function structure(head) {
    const show = { effective_degree: x => x.toFixed(1) + " keys", sink_mass: percent, window_mass: percent, offset_share: percent };
    return make("dl", {}, ...Object.entries(data.structure).flatMap(([name, meaning], i) => [
      make("dt", {}, make("abbr", { title: meaning }, name.replaceAll("_", " "))), make("dd", {}, (show[name] || String)(head.structure[i]))]));
  }

  function open(number, row, column, scroll) {
    const section = data.sections[number], layer = section.layers[row], head = layer.heads[column];
    const best = head.errors.reduce((least, pair, i) => pair[0] < head.errors[least][0] ? i : least, 0);
    panel.replaceChildren(
      make("h2", {}, `Layer ${row}, head ${column}: ${data.forms[best].name} at ${percent(head.errors[best][0], 1)}`),
      make("p", { class: "small soft" }, `${layer.module}, ${layer.causal ? "causal" : "bidirectional"}, ${section.length} tokens`),
      make("div", { class: "top" }, errors(head), structure(head)),
      make("div", { class: "views" }, matrix(head, section), kernel(head, layer), graph(head, section), state(head, layer)));
    panel.hidden = false;
    panel.dataset.head = `${number},${row},${column}`;
    document.getElementById(`length-${section.length}`).after(panel);
    for (const cell of document.querySelectorAll(".cell")) cell.setAttribute("aria-pressed", String(cell.dataset.at === panel.dataset.head));
    if (scroll) panel.scrollIntoView({ behavior: "smooth", block: "nearest" });
  }

  document.addEventListener("click", event => {
    const cell = event.target.closest(".cell");
    if (!cell) return;
    const at = cell.dataset.at.split(",").map(Number);
    open(...at, true);
    history.replaceState(null, "", "#head-" + at.join("-"));
  });
  document.addEventListener("change", event => {
    if (!event.target.name || !event.target.name.startsWith("metric-")) return;
    document.body.dataset.metric = event.target.value;
    for (const radio of document.querySelectorAll(`input[value=${event.target.value}]`)) radio.checked = true;
  });
  const linked = /^#head-(\d+)-(\d+)-(\d+)$/.exec(location.hash);
  let start = [0, 0, 0], least = Infinity;
  data.sections[0].layers.forEach((layer, row) => layer.heads.forEach((head, column) => head.errors.forEach(([raw]) => {
    if (raw < least) { least = raw; start = [0, row, column]; }
  })));
  if (linked && document.querySelector(`.cell[data-at="${linked.slice(1).join(",")}"]`)) open(...linked.slice(1).map(Number), true);
  else open(...start, false);
})();
