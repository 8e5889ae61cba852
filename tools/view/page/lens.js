// Lens: the word that comes first at each layer and token, as `python -m dmi lens` computed it.

const WORD_WIDTH = 108, LAYERS_IN_SIGHT = 64;
const lens = {at: 0, layer: 0, token: 0};

// What a file says as JSON text, or nothing where that cannot be read.
function parsed(text) {
    try {
        return JSON.parse(text) ?? {};
    } catch (error) {
        return {};
    }
}

function answerOf(entry) {
    if (!entry.read) {
        const whole = ["layers", "top_ids", "followed", "followed_ids", "followed_ranks"].map((name) => [name, integersOf(entry[name])]);
        const real = ["top_logits", "logsumexp", "followed_logits"].map((name) => [name, floatsOf(entry[name])]);
        entry.read = Object.fromEntries([...whole, ...real]);
        entry.read.token_ids = entry.token_ids === undefined ? null : integersOf(entry.token_ids);
        entry.read.begins = [0];
        for (const n of entry.read.followed)
            entry.read.begins.push(entry.read.begins.at(-1) + n);
        entry.read.end = parsed(entry.parameters).n_layers;
    }
    return entry.read;
}

function word(entry, token) {
    return Object.hasOwn(entry.texts, token) ? visible(entry.texts[token]) : wordOf(token);
}

function layerName(entry, k) {
    const {layers, end} = answerOf(entry);
    return layers[k] === end ? "end" : String(layers[k]);
}

// [id, logit, share] of the word number k at the cursor.
function likeliest(entry, token, layer, k) {
    const read = answerOf(entry), cell = token * read.layers.length + layer, at = cell * entry.top + k;
    return [read.top_ids[at], read.top_logits[at], Math.exp(read.top_logits[at] - read.logsumexp[cell])];
}

function lensGrid(entry, moveTo) {
    const read = answerOf(entry), inSight = Math.max(1, Math.min(entry.positions.length, Math.floor((document.getElementById("main").clientWidth - 100) / WORD_WIDTH)));
    const from = Math.max(0, Math.min(lens.token - Math.floor(inSight / 2), entry.positions.length - inSight));
    const top = Math.max(0, Math.min(lens.layer - LAYERS_IN_SIGHT / 2, read.layers.length - LAYERS_IN_SIGHT)), bottom = Math.min(read.layers.length, top + LAYERS_IN_SIGHT);
    const tokens = Array.from({length: inSight}, (_, i) => from + i);
    const head = tokens.map((t) => make("th", {scope: "col"}, make("div", {text: String(entry.positions[t])}), make("div", {class: "word", text: read.token_ids ? word(entry, read.token_ids[t]) : ""})));
    const rows = Array.from({length: bottom - top}, (_, i) => top + i).map((layer) => make("tr", {}, make("th", {scope: "row", text: layerName(entry, layer)}), ...tokens.map((t) => {
        const [id, , share] = likeliest(entry, t, layer, 0), cell = make("td", {class: `word${layer === lens.layer && t === lens.token ? " here" : ""}`, onclick: () => moveTo(layer, t),
            title: `${word(entry, id)}, share ${share.toFixed(3)}`}, make("div", {text: word(entry, id)}), make("small", {text: share.toFixed(2)}));
        shade(cell, share);
        return cell;
    })));
    return make("div", {class: "scroll"}, make("table", {class: "lens", "aria-label": "First words, layers down and tokens across"}, make("thead", {}, make("tr", {}, make("th", {text: "layer"}), ...head)),
        make("tbody", {}, ...rows)));
}

function lensWords(entry) {
    const rows = Array.from({length: entry.top}, (_, k) => likeliest(entry, lens.token, lens.layer, k)).map(([id, logit, share]) => [word(entry, id), String(id), brief(logit), share.toFixed(4)]);
    return table([["word"], ["id", true], ["logit", true], ["share", true]], rows, "Likeliest words");
}

// Ranks of the words that are followed at this token, by layer; 0 is the first.
function lensRanks(entry) {
    const read = answerOf(entry), n = read.layers.length, words = Array.from({length: read.followed[lens.token]}, (_, i) => read.begins[lens.token] + i);
    const top = Math.max(0, Math.min(lens.layer - LAYERS_IN_SIGHT / 2, n - LAYERS_IN_SIGHT)), layers = Array.from({length: Math.min(n, top + LAYERS_IN_SIGHT) - top}, (_, i) => top + i);
    return table([["layer", true], ...words.map((w) => [word(entry, read.followed_ids[w]), true])], layers.map((layer) => [layerName(entry, layer), ...words.map((w) => String(read.followed_ranks[w * n + layer]))]),
        "Ranks of followed words");
}

function checksOf(entry) {
    const checks = parsed(entry.checks), edits = editsSentence(entry.request);
    return edits.trim() + (edits ? " " : "") + (Array.isArray(checks) && checks.length ? checks.map((c) => `Checked: ${plain(c?.name)}, off by ${short(Number(c?.error))}; ${short(Number(c?.bound))} is allowed.`).join(" ")
        : "Not checked: nothing shows that these are the run's weights.");
}

function lensSettle(entry) {
    lens.token = Math.max(0, Math.min(lens.token, entry.positions.length - 1));
    lens.layer = Math.max(0, Math.min(lens.layer, answerOf(entry).layers.length - 1));
}

function lensDraw() {
    const entry = DATA.lens[lens.at];
    lensSettle(entry);
    const moveTo = (layer, token) => { [lens.layer, lens.token] = [layer, token]; lensDraw(); };
    const [id, , share] = likeliest(entry, lens.token, lens.layer, 0);
    document.getElementById("grid").replaceChildren(lensGrid(entry, moveTo));
    document.getElementById("lens-readout").textContent = `layer ${layerName(entry, lens.layer)}, position ${entry.positions[lens.token]}: first is ${word(entry, id)}, share ${share.toFixed(4)}`;
    document.getElementById("words").replaceChildren(make("h2", {text: `Layer ${layerName(entry, lens.layer)}`}), lensWords(entry));
    document.getElementById("ranks").replaceChildren(make("h2", {text: "Ranks of words by layer; 0 is the first"}), lensRanks(entry));
    go("lens", entry.request, lens.layer, lens.token);
}

function takeLens(place) {
    const [request, layer, token] = place, found = DATA.lens.findIndex((entry) => String(entry.request) === request);
    lens.at = found >= 0 ? found : lens.at;
    const last = DATA.lens[lens.at].positions.length - 1, end = answerOf(DATA.lens[lens.at]).layers.length - 1;
    [lens.layer, lens.token] = [whole(layer, place.length > 1 ? lens.layer : end), whole(token, place.length > 1 ? lens.token : last)];
}

if (DATA.lens.length)
    PAGES.lens = {
        title: "Lens",
        keys: [["left, right", "the token before, after"], ["[ ], up, down", "the layer before, after"], ["Home, End", "the first, the last token"]],
        show(main, place) {
            takeLens(place);
            const entry = DATA.lens[lens.at], to = (value) => { lens.at = Number(value); main.replaceChildren(); PAGES.lens.show(main, [String(DATA.lens[lens.at].request)]); };
            main.append(make("div", {class: "controls"}, choice("Request", DATA.lens.map((e, i) => [i, requestName(e)]), lens.at, to)),
                make("p", {class: "faint", text: `Each cell has the word that the model would say if it ended at that layer, and the word's share of the probability, which is its shade. A dot stands for a blank. ${checksOf(entry)}`}),
                make("div", {class: "readout", id: "lens-readout", "aria-live": "polite"}), make("div", {id: "grid"}), make("div", {class: "beside"}, make("div", {id: "words"}), make("div", {id: "ranks"})));
            lensDraw();
        },
        move(place) {
            const [request, layer, token] = place;
            return String(DATA.lens[lens.at].request) === request && Number(layer) === lens.layer && Number(token) === lens.token && token !== undefined;
        },
        key(event) {
            const step = HEAT_STEPS[event.key];
            if (!step)
                return false;
            lens.layer += step[0];
            lens.token = Math.max(0, Math.min(lens.token + step[1], DATA.lens[lens.at].positions.length - 1));
            lensDraw();
            return true;
        },
    };
