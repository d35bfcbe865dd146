// The matrix view: a row for each attending word, a column for each attended word.

import { headColour, percent, ramp, theme } from "./colours.js";
import { source } from "./source.js";
import { activeWord, change, state } from "./state.js";
import { chosenHeads, inBlock, labelWidth, movedWord, segmentColour, stepIndex, token, wordTable } from "./words.js";

let grid = null; // positions of the last layout
let pointed = null; // the cell under the pointer, { from, to }
let drawn = { key: "", picture: null };

export const matrix = {
  id: "matrix",
  title: "Matrix",
  help: "Rows attend to columns; stronger colours are larger weights. With several heads, the mean is shown.",
  controls: ["layer", "block", "word", "head"],
  layout(width, room = 800) {
    const { from, to } = inBlock();
    const label = labelWidth(Math.min(150, width * 0.24)) + 8;
    const across = Math.floor((width - label - 24) / Math.max(to.length, 1));
    const down = Math.floor((room - label - 32) / Math.max(from.length, 1));
    const cell = Math.max(3, Math.min(across, Math.max(down, 18), 36));
    const left = Math.max(label, (width - cell * to.length + label) / 2);
    grid = { from, to, cell, left, top: label + 6, label };
    return { width: Math.max(width, left + cell * to.length + 16), height: grid.top + cell * from.length + 16 };
  },
  paint(surface, frame, colours) {
    const { from, to, cell, left, top } = grid;
    const [width, height] = [cell * to.length, cell * from.length];
    if (source.steps && from.length && to.length) surface.image(picture(), left, top, width, height);
    surface.frame(left - 0.5, top - 0.5, width + 1, height + 1, colours.rule);
    borders(surface, colours);
    cross(surface, colours);
    // The words stay visible while the sheet is scrolled.
    rowLabels(surface, frame, colours);
    columnLabels(surface, frame, colours);
  },
  hit(x, y) {
    const from = grid.from[Math.floor((y - grid.top) / grid.cell)];
    const to = grid.to[Math.floor((x - grid.left) / grid.cell)];
    return from === undefined ? null : { from, to };
  },
  point(cell) {
    pointed = cell;
    change({ hover: cell && { index: cell.from, side: "from" } });
  },
  press(cell) {
    const index = cell?.from;
    change({ word: index === undefined || state.word?.index === index ? null : { index, side: "from" } });
  },
  key(name) {
    if (name !== "ArrowDown" && name !== "ArrowUp") return null;
    change({ word: { ...movedWord(name === "ArrowDown" ? 1 : -1), side: "from" }, hover: null });
    return { x: 0, y: grid.top + grid.from.indexOf(state.word.index) * grid.cell, height: grid.cell, above: grid.top };
  },
  caption() {
    if (!pointed || pointed.to === undefined || !source.steps) return "";
    const heads = chosenHeads();
    const sum = heads.reduce((total, head) => total + source.values[source.steps[stepIndex(head, pointed.from, pointed.to)]], 0);
    return `${token(pointed.from)} \u2192 ${token(pointed.to)}: ${percent(sum / Math.max(1, heads.length))}`;
  },
  table: () => wordTable(percent),
  legend: (colours) => ({ colour: matrixColour(colours) }),
};

function matrixColour(colours) {
  return state.heads.size === 1 ? headColour(chosenHeads()[0]) : colours.accent;
}

// A picture with one pixel per cell, drawn again when its content changes.
function picture() {
  const colours = theme();
  const heads = chosenHeads();
  const key = [source.key, state.layer, heads.join("."), state.block, colours.card, source.steps.length].join("/");
  if (drawn.key === key) return drawn.picture;
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [grid.to.length, grid.from.length];
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  const bytes = ramp(matrixColour(colours), colours.card);
  const sums = new Float32Array(grid.to.length);
  grid.from.forEach((from, row) => {
    sums.fill(0);
    for (const head of heads) {
      const start = stepIndex(head, from, 0);
      for (let column = 0; column < grid.to.length; column += 1) {
        sums[column] += source.values[source.steps[start + grid.to[column]]];
      }
    }
    for (let column = 0; column < grid.to.length; column += 1) {
      const step = Math.round((255 * sums[column]) / Math.max(1, heads.length)) * 4;
      image.data.set(bytes.subarray(step, step + 4), (row * grid.to.length + column) * 4);
    }
  });
  context.putImageData(image, 0, 0);
  drawn = { key, picture: canvas };
  return canvas;
}

// Draw lines where the second text starts.
function borders(surface, colours) {
  const { from, to, cell, left, top } = grid;
  const { segments } = source.facts;
  const row = from.findIndex((index, place) => place && segments[index] !== segments[from[place - 1]]);
  const column = to.findIndex((index, place) => place && segments[index] !== segments[to[place - 1]]);
  if (row > 0) surface.rect(left, top + row * cell - 0.5, cell * to.length, 1, colours.faint, 0.7);
  if (column > 0) surface.rect(left + column * cell - 0.5, top, 1, cell * from.length, colours.faint, 0.7);
}

function cross(surface, colours) {
  const { from, to, cell, left, top } = grid;
  const word = activeWord();
  const row = word ? from.indexOf(word.index) : -1;
  if (row >= 0) surface.frame(left - 0.5, top + row * cell - 0.5, cell * to.length + 1, cell + 1, colours.ink, 1.2);
  const column = pointed && state.hover ? to.indexOf(pointed.to) : -1;
  if (column >= 0) surface.frame(left + column * cell - 0.5, top - 0.5, cell + 1, cell * from.length + 1, colours.faint, 1);
}

function rowLabels(surface, frame, colours) {
  const { from, cell, left, top, label } = grid;
  const x = Math.max(left, frame.left + label);
  surface.rect(x - label, frame.top, label - 1, frame.height, colours.card);
  const every = Math.ceil(13 / cell);
  const word = activeWord();
  from.forEach((index, row) => {
    const y = top + (row + 0.5) * cell;
    if (y < frame.top + top || y > frame.top + frame.height) return;
    surface.rect(x - 6, y - cell / 2, 3, cell, segmentColour(index, colours), 0.75);
    const chosen = word?.index === index;
    if (row % every && !chosen) return;
    if (chosen && every > 1) surface.rect(x - label, y - 8, label - 8, 16, colours.mark, 1, 4);
    surface.text(token(index), x - 11, y, {
      colour: colours.ink, size: 12, weight: chosen ? 650 : 400, align: "right", width: label - 18,
    });
  });
}

function columnLabels(surface, frame, colours) {
  const { to, cell, left, top, label } = grid;
  surface.rect(frame.left, frame.top, frame.width, top - 1, colours.card);
  const every = Math.ceil(13 / cell);
  to.forEach((index, column) => {
    const x = left + (column + 0.5) * cell;
    if (x < frame.left + label || x > frame.left + frame.width) return;
    surface.rect(x - cell / 2, frame.top + top - 6, cell, 3, segmentColour(index, colours), 0.75);
    const chosen = state.hover && pointed?.to === index;
    if (column % every && !chosen) return;
    if (chosen && every > 1) surface.rect(x - 8, frame.top, 16, top - 8, colours.mark, 1, 4);
    surface.turned(token(index), x, frame.top + top - 11, {
      colour: colours.ink, size: 12, weight: chosen ? 650 : 400, width: top - 18,
    });
  });
}
