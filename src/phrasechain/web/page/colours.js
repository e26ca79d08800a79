// The colours of the phrases, as in the pictures that phrasechain draws (draw/colours.py; a test compares them).

export const PALETTE = [
  [0, 114, 178], [230, 159, 0], [0, 158, 115], [204, 121, 167],
  [86, 180, 233], [213, 94, 0], [240, 228, 66], [0, 0, 0],
];
const DASHES = ["", "6 3", "2 2"]; // past the palette's end, in widths of the line

export function colourOf(index) {
  return PALETTE[index % PALETTE.length];
}

export function cssColour(index, alpha = 1) {
  return `rgb(${colourOf(index).join(" ")} / ${alpha})`;
}

// White where it can be read on the colour (WCAG 2, AA), else black.
export function inkOn(index) {
  const [red, green, blue] = colourOf(index).map((value) => {
    const share = value / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 1.05 / (0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05) >= 4.5 ? "white" : "black";
}

export function dashOf(index, width) {
  const dash = DASHES[Math.floor(index / PALETTE.length) % DASHES.length];
  return dash && dash.split(" ").map((length) => Number(length) * width).join(" ");
}

export function percent(probability) {
  if (probability > 0 && probability < 0.005) return "<1 %";
  if (probability >= 0.995 && probability < 1) return ">99 %";
  return `${Math.round(100 * probability)} %`;
}
