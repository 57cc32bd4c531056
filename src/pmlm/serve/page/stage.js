// One text being written: its tokens, its steps, the slider, the path, and what else a token could have been.

import { candidates, stream } from "./api.js";
import { command, toHash } from "./template.js";

const STEP_MS = 70;
const MOST_GLUED = 5;
const percent = (p) => (p >= 0.1 ? `${Math.round(100 * p)} %` : p >= 0.001 ? `${(100 * p).toFixed(1)} %` : "< 0.1 %");
const element = (name, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
};
const svg = (name, attributes) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
};

/** Tokens with no space between them, a few at a time, so that no line begins with a comma. */
function glued(nodes) {
  const line = [];
  const isToken = (node) => node?.className?.startsWith("token");
  for (const node of nodes) {
    const last = line.at(-1);
    if (isToken(node) && isToken(last)) line[line.length - 1] = element("span", { className: "glued" }, last, node);
    else if (isToken(node) && last?.className === "glued" && last.childElementCount < MOST_GLUED) last.append(node);
    else line.push(node);
  }
  return line;
}

export class Stage {
  constructor(parent, { onProblem, onChange, isInside }) {
    this.root = document.getElementById("stage").content.firstElementChild.cloneNode(true);
    parent.append(this.root);
    this.onProblem = onProblem;
    this.onChange = onChange;
    this.isInside = isInside;
    this.locked = new Set();
    const find = (selector) => this.root.querySelector(selector);
    this.parts = Object.fromEntries(["h2", "figures", "anew", "text", "play", "slider", "at", "path", "inspector", "again"].map(
      (name) => [name, find(name === "h2" ? "h2" : `.${name}`)]));
    this.parts.slider.addEventListener("input", () => this.show(Number(this.parts.slider.value), true));
    this.parts.play.addEventListener("click", () => this.play());
    this.parts.again.addEventListener("click", () => this.again());
    for (const button of this.root.querySelectorAll("[data-copy]")) button.addEventListener("click", () => this.copy(button));
  }

  remove() {
    this.stop();
    this.aborter?.abort();
    this.root.remove();
  }

  /** Have the keyboard at the text, or at the token of a position. */
  focus(position) {
    const token = position === undefined ? null : this.parts.text.querySelector(`[data-position="${position}"]`);
    (token ?? this.parts.text).focus({ preventScroll: true });
  }

  /** Ask for a text and show it as it comes. */
  async write(request) {
    this.stop();
    if (this.parts.inspector.contains(document.activeElement)) this.focus(); // it is about to be hidden
    this.aborter?.abort();
    this.aborter = new AbortController();
    const { signal } = this.aborter;
    Object.assign(this, { request, steps: [], document: null, draft: null, selected: null });
    this.locked = new Set((request.keep ?? []).map(([position]) => position));
    const { keep: _, ...asked } = request;
    this.request = asked;
    this.root.setAttribute("aria-busy", "true");
    this.parts.inspector.hidden = true;
    this.parts.anew.hidden = true;
    try {
      for await (const [name, data] of stream(asked, signal)) {
        if (name === "draft") this.begin(data.drafts[0], data.templates[0]);
        else if (name === "restart") {
          this.parts.anew.hidden = false;
          this.parts.anew.textContent = `The constraints left no way on: begun anew, attempt ${data.attempt}.`;
          this.begin(data.draft, data.template);
        } else if (name === "step") this.steps.push(data);
        else if (name === "done") this.document = data;
        else if (name === "error") throw new Error(data.error);
      }
      this.onChange(this);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.stop();
      this.root.hidden = !this.draft; // nothing to look at
      this.onProblem(error, () => this.write(request));
    } finally {
      if (!signal.aborted) this.root.removeAttribute("aria-busy");
    }
  }

  /** A canvas on which nothing is written yet, and the template that says so. */
  begin(draft, template) {
    Object.assign(this, { draft, template, steps: [] });
    this.root.hidden = false;
    this.show(0);
    this.follow();
  }

  /** Show what has come, a step at a time, until the end. */
  follow() {
    this.stop();
    this.parts.play.textContent = "❚❚";
    this.parts.play.setAttribute("aria-label", "Pause");
    const skip = this.request.written?.length ?? 0;
    this.timer = setInterval(() => {
      if (this.step < this.steps.length) this.show(Math.max(this.step + 1, Math.min(skip, this.steps.length)));
      else if (this.document) this.stop();
    }, STEP_MS);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.parts.play.textContent = "▶";
    this.parts.play.setAttribute("aria-label", "Play");
  }

  play() {
    if (this.timer) return this.stop();
    if (!this.draft) return;
    if (this.step >= this.steps.length) this.show(0);
    this.follow();
  }

  /** The canvas after `step` tokens. */
  show(step, byHand = false) {
    if (byHand) this.stop();
    this.step = step;
    const total = this.draft.filter((token) => token === null).length;
    Object.assign(this.parts.slider, { max: total, value: step });
    this.parts.at.textContent = `${step} of ${total}`;
    const number = new Map(this.steps.slice(0, step).map((data, i) => [data.position, i]));
    const { position } = this.parts.text.contains(document.activeElement) ? document.activeElement.dataset : {};
    this.parts.text.replaceChildren(...glued(this.draft.flatMap((given, i) => this.token(given, i, number.get(i)))));
    if (position !== undefined) this.focus(position);
    const named = [...document.getElementById("order").options].find((option) => option.value === this.request.order);
    this.parts.h2.textContent = named?.text ?? "an order of your own";
    const nats = -this.steps.slice(0, step).reduce((sum, data) => sum + data.logp, 0);
    this.parts.figures.textContent = `seed ${this.request.seed} · ${nats.toFixed(1)} nats` + (step ? `, ${(nats / step).toFixed(2)} a token` : "");
    this.drawPath(step);
  }

  token(given, position, index) {
    if (index === undefined) {
      if (given !== null) return [position ? given : given.trimStart()];
      return [" ", element("span", { className: "gap", title: `position ${position}` })];
    }
    const data = this.steps[index];
    const word = data.token.trimStart();
    const space = data.token.slice(0, data.token.length - word.length);
    const button = element("button", { className: "token", title: `step ${index + 1}, position ${position}, ${percent(Math.exp(data.logp))}` },
      word || "␣", element("sub", { textContent: index + 1 }));
    button.dataset.position = position;
    button.style.setProperty("--p", Math.exp(data.logp).toFixed(3));
    button.classList.toggle("new", index === this.step - 1);
    button.classList.toggle("locked", this.locked.has(position));
    button.classList.toggle("open", this.selected === index);
    button.addEventListener("click", () => this.inspect(index));
    return position && space ? [space, button] : [button];
  }

  drawPath(step) {
    const box = this.parts.path;
    const [width, height, margin] = [box.clientWidth || 800, box.clientHeight || 100, 7];
    const size = Math.max(this.draft.length - 1, 1);
    const total = Math.max(this.draft.filter((token) => token === null).length - 1, 1);
    const x = (position) => margin + ((width - 2 * margin) * position) / size;
    const y = (index) => margin + ((height - 2 * margin) * index) / total;
    const points = this.steps.slice(0, step).map((data, i) => [x(data.position), y(i)]);
    const given = this.draft.flatMap((token, i) =>
      token === null ? [] : [svg("line", { class: "given", x1: x(i), x2: x(i), y1: 0, y2: height })]);
    const dots = points.map(([cx, cy], i) => {
      const dot = svg("circle", { cx, cy, r: i === step - 1 ? 5 : 3.5, class: i === step - 1 ? "new" : "" });
      dot.append(Object.assign(svg("title", {}), { textContent: `${i + 1}: ${this.steps[i].token.trim()}` }));
      return dot;
    });
    box.setAttribute("viewBox", `0 0 ${width} ${height}`);
    box.replaceChildren(...given, svg("polyline", { points: points.map(String).join(" ") }), ...dots);
  }

  before(index) {
    return this.steps.slice(0, index).map((data) => [data.position, data.token]);
  }

  async inspect(index) {
    this.selected = index;
    this.show(this.step, true);
    const data = this.steps[index];
    const box = this.parts.inspector;
    box.hidden = false;
    box.replaceChildren(element("p", { className: "hint", textContent: `“${data.token.trim()}”, step ${index + 1} of ${data.of}, at ${percent(Math.exp(data.logp))}. What could have stood here at that moment:` }));
    const list = element("ol");
    const lock = element("button", { className: "lock", textContent: this.locked.has(data.position) ? "Unlock" : "Lock" });
    lock.addEventListener("click", () => {
      if (!this.locked.delete(data.position)) this.locked.add(data.position);
      this.labelAgain();
      this.inspect(index);
      box.querySelector(".lock").focus();
    });
    const hide = element("button", { textContent: "Hide it and rewrite from here" });
    hide.addEventListener("click", () => this.write({ ...this.pinned(), seed: this.request.seed + 1, written: this.before(index) }));
    const close = element("button", { textContent: "Close" });
    close.addEventListener("click", () => {
      this.selected = null;
      box.hidden = true;
      this.show(this.step);
      this.focus(data.position);
    });
    box.append(list, element("div", { className: "row" }, lock, hide, close));
    try {
      const found = await candidates({ ...this.pinned(), written: this.before(index), position: data.position, count: 12 });
      list.replaceChildren(...found.map((candidate) => this.candidate(candidate, data, index)));
    } catch (error) {
      this.onProblem(error, () => this.inspect(index));
    }
  }

  candidate(found, data, index) {
    const button = element("button", { className: found.token_str === data.token ? "chosen" : "" },
      element("span", { textContent: found.token_str.trim() || "␣" }),
      element("span", { className: "chance", textContent: percent(found.score) }));
    button.style.setProperty("--p", found.score.toFixed(3));
    button.addEventListener("click", () =>
      this.write({ ...this.pinned(), written: [...this.before(index), [data.position, found.token_str]] }));
    return element("li", {}, button);
  }

  /**
   * The same request on the very canvas that is shown: lengths and places of words are no longer open. It goes on from
   * what stands there, which particles, who begin at the beginning, do not.
   */
  pinned() {
    const { must: _, particles: __, ...rest } = this.request;
    return { ...rest, template: this.template };
  }

  /** Once more, from another seed, around what is locked. */
  again() {
    if (!this.draft) return;
    const keep = this.before(this.steps.length).filter(([position]) => this.locked.has(position));
    const { written: _, ...free } = keep.length ? this.pinned() : this.request;
    const again = { ...free, seed: this.request.seed + 1 };
    this.write(keep.length ? { ...again, written: keep, keep } : again).then(() => this.labelAgain());
  }

  labelAgain() {
    this.parts.again.textContent = this.locked.size ? `Write again around ${this.locked.size} locked` : "Write again";
  }

  async copy(button) {
    const texts = {
      text: () => this.document?.text ?? "",
      json: () => JSON.stringify(this.document, null, 2),
      command: () => command(this.request, this.isInside(this.request.model)),
      link: () => location.origin + location.pathname + toHash([this.request]),
    };
    const label = button.textContent;
    const text = texts[button.dataset.copy]();
    this.root.dataset.copied = text;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      prompt("Copy this:", text);
    }
    setTimeout(() => (button.textContent = label), 1200);
  }
}
