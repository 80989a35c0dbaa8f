// Definitions that appear on hover, focus and touch, stay while the pointer is on them, and go with Escape.
const tip = make("div", { class: "tip", role: "tooltip", id: "tip", hidden: true });
document.body.append(tip);
let tipOwner = null, tipTimer = 0;

function meaning(key) {
  const [kind, name] = [key.slice(0, key.indexOf(":")), key.slice(key.indexOf(":") + 1)];
  if (kind === "form") {
    const form = data.forms.find(form => form.name === name);
    return form && [form.name + (form.oracle ? " (oracle)" : ""), form.description];
  }
  if (kind === "statistic") {
    const found = data.statistics.find(statistic => statistic.name === name);
    return found && [found.label, found.meaning || "a statistic of the head's weights"];
  }
  return data.terms[key];
}
function showTip(owner) {
  const found = meaning(owner.dataset.term);
  clearTimeout(tipTimer);
  if (!found || tipOwner === owner) return;
  hideTip();
  tipOwner = owner;
  tip.replaceChildren(make("b", {}, found[0]), found[1]);
  tip.hidden = false;
  owner.setAttribute("aria-describedby", "tip");
  const box = owner.getBoundingClientRect(), room = document.documentElement.clientWidth;
  tip.style.left = `${Math.max(12, Math.min(box.left, room - tip.offsetWidth - 12)) + scrollX}px`;
  const above = box.bottom + tip.offsetHeight + 8 > innerHeight && box.top > tip.offsetHeight + 8;
  tip.style.top = `${(above ? box.top - tip.offsetHeight - 6 : box.bottom + 6) + scrollY}px`;
}
function hideTip() {
  if (tipOwner) tipOwner.removeAttribute("aria-describedby");
  tipOwner = null;
  tip.hidden = true;
}
const owns = target => target instanceof Element ? target.closest("[data-term]") : null;
document.addEventListener("pointerover", event => {
  if (event.target === tip || tip.contains(event.target)) clearTimeout(tipTimer);
  else if (owns(event.target) && event.pointerType !== "touch") showTip(owns(event.target));
});
document.addEventListener("pointerout", event => {
  if (event.pointerType === "touch" || !(owns(event.target) || tip.contains(event.target))) return;
  clearTimeout(tipTimer);
  tipTimer = setTimeout(() => { if (document.activeElement !== tipOwner) hideTip(); }, 200);
});
document.addEventListener("focusin", event => owns(event.target) ? showTip(owns(event.target)) : hideTip());
document.addEventListener("click", event => {
  if (owns(event.target)) showTip(owns(event.target));
  else if (!tip.contains(event.target)) hideTip();
});
document.addEventListener("keydown", event => { if (event.key === "Escape") hideTip(); });
