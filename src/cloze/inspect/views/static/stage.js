// The stage: a scrollable sheet of any size, with a canvas of the size of the window. Only the visible part is drawn, so
// that the cost does not grow with the sheet, which may have ten thousand rows.

import { theme } from "./colours.js";
import { CanvasSurface } from "./surface.js";

const LEAST_HEIGHT = 320;

export class Stage {
  constructor(element) {
    this.element = element;
    this.sheet = element.querySelector("#sheet");
    this.canvas = element.querySelector("#canvas");
    this.view = null;
    this.pending = false;
    this.drawn = null; // called after each drawing
    new ResizeObserver(() => this.refresh()).observe(element.parentElement);
    element.addEventListener("scroll", () => this.refresh(), { passive: true });
    element.addEventListener("pointermove", (event) => this.view?.point(this.find(event)));
    element.addEventListener("pointerleave", () => this.view?.point(null));
    element.addEventListener("click", (event) => this.view?.press(this.find(event)));
  }

  find(event) {
    const box = this.canvas.getBoundingClientRect();
    const { scrollLeft, scrollTop } = this.element;
    return this.view.hit(event.clientX - box.left + scrollLeft, event.clientY - box.top + scrollTop);
  }

  show(view) {
    this.view = view;
    this.measure(); // key and pointer events may arrive before the first frame is drawn
    this.element.scrollTo(0, 0);
    this.refresh();
  }

  // Lay out the view for the available size.
  measure() {
    const width = this.element.parentElement.clientWidth;
    const room = Math.max(LEAST_HEIGHT, innerHeight * 0.74);
    return { width, room, size: this.view.layout(width - 2, room) };
  }

  // Draw once at the next frame, even after several calls.
  refresh() {
    if (this.pending || !this.view) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.draw();
    });
  }

  draw(whole = false) {
    const { width, room, size } = this.measure();
    const height = whole ? size.height : Math.min(size.height, room);
    this.element.style.height = `${height + 2 + (size.width > width ? 14 : 0)}px`;
    this.sheet.style.width = `${size.width}px`;
    this.sheet.style.height = `${size.height}px`;
    const { clientWidth, clientHeight, scrollLeft, scrollTop } = this.element;
    const scale = devicePixelRatio || 1;
    const [across, down] = [Math.round(clientWidth * scale), Math.round(clientHeight * scale)];
    if (this.canvas.width !== across || this.canvas.height !== down) {
      [this.canvas.width, this.canvas.height] = [across, down];
      this.canvas.style.width = `${clientWidth}px`;
      this.canvas.style.height = `${clientHeight}px`;
    }
    const context = this.canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, clientWidth, clientHeight);
    context.translate(-scrollLeft, -scrollTop);
    const frame = { left: scrollLeft, top: scrollTop, width: clientWidth, height: clientHeight };
    this.view.paint(new CanvasSurface(context), frame, theme());
    this.drawn?.();
  }

  // Scroll until the element with the keyboard focus is visible.
  reveal({ x, y, width = 0, height, above = 0, before = 0 }) {
    const { element } = this;
    if (y - above < element.scrollTop) element.scrollTop = y - above;
    if (y + height > element.scrollTop + element.clientHeight) element.scrollTop = y + height - element.clientHeight;
    if (x - before < element.scrollLeft) element.scrollLeft = x - before;
    if (x + width > element.scrollLeft + element.clientWidth) element.scrollLeft = x + width - element.clientWidth;
  }
}
