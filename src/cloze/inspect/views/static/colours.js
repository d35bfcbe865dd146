// Colours that work on light and dark backgrounds: of heads, of patterns, and of the page itself.

const HEAD_COLOURS = [
  "#4577c9", "#e07b22", "#d9485b", "#3f9a4d", "#9a66c9", "#1fa3a3", "#c79a12", "#e0659b",
  "#8c6a4f", "#5b93f5", "#7a5ce0", "#17a673", "#c2532c", "#7f9c1c", "#c24fb4", "#6d7d95",
];

export const PATTERN_COLOURS = {
  next: "#4577c9",
  previous: "#1fa3a3",
  same: "#3f9a4d",
  other: "#e0659b",
  predictive: "#7a5ce0",
  separators: "#e07b22",
  self: "#c79a12",
  broad: "#8794a8",
  mixed: "#a08d7c",
};

export function headColour(head) {
  return HEAD_COLOURS[head % HEAD_COLOURS.length];
}

export function patternColour(label) {
  return PATTERN_COLOURS[label] ?? PATTERN_COLOURS.mixed;
}

// Return the current colours of the style sheet.
export function theme() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  return Object.fromEntries(
    ["ink", "faint", "rule", "card", "accent", "first", "second", "mark"].map((name) => [name, read(name)]),
  );
}

// Return the opacity of a weight. With a linear scale, only the largest weights would be visible.
export function strength(weight) {
  return weight ** 0.7;
}

export function percent(weight) {
  const value = weight * 100;
  if (value > 0 && value < 0.1) return "< 0.1 %";
  return `${value.toFixed(value < 9.95 ? 1 : 0)} %`;
}

// Return a colour ramp from the background to a colour in 256 steps, as bytes, for pictures of many cells.
export function ramp(colour, paper) {
  const [from, to] = [channels(paper), channels(colour)];
  const bytes = new Uint8ClampedArray(256 * 4);
  for (let step = 0; step < 256; step += 1) {
    const share = strength(step / 255);
    for (let channel = 0; channel < 3; channel += 1) {
      bytes[step * 4 + channel] = from[channel] + (to[channel] - from[channel]) * share;
    }
    bytes[step * 4 + 3] = 255;
  }
  return bytes;
}

function channels(colour) {
  const digits = colour.length === 4 ? [...colour.slice(1)].map((one) => one + one).join("") : colour.slice(1);
  return [0, 2, 4].map((place) => parseInt(digits.slice(place, place + 2), 16));
}
