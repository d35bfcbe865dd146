// The page at "/docs": the OpenAPI description in readable form.
import { element, table } from "/static/elements.js";

const description = await (await fetch("/openapi.json")).json();

function type(schema) {
  if (schema.anyOf) return schema.anyOf.map(type).filter((one) => one !== "null").join(" or ");
  if (schema.type === "array") return `list of ${type(schema.items ?? {})}`;
  if (schema.enum) return schema.enum.join(" or ");
  return schema.type ?? "any";
}

function limits(schema) {
  const found = schema.anyOf?.find((one) => one.type !== "null") ?? schema;
  const parts = [schema.description, schema.default != null ? `Default: ${JSON.stringify(schema.default)}.` : null];
  if (found.minimum !== undefined) parts.push(`From ${found.minimum}${found.maximum !== undefined ? ` to ${found.maximum}` : ""}.`);
  return parts.filter(Boolean).join(" ");
}

function takes(schema) {
  const rows = Object.entries(schema.properties).map(([name, one]) => [
    element("code", {}, name), type(one), schema.required?.includes(name) ? "required" : "", limits(one),
  ]);
  return table(["key", "type", "", ""], rows);
}

function example(path, schema) {
  const body = schema.examples?.[0];
  if (!body) return "";
  return element("pre", {}, `curl ${location.origin}${path} -H 'content-type: application/json' -d '${JSON.stringify(body)}'`);
}

function route(path, verb, operation) {
  const schema = operation.requestBody?.content["application/json"].schema;
  const answers = Object.entries(operation.responses).filter(([status]) => status !== "200" && status !== "422");
  return element(
    "article", { class: "route" },
    element("h2", {}, element("span", { class: "verb" }, verb.toUpperCase()), element("code", {}, path)),
    element("p", {}, operation.summary ?? ""),
    ...(schema ? [takes(schema), example(path, schema)] : []),
    ...(answers.length ? [element("details", {}, element("summary", {}, "Errors"), table(["status", "meaning"], answers.map(([status, one]) => [status, one.description])))] : []),
  );
}

document.getElementById("routes").append(
  ...Object.entries(description.paths).flatMap(([path, verbs]) => Object.entries(verbs).map(([verb, operation]) => route(path, verb, operation))),
);
