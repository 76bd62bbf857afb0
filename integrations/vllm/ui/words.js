// What numbers, states and reasons are called on the page, and how text of others becomes a node;
// events bring their own sentence.

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (value) => (Math.abs(value) < 1e6 ? whole.format(value) : short.format(value));
export const compact = (value) => (value < 1e4 ? whole.format(value) : short.format(value));
export const share = (part, all) => (all ? `${Math.round((100 * part) / all)} %` : "–");
export const plural = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;
export const sum = (values) => Object.values(values ?? {}).reduce((all, value) => all + value, 0);
export const listed = (parts) => parts.filter(Boolean).join(", ");

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.9995) return `${Math.round(1000 * value)} ms`;
  if (value < 9.95) return `${value.toFixed(1)} s`;
  if (value < 119.5) return `${Math.round(value)} s`;
  if (value < 599) return `${(value / 60).toFixed(1)} min`;
  return value < 7200 ? `${Math.round(value / 60)} min` : `${(value / 3600).toFixed(1)} h`;
}

// Controls and characters that hide or reorder text are shown as escapes, as agentkv/visible.py does.
const SUSPECT = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0]/gu;
const visible = (text) => String(text).replace(SUSPECT, (char) => `\\u${char.codePointAt(0).toString(16).padStart(4, "0")}`);

export function setText(node, text) {
  const shown = visible(text);
  if (node.textContent !== shown) node.textContent = shown;
}

export function element(name, className = "", text = "") {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text) setText(made, text);
  return made;
}

const LOST = {
  expired: "the TTL ran out",
  slow: "its tool is too slow to wait for",
  no_tool_call: "its last reply calls no tool",
  pressure: "memory went to others",
  lease: "its lease ran out",
  released: "its client released it",
  last_step: "its last turn has ended",
  aborted: "its turn was aborted",
  reset: "the prefix cache was reset",
};

// Ends of a pin that cost memory in vain, as in `agentkv record`; of jobs that ended none is one.
export const WASTED = ["expired", "slow", "lease", "forgotten", "pressure"];

// Lines of the decision list by event; `pinned`, `decision` and `unpinned` are one line of a pin.
const KINDS = { pinned: "pins", decision: "pins", unpinned: "pins", held: "waits", due: "waits", preempted: "losses", trimmed: "losses", closed: "ends" };

export function decision(event) {
  const isLoss = event.event === "unpinned" ? ["pressure", "expired"].includes(event.reason) : Boolean(event.miss);
  const kind = isLoss ? "losses" : KINDS[event.event];
  return kind && { kind, isLoss: kind === "losses" };
}

const MAX_COMMAND = 160;

export function why(job) {
  if (job.state === "waiting" || job.state === "over") return job.why ?? "";
  const usual = job.predicted_p50_s === null ? "" : `usually ${seconds(job.predicted_p50_s)} to ${seconds(job.predicted_p90_s)}`;
  const tool = listed([(job.command ?? job.last_tool)?.slice(0, MAX_COMMAND), usual]);
  if (job.state === "evicted") return [LOST[job.why] ?? job.why, job.is_tool_running ? tool : ""].filter(Boolean).join("; ");
  if (job.state === "running") return job.expected_turns ? `of ${plural(job.expected_turns, "expected turn")}` : "";
  const left = job.ttl_left_s === null ? "" : `${plural(job.blocks, "block")} pinned for ${seconds(job.ttl_left_s)} more`;
  return [tool, left].filter(Boolean).join("; ");
}
