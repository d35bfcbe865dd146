// The form for texts, on a page that the service delivered.

import { say } from "./beside.js";
import { element, made } from "./controls.js";
import { askService, servedModels } from "./source.js";
import { addressQuestion, keepInAddress } from "./state.js";

const EXAMPLE_TEXTS = ["I went to the store.", "At the store, I bought fresh strawberries."];

export function startAsking(startView) {
  const form = element("ask");
  form.hidden = false;
  document.body.classList.add("waiting");

  async function look(texts, model) {
    say("Loading\u2026");
    try {
      await askService(texts, model);
    } catch (error) {
      say(error.message);
      return;
    }
    const asked = texts.length > 1 ? { a: texts[0], b: texts[1] } : { a: texts[0] };
    keepInAddress(model ? { model, ...asked } : asked);
    document.body.classList.remove("waiting");
    startView();
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const [first, second] = [element("text-a").value, element("text-b").value];
    look(second.trim() ? [first, second] : [first], element("ask-model").value);
  });
  const wanted = addressQuestion();
  const texts = wanted.texts ?? EXAMPLE_TEXTS;
  [element("text-a").value, element("text-b").value] = [texts[0], texts[1] ?? ""];
  offerModels(wanted.model);
  look(texts, wanted.model);
}

// Offer a choice of models if the service has several.
async function offerModels(chosen) {
  const names = await servedModels().catch(() => []);
  element("ask-model").replaceChildren(...names.map((name) => made("option", name, { value: name })));
  element("models").hidden = names.length < 2;
  if (names.includes(chosen)) element("ask-model").value = chosen;
}
