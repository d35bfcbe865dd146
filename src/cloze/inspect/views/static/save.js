// Save the whole picture with a title line, as PNG at twice the screen resolution or as SVG.

import { theme } from "./colours.js";
import { source } from "./source.js";
import { state } from "./state.js";
import { CanvasSurface, SvgSurface } from "./surface.js";
import { headsInWords } from "./words.js";

const TITLE = 34;
const WIDEST = 1100;
// Larger canvases are rejected by browsers or need a gigabyte of memory.
const MOST_PIXELS = 60_000_000;
const LONGEST_SIDE = 16_000;

export async function savePng(view) {
  const size = sheetSize(view);
  const fits = Math.min(2, Math.sqrt(MOST_PIXELS / (size.width * size.height)), LONGEST_SIDE / Math.max(size.width, size.height));
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [Math.floor(size.width * fits), Math.floor(size.height * fits)];
  const context = canvas.getContext("2d");
  context.scale(fits, fits);
  paintAll(new CanvasSurface(context), view, size, (down) => context.translate(0, down));
  const blob = await new Promise((done) => canvas.toBlob(done, "image/png"));
  if (!blob) throw new Error("the picture is too large for this browser; choose a block, or save SVG");
  download(blob, "png");
}

export function saveSvg(view) {
  const size = sheetSize(view);
  const surface = new SvgSurface(Math.ceil(size.width), Math.ceil(size.height));
  paintAll(surface, view, size, (down) => surface.parts.push(`<g transform="translate(0 ${down})">`));
  surface.parts.push("</g>");
  download(new Blob([surface.source()], { type: "image/svg+xml" }), "svg");
}

function sheetSize(view) {
  const { width, height } = view.layout(WIDEST);
  return { width, height: height + TITLE };
}

function paintAll(surface, view, size, moveDown) {
  const colours = theme();
  surface.rect(0, 0, size.width, size.height, colours.card);
  surface.text(pictureTitle(view), 16, 18, { colour: colours.faint, size: 12, width: size.width - 32 });
  moveDown(TITLE);
  view.paint(surface, { left: 0, top: 0, width: size.width, height: size.height - TITLE }, colours);
}

function pictureTitle(view) {
  const { model, texts } = source.facts;
  const what = view.controls.includes("layer") ? [`layer ${state.layer}, ${headsInWords()}`] : [];
  return [view.title, ...what, ...(model ? [model] : []), texts.join(" / ")].join("  \u00b7  ");
}

function download(blob, ending) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  const layer = state.view === "columns" || state.view === "matrix" ? `-layer-${state.layer}` : "";
  link.download = `attention-${state.view}${layer}.${ending}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
