// Templates: text with blanks. The source is the truth; the page shows it in pieces.

const TOKEN = /\\([[_\\])|(_{3,})|\[(MASK|WORD)((?:[:|](?:\\.|[^\][\\])*)?)\]/gs;
const WORD = /[\p{L}\p{N}]+(?:['’-][\p{L}\p{N}]+)*/gu;

/** Pieces in order: {kind: "text" | "word" | "blank", start, end, shown}; a blank also has what `readBlank` says. */
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
    const place = { start: match.index, end: at };
    found.push(match[1] ? { kind: "text", shown: match[1], ...place } : { kind: "blank", ...readBlank(match), ...place });
  }
  plain(at, source.length);
  return found.map((piece) => ({ shown: source.slice(piece.start, piece.end), ...piece }));
}

/** word: one word and nothing else; size: "6", "5-15", "*" or "" (one token, or as many as the word needs); options. */
function readBlank([, , line, name, rest]) {
  const [size, ...options] = (rest ?? "").split(/(?<!\\)\|/);
  return { word: Boolean(line) || name === "WORD", size: size.slice(1), options };
}

/** A blank as it is written in a template. */
export function blank({ word = false, size = "", options = [] }) {
  if (word && !size && !options.length) return "___";
  const number = size && (word || size !== "1") ? `:${size}` : "";
  return `[${word ? "WORD" : "MASK"}${number}${options.map((option) => `|${option}`).join("")}]`;
}
export const NAMED = ["starts", "ends", "in", "regex"];
const inOption = (text) => text.replace(/[[\]|]/g, "\\$&");

/** Options of a blank as {starts, ends, in, regex, digits}, and back; others (`open`, `line`) are kept as they are. */
export function readOptions(options) {
  const named = options.map((option) => option.split(/=(.*)/s)).filter(([name]) => NAMED.includes(name));
  return { digits: options.includes("digits"), ...Object.fromEntries(named.map(([name, value]) => [name, value.replace(/\\([[\]|])/g, "$1")])) };
}
export function writeOptions(wishes, before) {
  const others = before.filter((option) => option !== "digits" && !NAMED.includes(option.split("=")[0]));
  return [...others, ...(wishes.digits ? ["digits"] : []),
    ...NAMED.filter((name) => wishes[name]).map((name) => `${name}=${inOption(wishes[name])}`)];
}

export const replaced = (source, piece, text) => source.slice(0, piece.start) + text + source.slice(piece.end);
export const hasBlank = (source) => pieces(source).some((piece) => piece.kind === "blank");
const escaped = (text) => text.replace(/\\|\[(?=MASK|WORD)|_/g, "\\$&");

/** The template of a canvas: words at their slots, blanks between. */
export function fromSlots(slots) {
  let source = "";
  let empty = 0;
  const flush = () => {
    if (empty) source += blank({ size: String(empty), options: source ? ["open"] : [] });
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

/** Positions as people write them, "2, 0, 1"; null where they are something else. */
export function positions(text) {
  const parts = text.split(/[\s,]+/).filter(Boolean);
  return parts.length && parts.every((part) => /^\d+$/.test(part)) ? parts.map(Number) : null;
}

const quoted = (value) => (/^[\w.,:-]+$/.test(value) ? value : `'${String(value).replaceAll("'", "'\\''")}'`);

/** The command line that writes the same; `model` is named where it is not the one inside the package. */
export function command({ template, model, ...options }, isInside) {
  const parts = [];
  for (const [name, value] of Object.entries(options)) {
    const flag = `--${name.replaceAll("_", "-")}`;
    if (name === "ban" || name === "must") value.forEach((word) => parts.push(flag, quoted(word)));
    else if (name === "whole_words") parts.push(value ? flag : "--any-pieces");
    else if (name === "written") parts.push(flag, quoted(JSON.stringify(value)));
    else parts.push(flag, quoted(value));
  }
  if (!isInside) parts.push("-m", quoted(model ?? "MODEL"));
  const given = template.startsWith("-") ? [...parts, "--", quoted(template)] : [quoted(template), ...parts];
  return ["pmlm generate", ...given].join(" ");
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
