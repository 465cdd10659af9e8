// One scene at full size: image and mask side by side or one over the other, moved together.
const VIEW = { scene: null, list: [], zoom: 1, x: 0, y: 0, fit: 1, pixels: null };
const PANES = [$("pane-image"), $("pane-mask")];
const DIALOG = $("viewer");
const MODES = { "side by side": "both", overlay: "overlay", image: "image", [DATA.words.label]: "mask" };

function openScene(scene, list) {
  Object.assign(VIEW, { scene, list: list.includes(scene) ? list : [scene], pixels: null });
  STATE.scene = scene.id;
  writeState();
  if (!DIALOG.open) DIALOG.showModal();
  showPictures(scene);
  describe(scene);
  showMode();
  fitScene();
  drawMap();
}

function closeScene() {
  STATE.scene = "";
  VIEW.scene = null;
  writeState();
  if (DIALOG.open) DIALOG.close();
  for (const picture of DIALOG.querySelectorAll("img")) picture.removeAttribute("src");
  drawMap();
}

function showPictures(scene) {
  $("nothing").hidden = scene.built;
  $("nothing").textContent = scene.built ? "" : `${scene.status}: ${scene.reason}`;
  for (const picture of DIALOG.querySelectorAll("img")) {
    if (!scene.built) picture.removeAttribute("src");
    else picture.src = source(picture.className, scene.index);
  }
  const mask = PANES[1].querySelector(".mask");
  mask.onload = () => (VIEW.pixels = readPixels(mask));
}

// Colours of the mask, for the speed below the pointer; a page opened from a file with its pictures
// beside it may not look at them.
function readPixels(picture) {
  const canvas = document.createElement("canvas");
  canvas.width = picture.naturalWidth;
  canvas.height = picture.naturalHeight;
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.drawImage(picture, 0, 0);
  try { pen.getImageData(0, 0, 1, 1); } catch { return null; }
  return pen;
}

function describe(scene) {
  const at = VIEW.list.indexOf(scene), centre = scene.ring && [0, 1].map((axis) => scene.ring.reduce((sum, point) => sum + point[axis], 0) / scene.ring.length);
  $("who").textContent = scene.id;
  $("what").replaceChildren(badge(scene.split, tone(scene.split)), ...(scene.status === "ok" ? [] : [badge(scene.status, tone("bad"))]));
  $("position").textContent = `${number(at + 1)} of ${number(VIEW.list.length)}`;
  const size = `${number(scene.width)} × ${number(scene.height)} px` + (scene.step > 1 ? `, shown at 1:${scene.step}` : "");
  const facts = [
    [DATA.words.share, scene.status === "ok" && share(scene.road)], ["imagery", share(scene.valid)], ["size", size],
    ["ground", scene.metres && `${number(scene.metres)} × ${number(scene.metres * scene.aspect)} m`],
    ["centre", centre && `${centre[1].toFixed(5)}, ${centre[0].toFixed(5)}`], ["CRS", scene.crs], ["", scene.built && scene.reason], ["pointer", " "],
  ];
  $("details").replaceChildren(...facts.filter(([, value]) => value).map(([name, value]) => {
    const row = make("div"), text = make("dd", "", value);
    if (name === "pointer") text.id = "pointer";
    else if (name) row.append(make("dt", "", name));
    row.append(text);
    return row;
  }));
}

const markMode = segments($("modes"), Object.keys(MODES), (name) => setMode(MODES[name]));

function setMode(mode) {
  STATE.view = mode;
  writeState();
  showMode();
  fitScene();
}

function showMode() {
  $("stage").dataset.mode = STATE.view;
  $("opacity-box").hidden = STATE.view !== "overlay";
  PANES[0].querySelector(".mask").style.opacity = $("opacity").value / 100;
  PANES[0].querySelector(".label").textContent = STATE.view === "overlay" ? `image and ${DATA.words.label}` : "image";
  markMode(Object.keys(MODES).find((name) => MODES[name] === STATE.view));
}

const visiblePane = () => PANES.find((pane) => pane.clientWidth) || PANES[0];

function fitScene() {
  const scene = VIEW.scene, pane = visiblePane();
  if (!scene) return;
  VIEW.size = [scene.width / scene.step, (scene.width / scene.step) * scene.aspect];
  VIEW.fit = Math.min(pane.clientWidth / VIEW.size[0], pane.clientHeight / VIEW.size[1]);
  VIEW.zoom = VIEW.fit;
  VIEW.x = (pane.clientWidth - VIEW.size[0] * VIEW.zoom) / 2;
  VIEW.y = (pane.clientHeight - VIEW.size[1] * VIEW.zoom) / 2;
  place();
}

function place() {
  for (const pane of PANES) {
    const sheet = pane.querySelector(".sheet");
    sheet.style.width = `${VIEW.size[0]}px`;
    sheet.style.height = `${VIEW.size[1]}px`;
    sheet.style.transform = `translate(${VIEW.x}px, ${VIEW.y}px) scale(${VIEW.zoom})`;
    pane.classList.toggle("near", VIEW.zoom > 2);
  }
  const bar = PANES[0].querySelector(".scale"), metres = VIEW.scene.metres;
  bar.hidden = !metres || !VIEW.scene.built;
  if (bar.hidden) return;
  const perPixel = metres / (VIEW.size[0] * VIEW.zoom), length = roundLength(150 * perPixel);
  bar.style.width = `${length / perPixel}px`;
  bar.textContent = lengthText(length);
}

function zoomScene(factor, x, y) {
  const pane = visiblePane(), zoom = Math.min(32, Math.max(VIEW.fit / 2, VIEW.zoom * factor)), change = zoom / VIEW.zoom;
  const [cx, cy] = x === undefined ? [pane.clientWidth / 2, pane.clientHeight / 2] : [x, y];
  Object.assign(VIEW, { zoom, x: cx - (cx - VIEW.x) * change, y: cy - (cy - VIEW.y) * change });
  place();
}

function stepScene(by) {
  const at = VIEW.list.indexOf(VIEW.scene) + by;
  if (VIEW.list[at]) openScene(VIEW.list[at], VIEW.list);
}

function point(event, pane) {
  const box = pane.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  for (const other of PANES) {
    const cross = other.querySelector(".cross");
    cross.style.display = other === pane || event.type === "pointerleave" ? "none" : "block";
    cross.style.left = `${x}px`;
    cross.style.top = `${y}px`;
  }
  const u = (x - VIEW.x) / VIEW.zoom / VIEW.size[0], v = (y - VIEW.y) / VIEW.zoom / VIEW.size[1];
  if (VIEW.scene && $("pointer")) $("pointer").textContent = event.type === "pointerleave" || Math.min(u, v) < 0 || Math.max(u, v) >= 1 ? " " : pointed(u, v);
}

function pointed(u, v) {
  const where = `${Math.floor(u * VIEW.scene.width)}, ${Math.floor(v * VIEW.scene.height)} px`;
  if (!VIEW.pixels) return where;
  const { width, height } = VIEW.pixels.canvas;
  const [red, green, blue, opacity] = VIEW.pixels.getImageData(Math.floor(u * width), Math.floor(v * height), 1, 1).data;
  const colour = `rgb(${red},${green},${blue})`;
  const [number, bin] = Object.entries(DATA.legend.bins).find(([, one]) => one.colour === colour) || [];
  const named = number === "0" ? DATA.words.unknown : bin ? `${bin.label}${DATA.words.unit}` : "nodata";
  return `${where}: ${opacity ? named : "background"}`;
}

function startViewer() {
  const bins = Object.values(DATA.legend.bins).map((bin) => [bin.colour, bin.label]);
  const ground = DATA.words.background ? [[DATA.legend.ground, "background"]] : [];
  keyed($("legend"), [...ground, ...bins, ["nodata", "nodata"]]);
  if (bins.length > 1 && DATA.words.unit) $("legend").prepend("mph");
  DIALOG.style.setProperty("--ground", DATA.legend.ground);
  $("close").addEventListener("click", closeScene);
  DIALOG.addEventListener("cancel", (event) => { event.preventDefault(); closeScene(); });
  $("previous").addEventListener("click", () => stepScene(-1));
  $("next").addEventListener("click", () => stepScene(1));
  $("opacity").addEventListener("input", showMode);
  const held = new Map();
  for (const pane of PANES) {
    pane.addEventListener("wheel", (event) => {
      event.preventDefault();
      const box = pane.getBoundingClientRect();
      zoomScene(Math.exp(-event.deltaY / 300), event.clientX - box.left, event.clientY - box.top);
    }, { passive: false });
    pane.addEventListener("pointerdown", (event) => { held.set(event.pointerId, event); pane.setPointerCapture(event.pointerId); });
    for (const end of ["pointerup", "pointercancel"]) pane.addEventListener(end, (event) => held.delete(event.pointerId));
    pane.addEventListener("pointermove", (event) => { drag(event, held); point(event, pane); });
    pane.addEventListener("pointerleave", (event) => point(event, pane));
    pane.addEventListener("dblclick", () => (VIEW.zoom === VIEW.fit ? zoomScene(1 / VIEW.zoom) : fitScene()));
  }
}

// One finger or the mouse moves; two fingers zoom.
function drag(event, held) {
  const before = held.get(event.pointerId);
  if (!before) return;
  const other = [...held.values()].find((one) => one.pointerId !== event.pointerId);
  if (other) {
    const apart = (one) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
    const box = visiblePane().getBoundingClientRect();
    zoomScene(apart(event) / Math.max(1, apart(before)), (event.clientX + other.clientX) / 2 - box.left, (event.clientY + other.clientY) / 2 - box.top);
  } else {
    VIEW.x += event.clientX - before.clientX;
    VIEW.y += event.clientY - before.clientY;
    place();
  }
  held.set(event.pointerId, event);
}
