// Explanations as coloured words, probable label errors as a table, or an evaluation. All texts are inserted with textContent.
const data = JSON.parse(document.getElementById("facts").textContent);
const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
// At most this many rows or explanations are in the page at once: browsers become slow with more.
const SHOWN = 200;

function make(name, text, className) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
}

function draw(name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(3);
const percent = (value) => (100 * value).toFixed(1) + " %";

function table(header, rows) {
  const element = make("table"), head = make("thead"), body = make("tbody"), first = make("tr");
  header.forEach(([name, kind]) => first.append(make("th", name, kind)));
  head.append(first);
  for (const row of rows) {
    const line = make("tr");
    row.forEach((cell, column) => line.append(make("td", cell, header[column][1])));
    body.append(line);
  }
  element.append(head, body);
  return element;
}

// -- explanations -----------------------------------------------------------------------------------------------------

function colouredText(why, part, measure) {
  const characters = Array.from(why.texts[part]); // offsets count code points, JavaScript counts UTF-16 units
  const largest = Math.max(1e-9, ...why.words.map((word) => Math.abs(word[measure])));
  const paragraph = make("p", undefined, "text");
  let at = 0;
  for (const word of why.words.filter((one) => one.part === part)) {
    if (word.start < at) continue; // a word that a window has cut into overlapping parts
    paragraph.append(characters.slice(at, word.start).join(""));
    const span = make("span", characters.slice(word.start, word.end).join(""), "word");
    const value = word[measure];
    span.classList.add(value < 0 ? "against" : "for");
    span.style.setProperty("--share", (0.75 * Math.abs(value) / largest).toFixed(3));
    if (why.span && part === 0 && word.start >= why.span[0] && word.end <= why.span[1]) span.classList.add("target");
    span.title = signed(value);
    paragraph.append(span);
    at = word.end;
  }
  paragraph.append(characters.slice(at).join(""));
  return paragraph;
}

function explanation(why, measure) {
  const article = make("article"), header = make("header");
  const name = why.label === null ? `value ${why.output.toFixed(3)}` : why.label;
  const target = why.span ? ` — ${Array.from(why.texts[0]).slice(...why.span).join("")}` : "";
  header.append(make("h2", name + target));
  if (why.probability !== null) header.append(make("span", percent(why.probability), "facts"));
  article.append(header);
  why.texts.forEach((_, part) => article.append(colouredText(why, part, measure)));
  const unit = why.label === null ? "value" : "log-odds";
  let facts = `${unit} ${signed(why.output)}, baseline ${signed(why.baseline)}; convergence delta ${signed(why.delta)} after ${why.steps} steps`;
  if (why.agreement !== null) facts += `; rank correlation with occlusion ${why.agreement.toFixed(2)}`;
  article.append(make("p", facts, "facts"));
  const details = make("details");
  details.append(make("summary", "Words"));
  const checked = why.words.some((word) => word.occlusion !== null);
  const header_ = [["word", ""], ["attribution", "number"], ...(checked ? [["occlusion", "number"]] : [])];
  const ranked = [...why.words].sort((one, other) => Math.abs(other.value) - Math.abs(one.value));
  details.append(table(header_, ranked.map((word) => [word.text, signed(word.value), ...(checked ? [signed(word.occlusion)] : [])])));
  article.append(details);
  return article;
}

function curves(faithfulness) {
  const width = 520, height = 240, left = 44, bottom = 34, top = 12, right = 90;
  const figure = make("figure"), svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  const values = [...faithfulness.deletion, ...faithfulness.random_deletion];
  const low = Math.min(0, ...values), high = Math.max(1e-9, ...values);
  const x = (index) => left + (index / (faithfulness.deletion.length - 1)) * (width - left - right);
  const y = (value) => height - bottom - ((value - low) / (high - low)) * (height - bottom - top);
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    const value = low + share * (high - low);
    svg.append(draw("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), class: "grid" }));
    svg.append(draw("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, value.toFixed(2)));
  }
  [0, 5, 10].forEach((index) => svg.append(draw("text", { x: x(index), y: height - 14, "text-anchor": "middle" }, `${10 * index} %`)));
  for (const [name, kind, title] of [["random_deletion", "random", "random order"], ["deletion", "ours", "by attribution"]]) {
    const curve = faithfulness[name], last = curve.length - 1;
    svg.append(draw("polyline", { points: curve.map((value, index) => `${x(index)},${y(value)}`).join(" "), class: kind }));
    const middle = Math.floor(last / 3);
    svg.append(draw("text", { x: x(middle) + 8, y: y(curve[middle]) - 6, class: `${kind}-name` }, title));
  }
  const [gain, from, to] = faithfulness.gain;
  figure.append(make("h2", "Deletion curve: output with this share of the words removed"), svg);
  figure.append(make("figcaption", `Mean over ${faithfulness.texts} explanations. Area between the curves ${signed(gain)} ` +
    `(95 % interval ${signed(from)} to ${signed(to)}); lower than random for ${percent(faithfulness.better)} of them. ` +
    "Above 0, the attributions find the words that matter better than chance."));
  return figure;
}

function legend(kind, text) {
  const element = make("span", undefined, `legend facts ${kind}`);
  element.append(make("i"), text);
  return element;
}

function showExplanations() {
  const main = byId("main"), all = data.explanations;
  byId("summary").textContent = `${data.model}: ${all.length} explanations`;
  const measures = all.some((why) => why.words.some((word) => word.occlusion !== null));
  const select = make("select");
  for (const [value, name] of [["value", "integrated gradients"], ["occlusion", "occlusion"]]) {
    const option = make("option", name);
    option.value = value;
    select.append(option);
  }
  select.setAttribute("aria-label", "Measure");
  if (measures) byId("controls").append(select);
  byId("controls").append(legend("for", "supports the label"), legend("against", "speaks against it"));
  const render = () => {
    const parts = all.slice(0, SHOWN).map((why) => explanation(why, select.value));
    main.replaceChildren(...(data.faithfulness ? [curves(data.faithfulness)] : []), ...parts);
  };
  select.addEventListener("change", render);
  render();
  byId("notes").textContent = "The colour of a word is its share of the output: integrated gradients of the log-odds of the label " +
    "(or of the number), from a text in which every word is masked. The values of all words add up to the output minus that of the " +
    "masked text." + (all.length > SHOWN ? ` Only the first ${SHOWN} explanations are shown.` : "");
}

// -- label errors -----------------------------------------------------------------------------------------------------

function showErrors() {
  const main = byId("main"), controls = byId("controls"), names = [...new Set(data.rows.map((row) => row.label))].sort();
  byId("summary").textContent = data.summary;
  const filter = make("input"), label = make("select"), every = make("option", "all labels");
  filter.type = "search";
  filter.placeholder = "Search texts";
  filter.setAttribute("aria-label", "Search texts");
  label.setAttribute("aria-label", "Given label");
  every.value = "";
  label.append(every, ...names.map((name) => make("option", name)));
  const only = make("input"), box = make("label");
  only.type = "checkbox";
  only.checked = data.rows.some((row) => row.issue);
  box.append(only, "probable errors only");
  controls.append(filter, label, box);
  const header = [["row", ""], ["text", "long"], ["given", ""], ["suggested", ""], ["probability", "number"], ["of the given", "number"]];
  const render = () => {
    const wanted = filter.value.toLowerCase();
    const kept = data.rows.filter((row) => (!only.checked || row.issue) &&
      (label.selectedIndex === 0 || row.label === names[label.selectedIndex - 1]) && row.texts.join("\n").toLowerCase().includes(wanted));
    const rows = kept.slice(0, SHOWN).map((row) =>
      [row.row, row.texts.join("\n"), row.label, row.suggested, percent(row.probability), percent(row.given_probability)]);
    const article = make("article");
    article.append(make("p", `${kept.length} rows` + (kept.length > SHOWN ? `; the first ${SHOWN} are shown` : ""), "facts"), table(header, rows));
    main.replaceChildren(article);
  };
  for (const control of [filter, label, only]) control.addEventListener("input", render);
  render();
  byId("notes").textContent = data.notes;
}

// -- evaluations ------------------------------------------------------------------------------------------------------

function scoreTable([header, rows]) {
  return table(header.map((name, column) => [name, column ? "number" : ""]), rows);
}

function results(title, entries) {
  const section = make("section"), list = make("ol");
  section.append(make("h3", title));
  for (const entry of entries) {
    const item = make("li", undefined, entry.relevant ? "relevant" : "");
    item.append(make("span", entry.id, "facts"), make("p", entry.text, "passage"));
    list.append(item);
  }
  section.append(list);
  return section;
}

function query(row) {
  const article = make("article"), header = make("header"), columns = make("div", undefined, "columns");
  const place = (system) => system.first === null ? "none found" : `first relevant at rank ${system.first}`;
  header.append(make("h2", row.text), make("span", row.query, "facts"));
  columns.append(results("Relevant", row.relevant));
  for (const system of row.systems) {
    columns.append(results(`${system.name}: ${data.metric} ${system.score.toFixed(3)}, ${place(system)}`, system.results));
  }
  article.append(header, columns);
  return article;
}

function showEvaluation() {
  const main = byId("main"), filter = make("input"), order = make("select"), list = make("div");
  byId("summary").textContent = data.model;
  const scores = make("article");
  scores.append(...data.tables.map(scoreTable), ...data.lines.map((line) => make("p", line, "facts")));
  filter.type = "search";
  filter.placeholder = "Search texts";
  filter.setAttribute("aria-label", "Search texts");
  order.setAttribute("aria-label", "Order");
  main.append(scores, list);
  byId("controls").append(filter);
  const wanted = () => filter.value.toLowerCase();
  const worst = (row) => row.systems[0].score;
  const lost = (row) => row.systems[0].score - row.systems[row.systems.length - 1].score;
  const showQueries = () => {
    const key = order.selectedIndex ? lost : worst;
    const sorted = [...data.queries].sort((one, other) => key(one) - key(other));
    const text = (row) => [row.text, ...row.relevant.map((one) => one.text)].join("\n").toLowerCase();
    const kept = sorted.filter((row) => text(row).includes(wanted()));
    list.replaceChildren(make("p", `${kept.length} queries`, "facts"), ...kept.slice(0, SHOWN).map(query));
  };
  const showRows = () => {
    const kept = data.rows.filter((row) => Object.values(row).join("\n").toLowerCase().includes(wanted()));
    const article = make("article"), names = Object.keys(data.rows[0] || { row: 0 });
    article.append(make("p", `${kept.length} of ${data.wrong} rows`, "facts"));
    article.append(table(names.map((name) => [name, name === "row" ? "" : "long"]), kept.map((row) => names.map((name) => row[name]))));
    list.replaceChildren(article);
  };
  const render = data.queries ? showQueries : showRows;
  if (data.queries && data.queries.some((row) => row.systems.length > 1)) {
    const last = data.queries[0].systems[data.queries[0].systems.length - 1].name;
    order.append(make("option", "worst first"), make("option", `furthest behind ${last}`));
    byId("controls").append(order);
  }
  for (const control of [filter, order]) control.addEventListener("input", render);
  render();
  byId("notes").textContent = data.notes;
}

byId("heading").textContent = data.title;
if (data.kind === "explanations") showExplanations();
else if (data.kind === "evaluation") showEvaluation();
else showErrors();
