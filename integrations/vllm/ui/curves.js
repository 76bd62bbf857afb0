// Totals of the last half hour, a sample each 15 s, and the means and curves between them.
// They are kept in the tab, so that a reload loses none; nothing is asked of the server for them.

import { SVG } from "./lanes.js";

const SPAN_S = 1800;
export const MEAN_S = 300; // over which the figures beside the curves are means
const STEP_S = 15;
const STORE = "agentkv-curves";

// Numbers of all engines together; what counts from the server's start only grows.
export function sampleOf(engines) {
  const all = (pick) => engines.reduce((total, engine) => total + (pick(engine.stats) ?? 0), 0);
  const sample = { at: Math.max(...engines.map((engine) => engine.at_s)), first: {}, later: {} };
  for (const which of ["first", "later"]) {
    sample[which] = {
      turns: all((stats) => stats.finished_turns_total?.[which]),
      ttft: all((stats) => stats.ttft_seconds_total?.[which]),
      took: all((stats) => stats.turn_seconds_total?.[which]),
      tokens: all((stats) => stats.output_tokens_total?.[which]),
    };
  }
  sample.running = all((stats) => stats.num_running);
  sample.waiting = all((stats) => stats.num_waiting);
  return sample;
}

export class Curves {
  constructor() {
    const stored = sessionStorage.getItem(STORE);
    this.samples = stored ? JSON.parse(stored) : [];
    this.now = null;
  }

  take(engines) {
    const sample = (this.now = sampleOf(engines));
    const last = this.samples.at(-1);
    const turns = (each) => each.first.turns + each.later.turns;
    if (last && (sample.at < last.at || turns(sample) < turns(last))) this.samples = []; // it was restarted
    if (this.samples.length && sample.at - this.samples.at(-1).at < STEP_S) return;
    this.samples.push(sample);
    this.samples = this.samples.filter((each) => sample.at - each.at <= SPAN_S + STEP_S);
    sessionStorage.setItem(STORE, JSON.stringify(this.samples));
  }

  // The sample that the figures count from; none if they count from the server's start.
  get base() {
    return this.samples.findLast((each) => this.now.at - each.at >= MEAN_S);
  }

  // Mean of a turn's `part` since then: of first turns, or of later ones.
  mean(which, part) {
    return ratio(this.base, this.now, which, part);
  }

  // Generated tokens a second since then, or up to one sample.
  rate(from = this.base, to = this.now) {
    const tokens = (each) => (each ? each.first.tokens + each.later.tokens : 0);
    const took = to.at - (from?.at ?? 0);
    return took > 0 ? (tokens(to) - tokens(from)) / took : null;
  }

  // Values of each step, [seconds ago, value]; null where there is none.
  steps(pick) {
    return this.samples.slice(1).map((sample, index) => [this.now.at - sample.at, pick(this.samples[index], sample)]);
  }
}

// Times of the turns that ended in the last five minutes, as far as the page saw them arrive.
export class TurnTimes {
  constructor() {
    this.arrived = new Map(); // by engine and job: when turns arrived that have not ended
    this.ended = [];
  }

  take({ engine, at_s: now }, events) {
    for (const { event, job_id: job, at_s: at, turn, ttft_s: ttft } of events) {
      const key = JSON.stringify([engine, job]);
      if (event === "arrival") this.arrived.set(key, [...(this.arrived.get(key) ?? []), at]);
      if (event === "closed") this.arrived.delete(key);
      if (event !== "finish" && event !== "aborted") continue;
      const took = at - this.arrived.get(key)?.shift();
      if (event === "finish" && took >= 0) this.ended.push({ engine, at, which: turn === 1 ? "first" : "later", took, ttft: ttft ?? took });
    }
    this.ended = this.ended.filter((each) => each.engine !== engine || (each.at <= now && now - each.at <= MEAN_S));
  }

  // Median and 0.99 quantile of first or of later turns, and their number; null without one.
  spread(which, part) {
    const ranked = this.ended.filter((each) => each.which === which).map((each) => each[part]).sort((a, b) => a - b);
    const at = (place) => ranked[Math.floor(place)] + (place % 1) * (ranked[Math.ceil(place)] - ranked[Math.floor(place)]);
    return ranked.length ? { n: ranked.length, p50: at((ranked.length - 1) / 2), p99: at(0.99 * (ranked.length - 1)) } : null;
  }
}

export function ratio(from, to, which, part) {
  const turns = to[which].turns - (from?.[which].turns ?? 0);
  return turns > 0 ? (to[which][part] - (from?.[which][part] ?? 0)) / turns : null;
}

// Draws lines of [seconds ago, value] over the time that is known, half an hour at most and 5 minutes
// at least; the scale begins at 0.
export function drawCurves(svg, lines, label) {
  const known = lines.map((line) => line.filter(([, value]) => value !== null));
  const span = Math.min(SPAN_S, Math.max(MEAN_S, ...lines.flat().map(([ago]) => ago)));
  const most = Math.max(...known.flat().map(([, value]) => value), 1e-9);
  const paths = known.map((line, index) => {
    const path = document.createElementNS(SVG, "path");
    const place = ([ago, value]) => `${((100 * (span - ago)) / span).toFixed(1)} ${(38 - (36 * value) / most).toFixed(1)}`;
    path.setAttribute("class", `line-${index}`);
    path.setAttribute("d", line.length ? `M${line.map(place).join("L")}${line.length === 1 ? "h.5" : ""}` : "");
    return path;
  });
  svg.replaceChildren(...paths);
  svg.setAttribute("aria-label", `${label}, last ${Math.round(span / 60)} minutes, highest ${most.toPrecision(2)}`);
}

export function curveImage() {
  const svg = document.createElementNS(SVG, "svg");
  for (const [name, value] of [["class", "curve"], ["viewBox", "0 0 100 40"], ["preserveAspectRatio", "none"], ["role", "img"]]) svg.setAttribute(name, value);
  return svg;
}
