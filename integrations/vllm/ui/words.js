// What numbers, states and reasons are called on the page; events bring their own sentence.

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (value) => (Math.abs(value) < 1e6 ? whole.format(value) : short.format(value));
export const compact = (value) => (value < 1e4 ? whole.format(value) : short.format(value));
export const share = (part, all) => (all ? `${((100 * part) / all).toFixed(part === all ? 0 : 1)} %` : "–");
export const plural = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;
export const sum = (values) => Object.values(values ?? {}).reduce((all, value) => all + value, 0);

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 120) return `${Math.round(value)} s`;
  return value < 7200 ? `${Math.round(value / 60)} min` : `${(value / 3600).toFixed(1)} h`;
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
const whyLost = (reason) => LOST[reason] ?? reason ?? "";

// Events that are decisions: their kind, and whether they cost something.
const DECISIONS = {
  held: { kind: "waits" },
  due: { kind: "waits" },
  preempted: { kind: "losses", isLoss: true },
  evicted: { kind: "losses", isLoss: true },
  trimmed: { kind: "losses", isLoss: true },
  pinned: { kind: "" },
  decision: { kind: "predictions" },
  unpinned: { kind: "" },
  closed: { kind: "" },
};

export function decision(event) {
  const isLoss = event.event === "unpinned" && ["pressure", "expired"].includes(event.reason);
  return isLoss ? DECISIONS.evicted : DECISIONS[event.event];
}

export function waiting(job) {
  if (job.state === "waiting") return job.why ?? "";
  const predicted = job.predicted_p50_s !== null
    ? `${seconds(job.predicted_p50_s)} to ${seconds(job.predicted_p90_s)} predicted` : "";
  const tool = [job.command ?? job.tool, predicted].filter(Boolean).join(", ");
  if (job.state === "evicted") return [whyLost(job.why), job.is_tool_running ? tool : ""].filter(Boolean).join("; ");
  if (job.state === "tool" || job.state === "held") {
    const left = job.ttl_left_s === null ? "" : `held for ${seconds(job.ttl_left_s)} more`;
    return [tool, left].filter(Boolean).join("; ");
  }
  return job.expected_turns ? `of ${plural(job.expected_turns, "expected turn")}` : "";
}
