// Where facts and weights come from: this file itself, or the service that gave it out. A layer is read when it is
// first looked at, and the last few are kept.

const KEPT_LAYERS = 6;

export const source = { facts: null, served: false, decoded: new Map(), values: new Float32Array(256), key: 0 };

export function startSource() {
  const element = document.getElementById("facts");
  source.served = element === null;
  if (element) useFacts(JSON.parse(element.textContent));
}

export function useFacts(facts) {
  source.facts = facts;
  source.decoded.clear();
  source.key += 1; // whatever is still on its way belongs to other facts
  for (let step = 0; step < 256; step += 1) source.values[step] = Math.min(1, (step / facts.levels) ** 2);
}

// The names of the models that the service has.
export async function servedModels() {
  const answer = await fetch("v1/models");
  return answer.ok ? (await answer.json()).data.map((model) => model.id) : [];
}

// A text, or two, to the service; its facts back. What went wrong comes as an error with the service's own words.
export async function askService([text, pair], model) {
  const body = { text, ...(pair === undefined ? {} : { pair }), ...(model ? { model } : {}) };
  const answer = await fetch("inspect/view", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  const said = await answer.json().catch(() => null);
  if (!answer.ok) throw new Error(said?.error?.message ?? `the service answered ${answer.status}`);
  useFacts(said);
}

// The weights of a layer as a promise of steps, (heads, from, to) in one array of bytes.
export function layerSteps(layer) {
  const { decoded } = source;
  if (!decoded.has(layer)) {
    const work = readLayer(layer);
    work.catch(() => decoded.delete(layer)); // so that it is asked for again
    decoded.set(layer, work);
    if (decoded.size > KEPT_LAYERS) decoded.delete(decoded.keys().next().value);
  }
  return decoded.get(layer);
}

async function readLayer(layer) {
  const { facts } = source;
  const packed = source.served ? await fetchLayer(layer) : fromBase64((await layerElement(layer)).textContent);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const steps = new Uint8Array(await new Response(stream).arrayBuffer());
  const expected = facts.heads * facts.tokens.length ** 2;
  if (steps.length !== expected) throw new Error(`layer ${layer} has ${steps.length} weights, not ${expected}`);
  return steps;
}

async function fetchLayer(layer) {
  const answer = await fetch(`inspect/weights/${encodeURIComponent(source.facts.id)}/${layer}`);
  if (!answer.ok) throw new Error("the service has forgotten this text; press Look again");
  return answer.arrayBuffer();
}

// A large file is shown before the rest of it is read.
async function layerElement(layer) {
  const find = () => document.getElementById(`layer-${layer}`);
  // An element is there before all of its text is; one that has something behind it is whole.
  if (document.readyState === "loading" && !find()?.nextElementSibling) {
    await new Promise((done) => document.addEventListener("DOMContentLoaded", done, { once: true }));
  }
  const found = find();
  if (!found) throw new Error(`layer ${layer} is missing; the file was cut short`);
  return found;
}

export function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const characters = atob(text);
  const bytes = new Uint8Array(characters.length);
  for (let place = 0; place < bytes.length; place += 1) bytes[place] = characters.charCodeAt(place);
  return bytes;
}
