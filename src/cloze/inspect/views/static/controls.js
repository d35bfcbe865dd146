// The controls for layer, heads, block, word and view. They are plain elements, so that they work with keyboards and
// screen readers.

import { headColour } from "./colours.js";
import { source } from "./source.js";
import { change, state } from "./state.js";
import { visible } from "./surface.js";
import { BLOCKS } from "./words.js";

export const element = (id) => document.getElementById(id);

export function made(name, text, properties = {}) {
  const node = Object.assign(document.createElement(name), properties);
  node.textContent = text;
  return node;
}

// Create the elements that depend on the facts, again for each text.
export function buildControls() {
  const { facts } = source;
  const layers = Array.from({ length: facts.layers }, (_, layer) => made("option", `${layer} of 0\u2013${facts.layers - 1}`, { value: layer }));
  element("layer").replaceChildren(...layers);
  const words = facts.tokens.map((token, index) => made("option", `${index}  ${visible(token)}`, { value: index }));
  element("word").replaceChildren(made("option", "all", { value: "" }), ...words);
  element("heads").replaceChildren(...Array.from({ length: facts.heads }, (_, head) => headButton(head)));
  const blocks = facts.segments.includes(1) ? Object.entries(BLOCKS) : [];
  element("blocks").replaceChildren(...blocks.map(([block, name]) => blockButton(block, name)));
  element("texts").replaceChildren(
    ...facts.texts.map((text, index) => {
      const line = made("p", "");
      line.append(made("b", "AB"[index]), made("span", text));
      return line;
    }),
  );
  element("model").textContent = [facts.model, `${facts.layers} layers of ${facts.heads} heads`, `${facts.tokens.length} tokens`]
    .filter(Boolean)
    .join(", ");
  element("notes").textContent = footnote(facts);
}

function headButton(head) {
  const button = made("button", String(head), { type: "button", className: "head" });
  button.style.setProperty("--head", headColour(head));
  button.setAttribute("aria-label", `Head ${head}`);
  button.title = "Double-click: only this head";
  button.addEventListener("click", (event) => {
    const heads = new Set(event.shiftKey ? [] : state.heads);
    if (heads.has(head) && heads.size > 1) heads.delete(head);
    else heads.add(head);
    change({ heads });
  });
  button.addEventListener("dblclick", () => change({ heads: new Set([head]) }));
  return button;
}

function blockButton(block, name) {
  const button = made("button", name, { type: "button" });
  button.dataset.block = block;
  button.addEventListener("click", () => change({ block, hover: null }));
  return button;
}

function footnote(facts) {
  const { notes } = facts;
  const about = notes.surveyed
    ? `Patterns are from ${notes.source}: scores over a corpus, compared with chance.`
    : "Patterns describe this text only, by where most of the attention goes, and are not compared with chance; \u201ccloze heads\u201d does so over a corpus, and \u201ccloze inspect --heads\u201d shows the result here.";
  const cut = facts.cut ? ` ${facts.cut} tokens exceeded the maximum length and were truncated.` : "";
  return (
    `${about} Weights are accurate to ${(facts.error * 100).toFixed(1)} points at 100 %, and more accurate if they are smaller.` +
    ` Layers and heads count from zero, as in attention.weights[layer, head].${cut}`
  );
}

export function allHeads() {
  return new Set(Array.from({ length: source.facts.heads }, (_, head) => head));
}

export function moveLayer(by) {
  const layer = Math.min(source.facts.layers - 1, Math.max(0, state.layer + by));
  if (layer !== state.layer) change({ layer });
}

// Connect the event listeners, which are the same for all texts.
export function wireControls(views) {
  element("layer").addEventListener("change", (event) => change({ layer: Number(event.target.value) }));
  element("layer-back").addEventListener("click", () => moveLayer(-1));
  element("layer-on").addEventListener("click", () => moveLayer(1));
  element("all-heads").addEventListener("click", () => change({ heads: allHeads() }));
  element("word").addEventListener("change", ({ target }) => {
    change({ word: target.value === "" ? null : { index: Number(target.value), side: "from" }, hover: null });
  });
  const tabs = views.map((view) => {
    const tab = made("button", view.title, { type: "button", id: `tab-${view.id}` });
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-controls", "panel");
    tab.addEventListener("click", () => change({ view: view.id, hover: null }));
    return tab;
  });
  element("tabs").replaceChildren(...tabs);
  element("tabs").addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const shown = tabs.filter((tab) => !tab.hidden);
    const next = shown[(shown.indexOf(document.activeElement) + by + shown.length) % shown.length];
    next.focus();
    next.click();
  });
}

// Update the elements to match the state.
export function updateControls(view, views) {
  const { facts } = source;
  element("layer").value = state.layer;
  element("layer-back").disabled = state.layer === 0;
  element("layer-on").disabled = state.layer === facts.layers - 1;
  element("word").value = state.word ? state.word.index : "";
  for (const [head, button] of [...element("heads").children].entries()) {
    button.setAttribute("aria-pressed", state.heads.has(head));
  }
  for (const button of element("blocks").children) {
    button.setAttribute("aria-pressed", button.dataset.block === state.block);
  }
  for (const name of ["layer", "block", "word", "head"]) {
    const empty = name === "block" && !element("blocks").children.length;
    element(`${name}-control`).hidden = empty || !view.controls.includes(name);
  }
  for (const one of views) {
    const tab = element(`tab-${one.id}`);
    tab.hidden = one.fits !== undefined && !one.fits(facts);
    tab.setAttribute("aria-selected", one === view);
    tab.tabIndex = one === view ? 0 : -1;
  }
  element("panel").setAttribute("aria-labelledby", `tab-${view.id}`);
  element("help").textContent = view.help;
  element("stage").setAttribute("aria-label", `${view.title}. ${view.help} The table below has the same content.`);
}
