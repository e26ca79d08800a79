// The boxes and labels over the photo, in pixels of the screen.

import { cssColour, dashOf, inkOn, percent } from "./colours.js";

const SVG = "http://www.w3.org/2000/svg";
const LINE = 3;
const FONT = 13;
const CHIP = { height: 20, pad: 6 };
const measure = document.createElement("canvas").getContext("2d");

function element(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// `marks` are {box, index, text, kind}: kind is "chosen", "other" (an alternative) or "absent".
// `active` is the index of the phrase that is looked at, or null.
export function drawBoxes(svg, marks, photo, active) {
  const { width, height } = svg.getBoundingClientRect();
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const scale = width / photo.width;
  const shown = marks.map((mark) => ({ ...mark, box: mark.box.map((side) => side * scale) }));
  shown.sort((one, other) => area(other.box) - area(one.box)); // small ones on top, and reachable
  const placed = [];
  const first = (mark) => (mark.kind === "other" ? 1 : 0); // so that a glance does not move the labels of phrases
  const labels = [...shown].reverse().sort((one, other) => first(one) - first(other))
    .map((mark) => placeLabel(mark, placed, width, height));
  svg.replaceChildren(
    ...shown.map((mark) => frame(mark, active)),
    ...labels.reverse().filter(Boolean).map((label) => chip(label, active)),
  );
}

const area = ([x0, y0, x1, y1]) => (x1 - x0) * (y1 - y0);
const isDim = (mark, active) => active !== null && mark.index !== active;

function frame(mark, active) {
  const [x0, y0, x1, y1] = mark.box;
  const half = LINE / 2;
  const line = mark.kind === "chosen" ? LINE : 2;
  const place = {
    x: x0 + half, y: y0 + half, rx: 3, fill: "none",
    width: Math.max(1, x1 - x0 - LINE), height: Math.max(1, y1 - y0 - LINE),
  };
  const dash = mark.kind === "chosen" ? dashOf(mark.index, line) : "5 4";
  const group = element("g", { class: `box ${mark.kind}${isDim(mark, active) ? " dim" : ""}`, "data-index": mark.index });
  group.append(
    element("rect", { ...place, class: "halo", stroke: mark.kind === "chosen" ? "white" : "black", "stroke-width": line + 2 }),
    element("rect", { ...place, stroke: cssColour(mark.index), "stroke-width": line, "stroke-dasharray": dash }),
    element("rect", { ...place, class: "hit", stroke: "transparent", "stroke-width": 14 }),
  );
  return group;
}

// Above the box, or within, or below, wherever no other label is.
function placeLabel(mark, placed, width, height) {
  measure.font = `600 ${FONT}px system-ui, sans-serif`;
  const text = shorten(mark.text, Math.min(220, width - 2 * CHIP.pad));
  const w = measure.measureText(text).width + 2 * CHIP.pad;
  const h = CHIP.height;
  const [x0, y0, x1, y1] = mark.box;
  const choices = [[x0, y0 - h], [x0, y0], [x1 - w, y0 - h], [x1 - w, y0], [x0, y1], [x0, y1 - h], [x1 - w, y1 - h]];
  const inside = choices
    .map(([x, y]) => ({ x: Math.max(0, Math.min(x, width - w)), y: Math.max(0, Math.min(y, height - h)), w, h }));
  const free = inside.find((one) => !placed.some((other) => overlaps(one, other)));
  if (!free && mark.kind === "other") return null;
  const spot = free ?? inside[0];
  placed.push(spot);
  return { ...mark, ...spot, text };
}

const overlaps = (a, b) => a.x < b.x + b.w && b.x < a.x + a.w && a.y < b.y + b.h && b.y < a.y + a.h;

function shorten(text, room) {
  if (measure.measureText(text).width <= room) return text;
  let kept = text;
  while (kept.length > 1 && measure.measureText(`${kept}…`).width > room) kept = kept.slice(0, -1);
  return `${kept}…`;
}

function chip(label, active) {
  const group = element("g", { class: `chip ${label.kind}${isDim(label, active) ? " dim" : ""}`, "data-index": label.index });
  const text = element("text", {
    x: label.x + CHIP.pad, y: label.y + label.h - 6, fill: inkOn(label.index), "font-size": FONT,
  }, label.text);
  group.append(
    element("rect", {
      x: label.x, y: label.y, width: label.w, height: label.h, rx: 4, fill: cssColour(label.index), stroke: "white",
    }),
    text,
  );
  return group;
}

export function labelOf(phrase, number, probability) {
  return `${phrase.text}${probability === null ? "" : ` ${percent(probability)}`}`;
}
