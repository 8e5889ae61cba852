// Attention: which tokens each head attends to. All heads are thumbnails; one head, or two beside each other, are large; the text is shaded.

const TILE = 48, LABEL = 14, TILES_A_PAGE = 240, TEXT_TOKENS = 400, NOT_FINITE = 255, PAIRS = 6;
const attention = {at: 0, head: 0, query: 0, order: "head", sink: true, other: null, from: 0, kept: new Map(), tiles: {}};

function queryOf(entry, position) {
    const {positions} = headsOf(entry);
    let found = 0;
    positions.forEach((p, i) => { found = p <= position ? i : found; });
    return found;
}

function isWhole(entry, head) {
    return headsOf(entry).whole.has(head);
}

// The weight that query number i gives to a key: as computed where the head is there at full resolution; else by its thumbnail, the largest weight of a cell, to 1 of 254.
function weightAt(entry, head, i, key) {
    const read = headsOf(entry), {first_query, first_key} = entry.patterns, pattern = read.whole.get(head);
    if (key > read.positions[i])
        return 0;
    if (pattern) {
        pattern.read ||= floatsOf(pattern.weights);
        return i < first_query || key < first_key ? NaN : pattern.read[read.begins[i - first_query] + key - first_key];
    }
    const row = Math.floor(i * entry.rows / entry.queries), column = Math.floor(key * entry.columns / entry.keys);
    const cell = read.thumbnails[(head * entry.rows + row) * entry.columns + column];
    return cell === NOT_FINITE ? NaN : cell / 254;
}

// Which queries (numbers) and keys a large head shows: [first, end] of each.
function extent(entry, head) {
    return isWhole(entry, head) ? [entry.patterns.first_query, entry.queries, entry.patterns.first_key, entry.keys] : [0, entry.queries, 0, entry.keys];
}

// Colours by weight, 0 to 254, then what is not finite: small weights can be told from nothing.
function palette() {
    const colours = theme(), found = new Uint8ClampedArray(256 * 4);
    for (let i = 0; i < 256; i++)
        found.set([...(i === NOT_FINITE ? colours.nan : colourOf(Math.sqrt(i / 254), colours)), 255], 4 * i);
    return new Uint32Array(found.buffer);
}

function pictured(columns, rows, codeAt, colours) {
    const image = new ImageData(columns, rows), pixels = new Uint32Array(image.data.buffer), canvas = document.createElement("canvas");
    for (let y = 0; y < rows; y++)
        for (let x = 0; x < columns; x++)
            pixels[y * columns + x] = colours[codeAt(x, y)];
    [canvas.width, canvas.height] = [columns, rows];
    canvas.getContext("2d").putImageData(image, 0, 0);
    return canvas;
}

// A canvas of so many CSS pixels. Return: what draws on it.
function sized(canvas, width, height) {
    const ratio = devicePixelRatio || 1, to = canvas.getContext("2d");
    [canvas.width, canvas.height] = [width * ratio, height * ratio];
    [canvas.style.width, canvas.style.height] = [`${width}px`, `${height}px`];
    to.scale(ratio, ratio);
    to.imageSmoothingEnabled = false;
    to.fillStyle = to.strokeStyle = getComputedStyle(document.body).color;
    to.font = "11px system-ui, sans-serif";
    return to;
}

// ---- the grid

// Heads by score, the largest first, or by layer and head.
function headOrder(entry) {
    const n = entry.layers.length * entry.heads, all = Array.from({length: n}, (_, i) => i), score = headsOf(entry).scores[attention.order];
    const of = (i) => Number.isNaN(score[i]) ? -Infinity : score[i];
    return score ? all.sort((i, k) => of(k) - of(i) || i - k) : all;
}

function tilesAcross() {
    return Math.max(1, Math.floor((document.getElementById("main").clientWidth - 60) / (TILE + 6)));
}

// A head's thumbnail; those of a request are kept as long as nothing about their colours changes.
function tileOf(entry, head) {
    const of = [attention.at, attention.sink, theme() === DARK].join(), {thumbnails} = headsOf(entry), first = head * entry.rows * entry.columns;
    if (attention.tiles.of !== of)
        attention.tiles = {of, colours: palette(), all: new Map()};
    const {all, colours} = attention.tiles;
    if (!all.has(head))
        all.set(head, pictured(entry.columns, entry.rows, (x, y) => attention.sink || x ? thumbnails[first + y * entry.columns + x] : 0, colours));
    return all.get(head);
}

// Only where another grid is wanted than the one that is there.
function drawGrid() {
    const canvas = document.getElementById("tiles"), wanted = [attention.at, attention.head, attention.other, attention.order, attention.sink, attention.from, tilesAcross(), theme() === DARK].join();
    if (canvas.dataset.drawn === wanted)
        return;
    canvas.dataset.drawn = wanted;
    const entry = DATA.attention[attention.at], order = headOrder(entry), across = tilesAcross(), score = headsOf(entry).scores[attention.order];
    const page = order.slice(attention.from, attention.from + TILES_A_PAGE), to = sized(canvas, across * (TILE + 6), Math.ceil(page.length / across) * (TILE + LABEL + 8) + 4);
    to.textAlign = "center";
    page.forEach((head, i) => {
        const x = i % across * (TILE + 6) + 3, y = Math.floor(i / across) * (TILE + LABEL + 8) + 3;
        to.drawImage(tileOf(entry, head), x, y, TILE, TILE);
        to.lineWidth = head === attention.head || head === attention.other ? 3 : 0.5;
        to.strokeRect(x - 0.5, y - 0.5, TILE + 1, TILE + 1);
        to.fillText(headName(entry, head) + (score ? ` ${Number.isNaN(score[head]) ? "" : score[head].toFixed(score[head] < 10 ? 2 : 0)}` : ""), x + TILE / 2, y + TILE + 12);
    });
    document.getElementById("tiles-say").textContent = `heads ${attention.from + 1} to ${attention.from + page.length} of ${grouped(order.length)}, ${attention.order === "head" ? "by layer and head" : `${attention.order} first`}`;
}

function headUnder(event) {
    const box = event.currentTarget.getBoundingClientRect(), across = tilesAcross(), x = Math.floor((event.clientX - box.left) / (TILE + 6)), y = Math.floor((event.clientY - box.top) / (TILE + LABEL + 8));
    const order = headOrder(DATA.attention[attention.at]), i = attention.from + y * across + x;
    return x < across && i < Math.min(order.length, attention.from + TILES_A_PAGE) ? order[i] : null;
}

// ---- a large head

function largeSide() {
    const width = document.getElementById("main").clientWidth - 60;
    return Math.max(160, Math.min(attention.other === null ? 520 : 440, Math.floor(width / (attention.other === null ? 1 : 2)) - MARGIN));
}

// The largest weight that is shown: where the first token is hidden, of the others.
function mostOf(entry, head) {
    const [q0, q1, k0, k1] = extent(entry, head);
    let most = 0;
    for (let i = q0; i < q1 && (isWhole(entry, head) || entry.queries <= entry.rows); i++)
        for (let key = attention.sink ? k0 : Math.max(k0, 1); key < Math.min(k1, headsOf(entry).positions[i] + 1); key++) {
            const weight = weightAt(entry, head, i, key);
            most = weight > most ? weight : most;
        }
    return most || 1;
}

// {most, canvas} of a head: its cells are tokens, or where the head is there by its thumbnail alone, the thumbnail's. The last few are kept.
function largeOf(entry, head) {
    const key = [attention.at, head, attention.sink, theme() === DARK].join();
    if (!attention.kept.has(key)) {
        const [q0, q1, k0, k1] = extent(entry, head), whole = isWhole(entry, head), rows = whole ? q1 - q0 : entry.rows, columns = whole ? k1 - k0 : entry.columns;
        const most = mostOf(entry, head), first = head * entry.rows * entry.columns, {thumbnails} = headsOf(entry);
        const code = (weight) => Number.isFinite(weight) ? Math.round(254 * Math.min(weight / most, 1)) : NOT_FINITE;
        const cell = (at) => thumbnails[at] === NOT_FINITE ? NOT_FINITE : code(thumbnails[at] / 254);
        const codeAt = (x, y) => !attention.sink && x + (whole ? k0 : 0) === 0 ? 0 : whole ? code(weightAt(entry, head, q0 + y, k0 + x)) : cell(first + y * columns + x);
        if (attention.kept.size > 8)
            attention.kept.clear();
        attention.kept.set(key, {most, canvas: pictured(columns, rows, codeAt, palette())});
    }
    return attention.kept.get(key);
}

function drawLarge(canvas, entry, head) {
    const [q0, q1, k0, k1] = extent(entry, head), side = largeSide(), to = sized(canvas, side + MARGIN, side + FOOT), read = headsOf(entry);
    to.drawImage(largeOf(entry, head).canvas, MARGIN, 0, side, side);
    const down = side / (q1 - q0), across = side / (k1 - k0);
    to.lineWidth = 0.5;
    to.strokeRect(MARGIN, 0, side, side);
    to.textAlign = "right";
    for (let i = q0; i < q1; i += Math.max(1, Math.ceil(14 / down)))
        to.fillText(String(read.positions[i]), MARGIN - 6, (i - q0 + 0.5) * down + 4);
    to.textAlign = "center";
    for (let key = k0; key < k1; key += Math.max(1, Math.ceil(34 / across)))
        to.fillText(String(key), MARGIN + (key - k0 + 0.5) * across, side + 13);
    to.lineWidth = 1.5;
    if (attention.query >= q0)
        to.strokeRect(MARGIN, (attention.query - q0) * down, side, Math.max(down, 2));
}

// ---- the text

// [position, weight] of what the chosen token attends to, or of who attends to it, as far as the report has it.
function attended(entry, head) {
    const [, , k0] = extent(entry, head), last = headsOf(entry).positions[attention.query];
    return Array.from({length: Math.max(0, last + 1 - k0)}, (_, i) => [k0 + i, weightAt(entry, head, attention.query, k0 + i)]);
}

function attending(entry, head) {
    const [q0, q1, k0] = extent(entry, head), {positions} = headsOf(entry), key = positions[attention.query];
    return key < k0 ? [] : Array.from({length: q1 - Math.max(q0, attention.query)}, (_, i) => Math.max(q0, attention.query) + i).map((i) => [positions[i], weightAt(entry, head, i, key)]);
}

function tokenText(entry, position) {
    const token = tokenAt(entry.request, position);
    return token === null ? String(position) : wordOf(token);
}

// Only those around the chosen token are in the document.
function shadedText(entry, found, label) {
    const chosen = headsOf(entry).positions[attention.query], near = found.findIndex(([position]) => position >= chosen), at = near < 0 ? found.length : near;
    const from = Math.max(0, Math.min(at - TEXT_TOKENS / 2, found.length - TEXT_TOKENS)), shownHere = found.slice(from, from + TEXT_TOKENS);
    const counted_ = (position) => attention.sink || position > 0, most = shownHere.reduce((m, [position, weight]) => counted_(position) && weight > m ? weight : m, 0) || 1;
    return make("p", {class: "text", "aria-label": label}, ...shownHere.map(([position, weight]) => {
        const word = make("span", {class: position === chosen ? "word-chosen" : null, text: tokenText(entry, position), title: `position ${position}: ${exact(weight)}`, onclick: () => chooseToken(position)});
        if (counted_(position) && Number.isFinite(weight))
            shade(word, Math.sqrt(weight / most));
        return word;
    }));
}

function number(entry, head, weight) {
    return isWhole(entry, head) ? short(weight) : Number.isFinite(weight) ? `about ${weight.toFixed(2)}` : "not finite";
}

// The ten largest of [position, weight].
function strongest(entry, head, found, title, label) {
    const counts = found.filter(([position, weight]) => weight > 0 && (attention.sink || position > 0)).sort((a, b) => b[1] - a[1] || a[0] - b[0]).slice(0, 10);
    return table([[title, true], ["token"], ["weight", true]], counts.map(([position, weight]) => [String(position), tokenText(entry, position), isWhole(entry, head) ? brief(weight) : number(entry, head, weight)]), label);
}

function pairsTable(entry, head) {
    const pairs = attention.sink ? headsOf(entry).pairs : headsOf(entry).later, rows = [];
    for (let i = head * PAIRS; i < (head + 1) * PAIRS; i++)
        if (pairs.queries[i] >= 0)
            rows.push([String(pairs.queries[i]), tokenText(entry, pairs.queries[i]), String(pairs.keys[i]), tokenText(entry, pairs.keys[i]), brief(pairs.weights[i])]);
    return table([["query", true], ["token"], ["key", true], ["token"], ["weight", true]], rows, `Strongest pairs of head ${headName(entry, head)}`);
}

function resolutionText(entry, head) {
    const {errors} = headsOf(entry), scale = ` Colours go from 0 to ${short(largeOf(entry, head).most)}, by the square root.`;
    const error = scale + (Number.isNaN(errors[head]) ? "" : ` A v = z is off by ${short(errors[head])} here.`);
    if (!isWhole(entry, head))
        return `This is the head's thumbnail of ${entry.rows} x ${entry.columns} cells, each with the largest weight there, rounded to 1/254. dmi-view --head ${headName(entry, head)} puts the head here at full resolution.${error}`;
    return (entry.patterns.first_key ? `At full resolution: keys ${entry.patterns.first_key} to ${entry.keys - 1}.` : "At full resolution.") + error;
}

function headColumn(entry, head, id) {
    const name = headName(entry, head), position = headsOf(entry).positions[attention.query], keys = attended(entry, head), queries = attending(entry, head);
    const canvas = make("canvas", {id, tabindex: 0, role: "img", "aria-label": `Weights of head ${name}: queries down, keys across. Arrow keys move the token; the tables say its numbers`,
        onclick: (event) => {
            const [q0, q1] = extent(entry, head), box = canvas.getBoundingClientRect(), i = q0 + Math.floor((event.clientY - box.top) / largeSide() * (q1 - q0));
            if (i >= q0 && i < q1)
                chooseToken(headsOf(entry).positions[i]);
        }});
    drawLarge(canvas, entry, head);
    const picture = make("div", {}, make("h2", {text: `Head ${name}`}), canvas, make("p", {class: "faint", text: resolutionText(entry, head)}));
    const said = make("div", {}, make("h2", {text: `Token ${position} attends to`}), shadedText(entry, keys, `What token ${position} attends to, by head ${name}`),
        strongest(entry, head, keys, "key", `What token ${position} attends to`), make("h2", {text: `Who attends to token ${position}`}),
        shadedText(entry, queries, `Who attends to token ${position}, by head ${name}`), strongest(entry, head, queries, "query", `Who attends to token ${position}`),
        make("h2", {text: "Strongest pairs"}), pairsTable(entry, head));
    return make("section", {class: attention.other === null ? "head" : "head half", id: `of-${id}`, "aria-label": `Head ${name}`}, picture, said);
}

function attentionReadout(entry) {
    const {scores} = headsOf(entry), position = headsOf(entry).positions[attention.query], keys = attended(entry, attention.head).filter(([key]) => attention.sink || key > 0);
    const [key, weight] = keys.reduce((best, found) => found[1] > best[1] ? found : best, [-1, 0]);
    const named = (at) => `${at} \u2018${tokenText(entry, at)}\u2019`, said = key < 0 ? "" : ` attends most to ${named(key)}, ${number(entry, attention.head, weight)}`;
    const kinds = ["previous", "duplicate", "induction", "sink"].filter((kind) => !Number.isNaN(scores[kind][attention.head])).map((kind) => `${kind} ${short(scores[kind][attention.head])}`);
    return `Head ${headName(entry, attention.head)}: token ${named(position)}${said}. Scores: ${kinds.join(", ")}`;
}

// ---- moving

function attentionSettle(entry) {
    const n = entry.layers.length * entry.heads;
    attention.head = Math.max(0, Math.min(attention.head, n - 1));
    attention.other = attention.other !== null && attention.other < n ? attention.other : null;
    attention.query = Math.max(0, Math.min(attention.query, entry.queries - 1));
    const place = headOrder(entry).indexOf(attention.head);
    if (place < attention.from || place >= attention.from + TILES_A_PAGE)
        attention.from = place - place % TILES_A_PAGE;
    attention.place = place - attention.from;
}

// The chosen head's tile is in sight.
function scrollGrid() {
    const box = document.getElementById("tiles").parentElement, top = Math.floor(attention.place / tilesAcross()) * (TILE + LABEL + 8);
    if (top < box.scrollTop || top + TILE + LABEL + 8 > box.scrollTop + box.clientHeight)
        box.scrollTop = top - (box.clientHeight - TILE) / 2;
}

function attentionMoved() {
    const entry = DATA.attention[attention.at];
    attentionSettle(entry);
    drawGrid();
    scrollGrid();
    document.getElementById("attention-readout").textContent = attentionReadout(entry);
    document.getElementById("large").replaceChildren(headColumn(entry, attention.head, "head"), ...(attention.other === null ? [] : [headColumn(entry, attention.other, "other")]));
    const [layer, head] = headName(entry, attention.head).split(".");
    go("attention", entry.request, layer, head, headsOf(entry).positions[attention.query], attention.order, attention.sink ? "all" : "later", attention.other === null ? "-" : headName(entry, attention.other));
}

function chooseToken(position) {
    attention.query = queryOf(DATA.attention[attention.at], position);
    attentionMoved();
}

// The number of a head by its name, "2.4"; null: none.
function headNumber(entry, name) {
    const [layer, head] = String(name).split("."), k = entry.layers.findIndex((l) => String(l) === layer);
    return k >= 0 && /^[0-9]+$/.test(head) && Number(head) < entry.heads ? k * entry.heads + Number(head) : null;
}

// The first head that is there at full resolution, unless the address names one.
function takeAttention(place) {
    const [request, layer, head, token, order, sink, other] = place, found = attentionEntry(request), before = attention.at;
    attention.at = found >= 0 ? found : attention.at;
    const entry = DATA.attention[attention.at];
    if (entry.refused !== undefined)
        return;
    const named = headNumber(entry, `${layer}.${head}`), [best] = entry.patterns.heads;
    if (named !== null)
        attention.head = named;
    else if (attention.at !== before || !attention.seen)
        attention.head = best ? headNumber(entry, `${best.layer}.${best.head}`) : 0;
    if (token !== undefined && Number.isInteger(Number(token)))
        attention.query = queryOf(entry, Number(token));
    else if (attention.at !== before || !attention.seen)
        attention.query = entry.queries - 1;
    attention.order = order === "head" || Object.hasOwn(SCORES, order) ? order : attention.order;
    attention.sink = sink === undefined ? attention.sink : sink !== "later";
    attention.other = other === undefined ? attention.other : headNumber(entry, other);
    attention.seen = true;
}

function attentionControls(entry, request) {
    const box = make("input", {type: "checkbox", checked: !attention.sink, id: "sink", onchange: () => { attention.sink = !box.checked; attentionMoved(); }});
    const other = make("input", {type: "text", size: 6, placeholder: "2.4", value: attention.other === null ? "" : headName(entry, attention.other), "aria-label": "Second head",
        oninput: () => { attention.other = headNumber(entry, other.value); attentionMoved(); }});
    const sort = (value) => { attention.order = value; attention.from = 0; attentionMoved(); };
    return make("div", {class: "controls"}, request, choice("Sort heads by", [["head", "layer and head"], ...Object.entries(SCORES).map(([name]) => [name, name])], attention.order, sort),
        make("label", {}, box, " hide the first token"), make("label", {}, "Second head ", other));
}

function attentionGrid() {
    const turn = (by) => () => { attention.from = Math.max(0, attention.from + by); drawGrid(); };
    const canvas = make("canvas", {id: "tiles", role: "img", "aria-label": "A thumbnail of each head: queries down, keys across. The page Heads lists the same heads with links",
        onclick: (event) => {
            const head = headUnder(event);
            if (head !== null) {
                attention[event.shiftKey ? "other" : "head"] = head;
                attentionMoved();
            }
        }});
    const n = DATA.attention[attention.at].layers.length * DATA.attention[attention.at].heads;
    return make("div", {}, make("div", {class: "tiles"}, canvas), make("div", {class: "controls"}, make("span", {id: "tiles-say", class: "faint"}), ...(n <= TILES_A_PAGE ? [] : [
        make("button", {text: "previous", onclick: turn(-TILES_A_PAGE)}), make("button", {text: "next", onclick: () => attention.from + TILES_A_PAGE < n && turn(TILES_A_PAGE)()})])));
}

if (DATA.attention.length)
    PAGES.attention = {
        title: "Attention",
        keys: [["left, right", "the token before, after"], ["up, down", "the head before, after"], ["[ ]", "the layer before, after"], ["Home, End", "the first, the last token"], ["s", "hide the first token, or show it"],
            ["shift and a click", "a second head beside the first"]],
        show(main, place) {
            takeAttention(place);
            const entry = DATA.attention[attention.at], [request, proof] = attentionTop(attention.at, (at) => { main.replaceChildren(); PAGES.attention.show(main, [String(DATA.attention[at].request)]); });
            if (entry.refused !== undefined) {
                main.append(make("div", {class: "controls"}, request), proof);
                go("attention", entry.request);
                return;
            }
            main.append(attentionControls(entry, request), proof, make("div", {class: "readout", id: "attention-readout", "aria-live": "polite"}), attentionGrid(), make("div", {class: "beside", id: "large"}));
            attentionMoved();
        },
        move(place) {
            const entry = DATA.attention[attention.at], before = JSON.stringify([attention.at, attention.head, attention.query, attention.order, attention.sink, attention.other]);
            if (!document.getElementById("tiles") || place.length < 2)
                return entry.refused !== undefined && String(entry.request) === place[0];
            takeAttention(place);
            return before === JSON.stringify([attention.at, attention.head, attention.query, attention.order, attention.sink, attention.other]);
        },
        key(event) {
            const entry = DATA.attention[attention.at], n = entry.heads, token = {ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity}[event.key];
            const head = {ArrowUp: -1, ArrowDown: 1, "[": -n, "]": n}[event.key], last = (entry.layers ?? []).length * n - 1;
            if (entry.refused !== undefined || (!token && !head && event.key !== "s"))
                return false;
            if (token)
                attention.query = Math.max(0, Math.min(attention.query + token, entry.queries - 1));
            else if (!head)
                attention.sink = !(document.getElementById("sink").checked = attention.sink);
            else if (attention.head + head >= 0 && attention.head + head <= last)
                attention.head += head;
            attentionMoved();
            return true;
        },
    };
addEventListener("resize", () => shown === "attention" && document.getElementById("tiles") && attentionMoved());
