// The state of the page: one object, which is also written to the address so that a link restores it.

export const state = {
  view: "columns",
  layer: 0,
  heads: new Set(),
  block: "all", // or AA, AB, BA, BB
  word: null, // the pinned word, { index, side }; side is "from" or "to"
  hover: null, // the word under the pointer, in the same form; not part of links
  cursor: 0, // the head that has the keyboard focus in the grid
};

const watchers = [];

export function watch(watcher) {
  watchers.push(watcher);
}

// Set some values and notify all watchers of their names.
export function change(values) {
  Object.assign(state, values);
  const names = new Set(Object.keys(values));
  if (!(names.size === 1 && (names.has("hover") || names.has("cursor")))) writeAddress();
  for (const watcher of watchers) watcher(names);
}

export function activeWord() {
  return state.hover ?? state.word;
}

let kept = {}; // additional values in the address of a served page: its texts

export function keepInAddress(values) {
  kept = values;
}

// Layers and heads count from zero, as in attention.weights[layer, head].
export function address() {
  const parts = new URLSearchParams(kept);
  parts.set("view", state.view);
  parts.set("layer", state.layer);
  parts.set("heads", [...state.heads].sort((one, other) => one - other).join("."));
  if (state.block !== "all") parts.set("block", state.block);
  if (state.word) parts.set("word", state.word.index + (state.word.side === "to" ? "t" : ""));
  return `#${parts}`;
}

function writeAddress() {
  try {
    history.replaceState(null, "", address());
  } catch {
    // A page inside a notebook cannot change its address.
  }
}

// Read the state from the address. Values that do not fit these facts are ignored, since links may be old or edited.
export function readAddress(facts) {
  const parts = new URLSearchParams(location.hash.slice(1));
  const found = {};
  const layer = Number(parts.get("layer") || NaN);
  if (Number.isInteger(layer) && layer >= 0 && layer < facts.layers) found.layer = layer;
  const heads = (parts.get("heads") ?? "").split(".").map((part) => Number(part || NaN));
  const known = heads.filter((head) => Number.isInteger(head) && head >= 0 && head < facts.heads);
  if (known.length) found.heads = new Set(known);
  if (["AA", "AB", "BA", "BB"].includes(parts.get("block")) && facts.segments.includes(1)) found.block = parts.get("block");
  const word = /^(\d{1,4})(t?)$/.exec(parts.get("word") ?? "");
  if (word && Number(word[1]) < facts.tokens.length) found.word = { index: Number(word[1]), side: word[2] ? "to" : "from" };
  if (parts.get("view")) found.view = parts.get("view");
  return found;
}

// Read the texts and the model from the address of a served page.
export function addressQuestion() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const texts = parts.has("a") ? [parts.get("a"), ...(parts.has("b") ? [parts.get("b")] : [])] : null;
  return { texts, model: parts.get("model") };
}
