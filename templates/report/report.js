"use strict";
(function () {
  const SVG = "http://www.w3.org/2000/svg";
  const NAMED = 14;
  const CAP = 3;
  const WHISKERS = 60; // As overview.py has it, which writes the caption.
  const TITLE = 20;
  let figures = 0;

  function make(name, attributes, parent, text) {
    const node = name.indexOf("svg:") === 0
      ? document.createElementNS(SVG, name.slice(4))
      : document.createElement(name);
    Object.keys(attributes || {}).forEach((key) => { node.setAttribute(key, attributes[key]); });
    if (text !== undefined) node.textContent = text;
    if (parent) parent.appendChild(node);
    return node;
  }

  function isKnown(value) { return value !== null && value !== undefined; }

  function format(value) {
    if (!isKnown(value)) return "";
    return Number(value.toPrecision(4)).toLocaleString("en-US", {maximumSignificantDigits: 4});
  }

  // All texts of an axis have the same number of decimals, enough to distinguish them.
  function formatAll(values) {
    const gaps = values.slice(1).map((value, index) => value - values[index]);
    const step = gaps[0], even = gaps.every((gap) => Math.abs(gap - step) < 1e-6 * step);
    if (!gaps.length || !even) return values.map(format);
    let decimals = Math.min(9, Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));
    if (Number((step * Math.pow(10, decimals)).toFixed(6)) % 1) decimals += 1;
    const digits = {minimumFractionDigits: decimals, maximumFractionDigits: decimals};
    return values.map((value) => value.toLocaleString("en-US", digits));
  }

  // -- scales ---------------------------------------------------------------------------------

  function findExtent(lists, log) {
    let low = Infinity, high = -Infinity;
    lists.forEach((list) => {
      (list || []).forEach((value) => {
        if (!isKnown(value) || (log && value <= 0)) return;
        if (value < low) low = value;
        if (value > high) high = value;
      });
    });
    return low > high ? [log ? 1 : 0, log ? 10 : 1] : [low, high];
  }

  function padRange(range, log, part) {
    const low = range[0], high = range[1];
    if (log) {
      const factor = Math.pow(high / low, part) * (high > low ? 1 : 1.5);
      return [low / factor, high * factor];
    }
    const margin = (high - low) * part || Math.abs(high) * 0.05 || 1;
    return [low - margin, high + margin];
  }

  function makeScale(range, from, to, log) {
    const map = log ? Math.log10 : function (value) { return value; };
    const start = map(range[0]), slope = (to - from) / (map(range[1]) - start || 1);
    function place(value) { return from + (map(log ? Math.max(value, range[0] / 1e3) : value) - start) * slope; }
    place.back = function (at) {
      const value = start + (at - from) / slope;
      return log ? Math.pow(10, value) : value;
    };
    return place;
  }

  function makeEvenTicks(range, count) {
    const power = Math.pow(10, Math.floor(Math.log10((range[1] - range[0]) / count)));
    let found = [];
    [10, 5, 2, 1, 0.5].some((part) => {
      const step = part * power, fitting = [];
      for (let at = Math.ceil(range[0] / step); at * step <= range[1]; at += 1) {
        fitting.push(Number((at * step).toPrecision(12)));
      }
      if (!found.length || fitting.length <= count + 1) found = fitting;
      return found.length > count - 1;
    });
    return found;
  }

  function makeTicks(range, log, count) {
    count = Math.max(2, count);
    if (!log || range[1] / range[0] < 3) return makeEvenTicks(range, count);
    const decades = Math.log10(range[1] / range[0]);
    const parts = decades < count ? [1, 2, 5] : [1];
    const every = Math.max(1, Math.ceil(decades / count));
    const found = [];
    for (let power = Math.floor(Math.log10(range[0])); power <= Math.log10(range[1]); power += 1) {
      if (power % every) continue;
      parts.forEach((part) => {
        const value = part * Math.pow(10, power);
        if (value >= range[0] && value <= range[1]) found.push(value);
      });
    }
    return found.length > 1 ? found : makeEvenTicks(range, count);
  }

  // -- drawing --------------------------------------------------------------------------------

  function findPanelRange(panel) {
    const lists = [];
    panel.series.forEach((series) => { lists.push(series.y, series.low, series.high); });
    lists.push((panel.levels || []).map((level) => level.at));
    const range = findExtent(lists, panel.log);
    if (panel.from_zero) return [0, range[1] * 1.16 || 1];
    return padRange(range, panel.log, 0.09);
  }

  function findWholeRange(figure) {
    const lists = [];
    figure.panels.forEach((panel) => {
      panel.series.forEach((series) => { lists.push(series.x, series.x_low, series.x_high); });
    });
    const marks = figure.panels[0].series[0].kind === "marks";
    return padRange(findExtent(lists, figure.log), figure.log, marks ? 0.12 : 0.015);
  }

  function makePath(series, x, y) {
    let path = "", pen = "M";
    series.x.forEach((value, index) => {
      const height = series.y[index];
      if (!isKnown(value) || !isKnown(height)) { pen = "M"; return; }
      path += pen + x(value).toFixed(1) + " " + y(height).toFixed(1);
      pen = "L";
    });
    return path;
  }

  function makeDots(series, x, y) {
    return series.x.map((value, index) =>
      "M" + x(value).toFixed(1) + " " + y(series.y[index]).toFixed(1) + "h0"
    ).join("");
  }

  function makeBars(series, x, y, floor) {
    const wide = series.x.length > 1 ? Math.abs(x(series.x[1]) - x(series.x[0])) : 20;
    const half = Math.max(0.5, wide * 0.46);
    return series.x.map((value, index) => {
      if (!series.y[index]) return "";
      const top = Math.min(y(series.y[index]), floor - 1);
      return "M" + (x(value) - half).toFixed(1) + " " + floor.toFixed(1) + "V" + top.toFixed(1)
        + "h" + (2 * half).toFixed(1) + "V" + floor.toFixed(1) + "Z";
    }).join("");
  }

  function makeSymbol(verdict, at, top, radius) {
    let r = radius;
    if (verdict === "invalid") {
      r *= 0.75;
      return "M" + (at - r) + " " + (top - r) + "L" + (at + r) + " " + (top + r)
        + "M" + (at - r) + " " + (top + r) + "L" + (at + r) + " " + (top - r);
    }
    if (verdict === "inconclusive") {
      r *= 1.15;
      return "M" + (at - r) + " " + top + "L" + at + " " + (top - r) + "L" + (at + r) + " " + top
        + "L" + at + " " + (top + r) + "Z";
    }
    return "M" + (at - r) + " " + top + "a" + r + " " + r + " 0 1 0 " + 2 * r + " 0a" + r + " " + r
      + " 0 1 0 " + -2 * r + " 0Z";
  }

  function placePoints(series, x, y) {
    return series.x.map((value, index) => (
      {at: x(value), top: y(series.y[index]), series: series, index: index}
    ));
  }

  // Draws an interval with a cap at each end, unless the symbol hides it.
  function makeWhisker(point, x, y) {
    const series = point.series, index = point.index, at = point.at, top = point.top;
    if (!series.x_low) return "";
    const left = x(series.x_low[index]), right = x(series.x_high[index]);
    const low = y(series.low[index]), high = y(series.high[index]), radius = series.radius[index];
    let path = "";
    if (right - left > 2 * radius) {
      path += "M" + left + " " + (top - CAP) + "v" + 2 * CAP + "M" + left + " " + top + "H" + right
        + "M" + right + " " + (top - CAP) + "v" + 2 * CAP;
    }
    if (low - high > 2 * radius) {
      path += "M" + (at - CAP) + " " + low + "h" + 2 * CAP + "M" + at + " " + low + "V" + high
        + "M" + (at - CAP) + " " + high + "h" + 2 * CAP;
    }
    return path;
  }

  function drawMarks(points, x, y, group) {
    points.slice(0, points.length > WHISKERS ? 0 : undefined).forEach((point) => {
      const path = makeWhisker(point, x, y);
      if (path) make("svg:path", {"class": "whisker m-" + point.series.colour, d: path}, group);
    });
    points.forEach((point) => {
      const verdict = point.series.colour, shape = makeSymbol(verdict, point.at, point.top, point.series.radius[point.index]);
      make("svg:path", {"class": "mark m-" + verdict, d: shape}, group);
    });
  }

  function listTextPlaces(point, wide) {
    const r = point.series.radius[point.index] + 5, at = point.at, top = point.top;
    return [
      [at + r - 2, top + 4], [at - r - wide + 2, top + 4],
      [at - wide / 2, top - r + 1], [at - wide / 2, top + r + 8],
      [at + r - 4, top - 8], [at + r - 4, top + 15], [at - r - wide + 4, top - 8], [at - r - wide + 4, top + 15]
    ];
  }

  function overlaps(one, other) {
    return one[2] >= other[0] && one[0] <= other[2] && one[3] >= other[1] && one[1] <= other[3];
  }

  // Places a name where there is no symbol and no other name; leaves it out if there is no such place.
  function nameMarks(frame, group) {
    const taken = frame.points.map((point) => {
      const r = point.series.radius[point.index];
      return [point.at - r, point.top - r, point.at + r, point.top + r];
    });
    frame.points.forEach((point) => {
      const text = point.series.text[point.index], wide = text.length * 6.1;
      if (wide > frame.width * 0.6) return;
      listTextPlaces(point, wide).some((place) => {
        const box = [place[0], place[1] - 9, place[0] + wide, place[1] + 2];
        const inside = box[0] >= frame.left && box[2] <= frame.width - 2;
        if (!inside || taken.some((each) => overlaps(box, each))) return false;
        taken.push(box);
        make("svg:text", {"class": "mark-text", x: place[0], y: place[1]}, group, text);
        return true;
      });
    });
  }

  function drawPanel(panel, frame, top, group) {
    const log = panel.log, range = findPanelRange(panel), floor = top + panel.height;
    const y = makeScale(range, floor, top, log);
    make("svg:text", {"class": "panel-title", x: 0, y: top - 7}, group, panel.title);
    const values = makeYTicks(panel), texts = formatAll(values);
    values.forEach((value, index) => {
      const at = Math.round(y(value)) + 0.5;
      make("svg:path", {"class": "grid", d: "M" + frame.left + " " + at + "H" + frame.width}, group);
      make("svg:text", {x: frame.left - 6, y: at + 4, "text-anchor": "end"}, group, texts[index]);
    });
    const inside = make("svg:g", {"clip-path": "url(#" + frame.clip + ")"}, group);
    (panel.levels || []).forEach((level) => {
      const at = y(level.at);
      make("svg:path", {"class": "level", d: "M" + frame.left + " " + at + "H" + frame.width}, inside);
      make("svg:text", {x: frame.width - 2, y: at + 12, "text-anchor": "end"}, inside, level.text);
    });
    panel.series.forEach((series) => {
      if (series.kind === "marks") { frame.points = frame.points.concat(placePoints(series, frame.x, y)); return; }
      const paths = {line: makePath, dots: makeDots, bars: makeBars};
      make("svg:path", {
        "class": series.kind + " " + series.colour, d: paths[series.kind](series, frame.x, y, floor)
      }, inside);
    });
    make("svg:path", {"class": "axis", d: "M" + frame.left + " " + (floor + 0.5) + "H" + frame.width}, group);
    drawMarks(frame.points, frame.x, y, inside);
    if (frame.points.length <= NAMED) nameMarks(frame, group);
  }

  function makeYTicks(panel) { return makeTicks(findPanelRange(panel), panel.log, Math.round(panel.height / 34)); }

  function computeLeftMargin(figure) {
    let longest = 1;
    figure.panels.forEach((panel) => {
      formatAll(makeYTicks(panel)).forEach((text) => { longest = Math.max(longest, text.length); });
    });
    return 12 + longest * 6.4;
  }

  function drawX(figure, frame, group) {
    const width = frame.width - frame.left, floor = frame.floor;
    const values = makeTicks(frame.range, figure.log, Math.round(width / 85)), texts = formatAll(values);
    values.forEach((value, index) => {
      const at = frame.x(value), wide = texts[index].length * 3.2;
      make("svg:path", {"class": "axis", d: "M" + at + " " + floor + "v4"}, group);
      make("svg:text", {
        x: Math.min(at, frame.width - wide), y: floor + 16, "text-anchor": "middle"
      }, group, texts[index]);
    });
    make("svg:text", {x: frame.left, y: floor + 33}, group, figure.x);
  }

  function drawBands(figure, frame, group) {
    const inside = make("svg:g", {"clip-path": "url(#" + frame.clip + ")"}, group);
    (figure.bands || []).forEach((band) => {
      const from = frame.x(band.start), to = frame.x(band.end);
      make("svg:rect", {
        "class": "throttled", x: from, y: frame.top, width: Math.max(1, to - from), height: frame.floor - frame.top
      }, inside);
    });
  }

  function drawDivides(figure, frame, group) {
    const inside = make("svg:g", {"clip-path": "url(#" + frame.clip + ")"}, group);
    let last = -Infinity, row = 0;
    (figure.marks || []).forEach((mark) => {
      const at = frame.x(mark.at);
      make("svg:path", {"class": "divide", d: "M" + at + " " + frame.top + "V" + frame.floor}, inside);
      row = at - last < mark.text.length * 7 ? row + 1 : 0;
      last = at;
      make("svg:text", {x: at + 4, y: frame.top + 10 + 12 * row}, inside, mark.text);
    });
  }

  function makeFrame(box, width) {
    const figure = box.figure;
    let height = TITLE;
    figure.panels.forEach((panel) => { height += panel.height + TITLE; });
    const frame = {left: computeLeftMargin(figure), width: width, top: TITLE, floor: height - TITLE, points: [], clip: box.clip};
    frame.range = box.zoom || findWholeRange(figure);
    frame.x = makeScale(frame.range, frame.left, width - 1, figure.log);
    return frame;
  }

  function makeCanvas(box, frame) {
    const height = frame.floor + 40;
    const svg = make("svg:svg", {
      viewBox: "0 0 " + frame.width + " " + height, height: height, tabindex: "0",
      role: "img", "aria-label": box.figure.label, "aria-describedby": box.output.id
    });
    const clip = make("svg:clipPath", {id: box.clip}, make("svg:defs", {}, svg));
    make("svg:rect", {x: frame.left, y: 0, width: frame.width - frame.left, height: frame.floor + 2}, clip);
    return svg;
  }

  function draw(box) {
    const figure = box.figure, width = Math.floor(box.plot.clientWidth);
    if (!width) return;
    const frame = box.frame = makeFrame(box, width), svg = makeCanvas(box, frame);
    let top = TITLE;
    drawBands(figure, frame, svg);
    figure.panels.forEach((panel) => {
      drawPanel(panel, frame, top, svg);
      top += panel.height + TITLE;
    });
    drawDivides(figure, frame, svg);
    drawX(figure, frame, svg);
    box.cursor = make("svg:path", {"class": frame.points.length ? "picked" : "cursor", d: ""}, svg);
    box.brush = make("svg:rect", {"class": "brush", y: frame.top, width: 0, height: frame.floor - frame.top}, svg);
    box.plot.replaceChildren(svg);
    box.plot.dataset.width = width;
    if (frame.points.length) listenToMarks(box, svg); else listenToLines(box, svg);
  }

  // -- reading a figure -----------------------------------------------------------------------

  function findNearest(series, value) {
    let best = -1, distance = Infinity;
    series.x.forEach((each, index) => {
      if (!isKnown(each)) return;
      const away = Math.abs(each - value);
      if (away < distance) { distance = away; best = index; }
    });
    return best;
  }

  // The content below a figure must not jump while somebody reads the figure.
  function say(box, text) {
    box.output.textContent = text;
    box.output.style.minHeight = Math.max(parseFloat(box.output.style.minHeight) || 0, box.output.offsetHeight) + "px";
  }

  function findUnit(title) {
    const found = /\(([^)]*)\)/.exec(title);
    return found ? " " + found[1] : "";
  }

  function sayAt(box, value) {
    const figure = box.figure, words = [];
    const unit = findUnit(figure.x);
    figure.panels.forEach((panel) => {
      panel.series.forEach((series) => {
        const index = findNearest(series, value);
        if (index >= 0) words.push(series.name + " " + format(series.y[index]) + findUnit(panel.title));
      });
    });
    (figure.bands || []).forEach((band) => {
      if (value >= band.start && value < band.end) words.push("slowed down: " + band.text);
    });
    say(box, format(value) + unit + ": " + words.join(" · "));
    const at = box.frame.x(value);
    box.cursor.setAttribute("d", "M" + at + " " + box.frame.top + "V" + box.frame.floor);
    box.value = value;
  }

  function formatInterval(low, high) { return low === high ? "" : " (" + format(low) + " to " + format(high) + ")"; }

  function listNumbers(series, index) {
    const pairs = [[series.x, series.x_low, series.x_high], [series.y, series.low, series.high]];
    return pairs.map((pair) =>
      format(pair[0][index]) + (pair[1] ? formatInterval(pair[1][index], pair[2][index]) : "")
    );
  }

  function sayMark(box, index) {
    const point = box.frame.points[index], series = point.series, at = point.index;
    const numbers = listNumbers(series, at), unit = findUnit(box.figure.x);
    say(box, series.text[at] + ": " + series.name + ", " + numbers[0].replace(/^\S+/, "$&" + unit)
      + ", " + box.figure.panels[0].title + " " + numbers[1]);
    box.cursor.setAttribute("d", makeSymbol("valid", point.at, point.top, series.radius[at] + 4));
    box.value = index;
  }

  function findNearestMark(box, at, top) {
    let best = 0, distance = Infinity;
    box.frame.points.forEach((point, index) => {
      const away = Math.hypot(point.at - at, point.top - top);
      if (away < distance) { distance = away; best = index; }
    });
    return {index: best, distance: distance};
  }

  function zoom(box, range) {
    box.zoom = range;
    draw(box);
    box.reset.hidden = !range;
  }

  function findPlace(box, svg, event) {
    const rect = svg.getBoundingClientRect();
    const at = Math.min(Math.max(event.clientX - rect.left, box.frame.left), box.frame.width - 1);
    return {at: at, top: event.clientY - rect.top};
  }

  function findStep(event) { return {ArrowLeft: -1, ArrowRight: 1}[event.key] || 0; }

  function listenToMarks(box, svg) {
    function found(event) {
      const place = findPlace(box, svg, event);
      return findNearestMark(box, place.at, place.top);
    }
    function point(event) { sayMark(box, found(event).index); }
    svg.addEventListener("pointermove", point);
    svg.addEventListener("pointerdown", point);
    svg.addEventListener("pointerup", (event) => {
      const mark = found(event);
      if (event.pointerType === "mouse" && mark.distance < 24) follow(box.frame.points[mark.index]);
    });
    svg.addEventListener("keydown", (event) => {
      const step = findStep(event), count = box.frame.points.length;
      if (step) {
        event.preventDefault();
        sayMark(box, box.value === undefined ? 0 : (box.value + step + count) % count);
      } else if (event.key === "Enter" && box.value !== undefined) {
        follow(box.frame.points[box.value]);
      }
    });
  }

  function listenToLines(box, svg) {
    svg.addEventListener("keydown", (event) => {
      const step = findStep(event);
      if (step) {
        event.preventDefault();
        stepAlong(box, step);
      } else if (event.key === "Escape" && box.zoom) {
        zoom(box, null);
      }
    });
    listenToDrags(box, svg);
  }

  function stepAlong(box, step) {
    const frame = box.frame, width = frame.width - frame.left;
    const at = box.value === undefined ? frame.left : frame.x(box.value) + step * width / 60;
    sayAt(box, frame.x.back(Math.min(Math.max(at, frame.left), frame.width - 1)));
  }

  function listenToDrags(box, svg) {
    let from = null;
    svg.addEventListener("pointermove", (event) => {
      const at = findPlace(box, svg, event).at;
      sayAt(box, box.frame.x.back(at));
      if (from === null) return;
      box.brush.setAttribute("x", Math.min(from, at));
      box.brush.setAttribute("width", Math.abs(from - at));
    });
    svg.addEventListener("pointerdown", (event) => {
      const at = findPlace(box, svg, event).at;
      sayAt(box, box.frame.x.back(at));
      if (event.pointerType !== "mouse" || event.button !== 0) return;
      from = at;
      svg.setPointerCapture(event.pointerId);
      event.preventDefault();
      svg.focus({preventScroll: true});
    });
    svg.addEventListener("pointerup", (event) => {
      const at = findPlace(box, svg, event).at, begun = from;
      from = null;
      box.brush.setAttribute("width", 0);
      if (begun === null || Math.abs(begun - at) <= 8) return;
      zoom(box, [box.frame.x.back(Math.min(begun, at)), box.frame.x.back(Math.max(begun, at))]);
    });
    svg.addEventListener("pointercancel", () => { from = null; box.brush.setAttribute("width", 0); });
  }

  function follow(point) {
    if (!point.series.leads_to) return;
    location.hash = "#" + point.series.leads_to[point.index];
    show();
  }

  // -- figures in the page --------------------------------------------------------------------

  function addLegendItem(box, look, text) {
    const item = make("span", {}, box.legend);
    make("i", {"class": look}, item);
    item.appendChild(document.createTextNode(text));
  }

  function addLegend(box) {
    const seen = {}, causes = {};
    box.figure.panels.forEach((panel) => {
      panel.series.forEach((series) => {
        if (seen[series.name]) return;
        seen[series.name] = true;
        const look = series.kind === "marks" ? "m-" + series.colour + " " + series.colour : series.colour;
        addLegendItem(box, series.kind + " " + look, series.name);
      });
    });
    (box.figure.bands || []).forEach((band) => { causes[band.text] = true; });
    const named = Object.keys(causes);
    if (named.length) addLegendItem(box, "bars s1", "shaded: slowed down (" + named.join("; ") + ")");
  }

  function addSeriesTable(series, panel, x, parent) {
    const table = make("table", {}, make("div", {"class": "scroll", tabindex: "0"}, parent));
    make("caption", {"class": "strong"}, table, series.name + ", " + panel.title);
    const head = make("tr", {}, make("thead", {}, table)), body = make("tbody", {}, table);
    (series.text ? ["", x, panel.title] : [x, panel.title]).forEach((name) => {
      make("th", {scope: "col"}, head, name);
    });
    series.x.forEach((value, index) => {
      if (!isKnown(value)) return;
      const row = make("tr", {}, body);
      if (series.text) make("td", {"class": "name"}, row, series.text[index]);
      listNumbers(series, index).forEach((text) => { make("td", {}, row, text); });
    });
  }

  function fillNumbers(box, parent) {
    box.figure.panels.forEach((panel) => {
      panel.series.forEach((series) => { addSeriesTable(series, panel, box.figure.x, parent); });
    });
  }

  function addNumbers(box, place) {
    const data = make("details", {"class": "data"}, place);
    make("summary", {}, data, "Numbers of this figure");
    data.addEventListener("toggle", () => {
      if (data.open && data.children.length === 1) fillNumbers(box, data);
    });
  }

  function formatHint(figure) {
    const marks = figure.panels[0].series.filter((series) => series.kind === "marks")[0];
    if (marks && !marks.leads_to) return "Point at a mark to read it, or use the arrow keys.";
    return marks
      ? "Point at a mark to read it, or use the arrow keys; click it or press Enter to open its run."
      : "Point at the figure to read it, or use the arrow keys; drag to look closer.";
  }

  function dress(place, figure) {
    figures += 1;
    const box = {figure: figure, clip: "clip-" + figures};
    box.legend = make("div", {"class": "legend"}, place);
    box.plot = make("div", {"class": "plot"}, place);
    box.output = make("output", {"class": "readout", id: "readout-" + figures}, place, formatHint(figure));
    box.reset = make("button", {type: "button", hidden: ""}, place, "Show all");
    box.reset.addEventListener("click", () => { zoom(box, null); });
    addNumbers(box, place);
    addLegend(box);
    draw(box);
    new ResizeObserver(() => {
      if (Number(box.plot.dataset.width) !== Math.floor(box.plot.clientWidth)) draw(box);
    }).observe(box.plot);
  }

  function readData(place) {
    const holder = place.closest("[data-figures]");
    if (!holder.figures) holder.figures = JSON.parse(holder.querySelector("script.figures").textContent);
    return holder.figures[place.dataset.figure];
  }

  function drawPlace(place) {
    if (place.dataset.drawn) return;
    place.dataset.drawn = "1";
    dress(place, readData(place));
  }

  const watcher = new IntersectionObserver((entries) => {
    entries.forEach((entry) => {
      if (!entry.isIntersecting) return;
      watcher.unobserve(entry.target);
      drawPlace(entry.target);
    });
  }, {rootMargin: "300px"});

  function unpack(run) {
    const packed = run.querySelector("noscript");
    if (packed) packed.outerHTML = packed.textContent;
  }

  function watch(root) {
    unpack(root);
    root.querySelectorAll("figure[data-figure]:not([data-drawn])").forEach((place) => { watcher.observe(place); });
  }

  // -- the page -------------------------------------------------------------------------------

  function show() {
    const target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
    if (!target || target.tagName !== "DETAILS") return;
    target.hidden = false;
    unpack(target);
    target.open = true;
    target.scrollIntoView();
    target.querySelector("summary").focus({preventScroll: true});
  }

  function listAll(nodes) { return Array.prototype.slice.call(nodes); }

  function readOrder(row, column) {
    const order = row.cells[column].dataset.order, number = Number(order);
    return {row: row, order: Number.isNaN(number) ? order : number, unknown: order === "unknown"};
  }

  function compareOrders(a, b, down) {
    if (a.unknown !== b.unknown) return a.unknown ? 1 : -1;
    const found = a.order < b.order ? -1 : a.order > b.order ? 1 : 0;
    return down ? -found : found;
  }

  // Rows are sorted within their groups, and groups by their first row.
  function sortBy(button) {
    const head = button.closest("th"), table = head.closest("table");
    const column = Array.prototype.indexOf.call(head.parentNode.children, head);
    const down = head.getAttribute("aria-sort") === "ascending";
    table.querySelectorAll("th[aria-sort]").forEach((each) => { each.removeAttribute("aria-sort"); });
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const groups = listAll(table.tBodies).map((body) => {
      const rows = listAll(body.querySelectorAll("tr:not(.group)")).map((row) => readOrder(row, column));
      rows.sort((a, b) => compareOrders(a, b, down));
      rows.forEach((each) => { body.appendChild(each.row); });
      return {body: body, first: rows[0]};
    });
    groups.sort((a, b) => compareOrders(a.first, b.first, down));
    groups.forEach((each) => { table.appendChild(each.body); });
  }

  // -- groups and filters of an overview --------------------------------------------------------

  const FEW = 24;

  function findMiddle(values) {
    const sorted = values.slice(), half = sorted.length >> 1;
    sorted.sort((a, b) => a - b);
    return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
  }

  function summarize(rows, by) {
    const p50s = rows.map((row) => Number(row.cells[2].dataset.order));
    const most = Math.max.apply(null, p50s), slowest = rows[p50s.indexOf(most)];
    const names = ["device", "target", "variant"].filter((name) => name !== by)
      .filter((name) => rows.some((row) => row.dataset[name] !== slowest.dataset[name]))
      .map((name) => slowest.dataset[name]);
    const wrong = rows.filter((row) => row.dataset.verdict !== "VALID").length;
    const slow = rows.map((row) => row.querySelector("[data-label='against peers'] .more")).filter(Boolean);
    let text = rows.length + (rows.length === 1 ? " run" : " runs") + ", p50 median " + format(findMiddle(p50s))
      + " ms, worst " + format(most) + " ms";
    if (names.length) text += " (" + names.join(", ") + ")";
    if (wrong) text += ", " + wrong + " not VALID";
    if (slow.length) text += ", " + slow.length + " slow: " + slow[0].textContent + " against peers";
    return text;
  }

  function fold(body, folded) {
    const button = body.querySelector(".group button");
    if (!button) return;
    button.setAttribute("aria-expanded", String(!folded));
    body.dataset.folded = folded ? "1" : "";
  }

  function addGroup(table, name, rows, folded) {
    const body = make("tbody", {}, table), head = make("tr", {"class": "group"}, body);
    const cell = make("th", {scope: "rowgroup", colspan: table.tHead.rows[0].cells.length}, head);
    const button = make("button", {type: "button"}, cell, name);
    make("span", {"class": "soft"}, cell);
    rows.forEach((row) => { body.appendChild(row); });
    button.addEventListener("click", () => { fold(body, !body.dataset.folded); showRows(table); });
    fold(body, folded);
  }

  // Rows come in the order of the page, the worst first, and so do groups.
  function groupRows(table, rows, by) {
    const groups = new Map();
    rows.forEach((row) => {
      const name = by ? row.dataset[by] : "";
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(row);
    });
    table.querySelectorAll("th[aria-sort]").forEach((each) => { each.removeAttribute("aria-sort"); });
    listAll(table.tBodies).forEach((body) => { body.remove(); });
    table.dataset.by = by;
    groups.forEach((some, name) => {
      if (by) { addGroup(table, name, some, groups.size > 1); return; }
      const body = make("tbody", {}, table);
      some.forEach((row) => { body.appendChild(row); });
    });
  }

  function showRows(table) {
    listAll(table.tBodies).forEach((body) => {
      const rows = listAll(body.querySelectorAll("tr:not(.group)"));
      const left = rows.filter((row) => !row.dataset.out), head = body.querySelector(".group");
      rows.forEach((row) => { row.hidden = Boolean(row.dataset.out || body.dataset.folded); });
      body.hidden = !left.length;
      if (head && left.length) head.querySelector("span").textContent = " " + summarize(left, table.dataset.by);
    });
  }

  function filterRows(overview, rows, table) {
    const words = overview.querySelector(".choose input").value.toLowerCase().split(/\s+/);
    const chosen = listAll(overview.querySelectorAll("select[data-field]"));
    const devices = new Set();
    rows.forEach((row) => {
      const text = row.cells[0].textContent.toLowerCase();
      const fits = words.every((word) => text.indexOf(word) >= 0)
        && chosen.every((each) => !each.value || row.dataset[each.dataset.field] === each.value);
      row.dataset.out = fits ? "" : "1";
      if (fits) devices.add(row.dataset.device);
    });
    overview.querySelectorAll(".plots li").forEach((each) => { each.hidden = !devices.has(each.dataset.device); });
    const more = overview.querySelector(".multiples details");
    if (more && more.querySelector("li[hidden]")) more.open = true;
    overview.querySelector(".choose .left").textContent =
      rows.filter((row) => !row.dataset.out).length + " of " + rows.length + " runs";
    showRows(table);
  }

  function dressOverview(overview) {
    const bar = overview.querySelector(".choose"), table = overview.querySelector("table.grouped");
    if (!bar) return;
    const rows = listAll(table.tBodies[0].rows), by = bar.querySelector(".by"), button = bar.querySelector(".fold");
    const several = (name) => new Set(rows.map((row) => row.dataset[name])).size;
    bar.hidden = false;
    if (rows.length > FEW) by.value = several("device") < rows.length ? "device" : "variant";
    function regroup() {
      groupRows(table, rows, by.value);
      button.hidden = !by.value;
      button.textContent = "Unfold all";
      filterRows(overview, rows, table);
    }
    by.addEventListener("change", regroup);
    button.addEventListener("click", () => {
      const folding = button.textContent === "Fold all";
      listAll(table.tBodies).forEach((body) => { fold(body, folding); });
      button.textContent = folding ? "Unfold all" : "Fold all";
      showRows(table);
    });
    bar.querySelectorAll("input, select[data-field]").forEach((each) => {
      each.addEventListener("input", () => { filterRows(overview, rows, table); });
    });
    regroup();
  }

  function filter(words) {
    const wanted = words.toLowerCase().split(/\s+/);
    let left = 0;
    document.querySelectorAll("details.run").forEach((run) => {
      const text = run.querySelector("summary").textContent.toLowerCase();
      run.hidden = !wanted.every((word) => text.indexOf(word) >= 0);
      left += run.hidden ? 0 : 1;
    });
    document.getElementById("left").textContent = left + " shown";
  }

  const root = document.documentElement, theme = document.getElementById("theme");
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");

  function isDark() { return root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches; }
  function nameTheme() { theme.textContent = isDark() ? "Light" : "Dark"; }

  theme.hidden = false;
  theme.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; nameTheme(); });
  prefersDark.addEventListener("change", nameTheme);
  nameTheme();

  document.querySelectorAll("button.sort").forEach((button) => {
    button.addEventListener("click", () => { sortBy(button); });
  });
  document.querySelectorAll(".overview").forEach(dressOverview);
  const input = document.getElementById("filter");
  if (input) input.addEventListener("input", () => { filter(input.value); });
  document.querySelectorAll("details.run").forEach((run) => {
    run.addEventListener("toggle", () => { if (run.open) watch(run); });
  });
  document.addEventListener("click", (event) => {
    const link = event.target.closest && event.target.closest("a[href^='#']");
    if (link && link.hash === location.hash) { event.preventDefault(); show(); }
  });
  addEventListener("hashchange", show);
  addEventListener("beforeprint", () => {
    document.querySelectorAll(".overview figure[data-figure], details.run[open] figure[data-figure]").forEach(drawPlace);
  });
  // Draws these at once, so that nothing below moves when somebody scrolls up from a linked run.
  document.querySelectorAll(".overview figure[data-figure]").forEach(drawPlace);
  document.querySelectorAll("details.run[open]").forEach(watch);
  show();
})();
