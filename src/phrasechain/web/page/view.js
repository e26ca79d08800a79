// From the state to what is shown.

import { drawBackdrop } from "./caption.js";
import { percent } from "./colours.js";
import { iou } from "./grounding.js";
import { clearHeat, drawHeat } from "./heat.js";
import { drawList } from "./list.js";
import { drawBoxes, labelOf } from "./stage.js";

const SAME = 0.5; // the IoU from which two boxes say the same
const find = (id) => document.getElementById(id);

export function shownGrounding(state) {
  return (state.mode === "alone" ? state.alone : state.joint) ?? state.joint;
}

// Boxes of the phrases at the rank that is shown; rank 0 is the decoder's answer.
function rowsOf(state) {
  const grounding = shownGrounding(state);
  const ranked = state.mode === "joint" && state.rank > 0 ? state.joint?.k_best?.[state.rank - 1] : null;
  const phrases = grounding?.phrases ?? state.phrases;
  return phrases.map((phrase, index) => {
    const box = ranked ? ranked.boxes[index] : phrase.box;
    const other = state.joint?.phrases[index] && state.alone?.phrases[index];
    return {
      phrase,
      box,
      probability: ranked || phrase.probability === undefined ? null : phrase.probability,
      hidden: !ranked && phrase.probability < state.least,
      moved: Boolean(ranked) && iou(box, phrase.box) < SAME,
      differs: Boolean(other) && iou(state.joint.phrases[index].box, state.alone.phrases[index].box) < SAME,
    };
  });
}

export function activeOf(state) {
  return state.active ?? state.pinned;
}

export function drawAll(state, on) {
  const rows = rowsOf(state);
  drawList(find("phrases"), rows, state.pinned, on);
  find("no-phrases").hidden = rows.length > 0;
  find("no-phrases").textContent = state.caption.trim() && state.settled ? "No phrase names something to be seen." : "None yet.";
  find("find-phrases").hidden = state.given === null;
  drawSettings(state);
  drawDifferences(rows, state);
  drawLook(state, rows);
}

// The part that changes with every glance.
export function drawLook(state, rows = rowsOf(state)) {
  const active = activeOf(state);
  drawBackdrop(find("backdrop"), state.caption, state.phrases, active);
  document.querySelectorAll("#phrases > li").forEach((entry, index) => entry.classList.toggle("is-active", index === active));
  if (!state.photo || find("photo").hidden) return;
  const marks = [];
  rows.forEach(({ phrase, box, probability, hidden }, index) => {
    const isAbsent = phrase.found === false;
    if (!box || ((hidden || isAbsent) && index !== active)) return;
    const text = isAbsent ? `${phrase.text}: not in the photo` : labelOf(phrase, index, probability);
    marks.push({ box, index, text, kind: isAbsent ? "absent" : "chosen" });
    if (index !== active || probability === null) return;
    for (const other of phrase.alternatives ?? []) {
      if (other.probability >= state.least) {
        marks.push({ box: other.box, index, text: percent(other.probability), kind: "other" });
      }
    }
  });
  drawBoxes(find("boxes"), marks, state.photo, active);
  const regions = active === null ? null : rows[active]?.phrase.marginals;
  if (regions && state.heat) drawHeat(find("heat"), regions, state.photo.width, state.photo.height, active);
  else clearHeat(find("heat"));
}

function drawSettings(state) {
  const best = state.joint?.k_best ?? [];
  const isJoint = state.mode === "joint";
  find("controls").hidden = !state.photo;
  find("rank").textContent = rankText(state, best);
  find("rank-back").disabled = !isJoint || state.rank === 0;
  find("rank-next").disabled = !isJoint || state.rank >= best.length;
  find("least").value = String(Math.round(100 * state.least));
  find("least-shown").textContent = `${Math.round(100 * state.least)} %`;
  document.querySelector(`input[name="mode"][value="${state.mode}"]`).checked = true;
  for (const id of ["save-png", "save-json", "save-coco"]) find(id).disabled = !shownGrounding(state);
  find("copy-python").disabled = !state.caption.trim();
}

function rankText(state, best) {
  if (state.mode !== "joint" || !best.length) return "the model’s answer";
  if (state.rank === 0) return "the model’s answer";
  const share = best[state.rank - 1].probability / best[0].probability;
  return `sequence ${state.rank} of ${best.length}${state.rank > 1 ? ` (${share.toFixed(2)} × the first)` : ""}`;
}

function drawDifferences(rows, state) {
  const line = find("differ");
  const names = rows.filter((row) => row.differs).map((row) => `“${row.phrase.text}”`);
  line.hidden = !state.alone || !rows.length;
  const last = names.pop();
  const list = names.length ? `${names.join(", ")} and ${last}` : last;
  line.textContent = last
    ? `Decided jointly and each alone, ${list} ${names.length ? "get" : "gets"} different boxes.`
    : "Decided jointly and each alone, all boxes agree.";
}
