// Templates: text with blanks. The source is the truth; the page shows it in pieces.

const TOKEN = /\\([[_\\])|(_{3,})|\[MASK(?::(\d+))?(\|open)?\]/g;
const WORD = /[\p{L}\p{N}]+(?:['’-][\p{L}\p{N}]+)*/gu;

/** Pieces in order: {kind: "text" | "word" | "blank", start, end, shown, size}. A blank of one word has size 0. */
export function pieces(source) {
  const found = [];
  let at = 0;
  const plain = (from, to) => {
    const text = source.slice(from, to);
    let last = 0;
    for (const match of text.matchAll(WORD)) {
      if (match.index > last) found.push({ kind: "text", start: from + last, end: from + match.index });
      found.push({ kind: "word", start: from + match.index, end: from + match.index + match[0].length });
      last = match.index + match[0].length;
    }
    if (last < text.length) found.push({ kind: "text", start: from + last, end: to });
  };
  for (const match of source.matchAll(TOKEN)) {
    plain(at, match.index);
    at = match.index + match[0].length;
    const kind = match[1] ? "text" : "blank";
    found.push({ kind, start: match.index, end: at, size: match[2] ? 0 : Number(match[3] ?? 1), shown: match[1], open: !!match[4] });
  }
  plain(at, source.length);
  return found.map((piece) => ({ shown: source.slice(piece.start, piece.end), ...(piece.shown ? piece : { ...piece, shown: source.slice(piece.start, piece.end) }) }));
}

export const blank = (size, open = false) => (size ? `[MASK${size > 1 ? `:${size}` : ""}${open ? "|open" : ""}]` : "___");
export const replaced = (source, piece, text) => source.slice(0, piece.start) + text + source.slice(piece.end);
export const hasBlank = (source) => pieces(source).some((piece) => piece.kind === "blank");
const escaped = (text) => text.replace(/\\|\[(?=MASK)|_/g, "\\$&");

/** The template of a canvas: words at their slots, blanks between. */
export function fromSlots(slots) {
  let source = "";
  let empty = 0;
  const flush = () => {
    if (empty) source += source ? blank(empty, true) : blank(empty);
    empty = 0;
  };
  for (const word of slots) {
    if (!word) {
      empty += 1;
      continue;
    }
    flush();
    source += (source ? " " : "") + escaped(word);
  }
  flush();
  return source;
}

/** Words in their order, at random slots. */
export function scatter(words, length) {
  const places = new Set();
  while (places.size < Math.min(words.length, length - 1)) places.add(Math.floor(Math.random() * length));
  const slots = Array(length).fill("");
  [...places].sort((a, b) => a - b).forEach((place, i) => (slots[place] = words[i]));
  return slots;
}

/** The same template with the sizes that its one-word blanks have been given, as a draft shows them. */
export function sized(source, draft) {
  const runs = [];
  draft.forEach((token, i) => {
    if (token !== null) return;
    if (i > 0 && draft[i - 1] === null) runs[runs.length - 1] += 1;
    else runs.push(1);
  });
  const blanks = pieces(source).filter((piece) => piece.kind === "blank");
  if (blanks.length !== runs.length) return null;
  return blanks.reduceRight((text, piece, i) => (piece.size ? text : replaced(text, piece, blank(runs[i]))), source);
}

const FLAGS = { repetition_penalty: "--repetition-penalty", top_k: "--top-k", top_p: "--top-p", min_p: "--min-p" };
const quoted = (value) => (/^[\w.,:-]+$/.test(value) ? value : `'${String(value).replaceAll("'", "'\\''")}'`);

/** The command line that writes the same. */
export function command(request) {
  const parts = ["pmlm generate", quoted(request.template)];
  for (const [name, value] of Object.entries(request)) {
    if (name === "template" || name === "model") continue;
    if (name === "ban") value.forEach((word) => parts.push("--ban", quoted(word)));
    else if (name === "whole_words") parts.push(value ? "--whole-words" : "--any-pieces");
    else if (name === "written") parts.push("--written", quoted(JSON.stringify(value)));
    else parts.push(FLAGS[name] ?? `--${name}`, quoted(value));
  }
  return parts.join(" ");
}

/** A request in a link, and back. */
export function toHash(requests) {
  return "#" + requests.map((request) => encodeURIComponent(JSON.stringify(request))).join("&");
}
export function fromHash(hash) {
  try {
    return hash.length > 1 ? hash.slice(1).split("&").map((part) => JSON.parse(decodeURIComponent(part))) : [];
  } catch {
    return [];
  }
}
