// What can be tried: the fields of each route, and the view of its answer.
import * as views from "/static/views.js";

const lines = (name, label, example) => ({ name, label, hint: "one a line", kind: "lines", example });
const text = (name, label, example, kind = "text") => ({ name, label, kind, example });
const top = (example) => ({ name: "top", label: "How many", kind: "number", example });

export const ROUTES = [
  {
    path: "/fill", title: "Fill", needs: "fill", view: views.filled,
    summary: "The words that fit best where [MASK] stands.",
    fields: [lines("texts", "Texts", "He shook his [MASK] and said nothing."), top(5)],
  },
  {
    path: "/embed", title: "Embed", needs: "embed", view: views.vectors,
    summary: "A vector for each text; like colours at the same place mean like texts.",
    fields: [lines("texts", "Texts", "a ship at sea\na boat on the water\nthe price of bread")],
  },
  {
    path: "/rerank", title: "Rerank", needs: "embed", view: views.ranked,
    summary: "Texts by how near their meaning is to a query's.",
    fields: [text("query", "Query", "a ship at sea"), lines("texts", "Texts", "the price of bread\na boat on the water\nsailors far from land")],
  },
  {
    path: "/classify", title: "Classify", needs: "classify", view: views.labelled,
    summary: "A label for each text, from a model that was trained for it.",
    fields: [lines("texts", "Texts", "It was the best of times.")],
  },
  {
    path: "/tag", title: "Tag", needs: "tag", view: views.tagged,
    summary: "The names in texts.",
    fields: [lines("texts", "Texts", "Mr. Darcy left London with Elizabeth.")],
  },
  {
    path: "/answer", title: "Answer", needs: "answer", view: views.answered,
    summary: "Where in a text the answer to a question stands.",
    fields: [text("question", "Question", "Who left London?"), text("context", "Text", "Mr. Darcy left London with Elizabeth.", "area"), top(3)],
  },
  {
    path: "/choose", title: "Choose", needs: "choose", view: views.chosen,
    summary: "Which of several options goes on best.",
    fields: [text("prompt", "Prompt", "He opened the door"), lines("options", "Options", "and went into the room.\nof the green elephants.")],
  },
  {
    path: "/correct", title: "Correct", needs: "correct", view: views.corrected,
    summary: "Texts as they should read.",
    fields: [lines("texts", "Texts", "He opened teh door.")],
  },
  {
    path: "/score", title: "Score", needs: "score", view: views.scored,
    summary: "How likely texts are: each piece is hidden in turn. The lower the perplexity, the likelier.",
    fields: [lines("texts", "Texts", "He shook his head and said nothing.\nHe shook his door and said nothing.")],
  },
  {
    path: "/follows", title: "Follows", needs: "follows", view: views.followed,
    summary: "How likely one text follows another.",
    fields: [text("texts", "Text", "He opened the door."), text("pairs", "What may follow", "The room was empty.")],
  },
  {
    path: "/tokenize", title: "Tokenize", needs: "embed", view: views.tokens,
    summary: "The pieces that a model reads instead of words, with their ids.",
    fields: [lines("texts", "Texts", "unbelievably, the tokenizer knows it")],
  },
  {
    path: "/v1/embeddings", title: "OpenAI", needs: "embed", view: views.vectors,
    summary: "Vectors, asked for as OpenAI's clients do.",
    fields: [lines("input", "Input", "a ship at sea\na boat on the water")],
  },
  {
    path: "/encode", title: "bert-as-service", needs: "embed", view: views.vectors,
    summary: "Vectors, asked for as over bert-as-service's HTTP (its own client speaks ZMQ).",
    fields: [lines("texts", "Texts", "hello world\ngood day")],
  },
];
