// The phrases as a list of buttons: what there is to see on the photo, for eyes, keyboards and screen readers.

import { cssColour, inkOn, percent } from "./colours.js";

function make(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

// `rows` are {phrase, probability, hidden, moved, differs}; `on` has look(index|null), pin(index), remove(index).
export function drawList(list, rows, pinned, on) {
  const focused = document.activeElement?.closest?.("#phrases [data-focus]")?.dataset.focus;
  list.replaceChildren(...rows.map((row, index) => item(row, index, pinned === index, on)));
  if (focused) list.querySelector(`[data-focus="${focused}"]`)?.focus();
}

function item(row, index, isPinned, on) {
  const { phrase, probability, hidden } = row;
  const number = make("span", "number", String(index + 1));
  number.style.background = cssColour(index);
  number.style.color = inkOn(index);
  const isAbsent = phrase.found === false;
  const likely = isAbsent ? "not in the photo" : probability === null ? "" : percent(probability);
  const facts = [phrase.category];
  if (phrase.presence !== undefined && !isAbsent) facts.push(`in the photo ${percent(phrase.presence)}`);
  if (row.moved) facts.push("moved");
  if (row.differs) facts.push("differs alone");
  if (hidden) facts.push("hidden");
  const meter = make("span", "meter");
  meter.style.setProperty("--share", `${100 * (probability ?? 0)}%`);
  meter.style.setProperty("--colour", cssColour(index));
  const words = make("span", "words", make("span", "text", phrase.text), make("span", "facts", facts.join(" · ")));
  const button = make("button", "phrase", number, words, make("span", "likely", likely), meter);
  button.type = "button";
  button.dataset.focus = `look-${index}`;
  button.setAttribute("aria-pressed", String(isPinned));
  button.addEventListener("pointerenter", () => on.look(index));
  button.addEventListener("pointerleave", () => on.look(null));
  button.addEventListener("focus", () => on.look(index));
  button.addEventListener("blur", () => on.look(null));
  button.addEventListener("click", () => on.pin(index));
  const remove = make("button", "remove", "×");
  remove.type = "button";
  remove.dataset.focus = `remove-${index}`;
  remove.setAttribute("aria-label", `Remove the phrase ${phrase.text}`);
  remove.addEventListener("click", () => on.remove(index));
  const entry = make("li", `${hidden ? "is-hidden" : ""}${isAbsent ? " is-absent" : ""}`, button, remove);
  if (isPinned) entry.append(details(phrase, index));
  return entry;
}

function details(phrase, index) {
  const rows = phrase.alternatives.map((other) =>
    make("li", "", make("span", "likely", percent(other.probability)), ` at ${place(other.box)}`));
  const title = rows.length ? "Or, dashed in the photo:" : "No other box is likely.";
  const box = make("p", "", `Box: ${place(phrase.box)}`);
  const made = make("div", "details", box, make("p", "", title), make("ul", "", ...rows));
  made.id = `details-${index}`;
  return made;
}

// The corners in whole pixels.
const place = (box) => box.map((side) => Math.round(side)).join(", ");
