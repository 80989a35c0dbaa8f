"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const panel = document.getElementById("head");
  const SVG = "http://www.w3.org/2000/svg";
  const percent = (x, digits = 0) => x === null ? "–" : (100 * x).toFixed(digits) + "\u00a0%";

  function make(tag, attributes = {}, ...children) {
    const svg = attributes.svg, node = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) if (key !== "svg") node.setAttribute(key, value);
    node.append(...children);
    return node;
  }
  function least(values, oracles) {
    const allowed = values.map((value, i) => oracles || !data.forms[i].oracle ? value : Infinity), minimum = Math.min(...allowed);
    return allowed.findIndex((value, i) => value <= minimum + data.tie && (oracles || !data.forms[i].oracle));
  }
  const s = (tag, attributes, ...children) => make(tag, { svg: true, ...attributes }, ...children);
  const figure = (title, drawing, caption, kind = "") => make("figure", { class: kind }, make("h3", {}, title), drawing, make("figcaption", {}, caption));
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
    const first = -reach, top = Math.max(...values, 1e-9), width = 340, height = 250, base = 214, rise = 196, left = 6;
    const step = (width - 2 * left) / values.length, peak = values.indexOf(Math.max(...values)) + first;
    const bars = values.map((value, i) => s("rect", {
      x: left + i * step, width: Math.max(step - 0.8, 0.6), y: base - rise * value / top, height: Math.max(rise * value / top, 0.5),
      fill: "var(--accent)" }, s("title", {}, `j − i = ${i + first}: ${percent(value, 1)}`)));
    const ticks = [];
    for (let o = first; o < first + values.length; o++)
      if (o % (reach > 32 ? 32 : 8) === 0) ticks.push(text(Math.min(Math.max(left + (o - first + 0.5) * step, 12), width - 12), base + 15, String(o)));
    const label = `Mean weight by offset; highest at ${peak} with ${percent(top, 1)}`;
    return figure("As a kernel over j − i", picture(width, height, label, ...bars,
      s("line", { x1: left, x2: width - left, y1: base, y2: base, stroke: "var(--line)" }), ...ticks,
      text(width / 2, height - 4, "j − i: tokens before (−) or after (+)")),
      `Mean weight at each offset; the highest is ${percent(top, 1)} at ${peak}. Offsets alone explain ${percent(head.structure[3])} of the weights' variance: a convolution would reach 100 %.`);
  }

  function graph(head, section) {
    const n = section.tokens.length, step = 22, width = n * step + 20, strongest = head.edges.length ? head.edges[0][2] : 1;
    const at = i => 14 + (i + 0.5) * step, arcs = [], bow = (i, j) => Math.max(8, 46 * Math.log2(1 + Math.abs(i - j) / 3));
    const base = 12 + Math.max(14, ...head.edges.map(([i, j]) => bow(i, j))), height = base + 74;
    for (const [i, j, weight] of head.edges.slice().reverse()) {
      const look = { stroke: i >= j ? "var(--accent)" : "var(--far)", "stroke-width": 0.8 + 3 * weight / strongest, "stroke-opacity": 0.25 + 0.65 * weight / strongest, fill: "none" };
      const tip = s("title", {}, `${section.tokens[i]} (${i}) ← ${section.tokens[j]} (${j}): ${percent(weight)}`);
      if (i === j) arcs.push(s("circle", { cx: at(i), cy: base - 7, r: 5, ...look }, tip));
      else {
        const radius = Math.abs(at(i) - at(j)) / 2;
        arcs.push(s("path", { d: `M ${at(j)} ${base} A ${radius} ${bow(i, j)} 0 0 ${at(j) < at(i) ? 1 : 0} ${at(i)} ${base}`, ...look }, tip));
      }
    }
    const words = section.tokens.map((token, i) => text(at(i) + 4, base + 8, token.length > 11 ? token.slice(0, 10) + "…" : token, "end", { class: "tok", transform: `rotate(-60 ${at(i) + 4} ${base + 8})` }));
    const label = `The ${head.edges.length} strongest edges among the first ${n} tokens`;
    const drawing = picture(width, height, label, ...arcs, ...words);
    drawing.style.minWidth = "620px";
    return figure("As a graph", make("div", { class: "scroll" }, drawing),
      head.edges.length ? `The ${head.edges.length} strongest edges among the first ${n} tokens carry ${percent(head.share)} of what these tokens receive. Blue looks back, orange looks ahead; circles are a token's own edge.` : "No edge among these tokens reaches 1 %: the weight is spread thin.", "whole");
  }

  function state(head, layer) {
    const sinks = head.structure[1], near = 1 - sinks, where = head.distances;
    const total = where.map((_, i) => head.past[i] + head.future[i]), window = where.filter(d => d <= (layer.causal ? 31 : 16)).length - 1;
    const carried = Math.min(total[Math.max(window, 0)], near), parts = [["sinks", sinks, "#56b4e9"], ["window", near - carried, "#e69f00"], ["state", carried, "#cc79a7"]];
    const split = make("div", { class: "split", role: "img", "aria-label": parts.map(([name, share]) => `${name} ${percent(share)}`).join(", ") },
      ...parts.map(([name, share, colour]) => make("span", { style: `width:${100 * share}%;background:${colour}`, title: `${name} ${percent(share, 1)}` }, share > 0.22 ? `${name} ${percent(share)}` : "")));
    const width = 340, height = 214, left = 36, base = 172, rise = 158, span = width - left - 10;
    const x = i => left + span * i / Math.max(where.length - 1, 1), y = value => base - rise * Math.min(value, 1);
    const line = (values, colour, dash) => s("polyline", { points: values.map((value, i) => `${x(i)},${y(value)}`).join(" "), fill: "none", stroke: colour, "stroke-width": 2.2, "stroke-dasharray": dash });
    const area = s("polygon", { points: `${x(0)},${base} ` + total.map((value, i) => `${x(i)},${y(value)}`).join(" ") + ` ${x(where.length - 1)},${base}`, fill: "#cc79a7", "fill-opacity": 0.22 });
    const grid = [0, 0.5, 1].flatMap(value => [s("line", { x1: left, x2: width - 10, y1: y(value), y2: y(value), stroke: "var(--line)" }), text(left - 6, y(value) + 4, percent(value).replace("\u00a0", ""), "end")]);
    const ticks = where.map((d, i) => i % 2 === 0 || i === where.length - 1 ? text(x(i), base + 15, String(d)) : "");
    const lines = layer.causal ? [line(head.past, "var(--accent)", "none")] : [line(head.past, "var(--accent)", "none"), line(head.future, "var(--far)", "5 4")];
    const label = `Weight beyond a distance, sinks apart: ${where.map((d, i) => `${d}: ${percent(total[i])}`).join(", ")}`;
    const drawing = make("div", {}, split, picture(width, height, label, ...grid, area, ...lines, ...ticks, text(left + span / 2, height - 4, "weight further away than this, sinks apart")));
    return figure("As a recurrent state", drawing, layer.causal
      ? `A stream that keeps the sinks and the last 32 tokens exactly must carry the remaining ${percent(carried)} of the weight in its state (S, z).`
      : `Read from both ends, a stream that keeps the sinks and ±16 tokens exactly must carry the remaining ${percent(carried)} of the weight in two states (S, z). Blue: tokens before; dashed orange: tokens after.`);
  }

  function errors(head) {
    const order = head.errors.map((_, i) => i).sort((a, b) => head.errors[a][0] - head.errors[b][0]);
    const meter = (value, i) => make("span", { class: `meter wide f${i}` }, make("i", { style: `width:${Math.min(100, 100 * (value === null ? 0 : value))}%` }));
    const rows = order.map(i => {
      const form = data.forms[i], [raw, centred] = head.errors[i];
      return make("tr", {}, make("th", { scope: "row", title: form.description }, make("span", { class: `chip f${i}` }, form.letter), form.name),
        make("td", {}, percent(raw, 1), meter(raw, i)), make("td", {}, percent(centred, 1)));
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
    const best = least(head.errors.map(pair => pair[0]), false);
    const views = head.png ? [make("div", { class: "views" }, matrix(head, section), kernel(head, layer), state(head, layer), graph(head, section))]
      : [make("p", { class: "small soft" }, "Too many heads to draw each of them on one page: the JSON report has their views.")];
    panel.replaceChildren(
      make("h2", {}, `Layer ${row}, head ${column}: ${data.forms[best].name} at ${percent(head.errors[best][0], 1)}`),
      make("p", { class: "small soft" }, `${layer.module}, ${layer.causal ? "causal" : "bidirectional"}, ${section.length} tokens`),
      make("div", { class: "top" }, errors(head), structure(head)),
      ...views);
    panel.hidden = false;
    panel.dataset.head = `${number},${row},${column}`;
    document.getElementById(`length-${section.length}`).after(panel);
    for (const cell of document.querySelectorAll(".map button")) cell.setAttribute("aria-pressed", String(cell.dataset.at === panel.dataset.head));
    if (scroll) panel.scrollIntoView({ behavior: "smooth", block: "nearest" });
  }

  document.addEventListener("click", event => {
    const cell = event.target.closest(".map button");
    if (!cell) return;
    const at = cell.dataset.at.split(",").map(Number);
    open(...at, true);
    history.replaceState(null, "", "#head-" + at.join("-"));
  });
  function paint(metric, oracles) {
    for (const cell of document.querySelectorAll(".map button")) {
      const [number, row, column] = cell.dataset.at.split(",").map(Number);
      const values = data.sections[number].layers[row].heads[column].errors.map(pair => pair[metric] ?? Infinity);
      const best = least(values, oracles);
      const form = data.forms[best], error = values[best], band = 1 + [0.05, 0.1, 0.2].filter(level => error > level).length;
      const shown = error === Infinity ? "-" : (100 * error).toFixed(0);
      cell.className = `f${best} b${band}`;
      cell.title = `Layer ${row}, head ${column}: ${form.name}, error ${shown} %`;
      cell.querySelector("i").textContent = form.letter;
      cell.querySelector("b").textContent = shown;
    }
  }
  document.addEventListener("change", event => {
    const { name = "", checked, value } = event.target;
    if (name.startsWith("oracle-")) for (const box of document.querySelectorAll("input[type=checkbox]")) box.checked = checked;
    if (name.startsWith("metric-")) for (const radio of document.querySelectorAll("input[type=radio]")) radio.checked = radio.value === value;
    paint(Number(document.querySelector("input[type=radio]:checked").value), document.querySelector("input[type=checkbox]").checked);
  });
  for (const controls of document.querySelectorAll("[data-controls]")) controls.hidden = false;
  document.querySelectorAll(".map").forEach((map, number) => map.querySelectorAll("tbody tr").forEach((line, row) =>
    line.querySelectorAll("button").forEach((cell, column) => { cell.dataset.at = `${number},${row},${column}`; })));
  paint(0, false);
  const linked = /^#head-(\d+)-(\d+)-(\d+)$/.exec(location.hash);
  let start = [0, 0, 0], lowest = Infinity;
  data.sections[0].layers.forEach((layer, row) => layer.heads.forEach((head, column) => {
    const raw = head.errors[least(head.errors.map(pair => pair[0]), false)][0];
    if (raw < lowest) { lowest = raw; start = [0, row, column]; }
  }));
  if (linked && document.querySelector(`[data-at="${linked.slice(1).join(",")}"]`)) open(...linked.slice(1).map(Number), true);
  else open(...start, false);
})();
