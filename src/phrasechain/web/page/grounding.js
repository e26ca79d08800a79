// What is asked of the server as caption, photo and settings change: the newest question wins.

import { ApiError, post, upload } from "./api.js";

const BEST = 8; // groundings to step through
let running = new AbortController();

// Fills state.joint, state.alone or state.phrases, and calls `changed()` after each answer.
export async function askAgain(state, changed) {
  running.abort();
  running = new AbortController();
  const { signal } = running;
  const caption = state.caption;
  if (!caption.trim() || state.given?.length === 0) {
    Object.assign(state, { joint: null, alone: null, phrases: [] });
    changed("");
    return;
  }
  if (!state.photo?.id) {
    const found = await post("/api/phrases", { caption, phrases: state.given }, signal);
    Object.assign(state, { joint: null, alone: null, phrases: found.phrases });
    changed("");
    return;
  }
  const question = { caption, phrases: state.given, marginals: true };
  const joint = await ground(state, { ...question, k_best: BEST }, signal);
  Object.assign(state, { joint, alone: null, phrases: joint.phrases, rank: 0 });
  if (state.pinned !== null && state.pinned >= joint.phrases.length) state.pinned = null;
  changed(summary(joint));
  state.alone = await ground(state, { ...question, decode: "independent" }, signal);
  changed(null);
}

// An id that the server has dropped is renewed, unseen by the user.
async function ground(state, question, signal) {
  try {
    return await post("/api/ground", { photo: state.photo.id, ...question }, signal);
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 404) throw error;
    state.photo.id = (await upload(state.photo.blob)).photo;
    return post("/api/ground", { photo: state.photo.id, ...question }, signal);
  }
}

function summary(grounding) {
  if (!grounding.phrases.length) return "No phrase of the caption names something to be seen.";
  const words = grounding.phrases.map((phrase) =>
    (phrase.found === false ? `${phrase.text}: not in the photo` : `${phrase.text}, ${Math.round(100 * phrase.probability)} %`));
  return `${words.length === 1 ? "One phrase" : `${words.length} phrases`}. ${words.join(". ")}.`;
}

export function iou([a0, b0, a1, b1], [c0, d0, c1, d1]) {
  const across = Math.max(0, Math.min(a1, c1) - Math.max(a0, c0));
  const down = Math.max(0, Math.min(b1, d1) - Math.max(b0, d0));
  const both = across * down;
  return both / ((a1 - a0) * (b1 - b0) + (c1 - c0) * (d1 - d0) - both || 1);
}
