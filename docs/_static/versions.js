// Fills the menu of versions from switcher.json, which lies beside the folders of the versions.
// Opened as a file, a page cannot read it, and the menu stays hidden.
document.addEventListener("DOMContentLoaded", async () => {
  const menu = document.getElementById("versions");
  const root = new URL("..", new URL(document.documentElement.dataset.content_root || "./", location));
  if (!menu || !location.protocol.startsWith("http")) return;
  const response = await fetch(new URL("switcher.json", root));
  if (!response.ok) return;
  const versions = await response.json();
  const current = new URL(document.documentElement.dataset.content_root || "./", location).pathname;
  for (const version of versions) {
    const address = new URL(version.url, root);
    menu.add(new Option(version.name, address, false, address.pathname === current));
  }
  menu.hidden = versions.length < 2;
  menu.addEventListener("change", () => { location.href = menu.value; });
});
