/** What could be made, shown before there are videos: three scenes, drawn here, with the prompts that they stand for. */

import { byId, element } from '../core/dom.js';
import { t } from '../core/format.js';

/** Scenes are drawn at this size. */
const WIDTH = 480, HEIGHT = 270;
/** Milliseconds between two pictures: as in the cinema. */
const PAUSE = 1000 / 24;
/** Then they stand still: what moves for longer needs a button that stops it. */
const MOVING = 5_000;

const SCENES = {
  lighthouse, train, lanterns,
};

/** Fills in the empty gallery. `use(prompt)` takes a prompt into the form. */
export function showSamples(use) {
  const scenes = Object.entries(SCENES).map(([name, draw]) => ({ prompt: t(`sample.${name}`), draw, canvas: element('canvas', { width: WIDTH, height: HEIGHT, 'aria-hidden': 'true' }) }));
  byId('jobs-empty').replaceChildren(
    element('p', { class: 'lead', text: t('sample.lead') }), element('p', {}, element('span', { class: 'unseen', text: `${t('admin.noVideos')} ` }), t('sample.how')),
    ...scenes.map(({ prompt, canvas }) => element('button', { type: 'button', class: 'sample', click: () => use(prompt) }, canvas, element('span', { text: prompt }))));
  const isStill = matchMedia('(prefers-reduced-motion: reduce)');
  let drawn = -Infinity, first = null;
  const tick = (now) => {
    if (byId('jobs-empty').hidden) return byId('jobs-empty').replaceChildren();
    first ??= now;
    if (drawn > 0 && now - first > MOVING) return;
    if (now - drawn >= PAUSE && (drawn < 0 || !isStill.matches) && scenes[0].canvas.checkVisibility()) {
      drawn = now;
      for (const { draw, canvas } of scenes) draw(canvas.getContext('2d'), now / 1000);
    }
    requestAnimationFrame(tick);
  };
  requestAnimationFrame(tick);
}

function sky(on, ...colours) {
  const fill = on.createLinearGradient(0, 0, 0, HEIGHT);
  colours.forEach((colour, place) => fill.addColorStop(place / (colours.length - 1), colour));
  on.fillStyle = fill;
  on.fillRect(0, 0, WIDTH, HEIGHT);
}

function disc(on, x, y, radius, ...colours) {
  const fill = on.createRadialGradient(x, y, 0, x, y, radius);
  colours.forEach((colour, place) => fill.addColorStop(place / (colours.length - 1), colour));
  on.fillStyle = fill;
  on.fillRect(x - radius, y - radius, 2 * radius, 2 * radius);
}

/** Fills what is below a line, `height(x)` above the bottom. */
function below(on, colour, height) {
  on.fillStyle = colour;
  on.beginPath();
  on.moveTo(0, HEIGHT);
  for (let x = 0; x <= WIDTH; x += 4) on.lineTo(x, HEIGHT - height(x));
  on.lineTo(WIDTH, HEIGHT);
  on.fill();
}

function shape(on, colour, ...points) {
  on.fillStyle = colour;
  on.beginPath();
  for (const [x, y] of points) on.lineTo(x, y);
  on.fill();
}

function lighthouse(on, time) {
  sky(on, '#1b2450', '#6a3f72', '#e2836b', '#f7c98b');
  disc(on, 120, 178, 90, '#fff1c9', '#fbd08a88', '#fbd08a00');
  const pan = 330 - 8 * Math.sin(time / 6);
  // The beam turns: it is widest when it points at us.
  const turn = Math.cos(time * 0.9), reach = 420 * turn;
  on.globalAlpha = 0.25 + 0.3 * Math.abs(Math.sin(time * 0.9));
  shape(on, '#fff3c4', [pan, 92], [pan - reach, 66 - 20 * Math.abs(turn)], [pan - reach, 120 + 20 * Math.abs(turn)]);
  on.globalAlpha = 1;
  below(on, '#2b2140', (x) => 70 * Math.exp(-(((x - pan - 20) / 90) ** 2)) + 34);
  shape(on, '#f3ece2', [pan - 13, 196], [pan - 8, 104], [pan + 8, 104], [pan + 13, 196]);
  shape(on, '#b8433f', [pan - 12, 172], [pan - 11, 148], [pan + 11, 148], [pan + 12, 172]);
  shape(on, '#b8433f', [pan - 9, 126], [pan - 8, 108], [pan + 8, 108], [pan + 9, 126]);
  shape(on, '#241b36', [pan - 10, 104], [pan - 6, 84], [pan, 76], [pan + 6, 84], [pan + 10, 104]);
  disc(on, pan, 94, 26, '#fffbe6', '#ffe9a8aa', '#ffe9a800');
  for (const [depth, colour] of ['#6f4b6f', '#4a3a66', '#332a52', '#211b3a'].entries()) {
    below(on, colour, (x) => 62 - depth * 17 + (3 + depth * 1.5) * Math.sin(x / (26 + depth * 12) + time * (0.7 + depth * 0.3)));
  }
}

function train(on, time) {
  sky(on, '#6fa6d6', '#f3d9b0', '#f6b26b');
  disc(on, 380, 84, 120, '#fff6d8', '#ffe3a077', '#ffe3a000');
  const peaks = (x, scale) => Math.abs(Math.sin(x / (47 * scale))) * 30 + Math.abs(Math.sin(x / (71 * scale) + 1)) * 44;
  below(on, '#a9b6cf', (x) => 120 + peaks(x + time * 6, 1.4));
  below(on, '#7785a8', (x) => 88 + peaks(x + 300 + time * 14, 1.1));
  below(on, '#4d6b57', (x) => 76 + 16 * Math.sin((x + time * 40) / 90) + 5 * Math.sin((x + time * 40) / 17));
  // A viaduct, and the train that the camera goes along with.
  const base = 190 + Math.sin(time * 9) * 0.4;
  for (let x = -((time * 120) % 60); x < WIDTH; x += 60) shape(on, '#6b5b4e', [x, 206], [x + 16, 206], [x + 14, HEIGHT], [x + 2, HEIGHT]);
  shape(on, '#85725f', [0, 202], [WIDTH, 202], [WIDTH, 214], [0, 214]);
  for (const [place, colour] of ['#b5322e', '#c9443c', '#c9443c', '#c9443c'].entries()) {
    const x = 318 - place * 96 + 10 * Math.sin(time / 3);
    shape(on, colour, [x, base - 20], [x + (place ? 92 : 70), base - 20], [x + 92, base], [x + 92, base + 10], [x, base + 10]);
    shape(on, '#f3e3c3', [x, base + 2], [x + 92, base + 2], [x + 92, base + 4], [x, base + 4]);
    for (let pane = 0; pane < 4; pane += 1) shape(on, '#2c3c52', [x + 7 + pane * 17, base - 15], [x + 19 + pane * 17, base - 15], [x + 19 + pane * 17, base - 4], [x + 7 + pane * 17, base - 4]);
  }
  for (let x = 90 - ((time * 260) % 190); x < WIDTH + 90; x += 190) shape(on, '#27402f', [x, 168], [x + 22, 244], [x + 14, 244], [x + 30, HEIGHT], [x - 30, HEIGHT], [x - 14, 244], [x - 22, 244]);
}

function lanterns(on, time) {
  sky(on, '#0b1030', '#1c1f55', '#4a2a63');
  disc(on, 90, 52, 40, '#f6f2ff', '#cfc8ff55', '#cfc8ff00');
  for (const [depth, colour] of ['#171a45', '#0e1130'].entries()) {
    const pan = time * (5 + depth * 9);
    const first = Math.floor(pan / 34);
    for (let house = first; house < first + 17; house += 1) {
      const x = house * 34 - pan, height = 40 + ((house * 7919 + depth * 31) % 53) - depth * 14;
      shape(on, colour, [x, HEIGHT - height], [x + 32, HEIGHT - height], [x + 32, HEIGHT], [x, HEIGHT]);
      on.fillStyle = depth ? '#ffd98a' : '#8a7fb8';
      for (let pane = 0; pane < 12; pane += 1) if ((house * 13 + pane * 7) % 5 < 2) on.fillRect(x + 5 + (pane % 3) * 9, HEIGHT - height + 7 + Math.floor(pane / 3) * 11, 4, 5);
    }
  }
  for (let one = 0; one < 16; one += 1) {
    const size = 5 + (one * 37 % 9), way = (one * 61 % 300) + time * (7 + size);
    const x = (one * 97 + 14 * Math.sin(time * 0.6 + one)) % (WIDTH + 40) - 10, y = HEIGHT - 20 - way % (HEIGHT + 30);
    disc(on, x, y, size * 3.2, '#ffb45c99', '#ff8a3c33', '#ff8a3c00');
    shape(on, '#ffc270', [x - size * 0.7, y - size], [x + size * 0.7, y - size], [x + size, y + size * 0.6], [x + size * 0.5, y + size], [x - size * 0.5, y + size], [x - size, y + size * 0.6]);
    shape(on, '#fff0c0', [x - size * 0.4, y + size * 0.2], [x + size * 0.4, y + size * 0.2], [x + size * 0.4, y + size], [x - size * 0.4, y + size]);
  }
}
