// The page: what is given, how it is to be written, and the stages on which that happens.

import { models, setToken } from "./api.js";
import { Stage } from "./stage.js";
import {
  NAMED, blank, fromHash, fromSlots, hasBlank, pieces, positions, readOptions, replaced, scatter, toHash, writeOptions,
} from "./template.js";

const $ = (id) => document.getElementById(id);
const EXAMPLES = {
  "Figure 1": { words: "The quick brown fox jumps over the lazy dog", length: 48 },
  "Figure 5": { template: "Tom is a cat and Jerry is a mouse. [MASK:30] Tom and Jerry become good friends in the end." },
  "Acrostic": { template: "[MASK:8|starts=T|ends=.] [MASK:8|starts=O|ends=.] [MASK:8|starts=M|ends=.]" },
};
const NUMBERS = ["top_k", "top_p", "min_p", "repetition_penalty", "num_words", "particles"];
const WORDS = ["ban", "must"];
let remembered = []; // for each blank the word that it was made from
let slots = Array(48).fill("");
let stages = [];
let served = []; // the models that write
let edited = null; // the number of the blank that is being changed

// --- what is given

function setTemplate(source, words = []) {
  $("template").value = source;
  remembered = words;
  drawChips();
  drawEditor();
}

function drawChips() {
  const source = $("template").value;
  let count = 0;
  $("chips").replaceChildren(...pieces(source).map((piece) => {
    if (piece.kind === "text") return piece.shown;
    return piece.kind === "word" ? wordChip(source, piece, count) : blankChip(source, piece, count++);
  }));
}

const WHOLE = "button.word, .blank button.back"; // one for each word and blank
/** Change the text and have the focus where it was: on the button of that kind with the same number. */
const keepFocus = (button, change, kind = WHOLE) => {
  const index = [...$("chips").querySelectorAll(kind)].indexOf(button);
  change();
  $("chips").querySelectorAll(kind)[index]?.focus();
};

function wordChip(source, piece, count) {
  const button = Object.assign(document.createElement("button"), { className: "word", textContent: piece.shown, title: "Make this a blank" });
  button.addEventListener("click", () => keepFocus(button, () =>
    setTemplate(replaced(source, piece, blank({ word: true })), remembered.toSpliced(count, 0, piece.shown))));
  return button;
}

function blankChip(source, piece, number) {
  const chip = Object.assign(document.createElement("span"), { className: "blank" });
  const resize = (size) => () =>
    setTemplate(replaced(source, piece, blank({ word: size < 2, size: size < 2 ? "" : String(size), options: piece.options })), remembered);
  const part = (text, label, act, className = "") => {
    const button = Object.assign(document.createElement("button"), { textContent: text, title: label, className });
    button.setAttribute("aria-label", label);
    button.addEventListener("click", () => act(button));
    return button;
  };
  const resized = (size, kind) => (button) => keepFocus(button, resize(size), kind);
  const word = remembered[number];
  const back = () => (edited = null, setTemplate(replaced(source, piece, word ?? ""), remembered.toSpliced(number, 1)));
  const middle = part(described(piece), word ? `Put “${word}” back` : "Remove this blank", (button) => keepFocus(button, back), "back");
  const size = piece.word ? 1 : Number(piece.size || 1);
  const edit = part("⋯", "What this blank may become", () => editBlank(number), "edit");
  edit.setAttribute("aria-expanded", edited === number);
  if (Number.isNaN(size)) chip.append(middle, edit);
  else {
    const shorter = part("−", "Shorter", resized(size - 1, ".shorter"), "shorter");
    const longer = part("+", "Longer", resized(size + 1, ".longer"), "longer");
    chip.append(shorter, middle, longer, edit);
  }
  return chip;
}

/** A blank in a few words. */
function described({ word, size, options }) {
  const { digits, starts, ends, in: choices, regex } = readOptions(options);
  const length = size === "*" ? "any length" : word ? "a word" : (size || "1") === "1" ? "1 token" : `${size.replace("-", " to ")} tokens`;
  const wishes = [digits && "digits", starts && `starts ${starts}`, ends && `ends ${ends}`, choices, regex && `like ${regex}`].filter(Boolean);
  return [length, ...wishes].join(" · ");
}

const blankNumber = (number) => pieces($("template").value).filter((piece) => piece.kind === "blank")[number];

function editBlank(number) {
  edited = edited === number ? null : number;
  setTemplate($("template").value, remembered);
  if (edited !== null) $("blank-size").focus();
  else $("chips").querySelectorAll(".blank")[number]?.querySelector(".edit").focus();
}

/** Show what the blank that is being changed may become. */
function drawEditor() {
  const piece = edited === null ? undefined : blankNumber(edited);
  $("editor").hidden = !piece;
  if (!piece || $("editor").contains(document.activeElement)) return; // else what is being typed would be rewritten
  const wishes = readOptions(piece.options);
  $("blank-size").value = piece.word && !piece.size ? "" : piece.size || "1";
  $("blank-digits").checked = wishes.digits;
  for (const name of NAMED) $(`blank-${name}`).value = wishes[name] ?? "";
}

function changeBlank() {
  const piece = blankNumber(edited);
  const size = $("blank-size").value.replaceAll(/\s/g, "");
  const wishes = { digits: $("blank-digits").checked, ...Object.fromEntries(NAMED.map((name) => [name, $(`blank-${name}`).value])) };
  const changed = blank({ word: !size, size, options: writeOptions(wishes, piece.options) });
  setTemplate(replaced($("template").value, piece, changed), remembered);
}

function drawSlots() {
  $("slots").replaceChildren(...slots.map((_, i) => slot(i)));
}

function slot(index) {
  const word = slots[index];
  const button = Object.assign(document.createElement("button"), { className: word ? "placed" : "number", textContent: word || index });
  button.setAttribute("aria-label", word ? `Slot ${index}: ${word}. Take it away` : `Slot ${index}: place a word`);
  button.addEventListener("click", () => (word ? place(button, index, "") : editSlot(button, index)).focus());
  return button;
}

/** Another word at a slot, in place of what stands there now; the others stay, for one of them may be under the mouse. */
function place(old, index, word) {
  slots[index] = word;
  const button = slot(index);
  old.replaceWith(button);
  return button;
}

function editSlot(button, index) {
  const next = $("words").value.trim().split(/\s+/).find((word) => word && !slots.includes(word)) ?? "";
  const input = Object.assign(document.createElement("input"), { value: next, maxLength: 40 });
  input.setAttribute("aria-label", `Word for slot ${index}`);
  button.replaceWith(input);
  input.select();
  let done = false;
  const finish = (keep) => {
    if (done) return null; // taking the input away blurs it
    done = true;
    return place(input, index, keep ? input.value.trim().split(/\s+/)[0] : "");
  };
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== "Escape") return;
    event.preventDefault(); // else the button that gets the focus is pressed at once
    finish(event.key === "Enter").focus();
  });
  input.addEventListener("blur", () => finish(true));
  return input;
}

function setLength() {
  const length = Math.min(Math.max(Number($("length").value) || 2, 2), 500);
  slots = Array.from({ length }, (_, i) => slots[i] ?? "");
  drawSlots();
}

function scatterWords() {
  setLength();
  slots = scatter($("words").value.trim().split(/\s+/).filter(Boolean), slots.length);
  drawSlots();
}

function openTab(name) {
  for (const tab of ["text", "canvas"]) {
    $(`tab-${tab}`).setAttribute("aria-selected", tab === name);
    $(`tab-${tab}`).tabIndex = tab === name ? 0 : -1;
    $(`pane-${tab}`).hidden = tab !== name;
  }
}
const isCanvas = () => !$("pane-canvas").hidden;

// --- how it is to be written

/** The order that is chosen: a name, or positions. Number "" is the first, "-2" the one beside it. */
function chosenOrder(number = "") {
  if ($(`order${number}`).value !== "list") return $(`order${number}`).value;
  const listed = positions($(`positions${number}`).value);
  if (!listed) throw new Error("An order of your own is a list of positions, such as 2, 0, 1: each blank’s token once, counted from 0.");
  return listed;
}

function chooseOrder(order, number = "") {
  const known = [...$("order").options].some((option) => option.value === order);
  $(`order${number}`).value = known ? order : "list";
  if (!known) $(`positions${number}`).value = String(order).replaceAll(",", ", ");
  showPositions(number);
}

/** The field for positions, where they are asked for: at first those of what was written last. */
function showPositions(number = "") {
  const isList = $(`order${number}`).value === "list";
  $(`positions${number}`).closest("label").hidden = !isList;
  const last = stages[0]?.document?.order;
  if (isList && !$(`positions${number}`).value && last) $(`positions${number}`).value = last.join(", ");
}

function request() {
  const asked = {
    template: isCanvas() ? fromSlots(slots) : $("template").value,
    order: chosenOrder(),
    seed: Math.trunc(Number($("seed").value)) || 0,
    temperature: Number($("temperature").value),
  };
  for (const name of NUMBERS) if ($(name).value !== "") asked[name] = Number($(name).value);
  for (const name of WORDS) {
    const words = $(name).value.split(/[\s,]+/).filter(Boolean);
    if (words.length) asked[name] = words;
  }
  if (!$("whole_words").checked) asked.whole_words = false;
  if ($("visibility").selectedIndex > 0) asked.visibility = $("visibility").value;
  if ($("model").value) asked.model = $("model").value; // named, so that a link means the same elsewhere
  return asked;
}

function restore(asked, beside) {
  openTab("text");
  edited = null;
  setTemplate(asked.template);
  chooseOrder(asked.order ?? "l2r");
  $("compare").checked = Boolean(beside);
  $("second").hidden = !beside;
  if (beside) {
    chooseOrder(beside.order ?? "l2r", "-2");
    $("seed-2").value = beside.seed ?? 0;
  }
  $("seed").value = asked.seed ?? 0;
  for (const name of NUMBERS) $(name).value = asked[name] ?? "";
  for (const name of WORDS) $(name).value = [asked[name] ?? []].flat().join(" ");
  $("whole_words").checked = asked.whole_words ?? true;
  if (asked.model) $("model").value = asked.model;
  showModel();
  if (asked.temperature !== undefined) $("temperature").value = asked.temperature;
  if (asked.visibility) $("visibility").value = asked.visibility;
  showTemperature();
}

function write() {
  try {
    const first = request();
    if (!hasBlank(first.template)) throw new Error("There is no blank yet: click a word to make it one.");
    const beside = () => ({ ...first, order: chosenOrder("-2"), seed: Math.trunc(Number($("seed-2").value)) || 0 });
    perform($("compare").checked ? [first, beside()] : [first]);
  } catch (error) {
    problem(error);
  }
}

function perform(requests) {
  problem(null);
  stages.forEach((stage) => stage.remove());
  $("stages").classList.toggle("two", requests.length > 1);
  const isInside = (name) => served.find((model) => model.name === name)?.packaged ?? false;
  stages = requests.map(() => new Stage($("stages"), { onProblem: problem, onChange: remember, isInside }));
  requests.forEach((asked, i) => stages[i].write(asked));
  if (document.activeElement?.tagName === "BUTTON") stages[0].focus(); // there the keys play and step
}

function remember() {
  const shown = stages.filter((stage) => stage.request).map((stage) => stage.request);
  history.replaceState(null, "", toHash(shown));
}

function problem(error, retry) {
  const box = $("problem");
  box.hidden = !error;
  if (!error) return;
  $("token-form").hidden = error.status !== 401;
  const busy = error.status === 429 || error.status === 503;
  box.replaceChildren(busy ? `The server is busy. ${error.message}` : error.message.replace(/^\w+Error: /, ""));
  if (retry && (busy || error.status === 0)) {
    const button = Object.assign(document.createElement("button"), { textContent: "Try again" });
    button.addEventListener("click", () => (problem(null), retry()));
    box.append(button);
  }
}

// --- the rest of the page

const showTemperature = () => ($("temperature-shown").textContent = Number($("temperature").value).toFixed(2));

function showModel() {
  const model = served[Math.max($("model").selectedIndex, 0)];
  $("visibility").replaceChildren(...(model?.visibilities ?? []).map((name) => new Option(name)));
  $("temperature").value = model?.sampling?.temperature ?? 1;
  showTemperature();
}

async function showModels() {
  try {
    served = (await models()).filter((model) => model.endpoints.includes("/v1/generate/stream"));
    if (!served.length) throw new Error("No model that writes is served here; the API says what the others are for.");
    $("model").replaceChildren(...served.map((model) => new Option(model.name, model.name)));
    showModel();
  } catch (error) {
    problem(error, showModels);
  }
}

function setTheme(dark) {
  document.documentElement.classList.toggle("dark", dark);
}

function example(name) {
  const { words, length, template } = EXAMPLES[name];
  if (template) {
    openTab("text");
    edited = null;
    setTemplate(template);
  } else {
    openTab("canvas");
    $("words").value = words;
    $("length").value = length;
    scatterWords();
  }
  write();
}

function keys(event) {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) return write();
  if (event.altKey || event.ctrlKey || event.metaKey) return; // the browser's own
  if (/INPUT|TEXTAREA|SELECT|BUTTON|SUMMARY/.test(event.target.tagName) || !stages.length) return;
  if (event.key === " ") stages.forEach((stage) => stage.play());
  else if (event.key === "ArrowLeft") stages.forEach((stage) => stage.draft && stage.show(Math.max(stage.step - 1, 0), true));
  else if (event.key === "ArrowRight") stages.forEach((stage) => stage.draft && stage.show(Math.min(stage.step + 1, stage.steps.length), true));
  else return;
  event.preventDefault();
}

function begin() {
  const saved = localStorage.getItem("pmlm-theme");
  setTheme(saved ? saved === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
  $("theme").addEventListener("click", () => {
    const dark = !document.documentElement.classList.contains("dark");
    setTheme(dark);
    localStorage.setItem("pmlm-theme", dark ? "dark" : "light");
  });
  $("order-2").replaceChildren(...[...$("order").options].map((option) => new Option(option.text, option.value)));
  $("order-2").value = "l2r";
  for (const number of ["", "-2"]) $(`order${number}`).addEventListener("change", () => showPositions(number));
  $("editor").addEventListener("input", changeBlank);
  $("editor-done").addEventListener("click", () => editBlank(edited));
  for (const name of Object.keys(EXAMPLES)) {
    const button = Object.assign(document.createElement("button"), { textContent: name });
    button.addEventListener("click", () => example(name));
    $("examples").append(button);
  }
  for (const tab of ["text", "canvas"]) {
    $(`tab-${tab}`).addEventListener("click", () => openTab(tab));
    $(`tab-${tab}`).addEventListener("keydown", (event) => {
      if (!/Arrow(Left|Right)/.test(event.key)) return;
      openTab(tab === "text" ? "canvas" : "text");
      document.querySelector("[role=tab][aria-selected=true]").focus();
    });
  }
  $("template").addEventListener("input", () => (edited = null, setTemplate($("template").value)));
  $("scatter").addEventListener("click", scatterWords);
  $("clear").addEventListener("click", () => (slots.fill(""), drawSlots()));
  $("length").addEventListener("change", setLength);
  $("temperature").addEventListener("input", showTemperature);
  $("dice").addEventListener("click", () => ($("seed").value = Math.floor(Math.random() * 100000)));
  $("compare").addEventListener("change", () => {
    $("second").hidden = !$("compare").checked;
    $("seed-2").value = $("seed").value;
  });
  $("model").addEventListener("change", showModel);
  $("write").addEventListener("click", write);
  $("token-form").addEventListener("submit", (event) => {
    event.preventDefault();
    setToken($("token").value);
    $("token-form").hidden = true;
    problem(null);
    showModels().then(() => open(fromHash(location.hash)));
  });
  document.addEventListener("keydown", keys);
  window.addEventListener("resize", () => stages.forEach((stage) => stage.draft && stage.drawPath(stage.step)));
  window.addEventListener("hashchange", () => open(fromHash(location.hash)));
  showTemperature();
  scatterWords();
  setTemplate("Tom is a ___ and Jerry is a mouse. [MASK:12] They became good friends in the end.", ["cat"]);
  showModels().then(() => open(fromHash(location.hash)));
}

function open(requests) {
  const asked = requests.filter((one) => one && typeof one.template === "string");
  if (!asked.length) return;
  restore(asked[0], asked[1]);
  perform(asked.slice(0, 2));
}

begin();
