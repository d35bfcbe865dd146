// The routes of the page: the form fields of each and the view of its response.
import * as views from "/static/views.js";

const lines = (name, label, example) => ({ name, label, hint: "one per line", kind: "lines", example });
const text = (name, label, example, kind = "text") => ({ name, label, kind, example });
const top = (example) => ({ name: "top", label: "Number of results", kind: "number", example });

export const ROUTES = [
  {
    path: "/fill", title: "Fill", needs: "fill", view: views.filled,
    summary: "Predict the most likely words for each [MASK].",
    fields: [lines("texts", "Texts", "He shook his [MASK] and said nothing."), top(5)],
  },
  {
    path: "/embed", title: "Embed", needs: "embed", view: views.vectors,
    summary: "Embed each text as a vector. Similar colours at the same places mean similar texts.",
    fields: [lines("texts", "Texts", "a ship at sea\na boat on the water\nthe price of bread")],
  },
  {
    path: "/rerank", title: "Rerank", needs: "embed", view: views.ranked,
    summary: "Rank texts by similarity to a query.",
    fields: [text("query", "Query", "a ship at sea"), lines("texts", "Texts", "the price of bread\na boat on the water\nsailors far from land")],
  },
  {
    path: "/search", title: "Search", needs: "search", view: views.found,
    summary: "Search the index of this service by meaning and by words.",
    fields: [text("query", "Query", "a ship at sea"), { ...lines("where", "Conditions", ""), hint: "such as year>=2020, one per line" }, top(10)],
  },
  {
    path: "/classify", title: "Classify", needs: "classify", view: views.labelled,
    summary: "Label each text, with a model fine-tuned for classification.",
    fields: [lines("texts", "Texts", "It was the best of times.")],
  },
  {
    path: "/tag", title: "Tag", needs: "tag", view: views.tagged,
    summary: "Find names (entities) in texts.",
    fields: [lines("texts", "Texts", "Mr. Darcy left London with Elizabeth.")],
  },
  {
    path: "/answer", title: "Answer", needs: "answer", view: views.answered,
    summary: "Find the answer to a question in a text.",
    fields: [text("question", "Question", "Who left London?"), text("context", "Text", "Mr. Darcy left London with Elizabeth.", "area"), top(3)],
  },
  {
    path: "/choose", title: "Choose", needs: "choose", view: views.chosen,
    summary: "Choose the option that fits the prompt best.",
    fields: [text("prompt", "Prompt", "He opened the door"), lines("options", "Options", "and went into the room.\nof the green elephants.")],
  },
  {
    path: "/correct", title: "Correct", needs: "correct", view: views.corrected,
    summary: "Correct mistakes in texts.",
    fields: [lines("texts", "Texts", "He opened teh door.")],
  },
  {
    path: "/score", title: "Score", needs: "score", view: views.scored,
    summary: "Score how likely texts are, by masking each token in turn. Lower perplexity means more likely.",
    fields: [lines("texts", "Texts", "He shook his head and said nothing.\nHe shook his door and said nothing.")],
  },
  {
    path: "/follows", title: "Follows", needs: "follows", view: views.followed,
    summary: "Predict how likely the second text follows the first.",
    fields: [text("texts", "Text", "He opened the door."), text("pairs", "Second text", "The room was empty.")],
  },
  {
    path: "/tokenize", title: "Tokenize", needs: "embed", view: views.tokens,
    summary: "Show the tokens of texts and their ids.",
    fields: [lines("texts", "Texts", "unbelievably, the tokenizer knows it")],
  },
  {
    path: "/v1/embeddings", title: "OpenAI", needs: "embed", view: views.vectors,
    summary: "Embed texts with the request format of OpenAI's API.",
    fields: [lines("input", "Input", "a ship at sea\na boat on the water")],
  },
  {
    path: "/encode", title: "bert-as-service", needs: "embed", view: views.vectors,
    summary: "Embed texts with the request format of bert-as-service's HTTP server (its Python client uses ZMQ instead).",
    fields: [lines("texts", "Texts", "hello world\ngood day")],
  },
];
