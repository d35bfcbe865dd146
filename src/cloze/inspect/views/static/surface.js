// The surfaces that views draw on: a canvas for the screen and for PNG, or SVG elements.

export const FONT = "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', sans-serif";

export class CanvasSurface {
  constructor(context) {
    this.context = context;
  }

  rect(x, y, width, height, colour, alpha = 1, radius = 0) {
    const { context } = this;
    context.globalAlpha = alpha;
    context.fillStyle = colour;
    if (!radius) context.fillRect(x, y, width, height);
    else {
      context.beginPath();
      context.roundRect(x, y, width, height, radius);
      context.fill();
    }
  }

  frame(x, y, width, height, colour, thickness = 1, radius = 0) {
    const { context } = this;
    context.globalAlpha = 1;
    context.strokeStyle = colour;
    context.lineWidth = thickness;
    context.beginPath();
    context.roundRect(x, y, width, height, radius);
    context.stroke();
  }

  // Draw a curve from one side to the other with horizontal ends.
  curve(x1, y1, x2, y2, colour, alpha, thickness) {
    const { context } = this;
    const bend = (x2 - x1) / 2;
    context.globalAlpha = alpha;
    context.strokeStyle = colour;
    context.lineWidth = thickness;
    context.beginPath();
    context.moveTo(x1, y1);
    context.bezierCurveTo(x1 + bend, y1, x2 - bend, y2, x2, y2);
    context.stroke();
  }

  text(text, x, y, { colour, size = 13, weight = 400, align = "left", width = Infinity } = {}) {
    const { context } = this;
    context.globalAlpha = 1;
    context.fillStyle = colour;
    context.font = `${weight} ${size}px ${FONT}`;
    context.textAlign = align;
    context.textBaseline = "middle";
    context.fillText(shorten(context, visible(text), width), x, y);
  }

  turned(text, x, y, options) {
    const { context } = this;
    context.save();
    context.translate(x, y);
    context.rotate(-Math.PI / 2);
    this.text(text, 0, 0, options);
    context.restore();
  }

  image(picture, x, y, width, height) {
    const { context } = this;
    context.globalAlpha = 1;
    context.imageSmoothingEnabled = false;
    context.drawImage(picture, x, y, width, height);
  }
}

export class SvgSurface {
  constructor(width, height) {
    this.size = [width, height];
    this.parts = [];
    this.measure = document.createElement("canvas").getContext("2d");
  }

  rect(x, y, width, height, colour, alpha = 1, radius = 0) {
    this.parts.push(
      `<rect x="${short(x)}" y="${short(y)}" width="${short(width)}" height="${short(height)}" fill="${escaped(colour)}"` +
        `${alpha < 1 ? ` fill-opacity="${short(alpha)}"` : ""}${radius ? ` rx="${radius}"` : ""}/>`,
    );
  }

  frame(x, y, width, height, colour, thickness = 1, radius = 0) {
    this.parts.push(
      `<rect x="${short(x)}" y="${short(y)}" width="${short(width)}" height="${short(height)}" fill="none" ` +
        `stroke="${escaped(colour)}" stroke-width="${thickness}"${radius ? ` rx="${radius}"` : ""}/>`,
    );
  }

  curve(x1, y1, x2, y2, colour, alpha, thickness) {
    const middle = short((x1 + x2) / 2);
    this.parts.push(
      `<path d="M${short(x1)} ${short(y1)}C${middle} ${short(y1)} ${middle} ${short(y2)} ${short(x2)} ${short(y2)}" ` +
        `fill="none" stroke="${escaped(colour)}" stroke-opacity="${short(alpha)}" stroke-width="${short(thickness)}"/>`,
    );
  }

  text(text, x, y, options = {}) {
    this.label(text, `x="${short(x)}" y="${short(y)}"`, options);
  }

  turned(text, x, y, options = {}) {
    this.label(text, `transform="translate(${short(x)} ${short(y)}) rotate(-90)"`, options);
  }

  label(text, place, { colour, size = 13, weight = 400, align = "left", width = Infinity }) {
    this.measure.font = `${weight} ${size}px ${FONT}`;
    const anchor = { left: "start", center: "middle", right: "end" }[align];
    this.parts.push(
      `<text ${place} fill="${escaped(colour)}" font-size="${size}" font-weight="${weight}" text-anchor="${anchor}" ` +
        `dominant-baseline="central" xml:space="preserve">${escaped(shorten(this.measure, visible(text), width))}</text>`,
    );
  }

  image(picture, x, y, width, height) {
    this.parts.push(
      `<image x="${short(x)}" y="${short(y)}" width="${short(width)}" height="${short(height)}" ` +
        `image-rendering="pixelated" preserveAspectRatio="none" href="${picture.toDataURL("image/png")}"/>`,
    );
  }

  source() {
    const [width, height] = this.size;
    return (
      `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" ` +
      `font-family="${escaped(FONT)}">${this.parts.join("\n")}</svg>\n`
    );
  }
}

function short(number) {
  return Number(number.toFixed(2));
}

// XML allows neither control characters nor unpaired surrogates, not even escaped.
function escaped(text) {
  return String(text)
    .toWellFormed()
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd")
    .replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
}

// Characters that change the text direction or are invisible could make a token look like another one.
export function visible(text) {
  return text.replace(/[\u0000-\u001f\u007f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, "\u00b7");
}

function shorten(context, text, width) {
  if (width === Infinity || text.length * 14 < width || context.measureText(text).width <= width) return text;
  let kept = text.slice(0, 200);
  while (kept.length > 1 && context.measureText(`${kept}\u2026`).width > width) kept = kept.slice(0, -1);
  return `${kept}\u2026`;
}

const ruler = { context: null };

// Return the width of the widest text.
export function widest(texts, size, weight = 400) {
  ruler.context ??= document.createElement("canvas").getContext("2d");
  ruler.context.font = `${weight} ${size}px ${FONT}`;
  return texts.reduce((most, text) => Math.max(most, ruler.context.measureText(visible(text)).width), 0);
}
