// Functions that several views share: the selected words, the selected heads, and the attention between words.

import { source } from "./source.js";
import { activeWord, state } from "./state.js";
import { widest } from "./surface.js";

export const BLOCKS = { all: "all", AA: "A\u2192A", AB: "A\u2192B", BA: "B\u2192A", BB: "B\u2192B" };

// Return the attending and the attended tokens of the selected block.
export function inBlock() {
  const { segments } = source.facts;
  const of = (letter) => [...segments.keys()].filter((index) => letter === undefined || segments[index] === "AB".indexOf(letter));
  return state.block === "all" ? { from: of(), to: of() } : { from: of(state.block[0]), to: of(state.block[1]) };
}

export function chosenHeads() {
  return [...state.heads].sort((one, other) => one - other);
}

export function token(index) {
  return source.facts.tokens[index];
}

let measured = { key: -1, width: 0 };

// Return the width of the longest token, within limits.
export function labelWidth(most) {
  if (measured.key !== source.key) measured = { key: source.key, width: widest(source.facts.tokens, 14, 650) };
  return Math.min(most, measured.width + 20);
}

export function segmentColour(index, colours) {
  return source.facts.segments[index] === 1 ? colours.second : colours.first;
}

// Return the index of the weight of a head from one token to another.
export function stepIndex(head, from, to) {
  const length = source.facts.tokens.length;
  return (head * length + from) * length + to;
}

// Return the mean weight over the selected heads between a word and each word on the other side.
export function meanWeights(word, others) {
  const { steps, values } = source;
  const heads = chosenHeads();
  return others.map((other) => {
    const [from, to] = word.side === "from" ? [word.index, other] : [other, word.index];
    let sum = 0;
    for (const head of heads) sum += values[steps[stepIndex(head, from, to)]];
    return sum / Math.max(heads.length, 1);
  });
}

// Return the active word, or else the first one that is not a special token.
export function wordOrFirst() {
  const { from } = inBlock();
  const chosen = activeWord();
  if (chosen) return chosen;
  return { index: from.find((index) => !/^\[[A-Z]+\]$/.test(token(index))) ?? from[0] ?? 0, side: "from" };
}

export function headsInWords() {
  const heads = chosenHeads();
  if (heads.length === source.facts.heads) return "all heads";
  return heads.length === 1 ? `head ${heads[0]}` : `heads ${heads.join(", ")}`;
}

// Return the table beside the two-column and the matrix view: the attention of the selected word.
export function wordTable(percent) {
  if (!source.steps) return null;
  const word = wordOrFirst();
  const { from, to } = inBlock();
  const others = word.side === "from" ? to : from;
  const weights = meanWeights(word, others);
  const order = [...others.keys()].sort((one, other) => weights[other] - weights[one]).slice(0, 12);
  const does = word.side === "from" ? `\u201c${token(word.index)}\u201d attends to` : `attend to \u201c${token(word.index)}\u201d`;
  return {
    caption: `${does} (layer ${state.layer}, ${headsInWords()}${state.heads.size > 1 ? ", mean" : ""})`,
    header: ["word", "position", "weight"],
    rows: order.map((place) => ({
      cells: [token(others[place]), String(others[place]), percent(weights[place])],
      share: weights[place],
    })),
  };
}

// Move to the next or the previous word of a side.
export function movedWord(by) {
  const word = state.word ?? wordOrFirst();
  const list = word.side === "from" ? inBlock().from : inBlock().to;
  const place = list.indexOf(word.index);
  return { side: word.side, index: list[Math.min(list.length - 1, Math.max(0, place + by))] ?? word.index };
}

// There is one more state than layers: the embeddings, and the output of each layer.
export function stateName(layer) {
  return layer ? `after layer ${layer - 1}` : "embeddings";
}
