// Elements from texts. Whatever a user or a model says is a text here, and never markup.

/** An element with attributes and children; children that are not elements become texts. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.map((child) => (child instanceof Node ? child : document.createTextNode(String(child)))));
  return made;
}

/** A table of a header and rows; numbers stand right. */
export function table(header, rows) {
  const head = element("tr", {}, ...header.map((cell) => element("th", { scope: "col" }, cell)));
  const body = rows.map((row) =>
    element("tr", {}, ...row.map((cell) => element("td", typeof cell === "number" ? { class: "number" } : {}, shown(cell)))),
  );
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
}

/** A share between 0 and 1, as a bar that also reads well aloud. */
export function share(value) {
  return element("meter", { min: 0, max: 1, value, "aria-label": percent(value) });
}

export function percent(value) {
  return `${(100 * value).toFixed(1)} %`;
}

function shown(cell) {
  return typeof cell === "number" && !Number.isInteger(cell) ? cell.toFixed(4) : cell;
}
