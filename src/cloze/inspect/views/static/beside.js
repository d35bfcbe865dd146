// The parts beside the picture: a table with the same content, the caption and the legend.

import { headColour, percent, ramp, theme } from "./colours.js";
import { element, made } from "./controls.js";
import { visible } from "./surface.js";

let last = "";

// Elements whose content is unchanged are not replaced: screen readers would lose their position, and it takes time.
export function updateTable(table) {
  const key = table && JSON.stringify(table);
  if (!table || key === last) return;
  last = key;
  const target = element("table");
  target.caption.textContent = visible(table.caption);
  const header = made("tr", "");
  header.append(...table.header.map((name) => made("th", name, { scope: "col" })));
  target.tHead.replaceChildren(header);
  target.tBodies[0].replaceChildren(...table.rows.map((row) => tableRow(row, table.header)));
}

function tableRow(row, header) {
  const line = made("tr", "");
  row.cells.forEach((text, column) => {
    const cell = made(column ? "td" : "th", "");
    if (!column) cell.scope = "row";
    if (row.open && !column) {
      const button = made("button", text, { type: "button", className: "plain" });
      button.addEventListener("click", row.open);
      cell.append(button);
    } else cell.textContent = visible(text);
    if (column === header.length - 1 && row.share !== undefined) {
      cell.className = "share";
      cell.style.setProperty("--share", Math.min(1, row.share).toFixed(3));
      if (row.colour) cell.style.setProperty("--bar", row.colour);
    }
    line.append(cell);
  });
  return line;
}

export function updateLegend(view) {
  const colours = theme();
  const wanted = view.legend?.(colours);
  const target = element("legend");
  if (!wanted) target.replaceChildren();
  else if (wanted.items) target.replaceChildren(...wanted.items.map(legendItem));
  else target.replaceChildren(...scale(wanted.heads?.length === 1 ? headColour(wanted.heads[0]) : (wanted.colour ?? colours.faint), colours));
}

function legendItem({ label, count, colour }) {
  const item = made("span", count === undefined ? label : `${label} ${count}`, { className: "swatch" });
  item.style.setProperty("--swatch", colour);
  return item;
}

// Show the opacity of weights from 1 % to 100 %.
function scale(colour, colours) {
  const bytes = ramp(colour, colours.card);
  return [0.01, 0.05, 0.2, 0.5, 1].map((weight) => {
    const item = made("span", percent(weight), { className: "swatch" });
    const step = Math.round(255 * weight) * 4;
    item.style.setProperty("--swatch", `rgb(${bytes.slice(step, step + 3).join(" ")})`);
    return item;
  });
}

export function say(text) {
  const target = element("caption");
  if (target.textContent !== text) target.textContent = text;
}
