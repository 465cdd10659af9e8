// Footprints on a canvas, every area in a cell of its own: nothing comes from the network.
const MAP = { canvas: $("map"), zoom: 1, x: 0, y: 0, colouring: "split", shapes: [], hover: null, shown: new Set() };

function area(number) {
  const scenes = SCENES.filter((scene) => scene.ring && scene.area === number);
  const points = scenes.flatMap((scene) => scene.ring);
  const least = (axis) => points.reduce((low, point) => Math.min(low, point[axis]), Infinity);
  const most = (axis) => points.reduce((high, point) => Math.max(high, point[axis]), -Infinity);
  const box = { west: least(0), east: most(0), south: least(1), north: most(1) };
  // Metres per degree: along a meridian, and along a parallel at this latitude.
  const metres = [111320 * Math.cos((Math.PI * (box.south + box.north)) / 360), 110574];
  return { number, scenes, box, metres, wide: (box.east - box.west) * metres[0], high: (box.north - box.south) * metres[1] };
}
const AREAS = DATA.areas.map((_, number) => area(number));

function layOut() {
  const { canvas } = MAP, ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const across = Math.max(1, Math.round(Math.sqrt((AREAS.length * width) / (height || 1))));
  const down = Math.ceil(AREAS.length / across) || 1;
  const cell = [width / Math.min(across, AREAS.length || 1), height / down];
  MAP.shapes = AREAS.flatMap((one) => {
    const margin = 18, left = (one.number % across) * cell[0], top = Math.floor(one.number / across) * cell[1];
    const scale = Math.min((cell[0] - 2 * margin) / (one.wide || 1), (cell[1] - 2 * margin - 8) / (one.high || 1));
    one.scale = scale;
    one.corner = [left + 9, top + 15];
    const dx = left + (cell[0] - one.wide * scale) / 2, dy = top + 5 + (cell[1] - one.high * scale) / 2;
    return one.scenes.map((scene) => ({
      scene,
      ring: scene.ring.map(([lon, lat]) => [
        dx + (lon - one.box.west) * one.metres[0] * scale, dy + (one.box.north - lat) * one.metres[1] * scale,
      ]),
    }));
  });
}

const MOST_ROAD = Math.max(1e-6, ...SCENES.map((scene) => scene.road));
function footprintColour(scene) {
  if (MAP.colouring === "split") return css(`--${scene.split}`);
  if (MAP.colouring === "status") return css({ ok: "--test", unlabelled: "--faint", skipped: "--val", failed: "--bad" }[scene.status] || "--bad");
  return `hsl(${215 - 170 * (scene.road / MOST_ROAD)} 75% ${38 + 24 * (scene.road / MOST_ROAD)}%)`;
}

function drawMap() {
  const { canvas } = MAP, pen = canvas.getContext("2d"), ratio = window.devicePixelRatio || 1;
  pen.setTransform(1, 0, 0, 1, 0, 0);
  pen.clearRect(0, 0, canvas.width, canvas.height);
  pen.setTransform(ratio * MAP.zoom, 0, 0, ratio * MAP.zoom, ratio * MAP.x, ratio * MAP.y);
  const paper = css("--card"), ink = css("--ink");
  const faded = MAP.shapes.filter(({ scene }) => !MAP.shown.has(scene.index));
  const clear = MAP.shapes.filter(({ scene }) => MAP.shown.has(scene.index));
  for (const [shapes, opacity] of [[faded, 0.13], [clear, 0.82]]) {
    for (const shape of shapes) {
      const chosen = shape.scene === MAP.hover || shape.scene.id === STATE.scene;
      pen.beginPath();
      shape.ring.forEach(([x, y], i) => (i ? pen.lineTo(x, y) : pen.moveTo(x, y)));
      pen.closePath();
      pen.globalAlpha = chosen ? 1 : opacity;
      pen.fillStyle = footprintColour(shape.scene);
      pen.fill();
      pen.lineWidth = (chosen ? 2 : 0.6) / MAP.zoom;
      pen.strokeStyle = chosen ? ink : paper;
      pen.stroke();
    }
  }
  pen.globalAlpha = 1;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  if (AREAS.length > 1) drawAreaNames(pen);
  else if (AREAS.length) drawScale(pen, AREAS[0].scale * MAP.zoom, canvas.clientHeight);
}

function drawAreaNames(pen) {
  pen.fillStyle = css("--faint");
  pen.font = "11px system-ui, sans-serif";
  if (MAP.zoom === 1) for (const one of AREAS) pen.fillText(DATA.areas[one.number].slice(0, 40), ...one.corner);
}

// The largest of 1, 2, 5, 10, ... that is not above a length.
function roundLength(longest) {
  const power = 10 ** Math.floor(Math.log10(longest));
  return [5, 2, 1].map((step) => step * power).find((length) => length <= longest) || power;
}
const lengthText = (metres) => (metres < 1000 ? `${number(metres, metres < 1 ? 1 : 0)} m` : `${number(metres / 1000)} km`);

function drawScale(pen, scale, height) {
  if (!(scale > 0) || !Number.isFinite(scale)) return;
  const metres = roundLength(90 / scale);
  pen.strokeStyle = pen.fillStyle = css("--faint");
  pen.font = "11px system-ui, sans-serif";
  pen.lineWidth = 1.5;
  pen.strokeRect(10, height - 11, metres * scale, 0.01);
  pen.fillText(lengthText(metres), 10, height - 16);
}

function sceneAt(event) {
  const box = MAP.canvas.getBoundingClientRect();
  const x = (event.clientX - box.left - MAP.x) / MAP.zoom, y = (event.clientY - box.top - MAP.y) / MAP.zoom;
  const inside = ({ ring }) => ring.reduce((odd, [ax, ay], i) => {
    const [bx, by] = ring[(i + 1) % ring.length];
    return ay > y !== by > y && x < ax + ((bx - ax) * (y - ay)) / (by - ay) ? !odd : odd;
  }, false);
  const hits = MAP.shapes.filter(inside).map(({ scene }) => scene);
  return hits.find((scene) => MAP.shown.has(scene.index)) || null;
}

function zoomMap(factor, at) {
  const { canvas } = MAP, zoom = Math.min(200, Math.max(1, MAP.zoom * factor)), change = zoom / MAP.zoom;
  const [x, y] = at || [canvas.clientWidth / 2, canvas.clientHeight / 2];
  Object.assign(MAP, { zoom, x: x - (x - MAP.x) * change, y: y - (y - MAP.y) * change });
  if (zoom === 1) Object.assign(MAP, { x: 0, y: 0 });
  drawMap();
}

function noteMap() {
  const unplaced = SCENES.filter((scene) => !scene.ring).length, hover = MAP.hover;
  $("map-note").textContent = hover ? `${hover.id} · ${share(hover.road)} ${DATA.words.share}` : unplaced ? `${number(unplaced)} without a place` : "";
  const used = (name, values) => values.filter((value) => SCENES.some((scene) => scene[name] === value));
  if (MAP.colouring === "road") keyed($("map-key"), [0, 0.5, 1].map((part) => [footprintColour({ road: part * MOST_ROAD }), share(part * MOST_ROAD)]));
  else keyed($("map-key"), used(MAP.colouring, DATA[MAP.colouring === "split" ? "splits" : "statuses"]).map((value) => [footprintColour({ split: value, status: value }), value]));
}

function startMap(open) {
  const mark = segments($("colouring"), ["split", "status", "road"], (name) => {
    MAP.colouring = name;
    mark(name);
    noteMap();
    drawMap();
  });
  mark("split");
  $("zoom-in").addEventListener("click", () => zoomMap(1.6));
  $("zoom-out").addEventListener("click", () => zoomMap(1 / 1.6));
  $("zoom-fit").addEventListener("click", () => zoomMap(1e-9));
  MAP.canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return; // else the page scrolls
    event.preventDefault();
    zoomMap(Math.exp(-event.deltaY / 200), [event.offsetX, event.offsetY]);
  }, { passive: false });
  let grip = null;
  MAP.canvas.addEventListener("pointerdown", (event) => (grip = { x: event.clientX, y: event.clientY, moved: false }));
  MAP.canvas.addEventListener("pointermove", (event) => {
    if (grip && MAP.zoom > 1 && event.buttons) {
      grip.moved = grip.moved || Math.hypot(event.clientX - grip.x, event.clientY - grip.y) > 4;
      Object.assign(MAP, { x: MAP.x + event.movementX, y: MAP.y + event.movementY });
    } else {
      const hover = sceneAt(event);
      if (hover === MAP.hover) return;
      MAP.hover = hover;
      MAP.canvas.style.cursor = hover ? "pointer" : "default";
      noteMap();
    }
    drawMap();
  });
  MAP.canvas.addEventListener("pointerup", (event) => {
    const scene = grip && !grip.moved ? sceneAt(event) : null;
    grip = null;
    if (scene) open(scene);
  });
  MAP.canvas.addEventListener("pointerleave", () => {
    grip = MAP.hover = null;
    noteMap();
    drawMap();
  });
}
