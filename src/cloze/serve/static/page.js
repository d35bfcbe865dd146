// The page at "/": a tab for each route with its form and its response.
import { element } from "/static/elements.js";
import { ROUTES } from "/static/routes.js";

const find = (id) => document.getElementById(id);
let models = [];
let asking = 0; // number of the latest request; responses to earlier ones are not shown

async function start() {
  try {
    const info = await (await fetch("/info")).json();
    models = info.models;
    find("about").textContent = models.map((model) => model.name).join(", ");
  } catch {
    find("about").textContent = "The service does not respond.";
  }
  find("tabs").append(...ROUTES.map(tab));
  find("tabs").addEventListener("keydown", walk);
  find("form").addEventListener("submit", ask);
  window.addEventListener("hashchange", show);
  show();
}

const able = (route) => models.filter((model) => model.does.includes(route.needs));
// The hash is compared without decoding: no path needs escapes, and decoding a malformed hash such as "#%" would throw.
const current = () => ROUTES.find((route) => `#${route.path}` === location.hash) ?? ROUTES.find((route) => route.path === "/search" && able(route).length) ?? ROUTES.find((route) => able(route).length) ?? ROUTES[0];

function tab(route) {
  const button = element("button", { type: "button", role: "tab", "data-path": route.path, "aria-controls": "panel" }, route.title);
  if (!able(route).length) button.classList.add("unable");
  button.addEventListener("click", () => { location.hash = route.path; });
  return button;
}

/** Move through the tabs with the arrow keys, as the ARIA tab pattern requires. */
function walk(event) {
  const tabs = [...find("tabs").children];
  const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
  const next = { Home: 0, End: tabs.length - 1 }[event.key] ?? (step && (tabs.indexOf(document.activeElement) + step + tabs.length) % tabs.length);
  if (next === undefined) return;
  event.preventDefault();
  tabs[next].focus();
  tabs[next].click();
}

function show() {
  asking += 1;
  const route = current();
  for (const button of find("tabs").children) {
    const chosen = button.dataset.path === route.path;
    button.setAttribute("aria-selected", chosen);
    button.tabIndex = chosen ? 0 : -1;
  }
  find("title").textContent = route.title;
  find("summary").textContent = route.summary;
  const can = able(route);
  const button = element("button", { type: "submit", disabled: !can.length }, "Send");
  find("form").replaceChildren(...route.fields.map(field), ...(can.length > 1 ? [choice(can)] : []), button);
  find("result").replaceChildren(...(can.length ? [] : [element("p", { class: "quiet" }, "No served model supports this.")]));
  find("raw").hidden = true;
}

function field({ name, label, hint, kind, example }) {
  const input =
    kind === "number"
      ? element("input", { name, type: "number", min: 1, max: 100, value: example, "data-kind": kind })
      : element(kind === "text" ? "input" : "textarea", { name, "data-kind": kind, spellcheck: "false" });
  if (kind !== "number") input.value = example;
  // Ctrl+Enter sends the form.
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) find("form").requestSubmit();
  });
  return element("label", {}, element("span", {}, label, " ", element("small", {}, hint ?? "")), input);
}

function choice(can) {
  return element("label", {}, "Model", element("select", { name: "model", "data-kind": "text" }, ...can.map(({ name }) => element("option", { value: name }, name))));
}

function question() {
  const asked = {};
  for (const input of find("form").querySelectorAll("[name]")) {
    const readings = { number: Number, lines: (value) => value.split("\n").filter((line) => line.trim()) };
    asked[input.name] = (readings[input.dataset.kind] ?? String)(input.value);
  }
  return asked;
}

async function ask(event) {
  event.preventDefault();
  const [route, asked, number] = [current(), question(), (asking += 1)];
  const button = find("form").querySelector("button");
  button.disabled = true;
  const start = performance.now();
  const [answer, trouble] = await send(route.path, asked);
  button.disabled = false;
  if (number !== asking) return;
  const milliseconds = Math.round(performance.now() - start);
  find("result").replaceChildren(
    trouble ? element("p", { class: "error", role: "alert" }, trouble) : route.view(answer, asked),
    element("p", { class: "quiet" }, `${milliseconds} ms`),
  );
  find("asked").textContent = `POST ${route.path}\n${JSON.stringify(asked, null, 2)}`;
  find("answered").textContent = JSON.stringify(answer, (_, value) => (Array.isArray(value) && value.length > 50 && typeof value[0] === "number" ? [...value.slice(0, 6), `and ${value.length - 6} more`] : value), 2);
  find("raw").hidden = false;
}

/** Send a request; return its response, and an error message or null. */
async function send(path, asked) {
  try {
    const response = await fetch(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(asked) });
    const answer = await response.json();
    return [answer, response.ok ? null : answer.error.message];
  } catch (error) {
    return [null, `The service does not respond (${error.message}).`];
  }
}

start();
