// Where a photo comes from: a file, a drop, the clipboard, or one of those that come with the server.

export const SAMPLES = {
  photographer: "A man in a black coat looks through a camera on a tripod in a field",
  astronaut: "A woman in an orange suit holds a helmet in front of an American flag",
  coffee: "A cup of coffee and a spoon on a red saucer on a wooden table",
};

const imageIn = (items) => [...(items ?? [])].find((item) => item.type.startsWith("image/"));

// Calls `take(blob, name)` with every photo that the user gives, and `refuse(message)` with what is none.
export function watchPhotos(stage, input, take, refuse) {
  input.addEventListener("change", () => {
    if (input.files[0]) take(input.files[0], input.files[0].name);
    input.value = "";
  });
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    stage.classList.add("is-target");
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) stage.classList.remove("is-target");
  });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    stage.classList.remove("is-target");
    const file = imageIn(event.dataTransfer.files);
    if (file) take(file, file.name);
    else refuse("That is no picture. Drop a file such as a JPEG or a PNG.");
  });
  document.addEventListener("paste", (event) => {
    const file = imageIn(event.clipboardData?.files);
    if (!file) return;
    event.preventDefault();
    take(file, file.name || "pasted.png");
  });
}

export function showSamples(list, choose) {
  for (const [name, caption] of Object.entries(SAMPLES)) {
    const button = document.createElement("button");
    const image = new Image(48, 48);
    image.src = `/photos/${name}.jpg`;
    image.alt = name;
    button.type = "button";
    button.dataset.sample = name;
    button.append(image);
    button.addEventListener("click", () => choose(name, caption));
    list.append(button);
  }
}

export async function loadSample(name) {
  const answer = await fetch(`/photos/${encodeURIComponent(name)}.jpg`);
  return answer.blob();
}
