// The page: its state, and what happens when.

import { ApiError, get, onTokenNeeded, post, postPhoto, upload } from "./api.js";
import { cutsWord, movedSpans, selectedSpan, withSpan } from "./caption.js";
import { askAgain } from "./grounding.js";
import { loadSample, SAMPLES, showSamples, watchPhotos } from "./photo.js";
import { fromLink, pythonLines, save, saveJson, toLink } from "./share.js";
import { drawAll, drawLook, shownGrounding } from "./view.js";

const find = (id) => document.getElementById(id);
const caption = find("caption");
const WAIT = 90; // milliseconds of silence after which what is typed is sent
let typing = 0;

const state = {
  photo: null, // {blob, name, id, width, height}
  sample: null, // its name, if it is one of the server's
  caption: "",
  given: null, // spans that the user has chosen; null: they are found
  mode: "joint",
  least: 0,
  heat: true,
  rank: 0,
  phrases: [], // of the newest answer, moved along with the text
  joint: null,
  alone: null,
  active: null, // the phrase under the pointer or with the focus
  pinned: null,
  settled: false, // whether the answer is about the caption as it is
};

const on = {
  look(index) {
    state.active = index;
    drawLook(state);
  },
  pin(index) {
    state.pinned = state.pinned === index ? null : index;
    drawAll(state, on);
  },
  remove(index) {
    const spans = state.phrases.map((phrase) => [phrase.start, phrase.end]);
    state.given = spans.filter((_, place) => place !== index);
    Object.assign(state, { pinned: null, active: null });
    say(`Removed ${state.phrases[index].text}.`);
    const next = Math.min(index, state.given.length - 1);
    refresh().then(() => (document.querySelector(`[data-focus="remove-${next}"]`) ?? caption).focus());
  },
};

function say(text) {
  find("status").textContent = text;
}

function complain(error) {
  if (error.name === "AbortError") return;
  if (!(error instanceof ApiError)) console.error(error);
  find("alert-text").textContent = error instanceof ApiError ? error.message : "Something went wrong on this page.";
  find("alert").hidden = false;
}

function changed(summary) {
  state.settled = true;
  if (summary !== null) {
    find("alert").hidden = true;
    say(summary);
  }
  find("photo").alt = state.caption || "the chosen photo";
  drawAll(state, on);
}

async function refresh() {
  history.replaceState(null, "", toLink(state));
  if (state.given && cutsWord(state.caption, state.given)) return; // until the word is whole
  try {
    await askAgain(state, changed);
  } catch (error) {
    complain(error);
  }
}

async function takePhoto(blob, name, sample = null) {
  const stage = find("stage");
  stage.classList.add("is-busy");
  say("Looking at the photo …");
  try {
    const sent = await upload(blob);
    Object.assign(state, { sample, joint: null, alone: null, pinned: null, active: null, rank: 0 });
    state.photo = { blob, name, id: sent.photo, width: sent.width, height: sent.height };
    await show(blob);
    await refresh();
  } catch (error) {
    complain(error);
  } finally {
    stage.classList.remove("is-busy");
  }
}

async function show(blob) {
  const image = find("photo");
  const before = image.src;
  image.src = URL.createObjectURL(blob);
  image.hidden = false;
  find("stage").classList.remove("is-empty");
  find("boxes").replaceChildren();
  if (before) URL.revokeObjectURL(before);
  await image.decode().catch(() => {}); // what only the server can show has boxes on an empty place
  find("stage").style.setProperty("--ratio", `${state.photo.width} / ${state.photo.height}`);
  drawAll(state, on);
}

async function takeSample(name, text) {
  if (!state.caption.trim() || Object.values(SAMPLES).includes(state.caption)) setCaption(text);
  try {
    await takePhoto(await loadSample(name), `${name}.jpg`, name);
  } catch (error) {
    complain(error);
  }
}

function setCaption(text) {
  if (text !== caption.value) caption.value = text;
  const moved = (span) => movedSpans([span], state.caption, text);
  state.given = state.given?.flatMap(moved) ?? null;
  state.phrases = state.phrases.flatMap((phrase) =>
    moved([phrase.start, phrase.end]).map(([start, end]) => ({ ...phrase, start, end })));
  Object.assign(state, { caption: text, settled: false });
  drawLook(state);
}

function watchCaption() {
  caption.addEventListener("input", () => {
    setCaption(caption.value);
    clearTimeout(typing);
    typing = setTimeout(refresh, WAIT);
  });
  caption.addEventListener("scroll", () => {
    find("backdrop").scrollTop = caption.scrollTop;
  });
  find("add-phrase").addEventListener("click", () => {
    const span = selectedSpan(caption);
    if (!span) {
      say("Select some words of the caption first.");
      caption.focus();
      return;
    }
    state.given = withSpan(state.given ?? state.phrases.map((phrase) => [phrase.start, phrase.end]), span);
    refresh();
  });
  find("find-phrases").addEventListener("click", () => {
    state.given = null;
    refresh();
    caption.focus();
  });
}

function watchSettings() {
  for (const radio of document.querySelectorAll('input[name="mode"]')) {
    radio.addEventListener("change", () => {
      Object.assign(state, { mode: radio.value, rank: 0 });
      history.replaceState(null, "", toLink(state));
      drawAll(state, on);
    });
  }
  find("least").addEventListener("input", (event) => {
    state.least = Number(event.target.value) / 100;
    history.replaceState(null, "", toLink(state));
    drawAll(state, on);
  });
  find("heat-on").addEventListener("change", (event) => {
    state.heat = event.target.checked;
    drawLook(state);
  });
  for (const [id, step] of [["rank-back", -1], ["rank-next", 1]]) {
    find(id).addEventListener("click", () => {
      state.rank += step;
      drawAll(state, on);
      say(find("rank").textContent);
    });
  }
}

function watchStage() {
  const svg = find("boxes");
  const indexAt = (event) => {
    const group = event.target.closest("[data-index]");
    return group ? Number(group.dataset.index) : null;
  };
  svg.addEventListener("pointermove", (event) => {
    const index = indexAt(event);
    if (index !== state.active) on.look(index);
  });
  svg.addEventListener("pointerleave", () => on.look(null));
  svg.addEventListener("click", (event) => {
    const index = indexAt(event);
    if (index !== null) on.pin(index);
  });
  new ResizeObserver(() => drawLook(state)).observe(find("stage"));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || find("token-dialog").open) return;
    Object.assign(state, { pinned: null, active: null });
    drawAll(state, on);
  });
}

function settings() {
  return {
    caption: state.caption,
    ...(state.given && { phrases: state.given }),
    ...(state.mode === "alone" && { decode: "independent" }),
    min_probability: state.least,
  };
}

async function savePicture() {
  const fields = { ...settings(), format: "png", ...(state.given && { phrases: JSON.stringify(state.given) }) };
  save(await postPhoto("/api/ground", state.photo.blob, fields), `${stem()}.grounded.png`);
}

const stem = () => (state.photo?.name ?? "photo").replace(/\.[^.]*$/, "");

function watchDownloads() {
  const actions = {
    "save-png": savePicture,
    "save-json": () => saveJson(shownGrounding(state), `${stem()}.json`),
    "save-coco": async () => saveJson(await post("/api/ground", { photo: state.photo.id, ...settings(), format: "coco" }), `${stem()}.coco.json`),
    "copy-python": async () => copy(pythonLines(state, await get("/api/model")), "The Python lines are copied."),
    "copy-link": () => copy(location.href, "The link is copied."),
  };
  for (const [id, act] of Object.entries(actions)) {
    find(id).addEventListener("click", async () => {
      try {
        await act();
      } catch (error) {
        complain(error);
      }
    });
  }
}

async function copy(text, done) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    throw new ApiError("The browser does not let this page copy. Allow it, or use the page by its https or localhost address.", 0);
  }
  say(done);
}

function askToken() {
  const dialog = find("token-dialog");
  if (dialog.open) return Promise.resolve(null);
  dialog.showModal();
  return new Promise((resolve) => {
    find("token-form").onsubmit = (event) => {
      event.preventDefault();
      dialog.close();
      resolve(find("token").value.trim() || null);
    };
    dialog.oncancel = () => resolve(null);
  });
}

async function start() {
  onTokenNeeded(askToken);
  showSamples(find("samples"), takeSample);
  watchPhotos(find("stage"), find("file"), takePhoto, (message) => complain(new ApiError(message, 0)));
  watchCaption();
  watchSettings();
  watchStage();
  watchDownloads();
  find("alert-close").addEventListener("click", () => {
    find("alert").hidden = true;
  });
  addEventListener("hashchange", restore);
  await restore();
}

// What the link says: caption, settings and, if it is one of the server's, the photo.
async function restore() {
  const { sample, ...wanted } = fromLink(location.hash);
  caption.value = wanted.caption;
  Object.assign(state, wanted);
  drawAll(state, on);
  if (sample in SAMPLES) await takeSample(sample, wanted.caption || SAMPLES[sample]);
  else if (wanted.caption) await refresh();
}

start();
