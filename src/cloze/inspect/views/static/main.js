// The page: builds the state from facts and address, and the picture, controls and table from the state.

import { say, updateLegend, updateTable } from "./beside.js";
import { columns } from "./columns.js";
import { allHeads, buildControls, element, moveLayer, updateControls, wireControls } from "./controls.js";
import { fills } from "./fills.js";
import { headGrid } from "./grid.js";
import { matrix } from "./matrix.js";
import { neighbours } from "./neighbours.js";
import { savePng, saveSvg } from "./save.js";
import { layerSteps, source, startSource } from "./source.js";
import { Stage } from "./stage.js";
import { address, change, readAddress, state, watch } from "./state.js";
import { startAsking } from "./asking.js";

const VIEWS = [columns, matrix, headGrid, neighbours, fills];
const THEMES = ["auto", "light", "dark"];
let stage = null;

function currentView() {
  return VIEWS.find((view) => view.id === state.view && (view.fits?.(source.facts) ?? true)) ?? columns;
}

// Show a new text with the state in the address; by default, with all heads and the first blank, if any.
function startView() {
  const { facts } = source;
  const blank = facts.tokens.indexOf("[MASK]");
  const wanted = readAddress(facts);
  const plain = { layer: 0, block: "all", word: null, hover: null, cursor: 0, heads: allHeads() };
  if (wanted.view === undefined && blank >= 0 && facts.fills) plain.word = { index: blank, side: "from" };
  buildControls();
  source.steps = null;
  change({ ...plain, ...wanted });
}

async function loadLayer() {
  const wanted = [source.key, state.layer];
  try {
    const steps = await layerSteps(state.layer);
    if (wanted[0] !== source.key || wanted[1] !== state.layer) return; // another layer or text was selected meanwhile
    source.steps = steps;
    update(new Set(["steps"]));
    const next = state.layer + 1;
    if (next < source.facts.layers) requestIdleCallback(() => layerSteps(next).catch(() => {})); // probably needed next
  } catch (error) {
    say(error.message);
  }
}

function update(names) {
  const view = currentView();
  if (names.has("layer")) {
    source.steps = null;
    loadLayer();
  }
  if (stage.view !== view) stage.show(view);
  else stage.refresh();
  // Moving the pointer changes only the picture and the texts beside it.
  const wanders = names.size === 1 && (names.has("hover") || names.has("cursor"));
  if (!wanders) {
    updateControls(view, VIEWS);
    updateLegend(view);
  }
  say(view.caption?.() ?? "");
  if (!names.has("cursor")) updateTable(view.table());
}

function pressKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
  const view = currentView();
  if (event.key === "[" || event.key === "]") moveLayer(event.key === "]" ? 1 : -1);
  else if (event.key === "a") change({ heads: allHeads() });
  else if (event.key === "Escape") change({ word: null, hover: null });
  else if (event.target === stage.element) {
    const place = view.key(event.key);
    if (!place) return;
    event.preventDefault();
    stage.reveal(place);
  }
}

async function copyLink() {
  const link = location.href.replace(/#.*$/s, "") + address();
  try {
    await navigator.clipboard.writeText(link);
    say("The link was copied; it opens the current view.");
  } catch {
    location.hash = address();
    say("The link is in the address bar; it opens the current view.");
  }
}

async function save(work) {
  try {
    await work(currentView());
    say("Saved.");
  } catch (error) {
    say(error.message);
  }
  stage.refresh(); // restores the layout, which came from the file
}

function turnTheme() {
  const root = document.documentElement;
  const next = THEMES[(THEMES.indexOf(root.dataset.theme ?? "auto") + 1) % THEMES.length];
  root.dataset.theme = next;
  element("theme").textContent = next[0].toUpperCase() + next.slice(1);
  element("theme").setAttribute("aria-label", `Colours: ${next === "auto" ? "as the system" : next}`);
  redraw();
}

function redraw() {
  if (!source.facts) return;
  updateLegend(currentView());
  stage.refresh();
}

function printed(begins) {
  if (!source.facts) return;
  document.documentElement.classList.toggle("printing", begins);
  stage.draw(begins);
}

function start() {
  stage = new Stage(element("stage"));
  stage.drawn = () => {
    // For tests and benchmarks: the shown layer, and the time of the first picture.
    if (!source.steps) return;
    stage.element.dataset.layer = state.layer;
    if (!performance.getEntriesByName("first-picture").length) performance.mark("first-picture");
  };
  wireControls(VIEWS);
  watch(update);
  document.addEventListener("keydown", pressKey);
  element("save-png").addEventListener("click", () => save(savePng));
  element("save-svg").addEventListener("click", () => save(saveSvg));
  element("copy-link").addEventListener("click", copyLink);
  element("theme").addEventListener("click", turnTheme);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("beforeprint", () => printed(true));
  addEventListener("afterprint", () => printed(false));
  startSource();
  if (source.served) startAsking(startView);
  else startView();
  addEventListener("hashchange", () => source.facts && change(readAddress(source.facts)));
}

start();
