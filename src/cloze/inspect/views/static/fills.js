// The predictions of each layer: the masked-LM head applied to its states, for a number of words.

import { percent } from "./colours.js";
import { source } from "./source.js";
import { change } from "./state.js";
import { stateName, token, wordOrFirst } from "./words.js";

const SIDE = 96;
const COLUMN = 96;
const ROW = 30;
const HEAD = 40;
let aimed = null; // { layer, place } under the pointer

export const fills = {
  id: "fills",
  title: "Blanks",
  help: "The masked-LM head applied to each layer, with the last layer at the bottom. The head was trained only on the last layer: its output for other layers shows where a word is decided, but is not a prediction of the model.",
  controls: ["word"],
  fits: (facts) => facts.fills !== null,
  layout(width) {
    const { places, words } = source.facts.fills;
    return { width: Math.max(width, SIDE + COLUMN * places.length + 8), height: HEAD + ROW * words.length + 8 };
  },
  paint(surface, frame, colours) {
    const { places, words } = source.facts.fills;
    const chosen = places.indexOf(wordOrFirst().index);
    const first = Math.max(0, Math.floor(frame.left / COLUMN) - 1);
    const last = Math.min(places.length, Math.ceil((frame.left + frame.width) / COLUMN) + 1);
    for (let place = first; place < last; place += 1) {
      words.forEach((row, layer) => cell(surface, layer, place, row[place][0], colours));
    }
    if (chosen >= 0) {
      surface.frame(SIDE + chosen * COLUMN, HEAD - 2, COLUMN - 2, ROW * words.length + 2, colours.ink, 1.5, 5);
    }
    headings(surface, frame, first, last, colours);
    sideLabels(surface, frame, words.length, colours);
  },
  hit(x, y) {
    const { places, words } = source.facts.fills;
    const place = Math.floor((x - SIDE) / COLUMN);
    const layer = Math.floor((y - HEAD) / ROW);
    return places[place] === undefined || layer < 0 || layer >= words.length ? null : { layer, place };
  },
  point(found) {
    aimed = found;
    change({ hover: null });
  },
  press(found) {
    if (found) change({ word: { index: source.facts.fills.places[found.place], side: "from" } });
  },
  key(name) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[name];
    if (by === undefined) return null;
    const { places } = source.facts.fills;
    const next = Math.min(places.length - 1, Math.max(0, places.indexOf(wordOrFirst().index) + by));
    change({ word: { index: places[next], side: "from" }, hover: null });
    return { x: SIDE + next * COLUMN, width: COLUMN, y: 0, height: 0, before: SIDE };
  },
  caption() {
    if (!aimed) return "";
    const { places, words } = source.facts.fills;
    const best = words[aimed.layer]?.[aimed.place]?.map(([word, share]) => `${word} ${percent(share)}`);
    return best ? `${stateName(aimed.layer)}, at \u201c${token(places[aimed.place])}\u201d: ${best.join(", ")}` : "";
  },
  legend: (colours) => ({
    items: [
      { label: "the word of the text", colour: colours.second },
      { label: "another word; stronger if more likely", colour: colours.accent },
    ],
  }),
  table() {
    const { places, words } = source.facts.fills;
    const index = wordOrFirst().index;
    const place = places.indexOf(index);
    if (place < 0) return { caption: `No predictions for \u201c${token(index)}\u201d: the text is long`, header: [], rows: [] };
    const rows = words.map((row, layer) => ({
      cells: [stateName(layer), row[place].slice(0, 3).map(([word, share]) => `${word} ${percent(share)}`).join("  \u00b7  ")],
    }));
    return { caption: `Predictions of each layer at \u201c${token(index)}\u201d`, header: ["layer", "words"], rows };
  },
};

function cell(surface, layer, place, [word, share], colours) {
  const [x, y] = [SIDE + place * COLUMN, HEAD + layer * ROW];
  const right = word === token(source.facts.fills.places[place]);
  surface.rect(x + 2, y + 1, COLUMN - 6, ROW - 3, right ? colours.second : colours.accent, 0.05 + 0.55 * share, 4);
  surface.text(word, x + (COLUMN - 2) / 2, y + ROW / 2, {
    colour: colours.ink, size: 12.5, weight: share > 0.5 ? 600 : 400, align: "center", width: COLUMN - 14,
  });
}

function headings(surface, frame, first, last, colours) {
  surface.rect(frame.left, frame.top, frame.width, HEAD - 4, colours.card);
  for (let place = first; place < last; place += 1) {
    const name = token(source.facts.fills.places[place]);
    surface.text(name, SIDE + place * COLUMN + (COLUMN - 2) / 2, frame.top + 18, {
      colour: name === "[MASK]" ? colours.accent : colours.ink, size: 13, weight: 650, align: "center", width: COLUMN - 10,
    });
  }
}

function sideLabels(surface, frame, count, colours) {
  surface.rect(frame.left, frame.top, SIDE - 4, frame.height, colours.card);
  for (let layer = 0; layer < count; layer += 1) {
    surface.text(stateName(layer), frame.left + SIDE - 14, HEAD + (layer + 0.5) * ROW, {
      colour: colours.faint, size: 12, align: "right",
    });
  }
}
