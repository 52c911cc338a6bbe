// Contrast of every text with what is behind it, and of every line colour with the page.
const light = (colour) => {
  const [r, g, b] = colour.match(/[\d.]+/g).slice(0, 3).map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
const paper = (node) => { for (let at = node; at; at = at.parentElement) { const c = getComputedStyle(at).backgroundColor; if (!c.endsWith(", 0)")) return c; } };
const probe = document.createElement("i"); document.body.append(probe);
const lines = [..."01234567"].map((k) => "--c" + k).concat("--gain", "--lose", "--open", "--bar", "--soft").map((name) => {
  probe.style.color = getComputedStyle(document.documentElement).getPropertyValue(name); return [name, ratio(getComputedStyle(probe).color, paper(document.body))]; });
probe.remove();
const texts = [...document.querySelectorAll("h1, h2, p, a, dt, dd, label, button, select, th, td, summary, caption, li, svg text")].filter((e) => e.getClientRects().length).map((e) =>
  [e.tagName + ": " + e.textContent.slice(0, 30), ratio(e.namespaceURI.endsWith("svg") ? getComputedStyle(e).fill : getComputedStyle(e).color, paper(e.closest("div, section, body, header")))]);
return { texts, lines };
