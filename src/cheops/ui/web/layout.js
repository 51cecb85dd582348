// Positions of sites on the map: this site in the middle, the others around it, at a distance that grows with the
// round-trip time. The steps are coarse, so that small changes of a round-trip time do not move a site.

const NEAREST = 0.62;

/** Positions within -1…1 by name. `others`: [{name, rtt_ms}], in the order in which they go round. */
export function placed(here, others) {
  const steps = others.map((one) => (one.rtt_ms === null ? null : Math.round(Math.log2(Math.max(1, one.rtt_ms)) / 1.5)));
  const known = steps.filter((step) => step !== null);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const far = (step) => (step === null || high === low ? 1 : NEAREST + ((1 - NEAREST) * (step - low)) / (high - low));
  const few = others.length <= 2;
  const found = new Map([[here, few ? [0, others.length ? -0.9 : 0] : [0, 0]]]);
  others.forEach((one, n) => {
    if (few) found.set(one.name, [others.length === 1 ? 0 : n ? 0.9 : -0.9, 0.85]);
    else found.set(one.name, around(n, others.length).map((v) => v * far(steps[n])));
  });
  return found;
}

function around(n, count) {
  const angle = Math.PI * (2 * (n / count) - 0.5);
  return [Math.cos(angle), Math.sin(angle)];
}
