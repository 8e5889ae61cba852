// Tokens of requests: their ids, and their texts where the report has them.

function integersOf(base64) {
    const bytes = bytesOf(base64), view = new DataView(bytes.buffer), found = new Int32Array(bytes.length / 4);
    for (let i = 0; i < found.length; i++)
        found[i] = view.getInt32(4 * i, true);
    return found;
}

// What cannot be seen, or turns the direction of text, written out: of texts that are read out of JSON.
function plain(text) {
    return String(text).replaceAll(/[\p{C}\p{Zl}\p{Zp}]/gu, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
}

// Blanks are seen as dots.
function visible(text) {
    return text.replaceAll(" ", "\u00b7").replaceAll("\u00a0", "\\u{a0}") || "(empty)";
}

// A token's text, or its id.
function wordOf(token) {
    return Object.hasOwn(DATA.texts, token) ? visible(DATA.texts[token]) : String(token);
}

// All ids of a request, -1 where the run has none; null: of a request without.
function tokensOf(request) {
    const entry = DATA.tokens.find((other) => other.request === request);
    if (entry && !entry.read)
        entry.read = integersOf(entry.ids);
    return entry ? entry.read : null;
}

// The id at a position, or null.
function tokenAt(request, position) {
    const ids = tokensOf(request);
    return ids && position >= 0 && position < ids.length && ids[position] >= 0 ? ids[position] : null;
}

// "token 260, \u00b7the"
function tokenName(token) {
    return Object.hasOwn(DATA.texts, token) ? `token ${token}, ${wordOf(token)}` : `token ${token}`;
}
