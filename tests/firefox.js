// Node reads this before Playwright, which speaks with Firefox in a later WebDriver BiDi than that of
// Firefox 153: it asks to prefer light pages, which that does not know, and for the name of a download.
const { parse, stringify } = JSON;
JSON.stringify = (value, ...more) =>
  value?.method === "emulation.setMediaFeaturesOverride"
    ? stringify({ id: value.id, method: "session.status", params: {} }) // whose answer nobody reads
    : stringify(value, ...more);
JSON.parse = (...text) => {
  const value = parse(...text);
  if (value?.method?.startsWith("browsingContext.download")) value.params.download ??= value.params.url;
  return value;
};
