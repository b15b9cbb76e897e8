"use strict";
// The page of one evaluation report. The data are the fields that docs/report.md describes, without the counts.
// Everything at a threshold is computed here from the true and false positives that the report was read from.
(() => {
  const $ = (id) => document.getElementById(id);
  const report = JSON.parse($("data").textContent);
  const SVG = "http://www.w3.org/2000/svg";
  const WIDTH = 340, HEIGHT = 300, LEFT = 46, RIGHT = 10, TOP = 8, BOTTOM = 40;

  const RATES = [
    ["sensitivity", "Sensitivity", "of the positives, called positive"],
    ["specificity", "Specificity", "of the negatives, called negative"],
    ["ppv", "Positive predictive value", "of those called positive, truly positive"],
    ["npv", "Negative predictive value", "of those called negative, truly negative"],
    ["called", "Called positive", "of all examples"],
    ["benefit", "Net benefit", "true positives per example, less the cost of false ones"],
  ];
  const CARDS = ["auroc", "average_precision", "prevalence", "brier_score", "expected_calibration_error"];
  const LONG = { auroc: "AUROC", average_precision: "Average precision", prevalence: "Prevalence",
    brier_score: "Brier score", expected_calibration_error: "Calibration error" };

  const make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };
  const draw = (tag, attributes, text) => {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const fixed = (value, digits) => value === null || !Number.isFinite(value) ? "–"
    : value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  const count = (value) => (Number.isInteger(value) ? "" : "≈ ") + fixed(Math.round(value), 0);
  const percent = (value) => value === null ? "–" : `${fixed(100 * value, 1)}%`;
  const share = (part, whole, otherwise) => whole > 0 ? part / whole : otherwise;
  const score = (value) => {
    const near = Math.min(Math.abs(value), Math.abs(1 - value));
    return near > 0 && near < 1e-3 && value > 0 && value < 1 ? value.toPrecision(value > 0.5 ? 7 : 3) : fixed(value, 3);
  };

  // What happens at one threshold. A call that nobody gets has the predictive value 1, as in the Python functions.
  const at = (one, index) => {
    const positives = Math.max(one.numbers.positives.value, 0), negatives = Math.max(one.numbers.negatives.value, 0);
    const tp = one.points.true_positives[index], fp = one.points.false_positives[index];
    const tn = Math.max(negatives - fp, 0), fn = Math.max(positives - tp, 0), all = positives + negatives, threshold = one.points.threshold[index];
    const odds = threshold / (1 - threshold);
    return {
      threshold, tp, fp, tn, fn,
      sensitivity: share(tp, positives, 0), specificity: share(tn, negatives, 1),
      ppv: share(tp, tp + fp, 1), npv: share(tn, tn + fn, 1), called: share(tp + fp, all, 0),
      fpr: share(fp, negatives, 0), prevalence: share(positives, all, 0),
      benefit: one.net_benefit === null ? null : fp === 0 ? share(tp, all, 0) : share(tp - odds * fp, all, 0),
    };
  };

  // Figures: axes with a scale, and a point that says where the threshold is.
  const ticks = (low, high) => {
    const rough = (high - low) / 5, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough * 0.999);
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) found.push(k * step);
    return { found, digits: Math.max(0, Math.min(6, Math.ceil(-Math.log10(step) - 1e-9 + (step / power === 2.5 ? 1 : 0)))) };
  };
  class Figure {
    constructor(id, title, xlabel, ylabel, caption) {
      this.svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", id: `figure-${id}` });
      this.caption = make("figcaption", {}, ...(caption || []));
      this.title = title;
      this.xlabel = xlabel;
      this.ylabel = ylabel;
      $("figures").append(make("figure", {}, make("h3", {}, title), this.svg, this.caption));
      this.svg.addEventListener("pointerdown", (event) => this.point(event));
      this.svg.addEventListener("pointermove", (event) => event.buttons === 1 && this.point(event));
    }
    frame(xs, ys) {
      [this.x0, this.x1] = xs;
      [this.y0, this.y1] = ys;
      this.svg.replaceChildren();
      const [xt, yt] = [ticks(...xs), ticks(...ys)];
      const bottom = HEIGHT - BOTTOM, right = WIDTH - RIGHT;
      for (const value of xt.found) {
        this.add("path", { class: "grid", d: `M${this.x(value)} ${TOP}V${bottom}` });
        this.add("text", { x: this.x(value), y: bottom + 14, "text-anchor": "middle" }, value.toFixed(xt.digits));
      }
      for (const value of yt.found) {
        this.add("path", { class: "grid", d: `M${LEFT} ${this.y(value)}H${right}` });
        this.add("text", { x: LEFT - 5, y: this.y(value) + 4, "text-anchor": "end" }, value.toFixed(yt.digits));
      }
      this.add("path", { class: "axis", d: `M${LEFT} ${TOP}V${bottom}H${right}` });
      this.add("text", { x: (LEFT + right) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, this.xlabel);
      this.add("text", { transform: `translate(11 ${(TOP + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, this.ylabel);
    }
    add(tag, attributes, text) {
      const element = draw(tag, attributes, text);
      this.svg.append(element);
      return element;
    }
    x(value) {
      const part = Math.min(Math.max((value - this.x0) / (this.x1 - this.x0), 0), 1);
      return +(LEFT + part * (WIDTH - LEFT - RIGHT)).toFixed(2);
    }
    y(value) {
      const part = Math.min(Math.max((value - this.y0) / (this.y1 - this.y0), 0), 1);
      return +(HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)).toFixed(2);
    }
    line(xs, ys, name) {
      let path = "";
      xs.forEach((value, k) => { if (ys[k] !== null) path += `${path ? "L" : "M"}${this.x(value)} ${this.y(ys[k])}`; });
      this.add("path", { class: name, d: path });
    }
    band(xs, low, high) {
      const up = xs.map((value, k) => `${this.x(value)} ${this.y(high[k])}`);
      const down = xs.map((value, k) => `${this.x(value)} ${this.y(low[k])}`).reverse();
      this.add("path", { class: "band", d: `M${[...up, ...down].join("L")}Z` });
    }
    marker() { this.here = this.add("circle", { class: "here", r: 5 }); }
    rule() { this.here = this.add("path", { class: "here" }); }
    move(x, y) {
      if (y === undefined) this.here.setAttribute("d", `M${this.x(x)} ${TOP}V${HEIGHT - BOTTOM}`);
      else { this.here.setAttribute("cx", this.x(x)); this.here.setAttribute("cy", this.y(y)); }
    }
    say(text) { this.svg.setAttribute("aria-label", `${this.title}. ${text}`); }
    point(event) {
      const box = this.svg.getBoundingClientRect();
      const x = (event.clientX - box.left) / box.width * WIDTH, y = (event.clientY - box.top) / box.height * HEIGHT;
      if (x < LEFT - 8 || y > HEIGHT - BOTTOM + 8) return;
      let best = 0, least = Infinity;
      now.points.threshold.forEach((_, index) => {
        const [px, py] = this.place(at(now, index));
        const far = Math.hypot(this.x(px) - x, py === undefined ? 0 : this.y(py) - y);
        if (far < least) [least, best] = [far, index];
      });
      slider.value = best;
      follow();
    }
  }

  const interval = (number, digits = 3) => number.low === undefined ? ""
    : `${fixed(number.low, digits)} to ${fixed(number.high, digits)}`;
  const certain = `${fixed(100 * report.confidence, report.confidence * 100 % 1 ? 1 : 0)}%`;
  const probabilities = report.classes[0].calibration !== null;
  const key = (name) => make("span", { class: `key ${name}`, "aria-hidden": "true" });

  const roc = new Figure("roc", "ROC curve", "1 - specificity", "Sensitivity");
  roc.place = (values) => [values.fpr, values.sensitivity];
  roc.redraw = (one, points) => {
    roc.frame([0, 1], [0, 1]);
    if (one.bands.roc) roc.band(one.bands.roc.x, one.bands.roc.low, one.bands.roc.high);
    roc.line([0, 1], [0, 1], "chance");
    roc.line(points.map((p) => p.fpr), points.map((p) => p.sensitivity), "curve");
    roc.marker();
    roc.caption.textContent = `Area ${fixed(one.numbers.auroc.value, 3)}; dashed: chance.` + (one.bands.roc ? ` Shaded: ${certain} band.` : "");
  };
  const pr = new Figure("pr", "Precision and recall", "Recall (sensitivity)", "Precision (PPV)");
  pr.place = (values) => [values.sensitivity, values.ppv];
  pr.redraw = (one, points) => {
    pr.frame([0, 1], [0, 1]);
    const band = one.bands.precision_recall, chance = one.numbers.prevalence.value;
    if (band) pr.band(band.x, band.low, band.high);
    pr.line([0, 1], [chance, chance], "chance");
    const xs = [], ys = [];
    points.forEach((p, k) => {  // precision holds until the next threshold: a step
      xs.push(p.sensitivity, k + 1 < points.length ? points[k + 1].sensitivity : p.sensitivity);
      ys.push(p.ppv, p.ppv);
    });
    pr.line(xs, ys, "curve");
    pr.marker();
    pr.caption.textContent = `Average precision ${fixed(one.numbers.average_precision.value, 3)}; dashed: chance.` + (band ? ` Shaded: ${certain} band.` : "");
  };
  const histogram = new Figure("histogram", "Scores of both classes", "Score", "Density",
    [key("negatives"), "negatives", key("positives"), "positives; right of the line: called positive."]);
  histogram.place = (values) => [values.threshold, undefined];
  histogram.redraw = (one) => {
    const { edges } = one.histogram, rows = ["negatives", "positives"].map((name) => {
      const total = one.histogram[name].reduce((sum, value) => sum + value, 0);
      return [name, one.histogram[name].map((value, k) => share(value, total * (edges[k + 1] - edges[k]), 0))];
    });
    histogram.frame([edges[0], edges.at(-1)], [0, 1.06 * Math.max(...rows.flatMap(([, values]) => values), 1e-9)]);
    for (const [name, values] of rows) {
      let path = `M${histogram.x(edges[0])} ${histogram.y(0)}`;
      values.forEach((value, k) => { path += `V${histogram.y(value)}H${histogram.x(edges[k + 1])}`; });
      histogram.add("path", { class: `bars ${name}`, d: `${path}V${histogram.y(0)}Z` });
    }
    histogram.rule();
  };
  const figures = [roc, pr, histogram];
  if (probabilities) {
    const calibration = new Figure("calibration", "Calibration", "Predicted probability", "Observed share of positives",
      ["Dashed: perfectly calibrated. A larger dot stands for more examples."]);
    calibration.place = (values) => [values.threshold, undefined];
    calibration.redraw = (one) => {
      calibration.frame([0, 1], [0, 1]);
      calibration.line([0, 1], [0, 1], "chance");
      const { predicted, observed, examples } = one.calibration, most = Math.max(...examples, 1e-9);
      const kept = predicted.map((_, k) => k).filter((k) => examples[k] > most * 1e-4);
      calibration.line(kept.map((k) => predicted[k]), kept.map((k) => observed[k]), "curve");
      for (const k of kept) {
        calibration.add("circle", { class: "bin", cx: calibration.x(predicted[k]), cy: calibration.y(observed[k]),
          r: (2 + 6 * Math.sqrt(examples[k] / most)).toFixed(2) });
      }
      calibration.rule();
    };
    const decision = new Figure("decision", "Decision curve", "Threshold probability", "Net benefit");
    decision.place = (values) => [values.threshold, undefined];
    decision.redraw = (one) => {
      const curve = one.net_benefit, top = Math.max(...curve.model, ...curve.treat_all, 1e-3) * 1.08;
      decision.frame([0, 1], [-0.25 * top, top]);
      if (curve.low) decision.band(curve.thresholds, curve.low, curve.high);
      decision.line([0, 1], [0, 0], "chance");
      const seen = curve.treat_all.findIndex((value) => value < -0.25 * top);
      const last = seen < 0 ? curve.treat_all.length : seen;
      decision.line(curve.thresholds.slice(0, last), curve.treat_all.slice(0, last), "all");
      decision.line(curve.thresholds, curve.model, "curve");
      decision.rule();
      decision.caption.textContent = "Blue: the model. Grey: treat all. Dashed: treat none." + (curve.low ? ` Shaded: ${certain} band.` : "");
    };
    figures.push(calibration, decision);
  }
  const gains = new Figure("gains", "Gains", "Selected, of all examples", "Found, of the positives");
  gains.place = (values) => [values.called, values.sensitivity];
  gains.redraw = (one) => {
    const { selected, recall, low, high } = one.cumulative_gains;
    gains.frame([0, 1], [0, 1]);
    if (low) gains.band([0, ...selected], [0, ...low], [0, ...high]);
    gains.line([0, 1], [0, 1], "chance");
    gains.line([0, ...selected], [0, ...recall], "curve");
    gains.marker();
    gains.caption.textContent = `The highest tenth holds ${fixed(one.numbers.lift_top_decile.value, 2)} times as many ` +
      "positives as a random tenth (dashed)." + (low ? ` Shaded: ${certain} band.` : "");
  };
  figures.push(gains);

  // The parts of the page
  const slider = $("threshold"), select = $("class");
  let now = report.classes[0], saying;

  const rates = {};
  for (const [name, title, meaning] of RATES) {
    if (name === "benefit" && !probabilities) continue;
    rates[name] = make("data", { id: `rate-${name}` });
    $("rates").append(make("div", {}, make("dt", {}, title), make("dd", {}, rates[name], make("small", {}, meaning))));
  }
  const put = (element, value, text) => {
    element.setAttribute("value", value === null ? "" : String(value));
    element.textContent = text;
  };

  const follow = () => {
    const values = at(now, +slider.value);
    $("threshold-value").textContent = score(values.threshold);
    for (const [name, element] of Object.entries(rates)) {
      const nobody = (name === "ppv" && values.tp + values.fp <= 0) || (name === "npv" && values.tn + values.fn <= 0);
      put(element, values[name], nobody ? "nobody is called so" : name === "benefit" ? fixed(values[name], 4) : percent(values[name]));
    }
    for (const name of ["tn", "fp", "fn", "tp"]) put($(name), values[name], count(values[name]));
    const p = values.prevalence, all = Math.round(1000 * p);  // whole people, so that the sentence adds up
    const sick = Math.round(1000 * p * values.sensitivity), well = Math.round(1000 * (1 - p) * (1 - values.specificity));
    const text = `Of 1,000 like these, ${fixed(sick + well, 0)} are called positive: ${fixed(sick, 0)} rightly and ` +
      `${fixed(well, 0)} wrongly. Of ${fixed(all, 0)} true positives ${fixed(all - sick, 0)} are missed.`;
    $("words").textContent = text;
    const brief = `Sensitivity ${percent(values.sensitivity)}, specificity ${percent(values.specificity)}`;
    slider.setAttribute("aria-valuetext", `${score(values.threshold)}. ${brief}`);
    clearTimeout(saying);  // a screen reader hears the last of many steps
    saying = setTimeout(() => { $("live").textContent = `Threshold ${score(values.threshold)}. ${brief}. ${text}`; }, 600);
    for (const figure of figures) {
      figure.move(...figure.place(values));
      const [x, y] = figure.place(values);
      figure.say(`${figure.caption.textContent} At the threshold ${score(values.threshold)}: ` + (y === undefined
        ? `${brief}.` : `${figure.xlabel} ${fixed(x, 3)}, ${figure.ylabel} ${fixed(y, 3)}.`));
    }
    for (const button of $("buttons").children) button.setAttribute("aria-pressed", String(button.dataset.index === slider.value));
  };

  const show = (number) => {
    if (number.digits === 0) return count(number.value);
    const range = interval(number, number.digits);
    return fixed(number.value, number.digits) + (range && ` (${range})`);
  };
  const cards = () => CARDS.filter((name) => name in now.numbers).map((name) => {
    const number = now.numbers[name], value = make("data", { value: number.value, id: `card-${name}` }, fixed(number.value, 3));
    const range = interval(number);
    return make("div", {}, make("dt", {}, LONG[name]), make("dd", {}, value, ...(range ? [make("small", {}, `${certain}: ${range}`)] : [])));
  });
  const goals = () => {
    const { threshold } = now.points, nearest = (value) => threshold.reduce(
      (best, other, index) => Math.abs(other - value) < Math.abs(threshold[best] - value) ? index : best, 0);
    const wanted = [["Youden's J", now.numbers.youden_threshold.value], ["Best F1", now.numbers.best_f1_threshold.value]];
    if (threshold[0] <= 0.5 && threshold.at(-1) >= 0.5) wanted.push(["0.5", 0.5]);
    return wanted.map(([name, value]) => {
      const button = make("button", { type: "button", "data-index": nearest(value) }, name);
      button.addEventListener("click", () => { slider.value = button.dataset.index; follow(); });
      return button;
    });
  };
  const table = () => {
    const names = ["threshold", "sensitivity", "specificity", "ppv", "npv", ...(probabilities ? ["benefit"] : []), "tp", "fp", "tn", "fn"];
    const title = { ppv: "PPV", npv: "NPV", benefit: "net benefit", tp: "TP", fp: "FP", tn: "TN", fn: "FN" };
    const head = make("thead", {}, make("tr", {}, ...names.map((name) => make("th", { scope: "col" }, title[name] || name))));
    const rows = now.points.threshold.map((_, index) => {
      const values = at(now, index);
      return make("tr", {}, ...names.map((name, k) => make(k ? "td" : "th", k ? {} : { scope: "row" },
        k === 0 ? score(values.threshold) : name.length === 2 ? count(values[name]) : fixed(values[name], 3))));
    });
    $("table").replaceChildren(head, make("tbody", {}, ...rows));
  };

  const choose = () => {
    now = report.classes[+select.value || 0];
    const points = now.points.threshold.map((_, index) => at(now, index));
    $("cards").replaceChildren(...cards());
    for (const figure of figures) figure.redraw(now, points);
    $("buttons").replaceChildren(...goals());
    slider.max = points.length - 1;
    slider.value = $("buttons").firstChild.dataset.index;
    if ($("table-details").open) table();
    follow();
  };

  const several = report.classes.length > 1;
  const begin = (text) => text[0].toUpperCase() + text.slice(1);
  const clients = report.shares === null ? "" : `, ${fixed(report.shares, 0)} client${report.shares === 1 ? "" : "s"}`;
  $("head").textContent = `${begin(report.task)}${clients}. ${begin(report.privacy)}.`;
  const bounded = "low" in now.numbers.auroc;
  $("certainty").textContent = bounded
    ? `Intervals and bands hold with ${certain} confidence, for ${report.of === "population" ? "the population that the examples were drawn from" : "all clients' own examples"}.`
    : "Counts are exact: there are no intervals for noise, and none for sampling were asked for.";
  if (several) {
    report.classes.forEach((one, index) => select.append(make("option", { value: index }, one.name)));
    $("class-choice").hidden = false;
    select.addEventListener("change", choose);
  }
  const names = Object.keys(now.numbers);
  const head = several ? ["which", ...names.map((name) => now.numbers[name].title)] : ["number", "value", "meaning"];
  const body = several
    ? report.classes.map((one) => [one.name, ...names.map((name) => show(one.numbers[name]))])
    : names.map((name) => [now.numbers[name].title, show(now.numbers[name]), report.meanings[name]]);
  $("numbers").append(
    make("thead", {}, make("tr", {}, ...head.map((title) => make("th", { scope: "col" }, title)))),
    make("tbody", {}, ...body.map((row) => make("tr", {}, ...row.map((cell, k) => make(k ? "td" : "th", k ? {} : { scope: "row" }, cell))))));
  if (several) $("numbers").classList.add("several");
  if (report.statement) {
    for (const [name, words] of report.statement.words) $("statement").append(make("dt", {}, name), make("dd", {}, words));
    $("privacy").hidden = false;
  }
  $("made").textContent = `Made by ${report.package}. This page holds all it needs and sends nothing.`;
  slider.addEventListener("input", follow);
  $("table-details").addEventListener("toggle", () => $("table-details").open && table());
  choose();
})();
