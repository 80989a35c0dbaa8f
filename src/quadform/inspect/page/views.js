// The four views of a head: matrix, kernel, state and graph.
const figure = (title, drawing, caption, kind = null) => make("figure", { class: kind }, make("h3", {}, title), drawing, make("figcaption", {}, caption));
const refused = (title, reason) => make("figure", {}, make("h3", {}, title), make("p", { class: "soft" }, reason));
const sized = layer => layer.grid.length > 1 ? `${layer.grid.join(" × ")} cells${layer.special ? ` behind ${layer.special} special token${layer.special > 1 ? "s" : ""}` : ""}` : layer.role === "cross" ? `${layer.queries} queries and ${layer.keys} keys` : `${layer.keys} tokens`;

function matrixView(views, layer) {
  const name = `Attention weights of one measured sequence of ${sized(layer)}; the largest cell is ${percent(views.peak)}`;
  const image = make("img", { class: "matrix", src: "data:image/png;base64," + views.png, alt: name, title: name });
  return figure("As a matrix", image, `Weights of one measured sequence, ${sized(layer)}: each row receives, each column sends. Square-root scale; the darkest cell is ${exact(views.peak)}.`);
}

function levels(views) {
  const bytes = atob(views.kernel), values = [];
  for (let at = 0; at < bytes.length; at += 2) values.push(views.top * ((256 * bytes.charCodeAt(at) + bytes.charCodeAt(at + 1)) / 65535) ** 2);
  return values;
}
function kernelView(views, layer, head) {
  if (!views.kernel) return refused("As a kernel", layer.role === "cross" ? "Cross-attention has no kernel view: queries and keys are different sequences, so the offset j − i means nothing." : "No kernel view: no two of the measured tokens have an offset.");
  const values = levels(views), explained = named(head, "offset_share");
  const tail = explained === null ? "" : ` Offsets alone explain ${percent(explained)} of the weights' variance; a convolution would reach 100\u00a0%.`;
  return layer.grid.length > 1 ? plane(values, views, tail) : bars(values, views, layer, tail);
}
function bars(all, views, layer, tail) {
  const reach = views.reach[0] ?? (all.length - 1) / 2, values = layer.causal ? all.slice(0, reach + 1) : all, first = -reach;
  const top = Math.max(...values, 1e-9), width = 340, height = 250, base = 212, rise = 194, left = 8, step = (width - 2 * left) / values.length;
  const peak = values.indexOf(Math.max(...values)) + first, every = [1, 2, 4, 8, 16, 32].find(size => values.length / size <= 9) || 64, ticks = [];
  const rects = values.map((value, i) => draw("rect", { x: left + i * step, width: Math.max(step - 0.8, 0.6), y: base - rise * value / top, height: Math.max(rise * value / top, 0.4), fill: i + first > 0 ? "var(--ahead)" : "var(--past)" },
    draw("title", {}, `j − i = ${i + first}: ${percent(value, 1)}`)));
  for (let at = 0; at < values.length; at++) if ((at + first) % every === 0) ticks.push(label(Math.min(Math.max(left + (at + 0.5) * step, 12), width - 12), base + 15, String(at + first)));
  return figure("As a kernel over j − i", picture(width, height, `Mean weight by offset; highest at ${peak} with ${percent(top, 1)}`, ...rects,
    draw("line", { x1: left, x2: width - left, y1: base, y2: base, class: "frame" }), ...ticks, label(width / 2, height - 4, "j − i: tokens before (−) or after (+)")),
    `Mean weight at each offset; the highest is ${exact(top)} at ${peak}.${tail}`);
}
function plane(all, views, tail) {
  const [tall, wide] = views.reach.slice(-2).map(size => 2 * size + 1), slices = all.length / (tall * wide), name = views.reach.slice(-2);
  const values = Array.from({ length: tall * wide }, (_, at) => { let sum = 0; for (let s = 0; s < slices; s++) sum += all[s * tall * wide + at]; return sum / slices; });
  const top = Math.max(...values, 1e-9), at = values.indexOf(Math.max(...values)), where = `${Math.floor(at / wide) - name[0]} down, ${at % wide - name[1]} right`;
  const canvas = make("canvas", { class: "plane", width: wide, height: tall, role: "img", "aria-label": `Mean weight by offset in two dimensions; highest at ${where} with ${percent(top, 1)}`, style: `aspect-ratio:${wide}/${tall}` });
  const pen = canvas.getContext("2d"), image = pen.createImageData(wide, tall), bright = matchMedia("(prefers-color-scheme:dark)").matches ? [110, 163, 245] : [47, 111, 208];
  values.forEach((value, i) => image.data.set([...bright, 255 * Math.sqrt(value / top)], 4 * i));
  pen.putImageData(image, 0, 0);
  canvas.addEventListener("pointermove", event => {
    const x = Math.floor(event.offsetX / canvas.clientWidth * wide), y = Math.floor(event.offsetY / canvas.clientHeight * tall);
    canvas.title = `${y - name[0]} down, ${x - name[1]} right: ${percent(values[y * wide + x] ?? null, 1)}`;
  });
  return figure("As a kernel over two dimensions", canvas, `Mean weight by the offset between two cells, ±${name[0]} down and ±${name[1]} across, the cell itself in the middle${slices > 1 ? ", averaged over the other dimensions" : ""}. Square-root scale; the highest is ${exact(top)} at ${where}.${tail}`);
}

function stateView(views, layer, head) {
  const [where, past, future] = views.far;
  if (!where.length || !past.length) return refused("As a recurrent state", "Cross-attention has no such view: its keys are given at once and no token is before or after another, so nothing streams.");
  const flat = layer.grid.length < 2, limit = flat ? (layer.causal ? 31 : 16) : 3, sinks = named(head, "sink_mass") ?? 0, near = 1 - sinks;
  const total = where.map((_, i) => past[i] + future[i]), at = Math.max(0, where.filter(d => d <= limit).length - 1), carried = Math.min(total[at], near);
  const parts = [["sinks", sinks, "#56b4e9"], ["near", near - carried, "#e69f00"], ["state", carried, "#cc79a7"]].map(part => [part[0], Math.max(0, part[1]), part[2]]);
  const shares = make("div", { class: "shares", role: "img", "aria-label": parts.map(([name, share]) => `${name} ${percent(share)}`).join(", ") },
    ...parts.map(([name, share, colour]) => make("span", { style: `width:${100 * share}%;background:${colour}`, title: `${name} ${percent(share, 1)}` }, share > 0.2 ? `${name} ${percent(share)}` : "")));
  const width = 340, height = 214, left = 38, base = 172, rise = 158, span = width - left - 10;
  const x = i => left + span * i / Math.max(where.length - 1, 1), y = value => base - rise * Math.min(value, 1);
  const line = (values, colour, dash) => draw("polyline", { points: values.map((value, i) => `${x(i)},${y(value)}`).join(" "), fill: "none", stroke: colour, "stroke-width": 2, "stroke-dasharray": dash });
  const grid = [0, 0.5, 1].flatMap(value => [draw("line", { x1: left, x2: width - 10, y1: y(value), y2: y(value), class: "axis" }), label(left - 6, y(value) + 4, percent(value), "end")]);
  const ticks = where.map((d, i) => (where.length - 1 - i) % Math.ceil(where.length / 8) === 0 ? label(x(i), base + 15, String(d)) : null);
  const edge = draw("line", { x1: x(at), x2: x(at), y1: y(1), y2: base, class: "frame", "stroke-dasharray": "2 3" });
  const drawing = make("div", {}, shares, picture(width, height, `Weight beyond a distance, sinks apart: ${where.map((d, i) => `${d}: ${percent(total[i])}`).join(", ")}`, ...grid, edge,
    line(past, "var(--past)", "none"), layer.causal ? null : line(future, "var(--ahead)", "5 4"), ...ticks, label(left + span / 2, height - 4, `weight further away than this, sinks apart`)));
  const keeps = `keeps the sinks and what is at most ${where[at]} ${flat ? "tokens" : "cells"} away exactly must carry the other ${percent(carried)} of the weight in ${layer.causal ? "its state" : "two states, one for each direction"}`;
  return figure("As a recurrent state", drawing, layer.causal ? `A stream that ${keeps}.` : `Read from both ends, a stream that ${keeps}. Solid: tokens before; dashed: tokens after.`);
}

function tokenNames(part, layer, count) {
  const own = layer.role === "self" && layer.grid.length < 2 && part.tokens.length >= count;
  return i => {
    if (own) return part.tokens[i];
    const cell = i - layer.special;
    if (layer.grid.length > 1) return cell < 0 ? `special ${i}` : `${Math.floor(cell / layer.grid[layer.grid.length - 1])}, ${cell % layer.grid[layer.grid.length - 1]}`;
    return String(i);
  };
}
const cut = text => text.length > 11 ? text.slice(0, 10) + "…" : text;

function graphView(views, layer, part) {
  const receivers = Math.min(32, layer.queries), senders = Math.min(32, layer.keys), cross = layer.role === "cross", n = Math.max(receivers, senders);
  const step = 22, width = n * step + 24, at = i => 14 + (i + 0.5) * step, name = tokenNames(part, layer, n), strongest = views.edges.length ? views.edges[0][2] : 1;
  const bow = (i, j) => Math.max(8, 46 * Math.log2(1 + Math.abs(i - j) / 3)), base = cross ? 150 : 12 + Math.max(14, ...views.edges.map(([i, j]) => bow(i, j)));
  const arcs = views.edges.slice().reverse().map(([i, j, weight]) => {
    const look = { stroke: cross || i >= j ? "var(--past)" : "var(--ahead)", "stroke-width": 0.8 + 3 * weight / strongest, "stroke-opacity": 0.25 + 0.65 * weight / strongest, fill: "none", "stroke-dasharray": !cross && j > i ? "6 3" : "none" };
    const tipText = draw("title", {}, `${cross ? `query ${i} ← key ${j}` : `${name(i)} (${i}) ← ${name(j)} (${j})`}: ${percent(weight)}`);
    if (cross) return draw("line", { x1: at(j), y1: 26, x2: at(i), y2: base - 12, ...look }, tipText);
    if (i === j) return draw("circle", { cx: at(i), cy: base - 7, r: 5, ...look }, tipText);
    return draw("path", { d: `M ${at(j)} ${base} A ${Math.abs(at(i) - at(j)) / 2} ${bow(i, j)} 0 0 ${at(j) < at(i) ? 1 : 0} ${at(i)} ${base}`, ...look }, tipText);
  });
  const words = cross
    ? [...Array.from({ length: senders }, (_, j) => label(at(j), 20, String(j), "middle", { class: "tok" })), ...Array.from({ length: receivers }, (_, i) => label(at(i), base + 4, String(i), "middle", { class: "tok" })), label(14, 8, "keys, which send", "start"), label(14, base + 20, "queries, which receive", "start")]
    : Array.from({ length: n }, (_, i) => label(at(i) + 4, base + 10, cut(name(i)), "end", { class: "tok", transform: `rotate(-60 ${at(i) + 4} ${base + 10})` }));
  const longest = Math.max(1, ...Array.from({ length: n }, (_, i) => cut(name(i)).length));
  const drawing = picture(width, base + (cross ? 28 : 20 + 5.8 * longest), `The ${views.edges.length} strongest edges among the first ${n} tokens`, ...arcs, ...words);
  drawing.style.minWidth = `${Math.min(width, 640)}px`;
  drawing.style.maxWidth = `${1.4 * width}px`;
  return figure("As a graph", make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Graph of the strongest edges" }, drawing), views.edges.length
    ? `The ${views.edges.length} strongest edges among the first ${n} tokens carry ${percent(views.share)} of what these tokens receive. ${cross ? "Keys above send to queries below." : "Solid blue looks back, dashed orange looks ahead; circles are a token's own edge."}`
    : "No edge among these tokens reaches 1 %: the weight is spread thin.", "whole");
}
