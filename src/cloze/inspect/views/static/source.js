// The source of facts and weights: this file itself, or the service that delivered it. A layer is loaded when it is
// first shown, and the most recent layers stay in memory.

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
  source.key += 1; // responses that are still pending belong to other facts
  for (let step = 0; step < 256; step += 1) source.values[step] = Math.min(1, (step / facts.levels) ** 2);
}

// Return the names of the served models.
export async function servedModels() {
  const answer = await fetch("v1/models");
  return answer.ok ? (await answer.json()).data.map((model) => model.id) : [];
}

// Send one or two texts to the service and use the facts it returns. Failures throw the error message of the service.
export async function askService([text, pair], model) {
  const body = { text, ...(pair === undefined ? {} : { pair }), ...(model ? { model } : {}) };
  const answer = await fetch("inspect/view", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  const said = await answer.json().catch(() => null);
  if (!answer.ok) throw new Error(said?.error?.message ?? `the service responded with status ${answer.status}`);
  useFacts(said);
}

// Return a promise of the quantized weights of a layer, (heads, from, to), in one array of bytes.
export function layerSteps(layer) {
  const { decoded } = source;
  if (!decoded.has(layer)) {
    const work = readLayer(layer);
    work.catch(() => decoded.delete(layer)); // so that it is requested again
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
  if (!answer.ok) throw new Error("the service no longer has this text; press Show again");
  return answer.arrayBuffer();
}

// A large file is shown before all of it is loaded.
async function layerElement(layer) {
  const find = () => document.getElementById(`layer-${layer}`);
  // An element exists before its text is complete; it is complete when another element follows it.
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
