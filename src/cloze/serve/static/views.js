// Views: response -> elements.
import { element, percent, share, table } from "/static/elements.js";

const titled = (title, ...parts) => element("div", {}, element("h3", {}, title), ...parts);

export function filled(answer, asked) {
  const parts = answer.results.flatMap((blanks, index) =>
    blanks.map((words, number) =>
      titled(
        blanks.length > 1 ? `${asked.texts[index]} (blank ${number + 1})` : asked.texts[index],
        table(["word", "", "probability"], words.map((word) => [word.token, share(word.probability), percent(word.probability)])),
      ),
    ),
  );
  return element("div", {}, ...parts);
}

export function vectors(answer, asked) {
  const found = answer.vectors ?? answer.result ?? answer.data.map((one) => one.embedding);
  const texts = asked.texts ?? asked.input;
  return element("div", {}, ...found.map((vector, index) => titled(`${texts[index]} (${vector.length} numbers)`, stripes(vector))));
}

/** Draw a vector with one pixel per number: blue below zero, orange above, paler near zero. */
function stripes(vector) {
  const canvas = element("canvas", { width: vector.length, height: 1, role: "img", "aria-label": "the vector as colours" });
  const context = canvas.getContext("2d");
  const largest = Math.max(...vector.map(Math.abs)) || 1;
  vector.forEach((value, index) => {
    const strength = Math.sqrt(Math.abs(value) / largest);
    context.fillStyle = value < 0 ? `rgba(45, 105, 190, ${strength})` : `rgba(225, 125, 30, ${strength})`;
    context.fillRect(index, 0, 1, 1);
  });
  return canvas;
}

export function ranked(answer) {
  return table(["text", "", "cosine"], answer.results.map((one) => [one.text, share(Math.max(0, one.score)), one.score]));
}

export function found(answer) {
  if (!answer.results.length) return element("p", { class: "quiet" }, "No document matches.");
  const hits = answer.results.map((one) => {
    const fields = Object.entries(one.fields).map(([name, value]) => `${name}: ${value}`);
    const facts = [one.score.toFixed(4), ...fields].join(" · ");
    return element("li", {}, element("h3", {}, one.id), element("small", { class: "quiet" }, facts), highlighted(one));
  });
  return element("ol", { class: "hits" }, ...hits);
}

/** Show a passage with the words of the query marked. */
function highlighted({ passage, highlights }) {
  const line = element("p", {});
  let end = 0;
  for (const [start, stop] of highlights) {
    line.append(characters(passage, end, start), element("mark", {}, characters(passage, start, stop)));
    end = stop;
  }
  line.append(characters(passage, end));
  return line;
}

export function scored(answer, asked) {
  const rows = answer.results.map((one, index) => [asked.texts[index], one.perplexity ?? "", one.log_probability]);
  return table(["text", "perplexity", "log-probability"], rows);
}

export function followed(answer) {
  return table(["", "probability"], answer.probabilities.map((value) => [share(value), percent(value)]));
}

export function labelled(answer, asked) {
  const parts = answer.results.map((one, index) => {
    if (one.value !== undefined) return titled(asked.texts[index], element("p", {}, one.value.toFixed(4)));
    const labels = one.labels ? one.labels.join(", ") || "none" : one.label ?? `no label (${one.reason})`;
    const rows = Object.entries(one.probabilities).sort((first, second) => second[1] - first[1]);
    return titled(
      `${asked.texts[index]}: ${labels}`,
      table(["label", "", "probability"], rows.map(([label, value]) => [label, share(value), percent(value)])),
    );
  });
  return element("div", {}, ...parts);
}

export function tagged(answer) {
  const parts = answer.results.map((one) => {
    const line = element("p", { class: "tokens" });
    let end = 0;
    for (const name of one.entities) {
      const place = [characters(one.text, end, name.start), characters(one.text, name.start, name.end)];
      line.append(place[0], element("span", { class: "name" }, place[1], element("small", {}, name.label)));
      end = name.end;
    }
    line.append(characters(one.text, end));
    const rows = one.words.map((word) => [word.text, word.tag, percent(word.probability)]);
    return element("div", {}, line, element("details", {}, element("summary", {}, "All words"), table(["word", "tag", "probability"], rows)));
  });
  return element("div", {}, ...parts);
}

/** Slice by code points: the service counts characters, but JavaScript counts UTF-16 units. */
function characters(text, start, end) {
  return Array.from(text).slice(start, end).join("");
}

export function answered(answer) {
  return table(["answer", "", "probability"], answer.answers.map((one) => [one.text || "(none)", share(one.probability), percent(one.probability)]));
}

export function chosen(answer) {
  return table(["option", "", "probability"], answer.options.map((one) => [one.text, share(one.probability), percent(one.probability)]));
}

export function corrected(answer, asked) {
  return table(["original", "corrected"], answer.results.map((one, index) => [asked.texts[index], one.target]));
}

export function tokens(answer) {
  const parts = answer.results.map((one) =>
    element("p", { class: "tokens" }, ...one.tokens.map((token, index) => element("span", { class: "token" }, token, element("small", {}, one.ids[index])))),
  );
  return element("div", {}, ...parts);
}
