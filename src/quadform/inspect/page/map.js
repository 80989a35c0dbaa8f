// The maps: colour, letter and number of each cell, and moving among them with the arrow keys.
const maps = [...document.querySelectorAll(".map")];

function prepareMap(map) {
  const layers = data.sections[map.dataset.section].layers;
  map.querySelectorAll("tbody tr").forEach((line, row) => {
    if (!line.querySelector("button")) for (const _ of layers[row].heads) line.append(make("td", {}, make("button", {}, make("i"), make("b"))));
    line.querySelectorAll("button").forEach((cell, column) => {
      cell.type = "button";
      cell.dataset.at = `${row},${column}`;
      cell.tabIndex = row || column ? -1 : 0;
    });
  });
}
const said = new Map(maps.map(map => [map, map.caption.textContent]));
function paintMap(map) {
  map.caption.textContent = view.colour === "kind"
    ? `Rows are layers, columns are heads. Colour and letter say the kind of the head; the number is the ${view.metric} error of the best ${view.oracles ? "" : "cheaper "}form in per cent.`
    : said.get(map).replace("the error", `the ${view.metric} error`).replace("its error", `its ${view.metric} error`).replace("best cheaper form", view.oracles ? "best form, oracles included," : "best cheaper form");
  const layers = data.sections[map.dataset.section].layers;
  for (const cell of map.querySelectorAll("button")) {
    const [row, column] = cell.dataset.at.split(",").map(Number), head = layers[row].heads[column];
    const form = best(head), error = errorOf(head, form), known = isFinite(error), byKind = view.colour === "kind";
    const shown = known ? (100 * error).toFixed(0) : "–", owner = byKind ? kindForm(head.k) : form;
    const letter = byKind ? (head.k < 0 ? "–" : owner < 0 ? data.kinds[head.k][0].toUpperCase() : data.forms[owner].letter) : data.forms[form].letter;
    cell.className = byKind ? (owner < 0 ? "none" : `f${owner} b1`) : `f${form} b${band(error)}`;
    cell.title = `Layer ${row}, head ${column}: ` + (byKind ? `kind ${kindName(head)}; ` : "") + `${data.forms[form].name}, ${view.metric} error ${known ? shown + " %" : "undefined"}`;
    cell.setAttribute("aria-label", cell.title);
    cell.firstElementChild.textContent = letter;
    cell.lastElementChild.textContent = shown;
    if (view.head && view.head[0] === row && view.head[1] === column) cell.setAttribute("aria-current", "true");
    else cell.removeAttribute("aria-current");
  }
}
function paintLegends() {
  for (const legend of document.querySelectorAll(".legends")) {
    legend.dataset.forms ||= legend.innerHTML;
    if (view.colour === "form") { legend.innerHTML = legend.dataset.forms; continue; }
    const entry = (kind, k) => make("li", {}, kindForm(k) < 0 ? make("span", { class: "chip none" }, kind[0].toUpperCase()) : make("span", { class: `chip f${kindForm(k)} b1` }, data.forms[kindForm(k)].letter), kind);
    legend.replaceChildren(make("ul", { class: "legend", "aria-label": "Kinds" }, ...data.kinds.map(entry),
      make("li", {}, make("span", { class: "chip none" }, "–"), term("kind", "no kind: nothing fits"))));
  }
}
document.addEventListener("keydown", event => {
  const cell = event.target.closest ? event.target.closest(".map button") : null;
  const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  if (!cell || !step) return;
  const [row, column] = cell.dataset.at.split(",").map(Number), map = cell.closest(".map");
  const next = map.querySelector(`[data-at="${row + step[0]},${column + step[1]}"]`);
  if (!next) return;
  event.preventDefault();
  cell.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
});
