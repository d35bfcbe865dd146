// Creates elements. Texts of users and models become text nodes and are never parsed as markup.

/** Create an element with attributes and children; children that are not nodes become text nodes. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.map((child) => (child instanceof Node ? child : document.createTextNode(String(child)))));
  return made;
}

/** Create a table from a header and rows; numbers are aligned right. */
export function table(header, rows) {
  const head = element("tr", {}, ...header.map((cell) => element("th", { scope: "col" }, cell)));
  const body = rows.map((row) =>
    element("tr", {}, ...row.map((cell) => element("td", typeof cell === "number" ? { class: "number" } : {}, shown(cell)))),
  );
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
}

/** Create a bar for a value between 0 and 1, with a label for screen readers. */
export function share(value) {
  return element("meter", { min: 0, max: 1, value, "aria-label": percent(value) });
}

export function percent(value) {
  return `${(100 * value).toFixed(1)} %`;
}

function shown(cell) {
  return typeof cell === "number" && !Number.isInteger(cell) ? cell.toFixed(4) : cell;
}
