// Map: what each row of a site holds, layers down and positions across.

const MEASURES = {norm: "norm", mean: "mean", max: "largest magnitude", bad: "share not finite", ...(DATA.diff ? {error: "error against the other run"} : {})};

// The first map that is shown has layers, if any has.
const map = {at: Math.max(0, DATA.maps.findIndex((entry) => entry.layers.length > 1)), measure: "norm", scale: "log", first: true, layer: 0, cell: 0, from: 0, to: 0, chosen: false, cache: new Map()};

// Arrays of a map, once they are looked at.
function arraysOf(entry) {
    entry.arrays ||= decoded(entry, {norm: floatsOf, mean: floatsOf, max: floatsOf, bad: floatsOf, state: bytesOf});
    return entry.arrays;
}

// What a measure draws: {state, value}. Errors are of the page Diff, in the cells of this map.
function measured(entry, name) {
    const arrays = arraysOf(entry);
    if (name !== "error")
        return {state: arrays.state, value: arrays[name]};
    const n = arrays.state.length, other = diffOf(entry.request, entry.site);
    entry.errors ||= (other ? aligned(entry, other, diffArrays(other), "error") : null) || {state: new Uint8Array(n), value: new Float32Array(n)};
    return entry.errors;
}

// A number of a cell, by @write; what stands in its place.
function numberAt(entry, name, i, write = brief) {
    const {state, value} = measured(entry, name), wrong = WRONG.find(([s]) => s === state[i]);
    return state[i] === THERE ? write(value[i]) : wrong ? wrong[1] : "";
}

// A scale in which few cells take not all colours, unless one was chosen.
function fitScale(entry) {
    if (map.chosen)
        return;
    const {state, value} = measured(entry, "norm");
    [map.scale, map.first] = fittingScale(entry, state, value);
}

function scaleOf(entry) {
    const key = [map.at, map.measure, map.scale, map.first].join();
    if (!map.cache.has(key))
        map.cache.set(key, scaleFor(entry, measured(entry, map.measure).state, measured(entry, map.measure).value, map.scale, map.first, map.measure === "error" ? 0.15 : undefined));
    return map.cache.get(key);
}

function draw() {
    const canvas = document.getElementById("heat"), entry = DATA.maps[map.at];
    if (canvas)
        drawHeat(canvas, entry, measured(entry, map.measure).state, measured(entry, map.measure).value, scaleOf(entry), map);
}

function tokenOf(entry, cell) {
    return entry.per === 1 && !entry.by_row ? tokenAt(entry.request, positionOf(entry, cell)) : null;
}

// "layer 3, position 5, token 260, \u00b7the"
function cellName(entry, layer, cell) {
    const token = tokenOf(entry, cell);
    return `${entry.layers[layer] === null ? "" : `layer ${entry.layers[layer]}, `}${placeName(entry, cell)}${token === null ? "" : `, ${tokenName(token)}`}`;
}

// What is there, in numbers by @write.
function said(entry, layer, cell, write = short) {
    const arrays = arraysOf(entry), i = layer * entry.cells + cell, at = cellName(entry, layer, cell);
    if (arrays.state[i] !== THERE)
        return `${at}: ${arrays.state[i] === DAMAGED ? "damaged: it cannot be decoded" : "no row: it was not captured, or belongs to a cached prefix"}`;
    return `${at}: norm ${write(arrays.norm[i])}, mean ${write(arrays.mean[i])}, largest magnitude ${write(arrays.max[i])}, not finite ${write(100 * arrays.bad[i])} %${DATA.diff ? `, error ${numberAt(entry, "error", i, write) || "none"}` : ""}`;
}

function column() {
    const entry = DATA.maps[map.at];
    const rows = entry.layers.map((layer, k) => {
        const i = k * entry.cells + map.cell;
        return [layer === null ? "" : String(layer), ...Object.keys(MEASURES).map((name) => numberAt(entry, name, i))];
    });
    return table([["layer", true], ...Object.values(MEASURES).map((title) => [title, true])], rows, `All layers at ${placeName(entry, map.cell)}`);
}

function legend(entry) {
    const made = legendOf(scaleOf(entry), map.scale, map.measure === "mean", map.measure === "error" ? WRONG : [[DAMAGED, "damaged"]]);
    made.id = "legend";
    return made;
}

// What the cursor's place, and the address, depend on.
function moved() {
    const entry = DATA.maps[map.at];
    settle(entry, map);
    sayAt("readout", said, entry, map.layer, map.cell);
    document.getElementById("column").replaceChildren(column());
    document.getElementById("legend").replaceWith(legend(entry));
    draw();
    go("map", entry.request, entry.site, map.measure, map.scale, map.first ? "all" : "later", map.layer, map.cell);
}

// Takes the place of an address. Return: whether it is another map than before.
function take(place) {
    const [request, site, measure, scale, first, layer, cell] = place, before = map.at;
    const found = DATA.maps.findIndex((entry) => String(entry.request) === request && (site === undefined || entry.site === site));
    map.at = found >= 0 ? found : Math.min(map.at, DATA.maps.length - 1);
    map.measure = Object.hasOwn(MEASURES, measure) ? measure : map.measure;
    map.chosen ||= Object.hasOwn(SCALES, scale);
    map.scale = Object.hasOwn(SCALES, scale) ? scale : map.scale;
    map.first = first === undefined ? map.first : first !== "later";
    [map.layer, map.cell] = [whole(layer, map.layer), whole(cell, map.cell)];
    if (map.at !== before || map.to === 0)
        [map.from, map.to] = [0, DATA.maps[map.at].cells];
    return map.at !== before;
}

PAGES.map = {
    title: "Map",
    keys: HEAT_KEYS,
    show(main, place) {
        if (!DATA.maps.length) {
            main.append(make("p", {text: "No tensor is in this report."}));
            return;
        }
        take(place);
        fitScale(DATA.maps[map.at]);
        const entry = DATA.maps[map.at], other = (request, site) => DATA.maps.findIndex((m) => m.request === request && m.site === site);
        const to = (at) => { map.at = at; [map.from, map.to] = [0, DATA.maps[at].cells]; main.replaceChildren(); PAGES.map.show(main, []); };
        const requests = DATA.maps.map((m, i) => [m, i]).filter(([m], i) => i === DATA.maps.findIndex((o) => o.request === m.request));
        const sites = DATA.maps.filter((m) => m.request === entry.request).map((m) => [m.site, m.site]);
        const set = (name) => (value) => { map[name] = value; map.chosen ||= name === "scale"; moved(); };
        const box = make("input", {type: "checkbox", checked: !map.first, onchange: () => { map.first = !box.checked; map.chosen = true; moved(); }});
        main.append(make("div", {class: "controls"},
            choice("Request", requests.map(([m]) => [m.request, requestName(m)]), entry.request, (value) => {
                const request = Number(value), same = other(request, entry.site);
                to(same >= 0 ? same : DATA.maps.findIndex((m) => m.request === request));
            }),
            choice("Site", sites, entry.site, (value) => to(other(entry.request, value))),
            choice("Measure", Object.entries(MEASURES), map.measure, set("measure")), choice("Scale", Object.entries(SCALES), map.scale, set("scale")),
            make("label", {}, box, " leave the first token out of the scale")));
        const hover = make("div", {class: "readout faint", id: "hover"});
        const canvas = make("canvas", {id: "heat", tabindex: 0, role: "img", "aria-label": `Heat map of ${entry.site}: layers down, positions across. Arrow keys move the cursor; the text above says what is there`,
            onclick: (event) => { const at = cellAt(event, entry, map); if (at) { [map.layer, map.cell] = at; moved(); } },
            onmousemove: (event) => { const at = cellAt(event, entry, map); hover.textContent = at ? said(entry, ...at) : ""; },
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
        if (!DATA.maps.length || !heatKey(event, DATA.maps[map.at], map))
            return false;
        moved();
        return true;
    },
};
addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => shown && show());
