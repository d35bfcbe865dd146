// The two-column view: words on both sides, a line for each weight, in the colour of its head.

import { headColour, percent, strength } from "./colours.js";
import { source } from "./source.js";
import { activeWord, change, state } from "./state.js";
import { chosenHeads, inBlock, labelWidth, movedWord, segmentColour, stepIndex, token, wordTable } from "./words.js";

const TOP = 40;
const EDGE = 10; // distance between a label and its lines
// The number of lines that a browser without a graphics card can draw per frame.
const MOST_LINES = { short: 1800, long: 600 };
const MOST_WORD_LINES = 160;
let place = null; // positions of the last layout

export const columns = {
  id: "columns",
  title: "Words",
  help: "Words on the left attend to words on the right. Each colour is a head; stronger lines are larger weights. Point at a word to see only its attention; click to pin it.",
  controls: ["layer", "block", "word", "head"],
  layout(width) {
    const { from, to } = inBlock();
    const row = source.facts.tokens.length > 80 ? 20 : 26;
    const label = labelWidth(Math.min(190, width * 0.3));
    const inner = Math.min(width - 16, 2 * label + 560);
    const left = (width - inner) / 2;
    place = { row, from, to, label, strip: Math.min(144, inner * 0.16), size: row === 20 ? 12 : 14 };
    place.start = left + label + EDGE;
    place.end = left + inner - label - EDGE;
    return { width, height: TOP + row * Math.max(from.length, to.length, 1) + 14 };
  },
  paint(surface, frame, colours) {
    const word = activeWord();
    heading(surface, colours);
    if (source.steps) {
      if (word) wordLines(surface, word, frame, colours);
      else allLines(surface, frame);
    }
    labels(surface, "from", word, frame, colours);
    labels(surface, "to", word, frame, colours);
  },
  hit(x, y) {
    const side = x < place.start + 24 ? "from" : x > place.end - 24 ? "to" : null;
    const index = side && place[side][Math.floor((y - TOP) / place.row)];
    return index === undefined || index === null || y < TOP ? null : { index, side };
  },
  point(word) {
    change({ hover: word });
  },
  press(word) {
    const same = word && state.word && word.index === state.word.index && word.side === state.word.side;
    change({ word: same ? null : word, hover: null });
  },
  key(name) {
    if (name === "ArrowDown" || name === "ArrowUp") change({ word: movedWord(name === "ArrowDown" ? 1 : -1), hover: null });
    else if (name === "ArrowLeft" || name === "ArrowRight") {
      change({ word: { ...movedWord(0), side: name === "ArrowLeft" ? "from" : "to" }, hover: null });
    } else return null;
    return { x: 0, y: TOP + place[state.word.side].indexOf(state.word.index) * place.row, height: place.row };
  },
  table: () => wordTable(percent),
  legend: () => ({ heads: chosenHeads() }),
};

function middle(side, index) {
  return TOP + (place[side].indexOf(index) + 0.5) * place.row;
}

function heading(surface, colours) {
  const style = { colour: colours.faint, size: 12, weight: 500 };
  surface.text("attends", place.start, 18, { ...style, align: "right" });
  surface.text("is attended to", place.end, 18, style);
}

function labels(surface, side, word, frame, colours) {
  const x = side === "from" ? place.start - EDGE : place.end + EDGE;
  place[side].forEach((index, row) => {
    const y = TOP + row * place.row;
    if (y + place.row < frame.top || y > frame.top + frame.height) return;
    const chosen = word && word.side === side && word.index === index;
    const edge = side === "from" ? x - place.label : x - 7;
    if (chosen) surface.rect(edge, y + 1, place.label + 7, place.row - 2, colours.mark, 1, 5);
    const bar = side === "from" ? x + 4 : x - 7;
    surface.rect(bar, y + 5, 3, place.row - 10, segmentColour(index, colours), 0.75, 1.5);
    surface.text(token(index), side === "from" ? x - 4 : x + 4, y + place.row / 2 + 0.5, {
      colour: colours.ink,
      size: place.size,
      weight: chosen ? 650 : 400,
      align: side === "from" ? "right" : "left",
      width: place.label - 10,
    });
  });
}

// Draw the attention of one word: a line and a small square for each head and each word on the other side.
function wordLines(surface, word, frame, colours) {
  const other = word.side === "from" ? "to" : "from";
  if (!place[word.side].includes(word.index)) return;
  const heads = chosenHeads();
  const y = middle(word.side, word.index);
  const cell = Math.min(14, place.strip / Math.max(heads.length, 1));
  const wide = cell * heads.length + 4;
  const begin = other === "to" ? place.end + 2 - wide : place.start + 2;
  const [start, end] = other === "to" ? [place.start, place.end - wide] : [place.start + wide, place.end];
  const found = [];
  place[other].forEach((index, row) => {
    const target = TOP + (row + 0.5) * place.row;
    const inSight = target > frame.top - place.row && target < frame.top + frame.height + place.row;
    heads.forEach((head, number) => {
      const [from, to] = word.side === "from" ? [word.index, index] : [index, word.index];
      const weight = source.values[source.steps[stepIndex(head, from, to)]];
      if (weight < 0.002) return;
      found.push({ head, number, target, weight });
      if (!inSight) return;
      surface.rect(begin + number * cell, target - place.row / 2 + 2, cell, place.row - 4, headColour(head), strength(weight));
    });
  });
  found.sort((one, another) => another.weight - one.weight);
  for (const { head, number, target, weight } of found.slice(0, MOST_WORD_LINES).reverse()) {
    const apart = spread(number, heads.length);
    const [left, right] = word.side === "from" ? [y, target] : [target, y];
    surface.curve(start, left + apart, end, right + apart, headColour(head), Math.max(0.05, strength(weight)), 1 + 1.2 * weight);
  }
  surface.frame(begin - 0.5, TOP + 1, cell * heads.length + 1, place.row * place[other].length - 2, colours.rule, 1, 3);
}

// Place heads side by side, so that no line hides another.
function spread(number, count) {
  return (number - (count - 1) / 2) * Math.min(1.6, (place.row * 0.6) / count);
}

// Draw the attention of all words: the largest weights from visible rows, up to the number that is drawn quickly.
function allLines(surface, frame) {
  const { steps, values } = source;
  const heads = chosenHeads();
  const first = Math.max(0, Math.floor((frame.top - TOP) / place.row));
  const last = Math.min(place.from.length, Math.ceil((frame.top + frame.height - TOP) / place.row));
  const rows = place.from.slice(first, last);
  const counts = new Uint32Array(256);
  for (const head of heads) {
    for (const from of rows) {
      const start = stepIndex(head, from, 0);
      for (const to of place.to) counts[steps[start + to]] += 1;
    }
  }
  const most = source.facts.tokens.length > 80 ? MOST_LINES.long : MOST_LINES.short;
  let least = 255;
  for (let seen = counts[255]; least > 1 && seen + counts[least - 1] <= most; ) seen += counts[(least -= 1)];
  while (values[least] < 0.01 && least < 255) least += 1;
  heads.forEach((head, number) => {
    const apart = spread(number, heads.length);
    rows.forEach((from, row) => {
      const start = stepIndex(head, from, 0);
      const y = TOP + (first + row + 0.5) * place.row + apart;
      place.to.forEach((to, column) => {
        const step = steps[start + to];
        if (step < least) return;
        const weight = values[step];
        const target = TOP + (column + 0.5) * place.row + apart;
        surface.curve(place.start, y, place.end, target, headColour(head), 0.85 * strength(weight), 1 + weight);
      });
    });
  });
}
