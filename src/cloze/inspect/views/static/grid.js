// The grid of all heads: each a small picture of its weights, coloured by its pattern; a click opens the head.

import { PATTERN_COLOURS, patternColour, percent, ramp } from "./colours.js";
import { fromBase64, source } from "./source.js";
import { change, state } from "./state.js";

const LEFT = 64;
const TOP = 34;
const GAP = 8;
let cells = null;
let over = null;
const pictures = { key: "", made: [] };

export const headGrid = {
  id: "heads",
  title: "Heads",
  help: "All heads of all layers, coloured by their attention pattern. Click a head to open it.",
  controls: [],
  layout(width) {
    const { heads, layers } = source.facts;
    const side = Math.max(26, Math.min(84, Math.floor((width - LEFT - 12) / heads) - GAP));
    const named = side >= 58;
    const pitch = { x: side + GAP, y: side + GAP + (named ? 16 : 4) };
    const left = Math.max(LEFT, (width - heads * pitch.x + LEFT) / 2);
    cells = { side, named, pitch, left };
    return { width: Math.max(width, left + heads * pitch.x + 12), height: TOP + layers * pitch.y + 6 };
  },
  paint(surface, frame, colours) {
    const { heads, layers } = source.facts;
    const { side, pitch, left } = cells;
    for (let head = 0; head < heads; head += 1) {
      surface.text(String(head), left + head * pitch.x + side / 2, 17, { colour: colours.faint, size: 12, align: "center" });
    }
    for (let layer = 0; layer < layers; layer += 1) {
      const y = TOP + layer * pitch.y;
      if (y + pitch.y < frame.top || y > frame.top + frame.height) continue;
      surface.text(`Layer ${layer}`, left - 14, y + side / 2, { colour: colours.faint, size: 12, align: "right" });
      for (let head = 0; head < heads; head += 1) paintHead(surface, layer, head, colours);
    }
  },
  hit(x, y) {
    const { heads, layers } = source.facts;
    const head = Math.floor((x - cells.left) / cells.pitch.x);
    const layer = Math.floor((y - TOP) / cells.pitch.y);
    return head >= 0 && head < heads && layer >= 0 && layer < layers ? { layer, head } : null;
  },
  point(cell) {
    over = cell;
    change({ cursor: cell ? cell.layer * source.facts.heads + cell.head : state.cursor });
  },
  press(cell) {
    if (cell) change({ view: "columns", layer: cell.layer, heads: new Set([cell.head]), hover: null });
  },
  key(name) {
    const { heads, layers } = source.facts;
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -heads, ArrowDown: heads }[name];
    const layer = Math.floor(state.cursor / heads);
    if (name === "Enter" || name === " ") {
      this.press({ layer, head: state.cursor % heads });
      return { x: 0, y: 0, height: 0 };
    }
    if (by === undefined) return null;
    const next = state.cursor + by;
    if (next >= 0 && next < heads * layers) {
      over = { layer: Math.floor(next / heads), head: next % heads };
      change({ cursor: next });
    }
    return { x: 0, y: TOP + Math.floor(state.cursor / heads) * cells.pitch.y, height: cells.pitch.y };
  },
  caption() {
    if (!over) return "";
    const [label, score, entropy, distance] = source.facts.notes.heads[over.layer][over.head];
    const does = source.facts.notes.descriptions[label] ?? label;
    return (
      `Layer ${over.layer}, head ${over.head}: ${label} (${does}), ${percent(score)}; ` +
      `evenness ${percent(entropy)}, mean distance ${distance.toFixed(1)} tokens`
    );
  },
  table() {
    const { notes } = source.facts;
    const rows = notes.heads.flatMap((row, layer) =>
      row.map(([label, score], head) => ({
        cells: [`${layer}.${head}`, label, percent(score)],
        share: score,
        colour: patternColour(label),
        open: () => headGrid.press({ layer, head }),
      })),
    );
    return { caption: "All heads with their patterns", header: ["layer.head", "pattern", "share"], rows };
  },
  legend() {
    const counts = {};
    for (const row of source.facts.notes.heads) for (const [label] of row) counts[label] = (counts[label] ?? 0) + 1;
    const labels = Object.keys(PATTERN_COLOURS).filter((label) => counts[label]);
    return { items: labels.map((label) => ({ label, count: counts[label], colour: PATTERN_COLOURS[label] })) };
  },
};

function paintHead(surface, layer, head, colours) {
  const { side, named, pitch, left } = cells;
  const [x, y] = [left + head * pitch.x, TOP + layer * pitch.y];
  const [label] = source.facts.notes.heads[layer][head];
  const colour = patternColour(label);
  surface.rect(x, y, side, side, colour, 0.13);
  surface.image(smallPicture(layer, head, colour, colours.card), x + 2, y + 2, side - 4, side - 4);
  const number = layer * source.facts.heads + head;
  const chosen = over && number === state.cursor;
  surface.frame(x - 0.5, y - 0.5, side + 1, side + 1, chosen ? colours.ink : colour, chosen ? 2 : 1, 3);
  if (named) surface.text(label, x + side / 2, y + side + 10, { colour, size: 10, weight: 600, align: "center", width: side + GAP - 2 });
}

function smallPicture(layer, head, colour, paper) {
  const { side, data } = source.facts.pictures;
  const key = `${source.key}/${paper}`;
  if (pictures.key !== key) Object.assign(pictures, { key, made: [], bytes: fromBase64(data) });
  const number = layer * source.facts.heads + head;
  if (!pictures.made[number]) {
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = side;
    const context = canvas.getContext("2d");
    const image = context.createImageData(side, side);
    const colours = ramp(colour, paper);
    for (let place = 0; place < side * side; place += 1) {
      const weight = (pictures.bytes[number * side * side + place] / 255) ** 2;
      const step = Math.round(255 * weight) * 4;
      image.data.set(colours.subarray(step, step + 4), place * 4);
    }
    context.putImageData(image, 0, 0);
    pictures.made[number] = canvas;
  }
  return pictures.made[number];
}
