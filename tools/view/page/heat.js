// Heat maps: layers down, cells of positions across, one pixel column for as many cells as there are. A cell that is not there, or is damaged, is no zero.

const SCALES = {log: "logarithm", linear: "linear", rank: "rank within the layer", cut: "1st to 99th percentile"};
// What a cell shows; a wrong row is shown before a large one. LACKING, EXTRA and SHAPE compare two runs: the other run lacks the row, it alone has it, its rows have another shape.
const [ABSENT, THERE, DAMAGED, LACKING, EXTRA, SHAPE] = [0, 1, 2, 3, 4, 5];
const WRONG = [[LACKING, "only in this run"], [EXTRA, "only in the other run"], [SHAPE, "rows of another shape"], [DAMAGED, "damaged"]];
const MARGIN = 44, FOOT = 18, FOOT_TEXTS = 34;
// Colours from nothing, which is the page's own background, to much. Values below 0 are orange. Both sides are told apart in any colour blindness.
const LIGHT = {back: [255, 255, 255], more: [[158, 202, 225], [33, 113, 181], [8, 36, 84]], less: [[253, 208, 162], [230, 110, 10], [110, 40, 0]], absent: [226, 226, 226], nan: [214, 0, 147],
    states: {[DAMAGED]: [90, 90, 90], [LACKING]: [0, 158, 115], [EXTRA]: [222, 196, 0], [SHAPE]: [178, 74, 0]}};
const DARK = {back: [20, 23, 28], more: [[22, 70, 120], [66, 146, 214], [222, 240, 255]], less: [[110, 50, 8], [230, 120, 30], [255, 226, 190]], absent: [52, 56, 62], nan: [255, 84, 190],
    states: {[DAMAGED]: [150, 150, 150], [LACKING]: [30, 190, 145], [EXTRA]: [240, 228, 66], [SHAPE]: [225, 110, 20]}};

function theme() {
    return matchMedia("(prefers-color-scheme: dark)").matches ? DARK : LIGHT;
}

// Does a cell take part in the scale? @first: the first token does, too.
function counts(entry, state, value, i, first) {
    return state[i] === THERE && Number.isFinite(value[i]) && (first || i % entry.cells > 0 || entry.first > 0);
}

// {low, high, floor, of(value, i)}: where a value stands, from 0 to 1, below 0 on the other side. @floor: where the least above 0 stands by logarithm.
function scaleFor(entry, state, value, kind, first, floor = 0.04) {
    const kept = new Float32Array(value.length);
    let n = 0;
    for (let i = 0; i < value.length; i++)
        if (counts(entry, state, value, i, first))
            kept[n++] = Math.abs(value[i]);
    const sorted = kept.subarray(0, n).sort(), at = (share) => n ? sorted[Math.min(n - 1, Math.floor(share * n))] : 0;
    const signed = (f) => (x) => Math.sign(x) * Math.max(0, Math.min(1, f(Math.abs(x))));
    if (kind === "log") {
        const least = sorted.find((x) => x > 0) || 1, most = Math.max(at(1), least), width = Math.log(most / least) || 1;
        return {low: least, high: most, floor, of: signed((x) => x <= 0 ? 0 : floor + (1 - floor) * Math.log(x / least) / width)};
    }
    if (kind === "cut") {
        const low = at(0.01), high = at(0.99);
        return {low, high, of: signed((x) => (x - low) / (high - low || 1))};
    }
    if (kind === "rank") {
        const rows = ranksOf(entry, state, value, first);
        return {low: 0, high: 1, of: (x, i) => Math.sign(x || 1) * rows[i]};
    }
    return {low: 0, high: at(1), of: signed((x) => x / (at(1) || 1))};
}

// [scale, with the first token] by which a map is first shown. Where the first token is far above all others it is left out; where a few cells still take most of
// the colours, which the logarithm gives to all magnitudes alike, the scale has the others.
function fittingScale(entry, state, value) {
    const magnitudes = (first) => Float32Array.from([...value.keys()].filter((i) => counts(entry, state, value, i, first) && value[i] !== 0), (i) => Math.abs(value[i])).sort();
    const all = magnitudes(true), later = magnitudes(false), first = !later.length || all.at(-1) < 4 * later.at(-1), kept = first ? all : later, at = (share) => kept[Math.floor(share * (kept.length - 1))];
    return [kept.length && Math.log(at(0.99) / at(0.01)) < Math.log(at(1) / at(0)) / 3 ? "cut" : "log", first];
}

// The share of the layer's cells that are smaller, for each cell.
function ranksOf(entry, state, value, first) {
    const found = new Float32Array(value.length), {cells} = entry;
    for (let layer = 0; layer < entry.layers.length; layer++) {
        const kept = [];
        for (let i = layer * cells; i < (layer + 1) * cells; i++)
            if (counts(entry, state, value, i, first))
                kept.push(i);
        kept.sort((a, b) => Math.abs(value[a]) - Math.abs(value[b]));
        kept.forEach((i, k) => { found[i] = kept.length > 1 ? k / (kept.length - 1) : 1; });
    }
    return found;
}

function colourOf(t, colours) {
    const stops = [colours.back, ...(t < 0 ? colours.less : colours.more)], x = Math.min(Math.abs(t), 1) * (stops.length - 1), k = Math.min(Math.floor(x), stops.length - 2);
    return stops[k].map((c, i) => c + (x - k) * (stops[k + 1][i] - c));
}

// Gives an element the colour of a share from 0 to 1, and ink that can be read on it.
function shade(element, t) {
    const colours = theme(), colour = colourOf(t, colours), isLight = colour[0] * 0.3 + colour[1] * 0.6 + colour[2] * 0.1 > 140;
    element.style.background = `rgb(${colour.map(Math.round).join()})`;
    element.style.color = isLight ? "#14171c" : "#ffffff";
}

// What a pixel shows of the cells from a to before b of a layer: what is wrong before what is large.
function pixel(entry, value, state, scale, colours, layer, a, b) {
    let best = null, seen = ABSENT, bad = false;
    for (let i = layer * entry.cells + a; i < layer * entry.cells + b; i++) {
        seen = Math.max(seen, state[i]);
        if (state[i] !== THERE)
            continue;
        bad ||= !Number.isFinite(value[i]);
        const t = Number.isFinite(value[i]) ? scale.of(value[i], i) : 0;
        best = best === null || Math.abs(t) > Math.abs(best) ? t : best;
    }
    return seen > THERE ? colours.states[seen] : bad ? colours.nan : best === null ? colours.absent : colourOf(best, colours);
}

// @most: pixels of its height, about.
function heatSize(canvas, entry, most) {
    const width = Math.max(200, canvas.parentElement.clientWidth - MARGIN);
    return {width, height: Math.max(4, Math.min(18, Math.floor(most / entry.layers.length)) || 1) * entry.layers.length};
}

// What a canvas showed last: moving the cursor draws no cell again.
const heatImages = new WeakMap();

function heatImage(canvas, entry, state, value, scale, sight, columns, colours) {
    const parts = [state, value, scale, sight.from, sight.to, columns, colours], before = heatImages.get(canvas), n = sight.to - sight.from, layers = entry.layers.length;
    if (before && before.parts.every((part, i) => part === parts[i]))
        return before.plain;
    const image = new ImageData(columns, layers), plain = document.createElement("canvas");
    for (let layer = 0; layer < layers; layer++)
        for (let x = 0; x < columns; x++) {
            const a = sight.from + Math.floor(x * n / columns), b = Math.max(a + 1, sight.from + Math.floor((x + 1) * n / columns));
            const [r, g, bl] = pixel(entry, value, state, scale, colours, layer, a, b);
            image.data.set([r, g, bl, 255], 4 * (layer * columns + x));
        }
    [plain.width, plain.height] = [columns, layers];
    plain.getContext("2d").putImageData(image, 0, 0);
    heatImages.set(canvas, {parts, plain});
    return plain;
}

// @sight: {from, to: the cells that are shown, layer, cell: the cursor}
function drawHeat(canvas, entry, state, value, scale, sight, most = 560) {
    const colours = theme(), {width, height} = heatSize(canvas, entry, most), ratio = devicePixelRatio || 1;
    const plain = heatImage(canvas, entry, state, value, scale, sight, Math.min(sight.to - sight.from, width), colours);
    canvas.width = (width + MARGIN) * ratio;
    const foot = hasTexts(entry) ? FOOT_TEXTS : FOOT;
    canvas.height = (height + foot) * ratio;
    canvas.style.width = `${width + MARGIN}px`;
    canvas.style.height = `${height + foot}px`;
    const to = canvas.getContext("2d");
    to.scale(ratio, ratio);
    to.imageSmoothingEnabled = false;
    to.drawImage(plain, MARGIN, 0, width, height);
    frame(to, entry, state, sight, width, height, colours);
}

// Numbers of layers and positions, hatches over what is wrong, and the cursor.
function frame(to, entry, state, sight, width, height, colours) {
    const layers = entry.layers.length, row = height / layers, n = sight.to - sight.from, column = width / n;
    const ink = getComputedStyle(document.body).color;
    to.fillStyle = to.strokeStyle = ink;
    to.font = "11px system-ui, sans-serif";
    const each = Math.max(1, Math.ceil(12 / row));
    to.textAlign = "right";
    for (let layer = 0; layer < layers; layer += each)
        to.fillText(entry.layers[layer] === null ? "" : String(entry.layers[layer]), MARGIN - 6, (layer + 0.5) * row + 4);
    to.textAlign = "center";
    const apart = Math.max(1, Math.ceil(60 / column)), room = Math.max(apart * column, 40) - 6;
    const write = (text, cell, y) => {  // whole, within the canvas
        const half = to.measureText(text).width / 2, x = MARGIN + (cell - sight.from + 0.5) * column;
        to.fillText(text, Math.max(half, Math.min(x, MARGIN + width - half)), height + y);
    };
    for (let cell = sight.from; cell < sight.to; cell += apart) {
        const token = hasTexts(entry) ? tokenAt(entry.request, positionOf(entry, cell)) : null;
        write(String(positionOf(entry, cell)), cell, 13);
        if (token !== null)
            write(cutText(to, wordOf(token), room), cell, 28);
    }
    if (column >= 3)
        for (let layer = 0; layer < layers; layer++)
            for (let cell = sight.from; cell < sight.to; cell++)
                if (state[layer * entry.cells + cell] > THERE)
                    hatch(to, MARGIN + (cell - sight.from) * column, layer * row, column, row, colours);
    for (const [width_, colour] of [[4, `rgb(${colours.back.join()})`], [2, ink]]) {  // seen on any colour
        to.lineWidth = width_;
        to.strokeStyle = colour;
        to.strokeRect(MARGIN + (sight.cell - sight.from) * column - 1, sight.layer * row - 1, Math.max(column, 2) + 2, row + 2);
    }
}

// Do texts of tokens stand under its positions?
function hasTexts(entry) {
    return entry.per === 1 && !entry.by_row && Object.keys(DATA.texts).length > 0 && tokensOf(entry.request) !== null;
}

// A text, or what of it has room, by whole characters as they are seen.
function cutText(to, text, room) {
    if (to.measureText(text).width <= room)
        return text;
    const parts = [...new Intl.Segmenter().segment(text)].map((part) => part.segment);
    while (parts.length > 1 && to.measureText(`${parts.join("")}\u2026`).width > room)
        parts.pop();
    return `${parts.join("")}\u2026`;
}

function hatch(to, x, y, width, height, colours) {
    to.save();
    to.beginPath();
    to.rect(x, y, width, height);
    to.clip();
    to.strokeStyle = `rgb(${colours.back.join()})`;
    to.lineWidth = 1;
    to.beginPath();
    for (let d = -height; d < width; d += 4) {
        to.moveTo(x + d, y + height);
        to.lineTo(x + d + height, y);
    }
    to.stroke();
    to.restore();
}

function positionOf(entry, cell) {
    return entry.first + cell * entry.per;
}

function placeName(entry, cell) {
    const first = positionOf(entry, cell), last = Math.min(first + entry.per, entry.first + entry.positions) - 1;
    return `${entry.by_row ? "row" : "position"} ${last > first ? `${first} to ${last}` : first}`;
}

// [layer, cell] under the mouse, or null.
function cellAt(event, entry, sight, most = 560) {
    const canvas = event.currentTarget, box = canvas.getBoundingClientRect(), {width, height} = heatSize(canvas, entry, most);
    const cell = sight.from + Math.floor((event.clientX - box.left - MARGIN) / width * (sight.to - sight.from)), layer = Math.floor((event.clientY - box.top) / height * entry.layers.length);
    return cell >= sight.from && cell < sight.to && layer >= 0 && layer < entry.layers.length ? [layer, cell] : null;
}

// The cursor lies within the map, and in sight.
function settle(entry, sight) {
    sight.layer = Math.max(0, Math.min(sight.layer, entry.layers.length - 1));
    sight.cell = Math.max(0, Math.min(sight.cell, entry.cells - 1));
    const n = Math.max(1, Math.min(sight.to - sight.from, entry.cells));
    if (sight.cell < sight.from || sight.cell >= sight.from + n)
        sight.from = sight.cell - Math.floor(n / 2);
    sight.from = Math.max(0, Math.min(sight.from, entry.cells - n));
    sight.to = sight.from + n;
}

function zoom(entry, sight, factor) {
    const n = Math.max(1, Math.min(entry.cells, Math.round((sight.to - sight.from) * factor)));
    sight.from = Math.max(0, Math.min(Math.round(sight.cell - n / 2), entry.cells - n));
    sight.to = sight.from + n;
}

// How far a key moves the cursor: layers and cells.
const HEAT_STEPS = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], "[": [-1, 0], "]": [1, 0], Home: [0, -Infinity], End: [0, Infinity]};

// Moves the cursor by a key, or zooms. Return: whether the key does so.
function heatKey(event, entry, sight) {
    const step = HEAT_STEPS[event.key];
    if (event.key === "+" || event.key === "-")
        zoom(entry, sight, event.key === "+" ? 0.5 : 2);
    else if (step)
        [sight.layer, sight.cell] = [sight.layer + step[0], Math.max(0, Math.min(sight.cell + step[1], entry.cells - 1))];
    return Boolean(step) || event.key === "+" || event.key === "-";
}

const HEAT_KEYS = [["left, right", "the position before, after"], ["[ ], up, down", "the layer before, after"], ["+ -", "zoom at the cursor"], ["Home, End", "the first, the last position"]];

// What colours mean. @states: [[state, text]] beside "no row".
function legendOf(scale, kind, signed, states) {
    const colours = theme(), swatch = (colour) => {
        const made = make("span", {class: "swatch"});
        made.style.background = `rgb(${colour.map(Math.round).join()})`;
        return made;
    };
    const ends = kind === "rank" ? ["the smallest of its layer", "the largest"] : [short(scale.low), short(scale.high)];
    const least = scale.floor ?? 0, middle = [0.25, 0.5, 0.75].map((t) => swatch(colourOf(t, colours)));
    const more = scale.low === scale.high ? [] : [" ", ...middle, swatch(colourOf(1, colours)), ends[1]];
    return make("div", {class: "legend"}, least > 0.1 ? make("span", {}, swatch(colourOf(0, colours)), "0") : null, make("span", {}, swatch(colourOf(least, colours)), ends[0], ...more),
        ...(signed ? [make("span", {}, swatch(colourOf(-0.6, colours)), "below 0")] : []),
        make("span", {}, swatch(colours.nan), "not finite"), ...states.map(([state, text]) => make("span", {}, swatch(colours.states[state]), text)), make("span", {}, swatch(colours.absent), "no row"));
}

// What @say says of a cell, in short; all digits are the title.
function sayAt(id, say, ...of) {
    const line = document.getElementById(id);
    line.textContent = say(...of);
    line.title = say(...of, exact);
}

// A whole number of an address.
function whole(text, otherwise) {
    return text !== undefined && Number.isInteger(Number(text)) ? Number(text) : otherwise;
}
