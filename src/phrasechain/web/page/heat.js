// A heat map of a phrase's marginals: bright where the regions lie that the model thinks of.

import { colourOf } from "./colours.js";

const CELLS = 120; // of the longer side

// How much of the mass lies over each cell: rows × columns, scaled to 1.
export function massGrid(regions, width, height) {
  const scale = CELLS / Math.max(width, height);
  const columns = Math.max(1, Math.round(width * scale));
  const rows = Math.max(1, Math.round(height * scale));
  const mass = new Float32Array(columns * rows);
  for (const { box: [x0, y0, x1, y1], probability } of regions) {
    const right = Math.min(columns, Math.ceil(x1 * scale));
    const bottom = Math.min(rows, Math.ceil(y1 * scale));
    for (let y = Math.max(0, Math.floor(y0 * scale)); y < bottom; y += 1) {
      for (let x = Math.max(0, Math.floor(x0 * scale)); x < right; x += 1) mass[y * columns + x] += probability;
    }
  }
  const most = mass.reduce((a, b) => Math.max(a, b), 1e-9);
  return { columns, rows, mass: mass.map((value) => value / most) };
}

export function drawHeat(canvas, regions, width, height, index) {
  const { columns, rows, mass } = massGrid(regions, width, height);
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  const [red, green, blue] = colourOf(index);
  mass.forEach((value, place) => {
    const dark = 0.6 * (1 - value); // where there is little; the phrase's colour where there is much
    const glow = 0.34 * value * value;
    const share = glow / (dark + glow || 1);
    image.data.set([red * share, green * share, blue * share, 255 * (dark + glow)], 4 * place);
  });
  context.putImageData(image, 0, 0);
}

export function clearHeat(canvas) {
  canvas.getContext("2d").clearRect(0, 0, canvas.width, canvas.height);
}
