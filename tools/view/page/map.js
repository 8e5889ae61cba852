// Map: what each row of a site holds, layers down and positions across.

const MEASURES = {norm: "norm", mean: "mean", max: "largest magnitude", bad: "share not finite"};
const SCALES = {log: "logarithm", linear: "linear", rank: "rank within the layer", cut: "1st to 99th percentile"};
const [ABSENT, THERE, DAMAGED] = [0, 1, 2];
const MARGIN = 44, FOOT = 18;
// From nothing, which is the page's own background, to much. Of signed values the other side is orange. Both are told apart in any colour blindness.
const LIGHT = {back: [255, 255, 255], more: [[158, 202, 225], [33, 113, 181], [8, 36, 84]], less: [[253, 208, 162], [230, 110, 10], [110, 40, 0]], absent: [226, 226, 226], nan: [214, 0, 147], damaged: [90, 90, 90]};
const DARK = {back: [20, 23, 28], more: [[22, 70, 120], [66, 146, 214], [222, 240, 255]], less: [[110, 50, 8], [230, 120, 30], [255, 226, 190]], absent: [52, 56, 62], nan: [255, 84, 190], damaged: [150, 150, 150]};

// The first map that is shown has layers, if any has.
const map = {at: Math.max(0, DATA.maps.findIndex((entry) => entry.layers.length > 1)), measure: "norm", scale: "log", first: true, layer: 0, cell: 0, from: 0, to: 0, cache: new Map()};

function theme() {
    return matchMedia("(prefers-color-scheme: dark)").matches ? DARK : LIGHT;
}

// Arrays of a map, once they are looked at.
function arraysOf(entry) {
    if (!entry.arrays)
        entry.arrays = {norm: floatsOf(entry.norm), mean: floatsOf(entry.mean), max: floatsOf(entry.max), bad: floatsOf(entry.bad), state: bytesOf(entry.state)};
    return entry.arrays;
}

// Does a cell take part in the scale?
function counts(entry, state, value, i) {
    return state[i] === THERE && Number.isFinite(value[i]) && (map.first || i % entry.cells > 0 || entry.first > 0);
}

// {low, high, of(value, i)}: where a value stands, from 0 to 1, below 0 on the other side.
function scaleOf(entry) {
    const key = [map.at, map.measure, map.scale, map.first].join();
    if (map.cache.has(key))
        return map.cache.get(key);
    const {state} = arraysOf(entry), value = arraysOf(entry)[map.measure], kept = [];
    for (let i = 0; i < value.length; i++)
        if (counts(entry, state, value, i))
            kept.push(Math.abs(value[i]));
    const sorted = Float32Array.from(kept).sort(), n = sorted.length, at = (share) => n ? sorted[Math.min(n - 1, Math.floor(share * n))] : 0;
    let found;
    const signed = (f) => (x) => Math.sign(x) * Math.max(0, Math.min(1, f(Math.abs(x))));
    if (map.scale === "log") {
        const least = sorted.find((x) => x > 0) || 1, most = Math.max(at(1), least), width = Math.log(most / least) || 1;
        found = {low: least, high: most, of: signed((x) => x <= 0 ? 0 : 0.04 + 0.96 * Math.log(x / least) / width)};
    } else if (map.scale === "cut") {
        const low = at(0.01), high = at(0.99);
        found = {low, high, of: signed((x) => (x - low) / (high - low || 1))};
    } else if (map.scale === "rank") {
        const rows = ranksOf(entry, state, value);
        found = {low: 0, high: 1, of: (x, i) => Math.sign(x || 1) * rows[i]};
    } else {
        found = {low: 0, high: at(1), of: signed((x) => x / (at(1) || 1))};
    }
    map.cache.set(key, found);
    return found;
}

// The share of the layer's cells that are smaller, for each cell.
function ranksOf(entry, state, value) {
    const found = new Float32Array(value.length), {cells} = entry;
    for (let layer = 0; layer < entry.layers.length; layer++) {
        const kept = [];
        for (let i = layer * cells; i < (layer + 1) * cells; i++)
            if (counts(entry, state, value, i))
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
    return seen === DAMAGED ? colours.damaged : bad ? colours.nan : best === null ? colours.absent : colourOf(best, colours);
}

function size_(canvas) {
    const width = Math.max(200, canvas.parentElement.clientWidth - MARGIN), entry = DATA.maps[map.at];
    return {width, height: Math.max(4, Math.min(18, Math.floor(560 / entry.layers.length)) || 1) * entry.layers.length};
}

function draw() {
    const canvas = document.getElementById("heat");
    if (!canvas)
        return;
    const entry = DATA.maps[map.at], {state} = arraysOf(entry), value = arraysOf(entry)[map.measure], scale = scaleOf(entry), colours = theme();
    const {width, height} = size_(canvas), n = map.to - map.from, layers = entry.layers.length, columns = Math.min(n, width), ratio = devicePixelRatio || 1;
    const image = new ImageData(columns, layers);
    for (let layer = 0; layer < layers; layer++)
        for (let x = 0; x < columns; x++) {
            const a = map.from + Math.floor(x * n / columns), b = Math.max(a + 1, map.from + Math.floor((x + 1) * n / columns));
            const [r, g, bl] = pixel(entry, value, state, scale, colours, layer, a, b);
            image.data.set([r, g, bl, 255], 4 * (layer * columns + x));
        }
    const plain = document.createElement("canvas");
    plain.width = columns;
    plain.height = layers;
    plain.getContext("2d").putImageData(image, 0, 0);
    canvas.width = (width + MARGIN) * ratio;
    canvas.height = (height + FOOT) * ratio;
    canvas.style.width = `${width + MARGIN}px`;
    canvas.style.height = `${height + FOOT}px`;
    const to = canvas.getContext("2d");
    to.scale(ratio, ratio);
    to.imageSmoothingEnabled = false;
    to.drawImage(plain, MARGIN, 0, width, height);
    frame(to, entry, width, height, colours);
}

// Numbers of layers and positions, hatches over damage, and the cursor.
function frame(to, entry, width, height, colours) {
    const layers = entry.layers.length, row = height / layers, n = map.to - map.from, column = width / n, {state} = arraysOf(entry);
    const ink = getComputedStyle(document.body).color;
    to.fillStyle = to.strokeStyle = ink;
    to.font = "11px system-ui, sans-serif";
    const each = Math.max(1, Math.ceil(12 / row));
    to.textAlign = "right";
    for (let layer = 0; layer < layers; layer += each)
        to.fillText(entry.layers[layer] === null ? "" : String(entry.layers[layer]), MARGIN - 6, (layer + 0.5) * row + 4);
    to.textAlign = "center";
    const apart = Math.max(1, Math.ceil(60 / column));
    for (let cell = map.from; cell < map.to; cell += apart)
        to.fillText(String(positionOf(entry, cell)), MARGIN + (cell - map.from + 0.5) * column, height + 13);
    if (column >= 3)
        for (let layer = 0; layer < layers; layer++)
            for (let cell = map.from; cell < map.to; cell++)
                if (state[layer * entry.cells + cell] === DAMAGED)
                    hatch(to, MARGIN + (cell - map.from) * column, layer * row, column, row, colours);
    to.lineWidth = 2;
    to.strokeStyle = ink;
    to.strokeRect(MARGIN + (map.cell - map.from) * column - 1, map.layer * row - 1, Math.max(column, 2) + 2, row + 2);
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

function tokenOf(entry, cell) {
    return entry.per === 1 && !entry.by_row ? tokenAt(entry.request, positionOf(entry, cell)) : null;
}

function said(entry, layer, cell) {
    const arrays = arraysOf(entry), i = layer * entry.cells + cell, token = tokenOf(entry, cell);
    const at = `${entry.layers[layer] === null ? "" : `layer ${entry.layers[layer]}, `}${placeName(entry, cell)}${token === null ? "" : `, ${tokenName(token)}`}`;
    if (arrays.state[i] !== THERE)
        return `${at}: ${arrays.state[i] === DAMAGED ? "damaged: it cannot be decoded" : "no row: it was not captured, or belongs to a cached prefix"}`;
    return `${at}: norm ${exact(arrays.norm[i])}, mean ${exact(arrays.mean[i])}, largest magnitude ${exact(arrays.max[i])}, not finite ${exact(100 * arrays.bad[i])} %`;
}

function column() {
    const entry = DATA.maps[map.at], arrays = arraysOf(entry);
    const rows = entry.layers.map((layer, k) => {
        const i = k * entry.cells + map.cell, there = arrays.state[i] === THERE;
        return [layer === null ? "" : String(layer), ...Object.keys(MEASURES).map((name) => there ? exact(arrays[name][i]) : arrays.state[i] === DAMAGED ? "damaged" : "")];
    });
    return table([["layer", true], ...Object.values(MEASURES).map((title) => [title, true])], rows, `All layers at ${placeName(entry, map.cell)}`);
}

function legend(entry) {
    const scale = scaleOf(entry), colours = theme(), swatch = (colour) => {
        const made = make("span", {class: "swatch"});
        made.style.background = `rgb(${colour.map(Math.round).join()})`;
        return made;
    };
    const ends = map.scale === "rank" ? ["the smallest of its layer", "the largest"] : [short(scale.low), short(scale.high)];
    const middle = [0.25, 0.5, 0.75].map((t) => swatch(colourOf(t, colours)));
    return make("div", {class: "legend", id: "legend"}, make("span", {}, swatch(colourOf(0, colours)), `${ends[0]} `, ...middle, swatch(colourOf(1, colours)), ends[1]),
        ...(map.measure === "mean" ? [make("span", {}, swatch(colourOf(-0.6, colours)), "below 0")] : []),
        make("span", {}, swatch(colours.nan), "not finite"), make("span", {}, swatch(colours.damaged), "damaged"), make("span", {}, swatch(colours.absent), "no row"));
}

function settle() {
    const entry = DATA.maps[map.at];
    map.layer = Math.max(0, Math.min(map.layer, entry.layers.length - 1));
    map.cell = Math.max(0, Math.min(map.cell, entry.cells - 1));
    const n = Math.max(1, Math.min(map.to - map.from, entry.cells));
    if (map.cell < map.from || map.cell >= map.from + n)
        map.from = map.cell - Math.floor(n / 2);
    map.from = Math.max(0, Math.min(map.from, entry.cells - n));
    map.to = map.from + n;
}

// What the cursor's place, and the address, depend on.
function moved() {
    const entry = DATA.maps[map.at];
    settle();
    document.getElementById("readout").textContent = said(entry, map.layer, map.cell);
    document.getElementById("column").replaceChildren(column());
    document.getElementById("legend").replaceWith(legend(entry));
    draw();
    go("map", entry.request, entry.site, map.measure, map.scale, map.first ? "all" : "later", map.layer, map.cell);
}

function zoom(factor) {
    const entry = DATA.maps[map.at], n = Math.max(1, Math.min(entry.cells, Math.round((map.to - map.from) * factor)));
    map.from = Math.round(map.cell - n / 2);
    map.to = map.from + n;
    map.from = Math.max(0, Math.min(map.from, entry.cells - n));
    map.to = map.from + n;
    moved();
}

// Takes the place of an address. Return: whether it is another map than before.
function take(place) {
    const [request, site, measure, scale, first, layer, cell] = place, before = map.at;
    const found = DATA.maps.findIndex((entry) => String(entry.request) === request && (site === undefined || entry.site === site));
    map.at = found >= 0 ? found : Math.min(map.at, DATA.maps.length - 1);
    map.measure = Object.hasOwn(MEASURES, measure) ? measure : map.measure;
    map.scale = Object.hasOwn(SCALES, scale) ? scale : map.scale;
    map.first = first === undefined ? map.first : first !== "later";
    map.layer = Number.isInteger(Number(layer)) && layer !== undefined ? Number(layer) : map.layer;
    map.cell = Number.isInteger(Number(cell)) && cell !== undefined ? Number(cell) : map.cell;
    if (map.at !== before || map.to === 0)
        [map.from, map.to] = [0, DATA.maps[map.at].cells];
    return map.at !== before;
}

function cellAt(event) {
    const canvas = event.currentTarget, box = canvas.getBoundingClientRect(), entry = DATA.maps[map.at], {width, height} = size_(canvas);
    const cell = map.from + Math.floor((event.clientX - box.left - MARGIN) / width * (map.to - map.from)), layer = Math.floor((event.clientY - box.top) / height * entry.layers.length);
    return cell >= map.from && cell < map.to && layer >= 0 && layer < entry.layers.length ? [layer, cell] : null;
}

PAGES.map = {
    title: "Map",
    keys: [["left, right", "the position before, after"], ["[ ], up, down", "the layer before, after"], ["+ -", "zoom at the cursor"], ["Home, End", "the first, the last position"]],
    show(main, place) {
        if (!DATA.maps.length) {
            main.append(make("p", {text: "No tensor is in this report."}));
            return;
        }
        take(place);
        const entry = DATA.maps[map.at], other = (request, site) => DATA.maps.findIndex((m) => m.request === request && m.site === site);
        const to = (at) => { map.at = at; [map.from, map.to] = [0, DATA.maps[at].cells]; main.replaceChildren(); PAGES.map.show(main, []); };
        const requests = DATA.maps.map((m, i) => [m, i]).filter(([m], i) => i === DATA.maps.findIndex((o) => o.request === m.request));
        const sites = DATA.maps.filter((m) => m.request === entry.request).map((m) => [m.site, m.site]);
        const set = (name) => (value) => { map[name] = value; moved(); };
        const box = make("input", {type: "checkbox", checked: !map.first, onchange: () => { map.first = !box.checked; moved(); }});
        main.append(make("div", {class: "controls"},
            choice("Request", requests.map(([m]) => [m.request, requestName(m)]), entry.request, (value) => {
                const request = Number(value), same = other(request, entry.site);
                to(same >= 0 ? same : DATA.maps.findIndex((m) => m.request === request));
            }),
            choice("Site", sites, entry.site, (value) => to(other(entry.request, value))),
            choice("Measure", Object.entries(MEASURES), map.measure, set("measure")), choice("Scale", Object.entries(SCALES), map.scale, set("scale")),
            make("label", {}, box, " leave the first token out of the scale")));
        const hover = make("div", {class: "readout faint", id: "hover"});
        const canvas = make("canvas", {id: "heat", tabindex: 0, role: "img", "aria-label": `Heat map of ${entry.site}: layers down, positions across. Arrow keys move the cursor; the text below says what is there`,
            onclick: (event) => { const at = cellAt(event); if (at) { [map.layer, map.cell] = at; moved(); } },
            onmousemove: (event) => { const at = cellAt(event); hover.textContent = at ? said(DATA.maps[map.at], ...at) : ""; },
            onmouseleave: () => { hover.textContent = ""; }});
        main.append(legend(entry), make("div", {class: "readout", id: "readout", "aria-live": "polite"}), make("div", {}, canvas), hover, make("div", {id: "column"}));
        moved();
    },
    move(place) {
        if (!DATA.maps.length || !document.getElementById("heat"))
            return false;
        const before = [map.measure, map.scale, map.first, map.layer, map.cell].join();
        if (take(place))
            return false;
        if ([map.measure, map.scale, map.first, map.layer, map.cell].join() !== before)
            return false;
        return true;
    },
    key(event) {
        const step = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], "[": [-1, 0], "]": [1, 0], Home: [0, -Infinity], End: [0, Infinity]}[event.key];
        if (!DATA.maps.length)
            return false;
        if (event.key === "+" || event.key === "-") {
            zoom(event.key === "+" ? 0.5 : 2);
            return true;
        }
        if (!step)
            return false;
        map.layer += step[0];
        map.cell = Math.max(0, Math.min(map.cell + step[1], DATA.maps[map.at].cells - 1));
        moved();
        return true;
    },
};
addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => shown && show());
