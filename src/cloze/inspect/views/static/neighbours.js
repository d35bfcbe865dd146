// The neighbours of a word in embedding space: the most similar words at each layer, nearest on top.

import { change } from "./state.js";
import { movedWord, segmentColour, stateName, token, wordOrFirst } from "./words.js";
import { source } from "./source.js";

const COLUMN = 112;
const ROW = 38;
const HEAD = 52;
const EDGE = 14;

export const neighbours = {
  id: "neighbours",
  title: "Neighbours",
  help: "The words of this text whose states are most similar to those of the selected word, layer by layer; a line follows a word from layer to layer. On the left, the nearest words of the vocabulary.",
  controls: ["word"],
  fits: (facts) => facts.neighbours !== null && facts.tokens.length > 1,
  layout(width) {
    const { places } = source.facts.neighbours;
    const rows = Math.max(places[0][0].length, vocabulary().length);
    return { width: Math.max(width, EDGE * 2 + COLUMN * (places.length + 1)), height: HEAD + ROW * rows + 12 };
  },
  paint(surface, frame, colours) {
    const word = wordOrFirst().index;
    const { places, cosines } = source.facts.neighbours;
    title(surface, -1, "vocabulary", token(word), colours);
    vocabulary().forEach(([piece, cosine], rank) => item(surface, -1, rank, piece, cosine, colours.faint, colours));
    surface.rect(columnLeft(0) - 9, 12, 1, HEAD + ROW * places[0][0].length - 12, colours.rule);
    for (let layer = 1; layer < places.length; layer += 1) links(surface, layer, places, word, colours);
    places.forEach((row, layer) => {
      title(surface, layer, stateName(layer), token(word), colours);
      row[word].forEach((other, rank) => {
        item(surface, layer, rank, token(other), cosines[layer][word][rank], segmentColour(other, colours), colours);
      });
    });
  },
  hit(x, y) {
    const layer = Math.floor((x - EDGE) / COLUMN) - 1;
    const rank = Math.floor((y - HEAD) / ROW);
    const index = layer < 0 ? undefined : source.facts.neighbours.places[layer]?.[wordOrFirst().index][rank];
    return index === undefined ? null : { index, side: "from" };
  },
  point() {}, // no hover: the picture would change under the pointer
  press(word) {
    if (word) change({ word, hover: null });
  },
  key(name) {
    const by = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[name];
    if (by === undefined) return null;
    change({ word: movedWord(by), hover: null });
    return { x: 0, y: 0, height: 0 };
  },
  legend: (colours) =>
    source.facts.segments.includes(1)
      ? { items: [{ label: "word of A", colour: colours.first }, { label: "word of B", colour: colours.second }] }
      : null,
  table() {
    const word = wordOrFirst().index;
    const { places, cosines } = source.facts.neighbours;
    const rows = places.map((row, layer) => {
      const nearest = row[word].slice(0, 3).map((other, rank) => `${token(other)} ${cosines[layer][word][rank].toFixed(2)}`);
      return { cells: [stateName(layer), nearest.join("  \u00b7  ")] };
    });
    return { caption: `Nearest to \u201c${token(word)}\u201d, by cosine`, header: ["layer", "words"], rows };
  },
};

function vocabulary() {
  return source.facts.pieces[token(wordOrFirst().index)] ?? [];
}

function columnLeft(layer) {
  return EDGE + (layer + 1) * COLUMN;
}

function title(surface, layer, above, word, colours) {
  const x = columnLeft(layer) + (COLUMN - 18) / 2;
  surface.text(above, x, 16, { colour: colours.faint, size: 12, align: "center" });
  surface.text(word, x, 35, { colour: colours.ink, size: 13, weight: 650, align: "center", width: COLUMN - 20 });
}

function item(surface, layer, rank, text, cosine, colour, colours) {
  const [x, y, width] = [columnLeft(layer), HEAD + rank * ROW, COLUMN - 18];
  surface.rect(x, y, width, ROW - 6, colours.card, 1, 6);
  surface.rect(x, y, width, ROW - 6, colours.accent, 0.06 + 0.4 * Math.max(0, cosine) ** 2, 6);
  surface.rect(x, y, 3, ROW - 6, colour, 1, 1.5);
  surface.text(text, x + 10, y + 11, { colour: colours.ink, size: 13, width: width - 16 });
  surface.text(cosine.toFixed(2), x + 10, y + 24, { colour: colours.faint, size: 10 });
}

function links(surface, layer, places, word, colours) {
  places[layer][word].forEach((other, rank) => {
    const before = places[layer - 1][word].indexOf(other);
    if (before < 0) return;
    const [from, to] = [HEAD + (before + 0.42) * ROW, HEAD + (rank + 0.42) * ROW];
    surface.curve(columnLeft(layer) - 18, from, columnLeft(layer), to, segmentColour(other, colours), 0.6, 2);
  });
}
