// The page at "/": a tab for each route, its form, and what came back.
import { element } from "/static/elements.js";
import { ROUTES } from "/static/routes.js";

const find = (id) => document.getElementById(id);
let models = [];
let asking = 0; // the number of the last question: an answer that comes after another question is not shown

async function start() {
  try {
    const info = await (await fetch("/info")).json();
    models = info.models;
    find("about").textContent = models.map((model) => model.name).join(", ");
  } catch {
    find("about").textContent = "The service does not answer.";
  }
  find("tabs").append(...ROUTES.map(tab));
  find("tabs").addEventListener("keydown", walk);
  find("form").addEventListener("submit", ask);
  window.addEventListener("hashchange", show);
  show();
}

const able = (route) => models.filter((model) => model.does.includes(route.needs));
// As it stands: no path of ours has anything that an address spells otherwise, and "#%" is no spelling of anything.
const current = () => ROUTES.find((route) => `#${route.path}` === location.hash) ?? ROUTES.find((route) => able(route).length) ?? ROUTES[0];

function tab(route) {
  const button = element("button", { type: "button", role: "tab", "data-path": route.path, "aria-controls": "panel" }, route.title);
  if (!able(route).length) button.classList.add("unable");
  button.addEventListener("click", () => { location.hash = route.path; });
  return button;
}

/** Arrows go through the tabs, as screen readers announce them. */
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
  const button = element("button", { type: "submit", disabled: !can.length }, "Ask");
  find("form").replaceChildren(...route.fields.map(field), ...(can.length > 1 ? [choice(can)] : []), button);
  find("result").replaceChildren(...(can.length ? [] : [element("p", { class: "quiet" }, "No model that is served here can do this.")]));
  find("raw").hidden = true;
}

function field({ name, label, hint, kind, example }) {
  const input =
    kind === "number"
      ? element("input", { name, type: "number", min: 1, max: 100, value: example, "data-kind": kind })
      : element(kind === "text" ? "input" : "textarea", { name, "data-kind": kind, spellcheck: "false" });
  if (kind !== "number") input.value = example;
  // As in other places where one writes: enter with control sends.
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

/** The answer, and what is wrong where something is. */
async function send(path, asked) {
  try {
    const response = await fetch(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(asked) });
    const answer = await response.json();
    return [answer, response.ok ? null : answer.error.message];
  } catch (error) {
    return [null, `The service does not answer (${error.message}).`];
  }
}

start();
