// The caption: a text area over a copy of its text in which the phrases are coloured, and spans in code points.

import { cssColour } from "./colours.js";

const points = (text) => [...text].length;
const WORD = /[\p{L}\p{N}\p{M}'’&-]/u;

export function drawBackdrop(backdrop, caption, phrases, active) {
  const letters = [...caption];
  const pieces = [];
  let end = 0;
  phrases.forEach((phrase, index) => {
    pieces.push(letters.slice(end, phrase.start).join(""));
    const mark = document.createElement("mark");
    mark.textContent = letters.slice(phrase.start, phrase.end).join("");
    mark.style.setProperty("--colour", cssColour(index));
    mark.classList.toggle("absent", phrase.found === false);
    mark.classList.toggle("active", index === active);
    pieces.push(mark);
    end = phrase.end;
  });
  pieces.push(`${letters.slice(end).join("")}\n`);
  backdrop.replaceChildren(...pieces);
}

// The selected words, whole, as [start, end) in code points; null where no word is selected.
export function selectedSpan(area) {
  const text = area.value;
  const isWord = (place) => place >= 0 && place < text.length && WORD.test(text[place]);
  let { selectionStart: start, selectionEnd: end } = area;
  while (start < end && !isWord(start)) start += 1;
  while (end > start && !isWord(end - 1)) end -= 1;
  if (start === end) return null;
  while (isWord(start - 1)) start -= 1;
  while (isWord(end)) end += 1;
  return [points(text.slice(0, start)), points(text.slice(0, end))];
}

// Whether some span begins or ends within a word, as while a word is typed right before it.
export function cutsWord(caption, spans) {
  const letters = [...caption];
  const isWithin = (place) => WORD.test(letters[place - 1] ?? " ") && WORD.test(letters[place] ?? " ");
  return spans.some(([start, end]) => isWithin(start) || isWithin(end));
}

export function withSpan(spans, [start, end]) {
  const others = spans.filter(([from, to]) => to <= start || from >= end);
  return [...others, [start, end]].sort((one, other) => one[0] - other[0]);
}

// Where spans of the text `before` lie in `after`; those that the change touches are gone.
export function movedSpans(spans, before, after) {
  const [old, now] = [[...before], [...after]];
  const shorter = Math.min(old.length, now.length);
  let first = 0;
  while (first < shorter && old[first] === now[first]) first += 1;
  let last = 0;
  while (last < shorter - first && old[old.length - 1 - last] === now[now.length - 1 - last]) last += 1;
  const shift = now.length - old.length;
  const changedEnd = old.length - last;
  return spans
    .filter(([start, end]) => end <= first || start >= changedEnd)
    .map(([start, end]) => (end <= first ? [start, end] : [start + shift, end + shift]));
}
